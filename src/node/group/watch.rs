//! Detection of lost members: connections, heartbeats, and the words of the members about each other.

use super::peer::{Absence, GroupPeer};
use super::{GroupError, GroupMember};
use crate::node::Error;
use crate::time::{Duration, Instant};
use crate::transport::{Endpoint, Incoming, Listener, Transport};

/// Period at which a member reads the others' words.
const READ_EVERY: Duration = Duration::from_millis(1);

/// Longest time that a member which is left out may take to hear of it. A live member needs a fraction of this, unless
/// long parts are on their way to it.
const FAREWELL: Duration = Duration::from_millis(100);

/// Period at which connections and the listener are asked: asking may cost system calls.
const CHECK_EVERY: Duration = Duration::from_millis(20);

impl<T: Transport> GroupMember<T> {
    /// Notices which members are gone, and whether this member itself is taken for gone. Returns true if any member
    /// is newly gone.
    pub(super) fn watch(&mut self, now: Instant) -> Result<bool, Error> {
        let before = self.gone;
        self.now = now;
        if now - self.read < READ_EVERY {
            return Ok(false);
        }
        self.read = now;
        // Asked where it matters alone: the answer may cost a system call and wake a thread.
        let listens = !std::mem::take(&mut self.is_in_doubt) || self.listener.has_caught_up();
        for rank in 0..self.peers.len() {
            let Some(peer) = self.peers[rank].as_mut().filter(|peer| peer.absence.is_none()) else {
                continue;
            };
            let is_silent = peer.is_silent(now, self.lease, listens);
            self.is_in_doubt |= !is_silent && peer.is_in_doubt(self.lease);
            if peer.inbox.has_left() {
                self.part_with(rank, Absence::Left);
            } else {
                self.adopt(rank)?;
                if is_silent {
                    self.part_with(rank, Absence::Silent);
                }
            }
        }
        if now - self.checked >= CHECK_EVERY {
            self.checked = now;
            self.check_connections()?;
            while let Some(incoming) = self.listener.poll(now) {
                incoming.refuse(
                    "this group has begun and takes no member in: start all members of a job together".into(),
                );
            }
        }
        Ok(self.gone != before)
    }

    fn check_connections(&mut self) -> Result<(), Error> {
        let woken = self.heartbeat.woken();
        for rank in 0..self.peers.len() {
            let alive = self.peers[rank].as_mut().filter(|peer| peer.is_alive());
            let endpoint = alive.and_then(|peer| peer.endpoint.as_mut());
            if let Some(Err(gone)) = endpoint.map(Endpoint::check) {
                self.lose(rank, Absence::Closed(gone))?;
            }
        }
        // A member that had left it out for that would have told it, or closed the connection, by now.
        if self.now - woken > self.lease {
            self.forgiven = woken;
        }
        Ok(())
    }

    /// Drives the writes to the others. True if it made progress.
    pub(super) fn attend(&mut self, now: Instant) -> Result<bool, Error> {
        let mut progress = false;
        for rank in 0..self.peers.len() {
            let Some(peer) = &mut self.peers[rank] else { continue };
            let attended = peer.attend(now, self.gone, self.through);
            self.statistics.bytes += std::mem::take(&mut peer.posted);
            match attended {
                Ok(attended) => progress |= attended,
                Err(absence) => self.lose(rank, absence)?,
            }
        }
        Ok(progress)
    }

    /// Adopts another member's set of lost members. If this member itself is among them, it is cut off: the others go
    /// on without it.
    pub(super) fn adopt(&mut self, rank: usize) -> Result<(), Error> {
        let Some(peer) = &self.peers[rank] else { return Ok(()) };
        let gone = peer.inbox.gone();
        // A member that leaves says so to all members that it can reach, also to members that others take for lost.
        if gone == self.gone || self.is_leaving {
            return Ok(());
        }
        if gone.contains(self.rank()) {
            return Err(self.cut_off());
        }
        for other in gone.iter(self.peers.len()) {
            self.part_with(other, Absence::Told { by: rank });
        }
        Ok(())
    }

    /// A connection is lost. Its other side may have said why before; and if this member was stopped for so long that
    /// others may have taken it for dead, that is why.
    fn lose(&mut self, rank: usize, absence: Absence) -> Result<(), Error> {
        if !self.is_leaving && self.peers[rank].as_mut().is_some_and(GroupPeer::is_lost_by_gpu) {
            return Err(self.withdraw(GroupError::NotCopied { rank }));
        }
        self.adopt(rank)?;
        let peer = self.peers[rank].as_ref();
        let has_left = peer.is_some_and(|peer| peer.inbox.has_left());
        let is_left_out =
            peer.is_some_and(GroupPeer::has_left_out) || self.heartbeat.overslept(self.forgiven);
        if !has_left && !self.is_leaving && is_left_out {
            return Err(self.cut_off());
        }
        self.part_with(rank, if has_left { Absence::Left } else { absence });
        Ok(())
    }

    /// Leaves a member out from here on, and tells the others.
    pub(super) fn part_with(&mut self, rank: usize, absence: Absence) {
        let Some(peer) = self.peers[rank].as_mut().filter(|peer| peer.is_alive()) else { return };
        if self.is_leaving {
            // A member that has heard that this one leaves closes the connection. It is not dead, and members that have
            // not heard yet would take it for dead if they were told.
            let is_cut_off = matches!(absence, Absence::Silent | Absence::Misbehaved(_));
            peer.has_missed_leaving |= is_cut_off && peer.misses_leaving();
            return peer.part_with(absence, None);
        }
        match absence {
            Absence::Left => tracing::info!(rank, "a member left"),
            _ => tracing::warn!(rank, reason = %absence, "a member is gone; the group goes on without it"),
        }
        self.gone.insert(rank);
        let farewell = !matches!(absence, Absence::Left | Absence::Closed(_));
        peer.part_with(absence, farewell.then(|| self.now + FAREWELL));
        for peer in self.peers.iter_mut().flatten().filter(|peer| peer.is_alive()) {
            peer.gone_is_due = true;
        }
    }

    /// The others take this member for gone. Where its GPU has not copied a part, so that the connection to their peer
    /// has ended, that is why, though this member hears of it from another one first.
    fn cut_off(&mut self) -> Error {
        let uncopied =
            self.peers.iter_mut().position(|peer| peer.as_mut().is_some_and(GroupPeer::is_lost_by_gpu));
        self.withdraw(match uncopied {
            Some(rank) => GroupError::NotCopied { rank },
            None => GroupError::CutOff { rank: self.rank() },
        })
    }

    /// The others go on without this member: it ends all connections, and says why from here on.
    fn withdraw(&mut self, why: GroupError) -> Error {
        tracing::warn!(%why, rank = self.rank(), "this member is out of the group");
        self.ended = Some(why.clone());
        self.peers.iter_mut().flatten().for_each(GroupPeer::close);
        why.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::group::GroupOptions;
    use crate::node::now;
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Members that have met, in order of rank.
    fn meet<const MEMBERS: usize>() -> [GroupMember<Shm>; MEMBERS] {
        let listen = |rank| {
            let (address, options) = (Address::random(), GroupOptions::default());
            GroupMember::listen(Shm::new(), &address, rank, MEMBERS, 64, options).unwrap()
        };
        let listeners: [_; MEMBERS] = std::array::from_fn(listen);
        let addresses = listeners.each_ref().map(|listener| listener.address());
        std::thread::scope(|scope| {
            let meet = |listener: crate::node::group::GroupListener<Shm>| {
                scope.spawn(|| listener.connect(&addresses, PATIENCE).unwrap())
            };
            listeners.map(meet).map(|member| member.join().unwrap())
        })
    }

    #[test]
    fn a_member_that_leaves_does_not_call_those_dead_that_have_heard_of_it() {
        let [mut leaving, mut hearing, mut third] = meet();
        leaving.is_leaving = true;
        leaving.peers.iter_mut().flatten().for_each(|peer| peer.leaving_is_due = true);
        let deadline = now() + PATIENCE;
        let is_done = |leaving: &GroupMember<Shm>| {
            leaving.absence(1).is_some() && leaving.peers.iter().flatten().all(GroupPeer::has_all)
        };
        while !is_done(&leaving) {
            assert!(now() < deadline, "it did not hear that the connection is closed");
            leaving.turn(now()).unwrap();
            hearing.turn(now()).unwrap();
        }
        assert_eq!(hearing.absence(0), Some(&Absence::Left));
        let told = third.peers[0].as_ref().unwrap().inbox.gone();
        assert!(!told.contains(1), "it is told that member 1 is gone");
        third.turn(now()).unwrap();
        assert_eq!((third.absence(0), third.absence(1)), (Some(&Absence::Left), None));
    }

    #[test]
    fn a_member_that_is_left_out_has_no_say_in_who_else_is_gone() {
        let [mut first, mut second, _third, mut last] = meet();
        // The connection between the second and the last has ended. The last one tells the first, and begins the round
        // without the second.
        let peer = last.peers[1].as_mut().unwrap();
        peer.part_with(Absence::Closed(crate::transport::Disconnected { reason: "a test" }), None);
        last.gone.insert(1);
        last.peers[0].as_mut().unwrap().gone_is_due = true;
        let group = [0, 1, 2, 3];
        last.start_average(0, &group).unwrap();
        let deadline = now() + PATIENCE;
        let turn_until = |member: &mut GroupMember<Shm>, is_done: fn(&GroupMember<Shm>) -> bool| {
            while !is_done(member) {
                assert!(now() < deadline, "it was not done");
                member.turn(now()).unwrap();
            }
        };
        let has_told_the_first = |member: &GroupMember<Shm>| member.peers[0].as_ref().unwrap().has_all();
        last.turn(now()).unwrap();
        turn_until(&mut last, has_told_the_first);
        // The second one finds its connection closed, and tells the first, too.
        turn_until(&mut second, |member| member.absence(3).is_some());
        turn_until(&mut second, has_told_the_first);
        first.start_average(0, &group).unwrap();
        first.turn(now()).unwrap();
        assert_eq!((first.absence(3), first.absence(1)), (Some(&Absence::Told { by: 1 }), None));
    }

    #[test]
    fn a_member_that_is_left_out_since_its_gpu_has_not_copied_says_so() {
        for is_uncopied in [true, false] {
            let [mut first, mut failing, mut third] = meet();
            failing.peers[0].as_mut().unwrap().is_uncopied = is_uncopied;
            // The first one has found its connection closed, and tells the third, which tells the failing one.
            let closed = Absence::Closed(crate::transport::Disconnected { reason: "a test" });
            first.part_with(1, closed);
            let deadline = now() + PATIENCE;
            let error = loop {
                assert!(now() < deadline, "it does not hear of it");
                for member in [&mut first, &mut third] {
                    member.turn(now()).unwrap();
                }
                // It looks at no connection by itself, since it hears from the third one first.
                failing.now = now();
                match failing.adopt(2) {
                    Ok(()) => {}
                    Err(error) => break error,
                }
            };
            let Error::Group(error) = error else { panic!("{error}") };
            assert_eq!(matches!(error, GroupError::NotCopied { rank: 0 }), is_uncopied, "{error}");
            assert_eq!(matches!(error, GroupError::CutOff { rank: 1 }), !is_uncopied, "{error}");
        }
    }

    #[test]
    fn parts_that_were_never_posted_are_not_counted() {
        let [mut member, _other] = meet();
        member.start_average(0, &[0, 1]).unwrap();
        member.abandon().unwrap();
        assert_eq!((member.statistics().bytes, member.statistics().rounds), (0, 1));
    }
}
