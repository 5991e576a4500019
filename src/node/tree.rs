//! The tree of relays that a publisher arranges: which owner each relay and each reader reads from.
//!
//! The publisher learns of relays by their announcements alone, and forgets a relay a lease after its last one, not
//! counting time in which the publisher did not look. So a tree repairs itself, and a publisher that restarts knows its
//! tree once all relays have announced themselves again.
//!
//! A relay gets a number when it first announces itself, larger than those before, and keeps it until it ends. It is
//! only ever told to read from relays with *smaller* numbers, or from the publisher. So no cycle can arise, even if a
//! relay still acts on an older answer. And there is always an owner for it: each relay before it lets at least one
//! other relay read from it, and they are one fewer than the branches that they and the publisher have.

use std::collections::BTreeMap;

use crate::clock::Version;
use crate::param::{Joiner, RelayNotice, TreeOwner, TreePosition};
use crate::time::{Duration, Instant, Silence};
use crate::transport::{Address, Host};

/// Longest time that a publisher may take to name the owners, and an owner to let a reader in before the next one is
/// asked.
pub(super) const ASK_FOR: Duration = Duration::from_secs(1);

/// The part of a lease after which a relay announces itself again.
const PART_OF_LEASE: u32 = 3;

/// Owners that are named in an answer, before the publisher.
const CHOICES: usize = 3;

/// A relay is slow if versions come to it at less than the usual speed divided by this. It cannot pass versions on
/// faster than it receives them. Links that are shared now and then stay far above it.
const SLOW: u64 = 4;

/// Leases for which a lost owner counts as unavailable: a minute, unless a lease is long.
const LOST_FOR: u32 = 20;

/// Most of them that are kept.
const LOST_MAX: usize = 16;

/// Most relays; beyond them the relays whose last announcement is the oldest are forgotten first.
const RELAYS_MAX: usize = 4096;

/// How far the clock of the publisher that gave a relay its number may have been ahead of this one's: about a year.
const AHEAD: u64 = 1 << 55;

/// The arrangement of a publisher's relays.
#[derive(Debug)]
pub(super) struct Tree {
    /// The publisher's incarnation, and the version at which it began.
    began: (u64, Version),
    host: Host,
    /// Relays that read from the publisher itself.
    branches: u16,
    lease: Duration,
    /// By number.
    relays: BTreeMap<u64, TreeRelay>,
    /// The time at which the publisher last looked for announcements.
    looked: Option<Instant>,
    /// The speed at which versions usually come to a relay, in bytes per second; 0 as long as it is not known.
    usual_speed: u64,
}

#[derive(Debug)]
struct TreeRelay {
    host: Host,
    notice: RelayNotice,
    heard: Instant,
    /// Readers that were sent there since.
    sent: u16,
    /// The owners that it has lost or that have refused it, and when.
    lost: Vec<(u64, Instant)>,
}

impl Tree {
    /// A tree without relays, of a publisher on `host` that lets so many relays read from it.
    pub(super) fn new(began: (u64, Version), host: Host, branches: u16, lease: Duration) -> Tree {
        let (branches, relays) = (branches.max(1), BTreeMap::new());
        Tree { began, host, branches, lease, relays, looked: None, usual_speed: 0 }
    }

    /// The publisher is about to look for announcements. The time for which it did not look, because it computed or was
    /// stopped, counts against no relay, as it counts against no peer ([`Silence`]).
    pub(super) fn look(&mut self, now: Instant) {
        let since = now - self.looked.replace(now).unwrap_or(now);
        let away = since.saturating_sub(Silence::look_every(self.lease));
        if !away.is_zero() {
            self.relays.values_mut().for_each(|relay| relay.heard = relay.heard + away);
        }
    }

    /// The position of a process that asks for one; `fresh` is the number for a new relay, if it is larger than all
    /// others (the time of day).
    pub(super) fn position(
        &mut self,
        joiner: &Joiner,
        now: Instant,
        fresh: u64,
        own: &Address,
    ) -> TreePosition {
        self.relays.retain(|_, member| now.saturating_since(member.heard) < self.lease);
        self.usual_speed = self.median_speed();
        let again_ns = u64::try_from((self.lease / PART_OF_LEASE).as_nanos()).unwrap_or(u64::MAX);
        let (number, chosen) = match &joiner.relay {
            Some(notice) => self.admit(joiner, notice, now, fresh),
            None => (TreePosition::PUBLISHER, self.choose_for_reader(joiner)),
        };
        let mut owners: Vec<TreeOwner> = Vec::new();
        for owner in chosen {
            for address in self.addresses(owner, &joiner.host, own) {
                owners.push(TreeOwner { number: owner, address });
            }
        }
        if owners.len() > TreePosition::OWNERS_MAX {
            // The last owner is asked if all others fail.
            let last = owners.split_off(owners.len() - 1);
            owners.truncate(TreePosition::OWNERS_MAX - 1);
            owners.extend(last);
        }
        let (origin, begin_at) = (self.began.0, self.began.1.get());
        TreePosition { number, again_ns, origin, begin_at, owners }
    }

    /// Records an announcement, and returns the owners that the relay is to read from.
    fn admit(&mut self, joiner: &Joiner, notice: &RelayNotice, now: Instant, fresh: u64) -> (u64, Vec<u64>) {
        // A relay that was started again at the address of one before has replaced it.
        let is_same =
            |member: &TreeRelay| member.host == joiner.host && member.notice.address == notice.address;
        self.relays.retain(|number, member| Some(*number) == notice.number || !is_same(member));
        let last = self.relays.last_key_value().map_or(TreePosition::PUBLISHER, |(number, _)| *number);
        // A number that is far ahead would leave none for later relays.
        let is_number =
            |number: &u64| *number != TreePosition::PUBLISHER && *number <= fresh.saturating_add(AHEAD);
        let number = notice.number.filter(is_number);
        let number = number.unwrap_or_else(|| fresh.max(last.saturating_add(1)));
        let taken = self.taken(number);
        let current = notice.reads_from.filter(|owner| {
            let may_have = joiner.lost != Some(*owner) && self.is_before(*owner, number);
            may_have && self.has_branch(*owner, &taken) && self.is_reached(*owner, &joiner.host)
        });
        let lost = self.lost_of(number, joiner.lost, now);
        let mut chosen = self.choose_for_relay(joiner, number, &taken);
        if let Some(current) = current {
            // It leaves a slow owner, from which versions come over a link, for an owner that is not slow, has room,
            // and was not lost to it lately.
            let is_lost = |owner: &u64| lost.iter().any(|(lost, _)| lost == owner);
            let is_better = |owner: &u64| !self.is_slow(*owner) && self.has_room(*owner) && !is_lost(owner);
            let is_far = !self.is_in_memory(current, &joiner.host);
            chosen.retain(|owner| *owner != current);
            match is_far && self.is_slow(current) && chosen.iter().any(is_better) {
                true => chosen.sort_by_key(|owner| !is_better(owner)),
                false => chosen.insert(0, current),
            }
        }
        chosen.truncate(CHOICES);
        if chosen.is_empty() {
            chosen.push(TreePosition::PUBLISHER);
        }
        // It counts there from now on, so that many relays that come at once are spread.
        let notice = RelayNotice { reads_from: chosen.first().copied(), ..notice.clone() };
        while self.relays.len() >= RELAYS_MAX && !self.relays.contains_key(&number) {
            let oldest = self.relays.iter().min_by_key(|(_, member)| member.heard).map(|(number, _)| *number);
            oldest.and_then(|number| self.relays.remove(&number));
        }
        self.relays
            .insert(number, TreeRelay { host: joiner.host.clone(), notice, heard: now, sent: 0, lost });
        (number, chosen)
    }

    /// The owners that a relay of this number has lost of late, or been refused by.
    fn lost_of(&self, number: u64, lost: Option<u64>, now: Instant) -> Vec<(u64, Instant)> {
        let before = self.relays.get(&number).map_or(&[][..], |member| &member.lost);
        let is_recent = |at: Instant| now.saturating_since(at) < self.lease.saturating_mul(LOST_FOR);
        let kept = before.iter().filter(|(owner, at)| Some(*owner) != lost && is_recent(*at));
        let mut all: Vec<_> = kept.copied().chain(lost.map(|owner| (owner, now))).collect();
        all.drain(..all.len().saturating_sub(LOST_MAX));
        all
    }

    /// The owners from which a relay of this number may read, the best one first: on its own host, then over a link
    /// that is not slow, then nearest to the publisher.
    fn choose_for_relay(&self, joiner: &Joiner, number: u64, taken: &BTreeMap<u64, usize>) -> Vec<u64> {
        let before = self.relays.range(..number).map(|(number, _)| *number);
        let all = [TreePosition::PUBLISHER].into_iter().chain(before);
        let mut owners: Vec<u64> = all
            .filter(|owner| joiner.lost != Some(*owner) && self.has_branch(*owner, taken))
            .filter(|owner| self.is_reached(*owner, &joiner.host))
            .collect();
        owners.sort_by_cached_key(|owner| {
            (!self.is_on(*owner, &joiner.host), self.is_slow(*owner), self.depth(*owner), *owner)
        });
        owners
    }

    /// The owners from which a reader is to read: a relay on its own host, then the publisher if that is there, then
    /// the relays with most room, relays over a slow link last, then the publisher wherever it is.
    fn choose_for_reader(&mut self, joiner: &Joiner) -> Vec<u64> {
        let room = |number: &u64| self.relays.get(number).map_or(0, TreeRelay::room);
        let is_fit = |number: &u64| joiner.lost != Some(*number) && room(number) > 0;
        let mut owners: Vec<u64> = self.relays.keys().copied().filter(is_fit).collect();
        owners.retain(|owner| self.is_reached(*owner, &joiner.host));
        owners.sort_by_cached_key(|owner| {
            let is_slow = self.is_slow(*owner);
            (!self.is_on(*owner, &joiner.host), is_slow, std::cmp::Reverse(room(owner)), *owner)
        });
        owners.truncate(CHOICES);
        let near = owners.iter().take_while(|owner| self.is_on(**owner, &joiner.host)).count();
        let at = if self.host.shares_memory_with(&joiner.host) { near } else { owners.len() };
        owners.insert(at, TreePosition::PUBLISHER);
        if let Some(member) = owners.first().and_then(|first| self.relays.get_mut(first)) {
            member.sent = member.sent.saturating_add(1);
        }
        owners
    }

    fn is_before(&self, owner: u64, number: u64) -> bool {
        owner == TreePosition::PUBLISHER || (owner < number && self.relays.contains_key(&owner))
    }

    /// The branches of each owner that are taken by the relays before this number.
    fn taken(&self, number: u64) -> BTreeMap<u64, usize> {
        let mut taken = BTreeMap::new();
        for owner in self.relays.range(..number).filter_map(|(_, member)| member.notice.reads_from) {
            *taken.entry(owner).or_default() += 1;
        }
        taken
    }

    /// Whether `owner` has a branch for one more relay.
    fn has_branch(&self, owner: u64, taken: &BTreeMap<u64, usize>) -> bool {
        let has = match self.relays.get(&owner) {
            None => self.branches,
            // Less would leave the relays behind it without a position.
            Some(member) => member.notice.branches.max(1),
        };
        taken.get(&owner).copied().unwrap_or(0) < usize::from(has)
    }

    /// Whether one more process may read from it.
    fn has_room(&self, owner: u64) -> bool {
        self.relays.get(&owner).is_none_or(|member| member.room() > 0)
    }

    /// Whether versions come to it slowly, as far as is known, beside the usual speed.
    fn is_slow(&self, owner: u64) -> bool {
        (1..self.usual_speed / SLOW).contains(&self.speed(owner))
    }

    /// The speed at which versions come to it, or to the owner that it has them from over no link that was measured; 0
    /// if none is known.
    fn speed(&self, number: u64) -> u64 {
        let mut at = number;
        while let Some(TreeRelay { notice, .. }) = self.relays.get(&at) {
            // Each reads from a smaller number than its own.
            match notice.reads_from.filter(|owner| notice.speed == 0 && *owner < at) {
                Some(owner) => at = owner,
                None => return notice.speed,
            }
        }
        0
    }

    /// The median speed of the relays that no other one slows down: they read from the publisher, or from a relay to
    /// which versions come over no link. Of two it is the speed of the faster one. Of three and more, one whose link is
    /// far faster, as between two pods of one host, makes no other one slow.
    fn median_speed(&self) -> u64 {
        let is_first =
            |member: &&TreeRelay| member.notice.reads_from.is_some_and(|owner| self.speed(owner) == 0);
        let first = self.relays.values().filter(is_first).map(|member| member.notice.speed);
        let mut speeds: Vec<u64> = first.filter(|speed| *speed > 0).collect();
        speeds.sort_unstable();
        speeds.get(speeds.len() / 2).copied().unwrap_or(0)
    }

    /// Whether a process on `host` reads from this relay over shared memory.
    fn is_in_memory(&self, owner: u64, host: &Host) -> bool {
        let has_memory = |member: &TreeRelay| each(&member.notice.address).any(is_local);
        self.is_on(owner, host) && self.relays.get(&owner).is_some_and(has_memory)
    }

    fn is_on(&self, owner: u64, host: &Host) -> bool {
        self.relays.get(&owner).map_or(&self.host, |member| &member.host).shares_memory_with(host)
    }

    /// Whether a process on `host` can reach it at all: shared memory reaches no other host.
    fn is_reached(&self, owner: u64, host: &Host) -> bool {
        let Some(member) = self.relays.get(&owner) else { return true };
        member.host.shares_memory_with(host) || each(&member.notice.address).any(|one| !is_local(one))
    }

    /// The number of relays between the publisher and a reader of `owner`; many if `owner` has no owner itself.
    fn depth(&self, owner: u64) -> usize {
        let (mut owner, mut depth) = (owner, 0);
        while owner != TreePosition::PUBLISHER {
            // Each reads from a smaller number than its own.
            let above = self.relays.get(&owner).and_then(|member| member.notice.reads_from);
            let Some(above) = above.filter(|above| *above < owner) else { return usize::MAX };
            (owner, depth) = (above, depth + 1);
        }
        depth
    }

    /// The addresses at which a process on `host` reaches an owner, memory first.
    fn addresses(&self, owner: u64, host: &Host, own: &Address) -> Vec<Option<Address>> {
        let is_near = self.is_on(owner, host);
        let address = self.relays.get(&owner).map_or(own, |member| &member.notice.address);
        let (near, far): (Vec<_>, Vec<_>) = each(address).partition(|one| is_local(one));
        let near = near.into_iter().filter(|_| is_near);
        if owner == TreePosition::PUBLISHER {
            // It may listen at all addresses of its host, and the relay that asks knows one that works.
            return near.cloned().map(Some).chain([None]).collect();
        }
        near.chain(far).cloned().map(Some).collect()
    }
}

impl TreeRelay {
    fn room(&self) -> u16 {
        self.notice.room.saturating_sub(self.sent)
    }
}

fn each(address: &Address) -> std::slice::Iter<'_, Address> {
    match address {
        Address::Several(addresses) => addresses.iter(),
        one => std::slice::from_ref(one).iter(),
    }
}

fn is_local(address: &Address) -> bool {
    matches!(address, Address::Abstract(_) | Address::Path(_))
}

#[cfg(test)]
mod tests;
