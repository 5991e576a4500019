//! Why a checkpoint was not written, or cannot be taken up.

use std::io;
use std::path::PathBuf;

/// A checkpoint that cannot be written or used: which file, what is wrong and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path ends in no file name.
    #[error("{}: names no file; {}", file.display(), self.help())]
    NoName {
        /// Which.
        file: PathBuf,
    },
    /// The operating system would not write it.
    #[error("{}: the checkpoint cannot be written: {source}; {}", file.display(), self.help())]
    Write {
        /// Which.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The parameters are not finite: the checkpoint would be of no use, and would take the place of one that is.
    #[error(
        "{}: the checkpoint is not written: the parameters are not finite since version {since}; {}",
        file.display(), self.help()
    )]
    NotFinite {
        /// Which.
        file: PathBuf,
        /// Since which version.
        since: u64,
    },
    /// The table's description is longer than the format allows.
    #[error(
        "{}: the checkpoint's header would take {bytes} bytes, and safetensors allows {most}; {}",
        file.display(), self.help()
    )]
    Header {
        /// Which.
        file: PathBuf,
        /// How long it would be.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
    /// There is no such file.
    #[error("{}: no such checkpoint; {}", file.display(), self.help())]
    Missing {
        /// Which.
        file: PathBuf,
    },
    /// The operating system would not open or read it.
    #[error("{}: cannot be read: {source}; {}", file.display(), self.help())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something else than a checkpoint of ours.
    #[error("{}: not a checkpoint of a server: {reason}; {}", file.display(), self.help())]
    Foreign {
        /// Which.
        file: PathBuf,
        /// How it can be told.
        reason: String,
    },
    /// Another version of the format.
    #[error(
        "{}: a checkpoint of format {found}, and this library reads format {supported}; {}", file.display(), self.help()
    )]
    Format {
        /// Which.
        file: PathBuf,
        /// The format it has.
        found: u32,
        /// The format that is read here.
        supported: u32,
    },
    /// It was a checkpoint once.
    #[error(
        "{}: a damaged checkpoint: {reason}, and no earlier one beside it can be read; {}", file.display(), self.help()
    )]
    Damaged {
        /// Which.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There is no memory for it.
    #[error("{}: the checkpoint's {bytes} bytes do not fit this machine's memory", file.display())]
    Memory {
        /// Which.
        file: PathBuf,
        /// How many bytes.
        bytes: u64,
    },
    /// A good checkpoint, of something else.
    #[error(
        "{}: a checkpoint of another {what}: it holds {found}, the job has {expected}; {}", file.display(), self.help()
    )]
    OtherJob {
        /// Which.
        file: PathBuf,
        /// What differs.
        what: &'static str,
        /// What the file holds.
        found: String,
        /// What the job has.
        expected: String,
    },
}

impl CheckpointError {
    /// The remedy, where there is one.
    pub(crate) fn remedy(&self) -> Option<&'static str> {
        Some(self.help()).filter(|text| !text.is_empty())
    }

    /// The remedy, where it is the same for all errors of a kind.
    fn help(&self) -> &'static str {
        match self {
            CheckpointError::NoName { .. } => "add a file name, such as shard-0.safetensors",
            CheckpointError::Write { .. } => {
                "check the folder, its permissions and the space left (the last one stands as it was)"
            }
            CheckpointError::NotFinite { .. } => "go on from the last one, with a smaller learning rate",
            CheckpointError::Header { .. } => "use fewer tensors or shorter names",
            CheckpointError::Missing { .. } => "check the path, or start the job from its initial values",
            CheckpointError::Unreadable { .. } => "check its permissions and the disk it is on",
            CheckpointError::Foreign { .. } => "check the path",
            CheckpointError::Format { .. } => "use the slackline that wrote it",
            CheckpointError::Damaged { .. } => {
                "restore the file from a copy, or start the job from its initial values"
            }
            CheckpointError::OtherJob { .. } => {
                "give each server its own file, and the options that the job began with"
            }
            _ => "",
        }
    }
}
