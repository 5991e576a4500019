//! Errors of memory that could not be had.

use std::borrow::Cow;
use std::io;

use crate::diagnostic::{Diagnostic, remedy_of};

/// Memory could not be had or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A length of zero, or a length that no address space holds.
    #[error("cannot map {bytes} bytes of memory: a length must lie between 1 and {max}", max = isize::MAX)]
    Length {
        /// The length asked for.
        bytes: usize,
    },
    /// Memory of the caller's begins at an odd address.
    #[error("cannot use memory at address {address:#x}: it must be a multiple of 8; {}", remedy_of(self))]
    Unaligned {
        /// The address of its first byte.
        address: usize,
    },
    /// The system refused the mapping.
    #[error("cannot map {bytes} bytes of {kind} memory: {source}; {remedy}")]
    Map {
        /// The length asked for.
        bytes: usize,
        /// "anonymous", "huge-page" or "shared".
        kind: &'static str,
        /// The error that the system reported.
        source: io::Error,
        /// A remedy that the user can try.
        remedy: &'static str,
    },
    /// A descriptor that a peer passed is not a memory file sealed against shrinking, or is shorter than was said.
    #[error("the memory file that the peer passed cannot be trusted: {reason}; {}", remedy_of(self))]
    Untrusted {
        /// The fault of the file.
        reason: String,
    },
    /// The system made no dma-buf of it.
    #[error("cannot make a dma-buf of host memory by /dev/udmabuf: {source}; {remedy}")]
    DmaBuf {
        /// The error that the system reported.
        source: io::Error,
        /// A remedy that the user can try.
        remedy: &'static str,
    },
}

impl Diagnostic for MemoryError {
    fn operation(&self) -> &'static str {
        "mapping memory"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            MemoryError::Map { remedy, .. } | MemoryError::DmaBuf { remedy, .. } => Some((*remedy).into()),
            MemoryError::Untrusted { .. } => Some("the peer must be a slackline process".into()),
            MemoryError::Unaligned { .. } => Some("give memory that begins at such an address".into()),
            MemoryError::Length { .. } => None,
        }
    }

    /// True if there were too many open files, or too little memory, at this moment.
    fn is_retryable(&self) -> bool {
        let MemoryError::Map { source, .. } = self else { return false };
        matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
    }
}

pub(super) fn check_length(bytes: usize) -> Result<(), MemoryError> {
    if bytes == 0 || bytes > isize::MAX as usize { Err(MemoryError::Length { bytes }) } else { Ok(()) }
}
