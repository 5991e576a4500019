//! Model files: safetensors, readable by every framework.
//!
//! The tensors have the names and shapes of [`ModelSpec::tensors`] and are single precision. What kind
//! of model they make is one JSON object under the metadata key `slackline`. One entry, because the
//! metadata is written in no particular order, and equal models should be equal files.

mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};

use super::{ModelKind, ModelSpec};
pub use error::ModelFileError;

/// The metadata entry with the model's shape.
const KEY: &str = "slackline";

/// Raised when a file of an older version would be misread. Version 2 has a list of hidden layers, version 1 had the
/// width of one.
const VERSION: u32 = 2;

/// No model is larger than this (see `PARAMETERS_MAX`), with room for the header.
const FILE_BYTES_MAX: u64 = (1 << 30) + (1 << 20);

/// What the metadata entry of every version begins with.
#[derive(Deserialize)]
struct AnyHeader {
    version: u32,
}

/// The content of the metadata entry: what [`ModelSpec::new`] takes.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    kind: ModelKind,
    columns: usize,
    classes: usize,
    hidden: Vec<usize>,
}

/// Writes a model file, replacing one that is there.
///
/// The file is complete or absent: it is written under another name in the same folder, brought to the
/// disk and then renamed, so a crash leaves the old file as it was.
///
/// # Errors
///
/// If the operating system refuses; what was written of the new file is removed.
///
/// # Panics
///
/// If `parameters` is not as long as `spec` says.
pub fn save(path: impl AsRef<Path>, spec: &ModelSpec, parameters: &[f32]) -> Result<(), ModelFileError> {
    let path = path.as_ref();
    let bytes = serialise(spec, parameters);
    let Some(name) = path.file_name() else {
        return Err(ModelFileError::NoName { file: path.to_owned() });
    };
    // The process is in the name so that two programs writing the same model do not share the file.
    let mut partial = name.to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(partial);

    let written = write_through(&partial, &bytes).and_then(|()| fs::rename(&partial, path));
    written.and_then(|()| sync_folder(path)).map_err(|source| {
        // Nothing more can be done if it cannot be removed; the first error is the one to report.
        let _ = fs::remove_file(&partial);
        ModelFileError::Write { file: path.to_owned(), source }
    })
}

/// Reads a model file of whatever shape.
///
/// # Errors
///
/// [`ModelFileError`] says what is wrong with the file and what to do. Nothing that a file can hold
/// makes this panic.
pub fn load(path: impl AsRef<Path>) -> Result<(ModelSpec, Vec<f32>), ModelFileError> {
    let path = path.as_ref();
    parse(path, &read(path)?)
}

/// Reads the parameters of a model that must have the shape `expected`.
///
/// # Errors
///
/// As [`load`], and [`ModelFileError::OtherModel`] for another shape.
pub fn load_for(path: impl AsRef<Path>, expected: &ModelSpec) -> Result<Vec<f32>, ModelFileError> {
    let path = path.as_ref();
    let (found, parameters) = load(path)?;
    if found.clone().with_penalty(expected.penalty()) != *expected {
        let (found, expected) = (Box::new(found), Box::new(expected.clone()));
        return Err(ModelFileError::OtherModel { file: path.to_owned(), found, expected });
    }
    Ok(parameters)
}

/// The whole file. Bytes are little-endian, as the format has them.
fn serialise(spec: &ModelSpec, parameters: &[f32]) -> Vec<u8> {
    assert_eq!(parameters.len(), spec.parameters(), "the parameters are those of a {spec}");
    let header = Header {
        version: VERSION,
        kind: spec.kind(),
        columns: spec.inputs(),
        classes: spec.outputs(),
        hidden: spec.hidden().to_vec(),
    };
    let header = serde_json::to_string(&header).expect("numbers and a name are valid JSON");
    let bytes: Vec<u8> = parameters.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut rest = &bytes[..];
    let tensors = spec.tensors().into_iter().map(|tensor| {
        let (data, after) = rest.split_at(4 * tensor.parameters());
        rest = after;
        let view = TensorView::new(Dtype::F32, tensor.shape, data).expect("the bytes are cut by the shape");
        (tensor.name, view)
    });
    safetensors::serialize(tensors, Some(HashMap::from([(KEY.to_owned(), header)])))
        .expect("a handful of tensors makes a small header")
}

fn write_through(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Brings the rename to the disk; only Unix lets a folder be opened for that.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// Reads a whole regular file, whose size is checked first.
fn read(path: &Path) -> Result<Vec<u8>, ModelFileError> {
    let file = || path.to_owned();
    let unreadable = |source: io::Error| match source.kind() {
        ErrorKind::NotFound => ModelFileError::Missing { file: file() },
        _ => ModelFileError::Unreadable { file: file(), source },
    };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(ModelFileError::NotAFile { file: file() });
    }
    if metadata.len() > FILE_BYTES_MAX {
        let (bytes, limit) = (metadata.len(), FILE_BYTES_MAX);
        return Err(ModelFileError::FileTooLarge { file: file(), bytes, limit });
    }
    fs::read(path).map_err(unreadable)
}

/// Whether the header starts as JSON, as far as there is one.
fn begins_well(bytes: &[u8]) -> bool {
    bytes.get(8).is_none_or(|byte| *byte == b'{')
}

/// Takes a model file apart; `path` is its name in errors.
fn parse(path: &Path, bytes: &[u8]) -> Result<(ModelSpec, Vec<f32>), ModelFileError> {
    let file = || path.to_owned();
    let malformed = |source| match source {
        // The header was readable as far as it went: the file began as a safetensors file.
        SafeTensorError::MetadataIncompleteBuffer => ModelFileError::Damaged { file: file(), source },
        SafeTensorError::InvalidHeaderLength | SafeTensorError::HeaderTooSmall if begins_well(bytes) => {
            ModelFileError::Damaged { file: file(), source }
        }
        _ => ModelFileError::NotSafetensors { file: file(), source },
    };
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(malformed)?;
    let tensors = SafeTensors::deserialize(bytes).map_err(malformed)?;

    let entry = metadata.metadata().as_ref().and_then(|entries| entries.get(KEY));
    let entry = entry.ok_or_else(|| ModelFileError::Foreign { file: file() })?;
    let bad_header = |source| ModelFileError::BadHeader { file: file(), source };
    let AnyHeader { version } = serde_json::from_str(entry).map_err(bad_header)?;
    if version != VERSION {
        return Err(ModelFileError::Version { file: file(), found: version, supported: VERSION });
    }
    let header: Header = serde_json::from_str(entry).map_err(bad_header)?;
    let spec = ModelSpec::new(header.kind, header.columns, header.classes, &header.hidden)
        .map_err(|source| ModelFileError::BadShape { file: file(), source })?;

    let mut parameters = Vec::new();
    for expected in spec.tensors() {
        let name = expected.name.into_owned();
        let Ok(tensor) = tensors.tensor(&name) else {
            return Err(ModelFileError::MissingTensor { file: file(), name });
        };
        if tensor.dtype() != Dtype::F32 {
            return Err(ModelFileError::WrongType { file: file(), name, found: tensor.dtype() });
        }
        if tensor.shape() != expected.shape {
            let found = tensor.shape().to_vec();
            return Err(ModelFileError::WrongShape { file: file(), name, found, expected: expected.shape });
        }
        let (values, _) = tensor.data().as_chunks();
        parameters.extend(values.iter().map(|value| f32::from_le_bytes(*value)));
        if parameters.iter().any(|value| !value.is_finite()) {
            return Err(ModelFileError::NotFinite { file: file(), name });
        }
    }
    Ok((spec, parameters))
}
