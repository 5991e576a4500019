//! An owner and a peer on two GPUs of one host, on a scripted driver: no GPU is needed, and none is tested.

use std::sync::Arc;
use std::task::Poll;

use super::*;
use crate::cuda::Scripted;
use crate::mem::{Streaming, alone, true_in_a_forked_child};
use crate::transport::shm::{Shm, ShmEndpoint};
use crate::transport::{
    Address, Connecting, Incoming, Inline, Listener, Offer, Transport, WorkCompletion, WorkRequestId,
};

const MIB: usize = 1 << 20;
/// More than all blocks hold, and odd.
const LONG: usize = 17 * MIB + 5;
const ROOM: usize = LONG + 64;
const NOW: crate::time::Instant = crate::time::Instant::from_nanos(0);
const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// An owner on the first GPU of its process, and a peer on the second one of another.
struct TwoGpus {
    owner: Arc<Scripted>,
    peer: Arc<Scripted>,
    gpu: Gpu,
    granted: GpuMemory,
    words: MemoryRegion,
    client: ShmEndpoint,
    _server: ShmEndpoint,
    /// The owner's memory on its GPU, and its page of the host.
    remote: [RemoteSlice; 2],
}

fn connect(peer: Arc<Scripted>, gpu: Gpu, bytes: usize) -> Result<TwoGpus, crate::transport::ConnectError> {
    let owner = Arc::new(Scripted::new());
    let (owners, ..) = owner.open_gpu();
    let (theirs, ours) = (Shm::new().with_gpu(&gpu), Shm::new().with_gpu(&owners));
    let granted = GpuMemory::allocate(&owners, bytes).unwrap();
    let words = ours.allocate(4096, ALL).unwrap();
    let mut listener = ours.listen(&Address::random()).unwrap();
    let mut connecting = theirs.connect(&listener.address(), Offer::default()).unwrap();
    let mut server = None;
    let (client, received) = loop {
        if let Some(mut incoming) = listener.poll(NOW) {
            let grant = crate::transport::GpuGrant { at: 0, memory: granted.clone(), access: ALL };
            incoming.grant_gpu(vec![grant]).unwrap();
            let offer = Offer { message: Vec::new(), grants: vec![words.whole()] };
            server = Some(incoming.accept(offer).unwrap());
        }
        if let Poll::Ready(connected) = connecting.poll(NOW) {
            break connected?;
        }
    };
    let (remote, server) = ([received.grants[0], received.grants[1]], server.unwrap());
    Ok(TwoGpus { owner, peer, gpu, granted, words, client, _server: server, remote })
}

fn two_gpus(are_peers: bool, bytes: usize) -> TwoGpus {
    let peer = Arc::new(Scripted::new().with_two_devices(are_peers));
    let (gpu, ..) = peer.open_gpu_at(1);
    connect(peer, gpu, bytes).unwrap()
}

/// Bytes that differ between blocks, too.
fn noise(seed: usize, bytes: usize) -> Vec<u8> {
    let byte = |index: usize| ((index + 1) * (2 * seed + 0x9E37)).to_le_bytes()[1] ^ (index >> 16) as u8;
    (0..bytes).map(byte).collect()
}

impl TwoGpus {
    fn memory(&self, bytes: usize) -> GpuMemory {
        GpuMemory::allocate(&self.gpu, bytes).unwrap()
    }

    /// Lets the peer's GPUs work until something is complete.
    fn complete(&mut self) -> WorkCompletion {
        for _ in 0..1_000_000 {
            if let Some(completion) = self.client.poll() {
                return completion;
            }
            self.peer.work();
        }
        panic!("waited in vain");
    }

    fn carry_out(&mut self, operation: Operation) {
        self.client.post(&[WorkRequest::signalled(9, operation)]).unwrap();
        assert_eq!(self.complete(), WorkCompletion { id: WorkRequestId(9), result: Ok(()) });
    }

    /// The owner's memory, as its own GPU has it.
    fn seen(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self.owner.bytes(self.granted.pointer() + offset as u64, bytes)
    }
}

#[test]
fn payloads_go_between_two_gpus_straight_or_by_way_of_the_host() {
    for are_peers in [true, false] {
        let mut scene = two_gpus(are_peers, ROOM);
        let path = scene.client.gpu_path().unwrap();
        assert_eq!(path == GpuPath::CopyEngines, are_peers, "{path}");
        let mine = scene.memory(ROOM);
        let mut copied = 0;
        for (round, bytes) in [0, 1, 65, 4097, 2 * MIB, 2 * MIB + 1, LONG].into_iter().enumerate() {
            let (at, from) = (3 + round, 5 * round);
            let remote = scene.remote[0].slice(at as u64, bytes as u64).unwrap();
            let local = mine.slice(from, bytes).unwrap();
            scene.peer.set_bytes(mine.pointer(), &noise(round, from + bytes));
            let beside = scene.seen(at + bytes, 8);
            scene.carry_out(Operation::WriteFromGpu { local: local.clone(), remote });
            assert!(scene.seen(at, bytes) == noise(round, from + bytes)[from..], "{bytes} bytes");
            assert_eq!(scene.seen(at + bytes, 8), beside);
            scene.owner.set_bytes(scene.granted.pointer() + at as u64, &noise(round + 50, bytes));
            scene.carry_out(Operation::ReadToGpu { local, remote });
            let read = scene.peer.bytes(mine.pointer() + from as u64, bytes);
            assert!(read == noise(round + 50, bytes), "{bytes} bytes");
            copied += 2 * bytes as u64;
        }
        assert_eq!(scene.gpu.host_bytes_copied(), if are_peers { 0 } else { copied });
    }
}

#[test]
fn gpus_that_do_not_reach_each_other_say_so_in_the_path() {
    let path = two_gpus(false, 4096).client.gpu_path().unwrap().to_string();
    for part in
        ["blocks of host memory", "not copy engines", "GPU 1 has no peer access to GPU 0", "nvidia-smi"]
    {
        assert!(path.contains(part), "{path}");
    }
}

#[test]
fn the_hosts_memory_goes_to_a_gpu_that_this_one_does_not_reach() {
    for are_peers in [true, false] {
        let mut scene = two_gpus(are_peers, 4096);
        let host = Shm::new().allocate(4096, Access::LOCAL).unwrap().slice(8, 4001).unwrap();
        host.as_volatile().write(&noise(1, 4001));
        let (remote, streaming) = (scene.remote[0].slice(1, 4001).unwrap(), Streaming::Never);
        scene.carry_out(Operation::Write { local: host.clone(), remote, streaming });
        assert_eq!(scene.seen(1, 4001), noise(1, 4001));
        host.as_volatile().write(&[0; 4001]);
        scene.carry_out(Operation::Read { local: host.clone(), remote, streaming });
        let mut read = vec![0; 4001];
        host.as_volatile().read(&mut read);
        assert_eq!(read, noise(1, 4001));
        assert_eq!(scene.gpu.host_bytes_copied(), 0, "that is no block");
    }
}

/// Payloads and words by turns, with copies of both kinds among them.
#[test]
fn words_come_behind_payloads_that_cross_the_host() {
    let mut scene = two_gpus(false, ROOM);
    let mine = scene.memory(ROOM);
    let host = Shm::new().allocate(4096, Access::LOCAL).unwrap().whole();
    for round in 1..8 {
        let long = 3 * MIB + round;
        scene.peer.set_bytes(mine.pointer(), &noise(round, round + long));
        host.as_volatile().write(&[round as u8; 4096]);
        let word = Operation::WriteInline {
            data: Inline::word(round as u64),
            remote: scene.remote[1].slice(0, 8).unwrap(),
        };
        let from_gpu = Operation::WriteFromGpu {
            local: mine.slice(round, long).unwrap(),
            remote: scene.remote[0].slice(0, long as u64).unwrap(),
        };
        let from_host = Operation::Write {
            local: host.clone(),
            remote: scene.remote[0].slice(16, 4096).unwrap(),
            streaming: Streaming::Never,
        };
        let mut batch = vec![WorkRequest::unsignalled(1, from_gpu)];
        let mut expected = noise(round, round + long)[round..].to_vec();
        if round % 2 == 0 {
            // It writes over the first.
            batch.push(WorkRequest::unsignalled(2, from_host));
            expected[16..16 + 4096].fill(round as u8);
        }
        batch.push(WorkRequest::signalled(3, word));
        scene.client.post(&batch).unwrap();
        let told = loop {
            let told = scene.client.poll();
            if scene.words.as_volatile().load_u64(0) == round as u64 {
                assert!(scene.seen(0, long) == expected, "round {round}");
            }
            if let Some(told) = told {
                break told;
            }
            scene.peer.work();
        };
        assert_eq!(told, WorkCompletion { id: WorkRequestId(3), result: Ok(()) });
    }
}

#[test]
fn each_failing_call_of_a_copy_across_the_host_ends_the_connection() {
    const BYTES: usize = 2 * MIB + 4096;
    let sent = noise(1, BYTES + 1);
    for fail in Scripted::FAILURES {
        for call in 0.. {
            let mut scene = two_gpus(false, BYTES);
            let mine = scene.memory(BYTES + 1);
            scene.peer.set_bytes(mine.pointer(), &sent);
            fail(&scene.peer, call, crate::cuda::NOT_PERMITTED);
            let (local, remote) =
                (mine.slice(1, BYTES).unwrap(), scene.remote[0].slice(0, BYTES as u64).unwrap());
            scene
                .client
                .post(&[WorkRequest::signalled(1, Operation::WriteFromGpu { local, remote })])
                .unwrap();
            match scene.complete().result {
                Ok(()) => assert!(scene.seen(0, BYTES) == sent[1..], "call {call}"),
                Err(error) => assert_eq!(error, CompletionError::Gpu, "call {call}"),
            }
            let told = scene.seen(0, BYTES);
            scene.peer.finish();
            assert!(
                scene.seen(0, BYTES) == told,
                "call {call}: something was written after the failure was told"
            );
            let TwoGpus { peer, gpu, client, .. } = scene;
            drop((mine, client, gpu));
            if !peer.has_failed() {
                assert!(call > 20, "only {call} calls");
                assert_eq!(peer.open(), 0);
                break;
            }
        }
    }
}

#[test]
fn a_fault_of_either_gpu_amid_a_copy_across_the_host_ends_it() {
    const BYTES: usize = 9 * MIB;
    let sent = noise(1, BYTES + 1);
    for ordinal in [0, 1] {
        let mut faults = 0;
        for pieces in 0.. {
            let mut scene = two_gpus(false, BYTES);
            let mine = scene.memory(BYTES + 1);
            scene.peer.set_bytes(mine.pointer(), &sent);
            let (_gpu, raw, _stream) = scene.peer.open_gpu_at(ordinal);
            let (local, remote) =
                (mine.slice(1, BYTES).unwrap(), scene.remote[0].slice(0, BYTES as u64).unwrap());
            let write = Operation::WriteFromGpu { local, remote };
            scene.client.post(&[WorkRequest::signalled(1, write)]).unwrap();
            let mut told = None;
            for _ in 0..pieces {
                told = told.or(scene.client.poll());
                scene.peer.work();
            }
            if told.is_some() {
                assert!(pieces > 20, "only {pieces} pieces");
                break;
            }
            scene.peer.fault_in_work(raw, crate::cuda::ILLEGAL_ADDRESS);
            match scene.complete().result {
                Ok(()) => assert!(scene.seen(0, BYTES) == sent[1..], "{pieces} pieces"),
                Err(error) => {
                    assert_eq!(error, CompletionError::Gpu, "{pieces} pieces");
                    faults += 1;
                }
            }
            let seen = scene.seen(0, BYTES);
            scene.peer.finish();
            assert!(scene.seen(0, BYTES) == seen, "{pieces} pieces: written after the failure was told");
        }
        assert!(faults > 0, "no fault of GPU {ordinal} was told");
    }
}

#[test]
fn who_requires_gpudirect_is_refused_where_two_gpus_have_no_peer_access() {
    let peer = Arc::new(Scripted::new().with_two_devices(false));
    let gpu = peer.open_gpu_at(1).0.require_gpudirect();
    let refused = connect(peer, gpu, 4096).err().expect("refused").to_string();
    for part in ["GPU 1 has no peer access to GPU 0", "require_gpudirect", "use one GPU"] {
        assert!(refused.contains(part), "{refused}");
    }
    let peer = Arc::new(Scripted::new().with_two_devices(true));
    let gpu = peer.open_gpu_at(1).0.require_gpudirect();
    connect(peer, gpu, 4096).unwrap();
}

#[test]
fn memory_of_another_gpu_than_the_transports_is_refused_by_name() {
    let mut scene = two_gpus(false, 4096);
    let (first, ..) = scene.peer.open_gpu();
    let local = GpuMemory::allocate(&first, 8).unwrap().whole();
    let remote = scene.remote[0].slice(0, 8).unwrap();
    let request = WorkRequest::signalled(1, Operation::WriteFromGpu { local, remote });
    let refused = scene.client.post(&[request]).unwrap_err();
    assert!(matches!(refused, PostError::Malformed { .. }), "{refused}");
    scene.client.check().unwrap();
}

#[test]
fn a_forked_child_carries_out_nothing_of_what_its_parent_holds() {
    if !alone("transport::shm::gpu::tests::a_forked_child_carries_out_nothing_of_what_its_parent_holds") {
        return;
    }
    let mut scene = two_gpus(true, 4096);
    let local = scene.memory(4096).whole();
    let (payload, word) = (scene.remote[0].slice(0, 4096).unwrap(), scene.remote[1].slice(0, 8).unwrap());
    let payload = Operation::WriteFromGpu { local, remote: payload };
    let word = Operation::WriteInline { data: Inline::word(5), remote: word };
    let batch = [WorkRequest::unsignalled(1, payload), WorkRequest::signalled(2, word)];
    scene.client.post(&batch).unwrap();
    // From here on the copy is done, and the word would be stored by the next poll.
    scene.peer.finish();
    let is_still = true_in_a_forked_child(|| (0..1000).all(|_| scene.client.poll().is_none()));
    assert_eq!(scene.words.as_volatile().load_u64(0), 0, "the child has stored its parent's word");
    assert!(is_still, "the child was told of its parent's request");
    assert_eq!(scene.complete(), WorkCompletion { id: WorkRequestId(2), result: Ok(()) });
    assert_eq!(scene.words.as_volatile().load_u64(0), 5);
}
