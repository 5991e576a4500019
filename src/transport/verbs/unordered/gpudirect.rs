//! Payloads on GPUs that RDMA devices access directly, on a scripted driver and a scripted device: the tests need no
//! GPU and no adapter, and test neither.

use super::super::tests::connect_granting;
use super::*;
use crate::cuda::{Gpu, GpuError, GpuMemory, Scripted, memory_with_owner, rdma_of, rows_told};
use crate::diagnostic::Diagnostic;
use crate::mem::{Access, MemoryRegion, RemoteSlice, Streaming};
use crate::transport::verbs::{OpenError, VerbsEndpoint};
use crate::transport::{
    Address, CompletionError, ConnectError, Endpoint, Flags, GpuGrant, GpuPath, Inline, Offer, Operation,
    PostError, Transport, WorkCompletion, WorkRequest, WorkRequestId,
};

const PAGE: usize = 4096;
const WORDS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const SLOTS: Access = Access::REMOTE_WRITE.union(Access::RELAXED);

/// The way in which the device imports memory of the GPU.
#[derive(Clone, Copy)]
pub(super) enum Import {
    DmaBuf,
    Peermem,
}

impl Import {
    /// A driver whose memory devices import in this way.
    fn driver(self) -> Scripted {
        match self {
            Import::DmaBuf => Scripted::new().with_dma_bufs(),
            Import::Peermem => Scripted::new(),
        }
    }

    /// The transport with a GPU whose memory its device imports in this way.
    pub(super) fn reach(self, device: &Unordered, driver: &Arc<Scripted>, verbs: Verbs, gpu: &Gpu) -> Verbs {
        match self {
            Import::DmaBuf => verbs.with_gpu(gpu),
            Import::Peermem => {
                lock(&device.world.state).peermem = Some(Arc::new(driver.peermem()));
                // An existing folder stands for the module's folder.
                verbs.with_gpu_where(gpu, "/".as_ref())
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Import::DmaBuf => "dma-buf",
            Import::Peermem => "nvidia-peermem",
        }
    }
}

/// An owner with payloads on its GPU, and a peer that also has a GPU. They share one transport, since the device
/// connects to no other device.
struct DirectScene {
    device: Unordered,
    driver: Arc<Scripted>,
    gpu: Gpu,
    verbs: Verbs,
    poster: VerbsEndpoint,
    target: VerbsEndpoint,
    /// The owner's words, in host memory; memory that may only be read and memory that is written, both on its GPU.
    words: MemoryRegion,
    frames: GpuMemory,
    slots: GpuMemory,
    remote: Vec<RemoteSlice>,
}

/// A device that lingers, its flush, and a GPU that needs it.
pub(super) fn lingering(import: Import, seed: u64) -> (Unordered, Arc<Scripted>) {
    let device = Unordered::new(seed, false);
    device.linger(Lingers::All);
    let driver = import.driver();
    driver.set_flush(Some(device.flush()));
    (device, Arc::new(driver))
}

fn scene(import: Import, seed: u64, rails: usize, bytes: usize) -> DirectScene {
    let (device, driver) = lingering(import, seed);
    scene_of(import, device, driver, rails, bytes)
}

fn scene_of(
    import: Import,
    device: Unordered,
    driver: Arc<Scripted>,
    rails: usize,
    bytes: usize,
) -> DirectScene {
    let (gpu, ..) = driver.open_gpu();
    let in_order = lock(&device.world.state).keeps_order.then_some(true);
    let verbs = import.reach(&device, &driver, device.verbs_over(rails, DEPTH as usize, in_order), &gpu);
    let words = verbs.allocate(PAGE, WORDS).unwrap();
    let [frames, slots] = [(); 2].map(|()| GpuMemory::allocate(&gpu, bytes).unwrap());
    let grant = |at, memory: &GpuMemory, access| GpuGrant { at, memory: memory.clone(), access };
    let on_gpu = vec![grant(1, &frames, Access::REMOTE_READ), grant(2, &slots, SLOTS)];
    let offer = || Offer { message: Vec::new(), grants: vec![words.whole()] };
    let ([poster, target], [remote, _]) = connect_granting(&verbs, offer, on_gpu);
    assert_eq!(remote.len(), 3);
    DirectScene { device, driver, gpu, verbs, poster, target, words, frames, slots, remote }
}

/// Bytes that differ from each other and between rounds.
fn noise(round: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| ((index + 1) * (2 * round + 0x9E37)).to_le_bytes()[1]).collect()
}

impl DirectScene {
    fn memory(&self, bytes: usize) -> GpuMemory {
        GpuMemory::allocate(&self.gpu, bytes).unwrap()
    }

    fn set_word(&self, value: u64) -> Operation {
        let remote = self.remote[0].slice(0, 8).unwrap();
        Operation::WriteInline { data: Inline::word(value), remote }
    }

    fn turn(&mut self) {
        if !self.device.step() {
            self.verbs.shared.hearing.hurry();
            let _over = (self.poster.check(), self.target.check());
        }
    }

    fn post(&mut self, batch: &[WorkRequest]) {
        while let Err(error) = self.poster.post(batch) {
            assert!(matches!(error, PostError::QueueFull { .. }), "{error}");
            self.driver.work();
            self.turn();
        }
    }

    fn until<R>(&mut self, mut found: impl FnMut(&mut DirectScene) -> Option<R>) -> R {
        let begun = std::time::Instant::now();
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            assert!(begun.elapsed().as_secs() < 60, "waited in vain");
            self.driver.work();
            self.turn();
            // Completed requests let the requests behind them continue, while other data is still on its way.
            let _over = self.poster.check();
        }
    }

    fn complete(&mut self) -> WorkCompletion {
        self.until(|scene| scene.poster.poll())
    }

    fn carry_out(&mut self, operation: Operation) {
        self.post(&[WorkRequest::signalled(9, operation)]);
        assert_eq!(self.complete(), WorkCompletion { id: WorkRequestId(9), result: Ok(()) });
    }
}

fn write_from(memory: &GpuMemory, offset: usize, remote: RemoteSlice) -> Operation {
    Operation::WriteFromGpu { local: memory.slice(offset, remote.len as usize).unwrap(), remote }
}

fn read_to(memory: &GpuMemory, offset: usize, remote: RemoteSlice) -> Operation {
    Operation::ReadToGpu { local: memory.slice(offset, remote.len as usize).unwrap(), remote }
}

fn a_gradient_on_a_gpu_is_there_when_its_word_is_seen(import: Import) {
    const ROOM: usize = 200_064;
    for rails in [1, 2] {
        for seed in 0..12 {
            let (device, driver) = lingering(import, seed);
            // If the device keeps the order, no READ proves the writes over the first rail.
            if seed % 2 == 0 {
                device.keep_order();
            }
            let mut scene = scene_of(import, device, driver, rails, ROOM);
            let mine = scene.memory(ROOM);
            for (round, bytes) in [(1, 200_003), (2, 4096), (3, 150_001), (4, 1)] {
                let (from, at) = (round * 3, round * 8);
                scene.driver.set_bytes(mine.pointer(), &noise(round, ROOM));
                let bytes = bytes.min(ROOM - at.max(from));
                let remote = scene.remote[2].slice(at as u64, bytes as u64).unwrap();
                scene.post(&[
                    WorkRequest::unsignalled(1, write_from(&mine, from, remote)),
                    WorkRequest::signalled(2, scene.set_word(round as u64)),
                ]);
                // The owner polls its word, and then launches a fold.
                scene.until(|scene| (scene.words.as_volatile().load_u64(0) == round as u64).then_some(()));
                scene.gpu.see_rdma_writes().unwrap();
                let seen = scene.driver.bytes(scene.slots.pointer() + at as u64, bytes);
                assert!(
                    seen == noise(round, ROOM)[from..from + bytes],
                    "{rails} rails, seed {seed}, {bytes} bytes"
                );
                let told = scene.complete();
                assert_eq!((told.id, told.result), (WorkRequestId(2), Ok(())));
            }
            assert_eq!(scene.gpu.host_bytes_copied(), 0);
            assert_eq!(scene.poster.gpu_path(), Some(GpuPath::Rdma { by: import.name() }));
        }
    }
}

/// A GPU that keeps the order of one device's writes does not know the data that another device has on its way.
fn what_further_rails_write_to_a_gpu_is_proved_on_the_gpu(import: Import) {
    const ROOM: usize = 150_000;
    for seed in 0..12 {
        let device = Unordered::new(seed, false);
        device.linger(Lingers::FurtherPorts);
        let mut scene = scene_of(import, device, Arc::new(import.driver()), 2, ROOM);
        let mine = scene.memory(ROOM);
        for round in 1..4 {
            scene.driver.set_bytes(mine.pointer(), &noise(round, ROOM));
            scene.post(&[
                WorkRequest::unsignalled(1, write_from(&mine, 0, scene.remote[2])),
                WorkRequest::signalled(2, scene.set_word(round as u64)),
            ]);
            scene.until(|scene| (scene.words.as_volatile().load_u64(0) == round as u64).then_some(()));
            let seen = scene.driver.bytes(scene.slots.pointer(), ROOM);
            assert!(seen == noise(round, ROOM), "seed {seed}, round {round}");
            assert_eq!(scene.complete().result, Ok(()));
        }
    }
}

fn what_a_read_brings_to_a_gpu_is_seen_once_it_is_complete(import: Import) {
    const ROOM: usize = 200_064;
    for rails in [1, 2] {
        for seed in 0..12 {
            let mut scene = scene(import, seed, rails, ROOM);
            let mine = scene.memory(ROOM);
            scene.driver.set_bytes(scene.frames.pointer(), &noise(7, ROOM));
            for (at, into, bytes) in [(0, 0, 200_003), (8, 5, 65), (16, 3, 100_000), (0, 1, 1)] {
                let remote = scene.remote[1].slice(at as u64, bytes as u64).unwrap();
                scene.carry_out(read_to(&mine, into, remote));
                let seen = scene.driver.bytes(mine.pointer() + into as u64, bytes);
                assert!(seen == noise(7, ROOM)[at..at + bytes], "{rails} rails, seed {seed}, {bytes} bytes");
            }
            assert_eq!(scene.gpu.host_bytes_copied(), 0);
        }
    }
}

fn host_memory_and_memory_of_a_gpu_are_copied_into_each_other(import: Import) {
    let mut scene = scene(import, 3, 1, PAGE);
    let host = scene.verbs.allocate(PAGE, Access::LOCAL).unwrap();
    scene.driver.set_bytes(scene.frames.pointer(), &noise(1, PAGE));
    let (local, streaming) = (host.whole(), Streaming::Never);
    scene.carry_out(Operation::Read { local: local.clone(), remote: scene.remote[1], streaming });
    let mut read = vec![0; PAGE];
    host.as_volatile().read(&mut read);
    assert_eq!(read, noise(1, PAGE));
    scene.carry_out(Operation::Write { local, remote: scene.remote[2], streaming });
    scene.until(|scene| (!scene.device.step()).then_some(()));
    assert_eq!(scene.driver.bytes(scene.slots.pointer(), PAGE), read);
}

fn a_device_reads_and_writes_a_gpu_after_the_work_that_was_before(import: Import) {
    let mut scene = scene(import, 4, 1, PAGE);
    let mine = scene.memory(PAGE);
    let raw = scene.driver.stream(crate::cuda::PRIMARY);
    // SAFETY: a stream of the scripted driver, which never ends.
    let stream = unsafe { crate::cuda::GpuStream::of_caller(&scene.gpu, raw) }.unwrap();
    scene.driver.launch_fill(raw, mine.pointer(), PAGE, 0x5A);
    stream.hold_copies().unwrap();
    scene.post(&[
        WorkRequest::unsignalled(1, write_from(&mine, 0, scene.remote[2])),
        WorkRequest::signalled(2, scene.set_word(1)),
    ]);
    for _ in 0..200 {
        scene.turn();
        assert_eq!(scene.poster.poll(), None, "the kernel has not run");
    }
    assert_eq!(scene.words.as_volatile().load_u64(0), 0, "what is behind it is held, too");
    assert_eq!(scene.complete().result, Ok(()));
    (scene.device.flush())();
    assert_eq!(scene.driver.bytes(scene.slots.pointer(), PAGE), [0x5A; PAGE]);
    // The reverse case: a kernel still reads memory that a READ will overwrite.
    let kept = scene.memory(PAGE);
    scene.driver.launch_copy(raw, kept.pointer(), mine.pointer(), PAGE);
    stream.hold_copies().unwrap();
    scene.carry_out(read_to(&mine, 0, scene.remote[1]));
    assert_eq!(scene.driver.bytes(kept.pointer(), PAGE), [0x5A; PAGE]);
}

fn a_grant_covers_its_bytes_and_not_the_page_that_they_are_in(import: Import) {
    for (grant, beyond) in [(1, 96), (2, 96)] {
        let mut scene = scene(import, 5, 1, 100);
        let mine = scene.memory(PAGE);
        let remote = RemoteSlice { offset: beyond, len: 8, ..scene.remote[grant] };
        let operation = if grant == 1 { read_to(&mine, 0, remote) } else { write_from(&mine, 0, remote) };
        scene.post(&[WorkRequest::signalled(1, operation)]);
        assert_eq!(scene.complete().result, Err(CompletionError::RemoteAccess), "grant {grant}");
    }
    // Frames are only read.
    let mut scene = scene(import, 6, 1, 100);
    let mine = scene.memory(PAGE);
    scene.post(&[WorkRequest::signalled(1, write_from(&mine, 0, scene.remote[1]))]);
    assert_eq!(scene.complete().result, Err(CompletionError::RemoteAccess));
}

fn memory_of_the_caller_is_registered_once_for_its_allocation(import: Import) {
    let mut scene = scene(import, 7, 1, PAGE);
    let before = scene.device.regions();
    let pointer = scene.driver.memory(8 * PAGE);
    // A trainer names its tensors in each step.
    for step in 0..10_u64 {
        let tensor = memory_with_owner(&scene.gpu, pointer + 100 * step, 1000, ());
        scene.carry_out(read_to(&tensor, 0, scene.remote[1].slice(0, 1000).unwrap()));
        assert_eq!(scene.device.regions(), before + 1, "step {step}");
    }
    // Other memory at the same addresses is another allocation.
    scene.driver.free_memory(pointer);
    assert_eq!(scene.driver.memory(8 * PAGE), pointer);
    let tensor = memory_with_owner(&scene.gpu, pointer, 1000, ());
    scene.driver.set_bytes(scene.frames.pointer(), &noise(2, PAGE));
    scene.carry_out(read_to(&tensor, 0, scene.remote[1].slice(0, 1000).unwrap()));
    assert_eq!(scene.driver.bytes(pointer, 1000), noise(2, PAGE)[..1000]);
    assert_eq!(scene.device.regions(), before + 1, "the registration of what was freed is gone");
}

fn a_tensor_inside_its_allocation_is_read_and_written_where_it_lies(import: Import) {
    let mut scene = scene(import, 12, 1, PAGE);
    scene.driver.set_bytes(scene.frames.pointer(), &noise(4, PAGE));
    for offset in [3 * PAGE, 0, 2 * PAGE + 100] {
        // This is the first tensor of its allocation that a request names.
        let pointer = scene.driver.memory(8 * PAGE);
        let mut expected = noise(5, 8 * PAGE);
        scene.driver.set_bytes(pointer, &expected);
        let tensor = memory_with_owner(&scene.gpu, pointer + offset as u64, PAGE, ());
        scene.carry_out(write_from(&tensor, 0, scene.remote[2]));
        scene.until(|scene| (!scene.device.step()).then_some(()));
        let written = scene.driver.bytes(scene.slots.pointer(), PAGE);
        assert!(written == expected[offset..offset + PAGE], "read elsewhere: {offset} bytes in");
        scene.carry_out(read_to(&tensor, 0, scene.remote[1]));
        expected[offset..offset + PAGE].copy_from_slice(&noise(4, PAGE));
        assert!(scene.driver.bytes(pointer, 8 * PAGE) == expected, "written elsewhere: {offset} bytes in");
    }
    assert_eq!(scene.gpu.host_bytes_copied(), 0, "staged");
}

fn registrations_end_with_their_transport_and_not_with_the_memory(import: Import) {
    let mut scene = scene(import, 10, 1, PAGE);
    let mine = scene.memory(PAGE);
    scene.carry_out(write_from(&mine, 0, scene.remote[2].slice(0, PAGE as u64).unwrap()));
    let registered = scene.device.regions();
    let DirectScene { device, driver, gpu, frames, slots, verbs, poster, target, words, .. } = scene;
    drop((poster, target, verbs, words));
    assert!(registered > 0 && device.regions() == 0, "{registered} before, {} after", device.regions());
    // The next transport can register memory that outlives the last one.
    let verbs = import.reach(&device, &driver, device.verbs(None), &gpu);
    for memory in [&mine, &frames, &slots] {
        verbs.register_on_gpu(memory).unwrap();
    }
    assert!(device.regions() > 0);
    drop(verbs);
    assert_eq!(device.regions(), 0);
}

#[test]
fn what_the_device_does_not_register_is_staged_unless_that_is_forbidden() {
    let mut scene = scene(Import::DmaBuf, 8, 1, PAGE);
    let small = scene.driver.memory(100);
    let odd = memory_with_owner(&scene.gpu, small, 100, ());
    // The driver exports whole pages, and this memory has none.
    scene.carry_out(write_from(&odd, 0, scene.remote[2].slice(0, 100).unwrap()));
    assert_eq!(scene.gpu.host_bytes_copied(), 100);
    assert_eq!(scene.poster.check(), Ok(()));

    let gpu = scene.gpu.clone().require_gpudirect();
    let verbs = scene.device.verbs(None).with_gpu(&gpu);
    let words = verbs.allocate(PAGE, WORDS).unwrap();
    let offer = || Offer { message: Vec::new(), grants: vec![words.whole()] };
    let ([poster, target], [remote, _]) = connect_granting(&verbs, offer, Vec::new());
    (scene.poster, scene.target, scene.verbs) = (poster, target, verbs);
    scene.post(&[WorkRequest::signalled(1, write_from(&odd, 0, remote[0].slice(0, 100).unwrap()))]);
    assert_eq!(scene.complete().result, Err(CompletionError::Gpu));
    assert_eq!(scene.gpu.host_bytes_copied(), 100);

    let registrations = scene.verbs.gpu.as_ref().and_then(|gpu| gpu.registrations.clone()).unwrap();
    let reach =
        |memory: &GpuMemory| registrations.reach(&scene.verbs.shared, &gpu, &memory.whole()).unwrap_err();
    let (odd, whole) = (reach(&odd), scene.memory(PAGE));
    assert!(matches!(odd, GpuError::NotDirect { bytes: 100, .. }), "{odd}");
    lock(&scene.device.world.state).registering = libc::ENOMEM;
    let whole = reach(&whole).to_string();
    assert!(whole.contains("a device does not register them") && whole.contains("BAR1"), "{whole}");
    for told in [odd.to_string(), whole] {
        assert!(told.starts_with("RDMA devices do not carry ") && !told.contains("host memory"), "{told}");
        assert!(told.ends_with("and `Gpu::require_gpudirect` forbids to stage them"), "{told}");
    }
}

#[test]
fn where_no_way_to_the_gpu_works_each_says_why_and_owners_have_host_memory() {
    let refusing = Unordered::new(0, false);
    lock(&refusing.world.state).registering = libc::EOPNOTSUPP;
    let unseen = Scripted::new().with_dma_bufs();
    unseen.set_flush(None);
    let cases = [
        (Unordered::new(0, false), Scripted::new(), "exports none"),
        (refusing, Scripted::new().with_dma_bufs(), "imports dma-bufs"),
        (Unordered::new(0, false), unseen, "does not say that kernels see"),
    ];
    for (device, driver, reason) in cases {
        let driver = Arc::new(driver);
        let (gpu, ..) = driver.open_gpu();
        let verbs = device.verbs(None).with_gpu(&gpu.clone().require_gpudirect());
        assert!(verbs.gpu().is_none());
        assert_eq!(device.regions(), 0);
        let refused = verbs.listen(&Address::Verbs(([127, 0, 0, 1], 0).into())).map(drop).unwrap_err();
        assert!(matches!(refused, ConnectError::Staged { .. }), "{refused}");
        for part in ["not dma-buf", "not nvidia-peermem", reason] {
            assert!(refused.to_string().contains(part), "{part}: {refused}");
        }
    }
}

fn each_failing_call_of_the_driver_is_told_or_staged_and_leaves_nothing(import: Import) {
    for (is_write, fail) in [true, false].into_iter().flat_map(|it| Scripted::FAILURES.map(|fail| (it, fail)))
    {
        let mut call = 0;
        loop {
            let mut scene = scene(import, 9, 1, PAGE);
            let mine = scene.memory(PAGE);
            fail(&scene.driver, call, crate::cuda::NOT_PERMITTED);
            let remote = scene.remote[if is_write { 2 } else { 1 }];
            let operation = if is_write { write_from(&mine, 0, remote) } else { read_to(&mine, 0, remote) };
            scene.post(&[WorkRequest::signalled(1, operation)]);
            let told = scene.complete();
            assert!(
                told.result == Ok(()) || told.result == Err(CompletionError::Gpu),
                "call {call}: {told:?}"
            );
            let DirectScene { device, driver, gpu, verbs, poster, target, words, frames, slots, .. } = scene;
            drop((poster, target, words, frames, slots, mine, verbs));
            driver.finish();
            drop(gpu);
            let has_failed = driver.has_failed();
            assert!(driver.open() <= usize::from(has_failed), "call {call}: {} left", driver.open());
            assert_eq!(device.regions(), 0, "call {call}");
            if !has_failed {
                assert!(told.result == Ok(()) && call > 5, "{call} calls");
                break;
            }
            call += 1;
        }
    }
}

fn fenced_requests_wait_for_what_devices_bring_to_a_gpu(import: Import) {
    let mut scene = scene(import, 10, 2, 64 * PAGE);
    let mine = scene.memory(64 * PAGE);
    scene.driver.set_bytes(scene.frames.pointer(), &noise(3, 64 * PAGE));
    let fenced = WorkRequest {
        id: WorkRequestId(2),
        operation: write_from(&mine, 0, scene.remote[2]),
        flags: Flags::SIGNALLED | Flags::FENCE,
    };
    scene.post(&[WorkRequest::unsignalled(1, read_to(&mine, 0, scene.remote[1])), fenced]);
    assert_eq!(scene.complete(), WorkCompletion { id: WorkRequestId(2), result: Ok(()) });
    scene.until(|scene| (!scene.device.step()).then_some(()));
    assert_eq!(scene.driver.bytes(scene.slots.pointer(), 64 * PAGE), noise(3, 64 * PAGE));
}

#[test]
fn transfers_that_are_tried_are_whole_or_say_what_is_missing() {
    let tried = |driver: &Arc<Scripted>| {
        let (gpu, ..) = driver.open_gpu();
        let verbs = super::lingering().verbs(None).with_gpu(&gpu);
        let _working = driver.work_in_a_thread();
        verbs.try_gpu(100_000, std::time::Duration::from_millis(20))
    };
    let driver = Scripted::new().with_dma_bufs();
    driver.set_flush(Some(super::lingering().flush()));
    let found = tried(&Arc::new(driver)).unwrap();
    assert!(found.are_intact && found.versions > 0 && found.torn == 0, "{found:?}");
    let error = tried(&Arc::new(Scripted::new())).unwrap_err();
    assert!(error.contains("not dma-buf: the GPU's driver exports none"), "{error}");
}

/// An acknowledgement does not show that the data is in the peer's memory. A check that comes too early would report
/// changed bytes.
#[test]
fn transfers_that_are_tried_are_looked_at_once_they_have_arrived() {
    let (device, driver) = lingering(Import::DmaBuf, 0);
    device.be_late_on_gpus();
    let (gpu, ..) = driver.open_gpu();
    let verbs = device.that_steps().verbs(None).with_gpu(&gpu);
    let _working = driver.work_in_a_thread();
    let found = verbs.try_gpu(1, std::time::Duration::ZERO).unwrap();
    assert!(found.are_intact && found.versions == 1 && found.torn == 0, "{found:?}");
}

#[test]
fn every_row_is_measured_where_the_rdma_device_reaches_the_gpu() {
    for row in rows_told(|gpu| rdma_of(gpu, Ok(super::lingering().verbs(None)))) {
        let is_positive =
            |pair: &serde_json::Value| pair[0].as_f64() > Some(0.0) && pair[1].as_f64() > Some(0.0);
        let pairs = row["pairs"].as_array().unwrap_or_else(|| panic!("{row}"));
        assert!(pairs.len() == 3 && pairs.iter().all(is_positive), "{row}");
    }
}

#[test]
fn rows_of_rdma_say_why_no_device_reaches_the_gpu() {
    let (gpu, ..) = Arc::new(Scripted::new()).open_gpu();
    let none = (Err(OpenError::NoDevice), "this host has no RDMA device");
    for (verbs, reason) in [none, (Ok(super::common()), "the GPU's driver exports none")] {
        let missing = rdma_of(&gpu, verbs).unwrap_err();
        assert!(missing.contains(reason), "{missing}");
    }
}

#[test]
fn in_a_guest_the_probe_says_that_soft_roce_imports_none() {
    let driver = Arc::new(Scripted::new().with_dma_bufs());
    let (gpu, ..) = driver.open_gpu();
    let verbs = super::common().with_gpu(&gpu);
    match std::env::var(RIG_DEVICE) {
        Ok(device) => {
            let error = verbs.try_gpu(1, std::time::Duration::ZERO).unwrap_err();
            assert!(error.contains(&device) && error.contains("imports dma-bufs"), "{error}");
            assert!(verbs.gpu().is_none());
        }
        Err(_) => assert!(verbs.gpu().is_some()),
    }
}

/// The lengths of the pieces of one tensor, which follow each other directly, as in PyTorch's expandable segments.
const PIECES: [usize; 3] = [32 * PAGE, 16 * PAGE, 64 * PAGE];

/// The start of each piece.
fn pieces(driver: &Scripted) -> [u64; 3] {
    let first = driver.memory(PIECES[0]);
    let second = driver.memory_behind(first, PIECES[1]);
    [first, second, driver.memory_behind(second, PIECES[2])]
}

fn a_tensor_over_pieces_of_memory_is_carried_without_blocks(import: Import) {
    const ROOM: usize = 112 * PAGE;
    for (rails, seed) in [(1, 0), (1, 1), (2, 2), (2, 3)] {
        let mut scene = scene(import, seed, rails, ROOM);
        let before = scene.device.regions();
        let [first, ..] = pieces(&scene.driver);
        scene.driver.set_bytes(scene.frames.pointer(), &noise(4, ROOM));
        // A request that is split may begin at any byte, and so may the parts behind a cut.
        for (begin, bytes) in
            [(104, ROOM - 200), (32 * PAGE - 1, 2), (3, 48 * PAGE), (40 * PAGE, 30 * PAGE + 1)]
        {
            let mut expected = noise(5, ROOM);
            scene.driver.set_bytes(first, &expected);
            let tensor = memory_with_owner(&scene.gpu, first + begin as u64, bytes, ());
            let remote = |grant: usize| scene.remote[grant].slice(8, bytes as u64).unwrap();
            let (write, read) = (write_from(&tensor, 0, remote(2)), read_to(&tensor, 0, remote(1)));
            scene.carry_out(write);
            scene.until(|scene| (!scene.device.step()).then_some(()));
            let written = scene.driver.bytes(scene.slots.pointer() + 8, bytes);
            assert!(
                written == expected[begin..begin + bytes],
                "{rails} rails: read elsewhere, from {begin} on"
            );
            scene.carry_out(read);
            expected[begin..begin + bytes].copy_from_slice(&noise(4, ROOM)[8..8 + bytes]);
            let seen = scene.driver.bytes(first, ROOM);
            assert!(seen == expected, "{rails} rails: written elsewhere, from {begin} on");
        }
        assert_eq!(scene.gpu.host_bytes_copied(), 0, "staged");
        assert_eq!(scene.device.regions(), before + 3 * rails, "each piece once for each device");
    }
}

fn a_piece_that_is_mapped_again_is_registered_again_and_the_others_are_kept(import: Import) {
    let mut scene = scene(import, 13, 1, 40 * PAGE);
    let before = scene.device.regions();
    let [first, second, third] = pieces(&scene.driver);
    let carry_out = |scene: &mut DirectScene, round: usize| {
        scene.driver.set_bytes(scene.frames.pointer(), &noise(round, 40 * PAGE));
        let tensor = memory_with_owner(&scene.gpu, first + 20 * PAGE as u64, 40 * PAGE, ());
        let read = read_to(&tensor, 0, scene.remote[1]);
        scene.carry_out(read);
        assert!(scene.driver.bytes(tensor.pointer(), 40 * PAGE) == noise(round, 40 * PAGE), "round {round}");
        assert_eq!(scene.device.regions(), before + 3, "round {round}");
    };
    carry_out(&mut scene, 1);
    let registered = lock(&scene.device.world.state).next;
    carry_out(&mut scene, 2);
    assert_eq!(lock(&scene.device.world.state).next, registered, "they are kept");
    scene.driver.free_memory(second);
    assert_eq!(scene.driver.memory_behind(first, PIECES[1]), second);
    carry_out(&mut scene, 3);
    assert_eq!(lock(&scene.device.world.state).next, registered + 1, "of three pieces one is another");
    assert_eq!(third, second + PIECES[1] as u64);
}

#[test]
fn behind_a_piece_that_no_device_registers_a_tensor_is_staged() {
    let mut scene = scene(Import::DmaBuf, 14, 1, 2 * PAGE);
    let first = scene.driver.memory(PAGE);
    // The driver exports whole pages, and this memory has none.
    scene.driver.memory_behind(first, 100);
    scene.driver.set_bytes(first, &noise(6, PAGE + 100));
    let tensor = memory_with_owner(&scene.gpu, first + 96, PAGE, ());
    let remote = scene.remote[2].slice(0, PAGE as u64).unwrap();
    scene.carry_out(write_from(&tensor, 0, remote));
    scene.until(|scene| (!scene.device.step()).then_some(()));
    assert!(scene.driver.bytes(scene.slots.pointer(), PAGE) == noise(6, PAGE + 100)[96..96 + PAGE]);
    assert_eq!(scene.gpu.host_bytes_copied(), 96);
}

#[test]
fn peers_are_granted_the_callers_memory_from_a_page_on_and_of_one_piece() {
    let scene = scene(Import::DmaBuf, 15, 1, PAGE);
    let grant = |pointer, bytes| {
        let memory = memory_with_owner(&scene.gpu, pointer, bytes, ());
        scene.verbs.register_on_gpu(&memory).map_err(|error| error.to_string())
    };
    let [first, second, _] = pieces(&scene.driver);
    grant(second, PIECES[1]).unwrap();
    let refused = grant(second + 100, PAGE).unwrap_err();
    assert!(refused.contains("a multiple of 4096"), "{refused}");
    let refused = grant(first, PIECES[0] + PIECES[1]).unwrap_err();
    assert!(refused.contains("piece by piece"), "{refused}");
}

fn an_owner_whose_frames_no_device_registers_says_so_at_once(import: Import) {
    let scene = scene(import, 11, 1, PAGE);
    let frames = scene.memory(PAGE);
    lock(&scene.device.world.state).registering = libc::ENOMEM;
    let error = scene.verbs.register_on_gpu(&frames).unwrap_err().to_string();
    assert!(error.contains("4096 bytes") && error.contains("BAR1"), "{error}");
    lock(&scene.device.world.state).registering = 0;
    let before = scene.device.regions();
    scene.verbs.register_on_gpu(&frames).unwrap();
    scene.verbs.register_on_gpu(&frames).unwrap();
    assert_eq!(scene.device.regions(), before + 1);
}

/// A device may need seconds for a registration and its end. A trainer's registered tensors must not wait for this.
fn registered_memory_is_reached_while_devices_register_other_memory(import: Import) {
    let scene = scene(import, 16, 1, PAGE);
    let registrations = scene.verbs.gpu.as_ref().and_then(|gpu| gpu.registrations.clone()).unwrap();
    let reach = |pointer: u64| {
        let tensor = memory_with_owner(&scene.gpu, pointer, PAGE, ());
        registrations.reach(&scene.verbs.shared, &scene.gpu, &tensor.whole()).unwrap()
    };
    let [known, other] = [(); 2].map(|()| scene.driver.memory(PAGE));
    assert_eq!([known, other].map(reach), [PAGE; 2]);
    for hold in [Unordered::hold_undoing, Unordered::hold_registering] {
        // The memory that was at these addresses is freed: its registration ends, and then a new one is made.
        scene.driver.free_memory(other);
        assert_eq!(scene.driver.memory(PAGE), other);
        hold(&scene.device, true);
        std::thread::scope(|scope| {
            let registering = scope.spawn(|| reach(other));
            while scene.device.undoing() == 0 {
                std::thread::yield_now();
            }
            let (tell, told) = std::sync::mpsc::channel();
            scope.spawn(move || tell.send(reach(known)));
            let reached = told.recv_timeout(std::time::Duration::from_secs(20));
            hold(&scene.device, false);
            assert_eq!(reached, Ok(PAGE));
            assert_eq!(registering.join().unwrap(), PAGE);
        });
    }
}

/// The driver then exports no memory and reports that it is out of memory, although the GPU has enough.
#[test]
fn where_the_window_of_the_gpu_is_full_the_errors_name_it_and_not_the_gpu() {
    let mut scene = scene(Import::DmaBuf, 12, 1, PAGE);
    let (frames, mine) = (scene.memory(PAGE), scene.memory(PAGE));
    scene.driver.set_window_full(true);
    let refused = scene.verbs.register_on_gpu(&frames).unwrap_err();
    let remedy = refused.remedy().unwrap().into_owned();
    let registrations = scene.verbs.gpu.as_ref().and_then(|gpu| gpu.registrations.clone()).unwrap();
    let gpu = scene.gpu.clone().require_gpudirect();
    let reached = registrations.reach(&scene.verbs.shared, &gpu, &mine.whole()).unwrap_err();
    let next = scene.device.verbs(None).with_gpu(&gpu);
    let listening = next.listen(&Address::Verbs(([127, 0, 0, 1], 0).into())).map(drop).unwrap_err();
    for told in [refused.to_string(), remedy, reached.to_string(), listening.to_string()] {
        assert!(told.contains("BAR1") && !told.contains("end what else uses its memory"), "{told}");
    }
    scene.carry_out(write_from(&mine, 0, scene.remote[2].slice(0, 100).unwrap()));
    assert_eq!(scene.gpu.host_bytes_copied(), 100, "it is staged meanwhile");
    scene.driver.set_window_full(false);
    scene.verbs.register_on_gpu(&frames).unwrap();
}

/// Tests of these names, for both ways in which the device imports memory.
macro_rules! by_each_import {
    ($($name:ident),* $(,)?) => {
        mod by_dma_buf {
            $(#[test] fn $name() { super::$name(super::Import::DmaBuf) })*
        }
        mod by_peermem {
            $(#[test] fn $name() { super::$name(super::Import::Peermem) })*
        }
    };
}

by_each_import! {
    a_gradient_on_a_gpu_is_there_when_its_word_is_seen,
    what_further_rails_write_to_a_gpu_is_proved_on_the_gpu,
    what_a_read_brings_to_a_gpu_is_seen_once_it_is_complete,
    host_memory_and_memory_of_a_gpu_are_copied_into_each_other,
    a_device_reads_and_writes_a_gpu_after_the_work_that_was_before,
    a_grant_covers_its_bytes_and_not_the_page_that_they_are_in,
    memory_of_the_caller_is_registered_once_for_its_allocation,
    a_tensor_inside_its_allocation_is_read_and_written_where_it_lies,
    a_tensor_over_pieces_of_memory_is_carried_without_blocks,
    a_piece_that_is_mapped_again_is_registered_again_and_the_others_are_kept,
    registrations_end_with_their_transport_and_not_with_the_memory,
    each_failing_call_of_the_driver_is_told_or_staged_and_leaves_nothing,
    fenced_requests_wait_for_what_devices_bring_to_a_gpu,
    an_owner_whose_frames_no_device_registers_says_so_at_once,
    registered_memory_is_reached_while_devices_register_other_memory,
}
