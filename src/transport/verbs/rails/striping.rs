//! Several rails under one connection: the choice of the rail for each request, and the loss of a rail.

use std::time::{Duration, Instant};

use crate::mem::{Access, LocalSlice, RemoteKey, RemoteSlice, Streaming};
use crate::transport::verbs::device::QueuePairError;
use crate::transport::verbs::hello::index_of;
use crate::transport::verbs::initiator::Initiator;
use crate::transport::verbs::shares::{Shares, longest_transfer};
use crate::transport::verbs::striper::{Dispatch, Lane, LostPart, Striper};
use crate::transport::{
    CompletionError, Disconnected, Flags, Operation, PostError, WorkCompletion, WorkRequest, WorkRequestId,
};

/// The bits of a request's number in a queue pair's name for a part of it. Above them is the index of the queue pair
/// that the part is for. If the rail of that queue pair was lost, a queue pair of the first rail reports the part.
const NUMBER_BITS: u32 = 56;

/// A rail is given up only if it was silent over at least so many calls.
const LOOKS_LEAST: u32 = 16;

const OVER: Disconnected = Disconnected { reason: "this connection over several rails is over" };

/// The state for several queue pairs.
pub(in crate::transport::verbs) struct Striping {
    pub(super) striper: Striper,
    /// All queue pairs by the striper's index: the pairs for data of each rail, then the pairs for READs, if there
    /// are any. The pairs of a lost rail are none.
    pub(super) pairs: Vec<Option<PostingPair>>,
    /// The state of each rail other than the leading one.
    pub(super) further: Vec<ExtraRail>,
    /// The shares of all rails.
    pub(super) shares: Shares,
    /// The length of the shortest request that is striped.
    pub(super) least: u64,
    /// Whether parts of lost rails must be completed before other requests continue.
    pub(super) is_repeating: bool,
    /// The lost rails that the owner does not know yet, a bit for each.
    pub(super) lost: u8,
    /// The failed rails on which the peer did not answer and that the owner does not know yet.
    pub(super) unanswered: u8,
    /// The rails on which the peer accepts no more requests.
    pub(super) closed: u8,
    /// The peer's grants, by their index: the name of each, and its rights.
    pub(super) grants: Vec<(RemoteKey, Access)>,
    pub(super) failure: Option<CompletionError>,
    pub(super) is_over: bool,
}

/// A queue pair, and the requests that will be posted on it.
pub(super) struct PostingPair {
    pub(super) initiator: Initiator,
    pub(super) outbox: Vec<WorkRequest>,
}

/// A rail other than the first.
pub(super) struct ExtraRail {
    /// The keys of the peer's grants on this rail.
    pub(super) keys: Vec<u32>,
    /// A local word, and a word of the peer that is always readable and is read into it.
    pub(super) sentinel: (LocalSlice, RemoteSlice),
    /// The oldest request that was under way here at the last call.
    pub(super) oldest: Option<OldestRequest>,
    /// The longest time that the device needs to find that the peer does not answer.
    pub(super) gives_up_after: Duration,
    /// The rail's speed in Mbit/s; 0 if unknown.
    pub(super) speed: u32,
}

/// A request that is under way and that others wait for.
pub(super) struct OldestRequest {
    number: u64,
    looked: Instant,
    waited: Duration,
}

impl Striping {
    /// The first rail's queue pair for data.
    pub(super) fn first(&self) -> &Initiator {
        &self.pairs[0].as_ref().expect("the first rail is never given up").initiator
    }

    /// The queue pair of this index, whose rail is not lost.
    pub(super) fn pair(&mut self, index: usize) -> &mut PostingPair {
        self.pairs[index].as_mut().expect("its rail is not lost")
    }

    fn rails(&self) -> usize {
        1 + self.further.len()
    }

    pub(super) fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        let parts = self.first().check(batch, None)?;
        self.advance();
        if self.is_over {
            return Err(OVER.into());
        }
        // No queue pair has more parts under way than the striper has accepted, except for the parts of lost rails.
        let free = if self.is_repeating { 0 } else { self.striper.free() };
        if parts > free {
            return Err(PostError::QueueFull { free, batch: parts });
        }
        for request in batch {
            let grant = self.grant_to_stripe(request);
            let parts = self.first().parts(request);
            match self.striper.admit(request, parts, self.lane(request), grant.is_some()) {
                Dispatch::Held => {}
                Dispatch::First(number, lane) => self.give_first(number, lane, request.clone()),
                Dispatch::Striped(number, lane) => self.stripe(request, number, lane, grant.unwrap_or(0)),
            }
        }
        self.ring();
        if self.is_over { Err(OVER.into()) } else { Ok(()) }
    }

    /// The kind of queue pair that serves a request.
    fn lane(&self, request: &WorkRequest) -> Lane {
        match &request.operation {
            // A request with a forged key goes on the pair for data, where the peer's device refuses it.
            Operation::Read { remote, .. } | Operation::ReadToGpu { remote, .. } => {
                match self.grants.get(index_of(remote.key)) {
                    Some((name, access)) if *name == remote.key && access.is_read_only() => Lane::Reads,
                    _ => Lane::Data,
                }
            }
            _ => Lane::Data,
        }
    }

    /// Puts a request into the outbox of the first rail.
    fn give_first(&mut self, number: u64, lane: Lane, request: WorkRequest) {
        let index = self.striper.index(lane, 0);
        self.pair(index).outbox.push(named(request, index, number));
    }

    /// The index of the grant that a request names, if all rails may carry parts of the request.
    fn grant_to_stripe(&self, request: &WorkRequest) -> Option<usize> {
        let (remote, writes) = match &request.operation {
            Operation::Write { remote, .. } | Operation::WriteFromGpu { remote, .. } => (remote, true),
            Operation::Read { remote, .. } | Operation::ReadToGpu { remote, .. } => (remote, false),
            _ => return None,
        };
        if request.flags.contains(Flags::NOTIFY) {
            // The peer's owner must not wake before all parts have arrived.
            return None;
        }
        // If the range is not aligned, the cuts would split words.
        if remote.len < self.least || !remote.offset.is_multiple_of(8) {
            return None;
        }
        // A request with a forged key goes on the first rail, where the peer's device refuses it.
        let index = index_of(remote.key);
        let (name, access) = self.grants.get(index)?;
        (*name == remote.key && (access.contains(Access::RELAXED) || !writes)).then_some(index)
    }

    /// Splits a request into a part for each rail.
    fn stripe(&mut self, request: &WorkRequest, number: u64, lane: Lane, grant: usize) {
        let rails = self.striper.live();
        for rail in (0..self.rails()).filter(|rail| rails & 1 << rail != 0) {
            let index = self.striper.index(lane, rail);
            let mut part = named(self.part(request, rails, rail), index, number);
            if rail > 0 {
                let ExtraRail { keys, sentinel: (local, remote), .. } = &self.further[rail - 1];
                let (range, key) = (remote_of(&mut part.operation), RemoteKey(keys[grant].into()));
                range.into_iter().for_each(|remote| remote.key = key);
                if matches!(part.operation, Operation::Write { .. } | Operation::WriteFromGpu { .. }) {
                    // An adapter acknowledges a write before the data is in memory, and only later requests through
                    // the same adapter are sure to come after the write. A READ pushes the data to memory: the first
                    // rail waits for the READ's completion.
                    part.flags = Flags::empty();
                    let (local, remote) = (local.clone(), *remote);
                    let operation = Operation::Read { local, remote, streaming: Streaming::Never };
                    let proof = WorkRequest { id: part.id, operation, flags: Flags::SIGNALLED };
                    self.pair(index).outbox.extend([part, proof]);
                    continue;
                }
            }
            self.pair(index).outbox.push(part);
        }
    }

    /// One rail's part of a request that is striped over these rails, in the form for the first rail.
    #[cfg_attr(not(feature = "cuda"), allow(unreachable_code, reason = "there is no memory of a GPU"))]
    fn part(&self, request: &WorkRequest, rails: u8, rail: usize) -> WorkRequest {
        let mut part = request.clone();
        let bytes = remote_of(&mut part.operation).map_or(0, |remote| remote.len as usize);
        let range = self.shares.part(rails, rail, bytes);
        const INSIDE: &str = "a part lies in the whole";
        match &mut part.operation {
            Operation::Write { local, .. } | Operation::Read { local, .. } => {
                *local = local.slice(range.start, range.len()).expect(INSIDE);
            }
            Operation::WriteFromGpu { local, .. } | Operation::ReadToGpu { local, .. } => {
                *local = local.slice(range.start, range.len()).expect(INSIDE);
            }
            _ => {}
        }
        if let Some(remote) = remote_of(&mut part.operation) {
            (remote.offset, remote.len) =
                (remote.offset.wrapping_add(range.start as u64), range.len() as u64);
        }
        part
    }

    /// Posts the outbox of each queue pair. If the first rail does not accept the requests, the connection is over;
    /// if another rail does not, that rail is lost.
    fn ring(&mut self) {
        let (rails, mut refused) = (self.rails(), 0u8);
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            let Some(PostingPair { initiator, outbox }) = pair else { continue };
            if !outbox.is_empty() {
                refused |= u8::from(initiator.post(outbox).is_err()) << (index % rails);
                outbox.clear();
            }
        }
        if refused & 1 != 0 {
            return self.end();
        }
        self.lose_failed_rails();
        self.lose_rails(refused);
    }

    pub(super) fn poll(&mut self) -> Option<WorkCompletion> {
        loop {
            if let Some(completion) = self.striper.next() {
                return Some(completion);
            }
            if !self.advance() {
                return None;
            }
        }
    }

    /// Takes the devices' completions, and posts the requests that were held until then. False if there were no
    /// completions.
    pub(super) fn advance(&mut self) -> bool {
        let (mut has_any, rails) = (false, self.rails());
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            let Some(PostingPair { initiator, .. }) = pair else { continue };
            while let Some(WorkCompletion { id, result }) = initiator.poll() {
                has_any = true;
                // A part that was lost with its rail is not complete.
                let is_lost = result.is_err() && !self.is_over && index % rails > 0 && !is_refused(initiator);
                if !is_lost {
                    let (part, number) = part_and_number(id);
                    self.striper.complete(part, number, result);
                }
            }
        }
        self.lose_failed_rails();
        if !self.is_over {
            if self.is_repeating {
                self.repeat_lost_parts();
            }
            if !self.is_repeating && !self.is_over {
                while let Some((number, lane, request)) = self.striper.release() {
                    self.give_first(number, lane, request);
                }
                // If the requests cannot be posted, the connection is over, and the next call says so.
                self.ring();
            }
            return has_any;
        }
        // A device reports no completion for a request that it never accepted.
        let mut has_lost = false;
        for index in 0..self.pairs.len() {
            // The first rail completes the parts of a lost rail.
            let from = if self.pairs[index].is_some() { index } else { index - index % rails };
            let is_empty = |pair: &PostingPair| pair.initiator.is_empty();
            has_lost |= self.pairs[from].as_ref().is_none_or(is_empty) && self.striper.lose(index);
        }
        has_any | has_lost
    }

    /// Gives up the rails of queue pairs that have failed. If the first rail failed, or a peer has refused a request,
    /// the connection is over.
    fn lose_failed_rails(&mut self) {
        if self.is_over {
            return;
        }
        let (rails, mut failed) = (self.rails(), 0);
        for (index, pair) in self.pairs.iter().enumerate() {
            let Some(PostingPair { initiator, .. }) = pair else { continue };
            if initiator.has_failed() {
                self.unanswered |= u8::from(initiator.is_unanswered()) << (index % rails);
                failed |= if is_refused(initiator) { 1 } else { 1 << (index % rails) };
            }
        }
        if failed & 1 != 0 {
            let failures = || self.pairs.iter().flatten().filter_map(|pair| pair.initiator.failure());
            // The peer must learn of a refusal, even if other requests have also failed.
            let refusal = failures().find(|error| *error == CompletionError::RemoteAccess);
            self.failure = refusal.or(failures().find(|error| *error != CompletionError::Flushed));
            return self.end();
        }
        self.lose_rails(failed);
    }

    /// A device should complete each request, in success or in error. Soft-RoCE sometimes does not when a link goes
    /// down: it neither retries nor gives up. Requests that wait for that rail would never continue.
    pub(super) fn lose_silent_rails(&mut self) {
        let mut silent = 0u8;
        for (further, rail) in self.further.iter_mut().zip(1..) {
            let Some((number, request)) = self.striper.oldest(rail) else {
                further.oldest = None;
                continue;
            };
            let looked = Instant::now();
            let new = OldestRequest { number, looked, waited: Duration::ZERO };
            let oldest = match &mut further.oldest {
                Some(oldest) if oldest.number == number => oldest,
                other => other.insert(new),
            };
            // Each interval counts only up to this bound: a process that was stopped has not waited.
            oldest.waited += (looked - oldest.looked).min(further.gives_up_after / LOOKS_LEAST);
            oldest.looked = looked;
            let beyond = oldest.waited.checked_sub(further.gives_up_after);
            let bytes = || remote_of(&mut request.operation.clone()).map_or(0, |remote| remote.len);
            let is_silent = beyond.is_some_and(|beyond| beyond > longest_transfer(bytes(), further.speed));
            silent |= u8::from(is_silent) << rail;
        }
        self.unanswered |= silent;
        self.lose_rails(silent);
    }

    fn lose_rails(&mut self, rails: u8) {
        for rail in 1..self.rails() {
            if rails & 1 << rail != 0 {
                self.lose_rail(rail);
            }
        }
    }

    #[cold]
    pub(super) fn lose_rail(&mut self, rail: usize) -> bool {
        if self.is_over || self.striper.live() & 1 << rail == 0 {
            return true;
        }
        self.striper.lose_rail(rail);
        self.lost |= 1 << rail;
        self.least = self.shares.least(self.striper.live());
        self.is_repeating = true;
        for lane in [Lane::Data, Lane::Reads] {
            let index = self.striper.index(lane, rail);
            let pair = self.pairs.get_mut(index).and_then(Option::take);
            if pair.is_some_and(|pair| !pair.initiator.close()) {
                self.end();
            }
        }
        !self.is_over
    }

    /// Repeats the parts of lost rails on the first one, as far as it has room.
    #[cold]
    fn repeat_lost_parts(&mut self) {
        // A packet of a lost rail that is still on its way must not find its queue pair: it would arrive after the
        // part was repeated, and after its slot was filled again.
        let closed = if mutant!("rail_repeats_at_once") { u8::MAX } else { self.closed };
        while let Some(lost) = self.striper.lost_part(closed) {
            let LostPart { part, number, lane, rail, request, rails } = &lost;
            let request = named(self.part(request, *rails, *rail), *part, *number);
            let first = self.striper.index(*lane, 0);
            match self.pair(first).initiator.post(&[request]) {
                Ok(()) => self.striper.repeats(&lost),
                Err(PostError::QueueFull { .. }) => break,
                Err(_) => return self.end(),
            }
        }
        self.is_repeating = self.striper.is_repeating();
    }

    pub(super) fn take_broken(&mut self) -> Option<QueuePairError> {
        let (rails, mut broken, mut lost) = (self.rails(), None, 0);
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            let told = pair.as_mut().and_then(|pair| pair.initiator.take_broken());
            match index % rails {
                0 => broken = broken.max(told),
                rail => lost |= u8::from(told.is_some()) << rail,
            }
        }
        if lost != 0 {
            self.advance();
            self.lose_rails(lost);
        }
        broken
    }

    #[cold]
    pub(super) fn end(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.pairs.iter_mut().flatten().for_each(|pair| pair.initiator.end());
            self.striper.end();
        }
    }
}

/// Whether the peer has refused a request of this queue pair.
fn is_refused(initiator: &Initiator) -> bool {
    initiator.failure() == Some(CompletionError::RemoteAccess)
}

/// The peer's range of an operation that can be striped.
fn remote_of(operation: &mut Operation) -> Option<&mut RemoteSlice> {
    match operation {
        Operation::Write { remote, .. }
        | Operation::Read { remote, .. }
        | Operation::WriteFromGpu { remote, .. }
        | Operation::ReadToGpu { remote, .. } => Some(remote),
        _ => None,
    }
}

/// The same request, signalled, with the name of its part for the queue pair of this index.
fn named(request: WorkRequest, part: usize, number: u64) -> WorkRequest {
    let id = WorkRequestId((part as u64) << NUMBER_BITS | number);
    WorkRequest { id, flags: request.flags | Flags::SIGNALLED, ..request }
}

/// The index and the number in such a name.
fn part_and_number(name: WorkRequestId) -> (usize, u64) {
    ((name.0 >> NUMBER_BITS) as usize, name.0 & ((1 << NUMBER_BITS) - 1))
}
