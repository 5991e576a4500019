//! A publisher whose readers a thread looks after, while its owner computes.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::super::record::digests;
use super::super::wait::Backoff;
use super::super::{Error, now};
use super::{Publisher, ReaderStatus};
use crate::clock::{Version, VersionTag};
use crate::mem::{LocalSlice, Streaming, VolatileSlice};
use crate::param::PendingDelta;
use crate::scheme::Bound;
use crate::table::Table;
use crate::time::Duration;
use crate::trace::Publication;
use crate::transport::{Address, Transport};

/// Period at which the thread looks for readers that come and go.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A [`Publisher`] in the hands of a thread of its own, which takes readers in and notices which are gone. Its methods
/// may be called from any thread; versions are published one after the other.
///
/// Dropped, it is gone once no [`Draft`] of it is open, and its readers are told so.
///
/// ```
/// use slackline::{Address, ElementType, Publisher, PublisherOptions, Reader, ReaderOptions, Shm, Table};
/// use slackline::{VersionTag, Wanted};
/// use std::time::Duration;
///
/// let timeout = Duration::from_secs(10);
/// let table = Table::flat(8, ElementType::F32)?;
/// let publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default())?;
/// let publisher = publisher.into_background()?;
///
/// let mut reader = Reader::connect(Shm::new(), &publisher.address(), ReaderOptions::default(), timeout)?;
/// let draft = publisher.draft(timeout)?; // Written in place. Dropped instead of committed, it is never published.
/// draft.memory().write(&[7; 32]);
/// let version = draft.commit(VersionTag::step(100))?;
///
/// let snapshot = reader.snapshot(Wanted::at_least(version), timeout)?;
/// assert_eq!((snapshot.bytes(), snapshot.fresh().tag.step), (&[7; 32][..], 100));
/// let readers = publisher.wait(version, 1, timeout)?; // until one reader holds it
/// assert_eq!((readers.len(), readers[0].behind), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BackgroundPublisher<T: Transport> {
    shared: Arc<Shared<T>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<T: Transport> {
    publisher: Mutex<Publisher<T>>,
    is_over: AtomicBool,
}

impl<T: Transport> Shared<T> {
    /// The publisher is held for the time of a look or of a few stores, never while memory is filled.
    fn publisher(&self) -> MutexGuard<'_, Publisher<T>> {
        // What a panic has left behind is frames that are whole, or marked as being written.
        self.publisher.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Transport> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl<T: Transport> Publisher<T> {
    /// Leaves the publisher to a thread that looks after its readers from now on.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn into_background(self) -> Result<BackgroundPublisher<T>, Error> {
        let shared = Arc::new(Shared { publisher: Mutex::new(self), is_over: AtomicBool::new(false) });
        let looked_after = shared.clone();
        let look_after = move || {
            while !looked_after.is_over.load(Relaxed) {
                let progress = looked_after.publisher().poll(now());
                if !progress {
                    std::thread::park_timeout(LOOK_EVERY);
                }
            }
        };
        let thread = std::thread::Builder::new().name("slackline-pub".into()).spawn(look_after);
        let thread = thread.map_err(|source| Error::Thread { what: "the publisher", source })?;
        Ok(BackgroundPublisher { shared, thread: Some(thread) })
    }
}

impl<T: Transport> BackgroundPublisher<T> {
    /// Returns the address at which readers reach this publisher.
    pub fn address(&self) -> Address {
        self.shared.publisher().address()
    }

    /// The table.
    pub fn table(&self) -> Table {
        self.shared.publisher().table().clone()
    }

    /// This incarnation of the publisher: a random number.
    pub fn epoch(&self) -> u64 {
        self.shared.publisher().epoch()
    }

    /// The newest version.
    pub fn version(&self) -> Version {
        self.shared.publisher().version()
    }

    /// Readers that ever joined.
    #[doc(hidden)]
    pub fn joined(&self) -> u64 {
        self.shared.publisher().joined()
    }

    /// The readers that are in, each with the version that it holds.
    pub fn readers(&self) -> Vec<ReaderStatus> {
        self.shared.publisher().reader_statuses()
    }

    /// Publishes `bytes`, the whole table, as the next version: one copy, into memory that readers read.
    ///
    /// # Errors
    /// As [`draft`](Self::draft), and if `bytes` has another length than the table.
    pub fn publish(&self, bytes: &[u8], tag: VersionTag, timeout: Duration) -> Result<Version, Error> {
        let draft = self.draft(timeout)?;
        let expected = draft.memory().len();
        if bytes.len() != expected {
            return Err(Error::Length { given: bytes.len(), expected });
        }
        draft.memory().copy_from(VolatileSlice::from_ref(bytes), Streaming::ByLength);
        draft.commit(tag)
    }

    /// Lends the memory of the next version, to be filled in place. Readers see the version before it until the draft
    /// is committed. Waits, up to `timeout`, only if readers pin all other frames.
    ///
    /// # Errors
    /// Readers pin all other frames for so long; another draft is open; there are no more versions.
    pub fn draft(&self, timeout: Duration) -> Result<Draft<T>, Error> {
        let deadline = now() + timeout;
        let mut backoff = Backoff::new();
        loop {
            let mut publisher = self.shared.publisher();
            if publisher.draft_memory().is_some() {
                let reason = "another draft is open: commit or drop it first";
                return Err(Error::OutOfTurn { operation: "begin a version", reason });
            }
            if publisher.begin_draft()?.is_some()
                && let Some(memory) = publisher.draft_memory()
            {
                return Ok(Draft { shared: self.shared.clone(), memory, is_open: true });
            }
            if now() >= deadline {
                let version = publisher.version().next();
                return Err(Error::Pinned { version, waited: timeout });
            }
            drop(publisher);
            backoff.wait();
        }
    }

    /// Waits until at least so many readers hold `version` or a newer one, as a copy or in place, and returns the
    /// statuses of all readers.
    ///
    /// # Errors
    /// They do not by the timeout; the error says which version the last of them has.
    pub fn wait(
        &self,
        version: Version,
        readers: usize,
        timeout: Duration,
    ) -> Result<Vec<ReaderStatus>, Error> {
        let deadline = now() + timeout;
        let mut backoff = Backoff::new();
        loop {
            let statuses = self.readers();
            let mut held: Vec<Version> =
                statuses.iter().map(|reader| reader.holds.max(reader.pins).unwrap_or_default()).collect();
            held.sort_by(|one, other| other.cmp(one));
            let last = readers.checked_sub(1).map(|index| held.get(index).copied());
            if last.is_none_or(|last| last.is_some_and(|last| last >= version)) {
                return Ok(statuses);
            }
            if now() >= deadline {
                let seen = Bound::version(last.flatten().unwrap_or_default());
                let (operation, needed) = ("waiting for readers to hold a version", Bound::version(version));
                return Err(Error::Deadline { operation, waited: timeout, needed, seen });
            }
            backoff.wait();
        }
    }
}

impl<T: Transport> Drop for BackgroundPublisher<T> {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It ends after its look; a panic in there is told on the standard error already.
            drop(thread.join());
        }
    }
}

/// The next version of a [`BackgroundPublisher`] while it is being filled. Dropped, it is given up: what was written is
/// never published, and readers keep the version before it.
#[derive(Debug)]
pub struct Draft<T: Transport> {
    shared: Arc<Shared<T>>,
    memory: LocalSlice,
    is_open: bool,
}

impl<T: Transport> Draft<T> {
    /// The memory of the whole table, to be written in place. It holds some old version.
    #[doc(hidden)]
    pub fn memory(&self) -> VolatileSlice<'_> {
        self.memory.as_volatile()
    }

    /// Writes `bytes` from `offset` on.
    ///
    /// # Errors
    /// They do not fit the table.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let slice = usize::try_from(offset).ok().map(|offset| self.memory.slice(offset, bytes.len()));
        let (len, available) = (bytes.len() as u64, self.memory.len() as u64);
        let slice = slice.unwrap_or(Err(crate::mem::OutOfBounds { offset, len, available }))?;
        slice.as_volatile().copy_from(VolatileSlice::from_ref(bytes), Streaming::ByLength);
        Ok(())
    }

    /// Publishes it as the next version.
    ///
    /// # Errors
    /// The publisher is gone.
    pub fn commit(mut self, tag: VersionTag) -> Result<Version, Error> {
        self.write_delta();
        self.is_open = false;
        self.shared.publisher().commit_draft(tag).map(|(version, _)| version)
    }

    fn write_delta(&self) {
        let delta = self.shared.publisher().begin_delta();
        // Readers come and go meanwhile.
        if let Some(delta) = delta.map(PendingDelta::encode) {
            self.shared.publisher().set_delta(delta);
        }
    }

    /// As [`commit`](Self::commit), and returns the record of the version, a line of a trace, by which others can check
    /// what readers got. It takes the SHA-256 of all tensors first.
    ///
    /// # Errors
    /// The publisher is gone.
    pub fn commit_recorded(mut self, tag: VersionTag) -> Result<Publication, Error> {
        let table = self.shared.publisher().table().clone();
        // Readers come and go meanwhile.
        let digests = digests(table.tensors().iter(), self.memory());
        self.write_delta();
        self.is_open = false;
        self.shared.publisher().commit_recorded(tag, digests)
    }
}

impl<T: Transport> Drop for Draft<T> {
    fn drop(&mut self) {
        if self.is_open {
            self.shared.publisher().publish_abort();
        }
    }
}
