//! Servers and publishers, as the judge follows them: their incarnations, their versions, and the gradients in these.

use std::collections::{BTreeMap, BTreeSet};

use super::seen::{JudgedServer, Seen};
use super::{FabricJudge, PublishedVersion};
use crate::node::ServerStatus;
use crate::scheme::{GradientId, SchemeConfig, Share, Strength};
use crate::sim::bounds::{behind_most, counts, value_bound};
use crate::sim::fabric::values::{INCARNATION_LANE, LANES, bytes_of, gradients_between, lanes};
use crate::time::{Duration, Instant};

/// The time beyond its lease for which a dead worker may still be among a server's.
const EVICTION_SLACK: Duration = Duration::from_millis(80);

impl FabricJudge {
    /// The values of version 0 of a server's next incarnation.
    pub(in crate::sim::fabric) fn initial(&self, shard: usize, elements: usize) -> Vec<f32> {
        let number = 1 + self.incarnations.iter().filter(|one| one.shard == shard).count();
        (0..elements).map(|at| if at % LANES == INCARNATION_LANE { number as f32 } else { 0.0 }).collect()
    }

    pub(in crate::sim::fabric) fn born(&mut self, shard: usize, epoch: u64, initial: &[f32]) {
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
    pub(in crate::sim::fabric) fn follows(&mut self, epoch: u64, decider: Option<u64>, version: u64) {
        if let Some(incarnation) = self.incarnations.iter_mut().find(|one| one.epoch == epoch)
            && incarnation.decider.is_none()
        {
            (incarnation.decider, incarnation.first) = (decider, version);
        }
    }

    /// The versions of all shards are made of the same gradients where one server decides: a follower's versions of no
    /// others, and of all gradients that were published to its incarnation.
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
    pub(in crate::sim::fabric) fn publishes(&mut self, epoch: u64, bytes: Vec<u8>, is_last: bool) {
        self.published += 1;
        let Some(incarnation) = self.incarnations.iter_mut().find(|one| one.epoch == epoch) else { return };
        incarnation.versions.push(bytes);
        incarnation.is_writing = true;
        if is_last {
            self.last = Some((epoch, incarnation.newest()));
        }
    }

    /// Notes that all peers can read the version that the publisher was about to publish.
    pub(in crate::sim::fabric) fn has_published(&mut self, epoch: u64) {
        for incarnation in self.incarnations.iter_mut().filter(|one| one.epoch == epoch) {
            incarnation.is_writing = false;
        }
    }

    /// A server that follows begins again, since another incarnation decides: its peers lose their connections.
    pub(in crate::sim::fabric) fn begins_again(&mut self, shard: usize, decider: Option<u64>, now: Instant) {
        if self.incarnations.iter().any(|one| Some(one.epoch) == decider && !one.is_over) {
            self.fail(format!("server {shard} begins again though the one that decides for it is there"));
        }
        self.causes.all_lost(now);
        self.ended(shard);
    }

    /// The server or publisher of a shard is gone.
    pub(in crate::sim::fabric) fn ended(&mut self, shard: usize) {
        if self.last.take().is_some() {
            self.readers.fill(false);
        }
        for incarnation in self.incarnations.iter_mut().filter(|one| one.shard == shard) {
            incarnation.is_over = true;
        }
    }

    /// Where a scheme folds all in: a round may have been closed before its worker came, so that the first gradient of
    /// a session is too late for it, and no other.
    fn check_dropped(&self, epoch: u64, gradient: GradientId) -> Result<(), String> {
        let share = Share { gradient, weight: 0.0 };
        let is_of_liar = self.liar.is_some_and(|liar| self.workers[liar].has_had(epoch, &share));
        let mut computed = self.workers.iter().flat_map(|seen| &seen.gradients);
        let is_late_joiner = computed.any(|one| one.is_first && one.is_named(epoch, &share));
        if !self.needs.folds_all_in_order || is_of_liar || is_late_joiner {
            return Ok(());
        }
        Err(format!("it drops {gradient:?}, and under {} all are folded in", self.scheme))
    }

    /// The server of an incarnation has consumed a gradient that it does not fold.
    pub(in crate::sim::fabric) fn dropped(&mut self, epoch: u64, gradient: GradientId) {
        if let Err(what) = self.check_dropped(epoch, gradient) {
            self.fail(format!("a server: {what}"));
        }
        for incarnation in self.incarnations.iter_mut().filter(|one| one.epoch == epoch) {
            incarnation.dropped.insert((gradient.worker, gradient.clock.get()));
        }
    }

    pub(in crate::sim::fabric) fn published(&mut self, published: &PublishedVersion<'_>) {
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

    /// While all are in that were in when it began: an update is made of as many as the scheme says.
    fn check_count(&self, gradients: usize) -> Result<(), String> {
        let may_lack = self.has_left || self.harm.is_some() || self.liar.is_some() || self.is_over();
        let counts = counts(self.scheme.built_in(), self.workers.len());
        let counts = (*counts.start()).min(self.quorum)..=*counts.end();
        if may_lack || counts.contains(&gradients) {
            return Ok(());
        }
        Err(format!("it is made of {gradients} gradients, not of {counts:?} as under {}", self.scheme))
    }

    fn check_published(&mut self, published: &PublishedVersion<'_>) -> Result<(), String> {
        self.published += 1;
        self.check_count(published.shares.len())?;
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
        let most = behind_most(self.scheme.built_in(), published.shares.len());
        for (worker, number) in found {
            let named = format!("gradient {number} of worker {worker}");
            let computed = self.workers.get(worker).and_then(|seen| seen.gradients.get(number));
            let computed = computed.ok_or_else(|| format!("it holds {named}, which no worker computed"))?;
            let base = computed.base(published.epoch);
            let base =
                base.ok_or_else(|| format!("it holds {named}, which was computed for another incarnation"))?;
            let behind = (published.version.get() - 1).checked_sub(base.version);
            let behind = behind.ok_or_else(|| format!("{named} was computed on version {}", base.version))?;
            if most.is_some_and(|most| behind > most) {
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

    /// Under strong VAP: the updates that a worker with `version` has not seen are at most one, or within the bound.
    pub(super) fn check_unseen(&self, epoch: u64, version: u64) -> Result<(), String> {
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

    /// Notes that so many workers are in at a server.
    pub(in crate::sim::fabric) fn members(&mut self, workers: usize) {
        self.members_most = self.members_most.max(workers);
    }

    /// Checks the status that a server reports.
    pub(in crate::sim::fabric) fn status(&mut self, status: &ServerStatus, now: Instant, alive: usize) {
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
}
