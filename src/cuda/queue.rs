//! Copies between host memory and a GPU, one way, in the order in which they are asked for.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{DevicePointer, Driver, EventHandle, StreamHandle};
use super::gpu::PrimaryContext;
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

/// The way that a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyDirection {
    /// From the GPU.
    ToHost,
    /// To the GPU; later work of the caller's stream waits for it.
    FromHost,
}

/// One copy.
pub(super) struct Copy {
    pub(super) direction: CopyDirection,
    pub(super) device: GpuSlice,
    pub(super) host: HostBytes,
    /// The first byte of the host's region.
    pub(super) offset: usize,
    /// The caller's stream.
    pub(super) stream: StreamHandle,
}

/// A stream of this library's own, with a counter of the copies that are done.
///
/// The counter is a word of host memory that the stream itself writes behind each copy, so that to ask for it takes a
/// load. Where a device cannot, an event is recorded behind each copy.
pub(super) struct CopyQueue {
    state: Mutex<QueueState>,
    questions: AtomicU32,
    /// The number of the last copy that is known to be done, where the word does not say so.
    done: AtomicU64,
    /// Threads that let go of memory just now.
    letting_go: AtomicU32,
    stream: StreamHandle,
    /// What the queue waits for of the caller's stream, and what that waits for of the queue.
    before: EventHandle,
    after: EventHandle,
    counter: Counter,
    primary: PrimaryContext,
}

#[derive(Default)]
struct QueueState {
    issued: u64,
    /// What copies use that are not known to be done, by their numbers.
    kept: VecDeque<(u64, CopyMemory)>,
    /// Events behind copies, by their numbers, and such as are free.
    events: VecDeque<(u64, EventHandle)>,
    free_events: Vec<EventHandle>,
}

struct CopyMemory {
    _host: HostBytes,
    _device: GpuSlice,
}

enum Counter {
    Word { memory: HostMemory, pointer: DevicePointer },
    Events,
}

impl CopyQueue {
    pub(super) fn new(primary: &PrimaryContext) -> Result<CopyQueue, GpuError> {
        let has_words = |driver: &dyn Driver| {
            driver
                .attribute(Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS, primary.device())
                .is_ok_and(|value| value != 0)
        };
        let making = |code| primary.error("making a stream", code);
        // What is made is in the queue at once, whose end gives it back also after an error.
        let stream = primary.call("making a stream", |driver| driver.create_stream())?;
        let (state, questions, letting_go) = (Mutex::default(), AtomicU32::new(0), AtomicU32::new(0));
        let (done, primary) = (AtomicU64::new(0), primary.clone());
        let (before, after, counter) = (EventHandle(0), EventHandle(0), Counter::Events);
        let mut queue = CopyQueue {
            state,
            questions,
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
                if let Ok(pointer) = unsafe { driver.register_host(begin, PAGE_SIZE, flags) } {
                    queue.counter = Counter::Word { memory, pointer };
                }
            }
            Ok(())
        })?;
        Ok(queue)
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a copy behind what the caller's stream has now. Returns its number, if there is a copy, also when a later
    /// call of the driver has failed; its memory is kept until it is done.
    pub(super) fn copy(&self, copy: Copy) -> (Option<u64>, Result<(), GpuError>) {
        self.let_go();
        let primary = &self.primary;
        let mut state = self.state();
        let mut under_way = None;
        let copied = primary.within(|driver| {
            let failed = |code| primary.error("copying behind a stream", code);
            if driver.is_capturing(copy.stream).map_err(failed)? {
                return Err(GpuError::Capturing);
            }
            if !mutant!("gpu_does_not_wait_for_caller") {
                driver.record(self.before, copy.stream).map_err(failed)?;
                driver.wait_for(self.stream, self.before).map_err(failed)?;
            }
            let Copy { direction, device, host, offset, stream } = copy;
            let memory = host.region().as_volatile().subslice(offset, device.bytes());
            let (host_pointer, device_pointer, bytes) =
                (memory.as_ptr().cast(), device.pointer(), memory.len());
            // SAFETY: both ranges are inside memory that is kept until the copy is done. Bytes that come in go to
            // memory that its owner has set aside for them; bytes that go out are not written meanwhile.
            let copied = unsafe {
                match direction {
                    CopyDirection::ToHost => {
                        driver.copy_to_host(host_pointer, device_pointer, bytes, self.stream)
                    }
                    CopyDirection::FromHost => {
                        driver.copy_from_host(device_pointer, host_pointer, bytes, self.stream)
                    }
                }
            };
            copied.map_err(failed)?;
            // From here on the copy cannot be called off. If its number is not written behind it, that of the next one
            // is, or the stream has nothing to do any more.
            state.issued += 1;
            let number = state.issued;
            under_way = Some(number);
            state.kept.push_back((number, CopyMemory { _host: host, _device: device }));
            let written = self.write(driver, &mut state, number);
            // The caller's stream has to wait for the copy also if its end will not be told.
            let ordered = match direction {
                CopyDirection::ToHost => Ok(()),
                CopyDirection::FromHost => {
                    driver.record(self.after, self.stream).and_then(|()| driver.wait_for(stream, self.after))
                }
            };
            written.and(ordered).map_err(failed)
        });
        (under_way, copied)
    }

    /// Has the stream tell when it has come so far.
    fn write(&self, driver: &dyn Driver, state: &mut QueueState, number: u64) -> Result<(), Code> {
        match &self.counter {
            // SAFETY: a word of the queue's own page, which stays registered for as long as the queue has work.
            Counter::Word { pointer, .. } => unsafe { driver.write_word(self.stream, *pointer, number) },
            Counter::Events => {
                let event = state.free_events.pop().map_or_else(|| driver.create_event(), Ok)?;
                // An event that was not recorded tells of earlier work, or of none.
                match driver.record(event, self.stream) {
                    Ok(()) => state.events.push_back((number, event)),
                    Err(code) => {
                        state.free_events.push(event);
                        return Err(code);
                    }
                }
                Ok(())
            }
        }
    }

    /// True once the copy of this number is done, and all its bytes are there; what it used is let go of. It does not
    /// wait.
    ///
    /// # Errors
    /// Work of this process on the GPU failed, or the process is a forked child. The copy will never be done, and it is
    /// not under way any more. Of no other error of the driver does that follow: the copy is not done yet.
    pub(super) fn is_done(&self, number: u64) -> Result<bool, GpuError> {
        match self.ask(number) {
            Ok(is_done) => Ok(is_done && self.let_go()),
            Err(over @ (GpuError::Faulted { .. } | GpuError::Forked)) => Err(over),
            Err(error) => {
                tracing::debug!(%error, "a GPU does not say whether a copy is done");
                Ok(false)
            }
        }
    }

    fn ask(&self, number: u64) -> Result<bool, GpuError> {
        if self.done()? >= number {
            return Ok(true);
        }
        if !self.questions.fetch_add(1, Relaxed).is_multiple_of(QUESTIONS_BETWEEN_LOOKS) {
            return Ok(false);
        }
        let is_idle =
            self.primary.call("waiting for a copy of a GPU", |driver| driver.is_idle(self.stream))?;
        if is_idle {
            // Later copies may have come after the question.
            self.done.fetch_max(number, Relaxed);
        }
        Ok(is_idle)
    }

    /// The number of the last copy that is done.
    fn done(&self) -> Result<u64, GpuError> {
        match &self.counter {
            Counter::Word { memory, .. } => {
                // All that the stream has done before is visible behind this load.
                let written = memory.as_volatile().load_u64(0);
                Ok(written.max(self.done.load(Relaxed)))
            }
            Counter::Events => {
                let mut state = self.state();
                while let Some((number, event)) = state.events.front().copied() {
                    let asking = "waiting for a copy of a GPU";
                    if !self.primary.call(asking, |driver| driver.has_happened(event))? {
                        break;
                    }
                    self.done.fetch_max(number, Relaxed);
                    state.events.pop_front();
                    state.free_events.push(event);
                }
                Ok(self.done.load(Relaxed))
            }
        }
    }

    /// Lets go of what copies used that are done. False while another thread does so, too.
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

impl Drop for CopyQueue {
    fn drop(&mut self) {
        let is_idle = self.primary.call("ending a stream", |driver| driver.is_idle(self.stream));
        let mut state = mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        // A forked child has neither the stream nor its copies; after a fault there are none any more.
        if !matches!(is_idle, Ok(true) | Err(GpuError::Forked | GpuError::Faulted { .. })) {
            // To wait could take for ever, and what copies use must not be freed under them.
            let copies = state.kept.len();
            tracing::warn!(copies, "a GPU is let go while it copies: the memory of its copies is not freed");
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
