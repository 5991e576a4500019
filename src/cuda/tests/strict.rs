//! Misuse that a GPU would not forgive fails a test here, too; and what a GPU forgives does not.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::sys::HOST_REGISTER_READ_ONLY;
use super::*;
use crate::cuda::{GpuFold, memory_with_owner};
use crate::table::Encoding;

/// The words with which the driver fails a test that does this.
fn complaint(misuse: impl FnOnce()) -> String {
    let told = catch_unwind(AssertUnwindSafe(misuse)).expect_err("the driver lets it pass");
    let text = told.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| told.downcast_ref::<String>().cloned()).expect("words")
}

impl Scene {
    fn to_host(&self, into: &MemoryRegion) -> Tickets {
        let mut copies = Tickets::default();
        let into = into.slice(0, BYTES).unwrap();
        self.stream.copy_to_host(&self.memory.whole(), &into, &mut copies).unwrap();
        copies
    }

    fn copy_from_host(&self, from: &MemoryRegion, into: &GpuMemory) {
        let (from, into) = (HostBytes::Region(from.clone()), into.slice(0, BYTES).unwrap());
        self.stream.copy_from_host(from, 0, &into, &mut Tickets::default()).unwrap();
    }
}

#[test]
fn memory_that_was_mapped_for_reading_only_is_read_and_never_written() {
    let (owners, ..) = Arc::new(Scripted::new()).open_gpu();
    let granted = GpuMemory::allocate(&owners, BYTES).unwrap();
    let (file, bytes) = granted.export().unwrap();
    type Write<'a> = &'a dyn Fn(&Scene, &GpuMemory);
    let ways: [Write<'_>; 5] = [
        &|scene, into| scene.copy_from_host(&region(4096), into),
        &|scene, into| scene.stream.copy(&scene.memory.whole(), &into.slice(0, BYTES).unwrap()).unwrap(),
        &|scene, into| scene.stream.clear(&into.slice(0, BYTES).unwrap()).unwrap(),
        &|scene, into| scene.driver.launch_fill(scene.raw, into.pointer(), BYTES, 0),
        &|scene, into| {
            let (into, copies) = (into.slice(0, BYTES / 2).unwrap(), &mut Tickets::default());
            scene.stream.encode_within(&scene.memory.whole(), &into, Encoding::Bf16, copies).unwrap();
        },
    ];
    for (index, write) in ways.into_iter().enumerate() {
        let scene = scene(Scripted::new()).unwrap();
        let [read, written] = [false, true].map(|is_writable| {
            let (_, memory) = GpuMemory::import(&scene.gpu, file.as_fd(), bytes, is_writable).unwrap();
            memory
        });
        assert_eq!(scene.driver.mapped_for_reading(), 1);
        write(&scene, &written);
        scene.driver.finish();
        let before = scene.driver.bytes(written.pointer(), BYTES);
        scene.stream.copy(&read.slice(0, BYTES).unwrap(), &scene.memory.whole()).unwrap();
        scene.driver.finish();
        assert_eq!(scene.driver.bytes(scene.pointer, BYTES), before);
        // The library refuses to write it, so this is told of as the caller's own.
        let (host, into) = (HostBytes::Region(region(4096)), read.slice(0, BYTES).unwrap());
        let refused = scene.stream.copy_from_host(host, 0, &into, &mut Tickets::default());
        assert_eq!(refused, Err(GpuError::Lent { pointer: read.pointer() }));
        write(&scene, &memory_with_owner(&scene.gpu, read.pointer(), BYTES, read.clone()));
        let told = complaint(|| scene.driver.finish());
        assert!(told.contains("for reading only"), "way {index}: {told}");
        assert_eq!(scene.driver.bytes(written.pointer(), BYTES), before);
        // The GPU has failed, so that a test which waits ends.
        let faulted = GpuError::Faulted { ordinal: 0, code: 700 };
        assert_eq!(GpuMemory::allocate(&scene.gpu, 8).map(drop), Err(faulted));
    }
}

#[test]
fn host_memory_that_is_locked_for_reading_only_is_never_written() {
    let scene = scene(Scripted::new()).unwrap();
    let locked = pinned(&scene.driver, HOST_REGISTER_PORTABLE | HOST_REGISTER_READ_ONLY);
    scene.copy_from_host(&locked, &scene.memory);
    scene.driver.finish();
    assert_eq!(scene.driver.bytes(scene.pointer, BYTES), [0; BYTES]);
    let told = complaint(|| drop(scene.to_host(&locked)));
    assert!(told.contains("for reading only"), "{told}");
    let told = complaint(|| write_word(&scene.driver, &locked).unwrap());
    assert!(told.contains("for reading only"), "{told}");
}

#[test]
fn memory_that_a_peer_lets_read_is_copied_to_a_gpu() {
    let owners = HostMemory::shared(4096).unwrap();
    owners.as_volatile().write(&[6; 4096]);
    let file = owners.shared_file().unwrap().try_clone_to_owned().unwrap();
    let host = HostMemory::from_peer(file, 4096, false).unwrap();
    let scene = scene(Scripted::new()).unwrap();
    // A driver does not register it without being told that devices only read it.
    scene.copy_from_host(&MemoryRegion::new(host, Access::LOCAL, DeviceKeys::NONE, ()), &scene.memory);
    scene.driver.finish();
    assert_eq!(scene.driver.bytes(scene.pointer, BYTES), [6; BYTES]);
}

#[test]
fn host_memory_that_is_locked_for_one_gpu_is_not_reached_by_another() {
    let driver = Arc::new(Scripted::new().with_two_devices(true));
    let copy = |ordinal, into: &MemoryRegion| {
        let (gpu, _, stream) = driver.open_gpu_at(ordinal);
        let (from, mut copies) = (GpuMemory::allocate(&gpu, BYTES).unwrap(), Tickets::default());
        stream.copy_to_host(&from.whole(), &into.slice(0, BYTES).unwrap(), &mut copies).unwrap();
        finish(&driver, &mut copies);
    };
    let of_first = pinned(&driver, HOST_REGISTER_DEVICEMAP);
    copy(0, &of_first);
    let told = complaint(|| copy(1, &of_first));
    assert!(told.contains("locked for another one"), "{told}");
    // All memory that the library locks is for all GPUs.
    let of_all = region(4096);
    (0..2).for_each(|ordinal| copy(ordinal, &of_all));
}

#[test]
fn what_waits_for_a_stream_that_is_ended_waits_for_its_work() {
    let driver = Scripted::new();
    driver.push_context(PRIMARY).unwrap();
    let (ended, later) = (driver.create_stream().unwrap(), driver.stream(PRIMARY));
    let [from, seen] = [(); 2].map(|()| driver.memory(8));
    let event = driver.create_event().unwrap();
    driver.launch_fill(ended.0, from, 8, 3);
    driver.record(event, ended).unwrap();
    driver.destroy_stream(ended).unwrap();
    assert!(driver.is_idle(ended).is_err(), "no call names it any more");
    assert_eq!(driver.has_happened(event), Ok(false));
    driver.wait_for(StreamHandle(later), event).unwrap();
    driver.launch_copy(later, seen, from, 8);
    driver.finish();
    assert_eq!((driver.has_happened(event), driver.bytes(seen, 8)), (Ok(true), vec![3; 8]));
}

#[test]
fn a_fault_of_work_is_told_once_it_has_run_and_of_its_own_gpu_alone() {
    let driver = Arc::new(Scripted::new().with_two_devices(true));
    let [first, second] = [0, 1].map(|ordinal| driver.open_gpu_at(ordinal));
    driver.fault_in_work(first.1, Code::ILLEGAL_ADDRESS);
    let begin = |(gpu, _, stream): &(Gpu, usize, GpuStream)| {
        let (memory, mut copies) = (GpuMemory::allocate(gpu, BYTES).unwrap(), Tickets::default());
        let into = region(4096).slice(0, BYTES).unwrap();
        stream.copy_to_host(&memory.whole(), &into, &mut copies).unwrap();
        copies
    };
    let [mut copies, mut others] = [&first, &second].map(begin);
    assert!((0..1000).all(|_| !copies.are_done().unwrap()), "it has not run");
    driver.finish();
    let faulted = GpuError::Faulted { ordinal: 0, code: 700 };
    assert_eq!((0..1000).find_map(|_| copies.are_done().err()), Some(faulted.clone()));
    assert_eq!(GpuMemory::allocate(&first.0, BYTES).map(drop), Err(faulted));
    finish(&driver, &mut others);
    finish(&driver, &mut begin(&second));
}

#[test]
fn memory_is_not_given_back_under_work_that_uses_it() {
    let scene = scene(Scripted::new()).unwrap();
    let (driver, host) = (&scene.driver, region(4096));
    let expect = |what: &str, misuse: &dyn Fn()| {
        let told = complaint(misuse);
        assert!(told.contains("still uses"), "{what}: {told}");
    };
    let halves = host.slice(0, BYTES / 2).unwrap();
    let encoded = &mut Tickets::default();
    scene.stream.encode_to_host(&scene.memory.whole(), &halves, Encoding::F16, encoded).unwrap();
    expect("a kernel from the caller's memory", &|| driver.free_memory(scene.pointer));
    expect("a kernel to host memory", &|| unlock(driver, &host).unwrap());
    finish(driver, encoded);

    let mut copies = scene.to_host(&host);
    expect("a copy of the caller's memory", &|| driver.free_memory(scene.pointer));
    expect("a copy to host memory", &|| unlock(driver, &host).unwrap());
    finish(driver, &mut copies);
    unlock(driver, &host).unwrap();
    driver.free_memory(scene.pointer);

    let own = GpuMemory::allocate(&scene.gpu, BYTES).unwrap();
    driver.launch_fill(scene.raw, own.pointer(), BYTES, 1);
    let told = complaint(|| drop(own));
    assert!(told.contains("still uses"), "{told}");
}

#[test]
fn what_a_kernel_uses_is_kept_until_it_is_done() {
    let Scene { driver, gpu, stream, memory, .. } = scene(Scripted::new()).unwrap();
    let (host, mut copies) = (region(4096), Tickets::default());
    let halves = host.slice(0, BYTES / 2).unwrap();
    stream.encode_to_host(&memory.whole(), &halves, Encoding::F16, &mut copies).unwrap();
    let optimizer = Optimizer::Sgd { weight_decay: 0.0 };
    let kernels = GpuKernels::load(&gpu, &optimizer).unwrap();
    let [from, to, gradient] = [(); 3].map(|()| GpuMemory::allocate(&gpu, BYTES).unwrap().whole());
    let fold = GpuFold {
        optimizer,
        learning_rate: 1.0,
        step: 1,
        encoding: Encoding::F32,
        gradients: [(gradient, 1.0)].into_iter().collect(),
        arrays: [(from, to)].into_iter().collect(),
        elements: 0..BYTES / 4,
    };
    kernels.launch(fold, &mut copies).unwrap();
    // The scripted driver fails the test if something of that is given back now.
    drop((host, halves, memory, kernels));
    finish(&driver, &mut copies);
    drop((copies, stream, gpu));
    assert_eq!(driver.open(), 0);
}

#[test]
fn a_stream_of_the_callers_gets_events_and_nothing_else() {
    let scene = scene(Scripted::new()).unwrap();
    scene.driver.push_context(PRIMARY).unwrap();
    let (stream, pointer) = (StreamHandle(scene.raw), scene.memory.pointer());
    let event = scene.driver.create_event().unwrap();
    scene.driver.record(event, stream).unwrap();
    scene.driver.wait_for(stream, event).unwrap();
    // SAFETY: the scripted driver does not do it.
    let told = complaint(|| unsafe { scene.driver.fill_with_zeros(pointer, BYTES, stream) }.unwrap());
    assert!(told.contains("more than events"), "{told}");
}

#[test]
fn words_are_written_to_memory_that_is_locked_until_they_are() {
    let scene = scene(Scripted::new()).unwrap();
    let (driver, page) = (&scene.driver, region(4096));
    let told = complaint(|| write_word(driver, &page).unwrap());
    assert!(told.contains("not locked"), "{told}");
    driver.lock_host(page.as_volatile().as_ptr().addr(), 4096, HOST_REGISTER_DEVICEMAP);
    write_word(driver, &page).unwrap();
    let told = complaint(|| unlock(driver, &page).unwrap());
    assert!(told.contains("still uses"), "{told}");
    driver.finish();
    assert_eq!(page.as_volatile().load_u64(0), 5);
    unlock(driver, &page).unwrap();
}

#[test]
fn pages_of_memory_that_has_no_number_are_given_without_one() {
    for (driver, has_number) in [(Scripted::new(), true), (Scripted::new().without_buffer_ids(), false)] {
        let pages = scene(driver).unwrap().memory.whole().pages().unwrap();
        assert!(!pages.is_empty() && pages.iter().all(|pages| pages.allocation.is_some() == has_number));
    }
}
