//! The requests of one side over all rails of a connection: what [`Striper`] decides, done.

use super::device::QueuePairError;
use super::hello::{Terms, index_of};
use super::initiator::Initiator;
use super::pairs::RequesterFurther;
use super::striper::{Dispatch, Lane, Striper};
use crate::mem::{Access, LocalSlice, RemoteKey, RemoteSlice, Streaming};
use crate::transport::{
    CompletionError, Disconnected, Flags, Operation, PostError, WorkCompletion, WorkRequest, WorkRequestId,
};

/// Least share that any rail gets of a striped request, in bytes: less is done sooner on one.
const SHARE_LEAST: usize = 16 << 10;

/// Shares are multiples of this: whole packets of any size, and whole words.
const SHARE_UNIT: usize = 4096;

const OVER: Disconnected = Disconnected { reason: "a rail of this connection failed" };

/// The requests of one side.
pub(super) enum Rails {
    /// One queue pair does all by itself.
    One(Box<Initiator>),
    /// There are several rails, or READs have a queue pair of their own.
    Several(Box<Striping>),
}

/// The state that several queue pairs need.
pub(super) struct Striping {
    striper: Striper,
    /// All queue pairs by the striper's index: those for data of each rail, then those for READs, if there are any.
    pairs: Vec<PostingPair>,
    /// What differs on each rail after the first.
    further: Vec<ExtraRail>,
    /// The shares of all rails.
    shares: Shares,
    /// The peer's grants, by their index: the name of each, and its rights.
    grants: Vec<(RemoteKey, Access)>,
    failure: Option<CompletionError>,
    is_over: bool,
}

/// A queue pair, and the requests that it is about to be given.
struct PostingPair {
    initiator: Initiator,
    outbox: Vec<WorkRequest>,
}

/// A rail after the first.
struct ExtraRail {
    /// The keys of the peer's grants on this rail.
    keys: Vec<u32>,
    /// A word of the peer that is always readable, and where it is read to.
    sentinel: (LocalSlice, RemoteSlice),
}

/// The shares of a striped request by the speeds of the rails.
struct Shares {
    /// The sums of the speeds up to each rail, in order.
    sums: Vec<u64>,
    /// The shortest request of which each rail gets [`SHARE_LEAST`].
    least: u64,
}

impl Shares {
    /// Equal ones if a speed is unknown.
    fn new(mut speeds: Vec<u32>) -> Shares {
        if speeds.contains(&0) {
            speeds.fill(1);
        }
        let slowest = speeds.iter().copied().min().map_or(1, u64::from);
        let mut sum = 0;
        let sums: Vec<u64> = speeds
            .into_iter()
            .map(|speed| {
                sum += u64::from(speed);
                sum
            })
            .collect();
        Shares { sums, least: (SHARE_LEAST as u64 * sum).div_ceil(slowest) }
    }

    /// The end of the part of this rail, of a request of so many bytes; it begins where that of the rail before ends.
    fn end(&self, rail: usize, bytes: usize) -> usize {
        let all = self.sums.last().copied().unwrap_or(1);
        // Speeds of all rails together are below 2^34, and requests below 2^64.
        let end = (bytes as u128 * u128::from(self.sums[rail])).div_ceil(all.into()) as usize;
        end.next_multiple_of(SHARE_UNIT).min(bytes)
    }
}

impl Rails {
    /// Makes those of this side that the peer serves. `depth` requests may be outstanding. `reads` and those of each
    /// further rail are for READs of what may only be read, if the peer granted such memory.
    pub(super) fn new(
        data: Initiator,
        reads: Option<Initiator>,
        further: Vec<RequesterFurther>,
        theirs: &Terms,
        depth: usize,
    ) -> Rails {
        let pair = |initiator| PostingPair { initiator, outbox: Vec::with_capacity(2 * depth) };
        let (mut speeds, mut extra) = (vec![data.speed], Vec::new());
        let mut pairs = vec![data];
        let mut readers: Vec<Initiator> = reads.into_iter().collect();
        for (RequesterFurther { data, reads }, further) in further.into_iter().zip(&theirs.blob.further) {
            let Some(responder) = &further.responder else { break };
            let sentinel = (data.spare(), word_of(responder.sentinel));
            extra.push(ExtraRail { keys: responder.keys.clone(), sentinel });
            speeds.push(data.speed);
            pairs.push(data);
            readers.extend(reads);
        }
        let mut rails = if extra.is_empty() && readers.is_empty() {
            Rails::One(Box::new(pairs.remove(0)))
        } else {
            Rails::Several(Box::new(Striping {
                striper: Striper::new(pairs.len(), depth),
                pairs: pairs.into_iter().chain(readers).map(pair).collect(),
                further: extra,
                shares: Shares::new(speeds),
                grants: theirs.names(),
                failure: None,
                is_over: false,
            }))
        };
        if let Some(sentinel) = theirs.blob.sentinel {
            rails.prove_by(sentinel, theirs);
        }
        rails
    }

    /// The first rail's queue pair for data.
    fn first(&self) -> &Initiator {
        match self {
            Rails::One(first) => first,
            Rails::Several(striping) => &striping.pairs[0].initiator,
        }
    }

    fn first_mut(&mut self) -> &mut Initiator {
        match self {
            Rails::One(first) => first,
            Rails::Several(striping) => &mut striping.pairs[0].initiator,
        }
    }

    /// From now on READs of this sentinel of the peer's prove what was written before each word that announces: its
    /// first device may apply writes in any order. Those that go on all rails are proved on each of the others anyhow.
    pub(super) fn prove_by(&mut self, sentinel: u32, theirs: &Terms) {
        self.first_mut().prove_by(word_of(sentinel), theirs.names());
    }

    /// Whether a request has failed: no queue pair is of any more use.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.first().has_failed()
    }

    /// Returns the error of the first request that failed.
    pub(super) fn failure(&self) -> Option<CompletionError> {
        match self {
            Rails::One(first) => first.failure(),
            Rails::Several(striping) => striping.failure,
        }
    }

    /// The peer has posted so many receives more, for requests on the first rail. False if that cannot be.
    pub(super) fn add_receives(&mut self, more: u16, in_all: u16) -> bool {
        self.first_mut().add_receives(more, in_all)
    }

    /// Posts a batch, all or nothing.
    #[inline]
    pub(super) fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        match self {
            Rails::One(first) => first.post(batch),
            Rails::Several(striping) => striping.post(batch),
        }
    }

    /// The next completion that the caller is to hear of.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<WorkCompletion> {
        match self {
            Rails::One(first) => first.poll(),
            Rails::Several(striping) => striping.poll(),
        }
    }

    /// Whether a device has told that one of the pairs is over, and how, since it was asked last.
    pub(super) fn take_broken(&self) -> Option<QueuePairError> {
        match self {
            Rails::One(first) => first.pair().take_broken(),
            Rails::Several(striping) => {
                let broken = striping.pairs.iter().map(|pair| pair.initiator.pair().take_broken());
                broken.fold(None, Option::max)
            }
        }
    }

    /// Takes what the devices have completed, and gives them what was held until then.
    pub(super) fn take_completions(&mut self) {
        match self {
            Rails::One(first) => first.take_completions(),
            Rails::Several(striping) => striping.advance(),
        };
    }

    /// Ends all queue pairs: whatever is under way comes back flushed.
    #[cold]
    pub(super) fn end(&mut self) {
        match self {
            Rails::One(first) => first.end(),
            Rails::Several(striping) => striping.end(),
        }
    }
}

impl Striping {
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        let parts = self.pairs[0].initiator.check(batch)?;
        self.advance();
        if self.is_over {
            return Err(OVER.into());
        }
        // No queue pair has more under way than the striper has taken in.
        let free = self.striper.free();
        if parts > free {
            return Err(PostError::QueueFull { free, batch: parts });
        }
        for request in batch {
            let grant = self.grant_to_stripe(request);
            let parts = self.pairs[0].initiator.parts(request);
            match self.striper.admit(request, parts, self.lane(request), grant.is_some()) {
                Dispatch::Held => {}
                Dispatch::First(number, lane) => self.give_first(lane, numbered(request.clone(), number)),
                Dispatch::Striped(number, lane) => self.stripe(request, number, lane, grant.unwrap_or(0)),
            }
        }
        self.ring()
    }

    /// The kind of queue pair that serves a request.
    fn lane(&self, request: &WorkRequest) -> Lane {
        match &request.operation {
            // A forged key goes where all others do, to be refused there.
            Operation::Read { remote, .. } => match self.grants.get(index_of(remote.key)) {
                Some((name, access)) if *name == remote.key && access.is_read_only() => Lane::Reads,
                _ => Lane::Data,
            },
            _ => Lane::Data,
        }
    }

    /// Puts a request into the outbox of the first rail.
    fn give_first(&mut self, lane: Lane, request: WorkRequest) {
        let pair = self.striper.index(lane, 0);
        self.pairs[pair].outbox.push(request);
    }

    /// The index of the grant that a request is about, if all rails may carry parts of it.
    fn grant_to_stripe(&self, request: &WorkRequest) -> Option<usize> {
        let (remote, writes) = match &request.operation {
            Operation::Write { remote, .. } => (remote, true),
            Operation::Read { remote, .. } => (remote, false),
            _ => return None,
        };
        if request.flags.contains(Flags::NOTIFY) {
            // The peer's owner is not to be woken before all of it is there.
            return None;
        }
        // Where the range is not aligned, cuts would go through words.
        if remote.len < self.shares.least || !remote.offset.is_multiple_of(8) {
            return None;
        }
        // A forged key goes on the first rail, to be refused there.
        let index = index_of(remote.key);
        let (name, access) = self.grants.get(index)?;
        (*name == remote.key && (access.contains(Access::RELAXED) || !writes)).then_some(index)
    }

    /// Cuts a request into a part for each rail.
    fn stripe(&mut self, request: &WorkRequest, number: u64, lane: Lane, grant: usize) {
        let (Operation::Write { local, remote, streaming } | Operation::Read { local, remote, streaming }) =
            &request.operation
        else {
            return;
        };
        let writes = matches!(request.operation, Operation::Write { .. });
        let part = |begin: usize, end: usize, key: RemoteKey| {
            let local = local.slice(begin, end - begin).expect("a part lies in the whole");
            let (offset, len) = (remote.offset.wrapping_add(begin as u64), (end - begin) as u64);
            let remote = RemoteSlice { key, offset, len };
            let streaming = *streaming;
            if writes {
                Operation::Write { local, remote, streaming }
            } else {
                Operation::Read { local, remote, streaming }
            }
        };
        let mut begin = self.shares.end(0, local.len());
        self.give_first(lane, WorkRequest::signalled(number, part(0, begin, remote.key)));
        for (index, rail) in self.further.iter().enumerate() {
            let end = self.shares.end(index + 1, local.len());
            let operation = part(begin, end, RemoteKey(rail.keys[grant].into()));
            begin = end;
            let outbox = &mut self.pairs[self.striper.index(lane, index + 1)].outbox;
            if !writes {
                outbox.push(WorkRequest::signalled(number, operation));
                continue;
            }
            // An adapter acknowledges a write before memory has it, and only what comes through the same adapter is
            // sure to come after it. A READ pushes it there: its completion is what the first rail waits for.
            outbox.push(WorkRequest::unsignalled(number, operation));
            let (local, remote) = rail.sentinel.clone();
            let operation = Operation::Read { local, remote, streaming: Streaming::Never };
            outbox.push(WorkRequest::signalled(number, operation));
        }
    }

    /// Gives each queue pair what it is to be given.
    fn ring(&mut self) -> Result<(), PostError> {
        let mut result = Ok(());
        for PostingPair { initiator, outbox } in &mut self.pairs {
            if !outbox.is_empty() {
                result = result.and(initiator.post(outbox));
                outbox.clear();
            }
        }
        if result.is_err() {
            self.end();
        }
        result
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        loop {
            if let Some(completion) = self.striper.next() {
                return Some(completion);
            }
            if !self.advance() {
                return None;
            }
        }
    }

    /// Takes what the devices have completed, and gives them what was held until then. False if nothing was.
    fn advance(&mut self) -> bool {
        let mut has_any = false;
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            while let Some(completion) = pair.initiator.poll() {
                self.striper.complete(index, completion.id.0, completion.result);
                has_any = true;
            }
        }
        if !self.is_over {
            if !self.pairs.iter().any(|pair| pair.initiator.has_failed()) {
                while let Some((number, lane, request)) = self.striper.release() {
                    self.give_first(lane, numbered(request, number));
                }
                // If it cannot be posted, the connection is over, and the next call says so.
                let _over = self.ring();
                return has_any;
            }
            let mut failures = self.pairs.iter().filter_map(|pair| pair.initiator.failure());
            self.failure = failures.find(|error| *error != CompletionError::Flushed);
            self.end();
        }
        // What a device never took does not come back from it.
        let mut has_lost = false;
        for (index, pair) in self.pairs.iter().enumerate() {
            has_lost |= pair.initiator.is_empty() && self.striper.lose(index);
        }
        has_any | has_lost
    }

    #[cold]
    fn end(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.pairs.iter_mut().for_each(|pair| pair.initiator.end());
            self.striper.end();
        }
    }
}

/// The word of a sentinel with this key.
fn word_of(sentinel: u32) -> RemoteSlice {
    RemoteSlice { key: RemoteKey(sentinel.into()), offset: 0, len: 8 }
}

/// The same request under the striper's number, and told of.
fn numbered(request: WorkRequest, number: u64) -> WorkRequest {
    WorkRequest { id: WorkRequestId(number), flags: request.flags | Flags::SIGNALLED, ..request }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of the parts of a request.
    fn parts(speeds: &[u32], bytes: usize) -> Vec<usize> {
        let shares = Shares::new(speeds.to_vec());
        let ends: Vec<usize> = (0..speeds.len()).map(|rail| shares.end(rail, bytes)).collect();
        ends.iter().scan(0, |begin, end| Some(end - std::mem::replace(begin, *end))).collect()
    }

    #[test]
    fn a_rail_gets_as_much_of_a_request_as_it_has_of_the_speed() {
        assert_eq!(parts(&[100_000, 100_000], 1 << 20), [512 << 10, 512 << 10]);
        assert_eq!(parts(&[400_000, 200_000, 200_000], 1 << 20), [512 << 10, 256 << 10, 256 << 10]);
        assert_eq!(parts(&[100_000, 0], 1 << 20), [512 << 10, 512 << 10], "one of unknown speed");
    }

    #[test]
    fn parts_are_whole_units_that_make_the_request_and_none_is_too_short() {
        for speeds in [vec![1; 4], vec![400_000, 100_000], vec![2_500, 800_000, 40_000], vec![7, 1, 1, 3]] {
            let least = Shares::new(speeds.clone()).least as usize;
            for bytes in [least, least + 1, 3 * least + 4095, 64 << 20] {
                let parts = parts(&speeds, bytes);
                assert_eq!(parts.iter().sum::<usize>(), bytes);
                assert!(parts[..parts.len() - 1].iter().all(|part| part.is_multiple_of(SHARE_UNIT)));
                // The last part pays for what the others are rounded up by.
                assert!(
                    parts.iter().all(|part| *part > SHARE_LEAST - SHARE_UNIT),
                    "{speeds:?} {bytes}: {parts:?}"
                );
            }
        }
    }
}
