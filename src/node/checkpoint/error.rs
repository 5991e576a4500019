//! The reasons why a checkpoint was not written, or cannot be taken up.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::diagnostic::{Diagnostic, remedy_of};

/// A checkpoint that cannot be written or used. The error names the file, the defect and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path ends in no file name.
    #[error("{}: names no file; {}", file.display(), remedy_of(self))]
    NoName {
        /// The path.
        file: PathBuf,
    },
    /// The operating system would not write it.
    #[error("{}: the checkpoint cannot be written: {source}; {}", file.display(), remedy_of(self))]
    Write {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another incarnation has begun with this file, which alone may write it from then on.
    #[error(
        "{}: the checkpoint is not written: it is owned by incarnation {owner:016x}, which began after this one \
         ({epoch:016x}); {}",
        file.display(), remedy_of(self)
    )]
    Superseded {
        /// The file.
        file: PathBuf,
        /// The incarnation that would have written it.
        epoch: u64,
        /// The incarnation that may.
        owner: u64,
    },
    /// Another process holds the lock of the checkpoint's owner.
    #[error("{}: locked by another process for {waited:?}; {}", file.display(), remedy_of(self))]
    Locked {
        /// The record of the owner.
        file: PathBuf,
        /// The time for which the lock was waited for.
        waited: Duration,
    },
    /// The parameters are not finite: the checkpoint would be useless, and would replace a useful one.
    #[error(
        "{}: the checkpoint is not written: the parameters are not finite since version {since}; {}",
        file.display(), remedy_of(self)
    )]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// The first version whose parameters are not finite.
        since: u64,
    },
    /// The parameters or the optimiser's state are on a GPU, which does not copy them.
    #[error("{}: the checkpoint is not written: {reason}", file.display())]
    Gpu {
        /// The file.
        file: PathBuf,
        /// The reason, with its remedy.
        reason: String,
    },
    /// The table's description is longer than the format allows.
    #[error(
        "{}: the checkpoint's header would take {bytes} bytes, and safetensors allows {most}; {}",
        file.display(), remedy_of(self)
    )]
    Header {
        /// The file.
        file: PathBuf,
        /// The length that the header would have, in bytes.
        bytes: usize,
        /// The largest length that the format allows, in bytes.
        most: usize,
    },
    /// The library was built without checkpoints.
    #[error("{}: this build of slackline has no checkpoints; {}", file.display(), remedy_of(self))]
    NotBuilt {
        /// The file.
        file: PathBuf,
    },
    /// There is no such file.
    #[error("{}: no such checkpoint; {}", file.display(), remedy_of(self))]
    Missing {
        /// The file.
        file: PathBuf,
    },
    /// The operating system would not open or read it.
    #[error("{}: cannot be read: {source}; {}", file.display(), remedy_of(self))]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is something else than a checkpoint of ours.
    #[error("{}: not a checkpoint of a server: {reason}; {}", file.display(), remedy_of(self))]
    Foreign {
        /// The file.
        file: PathBuf,
        /// The reason why it cannot be a checkpoint.
        reason: String,
    },
    /// The checkpoint has another version of the format.
    #[error(
        "{}: a checkpoint of format {found}, and this library reads format {supported}; {}",
        file.display(), remedy_of(self)
    )]
    Format {
        /// The file.
        file: PathBuf,
        /// The format it has.
        found: u32,
        /// The format that is read here.
        supported: u32,
    },
    /// The file was a checkpoint once, and is damaged.
    #[error(
        "{}: a damaged checkpoint: {reason}; {}",
        file.display(), remedy_of(self)
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The damage that was found.
        reason: String,
    },
    /// There is no memory for the checkpoint.
    #[error("{}: the checkpoint's {bytes} bytes do not fit this machine's memory; {}", file.display(), remedy_of(self))]
    Memory {
        /// The file.
        file: PathBuf,
        /// The bytes of memory that the checkpoint needs.
        bytes: u64,
    },
    /// The file is a good checkpoint of something else.
    #[error(
        "{}: a checkpoint of another {what}: it holds {found}, the job has {expected}; {}",
        file.display(), remedy_of(self)
    )]
    OtherJob {
        /// The file.
        file: PathBuf,
        /// The property in which the checkpoint and the job differ.
        what: &'static str,
        /// The value of that property in the file.
        found: String,
        /// The value of that property in the job.
        expected: String,
    },
}

impl Diagnostic for CheckpointError {
    fn operation(&self) -> &'static str {
        match self {
            CheckpointError::Write { .. }
            | CheckpointError::Superseded { .. }
            | CheckpointError::Locked { .. }
            | CheckpointError::NotFinite { .. }
            | CheckpointError::Gpu { .. }
            | CheckpointError::Header { .. } => "writing a checkpoint",
            _ => "reading a checkpoint",
        }
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(Cow::from(match self {
            // Its reason ends in one.
            CheckpointError::Gpu { .. } => return None,
            CheckpointError::NoName { .. } => "add a file name, such as shard-0.safetensors",
            CheckpointError::Write { .. } => {
                "check the folder, its permissions and the space left (the last one stands as it was)"
            }
            CheckpointError::Superseded { .. } => {
                "let that server go on in its stead, or give each server that is to run a file of its own"
            }
            CheckpointError::Locked { .. } => {
                "let the process that holds it go on if it is stopped, or end it"
            }
            CheckpointError::NotFinite { .. } => "go on from the last one, with a smaller learning rate",
            CheckpointError::Header { .. } => "use fewer tensors or shorter names",
            CheckpointError::NotBuilt { .. } => "build slackline with its feature `checkpoint`",
            CheckpointError::Missing { .. } => "check the path, or start the job from its initial values",
            CheckpointError::Unreadable { .. } => "check its permissions and the disk it is on",
            CheckpointError::Foreign { .. } => "check the path",
            CheckpointError::Format { .. } => "use the slackline that wrote it",
            CheckpointError::Damaged { .. } => {
                "restore the file from a copy, or start the job from its initial values"
            }
            CheckpointError::Memory { .. } => "use more servers, on machines of their own",
            CheckpointError::OtherJob { .. } => {
                "give each server its own file, and the options that the job began with"
            }
        }))
    }
}
