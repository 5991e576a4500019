//! Reasons that a model file was refused.

use slackline::Diagnostic;
use std::borrow::Cow;
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
    #[error("{}: names no file; {}", file.display(), self.remedy().unwrap_or_default())]
    NoName { file: PathBuf },

    /// The operating system would not write it.
    #[error("{}: cannot be written: {source}; {}", file.display(), self.remedy().unwrap_or_default())]
    Write { file: PathBuf, source: std::io::Error },

    /// There is no such file.
    #[error("{}: no such file; {}", file.display(), self.remedy().unwrap_or_default())]
    Missing { file: PathBuf },

    /// A directory, a pipe or a device was named.
    #[error("{}: not a regular file; {}", file.display(), self.remedy().unwrap_or_default())]
    NotAFile { file: PathBuf },

    /// The operating system would not open or read it.
    #[error("{}: cannot be read: {source}; {}", file.display(), self.remedy().unwrap_or_default())]
    Unreadable { file: PathBuf, source: std::io::Error },

    /// The file is larger than any model.
    #[error(
        "{}: {bytes} bytes, and no model has more than {limit}; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    FileTooLarge { file: PathBuf, bytes: u64, limit: u64 },

    /// The header is longer than the file, or the tensors end elsewhere than the file.
    #[error("{}: cut short or damaged: {source}; {}", file.display(), self.remedy().unwrap_or_default())]
    Damaged { file: PathBuf, source: SafeTensorError },

    /// The bytes are no safetensors file at all.
    #[error("{}: not a safetensors file: {source}; {}", file.display(), self.remedy().unwrap_or_default())]
    NotSafetensors { file: PathBuf, source: SafeTensorError },

    /// A safetensors file that another program wrote.
    #[error(
        "{}: a safetensors file without the `slackline` metadata; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    Foreign { file: PathBuf },

    /// The metadata entry is not what this program writes.
    #[error(
        "{}: its `slackline` metadata cannot be read: {source}; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    BadHeader { file: PathBuf, source: serde_json::Error },

    /// A version from the future.
    #[error(
        "{}: of version {found}, and this program reads version {supported}; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    Version { file: PathBuf, found: u32, supported: u32 },

    /// The metadata describe no possible model.
    #[error("{}: {source}; {}", file.display(), self.remedy().unwrap_or_default())]
    BadShape { file: PathBuf, source: ModelSpecError },

    /// A part of the model is not there.
    #[error("{}: has no tensor `{name}`; {}", file.display(), self.remedy().unwrap_or_default())]
    MissingTensor { file: PathBuf, name: String },

    /// A part of the model has another type.
    #[error("{}: tensor `{name}` is of type {found}; {}", file.display(), self.remedy().unwrap_or_default())]
    WrongType { file: PathBuf, name: String, found: Dtype },

    /// A part of the model has another shape than the metadata say.
    #[error(
        "{}: tensor `{name}` has the shape {found:?} where {expected:?} follows from the metadata; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    WrongShape { file: PathBuf, name: String, found: Vec<usize>, expected: Vec<usize> },

    /// A diverged run was saved.
    #[error(
        "{}: tensor `{name}` holds a value that is not finite; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    NotFinite { file: PathBuf, name: String },

    /// A good model file, but of another model.
    #[error("{}: holds a {found}, where a {expected} is needed; {}", file.display(), self.remedy().unwrap_or_default())]
    OtherModel { file: PathBuf, found: Box<ModelSpec>, expected: Box<ModelSpec> },
}

impl Diagnostic for ModelFileError {
    fn operation(&self) -> &'static str {
        "reading or writing a model"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            ModelFileError::NoName { .. } => "add a file name, such as model.safetensors".into(),
            ModelFileError::Write { .. } => "check the folder, its permissions and the space left".into(),
            ModelFileError::Missing { .. } => "check the path".into(),
            ModelFileError::NotAFile { .. } => "name a model file that `save` wrote".into(),
            ModelFileError::Unreadable { .. } => "check its permissions and the disk it is on".into(),
            ModelFileError::FileTooLarge { .. } => "check the path".into(),
            ModelFileError::Damaged { .. } => "copy it again, or train again".into(),
            ModelFileError::NotSafetensors { .. } => "check the path".into(),
            ModelFileError::Foreign { .. } => "only models that this program saved can be read".into(),
            ModelFileError::BadHeader { .. } => "train and save the model again".into(),
            ModelFileError::Version { .. } => "use the program that saved it".into(),
            ModelFileError::BadShape { .. } => "the file was changed, train and save the model again".into(),
            ModelFileError::MissingTensor { .. } => {
                "the file was changed, train and save the model again".into()
            }
            ModelFileError::WrongType { .. } => "convert it to F32".into(),
            ModelFileError::WrongShape { .. } => {
                "the file was changed, train and save the model again".into()
            }
            ModelFileError::NotFinite { .. } => {
                "the run diverged, train again with a smaller learning rate".into()
            }
            ModelFileError::OtherModel { .. } => {
                "use the --model and --hidden that it was saved with (or leave \
                 them out), and data of the same shape"
                    .into()
            }
        })
    }
}
