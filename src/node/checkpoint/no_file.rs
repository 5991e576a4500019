//! Stands in for the file in a library that is built without the feature `checkpoint`.

use std::path::{Path, PathBuf};

use super::header::Header;
use super::{Checkpoint, CheckpointError};

fn not_built<T>(file: &Path) -> Result<T, CheckpointError> {
    Err(CheckpointError::NotBuilt { file: file.to_owned() })
}

pub(super) fn previous(file: &Path) -> Result<PathBuf, CheckpointError> {
    not_built(file)
}

pub(super) fn claim(file: &Path, _: u64, _: bool) -> Result<(), CheckpointError> {
    not_built(file)
}

pub(super) fn write(file: &Path, _: &Header, _: &[Vec<u8>]) -> Result<(), CheckpointError> {
    not_built(file)
}

pub(super) fn try_folder(file: &Path) -> Result<(), CheckpointError> {
    not_built(file)
}

pub(super) fn read(file: &Path) -> Result<Checkpoint, CheckpointError> {
    not_built(file)
}
