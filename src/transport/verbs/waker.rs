//! The wakers of a listener, one for each of its devices, which wake its sleeping owner: peers' requests that are to be
//! noticed ring that of the device by which they come.
//!
//! A WRITE with immediate data uses up a receive of the queue pair that serves it, and completes there. The completions
//! of many pairs go to one queue, and all queues of a device share one channel, whose descriptor a thread can wait for:
//! to wake up costs calls for the queues that have something to say, however many peers are silent.
//!
//! Each pair has receives of its own, and a peer spends no more than it was told of: they are posted again when it is
//! told. One that arrives where none is posted holds up its connection, and in the end breaks it. Were the receives
//! shared, a peer that spends too many would break the connections of the others.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use smallvec::SmallVec;

use super::device::{Device, lock};
use super::queue_pair::{CompletionQueue, POLLED_AT_ONCE, QueuePair};
use super::sys;

/// Instead of a sleep that the device ends at once.
const NAP: Duration = Duration::from_millis(1);

/// Completions for which a queue has room, if the device has so many: the receives of 64 pairs.
const QUEUE_ENTRIES: u32 = 64 * super::queue_pair::RECEIVES as u32;

/// A completion channel.
pub(super) struct CompletionChannel {
    device: Arc<Device>,
    raw: NonNull<sys::ibv_comp_channel>,
}

// SAFETY: the library's calls on a channel may come from any thread, and it is destroyed once.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    fn new(device: &Arc<Device>) -> io::Result<Arc<CompletionChannel>> {
        // SAFETY: the device is open.
        let raw = unsafe { (device.library.create_comp_channel)(device.context()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = CompletionChannel { device: Arc::clone(device), raw };
        rustix::io::ioctl_fionbio(channel.events(), true)?;
        Ok(Arc::new(channel))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_comp_channel {
        self.raw.as_ptr()
    }

    fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and with it this descriptor.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// The serial of the next queue that has something to say, if there is one. It says so once, until it is armed.
    fn next(&self) -> Option<usize> {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let get = self.device.library.get_cq_event;
        // SAFETY: the channel lives, and both pointers are valid.
        if unsafe { get(self.raw(), &raw mut queue, &raw mut context) } != 0 {
            return None;
        }
        // SAFETY: the queue of an event that was not acknowledged yet lives: destroying it waits for that.
        unsafe { (self.device.library.ack_cq_events)(queue, 1) };
        Some(context.addr())
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if !self.device.is_inherited() {
            // SAFETY: its completion queues hold it, so it is destroyed last, and once.
            let errno = unsafe { (self.device.library.destroy_comp_channel)(self.raw()) };
            if errno != 0 {
                tracing::warn!(
                    device = self.device.name,
                    errno,
                    "a completion channel could not be destroyed"
                );
            }
        }
    }
}

/// The waker of one device of a listener.
pub(super) struct Waker {
    channel: Arc<CompletionChannel>,
    /// Completions for which each queue has room.
    entries: u32,
    queues: Mutex<Vec<WakerQueue>>,
}

/// A completion queue, and the pairs whose completions go there, by their numbers.
struct WakerQueue {
    completions: Arc<CompletionQueue>,
    pairs: HashMap<u32, Arc<QueuePair>>,
}

impl WakerQueue {
    /// Takes what has completed, and counts the receives of each pair that were used.
    fn take(&self) {
        // The number of a pair, its receives that were used, and whether it is over.
        let mut used: SmallVec<[(u32, u16, bool); POLLED_AT_ONCE]> = SmallVec::new();
        let mut completions = [sys::ibv_wc::default(); POLLED_AT_ONCE];
        while let Ok(taken) = self.completions.poll(&mut completions)
            && !taken.is_empty()
        {
            for completion in taken {
                let is_over = completion.status != sys::IBV_WC_SUCCESS;
                match used.iter_mut().find(|(number, ..)| *number == completion.qp_num) {
                    Some((_, count, was_over)) => (*count, *was_over) = (*count + 1, *was_over | is_over),
                    None => used.push((completion.qp_num, 1, is_over)),
                }
            }
        }
        for (number, count, is_over) in &used {
            // A pair that is over gives all back, and needs none. That it is over its owner learns from the device or
            // from the peer.
            if let (Some(pair), false) = (self.pairs.get(number), is_over) {
                pair.count_used(*count);
            }
        }
    }
}

impl Waker {
    /// `most` is the number of completions for which a queue of the device has room.
    pub(super) fn new(device: &Arc<Device>, most: u32) -> io::Result<Arc<Waker>> {
        let (channel, entries) = (CompletionChannel::new(device)?, QUEUE_ENTRIES.min(most));
        Ok(Arc::new(Waker { channel, entries, queues: Mutex::default() }))
    }

    /// A queue with room for the completions of one more pair, which has so many receives.
    pub(super) fn queue(&self, receives: u16) -> io::Result<Arc<CompletionQueue>> {
        let pairs = (self.entries / u32::from(receives.max(1))).max(1) as usize;
        let mut queues = lock(&self.queues);
        let device = &self.channel.device;
        // Each of its pairs holds it, until it is destroyed.
        let has_room = |queue: &&WakerQueue| {
            let is_over = device.broken_queue(queue.completions.serial).is_some();
            Arc::strong_count(&queue.completions) <= pairs && !is_over
        };
        if let Some(queue) = queues.iter().find(has_room) {
            return Ok(Arc::clone(&queue.completions));
        }
        let entries = self.entries.max(receives.into());
        let completions = Arc::new(CompletionQueue::new(device, entries, Some(Arc::clone(&self.channel)))?);
        completions.arm();
        queues.push(WakerQueue { completions: Arc::clone(&completions), pairs: HashMap::new() });
        Ok(completions)
    }

    /// Waits for this pair, too, which serves no peer yet. It was made with a queue of this waker.
    pub(super) fn add(&self, pair: &Arc<QueuePair>) {
        let mut queues = lock(&self.queues);
        if let Some(queue) =
            queues.iter_mut().find(|queue| queue.completions.serial == pair.completions.serial)
        {
            // What is left there of a pair that had the same number is not this one's.
            queue.take();
            queue.pairs.insert(pair.number(), Arc::clone(pair));
        }
    }

    /// Waits for it no longer: when this returns, the waker does not hold the pair any more.
    pub(super) fn remove(&self, pair: &Arc<QueuePair>) {
        for queue in lock(&self.queues).iter_mut() {
            queue.pairs.retain(|_, known| !Arc::ptr_eq(known, pair));
        }
    }

    /// Asks to be told of the next request again where one was told of; whether there were some since the last time.
    fn answer(&self) -> bool {
        // Each queue tells once, until it is armed here again: more than that is for the next call, so that peers which
        // go on sending do not keep this one from ending.
        let most = lock(&self.queues).len();
        let mut has_some = false;
        for serial in std::iter::from_fn(|| self.channel.next()).take(most) {
            // Also where another thread, which made a pair, has taken what there is to be told of.
            has_some = true;
            let queues = lock(&self.queues);
            if let Some(queue) = queues.iter().find(|queue| queue.completions.serial == serial) {
                // First: what comes after the look is told of.
                queue.completions.arm();
                queue.take();
            }
        }
        has_some
    }
}

/// Sleeps until a request that is to be noticed by one of these wakers is done, or one of `others` can be read, but no
/// longer than `timeout`. What was done since the last call ends it at once.
pub(super) fn wait(wakers: &[Arc<Waker>], others: &[BorrowedFd<'_>], timeout: Duration) {
    // Each of them answers, whatever the others have.
    let answer = || wakers.iter().filter(|waker| waker.answer()).count() > 0;
    if answer() {
        return;
    }
    let events = wakers.iter().map(|waker| waker.channel.events()).chain(others.iter().copied());
    let sources = events.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
    let mut sources: SmallVec<[PollFd<'_>; 4]> = sources.collect();
    // What is longer than the system can count is for ever.
    let limit = rustix::time::Timespec::try_from(timeout).ok();
    // Interrupted or refused, it is only a shorter wait.
    let _ready = rustix::event::poll(&mut sources, limit.as_ref());
    let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    if sources.iter().take(wakers.len()).any(|source| source.revents().intersects(gone)) {
        // A device is gone, which its owner finds out elsewhere: this ends every wait from now on.
        std::thread::sleep(timeout.min(NAP));
    }
    answer();
}
