//! What is left of a GPU where its driver is not one, in a forked child, and at the end of a process.

use super::super::library::{DriverLibrary, load};
use super::*;
use crate::mem::alone;

#[test]
fn a_library_that_is_no_driver_or_a_stub_of_one_is_refused_by_name() {
    // The C library stands for a driver that lacks a function.
    let error = DriverLibrary::open(c"libc.so.6").map(drop).unwrap_err();
    assert_eq!(error, GpuError::NoSymbol { symbol: "cuDriverGetVersion" });
    assert!(error.to_string().ends_with(&*error.remedy().unwrap()), "{error}");
    let missing = DriverLibrary::open(c"libslackline-none.so.1").map(drop).unwrap_err();
    assert!(
        matches!(&missing, GpuError::NoDriver { reason } if reason.contains("libslackline-none")),
        "{missing}"
    );
    // The stub that a toolkit links programs with answers each call so.
    let driver = Arc::new(Scripted::new());
    driver.fail(0, Code::STUB_LIBRARY);
    let stub = Gpu::with_driver(driver, 0).unwrap_err();
    assert_eq!(stub, GpuError::StubDriver);
    assert!(stub.to_string().contains("stubs"), "{stub}");
}

#[test]
fn a_forked_child_has_no_gpu_and_ends_nothing_of_its_parents() {
    if !alone("cuda::tests::ends::a_forked_child_has_no_gpu_and_ends_nothing_of_its_parents") {
        return;
    }
    let Scene { driver, gpu, stream, memory, .. } = scene(Scripted::new()).unwrap();
    let (into, open) = (region(4096).slice(0, BYTES).unwrap(), driver.open());
    let mut copies = Tickets::default();
    stream.copy_to_host(&memory.whole(), &into, &mut copies).unwrap();
    // SAFETY: no other thread has a lock that the child takes; the child leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = stream.copy_to_host(&memory.whole(), &into, &mut Tickets::default());
        let all = refused == Err(GpuError::Forked)
            && copies.are_done() == Err(GpuError::Forked)
            && GpuMemory::allocate(&gpu, 8).map(drop) == Err(GpuError::Forked);
        drop((copies, memory, stream, gpu));
        // SAFETY: it takes any number, and ends the child.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and a number of this frame.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child has found something alive");
    finish(&driver, &mut copies);
    assert_eq!(bytes_of(&into), driver.bytes(memory.pointer(), BYTES));
    assert!(driver.open() >= open);
}

#[test]
fn a_driver_that_is_not_initialised_tells_of_a_fork_only_if_it_was_loaded() {
    let forked = GpuError::of_initialisation(Code::NOT_INITIALIZED, true);
    assert_eq!(forked, GpuError::Forked);
    assert!(forked.to_string().contains("initialised CUDA"), "{forked}");
    let other = GpuError::of_initialisation(Code::NOT_INITIALIZED, false);
    assert!(matches!(other, GpuError::Driver { code: 3, .. }), "{other}");
    // A library of the C library that no test uses stands for a driver.
    let was_loaded = || load(c"libanl.so.1").unwrap().1;
    assert!(!was_loaded() && was_loaded() && load(c"libc.so.6").unwrap().1);
}

#[test]
fn a_driver_that_cannot_be_initialised_names_what_the_system_lacks() {
    let modules: &[&str] = &["modules nvidia and nvidia-uvm", "dmesg", "start the program again"];
    let devices: &[&str] =
        &["rights", "/dev/nvidiactl, /dev/nvidia-uvm", "container", "nvidia-modprobe", "dmesg"];
    for (code, parts) in [
        (Code::NOT_INITIALIZED, modules),
        (Code::UNKNOWN, devices),
        (Code::OPERATING_SYSTEM, devices),
        (Code::COMPAT_NOT_SUPPORTED, &["cuda/compat", "LD_LIBRARY_PATH", "container"]),
        (Code::SYSTEM_DRIVER_MISMATCH, &["kernel module"]),
        (Code::SYSTEM_NOT_READY, &["nvidia-fabricmanager"]),
        (Code::NOT_PERMITTED, &["rights on /dev/nvidia*", "MIG"]),
        (Code::DEVICE_UNAVAILABLE, &["compute mode"]),
        (
            Code::NO_DEVICE,
            &["there is no GPU 0: this process sees 0", "nvidia-smi", "rights on /dev/nvidia*"],
        ),
        (Code::STUB_LIBRARY, &["stub of a CUDA toolkit", "LD_LIBRARY_PATH"]),
        (Code(7), &["CUDA error 7", "look the number up"]),
    ] {
        let error = GpuError::of_initialisation(code, false);
        let (text, remedy) = (error.to_string(), error.remedy().unwrap());
        assert!(text.ends_with(&*remedy), "{text}");
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    // Later, the rights on devices are not what is wrong.
    let later = GpuError::of("a call", Code::UNKNOWN).to_string();
    assert!(later.contains("Xid") && !later.contains("/dev"), "{later}");
}

#[test]
fn a_driver_that_is_gone_before_the_process_is_no_panic() {
    let Scene { driver, gpu, stream, memory, is_freed, .. } = scene(Scripted::new()).unwrap();
    let own = GpuMemory::allocate(&gpu, BYTES).unwrap();
    let into = region(4096).slice(0, BYTES).unwrap();
    let mut copies = Tickets::default();
    stream.copy_to_host(&own.whole(), &into, &mut copies).unwrap();
    driver.shut_down();
    let refused = stream.copy_to_host(&memory.whole(), &into, &mut Tickets::default());
    assert!(matches!(refused, Err(GpuError::Driver { code: 4, .. })), "{refused:?}");
    drop((copies, memory, own, stream, gpu));
    assert!(is_freed.load(Relaxed));
}
