//! A reader as its Python objects share it: the newest snapshot, and the one pin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use pyo3::{PyResult, Python};

use slackline::gpu::{Gpu, GpuMemory};
use slackline::internals::mem::ForkGuard;
use slackline::internals::node::Awaited;
use slackline::internals::param::{PinCheck, PinError};
use slackline::scheme::Bound;
use slackline::weights::{Reader, Wanted};
use slackline::{Error, Version};

use crate::errors::{Class, Failure};
use crate::fabric::NamedFabric;
use crate::gpu;
use crate::lease::{Lease, Written};
use crate::record::{Asked, Reads};
use crate::snapshot::Facts;
use crate::turns::Turns;
use crate::wait::{Closing, Deadline};

pub(crate) const PULLING: &str = "pulling a version";
pub(crate) const PINNING: &str = "pinning a version";

/// A reader with the newest version that it has copied.
pub(crate) struct Reading {
    pub(crate) reader: Reader<NamedFabric>,
    newest: Option<(Facts, Arc<Lease>)>,
    /// Of the memory of the last copy, if the reader's next copy may begin from what is in there.
    base: Option<Written>,
    /// The newest version that a read has brought that did not ask for one by its number: no later one goes back.
    brought: u64,
    /// The read whose copy the reader is making. Another read gives that copy up.
    copying: Option<Asked>,
    /// Reads of calls, and reads of prefetches, which run beside them.
    calls: Reads,
    prefetches: Reads,
    /// True if the publisher's memory is mapped into this process.
    is_mapped: bool,
    /// Copies are compared with a checksum.
    checksums: bool,
    pub(crate) closing: Closing,
    /// The GPU that the transport has, unless checksums are to be compared: it copies straight out of the owner's
    /// memory.
    pub(crate) gpu: Option<gpu::Named>,
    /// Memory of the GPU for a whole copy, and the stream with which it was used.
    staging: Option<(usize, GpuMemory)>,
}

/// A version that was read, in memory of its own.
pub(crate) type Pulled = (Facts, Arc<Lease>, Asked);

/// The request of a pull.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The most versions behind the newest, where that was given. Otherwise the newest when the call began.
    pub(crate) max_staleness: Option<u64>,
    pub(crate) at_least: u64,
    /// This version and no other.
    pub(crate) exactly: Option<u64>,
}

impl Request {
    /// Parses the request of a call: bounds, or one version by its number.
    pub(crate) fn of(
        max_staleness: Option<u64>,
        at_least: u64,
        exactly: Option<u64>,
    ) -> Result<Request, Failure> {
        if exactly.is_some() && (max_staleness.is_some() || at_least > 0) {
            let cause = "`version` asks for one version, and another bound was given";
            let remedy = "give `version` alone, or `min_version` and `max_staleness` without it";
            return Err(Failure::new(Class::BadOption, "asking for a version", cause, remedy));
        }
        Ok(Request { max_staleness, at_least, exactly })
    }

    /// The oldest version that will do when `newest` is the newest.
    pub(crate) fn oldest(&self, newest: u64) -> u64 {
        self.exactly.unwrap_or(self.at_least.max(newest.saturating_sub(self.max_staleness.unwrap_or(0))))
    }

    /// True if this version will do when `newest` is the newest and `brought` was brought before.
    fn takes(&self, version: u64, newest: u64, brought: u64) -> bool {
        match self.exactly {
            Some(exactly) => version == exactly,
            None => version >= self.oldest(newest).max(brought),
        }
    }

    pub(crate) fn wanted(&self) -> Wanted {
        match (self.exactly, self.max_staleness) {
            (Some(version), _) => Wanted::exactly(Version::new(version)),
            (None, Some(most)) => Wanted::at_least(Version::new(self.at_least)).max_staleness(most),
            (None, None) => Wanted::at_least(Version::new(self.at_least)),
        }
    }

    /// The error of a pull that has not ended within `waited`, when this was the newest that was read of the owner.
    pub(crate) fn late(&self, waited: Duration, newest: Option<Version>) -> Failure {
        let operation = "waiting for a version";
        let (seen, awaited) = match newest {
            Some(newest) => (Bound::version(newest), Awaited::Version),
            None => (Bound::NONE, Awaited::Answer),
        };
        let needed = Bound::version(Version::new(self.oldest(seen.version.get())));
        Error::Deadline { operation, waited, needed, seen, awaited }.into()
    }
}

/// A pull that is under way. It is moved on in slices.
pub(crate) struct Pulling {
    request: Request,
    /// The newest version that was seen.
    pub(crate) newest: Option<Version>,
    is_prefetch: bool,
    /// The read that asks for the newest version, and its question.
    asking: Option<(Asked, Option<u64>)>,
    /// The read whose copy was begun.
    asked: Option<Asked>,
}

impl Pulling {
    pub(crate) fn new(request: Request) -> Pulling {
        Pulling { request, newest: None, is_prefetch: false, asking: None, asked: None }
    }

    /// A read that continues between the calls of other threads.
    pub(crate) fn prefetch(request: Request) -> Pulling {
        Pulling { is_prefetch: true, ..Pulling::new(request) }
    }

    /// Goes on for so long at most.
    pub(crate) fn go_on(
        &mut self,
        reading: &mut Reading,
        slice: Duration,
    ) -> Result<Option<Pulled>, Failure> {
        let goes_on = |asked: &Asked| reading.copying.as_ref().is_some_and(|copying| copying.is(asked));
        let asked = match self.asked.filter(goes_on) {
            Some(asked) => asked,
            None => match self.begin(reading, slice)? {
                Begun::Late => return Ok(None),
                Begun::Kept(pulled) => return Ok(Some(pulled)),
                Begun::Copying(asked) => asked,
            },
        };
        if reading.reader.continue_refresh(slice)?.is_none() {
            return Ok(None);
        }
        reading.copying = None;
        let snapshot = reading.reader.take_snapshot()?;
        if reading.begins_whole() {
            // Memory that this copy may have begun from was written meanwhile.
            return self.go_on(reading, slice);
        }
        let facts = Facts::of(snapshot.fresh());
        // No reference to these bytes is made: code of Python looks at them, and may write them (torch).
        let (pointer, bytes) = (snapshot.as_volatile().as_ptr(), snapshot.as_volatile().len());
        let lease = Arc::new(Lease::new(pointer, bytes, snapshot));
        reading.newest = Some((facts, Arc::clone(&lease)));
        reading.base = reading.reader.has_base().then(|| lease.written().clone());
        reading.has_brought(&self.request, &facts);
        Ok(Some((facts, lease, asked.ended())))
    }

    /// Gives up its copy if that is still being made: a read that has failed keeps no frame from its publisher.
    pub(crate) fn end(&self, reading: &mut Reading) {
        let is_own = |copying: &mut Asked| self.asked.is_some_and(|asked| copying.is(&asked));
        if reading.copying.take_if(is_own).is_some() {
            reading.reader.abandon_refresh();
        }
    }

    /// Begins the read, or takes the earlier copy if that meets the request.
    fn begin(&mut self, reading: &mut Reading, slice: Duration) -> Result<Begun, Failure> {
        let reads = if self.is_prefetch { &mut reading.prefetches } else { &mut reading.calls };
        let (asked, question) = self.asking.get_or_insert_with(|| (reads.begin(self.request), None));
        let asked = *asked;
        let at_least = self.request.exactly.unwrap_or(self.request.at_least);
        let there = newest_from(&mut reading.reader, at_least, question, slice)?;
        self.newest = reading.reader.newest_seen();
        let Some(newest) = there else { return Ok(Begun::Late) };
        self.asking = None;
        reading.begins_whole();
        if let Some((facts, lease)) = &reading.newest
            && !lease.written().may_be()
            && self.request.takes(facts.version, newest, reading.brought)
        {
            let facts = Facts { staleness: newest.saturating_sub(facts.version), ..*facts };
            let lease = Arc::clone(lease);
            reading.has_brought(&self.request, &facts);
            return Ok(Begun::Kept((facts, lease, asked.ended())));
        }
        // If nothing else looks at it, its memory is for the next one.
        reading.newest = None;
        reading.reader.begin_snapshot(self.request.wanted());
        (reading.copying, self.asked) = (Some(asked), Some(asked));
        Ok(Begun::Copying(asked))
    }
}

/// How a read has begun.
enum Begun {
    /// The version was not there within the slice.
    Late,
    /// The earlier copy meets the request.
    Kept(Pulled),
    /// It is being copied.
    Copying(Asked),
}

/// The newest version's number, once it is at least this one; `None` if it is not within the slice, and the next one
/// goes on with the question that was `asked`.
pub(crate) fn newest_from(
    reader: &mut Reader<NamedFabric>,
    at_least: u64,
    asked: &mut Option<u64>,
    slice: Duration,
) -> Result<Option<u64>, Failure> {
    Ok(reader.newest_from(Version::new(at_least), asked, slice)?.map(Version::get))
}

/// Pulls a version, and waits for it.
pub(crate) fn pull(
    py: Python<'_>,
    reading: &mut Reading,
    request: Request,
    deadline: Deadline,
) -> PyResult<Pulled> {
    let (mut pulling, closing) = (Pulling::new(request), reading.closing.clone());
    let pulled = closing.in_slices(py, PULLING, deadline, |slice| pulling.go_on(reading, slice));
    py.detach(|| pulling.end(reading));
    pulled?.ok_or_else(|| request.late(deadline.timeout, pulling.newest).into())
}

/// Pins a version, and returns where it lies.
pub(crate) fn hold(
    py: Python<'_>,
    reading: &mut Reading,
    request: Request,
    deadline: Deadline,
) -> PyResult<(Facts, usize, usize, PinCheck)> {
    let (reader, closing, mut asked) = (&mut reading.reader, &reading.closing, None);
    let held = closing.in_slices(py, PINNING, deadline, |slice| {
        let Some(newest) = newest_from(reader, request.at_least, &mut asked, slice)? else { return Ok(None) };
        match reader.hold(Bound::version(Version::new(request.oldest(newest))), slice) {
            Ok(_pulled) => {
                let not_mapped = || Error::Pin { shard: 0, source: PinError::NotMapped };
                let facts = Facts::of(&reader.held_fresh().ok_or_else(not_mapped)?);
                // A version may have been published just before this one was pinned.
                if request.max_staleness.is_some_and(|most| facts.staleness > most) {
                    reader.release();
                    return Ok(None);
                }
                let held = reader.held().ok_or_else(not_mapped)?;
                let check = reader.held_check().ok_or_else(not_mapped)?;
                Ok(Some((facts, held.as_ptr().expose_provenance(), held.len(), check)))
            }
            Err(Error::Deadline { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    })?;
    held.ok_or_else(|| request.late(deadline.timeout, reader.newest_seen()).into())
}

impl Reading {
    fn new(
        mut reader: Reader<NamedFabric>,
        checksums: bool,
        gpu: Option<gpu::Named>,
        closing: Closing,
    ) -> Reading {
        let (calls, prefetches) = (Reads::new(), Reads::new());
        let is_mapped = is_mapped(&mut reader);
        let gpu = gpu.filter(|_| !checksums);
        Reading {
            reader,
            newest: None,
            base: None,
            brought: 0,
            copying: None,
            calls,
            prefetches,
            is_mapped,
            checksums,
            closing,
            gpu,
            staging: None,
        }
    }

    /// True if a version may be copied out of the publisher's memory, and not to be compared with a checksum.
    pub(crate) fn copies_from_frames(&self) -> bool {
        self.is_mapped && !self.checksums
    }

    /// True if all of the table is copied.
    pub(crate) fn is_whole(&self) -> bool {
        std::ptr::eq(self.reader.copied_table(), self.reader.table())
    }

    /// Has the next copy begin from no other one if the last one may have been written; then it returns true.
    fn begins_whole(&mut self) -> bool {
        let begins_whole = self.base.take_if(|written| written.may_be()).is_some();
        if begins_whole {
            self.reader.forget_base();
        }
        begins_whole
    }

    /// Makes no later read take an earlier copy.
    pub(crate) fn forget_newest(&mut self) {
        self.newest = None;
    }

    /// The same, if it was handed out and is still in use.
    pub(crate) fn forget_shared(&mut self) {
        self.newest.take_if(|(_, lease)| Arc::strong_count(lease) > 1);
    }

    /// Memory of the GPU for a whole copy. Memory that was used with another stream is left to its copies: this
    /// stream does not wait for them.
    pub(crate) fn staging(&mut self, gpu: &Gpu, stream: usize, bytes: usize) -> Result<GpuMemory, Failure> {
        match &self.staging {
            Some((of, memory)) if *of == stream && memory.bytes() == bytes => Ok(memory.clone()),
            _ => {
                self.staging = None;
                let memory = GpuMemory::allocate(gpu, bytes)?;
                self.staging = Some((stream, memory.clone()));
                Ok(memory)
            }
        }
    }

    /// The oldest version that a read without a number may bring.
    pub(crate) fn least(&self, request: &Request) -> u64 {
        request.exactly.unwrap_or(request.at_least.max(self.brought))
    }

    /// A read of a call's, which copies nothing into memory of the reader's, begins.
    pub(crate) fn begin(&mut self, request: Request) -> Asked {
        // A pin gives up the copy that is being made.
        self.copying = None;
        self.calls.begin(request)
    }

    /// A read has brought this version.
    pub(crate) fn has_brought(&mut self, request: &Request, facts: &Facts) {
        if request.exactly.is_none() {
            self.brought = self.brought.max(facts.version);
        }
    }

    /// Forgets the copies of an owner that is gone.
    pub(crate) fn forget(&mut self) {
        (self.newest, self.brought, self.copying) = (None, 0, None);
        self.is_mapped = is_mapped(&mut self.reader);
        // The successor may have older versions.
        (self.calls, self.prefetches) = (Reads::new(), Reads::new());
    }
}

fn is_mapped(reader: &mut Reader<NamedFabric>) -> bool {
    let asked = reader.hold(Bound::NONE, Duration::ZERO);
    reader.release();
    !matches!(asked, Err(Error::Pin { source: PinError::NotMapped | PinError::OnGpu, .. }))
}

/// The state that the objects of one reader share.
pub(crate) struct Shared {
    pub(crate) reading: Turns<Option<Reading>>,
    /// True while a version is pinned.
    pub(crate) is_pinned: AtomicBool,
    /// The pin has ended, and the next thread that locks the reader releases it.
    has_ended: AtomicBool,
    /// Threads of Python that wait for another one's call.
    pub(crate) waiting: AtomicUsize,
    /// Calls that wait are to end.
    pub(crate) closing: Closing,
    /// The thread that prefetches is to end.
    pub(crate) closes: AtomicBool,
    /// How often the reader has connected again.
    connection: AtomicU64,
    pub(crate) guard: ForkGuard,
}

impl Shared {
    pub(crate) fn new(reader: Reader<NamedFabric>, checksums: bool, gpu: Option<gpu::Named>) -> Shared {
        let closing = Closing::default();
        Shared {
            reading: Turns::new(Some(Reading::new(reader, checksums, gpu, closing.clone()))),
            is_pinned: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            closing,
            closes: AtomicBool::new(false),
            connection: AtomicU64::new(0),
            guard: ForkGuard::new(),
        }
    }

    /// The number of the connection, from 0 on: a prefetch is of one of them.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.load(Ordering::SeqCst)
    }

    /// The reader has connected again.
    pub(crate) fn has_connected(&self) {
        self.connection.fetch_add(1, Ordering::SeqCst);
    }

    /// True while a version is pinned, and the pin has not ended.
    pub(crate) fn has_pin(&self) -> bool {
        self.is_pinned.load(Ordering::SeqCst) && !self.has_ended.load(Ordering::SeqCst)
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
        if let Some(mut reading) = self.reading.take() {
            self.let_go(&mut reading);
        }
    }

    /// The same in a call that has locked the reader.
    pub(crate) fn let_go(&self, reading: &mut Option<Reading>) {
        if self.has_ended.swap(false, Ordering::SeqCst) {
            if let Some(Reading { reader, .. }) = reading {
                let read = reader.held_fresh().filter(|_| reader.is_intact());
                reader.release();
                // If the connection is lost, the next call says so.
                drop(read.map(|read| reader.tell_held(read.version)));
            }
            self.is_pinned.store(false, Ordering::SeqCst);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // In a forked child its threads are not there, and its connection is the parent's.
        if self.guard.is_inherited() {
            std::mem::forget(self.reading.get_mut().take());
        }
    }
}
