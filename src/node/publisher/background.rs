//! A publisher whose readers a thread looks after, while its owner computes.

#[cfg(feature = "cuda")]
use std::sync::atomic::Ordering::Release;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use super::super::copies::Copies;
use super::super::payloads::on_host;
use super::super::record::digests;
use super::super::runtime::{Runtime, complete};
use super::super::shard::expect_owner;
use super::super::wait::{Backoff, WaitTurn, wait};
use super::super::{Error, Idle, now};
use super::{Publisher, ReaderStatus};
use crate::clock::{Version, VersionTag};
use crate::mem::{ForkGuard, LocalSlice, OutOfBounds, OwnThread, Streaming, VolatileSlice};
use crate::param::PendingDelta;
use crate::table::Table;
use crate::time::Duration;
use crate::trace::Publication;
use crate::transport::{Address, ArrivalWatch, PayloadSlice, Transport};

/// Period at which the thread of a publisher that polls looks for readers that come and go.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The same for a publisher that sleeps ([`Idle::Sleep`]), after a while with nothing to do. A new reader wakes it,
/// where the transport can do that.
const LOOK_ASLEEP_EVERY: Duration = match cfg!(test) {
    true => Duration::from_secs(3600),
    false => Duration::from_millis(20),
};
/// That while: the handshake of a newcomer takes several looks.
const AWAKE_FOR: Duration = Duration::from_millis(100);

/// A [`Publisher`] in the hands of a thread of its own, which takes readers in and notices which are gone. Its methods
/// may be called from any thread; versions are published one after the other.
///
/// Dropped, it is gone once no [`Draft`] of it is open, and its readers are told so. A process that was forked from its
/// owner's has nothing of it but its address, its table and its epoch: versions and readers are none there.
///
/// ```
/// use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
/// use slackline::{Address, ElementType, Shm, Table, VersionTag};
/// use std::time::Duration;
///
/// let timeout = Duration::from_secs(10);
/// let table = Table::flat(8, ElementType::F32)?;
/// let publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default())?;
/// let publisher = publisher.into_background()?;
///
/// let mut reader = Reader::connect(Shm::new(), &publisher.address(), ReaderOptions::default(), timeout)?;
/// let mut draft = publisher.draft(timeout)?; // Written in place. Dropped instead of committed, it is never published.
/// draft.memory()?.write(&[7; 32]);
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
    pub(super) shared: Arc<Shared<T>>,
    thread: Option<OwnThread>,
}

pub(super) struct Shared<T: Transport> {
    publisher: Mutex<Publisher<T>>,
    /// In a forked child any lock may be held for ever, by a thread that is not there.
    pub(super) guard: ForkGuard,
    address: Address,
    table: Table,
    epoch: u64,
    /// The draft that a GPU still copies, after its owner has released it.
    #[cfg(feature = "cuda")]
    copying: Mutex<Option<super::gpu::Copying>>,
    /// True from when a draft is handed over until it is published or given up.
    #[cfg(feature = "cuda")]
    pub(super) copying_is_open: AtomicBool,
    /// The thread, once it runs.
    thread: OnceLock<Thread>,
    /// The watch at which it sleeps, if new readers can end the sleep.
    arrivals: Option<ArrivalWatch>,
    is_over: AtomicBool,
}

/// The publisher of a draft that is to be published was dropped.
pub(super) const GONE: Error = Error::OutOfTurn { operation: "publish", reason: "the publisher was dropped" };

impl<T: Transport> Shared<T> {
    /// The publisher is held for the time of a look or of a few stores, never while memory is filled.
    pub(super) fn publisher(&self) -> MutexGuard<'_, Publisher<T>> {
        // After a panic all frames are whole, or marked as being written.
        self.publisher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the result of a look at the publisher; the default in a forked child.
    pub(super) fn look<R: Default>(&self, look: impl FnOnce(&Publisher<T>) -> R) -> R {
        if self.guard.is_inherited() { R::default() } else { look(&self.publisher()) }
    }

    /// Checks that the publisher is there, to publish a version.
    pub(super) fn expect_there(&self) -> Result<(), Error> {
        expect_owner(self.guard, "publish")?;
        if self.is_over.load(Relaxed) { Err(GONE) } else { Ok(()) }
    }

    /// Has the thread look now.
    fn wake(&self) {
        self.arrivals.iter().for_each(ArrivalWatch::end);
        self.thread.get().into_iter().for_each(Thread::unpark);
    }

    /// Sleeps, in the thread; for long if it has rested for a while. True if it was woken from that.
    fn sleep(&self, is_long: bool) -> bool {
        match &self.arrivals {
            Some(arrivals) if is_long => return arrivals.wait(LOOK_ASLEEP_EVERY),
            _ if is_long => std::thread::park_timeout(LOOK_ASLEEP_EVERY),
            _ => std::thread::park_timeout(LOOK_EVERY),
        }
        false
    }

    /// Computes what a commit needs by passes over the filled draft: its difference from the version before and its
    /// checksum.
    pub(super) fn prepare_commit(&self) {
        let (delta, checksum) = {
            let mut publisher = self.publisher();
            (publisher.begin_delta(), publisher.begin_checksum())
        };
        // Readers come and go meanwhile.
        let (delta, checksum) =
            (delta.map(PendingDelta::encode), checksum.map(|checksum| checksum.compute()));
        if delta.is_none() && checksum.is_none() {
            return;
        }
        let mut publisher = self.publisher();
        delta.into_iter().for_each(|delta| publisher.set_delta(delta));
        checksum.into_iter().for_each(|checksum| publisher.set_checksum(checksum));
    }

    #[cfg(feature = "cuda")]
    pub(super) fn copying(&self) -> MutexGuard<'_, Option<super::gpu::Copying>> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(not(feature = "cuda"))]
    fn is_copying(&self) -> bool {
        false
    }
}

impl<T: Transport> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl<T: Transport> Publisher<T> {
    /// Moves the publisher into a thread that looks after its readers from now on: each millisecond, or, with
    /// [`Idle::Sleep`] and nothing to do, each 20 ms and when a new reader wakes it (readers of
    /// [`Tables`](crate::Tables) do not). Requests of readers never wake it.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn into_background(mut self) -> Result<BackgroundPublisher<T>, Error> {
        let sleeps = self.shard.idle() == Idle::Sleep;
        let arrivals = self.shard.watch_arrivals();
        let (address, table, epoch) = (self.address(), self.table().clone(), self.epoch());
        let shared = Arc::new(Shared {
            publisher: Mutex::new(self),
            guard: ForkGuard::new(),
            address,
            table,
            epoch,
            #[cfg(feature = "cuda")]
            copying: Mutex::new(None),
            #[cfg(feature = "cuda")]
            copying_is_open: AtomicBool::new(false),
            thread: OnceLock::new(),
            arrivals,
            is_over: AtomicBool::new(false),
        });
        let looked_after = shared.clone();
        let look_after = move || {
            let mut backoff = Backoff::new();
            let mut busy_at = now();
            while !looked_after.is_over.load(Relaxed) {
                let is_copying = looked_after.is_copying();
                if looked_after.publisher().poll(now()) {
                    busy_at = now();
                    continue;
                }
                // A GPU may be done any moment, and no other thread looks.
                if is_copying {
                    backoff.wait();
                } else {
                    backoff.reset();
                    if looked_after.sleep(sleeps && now() - busy_at > AWAKE_FOR) {
                        busy_at = now();
                    }
                }
            }
        };
        let thread = OwnThread::start("slackline-pub", look_after);
        let thread = thread.map_err(|source| Error::Thread { what: "the publisher", source })?;
        let _first = shared.thread.set(thread.thread().clone());
        Ok(BackgroundPublisher { shared, thread: Some(thread) })
    }
}

impl<T: Transport> BackgroundPublisher<T> {
    /// Returns the address at which readers reach this publisher.
    pub fn address(&self) -> Address {
        self.shared.address.clone()
    }

    /// The table.
    pub fn table(&self) -> Table {
        self.shared.table.clone()
    }

    /// The bytes of a version.
    #[doc(hidden)]
    pub fn bytes(&self) -> usize {
        self.shared.table.bytes() as usize
    }

    /// This incarnation of the publisher: a random number.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// The newest version.
    pub fn version(&self) -> Version {
        self.shared.look(Publisher::version)
    }

    /// Readers that ever joined.
    #[doc(hidden)]
    pub fn joined(&self) -> u64 {
        self.shared.look(Publisher::joined)
    }

    /// The readers that are in, each with the version that it holds.
    pub fn readers(&self) -> Vec<ReaderStatus> {
        self.shared.look(Publisher::readers)
    }

    /// Publishes `bytes`, the whole table, as the next version: one copy, into memory that readers read.
    ///
    /// # Errors
    /// As [`draft`](Self::draft), and if `bytes` has another length than the table.
    pub fn publish(&self, bytes: &[u8], tag: VersionTag, timeout: Duration) -> Result<Version, Error> {
        // Before a frame is waited for, which is an older version's until then.
        let expected = self.bytes();
        if bytes.len() != expected {
            return Err(Error::Length { given: bytes.len(), expected, unit: "bytes" });
        }
        let mut draft = self.draft(timeout)?;
        draft.memory()?.copy_from(VolatileSlice::from_ref(bytes), Streaming::ByLength);
        draft.commit(tag)
    }

    /// Lends the memory of the next version, to be filled in place. Readers see the version before it until the draft
    /// is committed. Waits, up to `timeout`, only if readers pin all other frames, or a GPU copies the version before.
    ///
    /// # Errors
    /// It has to wait for longer; another draft is open; there are no more versions.
    pub fn draft(&self, timeout: Duration) -> Result<Draft<T>, Error> {
        expect_owner(self.shared.guard, "begin a version")?;
        let runtime = Runtime::default();
        let mut is_copying = false;
        let begun = wait(&runtime, runtime.now() + timeout, |_| {
            is_copying = self.shared.is_copying();
            let mut publisher = self.shared.publisher();
            if publisher.draft_memory().is_some() && !is_copying {
                let reason = "another draft is open: commit or drop it first";
                return Err(Error::OutOfTurn { operation: "begin a version", reason });
            }
            if !is_copying
                && publisher.begin_draft()?.is_some()
                && let Some(memory) = publisher.draft_memory()
            {
                let (shared, copies) = (self.shared.clone(), Copies::default());
                return Ok(WaitTurn::Done(Draft { shared, memory, copies, is_open: true }));
            }
            Ok(WaitTurn::Idle)
        });
        if let Some(draft) = complete(begun)? {
            return Ok(draft);
        }
        #[cfg(feature = "cuda")]
        if is_copying {
            return Err(super::gpu::CopyingPublisher::late(&*self.shared, timeout));
        }
        Err(Error::Pinned { version: self.version().next(), waited: timeout })
    }

    /// Waits until at least so many readers hold `version` or a newer one, as a copy or in place, and returns the
    /// statuses of all readers.
    ///
    /// # Errors
    /// They do not by the timeout; the error says how many of them do.
    pub fn wait(
        &self,
        version: Version,
        readers: usize,
        timeout: Duration,
    ) -> Result<Vec<ReaderStatus>, Error> {
        let mut holding = 0;
        let held = self.wait_until(timeout, |statuses| {
            holding = statuses.iter().filter(|reader| reader.has(version)).count();
            holding >= readers
        });
        held?.ok_or(Error::NotHeld { version, readers, holding, waited: timeout })
    }

    /// Waits until the statuses of all readers are such that `is_enough`, and returns them; `None` at the deadline.
    #[doc(hidden)]
    pub fn wait_until(
        &self,
        timeout: Duration,
        mut is_enough: impl FnMut(&[ReaderStatus]) -> bool,
    ) -> Result<Option<Vec<ReaderStatus>>, Error> {
        expect_owner(self.shared.guard, "wait for readers")?;
        let runtime = Runtime::default();
        complete(wait(&runtime, runtime.now() + timeout, |_| {
            let statuses = self.readers();
            Ok(match is_enough(&statuses) {
                true => WaitTurn::Done(statuses),
                false => WaitTurn::Idle,
            })
        }))
    }
}

impl<T: Transport> Drop for BackgroundPublisher<T> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It ends after its look; a panic in there is told on the standard error already.
            let _has_panicked = thread.end(|| {
                self.shared.is_over.store(true, Relaxed);
                self.shared.wake();
            });
        }
    }
}

/// The next version of a [`BackgroundPublisher`] while it is being filled. A draft that is dropped is given up: its
/// bytes are never published, and readers keep the version before it.
#[derive(Debug)]
pub struct Draft<T: Transport> {
    pub(super) shared: Arc<Shared<T>>,
    memory: PayloadSlice,
    /// Copies of GPUs into the memory.
    pub(super) copies: Copies,
    is_open: bool,
}

impl<T: Transport> Draft<T> {
    /// The memory of the whole table, to be written in place. It holds some old version.
    ///
    /// # Errors
    /// It is on a GPU.
    pub fn memory(&mut self) -> Result<VolatileSlice<'_>, Error> {
        match self.memory.host() {
            Some(memory) => Ok(memory.as_volatile()),
            None => on_host(self.memory.clone(), "write a draft").and(Err(super::NO_FRAME)),
        }
    }

    /// Writes `bytes` from `offset` on.
    ///
    /// # Errors
    /// They do not fit the table, or that is on a GPU.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let slice: LocalSlice = on_host(self.range(offset, bytes.len())?, "write a draft")?;
        slice.as_volatile().copy_from(VolatileSlice::from_ref(bytes), Streaming::ByLength);
        Ok(())
    }

    pub(super) fn range(&self, offset: u64, bytes: usize) -> Result<PayloadSlice, Error> {
        let slice = usize::try_from(offset).ok().map(|offset| self.memory.slice(offset, bytes));
        let (len, available) = (bytes as u64, self.memory.len() as u64);
        Ok(slice.unwrap_or(Err(OutOfBounds { offset, len, available }))?)
    }

    /// Leaves the draft to the publisher's thread.
    #[cfg(feature = "cuda")]
    pub(super) fn hand_over(&mut self, copying: super::gpu::Copying) {
        self.is_open = false;
        self.shared.copying_is_open.store(true, Release);
        let none = self.shared.copying().replace(copying);
        debug_assert!(none.is_none(), "one draft at a time");
        self.shared.wake();
    }

    /// Checks that no GPU copies into the draft.
    #[doc(hidden)]
    pub fn expect_copied(&mut self) -> Result<(), Error> {
        match self.copies.are_done()? {
            true => Ok(()),
            false => {
                let reason = "a GPU copies into the draft: call `commit_when_copied`";
                Err(Error::OutOfTurn { operation: "publish", reason })
            }
        }
    }

    /// Publishes it as the next version.
    ///
    /// # Errors
    /// The publisher is gone, or a GPU still copies into the draft.
    pub fn commit(mut self, tag: VersionTag) -> Result<Version, Error> {
        self.shared.expect_there()?;
        self.expect_copied()?;
        self.shared.prepare_commit();
        self.is_open = false;
        self.shared.publisher().commit_draft(tag).map(|(version, _)| version)
    }

    /// As [`commit`](Self::commit), and returns the record of the version, a line of a trace, by which others can check
    /// the bytes of readers. It computes the SHA-256 of all tensors first.
    ///
    /// # Errors
    /// The publisher is gone, a GPU still copies into the draft, or its memory is on a GPU.
    pub fn commit_recorded(mut self, tag: VersionTag) -> Result<Publication, Error> {
        self.shared.expect_there()?;
        self.expect_copied()?;
        let shared = self.shared.clone();
        let digests = digests(shared.table.tensors().iter(), self.memory()?);
        self.shared.prepare_commit();
        self.is_open = false;
        self.shared.publisher().commit_recorded(tag, digests)
    }
}

impl<T: Transport> Drop for Draft<T> {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        if self.shared.guard.is_inherited() {
            // It is the owner's, and so are the copies of its GPU.
            #[cfg(feature = "cuda")]
            std::mem::forget(std::mem::take(&mut self.copies));
            return;
        }
        #[cfg(feature = "cuda")]
        if !matches!(self.copies.are_done(), Ok(true) | Err(_)) {
            // The frame is another version's only once the GPU writes it no more.
            let copies = std::mem::take(&mut self.copies);
            return self.hand_over(super::gpu::Copying::dropped(copies));
        }
        self.shared.publisher().publish_abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::mem::{alone, true_in_a_forked_child};
    use crate::node::{PublisherOptions, Reader, ReaderOptions, ShardOptions, Wanted};
    use crate::param::{COMPUTED_BY_COMMITS, frame_checksum};
    use crate::table::ElementType;
    use crate::transport::shm::Shm;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn readers_are_looked_after_while_the_checksum_of_a_version_is_made() {
        let (at, table) = (Address::random(), Table::flat(64, ElementType::U8).unwrap());
        let memory = ShardOptions { checksums: true, ..ShardOptions::default() };
        let options = PublisherOptions { memory, ..PublisherOptions::default() };
        let computed = || COMPUTED_BY_COMMITS.with(|computed| computed.get());
        let (mut publisher, before) = (Publisher::new(Shm::new(), &at, table, options).unwrap(), computed());
        publisher.publish(&[1; 64], PATIENCE).unwrap();
        assert_eq!(computed(), before + 1, "without a thread there is no lock, and the commit makes it");
        let publisher = publisher.into_background().unwrap();
        publisher.publish(&[2; 64], VersionTag::default(), PATIENCE).unwrap();
        publisher.draft(PATIENCE).unwrap().commit_recorded(VersionTag::default()).unwrap();
        assert_eq!(computed(), before + 1, "a commit, which holds the publisher, has made a checksum");
        // The checksums match the versions all the same.
        let options = ReaderOptions { checksums: true, ..ReaderOptions::default() };
        let mut reader = Reader::connect(Shm::new(), &publisher.address(), options, PATIENCE).unwrap();
        publisher.publish(&[3; 64], VersionTag::default(), PATIENCE).unwrap();
        assert_eq!(reader.snapshot(Wanted::at_least(Version::new(4)), PATIENCE).unwrap().bytes(), [3; 64]);
        let publisher = publisher.shared.publisher();
        let frames = publisher.frames();
        let header = frames.header(frames.latest().frame);
        let payload = frames.host_payload(frames.latest().frame).unwrap();
        assert_eq!(header.checksum, frame_checksum(&header, &payload));
    }

    #[test]
    fn a_forked_child_waits_for_no_lock_of_its_parents_publisher() {
        const NAME: &str = "node::publisher::background::tests::\
                            a_forked_child_waits_for_no_lock_of_its_parents_publisher";
        if !alone(NAME) {
            return;
        }
        let (at, table) = (Address::random(), Table::flat(8, ElementType::U8).unwrap());
        let publisher = Publisher::new(Shm::new(), &at, table.clone(), PublisherOptions::default()).unwrap();
        let publisher = publisher.into_background().unwrap();
        let draft = publisher.draft(PATIENCE).unwrap();
        let (address, shared) = (publisher.address(), publisher.shared.clone());
        let mut both = Some((publisher, draft));
        // As the publisher's thread may when its process forks.
        let held = shared.publisher();
        assert!(true_in_a_forked_child(|| {
            let (tell, told) = channel();
            let both = both.take();
            std::thread::spawn(move || {
                let (publisher, draft) = both.unwrap();
                let is_refused = |error: Error| error.to_string().contains("forked from the owner");
                let is_left_alone = publisher.draft(PATIENCE).is_err_and(is_refused)
                    && publisher.publish(&[7; 8], VersionTag::default(), PATIENCE).is_err_and(is_refused)
                    && publisher.wait(Version::new(0), 0, PATIENCE).is_err_and(is_refused)
                    && (publisher.version(), publisher.readers().len()) == (Version::new(0), 0)
                    && (publisher.address(), publisher.table()) == (address, table);
                drop((draft, publisher));
                let _unheard = tell.send(is_left_alone);
            });
            told.recv_timeout(Duration::from_secs(10)) == Ok(true)
        }));
        drop(held);
        let (publisher, draft) = both.unwrap();
        assert_eq!(draft.commit(VersionTag::default()).unwrap(), publisher.version());
    }
}
