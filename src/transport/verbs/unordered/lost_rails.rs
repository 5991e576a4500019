//! Connections that lose a rail at any moment, and continue over the others.

use std::time::Instant;

use super::super::hello::Note;
use super::super::tests::connect;
use super::*;
use crate::mem::{Access, LocalSlice, MemoryRegion, RemoteSlice, Streaming};
use crate::transport::verbs::VerbsEndpoint;
use crate::transport::{
    CompletionError, Disconnected, Endpoint, Inline, Offer, Operation, PostError, Transport, WorkCompletion,
    WorkRequest,
};

/// Bytes of the slot, and of all memory that is read: the parts of three rails are long enough to be cut.
const SLOT_BYTES: usize = 64 * PACKET_BYTES;
const ROUNDS: u64 = 6;

pub(super) const WORDS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Both ends of a connection over several rails: one end posts, the other has the memory.
pub(super) struct Scene {
    pub(super) device: Unordered,
    pub(super) verbs: Verbs,
    pub(super) poster: VerbsEndpoint,
    pub(super) target: VerbsEndpoint,
    /// A page of words, a slot for payloads, and memory that is only read.
    pub(super) regions: [MemoryRegion; 3],
    pub(super) granted: Vec<RemoteSlice>,
    source: LocalSlice,
    into: LocalSlice,
    /// Whether the target checks its connections.
    looks: bool,
    begun: Instant,
}

fn word_of(packet: usize) -> usize {
    packet * PACKET_BYTES
}

fn fill(memory: &LocalSlice, round: u64) {
    (0..SLOT_BYTES / 8).for_each(|word| memory.as_volatile().store_u64(word * 8, round));
}

impl Scene {
    fn new(seed: u64, rails: usize) -> Scene {
        let device = Unordered::new(seed, false);
        // The shares of every other scene are unequal.
        let speeds = [[1; 3], [2, 1, 1]][seed as usize % 2];
        let verbs = device.verbs_at(&speeds[..rails], 8, None);
        Scene::over(device, verbs)
    }

    fn over(device: Unordered, verbs: Verbs) -> Scene {
        Scene::with_page(device, verbs, WORDS | Access::REMOTE_ATOMIC)
    }

    /// The same, with these rights of the peer on the page of words.
    pub(super) fn with_page(device: Unordered, verbs: Verbs, page: Access) -> Scene {
        let access = [page, WORDS | Access::RELAXED, Access::REMOTE_READ];
        let regions = access.map(|access| verbs.allocate(SLOT_BYTES, access).unwrap());
        let offer =
            || Offer { message: Vec::new(), grants: regions.each_ref().map(MemoryRegion::whole).to_vec() };
        let ([poster, target], [granted, _]) = connect(&verbs, offer);
        let local = || verbs.allocate(SLOT_BYTES, Access::LOCAL).unwrap().whole();
        fill(&regions[2].whole(), 7);
        let (source, into) = (local(), local());
        let (looks, begun) = (true, Instant::now());
        Scene { device, poster, target, regions, granted, source, into, looks, begun, verbs }
    }

    pub(super) fn word(&self, round: u64) -> Operation {
        Operation::WriteInline { data: Inline::word(round), remote: self.granted[0].slice(0, 8).unwrap() }
    }

    /// Adds one to a counter beside the word.
    pub(super) fn count(&self) -> Operation {
        let (local, remote) = (self.into.slice(0, 8).unwrap(), self.granted[0].slice(8, 8).unwrap());
        Operation::FetchAdd { local, remote, add: 1 }
    }

    fn payload(&self) -> Operation {
        let (local, remote) = (self.source.clone(), self.granted[1]);
        Operation::Write { local, remote, streaming: Streaming::Never }
    }

    fn read(&self, grant: usize) -> Operation {
        let (local, remote) = (self.into.clone(), self.granted[grant]);
        Operation::Read { local, remote, streaming: Streaming::Never }
    }

    /// Both sides check their connections, as they do from time to time.
    pub(super) fn look(&mut self) -> Result<(), Disconnected> {
        assert!(self.begun.elapsed().as_secs() < 60, "waited in vain");
        self.verbs.shared.hearing.hurry();
        if self.looks {
            self.target.check()?;
        }
        self.poster.check()
    }

    /// A step of the device, or a check of both sides.
    pub(super) fn step(&mut self, round: u64) {
        let looks = lock(&self.device.world.state).random(400) == 0;
        if looks || !self.device.step() {
            // If the connection is over, the completion says so.
            let _over = self.look();
        }
        // Once a payload is announced, its owner may read it until it returns the slot.
        if self.regions[0].as_volatile().load_u64(0) == round {
            let slot = self.regions[1].as_volatile();
            let torn = (0..SLOT_BYTES / PACKET_BYTES).find(|packet| slot.load_u64(word_of(*packet)) != round);
            assert_eq!(torn, None, "bytes of another round are in the slot of round {round}");
        }
    }

    fn completion(&mut self, round: u64) -> WorkCompletion {
        loop {
            if let Some(completion) = self.poster.poll() {
                return completion;
            }
            self.step(round);
        }
    }

    fn post(&mut self, batch: &[WorkRequest], round: u64) {
        while let Err(error) = self.poster.post(batch) {
            assert!(matches!(error, PostError::QueueFull { .. }), "{error}");
            self.step(round);
        }
    }

    /// Posts a payload without a completion.
    pub(super) fn post_payload(&mut self, round: u64) {
        self.post(&[WorkRequest::unsignalled(0, self.payload())], round);
    }

    pub(super) fn carry_out(&mut self, operation: Operation, round: u64) -> Result<(), CompletionError> {
        self.post(&[WorkRequest::signalled(round, operation)], round);
        self.completion(round).result
    }

    /// A gradient, its announcement, READs of it and of memory that is only read, and a time in which the owner uses
    /// it.
    pub(super) fn round(&mut self, round: u64) {
        fill(&self.source, round);
        let batch =
            [WorkRequest::unsignalled(0, self.payload()), WorkRequest::signalled(round, self.word(round))];
        self.post(&batch, round);
        assert_eq!(self.completion(round).result, Ok(()));
        for (grant, expected) in [(1, round), (2, 7)] {
            fill(&self.into, 0);
            self.carry_out(self.read(grant), round).unwrap();
            let into = self.into.as_volatile();
            assert!((0..SLOT_BYTES / 8).all(|word| into.load_u64(word * 8) == expected));
        }
        let while_used = lock(&self.device.world.state).random(40);
        (0..while_used).for_each(|_| self.step(round));
    }

    /// Waits until both sides have lost so many rails.
    pub(super) fn wait_for_losses(&mut self, rails: u64) {
        while self.verbs.rails_lost() < 2 * rails {
            self.look().unwrap();
        }
        assert_eq!(self.verbs.rails_lost(), 2 * rails, "each side counts each of them once");
    }

    /// The queue pairs that go through a port.
    fn pairs(&self, port: u8) -> Vec<usize> {
        let state = lock(&self.device.world.state);
        (0..state.pairs.len()).filter(|pair| state.pairs[*pair].port == port).collect()
    }
}

#[test]
fn rails_that_are_lost_at_any_moment_tear_and_lose_nothing() {
    for rails in [2, 3] {
        for seed in 0..24 {
            let mut scene = Scene::new(seed, rails);
            scene.round(1);
            // Each port except the first is cut while requests are under way.
            for (index, port) in (2..=rails as u8).rev().enumerate() {
                let round = 2 * (1 + index as u64);
                fill(&scene.source, round);
                scene.post(&[WorkRequest::signalled(0, scene.payload())], round);
                let until = lock(&scene.device.world.state).random(3 * SLOT_BYTES / PACKET_BYTES);
                (0..until).for_each(|_| _ = scene.device.step());
                scene.device.cut(port);
                assert_eq!(scene.completion(round).result, Ok(()));
                scene.round(round);
                scene.round(round + 1);
            }
            (ROUNDS..ROUNDS + 2).for_each(|round| scene.round(round));
            scene.wait_for_losses(rails as u64 - 1);
        }
    }
}

#[test]
fn a_write_is_repeated_once_the_peer_has_closed_the_rail_and_a_read_at_once() {
    let mut scene = Scene::new(0, 2);
    scene.looks = false;
    scene.device.cut(2);
    scene.carry_out(scene.read(2), 1).unwrap();
    scene.carry_out(scene.read(1), 1).unwrap();
    assert_eq!(scene.verbs.rails_lost(), 1, "the peer has not looked");

    // A rail that is lost with a WRITE under way: the word behind it also waits, and so do new requests.
    let mut scene = Scene::new(0, 2);
    scene.looks = false;
    fill(&scene.source, 1);
    let batch = [WorkRequest::unsignalled(0, scene.payload()), WorkRequest::signalled(1, scene.word(1))];
    scene.device.cut(2);
    scene.post(&batch, 1);
    (0..2_000).for_each(|_| {
        scene.step(1);
        assert_eq!(scene.poster.poll(), None);
    });
    assert_eq!(scene.regions[0].as_volatile().load_u64(0), 0, "nothing is announced");
    let new = [WorkRequest::signalled(2, scene.read(2))];
    assert_eq!(scene.poster.post(&new), Err(PostError::QueueFull { free: 0, batch: 1 }));
    scene.looks = true;
    assert_eq!(scene.completion(1).id.0, 1);
    scene.round(2);
    scene.wait_for_losses(1);
}

#[test]
fn the_first_rail_ends_the_connection_and_so_does_a_refusal_on_any() {
    let mut scene = Scene::new(0, 2);
    scene.device.cut(1);
    let word = scene.word(1);
    // The word may still have arrived.
    assert_eq!(scene.carry_out(word, 2), Err(CompletionError::Unreachable));
    assert!(scene.poster.check().is_err());

    let mut scene = Scene::new(0, 2);
    let past_the_end = RemoteSlice { offset: SLOT_BYTES as u64 / 2, ..scene.granted[1] };
    scene.granted[1] = past_the_end;
    assert_eq!(scene.carry_out(scene.payload(), 1), Err(CompletionError::RemoteAccess));
    assert!(scene.poster.check().is_err());
    assert_eq!(scene.verbs.rails_lost(), 0);
}

/// If requests fail with the first rail, no side knows whether they were executed, so that none of them can be
/// repeated.
#[test]
fn a_lost_first_rail_takes_no_word_back_and_no_atomic_counts_twice() {
    const PAIRS: u64 = 4;
    const NO_ROUND: u64 = u64::MAX;
    // The failed requests, first words and then atomics: the number that were not executed, and the number that were.
    let mut failed = [[0; 2]; 2];
    for seed in 0..64 {
        let mut scene = Scene::new(seed, 2);
        let pair =
            |number| [scene.word(number), scene.count()].map(|what| WorkRequest::signalled(number, what));
        let batch: Vec<_> = (1..=PAIRS).flat_map(pair).collect();
        scene.post(&batch, NO_ROUND);
        let until = lock(&scene.device.world.state).random(24);
        (0..until).for_each(|_| _ = scene.device.step());
        scene.device.cut(1);
        let page = scene.regions[0].clone();
        let (mut seen, mut told, mut after) = ([0; 2], Vec::new(), 0);
        // Packets may be late.
        while after < 100 {
            told.extend(scene.poster.poll().map(|completion| completion.result.is_ok()));
            after += usize::from(told.len() == batch.len());
            scene.step(NO_ROUND);
            let now = [0, 8].map(|at| page.as_volatile().load_u64(at));
            assert!(now[0] >= seen[0] && now[1] >= seen[1], "back from {seen:?} to {now:?}");
            seen = now;
        }
        assert!(scene.poster.check().is_err());
        assert!(seen[1] <= PAIRS, "{PAIRS} atomics were carried out {} times", seen[1]);
        for (number, of_pair) in (1..).zip(told.chunks(2)) {
            for (kind, is_told) in of_pair.iter().enumerate() {
                failed[kind][usize::from(seen[kind] >= number)] += u64::from(!is_told);
            }
        }
    }
    assert!(failed.as_flattened().iter().all(|count| *count > 0), "{failed:?}");
}

#[test]
fn an_event_of_a_pair_loses_its_rail_and_one_of_a_port_does_not() {
    // Each side has two pairs there that post, and two that serve.
    for pair in 0..8 {
        let mut scene = Scene::new(pair as u64, 2);
        scene.round(1);
        scene.device.tell_of_port(sys::IBV_EVENT_PORT_ERR, 2);
        scene.device.tell_of_port(sys::IBV_EVENT_PORT_ACTIVE, 2);
        scene.look().unwrap();
        scene.round(2);
        assert_eq!(scene.verbs.rails_lost(), 0, "a link that comes back costs nothing");
        let pairs = scene.pairs(2);
        assert_eq!(pairs.len(), 8);
        scene.device.tell_of_pair(sys::IBV_EVENT_QP_FATAL, pairs[pair]);
        scene.wait_for_losses(1);
        assert_eq!(scene.pairs(2).len(), 0, "both sides have destroyed all of them");
        scene.round(3);
    }
}

#[test]
fn a_rail_whose_pairs_cannot_be_destroyed_ends_the_connection() {
    let mut scene = Scene::new(0, 2);
    scene.device.cut(2);
    lock(&scene.device.world.state).destroying = libc::EBUSY;
    assert!(scene.carry_out(scene.payload(), 1).is_err());
    let over = scene.poster.check().unwrap_err();
    assert_eq!(over.reason, "the RDMA device of this host could not go on with this connection");
    lock(&scene.device.world.state).destroying = 0;
}

const NO_DEVICE: &str = "the RDMA device of this host is gone";

#[test]
fn a_device_that_is_gone_when_a_rail_is_lost_ends_the_connection_at_once() {
    let mut scene = Scene::new(0, 2);
    scene.round(1);
    // The oldest is a pair on which the poster posts.
    let pair = scene.pairs(2)[0];
    scene.device.tell_of_pair(sys::IBV_EVENT_QP_FATAL, pair);
    lock(&scene.device.world.state).dies_with_a_pair = true;
    scene.verbs.shared.hearing.hurry();
    assert_eq!(scene.poster.check().unwrap_err().reason, NO_DEVICE);
    lock(&scene.device.world.state).dies_with_a_pair = false;
}

#[test]
fn a_lost_rails_device_that_goes_matters_until_its_requests_are_repeated() {
    for is_repeated in [false, true] {
        let device = Unordered::new(0, false);
        let mut verbs = device.verbs_at(&[1; 2], 8, None);
        let second = Device::of_library(&LIBRARY, NonNull::from(device.world).cast());
        let rails = &mut Arc::get_mut(&mut verbs.shared).expect("it was made just now").rails;
        rails[1].device = Arc::clone(&second);
        let mut scene = Scene::over(device, verbs);
        scene.looks = false;
        fill(&scene.source, 1);
        scene.device.cut(2);
        scene.post(&[WorkRequest::signalled(1, scene.payload())], 1);
        while scene.verbs.rails_lost() == 0 {
            scene.step(1);
            assert_eq!(scene.poster.poll(), None);
        }
        if is_repeated {
            scene.looks = true;
            assert_eq!(scene.completion(1).result, Ok(()));
            scene.wait_for_losses(1);
        }
        second.die();
        let over = scene.poster.check().err().map(|over| over.reason);
        assert_eq!(over, (!is_repeated).then_some(NO_DEVICE));
    }
}

#[test]
fn a_rail_whose_device_falls_silent_is_given_up_in_time() {
    let device = Unordered::new(0, false);
    let mut verbs = device.verbs_at(&[1; 2], 8, None);
    for rail in &mut Arc::get_mut(&mut verbs.shared).expect("it was made just now").rails {
        (rail.settings.timeout, rail.settings.retries) = (1, 0);
    }
    let mut scene = Scene::over(device, verbs);
    scene.device.silence(2);
    (1..3).for_each(|round| scene.round(round));
    scene.wait_for_losses(1);
}

#[test]
fn a_peer_that_loses_an_unknown_rail_or_one_twice_breaks_the_protocol() {
    for rails in [[0, 0], [2, 2], [1, 1]] {
        let mut scene = Scene::new(0, 2);
        rails.iter().for_each(|rail| scene.target.say(Note::RailLost(*rail)));
        let over = loop {
            if let Err(over) = scene.look() {
                break over;
            }
        };
        assert_eq!(over.reason, "the peer broke the protocol", "{rails:?}");
    }
}
