//! Words that a worker writes in its inbox, taken back or spoilt at any moment: the worker harms itself alone.

use proptest::prelude::*;
use slackline::internals::param::FrameGeometry;
use slackline::internals::transport::Inline;
use slackline::{
    Server, ServerOptions, Shm, Version,
    scheme::{Choice, Damping, Delivery, SchemeConfig, Shrink, StepRule, Strength, WaitFor},
};

use super::at_once::at_once;
use super::raw::{HEARTBEAT, Raw, worker_role};
use super::second::{PATIENCE, server, wait_for};

/// Chunks of a gradient: so many that the fold of one version takes several polls.
const CHUNKS: usize = 40;
const CHUNK_BYTES: usize = 64;
const ELEMENTS: usize = CHUNKS * CHUNK_BYTES / 4;
const BYTES: u64 = ELEMENTS as u64 * 4;

/// Offsets of words in an inbox.
const PUBLISHED: usize = 0;
const LANDED: usize = 8;
const HELD: usize = 16;
const PIN: usize = 128;
const HEADERS: usize = 192;

fn schemes() -> Vec<SchemeConfig> {
    let dbw =
        |delivery, k| SchemeConfig::Dbw { delivery, choice: Choice::Static { k }, steps: StepRule::Constant };
    let vap = |strength| SchemeConfig::Vap { bound: 1.0, strength };
    let abs = |staleness| {
        let (wait_for, shrink, local_steps) = (WaitFor::Fixed(2), Shrink::Fixed, 1);
        SchemeConfig::Abs { wait_for, staleness, shrink, local_steps }
    };
    vec![
        SchemeConfig::Bsp,
        SchemeConfig::Asp,
        SchemeConfig::Ssp { staleness: 1 },
        SchemeConfig::Essp { staleness: 1 },
        SchemeConfig::Bap { staleness: 1 },
        vap(Strength::Weak),
        vap(Strength::Strong),
        dbw(Delivery::Interrupt, 2),
        dbw(Delivery::Wait, 1),
        abs(Some(1)),
        abs(None),
        SchemeConfig::Delay { staleness: 1, seed: 7 },
    ]
}

fn poll(server: &mut Server<Shm>) {
    server.poll(slackline::now()).unwrap();
}

/// A worker by hand that keeps the protocol.
struct Hand {
    raw: Raw,
    clock: u64,
    /// The version on which it computed its last gradient.
    base: u64,
}

impl Hand {
    fn join(server: &mut Server<Shm>, scheme: SchemeConfig) -> Hand {
        let address = server.address();
        let role = worker_role(scheme);
        let geometry = FrameGeometry { frames: 3, payload_bytes: BYTES, chunk_bytes: CHUNK_BYTES as u64 };
        let raw = match scheme.pushes() {
            true => Raw::join_pushed(&address, role, geometry, || poll(server)),
            false => Raw::join(&address, role, || poll(server)),
        };
        let clock = raw.welcome.clock.get();
        Hand { raw, clock, base: 0 }
    }

    fn latest(&self) -> u64 {
        self.raw.control(64) >> 8
    }

    fn slots(&self) -> u64 {
        self.raw.welcome.slots.unwrap().slots.into()
    }

    /// Publishes its next gradient, which is 0, computed on `base`.
    fn publish(&mut self, base: u64) {
        let header = [self.clock, base, self.raw.welcome.epoch, BYTES, 0, 0, 0, 0];
        self.raw.write(LANDED, Inline::word(self.clock << 24 | CHUNKS as u64));
        self.raw.write_header((self.clock % self.slots()) as usize, header);
        (self.clock, self.base) = (self.clock + 1, base);
        self.raw.announce(self.clock);
    }

    /// Says what it holds, and publishes once its last gradient is consumed, or on a newer version if it has a slot.
    fn work(&mut self) {
        let latest = self.latest();
        self.raw.write(HELD, Inline::word(latest + 1));
        let in_use = self.clock.saturating_sub(self.raw.consumed());
        if in_use == 0 || latest > self.base && in_use < self.slots() {
            self.publish(latest);
        }
    }
}

fn job(scheme: SchemeConfig, damping: Damping, workers: usize) -> Server<Shm> {
    let mut options = ServerOptions { damping, ..ServerOptions::new(scheme, workers, -1.0) };
    options.memory.chunk_bytes = CHUNK_BYTES as u64;
    // Workers by hand have no heart.
    options.memory.lease = 10 * PATIENCE;
    server(ELEMENTS, options)
}

/// Polls while the honest workers work, until so many gradients of the first are consumed.
fn go_on(server: &mut Server<Shm>, honest: &mut [Hand], count: u64, what: &str) {
    let end = honest[0].raw.consumed() + count;
    for _ in 0..5_000 {
        honest.iter_mut().for_each(Hand::work);
        poll(server);
        if honest[0].raw.consumed() >= end {
            return;
        }
    }
    panic!("{what}: {:?}", server.status());
}

/// A gradient of the culprit's is announced. After `moment` polls words of its inbox change; the honest worker
/// publishes after `partner` polls. Then the culprit leaves, if it was not evicted, and the honest one goes on.
fn spoil(scheme: SchemeConfig, words: &[(usize, u64)], moment: usize, partner: usize) {
    let mut server = job(scheme, Damping::None, 2);
    let mut culprit = Hand::join(&mut server, scheme);
    let mut honest = Hand::join(&mut server, scheme);
    culprit.publish(0);
    for turn in 0..=moment.max(partner) + 12 {
        if turn == partner {
            honest.publish(0);
        }
        if turn == moment {
            for (word, value) in words {
                culprit.raw.write(*word, Inline::word(*value));
            }
        }
        poll(&mut server);
    }
    let what = format!("{scheme}: {words:?} after {moment} polls, the other after {partner}");
    assert!(server.status().workers > 0, "{what}: the honest worker was evicted");
    drop(culprit);
    wait_for("the culprit to leave", || {
        poll(&mut server);
        (server.status().workers == 1).then_some(())
    });
    go_on(&mut server, &mut [honest], 3, &what);
}

fn offset() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => prop::sample::select(&[PUBLISHED, LANDED][..]),
        3 => prop::sample::select(&[HELD, HEARTBEAT, PIN][..]),
        3 => (0usize..16).prop_map(|word| HEADERS + 8 * word),
    ]
}

/// An older value, a small one, or any.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 1 => Just(u64::MAX), 1 => 0u64..8, 2 => any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_word_that_is_spoilt_at_any_moment_stops_nobody_else(
        words in prop::collection::vec((offset(), value()), 1..4),
        moment in 0usize..16,
        partner in 0usize..12,
    ) {
        at_once(schemes(), |scheme| spoil(scheme, &words, moment, partner));
    }
}

#[test]
fn an_announcement_that_is_taken_back_stops_no_fold() {
    at_once(schemes(), |scheme| {
        for moment in 0..12 {
            spoil(scheme, &[(PUBLISHED, 0), (LANDED, 0)], moment, 2);
        }
    });
}

#[test]
fn a_base_past_the_latest_version_evicts_its_worker_and_moves_no_bound() {
    let counting = schemes().into_iter().map(|scheme| (scheme, Damping::None));
    for (scheme, damping) in counting.chain([(SchemeConfig::Asp, Damping::Inverse)]) {
        for base in [1, u64::MAX] {
            let mut server = job(scheme, damping, 3);
            let [mut culprit, one, other] = [(); 3].map(|()| Hand::join(&mut server, scheme));
            culprit.publish(base);
            wait_for("the eviction", || {
                poll(&mut server);
                (server.status().misbehaved == 1).then_some(())
            });
            assert_eq!(server.status().version, Version::new(0), "{scheme}");
            go_on(&mut server, &mut [one, other], 20, &format!("{scheme} after a base of {base}"));
            assert_eq!((server.status().workers, server.status().left), (2, 1), "{scheme}");
        }
    }
}
