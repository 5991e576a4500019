//! A reader as its Python objects share it: copies, and the one pin.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use slackline::internals::mem::ForkGuard;
use slackline::internals::node::Backoff;
use slackline::internals::param::PinError;
use slackline::scheme::Bound;
use slackline::{Error, Fresh, Mixed, Reader, Version};

use crate::errors::Failure;
use crate::lease::Lease;
use crate::memory::Memory;
use crate::snapshot::Facts;

/// A reader with its copies. A copy that no snapshot holds any more is used again.
pub(crate) struct Reading {
    pub(crate) reader: Reader<Mixed>,
    copies: Vec<Arc<Memory>>,
    /// The copy that the reader writes.
    registered: Option<Arc<Memory>>,
    /// The newest copy, and what is known of it.
    newest: Option<(Facts, Arc<Lease>)>,
    /// True if the publisher's memory is mapped into this process.
    pub(crate) is_mapped: bool,
}

/// What a pull asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The most versions behind the newest, where that was given. Otherwise the newest when the call began.
    pub(crate) max_staleness: Option<u64>,
    pub(crate) at_least: u64,
}

impl Wanted {
    /// The oldest version that will do when `newest` is the newest.
    pub(crate) fn oldest(&self, newest: u64) -> u64 {
        self.at_least.max(newest.saturating_sub(self.max_staleness.unwrap_or(0)))
    }

    /// The error of a pull that has not ended within `waited`.
    pub(crate) fn late(&self, waited: Duration, newest: u64) -> Failure {
        let (operation, version) = ("waiting for a version", |number| Bound::version(Version::new(number)));
        let (needed, seen) = (version(self.oldest(newest)), version(newest));
        Error::Deadline { operation, waited, needed, seen }.into()
    }
}

/// A pull that is under way. It is moved on in slices.
pub(crate) struct Pulling {
    wanted: Wanted,
    /// The newest version that was seen.
    pub(crate) newest: u64,
    copy: Option<Arc<Memory>>,
}

impl Pulling {
    pub(crate) fn new(wanted: Wanted) -> Pulling {
        Pulling { wanted, newest: 0, copy: None }
    }

    /// Goes on for so long at most.
    pub(crate) fn go_on(
        &mut self,
        reading: &mut Reading,
        slice: Duration,
    ) -> Result<Option<(Facts, Arc<Lease>)>, Failure> {
        let copy = match &self.copy {
            Some(copy) => Arc::clone(copy),
            None => {
                let Some(newest) = newest_from(&mut reading.reader, self.wanted.at_least, slice)? else {
                    return Ok(None);
                };
                self.newest = newest;
                if let Some((facts, lease)) = &reading.newest
                    && facts.version >= self.wanted.oldest(newest)
                {
                    let staleness = newest.saturating_sub(facts.version);
                    return Ok(Some((Facts { staleness, ..*facts }, Arc::clone(lease))));
                }
                let copy = reading.spare()?;
                match self.wanted.max_staleness {
                    // No older than what is asked for, though more staleness was allowed.
                    Some(most) => reading.reader.begin_refresh(most.min(newest - self.wanted.at_least)),
                    None => reading.reader.begin_refresh_to(Version::new(self.wanted.oldest(newest))),
                }
                self.copy.insert(copy).clone()
            }
        };
        let Some(Fresh { version, behind, epoch, .. }) = reading.reader.continue_refresh(slice)? else {
            return Ok(None);
        };
        let facts = Facts { version: version.get(), epoch, staleness: behind };
        let lease = Lease::new(copy.pointer(), reading.reader.payload_bytes(), copy);
        let pulled = (facts, Arc::new(lease));
        reading.newest = Some(pulled.clone());
        Ok(Some(pulled))
    }
}

/// The newest version's number, once it is at least this one; `None` if it is not within the slice.
pub(crate) fn newest_from(
    reader: &mut Reader<Mixed>,
    at_least: u64,
    slice: Duration,
) -> Result<Option<u64>, Failure> {
    let deadline = Instant::now() + slice;
    let mut backoff = Backoff::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match reader.newest(left) {
            Ok(newest) if newest.get() >= at_least => return Ok(Some(newest.get())),
            Ok(_) if left.is_zero() => return Ok(None),
            Ok(_) => backoff.wait(),
            Err(Error::Deadline { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Reading {
    pub(crate) fn new(mut reader: Reader<Mixed>) -> Reading {
        let asked = reader.hold(Bound::NONE, Duration::ZERO);
        let is_mapped = !matches!(asked, Err(Error::Pin { source: PinError::NotMapped, .. }));
        reader.release();
        Reading { reader, copies: Vec::new(), registered: None, newest: None, is_mapped }
    }

    /// A copy that no snapshot holds, made the one that the reader writes.
    fn spare(&mut self) -> Result<Arc<Memory>, Failure> {
        // Nobody but this reader holds it any more.
        if self.newest.as_ref().is_some_and(|(_, lease)| Arc::strong_count(lease) == 1) {
            self.newest = None;
        }
        let registered = self.registered.as_ref();
        let is_registered = |copy: &Arc<Memory>| registered.is_some_and(|ours| Arc::ptr_eq(ours, copy));
        // Of a copy there is one reference here, and two more where the reader has it.
        let is_free = |copy: &&Arc<Memory>| Arc::strong_count(copy) == if is_registered(copy) { 3 } else { 1 };
        let bytes = self.reader.payload_bytes();
        let copy = match self.copies.iter().filter(is_free).max_by_key(|copy| is_registered(copy)) {
            Some(copy) if is_registered(copy) => return Ok(Arc::clone(copy)),
            Some(copy) => Arc::clone(copy),
            None => Arc::new(Memory::new(bytes)?),
        };
        self.reader.use_memory(copy.lend(bytes))?;
        self.registered = Some(Arc::clone(&copy));
        // Copies that snapshots alone keep are forgotten, and freed with them.
        self.copies.retain(|copy| Arc::strong_count(copy) == 1);
        self.copies.push(Arc::clone(&copy));
        Ok(copy)
    }
}

/// What the objects of one reader share.
pub(crate) struct Shared {
    pub(crate) reading: Mutex<Option<Reading>>,
    /// True while a version is pinned.
    pub(crate) is_pinned: AtomicBool,
    /// The pin has ended, and is to be let go by whoever can lock the reader.
    has_ended: AtomicBool,
    /// Threads of Python that wait for another one's call.
    pub(crate) waiting: AtomicUsize,
    /// Waits of other threads are to end.
    pub(crate) closes: AtomicBool,
    pub(crate) guard: ForkGuard,
}

impl Shared {
    pub(crate) fn new(reader: Reader<Mixed>) -> Shared {
        Shared {
            reading: Mutex::new(Some(Reading::new(reader))),
            is_pinned: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            closes: AtomicBool::new(false),
            guard: ForkGuard::new(),
        }
    }

    /// The pin has ended. If another thread is in a call of the reader, that thread lets it go.
    pub(crate) fn unpin(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.settle();
    }

    /// Lets go of a pin that has ended. Called whenever the reader was unlocked.
    pub(crate) fn settle(&self) {
        if self.guard.is_inherited() || !self.has_ended.load(Ordering::SeqCst) {
            return;
        }
        let mut reading = match self.reading.try_lock() {
            Ok(reading) => reading,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if self.has_ended.swap(false, Ordering::SeqCst) {
            if let Some(reading) = &mut *reading {
                reading.reader.release();
            }
            self.is_pinned.store(false, Ordering::SeqCst);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // In a forked child its threads are not there, and its connection is the parent's.
        if self.guard.is_inherited() {
            std::mem::forget(self.reading.get_mut().map_or(None, Option::take));
        }
    }
}
