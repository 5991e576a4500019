//! The order in which a peer sees writes, over a device that keeps no more order than it must.

use super::super::tests::connect;
use super::*;
use crate::mem::{Access, LocalSlice, MemoryRegion, RemoteKey, RemoteSlice, Streaming};
use crate::transport::verbs::{ArrivalOrder, ArrivalOrderSource, VerbsEndpoint};
use crate::transport::{
    CompletionError, Endpoint, Inline, Offer, Operation, PostError, Transport, WorkRequest,
};

/// Bytes that a write may fill: each write has its own area.
const AREA_BYTES: usize = 41 * PACKET_BYTES;
const AREAS: usize = 24;

/// The two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Connector,
    Listener,
}

/// A side that posts, and the other's memory.
struct Fixture {
    device: Unordered,
    poster: VerbsEndpoint,
    _target: VerbsEndpoint,
    /// Memory that announces, and memory that does not, as its owner sees it and as the poster names it.
    granted: [(MemoryRegion, RemoteSlice); 2],
    /// Bytes that are not 0.
    source: LocalSlice,
}

fn fixture(seed: u64, says_in_order: bool, in_order: Option<bool>, posts: Side) -> Fixture {
    let device = Unordered::new(seed, says_in_order);
    let verbs = device.verbs(in_order);
    over(device, &verbs, posts)
}

fn over(device: Unordered, verbs: &Verbs, posts: Side) -> Fixture {
    let access = [Access::REMOTE_WRITE, Access::REMOTE_WRITE | Access::RELAXED];
    let regions = access.map(|access| verbs.allocate(AREAS * AREA_BYTES, access).unwrap());
    let offer =
        || Offer { message: Vec::new(), grants: regions.each_ref().map(MemoryRegion::whole).to_vec() };
    let ([connector, listener], grants) = connect(verbs, offer);
    let (poster, target) =
        if posts == Side::Connector { (connector, listener) } else { (listener, connector) };
    let granted = grants[usize::from(posts == Side::Listener)].clone();
    let mut granted = regions.into_iter().zip(granted);
    let granted = [granted.next().unwrap(), granted.next().unwrap()];
    let source = verbs.allocate(AREA_BYTES, Access::LOCAL).unwrap().whole();
    source.as_volatile().write(&[1; AREA_BYTES]);
    Fixture { device, poster, _target: target, granted, source }
}

/// When a process ends, the system destroys the newest objects first. A serving pair that outlives its keys refuses
/// valid requests, and the peer does not recognize this as the loss of its owner.
#[test]
fn no_key_that_a_pair_serves_is_younger_than_the_pair() {
    for says_in_order in [false, true] {
        let device = Unordered::new(0, says_in_order);
        let verbs = device.verbs_over(3, DEPTH as usize, None);
        let access = [Access::REMOTE_WRITE, Access::REMOTE_READ];
        let regions = access.map(|access| verbs.allocate(AREA_BYTES, access).unwrap());
        let offer =
            || Offer { message: Vec::new(), grants: regions.each_ref().map(MemoryRegion::whole).to_vec() };
        let _ends = connect(&verbs, offer);
        let state = lock(&device.world.state);
        let serving = || state.pairs.iter().filter(|pair| pair.access != 0);
        // On each rail of both ends for data and for memory that is only read, and on the first for heartbeats.
        assert_eq!(serving().count(), 2 * (3 * 2 + 1));
        for pair in serving() {
            let keys = state.regions.iter().filter(|(_, region)| region.domain == pair.domain);
            let newest = keys.map(|(key, _)| *key).max().expect("it serves something");
            assert!(newest < pair.number, "key {newest}, pair {}", pair.number);
        }
    }
}

/// A write, and its area in the memory.
struct Write {
    announces: bool,
    area: usize,
    bytes: usize,
}

impl Fixture {
    /// A random write into its own area.
    fn write(&self, area: usize) -> (Write, Operation) {
        let mut state = lock(&self.device.world.state);
        let announces = state.random(2) == 0;
        // The longest is striped if there are two rails.
        let bytes = [8, 8, 64, 1500, AREA_BYTES][state.random(5)];
        let remote = self.granted[usize::from(!announces)].1;
        let remote = remote.slice((area * AREA_BYTES) as u64, bytes as u64).unwrap();
        let operation = match bytes {
            8 => Operation::WriteInline { data: Inline::word(u64::MAX), remote },
            _ => {
                let local = self.source.slice(0, bytes).unwrap();
                Operation::Write { local, remote, streaming: Streaming::Never }
            }
        };
        (Write { announces, area, bytes }, operation)
    }

    /// Whether any byte of a write is in memory, and whether all bytes are.
    fn seen(&self, write: &Write) -> (bool, bool) {
        let mut bytes = vec![0; write.bytes];
        let memory = self.granted[usize::from(!write.announces)].0.as_volatile();
        memory.subslice(write.area * AREA_BYTES, write.bytes).read(&mut bytes);
        (bytes.iter().any(|byte| *byte != 0), bytes.iter().all(|byte| *byte != 0))
    }

    /// Returns a write and a later write that has wrongly overtaken it: the later one announces.
    fn overtaken(&self, writes: &[Write]) -> Option<(usize, usize)> {
        let seen: Vec<_> = writes.iter().map(|write| self.seen(write)).collect();
        let late = seen.iter().position(|(_, is_whole)| !is_whole)?;
        let early = (late + 1..writes.len()).find(|later| writes[*later].announces && seen[*later].0)?;
        Some((late, early))
    }

    /// Posts random writes, and checks memory after each step of the device. Returns two writes that are seen in the
    /// wrong order, if there are any.
    fn run(&mut self) -> Option<(usize, usize)> {
        let (mut writes, mut told) = (Vec::new(), 0);
        while writes.len() < AREAS {
            let wanted = 1 + lock(&self.device.world.state).random(4);
            let planned = (0..wanted.min(AREAS - writes.len())).map(|more| self.write(writes.len() + more));
            let (planned, operations): (Vec<_>, Vec<_>) = planned.unzip();
            let signalled = |operation| WorkRequest::signalled(0, operation);
            let batch: Vec<_> = operations.into_iter().map(signalled).collect();
            let mut rest = &batch[..];
            while !rest.is_empty() {
                // The whole batch, or as much as fits into a short queue.
                let one = match self.poster.post(rest) {
                    Err(PostError::BatchTooLong { depth, .. }) => depth,
                    Ok(()) => break,
                    Err(PostError::QueueFull { .. }) => 0,
                    Err(error) => panic!("{error}"),
                };
                if one > 0 && self.poster.post(&rest[..one]).is_ok() {
                    rest = &rest[one..];
                }
                self.device.step();
                told += std::iter::from_fn(|| self.poster.poll()).count();
            }
            writes.extend(planned);
            let steps = lock(&self.device.world.state).random(6);
            for _ in 0..steps {
                self.device.step();
                if let Some(found) = self.overtaken(&writes) {
                    return Some(found);
                }
            }
        }
        loop {
            while let Some(completion) = self.poster.poll() {
                completion.result.unwrap();
                told += 1;
            }
            if !self.device.step() {
                break;
            }
            if let Some(found) = self.overtaken(&writes) {
                return Some(found);
            }
        }
        assert_eq!(told, AREAS, "each is complete");
        assert!(writes.iter().all(|write| self.seen(write).1), "and all of it is there");
        None
    }
}

#[test]
fn no_write_that_announces_is_seen_before_all_that_came_before_it() {
    for posts in [Side::Connector, Side::Listener] {
        for seed in 0..20 {
            let found = fixture(seed, false, None, posts).run();
            assert_eq!(found, None, "seed {seed}, {posts:?}");
        }
    }
}

#[test]
fn nor_over_two_rails_nor_with_queues_for_one_request() {
    for (rails, depth) in [(2, DEPTH as usize), (1, 1), (2, 1)] {
        for posts in [Side::Connector, Side::Listener] {
            for seed in 0..8 {
                let device = Unordered::new(seed, false);
                let verbs = device.verbs_over(rails, depth, None);
                let found = over(device, &verbs, posts).run();
                assert_eq!(found, None, "seed {seed}, {posts:?}, {rails} rails, queues for {depth}");
            }
        }
    }
}

#[test]
fn nor_over_rails_of_unequal_speeds_that_have_unequal_parts_of_a_write() {
    for (speeds, parts) in [([300, 200], [28, 13]), ([200, 300], [20, 21])] {
        for posts in [Side::Connector, Side::Listener] {
            let fixture = |seed| {
                let device = Unordered::new(seed, false);
                let verbs = device.verbs_at(&speeds, DEPTH as usize, None);
                over(device, &verbs, posts)
            };
            let mut parted = fixture(0);
            let (local, remote) = (parted.source.clone(), parted.granted[1].1);
            let remote = remote.slice(0, AREA_BYTES as u64).unwrap();
            let write = Operation::Write { local, remote, streaming: Streaming::Never };
            parted.poster.post(&[WorkRequest::unsignalled(0, write)]).unwrap();
            let state = lock(&parted.device.world.state);
            let through = |port: u8| {
                let requests =
                    state.pairs.iter().filter(|pair| pair.port == port).flat_map(|pair| &pair.requests);
                let writes = requests.filter(|request| request.reads_into.is_none());
                writes.map(|request| request.bytes).sum::<usize>()
            };
            assert_eq!([1, 2].map(through), parts.map(|packets: usize| packets * PACKET_BYTES));
            drop(state);
            for seed in 0..8 {
                assert_eq!(fixture(seed).run(), None, "seed {seed}, {posts:?}, {speeds:?}");
            }
        }
    }
}

#[test]
fn a_device_that_is_wrongly_taken_to_keep_the_order_does_not() {
    for posts in [Side::Connector, Side::Listener] {
        for (says_in_order, in_order) in [(false, Some(true)), (true, None)] {
            let found = (0..20).filter(|seed| fixture(*seed, says_in_order, in_order, posts).run().is_some());
            assert!(found.count() > 10, "the test sees what it looks for");
        }
    }
}

#[test]
fn only_writes_that_announce_are_proved_and_only_where_that_is_needed() {
    for (says_in_order, in_order, proofs) in [
        (false, None, 2),
        (true, None, 0),
        (true, Some(false), 2),
        (false, Some(true), 0),
        (false, Some(false), 2),
    ] {
        for posts in [Side::Connector, Side::Listener] {
            let mut fixture = fixture(0, says_in_order, in_order, posts);
            let [word, payload] = fixture.granted.each_ref().map(|(_, remote)| remote.slice(0, 8).unwrap());
            let write = |remote| Operation::WriteInline { data: Inline::word(1), remote };
            let batch = [payload, payload, word, payload, word].map(write);
            fixture.poster.post(&batch.map(|operation| WorkRequest::unsignalled(0, operation))).unwrap();
            let state = lock(&fixture.device.world.state);
            let posted: Vec<_> = state.pairs.iter().flat_map(|pair| &pair.requests).collect();
            let reads = posted.iter().filter(|request| request.reads_into.is_some()).count();
            let fenced = posted.iter().filter(|request| request.is_fenced).count();
            assert_eq!((posted.len(), reads, fenced), (5 + proofs, proofs, proofs));
        }
    }
}

#[test]
fn what_the_device_says_is_found_out_without_a_peer() {
    for (says_in_order, options, in_order, source) in [
        (false, None, false, ArrivalOrderSource::Driver),
        (true, None, true, ArrivalOrderSource::Driver),
        (true, Some(false), false, ArrivalOrderSource::Options),
        (false, Some(true), true, ArrivalOrderSource::Options),
    ] {
        let answer = ArrivalOrder { in_order, source };
        assert_eq!(Unordered::new(0, says_in_order).verbs(options).arrival_order(), Ok(answer));
    }
}

/// Memory that a peer may only read, and memory that it may also write, in that order.
fn readable_and_writable(verbs: &Verbs) -> [MemoryRegion; 2] {
    let readable = verbs.allocate(AREA_BYTES, Access::REMOTE_READ).unwrap();
    readable.as_volatile().write(&[7; AREA_BYTES]);
    [readable, verbs.allocate(64, Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap()]
}

/// Executes one request, with all steps of the device that it needs.
fn carry_out(
    device: &Unordered,
    end: &mut VerbsEndpoint,
    operation: Operation,
) -> Result<(), CompletionError> {
    end.post(&[WorkRequest::signalled(0, operation)]).unwrap();
    loop {
        if let Some(completion) = end.poll() {
            return completion.result;
        }
        assert!(device.step(), "the device has nothing to do, and the request is not complete");
    }
}

#[test]
fn memory_that_peers_only_read_is_registered_once_for_all_of_them() {
    for rails in [1, 2] {
        let device = Unordered::new(0, true);
        let verbs = device.verbs_over(rails, DEPTH as usize, None);
        let regions = readable_and_writable(&verbs);
        let offer =
            || Offer { message: Vec::new(), grants: regions.each_ref().map(MemoryRegion::whole).to_vec() };
        let into = verbs.allocate(AREA_BYTES, Access::LOCAL).unwrap().whole();
        let mut ends = Vec::new();
        for peers in 1..=4 {
            let (connected, granted) = connect(&verbs, offer);
            ends.extend(connected.into_iter().zip(granted));
            let state = lock(&device.world.state);
            let registered = regions.each_ref().map(|region| {
                let address = region.as_volatile().as_ptr().addr();
                state.regions.values().filter(|here| here.address == address).count()
            });
            // For requests of this process, and for peers: both sides of each connection are granted both regions.
            assert_eq!(registered, [2 * rails, (1 + 2 * peers) * rails]);
        }
        for (end, granted) in &mut ends {
            into.as_volatile().write(&[0; AREA_BYTES]);
            let (local, remote) = (into.clone(), granted[0]);
            carry_out(&device, end, Operation::Read { local, remote, streaming: Streaming::Never }).unwrap();
            let mut bytes = vec![0; AREA_BYTES];
            into.as_volatile().read(&mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 7));
        }
    }
}

#[test]
fn a_key_for_reading_opens_no_write_nor_anything_once_its_peer_is_let_go() {
    let device = Unordered::new(0, true);
    let verbs = device.verbs(None);
    let regions = readable_and_writable(&verbs);
    let offer =
        || Offer { message: Vec::new(), grants: regions.each_ref().map(MemoryRegion::whole).to_vec() };
    let into = verbs.allocate(64, Access::LOCAL).unwrap().whole();
    let read = |remote: RemoteSlice| {
        let (local, remote) = (into.slice(0, 8).unwrap(), remote.slice(0, 8).unwrap());
        Operation::Read { local, remote, streaming: Streaming::Never }
    };
    let write = |remote: RemoteSlice| Operation::WriteInline {
        data: Inline::word(1),
        remote: remote.slice(0, 8).unwrap(),
    };
    let refused = Err(CompletionError::RemoteAccess);

    let ([mut writer, _listener], [granted, _]) = connect(&verbs, offer);
    assert_eq!(carry_out(&device, &mut writer, write(granted[1])), Ok(()));
    assert_eq!(carry_out(&device, &mut writer, write(granted[0])), refused);

    // A key that a peer invents goes to a domain without the memory that others read.
    let ([mut forger, _listener], [granted, _]) = connect(&verbs, offer);
    let forged = RemoteSlice { key: RemoteKey(granted[0].key.0 + (1 << 40)), ..granted[0] };
    assert_eq!(carry_out(&device, &mut forger, read(forged)), refused);

    let ([mut gone, listener], [granted, _]) = connect(&verbs, offer);
    let ([mut stays, _listener], _) = connect(&verbs, offer);
    drop(listener);
    let unanswered = Err(CompletionError::Unreachable);
    assert_eq!(carry_out(&device, &mut gone, read(granted[0])), unanswered, "its queue pair serves no more");
    assert_eq!(carry_out(&device, &mut stays, read(granted[0])), Ok(()), "the key is that of all who read");
    assert_ne!(into.as_volatile().load_u64(0), 1);
}

#[test]
fn who_is_let_go_reaches_nothing_though_nothing_is_undone_yet() {
    for rails in [1, 2] {
        let device = Unordered::new(0, true);
        let verbs = device.verbs_over(rails, DEPTH as usize, None);
        let regions = readable_and_writable(&verbs);
        let offer =
            || Offer { message: Vec::new(), grants: regions.each_ref().map(MemoryRegion::whole).to_vec() };
        let into = verbs.allocate(64, Access::LOCAL).unwrap().whole();
        for (index, writes) in [(0, false), (1, false), (1, true)] {
            let ([mut gone, listener], [granted, _]) = connect(&verbs, offer);
            let before = device.kept();
            let remains = listener.close(0);
            assert_eq!(device.kept(), before, "the thread that serves undoes nothing");
            let (local, remote) = (into.slice(0, 8).unwrap(), granted[index].slice(0, 8).unwrap());
            let operation = match writes {
                true => Operation::WriteInline { data: Inline::word(1), remote },
                false => Operation::Read { local, remote, streaming: Streaming::Never },
            };
            carry_out(&device, &mut gone, operation).unwrap_err();
            assert_eq!(regions[1].as_volatile().load_u64(0), 0, "nothing is written");
            drop(remains);
            let after = device.kept();
            assert!((0..3).all(|kind| after[kind] < before[kind]), "{before:?} and then {after:?}");
        }
    }
}

#[test]
fn what_a_device_does_not_stop_is_destroyed_at_once() {
    let device = Unordered::new(0, true);
    let verbs = device.verbs(None);
    let regions = readable_and_writable(&verbs);
    let ([_peer, listener], _) = connect(&verbs, || Offer {
        message: Vec::new(),
        grants: regions.each_ref().map(MemoryRegion::whole).to_vec(),
    });
    let before = device.kept();
    device.refuse_to_stop();
    let remains = listener.close(0);
    let closed = device.kept();
    assert!((0..3).all(|kind| closed[kind] < before[kind]), "{before:?} and then {closed:?}");
    drop(remains);
}

#[test]
fn only_devices_whose_pairs_break_silently_are_asked_for_their_state() {
    for breaks_silently in [false, true] {
        let device = Unordered::new(0, true);
        let mut verbs = device.verbs(None);
        Arc::get_mut(&mut verbs.shared).unwrap().rails[0].info.breaks_silently = breaks_silently;
        let regions = readable_and_writable(&verbs);
        let grants = || regions.each_ref().map(MemoryRegion::whole).to_vec();
        let (mut ends, _) = connect(&verbs, || Offer { message: Vec::new(), grants: grants() });
        let before = lock(&device.world.state).state_queries;
        // Longer than the time after which such a device is queried.
        std::thread::sleep(std::time::Duration::from_millis(300));
        ends.iter_mut().for_each(|end| end.check().unwrap());
        assert_eq!(lock(&device.world.state).state_queries > before, breaks_silently);
    }
}

#[test]
fn no_adapter_is_asked_for_the_state_of_queue_pairs_as_a_peer_goes() {
    for breaks_silently in [false, true] {
        let device = Unordered::new(0, true);
        let mut verbs = device.verbs(None);
        Arc::get_mut(&mut verbs.shared).unwrap().rails[0].info.breaks_silently = breaks_silently;
        let regions = readable_and_writable(&verbs);
        let grants = || regions.each_ref().map(MemoryRegion::whole).to_vec();
        let ([gone, mut owner], _) = connect(&verbs, || Offer { message: Vec::new(), grants: grants() });
        drop(gone);
        let before = lock(&device.world.state).state_queries;
        while owner.check().is_ok() {
            verbs.shared.hearing.hurry();
        }
        assert_eq!(lock(&device.world.state).state_queries > before, breaks_silently);
        assert_eq!(verbs.access_violations(), 0);
    }
}

/// A poster whose device has reported the end of the pair on which it has just posted a word, and has done nothing
/// else.
fn told_of_posting(rails: usize) -> Fixture {
    let device = Unordered::new(0, true);
    let verbs = device.verbs_over(rails, DEPTH as usize, None);
    let mut fixture = over(device, &verbs, Side::Connector);
    let remote = fixture.granted[0].1.slice(0, 8).unwrap();
    let write = Operation::WriteInline { data: Inline::word(1), remote };
    fixture.poster.post(&[WorkRequest::unsignalled(1, write)]).unwrap();
    fixture.device.tell_of_posting(1);
    verbs.shared.hearing.hurry();
    fixture.poster.check().unwrap();
    fixture
}

#[test]
fn the_completion_tells_why_a_pair_is_over_though_its_event_comes_first() {
    for rails in [1, 2] {
        let mut fixture = told_of_posting(rails);
        fixture.device.cut(1);
        while fixture.device.step() {}
        assert_eq!(fixture.poster.check().unwrap_err().reason, "the peer's device does not answer");
    }
}

#[test]
fn a_pair_of_which_nothing_but_its_event_comes_is_over_in_a_while() {
    let mut fixture = told_of_posting(1);
    let begun = std::time::Instant::now();
    let over = loop {
        if let Err(over) = fixture.poster.check() {
            break over;
        }
        assert!(begun.elapsed().as_secs() < 60, "waited in vain");
    };
    assert_eq!(over.reason, "the RDMA device of this host could not go on with this connection");
}

/// The pair for data has the peer's rights, which do not include the right to write here.
#[test]
fn requests_to_a_peer_that_lets_nothing_be_written_make_room() {
    let device = Unordered::new(0, true);
    let verbs = device.verbs_over(1, 8, None);
    let region = verbs.allocate(64, Access::REMOTE_READ | Access::REMOTE_ATOMIC).unwrap();
    let offer = || Offer { message: Vec::new(), grants: vec![region.whole()] };
    let ([mut poster, _target], [granted, _]) = connect(&verbs, offer);
    let into = verbs.allocate(64, Access::LOCAL).unwrap().whole();
    let read = || {
        let (local, remote) = (into.slice(0, 8).unwrap(), granted[0].slice(0, 8).unwrap());
        WorkRequest::unsignalled(0, Operation::Read { local, remote, streaming: Streaming::Never })
    };
    for _ in 0..8 {
        poster.post(&[read()]).unwrap();
        let batch = [(); 8].map(|()| read());
        while let Err(error) = poster.post(&batch) {
            assert!(matches!(error, PostError::QueueFull { .. }), "{error}");
            assert!(device.step(), "nothing makes room");
        }
        while device.step() {}
        poster.check().unwrap();
    }
}

#[test]
fn a_heartbeat_that_fails_ends_the_connection_before_the_next_one() {
    let mut fixture = fixture(1, true, None, Side::Connector);
    let mut beat = fixture.poster.heartbeat_word(&fixture.granted[0].1.slice(0, 8).unwrap()).unwrap();
    fixture.device.cut(1);
    beat.set(1).unwrap();
    assert!(fixture.device.step(), "the beat is under way");
    while fixture.device.step() {}
    // The thread that sets all words only learns of the failure: the owner destroys the queue pair, which may take
    // long.
    let before = fixture.device.kept();
    beat.set(2).unwrap_err();
    fixture.poster.check().unwrap_err();
    assert_eq!(fixture.device.kept(), before);
    drop(fixture.poster);
    assert!(fixture.device.kept() < before);
}
