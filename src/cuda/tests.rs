//! GPU memory over the scripted driver, which has no GPU: these are no GPU tests.

mod ends;
mod folds;
mod header;
mod model;
mod programs;
mod strict;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

pub(crate) use programs::{rdma_of, rows_told};

use super::driver::{Context, Driver, StreamHandle};
use super::scripted::{OTHER_CONTEXT, PRIMARY};
use super::sys::{Code, HOST_REGISTER_DEVICEMAP, HOST_REGISTER_PORTABLE};
use super::{Gpu, GpuError, GpuKernels, GpuMemory, GpuStream, HostBytes, Scripted, Tickets};
use crate::diagnostic::Diagnostic;
use crate::kernel::Optimizer;
use crate::mem::{Access, DeviceKeys, HostMemory, LocalSlice, MemoryRegion};

const BYTES: usize = 1000;

fn region(bytes: usize) -> MemoryRegion {
    MemoryRegion::new(HostMemory::anonymous(bytes).unwrap(), Access::LOCAL, DeviceKeys::NONE, ())
}

/// The caller's memory, which it has locked with these flags.
fn pinned(driver: &Scripted, flags: u32) -> MemoryRegion {
    let words = vec![0_u64; 1024].into_boxed_slice();
    let pointer = std::ptr::NonNull::from(Box::leak(words)).cast::<u8>();
    driver.lock_host(pointer.addr().get(), 8192, flags);
    // SAFETY: the words are never freed, and nothing but copies uses them.
    let host = unsafe { HostMemory::of_caller(pointer, 8192, Box::new(())) }.unwrap();
    MemoryRegion::new(host, Access::LOCAL, DeviceKeys::NONE, ())
}

/// Undoes the registration of a region's memory, as the library does.
fn unlock(driver: &Scripted, region: &MemoryRegion) -> Result<(), Code> {
    driver.push_context(PRIMARY)?;
    // SAFETY: the scripted driver fails the test if a device uses it still.
    unsafe { driver.unregister_host(region.as_volatile().as_ptr()) }
}

/// Has a stream of the library's write a word to the begin of a region's memory.
fn write_word(driver: &Scripted, region: &MemoryRegion) -> Result<(), Code> {
    driver.push_context(PRIMARY)?;
    let stream = driver.create_stream()?;
    let to = region.as_volatile().as_ptr().expose_provenance() as u64;
    // SAFETY: the scripted driver fails the test unless it is a word of registered memory.
    unsafe { driver.write_word(stream, to, 5) }
}

fn bytes_of(slice: &LocalSlice) -> Vec<u8> {
    let mut bytes = vec![0; slice.len()];
    slice.as_volatile().read(&mut bytes);
    bytes
}

/// Says, when it is dropped, that it is.
struct Owner(Arc<AtomicBool>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

struct Scene {
    driver: Arc<Scripted>,
    gpu: Gpu,
    /// The caller's stream.
    raw: usize,
    stream: GpuStream,
    pointer: u64,
    memory: GpuMemory,
    is_freed: Arc<AtomicBool>,
}

fn scene(driver: Scripted) -> Result<Scene, GpuError> {
    scene_of(&Arc::new(driver))
}

fn scene_of(driver: &Arc<Scripted>) -> Result<Scene, GpuError> {
    let gpu = Gpu::with_driver(driver.clone(), 0)?;
    let (raw, pointer) = (driver.stream(PRIMARY), driver.memory(BYTES));
    // SAFETY: a stream that is never ended.
    let stream = unsafe { GpuStream::of_caller(&gpu, raw)? };
    let is_freed = Arc::new(AtomicBool::new(false));
    // SAFETY: memory that is never freed.
    let memory = unsafe { GpuMemory::of_caller(&gpu, pointer, BYTES, Owner(is_freed.clone()))? };
    Ok(Scene { driver: driver.clone(), gpu, raw, stream, pointer, memory, is_freed })
}

/// Lets work be done until the copies are; fails if none is left before.
fn finish(driver: &Scripted, copies: &mut Tickets) {
    while !copies.are_done().unwrap() {
        assert!(driver.work(), "there is no more work, and the copy is not done");
    }
}

#[test]
fn a_copy_takes_what_the_callers_stream_has_written_before_it() {
    for driver in [Scripted::new(), Scripted::new().without_stream_words()] {
        let Scene { driver, raw, stream, pointer, memory, .. } = scene(driver).unwrap();
        let into = region(4096).slice(3, BYTES - 1).unwrap();
        driver.launch_fill(raw, pointer, BYTES, 7);
        let mut copies = Tickets::default();
        stream.copy_to_host(&memory.slice(1, BYTES - 1).unwrap(), &into, &mut copies).unwrap();
        assert!(!copies.are_done().unwrap(), "nobody has let it be done yet");
        finish(&driver, &mut copies);
        assert_eq!(bytes_of(&into), vec![7; BYTES - 1]);
    }
}

#[test]
fn what_the_callers_stream_gets_after_a_copy_to_the_gpu_sees_its_bytes() {
    let Scene { driver, raw, stream, pointer, memory, .. } = scene(Scripted::new()).unwrap();
    let (from, seen) = (region(4096), driver.memory(BYTES));
    from.as_volatile().write(&[9; 4096]);
    // The memory is in use by work that the stream has already: the copy comes behind it.
    driver.launch_fill(raw, pointer, BYTES, 1);
    let mut copies = Tickets::default();
    stream.copy_from_host(HostBytes::Region(from), 8, &memory.whole(), &mut copies).unwrap();
    driver.launch_copy(raw, seen, pointer, BYTES);
    driver.finish();
    assert!(copies.are_done().unwrap());
    assert_eq!(driver.bytes(seen, BYTES), vec![9; BYTES]);
}

#[test]
fn a_copy_within_the_gpu_comes_between_earlier_and_later_work_of_its_stream() {
    let Scene { driver, gpu, raw, stream, pointer, memory, .. } = scene(Scripted::new()).unwrap();
    let (into, seen) = (GpuMemory::allocate(&gpu, BYTES).unwrap(), driver.memory(BYTES));
    driver.launch_fill(raw, pointer, BYTES, 5);
    stream.copy(&memory.whole(), &into.whole()).unwrap();
    driver.launch_fill(raw, pointer, BYTES, 6);
    driver.launch_copy(raw, seen, into.pointer(), BYTES);
    driver.finish();
    assert_eq!(driver.bytes(seen, BYTES), vec![5; BYTES]);
    let short = into.slice(0, BYTES - 1).unwrap();
    assert!(matches!(stream.copy(&memory.whole(), &short), Err(GpuError::BeyondAllocation { .. })));
}

#[test]
fn memory_of_both_sides_is_kept_until_the_copy_is_done_and_no_longer() {
    let Scene { driver, gpu, stream, memory, is_freed, .. } = scene(Scripted::new()).unwrap();
    let [into, into_other] = [region(4096), region(4096)];
    let mut copies = Tickets::default();
    stream.copy_to_host(&memory.whole(), &into.slice(0, BYTES).unwrap(), &mut copies).unwrap();
    drop(memory);
    driver.work();
    // A second copy looks for what can be let go.
    let other = GpuMemory::allocate(&gpu, 8).unwrap();
    stream.copy_to_host(&other.whole(), &into_other.slice(0, 8).unwrap(), &mut copies).unwrap();
    assert!(!copies.are_done().unwrap() && !is_freed.load(Relaxed));
    drop((other, into, into_other));
    // The scripted driver fails the test if memory is given back before it is copied.
    finish(&driver, &mut copies);
    assert!(is_freed.load(Relaxed));
    drop((copies, stream, gpu));
    assert_eq!(driver.open(), 0);
}

#[test]
fn a_gpu_that_is_dropped_while_it_copies_frees_nothing_under_the_copy() {
    let Scene { driver, gpu, stream, memory, is_freed, .. } = scene(Scripted::new()).unwrap();
    let into = region(4096);
    let mut copies = Tickets::default();
    stream.copy_to_host(&memory.whole(), &into.slice(0, BYTES).unwrap(), &mut copies).unwrap();
    drop((memory, into, copies, stream, gpu));
    assert!(!is_freed.load(Relaxed) && driver.is_copying(), "the copy may still be made");
    // The scripted driver fails the test if it copies memory, or tells of it in memory, that is not locked any more.
    driver.finish();
    assert!(!driver.is_copying());
}

#[test]
fn each_call_that_fails_is_a_typed_error_and_leaves_nothing_behind() {
    let run = |driver: &Arc<Scripted>| -> Result<(), GpuError> {
        let Scene { gpu, stream, memory, .. } = scene_of(driver)?;
        let own = GpuMemory::allocate(&gpu, 64)?;
        let (into, from) = (region(4096), region(4096));
        let mut copies = Tickets::default();
        let out = stream.copy_to_host(&memory.whole(), &into.slice(0, BYTES).unwrap(), &mut copies);
        driver.finish();
        let back = stream.copy_from_host(HostBytes::Region(from), 0, &own.whole(), &mut copies);
        driver.finish();
        // Also a copy whose number could not be written is done at some time.
        let ended = (0..1000).find_map(|_| match copies.are_done() {
            Ok(false) => None,
            ended => Some(ended),
        });
        out.and(back).and(ended.expect("the copies end").map(drop))
    };
    for (case, fail) in Scripted::FAILURES.into_iter().cycle().take(4).enumerate() {
        let (without_words, is_late) = (case < 2, case % 2 == 1);
        let mut failures = 0;
        loop {
            let driver = match without_words {
                true => Arc::new(Scripted::new().without_stream_words()),
                false => Arc::new(Scripted::new()),
            };
            fail(&driver, failures, Code::OUT_OF_MEMORY);
            let outcome = run(&driver);
            if !driver.has_failed() {
                assert!(outcome.is_ok() && driver.left_current() == 0);
                break;
            }
            assert!(outcome.is_err() || driver.open() <= 1, "call {failures} failed and nobody was told");
            // What could not be given back, since that is what failed, is one thing, and so is what a call that
            // failed late has made.
            let left = driver.open();
            assert!(left <= usize::from(outcome.is_ok() || is_late), "call {failures}: {left} left");
            assert!(driver.left_current() <= 1, "call {failures}: contexts are current");
            failures += 1;
        }
        assert!(failures > 40, "only {failures} calls");
    }
}

#[test]
fn a_gpu_that_is_full_is_said_to_be_so_by_whatever_call_needs_memory() {
    let owner = Arc::new(Scripted::new());
    let (file, bytes) = GpuMemory::allocate(&owner.open_gpu().0, 8).unwrap().export().unwrap();
    type Taking<'a> = &'a dyn Fn(&Arc<Scripted>, u32) -> Result<(), GpuError>;
    let failing = |driver: &Arc<Scripted>, call| {
        let (gpu, ..) = driver.open_gpu();
        driver.fail(call, Code::OUT_OF_MEMORY);
        gpu
    };
    let opening = |driver: &Arc<Scripted>, call| {
        // The version and the number of devices, which are no device's, come first.
        driver.fail(call + 2, Code::OUT_OF_MEMORY);
        Gpu::with_driver(driver.clone(), 0).map(drop)
    };
    let loading = |driver: &Arc<Scripted>, call| {
        GpuKernels::load(&failing(driver, call), &Optimizer::Sgd { weight_decay: 0.0 }).map(drop)
    };
    let importing = |driver: &Arc<Scripted>, call| {
        GpuMemory::import(&failing(driver, call), file.as_fd(), bytes, true).map(drop)
    };
    let ways: [(Taking<'_>, &str); 3] = [
        (&opening, "opening a GPU"),
        (&loading, "loading kernels"),
        (&importing, "mapping memory of a GPU that a peer has granted"),
    ];
    for (way, operation) in ways {
        let mut told = Vec::new();
        for call in 0.. {
            let driver = Arc::new(Scripted::new());
            let outcome = way(&driver, call);
            if !driver.has_failed() {
                break;
            }
            if let Err(error) = outcome {
                assert!(matches!(error, GpuError::OutOfMemory { ordinal: 0, .. }), "call {call}: {error}");
                assert!(error.is_retryable(), "{error}");
                assert!(error.to_string().ends_with(&*error.remedy().expect("a remedy")), "{error}");
                told.push(error.operation());
            }
        }
        assert!(told.contains(&operation), "{operation}: {told:?}");
    }
}

#[test]
fn codes_that_a_user_can_act_on_have_a_remedy_of_their_own() {
    let remedy = |code| GpuError::of("a call", code).remedy().unwrap().into_owned();
    let codes = [Code::OUT_OF_MEMORY, Code::NOT_INITIALIZED, Code::INVALID_DEVICE, Code::UNKNOWN];
    for (code, part) in codes.into_iter().zip(["free memory", "exec", "CUDA_VISIBLE_DEVICES", "dmesg"]) {
        assert!(remedy(code).contains(part), "{}", remedy(code));
    }
}

#[test]
fn a_driver_that_does_not_say_whether_a_copy_is_done_is_named() {
    for driver in [Scripted::new(), Scripted::new().without_stream_words()] {
        let Scene { driver, stream, memory, is_freed, .. } = scene(driver).unwrap();
        let into = region(4096).slice(0, BYTES).unwrap();
        let mut copies = Tickets::default();
        stream.copy_to_host(&memory.whole(), &into, &mut copies).unwrap();
        drop(memory);
        let second = Duration::from_secs(1);
        assert_eq!(copies.late(second), GpuError::NotCopied { waited: second, cause: None });
        driver.set_unanswered(Some(Code::UNKNOWN));
        assert!((0..1000).all(|_| copies.are_done() == Ok(false)));
        let late = copies.late(second);
        assert!(
            late.is_retryable() && late.to_string().contains("CUDA error 999; look at the kernel's log"),
            "{late}"
        );
        assert!(!is_freed.load(Relaxed));
        driver.set_unanswered(None);
        assert!((0..1000).all(|_| copies.are_done() == Ok(false)));
        assert_eq!(copies.late(second), GpuError::NotCopied { waited: second, cause: None });
        finish(&driver, &mut copies);
        assert!(is_freed.load(Relaxed));
    }
}

#[test]
fn drivers_and_devices_that_cannot_be_used_are_refused_by_name() {
    let driver = Arc::new(Scripted::new());
    driver.set_version(11080);
    let error = Gpu::with_driver(driver.clone(), 0).unwrap_err();
    assert_eq!(error, GpuError::OldDriver { version: 11080 });
    assert!(error.to_string().contains("has CUDA 11.8, and 12.0 or later is needed; install"), "{error}");

    driver.set_version(12040);
    let error = Gpu::with_driver(driver.clone(), 1).unwrap_err();
    assert_eq!(error, GpuError::NoDevice { ordinal: 1, count: 1 });
    assert_eq!(driver.open(), 0);

    let none = GpuError::NoDevice { ordinal: 0, count: 0 };
    assert!(none.to_string().contains("at the rights on /dev/nvidia*"), "{none}");
    assert_eq!(Gpu::with_driver(Arc::new(Scripted::new().without_devices()), 0).unwrap_err(), none);
    // The first call asks for the version, and the next one for the number of devices.
    driver.fail(1, Code::NO_DEVICE);
    assert_eq!(Gpu::with_driver(driver.clone(), 0).unwrap_err(), none);
    assert!(driver.has_failed());
}

#[test]
fn where_there_is_no_driver_the_error_says_so() {
    // A machine with a GPU has one.
    if let Err(error) = Gpu::open(0) {
        let is_typed = matches!(
            error,
            GpuError::NoDriver { .. } | GpuError::NoDevice { .. } | GpuError::OldDriver { .. }
        );
        assert!(is_typed && error.remedy().is_some(), "{error}");
        assert_eq!(Gpu::count().is_err(), !matches!(error, GpuError::NoDevice { .. }));
    }
}

#[test]
fn memory_that_is_not_of_the_gpu_is_refused() {
    let Scene { driver, gpu, pointer, .. } = scene(Scripted::new()).unwrap();
    // SAFETY: no memory is used: each is refused.
    let refused = |pointer, bytes| unsafe { GpuMemory::of_caller(&gpu, pointer, bytes, ()) }.unwrap_err();
    let host = region(4096);
    let unknown = host.as_volatile().as_ptr().addr() as u64;
    assert!(
        matches!(refused(unknown, 8), GpuError::NotOnDevice { kind, .. } if kind.contains("does not know"))
    );
    let beyond = refused(pointer + 10, BYTES);
    assert_eq!(
        beyond,
        GpuError::BeyondAllocation { pointer: pointer + 10, bytes: BYTES, available: BYTES - 10 }
    );
    let locked = pinned(&driver, 0).as_volatile().as_ptr().addr() as u64;
    assert!(matches!(refused(locked, 8), GpuError::NotOnDevice { kind: "host memory", .. }));
    driver.set_memory(pointer, true, 0);
    assert!(matches!(refused(pointer, 8), GpuError::NotOnDevice { kind: "managed memory", .. }));
    driver.set_memory(pointer, false, 1);
    assert_eq!(refused(pointer, 8), GpuError::OtherDevice { pointer, ordinal: 0, found: 1 });
    driver.set_memory(pointer, false, 0);
    driver.set_classic(pointer, OTHER_CONTEXT);
    let foreign = refused(pointer, 8);
    assert_eq!(foreign, GpuError::OtherContext { what: "memory", ordinal: 0 });
    assert!(foreign.to_string().starts_with("the memory is not of the primary context"), "{foreign}");
    // Some drivers say that memory of a pool is of no context, others say nothing.
    for context in [PRIMARY, Context(0)] {
        driver.set_classic(pointer, context);
        // SAFETY: memory that is never freed.
        unsafe { GpuMemory::of_caller(&gpu, pointer, BYTES, ()) }.unwrap();
    }
}

#[test]
fn a_range_goes_on_behind_a_piece_of_a_segment_and_behind_no_allocation() {
    const PIECE: usize = 4096;
    let Scene { driver, gpu, .. } = scene(Scripted::new()).unwrap();
    let two_pieces = || {
        let first = driver.memory(PIECE);
        (first, driver.memory_behind(first, PIECE))
    };
    // SAFETY: memory that is never freed.
    let taken = |pointer| unsafe { GpuMemory::of_caller(&gpu, pointer, PIECE, ()) }.map(drop);
    let (first, behind) = two_pieces();
    taken(first + 10).unwrap();
    driver.set_memory(behind, true, 0);
    let managed = GpuError::NotOnDevice { pointer: behind, kind: "managed memory" };
    assert_eq!(taken(first + 10), Err(managed));
    driver.set_memory(behind, false, 1);
    assert_eq!(taken(first + 10), Err(GpuError::OtherDevice { pointer: behind, ordinal: 0, found: 1 }));
    for classic in 0..2 {
        let (first, behind) = two_pieces();
        driver.set_classic([first, behind][classic], PRIMARY);
        let (pointer, available) = (first + 10, PIECE - 10);
        let beyond = GpuError::BeyondAllocation { pointer, bytes: PIECE, available };
        assert_eq!(taken(pointer), Err(beyond), "allocation {classic} is one of cuMemAlloc");
        taken(first).unwrap();
    }
}

#[test]
fn streams_of_other_contexts_and_streams_that_capture_are_refused() {
    let Scene { driver, gpu, raw, stream, memory, .. } = scene(Scripted::new()).unwrap();
    let other = driver.stream(OTHER_CONTEXT);
    // SAFETY: a stream that is never ended.
    let refused = unsafe { GpuStream::of_caller(&gpu, other) }.unwrap_err();
    assert_eq!(refused, GpuError::OtherContext { what: "stream", ordinal: 0 });
    driver.capture(raw);
    let into = region(4096).slice(0, BYTES).unwrap();
    assert_eq!(
        stream.copy_to_host(&memory.whole(), &into, &mut Tickets::default()).unwrap_err(),
        GpuError::Capturing
    );
}

#[test]
fn a_fault_of_a_callers_kernel_is_told_and_everything_ends_well() {
    let Scene { driver, gpu, stream, memory, is_freed, .. } = scene(Scripted::new()).unwrap();
    let into = region(4096).slice(0, BYTES).unwrap();
    let mut copies = Tickets::default();
    stream.copy_to_host(&memory.whole(), &into, &mut copies).unwrap();
    driver.fault(Code::ILLEGAL_ADDRESS);
    let faulted = GpuError::Faulted { ordinal: 0, code: 700 };
    let told = (0..1000).find_map(|_| copies.are_done().err());
    assert_eq!(told, Some(faulted.clone()));
    assert_eq!(stream.copy_to_host(&memory.whole(), &into, &mut Tickets::default()).unwrap_err(), faulted);
    drop((copies, memory, stream, gpu, into));
    assert!(is_freed.load(Relaxed), "no copy is under way any more");
}

#[test]
fn a_copy_to_the_gpu_and_back_is_tried_and_timed() {
    let Scene { driver, gpu, .. } = scene(Scripted::new()).unwrap();
    let late = gpu.try_copies(1 << 16, Duration::from_millis(1)).unwrap();
    assert_eq!(late, None, "nobody does the work");
    let _working = driver.work_in_a_thread();
    let copies = gpu.try_copies(1 << 16, Duration::from_secs(10)).unwrap().expect("it is done in time");
    assert!(copies.are_intact && copies.to_gpu > Duration::ZERO && copies.to_host > Duration::ZERO);
    let properties = gpu.properties().unwrap();
    assert_eq!((properties.driver, properties.has_stream_words), ((12, 0), true));
}

#[test]
fn two_handles_of_one_gpu_have_tickets_of_their_own() {
    let Scene { driver, stream, memory, .. } = scene(Scripted::new()).unwrap();
    let other = scene_of(&driver).unwrap();
    let (into, into_other) = (region(4096).slice(0, BYTES).unwrap(), region(4096).slice(0, BYTES).unwrap());
    let mut copies = Tickets::default();
    // The other GPU's stream has nothing before its copy; that of this one waits for a kernel that never ends.
    let never = driver.stream(PRIMARY);
    driver.launch_wait_for_ever(never);
    // SAFETY: a stream that is never ended.
    let stuck = unsafe { GpuStream::of_caller(stream.gpu(), never) }.unwrap();
    stuck.copy_to_host(&memory.whole(), &into, &mut copies).unwrap();
    other.stream.copy_to_host(&other.memory.whole(), &into_other, &mut copies).unwrap();
    driver.finish();
    assert!((0..1000).all(|_| !copies.are_done().unwrap()), "the first copy is not made");
}

#[test]
fn a_number_that_cannot_be_written_ends_no_copy_early() {
    for without_words in [false, true] {
        for (call, fail) in (0..20).flat_map(|call| Scripted::FAILURES.map(|fail| (call, fail))) {
            let driver = Scripted::new();
            let driver = if without_words { driver.without_stream_words() } else { driver };
            let Scene { driver, stream, memory, is_freed, .. } = scene(driver).unwrap();
            let into = region(4096).slice(0, BYTES).unwrap();
            let mut copies = Tickets::default();
            fail(&driver, call, Code::NOT_PERMITTED);
            let copied = stream.copy_to_host(&memory.whole(), &into, &mut copies);
            drop(memory);
            if copied.is_err() && driver.is_copying() {
                // The copy is under way, and nobody has let it be made.
                assert!((0..1000).all(|_| !matches!(copies.are_done(), Ok(true))), "call {call}");
                assert!(!is_freed.load(Relaxed), "call {call}");
            }
            driver.finish();
        }
    }
}

#[test]
fn a_copy_that_waits_for_room_holds_up_no_look_at_an_older_one() {
    for driver in [Scripted::new(), Scripted::new().without_stream_words()] {
        let Scene { driver, stream, memory, .. } = scene(driver).unwrap();
        let copy = || {
            let (mut copies, into) = (Tickets::default(), region(4096).slice(0, BYTES).unwrap());
            stream.copy_to_host(&memory.whole(), &into, &mut copies).unwrap();
            copies
        };
        let mut older = copy();
        driver.finish();
        driver.set_full(true);
        std::thread::scope(|scope| {
            let newer = scope.spawn(copy);
            while driver.waiting() == 0 {
                std::thread::yield_now();
            }
            let (tell, told) = std::sync::mpsc::channel();
            scope.spawn(move || tell.send(older.are_done().unwrap()));
            let is_done = told.recv_timeout(Duration::from_secs(20));
            driver.set_full(false);
            finish(&driver, &mut newer.join().unwrap());
            assert_eq!(is_done, Ok(true));
        });
    }
}

#[test]
fn memory_locked_in_part_is_refused_and_pinned_memory_is_taken() {
    let Scene { driver, stream, memory, .. } = scene(Scripted::new()).unwrap();
    let (ours, flags) = (region(8192), HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP);
    driver.lock_host(ours.as_volatile().as_ptr().addr(), 4096, flags);
    let into = ours.slice(0, BYTES).unwrap();
    let refused = stream.copy_to_host(&memory.whole(), &into, &mut Tickets::default()).unwrap_err();
    assert!(matches!(&refused, GpuError::Host { reason } if reason.contains("a part")));

    let pinned = pinned(&driver, flags);
    let mut copies = Tickets::default();
    stream.copy_to_host(&memory.whole(), &pinned.slice(0, BYTES).unwrap(), &mut copies).unwrap();
    finish(&driver, &mut copies);
}

#[test]
fn the_capture_of_a_graph_by_another_thread_is_not_disturbed() {
    let Scene { driver, stream, memory, .. } = scene(Scripted::new().without_stream_words()).unwrap();
    driver.capture(driver.stream(PRIMARY));
    let into = region(4096).slice(0, BYTES).unwrap();
    let mut copies = Tickets::default();
    stream.copy_to_host(&memory.whole(), &into, &mut copies).unwrap();
    finish(&driver, &mut copies);
}
