//! The state that the lanes of one connection share: the memory that each side may reach, and whether it is over.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::check::check;
use super::hello::{Lane, Terms};
use super::socket::Socket;
use super::wire::{Kind, MAX_WORDS, Request};
use crate::cuda::Gpu;
use crate::mem::RemoteSlice;
use crate::transport::doorbell::Doorbell;
use crate::transport::wireup::Grant;
use crate::transport::{Disconnected, PayloadSlice};

/// Takes a lock whose holder never leaves its data half done, so that a holder that panicked did no harm.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection, as its endpoint, its heartbeat words and the progress thread see it.
pub(super) struct Connection {
    /// Tells it from the others of this process.
    pub(super) id: u64,
    /// The terms of the memory that the peer may reach here.
    pub(super) ours: Terms,
    /// The memory behind `ours.grants`, in the same order.
    pub(super) memory: Vec<PayloadSlice>,
    /// The copies where this side's memory is on a GPU.
    pub(super) gpu: Option<Gpu>,
    /// The terms of the memory that this side may reach at the peer.
    pub(super) theirs: Terms,
    /// The doorbell of the owner of `memory`, if it is to be woken.
    doorbell: OnceLock<Arc<Doorbell>>,
    over: OnceLock<Disconnected>,
    /// Lanes for this side's own requests that the peer has dialled and the endpoint has not taken yet.
    reverse_data: Mutex<Option<Socket>>,
    reverse_heartbeat: Mutex<Option<Socket>>,
    /// The owner wakes the peer.
    wakes: AtomicBool,
    /// The silence that the owner allows the peer, in milliseconds; 0 until it says so.
    silence: AtomicU64,
    /// One more than the arrivals of heartbeats that were noticed, if the owner goes by their number, and 0 if not. On
    /// a cache line of its own: the progress thread writes it while the owner reads the rest.
    arrivals: CachePadded<AtomicU64>,
}

impl Connection {
    pub(super) fn new(ours: Terms, memory: Vec<PayloadSlice>, theirs: Terms, gpu: Option<Gpu>) -> Connection {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Connection {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            ours,
            memory,
            gpu,
            theirs,
            doorbell: OnceLock::new(),
            over: OnceLock::new(),
            reverse_data: Mutex::default(),
            reverse_heartbeat: Mutex::default(),
            wakes: AtomicBool::new(false),
            silence: AtomicU64::new(0),
            arrivals: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Has the progress thread wake the peer once it looks at [`take_wakes`](Self::take_wakes).
    pub(super) fn wake(&self) {
        self.wakes.store(true, Ordering::Release);
    }

    pub(super) fn take_wakes(&self) -> bool {
        self.wakes.load(Ordering::Relaxed) && self.wakes.swap(false, Ordering::Acquire)
    }

    /// The owner waits for a peer that is silent for so long. Lanes that come later are made for that.
    pub(super) fn allow_silence(&self, silence: Duration) {
        self.silence.store(u64::try_from(silence.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
        for lane in [Lane::ReverseData, Lane::ReverseHeartbeat] {
            self.reverse(lane).iter().for_each(|socket| socket.allow_silence(silence));
        }
    }

    /// Has a lane allow as much silence as the owner does.
    pub(super) fn allow_silence_on(&self, lane: &Socket) {
        match self.silence.load(Ordering::Acquire) {
            0 => {}
            silence => lane.allow_silence(Duration::from_millis(silence)),
        }
    }

    /// Counts arrivals on the lane for heartbeats from now on.
    pub(super) fn count_arrivals(&self) {
        // Where it is counted already nothing changes.
        let _counted = self.arrivals.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A number that has changed if something has arrived on that lane, if that is counted.
    #[inline]
    pub(super) fn arrivals(&self) -> Option<u64> {
        Some(self.arrivals.load(Ordering::Relaxed)).filter(|arrivals| *arrivals > 0)
    }

    /// Something has arrived on that lane: false if it is not counted. For the progress thread alone.
    #[inline]
    pub(super) fn add_arrival(&self) -> bool {
        let arrivals = self.arrivals();
        arrivals
            .inspect(|count| self.arrivals.store(count.wrapping_add(1).max(1), Ordering::Relaxed))
            .is_some()
    }

    /// Has requests that notify ring this.
    pub(super) fn set_doorbell(&self, doorbell: Arc<Doorbell>) {
        // A connection is made once, and has one listener.
        let _first = self.doorbell.set(doorbell);
    }

    #[inline]
    pub(super) fn ring(&self) {
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.ring();
        }
    }

    /// Ends it: everything from now on says `reason`, unless there was one before.
    pub(super) fn fail(&self, reason: &'static str) {
        if self.over.set(Disconnected { reason }).is_ok() {
            tracing::debug!(reason, "tcp peer disconnected");
        }
    }

    /// Returns the reason why it is over, if it is.
    #[inline]
    pub(super) fn over(&self) -> Option<&Disconnected> {
        self.over.get()
    }

    pub(super) fn check(&self) -> Result<(), Disconnected> {
        self.over().cloned().map_or(Ok(()), Err)
    }

    /// Returns the field through which a reverse lane is handed over. It is locked until the peer may know that the
    /// lane stands, so that a thread that hears of the lane from the peer finds it here.
    pub(super) fn reverse(&self, lane: Lane) -> MutexGuard<'_, Option<Socket>> {
        lock(if lane == Lane::ReverseHeartbeat { &self.reverse_heartbeat } else { &self.reverse_data })
    }

    /// True if `word` is one aligned word that the peer lets this side write.
    pub(super) fn is_writable_word(&self, word: &RemoteSlice) -> bool {
        let request = Request { bytes: word.len, ..words(0, self.theirs.blob.epoch, word, &[0]) };
        word.len == 8 && check(&self.theirs.grants, self.theirs.blob.epoch, &request).is_some()
    }

    /// The bytes of the longest range that this side may reach at the peer.
    pub(super) fn longest_grant(&self) -> usize {
        let longest = self.theirs.grants.iter().map(|grant| grant.bytes).max();
        longest.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX)
    }

    /// Returns the grants of memory that the peer may reach here.
    pub(super) fn grants(&self) -> &[Grant] {
        &self.ours.grants
    }
}

/// A request that sets words, and asks for no answer.
pub(super) fn words(sequence: u64, epoch: u64, to: &RemoteSlice, values: &[u64]) -> Request {
    let mut words = [0; MAX_WORDS];
    words[..values.len()].copy_from_slice(values);
    Request {
        kind: Kind::Words,
        answer: false,
        notify: false,
        sequence,
        epoch,
        key: to.key,
        offset: to.offset,
        bytes: to.len,
        words,
        count: values.len() as u8,
    }
}
