//! Hazards that only striping has: order across rails, parts that are refused, sides that differ in rails.

use std::process::Command;
use std::time::Duration;

use slackline::internals::mem::{Access, MemoryRegion, RemoteKey, RemoteSlice};
use slackline::internals::transport::{
    CompletionError, Endpoint, Inline, Offer, Operation, PostError, WorkRequest,
};
use slackline::{Transport, Verbs};

use super::ends::{Pair, connect};
use crate::rdma::objects;
use crate::transport::fixture::{
    Fixture, PATIENCE, bytes_of, completion, noise, now, post, read, run, wait_for, wait_until_gone, write,
};
use crate::{RailsFixture, devices, over};

/// Shorter requests go over one rail.
pub(super) const STRIPED: usize = 32 << 10;
const WORDS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const PAYLOAD: Access = WORDS.union(Access::RELAXED);

/// Both ends of a connection, and memory for words and for payloads, granted in this order.
pub(super) struct Ends {
    pub(super) transport: Verbs,
    pub(super) pair: Pair<RailsFixture>,
    pub(super) page: MemoryRegion,
    pub(super) payload: MemoryRegion,
}

impl Ends {
    pub(super) fn over(from: Verbs, to: &Verbs, bytes: usize) -> Ends {
        let mut listener = to.listen(&RailsFixture::address()).unwrap();
        let (page, payload) = (to.allocate(4096, WORDS).unwrap(), to.allocate(bytes, PAYLOAD).unwrap());
        let offer = Offer { message: Vec::new(), grants: vec![page.whole(), payload.whole()] };
        let pair = connect(&from, &mut listener, Offer::default(), offer);
        Ends { transport: from, pair, page, payload }
    }

    pub(super) fn new(bytes: usize) -> Ends {
        let transport = RailsFixture::transport();
        Ends::over(transport.clone(), &transport, bytes)
    }

    pub(super) fn word(&self, value: u64) -> Operation {
        let remote = self.pair.at_client.grants[0].slice(0, 8).unwrap();
        Operation::WriteInline { data: Inline::word(value), remote }
    }

    pub(super) fn remote(&self) -> RemoteSlice {
        self.pair.at_client.grants[1]
    }

    pub(super) fn local(&self, bytes: &[u8]) -> MemoryRegion {
        let region = self.transport.allocate(bytes.len(), Access::LOCAL).unwrap();
        region.as_volatile().subslice(0, bytes.len()).write(bytes);
        region
    }
}

/// Packets that the first device, or the second, has sent.
pub(super) fn sent_by(rail: usize) -> u64 {
    // The kernel reads the counters again every 10 ms.
    std::thread::sleep(Duration::from_millis(50));
    let file = format!("/sys/class/infiniband/{}/ports/1/hw_counters/sent_pkts", devices()[rail]);
    std::fs::read_to_string(file).expect("a counter").trim().parse().expect("a number")
}

#[test]
fn a_word_never_announces_a_payload_with_a_part_missing_on_the_other_rail() {
    const ROUNDS: u64 = 2_000;
    /// Both ends of each rail's part.
    const LOOKS: [usize; 4] = [0, STRIPED / 2 - 8, STRIPED / 2, STRIPED - 8];
    let mut ends = Ends::new(STRIPED);
    let (page, payload) = (ends.page.clone(), ends.payload.clone());
    let watching = std::thread::spawn(move || {
        let (mut last, deadline) = (0, now() + PATIENCE);
        while last < ROUNDS {
            let announced = page.as_volatile().load_u64(0);
            assert!(announced >= last, "announcements go back from {last} to {announced}");
            assert!(now() < deadline, "waited in vain for an announcement after {last}");
            for at in LOOKS {
                let word = payload.as_volatile().load_u64(at);
                assert!(word >= announced, "the word at {at} is {word}, {announced} was announced");
            }
            last = announced;
        }
    });
    let local = ends.local(&[0; STRIPED]);
    let before = sent_by(1);
    for round in 1..=ROUNDS {
        LOOKS.iter().for_each(|at| local.as_volatile().store_u64(*at, round));
        let batch = [
            WorkRequest::unsignalled(0, write(local.slice(0, STRIPED).unwrap(), ends.remote())),
            WorkRequest::signalled(round, ends.word(round)),
        ];
        post(&mut ends.pair.client, &batch);
        let completion = completion(&mut ends.pair.client);
        assert_eq!((completion.id.0, completion.result), (round, Ok(())));
    }
    watching.join().expect("the watcher saw nothing wrong");
    assert!(sent_by(1) - before >= ROUNDS, "it was striped");
}

#[test]
fn a_read_behind_writes_sees_them_whichever_rails_they_are_on() {
    let mut ends = Ends::new(2 * STRIPED);
    let (from, into) = (ends.local(&[0; 2 * STRIPED]), ends.local(&[0; 2 * STRIPED]));
    for round in 1..=300u64 {
        let new = noise(round, 2 * STRIPED);
        from.as_volatile().subslice(0, new.len()).write(&new);
        let short = Operation::WriteInline {
            data: Inline::word(round),
            remote: ends.remote().slice(STRIPED as u64, 8).unwrap(),
        };
        let batch = [
            WorkRequest::unsignalled(0, write(from.slice(0, new.len()).unwrap(), ends.remote())),
            WorkRequest::unsignalled(1, short),
            WorkRequest::signalled(2, read(into.slice(0, new.len()).unwrap(), ends.remote())),
        ];
        post(&mut ends.pair.client, &batch);
        assert_eq!(completion(&mut ends.pair.client).result, Ok(()));
        let seen = bytes_of(&into.slice(0, new.len()).unwrap());
        assert_eq!(seen[STRIPED..STRIPED + 8], round.to_le_bytes());
        assert!(seen[..STRIPED] == new[..STRIPED] && seen[STRIPED + 8..] == new[STRIPED + 8..]);
    }
}

#[test]
fn striped_requests_of_every_size_arrive_whole() {
    // Longer than soft-RoCE takes at once, too.
    for len in [STRIPED - 1, STRIPED, STRIPED + 1, 100_001, 1 << 20, (17 << 20) + 8] {
        let mut ends = Ends::new(len + 16);
        for offset in [0, 8, 3] {
            let new = noise(len as u64 + offset, len);
            let (local, remote) = (ends.local(&new), ends.remote().slice(offset, len as u64).unwrap());
            run(&mut ends.pair.client, write(local.slice(0, len).unwrap(), remote)).unwrap();
            assert!(bytes_of(&ends.payload.slice(offset as usize, len).unwrap()) == new, "{len} at {offset}");
            let back = ends.local(&vec![0; len]).slice(0, len).unwrap();
            run(&mut ends.pair.client, read(back.clone(), remote)).unwrap();
            assert!(bytes_of(&back) == new, "{len} at {offset}");
        }
    }
}

#[test]
fn a_queue_full_of_striped_requests_takes_no_more_and_recovers_by_polling() {
    const DEPTH: u64 = 8;
    let transport = over(&devices(), Some(DEPTH as usize));
    let mut ends = Ends::over(transport.clone(), &transport, STRIPED);
    let local = ends.local(&[7; STRIPED]);
    let request = |id: u64| {
        let (local, remote) = (local.slice(0, STRIPED).unwrap(), ends.remote());
        let operation = match id % 3 {
            0 => write(local, remote),
            1 => ends.word(id),
            _ => read(local, remote),
        };
        WorkRequest::signalled(id, operation)
    };
    let requests: Vec<WorkRequest> = (0..3 * DEPTH).map(request).collect();
    let client = &mut ends.pair.client;
    let too_long = client.post(&requests[..=DEPTH as usize]);
    assert_eq!(too_long, Err(PostError::BatchTooLong { batch: DEPTH as usize + 1, depth: DEPTH as usize }));
    client.post(&requests[..DEPTH as usize]).unwrap();
    assert_eq!(client.post(&requests[..1]), Err(PostError::QueueFull { free: 0, batch: 1 }));
    for id in 0..2 * DEPTH {
        assert_eq!((completion(client).id.0, client.check()), (id, Ok(())));
        client.post(std::slice::from_ref(&requests[(id + DEPTH) as usize])).expect("there is room for one");
    }
    for id in 2 * DEPTH..3 * DEPTH {
        assert_eq!(completion(client).id.0, id);
    }
    assert_eq!(client.poll(), None);
}

/// Of a batch whose second request fails, all that follows comes back flushed.
fn fails_in_order(ends: &mut Ends, failing: RemoteSlice) -> CompletionError {
    let local = ends.local(&[9; STRIPED]).slice(0, STRIPED).unwrap();
    let good = write(local.slice(0, 8).unwrap(), ends.remote().slice(0, 8).unwrap());
    let batch = [
        WorkRequest::signalled(0, good.clone()),
        WorkRequest::unsignalled(1, write(local, failing)),
        WorkRequest::unsignalled(2, ends.word(77)),
        WorkRequest::signalled(3, good),
    ];
    ends.pair.client.post(&batch).unwrap();
    let mut told: Vec<_> = (0..4).map(|_| completion(&mut ends.pair.client)).collect();
    told.retain(|completion| completion.result != Err(CompletionError::Flushed));
    wait_until_gone(&mut ends.pair.client);
    assert_eq!(ends.pair.client.poll(), None);
    assert_eq!(ends.page.as_volatile().load_u64(0), 0, "what did not arrive is not announced");
    let failure = told.pop().expect("the failure itself is told");
    assert_eq!(failure.id.0, 1);
    failure.result.unwrap_err()
}

#[test]
fn a_part_refused_on_a_rail_ends_the_connection_by_its_error_and_is_counted() {
    let half = STRIPED as u64 / 2;
    for (offset, key) in [
        // Past the end by the part on the second rail, and by both.
        (half, |key| key),
        (STRIPED as u64, |key| key),
        // Keys of other grants, and of none.
        (0, |key: u64| key ^ 0x5A5A),
        (0, |key: u64| key ^ (0x5A5A | 1 << 32)),
    ] as [(u64, fn(u64) -> u64); 4]
    {
        let mut ends = Ends::new(STRIPED);
        let remote = ends.remote();
        let failing = RemoteSlice { key: RemoteKey(key(remote.key.0)), offset, ..remote };
        assert_eq!(fails_in_order(&mut ends, failing), CompletionError::RemoteAccess);
        wait_until_gone(&mut ends.pair.server);
        assert_eq!(ends.transport.access_violations(), 1);
    }
}

#[test]
fn sides_that_differ_in_rails_use_those_that_both_have() {
    let both = devices();
    for (from, to) in [(2, 1), (1, 2), (2, 2)] {
        let (client, server) = (over(&both[..from], None), over(&both[..to], None));
        let mut ends = Ends::over(client, &server, STRIPED);
        let before = sent_by(1);
        let new = noise(from as u64, STRIPED);
        let (local, remote) = (ends.local(&new).slice(0, STRIPED).unwrap(), ends.remote());
        run(&mut ends.pair.client, write(local, remote)).unwrap();
        assert!(bytes_of(&ends.payload.whole()) == new);
        let back = ends.local(&[0; STRIPED]).slice(0, STRIPED).unwrap();
        run(&mut ends.pair.client, read(back.clone(), remote)).unwrap();
        assert!(bytes_of(&back) == new);
        let is_striped = sent_by(1) > before;
        assert_eq!(is_striped, from.min(to) == 2, "{from} and {to} rails");
    }
}

#[test]
fn rounds_of_connecting_over_two_rails_leave_no_device_object_behind() {
    let objects = || objects::objects(&mut Command::new("rdma"));
    let transport = RailsFixture::transport();
    let before = objects();
    for round in 0..20 {
        let mut ends = Ends::over(transport.clone(), &transport, STRIPED);
        let local = ends.local(&[1; STRIPED]).slice(0, STRIPED).unwrap();
        let remote = ends.remote();
        let remote = if round % 2 == 0 { remote } else { RemoteSlice { offset: 1 << 40, ..remote } };
        let ended = run(&mut ends.pair.client, write(local, remote));
        assert_eq!(ended.is_ok(), round % 2 == 0);
    }
    wait_for("all of it to be gone", || (objects() == before).then_some(()));
}

#[test]
fn a_port_that_is_named_twice_has_two_queue_pairs_that_share_long_requests() {
    let name = &devices()[0];
    let transport = over(&[name.clone(), format!("{name}:1")], None);
    assert_eq!(transport.rails().collect::<Vec<_>>(), [(name.as_str(), 1); 2]);
    for len in [STRIPED, 1 << 20] {
        let mut ends = Ends::over(transport.clone(), &transport, len);
        let new = noise(len as u64, len);
        let (local, remote) = (ends.local(&new).slice(0, len).unwrap(), ends.remote());
        run(&mut ends.pair.client, write(local, remote)).unwrap();
        assert!(bytes_of(&ends.payload.slice(0, len).unwrap()) == new);
        let back = ends.local(&vec![0; len]).slice(0, len).unwrap();
        run(&mut ends.pair.client, read(back.clone(), remote)).unwrap();
        assert!(bytes_of(&back) == new);
    }
}
