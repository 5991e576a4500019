//! The choice of a rail for each request, and of the time to post it: the part of striping without devices.
//!
//! One queue pair keeps the order of what is posted on it; nothing orders two. So all requests go on the first rail but
//! two kinds, whose parts go on all of them at once: long writes into memory that announces nothing, and long READs.
//! The first rail then keeps the order by itself, as long as what it is given does not overtake what is under way on
//! the others: it is *held* here until all writes before it have arrived, and what is behind it on the first rail with
//! it. Later writes that are striped pass it: that is what [`Access::RELAXED`](crate::mem::Access::RELAXED) allows.
//!
//! A READ is striped only while no write is under way, so that it sees all that were posted before it, as it does on
//! one queue pair.

use std::collections::VecDeque;

use crate::mem::MAX_RAILS;
use crate::transport::{CompletionError, Flags, Operation, WorkCompletion, WorkRequest, WorkRequestId};

/// Where a request goes, and when. By its number the striper is told of its completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dispatch {
    /// On the first rail, now.
    First(u64),
    /// On the first rail, once [`Striper::release`] gives it back.
    Held,
    /// A part on each rail, now.
    Striped(u64),
}

/// A request that was posted and not yet told of.
struct StripedRequest {
    id: WorkRequestId,
    is_signalled: bool,
    /// False for READs.
    writes: bool,
    /// Rails that it is not complete on, a bit for each.
    pending: u8,
    /// Parts in which a device is given it: each takes an entry of the queue.
    parts: usize,
    error: Option<CompletionError>,
}

const FIRST: u8 = 1;
const _: () = assert!(MAX_RAILS <= u8::BITS as usize);

/// The requests of one endpoint, in order of posting.
pub(super) struct Striper {
    /// All rails, a bit for each.
    all: u8,
    entries: VecDeque<StripedRequest>,
    /// Number of the oldest entry; they count on from there.
    first: u64,
    /// Parts of all entries, at most `depth`.
    parts: usize,
    depth: usize,
    /// The requests for the first rail that are not given to it yet, with their numbers.
    held: VecDeque<(u64, WorkRequest)>,
    /// Entries that write and are not complete.
    writes: usize,
    /// Of the entries before this one no write is under way beside the first rail.
    writes_arrived: u64,
    /// Of the entries before this one nothing is.
    all_arrived: u64,
    is_failure_told: bool,
}

impl Striper {
    pub(super) fn new(rails: usize, depth: usize) -> Striper {
        assert!((2..=MAX_RAILS).contains(&rails) && depth > 0);
        Striper {
            all: u8::MAX >> (u8::BITS as usize - rails),
            entries: VecDeque::with_capacity(depth),
            first: 0,
            parts: 0,
            depth,
            held: VecDeque::with_capacity(depth),
            writes: 0,
            writes_arrived: 0,
            all_arrived: 0,
            is_failure_told: false,
        }
    }

    /// Parts that there is still room for.
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

    /// Takes a request in, which has room. It may be striped if it is long, and a READ or into memory that announces
    /// nothing.
    pub(super) fn admit(&mut self, request: &WorkRequest, parts: usize, may_be_striped: bool) -> Dispatch {
        let number = self.first + self.entries.len() as u64;
        let (writes, waits_for_reads) = kind(request);
        let is_striped = may_be_striped && !waits_for_reads && (writes || self.writes == 0);
        self.writes += usize::from(writes);
        self.parts += parts;
        self.entries.push_back(StripedRequest {
            id: request.id,
            is_signalled: request.flags.contains(Flags::SIGNALLED),
            writes,
            pending: if is_striped { self.all } else { FIRST },
            parts,
            error: None,
        });
        if is_striped {
            Dispatch::Striped(number)
        } else if self.held.is_empty() && self.may_go(number, waits_for_reads) {
            Dispatch::First(number)
        } else {
            self.held.push_back((number, request.clone()));
            Dispatch::Held
        }
    }

    /// Whether the first rail may be given a request now: what is on the others may not be overtaken.
    fn may_go(&mut self, number: u64, waits_for_reads: bool) -> bool {
        let (entries, first) = (&self.entries, self.first);
        let arrived = |from: u64, counts: fn(&StripedRequest) -> bool| {
            let from = from.max(first);
            let new = entries.range((from - first) as usize..);
            from + new.take_while(|entry| entry.pending & !FIRST == 0 || !counts(entry)).count() as u64
        };
        if waits_for_reads {
            self.all_arrived = arrived(self.all_arrived, |_| true);
            self.all_arrived >= number
        } else {
            self.writes_arrived = arrived(self.writes_arrived, |entry| entry.writes);
            self.writes_arrived >= number
        }
    }

    /// The next request that the first rail may be given now, of those that were held.
    pub(super) fn release(&mut self) -> Option<(u64, WorkRequest)> {
        let (number, request) = self.held.front()?;
        let (number, (_, waits_for_reads)) = (*number, kind(request));
        if self.may_go(number, waits_for_reads) { self.held.pop_front() } else { None }
    }

    /// A request is complete on one rail. Parts that are heard of twice count once.
    pub(super) fn complete(&mut self, rail: usize, number: u64, result: Result<(), CompletionError>) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) else { return };
        if entry.pending & (1 << rail) == 0 {
            return;
        }
        entry.pending &= !(1 << rail);
        if let Err(error) = result
            && matches!(entry.error, None | Some(CompletionError::Flushed))
        {
            entry.error = Some(error);
        }
        if entry.pending == 0 && entry.writes {
            self.writes -= 1;
        }
    }

    /// No rail takes anything any more: what is held comes back flushed.
    pub(super) fn end(&mut self) {
        while let Some((number, _)) = self.held.pop_front() {
            self.complete(0, number, Err(CompletionError::Flushed));
        }
    }

    /// Whatever is under way on a rail does not come back from there. False if nothing was.
    pub(super) fn lose(&mut self, rail: usize) -> bool {
        let mut has_any = false;
        for index in 0..self.entries.len() {
            has_any |= self.entries[index].pending & (1 << rail) != 0;
            self.complete(rail, self.first + index as u64, Err(CompletionError::Flushed));
        }
        has_any
    }

    /// The next completion that the caller is to hear of.
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

    /// The failure itself once, and that all others were flushed.
    fn tell(&mut self, error: CompletionError) -> CompletionError {
        if self.is_failure_told {
            return CompletionError::Flushed;
        }
        self.is_failure_told = error != CompletionError::Flushed;
        error
    }
}

/// Whether a request writes, and whether it waits for earlier READs.
fn kind(request: &WorkRequest) -> (bool, bool) {
    let writes = !matches!(request.operation, Operation::Read { .. });
    (writes, request.flags.contains(Flags::FENCE))
}

#[cfg(test)]
mod tests;
