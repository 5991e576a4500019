//! Two sides that were opened with unequal settings.

use std::time::{Duration, Instant};

use slackline::internals::mem::{Access, MemoryRegion};
use slackline::internals::transport::{
    AtomicDomain, CompletionError, Endpoint, Inline, Offer, Operation, WorkRequest,
};
use slackline::{Transport, Verbs, VerbsOptions};

use super::ends::{Pair, connect, prove};
use crate::VerbsFixture;
use crate::transport::fixture::{bytes_of, completion, noise, post, read, run, write};

const BYTES: usize = 1 << 20;
const SMALL_MTU: u16 = 512;

/// The device's settings that a test is not about are those of every one here.
pub(crate) fn open(options: VerbsOptions) -> Verbs {
    let devices = std::env::var("SLACKLINE_RIG_DEVICE").into_iter().collect();
    Verbs::open(VerbsOptions { devices, ..options }).unwrap()
}

/// A side, and its memory that the other one may use.
struct Side {
    verbs: Verbs,
    region: MemoryRegion,
}

impl Side {
    fn new(options: VerbsOptions) -> Side {
        let verbs = open(options);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = verbs.allocate(BYTES, access).unwrap();
        Side { verbs, region }
    }

    fn offer(&self) -> Offer {
        Offer { message: Vec::new(), grants: vec![self.region.whole()] }
    }
}

fn pair(connector: &Side, acceptor: &Side) -> Pair<VerbsFixture> {
    let mut listener = acceptor.verbs.listen(&"verbs:127.0.0.1:0".parse().unwrap()).unwrap();
    connect(&connector.verbs, &mut listener, connector.offer(), acceptor.offer())
}

/// Each side writes all of the other's memory, and reads it back.
fn moves_data_both_ways(pair: &mut Pair<VerbsFixture>, connector: &Side, acceptor: &Side) {
    for (endpoint, own, other, remote) in [
        (&mut pair.client, connector, acceptor, pair.at_client.grants[0]),
        (&mut pair.server, acceptor, connector, pair.at_server.grants[0]),
    ] {
        let local = own.verbs.allocate(BYTES, Access::LOCAL).unwrap().whole();
        for seed in 1..4 {
            local.as_volatile().write(&noise(seed, BYTES));
            run(endpoint, write(local.clone(), remote)).unwrap();
            prove(&own.verbs, endpoint, remote);
            assert!(bytes_of(&other.region.whole()) == noise(seed, BYTES));
            other.region.as_volatile().write(&noise(seed + 10, BYTES));
            run(endpoint, read(local.clone(), remote)).unwrap();
            assert!(bytes_of(&local) == noise(seed + 10, BYTES));
        }
    }
}

/// Returns what the device has counted under this name, if it is one in software: others count otherwise.
fn counter(verbs: &Verbs, name: &str) -> Option<u64> {
    let file = format!("/sys/class/infiniband/{}/ports/1/hw_counters/{name}", verbs.device());
    let count = || std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
    verbs.info().is_soft_roce.then(count)
}

#[test]
fn packets_are_of_the_size_that_the_lesser_side_takes() {
    let small = || Side::new(VerbsOptions { mtu: Some(SMALL_MTU), ..VerbsOptions::default() });
    let own = || Side::new(VerbsOptions::default());
    for (connector, acceptor) in [(own(), small()), (small(), own())] {
        assert!(connector.verbs.mtu().max(acceptor.verbs.mtu()) > SMALL_MTU, "there is a choice");
        let mut pair = pair(&connector, &acceptor);
        let before = counter(&connector.verbs, "sent_pkts");
        moves_data_both_ways(&mut pair, &connector, &acceptor);
        // Twelve transfers, and what asks for them or acknowledges them.
        let least = 12 * BYTES as u64 / u64::from(SMALL_MTU);
        if let (Some(before), Some(after)) = (before, counter(&connector.verbs, "sent_pkts")) {
            let sent = after - before;
            assert!((least..2 * least).contains(&sent), "{sent} packets where {least} are of that size");
        }
    }
}

#[test]
fn sides_with_a_queue_depth_of_one_and_of_many_serve_each_other() {
    let shallow = || Side::new(VerbsOptions { queue_depth: Some(1), ..VerbsOptions::default() });
    let deep = || Side::new(VerbsOptions::default());
    for (connector, acceptor) in [(deep(), shallow()), (shallow(), deep())] {
        assert_eq!(
            connector.verbs.capabilities().queue_depth.min(acceptor.verbs.capabilities().queue_depth),
            1
        );
        let mut pair = pair(&connector, &acceptor);
        moves_data_both_ways(&mut pair, &connector, &acceptor);
        for (endpoint, own, other, remote) in [
            (&mut pair.client, &connector, &acceptor, pair.at_client.grants[0]),
            (&mut pair.server, &acceptor, &connector, pair.at_server.grants[0]),
        ] {
            let remote = remote.slice(0, 8).unwrap();
            let word = |value| Operation::WriteInline { data: Inline::word(value), remote };
            for value in 1..500 {
                post(endpoint, &[WorkRequest::unsignalled(value, word(value))]);
            }
            post(endpoint, &[WorkRequest::signalled(500, word(500))]);
            assert_eq!(completion(endpoint).result, Ok(()));
            prove(&own.verbs, endpoint, remote);
            assert_eq!(other.region.as_volatile().load_u64(0), 500);
        }
    }
}

#[test]
fn sides_of_unequal_read_depths_carry_out_many_reads_and_atomics_at_once() {
    const READS: usize = 64;
    const PIECE: usize = 8192;
    let side = |read_depth| Side::new(VerbsOptions { read_depth, ..VerbsOptions::default() });
    if side(None).verbs.capabilities().atomics == AtomicDomain::None {
        return;
    }
    for (at_connector, at_acceptor) in [(None, Some(1)), (Some(1), None), (Some(4), Some(2))] {
        let (connector, acceptor) = (side(at_connector), side(at_acceptor));
        let mut pair = pair(&connector, &acceptor);
        for (own, other) in [(&connector, &acceptor), (&acceptor, &connector)] {
            other.region.as_volatile().write(&noise(1, BYTES));
            other.region.as_volatile().store_u64(BYTES - 8, 0);
            assert!(own.verbs.capabilities().queue_depth >= 2 * READS);
        }
        let local = |side: &Side| side.verbs.allocate(READS * (PIECE + 8), Access::LOCAL).unwrap();
        let (at_client, at_server) = (local(&connector), local(&acceptor));
        let mut ends = [
            (&mut pair.client, (&connector, &acceptor), pair.at_client.grants[0], at_client),
            (&mut pair.server, (&acceptor, &connector), pair.at_server.grants[0], at_server),
        ];
        // All of both directions is under way before anything is looked at.
        for (endpoint, _, remote, local) in &mut ends {
            let counter = remote.slice(BYTES as u64 - 8, 8).unwrap();
            let requests = (0..READS).flat_map(|index| {
                let (from, into) = (index * PIECE, local.slice(index * PIECE, PIECE).unwrap());
                let piece = read(into, remote.slice(from as u64, PIECE as u64).unwrap());
                let old = local.slice(READS * PIECE + 8 * index, 8).unwrap();
                let add = Operation::FetchAdd { local: old, remote: counter, add: 1 };
                let id = 2 * index as u64;
                [WorkRequest::signalled(id, piece), WorkRequest::signalled(id + 1, add)]
            });
            endpoint.post(&requests.collect::<Vec<_>>()).unwrap();
        }
        for (endpoint, (own, other), remote, local) in &mut ends {
            for id in 0..2 * READS as u64 {
                let completion = completion(*endpoint);
                assert_eq!((completion.id.0, completion.result), (id, Ok(())));
            }
            assert!(bytes_of(&local.slice(0, READS * PIECE).unwrap()) == noise(1, BYTES)[..READS * PIECE]);
            for index in 0..READS {
                assert_eq!(local.as_volatile().load_u64(READS * PIECE + 8 * index), index as u64);
            }
            prove(&own.verbs, *endpoint, *remote);
            assert_eq!(other.region.as_volatile().load_u64(BYTES - 8), READS as u64);
        }
    }
}

/// Posts a word to a side that has destroyed its queue pairs: what comes for them is dropped without an answer. Returns
/// the time until the word's completion, and how often it was sent again, if the device counts that as soft-RoCE does.
fn word_without_an_answer(options: VerbsOptions) -> (Duration, Option<u64>) {
    let (connector, acceptor) = (Side::new(options), Side::new(VerbsOptions::default()));
    let mut pair = pair(&connector, &acceptor);
    moves_data_both_ways(&mut pair, &connector, &acceptor);
    drop(pair.server);
    let resent = || counter(&connector.verbs, "completer_retry_err");
    let (before, begin) = (resent(), Instant::now());
    let remote = pair.at_client.grants[0].slice(0, 8).unwrap();
    let error = run(&mut pair.client, Operation::WriteInline { data: Inline::word(1), remote }).unwrap_err();
    assert_eq!(error, CompletionError::Unreachable);
    (begin.elapsed(), resent().zip(before).map(|(after, before)| after - before))
}

#[test]
fn a_word_without_an_answer_is_sent_again_as_late_and_as_often_as_asked() {
    let ask = |timeout, retries| {
        let (timeout, retries) = (Some(timeout), Some(retries));
        word_without_an_answer(VerbsOptions { timeout, retries, ..VerbsOptions::default() })
    };
    let ((slow, of_two), (fast, of_five)) = (ask(17, 2), ask(8, 5));
    // 4.096 us times 2 to the power of 17, for each time that it is sent again.
    assert!(slow >= 2 * Duration::from_nanos(4096 << 17), "{slow:?}");
    if let (Some(of_two), Some(of_five)) = (of_two, of_five) {
        assert_eq!((of_two, of_five), (2, 5));
        assert!(fast < slow, "5 times 1 ms take {fast:?}, 2 times 537 ms {slow:?}");
    }
}
