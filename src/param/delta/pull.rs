//! Reads differences, one after the other, and proves of each that it is whole.
//!
//! READ the status line and the table of slots, READ the difference, wait, READ both again: the difference is whole if
//! its header and its label are as before. Only then is it applied, to a copy of the version that it was made from, so
//! that this copy is one whole version at every moment.

use smallvec::SmallVec;

use super::{DeltaGeometry, DeltaHeader};
use crate::clock::{Clock, Version};
use crate::kernel::apply_delta;
use crate::mem::{LocalSlice, MemoryRegion, OutOfBounds, RemoteSlice, Streaming, VolatileSlice};
use crate::param::frames::frame_checksum;
use crate::param::layout::{ControlLayout, FrameHeader, FrameLabel, LINE, Latest};
use crate::param::pull::MAX_READ_BYTES;
use crate::param::{FrameSource, PullError, Pulled, Welcome};
use crate::transport::{CompletionError, Endpoint, Operation, PostError, WorkCompletion, WorkRequest};

/// Bytes that are read at once where words are used one by one: over any transport no word tears in such a request.
const MAX_WORDS_BYTES: usize = 4096;

/// The memory in which a reader finds differences.
#[derive(Clone, Copy, Debug)]
pub struct DeltaSource {
    deltas: RemoteSlice,
    geometry: DeltaGeometry,
    status: RemoteSlice,
    epoch: u64,
    payload_bytes: u64,
}

impl DeltaSource {
    /// Makes a source from an owner's answer to a reader and the grants that came with it; `None` if the owner keeps no
    /// differences.
    pub fn new(welcome: &Welcome, grants: &[RemoteSlice]) -> Result<Option<DeltaSource>, OutOfBounds> {
        let (Some(geometry), [.., deltas]) = (welcome.deltas, grants) else { return Ok(None) };
        let Some(FrameSource { control, epoch, geometry: frames, .. }) = FrameSource::new(welcome, grants)
        else {
            return Ok(None);
        };
        let status = control.slice(ControlLayout::STATUS as u64, LINE as u64)?;
        let payload_bytes = frames.payload_bytes;
        Ok(Some(DeltaSource { deltas: *deltas, geometry, status, epoch, payload_bytes }))
    }

    /// Bytes of local memory that a [`DeltaPull`] needs for itself: one difference, and the headers of all.
    pub fn memory_bytes(&self) -> usize {
        LINE + self.geometry.table_bytes() + self.geometry.slot_bytes as usize
    }
}

/// The identity of a reader's version: the publisher that made it, and its number. No publisher makes a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldVersion {
    /// The incarnation of the publisher.
    origin: u64,
    /// The number.
    version: Version,
}

/// The next thing to do for a reader.
#[derive(Clone, Copy, Debug)]
pub enum DeltaTurn {
    /// Wait: for a request, or for a version that satisfies the bound.
    Pending,
    /// A difference of the copy is there, and whole: [`apply`](DeltaPull::apply) it.
    Apply,
    /// The copy is this version.
    Reached(Pulled, FrameLabel),
    /// The version has to be read whole: differences from the copy are not there (any more), or are no shorter.
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeltaStep {
    Idle,
    Look,
    Looked,
    /// Ask for the status line alone, for as long as there is no version that satisfies the bound.
    Poll,
    Polled,
    Read,
    Verify,
    Verified,
    Fetched,
    Reached,
    Whole,
}

/// Brings a copy from one version to a newer one by differences. A state machine: [`start`](Self::start), then
/// [`advance`](Self::advance) and [`complete`](Self::complete), and after each look at [`turn`](Self::turn).
#[derive(Debug)]
pub struct DeltaPull {
    source: DeltaSource,
    /// The status line, then the table of slots.
    looked: LocalSlice,
    body: LocalSlice,
    step: DeltaStep,
    held: HeldVersion,
    label: FrameLabel,
    least: Version,
    exactly: Option<Version>,
    /// The target version: the latest one when a look first found a version that satisfies the bound.
    target: Option<Version>,
    /// The difference at hand.
    chosen: (u8, DeltaHeader, FrameLabel),
    /// Bytes of it that are read.
    fetched: u64,
    /// The checksum of the version that the copy holds, where its publisher told one.
    checksum: Option<u64>,
    latest: Version,
    smallest_clock: Clock,
    outstanding: u32,
    failed: Option<CompletionError>,
    gains: u64,
}

/// Ids of its requests have this bit.
pub(crate) const DELTA_TAG: u64 = 1 << 57;

impl DeltaPull {
    /// With [`DeltaSource::memory_bytes`] of registered memory of its own.
    pub fn new(source: DeltaSource, memory: &MemoryRegion) -> Result<DeltaPull, OutOfBounds> {
        let looks = LINE + source.geometry.table_bytes();
        Ok(DeltaPull {
            source,
            looked: memory.slice(0, looks)?,
            body: memory.slice(looks, source.geometry.slot_bytes as usize)?,
            step: DeltaStep::Idle,
            held: HeldVersion { origin: 0, version: Version::new(0) },
            label: FrameLabel::default(),
            least: Version::new(0),
            exactly: None,
            target: None,
            chosen: (0, DeltaHeader::default(), FrameLabel::default()),
            fetched: 0,
            checksum: None,
            latest: Version::new(0),
            smallest_clock: Clock::new(0),
            outstanding: 0,
            failed: None,
            gains: 0,
        })
    }

    /// Begins to bring a copy from the version that it holds, which has this label, to the newest that is at least
    /// `least`, or to `exactly` this one.
    pub fn start(&mut self, held: Version, label: FrameLabel, least: Version, exactly: Option<Version>) {
        self.held = HeldVersion { origin: label.origin, version: held };
        (self.label, self.least, self.exactly) = (label, least, exactly);
        (self.target, self.checksum, self.step) = (None, None, DeltaStep::Look);
    }

    /// Gives up. Requests in flight reach nothing but their own memory.
    pub fn cancel(&mut self) {
        self.step = DeltaStep::Idle;
    }

    /// Grows whenever it gets nearer to its end, as [`Pull::gains`](crate::param::Pull::gains).
    pub fn gains(&self) -> u64 {
        self.gains
    }

    /// Returns the next step of the caller.
    pub fn turn(&self) -> DeltaTurn {
        match self.step {
            DeltaStep::Fetched => DeltaTurn::Apply,
            DeltaStep::Whole => DeltaTurn::Whole,
            DeltaStep::Reached => {
                let pulled = Pulled {
                    version: self.held.version,
                    epoch: self.source.epoch,
                    smallest_clock: self.smallest_clock,
                    behind: self.held.version.behind(self.latest),
                    ..Pulled::default()
                };
                DeltaTurn::Reached(pulled, self.label)
            }
            _ => DeltaTurn::Pending,
        }
    }

    /// Returns whether the copy has the checksum of the version that was reached, where its publisher told one.
    pub fn matches(&self, copy: &LocalSlice) -> bool {
        let (version, epoch, bytes) = (self.held.version, self.source.epoch, self.source.payload_bytes);
        let header = FrameHeader { version, epoch, bytes, ..FrameHeader::default() };
        self.checksum.is_none_or(|checksum| frame_checksum(&header, copy) == checksum)
    }

    /// The newest version seen so far, whether it satisfied the bound or not.
    pub fn seen(&self) -> Version {
        self.latest
    }

    /// Applies the difference that is there to the copy. False if it is damaged: the copy is no version any more then.
    pub fn apply(&mut self, copy: VolatileSlice<'_>) -> bool {
        let (_, header, label) = self.chosen;
        let delta = self.body.as_volatile().subslice(0, header.bytes as usize);
        if apply_delta(delta, copy, self.source.geometry.unit.into()).is_err() {
            self.step = DeltaStep::Whole;
            return false;
        }
        self.held = HeldVersion { origin: label.origin, version: header.version };
        (self.label, self.checksum) = (label, header.whole_checksum());
        // The look that proved this difference is the first look at the next.
        self.choose();
        true
    }

    /// The version that the copy holds, with its label.
    pub fn held(&self) -> (Version, FrameLabel) {
        (self.held.version, self.label)
    }

    /// True while requests of its own are in flight.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.outstanding > 0
    }

    /// Takes a completion of one of its own requests.
    pub fn complete(&mut self, completion: WorkCompletion) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if let Err(error) = completion.result {
            self.failed = Some(error);
        }
    }

    /// Goes as far as it can without waiting. True if it got anywhere.
    pub fn advance(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        if self.outstanding > 0 {
            return Ok(false);
        }
        if let Some(error) = self.failed.take() {
            self.cancel();
            return Err(error.into());
        }
        match self.step {
            DeltaStep::Idle | DeltaStep::Fetched | DeltaStep::Reached | DeltaStep::Whole => Ok(false),
            DeltaStep::Look => self.look(endpoint, DeltaStep::Looked),
            DeltaStep::Poll => self.poll(endpoint),
            DeltaStep::Verify => self.look(endpoint, DeltaStep::Verified),
            DeltaStep::Looked => Ok(self.on_look()),
            DeltaStep::Polled => {
                self.learn();
                let is_there = self.latest >= self.least.max(self.exactly.unwrap_or(self.latest));
                self.step = if is_there { DeltaStep::Look } else { DeltaStep::Poll };
                Ok(is_there)
            }
            DeltaStep::Read => self.read(endpoint),
            DeltaStep::Verified => {
                self.learn();
                let (slot, header, label) = self.chosen;
                // Words of the first look may be older than its sequence, words of this look may be newer: words that
                // are the same in both belong to this difference, since the version in a slot only grows.
                let is_same = self.slot(slot) == (header, label) || mutant!("delta_verify");
                self.step = match is_same {
                    true if self.target == Some(self.held.version) => DeltaStep::Reached,
                    true => DeltaStep::Fetched,
                    false => DeltaStep::Whole,
                };
                self.gains += 1;
                Ok(true)
            }
        }
    }

    fn on_look(&mut self) -> bool {
        self.learn();
        // Asking again for a version that is waited for is no progress.
        let wanted = self.exactly.unwrap_or(self.latest);
        if self.latest < self.least.max(wanted) {
            self.step = DeltaStep::Poll;
            return false;
        }
        self.target = Some(wanted);
        self.gains += 1;
        // That the number at hand is the latest says nothing before it is known whose versions these are.
        let of_held = self.slots().find(|(_, (header, label))| {
            header.version == self.held.version && self.is_usable(header, label)
        });
        let is_known = wanted != self.held.version || of_held.is_some();
        self.checksum = of_held.and_then(|(_, (header, _))| header.whole_checksum());
        let bytes = self.bytes_to(wanted).filter(|_| is_known);
        if bytes.is_some_and(|bytes| bytes < self.source.payload_bytes) {
            self.choose();
        } else {
            self.step = DeltaStep::Whole;
        }
        // No difference is read, after which a second look would show whether the checksum is that version's.
        if let (DeltaStep::Reached, Some(_), Some((slot, (header, label)))) =
            (self.step, self.checksum, of_held)
        {
            (self.chosen, self.step) = ((slot, header, label), DeltaStep::Verify);
        }
        true
    }

    /// Goes on to the difference of the version that the copy holds, or to the end.
    fn choose(&mut self) {
        if self.target == Some(self.held.version) {
            self.step = DeltaStep::Reached;
            return;
        }
        let found = self
            .slots()
            .find(|(_, (header, label))| header.base == self.held.version && self.is_usable(header, label));
        match found {
            Some((slot, (header, label))) => {
                (self.chosen, self.fetched, self.step) = ((slot, header, label), 0, DeltaStep::Read);
            }
            None => self.step = DeltaStep::Whole,
        }
    }

    /// Bytes of all differences from the version that the copy holds to another one; `None` if they are not there.
    fn bytes_to(&self, target: Version) -> Option<u64> {
        let (mut version, mut bytes) = (target, 0u64);
        while version > self.held.version {
            let is_next = |(_, (header, label)): &(u8, (DeltaHeader, FrameLabel))| {
                header.version == version && self.is_usable(header, label)
            };
            let (_, (header, _)) = self.slots().find(is_next)?;
            bytes = bytes.checked_add(header.bytes)?;
            version = header.base;
        }
        (version == self.held.version).then_some(bytes)
    }

    fn is_usable(&self, header: &DeltaHeader, label: &FrameLabel) -> bool {
        header.sequence.is_multiple_of(2)
            && header.epoch == self.source.epoch
            && header.base < header.version
            && header.bytes <= self.source.geometry.slot_bytes
            && label.origin == self.held.origin
    }

    fn slots(&self) -> impl Iterator<Item = (u8, (DeltaHeader, FrameLabel))> + '_ {
        (0..self.source.geometry.slots).map(|slot| (slot, self.slot(slot)))
    }

    fn slot(&self, slot: u8) -> (DeltaHeader, FrameLabel) {
        let at = LINE + usize::from(slot) * 2 * LINE;
        let memory = self.looked.as_volatile();
        let words = |at: usize| std::array::from_fn(|index| memory.load_u64(at + index * 8));
        (DeltaHeader::from_words(words(at)), FrameLabel::from_words(words(at + LINE)))
    }

    fn learn(&mut self) {
        let status = self.looked.as_volatile();
        let word = |offset: usize| status.load_u64(offset - ControlLayout::STATUS);
        self.latest = Latest::from_word(word(ControlLayout::LATEST)).version;
        self.smallest_clock = Clock::new(word(ControlLayout::SMALLEST_CLOCK));
    }

    fn look(&mut self, endpoint: &mut impl Endpoint, next: DeltaStep) -> Result<bool, PullError> {
        let table_bytes = self.source.geometry.table_bytes();
        let mut requests = SmallVec::<[WorkRequest; 4]>::new();
        requests.push(WorkRequest::unsignalled(DELTA_TAG, self.status()?));
        for begin in (0..table_bytes).step_by(MAX_WORDS_BYTES) {
            let bytes = MAX_WORDS_BYTES.min(table_bytes - begin);
            let local = self.looked.slice(LINE + begin, bytes)?;
            let remote = self.source.deltas.slice(begin as u64, bytes as u64)?;
            let operation = Operation::Read { local, remote, streaming: Streaming::Never };
            // Requests complete in order: the last of them speaks for all.
            let request = match begin + bytes == table_bytes {
                true => WorkRequest::signalled(DELTA_TAG, operation),
                false => WorkRequest::unsignalled(DELTA_TAG, operation),
            };
            requests.push(request);
        }
        self.post(endpoint, &requests, next)
    }

    fn poll(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let status = WorkRequest::signalled(DELTA_TAG, self.status()?);
        self.post(endpoint, &[status], DeltaStep::Polled)
    }

    fn status(&self) -> Result<Operation, OutOfBounds> {
        let local = self.looked.slice(0, LINE)?;
        Ok(Operation::Read { local, remote: self.source.status, streaming: Streaming::Never })
    }

    fn read(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let (slot, DeltaHeader { bytes, .. }, _) = self.chosen;
        let len = (bytes - self.fetched).min(MAX_READ_BYTES);
        if len == 0 {
            self.step = DeltaStep::Verify;
            return Ok(true);
        }
        let remote = self.source.deltas.slice(self.source.geometry.begin(slot) + self.fetched, len)?;
        let local = self.body.slice(self.fetched as usize, len as usize)?;
        let operation = Operation::Read { local, remote, streaming: Streaming::ByLength };
        let posted = self.post(endpoint, &[WorkRequest::signalled(DELTA_TAG, operation)], DeltaStep::Read)?;
        if posted {
            self.fetched += len;
            self.gains += 1;
        }
        Ok(posted)
    }

    fn post(
        &mut self,
        endpoint: &mut impl Endpoint,
        batch: &[WorkRequest],
        next: DeltaStep,
    ) -> Result<bool, PullError> {
        match endpoint.post(batch) {
            Ok(()) => {
                (self.outstanding, self.step) = (self.outstanding + 1, next);
                Ok(true)
            }
            Err(PostError::QueueFull { .. }) => Ok(false),
            Err(PostError::Disconnected(gone)) => Err(gone.into()),
            Err(error) => Err(PullError::Post(error)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mem::{Access, DeviceKeys, HostMemory, RemoteKey};
    use crate::transport::{Disconnected, HeartbeatWord};

    /// Takes all requests, and carries out none.
    #[derive(Default)]
    struct Noted(Vec<WorkRequest>);

    impl Endpoint for Noted {
        fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
            self.0.extend_from_slice(batch);
            Ok(())
        }

        fn poll(&mut self) -> Option<WorkCompletion> {
            None
        }

        fn check(&mut self) -> Result<(), Disconnected> {
            Ok(())
        }

        fn map(&self, _remote: &RemoteSlice) -> Option<LocalSlice> {
            None
        }

        fn transport(&self) -> &'static str {
            "none"
        }

        fn heartbeat_word(&self, _word: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError> {
            Err(Disconnected { reason: "it is none" }.into())
        }
    }

    #[test]
    fn the_table_of_slots_is_read_in_requests_in_which_no_word_tears() {
        let geometry = DeltaGeometry { slots: 65, slot_bytes: 64, unit: 1 };
        let whole = |key, len| RemoteSlice { key: RemoteKey(key), offset: 0, len };
        let (deltas, status) = (whole(1, geometry.bytes()), whole(2, LINE as u64));
        let source = DeltaSource { deltas, geometry, status, epoch: 7, payload_bytes: 64 };
        let memory = HostMemory::anonymous(source.memory_bytes()).unwrap();
        let memory = MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ());
        let (mut pull, mut endpoint) = (DeltaPull::new(source, &memory).unwrap(), Noted::default());
        pull.start(Version::new(1), FrameLabel::default(), Version::new(2), None);
        assert!(pull.advance(&mut endpoint).unwrap() && pull.is_in_flight());
        let read = |request: &WorkRequest| match &request.operation {
            Operation::Read { remote, .. } => (remote.key, remote.offset, remote.len),
            other => panic!("{other:?}"),
        };
        let reads: Vec<_> = endpoint.0.iter().map(read).collect();
        let parts = [(0, 4096), (4096, 4096), (8192, 128)].map(|(at, bytes)| (deltas.key, at, bytes));
        assert_eq!((reads[0], &reads[1..]), ((status.key, 0, 64), &parts[..]));
    }
}
