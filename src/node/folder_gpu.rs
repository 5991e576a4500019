//! Folds on a GPU: one launch for each run of chunks that have landed.
//!
//! The results and measurements of a launch count once its ticket says that it is done. Work of a GPU cannot be
//! cancelled: a discarded job still reads its gradients and writes its frame until its launches are done, and the next
//! job waits for that.

mod look;
#[cfg(test)]
mod measured;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod workers;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use self::look::NonFiniteLook;
use super::Error;
use super::aggregate::{FoldArray, FoldJob};
use super::folder::{FillJob, FoldMetadata, Folder};
use crate::cuda::{Gpu, GpuError, GpuFold, GpuKernels, GpuSlice, MAX_GRADIENTS, Tickets};
use crate::kernel::{Moments, Optimizer};
use crate::scheme::GradientId;
use crate::time::{Duration, Instant};
use crate::transport::PayloadSlice;

/// The time for which a driver may not say whether a fold is done. Then the server ends: it would wait for ever.
const UNANSWERED_FOR: Duration = Duration::from_secs(5);

pub(super) struct GpuFolder {
    kernels: GpuKernels,
    /// Where gradients that are not finite are left out.
    look: Option<NonFiniteLook>,
    job: Option<FoldJob>,
    is_running: bool,
    /// Chunks of the job that are folded or being folded, and that are folded.
    launched: usize,
    done: usize,
    /// Launches that are under way, in order.
    runs: VecDeque<FoldRun>,
    /// The cell of the next measured run.
    cell: usize,
    /// The squares that the runs of the job have measured, added in their order.
    squares: [f64; 2],
    /// The time since which the driver has not answered whether the launches under way are done.
    unanswered_since: Option<Instant>,
}

/// A run of chunks that is being folded.
struct FoldRun {
    /// The chunk behind its last one.
    end: usize,
    ticket: Tickets,
    /// The cell of its measurements.
    cell: Option<usize>,
}

impl GpuFolder {
    /// `measures`: norm and variance of gradients, `looks`: for gradients that are not finite, where they made a
    /// parameter so.
    pub(super) fn new(
        gpu: &Gpu,
        optimizer: &Optimizer,
        measures: bool,
        looks: bool,
    ) -> Result<GpuFolder, Error> {
        let kernels = match measures {
            true => GpuKernels::load_measuring(gpu, optimizer)?,
            false => GpuKernels::load(gpu, optimizer)?,
        };
        let look = looks.then(|| NonFiniteLook::new(gpu)).transpose()?;
        let (job, runs) = (None, VecDeque::new());
        let (is_running, launched, done, cell) = (false, 0, 0, 0);
        let (squares, unanswered_since) = ([0.0; 2], None);
        Ok(GpuFolder {
            kernels,
            look,
            job,
            is_running,
            launched,
            done,
            runs,
            cell,
            squares,
            unanswered_since,
        })
    }

    /// Takes note of runs that are done. True if there was one.
    fn retire(&mut self) -> Result<bool, GpuError> {
        let mut progress = false;
        while let Some(FoldRun { end, ticket, cell }) = self.runs.front_mut() {
            // A ticket tells a fault once: its launch counts for nothing.
            let is_done = ticket.are_done().inspect_err(|_| (*end, *cell) = (self.done, None))?;
            if !is_done && !mutant!("fold_counts_before_it_is_made") {
                break;
            }
            self.done = *end;
            if let Some(cell) = *cell {
                let [sum, each] = self.kernels.measured(cell);
                self.squares = [self.squares[0] + sum, self.squares[1] + each];
            }
            self.runs.pop_front();
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
        let measures = job.measured.is_some();
        // Cells are taken in turns, and the runs before have read theirs.
        if begin == end || (measures && self.runs.len() == GpuKernels::MEASURED_RUNS) {
            return Ok(false);
        }
        let (mut ticket, cell) = (Tickets::default(), measures.then_some(self.cell));
        let fold = fold_of(job, begin, end)?;
        let launched = match cell {
            Some(cell) => self.kernels.launch_measured(fold, cell, &mut ticket),
            None => self.kernels.launch(fold, &mut ticket),
        };
        self.cell = (self.cell + usize::from(measures)) % GpuKernels::MEASURED_RUNS;
        // Where the driver fails late, the launch may be under way all the same. It counts for nothing: its chunks are
        // folded again, out of other arrays than they are written to.
        let (end, cell) = if launched.is_ok() { (end, cell) } else { (begin, None) };
        self.runs.push_back(FoldRun { end, ticket, cell });
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
        debug_assert!(self.runs.is_empty(), "launches of the job before are under way");
        self.kernels.clear_not_finite();
        self.job = Some(fill(self.job.take())?);
        (self.is_running, self.launched, self.done, self.squares) = (true, 0, 0, [0.0; 2]);
        Ok(())
    }

    fn bind(&mut self, _: FoldMetadata) {
        if let Some(job) = &self.job {
            job.bound.store(true, Ordering::Release);
        }
    }

    fn tend(&mut self, now: Instant) -> Result<bool, Error> {
        let progress = self.retire()?;
        let run = self.runs.front().and_then(|run| run.ticket.unanswered());
        let unanswered = run.or_else(|| self.look.as_ref().and_then(NonFiniteLook::unanswered));
        let Some(error) = unanswered else {
            self.unanswered_since = None;
            return Ok(progress);
        };
        let since = *self.unanswered_since.get_or_insert(now);
        if now.saturating_since(since) < UNANSWERED_FOR { Ok(progress) } else { Err(error.into()) }
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

    fn non_finite(&mut self) -> Result<Option<SmallVec<[GradientId; 4]>>, Error> {
        match (&mut self.look, &self.job) {
            (Some(look), Some(job)) => look.advance(job),
            _ => Ok(Some(SmallVec::new())),
        }
    }

    fn moments(&self) -> Option<Moments> {
        let job = self.job.as_ref().filter(|job| job.measured.is_some())?;
        let [sum_norm_squared, each_norm_squared] = self.squares;
        let of = Moments::of(job.inputs.iter().map(|input| input.weight));
        Some(Moments { sum_norm_squared, each_norm_squared, ..of })
    }

    fn end(&mut self) {
        self.is_running = false;
        // Launches that are under way keep the memory that they read.
        if let Some(job) = &mut self.job {
            job.inputs.clear();
        }
        if let Some(look) = &mut self.look {
            look.forget();
        }
    }

    fn is_quiet(&mut self) -> Result<bool, Error> {
        self.retire()?;
        let looks = self.look.as_mut().map(NonFiniteLook::is_quiet).transpose()?;
        Ok(self.runs.is_empty() && looks != Some(false))
    }
}
