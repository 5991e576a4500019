//! The window of a GPU on the PCI bus (BAR1), through which RDMA devices reach its memory: NVIDIA's management library
//! alone tells how much of it is free. It comes with the driver, and is opened at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

/// The library's own name.
const SONAME: &CStr = c"libnvidia-ml.so.1";

/// The window of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuWindow {
    /// Its length in bytes.
    pub bytes: u64,
    /// Bytes of it that nothing has registered.
    pub free: u64,
}

/// The library does not tell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuWindowError {
    /// There is no such library.
    #[error(
        "cannot open libnvidia-ml.so.1: {0}; install the NVIDIA driver whole, and in a container allow its utilities \
         (NVIDIA_DRIVER_CAPABILITIES=utility)"
    )]
    NoLibrary(String),
    /// It lacks a function.
    #[error("libnvidia-ml.so.1 has no function {0}; install driver R525 or later")]
    NoFunction(&'static str),
    /// A call has failed.
    #[error("{0} failed with NVML error {1}; look at what `nvidia-smi -q -d MEMORY` says")]
    Call(&'static str, c_int),
}

/// `nvmlBAR1Memory_t` of `nvml.h`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct WindowMemory {
    total: u64,
    free: u64,
    used: u64,
}

/// A device, as the library takes it.
type NvmlDevice = *mut c_void;

/// The functions of the library, called as `nvml.h` says.
struct NvmlFunctions {
    init: unsafe extern "C" fn() -> c_int,
    device: unsafe extern "C" fn(*const c_char, *mut NvmlDevice) -> c_int,
    window: unsafe extern "C" fn(NvmlDevice, *mut WindowMemory) -> c_int,
    shutdown: unsafe extern "C" fn() -> c_int,
}

impl NvmlFunctions {
    fn find() -> Result<NvmlFunctions, GpuWindowError> {
        // SAFETY: a string that ends in NUL; the library's constructors belong to the driver. It is never closed.
        let handle = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: the text of this thread's last error, or null; it lives until the next call, and is copied.
            let reason = unsafe {
                let text = libc::dlerror();
                if text.is_null() { "no reason given".into() } else { CStr::from_ptr(text).to_string_lossy() }
            };
            return Err(GpuWindowError::NoLibrary(reason.into_owned()));
        }
        let find = |name: &'static CStr| {
            // SAFETY: a handle that is open, and a string that ends in NUL.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            let known = GpuWindowError::NoFunction(name.to_str().unwrap_or_default());
            if found.is_null() { Err(known) } else { Ok(found) }
        };
        let (init, shutdown) = (find(c"nvmlInit_v2")?, find(c"nvmlShutdown")?);
        let (device, window) =
            (find(c"nvmlDeviceGetHandleByPciBusId_v2")?, find(c"nvmlDeviceGetBAR1MemoryInfo")?);
        // SAFETY: the functions of these names, whose types `nvml.h` gives; the library stays loaded.
        unsafe {
            Ok(NvmlFunctions {
                init: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(init),
                device: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const c_char, *mut NvmlDevice) -> c_int,
                >(device),
                window: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(NvmlDevice, *mut WindowMemory) -> c_int,
                >(window),
                shutdown: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(shutdown),
            })
        }
    }

    fn ask(&self, pci_address: &str) -> Result<GpuWindow, GpuWindowError> {
        let check = |call, code| if code == 0 { Ok(()) } else { Err(GpuWindowError::Call(call, code)) };
        let address = CString::new(pci_address).unwrap_or_default();
        // SAFETY: it takes nothing.
        check("nvmlInit_v2", unsafe { (self.init)() })?;
        let (mut device, mut memory) = (ptr::null_mut(), WindowMemory::default());
        // SAFETY: a string that ends in NUL, and a pointer to a value of this frame.
        let found = unsafe { (self.device)(address.as_ptr(), &mut device) };
        let asked = check("nvmlDeviceGetHandleByPciBusId_v2", found).and_then(|()| {
            // SAFETY: the library's own device, and a pointer to a value of this frame.
            check("nvmlDeviceGetBAR1MemoryInfo", unsafe { (self.window)(device, &mut memory) })
        });
        // SAFETY: it undoes the first call, once.
        let closed = check("nvmlShutdown", unsafe { (self.shutdown)() });
        asked.and(closed).map(|()| GpuWindow { bytes: memory.total, free: memory.free })
    }
}

impl GpuWindow {
    /// The window of the GPU at this address on the PCI bus.
    ///
    /// # Errors
    /// The library is not there, or does not tell.
    pub fn of(pci_address: &str) -> Result<GpuWindow, GpuWindowError> {
        NvmlFunctions::find()?.ask(pci_address)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// The calls that wait for their end, and the answer to the question for a device.
        static OPEN: Cell<i32> = const { Cell::new(0) };
        static FOUND: Cell<c_int> = const { Cell::new(0) };
    }

    unsafe extern "C" fn init() -> c_int {
        OPEN.set(OPEN.get() + 1);
        0
    }

    unsafe extern "C" fn shutdown() -> c_int {
        OPEN.set(OPEN.get() - 1);
        0
    }

    unsafe extern "C" fn device(address: *const c_char, device: *mut NvmlDevice) -> c_int {
        // SAFETY: the caller's string and pointer.
        unsafe {
            assert_eq!(CStr::from_ptr(address), c"0000:18:00.0");
            *device = ptr::dangling_mut::<u8>().cast();
        }
        FOUND.get()
    }

    unsafe extern "C" fn window(device: NvmlDevice, memory: *mut WindowMemory) -> c_int {
        assert!(!device.is_null());
        // SAFETY: the caller's structure.
        unsafe { *memory = WindowMemory { total: 256 << 30, free: 255 << 30, used: 1 << 30 } };
        0
    }

    #[test]
    fn the_window_is_asked_for_by_address_and_the_library_is_left_again() {
        let functions = NvmlFunctions { init, device, window, shutdown };
        let found = functions.ask("0000:18:00.0");
        assert_eq!(found, Ok(GpuWindow { bytes: 256 << 30, free: 255 << 30 }));
        FOUND.set(6);
        let error = functions.ask("0000:18:00.0").unwrap_err();
        assert_eq!(error, GpuWindowError::Call("nvmlDeviceGetHandleByPciBusId_v2", 6));
        assert_eq!(OPEN.get(), 0);
    }

    #[test]
    fn each_error_names_its_cause_and_a_remedy() {
        for (error, cause) in [
            (GpuWindowError::NoLibrary("no such file".into()), "no such file"),
            (GpuWindowError::NoFunction("nvmlInit_v2"), "no function nvmlInit_v2"),
            (GpuWindowError::Call("nvmlShutdown", 7), "nvmlShutdown failed with NVML error 7"),
        ] {
            let text = error.to_string();
            let (told, remedy) = text.split_once("; ").expect("a cause and a remedy");
            assert!(told.contains(cause) && !remedy.is_empty(), "{text}");
        }
    }
}
