//! The publisher: versions that their owner made itself, for readers.

mod background;
mod deltas;
#[cfg(feature = "cuda")]
mod gpu;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

pub use self::background::{BackgroundPublisher, Draft};
pub use self::deltas::DeltaOptions;
#[cfg(feature = "cuda")]
pub use self::gpu::Publishing;
use super::Error;
use super::payloads::on_host;
use super::record::digests;
use super::runtime::complete;
use super::shard::{Shard, ShardConfig, ShardOptions, ShardPeer};
use super::tree::Tree;
use super::wait::{WaitTurn, drive, wait};
use crate::clock::{Clock, Version, VersionTag};
use crate::cuda::GpuMemory;
use crate::mem::{LocalSlice, Streaming, VolatileSlice, fence};
use crate::param::{FrameHeader, FrameLabel, Latest, PendingChecksum, PendingDelta, Pinned, WrittenDelta};
use crate::table::Table;
use crate::time::{Duration, Instant};
use crate::trace::Publication;
use crate::transport::{Address, Host, PayloadSlice, Transport};

/// Settings of a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublisherOptions {
    /// Settings of its memory.
    pub memory: ShardOptions,
    /// The version at which it begins, all zeros; the first that it publishes is the next one. The
    /// successor of a publisher that is lost begins at that one's last version, so that the numbers go on. Readers tell
    /// the two apart by the epoch.
    pub begin_at: Version,
    /// The differences between versions that it keeps for readers; `None`, the default, for none.
    pub deltas: Option<DeltaOptions>,
    /// The number of relays that read from it, at least 1, where a publisher arranges a tree
    /// ([`Relay::join`](crate::node::Relay::join)). A version takes its link as many times as long, and the tree is as
    /// many times as wide at each step; 2 by default.
    pub branches: u16,
    /// Memory of the caller's for the frames, on the transport's GPU; `None`, the default, for memory of the library's
    /// own. It has exactly [`ShardOptions::frames`] times the bytes of the table, which are rounded up to a multiple of
    /// 4096, and is cleared when the publisher begins, once all work with it is over. From then on it is written by way
    /// of this publisher alone. Over shared memory it is of `cudaMalloc`.
    pub gpu_memory: Option<GpuMemory>,
}

impl Default for PublisherOptions {
    fn default() -> Self {
        PublisherOptions {
            memory: ShardOptions::default(),
            begin_at: Version::default(),
            deltas: None,
            branches: 2,
            gpu_memory: None,
        }
    }
}

/// A reader, as its publisher sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderStatus {
    /// Its index, which another reader gets once this one has left.
    pub peer: u16,
    /// The newest version that it has copied, by its own word; `None` before the first.
    pub holds: Option<Version>,
    /// The version whose frame it pins now: it reads it in place, or copies it.
    pub pins: Option<Version>,
    /// The number of versions by which its newest one, as a copy or in place, is behind the latest; for a reader
    /// without any version, the number of all versions so far.
    pub behind: u64,
    /// It still copies the version that it pins.
    is_copying: bool,
    /// Tells it from readers that had its index before.
    generation: u64,
}

impl ReaderStatus {
    /// Whether it has this version or a newer one, as a copy or in place.
    #[doc(hidden)]
    pub fn has(&self, version: Version) -> bool {
        self.newest() >= Some(version)
    }

    /// Whether the other status is of the same reader.
    #[doc(hidden)]
    pub fn is_of_same(&self, other: &ReaderStatus) -> bool {
        (self.peer, self.generation) == (other.peer, other.generation)
    }

    fn newest(&self) -> Option<Version> {
        self.holds.max(self.pins.filter(|_| !self.is_copying))
    }
}

/// Publishes versions of a table: a trainer's weights, say, for rollout workers.
///
/// Readers are taken in by [`poll`](Self::poll), which every publishing call includes. A trainer that computes for long
/// calls it in between, or leaves it to a thread: [`into_background`](Self::into_background).
///
/// ```
/// use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
/// use slackline::{Address, ElementType, Shm, Table};
/// use std::time::Duration;
///
/// let (address, timeout) = (Address::random(), Duration::from_secs(10));
/// let table = Table::flat(8, ElementType::F32)?;
/// let mut publisher = Publisher::new(Shm::new(), &address, table, PublisherOptions::default())?;
/// let reading = std::thread::spawn(move || {
///     let mut reader = Reader::connect(Shm::new(), &address, ReaderOptions::default(), timeout)?;
///     let fresh = reader.refresh_to(slackline::Version::new(1), timeout)?;
///     Ok::<_, slackline::Error>((fresh.version.get(), reader.bytes()?.to_vec()))
/// });
/// publisher.publish(&[7; 32], timeout)?;
/// publisher.drive(|_| reading.is_finished(), timeout)?;
/// assert_eq!(reading.join().unwrap()?, (1, vec![7; 32]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Publisher<T: Transport> {
    pub(super) shard: Shard<T>,
    events: Vec<super::shard::ShardEvent>,
    joined: u64,
    /// The frame that is being written, and the version that it becomes.
    draft: Option<(u8, Version)>,
}

const NO_FRAME: Error =
    Error::OutOfTurn { operation: "pass a version on", reason: "no frame is being written" };

impl<T: Transport> Publisher<T> {
    /// Begins to serve `table` at `address`; the version at which it begins is all zeros.
    ///
    /// # Errors
    /// [`Error::Option`]: a field of `options` has a value that it cannot have. [`Error::LastVersion`]: `begin_at` is
    /// too large. [`Error::Table`]: the description of the table is too long to be sent. [`Error::Register`]: the
    /// memory of the frames could not be had. [`Error::Connect`]: the address cannot be listened at, since it is in
    /// use, say.
    pub fn new(
        transport: T,
        address: &Address,
        table: Table,
        options: PublisherOptions,
    ) -> Result<Self, Error> {
        if options.begin_at >= Latest::VERSION_MAX {
            return Err(Error::LastVersion { version: options.begin_at });
        }
        let deltas = options.deltas.map(|deltas| deltas.geometry(&table)).transpose()?;
        let (lease, gpu_memory) = (options.memory.lease, options.gpu_memory);
        let config = ShardConfig {
            table,
            shard: 0,
            shards: 1,
            scheme: None,
            options: options.memory,
            deltas,
            gpu_memory,
        };
        let mut shard = Shard::new(transport, address, config)?;
        let origin = shard.frames.epoch();
        shard.frames.set_label(shard.frames.latest().frame, FrameLabel { origin, ..FrameLabel::default() });
        shard.begin_at(options.begin_at, Clock::new(0));
        shard.tree = Some(Tree::new((origin, options.begin_at), Host::own(), options.branches, lease));
        Ok(Publisher { shard, events: Vec::new(), joined: 0, draft: None })
    }

    /// Returns the address at which readers reach this publisher.
    pub fn address(&self) -> Address {
        self.shard.address()
    }

    /// The table.
    #[doc(hidden)]
    pub fn table(&self) -> &Table {
        self.shard.table()
    }

    /// This incarnation of the publisher.
    #[doc(hidden)]
    pub fn epoch(&self) -> u64 {
        self.shard.frames.epoch()
    }

    /// The newest version.
    pub fn version(&self) -> Version {
        self.shard.frames.latest().version
    }

    /// Readers that ever joined.
    #[doc(hidden)]
    pub fn joined(&self) -> u64 {
        self.joined
    }

    /// The readers that are in, each with the version that it holds.
    pub fn readers(&self) -> Vec<ReaderStatus> {
        let frames = &self.shard.frames;
        let latest = frames.latest().version;
        let status = |(peer, reader): (u16, &ShardPeer<T::Endpoint>)| {
            // A reader that claims an impossible version deceives about itself alone.
            let holds = reader.inbox.held().filter(|version| *version <= latest);
            let pinned = (0..frames.geometry().frames).find(|frame| reader.inbox.pins(*frame));
            let header = pinned.map(|frame| frames.header(frame));
            let pins = header.filter(FrameHeader::is_whole).map(|header| header.version);
            let is_copying = !pinned.is_some_and(|frame| reader.inbox.reads_in_place(frame));
            let status =
                ReaderStatus { peer, holds, pins, behind: 0, is_copying, generation: reader.generation };
            ReaderStatus { behind: status.newest().unwrap_or_default().behind(latest), ..status }
        };
        let peers = self.shard.peers.iter().zip(0..);
        peers.filter_map(|(reader, peer)| Some((peer, reader.as_ref()?))).map(status).collect()
    }

    /// Takes readers in and notices which readers are gone, without waiting. Returns true if anything happened.
    pub fn poll(&mut self, now: Instant) -> bool {
        let progress = self.shard.poll(now, Clock::new(0), &mut self.events);
        let joined =
            |event: &super::shard::ShardEvent| matches!(event, super::shard::ShardEvent::Joined { .. });
        self.joined += self.events.drain(..).filter(joined).count() as u64;
        progress
    }

    /// Polls until `until` says so or `timeout` has passed; false if it was the timeout.
    ///
    /// # Errors
    /// It returns none today: a reader that is lost is no error of the publisher.
    pub fn drive(&mut self, until: impl Fn(&Self) -> bool, timeout: Duration) -> Result<bool, Error> {
        complete(self.drive_async(until, timeout))
    }

    pub(crate) async fn drive_async(
        &mut self,
        until: impl Fn(&Self) -> bool,
        timeout: Duration,
    ) -> Result<bool, Error> {
        let poll = |publisher: &mut Self, now| Ok(publisher.poll(now));
        let sleep = |publisher: &mut Self, at_most| publisher.shard.sleep(false, at_most);
        drive(self.shard.runtime.clone(), self, poll, sleep, until, timeout).await
    }

    /// Publishes `bytes`, the whole table, as the next version.
    ///
    /// # Errors
    /// [`Error::Length`]: `bytes` is not as long as the table. [`Error::Pinned`]: readers have pinned all other frames
    /// for all of `timeout`. [`Error::OutOfTurn`]: this process was forked from the publisher's.
    /// [`Error::LastVersion`]: there are no more numbers. `GpuError::OnGpu`: the frames are on a GPU. Nothing is
    /// published then.
    pub fn publish(&mut self, bytes: &[u8], timeout: Duration) -> Result<Version, Error> {
        self.publish_tagged(bytes, VersionTag::default(), timeout)
    }

    /// As [`publish`](Self::publish), with a tag that readers get with the version.
    ///
    /// # Errors
    /// The errors of [`publish`](Self::publish).
    pub fn publish_tagged(
        &mut self,
        bytes: &[u8],
        tag: VersionTag,
        timeout: Duration,
    ) -> Result<Version, Error> {
        let expected = self.shard.frames.geometry().payload_bytes as usize;
        if bytes.len() != expected {
            return Err(Error::Length { given: bytes.len(), expected, unit: "bytes" });
        }
        let source = VolatileSlice::from_ref(bytes);
        self.publish_begin(timeout)?.copy_from(source, Streaming::ByLength);
        self.publish_commit_tagged(tag)
    }

    /// Lets `fill` write the next version into the frame itself, and publishes it. The frame holds some old version
    /// when `fill` gets it; every byte that `fill` does not write keeps its old value.
    ///
    /// Waits, up to `timeout`, only if readers pin all other frames.
    #[doc(hidden)]
    pub fn publish_with(
        &mut self,
        timeout: Duration,
        fill: impl FnOnce(VolatileSlice<'_>),
    ) -> Result<Version, Error> {
        fill(self.publish_begin(timeout)?);
        self.publish_commit()
    }

    /// Lends the frame of the next version, to be written in place and published by
    /// [`publish_commit`](Self::publish_commit); meanwhile readers see the version before it, and [`poll`](Self::poll)
    /// may be called. The frame holds some old version. Called again, it lends the same frame, with the bytes that were
    /// written there; any other publishing call overwrites it.
    ///
    /// Waits, up to `timeout`, only if readers pin all other frames.
    ///
    /// # Errors
    /// The frames are on a GPU.
    #[doc(hidden)]
    pub fn publish_begin(&mut self, timeout: Duration) -> Result<VolatileSlice<'_>, Error> {
        complete(self.publish_begin_async(timeout))
    }

    pub(crate) async fn publish_begin_async(
        &mut self,
        timeout: Duration,
    ) -> Result<VolatileSlice<'_>, Error> {
        on_host(self.shard.frames.payload(0), "fill a frame in place")?;
        let runtime = self.shard.runtime.clone();
        let free = wait(&runtime, runtime.now() + timeout, |now| {
            self.poll(now);
            Ok(match self.begin_draft()? {
                Some(frame) => WaitTurn::Done(frame),
                None => WaitTurn::Idle,
            })
        });
        let Some(frame) = free.await? else {
            return Err(Error::Pinned { version: self.shard.next_version()?, waited: timeout });
        };
        let frames = &self.shard.frames;
        let begin = frames.geometry().stride() as usize * usize::from(frame);
        // Asked above.
        let region = frames.memory().host().ok_or(NO_FRAME)?;
        Ok(region.as_volatile().subslice(begin, frames.geometry().payload_bytes as usize))
    }

    /// The frame of the next version, if a frame is free of pins.
    fn begin_draft(&mut self) -> Result<Option<u8>, Error> {
        self.shard.expect_owner("begin a version")?;
        if self.draft.is_none() {
            let version = self.shard.next_version()?;
            let peers = &self.shard.peers;
            let begun = self.shard.frames.begin(version, |frame| Shard::<T>::is_pinned(peers, frame));
            self.draft = match begun {
                Ok(frame) => Some((frame, version)),
                Err(Pinned) => None,
            };
        }
        Ok(self.draft.map(|(frame, _)| frame))
    }

    /// The frames as they lie in memory, for tests that make them say something else.
    #[cfg(test)]
    pub(super) fn frames(&self) -> &crate::param::Frames {
        &self.shard.frames
    }

    /// Says of the version at which it begins that it is this publisher's. If it is no publisher's (0), no reader takes
    /// it, and none may be let in before the first copy is there.
    pub(super) fn begin_as_relay(&mut self, origin: u64) {
        let frames = &mut self.shard.frames;
        frames.set_label(frames.latest().frame, FrameLabel { origin, ..FrameLabel::default() });
        if origin == 0 {
            frames.withhold_initial();
        }
        // Only the publisher knows all relays.
        self.shard.tree = None;
    }

    /// The time that a reader may be silent.
    pub(super) fn lease(&self) -> Duration {
        self.shard.lease()
    }

    /// The number of readers for which there is room.
    pub(super) fn room(&self) -> u16 {
        self.shard.peers.iter().filter(|peer| peer.is_none()).count() as u16
    }

    /// The memory for a version of another publisher's that is about to be copied, if there is a frame that no reader
    /// pins: by its number the next one, until [`relay_landed`](Self::relay_landed) knows better.
    pub(super) fn begin_relayed(&mut self) -> Result<Option<LocalSlice>, Error> {
        let frame = self.begin_draft()?.map(|frame| self.shard.frames.payload(frame));
        frame.map(|payload| on_host(payload, "pass versions on")).transpose()
    }

    /// The version that is served, with its label and its memory.
    pub(crate) fn served(&self) -> Result<(Version, FrameLabel, LocalSlice), Error> {
        let frames = &self.shard.frames;
        let Latest { version, frame } = frames.latest();
        Ok((version, frames.label(frame), on_host(frames.payload(frame), "pass versions on")?))
    }

    /// `chunks` chunks of `version` have landed. If it is another version than so far, or the copy `begins_again`, the
    /// chunks that followers have copied are void.
    pub(super) fn relay_landed(&mut self, version: Version, chunks: usize, begins_again: bool) {
        let Some((frame, before)) = self.draft.filter(|_| !self.shard.is_inherited()) else { return };
        if version != before || (begins_again && !mutant!("relay_void")) {
            self.shard.frames.restart(frame, version);
            self.draft = Some((frame, version));
        }
        let early = usize::from(mutant!("relay_early"));
        self.shard.frames.progress(frame).raise(chunks + early);
    }

    /// Publishes the copy of `version` with its label as it was.
    pub(super) fn commit_relayed(
        &mut self,
        version: Version,
        label: FrameLabel,
        begins_again: bool,
    ) -> Result<(), Error> {
        self.shard.expect_owner("pass a version on")?;
        self.relay_landed(version, 0, begins_again);
        // A relay that begins with the version that a server begins with has nothing to make a difference from.
        if version > self.version() {
            self.write_delta();
        }
        let (frame, version) = self.draft.take().ok_or(NO_FRAME)?;
        self.shard.frames.set_label(frame, label);
        self.shard.frames.commit(frame, version, Clock::new(0));
        self.shard.note_news();
        self.shard.wake_peers();
        Ok(())
    }

    /// Begins the difference of the frame that is being written and that is filled, if differences are kept.
    fn begin_delta(&mut self) -> Option<PendingDelta> {
        let (frame, version) = self.draft.filter(|_| !self.shard.is_inherited())?;
        self.shard.frames.begin_delta(frame, version)
    }

    /// Begins the checksum of the frame that is being written and that is filled, if versions carry one.
    fn begin_checksum(&self) -> Option<PendingChecksum> {
        let (frame, _) = self.draft.filter(|_| !self.shard.is_inherited())?;
        self.shard.frames.begin_checksum(frame)
    }

    /// The checksum of the frame that is committed next.
    fn set_checksum(&mut self, checksum: u64) {
        if let Some((frame, _)) = self.draft {
            self.shard.frames.set_checksum(frame, checksum);
        }
    }

    fn write_delta(&mut self) {
        if let Some(delta) = self.begin_delta() {
            self.set_delta(delta.encode());
        }
    }

    /// The difference of the frame that is committed next.
    fn set_delta(&mut self, delta: WrittenDelta) {
        self.shard.frames.set_delta(delta);
    }

    /// The memory of the frame that is being written.
    fn draft_memory(&self) -> Option<PayloadSlice> {
        self.draft.map(|(frame, _)| self.shard.frames.payload(frame))
    }

    /// Publishes the frame that [`publish_begin`](Self::publish_begin) lent.
    #[doc(hidden)]
    pub fn publish_commit(&mut self) -> Result<Version, Error> {
        self.publish_commit_tagged(VersionTag::default())
    }

    /// As [`publish_commit`](Self::publish_commit), with a tag.
    #[doc(hidden)]
    pub fn publish_commit_tagged(&mut self, tag: VersionTag) -> Result<Version, Error> {
        self.write_delta();
        self.commit_draft(tag).map(|(version, _)| version)
    }

    /// As [`publish_commit_tagged`](Self::publish_commit_tagged), and returns the record of the version.
    #[doc(hidden)]
    pub fn publish_commit_recorded(&mut self, tag: VersionTag) -> Result<Publication, Error> {
        // Once it is published, the frame is another version's before long.
        let memory = self.draft_memory().map(|memory| on_host(memory, "record a version")).transpose()?;
        let digests = memory.map(|memory| digests(self.table().tensors().iter(), memory.as_volatile()));
        self.write_delta();
        self.commit_recorded(tag, digests.unwrap_or_default())
    }

    /// Publishes the frame, whose tensors have these digests.
    fn commit_recorded(
        &mut self,
        tag: VersionTag,
        digests: BTreeMap<String, [u8; 32]>,
    ) -> Result<Publication, Error> {
        let (version, FrameLabel { published_ns, origin, .. }) = self.commit_draft(tag)?;
        // A store may wait in its processor for others to see it, while that processor reads its clock.
        fence(SeqCst);
        let complete_ns = self.shard.runtime.time_of_day();
        Ok(Publication { origin, version, tag, published_ns, complete_ns, digests })
    }

    fn commit_draft(&mut self, tag: VersionTag) -> Result<(Version, FrameLabel), Error> {
        self.shard.expect_owner("publish")?;
        let (frame, version) = self
            .draft
            .take()
            .ok_or(Error::OutOfTurn { operation: "publish", reason: "begin a version first" })?;
        let frames = &mut self.shard.frames;
        let published_ns = self.shard.runtime.time_of_day();
        let label = FrameLabel { tag, published_ns, origin: frames.epoch() };
        frames.set_label(frame, label);
        frames.commit(frame, version, Clock::new(0));
        self.shard.note_news();
        self.shard.wake_peers();
        Ok((version, label))
    }

    /// Gives up the frame that [`publish_begin`](Self::publish_begin) lent: the bytes that were written there are never
    /// published, readers keep the version before, and the next version has the number that this one would have had.
    /// For a trainer whose copy into the frame has failed. Without a lent frame it does nothing.
    #[doc(hidden)]
    pub fn publish_abort(&mut self) {
        // The draft that a forked child inherits is still being written by the owner.
        if let Some((frame, _)) = self.draft.take()
            && !self.shard.is_inherited()
        {
            self.shard.frames.abandon(frame);
        }
    }
}
