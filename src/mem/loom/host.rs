//! Host memory under the model checker: words that loom watches, each made when the memory is, inside the model.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::error::check_length;
use super::volatile::Word;
use super::{MemoryError, VolatileSlice};

/// Bytes in one page: one word, because every word costs the model checker time.
pub const PAGE_SIZE: usize = 8;

/// Memory of the model: every thread of it shares it, whichever kind was requested.
#[derive(Debug)]
pub struct HostMemory {
    words: Vec<Word>,
    bytes: usize,
}

impl HostMemory {
    /// `bytes` of zeroed memory.
    pub fn anonymous(bytes: usize) -> Result<Self, MemoryError> {
        check_length(bytes)?;
        Ok(HostMemory { words: (0..bytes.div_ceil(8)).map(|_| Word::new()).collect(), bytes })
    }

    /// As [`anonymous`](Self::anonymous).
    pub fn huge_pages(bytes: usize) -> Result<Self, MemoryError> {
        Self::anonymous(bytes)
    }

    /// As [`anonymous`](Self::anonymous): all threads of a model are one process.
    pub fn shared(bytes: usize) -> Result<Self, MemoryError> {
        Self::anonymous(bytes)
    }

    /// A model has no other process that could pass a descriptor.
    pub fn from_peer(_file: OwnedFd, _bytes: usize, _writable: bool) -> Result<Self, MemoryError> {
        Err(MemoryError::Untrusted { reason: "a model has no peers outside of it".into() })
    }

    /// Nothing to seal.
    pub fn seal_against_new_writers(&self) -> Result<(), MemoryError> {
        Ok(())
    }

    /// Nothing to seal.
    pub fn seal_against_new_seals(&self) -> Result<(), MemoryError> {
        Ok(())
    }

    /// There is no descriptor.
    pub fn shared_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Always true.
    pub fn is_writable(&self) -> bool {
        true
    }

    /// All of it, for volatile access.
    pub fn as_volatile(&self) -> VolatileSlice<'_> {
        VolatileSlice::of_words(&self.words, self.bytes)
    }
}
