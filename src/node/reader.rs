//! The reader: versions of a publisher's or a server's parameters, at most so stale.

mod certify;
mod deltas;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(test)]
mod late;
#[cfg(test)]
mod monotone;
mod pinned;
mod refresh;
mod resume;
mod snapshot;

use std::cell::Cell;
use std::sync::Arc;

use super::idle::{self, Idle};
use super::link::{Link, NewPeer};
use super::runtime::{Runtime, complete};
use super::shard::random_word;
use super::tree::ASK_FOR;
use super::wait::{WaitTurn, retry, wait};
use super::worker::of_caller;
use super::{Awaited, Error};
use crate::clock::{Version, VersionTag};
use crate::mem::{Buffer, CallerMemory, LocalSlice, VolatileSlice};
use crate::param::{
    Consistency, FrameGeometry, FrameLabel, Joiner, PartialCopy, PeerRole, PullOptions, Pulled, QueueTicket,
    TreeOwner, TreePosition, Welcome,
};
use crate::scheme::Bound;
use crate::table::{Selection, Table};
use crate::time::{Duration, Instant};
use crate::transport::{Address, Doorbell, Endpoint, GpuPath, Host, PayloadSlice, Transport};
pub use certify::Asked;
use certify::CopiedTable;
use deltas::DeltaBase;
pub(super) use deltas::RelayStep;
use refresh::Refresh;
use resume::Destination;
use snapshot::Spares;
pub use snapshot::{Snapshot, Wanted};

/// Settings of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderOptions {
    /// Whether it checks the owner's checksum over each copy, where there is one: one more pass over it. Not over a
    /// selection.
    pub checksums: bool,
    /// Whether it begins to copy a version that it waits for while a server still writes it, piece by piece, and takes
    /// it once it is whole: it has the version sooner. Not a selection.
    pub follow: bool,
    /// True if [`Reader::connect`] waits, until its timeout, for an owner that does not listen yet. Otherwise an
    /// address where no process listens is an error at once.
    pub waits_for_server: bool,
    /// True if the address belongs to a publisher whose relays are in a tree
    /// ([`Relay::join`](crate::node::Relay::join)): the reader asks it which owner to read from, and reads from a relay
    /// on its own host if there is one. [`Reader::reconnect`] does the same, with the publisher's address.
    pub in_tree: bool,
    /// The behaviour of the reader while it waits for a version.
    pub idle: Idle,
}

/// The version that a reader holds after a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    /// The number of the version.
    pub version: Version,
    /// Number of versions by which it is behind the newest.
    pub behind: u64,
    /// The owner's incarnation.
    pub epoch: u64,
    /// Number of times that the copy was begun again because the frame changed under it.
    pub retries: u64,
    /// False if the copy at hand was fresh enough and nothing was read but the number of the newest version.
    pub copied: bool,
    /// The publisher's own words about the version; zeros from a server.
    pub tag: VersionTag,
    /// The time at which it was published, in nanoseconds since 1970 by the clock of the publisher's host; 0 from a
    /// server.
    pub published_ns: u64,
    /// The incarnation of the publisher or, by way of a relay, of the server that made the version; 0 from a server
    /// itself.
    pub origin: u64,
}

impl Fresh {
    fn new(pulled: Pulled, label: FrameLabel, copied: bool) -> Fresh {
        let Pulled { version, behind, epoch, retries, .. } = pulled;
        let FrameLabel { tag, published_ns, origin } = label;
        Fresh { version, behind, epoch, retries, copied, tag, published_ns, origin }
    }
}

/// Reads versions of one shard. [`Publisher`](super::Publisher) has an example.
pub struct Reader<T: Transport> {
    pub(super) link: Link<T::Endpoint>,
    transport: T,
    runtime: Runtime,
    options: ReaderOptions,
    consistency: Consistency,
    /// The part of the table that is read, if it is not all of it.
    selection: Option<Selection>,
    /// The reader's own copy; made when it is first asked for.
    copy: Option<Buffer>,
    held: Option<(Pulled, FrameLabel)>,
    /// The version that the copy has, also while it is not lent, if no other code can have changed it.
    content: Option<(Version, FrameLabel)>,
    is_callers: bool,
    /// The memory that the next snapshot is copied into, and the memory of dropped snapshots.
    filling: Option<Buffer>,
    /// The version that is in there, once it is whole, and how it was asked for.
    filled: Option<(Fresh, Asked)>,
    spares: Spares,
    /// The chunks of an abandoned copy, and their destination; and the chunks with which the next copy continues.
    partial: Option<(Destination, PartialCopy)>,
    resuming: Option<PartialCopy>,
    /// The newest snapshot that was taken: differences are applied to a copy of it.
    base: Option<DeltaBase>,
    /// The table of copies, made when it is first asked for.
    copied: Option<Arc<CopiedTable>>,
    /// The reader's name in its certificates: a random number.
    identity: u64,
    /// The number of the reader's ticket, where there is no room: random.
    ticket: u64,
    /// Reads on record that were begun.
    reads: u64,
    /// The refresh that has begun and has not ended.
    refresh: Option<Refresh>,
    /// The error that has ended its copy in a call that asked for something else: its next turn returns it.
    failed: Option<Error>,
    /// Bytes pulled since the connection was last looked after.
    unwatched: usize,
}

/// The outcome of one turn of a copy that is passed on.
pub(super) struct RelayTurn {
    /// The version that is whole now, and its label.
    pub(super) copied: Option<(Version, FrameLabel)>,
    /// The version that is being copied, and how many chunks of it are there.
    pub(super) landed: Option<(Version, usize)>,
    /// Some of them are asked for: they come as fast as the link brings them.
    pub(super) has_asked: bool,
    /// The number of times that the copy was begun again.
    pub(super) retries: u64,
    pub(super) progress: bool,
}

/// A reader looks after its connection once for so many bytes, also if every pull succeeds at once.
const BYTES_BETWEEN_LOOKS: usize = 1 << 20;

async fn connect_link<T: Transport>(
    transport: &T,
    runtime: &Runtime,
    address: &Address,
    options: ReaderOptions,
    ticket: u64,
    timeout: Duration,
) -> Result<Link<T::Endpoint>, Error> {
    let deadline = runtime.now() + timeout;
    let doorbell = options.idle.doorbell(runtime, address)?;
    let may_pass =
        |error: &Error| error.is_refused_for_now() || (options.waits_for_server && error.is_no_listener());
    let lost = Cell::new(None);
    let connect = async || {
        let left = deadline - runtime.now();
        match options.in_tree {
            false => {
                Link::connect(transport, address, reader(&doorbell, Some((ticket, left))), None, left).await
            }
            true => connect_in_tree(transport, runtime, address, (&lost, &doorbell, ticket), deadline).await,
        }
    };
    retry(runtime, deadline, may_pass, connect).await
}

/// A reader that goes on asking for a while, with a ticket, or that asks once.
fn reader(doorbell: &Option<Arc<Doorbell>>, waits: Option<(u64, Duration)>) -> NewPeer {
    let nanos = |left: Duration| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
    let ticket = waits.map(|(number, left)| QueueTicket { number, left_ns: nanos(left) });
    NewPeer { doorbell: doorbell.clone(), ticket, ..PeerRole::Reader.into() }
}

/// Asks the publisher which owners to read from, and connects to the first one that accepts this reader. `lost` is the
/// first one that has not accepted it, for the next question.
async fn connect_in_tree<T: Transport>(
    transport: &T,
    runtime: &Runtime,
    publisher: &Address,
    (lost, doorbell, ticket): (&Cell<Option<u64>>, &Option<Arc<Doorbell>>, u64),
    deadline: Instant,
) -> Result<Link<T::Endpoint>, Error> {
    let joiner = Joiner { host: Host::own(), lost: lost.take(), relay: None };
    let position =
        Link::<T::Endpoint>::ask_position(transport, publisher, joiner, deadline - runtime.now()).await?;
    let mut owners = position.owners.iter();
    let mut refused = None;
    loop {
        // There is at least one.
        let Some(TreeOwner { number, address }) = owners.next() else {
            return Err(Error::Shards { reason: "the publisher names no owner to read from".into() });
        };
        let address = address.as_ref().unwrap_or(publisher);
        let (to_ask, is_last) = (owners.len() as u32 + 1, owners.len() == 0);
        let left = deadline - runtime.now();
        let waits = (is_last || *number == TreePosition::PUBLISHER).then_some((ticket, left));
        // No owner uses up the time of the owners that are asked after it, or once more.
        let asked = if is_last && refused.is_none() { left } else { ASK_FOR.min(left / to_ask) };
        let error = match Link::connect(transport, address, reader(doorbell, waits), None, asked).await {
            Ok(link) => return Ok(link),
            // Room that will come is worth more than the reason for which the last owner cannot be reached.
            Err(error) if is_last => return Err(refused.unwrap_or(error)),
            Err(error) => error,
        };
        tracing::debug!(%error, %address, "an owner in the tree does not let this reader in");
        lost.set(lost.take().or(Some(*number)));
        if error.is_refused_for_now() {
            refused.get_or_insert(error);
        }
    }
}

impl<T: Transport> Reader<T> {
    /// Connects to a publisher or a server within `timeout`. If it has as many peers as it takes
    /// ([`ShardOptions::peers`](crate::ShardOptions::peers)), this waits for one to leave, in a queue with the
    /// other readers that wait.
    ///
    /// # Errors
    /// No owner listens there, or it refuses this reader. An owner that had no room within `timeout` says when to ask
    /// again ([`Diagnostic::retry_after`](crate::Diagnostic::retry_after)). A call whose timeout is shorter than that
    /// is not in the owner's queue, and a call that has ended has left it.
    pub fn connect(
        transport: T,
        address: &Address,
        options: ReaderOptions,
        timeout: Duration,
    ) -> Result<Self, Error> {
        complete(Self::connect_async(transport, address, options, timeout))
    }

    pub(crate) async fn connect_async(
        transport: T,
        address: &Address,
        options: ReaderOptions,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let runtime = Runtime::of(&transport);
        let ticket = random_word();
        let link = connect_link(&transport, &runtime, address, options, ticket, timeout).await?;
        Ok(Reader {
            link,
            transport,
            runtime,
            options,
            consistency: Consistency::Whole,
            selection: None,
            copy: None,
            held: None,
            content: None,
            is_callers: false,
            filling: None,
            filled: None,
            spares: Spares::default(),
            base: None,
            partial: None,
            resuming: None,
            copied: None,
            identity: random_word(),
            ticket,
            reads: 0,
            refresh: None,
            failed: None,
            unwatched: 0,
        })
    }

    /// The table that the owner holds a shard of (a publisher: all of it).
    pub fn table(&self) -> &Table {
        &self.link.welcome.table
    }

    /// The path of copies between the owner and this process's GPU, and why the better paths are not in use; `None` for
    /// a reader whose transport has no GPU.
    pub fn gpu_path(&self) -> Option<GpuPath> {
        self.link.endpoint.gpu_path()
    }

    /// Connects again, after the loss of the owner, to its successor, at the same address or at another. The copy at
    /// hand is void. The versions of the new owner have an epoch of their own and may have any number.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and if the new owner has another table; the reader then stays as it was. Calls
    /// that follow each other at once keep their position in the queue. [`Error::InFlight`] if a GPU still copies to
    /// memory of the caller's for the last connection: the reader is connected then, and copies to memory of its own.
    pub fn reconnect(&mut self, address: &Address, timeout: Duration) -> Result<(), Error> {
        complete(self.reconnect_async(address, true, timeout))
    }

    pub(crate) async fn reconnect_async(
        &mut self,
        address: &Address,
        waits_for_server: bool,
        timeout: Duration,
    ) -> Result<(), Error> {
        let options = ReaderOptions { waits_for_server, ..self.options };
        let mut link =
            connect_link(&self.transport, &self.runtime, address, options, self.ticket, timeout).await?;
        let Welcome { table, shard, shards, .. } = &link.welcome;
        let before = &self.link.welcome;
        if *table != before.table || (*shard, *shards) != (before.shard, before.shards) {
            let reason = "its tensors, or the shard of them that it holds, are others than before";
            return Err(Error::AnotherTable { address: address.clone(), reason });
        }
        self.abandon_refresh();
        link.pull.select(self.selection.as_ref().map(Selection::plan));
        (self.link, self.held, self.filled) = (link, None, None);
        // In traces it counts as another reader: the successor may have older versions.
        self.identity = random_word();
        self.leave_lent_memory()
    }

    /// Reads this part of the table from now on, and not all of it: each copy is [`Selection::table`]. `None` reads all
    /// of it again. There is no copy to read until the next refresh has ended, and that copies to memory of the
    /// reader's: memory of the caller's is released, as its length belongs to another part. Checksums are not checked
    /// of a part.
    ///
    /// # Errors
    /// The selection was made of another table, or the owner holds only a shard of it.
    pub fn select(&mut self, selection: Option<Selection>) -> Result<(), Error> {
        if let Some(selection) = &selection {
            let is_whole = self.range() == (0..self.table().bytes());
            let end = selection.pieces().iter().map(|piece| piece.from + piece.bytes).max();
            if !is_whole || !selection.is_of(self.table()) || end > Some(self.table().bytes()) {
                let (option, value) = ("selection", "a table".to_string());
                let reason = "it is of another table than the whole one that the owner has: make it of `Reader::table`";
                return Err(Error::Option { option, value, reason });
            }
        }
        self.abandon_refresh();
        (self.copy, self.held, self.filling, self.filled, self.copied) = (None, None, None, None, None);
        (self.content, self.is_callers, self.base, self.partial) = (None, false, None, None);
        self.spares = Spares::default();
        self.link.pull.select(selection.as_ref().map(Selection::plan));
        self.selection = selection;
        Ok(())
    }

    /// The table of a copy: the selected part, or all of it.
    #[doc(hidden)]
    pub fn copied_table(&self) -> &Table {
        self.selection.as_ref().map_or(self.table(), Selection::table)
    }

    /// Bytes of a copy: of a server's shard, or of the selection.
    #[doc(hidden)]
    pub fn copy_bytes(&self) -> usize {
        self.link.pull.copy_bytes() as usize
    }

    /// The bytes of the table that this reader reads.
    #[doc(hidden)]
    pub fn range(&self) -> std::ops::Range<u64> {
        self.link.welcome.range().unwrap_or_default()
    }

    /// Bytes of one version.
    #[doc(hidden)]
    pub fn payload_bytes(&self) -> usize {
        self.link.welcome.geometry.payload_bytes as usize
    }

    /// The owner's incarnation.
    #[doc(hidden)]
    pub fn epoch(&self) -> u64 {
        self.link.welcome.epoch
    }

    /// The reader's copy.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`]: nothing was copied yet, or a newer version is being copied, or that copy failed.
    /// [`Error::InFlight`]: requests of a copy, also of an abandoned one, may still write there.
    pub fn bytes(&self) -> Result<&[u8], Error> {
        let out_of_turn =
            Error::OutOfTurn { operation: "read the copy", reason: "nothing is copied yet: refresh first" };
        let Some(buffer) = &self.copy else { return Err(out_of_turn) };
        let bytes = buffer.bytes().ok_or(Error::InFlight { what: "copy" })?;
        match self.held {
            Some(_) => Ok(&bytes[..self.copy_bytes()]),
            None => Err(out_of_turn),
        }
    }

    /// Has refreshes copy into memory of the caller's from now on. It is registered here, and must be as long as a
    /// copy. [`bytes`](Self::bytes) lends it, and is an error until the next refresh has ended.
    ///
    /// From the begin of a refresh until its end no other code may read or write the memory, and while a slice that
    /// [`bytes`](Self::bytes) has lent is alive none may write it. Requests of a refresh that has failed or was
    /// abandoned may go on writing: the memory is then this reader's until a later refresh has ended, or its owner was
    /// dropped.
    ///
    /// # Errors
    /// The memory has another length, or cannot be registered with the device; refreshes then go on as before.
    pub fn use_memory(&mut self, memory: CallerMemory) -> Result<(), Error> {
        let memory = of_caller(&self.transport, memory, self.copy_bytes() as u64)?;
        self.abandon_refresh();
        (self.copy, self.held, self.content, self.is_callers) = (Some(memory), None, None, true);
        self.forget_partial(Destination::Copy);
        Ok(())
    }

    /// Pulls the newest version that satisfies `bound` into registered memory of the caller's, waiting at most
    /// `timeout`.
    #[doc(hidden)]
    pub fn pull(&mut self, into: &LocalSlice, bound: Bound, timeout: Duration) -> Result<Pulled, Error> {
        self.abandon_refresh();
        self.release();
        // A dead owner's memory would satisfy this reader for ever. Reading the clock costs as much as a small pull:
        // it is read once for so many bytes.
        self.unwatched += into.len();
        if self.unwatched >= BYTES_BETWEEN_LOOKS {
            self.unwatched = 0;
            self.link.look_around(self.runtime.now())?;
        }
        // Most pulls end at once, and have neither read the clock nor made a future.
        let mut has_begun = false;
        let pulled = match self.pull_once(into, bound, self.pull_options(), &mut has_begun) {
            Ok((Some(pulled), _)) => return Ok(pulled),
            Ok((None, _)) => complete(self.finish_pull(into, bound, has_begun, timeout)),
            Err(error) => Err(error),
        };
        if pulled.is_err() {
            self.link.cancel_pull();
        }
        pulled
    }

    async fn finish_pull(
        &mut self,
        into: &LocalSlice,
        bound: Bound,
        mut has_begun: bool,
        timeout: Duration,
    ) -> Result<Pulled, Error> {
        let runtime = self.runtime.clone();
        let deadline = runtime.now() + timeout;
        let pulled = wait(&runtime, deadline, |now| {
            let (pulled, progress) = self.pull_once(into, bound, self.pull_options(), &mut has_begun)?;
            if let Some(pulled) = pulled {
                return Ok(WaitTurn::Done(pulled));
            }
            self.link.look_around(now)?;
            Ok(self.rest(self.link.turn(progress), deadline - now))
        });
        let pulled = pulled.await?;
        let (operation, (seen, awaited)) = ("waiting for a version", self.link.lacking());
        pulled.ok_or(Error::Deadline { operation, waited: timeout, needed: bound, seen, awaited })
    }

    /// The end of a turn of a wait: sleeps for `at_most` if there was nothing to do, and the owner wakes this reader.
    fn rest<R>(&mut self, turn: WaitTurn<R>, at_most: Duration) -> WaitTurn<R> {
        idle::rest(turn, std::iter::once(&mut self.link), at_most)
    }

    /// Has copies that [`relay`](Self::relay) makes read at most so many bytes at a time.
    pub(super) fn read_at_a_time(&mut self, bytes: u64) {
        self.link.pull.limit_batch(self.runtime.batch(bytes));
    }

    /// Gives up the copy that [`relay`](Self::relay) makes. The next one goes on with it if it finds the same version.
    pub(super) fn give_up_relay(&mut self) {
        self.keep_partial(Destination::Relay);
        self.link.cancel_pull();
    }

    /// The options of each pull.
    fn pull_options(&self) -> PullOptions {
        PullOptions {
            consistency: self.consistency,
            checksum: self.options.checksums,
            follow: self.options.follow,
            ..PullOptions::default()
        }
    }

    /// Whether the owner is a server, whose versions are no publisher's.
    pub(super) fn takes_workers(&self) -> bool {
        self.link.welcome.scheme.is_some()
    }

    pub(super) fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    /// The layout of the owner's frames.
    pub(super) fn geometry(&self) -> FrameGeometry {
        self.link.welcome.geometry
    }

    /// Moves a pull on as far as it goes without waiting. Returns its result, and whether it got anywhere.
    fn pull_once(
        &mut self,
        into: &(impl Clone + Into<PayloadSlice>),
        bound: Bound,
        options: PullOptions,
        has_begun: &mut bool,
    ) -> Result<(Option<Pulled>, bool), Error> {
        // The requests of a pull that ended at its deadline come first.
        if !*has_begun && !self.link.pull.is_in_flight() {
            let shard = self.link.welcome.shard;
            let begun = self.link.pull.start(bound, into.clone(), options);
            begun.map_err(|source| Error::Pull { shard, source })?;
            if let Some(partial) = self.resuming.take() {
                self.link.pull.resume(partial);
            }
            *has_begun = true;
        }
        let progress = self.link.advance()?;
        let pulled = self.link.pull.take();
        if pulled.is_some() && self.link.pull.is_pinned() {
            // The pin is released now, and not by the next call, which may come much later.
            self.link.advance()?;
        }
        Ok((pulled, progress))
    }

    /// The newest version's number, without copying it.
    ///
    /// # Errors
    /// [`Error::Deadline`]: there was no answer within `timeout`. [`Error::ServerLost`], [`Error::Evicted`]: the owner
    /// is gone, or has let this reader go.
    pub fn newest(&mut self, timeout: Duration) -> Result<Version, Error> {
        complete(self.newest_async(timeout))
    }

    async fn newest_async(&mut self, timeout: Duration) -> Result<Version, Error> {
        let newest = self.ask_newest(Version::new(0), &mut None, timeout).await?;
        let (operation, seen) = ("asking for the version", self.link.seen().unwrap_or(Bound::NONE));
        let (needed, awaited) = (Bound::NONE, Awaited::Answer);
        newest.ok_or(Error::Deadline { operation, waited: timeout, needed, seen, awaited })
    }

    /// The newest version's number once it is at least this one, without copying it, and waiting as
    /// [`ReaderOptions::idle`] says; `None` if it is not within `timeout`. `asked` keeps the question for the next
    /// call, which continues it: a question that begins again in each of many short calls is never answered over a slow
    /// link.
    #[doc(hidden)]
    pub fn newest_from(
        &mut self,
        at_least: Version,
        asked: &mut Option<u64>,
        timeout: Duration,
    ) -> Result<Option<Version>, Error> {
        complete(self.ask_newest(at_least, asked, timeout))
    }

    /// The newest version's number that was read of the owner, without asking; `None` before anything was.
    #[doc(hidden)]
    pub fn newest_seen(&self) -> Option<Version> {
        self.link.seen().map(|seen| seen.version)
    }

    /// `asked` is the number of answers that there are once the question is answered, if it was asked before.
    async fn ask_newest(
        &mut self,
        at_least: Version,
        asked: &mut Option<u64>,
        timeout: Duration,
    ) -> Result<Option<Version>, Error> {
        let runtime = self.runtime.clone();
        let begun = runtime.now();
        let deadline = begun + timeout;
        // An answer to a question of an earlier call, which ended at its deadline, may be older than this one.
        let next = self.link.answers() + 1 + u64::from(self.link.is_probing());
        let mut needed = asked.take().unwrap_or(next);
        let looked = self.link.look_around(begun);
        self.keep_error(looked)?;
        let newest = wait(&runtime, deadline, |now| {
            self.link.probe()?;
            let advanced = self.link.advance();
            self.keep_error(advanced)?;
            if self.link.answers() >= needed {
                let newest = self.link.line.seen.version;
                if newest >= at_least {
                    return Ok(WaitTurn::Done(newest));
                }
                needed = self.link.answers() + 1;
            }
            let looked = self.link.look_around(now);
            self.keep_error(looked)?;
            Ok(self.rest(self.link.turn(false), deadline - now))
        });
        let newest = newest.await?;
        *asked = newest.is_none().then_some(needed);
        Ok(newest)
    }

    /// Keeps the error of a copy for the refresh that makes it, where another call has moved it on.
    fn keep_error<R: Default>(&mut self, done: Result<R, Error>) -> Result<R, Error> {
        match done {
            Err(error @ Error::Pull { .. }) if self.refresh.is_some() => {
                self.failed.get_or_insert(error);
                Ok(R::default())
            }
            done => done,
        }
    }

    /// Tells the owner that this reader has copied a version out of a frame that [`hold`](Self::hold) has pinned.
    #[doc(hidden)]
    pub fn tell_held(&mut self, version: Version) -> Result<(), Error> {
        self.link.tell_held(version)
    }

    /// Copies the version that is `wanted` into the caller's own memory, `into`, which is as long as a copy, waiting at
    /// most `timeout`. It comes straight out of the owner's memory where that is mapped, and elsewhere, or if checksums
    /// are to be checked, by way of this reader's copy. Where exactly one version is wanted, or the copy is in memory
    /// of the caller's ([`use_memory`](Self::use_memory)), that copy stays as it is, and the version comes by way of a
    /// snapshot. After an error `into` may hold anything.
    ///
    /// # Errors
    /// [`Error::Length`]: `into` is not as long as a copy. The errors of [`refresh`](Self::refresh) and of
    /// [`pin`](Self::pin).
    pub fn pull_into(&mut self, into: &mut [u8], wanted: Wanted, timeout: Duration) -> Result<Fresh, Error> {
        if into.len() != self.copy_bytes() {
            return Err(Error::Length { given: into.len(), expected: self.copy_bytes(), unit: "bytes" });
        }
        let deadline = self.runtime.now() + timeout;
        let is_checked = self.options.checksums || self.consistency != Consistency::Whole;
        if self.link.expect_in_place().is_err() || is_checked || wanted.exact().is_some() {
            // A copy at hand is not kept if it is older than the result of another read.
            let oldest = self.link.pull.no_older(Bound::NONE).version;
            loop {
                let copied = self
                    .copy_into(into, wanted.no_older(oldest), deadline)
                    .and_then(|fresh| self.within_by_now(fresh, wanted, deadline));
                match copied {
                    Ok(Some(fresh)) => return Ok(fresh),
                    Ok(None) if self.runtime.now() >= deadline => {
                        let (operation, (seen, awaited)) =
                            ("keeping up with the publisher", self.link.lacking());
                        let needed = wanted.bound();
                        return Err(Error::Deadline { operation, waited: timeout, needed, seen, awaited });
                    }
                    Ok(None) => {}
                    // The time that was waited in all, and not the rest of it.
                    Err(Error::Deadline { operation, needed, seen, awaited, .. }) => {
                        return Err(Error::Deadline { operation, waited: timeout, needed, seen, awaited });
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        let mut retries = 0;
        loop {
            let newest = self.newest(deadline - self.runtime.now())?;
            let oldest = newest.get().saturating_sub(wanted.most_behind().unwrap_or(0));
            let bound = wanted.no_older(Version::new(oldest)).bound();
            let pulled = self.hold(bound, deadline - self.runtime.now())?;
            if let Some(bytes) = self.held() {
                self.link.pull.copy_out(bytes, VolatileSlice::from_mut(into));
            }
            let held = self.held_fresh();
            let intact = self.is_intact();
            self.release();
            let version = pulled.version;
            let behind = version.behind(self.newest(deadline - self.runtime.now())?);
            let is_wanted = intact && wanted.most_behind().is_none_or(|most| behind <= most);
            if let Some(fresh) = held.filter(|_| is_wanted) {
                self.link.tell_held(version)?;
                return Ok(Fresh { behind, retries, copied: true, ..fresh });
            }
            retries += 1;
            if self.runtime.now() >= deadline {
                let (operation, (seen, awaited)) = ("keeping up with the publisher", self.link.lacking());
                return Err(Error::Deadline { operation, waited: timeout, needed: bound, seen, awaited });
            }
        }
    }

    /// Copies a version that is wanted into the caller's memory, by way of memory of this reader's.
    fn copy_into(&mut self, into: &mut [u8], wanted: Wanted, deadline: Instant) -> Result<Fresh, Error> {
        let left = deadline - self.runtime.now();
        // Memory of the caller's is written by refreshes alone, and may hold no version. One version by its number may
        // be older than the result of a refresh.
        if self.is_callers || wanted.exact().is_some() {
            let snapshot = self.snapshot(wanted, left)?;
            into.copy_from_slice(snapshot.bytes());
            return Ok(*snapshot.fresh());
        }
        self.begin(wanted, None);
        let fresh = complete(self.finish(left))?;
        into.copy_from_slice(self.bytes()?);
        Ok(fresh)
    }

    /// A copy in the caller's memory; `None` if it is too far behind by now.
    fn within_by_now(
        &mut self,
        fresh: Fresh,
        wanted: Wanted,
        deadline: Instant,
    ) -> Result<Option<Fresh>, Error> {
        let Some(most_behind) = wanted.most_behind() else {
            return Ok(Some(Fresh { copied: true, ..fresh }));
        };
        let newest = self.newest(deadline - self.runtime.now())?;
        self.expect_within(wanted, newest)?;
        let behind = fresh.version.behind(newest);
        Ok((behind <= most_behind).then_some(Fresh { behind, copied: true, ..fresh }))
    }

    /// Reads with this consistency from now on; a read may then be a mixture of versions ([`Consistency::Mixture`]).
    #[doc(hidden)]
    pub fn set_consistency(&mut self, consistency: Consistency) {
        self.consistency = consistency;
    }
}
