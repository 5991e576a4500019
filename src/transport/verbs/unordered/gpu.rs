//! Payloads of a GPU over RDMA, on a scripted driver and a device that keeps no more order than it must: the tests
//! need no GPU and no adapter, and test neither.

use super::super::tests::connect;
use super::*;
use crate::cuda::{Gpu, GpuMemory, Scripted};
use crate::mem::{Access, MemoryRegion, RemoteSlice, Streaming};
use crate::transport::verbs::VerbsEndpoint;
use crate::transport::{
    Address, CompletionError, ConnectError, Endpoint, Flags, GpuPath, Inline, Offer, Operation, PostError,
    Transport, WorkCompletion, WorkRequest, WorkRequestId,
};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
/// More bytes than all blocks of a side hold, and an odd number.
const LONG: usize = 17 * MIB + 5;
const WORDS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// An endpoint with a GPU, and its peer, which has none.
struct StagedScene {
    device: Unordered,
    driver: Arc<Scripted>,
    gpu: Gpu,
    poster: VerbsEndpoint,
    target: VerbsEndpoint,
    /// The peer's memory: words, payloads without words, and memory that may only be read.
    regions: [MemoryRegion; 3],
    remote: Vec<RemoteSlice>,
    verbs: Verbs,
}

fn scene_of(device: Unordered, verbs: Verbs, bytes: usize) -> StagedScene {
    let driver = Arc::new(Scripted::new());
    let (gpu, ..) = driver.open_gpu();
    let regions = [(PAGE, WORDS), (bytes, WORDS | Access::RELAXED), (bytes, Access::REMOTE_READ)]
        .map(|(bytes, access)| verbs.allocate(bytes, access).unwrap());
    let verbs = verbs.with_gpu(&gpu);
    let grants = regions.each_ref().map(MemoryRegion::whole);
    let offer = || Offer { message: Vec::new(), grants: grants.to_vec() };
    let ([poster, target], [remote, _]) = connect(&verbs, offer);
    StagedScene { device, driver, gpu, poster, target, regions, remote, verbs }
}

/// A scene over so many rails, in which the peer grants `bytes` of payloads of each kind.
fn scene(seed: u64, rails: usize, bytes: usize) -> StagedScene {
    let device = Unordered::new(seed, false);
    let verbs = device.verbs_over(rails, DEPTH as usize, None);
    scene_of(device, verbs, bytes)
}

/// Bytes that differ from each other and between rounds.
fn noise(round: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| ((index + 1) * (2 * round + 0x9E37)).to_le_bytes()[1]).collect()
}

fn bytes_of(region: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.as_volatile().read(&mut bytes);
    bytes
}

impl StagedScene {
    fn memory(&self, bytes: usize) -> GpuMemory {
        GpuMemory::allocate(&self.gpu, bytes).unwrap()
    }

    fn word(&self, at: usize) -> u64 {
        self.regions[0].as_volatile().load_u64(8 * at)
    }

    fn set_word(&self, at: u64, value: u64) -> Operation {
        let remote = self.remote[0].slice(8 * at, 8).unwrap();
        Operation::WriteInline { data: Inline::word(value), remote }
    }

    /// The device takes a step; if it has none, both sides check their connections.
    fn turn(&mut self) {
        if !self.device.step() {
            self.verbs.shared.hearing.hurry();
            let _over = (self.poster.check(), self.target.check());
        }
        (0..20).for_each(|_| _ = self.device.step());
    }

    fn post(&mut self, batch: &[WorkRequest]) {
        while let Err(error) = self.poster.post(batch) {
            assert!(matches!(error, PostError::QueueFull { .. }), "{error}");
            self.driver.work();
            self.turn();
        }
    }

    /// Waits for the next completion, while device and GPU work.
    fn complete(&mut self) -> WorkCompletion {
        let begun = std::time::Instant::now();
        loop {
            if let Some(completion) = self.poster.poll() {
                return completion;
            }
            assert!(begun.elapsed().as_secs() < 60, "waited in vain");
            self.driver.work();
            self.turn();
        }
    }

    fn carry_out(&mut self, operation: Operation) {
        self.post(&[WorkRequest::signalled(9, operation)]);
        assert_eq!(self.complete(), WorkCompletion { id: WorkRequestId(9), result: Ok(()) });
    }

    /// Brings all packets that are under way into memory.
    fn arrive(&mut self) {
        while self.device.step() {}
    }

    /// Does all work that is possible without the GPU, and checks that no request is complete.
    fn settle(&mut self) {
        for _ in 0..200 {
            assert_eq!(self.poster.poll(), None, "its copy is not made");
            self.turn();
        }
    }
}

fn write_from(memory: &GpuMemory, offset: usize, remote: RemoteSlice) -> Operation {
    Operation::WriteFromGpu { local: memory.slice(offset, remote.len as usize).unwrap(), remote }
}

fn read_to(memory: &GpuMemory, offset: usize, remote: RemoteSlice) -> Operation {
    Operation::ReadToGpu { local: memory.slice(offset, remote.len as usize).unwrap(), remote }
}

#[test]
fn ranges_between_a_gpu_and_a_peer_arrive_whole_with_nothing_beside_them() {
    const ROOM: usize = 200_064;
    for rails in [1, 2] {
        let mut scene = scene(rails as u64, rails, ROOM);
        let mine = scene.memory(ROOM);
        let lengths = [0, 1, 8, 64, 65, 4096, 4097, 40_000, 200_003];
        for (round, bytes) in lengths.into_iter().enumerate() {
            let (at, to) = ([16, 3][round % 2], [24, 5, 16][round % 3]);
            let sent = noise(round, bytes);
            let mut expected = vec![0xEE; ROOM];
            expected[to..to + bytes].copy_from_slice(&sent);
            scene.regions[1].as_volatile().write(&[0xEE; ROOM]);
            scene.driver.set_bytes(mine.pointer() + at as u64, &sent);
            let remote = scene.remote[1].slice(to as u64, bytes as u64).unwrap();
            scene.carry_out(write_from(&mine, at, remote));
            scene.arrive();
            assert!(bytes_of(&scene.regions[1]) == expected, "{bytes} bytes written over {rails} rails");
            // Memory that may only be read and memory that may also be written are read over different queue pairs.
            scene.regions[2].as_volatile().write(&expected);
            let mut expected = vec![0xDD; ROOM];
            expected[at..at + bytes].copy_from_slice(&sent);
            for grant in [1, 2] {
                scene.driver.set_bytes(mine.pointer(), &[0xDD; ROOM]);
                let remote = scene.remote[grant].slice(to as u64, bytes as u64).unwrap();
                scene.carry_out(read_to(&mine, at, remote));
                let is_same = scene.driver.bytes(mine.pointer(), ROOM) == expected;
                assert!(is_same, "{bytes} bytes of grant {grant} read over {rails} rails");
            }
        }
        assert_eq!(scene.gpu.host_bytes_copied(), 3 * lengths.iter().sum::<usize>() as u64);
    }
}

#[test]
fn what_is_behind_a_copy_out_of_a_gpu_is_held_until_its_ticket() {
    let mut scene = scene(0, 1, PAGE);
    let mine = scene.memory(PAGE);
    scene.driver.set_bytes(mine.pointer(), &[7; PAGE]);
    let batch = [
        WorkRequest::unsignalled(1, scene.set_word(0, 1)),
        WorkRequest::unsignalled(2, write_from(&mine, 0, scene.remote[1])),
        WorkRequest::signalled(3, scene.set_word(1, 2)),
    ];
    scene.post(&batch);
    scene.settle();
    assert_eq!([0, 1].map(|at| scene.word(at)), [1, 0], "a word overtook a payload");
    scene.driver.finish();
    assert_eq!(scene.complete().id, WorkRequestId(3));
    assert_eq!([0, 1].map(|at| scene.word(at)), [1, 2]);
    assert_eq!(bytes_of(&scene.regions[1])[..PAGE], [7; PAGE]);
}

#[test]
fn a_read_to_a_gpu_is_complete_with_its_copy_and_those_behind_it_come_later() {
    let mut scene = scene(0, 1, PAGE);
    let mine = scene.memory(PAGE);
    scene.regions[2].as_volatile().write(&[9; PAGE]);
    let (local, remote) = (scene.verbs.allocate(8, Access::LOCAL).unwrap().whole(), scene.remote[0]);
    let (local, remote) = (local.slice(0, 8).unwrap(), remote.slice(0, 8).unwrap());
    let behind = Operation::Read { local, remote, streaming: Streaming::Never };
    let reading = WorkRequest::signalled(1, read_to(&mine, 0, scene.remote[2]));
    scene.post(&[reading, WorkRequest::signalled(2, behind)]);
    scene.settle();
    assert_eq!([(); 2].map(|()| scene.complete().id.0), [1, 2]);
    assert_eq!(scene.driver.bytes(mine.pointer(), PAGE), [9; PAGE]);
}

#[test]
fn a_fenced_write_waits_for_the_copy_of_a_read_to_a_gpu_and_others_do_not() {
    let mut scene = scene(0, 1, PAGE);
    let mine = scene.memory(PAGE);
    let word = |scene: &StagedScene, value| WorkRequest::signalled(value, scene.set_word(value, value));
    let fenced = WorkRequest { flags: Flags::SIGNALLED | Flags::FENCE, ..word(&scene, 3) };
    let batch = [WorkRequest::signalled(1, read_to(&mine, 0, scene.remote[2])), word(&scene, 2), fenced];
    scene.post(&batch);
    scene.settle();
    assert_eq!([2, 3].map(|at| scene.word(at)), [2, 0], "a fenced write went ahead of the read before it");
    assert_eq!([(); 3].map(|()| scene.complete().id.0), [1, 2, 3]);
    assert_eq!(scene.word(3), 3);
}

#[test]
fn no_piece_of_a_fenced_write_from_a_gpu_goes_ahead_of_a_read_before_it() {
    for seed in 0..20 {
        // Long enough that both rails have parts of the write.
        let mut scene = scene(seed, 2, 64 << 10);
        let mine = scene.memory(64 << 10);
        scene.driver.set_bytes(mine.pointer(), &[1; 64 << 10]);
        let into = scene.verbs.allocate(64 << 10, Access::LOCAL).unwrap();
        let (local, remote) = (into.whole(), scene.remote[1]);
        let read = Operation::Read { local, remote, streaming: Streaming::Never };
        let write = WorkRequest::signalled(2, write_from(&mine, 0, scene.remote[1]));
        let fenced = WorkRequest { flags: Flags::SIGNALLED | Flags::FENCE, ..write };
        scene.post(&[WorkRequest::signalled(1, read), fenced]);
        // Only the READ may delay the write.
        scene.driver.finish();
        let _pending = scene.poster.poll();
        assert_eq!([(); 2].map(|()| scene.complete().id.0), [1, 2]);
        scene.arrive();
        assert!(bytes_of(&into).iter().all(|byte| *byte == 0), "seed {seed}: read what was written later");
        assert!(bytes_of(&scene.regions[1]).iter().all(|byte| *byte == 1));
    }
}

#[test]
fn a_block_is_used_again_once_the_gpu_has_copied_it_and_not_before() {
    let mut scene = scene(0, 1, LONG);
    let mine = scene.memory(LONG);
    let turn = |scene: &mut StagedScene, operation: Operation| {
        scene.post(&[WorkRequest::signalled(1, operation)]);
        // The GPU does nothing before all free blocks are in use, and the device has no more steps.
        let begun = std::time::Instant::now();
        let completion = loop {
            if let Some(completion) = scene.poster.poll() {
                break completion;
            }
            assert!(begun.elapsed().as_secs() < 300, "waited in vain");
            if !scene.device.step() {
                scene.driver.finish();
            }
            (0..200).for_each(|_| _ = scene.device.step());
        };
        assert_eq!(completion.result, Ok(()));
    };
    let (written, read) = (noise(1, LONG), noise(2, LONG));
    scene.driver.set_bytes(mine.pointer(), &written);
    let remote = scene.remote[1].slice(0, LONG as u64).unwrap();
    turn(&mut scene, write_from(&mine, 0, remote));
    scene.arrive();
    assert!(bytes_of(&scene.regions[1])[..LONG] == written, "a block was used again too early");
    scene.regions[2].as_volatile().subslice(0, LONG).write(&read);
    let remote = scene.remote[2].slice(0, LONG as u64).unwrap();
    turn(&mut scene, read_to(&mine, 0, remote));
    assert!(scene.driver.bytes(mine.pointer(), LONG) == read, "a block was used again too early");
}

/// Payloads of random lengths and the words that announce them, some of them through the GPU and some not, over
/// queues for `depth` parts. Requests from host memory may take several parts.
fn payloads_arrive_before_their_words(seed: u64, rails: usize, depth: usize) {
    const CHUNK: usize = 40_000;
    const CHUNKS: usize = 40;
    let device = Unordered::new(seed, false);
    let mut verbs = device.verbs_over(rails, depth, None);
    let shared = Arc::get_mut(&mut verbs.shared).expect("no other handle exists yet");
    shared.rails.iter_mut().for_each(|rail| rail.port.message_bytes = 16 << 10);
    let mut scene = scene_of(device, verbs, CHUNK * CHUNKS);
    let (mine, host) = (scene.memory(CHUNK * CHUNKS), scene.verbs.allocate(CHUNK * CHUNKS, Access::LOCAL));
    let (host, expected) = (host.unwrap(), noise(3, CHUNK * CHUNKS));
    scene.driver.set_bytes(mine.pointer(), &expected);
    host.as_volatile().subslice(0, expected.len()).write(&expected);
    let (mut chunk, mut landed, mut told) = (0, 0, 0);
    let begun = std::time::Instant::now();
    while landed < CHUNKS || told < CHUNKS {
        assert!(begun.elapsed().as_secs() < 120, "waited in vain");
        let chance = lock(&scene.device.world.state).random(4);
        if chunk < CHUNKS {
            let (begin, bytes) = (chunk * CHUNK, CHUNK - 1000 * chance);
            let remote = scene.remote[1].slice(begin as u64, bytes as u64).unwrap();
            let operation = match chance {
                0 => {
                    let (local, streaming) = (host.slice(begin, bytes).unwrap(), Streaming::Never);
                    Operation::Write { local, remote, streaming }
                }
                _ => write_from(&mine, begin, remote),
            };
            let payload = WorkRequest::unsignalled(1, operation);
            let word = WorkRequest::signalled(2, scene.set_word(0, (chunk + 1) as u64 * 4 + chance as u64));
            match scene.poster.post(&[payload, word]) {
                Ok(()) => chunk += 1,
                Err(error) => assert!(matches!(error, PostError::QueueFull { .. }), "{error}"),
            }
        }
        match chance {
            0 => _ = scene.driver.work(),
            _ => (0..10).for_each(|_| _ = scene.device.step()),
        }
        while let Some(completion) = scene.poster.poll() {
            assert_eq!(completion, WorkCompletion { id: WorkRequestId(2), result: Ok(()) });
            told += 1;
        }
        let word = scene.word(0) as usize;
        let now = word / 4;
        assert!(now >= landed);
        if now > landed {
            let (begin, bytes) = ((now - 1) * CHUNK, CHUNK - 1000 * (word % 4));
            let mut arrived = vec![0; bytes];
            scene.regions[1].as_volatile().subslice(begin, bytes).read(&mut arrived);
            let is_there = arrived == expected[begin..begin + bytes];
            assert!(
                is_there,
                "seed {seed}, {rails} rails, queues for {depth}: announced before it was there"
            );
        }
        landed = now;
    }
}

#[test]
fn a_block_fits_a_queue_of_one_short_request() {
    const BYTES: usize = 40_000;
    let device = Unordered::new(0, false);
    let mut verbs = device.verbs_over(1, 1, None);
    let shared = Arc::get_mut(&mut verbs.shared).expect("no other handle exists yet");
    shared.rails[0].port.message_bytes = PAGE as u32;
    let mut scene = scene_of(device, verbs, BYTES);
    let (mine, sent) = (scene.memory(BYTES), noise(1, BYTES));
    scene.driver.set_bytes(mine.pointer(), &sent);
    let remote = scene.remote[1].slice(0, BYTES as u64).unwrap();
    scene.carry_out(write_from(&mine, 0, remote));
    scene.arrive();
    assert!(bytes_of(&scene.regions[1])[..BYTES] == sent);
    scene.driver.set_bytes(mine.pointer(), &[0; BYTES]);
    scene.carry_out(read_to(&mine, 0, remote));
    let is_whole = scene.driver.bytes(mine.pointer(), BYTES) == sent;
    assert!(is_whole, "a block was used again too early");
}

#[test]
fn payloads_of_a_gpu_are_there_before_the_words_that_announce_them() {
    for (rails, depth) in [(1, DEPTH as usize), (2, DEPTH as usize), (1, 4), (2, 4)] {
        (0..3).for_each(|seed| payloads_arrive_before_their_words(seed, rails, depth));
    }
}

#[test]
fn payloads_of_a_gpu_go_on_over_the_rails_that_are_left() {
    for seed in 0..10 {
        const BYTES: usize = 256 << 10;
        let mut scene = scene(seed, 2, BYTES);
        let (mine, sent, read) = (scene.memory(BYTES), noise(1, BYTES), noise(2, BYTES));
        let other = scene.memory(BYTES);
        scene.driver.set_bytes(mine.pointer(), &sent);
        scene.regions[2].as_volatile().subslice(0, BYTES).write(&read);
        let batch = [
            WorkRequest::unsignalled(1, write_from(&mine, 0, scene.remote[1])),
            WorkRequest::unsignalled(2, scene.set_word(0, 1)),
            WorkRequest::signalled(3, read_to(&other, 0, scene.remote[2])),
        ];
        scene.post(&batch);
        scene.driver.finish();
        let _pending = scene.poster.poll();
        (0..20 * seed).for_each(|_| _ = scene.device.step());
        scene.device.cut(2);
        assert_eq!(scene.complete(), WorkCompletion { id: WorkRequestId(3), result: Ok(()) }, "seed {seed}");
        assert!(bytes_of(&scene.regions[1])[..BYTES] == sent, "seed {seed}");
        assert!(scene.driver.bytes(other.pointer(), BYTES) == read, "seed {seed}");
        assert_eq!((scene.word(0), scene.verbs.rails_lost()), (1, 2), "both sides have lost it");
    }
}

#[test]
fn what_was_not_granted_is_refused_after_what_was() {
    for rails in [1, 2] {
        for of_a_read in [true, false] {
            let mut scene = scene(0, rails, PAGE);
            let mine = scene.memory(PAGE);
            let beyond = RemoteSlice { offset: scene.remote[1].offset + 8, ..scene.remote[1] };
            let offence = match of_a_read {
                true => read_to(&mine, 0, beyond),
                false => write_from(&mine, 0, beyond),
            };
            let honest = read_to(&mine, 0, scene.remote[2]);
            let batch = [
                WorkRequest::signalled(1, honest.clone()),
                WorkRequest::unsignalled(2, offence),
                WorkRequest::signalled(3, honest),
            ];
            scene.post(&batch);
            let told = [(); 3].map(|()| scene.complete()).map(|it| (it.id.0, it.result));
            assert_eq!(told[1], (2, Err(CompletionError::RemoteAccess)), "{rails} rails");
            // The READs are on their own queue pair, and may be flushed with the others.
            let may_be = [Ok(()), Err(CompletionError::Flushed)];
            assert!([told[0], told[2]].iter().all(|(_, result)| may_be.contains(result)), "{told:?}");
            assert!(scene.poster.check().is_err());
        }
    }
}

#[test]
fn each_failing_call_of_the_driver_is_told_and_leaves_nothing() {
    const BYTES: usize = 5000;
    for fail in Scripted::FAILURES {
        for call in 0.. {
            let mut scene = scene(0, 1, BYTES);
            let registered = scene.device.regions();
            let mine = scene.memory(BYTES);
            scene.driver.set_bytes(mine.pointer(), &[3; BYTES]);
            fail(&scene.driver, call, crate::cuda::NOT_PERMITTED);
            let payload = scene.remote[1].slice(0, BYTES as u64).unwrap();
            let batch = [
                WorkRequest::signalled(0, scene.set_word(0, 1)),
                WorkRequest::signalled(1, write_from(&mine, 0, payload)),
                WorkRequest::signalled(2, read_to(&mine, 0, payload)),
            ];
            scene.post(&batch);
            // The word before them also has a completion, whatever its result.
            let [_, results @ ..] = [(); 3].map(|()| scene.complete().result);
            let has_failed = scene.driver.has_failed();
            scene.driver.fail(u32::MAX, crate::cuda::NOT_PERMITTED);
            if let Some(error) = results.into_iter().find_map(Result::err) {
                assert!(has_failed && error == CompletionError::Gpu, "call {call}: {error}");
                let over = scene.poster.check().unwrap_err();
                assert!(over.reason.contains("a GPU of this process did not copy"), "{}", over.reason);
            }
            // Requests under way on the device are executed before the endpoint is dropped.
            (0..100).for_each(|_| scene.turn());
            let StagedScene { device, driver, gpu, poster, target, verbs, .. } = scene;
            drop((batch, poster, target, mine, verbs));
            driver.finish();
            drop(gpu);
            // If the call that failed was to free an object, only this object remains.
            assert!(driver.open() <= usize::from(has_failed), "call {call}: {} left", driver.open());
            assert!(device.regions() <= registered, "call {call}: blocks stay registered");
            if !has_failed {
                assert!(call > 5 && results == [Ok(()); 2], "{call} calls");
                break;
            }
        }
    }
}

#[test]
fn blocks_that_the_device_does_not_register_end_the_connection() {
    for is_write in [true, false] {
        let mut scene = scene(0, 2, PAGE);
        let (mine, registered) = (scene.memory(PAGE), scene.device.regions());
        let remote = scene.remote[1];
        let request = if is_write { write_from(&mine, 0, remote) } else { read_to(&mine, 0, remote) };
        lock(&scene.device.world.state).registering = libc::ENOMEM;
        scene.post(&[
            WorkRequest::signalled(1, scene.set_word(0, 1)),
            WorkRequest::signalled(2, request),
            WorkRequest::signalled(3, scene.set_word(0, 2)),
        ]);
        let [_, results @ ..] = [(); 3].map(|()| scene.complete().result);
        assert_eq!(results, [Err(CompletionError::Gpu), Err(CompletionError::Flushed)]);
        let over = scene.poster.check().unwrap_err();
        assert!(over.reason.contains("its log has"), "{}", over.reason);
        // The grants to the peer end with the connection.
        assert!(scene.word(0) < 2 && scene.device.regions() <= registered);
        assert_eq!(scene.gpu.host_bytes_copied(), 0);
    }
}

#[test]
fn an_endpoint_that_goes_in_mid_copy_leaves_nothing_behind() {
    for is_write in [true, false] {
        for seed in 0..5 {
            let mut scene = scene(seed, 1, 3 * MIB);
            let mine = scene.memory(3 * MIB);
            let remote = scene.remote[1];
            let operation = if is_write { write_from(&mine, 0, remote) } else { read_to(&mine, 0, remote) };
            scene.post(&[WorkRequest::signalled(1, operation)]);
            // A part of the payload is copied and written; then the GPU makes no more progress.
            for _ in 0..3 * seed {
                scene.driver.work();
                let _pending = scene.poster.poll();
                scene.turn();
            }
            let StagedScene { device, driver, gpu, poster, target, regions, verbs, .. } = scene;
            drop((poster, target, regions, mine, verbs));
            driver.finish();
            drop(gpu);
            assert_eq!((driver.open(), device.regions()), (0, 0), "a write: {is_write}, seed {seed}");
        }
    }
}

#[test]
fn a_peer_that_goes_in_mid_copy_ends_the_request_and_no_memory_is_left() {
    let mut scene = scene(0, 1, 3 * MIB);
    let mine = scene.memory(3 * MIB);
    scene.post(&[WorkRequest::signalled(1, read_to(&mine, 0, scene.remote[1]))]);
    let StagedScene { device, driver, gpu, mut poster, target, regions, verbs, .. } = scene;
    drop(target);
    let begun = std::time::Instant::now();
    while poster.check().is_ok() {
        assert!(begun.elapsed().as_secs() < 60, "waited in vain");
        verbs.shared.hearing.hurry();
    }
    assert_eq!(poster.poll().unwrap().result, Err(CompletionError::Flushed));
    drop((poster, regions, mine, verbs));
    driver.finish();
    drop(gpu);
    assert_eq!((driver.open(), device.regions()), (0, 0));
}

#[test]
fn memory_of_another_gpu_is_refused_before_anything_is_posted() {
    let mut scene = scene(0, 1, PAGE);
    let (other, ..) = Arc::new(Scripted::new().of_another_device()).open_gpu();
    let memory = GpuMemory::allocate(&other, PAGE).unwrap();
    let request = WorkRequest::signalled(1, write_from(&memory, 0, scene.remote[1]));
    let refused = scene.poster.post(&[request]).unwrap_err();
    assert!(matches!(refused, PostError::Malformed { index: 0, .. }), "{refused}");
    assert!(refused.to_string().contains("another GPU"), "{refused}");
    let foreign = MemoryRegion::new(
        crate::mem::HostMemory::anonymous(PAGE).unwrap(),
        Access::LOCAL,
        crate::mem::DeviceKeys::NONE,
        (),
    );
    let (local, remote) = (foreign.whole(), scene.remote[1]);
    let write = Operation::Write { local, remote, streaming: Streaming::Never };
    let refused = scene.poster.post(&[WorkRequest::signalled(1, write)]).unwrap_err();
    assert!(refused.to_string().contains("not registered with this transport"), "{refused}");
    assert_eq!(scene.poster.check(), Ok(()));
}

#[test]
fn an_endpoint_without_a_gpu_posts_none_and_says_what_it_lacks() {
    let device = Unordered::new(0, false);
    let verbs = device.verbs(None);
    let region = verbs.allocate(PAGE, WORDS).unwrap();
    let offer = || Offer { message: Vec::new(), grants: vec![region.whole()] };
    let ([mut poster, _target], [remote, _]) = connect(&verbs, offer);
    let (gpu, ..) = Arc::new(Scripted::new()).open_gpu();
    let memory = GpuMemory::allocate(&gpu, PAGE).unwrap();
    let refused = poster.post(&[WorkRequest::signalled(1, write_from(&memory, 0, remote[0]))]).unwrap_err();
    assert!(refused.to_string().contains("with_gpu"), "{refused}");
    assert_eq!(poster.gpu_path(), None);
}

#[test]
fn where_gpudirect_is_required_each_way_that_was_passed_over_is_named() {
    let StagedScene { gpu, poster, verbs, .. } = scene(0, 1, PAGE);
    let path = poster.gpu_path().unwrap();
    assert!(matches!(&path, GpuPath::Staged { passed_over } if passed_over.len() == 2), "{path}");
    let listener = verbs.listen(&Address::Verbs(([127, 0, 0, 1], 0).into())).unwrap();
    let address = crate::transport::Listener::address(&listener);
    let direct = verbs.with_gpu(&gpu.require_gpudirect());
    let refused = [
        direct.listen(&address).map(drop).unwrap_err(),
        direct.connect(&address, Offer::default()).map(drop).unwrap_err(),
    ];
    for (error, call) in refused.into_iter().zip(["listen", "connect"]) {
        assert!(matches!(error, ConnectError::Staged { operation, .. } if operation == call), "{error}");
        for part in
            [call, "not dma-buf: the GPU's driver exports none", "not nvidia-peermem", "use shared memory"]
        {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }
}

#[test]
fn tests_in_a_guest_are_over_the_device_of_the_rig() {
    let device = std::env::var(RIG_DEVICE).unwrap_or("unordered0".into());
    assert_eq!(common().device(), device);
}

#[test]
fn payloads_of_an_owner_are_in_host_memory_whatever_gpu_it_has() {
    let scene = scene(0, 1, PAGE);
    assert!(scene.verbs.gpu().is_none());
}
