//! Work requests and their completions.

use super::CompletionError;
use crate::cuda::{Gpu, GpuSlice};
use crate::mem::{LocalSlice, RemoteSlice, Streaming};

/// Names a request in its completion. The poster chooses it; backends only hand it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkRequestId(pub u64);

bitflags::bitflags! {
    /// Options that say how a request is to be treated.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// Report its completion. Unsignalled requests are heard of only if they fail.
        const SIGNALLED = 1;
        /// Begin only after all earlier reads and atomics of this endpoint have completed.
        const FENCE = 2;
        /// Wake the peer's owner once this WRITE is done, if it sleeps in [`Listener::wait`](super::Listener::wait). A
        /// wish: where the peer cannot be woken, or was too often of late, it is a WRITE like any other.
        const NOTIFY = 4;
    }
}

/// Up to 64 bytes that travel in the request itself: a word or a header. Words are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline {
    words: [u64; 8],
    len: u8,
}

impl Inline {
    /// One word.
    #[inline]
    pub fn word(value: u64) -> Inline {
        let mut words = [0; 8];
        words[0] = value;
        Inline { words, len: 1 }
    }

    /// Eight words: one cache line.
    #[inline]
    pub fn line(words: [u64; 8]) -> Inline {
        Inline { words, len: 8 }
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.words[..usize::from(self.len)]
    }

    /// Length in bytes.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.len) * 8
    }
}

/// The operation of a request. Local and remote ranges must be of one length; atomics work on one aligned word.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Local memory into the peer's.
    Write {
        /// From here.
        local: LocalSlice,
        /// To there.
        remote: RemoteSlice,
        /// Whether the copy should go past the caches, where a CPU makes it. A hint.
        streaming: Streaming,
    },
    /// A few words into the peer's memory.
    WriteInline {
        /// The words.
        data: Inline,
        /// To there.
        remote: RemoteSlice,
    },
    /// The peer's memory into local memory.
    Read {
        /// To here.
        local: LocalSlice,
        /// From there.
        remote: RemoteSlice,
        /// Whether the copy should go past the caches, where a CPU makes it. A hint.
        streaming: Streaming,
    },
    /// As `Read`, into memory of a GPU of this process.
    ReadToGpu {
        /// To here.
        local: GpuSlice,
        /// From there.
        remote: RemoteSlice,
    },
    /// As `Write`, from memory of a GPU of this process.
    WriteFromGpu {
        /// From here.
        local: GpuSlice,
        /// To there.
        remote: RemoteSlice,
    },
    /// Adds to a word of the peer; its old value is stored in `local`.
    FetchAdd {
        /// Gets the old value.
        local: LocalSlice,
        /// The word.
        remote: RemoteSlice,
        /// The number to add.
        add: u64,
    },
    /// Stores `swap` into a word of the peer if it equals `compare`; its old value is stored in `local`.
    CompareSwap {
        /// Gets the old value.
        local: LocalSlice,
        /// The word.
        remote: RemoteSlice,
        /// The value that the word must have.
        compare: u64,
        /// The value that the word gets then.
        swap: u64,
    },
}

impl Operation {
    /// True for a READ, wherever it goes.
    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Operation::Read { .. } | Operation::ReadToGpu { .. })
    }

    /// True for what fences wait for: READs and atomics.
    #[inline]
    pub(crate) fn brings(&self) -> bool {
        self.is_read() || matches!(self, Operation::FetchAdd { .. } | Operation::CompareSwap { .. })
    }
}

/// One one-sided operation.
#[derive(Clone, Debug)]
pub struct WorkRequest {
    /// Comes back in the completion.
    pub id: WorkRequestId,
    /// The operation to carry out.
    pub operation: Operation,
    /// The options that say how it is to be treated.
    pub flags: Flags,
}

impl WorkRequest {
    /// A signalled request without a fence.
    pub fn signalled(id: u64, operation: Operation) -> WorkRequest {
        WorkRequest { id: WorkRequestId(id), operation, flags: Flags::SIGNALLED }
    }

    /// An unsignalled request without a fence.
    pub fn unsignalled(id: u64, operation: Operation) -> WorkRequest {
        WorkRequest { id: WorkRequestId(id), operation, flags: Flags::empty() }
    }

    /// Checks the request as it stands, before any peer is asked, for a transport that copies no memory of GPUs. The
    /// error says what is wrong with it.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        match self.operation {
            Operation::ReadToGpu { .. } | Operation::WriteFromGpu { .. } => Err(
                "this transport copies no memory of a GPU: give it the GPU (`with_gpu`), or use host memory",
            ),
            _ => self.check_ranges(),
        }
    }

    /// The same for a transport that copies memory of this GPU.
    pub(crate) fn check_with(&self, gpu: &Gpu) -> Result<(), &'static str> {
        match &self.operation {
            Operation::ReadToGpu { local, .. } | Operation::WriteFromGpu { local, .. }
                if !local.is_of(gpu) =>
            {
                Err("the memory is on another GPU than that of the transport")
            }
            _ => self.check_ranges(),
        }
    }

    /// The same for one that has registered the memory, wherever it is.
    #[inline]
    pub(crate) fn check_ranges(&self) -> Result<(), &'static str> {
        let same = |local: &LocalSlice, remote: &RemoteSlice| local.len() as u64 == remote.len;
        let is_writable = match &self.operation {
            Operation::Read { local, .. }
            | Operation::FetchAdd { local, .. }
            | Operation::CompareSwap { local, .. } => local.is_writable(),
            Operation::ReadToGpu { local, .. } => local.is_writable(),
            Operation::Write { .. } | Operation::WriteFromGpu { .. } | Operation::WriteInline { .. } => true,
        };
        if !is_writable {
            return Err("the local memory is a peer's, granted for reading only");
        }
        match &self.operation {
            Operation::Write { local, remote, .. } | Operation::Read { local, remote, .. } => {
                same(local, remote).then_some(()).ok_or("the local and the remote range differ in length")
            }
            Operation::ReadToGpu { local, remote } | Operation::WriteFromGpu { local, remote } => {
                let is_same = local.bytes() as u64 == remote.len;
                is_same.then_some(()).ok_or("the local and the remote range differ in length")
            }
            Operation::WriteInline { data, remote } => (data.len_bytes() == remote.len)
                .then_some(())
                .ok_or("the data and the remote range differ in length"),
            Operation::FetchAdd { local, remote, .. } | Operation::CompareSwap { local, remote, .. } => {
                let aligned = local.offset().is_multiple_of(8) && remote.offset.is_multiple_of(8);
                (local.len() == 8 && remote.len == 8 && aligned)
                    .then_some(())
                    .ok_or("an atomic works on one word of 8 bytes, aligned on both sides")
            }
        }
    }
}

/// A request is done, or has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The request's id.
    pub id: WorkRequestId,
    /// The outcome of the request.
    pub result: Result<(), CompletionError>,
}
