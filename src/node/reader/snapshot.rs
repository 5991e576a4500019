//! Snapshots: versions that a reader has copied, each in memory of its own.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::Error;
use super::super::runtime::complete;
use super::certify::{Asked, CopiedTable};
use super::{Fresh, Reader};
use crate::clock::Version;
#[cfg(feature = "cuda")]
use crate::cuda::{GpuSlice, GpuStream, HostBytes, Tickets};
#[cfg(feature = "cuda")]
use crate::mem::OutOfBounds;
use crate::mem::{Buffer, VolatileSlice};
use crate::scheme::Bound;
use crate::table::Table;
use crate::time::Duration;
use crate::trace::Certificate;
use crate::transport::Transport;

/// The version that a reader wants.
///
/// A bound on staleness is counted against the owner that is read from. Behind a [`Relay`](crate::node::Relay) the
/// newest version is the newest of the relay, also while that has lost its owner: `max_staleness(0)` then holds
/// against the relay, and not against the publisher. [`Fresh::published_ns`] tells how old a version is.
///
/// ```
/// use slackline::Version;
/// use slackline::weights::Wanted;
/// let newest = Wanted::newest(); // as of the call
/// let fresh = Wanted::newest().max_staleness(2); // at most two behind the newest when it is there
/// let next = Wanted::at_least(Version::new(8)); // waits for version 8, or takes a newer one
/// let one = Wanted::exactly(Version::new(7)); // while it is in one of the owner's frames
/// # let _ = (newest, fresh, next, one);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    most_behind: Option<u64>,
    at_least: Version,
    exact: bool,
}

impl Wanted {
    /// The newest version at the time of the call.
    pub const fn newest() -> Wanted {
        Wanted { most_behind: None, at_least: Version::new(0), exact: false }
    }

    /// The newest version, once it is this one or a later one.
    pub const fn at_least(version: Version) -> Wanted {
        Wanted { at_least: version, ..Wanted::newest() }
    }

    /// This version and no other: it is waited for, and is an error once no frame holds it any more.
    pub const fn exactly(version: Version) -> Wanted {
        Wanted { exact: true, ..Wanted::at_least(version) }
    }

    /// At most so many versions behind the newest of the owner that is read from, at the time when the copy is
    /// complete. A version that is requested [`exactly`](Self::exactly) is an error once it is further behind.
    pub const fn max_staleness(self, versions: u64) -> Wanted {
        Wanted { most_behind: Some(versions), ..self }
    }

    pub(super) fn most_behind(&self) -> Option<u64> {
        self.most_behind
    }

    pub(super) fn bound(&self) -> Bound {
        Bound::version(self.at_least)
    }

    /// The same, and no version that is older than `version`; an exact version stays requested.
    pub(super) fn no_older(self, version: Version) -> Wanted {
        match self.exact {
            true => self,
            false => Wanted { at_least: self.at_least.max(version), ..self },
        }
    }

    pub(super) fn exact(&self) -> Option<Version> {
        self.exact.then_some(self.at_least)
    }
}

/// Memory of snapshots that are no more, for the next ones of the same reader.
#[derive(Clone, Debug, Default)]
pub(super) struct Spares(Arc<Mutex<Vec<Arc<Buffer>>>>);

/// Spares that are kept: more were alive at once, and are given back to the system.
const MOST_SPARES: usize = 3;

impl Spares {
    pub(super) fn take(&self) -> Option<Buffer> {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = spares.iter_mut().position(|memory| Arc::get_mut(memory).is_some())?;
        Arc::into_inner(spares.swap_remove(free))
    }

    /// Takes memory back, to be used again once nobody else has it: neither the reader, which applies differences to a
    /// copy of it, nor a GPU that copies from it.
    pub(super) fn give(&self, memory: Arc<Buffer>) {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = spares.iter().any(|spare| Arc::ptr_eq(spare, &memory));
        if !is_known && spares.len() < MOST_SPARES {
            spares.push(memory);
        }
    }
}

/// One whole version in memory of its own, which stays as it is for as long as the snapshot lives.
///
/// A program that serves one version while it reads the next holds two snapshots, and its switch from one to the other
/// is a move of this value. The memory of a snapshot that is dropped is used for a later one.
#[derive(Debug)]
pub struct Snapshot {
    /// The reader applies differences to a copy of it, and changes it never. A GPU may still copy from it when the
    /// snapshot is no more.
    memory: Arc<Buffer>,
    copied: Arc<CopiedTable>,
    fresh: Fresh,
    asked: Asked,
    spares: Spares,
}

impl Snapshot {
    /// The version, and how stale it was at the last look at its owner, by which the copy was proved.
    pub fn fresh(&self) -> &Fresh {
        &self.fresh
    }

    /// The table of the bytes: the reader's selection, or the whole table.
    pub fn table(&self) -> &Table {
        &self.copied.table
    }

    /// The record of this read, a line of a trace, by which others can check the request and the result. It computes
    /// the SHA-256 of each tensor that was read whole.
    pub fn certificate(&self) -> Certificate {
        self.asked.certificate(&self.fresh, self.copied.digests(self.as_volatile()))
    }

    /// The [`bytes`](Self::bytes) without a reference to them, for callers that lend them to code that may write them.
    #[doc(hidden)]
    pub fn as_volatile(&self) -> VolatileSlice<'_> {
        let memory = self.memory.as_volatile().unwrap_or(VolatileSlice::from_ref(&[]));
        memory.subslice(0, self.len().min(memory.len()))
    }

    fn len(&self) -> usize {
        let Range { start, end } = self.copied.range;
        (end - start) as usize
    }

    /// The bytes, laid out as [`table`](Self::table) says; for a server's shard the bytes of its part of the table.
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.memory.bytes().unwrap_or_default();
        &bytes[..self.len().min(bytes.len())]
    }

    /// The bytes of one tensor; `None` if there is none of this name, or if a server's shard does not hold all of it.
    pub fn tensor(&self, name: &str) -> Option<&[u8]> {
        let tensor = self.copied.table.tensor(name)?;
        let at = |byte: u64| byte.checked_sub(self.copied.range.start).map(|byte| byte as usize);
        self.bytes().get(at(tensor.range().start)?..at(tensor.range().end)?)
    }
}

#[cfg(feature = "cuda")]
impl Snapshot {
    /// Has the GPU of `into` copy the bytes from `offset` on there, behind the work that `stream` has now: earlier work
    /// may still use the memory. Later work of `stream` waits for the copy. It returns at once, and
    /// the snapshot may be dropped.
    ///
    /// ```no_run
    /// # use slackline::Shm;
    /// # use slackline::gpu::{Gpu, GpuMemory, GpuStream};
    /// # use slackline::weights::{Reader, Wanted};
    /// # fn current_stream() -> usize { 0 }
    /// # fn pull(reader: &mut Reader<Shm>) -> Result<(), Box<dyn std::error::Error>> {
    /// # let timeout = std::time::Duration::from_secs(10);
    /// let gpu = Gpu::open(0)?;
    /// // SAFETY: the default stream, which is there as long as the device.
    /// let stream = unsafe { GpuStream::of_caller(&gpu, current_stream())? };
    /// let weights = GpuMemory::allocate(&gpu, reader.table().bytes() as usize)?;
    ///
    /// let snapshot = reader.snapshot(Wanted::newest(), timeout)?;
    /// snapshot.copy_to_gpu(0, &weights.whole(), &stream)?;
    /// // A kernel that is launched on the stream now sees version `snapshot.fresh().version` and no other.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There are not so many bytes, the memory is on another GPU, the stream captures a graph, or the driver refuses
    /// the copy; if the driver fails late, the copy may still happen.
    pub fn copy_to_gpu(&self, offset: u64, into: &GpuSlice, stream: &GpuStream) -> Result<(), Error> {
        let (len, available) = (into.bytes() as u64, self.as_volatile().len() as u64);
        if offset.checked_add(len).is_none_or(|end| end > available) {
            return Err(OutOfBounds { offset, len, available }.into());
        }
        // The copy keeps the memory. No call waits here for its end.
        let host = HostBytes::Buffer(self.memory.clone());
        Ok(stream.copy_from_host(host, offset as usize, into, &mut Tickets::default())?)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.spares.give(self.memory.clone());
    }
}

impl<T: Transport> Reader<T> {
    /// Copies the version that is wanted into memory of its own, waiting at most `timeout`. The reader's own copy
    /// ([`bytes`](Self::bytes)) stays as it is.
    ///
    /// # Errors
    /// There is no such version by the timeout, or no more; the owner is lost, or has let this reader go.
    ///
    /// [`BackgroundPublisher`](crate::node::BackgroundPublisher) has an example.
    pub fn snapshot(&mut self, wanted: Wanted, timeout: Duration) -> Result<Snapshot, Error> {
        complete(self.snapshot_async(wanted, timeout))
    }

    pub(crate) async fn snapshot_async(
        &mut self,
        wanted: Wanted,
        timeout: Duration,
    ) -> Result<Snapshot, Error> {
        self.begin_snapshot(wanted);
        self.finish(timeout).await?;
        self.take_snapshot()
    }

    /// Begins a [`snapshot`](Self::snapshot), and does not wait for it: [`poll`](Self::poll) drives it forward, and
    /// [`take_snapshot`](Self::take_snapshot) takes it once `poll` has returned its version.
    pub fn begin_snapshot(&mut self, wanted: Wanted) {
        let asked = self.begin_read(wanted, self.identity);
        self.begin(wanted, Some(asked));
    }

    /// Takes the snapshot whose version [`poll`](Self::poll) has returned.
    ///
    /// # Errors
    /// No snapshot was begun, or it is taken already.
    pub fn take_snapshot(&mut self) -> Result<Snapshot, Error> {
        // A snapshot that is still being filled stays.
        let filled = self.filled.take().and_then(|(fresh, asked)| Some((fresh, asked, self.filling.take()?)));
        let Some((fresh, asked, buffer)) = filled else {
            let reason = "call `begin_snapshot`, and `poll` until it returns a version";
            return Err(Error::OutOfTurn { operation: "take a snapshot", reason });
        };
        let copied = self.table_of_copies();
        let memory = Arc::new(buffer);
        self.keep_base(&fresh, &memory);
        Ok(Snapshot { memory, copied, fresh, asked, spares: self.spares.clone() })
    }
}
