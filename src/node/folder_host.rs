//! The folder of a server that stands for its host: it sums the gradients of the host's workers, hands the sum to the
//! servers of the job as the gradient of one worker, and brings the version that they make of it.

use smallvec::SmallVec;

use super::aggregate::{Aggregator, FoldArray, FoldJob};
use super::folder::{FillJob, FoldMetadata, Folder};
use super::{Error, Worker};
use crate::clock::{Clock, Version};
use crate::kernel::{Moments, Optimizer};
use crate::mem::{Access, DeviceKeys, HostMemory, LocalSlice, MemoryRegion, Streaming};
use crate::param::Progress;
use crate::scheme::GradientId;
use crate::time::Instant;
use crate::transport::{PayloadSlice, RegisterError, Transport};

/// Sums with the kernel of all folds: a step of plain SGD of size -1 from parameters of 0 is the sum itself.
const RULE: (Optimizer, f32) = (Optimizer::Sgd { weight_decay: 0.0 }, -1.0);

const ELSEWHERE: Error = Error::OutOfTurn {
    operation: "go on with this host",
    reason: "its workers and the servers are not at one clock and version any more: start its server and its \
             workers again",
};

pub(super) struct HostFolder<U: Transport> {
    upstream: Worker<U>,
    sum: Aggregator,
    /// Parameters of 0. It is read alone, and so all of it is one page of the system's.
    zeros: LocalSlice,
    round: Option<HostRound>,
}

/// One round of the host.
struct HostRound {
    /// The clock of its gradients, and the version that they make.
    clock: Clock,
    version: Version,
    /// The memory for that version's parameters, and how much of them is whole.
    to: PayloadSlice,
    progress: Option<Progress>,
    chunk_bytes: usize,
    /// The metadata of the gradients, once all have arrived.
    metadata: Option<FoldMetadata>,
    stage: HostStage,
}

#[derive(Clone, Copy)]
enum HostStage {
    /// Gradients come in and are summed.
    Summing,
    /// The sum is on its way, or the new version is.
    Away,
    /// The new version is here, and so many chunks of it are copied.
    Copying { done: usize },
}

impl HostRound {
    fn chunks(&self) -> usize {
        self.to.len().div_ceil(self.chunk_bytes)
    }

    /// Copies at most so many chunks of the new version.
    fn copy(&mut self, from: &LocalSlice, done: usize, at_most: usize) -> Result<bool, Error> {
        let end = self.chunks().min(done + at_most);
        let to = super::payloads::on_host(self.to.clone(), "write a version")?;
        let range = done * self.chunk_bytes..(end * self.chunk_bytes).min(to.len());
        let from = from.as_volatile().subslice(range.start, range.len());
        to.as_volatile().subslice(range.start, range.len()).copy_from(from, Streaming::ByLength);
        if let Some(progress) = &self.progress {
            progress.raise(end);
        }
        self.stage = HostStage::Copying { done: end };
        Ok(end > done)
    }
}

impl<U: Transport> HostFolder<U> {
    /// A folder that hands sums to the servers of this worker, which has its first parameters.
    pub(super) fn new(upstream: Worker<U>) -> Result<HostFolder<U>, Error> {
        let bytes = upstream.table().bytes() as usize;
        let memory = HostMemory::anonymous(bytes).map_err(RegisterError::from)?;
        let zeros = MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ()).slice(0, bytes)?;
        Ok(HostFolder { upstream, sum: Aggregator::new(1)?, zeros, round: None })
    }
}

impl<U: Transport> Folder for HostFolder<U> {
    fn begin(&mut self, fill: FillJob<'_>) -> Result<(), Error> {
        let (to, mut round) = (PayloadSlice::Host(self.upstream.gradient_memory()?), None);
        let parameters = FoldArray { from: self.zeros.clone().into(), to };
        self.sum.begin(&mut |old| {
            let job = fill(old)?;
            round = job.inputs.first().map(|first| HostRound {
                clock: first.clock,
                version: Version::new(job.step),
                to: job.parameters.to,
                progress: job.progress,
                chunk_bytes: job.chunk_bytes,
                metadata: None,
                stage: HostStage::Summing,
            });
            let (optimizer, learning_rate) = RULE;
            let parameters = parameters.clone();
            Ok(FoldJob { parameters, progress: None, optimizer, learning_rate, ..job })
        })?;
        self.round = Some(round.ok_or(ELSEWHERE)?);
        Ok(())
    }

    fn bind(&mut self, metadata: FoldMetadata) {
        self.sum.bind(metadata);
        if let Some(round) = &mut self.round {
            round.metadata = Some(metadata);
        }
    }

    fn tend(&mut self, now: Instant) -> Result<bool, Error> {
        self.upstream.poll(now)
    }

    fn is_running(&self) -> bool {
        self.round.is_some()
    }

    fn advance(&mut self, chunks: usize) -> Result<bool, Error> {
        let Some(round) = &mut self.round else { return Ok(false) };
        match round.stage {
            HostStage::Summing => {
                let moved = self.sum.advance(chunks)?;
                let Some(metadata) = round.metadata.filter(|_| self.sum.is_complete()) else {
                    return Ok(moved);
                };
                if self.upstream.computing().is_none_or(|view| view.clock != round.clock) {
                    return Err(ELSEWHERE);
                }
                self.sum.end();
                self.upstream.publish_sum(metadata.workers, metadata.loss.map(|loss| loss as f32))?;
                round.stage = HostStage::Away;
                Ok(true)
            }
            HostStage::Away => {
                let Some(view) = self.upstream.computing() else { return Ok(false) };
                if view.version != round.version {
                    return Err(ELSEWHERE);
                }
                round.stage = HostStage::Copying { done: 0 };
                Ok(true)
            }
            HostStage::Copying { done } => round.copy(&self.upstream.parameters_memory()?, done, chunks),
        }
    }

    fn is_complete(&self) -> bool {
        let is_copied =
            |round: &HostRound| matches!(round.stage, HostStage::Copying { done } if done == round.chunks());
        self.round.as_ref().is_some_and(is_copied)
    }

    /// The servers judge their own versions, and the host's workers see those.
    fn is_finite(&self) -> bool {
        true
    }

    fn non_finite(&mut self) -> Result<Option<SmallVec<[GradientId; 4]>>, Error> {
        Ok(Some(SmallVec::new()))
    }

    fn moments(&self) -> Option<Moments> {
        None
    }

    fn end(&mut self) {
        self.sum.end();
        self.round = None;
    }

    /// The sum's thread is the caller's own.
    fn is_quiet(&mut self) -> Result<bool, Error> {
        Ok(true)
    }
}
