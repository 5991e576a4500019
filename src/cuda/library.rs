//! `libcuda.so.1`, the driver's library, found at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, OnceLock};

use super::GpuError;
use super::driver::{
    Allocation, Context, DevicePointer, Driver, EventHandle, FunctionHandle, ModuleHandle, StreamHandle,
};
use super::gpu::expect_version;
use super::sys::*;
use crate::mem::ForkGuard;

/// The driver's own name. `libcuda.so` may be the stub that a toolkit links programs with.
const SONAME: &CStr = c"libcuda.so.1";

/// A handle as the library takes it.
type Handle = *mut c_void;

/// Declares the table of functions, each looked up once by its name.
macro_rules! functions {
    ($($name:ident: $symbol:literal as fn($($argument:ty),* $(,)?);)*) => {
        /// The functions of the driver, called as `cuda.h` says.
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Functions {
            /// # Safety
            /// `handle` is from `dlopen` of the driver's library, and is never closed.
            unsafe fn find(handle: *mut c_void) -> Result<Functions, GpuError> {
                Ok(Functions {
                    $($name: {
                        let found = lookup(handle, $symbol).ok_or(GpuError::NoSymbol { symbol: $symbol })?;
                        // SAFETY: the function of that name, whose type `cuda.h` gives; the library stays loaded.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Code>(found)
                        }
                    },)*
                })
            }
        }
    };
}

// Names that end in _v2 are what the header renames the plain ones to. All are there from CUDA 11.7 on.
functions! {
    init: "cuInit" as fn(c_uint);
    driver_get_version: "cuDriverGetVersion" as fn(*mut c_int);
    device_get_count: "cuDeviceGetCount" as fn(*mut c_int);
    device_get: "cuDeviceGet" as fn(*mut c_int, c_int);
    device_get_name: "cuDeviceGetName" as fn(*mut c_char, c_int, c_int);
    device_get_uuid: "cuDeviceGetUuid_v2" as fn(*mut [u8; 16], c_int);
    device_can_access_peer: "cuDeviceCanAccessPeer" as fn(*mut c_int, c_int, c_int);
    device_get_attribute: "cuDeviceGetAttribute" as fn(*mut c_int, Attribute, c_int);
    primary_context_retain: "cuDevicePrimaryCtxRetain" as fn(*mut Handle, c_int);
    primary_context_release: "cuDevicePrimaryCtxRelease_v2" as fn(c_int);
    context_push: "cuCtxPushCurrent_v2" as fn(Handle);
    context_pop: "cuCtxPopCurrent_v2" as fn(*mut Handle);
    exchange_capture_mode: "cuThreadExchangeStreamCaptureMode" as fn(*mut c_int);
    pointer_get_attribute: "cuPointerGetAttribute" as fn(*mut c_void, PointerAttribute, DevicePointer);
    mem_get_address_range: "cuMemGetAddressRange_v2" as fn(*mut DevicePointer, *mut usize, DevicePointer);
    mem_alloc: "cuMemAlloc_v2" as fn(*mut DevicePointer, usize);
    mem_get_granularity: "cuMemGetAllocationGranularity" as fn(*mut usize, *const AllocationProperties, c_int);
    mem_create: "cuMemCreate" as fn(*mut u64, usize, *const AllocationProperties, u64);
    mem_release: "cuMemRelease" as fn(u64);
    mem_export: "cuMemExportToShareableHandle" as fn(*mut c_void, u64, c_int, u64);
    mem_import: "cuMemImportFromShareableHandle" as fn(*mut u64, *mut c_void, c_int);
    mem_get_properties: "cuMemGetAllocationPropertiesFromHandle" as fn(*mut AllocationProperties, u64);
    ipc_get_handle: "cuIpcGetMemHandle" as fn(*mut IpcHandle, DevicePointer);
    ipc_open_handle: "cuIpcOpenMemHandle_v2" as fn(*mut DevicePointer, IpcHandle, c_uint);
    ipc_close: "cuIpcCloseMemHandle" as fn(DevicePointer);
    mem_get_range_handle: "cuMemGetHandleForAddressRange" as fn(*mut c_void, DevicePointer, usize, c_int, u64);
    flush_rdma_writes: "cuFlushGPUDirectRDMAWrites" as fn(c_int, c_int);
    mem_address_reserve: "cuMemAddressReserve" as fn(*mut DevicePointer, usize, usize, DevicePointer, u64);
    mem_address_free: "cuMemAddressFree" as fn(DevicePointer, usize);
    mem_map: "cuMemMap" as fn(DevicePointer, usize, usize, u64, u64);
    mem_unmap: "cuMemUnmap" as fn(DevicePointer, usize);
    mem_set_access: "cuMemSetAccess" as fn(DevicePointer, usize, *const AccessDescriptor, usize);
    mem_host_register: "cuMemHostRegister_v2" as fn(*mut c_void, usize, c_uint);
    mem_host_get_pointer: "cuMemHostGetDevicePointer_v2" as fn(*mut DevicePointer, *mut c_void, c_uint);
    mem_host_unregister: "cuMemHostUnregister" as fn(*mut c_void);
    stream_create: "cuStreamCreate" as fn(*mut Handle, c_uint);
    stream_destroy: "cuStreamDestroy_v2" as fn(Handle);
    stream_get_context: "cuStreamGetCtx" as fn(Handle, *mut Handle);
    stream_is_capturing: "cuStreamIsCapturing" as fn(Handle, *mut c_int);
    stream_query: "cuStreamQuery" as fn(Handle);
    stream_wait_event: "cuStreamWaitEvent" as fn(Handle, Handle, c_uint);
    stream_write_word: "cuStreamWriteValue64_v2" as fn(Handle, DevicePointer, u64, c_uint);
    event_create: "cuEventCreate" as fn(*mut Handle, c_uint);
    event_destroy: "cuEventDestroy_v2" as fn(Handle);
    event_record: "cuEventRecord" as fn(Handle, Handle);
    event_query: "cuEventQuery" as fn(Handle);
    copy_to_host: "cuMemcpyDtoHAsync_v2" as fn(*mut c_void, DevicePointer, usize, Handle);
    copy_from_host: "cuMemcpyHtoDAsync_v2" as fn(DevicePointer, *const c_void, usize, Handle);
    copy_within: "cuMemcpyDtoDAsync_v2" as fn(DevicePointer, DevicePointer, usize, Handle);
    fill: "cuMemsetD8Async" as fn(DevicePointer, c_uchar, usize, Handle);
    module_load: "cuModuleLoadData" as fn(*mut Handle, *const c_void);
    module_unload: "cuModuleUnload" as fn(Handle);
    module_get_function: "cuModuleGetFunction" as fn(*mut Handle, Handle, *const c_char);
    launch_kernel: "cuLaunchKernel" as fn(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, *mut Handle,
    );
}

/// Loads a library, which is never closed. Says whether it was in the process before.
pub(super) fn load(soname: &CStr) -> Result<(*mut c_void, bool), GpuError> {
    // SAFETY: a string that ends in NUL; the library's constructors are those of the driver.
    let open = |flags| unsafe { libc::dlopen(soname.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags) };
    let before = open(libc::RTLD_NOLOAD);
    if !before.is_null() {
        return Ok((before, true));
    }
    let handle = open(0);
    if handle.is_null() {
        // SAFETY: the text of this thread's last error, or null; it lives until the next call, and is copied.
        let reason = unsafe {
            let text = libc::dlerror();
            if text.is_null() { "no reason given".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        return Err(GpuError::NoDriver { reason: reason.into_owned() });
    }
    Ok((handle, false))
}

fn lookup(handle: *mut c_void, symbol: &str) -> Option<*mut c_void> {
    let symbol = CString::new(symbol).ok()?;
    // SAFETY: a handle that is open, and a string that ends in NUL.
    let found = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The driver of this system.
pub(super) struct DriverLibrary {
    functions: Functions,
}

impl DriverLibrary {
    /// The driver, opened and initialised by the first call and never closed: it has threads of its own.
    pub(super) fn get() -> Result<Arc<dyn Driver>, GpuError> {
        static LIBRARY: OnceLock<(ForkGuard, Result<Arc<DriverLibrary>, GpuError>)> = OnceLock::new();
        let open = || (ForkGuard::new(), DriverLibrary::open(SONAME).map(Arc::new));
        let (born, library) = LIBRARY.get_or_init(open);
        if library.is_ok() && born.is_inherited() {
            return Err(GpuError::Forked);
        }
        library.clone().map(|library| library as Arc<dyn Driver>)
    }

    pub(super) fn open(soname: &CStr) -> Result<DriverLibrary, GpuError> {
        let (handle, was_loaded) = load(soname)?;
        // Asked before the rest is looked up: a driver that is too old lacks functions.
        let version = lookup(handle, "cuDriverGetVersion")
            .ok_or(GpuError::NoSymbol { symbol: "cuDriverGetVersion" })?;
        let mut number = 0;
        // SAFETY: the function of that name, whose type `cuda.h` gives; it may be called before `cuInit`.
        let code = unsafe {
            let version =
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> Code>(version);
            version(&mut number)
        };
        check(code).map_err(|code| GpuError::of("asking for the driver's version", code))?;
        expect_version(number)?;
        // SAFETY: just opened, and nothing here closes it.
        let functions = unsafe { Functions::find(handle)? };
        // SAFETY: 0 is the only flag that there is.
        check(unsafe { (functions.init)(0) })
            .map_err(|code| GpuError::of_initialisation(code, was_loaded))?;
        Ok(DriverLibrary { functions })
    }

    fn properties(&self, device: c_int) -> AllocationProperties {
        let has = |attribute| self.attribute(attribute, device).is_ok_and(|value| value != 0);
        AllocationProperties {
            kind: ALLOCATION_PINNED,
            handle_types: match has(Attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) {
                true => HANDLE_POSIX_FILE_DESCRIPTOR,
                false => 0,
            },
            location: MemoryLocation { kind: LOCATION_DEVICE, id: device },
            windows_metadata: ptr::null_mut(),
            compression: 0,
            is_gpu_direct_rdma_capable: has(Attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED).into(),
            usage: 0,
            reserved: [0; 4],
        }
    }

    /// A handle of memory that another process has exported.
    fn handle(&self, file: BorrowedFd<'_>) -> Result<u64, Code> {
        let mut handle = 0;
        let number = ptr::without_provenance_mut(file.as_raw_fd() as usize);
        // SAFETY: as for all calls below; a descriptor is passed where a pointer would be.
        check(unsafe { (self.functions.mem_import)(&mut handle, number, HANDLE_POSIX_FILE_DESCRIPTOR) })?;
        Ok(handle)
    }

    /// A handle of new memory of a device, and the bytes that it has.
    fn create(&self, device: c_int, bytes: usize) -> Result<(u64, usize), Code> {
        let properties = self.properties(device);
        let (mut granularity, mut handle) = (0, 0);
        // SAFETY: as for all calls below.
        check(unsafe {
            (self.functions.mem_get_granularity)(&mut granularity, &properties, GRANULARITY_MINIMUM)
        })?;
        let bytes = bytes.checked_next_multiple_of(granularity.max(1)).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: as above.
        check(unsafe { (self.functions.mem_create)(&mut handle, bytes, &properties, 0) })?;
        Ok((handle, bytes))
    }

    /// Addresses that nothing is mapped at yet.
    fn reserve(&self, bytes: usize) -> Result<DevicePointer, Code> {
        let mut pointer = 0;
        // SAFETY: as for all calls below.
        check(unsafe { (self.functions.mem_address_reserve)(&mut pointer, bytes, 0, 0, 0) })?;
        Ok(pointer)
    }

    /// Maps memory of a handle for a device; the handle is given back after an error.
    fn map(&self, device: c_int, handle: u64, bytes: usize, flags: c_int) -> Result<Allocation, Code> {
        let mapped = self.reserve(bytes).and_then(|pointer| {
            // SAFETY: no other code has the address yet, and nothing is mapped there.
            let give_back = || check(unsafe { (self.functions.mem_address_free)(pointer, bytes) });
            let mapped = self.map_at(pointer, device, handle, bytes, flags);
            mapped.inspect_err(|_| ignore(give_back())).map(|()| pointer)
        });
        // SAFETY: the handle is not used any more after an error.
        let release = || check(unsafe { (self.functions.mem_release)(handle) });
        let pointer = mapped.inspect_err(|_| ignore(release()))?;
        Ok(Allocation { pointer, bytes, handle })
    }

    /// The same at addresses that were reserved and that no other code has yet.
    fn map_at(
        &self,
        pointer: DevicePointer,
        device: c_int,
        handle: u64,
        bytes: usize,
        flags: c_int,
    ) -> Result<(), Code> {
        // SAFETY: as for all calls below; the range was reserved.
        check(unsafe { (self.functions.mem_map)(pointer, bytes, 0, handle, 0) })?;
        let location = MemoryLocation { kind: LOCATION_DEVICE, id: device };
        let access = AccessDescriptor { location, flags };
        // SAFETY: as above; the range was just mapped.
        let set = check(unsafe { (self.functions.mem_set_access)(pointer, bytes, &access, 1) });
        // SAFETY: no other code has the address yet.
        let unmap = || check(unsafe { (self.functions.mem_unmap)(pointer, bytes) });
        set.inspect_err(|_| ignore(unmap()))
    }
}

fn check(code: Code) -> Result<(), Code> {
    if code == Code::SUCCESS { Ok(()) } else { Err(code) }
}

/// An error on the way back from another one, which is the one to tell.
fn ignore(_: Result<(), Code>) {}

/// The answer to a question whether something is over.
fn check_ready(code: Code) -> Result<bool, Code> {
    if code == Code::NOT_READY { Ok(false) } else { check(code).map(|()| true) }
}

const fn raw(handle: usize) -> Handle {
    ptr::without_provenance_mut(handle)
}

// Each block of `unsafe` below calls a function of the header with pointers to values of this frame, which live until
// the call has returned, and with handles that the driver has given, as the trait says.
impl Driver for DriverLibrary {
    fn version(&self) -> Result<i32, Code> {
        let mut version = 0;
        // SAFETY: as above.
        check(unsafe { (self.functions.driver_get_version)(&mut version) }).map(|()| version)
    }

    fn device_count(&self) -> Result<i32, Code> {
        let mut count = 0;
        // SAFETY: as above.
        check(unsafe { (self.functions.device_get_count)(&mut count) }).map(|()| count)
    }

    fn device(&self, ordinal: i32) -> Result<i32, Code> {
        let mut device = 0;
        // SAFETY: as above.
        check(unsafe { (self.functions.device_get)(&mut device, ordinal) }).map(|()| device)
    }

    fn device_name(&self, device: i32) -> Result<String, Code> {
        let mut name = [0 as c_char; 256];
        // SAFETY: as above; the driver writes at most that many bytes, and a NUL at their end.
        check(unsafe { (self.functions.device_get_name)(name.as_mut_ptr(), name.len() as c_int, device) })?;
        let bytes: Vec<u8> = name.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn device_uuid(&self, device: i32) -> Result<[u8; 16], Code> {
        let mut uuid = [0; 16];
        // SAFETY: as above; the driver writes 16 bytes.
        check(unsafe { (self.functions.device_get_uuid)(&raw mut uuid, device) })?;
        Ok(uuid)
    }

    fn reaches(&self, device: i32, other: i32) -> Result<bool, Code> {
        let mut reaches = 0;
        // SAFETY: as above.
        check(unsafe { (self.functions.device_can_access_peer)(&mut reaches, device, other) })?;
        Ok(reaches != 0)
    }

    fn attribute(&self, attribute: Attribute, device: i32) -> Result<i32, Code> {
        let mut value = 0;
        // SAFETY: as above.
        check(unsafe { (self.functions.device_get_attribute)(&mut value, attribute, device) }).map(|()| value)
    }

    fn retain_primary_context(&self, device: i32) -> Result<Context, Code> {
        let mut context = ptr::null_mut();
        // SAFETY: as above.
        check(unsafe { (self.functions.primary_context_retain)(&mut context, device) })?;
        Ok(Context(context.addr()))
    }

    fn release_primary_context(&self, device: i32) -> Result<(), Code> {
        // SAFETY: as above.
        check(unsafe { (self.functions.primary_context_release)(device) })
    }

    fn push_context(&self, context: Context) -> Result<(), Code> {
        // SAFETY: as above.
        check(unsafe { (self.functions.context_push)(raw(context.0)) })
    }

    fn pop_context(&self) -> Result<(), Code> {
        let mut context = ptr::null_mut();
        // SAFETY: as above.
        check(unsafe { (self.functions.context_pop)(&mut context) })
    }

    fn exchange_capture_mode(&self, mode: i32) -> Result<i32, Code> {
        let mut mode = mode;
        // SAFETY: as above.
        check(unsafe { (self.functions.exchange_capture_mode)(&mut mode) }).map(|()| mode)
    }

    fn pointer_attribute(&self, attribute: PointerAttribute, pointer: DevicePointer) -> Result<u64, Code> {
        // A flag is written as one byte, numbers as four, addresses and lengths as eight.
        let mut value = 0_u64;
        let to = ptr::from_mut(&mut value).cast();
        // SAFETY: as above.
        check(unsafe { (self.functions.pointer_get_attribute)(to, attribute, pointer) }).map(|()| value)
    }

    fn address_range(&self, pointer: DevicePointer) -> Result<(DevicePointer, usize), Code> {
        let (mut begin, mut bytes) = (0, 0);
        // SAFETY: as above.
        check(unsafe { (self.functions.mem_get_address_range)(&mut begin, &mut bytes, pointer) })?;
        Ok((begin, bytes))
    }

    fn allocate(&self, device: i32, bytes: usize) -> Result<Allocation, Code> {
        let (handle, bytes) = self.create(device, bytes)?;
        self.map(device, handle, bytes, ACCESS_READ_WRITE)
    }

    fn allocate_two_pieces(&self, device: i32, bytes: usize) -> Result<(DevicePointer, usize), Code> {
        let (first, length) = self.create(device, bytes)?;
        let (second, _) = self.create(device, bytes)?;
        let pointer = self.reserve(2 * length)?;
        self.map_at(pointer, device, first, length, ACCESS_READ_WRITE)?;
        self.map_at(pointer + length as u64, device, second, length, ACCESS_READ_WRITE)?;
        Ok((pointer, length))
    }

    fn allocate_classic(&self, bytes: usize) -> Result<DevicePointer, Code> {
        let mut pointer = 0;
        // SAFETY: as above.
        check(unsafe { (self.functions.mem_alloc)(&mut pointer, bytes) }).map(|()| pointer)
    }

    fn export(&self, allocation: Allocation) -> Result<OwnedFd, Code> {
        let mut file: c_int = -1;
        let to = ptr::from_mut(&mut file).cast();
        // SAFETY: as above; a descriptor is what is written for this kind of handle.
        check(unsafe {
            (self.functions.mem_export)(to, allocation.handle, HANDLE_POSIX_FILE_DESCRIPTOR, 0)
        })?;
        // SAFETY: a new descriptor, which nothing else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    fn dma_buf(&self, pointer: DevicePointer, bytes: usize) -> Result<OwnedFd, Code> {
        let mut file: c_int = -1;
        let to = ptr::from_mut(&mut file).cast();
        // SAFETY: as above; a descriptor is what is written for this kind of handle.
        check(unsafe { (self.functions.mem_get_range_handle)(to, pointer, bytes, HANDLE_DMA_BUF, 0) })?;
        // SAFETY: a new descriptor, which nothing else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    fn flush_rdma_writes(&self) -> Result<(), Code> {
        // SAFETY: as above.
        check(unsafe { (self.functions.flush_rdma_writes)(FLUSH_CURRENT_CONTEXT, FLUSH_TO_OWNER) })
    }

    fn home(&self, file: BorrowedFd<'_>) -> Result<i32, Code> {
        let (handle, mut properties) = (self.handle(file)?, AllocationProperties::NONE);
        // SAFETY: as above.
        let asked = check(unsafe { (self.functions.mem_get_properties)(&mut properties, handle) });
        // SAFETY: the handle is not used any more.
        let released = check(unsafe { (self.functions.mem_release)(handle) });
        asked.and(released).map(|()| properties.location.id)
    }

    fn import(
        &self,
        device: i32,
        file: BorrowedFd<'_>,
        bytes: usize,
        is_writable: bool,
    ) -> Result<Allocation, Code> {
        let handle = self.handle(file)?;
        self.map(device, handle, bytes, if is_writable { ACCESS_READ_WRITE } else { ACCESS_READ })
    }

    fn share(&self, pointer: DevicePointer) -> Result<IpcHandle, Code> {
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: as above.
        check(unsafe { (self.functions.ipc_get_handle)(&mut handle, pointer) }).map(|()| handle)
    }

    fn open_shared(&self, handle: IpcHandle) -> Result<DevicePointer, Code> {
        let mut begin = 0;
        // SAFETY: as above; the handle is bytes that the driver looks at.
        check(unsafe { (self.functions.ipc_open_handle)(&mut begin, handle, IPC_LAZY_PEER_ACCESS) })
            .map(|()| begin)
    }

    unsafe fn close_shared(&self, begin: DevicePointer) -> Result<(), Code> {
        // SAFETY: the caller's promise.
        check(unsafe { (self.functions.ipc_close)(begin) })
    }

    unsafe fn free(&self, allocation: Allocation) -> Result<(), Code> {
        let Allocation { pointer, bytes, handle } = allocation;
        // SAFETY: the caller's promise, and one allocation is one mapping.
        unsafe {
            let unmapped = check((self.functions.mem_unmap)(pointer, bytes));
            let freed = check((self.functions.mem_address_free)(pointer, bytes));
            let released = check((self.functions.mem_release)(handle));
            unmapped.and(freed).and(released)
        }
    }

    unsafe fn register_host(&self, begin: *mut u8, bytes: usize, flags: u32) -> Result<DevicePointer, Code> {
        // SAFETY: the caller's promise.
        check(unsafe { (self.functions.mem_host_register)(begin.cast(), bytes, flags) })?;
        if flags & HOST_REGISTER_DEVICEMAP == 0 {
            return Ok(0);
        }
        self.host_pointer(begin).inspect_err(|_| {
            // SAFETY: no device has been told of it.
            ignore(check(unsafe { (self.functions.mem_host_unregister)(begin.cast()) }));
        })
    }

    fn host_pointer(&self, host: *mut u8) -> Result<DevicePointer, Code> {
        let mut pointer = 0;
        // SAFETY: the driver writes the address to `pointer`, and takes `host` for a number that it knows or not.
        check(unsafe { (self.functions.mem_host_get_pointer)(&mut pointer, host.cast(), 0) })?;
        Ok(pointer)
    }

    unsafe fn unregister_host(&self, begin: *mut u8) -> Result<(), Code> {
        // SAFETY: the caller's promise.
        check(unsafe { (self.functions.mem_host_unregister)(begin.cast()) })
    }

    fn create_stream(&self) -> Result<StreamHandle, Code> {
        let mut stream = ptr::null_mut();
        // SAFETY: as above.
        check(unsafe { (self.functions.stream_create)(&mut stream, STREAM_NON_BLOCKING) })?;
        Ok(StreamHandle(stream.addr()))
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), Code> {
        // SAFETY: as above.
        check(unsafe { (self.functions.stream_destroy)(raw(stream.0)) })
    }

    fn stream_context(&self, stream: StreamHandle) -> Result<Context, Code> {
        let mut context = ptr::null_mut();
        // SAFETY: as above.
        check(unsafe { (self.functions.stream_get_context)(raw(stream.0), &mut context) })?;
        Ok(Context(context.addr()))
    }

    fn is_capturing(&self, stream: StreamHandle) -> Result<bool, Code> {
        let mut status = CAPTURE_STATUS_NONE;
        // SAFETY: as above.
        check(unsafe { (self.functions.stream_is_capturing)(raw(stream.0), &mut status) })?;
        Ok(status != CAPTURE_STATUS_NONE)
    }

    fn is_idle(&self, stream: StreamHandle) -> Result<bool, Code> {
        // SAFETY: as above.
        check_ready(unsafe { (self.functions.stream_query)(raw(stream.0)) })
    }

    fn create_event(&self) -> Result<EventHandle, Code> {
        let mut event = ptr::null_mut();
        // SAFETY: as above.
        check(unsafe { (self.functions.event_create)(&mut event, EVENT_DISABLE_TIMING) })?;
        Ok(EventHandle(event.addr()))
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), Code> {
        // SAFETY: as above.
        check(unsafe { (self.functions.event_destroy)(raw(event.0)) })
    }

    fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), Code> {
        // SAFETY: as above.
        check(unsafe { (self.functions.event_record)(raw(event.0), raw(stream.0)) })
    }

    fn has_happened(&self, event: EventHandle) -> Result<bool, Code> {
        // SAFETY: as above.
        check_ready(unsafe { (self.functions.event_query)(raw(event.0)) })
    }

    fn wait_for(&self, stream: StreamHandle, event: EventHandle) -> Result<(), Code> {
        // SAFETY: as above.
        check(unsafe { (self.functions.stream_wait_event)(raw(stream.0), raw(event.0), 0) })
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut c_void,
        from: DevicePointer,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code> {
        // SAFETY: the caller's promise.
        check(unsafe { (self.functions.copy_to_host)(to, from, bytes, raw(stream.0)) })
    }

    unsafe fn copy_from_host(
        &self,
        to: DevicePointer,
        from: *const c_void,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code> {
        // SAFETY: the caller's promise.
        check(unsafe { (self.functions.copy_from_host)(to, from, bytes, raw(stream.0)) })
    }

    unsafe fn copy_within(
        &self,
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code> {
        // SAFETY: the caller's promise.
        check(unsafe { (self.functions.copy_within)(to, from, bytes, raw(stream.0)) })
    }

    unsafe fn fill_with_zeros(
        &self,
        to: DevicePointer,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code> {
        // SAFETY: the caller's promise.
        check(unsafe { (self.functions.fill)(to, 0, bytes, raw(stream.0)) })
    }

    fn load_module(&self, kernels: &CStr) -> Result<ModuleHandle, Code> {
        let mut module = ptr::null_mut();
        // SAFETY: as above; text that ends in NUL.
        check(unsafe { (self.functions.module_load)(&mut module, kernels.as_ptr().cast()) })?;
        Ok(ModuleHandle(module.addr()))
    }

    fn unload_module(&self, module: ModuleHandle) -> Result<(), Code> {
        // SAFETY: as above.
        check(unsafe { (self.functions.module_unload)(raw(module.0)) })
    }

    fn function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle, Code> {
        let mut function = ptr::null_mut();
        // SAFETY: as above; a name that ends in NUL.
        check(unsafe { (self.functions.module_get_function)(&mut function, raw(module.0), name.as_ptr()) })?;
        Ok(FunctionHandle(function.addr()))
    }

    unsafe fn launch(
        &self,
        function: FunctionHandle,
        blocks: u32,
        threads: u32,
        parameter: *const c_void,
        _: usize,
        stream: StreamHandle,
    ) -> Result<(), Code> {
        let mut parameters = [parameter.cast_mut()];
        // SAFETY: the caller's promise; the list has the one parameter that these kernels take, of whose structure the
        // driver knows the length.
        check(unsafe {
            (self.functions.launch_kernel)(
                raw(function.0),
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                raw(stream.0),
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }

    unsafe fn write_word(&self, stream: StreamHandle, to: DevicePointer, value: u64) -> Result<(), Code> {
        // SAFETY: the caller's promise.
        check(unsafe { (self.functions.stream_write_word)(raw(stream.0), to, value, WRITE_VALUE_DEFAULT) })
    }
}
