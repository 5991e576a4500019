//! Chooses a queue pair for each request, and the time to post it: the part of striping that uses no device.
//!
//! One queue pair keeps the order of its requests; two queue pairs have no common order. So all requests except three
//! kinds go on the first rail's pair. The parts of long writes into memory that announces nothing, and the parts of
//! long READs, go on all rails at once. The first rail then keeps the order by itself, as long as a request for it
//! does not overtake requests under way on the other rails: such a request is *held* here until all writes before it
//! have arrived, and so are the requests behind it. Later writes that are striped may pass it:
//! [`Access::RELAXED`](crate::mem::Access::RELAXED) allows this.
//!
//! A READ is striped only while no write is under way, so that it sees all writes that were posted before it, as it
//! does on one queue pair.
//!
//! READs of memory that may only be read are the third kind: they have queue pairs of their own, one on each rail. No
//! write of this connection can be for that memory, so these READs wait for no write.
//!
//! A rail other than the first may be lost. The parts that were under way on it stay incomplete, so that all requests
//! that wait for them continue to wait, until each part is complete on the first rail, which repeats it.

use std::collections::VecDeque;

use crate::mem::MAX_RAILS;
use crate::transport::{CompletionError, Flags, WorkCompletion, WorkRequest, WorkRequestId};

/// The queue pair and the time for a request. The striper receives its completions by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dispatch {
    /// On the first rail, by this kind of queue pair, now.
    First(u64, Lane),
    /// The same once [`Striper::release`] returns it.
    Held,
    /// A part on each rail, by this kind of queue pair, now.
    Striped(u64, Lane),
}

/// The two kinds of a rail's queue pairs for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// For all requests except those of the other kind.
    Data,
    /// For READs of memory that may only be read.
    Reads,
}

/// A request that was posted and not yet reported to the caller.
struct StripedRequest {
    id: WorkRequestId,
    is_signalled: bool,
    /// False for READs.
    writes: bool,
    /// True for READs and atomics, for which fences wait.
    brings: bool,
    /// Its incomplete parts, each by the bit of the queue pair that it was for.
    pending: u8,
    /// The incomplete parts that were lost with their rail and are not under way again.
    lost: u8,
    /// The striped request, and its rails: a bit for each.
    striped: Option<(WorkRequest, u8)>,
    /// The number of device requests that it needs: each takes an entry of the queue.
    parts: usize,
    error: Option<CompletionError>,
}

/// A part that was under way on a lost rail.
#[derive(Debug)]
pub(super) struct LostPart {
    /// The index of the queue pair that it was for.
    pub(super) part: usize,
    pub(super) number: u64,
    pub(super) lane: Lane,
    pub(super) rail: usize,
    /// The request, and the rails over which it was striped.
    pub(super) request: WorkRequest,
    pub(super) rails: u8,
}

const FIRST: u8 = 1;
const _: () = assert!(2 * MAX_RAILS <= u8::BITS as usize);

/// The requests of one endpoint, in order of posting.
pub(super) struct Striper {
    /// The number of rails. Each rail has a bit for its queue pair for data; the queue pairs for READs have the next
    /// bits.
    rails: usize,
    /// The rails that are not lost, as bits.
    live: u8,
    entries: VecDeque<StripedRequest>,
    /// Number of the oldest entry; later entries have the next numbers.
    first: u64,
    /// Parts of all entries, at most `depth`.
    parts: usize,
    depth: usize,
    /// The requests for the first rail that are not posted on it yet, with their numbers.
    held: VecDeque<(u64, Lane, WorkRequest)>,
    /// Entries that write and are not complete.
    writes: usize,
    /// No write before this entry is under way outside the first rail's pair for data.
    writes_arrived: u64,
    /// No request before this entry is under way outside the first rail's pair for data.
    all_arrived: u64,
    /// No READ and no atomic before this entry is under way outside the first rail's pair for READs.
    brought: u64,
    is_failure_told: bool,
}

impl Striper {
    pub(super) fn new(rails: usize, depth: usize) -> Striper {
        assert!((1..=MAX_RAILS).contains(&rails) && depth > 0);
        Striper {
            rails,
            live: u8::MAX >> (u8::BITS as usize - rails),
            entries: VecDeque::with_capacity(depth),
            first: 0,
            parts: 0,
            depth,
            held: VecDeque::with_capacity(depth),
            writes: 0,
            writes_arrived: 0,
            all_arrived: 0,
            brought: 0,
            is_failure_told: false,
        }
    }

    /// The number of parts that still fit.
    pub(super) fn free(&mut self) -> usize {
        while self
            .entries
            .front()
            .is_some_and(|oldest| oldest.pending == 0 && !oldest.is_signalled && oldest.error.is_none())
        {
            self.forget_oldest();
        }
        self.depth - self.parts
    }

    fn forget_oldest(&mut self) -> Option<StripedRequest> {
        let entry = self.entries.pop_front()?;
        self.first += 1;
        self.parts -= entry.parts;
        Some(entry)
    }

    /// The index of a queue pair, which is also the index of its bit.
    pub(super) fn index(&self, lane: Lane, rail: usize) -> usize {
        match lane {
            Lane::Data => rail,
            Lane::Reads => self.rails + rail,
        }
    }

    /// The bits of the queue pairs of one kind: of the first rail, and of all rails that are not lost.
    fn bits(&self, lane: Lane) -> (u8, u8) {
        let shift = self.index(lane, 0);
        (FIRST << shift, self.live << shift)
    }

    /// The rails that are not lost, a bit for each.
    pub(super) fn live(&self) -> u8 {
        self.live
    }

    /// Accepts a request that fits and is for this kind of queue pair. The request may be striped if it is long, and
    /// is a READ or a write into memory that announces nothing.
    pub(super) fn admit(
        &mut self,
        request: &WorkRequest,
        parts: usize,
        lane: Lane,
        may_be_striped: bool,
    ) -> Dispatch {
        let number = self.first + self.entries.len() as u64;
        let is_fenced = request.flags.contains(Flags::FENCE);
        let (writes, brings) = (!request.operation.is_read(), request.operation.brings());
        let passes_writes = writes || lane == Lane::Reads || self.writes == 0;
        let is_striped = self.live != FIRST && may_be_striped && !is_fenced && passes_writes;
        let (first, all) = self.bits(lane);
        self.writes += usize::from(writes);
        self.parts += parts;
        self.entries.push_back(StripedRequest {
            id: request.id,
            is_signalled: request.flags.contains(Flags::SIGNALLED),
            writes,
            brings,
            pending: if is_striped { all } else { first },
            lost: 0,
            striped: is_striped.then(|| (request.clone(), self.live)),
            parts,
            error: None,
        });
        if is_striped {
            return Dispatch::Striped(number, lane);
        }
        let passes_held = self.held.is_empty() || (lane == Lane::Reads && !is_fenced);
        if passes_held && self.may_go(number, lane, is_fenced) {
            Dispatch::First(number, lane)
        } else {
            self.held.push_back((number, lane, request.clone()));
            Dispatch::Held
        }
    }

    /// Whether a request may be posted on the first rail now: it may not overtake earlier requests on queue pairs
    /// other than its own that must come before it.
    fn may_go(&mut self, number: u64, lane: Lane, is_fenced: bool) -> bool {
        let (own, _) = self.bits(lane);
        let (entries, first) = (&self.entries, self.first);
        let arrived = |from: u64, counts: fn(&StripedRequest) -> bool| {
            let from = from.max(first);
            let new = entries.range((from - first) as usize..);
            from + new.take_while(|entry| entry.pending & !own == 0 || !counts(entry)).count() as u64
        };
        match (lane, is_fenced) {
            (Lane::Data, false) => {
                self.writes_arrived = arrived(self.writes_arrived, |entry| entry.writes);
                self.writes_arrived >= number
            }
            (Lane::Data, true) => {
                self.all_arrived = arrived(self.all_arrived, |_| true);
                self.all_arrived >= number
            }
            (Lane::Reads, false) => true,
            (Lane::Reads, true) => {
                self.brought = arrived(self.brought, |entry| entry.brings);
                self.brought >= number
            }
        }
    }

    /// The next held request that may be posted on the first rail now.
    pub(super) fn release(&mut self) -> Option<(u64, Lane, WorkRequest)> {
        let (number, lane, request) = self.held.front()?;
        let (number, lane, is_fenced) = (*number, *lane, request.flags.contains(Flags::FENCE));
        if self.may_go(number, lane, is_fenced) { self.held.pop_front() } else { None }
    }

    /// Notes that the part of a request that was for the queue pair of this index is complete. A part that completes
    /// twice counts once.
    pub(super) fn complete(&mut self, part: usize, number: u64, result: Result<(), CompletionError>) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) else { return };
        if entry.pending & (1 << part) == 0 {
            return;
        }
        entry.pending &= !(1 << part);
        entry.lost &= entry.pending;
        if let Err(error) = result
            && matches!(entry.error, None | Some(CompletionError::Flushed))
        {
            entry.error = Some(error);
        }
        if entry.pending == 0 {
            entry.striped = None;
            self.writes -= usize::from(entry.writes);
        }
    }

    /// No rail accepts requests any more: held requests come back flushed.
    pub(super) fn end(&mut self) {
        while let Some((number, lane, _)) = self.held.pop_front() {
            self.complete(self.index(lane, 0), number, Err(CompletionError::Flushed));
        }
    }

    /// Notes that a rail, not the first, is lost. The parts that were under way on it must be repeated.
    pub(super) fn lose_rail(&mut self, rail: usize) {
        assert!(rail > 0 && rail < self.rails);
        self.live &= !(1 << rail);
        let gone = 1 << self.index(Lane::Data, rail) | 1 << self.index(Lane::Reads, rail);
        self.entries.iter_mut().for_each(|entry| entry.lost |= entry.pending & gone);
    }

    /// The oldest request with an incomplete part on this rail, and its number; none if the rail is lost.
    pub(super) fn oldest(&self, rail: usize) -> Option<(u64, &WorkRequest)> {
        if self.live & 1 << rail == 0 {
            return None;
        }
        let (data, reads) = (self.index(Lane::Data, rail), self.index(Lane::Reads, rail));
        let is_under_way = |entry: &StripedRequest| entry.pending & (1 << data | 1 << reads) != 0;
        let index = self.entries.iter().position(is_under_way)?;
        self.entries[index].striped.as_ref().map(|(request, _)| (self.first + index as u64, request))
    }

    /// Whether any part of a lost rail is still incomplete.
    pub(super) fn is_repeating(&self) -> bool {
        let live = self.live | self.live << self.rails;
        self.entries.iter().any(|entry| entry.pending & !live != 0)
    }

    /// The oldest part of a lost rail that is not under way again: a READ, or a WRITE of one of the `closed` rails, a
    /// bit for each, on which the peer accepts no more requests.
    pub(super) fn lost_part(&self, closed: u8) -> Option<LostPart> {
        let of_entry = |(index, entry): (usize, &StripedRequest)| {
            let bits = (0..2 * self.rails).filter(|part| entry.lost & 1 << part != 0);
            let mut parts = bits.filter(|part| !entry.writes || closed & 1 << (part % self.rails) != 0);
            let (part, (request, rails)) = (parts.next()?, entry.striped.as_ref()?);
            let lane = if part < self.rails { Lane::Data } else { Lane::Reads };
            let (number, rail) = (self.first + index as u64, part % self.rails);
            Some(LostPart { part, number, lane, rail, request: request.clone(), rails: *rails })
        };
        self.entries.iter().enumerate().find_map(of_entry)
    }

    /// Notes that a part of a lost rail is under way again.
    pub(super) fn repeats(&mut self, lost: &LostPart) {
        if let Some(entry) = self.entries.get_mut((lost.number - self.first) as usize) {
            entry.lost &= !(1 << lost.part);
        }
    }

    /// Notes that the parts under way on the queue pair of this index are lost. False if there were none.
    pub(super) fn lose(&mut self, part: usize) -> bool {
        let mut has_any = false;
        for index in 0..self.entries.len() {
            has_any |= self.entries[index].pending & (1 << part) != 0;
            self.complete(part, self.first + index as u64, Err(CompletionError::Flushed));
        }
        has_any
    }

    /// The next completion for the caller.
    pub(super) fn next(&mut self) -> Option<WorkCompletion> {
        while self.entries.front()?.pending == 0 {
            let StripedRequest { id, is_signalled, error, .. } = self.forget_oldest()?;
            match error {
                None if is_signalled => return Some(WorkCompletion { id, result: Ok(()) }),
                None => {}
                Some(error) => return Some(WorkCompletion { id, result: Err(self.tell(error)) }),
            }
        }
        None
    }

    /// Returns the failure itself once, and `Flushed` for all other requests.
    fn tell(&mut self, error: CompletionError) -> CompletionError {
        if self.is_failure_told {
            return CompletionError::Flushed;
        }
        self.is_failure_told = error != CompletionError::Flushed;
        error
    }
}

#[cfg(test)]
mod tests;
