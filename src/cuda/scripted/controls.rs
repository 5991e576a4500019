//! What tests do with the scripted driver, besides its calls: they say what it is, let it work and look at it.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::GpuSlice;
use super::super::driver::{Context, DevicePointer, StreamHandle};
use super::super::sys::Code;
use super::streams::Stream;
use super::work::StreamWork;
use super::{OTHER_CONTEXT, Scripted, ScriptedFailure, ScriptedState};
use crate::mem::PAGE_SIZE;

impl Scripted {
    /// The driver of this memory.
    pub(crate) fn of(memory: &GpuSlice) -> &Scripted {
        let driver: &dyn Any = memory.primary().driver();
        driver.downcast_ref().expect("a scripted driver")
    }

    /// Says that it is of another version.
    pub(crate) fn set_version(&self, version: i32) {
        self.state().version = version;
    }

    /// Makes its device another one than that of other drivers, by its primary context.
    pub(crate) fn of_another_device(self) -> Scripted {
        let mut state = self.state();
        state.primary = OTHER_CONTEXT;
        state.streams.insert(0, Stream::new(OTHER_CONTEXT, true));
        drop(state);
        self
    }

    /// Takes its device away.
    pub(crate) fn without_devices(self) -> Scripted {
        self.state().devices = 0;
        self
    }

    /// Gives it a second device, which does or does not reach memory of the first, nor the first that of the second.
    pub(crate) fn with_two_devices(self, are_peers: bool) -> Scripted {
        let mut state = self.state();
        (state.devices, state.are_peers) = (2, are_peers);
        drop(state);
        self
    }

    /// Makes the device one that cannot write words in the order of a stream.
    pub(crate) fn without_stream_words(self) -> Scripted {
        self.state().has_stream_words = false;
        self
    }

    /// Makes the driver one that exports dma-bufs.
    pub(crate) fn with_dma_bufs(self) -> Scripted {
        self.state().has_dma_bufs = true;
        self
    }

    /// Fills the window of its device on the PCI bus, or empties it.
    pub(crate) fn set_window_full(&self, is_full: bool) {
        self.state().is_window_full = is_full;
    }

    /// Its memory as a module of the kernel gives it to RDMA devices, which name it by addresses.
    pub(crate) fn peermem(self: &Arc<Self>) -> impl Fn(u64, usize) -> Option<OwnedFd> + Send + Sync + use<> {
        let driver = Arc::clone(self);
        move |pointer, bytes| driver.state().device.dma_buf(pointer, bytes.next_multiple_of(PAGE_SIZE))
    }

    /// Makes the driver one that numbers no allocation.
    pub(crate) fn without_buffer_ids(self) -> Scripted {
        self.state().has_buffer_ids = false;
        self
    }

    /// Makes the driver one that passes no memory of the caller's from process to process.
    pub(crate) fn without_sharing(self) -> Scripted {
        self.state().has_sharing = false;
        self
    }

    /// Makes its devices others than those of a driver that was given another number.
    pub(crate) fn of_host(self, host: u8) -> Scripted {
        self.state().host = host;
        self
    }

    /// Makes the device one whose kernels see what RDMA devices have written after this flush, if there is one.
    pub(crate) fn set_flush(&self, flush: Option<Arc<dyn Fn() + Send + Sync>>) {
        let mut state = self.state();
        (state.sees_rdma_writes, state.flush) = (false, flush);
    }

    /// Both ways in which a call may fail, for tests that hold for each.
    pub(crate) const FAILURES: [fn(&Scripted, u32, Code); 2] = [Scripted::fail, Scripted::fail_late];

    /// Makes the call with this number, counted from now on from 0, fail without taking effect.
    pub(crate) fn fail(&self, call: u32, code: Code) {
        self.state().fail_at(ScriptedFailure { call, code, is_late: false });
    }

    /// The same, once it has taken effect.
    pub(crate) fn fail_late(&self, call: u32, code: Code) {
        self.state().fail_at(ScriptedFailure { call, code, is_late: true });
    }

    /// From now on it answers with this error whether work is done, if with any.
    pub(crate) fn set_unanswered(&self, code: Option<Code>) {
        self.state().unanswered = code;
    }

    /// True once the call that was to fail has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.state().fail.is_none()
    }

    /// Lets a kernel of the caller's fail on the first device, after which nothing succeeds there.
    pub(crate) fn fault(&self, code: Code) {
        self.state().faults.insert(0, code);
    }

    /// A kernel of the caller's that fails once it runs, after which nothing succeeds on its device.
    pub(crate) fn fault_in_work(&self, stream: usize, code: Code) {
        self.state().put_of_caller(StreamHandle(stream), StreamWork::Fault(code)).expect("a stream");
    }

    /// Ends the driver, as it does with the process.
    pub(crate) fn shut_down(&self) {
        self.state().gone = Some(Code::DEINITIALIZED);
    }

    /// A stream of the caller's.
    pub(crate) fn stream(&self, context: Context) -> usize {
        self.state().add_stream(context, true).0
    }

    /// Locks host memory with these flags, as the caller may have done in the context of the first device.
    pub(crate) fn lock_host(&self, begin: usize, bytes: usize, flags: u32) {
        assert!(self.state().registered.register(begin, bytes, flags, 0), "it is locked already");
    }

    /// The caller's stream begins to capture a graph.
    pub(crate) fn capture(&self, stream: usize) {
        self.state().stream(StreamHandle(stream)).expect("a stream").is_capturing = true;
    }

    /// The caller's memory on the device.
    pub(crate) fn memory(&self, bytes: usize) -> DevicePointer {
        self.state().device.reserve(0, bytes).expect("room on the device")
    }

    /// More of the caller's memory, right behind a block of whole pages.
    pub(crate) fn memory_behind(&self, pointer: DevicePointer, bytes: usize) -> DevicePointer {
        self.state().device.reserve_behind(pointer, bytes).expect("room on the device")
    }

    /// Takes the caller's memory away again.
    pub(crate) fn free_memory(&self, pointer: DevicePointer) {
        let mut state = self.state();
        let (begin, bytes) = state.device.range(pointer).expect("memory of the device");
        state.expect_unused(begin, bytes);
        state.device.free(pointer);
    }

    /// Makes the memory at `pointer` managed, or that of another device.
    pub(crate) fn set_memory(&self, pointer: DevicePointer, is_managed: bool, ordinal: u32) {
        self.state().device.set(pointer, is_managed, ordinal);
    }

    /// Makes the memory at `pointer` an allocation of `cuMemAlloc` in a context.
    pub(crate) fn set_classic(&self, pointer: DevicePointer, context: Context) {
        self.state().device.set_classic(pointer, context);
    }

    /// A kernel of the caller's: fills memory of the device.
    pub(crate) fn launch_fill(&self, stream: usize, pointer: DevicePointer, bytes: usize, value: u8) {
        let work = StreamWork::Fill { pointer, bytes, value };
        self.state().put_of_caller(StreamHandle(stream), work).expect("a stream");
    }

    /// A kernel of the caller's: copies memory of the device, which stands for computing with it.
    pub(crate) fn launch_copy(&self, stream: usize, to: DevicePointer, from: DevicePointer, bytes: usize) {
        let work = StreamWork::Kernel { to, from, bytes };
        self.state().put_of_caller(StreamHandle(stream), work).expect("a stream");
    }

    /// A kernel of the caller's that does not end.
    pub(crate) fn launch_wait_for_ever(&self, stream: usize) {
        let mut state = self.state();
        state.put_of_caller(StreamHandle(stream), StreamWork::Wait(u64::MAX)).expect("a stream");
    }

    /// From now on the streams have no room for copies to host memory, and their calls wait; or they have room again.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    /// Calls that wait for room.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting
    }

    /// Waits for as long as there is no room.
    pub(super) fn wait_for_room(&self) {
        if self.state().is_full {
            self.state().waiting += 1;
            while self.state().is_full {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            self.state().waiting -= 1;
        }
    }

    /// True if a stream has a copy to host memory to make.
    pub(crate) fn is_copying(&self) -> bool {
        let is_copy = |work: &StreamWork| matches!(work, StreamWork::ToHost { .. });
        self.state().work_to_do().any(is_copy)
    }

    /// Copies between host memory and the device that were begun.
    pub(crate) fn host_copies(&self) -> usize {
        self.state().host_copies
    }

    /// Memory of other processes that its devices may only read.
    pub(crate) fn mapped_for_reading(&self) -> usize {
        self.state().device.for_reading()
    }

    /// How often it has memory open that other processes share, all openings together.
    pub(crate) fn opened_of_others(&self) -> usize {
        self.state().device.opened_of_others()
    }

    /// Kernels of the library's that were launched.
    pub(crate) fn launches(&self) -> usize {
        self.state().launches
    }

    /// What is in memory of the device.
    pub(crate) fn bytes(&self, pointer: DevicePointer, bytes: usize) -> Vec<u8> {
        self.state().device.load(pointer, bytes).expect("memory of the device")
    }

    /// Sets memory of the device, as if it had always been so.
    pub(crate) fn set_bytes(&self, pointer: DevicePointer, bytes: &[u8]) {
        self.state().device.store(pointer, bytes).expect("memory of the device");
    }

    /// Does one piece of work of a stream that chance picks; false if none has any that may be done.
    pub(crate) fn work(&self) -> bool {
        self.state().work()
    }

    /// Does all work that may be done.
    pub(crate) fn finish(&self) {
        while self.work() {}
    }

    /// Waits until there is some that may be done, or until it is over.
    fn wait_for_work(&self, is_over: &AtomicBool) {
        let state = self.state();
        let more = state.more.clone();
        let waits = |state: &mut ScriptedState| !state.has_work() && !is_over.load(Relaxed);
        drop(more.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner));
    }

    /// Does work, whenever there is some, until the result is dropped.
    pub(crate) fn work_in_a_thread(self: &Arc<Self>) -> Working {
        let is_over = Arc::new(AtomicBool::new(false));
        let (driver, over) = (self.clone(), is_over.clone());
        let work = move || {
            while !over.load(Relaxed) {
                if !driver.work() {
                    driver.wait_for_work(&over);
                }
            }
        };
        Working { driver: self.clone(), is_over, thread: Some(std::thread::spawn(work)) }
    }

    /// The same for as long as it is in use, as this says.
    pub(crate) fn work_while(self: Arc<Self>, is_in_use: impl Fn(&Arc<Self>) -> bool + Send + 'static) {
        std::thread::spawn(move || {
            while is_in_use(&self) {
                if !self.work() {
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        });
    }

    /// Streams, events, allocations, registrations and contexts that were not given back.
    pub(crate) fn open(&self) -> usize {
        let state = self.state();
        let made = state.streams.values().filter(|stream| stream.is_open()).count();
        let memory = state.registered.count() + state.device.own;
        made + state.events.len() + memory + state.modules.len() + state.retained as usize
    }

    /// Contexts that calls have made current and not taken away again.
    pub(crate) fn left_current(&self) -> usize {
        self.state().current.values().map(Vec::len).sum()
    }
}

impl ScriptedState {
    fn fail_at(&mut self, fails: ScriptedFailure) {
        (self.calls, self.fail) = (0, Some(fails));
    }
}

/// A thread that does the work of a driver.
pub(crate) struct Working {
    driver: Arc<Scripted>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Working {
    fn drop(&mut self) {
        let state = self.driver.state();
        self.is_over.store(true, Relaxed);
        state.more.notify_all();
        drop(state);
        let Some(joined) = self.thread.take().map(JoinHandle::join) else { return };
        // A test that fails already is left to do so.
        if !std::thread::panicking() {
            joined.expect("work that a device may do");
        }
    }
}
