//! Streams of this library's own, whose work is done in the order in which it is asked for.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::copy::register;
use super::driver::{DevicePointer, Driver, EventHandle, StreamHandle};
use super::gpu::PrimaryContext;
use super::kernels::Launch;
use super::sys::{Attribute, Code, HOST_REGISTER_DEVICEMAP, HOST_REGISTER_PORTABLE};
use super::{GpuError, GpuSlice};
use crate::mem::{Buffer, HostMemory, MemoryRegion, PAGE_SIZE};

/// Of so many questions whether a copy is done, one also asks the driver for errors.
const QUESTIONS_BETWEEN_LOOKS: u32 = 64;

/// Host memory that a copy reads or writes, kept until the copy is done.
pub(crate) enum HostBytes {
    /// A region that others may hold, too.
    Region(MemoryRegion),
    /// Memory whose bytes are lent to readers meanwhile: it is only copied from.
    Buffer(Arc<Buffer>),
}

impl HostBytes {
    pub(super) fn region(&self) -> &MemoryRegion {
        match self {
            HostBytes::Region(region) => region,
            HostBytes::Buffer(buffer) => buffer.region(),
        }
    }
}

/// The streams of this library's own, by the work that they get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueKind {
    /// Copies from the GPU to host memory, and conversions.
    ToHost,
    /// Copies to the GPU from host memory.
    FromHost,
    /// Copies from memory of the GPU to memory of the GPU, and conversions.
    Within,
    /// Kernels that fold.
    Folds,
}

/// A piece of work. The memory that it names is kept until it is done.
pub(super) enum GpuWork {
    /// To the host's region, from the byte `offset` of it on.
    ToHost { from: GpuSlice, host: HostBytes, offset: usize },
    /// From the host's region, from the byte `offset` of it on.
    FromHost { host: HostBytes, offset: usize, into: GpuSlice },
    /// Ranges of one length.
    Within { from: GpuSlice, into: GpuSlice },
    /// Zeros.
    Clear { into: GpuSlice },
    /// A kernel of ours.
    Kernel(Box<Launch>),
    /// No work of its own: it ends with all work before it. It represents the later access of a device to the memory.
    Mark { memory: GpuSlice, writes: bool },
}

impl GpuWork {
    pub(super) fn kind(&self) -> QueueKind {
        match self {
            GpuWork::ToHost { .. } => QueueKind::ToHost,
            GpuWork::FromHost { .. } => QueueKind::FromHost,
            GpuWork::Within { .. } | GpuWork::Clear { .. } => QueueKind::Within,
            GpuWork::Kernel(launch) => launch.kind,
            GpuWork::Mark { writes: true, .. } => QueueKind::FromHost,
            GpuWork::Mark { writes: false, .. } => QueueKind::ToHost,
        }
    }

    /// The memory of the GPU that it uses.
    pub(super) fn slices(&self) -> impl Iterator<Item = &GpuSlice> {
        let (one, other, others) = match self {
            GpuWork::ToHost { from, .. } | GpuWork::Mark { memory: from, .. } => (Some(from), None, &[][..]),
            GpuWork::FromHost { into, .. } | GpuWork::Clear { into } => (Some(into), None, &[][..]),
            GpuWork::Within { from, into } => (Some(from), Some(into), &[][..]),
            GpuWork::Kernel(launch) => (None, None, &launch.slices[..]),
        };
        one.into_iter().chain(other).chain(others)
    }

    /// The host's memory that it uses.
    pub(super) fn region(&self) -> Option<&MemoryRegion> {
        match self {
            GpuWork::ToHost { host, .. } | GpuWork::FromHost { host, .. } => Some(host.region()),
            GpuWork::Kernel(launch) => launch.region.as_ref(),
            GpuWork::Within { .. } | GpuWork::Clear { .. } | GpuWork::Mark { .. } => None,
        }
    }

    fn issue(&self, driver: &dyn Driver, stream: StreamHandle) -> Result<(), Code> {
        let host_range = |host: &HostBytes, offset, device: &GpuSlice| {
            host.region().as_volatile().subslice(offset, device.bytes()).as_ptr()
        };
        // SAFETY: all ranges are inside memory that is kept until the work is done. The owner of the destination has
        // set it aside for this, and the source is not written meanwhile.
        unsafe {
            match self {
                GpuWork::ToHost { from, host, offset } => {
                    let to = host_range(host, *offset, from).cast();
                    driver.copy_to_host(to, from.pointer(), from.bytes(), stream)
                }
                GpuWork::FromHost { host, offset, into } => {
                    let from = host_range(host, *offset, into).cast_const().cast();
                    driver.copy_from_host(into.pointer(), from, into.bytes(), stream)
                }
                GpuWork::Within { from, into } => {
                    driver.copy_within(into.pointer(), from.pointer(), into.bytes(), stream)
                }
                GpuWork::Clear { into } => driver.fill_with_zeros(into.pointer(), into.bytes(), stream),
                GpuWork::Kernel(launch) => launch.issue(driver, stream),
                GpuWork::Mark { .. } => Ok(()),
            }
        }
    }
}

/// A stream of the caller's with which work is ordered: the work comes behind the stream's current work.
#[derive(Clone, Copy)]
pub(super) struct CallersStream {
    pub(super) handle: StreamHandle,
    /// Later work of the stream waits for this work.
    pub(super) waits: bool,
}

/// A stream of this library's own, with a counter of the work that is done.
///
/// The counter is a word of host memory that the stream itself writes behind each copy, so that to ask for it takes a
/// load. Where a device cannot, an event is recorded behind each copy.
pub(super) struct GpuQueue {
    /// The number of the last piece of work that was put there. A thread that puts work there holds this lock, also
    /// while the driver has no room for more, and a look for the end of work does not take it.
    issued: Mutex<u64>,
    state: Mutex<QueueState>,
    questions: AtomicU32,
    unanswered: Mutex<Unanswered>,
    /// The number of the last copy that is known to be done, where the word does not say so. The thread that learned it
    /// from the driver passes it to other threads, and with it the bytes of the copy.
    done: AtomicU64,
    /// Threads that are releasing memory.
    letting_go: AtomicU32,
    stream: StreamHandle,
    /// The event of the caller's stream that the queue waits for, and the event of the queue that the stream waits for.
    before: EventHandle,
    after: EventHandle,
    counter: Counter,
    primary: PrimaryContext,
}

#[derive(Default)]
struct QueueState {
    /// The memory of copies that are not known to be done, by their numbers.
    kept: VecDeque<(u64, GpuWork)>,
    /// Events behind copies, by their numbers, and such as are free.
    events: VecDeque<(u64, EventHandle)>,
    free_events: Vec<EventHandle>,
}

/// The driver's error when it was asked whether a copy is done.
#[derive(Default)]
struct Unanswered {
    /// Its last answer, and the number of the copy that it was asked for.
    last: Option<(u64, GpuError)>,
    is_told: bool,
}

enum Counter {
    Word { memory: HostMemory, pointer: DevicePointer },
    Events,
}

impl GpuQueue {
    pub(super) fn new(primary: &PrimaryContext) -> Result<GpuQueue, GpuError> {
        let has_words = |driver: &dyn Driver| {
            driver
                .attribute(Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS, primary.device())
                .is_ok_and(|value| value != 0)
        };
        let making = |code| primary.error("making a stream", code);
        // Each resource is in the queue at once, and the end of the queue frees it also after an error.
        let stream = primary.call("making a stream", |driver| driver.create_stream())?;
        let (issued, state) = (Mutex::default(), Mutex::default());
        let (questions, letting_go) = (AtomicU32::new(0), AtomicU32::new(0));
        let (done, unanswered, primary) = (AtomicU64::new(0), Mutex::default(), primary.clone());
        let (before, after, counter) = (EventHandle(0), EventHandle(0), Counter::Events);
        let mut queue = GpuQueue {
            issued,
            state,
            questions,
            unanswered,
            done,
            letting_go,
            stream,
            before,
            after,
            counter,
            primary: primary.clone(),
        };
        primary.within(|driver| {
            queue.before = driver.create_event().map_err(making)?;
            queue.after = driver.create_event().map_err(making)?;
            if has_words(driver)
                && let Ok(memory) = HostMemory::anonymous(PAGE_SIZE)
            {
                let (begin, flags) =
                    (memory.as_volatile().as_ptr(), HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP);
                // SAFETY: the queue has the memory, and unregisters it first.
                if let Ok(pointer) = unsafe { register(driver, begin, PAGE_SIZE, flags) } {
                    queue.counter = Counter::Word { memory, pointer };
                }
            }
            Ok(())
        })?;
        Ok(queue)
    }

    /// The stream, for work that is ordered with it.
    pub(super) fn stream(&self) -> StreamHandle {
        self.stream
    }

    fn issued(&self) -> MutexGuard<'_, u64> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts work behind all work of the queue, and behind the current work of the caller's stream. Returns its
    /// number, if it may be under way, also when that call of the driver or a later one has failed; its memory is
    /// kept until it is done.
    pub(super) fn put(
        &self,
        work: GpuWork,
        stream: Option<CallersStream>,
    ) -> (Option<u64>, Result<(), GpuError>) {
        self.let_go();
        let primary = &self.primary;
        let mut last = self.issued();
        let mut under_way = None;
        let issued = primary.within(|driver| {
            let failed = |code| primary.error("putting work on a stream", code);
            if let Some(stream) = stream {
                self.hold_behind(driver, stream.handle)?;
            }
            let begun = work.issue(driver, self.stream);
            // From here on the work cannot be cancelled: a call that fails late has begun it all the same. If its
            // number is not written behind it, the number of the next work is, or the stream becomes idle.
            *last += 1;
            let number = *last;
            under_way = Some(number);
            self.state().kept.push_back((number, work));
            let written = self.write(driver, number);
            // The caller's stream has to wait for the work also if its end will not be told.
            let ordered = match stream {
                Some(CallersStream { handle, waits: true }) => self.order_before(driver, handle),
                _ => Ok(()),
            };
            begun.and(written).and(ordered).map_err(failed)
        });
        (under_way, issued)
    }

    /// Makes later work of the queue wait for the current work of a stream of the caller's.
    fn hold_behind(&self, driver: &dyn Driver, stream: StreamHandle) -> Result<(), GpuError> {
        let failed = |code| self.primary.error("waiting for a stream", code);
        if driver.is_capturing(stream).map_err(failed)? {
            return Err(GpuError::Capturing);
        }
        if !mutant!("gpu_does_not_wait_for_caller") {
            driver.record(self.before, stream).map_err(failed)?;
            driver.wait_for(self.stream, self.before).map_err(failed)?;
        }
        Ok(())
    }

    /// Makes later work of a stream of the caller's wait for the current work of the queue.
    fn order_before(&self, driver: &dyn Driver, stream: StreamHandle) -> Result<(), Code> {
        driver.record(self.after, self.stream)?;
        driver.wait_for(stream, self.after)
    }

    /// Makes later work of the queue wait for the current work of a stream of the caller's.
    pub(super) fn wait_for_stream(&self, stream: StreamHandle) -> Result<(), GpuError> {
        let _one_at_a_time = self.issued();
        self.primary.within(|driver| self.hold_behind(driver, stream))
    }

    /// Makes later work of a stream of the caller's wait for the current work of the queue.
    pub(super) fn hold_stream(&self, stream: StreamHandle) -> Result<(), GpuError> {
        let _one_at_a_time = self.issued();
        let failed = |code| self.primary.error("waiting for a copy", code);
        self.primary.within(|driver| {
            if driver.is_capturing(stream).map_err(failed)? {
                return Err(GpuError::Capturing);
            }
            self.order_before(driver, stream).map_err(failed)
        })
    }

    /// Makes later work of another queue of this GPU wait for the current work of this one.
    pub(super) fn hold_queue(&self, other: &GpuQueue) -> Result<(), GpuError> {
        self.hold_stream(other.stream)
    }

    /// Has the stream tell when it has come so far.
    fn write(&self, driver: &dyn Driver, number: u64) -> Result<(), Code> {
        match &self.counter {
            // SAFETY: a word of the queue's own page, which stays registered for as long as the queue has work.
            Counter::Word { pointer, .. } => unsafe { driver.write_word(self.stream, *pointer, number) },
            Counter::Events => {
                let free = self.state().free_events.pop();
                let event = free.map_or_else(|| driver.create_event(), Ok)?;
                // An event that was not recorded tells of earlier work, or of none.
                let recorded = driver.record(event, self.stream);
                match recorded {
                    Ok(()) => self.state().events.push_back((number, event)),
                    Err(_) => self.state().free_events.push(event),
                }
                recorded
            }
        }
    }

    /// True once the copy of this number is done, and all its bytes are there; its memory is released. It does not
    /// wait.
    ///
    /// # Errors
    /// Work of this process on the GPU failed, or the process is a forked child. The copy will never be done, and it is
    /// not under way any more. Of no other error of the driver does that follow: the copy is not done yet.
    pub(super) fn is_done(&self, number: u64) -> Result<bool, GpuError> {
        match self.ask(number) {
            Ok(is_done) => Ok(is_done && self.let_go()),
            Err(over @ (GpuError::Faulted { .. } | GpuError::Forked)) => Err(over),
            Err(_) => Ok(false),
        }
    }

    /// The driver's error when it was asked whether a copy is done that is not known to be done.
    pub(super) fn unanswered(&self) -> Option<GpuError> {
        let last = || self.unanswered.lock().unwrap_or_else(PoisonError::into_inner).last.clone();
        let (number, _) = last()?;
        // The stream may have said it itself meanwhile, and the driver may say it now.
        let is_done = self.done().is_ok_and(|done| done >= number) || self.look(number) == Ok(true);
        if is_done { None } else { last().map(|(_, error)| error) }
    }

    /// Takes note of an answer of the driver to the question whether this copy is done.
    fn hear(&self, number: u64, answer: Result<bool, GpuError>) -> Result<bool, GpuError> {
        let mut unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.last = match &answer {
            Ok(_) | Err(GpuError::Faulted { .. } | GpuError::Forked) => None,
            Err(error) => {
                if !mem::replace(&mut unanswered.is_told, true) {
                    tracing::warn!(%error, "a GPU does not say whether a copy is done: what it uses is kept");
                }
                Some((number, error.clone()))
            }
        };
        answer
    }

    fn ask(&self, number: u64) -> Result<bool, GpuError> {
        if self.done()? >= number {
            return Ok(true);
        }
        if !self.questions.fetch_add(1, Relaxed).is_multiple_of(QUESTIONS_BETWEEN_LOOKS) {
            return Ok(false);
        }
        self.look(number)
    }

    /// Asks the driver whether all is done, up to the copy of this number at least.
    fn look(&self, number: u64) -> Result<bool, GpuError> {
        let is_idle = self.primary.call("waiting for a copy of a GPU", |driver| driver.is_idle(self.stream));
        let is_idle = self.hear(number, is_idle)?;
        if is_idle {
            // Later copies may have come after the question.
            self.done.fetch_max(number, Release);
        }
        Ok(is_idle)
    }

    /// The number of the last copy that is done.
    fn done(&self) -> Result<u64, GpuError> {
        match &self.counter {
            Counter::Word { memory, .. } => {
                // All earlier work of the stream is visible behind this load.
                let written = memory.as_volatile().load_u64(0);
                Ok(written.max(self.done.load(Acquire)))
            }
            Counter::Events => {
                let mut state = self.state();
                while let Some((number, event)) = state.events.front().copied() {
                    let asking = "waiting for a copy of a GPU";
                    let has_happened = self.primary.call(asking, |driver| driver.has_happened(event));
                    if !self.hear(number, has_happened)? {
                        break;
                    }
                    self.done.fetch_max(number, Release);
                    state.events.pop_front();
                    state.free_events.push(event);
                }
                Ok(self.done.load(Acquire))
            }
        }
    }

    /// Releases the memory of completed copies. False while another thread does so, too.
    fn let_go(&self) -> bool {
        let Ok(done) = self.done() else { return false };
        loop {
            let mut state = self.state();
            let is_done = |number: u64| number <= done || mutant!("gpu_memory_let_go_at_once");
            let is_done = state.kept.front().is_some_and(|(number, _)| is_done(*number));
            let kept = if is_done { state.kept.pop_front() } else { None };
            if kept.is_none() {
                return self.letting_go.load(Acquire) == 0;
            }
            self.letting_go.fetch_add(1, Relaxed);
            // The owner of the caller's memory may do anything when it is dropped, and does it without the lock.
            drop(state);
            drop(kept);
            self.letting_go.fetch_sub(1, Release);
        }
    }
}

impl Drop for GpuQueue {
    fn drop(&mut self) {
        let is_idle = self.primary.call("ending a stream", |driver| driver.is_idle(self.stream));
        let mut state = mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        // A forked child has neither the stream nor its copies; after a fault there are none any more.
        if !matches!(is_idle, Ok(true) | Err(GpuError::Forked | GpuError::Faulted { .. })) {
            // To wait could take for ever, and the memory of copies must not be freed under them. At the end of a
            // process the driver may be gone already.
            let code = if let Err(GpuError::Driver { code, .. }) = is_idle { Some(Code(code)) } else { None };
            if code != Some(Code::DEINITIALIZED) {
                let copies = state.kept.len();
                tracing::warn!(
                    copies,
                    "a GPU is let go while it copies: the memory of its copies is not freed"
                );
            }
            mem::forget(mem::take(&mut state.kept));
            // The page of the counter, too, stays registered, and is not unmapped.
            if let Counter::Word { memory, .. } = mem::replace(&mut self.counter, Counter::Events) {
                mem::forget(memory);
            }
        }
        if let Counter::Word { memory, .. } = &self.counter {
            let begin = memory.as_volatile().as_ptr();
            // SAFETY: the stream writes it no more.
            self.primary
                .give_back("unregistering host memory", |driver| unsafe { driver.unregister_host(begin) });
        }
        let events = state.events.iter().map(|(_, event)| *event).chain(state.free_events.iter().copied());
        let own = [self.before, self.after].into_iter().filter(|event| *event != EventHandle(0));
        for event in own.chain(events) {
            self.primary.give_back("ending an event", |driver| driver.destroy_event(event));
        }
        self.primary.give_back("ending a stream", |driver| driver.destroy_stream(self.stream));
    }
}
