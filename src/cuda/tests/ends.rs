//! What is left of a GPU where its driver is not one, in a forked child, and at the end of a process.

use super::super::library::DriverLibrary;
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
fn a_driver_that_was_initialised_before_a_fork_has_a_typed_error() {
    let forked = GpuError::of_initialisation(Code::NOT_INITIALIZED);
    assert_eq!(forked, GpuError::Forked);
    assert!(forked.to_string().contains("initialised CUDA"), "{forked}");
    assert_eq!(GpuError::of_initialisation(Code::STUB_LIBRARY), GpuError::StubDriver);
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
