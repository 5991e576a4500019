//! Another member: the connection to it, its writes here, and the writes to it.

use crate::param::{GONE_ID, GroupArea, GroupInbox, GroupOutbox, LEAVE_ID, PART_ID, PartHeader, Ranks};
use crate::time::{Duration, Instant, Silence};
use crate::transport::{CompletionError, Disconnected, Endpoint, PayloadSlice, PostError};

/// The reason why a member is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Absence {
    /// It left in order.
    Left,
    /// Its connection ended: it died, or closed it without leaving.
    Closed(Disconnected),
    /// It was silent for longer than the lease.
    Silent,
    /// The data that it wrote broke the protocol.
    Misbehaved(&'static str),
    /// Another member has found it gone.
    Told {
        /// The rank of that member.
        by: usize,
    },
}

impl std::fmt::Display for Absence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Absence::Left => f.write_str("it left"),
            Absence::Closed(gone) => f.write_str(gone.reason),
            Absence::Silent => f.write_str("it was silent for longer than the lease"),
            Absence::Misbehaved(how) => f.write_str(how),
            Absence::Told { by } => write!(f, "member {by} found it gone"),
        }
    }
}

/// The code with which the connection to a member is closed that is left out and has not heard of it: where parts that
/// are on their way stand before the news, it comes by another lane (over TCP).
pub(super) const LEFT_OUT: u64 = 1;

pub(super) struct GroupPeer<E> {
    /// The connection; `None` once the peer is gone and knows it. The parts that it wrote before can still be read.
    pub(super) endpoint: Option<E>,
    pub(super) inbox: GroupInbox,
    outbox: GroupOutbox,
    pub(super) absence: Option<Absence>,
    /// True if the last part that it wrote can never be taken.
    pub(super) is_wrong: bool,
    /// True if a GPU of this process did not copy a part to it.
    pub(super) is_uncopied: bool,
    /// Parts that are to be written as soon as its queue has room, one of each area.
    pub(super) parts: [Option<(PartHeader, PayloadSlice)>; 2],
    /// True if it is still to be told which members are gone.
    pub(super) gone_is_due: bool,
    /// True if it is still to be told which rounds are over.
    pub(super) through_is_due: bool,
    /// True if it is still to be told that this member leaves.
    pub(super) leaving_is_due: bool,
    /// The time until which this member waits for it to hear why it is left out.
    farewell: Instant,
    /// Parts that are on their way, of each area, announcements of leaving, and news.
    under_way: [u32; 4],
    silence: Silence,
    /// Bytes of parts that were posted and are not counted yet.
    pub(super) posted: u64,
    /// True if it has not heard that this member leaves, and cannot hear it any more.
    pub(super) has_missed_leaving: bool,
}

impl<E: Endpoint> GroupPeer<E> {
    pub(super) fn new(endpoint: E, inbox: GroupInbox, outbox: GroupOutbox) -> GroupPeer<E> {
        GroupPeer {
            endpoint: Some(endpoint),
            inbox,
            outbox,
            absence: None,
            is_wrong: false,
            is_uncopied: false,
            parts: [None, None],
            gone_is_due: false,
            through_is_due: false,
            leaving_is_due: false,
            farewell: Instant::ORIGIN,
            under_way: [0; 4],
            silence: Silence::default(),
            posted: 0,
            has_missed_leaving: false,
        }
    }

    /// Listens to its heart; true if that has not beaten for longer than the lease. Unless this member `listens`, beats
    /// that have come may not be seen yet, and the time since the last look does not count.
    pub(super) fn is_silent(&mut self, now: Instant, lease: Duration, listens: bool) -> bool {
        let beat = self.inbox.heartbeat();
        if listens {
            return self.silence.observe(now, beat, lease);
        }
        self.silence.skip(now, beat);
        false
    }

    /// True if it has been silent for so long that this member should make sure that it sees all arrived bytes.
    pub(super) fn is_in_doubt(&self, lease: Duration) -> bool {
        self.silence.is_long(lease)
    }

    /// Returns whether the peer has closed the connection since it takes this member for gone.
    pub(super) fn has_left_out(&self) -> bool {
        self.endpoint.as_ref().and_then(Endpoint::close_code) == Some(LEFT_OUT)
    }

    /// Returns whether the connection has ended since a GPU of this process did not copy a part: the peer is not to
    /// blame.
    pub(super) fn is_lost_by_gpu(&mut self) -> bool {
        while let Some(completion) = self.endpoint.as_mut().and_then(Endpoint::poll) {
            self.is_uncopied |= completion.result == Err(CompletionError::Gpu);
        }
        self.is_uncopied
    }

    /// Returns whether the peer is alive, as far as is known.
    pub(super) fn is_alive(&self) -> bool {
        self.absence.is_none()
    }

    /// Leaves the peer out from here on. With `farewell` the peer is first told which members are gone, itself
    /// among them, if it hears that by then. A peer that is alive must not take this member for dead.
    pub(super) fn part_with(&mut self, absence: Absence, farewell: Option<Instant>) {
        self.absence = Some(absence);
        self.parts = [None, None];
        (self.gone_is_due, self.through_is_due, self.leaving_is_due) = (farewell.is_some(), false, false);
        match farewell {
            Some(until) => self.farewell = until,
            None => self.close(),
        }
    }

    /// Ends the connection; requests that were on their way release their memory.
    pub(super) fn close(&mut self) {
        (self.endpoint, self.under_way, self.gone_is_due) = (None, [0; 4], false);
    }

    /// Returns whether a part of this area is on its way.
    pub(super) fn is_writing(&self, area: GroupArea) -> bool {
        self.under_way[area as usize] > 0
    }

    /// Returns whether everything that the peer was to get has arrived.
    pub(super) fn has_all(&self) -> bool {
        self.under_way == [0; 4] && !self.is_due()
    }

    /// Returns whether all parts of a round for the peer have arrived: other words to it need no memory of the
    /// parameters.
    pub(super) fn has_all_parts(&self) -> bool {
        !self.is_sent_parts() && !self.through_is_due
    }

    /// Returns whether a part is on its way to it, or is to be.
    pub(super) fn is_sent_parts(&self) -> bool {
        let is_writing = |area: &GroupArea| self.is_writing(*area);
        self.parts.iter().any(Option::is_some) || [GroupArea::Summand, GroupArea::Mean].iter().any(is_writing)
    }

    /// Returns whether the peer is still to hear that this member leaves.
    pub(super) fn misses_leaving(&self) -> bool {
        self.leaving_is_due || self.under_way[(LEAVE_ID - PART_ID) as usize] > 0
    }

    fn is_due(&self) -> bool {
        self.parts.iter().any(Option::is_some)
            || self.gone_is_due
            || self.through_is_due
            || self.leaving_is_due
    }

    /// Takes completions and posts the requests that are due, without waiting. True if it made progress.
    pub(super) fn attend(&mut self, now: Instant, gone: Ranks, through: u64) -> Result<bool, Absence> {
        if self.is_alive() {
            return self.attend_queue(gone, through);
        }
        if self.endpoint.is_some() {
            let attended = self.attend_queue(gone, through);
            if attended.is_err() || self.has_all() {
                self.close();
            } else if now >= self.farewell {
                self.endpoint.take().into_iter().for_each(|endpoint| drop(endpoint.close(LEFT_OUT)));
                self.close();
            }
        }
        Ok(false)
    }

    fn attend_queue(&mut self, gone: Ranks, through: u64) -> Result<bool, Absence> {
        if self.has_all() {
            return Ok(false);
        }
        let mut progress = false;
        let Some(endpoint) = &mut self.endpoint else { return Ok(false) };
        while let Some(completion) = endpoint.poll() {
            progress = true;
            if let Err(error) = completion.result {
                self.is_uncopied = error == CompletionError::Gpu;
                let refused = Disconnected { reason: "a write to its memory failed" };
                return Err(Absence::Closed(endpoint.check().err().unwrap_or(refused)));
            }
            if let Some(count) = self.under_way.get_mut(completion.id.0.wrapping_sub(PART_ID) as usize) {
                *count = count.saturating_sub(1);
            }
        }
        match self.post(gone, through) {
            Ok(posted) => Ok(progress || posted),
            Err(PostError::QueueFull { .. }) => Ok(progress),
            Err(PostError::Disconnected(gone)) => Err(Absence::Closed(gone)),
            Err(error) => {
                tracing::warn!(%error, "a write to a member's memory cannot be posted");
                Err(Absence::Misbehaved("it granted memory that cannot be written"))
            }
        }
    }

    /// Posts in this order: a peer that sees a part of a smaller group finds out which members are gone. A peer
    /// that sees that a round is over finds all parts of the round that it gets.
    fn post(&mut self, gone: Ranks, through: u64) -> Result<bool, PostError> {
        let Some(endpoint) = &mut self.endpoint else { return Ok(false) };
        let mut posted = false;
        if self.gone_is_due {
            self.outbox.write_gone(endpoint, gone)?;
            self.under_way[(GONE_ID - PART_ID) as usize] += 1;
            (self.gone_is_due, posted) = (false, true);
        }
        for area in [GroupArea::Summand, GroupArea::Mean] {
            if let Some((header, payload)) = &self.parts[area as usize] {
                self.outbox.write(endpoint, area, *header, payload.clone())?;
                self.posted += header.bytes;
                self.parts[area as usize] = None;
                self.under_way[area as usize] += 1;
                posted = true;
            }
        }
        if self.through_is_due {
            self.outbox.write_through(endpoint, through)?;
            (self.through_is_due, posted) = (false, true);
        }
        if self.leaving_is_due {
            self.outbox.write_left(endpoint)?;
            self.under_way[(LEAVE_ID - PART_ID) as usize] += 1;
            (self.leaving_is_due, posted) = (false, true);
        }
        Ok(posted)
    }
}

#[cfg(all(test, feature = "tcp"))]
mod tests {
    use crate::node::group::{GroupError, GroupMember, GroupOptions};
    use crate::node::{Error, now};
    use crate::transport::tcp::Tcp;

    use super::*;

    #[test]
    fn a_member_that_is_left_out_behind_a_long_part_hears_of_it() {
        let patience = Duration::from_secs(60);
        let listen = |rank| {
            let (address, options) = ("127.0.0.1:0".parse().unwrap(), GroupOptions::default());
            GroupMember::listen(Tcp::new(), &address, rank, 2, 64, options).unwrap()
        };
        let listeners = [0, 1].map(listen);
        let addresses = listeners.each_ref().map(|listener| listener.address());
        let [mut own, mut other] = std::thread::scope(|scope| {
            let meet = |listener: crate::node::group::GroupListener<Tcp>| {
                scope.spawn(|| listener.connect(&addresses, patience).unwrap())
            };
            listeners.map(meet).map(|member| member.join().unwrap())
        });
        own.part_with(1, Absence::Told { by: 2 });
        // The news is behind a part that does not end.
        let peer = own.peers[1].as_mut().unwrap();
        (peer.gone_is_due, peer.under_way[0]) = (false, 1);
        own.turn(now() + Duration::from_secs(1)).unwrap();
        let deadline = now() + patience;
        let error = loop {
            assert!(
                now() < deadline && other.absence(0).is_none(),
                "it goes on alone: {:?}",
                other.absence(0)
            );
            if let Err(error) = other.turn(now()) {
                break error;
            }
        };
        assert!(matches!(error, Error::Group(GroupError::CutOff { rank: 1 })), "{error}");
    }
}
