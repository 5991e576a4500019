//! Posts the requests of one side over all rails of a connection, as [`Striper`] decides. The first of these rails
//! leads the connection.

mod striping;

use self::striping::{ExtraRail, PostingPair, Striping};
use super::device::QueuePairError;
use super::hello::{ServingPairs, Terms};
use super::initiator::Initiator;
use super::pairs::RailRequester;
use super::shares::Shares;
use super::striper::Striper;
use crate::cuda::Gpu;
use crate::mem::{Access, RemoteKey, RemoteSlice};
use crate::transport::{CompletionError, PostError, WorkCompletion, WorkRequest};

/// The requests of one side.
pub(super) enum Rails {
    /// One queue pair for all requests.
    One(Box<Initiator>),
    /// Several rails, or a separate queue pair for READs.
    Several(Box<Striping>),
}

impl Rails {
    /// Takes this side's rails that the peer serves, the leading rail first. `depth` requests may be outstanding.
    pub(super) fn new(rails: Vec<RailRequester>, theirs: &Terms, depth: usize) -> Rails {
        let pair = |initiator| Some(PostingPair { initiator, outbox: Vec::with_capacity(2 * depth) });
        let (mut pairs, mut readers, mut speeds, mut extra) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (RailRequester { mut data, reads, .. }, served) in rails.into_iter().zip(&theirs.blob.rails) {
            if !pairs.is_empty() {
                let Some(ServingPairs { keys, sentinel: Some(sentinel), .. }) = &served.responder else {
                    break;
                };
                data.leave_no_room_for_proofs();
                extra.push(ExtraRail {
                    keys: keys.clone(),
                    sentinel: (data.spare(), word_of(*sentinel)),
                    oldest: None,
                    gives_up_after: data.gives_up_after,
                    speed: data.speed,
                });
            }
            speeds.push(data.speed);
            pairs.push(data);
            readers.extend(reads);
        }
        let mut rails = if extra.is_empty() && readers.is_empty() {
            Rails::One(Box::new(pairs.remove(0)))
        } else {
            let (striper, shares) = (Striper::new(pairs.len(), depth), Shares::new(speeds));
            Rails::Several(Box::new(Striping {
                least: shares.least(striper.live()),
                striper,
                pairs: pairs.into_iter().chain(readers).map(pair).collect(),
                further: extra,
                shares,
                is_repeating: false,
                lost: 0,
                unanswered: 0,
                closed: 0,
                grants: theirs.names(),
                failure: None,
                is_over: false,
            }))
        };
        if !theirs.grants.iter().any(|grant| grant.access.contains(Access::REMOTE_WRITE)) {
            rails.first_mut().report_all();
        }
        let lead = theirs.blob.rails.first().and_then(|lead| lead.responder.as_ref());
        if let Some(sentinel) = lead.and_then(|lead| lead.sentinel) {
            rails.prove_by(sentinel, theirs);
        }
        rails
    }

    /// The first rail's queue pair for data.
    fn first(&self) -> &Initiator {
        match self {
            Rails::One(first) => first,
            Rails::Several(striping) => striping.first(),
        }
    }

    fn first_mut(&mut self) -> &mut Initiator {
        match self {
            Rails::One(first) => first,
            Rails::Several(striping) => &mut striping.pair(0).initiator,
        }
    }

    /// From now on READs of this sentinel of the peer prove the writes before each announcing word, since the peer's
    /// first device may apply writes in any order. Writes that go on all rails are proved on each of the other rails
    /// in any case.
    pub(super) fn prove_by(&mut self, sentinel: u32, theirs: &Terms) {
        self.first_mut().prove_by(word_of(sentinel), theirs.names());
    }

    /// Whether a request has failed, so that no queue pair is usable.
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

    /// Notes that the peer has posted so many more receives, for requests on the first rail. False if that number is
    /// impossible.
    pub(super) fn add_receives(&mut self, more: u16, in_all: u16) -> bool {
        self.first_mut().add_receives(more, in_all)
    }

    /// From now on requests may name registered memory of a GPU. The caller posts them once the GPU has finished with
    /// it.
    pub(super) fn use_gpu(&mut self) {
        match self {
            Rails::One(first) => first.takes_gpu = true,
            Rails::Several(striping) => {
                striping.pairs.iter_mut().flatten().for_each(|pair| pair.initiator.takes_gpu = true);
            }
        }
    }

    /// Checks a batch whose memory may be on this GPU.
    pub(super) fn check(&self, batch: &[WorkRequest], gpu: &Gpu) -> Result<(), PostError> {
        self.first().check(batch, Some(gpu)).map(|_parts| ())
    }

    /// The number of parts that still fit.
    #[cfg(feature = "cuda")]
    pub(super) fn free(&mut self) -> usize {
        match self {
            Rails::One(first) => first.free(),
            Rails::Several(striping) if striping.is_repeating => 0,
            Rails::Several(striping) => striping.striper.free(),
        }
    }

    /// Returns how many parts a request takes.
    #[cfg(feature = "cuda")]
    pub(super) fn parts(&self, request: &WorkRequest) -> usize {
        self.first().parts(request)
    }

    /// Posts a batch, all or nothing.
    #[inline]
    pub(super) fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        match self {
            Rails::One(first) => first.post(batch),
            Rails::Several(striping) => striping.post(batch),
        }
    }

    /// The next completion for the caller.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<WorkCompletion> {
        match self {
            Rails::One(first) => first.poll(),
            Rails::Several(striping) => striping.poll(),
        }
    }

    /// Returns how one of the first rail's pairs ended, if a device has reported its end and no completion gives the
    /// reason. Another rail is lost by such a report, once its completions were taken.
    pub(super) fn take_broken(&mut self) -> Option<QueuePairError> {
        match self {
            Rails::One(first) => first.take_broken(),
            Rails::Several(striping) => striping.take_broken(),
        }
    }

    /// Whether there are failures or lost rails that the owner does not know yet.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        match self {
            Rails::One(first) => first.has_failed(),
            Rails::Several(striping) => striping.first().has_failed() || striping.lost != 0,
        }
    }

    /// Whether parts of a lost rail must still be repeated.
    pub(super) fn is_repeating(&self) -> bool {
        matches!(self, Rails::Several(striping) if striping.is_repeating)
    }

    /// The rails that were lost since the last call, a bit for each.
    pub(super) fn take_lost(&mut self) -> u8 {
        match self {
            Rails::One(_) => 0,
            Rails::Several(striping) => std::mem::take(&mut striping.lost),
        }
    }

    /// The rails that have failed since the last call and on which the peer did not answer, a bit for each.
    #[cold]
    pub(super) fn take_unanswered(&mut self) -> u8 {
        match self {
            Rails::One(first) => u8::from(first.is_unanswered()),
            Rails::Several(striping) => std::mem::take(&mut striping.unanswered),
        }
    }

    /// Gives up a rail, not the first, if it is not already lost. False if its queue pairs could not be destroyed:
    /// then all other pairs have also ended.
    #[cold]
    pub(super) fn lose_rail(&mut self, rail: usize) -> bool {
        match self {
            Rails::One(_) => true,
            Rails::Several(striping) => striping.lose_rail(rail),
        }
    }

    /// Gives up the rails whose device has not completed a request within the longest time that it may take.
    pub(super) fn lose_silent_rails(&mut self) {
        if let Rails::Several(striping) = self {
            striping.lose_silent_rails();
        }
    }

    /// Notes that the peer accepts no more requests on a lost rail.
    #[cold]
    pub(super) fn is_closed_at_peer(&mut self, rail: usize) {
        if let Rails::Several(striping) = self {
            striping.closed |= 1 << rail;
        }
    }

    /// Takes the devices' completions, and posts the requests that were held until then.
    pub(super) fn take_completions(&mut self) {
        match self {
            Rails::One(first) => first.take_completions(),
            Rails::Several(striping) => striping.advance(),
        };
    }

    /// Ends all queue pairs: all requests under way come back flushed.
    #[cold]
    pub(super) fn end(&mut self) {
        match self {
            Rails::One(first) => first.end(),
            Rails::Several(striping) => striping.end(),
        }
    }
}

/// The word of a sentinel with this key.
pub(super) fn word_of(sentinel: u32) -> RemoteSlice {
    RemoteSlice { key: RemoteKey(sentinel.into()), offset: 0, len: 8 }
}
