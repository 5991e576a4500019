//! The file on the disk: written through, renamed, and read with the one before it at hand.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::{self, Fault};
use super::header::Header;
pub(super) use super::owner::claim;
use super::{Checkpoint, CheckpointError, owner};
use crate::diagnostic::cause_of;

/// The path with a suffix at its name's end.
pub(super) fn beside(file: &Path, suffix: &str) -> Result<PathBuf, CheckpointError> {
    let name = file.file_name().ok_or_else(|| CheckpointError::NoName { file: file.to_owned() })?;
    let mut name = name.to_owned();
    name.push(suffix);
    Ok(file.with_file_name(name))
}

/// Returns the path at which an incarnation makes the file before it is renamed: no two write one file.
pub(super) fn partial(file: &Path, epoch: u64) -> Result<PathBuf, CheckpointError> {
    beside(file, &format!(".{epoch:016x}.partial"))
}

/// Returns the path of the checkpoint before the newest one.
pub(super) fn previous(file: &Path) -> Result<PathBuf, CheckpointError> {
    beside(file, ".previous")
}

/// Writes a checkpoint; the existing one becomes the previous one. `tensors` are the parameters and the
/// optimiser's states.
///
/// The file is whole or as it was: it is made under another name in the same folder, brought to the disk and then
/// renamed, and the renames are brought to the disk, too. A process that ends between the two renames leaves no newest
/// file, and [`read`] takes the previous one.
///
/// # Errors
/// The errors of the system, and [`CheckpointError::Superseded`] if the file has another owner than the incarnation of
/// the header: nothing is renamed then.
pub(super) fn write(file: &Path, header: &Header, tensors: &[Vec<u8>]) -> Result<(), CheckpointError> {
    let (partial, previous) = (partial(file, header.epoch)?, previous(file)?);
    let bytes = format::serialise(file, header, tensors)?;
    let rename = || {
        match fs::rename(file, &previous) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(&partial, file)
    };
    let failed = |source| CheckpointError::Write { file: file.to_owned(), source };
    let written = write_through(&partial, &bytes, tensors);
    // The owner is checked before the result of the write: a new owner removes unfinished files of others, and on some
    // file systems the write then fails.
    let renamed =
        owner::hold(file, header.epoch).and_then(|_held| written.and_then(|()| rename()).map_err(failed));
    if renamed.is_err() {
        // Nothing more can be done if it cannot be removed; the first error is the one to report.
        let _ = fs::remove_file(&partial);
    }
    renamed.and_then(|()| sync_folder(file).map_err(failed))
}

/// Gives a damaged file another name, for people who look for the cause. It replaces an earlier damaged file. Only
/// under the lock of the record: another incarnation may have written a good file meanwhile, which stays.
pub(super) fn set_damaged_aside(file: &Path) -> Result<(), CheckpointError> {
    match read_one(file) {
        Err(CheckpointError::Damaged { .. } | CheckpointError::Foreign { .. }) => {}
        // Whether it is good is not known: it must not take the name of the one before.
        Err(error @ (CheckpointError::Unreadable { .. } | CheckpointError::Memory { .. })) => {
            return Err(error);
        }
        _ => return Ok(()),
    }
    let renamed = fs::rename(file, beside(file, ".damaged")?).and_then(|()| sync_folder(file));
    renamed.map_err(|source| CheckpointError::Write { file: file.to_owned(), source })
}

/// Does all steps of [`write`] with a small file, and removes it.
pub(super) fn try_folder(file: &Path) -> Result<(), CheckpointError> {
    let (trial, tried) = (beside(file, ".trial")?, beside(file, ".tried")?);
    // Two that try one folder take turns.
    let _held = owner::lock(file)?;
    let done = write_through(&trial, &[0; 4096], &[])
        .and_then(|()| fs::rename(&trial, &tried))
        .and_then(|()| fs::remove_file(&tried))
        .and_then(|()| sync_folder(file));
    done.map_err(|source| {
        // The first error is the one to report.
        let _ = fs::remove_file(&trial);
        CheckpointError::Write { file: file.to_owned(), source }
    })
}

fn write_through(partial: &Path, head: &[u8], tensors: &[Vec<u8>]) -> io::Result<()> {
    // The file is removed and created again rather than opened: if the name is a link, nothing is written through
    // it.
    match fs::remove_file(partial) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::create_new(partial)?;
    file.write_all(head)?;
    for tensor in tensors {
        file.write_all(tensor)?;
    }
    file.sync_all()
}

/// Brings the rename to the disk; only Unix lets a folder be opened for that.
fn sync_folder(file: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder(file))?.sync_all()?;
    }
    Ok(())
}

pub(super) fn folder(file: &Path) -> &Path {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Reads the newest checkpoint, or the previous one where the newest is missing or damaged.
pub(super) fn read(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let error = match read_one(path) {
        Ok(checkpoint) => return Ok(checkpoint),
        // These files may be good: an earlier checkpoint would be the wrong one.
        Err(
            error @ (CheckpointError::Format { .. }
            | CheckpointError::Memory { .. }
            | CheckpointError::Unreadable { .. }),
        ) => return Err(error),
        Err(error) => error,
    };
    let is_missing = |error: &CheckpointError| matches!(error, CheckpointError::Missing { .. });
    let earlier = match previous(path).map(|previous| read_one(&previous)) {
        Ok(Ok(earlier)) => earlier,
        // It is missing only where there is neither: a job that then begins at its initial values loses nothing.
        Ok(Err(unusable)) if is_missing(&error) && !is_missing(&unusable) => return Err(unusable),
        _ => {
            return Err(match error {
                CheckpointError::Damaged { file, reason } => {
                    let reason = format!("{reason}, and no earlier one beside it can be read");
                    CheckpointError::Damaged { file, reason }
                }
                error => error,
            });
        }
    };
    let (why, version) = (cause_of(&error), earlier.version().get());
    tracing::warn!(error = why, version, "the newest checkpoint is unusable; took the one before");
    Ok(Checkpoint { instead_of: Some(Arc::new(error)), ..earlier })
}

/// Reads one file. No content makes this panic or allocate more memory than the file is long.
fn read_one(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let file = path.to_owned();
    // To open a named pipe would wait for a process that writes to it.
    let source = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(source) => source,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(CheckpointError::Missing { file }),
        Err(source) => return Err(CheckpointError::Unreadable { file, source }),
    };
    let length = match source.metadata() {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(_) => return Err(CheckpointError::Foreign { file, reason: "it is not a regular file".into() }),
        Err(source) => return Err(CheckpointError::Unreadable { file, source }),
    };
    format::parse(source, length, path).map_err(|fault| match fault {
        Fault::Io(source) => CheckpointError::Unreadable { file, source },
        Fault::Foreign(reason) => CheckpointError::Foreign { file, reason },
        Fault::Format(found) => CheckpointError::Format { file, found, supported: Header::FORMAT },
        Fault::Damaged(reason) => CheckpointError::Damaged { file, reason },
        Fault::Memory(bytes) => CheckpointError::Memory { file, bytes },
    })
}
