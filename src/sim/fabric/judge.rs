//! The judge, which watches from outside: the versions of every server, the results of every peer, and whether these
//! keep the promises.
#![forbid(unsafe_code)]

mod seen;
mod server;

pub(super) use self::seen::{Base, Seen};
use self::seen::{Computed, JudgedServer};

use super::cause::Causes;
use super::plan::Plan;
use super::random::EventHash;
use super::relays::JudgedRelays;
use super::values::{BITS, GRADIENTS_MAX, bytes_of};
use crate::clock::{Clock, Version};
use crate::mem::VolatileSlice;
use crate::node::{Error, View};
use crate::scheme::{AnyScheme, Needs, SchemeConfig, Share};
use crate::sim::bounds::value_bound;
use crate::time::{Duration, Instant};
use crate::trace::{TraceChecker, TraceRecord, Violation};

/// The time by which a call may return later than asked: a node that stands back does not look at its watch.
const SLACK: Duration = Duration::from_millis(10);

/// A version that a server has just made.
pub(super) struct PublishedVersion<'a> {
    pub(super) epoch: u64,
    pub(super) version: Version,
    pub(super) smallest_clock: Clock,
    /// The gradients that were folded into it, with their weights.
    pub(super) shares: &'a [Share],
    pub(super) payload: VolatileSlice<'a>,
}

pub(super) struct FabricJudge {
    scheme: AnyScheme,
    needs: Needs,
    lease: Duration,
    goal: u64,
    servers: usize,
    /// The number of the first node that is a relay.
    first_relay: usize,
    /// The most workers that were in at a server at once, and how many at least once the first has begun to fold.
    members_most: usize,
    quorum: usize,
    /// A worker was lost, or has left: fewer may be in.
    has_left: bool,
    /// All shards count a worker's gradients alike.
    names_agree: bool,
    incarnations: Vec<JudgedServer>,
    workers: Vec<Seen>,
    /// The worker that breaks the protocol: answers to it are judged, and its own words are not.
    liar: Option<usize>,
    /// Explanations of evictions.
    pub(super) causes: Causes,
    /// The incarnation and number of a publisher's last version, once it is made.
    last: Option<(u64, u64)>,
    pub(super) relays: JudgedRelays,
    /// For each reader of a publisher, whether it has got that version.
    readers: Vec<bool>,
    frozen: Vec<Vec<(Instant, Instant)>>,
    /// The time at which a node last came, went, or was held up.
    unrest: Instant,
    /// The time at which a server was last held up or began, or an owner vanished.
    harm: Option<Instant>,
    failure: Option<String>,
    /// The records of publishers and readers, each located by its time.
    records: TraceChecker<Duration>,
    pub(super) trace: EventHash,
    pub(super) views: u64,
    pub(super) published: u64,
    pub(super) errors: u64,
}

impl FabricJudge {
    /// Makes the judge of the run of `plan`, held to the promises of `scheme`.
    pub(super) fn new(plan: &Plan, scheme: AnyScheme) -> FabricJudge {
        let needs = scheme.needs();
        let Plan { lease, goal, workers, servers, .. } = *plan;
        let seen = |worker| Seen { is_expected: plan.liar != Some(worker), ..Seen::default() };
        FabricJudge {
            scheme,
            needs,
            lease,
            goal,
            servers,
            first_relay: plan.nodes() - plan.relays,
            members_most: 1,
            quorum: plan.quorum[0],
            has_left: false,
            names_agree: needs.staleness.is_some() || needs.counts_versions || servers == 1,
            incarnations: Vec::new(),
            workers: (0..workers).map(seen).collect(),
            liar: plan.liar,
            causes: Causes::new(lease, plan.nodes()),
            last: None,
            relays: JudgedRelays::default(),
            readers: vec![!plan.publishes(); plan.readers],
            frozen: vec![Vec::new(); plan.nodes()],
            unrest: Instant::ORIGIN,
            harm: None,
            failure: None,
            records: TraceChecker::new(Duration::ZERO),
            trace: EventHash::new(),
            views: 0,
            published: 0,
            errors: 0,
        }
    }

    /// Notes a broken promise; the first one counts.
    pub(super) fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    pub(super) fn failure(&self) -> Option<&String> {
        self.failure.as_ref()
    }

    /// True if every node that is expected has reached the goal.
    pub(super) fn is_over(&self) -> bool {
        let is_there = |worker: &Seen| worker.has_reached || !worker.is_expected;
        let all_are_there = self.workers.iter().all(is_there) && self.readers.iter().all(|has| *has);
        self.failure.is_some() || all_are_there
    }

    /// Names the workers and readers that have not.
    pub(super) fn laggards(&self) -> String {
        let late = |worker: &Seen| worker.is_expected && !worker.has_reached;
        let workers: Vec<usize> = (0..self.workers.len()).filter(|at| late(&self.workers[*at])).collect();
        let readers: Vec<usize> = (0..self.readers.len()).filter(|at| !self.readers[*at]).collect();
        format!("workers {workers:?} and readers {readers:?} are")
    }

    // ------------------------------------------------------------------ faults

    /// A node comes, goes or is held up.
    pub(super) fn unrest(&mut self, now: Instant) {
        self.unrest = self.unrest.max(now);
    }

    /// Something happened after which a worker may be taken for dead.
    pub(super) fn harm(&mut self, until: Instant) {
        self.harm = self.harm.max(Some(until));
        self.unrest(until);
    }

    pub(super) fn freeze(&mut self, node: usize, from: Instant, until: Instant) {
        self.frozen[node].push((from, until));
        self.harm(until);
        // A relay is an owner and a peer.
        if node < self.servers || node >= self.first_relay {
            self.causes.pause(from, until);
        }
        if node >= self.servers {
            self.causes.outage(node, from, until);
        }
    }

    /// An owner did nothing but register memory for a newcomer for a while.
    pub(super) fn held_up(&mut self, pause: Duration) {
        self.fail(format!(
            "an owner served no peer for {pause:?}, in which it registered memory for another"
        ));
    }

    /// An owner let a peer go that is alive and connected.
    pub(super) fn evicted(&mut self, node: usize, now: Instant) {
        self.has_left = true;
        let is_allowed = self.is_over() || self.is_liar_at(node) || self.causes.explain(node, now);
        if !is_allowed {
            self.fail(format!("node {node} was evicted though it lives and kept the protocol"));
        }
    }

    fn is_liar_at(&self, node: usize) -> bool {
        self.liar.is_some_and(|liar| node == self.servers + liar)
    }

    pub(super) fn is_liar(&self, worker: usize) -> bool {
        self.liar == Some(worker)
    }

    /// All frozen nodes continue.
    pub(super) fn calm(&mut self, now: Instant) {
        for (_, until) in self.frozen.iter_mut().flatten() {
            *until = (*until).min(now);
        }
    }

    /// A worker vanishes; `returns` if it is to come back.
    pub(super) fn crashed(&mut self, worker: usize, returns: bool) {
        self.has_left = true;
        let is_expected = returns && !self.is_liar(worker);
        let seen = &mut self.workers[worker];
        (seen.has_reached, seen.is_expected, seen.is_computing) = (false, is_expected, false);
    }

    // ------------------------------------------------------------------ workers and readers

    /// A call returned: by its deadline?
    pub(super) fn returned(
        &mut self,
        node: usize,
        call: &str,
        from: Instant,
        now: Instant,
        timeout: Duration,
    ) {
        let overlap = |(begin, end): &(Instant, Instant)| (*end).min(now) - (*begin).max(from);
        let frozen: Duration = self.frozen[node].iter().map(overlap).sum();
        if now - from > timeout + frozen + SLACK {
            let took = now - from;
            self.fail(format!(
                "`{call}` took {took:?} with a timeout of {timeout:?} (and {frozen:?} frozen)"
            ));
        }
    }

    /// A worker begins a session, at these indices of these incarnations.
    pub(super) fn joined(&mut self, worker: usize, indices: impl Iterator<Item = (u64, u16)>) {
        let seen = &mut self.workers[worker];
        seen.indices.extend(indices);
        seen.first = seen.gradients.len();
        seen.announced.clear();
        seen.held.clear();
        (seen.is_computing, seen.has_abandoned) = (false, false);
    }

    /// A worker ends its session, or begins none that a server may have begun, and may begin another.
    pub(super) fn leaves(&mut self) {
        self.has_left = true;
    }

    /// Whether a worker that has this before it has reached the goal. A worker that may be interrupted again and
    /// again has done its part when the others have.
    pub(super) fn is_there(&self, view: &View) -> bool {
        let reached = if self.needs.interrupts { view.version.get() } else { view.clock.get() };
        reached >= self.goal
    }

    /// Notes and checks the parameters that a worker computes on: of each shard its incarnation, version and bytes.
    pub(super) fn viewed(&mut self, worker: usize, view: &View, copies: &[(u64, u64, &[u8])]) {
        self.views += 1;
        self.trace.note(view.version.get() << 32 | view.clock.get() << 8 | worker as u64);
        for (epoch, version, bytes) in copies {
            if let Err(what) = self.check_copy(*epoch, *version, bytes) {
                self.fail(format!("worker {worker} at clock {}: {what}", view.clock.get()));
            }
            let held = self.workers[worker].held.insert(*epoch, *version);
            // A server that follows may have had a later one than the decider, which asked for the next of its own.
            let follows = self.incarnations.iter().any(|one| one.epoch == *epoch && one.decider.is_some());
            let is_next = self.workers[worker].has_abandoned && !follows;
            let least = held.map(|held| held + u64::from(is_next));
            if least.is_some_and(|least| least > *version) {
                self.fail(format!("worker {worker} was given version {version} where {least:?} was due"));
            }
            let in_bound = self.check_unseen(*epoch, *version);
            let in_bound = in_bound.and_then(|()| self.check_transit(worker, view.clock.get()));
            if let Err(what) = in_bound.or_else(|what| if self.is_liar(worker) { Ok(()) } else { Err(what) })
            {
                self.fail(format!("worker {worker} at clock {}: {what}", view.clock.get()));
            }
            if let Some(incarnation) = self.incarnations.iter_mut().find(|one| one.epoch == *epoch) {
                incarnation.claimed = incarnation.claimed.max(view.smallest_clock.get());
            }
        }
        if let Some(bound) = self.needs.staleness
            && view.staleness() > bound
        {
            let (clock, stale) = (view.clock.get(), view.staleness());
            self.fail(format!(
                "worker {worker} at clock {clock} is {stale} clocks stale under {}",
                self.scheme
            ));
        }
        let is_there = self.is_there(view);
        let seen = &mut self.workers[worker];
        (seen.is_computing, seen.has_abandoned) = (true, false);
        seen.has_reached |= is_there;
    }

    /// Under VAP: a worker's updates in transit when it begins a clock leave room for one more of its last size.
    fn check_transit(&self, worker: usize, clock: u64) -> Result<(), String> {
        let Some(SchemeConfig::Vap { bound, .. }) = self.scheme.built_in() else { return Ok(()) };
        let seen = &self.workers[worker];
        let size = |number: usize| (1u64 << (number % BITS)) as f64;
        let is_missing = |number: &&usize| {
            let lacks = |one: &JudgedServer| !one.is_over && !one.applied.contains_key(&(worker, **number));
            let computed = &seen.gradients[**number];
            self.incarnations.iter().any(|one| computed.of_incarnation(one.epoch) && lacks(one))
        };
        let transit: f64 = seen.announced.iter().filter(is_missing).map(|number| size(*number)).sum();
        let next = seen.announced.last().map_or(0.0, |number| size(*number));
        // Its worker counts with its last received state, which may be old.
        let weight = 1.0 / self.members_most as f64;
        if transit > 0.0 && (transit + next) * weight > value_bound(bound, clock) {
            return Err(format!("it computes while {transit} is in transit under {}", self.scheme));
        }
        Ok(())
    }

    /// A copy is exactly one version of the incarnation that it was read of.
    fn check_copy(&self, epoch: u64, version: u64, bytes: &[u8]) -> Result<(), String> {
        let incarnation =
            self.incarnations.iter().find(|one| one.epoch == epoch).ok_or("an unknown incarnation")?;
        let published = incarnation.bytes(version);
        let published = published.ok_or_else(|| {
            let (first, newest) = (incarnation.first, incarnation.newest());
            format!("was given version {version} of an incarnation that has {first} to {newest}")
        })?;
        if published == bytes {
            return Ok(());
        }
        let same = |other: &Vec<u8>| other == bytes;
        let other = self.incarnations.iter().enumerate().find_map(|(index, incarnation)| {
            let version = incarnation.versions.iter().position(same)?;
            Some(format!("version {} of incarnation {index}", incarnation.first + version as u64))
        });
        let what = other.unwrap_or_else(|| "a mixture".into());
        Err(format!("was given {what} as version {version}"))
    }

    /// A reader got a version; `newest` was there when it asked, and it may be so many behind.
    pub(super) fn read(&mut self, index: usize, epoch: u64, version: u64, least: u64, bytes: &[u8]) {
        self.views += 1;
        self.readers[index] |= self.last.is_some_and(|last| last <= (epoch, version) && last.0 == epoch);
        self.trace.note(version);
        if let Err(what) = self.check_copy(epoch, version, bytes) {
            self.fail(format!("the reader {what}"));
        }
        let is_over = self.incarnations.iter().any(|one| one.epoch == epoch && one.is_over);
        if version < least && !is_over {
            self.fail(format!(
                "the reader was given version {version} where {least} was the oldest permitted"
            ));
        }
    }

    /// A publisher or a reader put this on record.
    pub(super) fn recorded(&mut self, record: TraceRecord, now: Instant) {
        self.records.add(record, now - Instant::ORIGIN);
    }

    /// Judges the records alone, as a third party does that saw nothing of the run. The judge that saw it has looked at
    /// each version and each copy before; the same run must convince both.
    pub(super) fn check_records(&mut self) {
        let verdict = std::mem::replace(&mut self.records, TraceChecker::new(Duration::ZERO)).finish();
        if let Some(Violation { property, at, found, .. }) = verdict.violations.first() {
            self.fail(format!("by the records alone, of {at:?}, a read was not {property}: {found}"));
        }
    }

    /// The newest version of an incarnation, or of a relay's.
    pub(super) fn newest(&self, epoch: u64) -> u64 {
        let incarnation = self.incarnations.iter().find(|one| one.epoch == epoch);
        incarnation.map_or_else(|| self.relays.newest(epoch), |one| one.newest() - u64::from(one.is_writing))
    }

    /// A relay serves a version, which is this publisher's.
    pub(super) fn relayed(&mut self, epoch: u64, version: u64, origin: u64, payload: VolatileSlice<'_>) {
        let serves = self.relays.serves(epoch, version);
        let check =
            |is_new| if is_new { self.check_copy(origin, version, &bytes_of(payload)) } else { Ok(()) };
        if let Err(what) = serves.and_then(check) {
            self.fail(format!("a relay {what}"));
        }
    }

    /// Whether a publisher has begun more than once.
    pub(super) fn has_successor(&self) -> bool {
        self.incarnations.len() > 1
    }

    /// A worker abandoned its computation.
    pub(super) fn abandoned(&mut self, worker: usize) {
        let seen = &mut self.workers[worker];
        (seen.is_computing, seen.has_abandoned) = (false, true);
    }

    /// A worker has computed: the number of its gradient, `None` if it has no more.
    pub(super) fn computed(&mut self, worker: usize, clock: u64, bases: Vec<Base>) -> Option<usize> {
        self.workers[worker].is_computing = false;
        let Seen { gradients, first, .. } = &mut self.workers[worker];
        (gradients.len() < GRADIENTS_MAX).then(|| {
            gradients.push(Computed { clock, bases, is_first: gradients.len() == *first });
            gradients.len() - 1
        })
    }

    /// The worker was told that a gradient is out.
    pub(super) fn announced(&mut self, worker: usize, number: usize) {
        self.workers[worker].announced.push(number);
    }

    /// The worker was told that all its published gradients are consumed.
    pub(super) fn flushed(&mut self, worker: usize) {
        if self.is_liar(worker) {
            return;
        }
        let seen = &self.workers[worker];
        for incarnation in self.incarnations.iter().filter(|one| !one.is_over) {
            let is_missing = |number: &&usize| {
                let computed = &seen.gradients[**number];
                computed.base(incarnation.epoch).is_some_and(|base| {
                    let is_dropped = incarnation.dropped.contains(&(base.peer.into(), computed.clock));
                    !is_dropped && !incarnation.applied.contains_key(&(worker, **number))
                })
            };
            let missing: Vec<_> = seen.announced.iter().filter(is_missing).collect();
            if !missing.is_empty() {
                let shard = incarnation.shard;
                return self.fail(format!(
                    "worker {worker} was told that its gradients are consumed, and shard {shard} neither folded nor \
                     dropped {missing:?}"
                ));
            }
        }
    }

    /// Checks whether an error of a worker or reader is a permitted one.
    pub(super) fn erred(&mut self, node: usize, call: &str, error: &Error, since: Instant) {
        self.errors += 1;
        for seen in self.workers.iter_mut().skip(node.wrapping_sub(self.servers)).take(1) {
            seen.is_computing = false;
        }
        if self.is_liar_at(node) {
            return;
        }
        // Connections end where something breaks them, or when all is over.
        let has_cause = self.harm.is_some() || self.is_over();
        let is_allowed = match error {
            // A node that asks early, often or late is refused, and asks again.
            Error::Deadline { .. } | Error::Connect(_) => true,
            Error::ServerLost { .. } | Error::Post { .. } => has_cause,
            // No peer is evicted without a reason.
            Error::Evicted { .. } => self.causes.explain(node, since),
            Error::Pull { source, .. } => {
                use crate::param::PullError::{Completion, Disconnected, Epoch, Post};
                has_cause && matches!(source, Completion(_) | Disconnected(_) | Epoch { .. } | Post(_))
            }
            Error::Publish { source, .. } => {
                use crate::param::PublishError::{Completion, Disconnected, Post};
                has_cause && matches!(source, Completion(_) | Disconnected(_) | Post(_))
            }
            _ => false,
        };
        if !is_allowed {
            self.fail(format!("node {node}: `{call}` failed though nothing gave cause: {error}"));
        }
    }
}
