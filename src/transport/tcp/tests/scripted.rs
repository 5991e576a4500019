//! Payloads of GPUs over TCP, on scripted drivers: no GPU is needed, and none is tested. Both sides have a driver each,
//! as two processes have.

use std::sync::Arc;

use super::*;
use crate::cuda::{Gpu, GpuMemory, Scripted};
use crate::mem::MemoryRegion;
use crate::transport::{Flags, GpuGrant, GpuPath, WorkCompletion, WorkRequestId};

const MIB: usize = 1 << 20;
/// More than all blocks of a side hold, and odd.
const LONG: usize = 17 * MIB + 5;
const ROOM: usize = LONG + 64;
const PAGE: usize = 4096;

/// One side's driver.
struct Device {
    driver: Arc<Scripted>,
    gpu: Gpu,
}

impl Device {
    fn new() -> Device {
        let driver = Arc::new(Scripted::new());
        let (gpu, ..) = driver.open_gpu();
        Device { driver, gpu }
    }

    fn memory(&self, bytes: usize) -> GpuMemory {
        GpuMemory::allocate(&self.gpu, bytes).unwrap()
    }
}

/// A connection to an owner that grants memory of its GPU and a page of host memory.
struct Wire {
    client: TcpEndpoint,
    server: TcpEndpoint,
    ours: GpuMemory,
    page: MemoryRegion,
    /// The owner's memory of the GPU, and its page.
    remote: [RemoteSlice; 2],
}

fn connect(tcp: [&Tcp; 2], listener: &mut TcpListener, ours: GpuMemory, access: Access) -> Wire {
    let page = tcp[1].allocate(PAGE, ALL | Access::REMOTE_ATOMIC).unwrap();
    let mut connecting = tcp[0].connect(&listener.address(), Offer::default()).unwrap();
    let mut server = None;
    let (client, received) = wait_for("a connection", || {
        if let Some(mut incoming) = listener.poll(NOW) {
            incoming.grant_gpu(vec![GpuGrant { at: 0, memory: ours.clone(), access }]).unwrap();
            server = Some(incoming.accept(offer(vec![page.whole()])).unwrap());
        }
        match connecting.poll(NOW) {
            Poll::Ready(connected) => Some(connected.unwrap()),
            Poll::Pending => None,
        }
    });
    let remote = [received.grants[0], received.grants[1]];
    Wire { client, server: server.unwrap(), ours, page, remote }
}

/// Both sides have a GPU; `bytes` of the owner's are granted.
fn scene(bytes: usize) -> (Device, Device, Wire) {
    let (theirs, ours) = (Device::new(), Device::new());
    let [client, server] = [&theirs, &ours].map(|device| Tcp::new().with_gpu(&device.gpu));
    let mut listener = listen(&server);
    let memory = ours.memory(bytes);
    let wire = connect([&client, &server], &mut listener, memory, ALL);
    (theirs, ours, wire)
}

fn complete(endpoint: &mut TcpEndpoint) -> WorkCompletion {
    wait_for("a completion", || endpoint.poll())
}

fn carry_out(endpoint: &mut TcpEndpoint, operation: Operation) {
    endpoint.post(&[WorkRequest::signalled(9, operation)]).unwrap();
    assert_eq!(complete(endpoint), WorkCompletion { id: WorkRequestId(9), result: Ok(()) });
}

fn write_from(memory: &GpuMemory, offset: usize, remote: RemoteSlice) -> Operation {
    Operation::WriteFromGpu { local: memory.slice(offset, remote.len as usize).unwrap(), remote }
}

fn read_to(memory: &GpuMemory, offset: usize, remote: RemoteSlice) -> Operation {
    Operation::ReadToGpu { local: memory.slice(offset, remote.len as usize).unwrap(), remote }
}

/// Writes and reads ranges of all lengths that are treated differently, at odd and even offsets, and checks the bytes
/// beside them.
fn ranges_arrive_whole(tcp: [Tcp; 2], theirs: &Device, ours: &Device) {
    let mut listener = listen(&tcp[1]);
    let mut wire = connect([&tcp[0], &tcp[1]], &mut listener, ours.memory(ROOM), ALL);
    let mine = theirs.memory(ROOM);
    let host = tcp[0].allocate(ROOM, Access::LOCAL).unwrap();
    let _working = [theirs, ours].map(|device| device.driver.work_in_a_thread());
    let lengths = [0, 1, 8, 64, 65, 4096, 4097, 100_003, 2 * MIB, 2 * MIB + 1, LONG];
    for (round, bytes) in lengths.into_iter().enumerate() {
        let (from, to) = ([16, 3][round % 2], [24, 5, 16][round % 3]);
        let remote = wire.remote[0].slice(to as u64, bytes as u64).unwrap();
        let mut expected = vec![0xEE; ROOM];
        let sent = noise(round as u64, bytes);
        expected[to..to + bytes].copy_from_slice(&sent);
        for is_on_gpu in [true, false] {
            ours.driver.set_bytes(wire.ours.pointer(), &[0xEE; ROOM]);
            let operation = if is_on_gpu {
                theirs.driver.set_bytes(mine.pointer() + from as u64, &sent);
                write_from(&mine, from, remote)
            } else {
                host.as_volatile().subslice(from, bytes).write(&sent);
                let local = host.slice(from, bytes).unwrap();
                Operation::Write { local, remote, streaming: Streaming::ByLength }
            };
            carry_out(&mut wire.client, operation);
            let arrived = ours.driver.bytes(wire.ours.pointer(), ROOM);
            assert!(arrived == expected, "{bytes} bytes written, from a GPU: {is_on_gpu}");
        }
        let mut expected = vec![0xDD; ROOM];
        expected[from..from + bytes].copy_from_slice(&sent);
        theirs.driver.set_bytes(mine.pointer(), &[0xDD; ROOM]);
        carry_out(&mut wire.client, read_to(&mine, from, remote));
        assert!(theirs.driver.bytes(mine.pointer(), ROOM) == expected, "{bytes} bytes read to a GPU");
        host.as_volatile().write(&[0xDD; ROOM]);
        let local = host.slice(from, bytes).unwrap();
        carry_out(&mut wire.client, Operation::Read { local, remote, streaming: Streaming::ByLength });
        let mut read = vec![0; ROOM];
        host.as_volatile().read(&mut read);
        assert!(read == expected, "{bytes} bytes read to host memory");
    }
}

#[test]
fn ranges_of_a_gpu_arrive_whole_with_nothing_beside_them() {
    let (theirs, ours) = (Device::new(), Device::new());
    ranges_arrive_whole([&theirs, &ours].map(|device| Tcp::new().with_gpu(&device.gpu)), &theirs, &ours);
    let lengths = 1 + 8 + 64 + 65 + 4096 + 4097 + 100_003 + 4 * MIB + 1 + LONG;
    // Written from a GPU and read to one; on the other side written twice and read twice.
    assert_eq!(theirs.gpu.host_bytes_copied(), 2 * lengths as u64);
    assert_eq!(ours.gpu.host_bytes_copied(), 4 * lengths as u64);
}

#[test]
fn ranges_of_a_gpu_arrive_whole_in_encrypted_records() {
    let secret = Secret::from_text("what both sides know", "this test").unwrap().encrypting();
    let (theirs, ours) = (Device::new(), Device::new());
    let tcp = [&theirs, &ours].map(|device| Tcp::with_secret(secret.clone()).with_gpu(&device.gpu));
    ranges_arrive_whole(tcp, &theirs, &ours);
}

#[test]
fn what_is_behind_a_copy_is_held_on_both_sides_until_its_ticket() {
    let (theirs, ours, mut wire) = scene(PAGE);
    let mine = theirs.memory(PAGE);
    theirs.driver.set_bytes(mine.pointer(), &[7; PAGE]);
    let word = |value, at| {
        let remote = wire.remote[1].slice(at, 8).unwrap();
        Operation::WriteInline { data: Inline::word(value), remote }
    };
    let (first, second) = (word(1, 0), word(2, 8));
    let batch = [
        WorkRequest::unsignalled(1, first),
        WorkRequest::unsignalled(2, write_from(&mine, 0, wire.remote[0])),
        WorkRequest::signalled(3, second),
    ];
    wire.client.post(&batch).unwrap();
    let page = wire.page.clone();
    let announced = || [page.as_volatile().load_u64(0), page.as_volatile().load_u64(8)];
    let mut stays = |expected| {
        for _ in 0..50 {
            assert_eq!(wire.client.poll(), None, "its copy is not made");
            std::thread::sleep(Duration::from_micros(200));
        }
        assert_eq!(announced(), expected, "a word overtook a payload");
    };
    stays([1, 0]);
    theirs.driver.finish();
    stays([1, 0]);
    let _working = ours.driver.work_in_a_thread();
    assert_eq!(complete(&mut wire.client).id, WorkRequestId(3));
    assert_eq!(announced(), [1, 2]);
    assert_eq!(ours.driver.bytes(wire.ours.pointer(), PAGE), [7; PAGE]);
}

#[test]
fn a_read_to_a_gpu_is_complete_with_its_copy_and_those_behind_it_come_later() {
    let (theirs, ours, mut wire) = scene(PAGE);
    let mine = theirs.memory(PAGE);
    ours.driver.set_bytes(wire.ours.pointer(), &[9; PAGE]);
    let host = Tcp::new().allocate(8, Access::LOCAL).unwrap();
    let behind = Operation::Read {
        local: host.whole().slice(0, 8).unwrap(),
        remote: wire.remote[1].slice(0, 8).unwrap(),
        streaming: Streaming::Never,
    };
    let reading = WorkRequest::signalled(1, read_to(&mine, 0, wire.remote[0]));
    wire.client.post(&[reading, WorkRequest::signalled(2, behind)]).unwrap();
    let working = ours.driver.work_in_a_thread();
    for _ in 0..50 {
        assert_eq!(wire.client.poll(), None, "its copy is not made");
        std::thread::sleep(Duration::from_micros(200));
    }
    drop(working);
    let _working = theirs.driver.work_in_a_thread();
    assert_eq!([(); 2].map(|()| complete(&mut wire.client).id.0), [1, 2]);
    assert_eq!(theirs.driver.bytes(mine.pointer(), PAGE), [9; PAGE]);
}

#[test]
fn a_fenced_write_waits_for_the_copy_of_a_read_to_a_gpu_and_others_do_not() {
    let (theirs, ours, mut wire) = scene(PAGE);
    let mine = theirs.memory(PAGE);
    let word = |value, at| {
        let remote = wire.remote[1].slice(at, 8).unwrap();
        let data = Inline::word(value);
        WorkRequest::signalled(value, Operation::WriteInline { data, remote })
    };
    let fenced = WorkRequest { flags: Flags::SIGNALLED | Flags::FENCE, ..word(3, 8) };
    let reading = WorkRequest::signalled(1, read_to(&mine, 0, wire.remote[0]));
    wire.client.post(&[reading, word(2, 0), fenced]).unwrap();
    let working = ours.driver.work_in_a_thread();
    let page = wire.page.clone();
    let announced = || [page.as_volatile().load_u64(0), page.as_volatile().load_u64(8)];
    wait_for("the write that is not fenced", || {
        assert_eq!(wire.client.poll(), None, "the copy is not made");
        (announced()[0] == 2).then_some(())
    });
    for _ in 0..50 {
        assert_eq!(wire.client.poll(), None, "the copy is not made");
        std::thread::sleep(Duration::from_micros(200));
    }
    assert_eq!(announced(), [2, 0], "a fenced write went ahead of the read before it");
    let _working = (working, theirs.driver.work_in_a_thread());
    assert_eq!([(); 3].map(|()| complete(&mut wire.client).id.0), [1, 2, 3]);
    assert_eq!(announced(), [2, 3]);
}

#[test]
fn a_block_is_used_again_once_the_gpu_has_copied_it_and_not_before() {
    let (theirs, ours, mut wire) = scene(LONG);
    let mine = theirs.memory(LONG);
    let mut turn = |operation: Operation| {
        wire.client.post(&[WorkRequest::signalled(1, operation)]).unwrap();
        // The GPUs do nothing before all blocks that are free are in use.
        wait_for("the end", || {
            for _ in 0..20 {
                if let Some(completion) = wire.client.poll() {
                    assert_eq!(completion.result, Ok(()));
                    return Some(());
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            theirs.driver.finish();
            ours.driver.finish();
            None
        });
    };
    let (written, read) = (noise(1, LONG), noise(2, LONG));
    theirs.driver.set_bytes(mine.pointer(), &written);
    turn(write_from(&mine, 0, wire.remote[0]));
    let is_same = ours.driver.bytes(wire.ours.pointer(), LONG) == written;
    assert!(is_same, "a block was used again too early");
    ours.driver.set_bytes(wire.ours.pointer(), &read);
    turn(read_to(&mine, 0, wire.remote[0]));
    assert!(theirs.driver.bytes(mine.pointer(), LONG) == read, "a block was used again too early");
}

#[test]
fn many_payloads_and_the_words_that_announce_them_arrive_in_order() {
    const CHUNK: usize = 3000;
    const CHUNKS: usize = 300;
    let (theirs, ours, mut wire) = scene(CHUNK * CHUNKS);
    let mine = theirs.memory(CHUNK * CHUNKS);
    let expected = noise(3, CHUNK * CHUNKS);
    theirs.driver.set_bytes(mine.pointer(), &expected);
    let _working = [&theirs, &ours].map(|device| device.driver.work_in_a_thread());
    let remote_word = wire.remote[1].slice(0, 8).unwrap();
    let (mut chunk, mut landed) = (0, 0);
    wait_for("all chunks", || {
        if chunk < CHUNKS {
            let remote = wire.remote[0].slice((chunk * CHUNK) as u64, CHUNK as u64).unwrap();
            let payload = WorkRequest::unsignalled(1, write_from(&mine, chunk * CHUNK, remote));
            let data = Inline::word(chunk as u64 + 1);
            let word = WorkRequest::unsignalled(2, Operation::WriteInline { data, remote: remote_word });
            chunk += usize::from(wire.client.post(&[payload, word]).is_ok());
        }
        assert_eq!(wire.client.poll(), None);
        let now = wire.page.as_volatile().load_u64(0) as usize;
        assert!(now >= landed);
        let begin = (landed * CHUNK) as u64;
        let arrived = ours.driver.bytes(wire.ours.pointer() + begin, (now - landed) * CHUNK);
        assert!(arrived == expected[landed * CHUNK..now * CHUNK], "announced before it was there");
        landed = now;
        (landed == CHUNKS).then_some(())
    });
}

#[test]
fn what_was_not_granted_of_a_gpu_is_refused_after_what_was() {
    let (theirs, ours) = (Device::new(), Device::new());
    let _working = [&theirs, &ours].map(|device| device.driver.work_in_a_thread());
    let [tcp, server] = [&theirs, &ours].map(|device| Tcp::new().with_gpu(&device.gpu));
    let mut listener = listen(&server);
    let mine = theirs.memory(PAGE);
    let beyond = |remote: RemoteSlice| RemoteSlice { offset: remote.offset + 8, ..remote };
    let atomic = |remote: RemoteSlice| {
        let local = Tcp::new().allocate(8, Access::LOCAL).unwrap().whole();
        let remote = remote.slice(0, 8).unwrap();
        Operation::FetchAdd { local: local.slice(0, 8).unwrap(), remote, add: 1 }
    };
    let offences: [(Access, &dyn Fn(RemoteSlice) -> Operation); 4] = [
        (ALL, &|remote| write_from(&mine, 0, beyond(remote))),
        (ALL, &|remote| read_to(&mine, 0, beyond(remote))),
        (Access::REMOTE_READ, &|remote| write_from(&mine, 0, remote)),
        // Memory on a GPU has no words to count, for any grant.
        (ALL | Access::REMOTE_ATOMIC, &atomic),
    ];
    for (index, (access, offence)) in offences.into_iter().enumerate() {
        let mut wire = connect([&tcp, &server], &mut listener, ours.memory(PAGE), access);
        let batch = [
            WorkRequest::signalled(1, read_to(&mine, 0, wire.remote[0])),
            WorkRequest::unsignalled(2, offence(wire.remote[0])),
            WorkRequest::signalled(3, read_to(&mine, 0, wire.remote[0])),
        ];
        wire.client.post(&batch).unwrap();
        let completions = [(); 3].map(|()| complete(&mut wire.client)).map(|it| (it.id.0, it.result));
        let refused = (2, Err(CompletionError::RemoteAccess));
        assert_eq!(completions, [(1, Ok(())), refused, (3, Err(CompletionError::Flushed))], "{index}");
        assert_eq!(server.access_violations(), index as u64 + 1);
    }
    honest_peers_are_served(&server, &mut listener);
}

#[test]
fn a_peer_that_goes_in_mid_copy_leaves_others_served_and_nothing_behind() {
    for is_write in [true, false] {
        for goes in [0, 1] {
            let (theirs, ours) = (Device::new(), Device::new());
            let [tcp, server] = [&theirs, &ours].map(|device| Tcp::new().with_gpu(&device.gpu));
            let mut listener = listen(&server);
            let mut wire = connect([&tcp, &server], &mut listener, ours.memory(LONG), ALL);
            let mine = theirs.memory(LONG);
            let operation = if is_write {
                write_from(&mine, 0, wire.remote[0])
            } else {
                read_to(&mine, 0, wire.remote[0])
            };
            wire.client.post(&[WorkRequest::signalled(1, operation)]).unwrap();
            // Some of it is copied and sent; then nothing does the work of either GPU.
            for _ in 0..20 {
                let _pending = wire.client.poll();
                let _ = (theirs.driver.work(), ours.driver.work());
                std::thread::sleep(Duration::from_micros(300));
            }
            let Wire { client, server: endpoint, ours: memory, .. } = wire;
            let mut left = if goes == 0 {
                drop(client);
                endpoint
            } else {
                drop(endpoint);
                client
            };
            wait_for("the end", || left.check().err());
            if goes == 1 {
                assert_eq!(complete(&mut left).result, Err(CompletionError::Flushed));
            }
            honest_peers_are_served(&server, &mut listener);
            drop((left, memory, mine, listener, tcp, server));
            for Device { driver, gpu } in [theirs, ours] {
                driver.finish();
                drop(gpu);
                assert_eq!(driver.open(), 0, "a write: {is_write}, side {goes} has gone");
            }
        }
    }
}

#[test]
fn each_failing_call_of_either_driver_is_told_and_leaves_nothing() {
    const BYTES: usize = 5000;
    for fail in Scripted::FAILURES {
        for failing in [0, 1] {
            for call in 0.. {
                let devices = [Device::new(), Device::new()];
                let [tcp, server] = devices.each_ref().map(|device| Tcp::new().with_gpu(&device.gpu));
                let mut listener = listen(&server);
                let mut wire = connect([&tcp, &server], &mut listener, devices[1].memory(BYTES), ALL);
                let mine = devices[0].memory(BYTES);
                devices[0].driver.set_bytes(mine.pointer(), &[3; BYTES]);
                fail(&devices[failing].driver, call, crate::cuda::NOT_PERMITTED);
                let working = devices.each_ref().map(|device| device.driver.work_in_a_thread());
                let (data, remote) = (Inline::word(1), wire.remote[1].slice(0, 8).unwrap());
                let batch = [
                    WorkRequest::signalled(0, Operation::WriteInline { data, remote }),
                    WorkRequest::signalled(1, write_from(&mine, 0, wire.remote[0])),
                    WorkRequest::signalled(2, read_to(&mine, 0, wire.remote[0])),
                ];
                wire.client.post(&batch).unwrap();
                // The word before them completes, too, with any result.
                let [_, results @ ..] = [(); 3].map(|()| complete(&mut wire.client).result);
                drop(working);
                let has_failed = devices[failing].driver.has_failed();
                devices[failing].driver.fail(u32::MAX, crate::cuda::NOT_PERMITTED);
                match results.into_iter().find_map(Result::err) {
                    None => assert_eq!(devices[1].driver.bytes(wire.ours.pointer(), BYTES), [3; BYTES]),
                    Some(error) => {
                        let told = [CompletionError::Gpu, CompletionError::Flushed][failing];
                        assert!(has_failed && error == told, "call {call} of side {failing}: {error}");
                        assert!(wire.client.check().is_err());
                    }
                }
                honest_peers_are_served(&server, &mut listener);
                drop((batch, wire, mine, listener, tcp, server));
                for Device { driver, gpu } in devices {
                    driver.finish();
                    drop(gpu);
                    // If the call that failed was to free a resource, this one resource is left.
                    let left = driver.open();
                    assert!(left <= usize::from(has_failed), "call {call} of side {failing}: {left} left");
                }
                if !has_failed {
                    assert!(call > 5 && results == [Ok(()); 2], "{call} calls");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_side_without_a_gpu_grants_none_and_posts_none() {
    let (device, server) = (Device::new(), Tcp::new());
    let mut listener = listen(&server);
    let region = server.allocate(PAGE, ALL).unwrap();
    let mut connecting = server.connect(&listener.address(), Offer::default()).unwrap();
    let mut ends = None;
    let (mut client, received) = wait_for("a connection", || {
        if let Some(mut incoming) = listener.poll(NOW) {
            let grant = GpuGrant { at: 0, memory: device.memory(PAGE), access: ALL };
            let refused = incoming.grant_gpu(vec![grant]).unwrap_err();
            assert!(refused.contains("Tcp::with_gpu"), "{refused}");
            ends = Some(incoming.accept(offer(vec![region.whole()])).unwrap());
        }
        match connecting.poll(NOW) {
            Poll::Ready(connected) => Some(connected.unwrap()),
            Poll::Pending => None,
        }
    });
    let request = WorkRequest::signalled(1, write_from(&device.memory(PAGE), 0, received.grants[0]));
    let refused = client.post(&[request]).unwrap_err();
    assert!(matches!(refused, PostError::Malformed { index: 0, .. }), "{refused}");
}

#[test]
fn memory_of_another_gpu_is_refused_before_anything_is_posted() {
    let (_theirs, _ours, mut wire) = scene(PAGE);
    let (other, ..) = Arc::new(Scripted::new().of_another_device()).open_gpu();
    let memory = GpuMemory::allocate(&other, PAGE).unwrap();
    let request = WorkRequest::signalled(1, write_from(&memory, 0, wire.remote[0]));
    let refused = wire.client.post(&[request]).unwrap_err();
    assert!(matches!(refused, PostError::Malformed { index: 0, .. }), "{refused}");
    assert!(refused.to_string().contains("another GPU"), "{refused}");
    assert_eq!(wire.client.check(), Ok(()));
}

#[test]
fn where_gpudirect_is_required_each_way_that_was_passed_over_is_named() {
    let (device, host) = (Device::new(), Tcp::new());
    let listener = listen(&host);
    let direct = Tcp::new().with_gpu(&device.gpu.clone().require_gpudirect());
    let refused = [
        direct.listen(&"127.0.0.1:0".parse().unwrap()).map(drop).unwrap_err(),
        direct.connect(&listener.address(), Offer::default()).map(drop).unwrap_err(),
    ];
    for (error, call) in refused.into_iter().zip(["listen", "connect"]) {
        assert!(matches!(error, ConnectError::Staged { operation, .. } if operation == call), "{error}");
        for part in [call, "not dma-buf: a socket", "not nvidia-peermem: it is", "use shared memory"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }
    // The GPU itself is the same one, and without the requirement payloads are staged.
    let tcp = Tcp::new().with_gpu(&device.gpu);
    assert!(tcp.connect(&listener.address(), Offer::default()).is_ok());
}

#[test]
fn an_endpoint_names_the_way_of_its_gpu() {
    let (_theirs, _ours, wire) = scene(PAGE);
    let path = wire.client.gpu_path().unwrap();
    assert!(matches!(&path, GpuPath::Staged { passed_over } if passed_over.len() == 2), "{path}");
    assert!(path.to_string().starts_with("blocks of host memory; not dma-buf: "), "{path}");
}
