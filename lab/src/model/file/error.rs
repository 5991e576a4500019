//! Reasons that a model file was refused.

use std::path::PathBuf;

use safetensors::SafeTensorError;
use safetensors::tensor::Dtype;
use thiserror::Error;

use crate::model::{ModelSpec, ModelSpecError};

/// A model file that cannot be written or used: which one, what is wrong and what to do about it.
#[derive(Debug, Error)]
#[allow(missing_docs)] // each message says what its fields hold
pub enum ModelFileError {
    /// The path ends in no file name.
    #[error("{}: names no file; add a file name, such as model.safetensors", file.display())]
    NoName { file: PathBuf },

    /// The operating system would not write it.
    #[error(
        "{}: cannot be written: {source}; check the folder, its permissions and the space left",
        file.display()
    )]
    Write { file: PathBuf, source: std::io::Error },

    /// There is no such file.
    #[error("{}: no such file; check the path", file.display())]
    Missing { file: PathBuf },

    /// A directory, a pipe or a device was named.
    #[error("{}: not a regular file; name a model file that `save` wrote", file.display())]
    NotAFile { file: PathBuf },

    /// The operating system would not open or read it.
    #[error("{}: cannot be read: {source}; check its permissions and the disk it is on", file.display())]
    Unreadable { file: PathBuf, source: std::io::Error },

    /// The file is larger than any model.
    #[error("{}: {bytes} bytes, and no model has more than {limit}; check the path", file.display())]
    FileTooLarge { file: PathBuf, bytes: u64, limit: u64 },

    /// The header is longer than the file, or the tensors end elsewhere than the file.
    #[error("{}: cut short or damaged: {source}; copy it again, or train again", file.display())]
    Damaged { file: PathBuf, source: SafeTensorError },

    /// The bytes are no safetensors file at all.
    #[error("{}: not a safetensors file: {source}; check the path", file.display())]
    NotSafetensors { file: PathBuf, source: SafeTensorError },

    /// A safetensors file that another program wrote.
    #[error(
        "{}: a safetensors file without the `slackline` metadata; \
         only models that this program saved can be read",
        file.display()
    )]
    Foreign { file: PathBuf },

    /// The metadata entry is not what this program writes.
    #[error(
        "{}: its `slackline` metadata cannot be read: {source}; train and save the model again",
        file.display()
    )]
    BadHeader { file: PathBuf, source: serde_json::Error },

    /// A version from the future.
    #[error(
        "{}: of version {found}, and this program reads version {supported}; use the program that saved it",
        file.display()
    )]
    Version { file: PathBuf, found: u32, supported: u32 },

    /// The metadata describe no possible model.
    #[error("{}: {source}; the file was changed, train and save the model again", file.display())]
    BadShape { file: PathBuf, source: ModelSpecError },

    /// A part of the model is not there.
    #[error(
        "{}: has no tensor `{name}`; the file was changed, train and save the model again",
        file.display()
    )]
    MissingTensor { file: PathBuf, name: &'static str },

    /// A part of the model has another type.
    #[error("{}: tensor `{name}` is of type {found}; convert it to F32", file.display())]
    WrongType { file: PathBuf, name: &'static str, found: Dtype },

    /// A part of the model has another shape than the metadata say.
    #[error(
        "{}: tensor `{name}` has the shape {found:?} where {expected:?} follows from the metadata; \
         the file was changed, train and save the model again",
        file.display()
    )]
    WrongShape { file: PathBuf, name: &'static str, found: Vec<usize>, expected: Vec<usize> },

    /// A diverged run was saved.
    #[error(
        "{}: tensor `{name}` holds a value that is not finite; the run diverged, train again with a smaller \
         learning rate",
        file.display()
    )]
    NotFinite { file: PathBuf, name: &'static str },

    /// A good model file, but of another model.
    #[error(
        "{}: holds a {found}, where a {expected} is needed; use the --model and --hidden that it was saved with (or \
         leave them out), and data of the same shape",
        file.display()
    )]
    OtherModel { file: PathBuf, found: ModelSpec, expected: ModelSpec },
}
