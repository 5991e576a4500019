//! Rails that complete requests in any order that a network allows.

use proptest::prelude::*;

use super::*;
use crate::mem::{Access, DeviceKeys, HostMemory, MemoryRegion, RemoteKey, RemoteSlice, Streaming};
use crate::transport::{Inline, Operation};

const DEPTH: usize = 8;
const REFUSED: CompletionError = CompletionError::RemoteAccess;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Word,
    /// A write that may be striped.
    Payload,
    Look,
    /// A READ that may be striped.
    Pull,
    /// The same for memory that may only be read.
    LookOnly,
    PullOnly,
    Add,
}

use Kind::{Add, Look, LookOnly, Payload, Pull, PullOnly, Word};

#[derive(Clone, Copy, Debug)]
struct Plan {
    kind: Kind,
    flags: Flags,
}

impl Plan {
    fn request(self, id: u64) -> WorkRequest {
        thread_local! {
            static MEMORY: MemoryRegion =
                MemoryRegion::new(HostMemory::anonymous(64).unwrap(), Access::LOCAL, DeviceKeys::NONE, ());
        }
        let remote = RemoteSlice { key: RemoteKey(0), offset: 0, len: 8 };
        let (local, streaming) = (MEMORY.with(|memory| memory.slice(0, 8).unwrap()), Streaming::Never);
        let operation = match self.kind {
            Word => Operation::WriteInline { data: Inline::word(id), remote },
            Payload => Operation::Write { local, remote, streaming },
            Look | Pull | LookOnly | PullOnly => Operation::Read { local, remote, streaming },
            Add => Operation::FetchAdd { local, remote, add: 1 },
        };
        WorkRequest { id: WorkRequestId(id), operation, flags: self.flags }
    }

    fn writes(self) -> bool {
        matches!(self.kind, Word | Payload | Add)
    }

    /// Whether a fence waits for this request.
    fn brings(self) -> bool {
        !matches!(self.kind, Word | Payload)
    }

    fn lane(self) -> Lane {
        if matches!(self.kind, LookOnly | PullOnly) { Lane::Reads } else { Lane::Data }
    }

    fn may_be_striped(self) -> bool {
        matches!(self.kind, Payload | Pull | PullOnly)
    }
}

/// A striper and its queue pairs, two for each rail. Requests are numbered by their ids.
struct World {
    striper: Striper,
    plans: Vec<Plan>,
    /// The requests that were posted on each queue pair and are not executed.
    given: Vec<VecDeque<u64>>,
    /// The results of requests that each queue pair has executed and not reported.
    untold: Vec<VecDeque<(u64, Result<(), CompletionError>)>>,
    /// For each request, the queue pairs that have not executed it, a bit for each.
    missing: Vec<u8>,
    is_striped: Vec<bool>,
    /// The queue pair that refuses a request, and the request.
    refuses: Option<(usize, u64)>,
    /// The queue pair that has refused it, which executes no more requests.
    failed: Option<usize>,
    is_over: bool,
    told: Vec<(u64, Result<(), CompletionError>)>,
}

impl World {
    fn new(rails: usize) -> World {
        World {
            striper: Striper::new(rails, DEPTH),
            plans: Vec::new(),
            given: vec![VecDeque::new(); 2 * rails],
            untold: vec![VecDeque::new(); 2 * rails],
            missing: Vec::new(),
            is_striped: Vec::new(),
            refuses: None,
            failed: None,
            is_over: false,
            told: Vec::new(),
        }
    }

    fn post(&mut self, plan: Plan) -> Option<Dispatch> {
        if self.is_over || self.striper.free() == 0 {
            return None;
        }
        let id = self.plans.len() as u64;
        let dispatch = self.striper.admit(&plan.request(id), 1, plan.lane(), plan.may_be_striped());
        let is_striped = matches!(dispatch, Dispatch::Striped(..));
        let rails = if is_striped { self.given.len() / 2 } else { 1 };
        let pairs: Vec<usize> = (0..rails).map(|rail| self.striper.index(plan.lane(), rail)).collect();
        self.plans.push(plan);
        self.is_striped.push(is_striped);
        self.missing.push(pairs.iter().fold(0, |bits, pair| bits | 1 << pair));
        if let Dispatch::First(number, lane) | Dispatch::Striped(number, lane) = dispatch {
            assert_eq!((number, lane), (id, plan.lane()));
            pairs.iter().for_each(|pair| self.given[*pair].push_back(number));
        }
        Some(dispatch)
    }

    /// A queue pair executes its oldest request, which must not have overtaken another one.
    fn carry_out(&mut self, pair: usize) -> Option<u64> {
        let number = self.given[pair].pop_front()?;
        let (plan, at) = (self.plans[number as usize], number as usize);
        if self.is_over || self.failed == Some(pair) {
            self.untold[pair].push_back((number, Err(CompletionError::Flushed)));
            return Some(number);
        }
        if self.refuses == Some((pair, number)) {
            self.failed = Some(pair);
            self.untold[pair].push_back((number, Err(REFUSED)));
            return Some(number);
        }
        for (earlier, before) in self.plans[..at].iter().enumerate() {
            let is_fenced = plan.flags.contains(Flags::FENCE);
            let waits = match plan {
                // No write is for memory that may only be read.
                _ if plan.lane() == Lane::Reads => is_fenced && before.brings(),
                _ if is_fenced => true,
                // Only striped writes may pass other requests.
                Plan { kind: Payload, .. } if self.is_striped[at] => false,
                _ => before.writes(),
            };
            let arrived = self.missing[earlier] == 0;
            assert!(!waits || arrived, "{plan:?} {at} came before {before:?} {earlier}");
        }
        self.missing[at] &= !(1 << pair);
        self.untold[pair].push_back((number, Ok(())));
        Some(number)
    }

    /// The striper learns of the oldest request that a queue pair has executed.
    fn hear(&mut self, pair: usize) -> bool {
        let Some((number, result)) = self.untold[pair].pop_front() else { return false };
        self.striper.complete(pair, number, result);
        if result.is_err() && !self.is_over {
            self.is_over = true;
            self.striper.end();
        }
        while let Some((number, lane, request)) = self.striper.release() {
            assert_eq!((request.id.0, lane), (number, self.plans[number as usize].lane()));
            self.given[self.striper.index(lane, 0)].push_back(number);
        }
        true
    }

    fn poll(&mut self) {
        if let Some(completion) = self.striper.next() {
            self.told.push((completion.id.0, completion.result));
        }
    }

    /// Completes all posted requests.
    fn finish(&mut self) {
        let pairs = self.given.len();
        while (0..pairs).any(|pair| self.carry_out(pair).is_some() | self.hear(pair)) {}
        while let Some(completion) = self.striper.next() {
            self.told.push((completion.id.0, completion.result));
        }
        assert_eq!(self.striper.free(), DEPTH, "nothing is left");
    }
}

fn plan(kind: Kind) -> Plan {
    Plan { kind, flags: Flags::SIGNALLED }
}

#[test]
fn a_word_waits_for_earlier_payloads_on_other_rails_and_for_no_later_one() {
    let mut world = World::new(2);
    assert_eq!(world.post(plan(Payload)), Some(Dispatch::Striped(0, Lane::Data)));
    assert_eq!(world.post(plan(Word)), Some(Dispatch::Held));
    assert_eq!(
        world.post(plan(Payload)),
        Some(Dispatch::Striped(2, Lane::Data)),
        "payloads pass what is held"
    );
    world.carry_out(0);
    world.hear(0);
    assert_eq!(world.given[0], [2], "the part on the first rail is not all of it");
    world.carry_out(1);
    world.hear(1);
    assert_eq!(world.given[0], [2, 1], "the word goes before the second payload is there");
    world.finish();
    assert_eq!(world.told, [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
}

#[test]
fn reads_are_striped_between_writes_and_only_fenced_writes_wait_for_them() {
    let mut world = World::new(3);
    assert_eq!(world.post(plan(Pull)), Some(Dispatch::Striped(0, Lane::Data)));
    assert_eq!(world.post(plan(Word)), Some(Dispatch::First(1, Lane::Data)));
    assert_eq!(world.post(plan(Pull)), Some(Dispatch::First(2, Lane::Data)), "it sees the word");
    let fenced = Plan { flags: Flags::FENCE, ..plan(Word) };
    assert_eq!(world.post(fenced), Some(Dispatch::Held));
    world.finish();
    assert_eq!(world.told, [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
    assert_eq!(world.post(plan(Pull)), Some(Dispatch::Striped(4, Lane::Data)));
}

#[test]
fn reads_of_what_may_only_be_read_wait_for_no_write_fenced_ones_for_reads() {
    let mut world = World::new(2);
    world.post(plan(Payload));
    assert_eq!(world.post(plan(Word)), Some(Dispatch::Held));
    assert_eq!(world.post(plan(PullOnly)), Some(Dispatch::Striped(2, Lane::Reads)), "it passes what is held");
    let fenced = |kind| Plan { flags: Flags::SIGNALLED | Flags::FENCE, ..plan(kind) };
    assert_eq!(world.post(fenced(LookOnly)), Some(Dispatch::Held), "a part of a READ is on the other rail");
    world.finish();
    assert_eq!(world.post(plan(LookOnly)), Some(Dispatch::First(4, Lane::Reads)));
    assert_eq!(
        world.post(fenced(LookOnly)),
        Some(Dispatch::First(5, Lane::Reads)),
        "the device has the fence"
    );
    assert_eq!(world.post(fenced(Word)), Some(Dispatch::Held), "no device has one between two queue pairs");
    world.finish();
    assert_eq!(world.told.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn what_is_held_when_a_rail_fails_comes_back_flushed_behind_the_failure() {
    let mut world = World::new(2);
    world.refuses = Some((1, 0));
    for kind in [Payload, Word, Payload, Word] {
        world.post(Plan { kind, flags: Flags::empty() });
    }
    world.finish();
    let flushed = Err(CompletionError::Flushed);
    assert_eq!(world.told, [(0, Err(REFUSED)), (1, flushed), (2, flushed), (3, flushed)]);
}

#[test]
fn what_a_device_never_took_does_not_keep_the_others_from_being_told() {
    let mut striper = Striper::new(2, DEPTH);
    striper.admit(&plan(Payload).request(7), 3, Lane::Data, true);
    striper.admit(&plan(Word).request(8), 1, Lane::Data, false);
    assert_eq!(striper.free(), DEPTH - 4);
    striper.complete(0, 0, Ok(()));
    striper.end();
    assert_eq!(striper.next(), None);
    assert!(striper.lose(1) && !striper.lose(1));
    let told: Vec<_> = std::iter::from_fn(|| striper.next()).map(|told| (told.id.0, told.result)).collect();
    assert_eq!(told, [(7, Err(CompletionError::Flushed)), (8, Err(CompletionError::Flushed))]);
    assert_eq!(striper.free(), DEPTH);
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let kind = prop::sample::select(vec![Word, Payload, Payload, Look, Pull, LookOnly, PullOnly, Add]);
    let flags = (any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(signalled, fence)| {
        let mut flags = Flags::empty();
        flags.set(Flags::SIGNALLED, signalled);
        flags.set(Flags::FENCE, fence);
        flags
    });
    prop::collection::vec((kind, flags).prop_map(|(kind, flags)| Plan { kind, flags }), 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn requests_overtake_only_where_allowed_and_complete_in_order_on_any_rails(
        rails in 1..=MAX_RAILS,
        plans in plans(),
        steps in prop::collection::vec((0..4u8, 0..2 * MAX_RAILS), 0..300),
        refuses in prop::option::weighted(0.3, (0..2 * MAX_RAILS, 0..24u64)),
    ) {
        let mut world = World::new(rails);
        world.refuses = refuses;
        let mut rest = plans.iter();
        for (step, pair) in steps {
            let pair = pair % (2 * rails);
            match step {
                0 => if let Some(next) = rest.as_slice().first()
                    && world.post(*next).is_some() { rest.next(); }
                1 => { world.carry_out(pair); }
                2 => { world.hear(pair); }
                _ => world.poll(),
            }
        }
        world.finish();
        // All signalled completions arrived, in order, and so did failures. At most one of these is a refusal.
        let heard: Vec<u64> = world.told.iter().map(|(id, _)| *id).collect();
        prop_assert!(heard.is_sorted_by(|a, b| a < b), "{heard:?}");
        for (id, plan) in world.plans.iter().enumerate() {
            let told = world.told.iter().find(|(told, _)| *told == id as u64);
            let arrived = world.missing[id] == 0;
            match told {
                Some((_, Ok(()))) => prop_assert!(plan.flags.contains(Flags::SIGNALLED) && arrived),
                Some((_, Err(_))) => prop_assert!(world.is_over),
                None => prop_assert!(!plan.flags.contains(Flags::SIGNALLED) && arrived),
            }
        }
        let failures = world.told.iter().filter(|(_, result)| *result == Err(REFUSED)).count();
        prop_assert_eq!(failures, usize::from(world.is_over));
    }
}
