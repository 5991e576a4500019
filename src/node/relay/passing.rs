//! A relay in the hands of its thread: it copies the next version, passes its chunks on, and goes to another owner when
//! its own is lost.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::link::Link;
use super::super::reader::RelayStep;
use super::super::runtime::Runtime;
use super::super::tree::ASK_FOR;
use super::super::wait::{Backoff, retry, stand_back};
use super::super::{Awaited, Error, Publisher, PublisherOptions, Reader, ReaderOptions, ReaderStatus};
use super::BEGIN_AGAIN;
use super::announcer::Announcer;
use super::pace::Pace;
use crate::clock::Version;
use crate::diagnostic::Diagnostic;
use crate::mem::LocalSlice;
use crate::param::{FrameGeometry, Joiner, PullError, RelayNotice, TreePosition};
use crate::scheme::Bound;
use crate::table::Table;
use crate::time::{Duration, Instant};
use crate::transport::{Address, ConnectError, Host, Transport};

/// Period at which a relay reports its state, and checks whether it has to read from another owner.
const TELL_EVERY: Duration = Duration::from_millis(10);

/// Pause after none of the listed owners has let a relay in, before they are asked again. Readers are looked after
/// in it.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The settings of a relay in a tree, from which it begins, and begins again once the publisher has a successor.
#[derive(Clone)]
pub(super) struct InTree<T> {
    pub(super) transport: T,
    pub(super) publisher: Address,
    pub(super) address: Address,
    pub(super) options: PublisherOptions,
}

/// The owners that a relay may read from.
enum Upstream {
    /// These, by turns: the addresses, and the index of the next one to ask.
    Listed(Vec<Address>, usize),
    /// The owners that the publisher names.
    Tree(Announcer),
}

impl Upstream {
    /// True if the publisher has said that the relay reads from itself. Of listed owners it is not known.
    fn is_publisher(&self) -> bool {
        matches!(self, Upstream::Tree(announcer) if announcer.reads_from_the_publisher())
    }
}

/// The report of a relay's thread, and the orders to it.
#[derive(Debug, Default)]
pub(super) struct RelayState {
    is_over: AtomicBool,
    report: Mutex<RelayReport>,
}

/// The report of a relay's thread.
#[derive(Debug, Default)]
pub(super) struct RelayReport {
    pub(super) version: Version,
    pub(super) readers: Vec<ReaderStatus>,
    pub(super) failure: Option<Arc<Error>>,
}

impl RelayState {
    pub(super) fn report(&self) -> MutexGuard<'_, RelayReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the state of the relay.
    pub(super) fn note<T: Transport>(&self, publisher: &Publisher<T>) {
        let mut report = self.report();
        (report.version, report.readers) = (publisher.version(), publisher.readers());
    }

    /// The relay is to end.
    pub(super) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }
}

/// A relay in the hands of its thread.
pub(crate) struct Passing<T: Transport> {
    reader: Reader<T>,
    publisher: Publisher<T>,
    runtime: Runtime,
    /// The lease of its readers.
    lease: Duration,
    upstream: Upstream,
    /// The version from which on the current owner has something to report, until the origin of its versions is known:
    /// its first copy shows the origin, which their numbers do not.
    unknown: Option<Version>,
    /// The publisher whose versions these are, or the incarnation of the server, once it is known.
    origin: Option<u64>,
    /// A version of the publisher's has been copied: a later one than the relay began with, or one of its own memory.
    has_copied: bool,
    /// Readers are let in. A relay of listed owners begins with zeros that are no owner's version, and lets none in
    /// before its first copy is there; one in a tree begins with the first version of the publisher.
    is_open: bool,
    /// The memory of the version that is being copied, and the step that its copy has come to.
    draft: Option<(LocalSlice, RelayStep)>,
    /// The number of times that this copy was begun again.
    retries: u64,
    /// The followers' part of the attempt so far is void: they learn it with the first chunk of the next attempt.
    is_void: bool,
    pace: Pace,
    /// The listed owners that have not let the relay in, one after the other.
    refusals: usize,
    /// No owner is asked before, since none of them has let the relay in.
    rests_until: Instant,
}

impl<T: Transport + Clone> InTree<T> {
    /// Asks the publisher for a position, begins to serve, and connects to the owner that it names.
    pub(super) async fn begin(&self, timeout: Duration) -> Result<Passing<T>, Error> {
        let InTree { transport, publisher: root, address, options } = self;
        let runtime = Runtime::of(transport);
        let deadline = runtime.now() + timeout;
        let left = || deadline - runtime.now();
        let ask = async || Link::<T::Endpoint>::ask(transport, root, left()).await;
        let may_pass = |error: &Error| error.is_refused_for_now() || error.is_no_listener();
        let welcome = retry(&runtime, deadline, may_pass, ask).await?;
        let host = Host::own();
        let joiner = Joiner { host, lost: None, relay: None };
        let position = Link::<T::Endpoint>::ask_position(transport, root, joiner.clone(), left()).await?;
        let whole = (welcome.table.clone(), welcome.geometry);
        let begin_at = Version::new(position.begin_at);
        let publisher = serve(transport, whole, address, options.clone(), (begin_at, position.origin))?;
        let notice = RelayNotice {
            number: None,
            address: publisher.address(),
            branches: options.branches,
            room: 0,
            reads_from: None,
            speed: 0,
        };
        let joiner = Joiner { relay: Some(notice), ..joiner };
        let began = (position.origin, position.begin_at);
        let position: TreePosition =
            Link::<T::Endpoint>::ask_position(transport, root, joiner.clone(), left()).await?;
        if (position.origin, position.begin_at) != began {
            return Err(Error::AnotherPublisher);
        }
        let origin = Some(position.origin);
        let mut announcer = Announcer::start(transport.clone(), root.clone(), joiner, position)?;
        let mut refused = None;
        let reader = loop {
            let Some((number, address)) = announcer.next() else {
                if left().is_zero() {
                    let (operation, needed, seen) = ("joining the tree", Bound::NONE, Bound::NONE);
                    return Err(refused.unwrap_or(Error::Deadline {
                        operation,
                        waited: timeout,
                        needed,
                        seen,
                        awaited: Awaited::Answer,
                    }));
                }
                runtime.sleep(TELL_EVERY).await;
                continue;
            };
            let asked = ASK_FOR.min(left());
            let reading = ReaderOptions { checksums: options.memory.checksums, ..ReaderOptions::default() };
            match Reader::connect_async(transport.clone(), &address, reading, asked).await {
                Ok(reader) => {
                    expect_fit(&reader, &address, (publisher.table(), welcome.geometry.chunk_bytes))?;
                    announcer.reads_from(number);
                    break reader;
                }
                Err(error) if left().is_zero() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, %address, "an owner does not let this relay in");
                    refused = Some(error);
                    announcer.has_not_reached();
                }
            }
        };
        Ok(Passing { origin, ..Passing::new(reader, publisher, Upstream::Tree(announcer)) })
    }
}

/// Begins to serve a table that comes from another owner, whose publisher began at this version.
fn serve<T: Transport + Clone>(
    transport: &T,
    (table, geometry): (Table, FrameGeometry),
    address: &Address,
    mut options: PublisherOptions,
    (begin_at, origin): (Version, u64),
) -> Result<Publisher<T>, Error> {
    if let Some(memory) = options.gpu_memory {
        let reason = "a relay has frames of its own: leave it out";
        return Err(Error::Option { option: "gpu_memory", value: format!("{memory:?}"), reason });
    }
    options.begin_at = begin_at;
    options.memory.frames = geometry.frames;
    options.memory.chunk_bytes = geometry.chunk_bytes;
    let mut publisher = Publisher::new(transport.clone(), address, table, options)?;
    publisher.begin_as_relay(origin);
    Ok(publisher)
}

impl<T: Transport + Clone> Passing<T> {
    /// Connects to the first of `upstream` that answers, and begins to serve at `address`.
    pub(crate) async fn begin(
        transport: T,
        upstream: &[Address],
        address: &Address,
        options: PublisherOptions,
        timeout: Duration,
    ) -> Result<Passing<T>, Error> {
        let runtime = Runtime::of(&transport);
        let deadline = runtime.now() + timeout;
        let checksums = options.memory.checksums;
        let reading = ReaderOptions { waits_for_server: true, checksums, ..ReaderOptions::default() };
        let (mut next, mut patience) = (0, ASK_FOR);
        let reader = loop {
            let owner = upstream.get(next % upstream.len().max(1)).ok_or_else(|| Error::Option {
                option: "upstream",
                value: "no address".into(),
                reason: "a relay reads from a publisher or from another relay",
            })?;
            // No owner uses up the time of the owners that are asked after it.
            let to_ask = upstream.len() - next % upstream.len();
            next += 1;
            let left = deadline - runtime.now();
            let asked = if upstream.len() == 1 { left } else { patience.min(left / to_ask as u32) };
            match Reader::connect_async(transport.clone(), owner, reading, asked).await {
                Ok(reader) if reader.range() != (0..reader.table().bytes()) => {
                    let reason = "it holds a shard of its table, and a relay passes on whole ones";
                    return Err(Error::AnotherTable { address: owner.clone(), reason });
                }
                Ok(reader) => break reader,
                Err(error) if asked < left && (error.is_retryable() || is_of_system(&error)) => {
                    tracing::warn!(%error, %owner, "an owner upstream does not answer");
                    if next.is_multiple_of(upstream.len()) {
                        patience *= 2;
                        runtime.sleep(BEGIN_AGAIN).await;
                    }
                }
                Err(error) => return Err(error),
            }
        };
        let whole = (reader.table().clone(), reader.geometry());
        let publisher = serve(&transport, whole, address, options, (Version::new(0), 0))?;
        Ok(Passing::new(reader, publisher, Upstream::Listed(upstream.to_vec(), next)))
    }
}

/// True if the system refuses the way to an owner: to another one there may be a way.
fn is_of_system(error: &Error) -> bool {
    matches!(error, Error::Connect(ConnectError::System { .. }))
}

impl<T: Transport> Passing<T> {
    fn new(reader: Reader<T>, publisher: Publisher<T>, upstream: Upstream) -> Passing<T> {
        let is_open = matches!(upstream, Upstream::Tree(_));
        Passing {
            runtime: reader.runtime(),
            lease: publisher.lease(),
            reader,
            publisher,
            upstream,
            unknown: Some(Version::new(0)),
            origin: None,
            has_copied: false,
            is_open,
            draft: None,
            retries: 0,
            is_void: false,
            pace: Pace::default(),
            refusals: 0,
            rests_until: Instant::ORIGIN,
        }
    }

    pub(crate) fn address(&self) -> Address {
        self.publisher.address()
    }

    /// Passes versions on until it `is_over`, or an error makes that impossible. It reports its state to `tell`. It
    /// has no deadline, since a relay serves until its owner drops it, through any loss of an owner upstream.
    pub(crate) async fn run(
        &mut self,
        is_over: impl Fn() -> bool,
        tell: impl Fn(&Publisher<T>),
    ) -> Result<(), Error> {
        let (mut backoff, mut told) = (Backoff::of_one_per_host(), self.runtime.now());
        while !is_over() {
            let turn = self.turn();
            let now = self.runtime.now();
            if matches!(turn, Ok(true)) || now - told >= TELL_EVERY {
                told = now;
                tell(&self.publisher);
                // A loss concerns the present owner: it is handled before there is another one.
                if self.is_to_move()? && turn.is_ok() {
                    self.reconnect(None).await?;
                }
            }
            match turn {
                Ok(progress) => {
                    stand_back(&self.runtime, &mut backoff, &self.reader.relay_turn(progress)).await
                }
                Err(error) if is_loss(&error) => {
                    self.runtime.stand_back(&mut backoff).await;
                    self.reconnect(Some(&error)).await?;
                }
                Err(error @ Error::Pull { source: PullError::Checksum { .. }, .. }) => {
                    tracing::warn!(%error, "a copy of the relay's is damaged, and begins again");
                    // Whole: the version that differences begin from may be the damaged one.
                    self.begin_again(RelayStep::Copy(false));
                    self.runtime.sleep(TELL_EVERY).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Has the publisher told how much room there is, and returns whether it says that this relay is to move.
    fn is_to_move(&mut self) -> Result<bool, Error> {
        let Upstream::Tree(announcer) = &mut self.upstream else { return Ok(false) };
        // Readers are sent here once there is something to read.
        let room = if self.has_copied { self.publisher.room() } else { 0 };
        announcer.tell(room, if self.reader.is_mapped() { 0 } else { self.pace.speed() });
        if self.origin.is_some_and(|origin| origin != announcer.origin()) {
            return Err(Error::AnotherPublisher);
        }
        Ok(announcer.is_to_move())
    }

    /// Looks after the readers, and moves the copy of the next version on. True if it got anywhere.
    fn turn(&mut self) -> Result<bool, Error> {
        let now = self.runtime.now();
        let joined = self.is_open && self.publisher.poll(now);
        if now < self.rests_until {
            // There is no owner to copy from.
            return Ok(joined);
        }
        if self.draft.is_none() {
            self.draft = self.publisher.begin_relayed()?.map(|memory| (memory, RelayStep::Begin));
            (self.retries, self.is_void) = (0, false);
        }
        let Some((memory, step)) = &mut self.draft else { return Ok(joined) };
        let newest = self.publisher.version();
        let least = self.unknown.unwrap_or(newest.next());
        self.reader.read_at_a_time(self.pace.bytes());
        let turn = self.reader.relay(memory, least, self.publisher.served()?, step, now)?;
        let chunk_bytes = self.reader.geometry().chunk_bytes;
        if turn.copied.is_some() {
            self.pace.end();
        }
        // The time in which the owner has nothing yet says nothing of the link.
        let coming = turn.landed.filter(|_| turn.has_asked);
        self.pace.note(coming.map(|(_, chunks)| chunks as u64 * chunk_bytes), now);
        // A copy may begin again and end in one turn: the followers' part of the attempt before is void all the same.
        self.is_void |= std::mem::replace(&mut self.retries, turn.retries) != turn.retries;
        if let Some((version, chunks)) = turn.landed {
            self.publisher.relay_landed(version, chunks, std::mem::take(&mut self.is_void));
        }
        let Some((version, mut label)) = turn.copied else { return Ok(joined || turn.progress) };
        if self.reader.takes_workers() {
            // A server gives the same numbers to other bytes once it is started again: its incarnation is their origin.
            label.origin = self.reader.epoch();
        }
        let is_anyones = label.origin == 0;
        let is_another = *self.origin.get_or_insert(label.origin) != label.origin;
        if is_another && !mutant!("relay_origin") {
            return Err(Error::AnotherPublisher);
        }
        // A relay upstream without a copy serves zeros as the publisher's first version.
        self.has_copied |= !is_anyones && (version > newest || self.upstream.is_publisher());
        self.unknown = if is_anyones { Some(version.next()) } else { None };
        let is_first = !std::mem::replace(&mut self.is_open, true);
        if version > newest || is_first {
            self.publisher.commit_relayed(version, label, std::mem::take(&mut self.is_void))?;
            self.draft = None;
        } else if let Some((_, step)) = &mut self.draft {
            *step = RelayStep::Begin;
        }
        Ok(true)
    }

    /// Begins the copy again from this step, after an error: the followers' part of the attempt is void.
    fn begin_again(&mut self, from: RelayStep) {
        if let Some((_, step)) = &mut self.draft {
            *step = from;
        }
        (self.retries, self.is_void) = (0, true);
    }

    /// Connects to the next owner upstream, or to none yet, after the one before was `lost` or the publisher has named
    /// others. Readers are served in between.
    async fn reconnect(&mut self, lost: Option<&Error>) -> Result<(), Error> {
        let (number, address) = match &mut self.upstream {
            Upstream::Listed(addresses, next) => {
                *next += 1;
                (TreePosition::PUBLISHER, addresses[(*next - 1) % addresses.len()].clone())
            }
            Upstream::Tree(announcer) => {
                if lost.is_some() {
                    announcer.has_lost_its_owner();
                }
                // There is none before the publisher has answered again.
                let Some(next) = announcer.next() else { return Ok(()) };
                next
            }
        };
        // It is said once of each loss, and not with each attempt.
        let is_said = self.refusals > 0;
        match lost {
            Some(error) if is_said => tracing::debug!(%error, next = %address, "the owner upstream is lost"),
            Some(error) => tracing::warn!(%error, next = %address, "the owner upstream is lost"),
            None => tracing::info!(next = %address, "the publisher names another owner"),
        }
        self.reader.give_up_relay();
        self.pace.forget();
        self.begin_again(RelayStep::Begin);
        let chunk_bytes = self.reader.geometry().chunk_bytes;
        // Readers must not take this relay for dead meanwhile. An owner that does not listen is not waited for here,
        // where no reader is looked after.
        let asked = ASK_FOR.min(self.lease / 3);
        let connected = self.reader.reconnect_async(&address, false, asked).await;
        match (&mut self.upstream, &connected) {
            (Upstream::Tree(announcer), Ok(())) => announcer.reads_from(number),
            (Upstream::Tree(announcer), Err(_)) => announcer.has_not_reached(),
            (Upstream::Listed(..), Ok(())) => self.refusals = 0,
            (Upstream::Listed(addresses, _), Err(_)) => {
                self.refusals += 1;
                if self.refusals.is_multiple_of(addresses.len()) {
                    self.rests_until = self.runtime.now() + ASK_AGAIN;
                }
            }
        }
        match connected {
            Err(error @ Error::AnotherTable { .. }) => return Err(error),
            Err(error) if is_said => tracing::debug!(%error, %address, "no owner upstream yet"),
            Err(error) => tracing::warn!(%error, %address, "no owner upstream yet"),
            Ok(()) => {
                expect_fit(&self.reader, &address, (self.publisher.table(), chunk_bytes))?;
                self.unknown = Some(Version::new(0));
            }
        }
        Ok(())
    }
}

/// Checks that an owner has the whole table that this relay serves, in chunks as long as its own.
fn expect_fit<T: Transport>(
    reader: &Reader<T>,
    address: &Address,
    (table, chunk_bytes): (&Table, u64),
) -> Result<(), Error> {
    let reason = if reader.table() != table || reader.range() != (0..table.bytes()) {
        "its tensors are others than before, or it holds a shard of them"
    } else if reader.geometry().chunk_bytes != chunk_bytes {
        "its chunks are others than before"
    } else {
        return Ok(());
    };
    Err(Error::AnotherTable { address: address.clone(), reason })
}

/// Whether the owner upstream is lost. Words of another incarnation in its memory say so before its connection does.
fn is_loss(error: &Error) -> bool {
    use PullError::{Completion, Disconnected, Epoch, Post};
    let of_pull =
        |source: &PullError| matches!(source, Completion(_) | Disconnected(_) | Epoch { .. } | Post(_));
    match error {
        Error::Pull { source, .. } => of_pull(source),
        error => error.is_loss() || matches!(error, Error::Post { .. }),
    }
}

#[cfg(test)]
mod owners;
