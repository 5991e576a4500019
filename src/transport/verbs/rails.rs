//! The requests of one side over all rails of a connection: what [`Striper`] decides, done.

use super::device::QueuePairError;
use super::hello::{Further, Terms, index_of};
use super::initiator::Initiator;
use super::striper::{Dispatch, Striper};
use crate::mem::{LocalSlice, RemoteKey, RemoteSlice, Streaming};
use crate::transport::{
    CompletionError, Disconnected, Flags, Operation, PostError, WorkCompletion, WorkRequest, WorkRequestId,
};

/// Least share that each rail gets of a striped request, in bytes: less is done sooner on one.
const SHARE_LEAST: usize = 16 << 10;

/// Shares are multiples of this: whole packets of any size, and whole words.
const SHARE_UNIT: usize = 4096;

const OVER: Disconnected = Disconnected { reason: "a rail of this connection failed" };

/// The requests of one side. Without striping there is one rail, which does all by itself.
pub(super) struct Rails {
    first: Initiator,
    striping: Option<Box<Striping>>,
}

/// The state that striping over several rails needs.
struct Striping {
    striper: Striper,
    /// The rails after the first.
    further: Vec<ExtraRail>,
    /// The requests that the first rail is about to be given.
    outbox: Vec<WorkRequest>,
    /// The peer's grants, by their index: the name of each, and whether it announces nothing.
    grants: Vec<(RemoteKey, bool)>,
    failure: Option<CompletionError>,
    is_over: bool,
}

/// A rail after the first.
struct ExtraRail {
    initiator: Initiator,
    outbox: Vec<WorkRequest>,
    /// The keys of the peer's grants on this rail.
    keys: Vec<u32>,
    /// A word of the peer that is always readable, and where it is read to.
    sentinel: (LocalSlice, RemoteSlice),
}

impl Rails {
    /// Makes those rails of this side that the peer serves. `depth` requests may be outstanding.
    pub(super) fn new(first: Initiator, further: Vec<Initiator>, theirs: &Terms, depth: usize) -> Rails {
        let lane = |(initiator, further): (Initiator, &Further)| {
            let responder = further.responder.as_ref()?;
            let sentinel = (initiator.spare(), word_of(responder.sentinel));
            Some(ExtraRail {
                initiator,
                outbox: Vec::with_capacity(2 * depth),
                keys: responder.keys.clone(),
                sentinel,
            })
        };
        let further: Vec<ExtraRail> = further.into_iter().zip(&theirs.blob.further).map_while(lane).collect();
        let striping = (!further.is_empty()).then(|| {
            Box::new(Striping {
                striper: Striper::new(1 + further.len(), depth),
                further,
                outbox: Vec::with_capacity(depth),
                grants: theirs.names(),
                failure: None,
                is_over: false,
            })
        });
        let mut rails = Rails { first, striping };
        if let Some(sentinel) = theirs.blob.sentinel {
            rails.prove_by(sentinel, theirs);
        }
        rails
    }

    /// From now on READs of this sentinel of the peer's prove what was written before each word that announces: its
    /// first device may apply writes in any order. Those that go on all rails are proved on each of the others anyhow.
    pub(super) fn prove_by(&mut self, sentinel: u32, theirs: &Terms) {
        self.first.prove_by(word_of(sentinel), theirs.names());
    }

    /// Whether a request has failed: no rail is of any more use.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.first.has_failed()
    }

    /// Returns the error of the first request that failed.
    pub(super) fn failure(&self) -> Option<CompletionError> {
        self.striping.as_ref().map_or_else(|| self.first.failure(), |striping| striping.failure)
    }

    /// The peer has posted so many receives more, for requests on the first rail. False if that cannot be.
    pub(super) fn add_receives(&mut self, more: u16, in_all: u16) -> bool {
        self.first.add_receives(more, in_all)
    }

    /// Posts a batch, all or nothing.
    #[inline]
    pub(super) fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        match &mut self.striping {
            None => self.first.post(batch),
            Some(striping) => striping.post(&mut self.first, batch),
        }
    }

    /// The next completion that the caller is to hear of.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<WorkCompletion> {
        match &mut self.striping {
            None => self.first.poll(),
            Some(striping) => striping.poll(&mut self.first),
        }
    }

    /// Whether a device has told that one of the pairs is over, and how, since it was asked last.
    pub(super) fn take_broken(&self) -> Option<QueuePairError> {
        let further = self.striping.iter().flat_map(|striping| &striping.further);
        let further = further.map(|lane| lane.initiator.pair().take_broken());
        further.fold(self.first.pair().take_broken(), Option::max)
    }

    /// Takes what the devices have completed, and gives them what was held until then.
    pub(super) fn take_completions(&mut self) {
        match &mut self.striping {
            None => self.first.take_completions(),
            Some(striping) => striping.advance(&mut self.first),
        };
    }

    /// Ends all rails: whatever is under way comes back flushed.
    #[cold]
    pub(super) fn end(&mut self) {
        match &mut self.striping {
            None => self.first.end(),
            Some(striping) => striping.end(&mut self.first),
        }
    }
}

impl Striping {
    fn post(&mut self, first: &mut Initiator, batch: &[WorkRequest]) -> Result<(), PostError> {
        let parts = first.check(batch)?;
        self.advance(first);
        if self.is_over {
            return Err(OVER.into());
        }
        // No rail has more under way than the striper has taken in.
        let free = self.striper.free();
        if parts > free {
            return Err(PostError::QueueFull { free, batch: parts });
        }
        for request in batch {
            let grant = self.grant_to_stripe(request);
            match self.striper.admit(request, first.parts(request), grant.is_some()) {
                Dispatch::Held => {}
                Dispatch::First(number) => self.outbox.push(numbered(request.clone(), number)),
                Dispatch::Striped(number) => self.stripe(request, number, grant.unwrap_or(0)),
            }
        }
        self.ring(first)
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
        let rails = 1 + self.further.len();
        if remote.len < (rails * SHARE_LEAST) as u64 || !remote.offset.is_multiple_of(8) {
            return None;
        }
        // A forged key goes on the first rail, to be refused there.
        let index = index_of(remote.key);
        let (name, is_relaxed) = self.grants.get(index)?;
        (*name == remote.key && (*is_relaxed || !writes)).then_some(index)
    }

    /// Cuts a request into a part for each rail.
    fn stripe(&mut self, request: &WorkRequest, number: u64, grant: usize) {
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
        let share = local.len().div_ceil(1 + self.further.len()).next_multiple_of(SHARE_UNIT);
        self.outbox.push(WorkRequest::signalled(number, part(0, share, remote.key)));
        let mut begin = share;
        for lane in &mut self.further {
            let end = local.len().min(begin + share);
            let operation = part(begin, end, RemoteKey(lane.keys[grant].into()));
            begin = end;
            if !writes {
                lane.outbox.push(WorkRequest::signalled(number, operation));
                continue;
            }
            // An adapter acknowledges a write before memory has it, and only what comes through the same adapter is
            // sure to come after it. A READ pushes it there: its completion is what the first rail waits for.
            lane.outbox.push(WorkRequest::unsignalled(number, operation));
            let (local, remote) = lane.sentinel.clone();
            let operation = Operation::Read { local, remote, streaming: Streaming::Never };
            lane.outbox.push(WorkRequest::signalled(number, operation));
        }
    }

    /// Gives each rail what it is to be given.
    fn ring(&mut self, first: &mut Initiator) -> Result<(), PostError> {
        let mut result = Ok(());
        let further = self.further.iter_mut().map(|lane| (&mut lane.initiator, &mut lane.outbox));
        for (initiator, outbox) in std::iter::once((&mut *first, &mut self.outbox)).chain(further) {
            if !outbox.is_empty() {
                result = result.and(initiator.post(outbox));
                outbox.clear();
            }
        }
        if result.is_err() {
            self.end(first);
        }
        result
    }

    fn poll(&mut self, first: &mut Initiator) -> Option<WorkCompletion> {
        loop {
            if let Some(completion) = self.striper.next() {
                return Some(completion);
            }
            if !self.advance(first) {
                return None;
            }
        }
    }

    /// Takes what the devices have completed, and gives them what was held until then. False if nothing was.
    fn advance(&mut self, first: &mut Initiator) -> bool {
        let mut has_any = drain(first, 0, &mut self.striper);
        for (index, lane) in self.further.iter_mut().enumerate() {
            has_any |= drain(&mut lane.initiator, index + 1, &mut self.striper);
        }
        if !self.is_over {
            let lanes = self.further.iter().map(|lane| &lane.initiator);
            let mut failed =
                std::iter::once(&*first).chain(lanes).filter(|rail| rail.has_failed()).peekable();
            if failed.peek().is_none() {
                while let Some((number, request)) = self.striper.release() {
                    self.outbox.push(numbered(request, number));
                }
                // If it cannot be posted, the connection is over, and the next call says so.
                let _over = self.ring(first);
                return has_any;
            }
            self.failure =
                failed.filter_map(Initiator::failure).find(|error| *error != CompletionError::Flushed);
            self.end(first);
        }
        // What a device never took does not come back from it.
        let mut lost = first.is_empty() && self.striper.lose(0);
        for (index, lane) in self.further.iter().enumerate() {
            lost |= lane.initiator.is_empty() && self.striper.lose(index + 1);
        }
        has_any | lost
    }

    #[cold]
    fn end(&mut self, first: &mut Initiator) {
        if !std::mem::replace(&mut self.is_over, true) {
            first.end();
            self.further.iter_mut().for_each(|lane| lane.initiator.end());
            self.striper.end();
        }
    }
}

/// The word of a sentinel with this key.
fn word_of(sentinel: u32) -> RemoteSlice {
    RemoteSlice { key: RemoteKey(sentinel.into()), offset: 0, len: 8 }
}

/// Hears of all that a rail has completed.
fn drain(initiator: &mut Initiator, rail: usize, striper: &mut Striper) -> bool {
    let mut has_any = false;
    while let Some(completion) = initiator.poll() {
        striper.complete(rail, completion.id.0, completion.result);
        has_any = true;
    }
    has_any
}

/// The same under the striper's number, and told of.
fn numbered(request: WorkRequest, number: u64) -> WorkRequest {
    WorkRequest { id: WorkRequestId(number), flags: request.flags | Flags::SIGNALLED, ..request }
}
