//! What folds gradients into a new version: processors, or a GPU.

use smallvec::SmallVec;

use super::Error;
use super::aggregate::FoldJob;
use crate::kernel::Moments;
use crate::mem::OutOfBounds;
use crate::scheme::GradientId;
use crate::time::Instant;

/// Makes a job of the one before, whose vectors it uses again.
pub(super) type FillJob<'a> = &'a mut dyn FnMut(Option<FoldJob>) -> Result<FoldJob, OutOfBounds>;

/// What the gradients of a job came with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FoldMetadata {
    /// Workers whose gradients are in them: as many as there are gradients, where none is a sum.
    pub(super) workers: u64,
    /// The mean loss of these workers, where they told one.
    pub(super) loss: Option<f64>,
}

/// Folds one job at a time, as its gradients come in. No call waits.
pub(super) trait Folder: Send {
    /// Begins a job, throwing away the one that runs. One whose work cannot be called off must be
    /// [quiet](Self::is_quiet) first.
    fn begin(&mut self, fill: FillJob<'_>) -> Result<(), Error>;

    /// The job that runs counts: all its gradients were announced, with this.
    fn bind(&mut self, told: FoldMetadata);

    /// Looks after what folds elsewhere, whether a job runs or not. True if it got anywhere.
    fn tend(&mut self, _now: Instant) -> Result<bool, Error> {
        Ok(false)
    }

    /// True between `begin` and `end`.
    fn is_running(&self) -> bool;

    /// Folds as far as gradients have come, and at most so many chunks in the caller's own thread, which keeps looking
    /// after its peers. True if it got anywhere.
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

    /// Ends the job, finished or not, and lets go of the workers' memory as far as nothing reads it any more.
    fn end(&mut self);

    /// True once nothing of a job that was thrown away reads or writes memory any more.
    fn is_quiet(&mut self) -> Result<bool, Error>;
}
