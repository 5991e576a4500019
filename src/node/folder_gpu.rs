//! Folds on a GPU: one launch for each run of chunks that have landed.
//!
//! What a launch has made counts once its ticket says that it is done. Work of a GPU cannot be called off: a job that
//! is thrown away still reads its gradients and writes its frame until its launches are done, and the next one waits
//! for that.

#[cfg(test)]
mod scripted;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::Error;
use super::aggregate::{FoldArray, FoldJob};
use super::folder::{FillJob, FoldMetadata, Folder};
use crate::cuda::{Gpu, GpuError, GpuFold, GpuKernels, GpuSlice, MAX_GRADIENTS, Tickets};
use crate::kernel::{Moments, Optimizer};
use crate::scheme::GradientId;
use crate::transport::PayloadSlice;

pub(super) struct GpuFolder {
    kernels: GpuKernels,
    job: Option<FoldJob>,
    is_running: bool,
    /// Chunks of the job that are folded or being folded, and that are folded.
    launched: usize,
    done: usize,
    /// Launches that are under way, in order: the chunk behind the last one of each, and its ticket.
    launches: VecDeque<(usize, Tickets)>,
}

impl GpuFolder {
    pub(super) fn new(gpu: &Gpu, optimizer: &Optimizer) -> Result<GpuFolder, Error> {
        let (kernels, launches) = (GpuKernels::load(gpu, optimizer)?, VecDeque::new());
        Ok(GpuFolder { kernels, job: None, is_running: false, launched: 0, done: 0, launches })
    }

    /// Takes note of launches that are done. True if there was one.
    fn retire(&mut self) -> Result<bool, GpuError> {
        let mut progress = false;
        while let Some((end, ticket)) = self.launches.front_mut() {
            // A ticket tells a fault once: its launch counts for nothing.
            let is_done = ticket.are_done().inspect_err(|_| *end = self.done)?;
            if !is_done && !mutant!("fold_counts_before_it_is_made") {
                break;
            }
            self.done = *end;
            self.launches.pop_front();
            progress = true;
        }
        if let Some(job) = self.job.as_ref().filter(|_| progress && self.is_running) {
            job.say_whole(self.done);
        }
        Ok(progress)
    }

    /// Launches the fold of all chunks that have landed.
    fn launch(&mut self) -> Result<bool, Error> {
        let Some(job) = self.job.as_ref().filter(|_| self.is_running) else { return Ok(false) };
        let (begin, chunks) = (self.launched, job.chunks());
        let end = (begin..chunks).find(|chunk| !job.is_ready(*chunk)).unwrap_or(chunks);
        if begin == end {
            return Ok(false);
        }
        let mut ticket = Tickets::default();
        let launched = self.kernels.launch(fold_of(job, begin, end)?, &mut ticket);
        // Where the driver fails late, the launch may be under way all the same. It counts for nothing: its chunks are
        // folded again, out of other arrays than they are written to.
        self.launches.push_back((if launched.is_ok() { end } else { begin }, ticket));
        launched?;
        self.launched = end;
        Ok(true)
    }
}

fn on_gpu(payload: &PayloadSlice) -> Result<GpuSlice, Error> {
    match payload {
        PayloadSlice::Gpu(slice) => Ok(slice.clone()),
        PayloadSlice::Host(_) => {
            Err(Error::OutOfTurn { operation: "fold on a GPU", reason: "a payload is in host memory" })
        }
    }
}

/// The fold of the chunks from `begin` to `end`.
fn fold_of(job: &FoldJob, begin: usize, end: usize) -> Result<GpuFold, Error> {
    if job.inputs.len() > MAX_GRADIENTS {
        let (value, reason) = (job.inputs.len().to_string(), "a GPU folds at most 256 gradients at a time");
        return Err(Error::Option { option: "workers", value, reason });
    }
    let elements = |chunk: usize| (chunk * job.chunk_bytes).min(job.parameters.from.len()) / 4;
    let gradients = job.inputs.iter().map(|input| Ok((on_gpu(&input.payload)?, input.weight)));
    let arrays = std::iter::once(&job.parameters).chain(&job.states);
    let array = |FoldArray { from, to }: &FoldArray| Ok((on_gpu(from)?, on_gpu(to)?));
    Ok(GpuFold {
        optimizer: job.optimizer,
        learning_rate: job.learning_rate,
        step: job.step,
        encoding: job.encoding,
        gradients: gradients.collect::<Result<_, Error>>()?,
        arrays: arrays.map(array).collect::<Result<_, Error>>()?,
        elements: elements(begin)..elements(end),
    })
}

impl Folder for GpuFolder {
    fn begin(&mut self, fill: FillJob<'_>) -> Result<(), Error> {
        debug_assert!(self.launches.is_empty(), "launches of the job before are under way");
        self.kernels.clear_not_finite();
        self.job = Some(fill(self.job.take())?);
        (self.is_running, self.launched, self.done) = (true, 0, 0);
        Ok(())
    }

    fn bind(&mut self, _: FoldMetadata) {
        if let Some(job) = &self.job {
            job.bound.store(true, Ordering::Release);
        }
    }

    fn is_running(&self) -> bool {
        self.is_running
    }

    fn advance(&mut self, _: usize) -> Result<bool, Error> {
        let progress = self.retire()?;
        Ok(self.launch()? || progress)
    }

    fn is_complete(&self) -> bool {
        self.job.as_ref().is_some_and(|job| self.is_running && self.done == job.chunks())
    }

    fn is_finite(&self) -> bool {
        !self.kernels.has_not_finite()
    }

    fn non_finite(&self) -> SmallVec<[GradientId; 4]> {
        SmallVec::new()
    }

    fn moments(&self) -> Option<Moments> {
        None
    }

    fn end(&mut self) {
        self.is_running = false;
        // What launches that are under way read is kept with them.
        if let Some(job) = &mut self.job {
            job.inputs.clear();
        }
    }

    fn is_quiet(&mut self) -> Result<bool, Error> {
        self.retire()?;
        Ok(self.launches.is_empty())
    }
}
