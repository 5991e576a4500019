//! The incarnation that may write a checkpoint: the last one that began.
//!
//! Beside the checkpoint `NAME` stands `NAME.owner` with the epoch of that incarnation. An incarnation writes its epoch
//! there as it begins, and before it replaces the checkpoint it reads whether the epoch is still its own: a server that
//! was stopped or cut off while its successor began leaves the successor's files alone. Each does so under an exclusive
//! lock of the record, so that no incarnation begins between the question and the renames. The system releases the lock
//! of a process that ends, unless a child that was forked while it was held goes on. On NFS, Linux takes it at the
//! server, and reads the record from there once it holds it.
//!
//! The epoch in the checkpoint itself is not asked: it tells nothing of a successor that has not written yet, and on
//! NFS it may be a cache that says which file has that name. There is no `RENAME_NOREPLACE` or `RENAME_EXCHANGE` there.
//!
//! Where locks do not reach other hosts (NFS with `nolock` or `local_lock`, some file systems in user space), an
//! incarnation that has asked just before its successor began may still replace the checkpoint once. That file is
//! whole, and the successor's next one replaces it. A process that is stopped while it holds the lock keeps it: the
//! others' checkpoints then fail with [`CheckpointError::Locked`] until it goes on or is ended.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::CheckpointError;
use super::file::beside;
use crate::mem::ForkGuard;

/// The longest wait for the lock, which is held for a few operations on the folder.
const LOCK_WITHIN: Duration = Duration::from_secs(10);

/// The time between two attempts to take it.
const TRY_EVERY: Duration = Duration::from_millis(5);

/// Makes the incarnation `epoch` the owner that may write `file`, and removes the unfinished files of dead ones. If it
/// found the file damaged and continues from the previous one, the file is set aside.
pub(super) fn claim(file: &Path, epoch: u64, was_damaged: bool) -> Result<(), CheckpointError> {
    let mut record = lock(file)?;
    let claimed = write_epoch(&mut record.file, epoch).and_then(|()| remove_unfinished(file));
    claimed.map_err(|source| CheckpointError::Write { file: file.to_owned(), source })?;
    if was_damaged { super::file::set_damaged_aside(file) } else { Ok(()) }
}

/// Takes the lock of the record for as long as the result is kept.
///
/// # Errors
/// [`CheckpointError::Superseded`] if another incarnation than `epoch` may write the file. If there is no record,
/// because a person may have removed it, it is made again.
pub(super) fn hold(file: &Path, epoch: u64) -> Result<LockedRecord, CheckpointError> {
    let mut record = lock(file)?;
    let held = match read_epoch(&mut record.file) {
        Ok(Some(owner)) if owner != epoch => {
            return Err(CheckpointError::Superseded { file: file.to_owned(), epoch, owner });
        }
        Ok(Some(_)) => Ok(()),
        Ok(None) => write_epoch(&mut record.file, epoch),
        Err(error) => Err(error),
    };
    held.map(|()| record).map_err(|source| CheckpointError::Write { file: file.to_owned(), source })
}

/// The record under its lock, which is given back at the end of this.
///
/// To close the record is not enough: a child that was forked meanwhile has the open file, too, and the lock would last
/// as long as the child.
#[derive(Debug)]
pub(super) struct LockedRecord {
    file: File,
    guard: ForkGuard,
}

impl LockedRecord {
    fn new(file: File) -> LockedRecord {
        LockedRecord { file, guard: ForkGuard::new() }
    }

    /// The same open file, as a child that is forked now has it.
    #[cfg(test)]
    pub(super) fn open_file(&self) -> File {
        self.file.try_clone().expect("another descriptor")
    }
}

impl Drop for LockedRecord {
    fn drop(&mut self) {
        // In a forked child it is the lock of the parent, which is still at work.
        if !self.guard.is_inherited() {
            // A lock that cannot be released ends with the last process that has the file open.
            let _ = self.file.unlock();
        }
    }
}

/// Takes the lock of the record, which is made if it is not there.
pub(super) fn lock(file: &Path) -> Result<LockedRecord, CheckpointError> {
    lock_within(file, LOCK_WITHIN)
}

pub(super) fn lock_within(file: &Path, within: Duration) -> Result<LockedRecord, CheckpointError> {
    let path = beside(file, ".owner")?;
    let failed = |source| CheckpointError::Write { file: file.to_owned(), source };
    // Nothing is written through a link.
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW);
    let record = options.open(&path).map_err(failed)?;
    let begun = Instant::now();
    loop {
        match record.try_lock() {
            Ok(()) => return Ok(LockedRecord::new(record)),
            Err(TryLockError::WouldBlock) if begun.elapsed() < within => std::thread::sleep(TRY_EVERY),
            Err(TryLockError::WouldBlock) => {
                return Err(CheckpointError::Locked { file: path, waited: within });
            }
            // A file system without locks: the record alone still keeps all but the closest races apart.
            Err(TryLockError::Error(error)) if has_no_locks(&error) => return Ok(LockedRecord::new(record)),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}

fn has_no_locks(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(libc::ENOLCK)
}

/// The epoch in the record; `None` in a new record.
fn read_epoch(record: &mut File) -> io::Result<Option<u64>> {
    let mut digits = [0; 16];
    record.rewind()?;
    match record.read_exact(&mut digits) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    Ok(std::str::from_utf8(&digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok()))
}

fn write_epoch(record: &mut File, epoch: u64) -> io::Result<()> {
    record.rewind()?;
    // One call: a process that is killed leaves the whole epoch or the one before.
    record.write_all(format!("{epoch:016x}").as_bytes())?;
    record.sync_all()
}

/// Removes the unfinished files of other incarnations: none of them may finish its own any more.
fn remove_unfinished(file: &Path) -> io::Result<()> {
    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
    for entry in fs::read_dir(super::file::folder(file))? {
        let entry = entry?;
        let found = entry.file_name();
        if found.as_encoded_bytes().strip_prefix(name).is_some_and(is_unfinished) {
            // A file that cannot be removed takes room, and does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// True of the end of a name that [`partial`](super::file::partial) makes, and of the name before it held the epoch.
fn is_unfinished(end: &[u8]) -> bool {
    let Some(epoch) = end.strip_suffix(b".partial") else { return false };
    let is_epoch = |digits: &[u8]| digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit);
    epoch.is_empty() || epoch.strip_prefix(b".").is_some_and(is_epoch)
}
