//! A driver without a GPU, for tests.
//!
//! It is as unkind as streams and events permit. Work is done only when a test lets it be done, one piece at a time, of
//! a stream that chance picks; a copy is made in pieces, and reads and writes at that time, not at the time of the
//! call. Memory of the GPU is at addresses that no access of the processor survives. Each call can be made to fail,
//! before it takes effect or once it has, and what is not given back is counted.
//!
//! It fails the test where work touches memory that is not there, not locked, or for reading only, where memory is
//! given back that work still uses or another driver has open, and where a caller's stream gets more than events.
//! A fault ends the work of one device. The work of a stream that is ended goes on.
//!
//! It shows that waits, lifetimes and errors are right. It shows nothing of DMA, of visibility or of speed.

mod controls;
mod host;
mod kernel;
mod memory;
mod model;
mod shared;
mod streams;
mod work;

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use super::driver::{
    Allocation, Context, DevicePointer, Driver, EventHandle, FunctionHandle, ModuleHandle, StreamHandle,
};
use super::sys::{
    Attribute, CAPTURE_MODE_RELAXED, Code, FLUSH_OPTION_HOST, HOST_REGISTER_DEVICEMAP,
    HOST_REGISTER_READ_ONLY, IpcHandle, MEMORY_TYPE_DEVICE, ORDERING_OWNER, PointerAttribute,
};
use super::{Gpu, GpuStream};
pub(crate) use controls::Working;
use host::ScriptedHost;
use kernel::ScriptedKernel;
use memory::ScriptedMemory;
use streams::Stream;
use work::StreamWork;

/// The primary context of the first device, and another context.
pub(crate) const PRIMARY: Context = Context(0x1000);
pub(crate) const OTHER_CONTEXT: Context = Context(0x2000);
/// From the primary context of one device to that of the next one.
const NEXT_DEVICE: usize = 0x100;

/// `CUDA_ERROR_INVALID_CONTEXT` and `CUDA_ERROR_INVALID_HANDLE`.
const NO_CONTEXT: Code = Code(201);
const INVALID_HANDLE: Code = Code(400);
/// `CUDA_ERROR_MAP_FAILED`.
const MAP_FAILED: Code = Code(205);
/// `CU_MEMORYTYPE_HOST`.
const MEMORY_TYPE_HOST: u32 = 1;

/// A scripted driver, with one device if nothing else is said.
pub(crate) struct Scripted {
    state: Mutex<ScriptedState>,
}

/// A call that fails.
#[derive(Clone, Copy)]
struct ScriptedFailure {
    call: u32,
    code: Code,
    /// It fails once it has taken effect.
    is_late: bool,
}

struct ScriptedState {
    /// The primary context of the first device.
    primary: Context,
    devices: i32,
    /// A byte of the numbers of its devices.
    host: u8,
    /// Whether they reach each other's memory.
    are_peers: bool,
    version: i32,
    has_stream_words: bool,
    /// Whether it exports dma-bufs.
    has_dma_bufs: bool,
    /// Whether its window on the PCI bus has no room for more of them.
    is_window_full: bool,
    /// Whether it numbers allocations.
    has_buffer_ids: bool,
    /// Whether it shares memory of `cuMemAlloc` with other processes, and opens theirs.
    has_sharing: bool,
    /// Whether its kernels see in order what RDMA devices write; and what a flush does, if it has one.
    sees_rdma_writes: bool,
    flush: Option<Arc<dyn Fn() + Send + Sync>>,
    calls: u32,
    fail: Option<ScriptedFailure>,
    /// What it answers, if it does not say whether work is done.
    unanswered: Option<Code>,
    /// The error that all calls give once the driver is gone, and that of each device whose context has failed.
    gone: Option<Code>,
    faults: HashMap<i32, Code>,
    retained: i32,
    current: HashMap<ThreadId, Vec<Context>>,
    /// How calls of a thread get on with captures; a thread that is not in here disturbs them.
    capture_modes: HashMap<ThreadId, i32>,
    handles: usize,
    streams: HashMap<usize, Stream>,
    /// Told of all work that is put on a stream.
    more: Arc<Condvar>,
    /// The number of the newest record of each event.
    events: HashMap<usize, u64>,
    records: u64,
    registered: ScriptedHost,
    device: ScriptedMemory,
    /// Copies between host memory and the device that were begun.
    host_copies: usize,
    /// Whether it has no room for copies to host memory, and the calls that wait for some.
    is_full: bool,
    waiting: usize,
    /// The text of kernels that are loaded, and the names of those that were looked up.
    modules: HashMap<usize, String>,
    functions: HashMap<usize, String>,
    launches: usize,
    random: u64,
}

impl Scripted {
    pub(crate) fn new() -> Scripted {
        Scripted {
            state: Mutex::new(ScriptedState {
                primary: PRIMARY,
                devices: 1,
                host: 0,
                are_peers: false,
                version: 12000,
                has_stream_words: true,
                has_dma_bufs: false,
                is_window_full: false,
                has_buffer_ids: true,
                has_sharing: true,
                sees_rdma_writes: true,
                flush: None,
                calls: 0,
                fail: None,
                unanswered: None,
                gone: None,
                faults: HashMap::new(),
                retained: 0,
                current: HashMap::new(),
                capture_modes: HashMap::new(),
                handles: 0x10,
                streams: HashMap::from([(0, Stream::new(PRIMARY, true))]),
                more: Arc::default(),
                events: HashMap::new(),
                records: 0,
                registered: ScriptedHost::new(),
                device: ScriptedMemory::new(),
                host_copies: 0,
                is_full: false,
                waiting: 0,
                modules: HashMap::new(),
                functions: HashMap::new(),
                launches: 0,
                random: 0x9e37_79b9_7f4a_7c15,
            }),
        }
    }

    /// Its first device, and a stream of the caller's with the handle that the caller has.
    pub(crate) fn open_gpu(self: &Arc<Self>) -> (Gpu, usize, GpuStream) {
        self.open_gpu_at(0)
    }

    /// The same of its device of this ordinal.
    pub(crate) fn open_gpu_at(self: &Arc<Self>, ordinal: u32) -> (Gpu, usize, GpuStream) {
        let gpu = Gpu::with_driver(self.clone(), ordinal).expect("a device");
        let (raw, stream) = self.stream_of_caller(&gpu);
        (gpu, raw, stream)
    }

    /// A stream of the caller's.
    pub(crate) fn stream_of_caller(&self, gpu: &Gpu) -> (usize, GpuStream) {
        let primary = self.state().primary_of(gpu.ordinal() as i32);
        let raw = self.stream(primary);
        // SAFETY: a stream that is never ended.
        (raw, unsafe { GpuStream::of_caller(gpu, raw) }.expect("a stream"))
    }

    fn state(&self) -> MutexGuard<'_, ScriptedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<R>(&self, call: impl FnOnce(&mut ScriptedState) -> Result<R, Code>) -> Result<R, Code> {
        let mut state = self.state();
        let number = state.calls;
        state.calls += 1;
        let fails = state.fail.take_if(|fails| fails.call == number);
        let result = match (fails, state.gone) {
            (Some(ScriptedFailure { code, is_late: false, .. }), _) | (_, Some(code)) => Err(code),
            _ => call(&mut state),
        };
        fails.map_or(result, |fails| Err(fails.code))
    }

    /// The same, where a context must be current.
    fn within<R>(&self, call: impl FnOnce(&mut ScriptedState) -> Result<R, Code>) -> Result<R, Code> {
        self.call(|state| {
            let stack = state.current.get(&std::thread::current().id());
            let mode = state.capture_modes.get(&std::thread::current().id());
            let disturbs = mode != Some(&CAPTURE_MODE_RELAXED);
            let context = stack.and_then(|stack| stack.last().copied()).ok_or(NO_CONTEXT)?;
            match state.faults.get(&state.device_of(context)) {
                Some(code) => Err(*code),
                None if disturbs && state.streams.values().any(|stream| stream.is_capturing) => {
                    Err(Code::CAPTURE_UNSUPPORTED)
                }
                None => call(state),
            }
        })
    }
}

impl ScriptedState {
    fn primary_of(&self, device: i32) -> Context {
        Context(self.primary.0 + NEXT_DEVICE * device as usize)
    }

    /// The device of a context.
    fn device_of(&self, context: Context) -> i32 {
        (context.0.wrapping_sub(self.primary.0) / NEXT_DEVICE) as i32
    }

    /// The context that is current on this thread.
    fn current(&self) -> Context {
        let stack = self.current.get(&std::thread::current().id());
        stack.and_then(|stack| stack.last().copied()).unwrap_or(self.primary)
    }

    fn handle(&mut self) -> usize {
        self.handles += 0x10;
        self.handles
    }
}

impl Driver for Scripted {
    fn version(&self) -> Result<i32, Code> {
        self.call(|state| Ok(state.version))
    }

    fn device_count(&self) -> Result<i32, Code> {
        self.call(|state| Ok(state.devices))
    }

    fn device(&self, ordinal: i32) -> Result<i32, Code> {
        self.call(|state| if ordinal < state.devices { Ok(ordinal) } else { Err(Code::INVALID_VALUE) })
    }

    fn device_name(&self, _: i32) -> Result<String, Code> {
        self.call(|_| Ok("a scripted device".into()))
    }

    fn device_uuid(&self, device: i32) -> Result<[u8; 16], Code> {
        self.call(|state| Ok([state.host, device as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]))
    }

    fn reaches(&self, _: i32, _: i32) -> Result<bool, Code> {
        self.call(|state| Ok(state.are_peers))
    }

    fn attribute(&self, attribute: Attribute, _: i32) -> Result<i32, Code> {
        self.call(|state| {
            Ok(match attribute {
                Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS => state.has_stream_words.into(),
                Attribute::DMA_BUF_SUPPORTED => state.has_dma_bufs.into(),
                Attribute::GPU_DIRECT_RDMA_WRITES_ORDERING if state.sees_rdma_writes => ORDERING_OWNER,
                Attribute::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS if state.flush.is_some() => FLUSH_OPTION_HOST,
                _ => 0,
            })
        })
    }

    fn retain_primary_context(&self, device: i32) -> Result<Context, Code> {
        self.call(|state| {
            state.retained += 1;
            Ok(state.primary_of(device))
        })
    }

    fn release_primary_context(&self, _: i32) -> Result<(), Code> {
        self.call(|state| {
            state.retained -= 1;
            Ok(())
        })
    }

    fn push_context(&self, context: Context) -> Result<(), Code> {
        self.call(|state| {
            state.current.entry(std::thread::current().id()).or_default().push(context);
            Ok(())
        })
    }

    fn pop_context(&self) -> Result<(), Code> {
        self.call(|state| {
            let stack = state.current.get_mut(&std::thread::current().id());
            stack.and_then(Vec::pop).map(drop).ok_or(NO_CONTEXT)
        })
    }

    fn exchange_capture_mode(&self, mode: i32) -> Result<i32, Code> {
        self.call(|state| Ok(state.capture_modes.insert(std::thread::current().id(), mode).unwrap_or(0)))
    }

    fn pointer_attribute(&self, attribute: PointerAttribute, pointer: DevicePointer) -> Result<u64, Code> {
        self.within(|state| {
            if let Some(range) = state.registered.range(pointer) {
                return match attribute {
                    PointerAttribute::MEMORY_TYPE => Ok(MEMORY_TYPE_HOST.into()),
                    PointerAttribute::RANGE_START => Ok(range.begin as u64),
                    PointerAttribute::RANGE_BYTES => Ok(range.bytes as u64),
                    _ => Err(Code::INVALID_VALUE),
                };
            }
            let (is_managed, ordinal) = state.device.kind(pointer).ok_or(Code::INVALID_VALUE)?;
            let (context, is_classic) = state.device.allocated_in(pointer).ok_or(Code::INVALID_VALUE)?;
            match attribute {
                PointerAttribute::CONTEXT => {
                    context.map(|context| context.0 as u64).ok_or(Code::INVALID_VALUE)
                }
                PointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE => Ok(is_classic.into()),
                PointerAttribute::MEMORY_TYPE => Ok(MEMORY_TYPE_DEVICE.into()),
                PointerAttribute::IS_MANAGED => Ok(is_managed.into()),
                PointerAttribute::DEVICE_ORDINAL => Ok(ordinal.into()),
                PointerAttribute::BUFFER_ID if state.has_buffer_ids => {
                    state.device.number(pointer).ok_or(Code::INVALID_VALUE)
                }
                _ => Err(Code::INVALID_VALUE),
            }
        })
    }

    fn address_range(&self, pointer: DevicePointer) -> Result<(DevicePointer, usize), Code> {
        self.within(|state| state.device.range(pointer).ok_or(Code::INVALID_VALUE))
    }

    fn allocate(&self, device: i32, bytes: usize) -> Result<Allocation, Code> {
        self.within(|state| {
            let (pointer, bytes) = state.device.allocate(device, bytes).ok_or(Code::OUT_OF_MEMORY)?;
            Ok(Allocation { pointer, bytes, handle: 1 })
        })
    }

    fn allocate_two_pieces(&self, device: i32, bytes: usize) -> Result<(DevicePointer, usize), Code> {
        self.within(|state| state.device.reserve_two(device, bytes).ok_or(Code::OUT_OF_MEMORY))
    }

    fn allocate_classic(&self, bytes: usize) -> Result<DevicePointer, Code> {
        self.within(|state| {
            let context = state.current();
            let pointer = state.device.reserve(state.device_of(context), bytes).ok_or(Code::OUT_OF_MEMORY)?;
            state.device.set_classic(pointer, context);
            Ok(pointer)
        })
    }

    fn export(&self, allocation: Allocation) -> Result<OwnedFd, Code> {
        self.within(|state| state.device.export(allocation.pointer).ok_or(Code::INVALID_VALUE))
    }

    fn dma_buf(&self, pointer: DevicePointer, bytes: usize) -> Result<OwnedFd, Code> {
        self.within(|state| {
            if state.is_window_full {
                return Err(Code::OUT_OF_MEMORY);
            }
            let exported = state.has_dma_bufs.then(|| state.device.dma_buf(pointer, bytes)).flatten();
            exported.ok_or(Code::INVALID_VALUE)
        })
    }

    fn flush_rdma_writes(&self) -> Result<(), Code> {
        let flush = self.within(|state| state.flush.clone().ok_or(Code::NOT_SUPPORTED))?;
        flush();
        Ok(())
    }

    fn home(&self, file: BorrowedFd<'_>) -> Result<i32, Code> {
        self.within(|_| ScriptedMemory::home(file).ok_or(Code::INVALID_VALUE))
    }

    fn import(
        &self,
        device: i32,
        file: BorrowedFd<'_>,
        bytes: usize,
        is_writable: bool,
    ) -> Result<Allocation, Code> {
        self.within(|state| {
            if ScriptedMemory::home(file) != Some(device) && !state.are_peers {
                return Err(Code::INVALID_DEVICE);
            }
            let imported = state.device.import(device, file, bytes, is_writable);
            let pointer = imported.ok_or(Code::INVALID_VALUE)?;
            state.device.own += 1;
            Ok(Allocation { pointer, bytes, handle: 1 })
        })
    }

    fn share(&self, pointer: DevicePointer) -> Result<IpcHandle, Code> {
        self.within(|state| match state.has_sharing {
            true => state.device.share(pointer).ok_or(Code::INVALID_VALUE),
            false => Err(Code::NOT_SUPPORTED),
        })
    }

    fn open_shared(&self, handle: IpcHandle) -> Result<DevicePointer, Code> {
        self.within(|state| {
            if !state.has_sharing {
                return Err(MAP_FAILED);
            }
            if state.device.is_own(handle) {
                return Err(NO_CONTEXT);
            }
            let device = state.device_of(state.current());
            state.device.open(device, handle, state.are_peers).ok_or(MAP_FAILED)
        })
    }

    unsafe fn close_shared(&self, begin: DevicePointer) -> Result<(), Code> {
        self.within(|state| {
            let (_, bytes) = state.device.range(begin).ok_or(Code::INVALID_VALUE)?;
            if state.device.opens(begin) == 1 {
                state.expect_unused(begin, bytes);
            }
            state.device.close(begin).ok_or(Code::INVALID_VALUE)
        })
    }

    unsafe fn free(&self, allocation: Allocation) -> Result<(), Code> {
        self.within(|state| {
            state.expect_unused(allocation.pointer, allocation.bytes);
            state.device.own -= 1;
            state.device.free(allocation.pointer);
            Ok(())
        })
    }

    unsafe fn register_host(&self, begin: *mut u8, bytes: usize, flags: u32) -> Result<DevicePointer, Code> {
        self.within(|state| {
            let (begin, end) = (begin.expose_provenance(), begin.addr() + bytes);
            // Devices may write what is not said to be read only, so the processor has to, too.
            if flags & HOST_REGISTER_READ_ONLY == 0 && !host::is_mapped_writable(begin, end) {
                return Err(Code::INVALID_VALUE);
            }
            let device = state.device_of(state.current());
            match state.registered.register(begin, bytes, flags, device) {
                true if flags & HOST_REGISTER_DEVICEMAP != 0 => Ok(begin as DevicePointer),
                true => Ok(0),
                false => Err(Code::HOST_MEMORY_ALREADY_REGISTERED),
            }
        })
    }

    fn host_pointer(&self, host: *mut u8) -> Result<DevicePointer, Code> {
        let host = host.expose_provenance();
        self.within(|state| {
            let device = state.device_of(state.current());
            state.registered.pointer(device, host).ok_or(Code::INVALID_VALUE)
        })
    }

    unsafe fn unregister_host(&self, begin: *mut u8) -> Result<(), Code> {
        self.within(|state| {
            let range = state.registered.range(begin.addr() as DevicePointer);
            let range = range.filter(|range| range.begin == begin.addr()).ok_or(Code::INVALID_VALUE)?;
            state.expect_unused(range.begin as DevicePointer, range.bytes);
            state.registered.unregister(range.begin);
            Ok(())
        })
    }

    fn create_stream(&self) -> Result<StreamHandle, Code> {
        self.within(|state| {
            let current = state.current();
            Ok(state.add_stream(current, false))
        })
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), Code> {
        self.within(|state| state.end_stream(stream))
    }

    fn stream_context(&self, stream: StreamHandle) -> Result<Context, Code> {
        // Of the default stream it is the one that is current.
        self.within(|state| match stream {
            StreamHandle(0) => Ok(state.current()),
            stream => state.stream(stream).map(|stream| stream.context),
        })
    }

    fn is_capturing(&self, stream: StreamHandle) -> Result<bool, Code> {
        self.within(|state| state.stream(stream).map(|stream| stream.is_capturing))
    }

    fn is_idle(&self, stream: StreamHandle) -> Result<bool, Code> {
        self.within(|state| match state.unanswered {
            Some(code) => Err(code),
            None => state.stream(stream).map(|stream| stream.work.is_empty()),
        })
    }

    fn create_event(&self) -> Result<EventHandle, Code> {
        self.within(|state| {
            let event = state.handle();
            state.events.insert(event, 0);
            Ok(EventHandle(event))
        })
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), Code> {
        self.within(|state| state.events.remove(&event.0).map(drop).ok_or(INVALID_HANDLE))
    }

    fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), Code> {
        self.within(|state| {
            state.records += 1;
            let record = state.records;
            *state.events.get_mut(&event.0).ok_or(INVALID_HANDLE)? = record;
            state.put(stream, StreamWork::Record(record))
        })
    }

    fn has_happened(&self, event: EventHandle) -> Result<bool, Code> {
        self.within(|state| {
            let record = *state.events.get(&event.0).ok_or(INVALID_HANDLE)?;
            state.unanswered.map_or(Ok(!state.is_ahead(record)), Err)
        })
    }

    fn wait_for(&self, stream: StreamHandle, event: EventHandle) -> Result<(), Code> {
        self.within(|state| {
            let record = *state.events.get(&event.0).ok_or(INVALID_HANDLE)?;
            state.put(stream, StreamWork::Wait(record))
        })
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut c_void,
        from: DevicePointer,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code> {
        let host = to.expose_provenance();
        self.wait_for_room();
        self.within(|state| {
            state.host_copies += 1;
            state.put(stream, StreamWork::ToHost { host, device: from, bytes, done: 0 })
        })
    }

    unsafe fn copy_from_host(
        &self,
        to: DevicePointer,
        from: *const c_void,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code> {
        let host = from.expose_provenance();
        self.within(|state| {
            state.host_copies += 1;
            state.put(stream, StreamWork::FromHost { host, device: to, bytes, done: 0 })
        })
    }

    unsafe fn copy_within(
        &self,
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code> {
        self.within(|state| state.put(stream, StreamWork::Within { to, from, bytes, done: 0 }))
    }

    unsafe fn fill_with_zeros(
        &self,
        to: DevicePointer,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code> {
        self.within(|state| state.put(stream, StreamWork::Fill { pointer: to, bytes, value: 0 }))
    }

    fn load_module(&self, kernels: &CStr) -> Result<ModuleHandle, Code> {
        self.within(|state| {
            let module = state.handle();
            state.modules.insert(module, kernels.to_str().map_err(|_| Code::INVALID_VALUE)?.into());
            Ok(ModuleHandle(module))
        })
    }

    fn unload_module(&self, module: ModuleHandle) -> Result<(), Code> {
        self.within(|state| state.modules.remove(&module.0).map(drop).ok_or(INVALID_HANDLE))
    }

    fn function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle, Code> {
        self.within(|state| {
            let name = name.to_str().map_err(|_| Code::INVALID_VALUE)?;
            let kernels = state.modules.get(&module.0).ok_or(INVALID_HANDLE)?;
            if !kernels.contains(&format!(".visible .entry {name}(")) {
                return Err(Code::NOT_FOUND);
            }
            let function = state.handle();
            state.functions.insert(function, name.into());
            Ok(FunctionHandle(function))
        })
    }

    unsafe fn launch(
        &self,
        function: FunctionHandle,
        blocks: u32,
        threads: u32,
        parameter: *const c_void,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code> {
        self.within(|state| {
            let name = state.functions.get(&function.0).ok_or(INVALID_HANDLE)?.clone();
            if blocks == 0 || !(1..=256).contains(&threads) {
                return Err(Code::INVALID_VALUE);
            }
            // SAFETY: the caller's promise.
            let kernel = unsafe { ScriptedKernel::new(name, parameter, bytes) }.ok_or(Code::INVALID_VALUE)?;
            state.launches += 1;
            state.put(stream, StreamWork::Launch { kernel, done: 0 })
        })
    }

    unsafe fn write_word(&self, stream: StreamHandle, to: DevicePointer, value: u64) -> Result<(), Code> {
        self.within(|state| state.put(stream, StreamWork::Word { host: to as usize, value }))
    }
}
