//! Why a checkpoint was not written, or cannot be taken up.

use std::io;
use std::path::PathBuf;

/// A checkpoint that cannot be written or used: which file, what is wrong and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path ends in no file name.
    #[error("{}: names no file; add a file name, such as shard-0.safetensors", file.display())]
    NoName {
        /// Which.
        file: PathBuf,
    },
    /// The operating system would not write it.
    #[error(
        "{}: the checkpoint cannot be written: {source}; check the folder, its permissions and the space left (the \
         last one stands as it was)", file.display()
    )]
    Write {
        /// Which.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The parameters are not finite: the checkpoint would be of no use, and would take the place of one that is.
    #[error(
        "{}: the checkpoint is not written: the parameters are not finite since version {since}; go on from the last \
         one, with a smaller learning rate", file.display()
    )]
    NotFinite {
        /// Which.
        file: PathBuf,
        /// Since which version.
        since: u64,
    },
    /// The table's description is longer than the format allows.
    #[error(
        "{}: the checkpoint's header would take {bytes} bytes, and safetensors allows {most}; use fewer tensors or \
         shorter names", file.display()
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
    #[error("{}: no such checkpoint; check the path, or start the job from its initial values", file.display())]
    Missing {
        /// Which.
        file: PathBuf,
    },
    /// The operating system would not open or read it.
    #[error("{}: cannot be read: {source}; check its permissions and the disk it is on", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something else than a checkpoint of ours.
    #[error("{}: not a checkpoint of a server: {reason}; check the path", file.display())]
    Foreign {
        /// Which.
        file: PathBuf,
        /// How it can be told.
        reason: String,
    },
    /// Another version of the format.
    #[error(
        "{}: a checkpoint of format {found}, and this library reads format {supported}; use the slackline that \
         wrote it", file.display()
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
        "{}: a damaged checkpoint: {reason}, and no earlier one beside it can be read; restore the file from a copy, \
         or start the job from its initial values", file.display()
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
        "{}: a checkpoint of another {what}: it holds {found}, the job has {expected}; give each server its own file, \
         and the options that the job began with", file.display()
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
