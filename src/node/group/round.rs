//! One round: from the summands that are written to the mean that is taken, or to giving it up.

use smallvec::SmallVec;

use super::peer::Absence;
use super::{Averaged, GroupError, GroupMember, GroupPeer};
use crate::mem::{LocalSlice, VolatileSlice};
use crate::node::Error;
use crate::param::{GroupArea, GroupLayout, MAX_MEMBERS, PartHeader, Ranks, ranks_word};
use crate::time::Instant;
use crate::transport::{PayloadSlice, Transport};

/// The progress of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundPhase {
    /// There is none.
    None,
    /// It begins once GPUs have made the copies that were asked for before it.
    Forming,
    /// Parts come and go.
    Averaging,
    /// The round has ended with this outcome; parts that were written are still arriving.
    Ending(Averaged),
    /// The round has ended with this outcome.
    Ended(Averaged),
}

/// A round, and the parts of it that have arrived. Its lists keep their memory from one round to the next.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) number: u64,
    pub(super) phase: RoundPhase,
    /// The members that were to average, in order of rank.
    pub(super) group: Vec<u16>,
    group_word: u64,
    /// The members of the group that still average.
    pub(super) view: Vec<u16>,
    view_word: u64,
    /// This member's index in the view.
    index: usize,
    /// No part of an earlier view is on its way out of the memory that the mean is put together in.
    is_clear: bool,
    /// This member's part of the mean is being made, out of the summands with the headers below.
    is_summing: bool,
    /// This member's part of the mean is there.
    has_summed: bool,
    /// For each part of the mean in the view: its header while a GPU copies it.
    taking: Vec<Option<PartHeader>>,
    /// For each part of the mean in the view: whether it is there.
    means: Vec<bool>,
    /// Headers of the view's summands while they are summed; of this member's own there is none.
    summands: Vec<PartHeader>,
    pub(super) begun: Option<Instant>,
}

impl Round {
    pub(super) fn new(members: usize) -> Round {
        Round {
            number: 0,
            phase: RoundPhase::None,
            group: Vec::with_capacity(members),
            group_word: 0,
            view: Vec::with_capacity(members),
            view_word: 0,
            index: 0,
            is_clear: false,
            is_summing: false,
            has_summed: false,
            taking: Vec::with_capacity(members),
            means: Vec::with_capacity(members),
            summands: Vec::with_capacity(members),
            begun: None,
        }
    }

    pub(super) fn begin(&mut self, number: u64, group: &[usize]) {
        self.group.clear();
        self.group.extend(group.iter().map(|rank| *rank as u16));
        self.group_word = ranks_word(&self.group);
        (self.number, self.phase, self.begun) = (number, RoundPhase::Forming, None);
    }

    /// Begins the round again with the members of the group that are not gone.
    fn form(&mut self, rank: u16, gone: Ranks) {
        let Round { group, view, .. } = self;
        view.clear();
        view.extend(group.iter().filter(|rank| !gone.contains(usize::from(**rank))));
        self.view_word = ranks_word(view);
        self.index = view.iter().position(|other| *other == rank).unwrap_or(0);
        self.means.clear();
        self.means.resize(view.len(), false);
        self.taking.clear();
        self.taking.resize(view.len(), None);
        (self.is_clear, self.is_summing, self.has_summed) = (false, false, false);
    }

    /// Copies and averages that were begun and are not complete have to begin again.
    fn forget_work(&mut self) {
        self.taking.fill(None);
        self.is_summing = false;
    }

    /// The header of a part of this round, of `bytes`.
    fn header(&self, bytes: usize) -> PartHeader {
        let Round { number: round, view_word: view, group_word: group, .. } = *self;
        PartHeader { round, view, group, bytes: bytes as u64, ..PartHeader::default() }
    }

    /// Returns whether a part is one of this round, among the same members.
    fn is_of(&self, header: &PartHeader) -> bool {
        header.round == self.number && header.view == self.view_word
    }

    /// The bytes of the part that the member at `index` of the view averages.
    fn part(&self, layout: GroupLayout, index: usize) -> std::ops::Range<usize> {
        layout.part(self.view.len(), index)
    }
}

/// The result of looking for a part.
enum PartTaken {
    /// The part is there.
    Yes,
    /// The part is not there yet, or no more.
    No,
    /// The part can never be right.
    Wrong(&'static str),
}

const WRONG_LENGTH: &str = "its part has another length than was agreed";
const WRONG_CHECKSUM: &str = "its part does not match its checksum";

impl<T: Transport> GroupMember<T> {
    /// True once all work that was given to GPUs is complete.
    ///
    /// # Errors
    /// Work of this process on a GPU failed. The unfinished work of the round begins again.
    pub(super) fn is_quiet(&mut self) -> Result<bool, Error> {
        self.memory.is_quiet().inspect_err(|_| {
            self.round.forget_work();
            self.memory.forget_mean();
        })
    }

    /// Begins the round that is to form, once the parameters are there. True if it has begun.
    pub(super) fn begin(&mut self) -> Result<bool, Error> {
        if self.is_quiet()? {
            self.round.phase = RoundPhase::Averaging;
            self.form()?;
        }
        Ok(self.round.phase != RoundPhase::Forming)
    }

    /// Sends every member of the view its summand. Alone there is nothing to do.
    fn form(&mut self) -> Result<(), Error> {
        self.round.form(self.terms.rank, self.gone);
        self.memory.forget_mean();
        self.forget_parts();
        let members = self.round.view.len();
        if members == 1 {
            self.end(false);
            return Ok(());
        }
        for index in 0..members {
            let range = self.round.part(self.terms.layout, index);
            let mut header = self.round.header(range.len());
            let payload = self.memory.parameters(range)?;
            let Some(peer) = &mut self.peers[usize::from(self.round.view[index])] else { continue };
            if let Some(payload) = payload.host().filter(|_| self.terms.checksums) {
                header.checksum = header.checksum_of(payload.as_volatile());
            }
            peer.parts[GroupArea::Summand as usize] = Some((header, payload));
        }
        Ok(())
    }

    /// Drops the parts that are not posted yet: they need not be sent.
    fn forget_parts(&mut self) {
        self.peers.iter_mut().flatten().for_each(|peer| peer.parts = [None, None]);
    }

    /// Processes the parts that have arrived, and judges whether the others can arrive. True if it made progress.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
        match self.round.phase {
            RoundPhase::Averaging => {}
            RoundPhase::Forming => return self.begin(),
            _ => return Ok(self.settle()),
        }
        // The copies and averages of a GPU are complete from then on, and the next steps depend on them.
        if !self.is_quiet()? {
            return Ok(false);
        }
        // The lost members were found before the parts are looked at: all bytes that they have written are there by
        // now.
        let before = self.progress();
        if !self.round.is_clear {
            let is_writing = |peer: &GroupPeer<T::Endpoint>| peer.is_writing(GroupArea::Mean);
            self.round.is_clear = !self.peers.iter().flatten().any(is_writing);
        }
        if self.round.is_clear {
            self.take_means()?;
            if !self.round.has_summed {
                self.sum()?;
            }
        }
        let index = self.round.index;
        self.round.means[index] = self.round.has_summed;
        if self.round.means.iter().all(|there| *there) {
            self.memory.swap();
            self.end(false);
        } else {
            self.judge()?;
        }
        Ok(self.round.phase != RoundPhase::Averaging || self.progress() != before)
    }

    /// Changes whenever something has come.
    fn progress(&self) -> (usize, bool, u64) {
        let means = self.round.means.iter().filter(|there| **there).count();
        (means, self.round.has_summed, self.statistics.restarts)
    }

    /// Ends a round once all its writes have arrived: only then is the memory free that they are read from.
    fn settle(&mut self) -> bool {
        let RoundPhase::Ending(averaged) = self.round.phase else { return false };
        let has_settled = self.peers.iter().flatten().all(GroupPeer::has_all_parts);
        if has_settled {
            self.round.phase = RoundPhase::Ended(averaged);
        }
        has_settled
    }

    /// Every part of the mean that is there is copied to where the mean is put together.
    fn take_means(&mut self) -> Result<(), Error> {
        for index in 0..self.round.view.len() {
            let rank = usize::from(self.round.view[index]);
            if self.round.means[index] || rank == self.rank() {
                continue;
            }
            let range = self.round.part(self.terms.layout, index);
            match self.take_mean(index, rank, range)? {
                PartTaken::Yes => self.round.means[index] = true,
                PartTaken::No => {}
                PartTaken::Wrong(how) => self.reject(rank, how),
            }
        }
        Ok(())
    }

    fn take_mean(
        &mut self,
        index: usize,
        rank: usize,
        range: std::ops::Range<usize>,
    ) -> Result<PartTaken, Error> {
        let Some(peer) = &self.peers[rank] else { return Ok(PartTaken::No) };
        let area = GroupArea::Mean;
        let header = match self.round.taking[index].take() {
            // It was copied meanwhile.
            Some(header) => header,
            None => {
                let header = peer.inbox.header(area).filter(|header| self.round.is_of(header));
                let Some(header) = header else { return Ok(PartTaken::No) };
                if header.bytes != range.len() as u64 {
                    return Ok(PartTaken::Wrong(WRONG_LENGTH));
                }
                if !self.memory.take(peer.inbox.slice(area, range.len())?, range.clone())? {
                    self.round.taking[index] = Some(header);
                    return Ok(PartTaken::No);
                }
                header
            }
        };
        let is_right = match self.memory.next(range)? {
            PayloadSlice::Host(to) => self.is_right(&header, to.as_volatile()),
            // There are no checksums.
            PayloadSlice::Gpu(_) => true,
        };
        Ok(if !peer.inbox.is_still(area, header.sequence) {
            self.statistics.retries += 1;
            PartTaken::No
        } else if is_right {
            PartTaken::Yes
        } else {
            PartTaken::Wrong(WRONG_CHECKSUM)
        })
    }

    /// Returns whether a part matches its checksum, where checksums were agreed.
    fn is_right(&self, header: &PartHeader, payload: VolatileSlice<'_>) -> bool {
        !self.terms.checksums || header.checksum_of(payload) == header.checksum
    }

    /// A part can never be taken. Its author may be gone already, on the word of another.
    fn reject(&mut self, rank: usize, how: &'static str) {
        if let Some(peer) = &mut self.peers[rank] {
            peer.is_wrong = true;
        }
        self.part_with(rank, Absence::Misbehaved(how));
    }

    /// The header of the summand that a member of the view has written, if it is there.
    fn summand(&self, rank: usize) -> Option<PartHeader> {
        let header = self.peers[rank].as_ref()?.inbox.header(GroupArea::Summand)?;
        self.round.is_of(&header).then_some(header)
    }

    /// Averages this member's part once all summands are there, in order of rank, and sends it to the others.
    fn sum(&mut self) -> Result<(), Error> {
        let range = self.round.part(self.terms.layout, self.round.index);
        if !self.round.is_summing {
            self.round.is_summing = self.has_summands(range.len());
        }
        if !self.round.is_summing {
            return Ok(());
        }
        let payload = |rank: &u16| match &self.peers[usize::from(*rank)] {
            None => Ok(None),
            Some(peer) => peer.inbox.slice(GroupArea::Summand, range.len()).map(Some),
        };
        // Room for the most summands that there can be.
        let summands = self.round.view.iter().map(payload);
        let summands: SmallVec<[Option<LocalSlice>; MAX_MEMBERS]> = summands.collect::<Result<_, _>>()?;
        if !self.memory.average(&summands, range.clone())? {
            return Ok(());
        }
        self.round.is_summing = false;
        let parts = self.round.summands.iter().zip(&summands);
        let torn = self.round.view.iter().zip(parts).find_map(|(rank, (header, payload))| {
            let inbox = &self.peers[usize::from(*rank)].as_ref()?.inbox;
            let is_right = self.is_right(header, payload.as_ref()?.as_volatile());
            // A member that gave the round up, or begins it again without another member, may have written
            // meanwhile.
            let is_still = inbox.is_still(GroupArea::Summand, header.sequence);
            (!is_right || !is_still).then_some((usize::from(*rank), is_still))
        });
        match torn {
            None => {}
            Some((rank, true)) => {
                self.reject(rank, WRONG_CHECKSUM);
                return Ok(());
            }
            Some((_, false)) => {
                self.statistics.retries += 1;
                return Ok(());
            }
        }
        self.round.has_summed = true;
        let mean = self.memory.next(range)?;
        self.send_mean(mean);
        Ok(())
    }

    /// Returns whether all summands of so many bytes are there, and notes their headers.
    fn has_summands(&mut self, bytes: usize) -> bool {
        self.round.summands.clear();
        for index in 0..self.round.view.len() {
            let rank = usize::from(self.round.view[index]);
            let header = match &self.peers[rank] {
                None => PartHeader::default(),
                Some(_) => match self.summand(rank) {
                    None => return false,
                    Some(header) if header.bytes == bytes as u64 => header,
                    Some(_) => {
                        self.reject(rank, WRONG_LENGTH);
                        return false;
                    }
                },
            };
            self.round.summands.push(header);
        }
        true
    }

    fn send_mean(&mut self, mean: PayloadSlice) {
        let mut header = self.round.header(mean.len());
        if let Some(mean) = mean.host().filter(|_| self.terms.checksums) {
            header.checksum = header.checksum_of(mean.as_volatile());
        }
        for rank in &self.round.view {
            let Some(peer) = &mut self.peers[usize::from(*rank)] else { continue };
            if peer.is_alive() {
                peer.parts[GroupArea::Mean as usize] = Some((header, mean.clone()));
            }
        }
    }

    /// Judges whether the missing parts can still come. If a member that owes one is gone, the round begins again
    /// without it. If one has ended the round without having written it, the round is given up.
    fn judge(&mut self) -> Result<(), Error> {
        let (mut again, mut over) = (false, false);
        for index in 0..self.round.view.len() {
            let rank = usize::from(self.round.view[index]);
            let Some(peer) = &self.peers[rank] else { continue };
            // All of this comes before its parts are looked at: all its writes of the round are there if it is gone,
            // has ended the round, or has begun another.
            let (is_gone, has_left) = (!peer.is_alive(), peer.absence == Some(Absence::Left));
            let is_through = peer.inbox.through() > self.round.number;
            let newest = peer.inbox.header(GroupArea::Summand);
            if !self.lacks(index) {
                continue;
            }
            again |= is_gone;
            over |= !is_gone
                && (is_through || newest.as_ref().is_some_and(|newest| newest.round > self.round.number));
            if let Some(newest) = newest.filter(|newest| newest.round == self.round.number)
                && newest.view != self.round.view_word
            {
                if newest.group != self.round.group_word {
                    return Err(GroupError::Disagree { rank, round: self.round.number }.into());
                }
                // It began the round again without a member of whose loss it had told before, or it has not heard of
                // a loss yet. The word of a member that was left out does not count.
                if !is_gone || has_left {
                    self.adopt(rank)?;
                }
                again |= self.round.view.iter().any(|rank| self.gone.contains(usize::from(*rank)));
            }
        }
        if again {
            self.statistics.restarts += 1;
            self.form()?;
        } else if over {
            self.end(true);
        }
        Ok(())
    }

    /// Returns whether something of the member at `index` of the view is not there yet.
    fn lacks(&self, index: usize) -> bool {
        let rank = usize::from(self.round.view[index]);
        let Some(peer) = &self.peers[rank] else { return false };
        let (has_summand, has_mean) = (self.round.has_summed, self.round.means[index]);
        if peer.is_wrong {
            return !has_summand || !has_mean;
        }
        let is_of = |header: PartHeader| self.round.is_of(&header);
        !(has_summand || self.summand(rank).is_some())
            || !(has_mean || peer.inbox.header(GroupArea::Mean).is_some_and(is_of))
    }

    /// Returns the members for which the current round waits: the members that owe a part, or, at its end, the members
    /// to which a part is on its way.
    pub(super) fn missing(&self) -> Vec<usize> {
        if self.round.phase != RoundPhase::Averaging {
            let has_all = |rank: &usize| self.peers[*rank].as_ref().is_none_or(GroupPeer::has_all_parts);
            return (0..self.members()).filter(|rank| !has_all(rank)).collect();
        }
        let indices = (0..self.round.view.len()).filter(|index| self.lacks(*index));
        indices.map(|index| usize::from(self.round.view[index])).collect()
    }

    /// Returns the members that have not yet received all parts and words for them.
    pub(super) fn unreached(&self) -> Vec<usize> {
        let has_all = |rank: &usize| self.peers[*rank].as_ref().is_none_or(GroupPeer::has_all);
        (0..self.members()).filter(|rank| !has_all(rank)).collect()
    }

    /// Ends the round, and tells all members that may wait for this one in it.
    pub(super) fn end(&mut self, skipped: bool) {
        let members = if skipped { 1 } else { self.round.view.len() };
        let round = self.round.number;
        self.through = round + 1;
        self.statistics.rounds += 1;
        if skipped {
            self.statistics.skipped += 1;
            self.forget_parts();
        }
        for rank in &self.round.group {
            if let Some(peer) = &mut self.peers[usize::from(*rank)] {
                peer.through_is_due = peer.is_alive();
            }
        }
        self.round.phase = RoundPhase::Ending(Averaged { round, members, skipped });
    }
}
