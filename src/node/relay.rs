//! The relay: a reader that serves what it reads.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::reader::RelayStep;
use super::wait::Backoff;
use super::{Error, Publisher, PublisherOptions, Reader, ReaderOptions, ReaderStatus, now};
use crate::clock::Version;
use crate::mem::LocalSlice;
use crate::time::Duration;
use crate::transport::{Address, Transport};

/// Longest time that one owner may take to answer before the next one is asked.
const ASK_FOR: Duration = Duration::from_secs(1);

/// Reads each version of a publisher or of another relay, and serves it to readers and relays of its own: the same
/// version with the same number, tag, time and origin. Only the epoch is its own, since its memory is.
///
/// A version is passed on chunk by chunk as it lands, and is taken by no reader before it is proved to be whole. A
/// relay holds the versions that its readers read, as a publisher does, so that one copy for each host serves all of
/// its local readers. A thread of its own does all of this.
///
/// A relay whose owner is lost goes on serving what it has and connects to the next of its upstream addresses, such as
/// the publisher after a relay. It ends if what it finds there is of another origin or another table: the numbers of
/// its versions would mean something else. Its readers are told so, and it says why ([`failure`](Self::failure)).
///
/// ```
/// use slackline::{Address, ElementType, Publisher, PublisherOptions, Reader, ReaderOptions, Relay, Shm, Table};
/// use slackline::{VersionTag, Wanted};
/// use std::time::Duration;
///
/// let timeout = Duration::from_secs(10);
/// let table = Table::flat(8, ElementType::F32)?;
/// let publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default())?;
/// let publisher = publisher.into_background()?;
/// let upstream = [publisher.address()];
/// let relay = Relay::start(Shm::new(), &upstream, &Address::random(), PublisherOptions::default(), timeout)?;
/// let mut reader = Reader::connect(Shm::new(), relay.address(), ReaderOptions::default(), timeout)?;
///
/// let version = publisher.publish(&[7; 32], VersionTag::step(100), timeout)?;
/// let snapshot = reader.snapshot(Wanted::at_least(version), timeout)?;
/// assert_eq!((snapshot.bytes(), snapshot.fresh().tag.step), (&[7; 32][..], 100));
/// assert_eq!(snapshot.fresh().origin, publisher.epoch());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Relay {
    address: Address,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    is_over: AtomicBool,
    report: Mutex<RelayReport>,
}

/// What the thread of a relay tells.
#[derive(Debug, Default)]
struct RelayReport {
    version: Version,
    readers: Vec<ReaderStatus>,
    failure: Option<Arc<Error>>,
}

impl Relay {
    /// Connects to the first of `upstream` that answers within `timeout`, and begins to serve at `address`. Frames and
    /// chunks are as many and as long as the upstream's, whatever `options` says of them.
    ///
    /// # Errors
    /// No upstream answers; it holds a shard only, not the whole table; `address` cannot be had.
    pub fn start<T: Transport + Clone>(
        transport: T,
        upstream: &[Address],
        address: &Address,
        mut options: PublisherOptions,
        timeout: Duration,
    ) -> Result<Relay, Error> {
        let first = upstream.first().ok_or_else(|| Error::Option {
            option: "upstream",
            value: "no address".into(),
            reason: "a relay reads from a publisher or from another relay",
        })?;
        let reading = ReaderOptions { waits_for_server: true, ..ReaderOptions::default() };
        let reader = Reader::connect(transport.clone(), first, reading, timeout)?;
        if reader.range() != (0..reader.table().bytes()) {
            let reason = format!("{first} holds a shard of its table, and a relay passes on whole ones");
            return Err(Error::Shards { reason });
        }
        options.begin_at = Version::new(0);
        options.memory.frames = reader.geometry().frames;
        options.memory.chunk_bytes = reader.geometry().chunk_bytes;
        let mut publisher = Publisher::new(transport, address, reader.table().clone(), options)?;
        publisher.begin_without_origin();
        let (address, state) = (publisher.address(), Arc::new(State::default()));
        let mut passing = Passing {
            reader,
            publisher,
            upstream: upstream.to_vec(),
            next: 1,
            unknown: Some(Version::new(0)),
            origin: None,
            draft: None,
            retries: 0,
            is_void: false,
        };
        let told = state.clone();
        let thread = std::thread::Builder::new().name("slackline-relay".into());
        let thread = thread.spawn(move || passing.run(&told));
        let thread = thread.map_err(|source| Error::Thread { what: "the relay", source })?;
        Ok(Relay { address, state, thread: Some(thread) })
    }

    /// Returns the address at which readers reach this relay.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The newest version that it serves.
    pub fn version(&self) -> Version {
        self.state.report().version
    }

    /// The readers that are in, each with the version that it holds.
    pub fn readers(&self) -> Vec<ReaderStatus> {
        self.state.report().readers.clone()
    }

    /// The reason why it has ended, if it has.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.state.report().failure.clone()
    }
}

impl State {
    fn report(&self) -> std::sync::MutexGuard<'_, RelayReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: Error) {
        tracing::error!(%error, "the relay ends");
        self.report().failure = Some(Arc::new(error));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// A relay in the hands of its thread.
struct Passing<T: Transport> {
    reader: Reader<T>,
    publisher: Publisher<T>,
    upstream: Vec<Address>,
    /// The upstream address that is asked next.
    next: usize,
    /// The version from which on the owner that it is connected to has something to tell, until it is known whose
    /// versions it has: its first copy shows that, whatever their numbers are.
    unknown: Option<Version>,
    /// The publisher whose versions these are, once one has come.
    origin: Option<u64>,
    /// The memory of the version that is being copied, and the step that its copy has come to.
    draft: Option<(LocalSlice, RelayStep)>,
    /// The number of times that this copy was begun again.
    retries: u64,
    /// What followers have of the attempt so far is void: said with the first chunk of the next one.
    is_void: bool,
}

impl<T: Transport> Passing<T> {
    fn run(&mut self, state: &State) {
        let (mut backoff, mut told) = (Backoff::new(), now());
        while !state.is_over.load(Relaxed) {
            let turn = self.turn();
            if matches!(turn, Ok(true)) || now() - told >= Duration::from_millis(10) {
                told = now();
                let mut report = state.report();
                (report.version, report.readers) =
                    (self.publisher.version(), self.publisher.reader_statuses());
            }
            match turn {
                Ok(true) => backoff.reset(),
                Ok(false) => backoff.wait(),
                Err(error) if error.is_loss() => {
                    backoff.wait();
                    if let Err(error) = self.reconnect(&error) {
                        return state.fail(error);
                    }
                }
                Err(error) => return state.fail(error),
            }
        }
    }

    /// Looks after the readers, and moves the copy of the next version on. True if it got anywhere.
    fn turn(&mut self) -> Result<bool, Error> {
        let now = now();
        let joined = self.publisher.poll(now);
        if self.draft.is_none() {
            self.draft = self.publisher.begin_relayed()?.map(|memory| (memory, RelayStep::Begin));
            (self.retries, self.is_void) = (0, false);
        }
        let Some((memory, step)) = &mut self.draft else { return Ok(joined) };
        let newest = self.publisher.version();
        let least = self.unknown.unwrap_or(newest.next());
        let turn = self.reader.relay(memory, least, self.publisher.served()?, step, now)?;
        // A copy may begin again and end in one turn: what followers have of the attempt before is void all the same.
        self.is_void |= std::mem::replace(&mut self.retries, turn.retries) != turn.retries;
        if let Some((version, chunks)) = turn.landed {
            self.publisher.relay_landed(version, chunks, std::mem::take(&mut self.is_void));
        }
        let Some((version, label)) = turn.copied else { return Ok(joined || turn.progress) };
        // A relay that has nothing yet serves zeros that are no publisher's.
        let is_anyones = label.origin == 0;
        if !is_anyones && *self.origin.get_or_insert(label.origin) != label.origin {
            let reason = "the versions upstream are of another publisher now: start the relay again".into();
            return Err(Error::Shards { reason });
        }
        self.unknown = if is_anyones { Some(version.next()) } else { None };
        if version > newest {
            self.publisher.commit_relayed(version, label, std::mem::take(&mut self.is_void))?;
            self.draft = None;
        } else {
            *step = RelayStep::Begin;
        }
        Ok(true)
    }

    /// Connects to the next owner upstream, or to none yet; readers are served in between.
    fn reconnect(&mut self, lost: &Error) -> Result<(), Error> {
        let address = &self.upstream[self.next % self.upstream.len()];
        self.next += 1;
        tracing::warn!(error = %lost, next = %address, "the owner upstream is lost");
        self.reader.give_up_relay();
        if let Some((_, step)) = &mut self.draft {
            *step = RelayStep::Begin;
        }
        // What followers have copied of an attempt that ended with the connection is void.
        (self.retries, self.is_void) = (0, true);
        let chunk_bytes = self.reader.geometry().chunk_bytes;
        match self.reader.reconnect(address, ASK_FOR) {
            Err(error @ Error::Shards { .. }) => return Err(error),
            Err(error) => tracing::warn!(%error, %address, "no owner upstream yet"),
            Ok(()) if self.reader.geometry().chunk_bytes != chunk_bytes => {
                let reason =
                    format!("the owner at {address} cuts its frames into other chunks than the one before");
                return Err(Error::Shards { reason });
            }
            Ok(()) => self.unknown = Some(Version::new(0)),
        }
        Ok(())
    }
}
