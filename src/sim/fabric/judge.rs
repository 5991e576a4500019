//! The judge, which watches from outside: what every server published, what every peer was given, and whether that is
//! promised.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use super::bounds::{behind_most, value_bound};
use super::cause::Causes;
use super::plan::Plan;
use super::random::EventHash;
use super::relays::JudgedRelays;
use super::values::{BITS, GRADIENTS_MAX, INCARNATION_LANE, LANES, bytes_of, gradients_between, lanes};
use crate::clock::{Clock, Version, WorkerId};
use crate::mem::VolatileSlice;
use crate::node::{Error, ServerStatus, View};
use crate::scheme::{AnyScheme, GradientId, Needs, SchemeConfig, Share, Strength};
use crate::time::{Duration, Instant};
use crate::trace::{TraceChecker, TraceRecord, Violation};

/// The time by which a call may return later than asked: a node that stands back does not look at its watch.
const SLACK: Duration = Duration::from_millis(10);

/// The time beyond its lease for which a dead worker may still be among a server's.
const EVICTION_SLACK: Duration = Duration::from_millis(80);

/// A version that a server has just made.
pub(super) struct PublishedVersion<'a> {
    pub(super) epoch: u64,
    pub(super) version: Version,
    pub(super) smallest_clock: Clock,
    /// The gradients that were folded into it, with their weights.
    pub(super) shares: &'a [Share],
    pub(super) payload: VolatileSlice<'a>,
}

/// One incarnation of a server.
struct JudgedServer {
    epoch: u64,
    shard: usize,
    /// The bytes of each version, from the first that it had.
    versions: Vec<Vec<u8>>,
    first: u64,
    /// The gradients that came in with each version after the first: worker and number.
    made: Vec<BTreeSet<(usize, usize)>>,
    /// The incarnation whose decisions it follows.
    decider: Option<u64>,
    /// The last of them is being written: a peer may see it already.
    is_writing: bool,
    /// The smallest clock of its newest version.
    smallest_clock: u64,
    /// It was said that all gradients of earlier clocks are in.
    claimed: u64,
    /// The gradients that are in it, by worker and number.
    applied: BTreeMap<(usize, usize), u64>,
    /// The same by name, worker and clock: a worker's clock is in it once, whatever became of the worker.
    names: BTreeMap<(usize, u64), u64>,
    /// Gradients that were consumed without being folded, by peer and clock.
    dropped: BTreeSet<(WorkerId, u64)>,
    /// Of each version after the first: how much it moved a value, and the clock of the last gradient in it.
    moved: Vec<(f64, u64)>,
    /// Its server is gone: what it had is lost, and no process is behind it any more.
    is_over: bool,
}

/// A gradient that a worker computed.
pub(super) struct Computed {
    clock: u64,
    bases: Vec<Base>,
}

/// The version from which a gradient was computed, in one incarnation of a server.
#[derive(Clone, Copy)]
pub(super) struct Base {
    /// The incarnation.
    pub(super) epoch: u64,
    pub(super) version: u64,
    /// Its worker's index there.
    pub(super) peer: u16,
}

impl JudgedServer {
    /// The number of its newest version.
    fn newest(&self) -> u64 {
        self.first + self.versions.len() as u64 - 1
    }

    fn bytes(&self, version: u64) -> Option<&Vec<u8>> {
        self.versions.get(usize::try_from(version.checked_sub(self.first)?).ok()?)
    }

    /// The gradients that came in with a version.
    fn made(&self, version: u64) -> Option<&BTreeSet<(usize, usize)>> {
        self.made.get(usize::try_from(version.checked_sub(self.first + 1)?).ok()?)
    }
}

impl Computed {
    fn base(&self, epoch: u64) -> Option<Base> {
        self.bases.iter().find(|base| base.epoch == epoch).copied()
    }

    /// Whether this incarnation calls it what the share says.
    pub(super) fn is_named(&self, epoch: u64, share: &Share) -> bool {
        let GradientId { worker, clock } = share.gradient;
        self.clock == clock.get() && self.base(epoch).is_some_and(|base| worker == base.peer.into())
    }

    fn of_incarnation(&self, epoch: u64) -> bool {
        self.base(epoch).is_some()
    }
}

/// A worker as it is seen from outside.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) gradients: Vec<Computed>,
    /// The numbers of the gradients of its session that it was told are out.
    announced: Vec<usize>,
    /// The versions that its session holds, by epoch.
    held: BTreeMap<u64, u64>,
    /// It computes on what it holds.
    is_computing: bool,
    /// Its session abandoned what it computed on the version it holds.
    has_abandoned: bool,
    has_reached: bool,
    is_expected: bool,
    /// All indices that it ever had as a peer, each with the epoch of its owner.
    indices: BTreeSet<(u64, u16)>,
}

impl Seen {
    /// True if a share may be this worker's.
    pub(super) fn has_had(&self, epoch: u64, share: &Share) -> bool {
        share.gradient.worker.peer().is_some_and(|peer| self.indices.contains(&(epoch, peer)))
    }
}

pub(super) struct FabricJudge {
    scheme: AnyScheme,
    needs: Needs,
    lease: Duration,
    goal: u64,
    servers: usize,
    /// The number of the first node that is a relay.
    first_relay: usize,
    /// The most workers that were in at a server at once.
    members_most: usize,
    /// All shards count a worker's gradients alike.
    names_agree: bool,
    incarnations: Vec<JudgedServer>,
    workers: Vec<Seen>,
    /// The worker that breaks the protocol: what it is told is judged, and nothing that it says.
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
    /// What publishers and readers themselves put on record, each record located by its time.
    records: TraceChecker<Duration>,
    pub(super) trace: EventHash,
    pub(super) views: u64,
    pub(super) published: u64,
    pub(super) errors: u64,
}

impl FabricJudge {
    /// Makes the judge of what `plan` does, held to what `scheme` promises.
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

    /// Notes what broke a promise; the first counts.
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

    // ------------------------------------------------------------------ what breaks

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

    /// All that was frozen goes on.
    pub(super) fn calm(&mut self, now: Instant) {
        for (_, until) in self.frozen.iter_mut().flatten() {
            *until = (*until).min(now);
        }
    }

    /// A worker vanishes; `returns` if it is to come back.
    pub(super) fn crashed(&mut self, worker: usize, returns: bool) {
        let is_expected = returns && !self.is_liar(worker);
        let seen = &mut self.workers[worker];
        (seen.has_reached, seen.is_expected, seen.is_computing) = (false, is_expected, false);
    }

    // ------------------------------------------------------------------ servers

    /// The values of version 0 of a server's next incarnation.
    pub(super) fn initial(&self, shard: usize, elements: usize) -> Vec<f32> {
        let number = 1 + self.incarnations.iter().filter(|one| one.shard == shard).count();
        (0..elements).map(|at| if at % LANES == INCARNATION_LANE { number as f32 } else { 0.0 }).collect()
    }

    pub(super) fn born(&mut self, shard: usize, epoch: u64, initial: &[f32]) {
        let versions = vec![initial.iter().flat_map(|value| value.to_le_bytes()).collect()];
        self.trace.note(self.incarnations.len() as u64);
        self.incarnations.push(JudgedServer {
            epoch,
            shard,
            versions,
            first: 0,
            made: Vec::new(),
            decider: None,
            is_writing: false,
            smallest_clock: 0,
            claimed: 0,
            applied: BTreeMap::new(),
            names: BTreeMap::new(),
            dropped: BTreeSet::new(),
            moved: Vec::new(),
            is_over: false,
        });
    }

    /// The server of an incarnation follows the one of another, from this version on if it has none of its own yet.
    pub(super) fn follows(&mut self, epoch: u64, decider: Option<u64>, version: u64) {
        if let Some(incarnation) = self.incarnations.iter_mut().find(|one| one.epoch == epoch)
            && incarnation.decider.is_none()
        {
            (incarnation.decider, incarnation.first) = (decider, version);
        }
    }

    /// The versions of all shards are made of the same gradients where one decides: a follower's of no others, and of
    /// all that were published to its incarnation.
    fn check_decided(&self, epoch: u64, version: u64) -> Result<(), String> {
        let Some(incarnation) = self.incarnations.iter().find(|one| one.epoch == epoch) else {
            return Ok(());
        };
        let decider = incarnation.decider.unwrap_or(epoch);
        let Some(decided) =
            self.incarnations.iter().find(|one| one.epoch == decider).and_then(|it| it.made(version))
        else {
            return Ok(());
        };
        for follower in self.incarnations.iter().filter(|one| one.decider == Some(decider)) {
            let Some(made) = follower.made(version) else { continue };
            if let Some(other) = made.difference(decided).next() {
                let shard = follower.shard;
                return Err(format!("shard {shard} has {other:?} in it, and shard 0 has not"));
            }
            let lacks = |(worker, number): &&(usize, usize)| {
                self.workers[*worker].gradients[*number].of_incarnation(follower.epoch)
            };
            if let Some(missing) = decided.difference(made).find(lacks) {
                let shard = follower.shard;
                return Err(format!("shard {shard} lacks {missing:?}, which shard 0 has in it"));
            }
        }
        Ok(())
    }

    /// A publisher is about to publish `bytes` as its next version.
    pub(super) fn publishes(&mut self, epoch: u64, bytes: Vec<u8>, is_last: bool) {
        self.published += 1;
        let Some(incarnation) = self.incarnations.iter_mut().find(|one| one.epoch == epoch) else { return };
        incarnation.versions.push(bytes);
        incarnation.is_writing = true;
        if is_last {
            self.last = Some((epoch, incarnation.newest()));
        }
    }

    /// Notes that all peers can read what the publisher was about to publish.
    pub(super) fn has_published(&mut self, epoch: u64) {
        for incarnation in self.incarnations.iter_mut().filter(|one| one.epoch == epoch) {
            incarnation.is_writing = false;
        }
    }

    /// A server that follows begins again, since another incarnation decides: its peers lose their connections.
    pub(super) fn begins_again(&mut self, shard: usize, decider: Option<u64>, now: Instant) {
        if self.incarnations.iter().any(|one| Some(one.epoch) == decider && !one.is_over) {
            self.fail(format!("server {shard} begins again though the one that decides for it is there"));
        }
        self.causes.all_lost(now);
        self.ended(shard);
    }

    /// The server or publisher of a shard is gone.
    pub(super) fn ended(&mut self, shard: usize) {
        if self.last.take().is_some() {
            self.readers.fill(false);
        }
        for incarnation in self.incarnations.iter_mut().filter(|one| one.shard == shard) {
            incarnation.is_over = true;
        }
    }

    /// The server of an incarnation has consumed a gradient that it does not fold.
    pub(super) fn dropped(&mut self, epoch: u64, gradient: GradientId) {
        for incarnation in self.incarnations.iter_mut().filter(|one| one.epoch == epoch) {
            incarnation.dropped.insert((gradient.worker, gradient.clock.get()));
        }
    }

    pub(super) fn published(&mut self, published: &PublishedVersion<'_>) {
        let checked = self.check_published(published);
        let checked = checked.and_then(|()| self.check_decided(published.epoch, published.version.get()));
        let checked = checked.and_then(|()| {
            let on_it = |seen: &Seen| seen.held.get(&published.epoch).copied().filter(|_| seen.is_computing);
            let honest = self.workers.iter().enumerate().filter(|(worker, _)| !self.is_liar(*worker));
            let held: Vec<_> = honest.filter_map(|(_, seen)| on_it(seen)).collect();
            held.into_iter().try_for_each(|version| self.check_unseen(published.epoch, version))
        });
        if let Err(what) = checked {
            let version = published.version.get();
            self.fail(format!("version {version} of a server: {what}"));
        }
    }

    fn check_published(&mut self, published: &PublishedVersion<'_>) -> Result<(), String> {
        self.published += 1;
        let bytes = bytes_of(published.payload);
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            self.trace.note(u64::from_le_bytes(padded));
        }
        let liar = self.liar;
        let incarnation = self.incarnations.iter_mut().find(|one| one.epoch == published.epoch);
        let incarnation = incarnation.ok_or("of an unknown incarnation")?;
        if published.version.get() != incarnation.newest() + 1 {
            return Err(format!("it follows version {}", incarnation.newest()));
        }
        let before = incarnation.versions.last().map_or(&[][..], Vec::as_slice);
        let (after, before) = (lanes(&bytes, liar)?, lanes(before, liar)?);
        let found = gradients_between(&before, &after, published, &self.workers, liar)?;
        let of_liar =
            |share: &&Share| liar.is_some_and(|liar| self.workers[liar].has_had(published.epoch, share));
        let lies = published.shares.iter().filter(of_liar).count();
        if !(published.shares.len() - lies..=published.shares.len()).contains(&found.len()) {
            let folded = published.shares.len() - lies;
            return Err(format!(
                "{folded} gradients were folded, its values tell of {}: {found:?}",
                found.len()
            ));
        }
        let mut names: Vec<_> = published.shares.iter().map(|share| share.gradient).collect();
        if let Some(name) = names.iter().find(|name| name.clock.get() < incarnation.claimed) {
            let (clock, claimed) = (name.clock.get(), incarnation.claimed);
            return Err(format!(
                "a gradient of clock {clock} is new in it, and all before {claimed} were said to be in"
            ));
        }
        incarnation.made.push(found.iter().copied().collect());
        for (worker, number) in found {
            let named = format!("gradient {number} of worker {worker}");
            let computed = self.workers.get(worker).and_then(|seen| seen.gradients.get(number));
            let computed = computed.ok_or_else(|| format!("it holds {named}, which no worker computed"))?;
            let base = computed.base(published.epoch);
            let base =
                base.ok_or_else(|| format!("it holds {named}, which was computed for another incarnation"))?;
            let behind = (published.version.get() - 1).checked_sub(base.version);
            let behind = behind.ok_or_else(|| format!("{named} was computed on version {}", base.version))?;
            if behind_most(&self.scheme).is_some_and(|most| behind > most) {
                let scheme = &self.scheme;
                return Err(format!(
                    "{named} was computed on version {}, too old under {scheme}",
                    base.version
                ));
            }
            // Where no worker waits for another, shards may count a worker's gradients differently.
            let clock = computed.clock;
            let is_it = |name: &GradientId| {
                name.worker == base.peer.into() && (name.clock.get() == clock || !self.names_agree)
            };
            let index = names.iter().position(is_it);
            let index =
                index.ok_or_else(|| format!("{named} of clock {clock} was folded as of {names:?}"))?;
            let name = names.swap_remove(index);
            if let Some(earlier) = incarnation.applied.insert((worker, number), published.version.get()) {
                return Err(format!("{named} is in it and in version {earlier}, too"));
            }
            let clock = name.clock.get();
            let later = incarnation.names.range((worker, clock + 1)..=(worker, u64::MAX)).next();
            if let (true, Some(((_, later), _))) = (self.needs.folds_all_in_order, later) {
                return Err(format!("{named} of clock {clock} comes after that of clock {later}"));
            }
            if let Some(earlier) = incarnation.names.insert((worker, clock), published.version.get()) {
                return Err(format!(
                    "{named} is in it as clock {clock} of its worker, which is in version {earlier}, too"
                ));
            }
        }
        if published.smallest_clock.get() < incarnation.smallest_clock {
            return Err(format!("its smallest clock went back from {}", incarnation.smallest_clock));
        }
        incarnation.smallest_clock = published.smallest_clock.get();
        incarnation.claimed = incarnation.claimed.max(published.smallest_clock.get());
        incarnation.versions.push(bytes);
        let moves = (0..INCARNATION_LANE).map(|lane| f64::from(after[lane]) - f64::from(before[lane]));
        let clock = published.shares.iter().map(|share| share.gradient.clock.get()).max().unwrap_or_default();
        incarnation.moved.push((moves.fold(0.0, f64::max), clock));
        Ok(())
    }

    /// Under strong VAP: what a worker that holds `version` has not seen is at most one update or within the bound.
    fn check_unseen(&self, epoch: u64, version: u64) -> Result<(), String> {
        let Some(SchemeConfig::Vap { bound, strength: Strength::Strong }) = self.scheme.built_in() else {
            return Ok(());
        };
        let Some(incarnation) = self.incarnations.iter().find(|one| one.epoch == epoch) else {
            return Ok(());
        };
        let seen = version.saturating_sub(incarnation.first) as usize;
        let unseen = incarnation.moved.get(seen..).unwrap_or_default();
        let ([_, .., (_, clock)], sum) = (unseen, unseen.iter().map(|(moved, _)| moved).sum::<f64>()) else {
            return Ok(());
        };
        // A worker that was taken for dead is not waited for, and learns of it late.
        if sum > value_bound(bound, *clock) && self.harm.is_none() {
            let count = unseen.len();
            return Err(format!("{sum} in {count} updates is new to a worker that computes on {version}"));
        }
        Ok(())
    }

    /// Under VAP: what a worker has in transit when it begins a clock leaves room for one more of its last size.
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
        // Its worker counts with what it was told last, which may be late.
        let weight = 1.0 / self.members_most as f64;
        if transit > 0.0 && (transit + next) * weight > value_bound(bound, clock) {
            return Err(format!("it computes while {transit} is in transit under {}", self.scheme));
        }
        Ok(())
    }

    /// Notes that so many workers are in at a server.
    pub(super) fn members(&mut self, workers: usize) {
        self.members_most = self.members_most.max(workers);
    }

    /// Checks the status that a server reports.
    pub(super) fn status(&mut self, status: &ServerStatus, now: Instant, alive: usize) {
        if status.misbehaved > 0 && self.liar.is_none() {
            self.fail("a server accused an honest worker of breaking the protocol".into());
        }
        if now - self.unrest > self.lease + EVICTION_SLACK && status.workers > alive {
            let since = now - self.unrest;
            let workers = status.workers;
            self.fail(format!(
                "a server has {workers} workers, {alive} live, and nothing changed for {since:?}"
            ));
        }
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
        seen.announced.clear();
        seen.held.clear();
        (seen.is_computing, seen.has_abandoned) = (false, false);
    }

    /// Whether a worker that has this before it has reached the goal. A worker that may be interrupted again and
    /// again has done its part when the others have.
    pub(super) fn is_there(&self, view: &View) -> bool {
        let reached = if self.needs.interrupts { view.version.get() } else { view.clock.get() };
        reached >= self.goal
    }

    /// Notes and checks what a worker was told to compute on: of each shard its incarnation, version and bytes.
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

    /// Judges the records alone, as someone who saw nothing of the run. The judge that saw it has looked at each
    /// version and each copy before; the same run must convince both.
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

    /// A worker abandoned what it computed.
    pub(super) fn abandoned(&mut self, worker: usize) {
        let seen = &mut self.workers[worker];
        (seen.is_computing, seen.has_abandoned) = (false, true);
    }

    /// A worker has computed: the number of its gradient, `None` if it has no more.
    pub(super) fn computed(&mut self, worker: usize, clock: u64, bases: Vec<Base>) -> Option<usize> {
        self.workers[worker].is_computing = false;
        let gradients = &mut self.workers[worker].gradients;
        (gradients.len() < GRADIENTS_MAX).then(|| {
            gradients.push(Computed { clock, bases });
            gradients.len() - 1
        })
    }

    /// The worker was told that a gradient is out.
    pub(super) fn announced(&mut self, worker: usize, number: usize) {
        self.workers[worker].announced.push(number);
    }

    /// The worker was told that all that it has published is consumed.
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

    /// An error that a worker or reader got: is it one of those that may come?
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
            // A node that asks early, often or late is turned away, and asks again.
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
