//! Folding gradients into a new version, by processors or by a GPU.

use smallvec::SmallVec;

use super::Error;
use super::aggregate::FoldJob;
use crate::kernel::Moments;
use crate::mem::OutOfBounds;
use crate::scheme::GradientId;
use crate::time::Instant;

/// Makes a job of the one before, whose vectors it uses again.
pub(super) type FillJob<'a> = &'a mut dyn FnMut(Option<FoldJob>) -> Result<FoldJob, OutOfBounds>;

/// The metadata of a job's gradients.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FoldMetadata {
    /// Workers whose gradients are in them: as many as there are gradients, where none is a sum.
    pub(super) workers: u64,
    /// The mean loss of these workers, where they told one.
    pub(super) loss: Option<f64>,
}

/// Folds one job at a time, as its gradients come in. No call waits.
pub(super) trait Folder: Send {
    /// Begins a job, and discards the running one. A folder whose work cannot be cancelled must be
    /// [quiet](Self::is_quiet) first.
    fn begin(&mut self, fill: FillJob<'_>) -> Result<(), Error>;

    /// The job that runs counts: all its gradients were announced, with this.
    fn bind(&mut self, told: FoldMetadata);

    /// Makes progress on work that runs elsewhere, whether a job runs or not. True if it made some.
    fn tend(&mut self, _now: Instant) -> Result<bool, Error> {
        Ok(false)
    }

    /// True between `begin` and `end`.
    fn is_running(&self) -> bool;

    /// Folds as far as gradients have come, and at most so many chunks in the caller's own thread, which keeps looking
    /// after its peers. True if it made progress.
    fn advance(&mut self, chunks: usize) -> Result<bool, Error>;

    /// True if all chunks are folded.
    fn is_complete(&self) -> bool;

    /// True if all parameters and second moments that a complete job has made are finite.
    fn is_finite(&self) -> bool;

    /// The gradients of a complete job that hold a NaN or an infinity: a pass over all of them, or `None` while a GPU
    /// makes it. A GPU that is not to leave them out does not look.
    fn non_finite(&mut self) -> Result<Option<SmallVec<[GradientId; 4]>>, Error>;

    /// Returns the measurements of a complete job, if it was to be measured.
    fn moments(&self) -> Option<Moments>;

    /// Ends the job, finished or not, and releases the workers' memory, except memory that is still being read.
    fn end(&mut self);

    /// True once no work of a discarded job reads or writes memory any more.
    fn is_quiet(&mut self) -> Result<bool, Error>;
}
