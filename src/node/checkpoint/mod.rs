//! Checkpoints: one shard on the disk, whole, so that a server which died goes on in another incarnation.
//!
//! A server with [`CheckpointOptions`] writes its shard on request and every so many versions, by a thread of its own;
//! [`Server::resume`](super::Server::resume) continues from it. Updates that were applied after the last checkpoint are
//! lost with the server, and nothing else: workers [`reconnect`](super::Worker::reconnect) and continue from the
//! version of the new server.

mod error;
#[cfg_attr(not(feature = "checkpoint"), path = "no_file.rs")]
mod file;
#[cfg(feature = "checkpoint")]
mod format;
#[cfg(all(feature = "checkpoint", any(test, fuzzing)))]
pub(crate) mod fuzz;
mod header;
#[cfg(feature = "checkpoint")]
mod owner;
#[cfg(all(feature = "checkpoint", test))]
mod owner_tests;
mod writer;

#[cfg(all(feature = "checkpoint", test))]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use error::CheckpointError;
use header::Header;
pub(super) use writer::{CheckpointIdentity, CheckpointWrite, Checkpointer};

use crate::clock::{Clock, Version};
use crate::kernel::Optimizer;
use crate::node::taken::Applied;
use crate::table::Table;

/// Settings of a server's checkpoints: the file of its shard, and how often it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// The file; each server of a job needs its own. The server replaces the whole file and never changes a
    /// part of it. The previous checkpoint stands beside it with `.previous` at its name's end. While the server writes
    /// the next checkpoint, that one stands there with its epoch and `.partial`. The incarnation that began last alone
    /// replaces the file; `.owner` names it, and the others end with [`CheckpointError::Superseded`].
    pub path: PathBuf,
    /// Number of versions after which the server writes the file again; with `None`, only on request. Versions that
    /// are made while a checkpoint is written count towards the next.
    pub every: Option<u64>,
}

impl CheckpointOptions {
    /// Written on request only.
    pub fn new(path: impl Into<PathBuf>) -> CheckpointOptions {
        CheckpointOptions { path: path.into(), every: None }
    }

    /// Writes a small file beside the checkpoint, brings it to the disk, renames and removes it. A server does this
    /// before it begins.
    ///
    /// # Errors
    /// [`CheckpointError::Write`] if any of it fails, as it would at the first checkpoint.
    #[doc(hidden)]
    pub fn try_folder(&self) -> Result<(), CheckpointError> {
        file::try_folder(&self.path)
    }
}

/// One shard as a server wrote it: read from a file, to be taken up by
/// [`Server::resume`](super::Server::resume).
#[derive(Clone, Debug)]
pub struct Checkpoint {
    file: PathBuf,
    header: Header,
    parameters: Vec<f32>,
    states: Vec<Vec<f32>>,
    instead_of: Option<Arc<CheckpointError>>,
}

impl Checkpoint {
    /// Reads a file that a server wrote, and proves that it is whole. Where it is missing or damaged, the checkpoint
    /// before it is read instead, and [`instead_of`](Self::instead_of) says so; not where the system does not read it.
    ///
    /// # Errors
    /// [`CheckpointError`] names the defect of the file and the remedy; it is [`CheckpointError::Missing`] if neither
    /// the file nor the previous one exists.
    pub fn read(path: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
        file::read(path.as_ref())
    }

    /// True if [`read`](Self::read) would find the file or the checkpoint before it, or would say why it cannot tell.
    #[doc(hidden)]
    pub fn exists(path: impl AsRef<Path>) -> bool {
        Self::try_exists(path.as_ref()).unwrap_or(true)
    }

    /// True if [`read`](Self::read) would find the file or the checkpoint before it.
    ///
    /// # Errors
    /// [`CheckpointError::Unreadable`] if the system does not say.
    pub(crate) fn try_exists(path: &Path) -> Result<bool, CheckpointError> {
        let is_there = |file: &Path| {
            let unreadable = |source| CheckpointError::Unreadable { file: file.to_owned(), source };
            file.try_exists().map_err(unreadable)
        };
        Ok(is_there(path)? || is_there(&file::previous(path)?)?)
    }

    /// The error of the newest file, if this is the checkpoint before it.
    #[doc(hidden)]
    pub fn instead_of(&self) -> Option<&CheckpointError> {
        self.instead_of.as_deref()
    }

    /// True if this is the checkpoint before `newest`, which was found damaged. A server that goes on from this one
    /// and writes `newest` moves the damaged file away: it would otherwise first put that over the only good one.
    pub(super) fn is_before_damaged(&self, newest: &Path) -> bool {
        let is_damaged =
            self.instead_of().is_some_and(|error| !matches!(error, CheckpointError::Missing { .. }));
        // The two paths may be spelled differently.
        let real = |path: &Path| path.canonicalize().ok();
        let previous = file::previous(newest).ok().and_then(|previous| real(&previous));
        let is_before = previous.is_some_and(|previous| Some(previous) == real(&self.file));
        is_damaged && is_before
    }

    /// The file that it was read from.
    #[doc(hidden)]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The table of the job.
    pub fn table(&self) -> &Table {
        &self.header.table
    }

    /// Returns the number of this shard and the number of shards of the table.
    #[doc(hidden)]
    pub fn shard(&self) -> (u16, u16) {
        (self.header.shard, self.header.shards)
    }

    /// The version that it holds.
    pub fn version(&self) -> Version {
        self.header.version
    }

    /// Returns the clock before which the checkpoint holds all gradients, of every worker that was in.
    #[doc(hidden)]
    pub fn smallest_clock(&self) -> Clock {
        self.header.smallest_clock
    }

    /// Returns, for each worker that was in, the clock before which the checkpoint holds all its gradients.
    #[doc(hidden)]
    pub fn clocks(&self) -> &[Clock] {
        &self.header.clocks
    }

    /// Gradients that were folded in until then, in all incarnations of the server; 0 in a file from before this was
    /// kept.
    #[doc(hidden)]
    pub fn folded(&self) -> u64 {
        self.header.folded
    }

    /// Returns how far the gradients of each worker are in the parameters.
    pub(super) fn applied(&self) -> &Applied {
        &self.header.applied
    }

    /// The incarnation of the server that wrote it.
    #[doc(hidden)]
    pub fn epoch(&self) -> u64 {
        self.header.epoch
    }

    /// The text of the scheme that the server ran.
    #[doc(hidden)]
    pub fn scheme(&self) -> &str {
        &self.header.scheme
    }

    /// The learned state of that scheme, as text.
    pub(super) fn learned(&self) -> Option<&str> {
        self.header.learned.as_deref()
    }

    /// The optimiser that the server ran.
    #[doc(hidden)]
    pub fn optimizer(&self) -> Optimizer {
        self.header.optimizer
    }

    /// The shard's parameters.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// The optimiser's state, as many arrays as [`Optimizer::states`] says.
    #[doc(hidden)]
    pub fn states(&self) -> &[Vec<f32>] {
        &self.states
    }

    /// Checks that the checkpoint is of this job. The optimiser's constants may have changed, since they only say
    /// how it goes on. The meaning of its states may not have changed.
    pub(super) fn check(
        &self,
        table: &Table,
        shard: (u16, u16),
        optimizer: &Optimizer,
    ) -> Result<(), CheckpointError> {
        let other = |what, found, expected| {
            Err(CheckpointError::OtherJob { file: self.file.clone(), what, found, expected })
        };
        let header = &self.header;
        if header.table != *table {
            let show =
                |table: &Table| format!("{} tensors in {} bytes", table.tensors().len(), table.bytes());
            return other("table", show(&header.table), show(table));
        }
        if self.shard() != shard {
            let show = |(shard, shards): (u16, u16)| format!("shard {shard} of {shards}");
            return other("shard", show(self.shard()), show(shard));
        }
        if std::mem::discriminant(&header.optimizer) != std::mem::discriminant(optimizer) {
            return other("optimizer", header.optimizer.name().into(), optimizer.name().into());
        }
        Ok(())
    }
}
