//! Publish: write a gradient into a free slot, then announce it.
//!
//! On one endpoint, in order: the payload (chunk by chunk, each followed by the count of chunks that have landed, so
//! that the server can begin before the last byte), the slot's header, the published clock. The server trusts nothing
//! before the clock has moved. Where another server decides for this one, the published clock is read back.

use std::borrow::Cow;

use super::layout::{LINE, SlotGeometry, SlotHeader, encoding_word, inbox, landed_word, peer_line};
use super::own_page::{Eviction, read_line};
use super::{Welcome, WorkerProgress, inbox as inbox_of_owner};
use crate::clock::{Clock, Version};
use crate::cuda::GpuSlice;
use crate::diagnostic::{Diagnostic, remedy_of};
use crate::mem::{LocalSlice, OutOfBounds, RemoteSlice, Streaming};
use crate::transport::{
    CompletionError, Disconnected, Endpoint, Flags, GpuPath, Inline, Operation, PayloadSlice, PostError,
    WorkCompletion, WorkRequest,
};

/// The memory that a gradient comes from.
#[derive(Clone, Debug)]
pub enum GradientSource {
    /// Registered memory of this process, in the slots' encoding.
    Memory(LocalSlice),
    /// Memory of a GPU of this process, in the slots' encoding. There is no checksum.
    Gpu(GpuSlice),
    /// The slot itself: the worker computed straight into it.
    Slot,
}

/// The metadata that a worker publishes with its gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GradientMetadata {
    /// Its loss on the batch.
    pub loss: Option<f32>,
    /// The largest magnitude of the elements.
    pub magnitude: Option<f32>,
    /// Workers beside this one whose gradients are in the sum that it publishes.
    pub others: u32,
}

/// A publish failed for good.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The gradient has another length than the shard.
    #[error("cannot publish {bytes} bytes as a gradient of {slot_bytes}: {}", remedy_of(self))]
    Length {
        /// Bytes of the gradient.
        bytes: usize,
        /// Bytes of a slot's payload.
        slot_bytes: u64,
    },
    /// No slot was reserved.
    #[error("no slot is borrowed: {}", remedy_of(self))]
    NoSlot,
    /// The worker has come to the last clock.
    #[error("clock {} is the last that fits the protocol's words: {}", .clock.get(), remedy_of(self))]
    LastClock {
        /// The clock.
        clock: Clock,
    },
    /// The server has let this worker go.
    #[error("the server has evicted this worker: {why}; {}", remedy_of(self))]
    Evicted {
        /// The reason that the server gives.
        why: Eviction,
    },
    /// A publish is under way already.
    #[error("a publish is under way already: {}", remedy_of(self))]
    Busy,
    /// The server is gone. Whether it took the gradient is not known, unless it was announced.
    #[error(transparent)]
    Disconnected(#[from] Disconnected),
    /// A request failed.
    #[error("a write to the server's memory failed, the gradient may be lost: {0}")]
    Completion(#[from] CompletionError),
    /// A request could not be posted.
    #[error("a write to the server's memory could not be posted: {0}")]
    Post(PostError),
    /// The grants do not cover the layout.
    #[error("the server's grants do not cover its layout: {0}")]
    Grants(#[from] OutOfBounds),
}

impl Diagnostic for PublishError {
    fn operation(&self) -> &'static str {
        "publishing a gradient"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            PublishError::Length { .. } => "give one of the shard's length and encoding".into(),
            PublishError::NoSlot => "borrow one and compute into it first".into(),
            PublishError::LastClock { .. } => "begin a new job with these parameters".into(),
            PublishError::Evicted { why } => why.remedy().into(),
            PublishError::Busy => "finish it first".into(),
            PublishError::Disconnected(error) => return error.remedy(),
            PublishError::Completion(error) => return error.remedy(),
            PublishError::Post(error) => return error.remedy(),
            PublishError::Grants(error) => return error.remedy(),
        })
    }
}

#[derive(Clone, Debug)]
enum PublishStep {
    Idle,
    /// Read the consumed word next.
    NeedCredit,
    Credit,
    /// As `Credit`, with nothing to publish.
    Watch,
    /// A slot is free.
    Reserved,
    Writing {
        header: SlotHeader,
        chunk: usize,
    },
    /// The announcement is posted.
    Flushing,
    Done,
}

/// Chunks in one batch: long enough to keep a queue busy, short enough not to fill it.
const CHUNKS_PER_BATCH: usize = 8;

/// Longest single copy between memory of GPUs.
const MAX_COPY_BYTES: u64 = 1 << 30;

/// Offset in the scratch memory of the published clock that was read back, behind the consumed clock.
const ANNOUNCEMENT_AT: usize = 8;

/// Ids of a publish's requests have this bit.
pub(crate) const PUBLISH_TAG: u64 = 1 << 62;

/// Writes one worker's gradients into its slots at one server. A state machine, driven as [`Pull`](super::Pull) is.
#[derive(Debug)]
pub struct Publish {
    page: RemoteSlice,
    slots: RemoteSlice,
    /// The worker's line of the control page. It speaks to this worker while the line has the generation below.
    line: RemoteSlice,
    generation: u64,
    geometry: SlotGeometry,
    epoch: u64,
    scratch: LocalSlice,
    checksums: bool,
    /// A slot is wanted once the look that is under way has ended.
    reserving: bool,
    /// Look at the consumed clock again and again while nothing is being published.
    watching: bool,
    /// True while announcements are held back: the payload may be written, and nothing be announced.
    is_held: bool,
    /// Whether a gradient is published only once a READ has seen its announcement.
    is_proved: bool,
    clock: Clock,
    consumed: Clock,
    /// The gradient to be written once a slot is free.
    pending: Option<(GradientSource, SlotHeader)>,
    state: PublishStep,
    gains: u64,
    outstanding: u32,
    failed: Option<CompletionError>,
    batch: Vec<WorkRequest>,
}

impl GradientSource {
    /// The memory that is written into the slot.
    fn payload(&self) -> Option<PayloadSlice> {
        match self {
            GradientSource::Memory(slice) => Some(PayloadSlice::Host(slice.clone())),
            GradientSource::Gpu(slice) => Some(slice).cloned().map(PayloadSlice::Gpu),
            GradientSource::Slot => None,
        }
    }
}

impl Publish {
    /// Bytes of local memory that a publish needs for itself.
    pub const SCRATCH_BYTES: usize = 2 * LINE;

    /// Makes a publish from an owner's answer to a worker and the grants that came with it, with
    /// [`SCRATCH_BYTES`](Self::SCRATCH_BYTES) of registered memory of its own. `None` if the answer was not to a
    /// worker.
    pub fn new(
        welcome: &Welcome,
        grants: &[RemoteSlice],
        scratch: LocalSlice,
    ) -> Result<Option<Publish>, OutOfBounds> {
        let ([control, _, page, slots], Some(geometry)) = (grants, welcome.slots) else { return Ok(None) };
        Ok(Some(Publish {
            page: *page,
            slots: *slots,
            line: control.slice(welcome.layout.peer_line(welcome.peer) as u64, LINE as u64)?,
            generation: welcome.generation,
            geometry,
            epoch: welcome.epoch,
            scratch,
            checksums: false,
            reserving: false,
            watching: false,
            is_held: false,
            is_proved: false,
            clock: welcome.clock,
            consumed: welcome.clock,
            pending: None,
            state: PublishStep::Idle,
            gains: 0,
            outstanding: 0,
            failed: None,
            batch: Vec::with_capacity(2 * CHUNKS_PER_BATCH + 3),
        }))
    }

    /// Whether each gradient carries a checksum: one more pass over it.
    pub fn set_checksums(&mut self, on: bool) {
        self.checksums = on;
    }

    /// The clock of the gradient that is published next.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the layout of the slots.
    pub fn geometry(&self) -> &SlotGeometry {
        &self.geometry
    }

    /// Begins to wait for a free slot, for a worker that wants to compute straight into it. Then
    /// [`reserved`](Self::reserved) says where it is, and a publish of [`GradientSource::Slot`] announces it.
    pub fn reserve(&mut self) -> Result<(), PublishError> {
        match self.state {
            PublishStep::Idle => self.state = PublishStep::NeedCredit,
            PublishStep::Watch => self.reserving = true,
            PublishStep::NeedCredit | PublishStep::Credit | PublishStep::Reserved => {}
            _ => return Err(PublishError::Busy),
        }
        Ok(())
    }

    /// The slot that was reserved.
    pub fn reserved(&self) -> Option<RemoteSlice> {
        matches!(self.state, PublishStep::Reserved).then(|| self.slot()).and_then(Result::ok)
    }

    /// Begins to publish the gradient of this worker's clock, computed from version `base`.
    pub fn start(
        &mut self,
        source: GradientSource,
        base: Version,
        metadata: GradientMetadata,
    ) -> Result<(), PublishError> {
        if self.pending.is_some()
            || !matches!(
                self.state,
                PublishStep::Idle
                    | PublishStep::Watch
                    | PublishStep::NeedCredit
                    | PublishStep::Credit
                    | PublishStep::Reserved
            )
        {
            return Err(PublishError::Busy);
        }
        if self.clock >= WorkerProgress::CLOCK_MAX {
            return Err(PublishError::LastClock { clock: self.clock });
        }
        if matches!(source, GradientSource::Slot) && !matches!(self.state, PublishStep::Reserved) {
            return Err(PublishError::NoSlot);
        }
        if let Some(memory) = source.payload()
            && memory.len() as u64 != self.geometry.payload_bytes()
        {
            return Err(PublishError::Length {
                bytes: memory.len(),
                slot_bytes: self.geometry.payload_bytes(),
            });
        }
        let mut header = SlotHeader {
            clock: self.clock,
            base,
            epoch: self.epoch,
            bytes: self.geometry.payload_bytes(),
            encoding: encoding_word(self.geometry.encoding),
            others: metadata.others,
            checksum: 0,
            loss: metadata.loss,
            magnitude: metadata.magnitude,
        };
        if self.checksums
            && let GradientSource::Memory(memory) = &source
        {
            header.checksum = inbox_of_owner::slot_checksum(&header, memory.as_volatile());
        }
        self.pending = Some((source, header));
        if matches!(self.state, PublishStep::Idle) {
            self.state = PublishStep::NeedCredit;
        }
        Ok(())
    }

    /// Gradients of clocks before this one are known to be consumed.
    pub fn consumed(&self) -> Clock {
        self.consumed
    }

    /// Takes note of a consumed clock that was read elsewhere.
    pub(crate) fn learn_consumed(&mut self, consumed: Clock) {
        if consumed > self.consumed {
            self.consumed = consumed;
            self.gains += 1;
        }
    }

    /// Looks at the consumed clock again and again while idle, for [`consumed`](Self::consumed) to follow.
    pub fn watch_consumed(&mut self, on: bool) {
        self.watching = on;
    }

    /// Holds announcements back: the payload is written, its header and its clock are not before this is switched off.
    pub(crate) fn hold(&mut self, on: bool) {
        self.is_held = on;
    }

    /// Has a publish end only once the announcement is in the server's memory. That a WRITE is complete does not say
    /// so, and another server must not be told before.
    pub(crate) fn prove(&mut self, on: bool) {
        self.is_proved = on && !mutant!("announced_unseen");
    }

    /// Grows whenever a publish gets nearer to its end, as [`Pull::gains`](super::Pull::gains).
    pub fn gains(&self) -> u64 {
        self.gains
    }

    /// True while a gradient is being published.
    pub fn is_active(&self) -> bool {
        self.pending.is_some() || self.outstanding > 0
    }

    /// True while it gets on by itself: while requests of its own are in flight, or a gradient is being written.
    pub(crate) fn is_at_work(&self) -> bool {
        let is_writing =
            matches!(self.state, PublishStep::Writing { .. } | PublishStep::Flushing) && !self.is_held;
        self.outstanding > 0 || is_writing
    }

    /// True once, when the gradient is announced and its memory is free again. The clock has moved on.
    pub fn take(&mut self) -> bool {
        if !matches!(self.state, PublishStep::Done) {
            return false;
        }
        self.state = PublishStep::Idle;
        true
    }

    /// Takes a completion of one of its own requests.
    pub fn complete(&mut self, completion: WorkCompletion) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if let Err(error) = completion.result {
            self.failed = Some(error.after(self.failed));
        }
    }

    /// Goes as far as it can without waiting. True if it got anywhere.
    pub fn advance(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PublishError> {
        if let Some(error) = self.failed.take() {
            (self.state, self.pending) = (PublishStep::Idle, None);
            return Err(error.into());
        }
        match self.state.clone() {
            PublishStep::Idle if self.watching && self.consumed < self.clock => {
                self.look_at_consumed(endpoint)
            }
            PublishStep::Idle | PublishStep::Done => Ok(false),
            PublishStep::Watch if self.outstanding > 0 => Ok(false),
            PublishStep::Watch => {
                // A publish may have been started while the look was under way.
                let wanted = std::mem::take(&mut self.reserving) || self.pending.is_some();
                self.state = if wanted { PublishStep::NeedCredit } else { PublishStep::Idle };
                let before = self.consumed;
                self.learn_credit()?;
                Ok(before != self.consumed || wanted)
            }
            PublishStep::NeedCredit => self.ask_for_credit(endpoint),
            PublishStep::Credit if self.outstanding > 0 => Ok(false),
            PublishStep::Credit => {
                self.learn_credit()?;
                self.state = PublishStep::NeedCredit;
                Ok(self.has_credit())
            }
            PublishStep::Reserved => match &self.pending {
                None => Ok(false),
                Some((source, header)) => {
                    let chunk =
                        if matches!(source, GradientSource::Slot) { self.geometry.chunks() } else { 0 };
                    self.state = PublishStep::Writing { header: *header, chunk };
                    Ok(true)
                }
            },
            PublishStep::Writing { header, chunk } => self.write(endpoint, header, chunk),
            PublishStep::Flushing if self.outstanding > 0 => Ok(false),
            PublishStep::Flushing if !self.is_seen() => {
                // The first look shows it on every transport that keeps its duties. On another one this worker waits,
                // up to its deadline, instead of having a gradient decided on that is not there.
                let look = self.look_at_announcement()?;
                self.post(endpoint, &[look])
            }
            PublishStep::Flushing => {
                self.clock = self.clock.next();
                self.gains += 1;
                self.pending = None;
                self.state = PublishStep::Done;
                Ok(true)
            }
        }
    }

    fn has_credit(&self) -> bool {
        let in_use = self.clock.get().saturating_sub(self.consumed.get());
        in_use < u64::from(self.geometry.slots) || mutant!("credit")
    }

    fn ask_for_credit(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PublishError> {
        if self.has_credit() {
            self.state = PublishStep::Reserved;
            return Ok(true);
        }
        let posted = self.read_consumed(endpoint)?;
        if posted {
            self.state = PublishStep::Credit;
        }
        Ok(posted)
    }

    fn look_at_consumed(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PublishError> {
        if self.read_consumed(endpoint)? {
            self.state = PublishStep::Watch;
        }
        // Looking is no progress; a change is.
        Ok(false)
    }

    /// Reads the consumed word, and after it the whole line. A worker that was evicted may find the clock of the
    /// next peer at its index in that word. The owner stores a new generation before a new clock, so that the
    /// later look tells to which worker the clock belonged.
    fn read_consumed(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PublishError> {
        let read = |at: usize, remote: RemoteSlice| -> Result<Operation, OutOfBounds> {
            let local = self.scratch.slice(at, remote.len as usize)?;
            Ok(Operation::Read { local, remote, streaming: Streaming::Never })
        };
        let word = read(0, self.line.slice(peer_line::CONSUMED as u64, 8)?)?;
        let mut line = WorkRequest::signalled(PUBLISH_TAG, read(LINE, self.line)?);
        line.flags |= Flags::FENCE;
        self.post(endpoint, &[WorkRequest::unsignalled(PUBLISH_TAG, word), line])
    }

    /// Takes note of the consumed clock that was read, if it was said to this worker.
    fn learn_credit(&mut self) -> Result<(), PublishError> {
        let consumed = self.scratch.as_volatile().load_u64(0);
        let line = read_line(&self.scratch.as_volatile().subslice(LINE, LINE), self.generation);
        if let Some(why) = line.evicted.filter(|_| !mutant!("withheld")) {
            (self.state, self.pending) = (PublishStep::Idle, None);
            return Err(PublishError::Evicted { why });
        }
        self.learn_consumed(Clock::new(consumed));
        Ok(())
    }

    /// Posts the next batch: chunks, and after the last of them, unless it is held back, the header and the
    /// announcement.
    fn write(
        &mut self,
        endpoint: &mut impl Endpoint,
        header: SlotHeader,
        first: usize,
    ) -> Result<bool, PublishError> {
        let chunks = self.geometry.chunks();
        if self.is_held && first == chunks {
            return Ok(false);
        }
        let end = chunks.min(first + self.chunks_of_batch(endpoint));
        let is_last = end == chunks && !self.is_held;
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let built = self.build(&mut batch, header, first..end, is_last);
        let posted = built.and_then(|()| self.post(endpoint, &batch));
        batch.clear();
        self.batch = batch;
        if posted? {
            self.gains += 1;
            self.state =
                if is_last { PublishStep::Flushing } else { PublishStep::Writing { header, chunk: end } };
            return Ok(true);
        }
        Ok(false)
    }

    /// Chunks of the next batch. Between memory of GPUs a copy is so fast that to fold along with it gains nothing, and
    /// a GPU takes more than a tenth of a millisecond to change between two processes.
    fn chunks_of_batch(&self, endpoint: &impl Endpoint) -> usize {
        let is_on_gpu = matches!(self.pending, Some((GradientSource::Gpu(_), _)));
        match is_on_gpu && endpoint.gpu_path() == Some(GpuPath::CopyEngines) {
            true => (MAX_COPY_BYTES / self.geometry.chunk_bytes()).max(1) as usize,
            false => CHUNKS_PER_BATCH,
        }
    }

    fn build(
        &self,
        batch: &mut Vec<WorkRequest>,
        header: SlotHeader,
        range: std::ops::Range<usize>,
        is_last: bool,
    ) -> Result<(), PublishError> {
        let geometry = &self.geometry;
        let chunks = geometry.chunks();
        let (slot, total_bytes) = (self.slot()?, geometry.payload_bytes() as usize);
        if let Some(memory) = self.pending.as_ref().and_then(|(source, _)| source.payload()) {
            // Each word waits for the copy before it, so a copy of a GPU has all chunks of the batch.
            let run = if matches!(memory, PayloadSlice::Gpu(_)) { range.len().max(1) } else { 1 };
            for chunk in range.clone().step_by(run) {
                let end = range.end.min(chunk + run);
                let begin = chunk as u64 * geometry.chunk_bytes();
                let len = geometry.payload_bytes().min(end as u64 * geometry.chunk_bytes()) - begin;
                batch.push(WorkRequest::unsignalled(
                    PUBLISH_TAG,
                    memory
                        .slice(begin as usize, len as usize)?
                        .write(slot.slice(begin, len)?, Streaming::PieceOf { total_bytes }),
                ));
                if chunks > 1 {
                    let landed = landed_word(header.clock.get(), end);
                    let mut request =
                        self.inline(self.page.slice(inbox::LANDED as u64, 8)?, Inline::word(landed));
                    if chunk == 0 {
                        // From here on the server can fold along.
                        request.flags |= Flags::NOTIFY;
                    }
                    batch.push(request);
                    if mutant!("landed_early") {
                        batch[..].rotate_right(1);
                    }
                }
            }
        }
        if is_last {
            let header_at = inbox::slot_header(geometry.slot_of(header.clock)) as u64;
            batch.push(self.inline(self.page.slice(header_at, 64)?, Inline::line(header.to_words())));
            let announced = Inline::word(header.clock.next().get());
            let mut announcement = self.inline(self.page.slice(inbox::PUBLISHED as u64, 8)?, announced);
            announcement.flags |= Flags::NOTIFY;
            batch.push(announcement);
            if mutant!("announce") {
                batch[..].rotate_right(1);
            }
            if self.is_proved {
                batch.push(self.look_at_announcement()?);
            }
        }
        // One completion a batch: it frees the queue, and the last one says that all is done.
        if let Some(request) = batch.last_mut() {
            request.flags |= Flags::SIGNALLED;
        }
        Ok(())
    }

    /// A READ of the published clock, on the way that the announcement took.
    fn look_at_announcement(&self) -> Result<WorkRequest, OutOfBounds> {
        let local = self.scratch.slice(ANNOUNCEMENT_AT, 8)?;
        let remote = self.page.slice(inbox::PUBLISHED as u64, 8)?;
        Ok(WorkRequest::signalled(
            PUBLISH_TAG,
            Operation::Read { local, remote, streaming: Streaming::Never },
        ))
    }

    /// Whether the announcement is known to be in the server's memory, if that is asked for.
    fn is_seen(&self) -> bool {
        !self.is_proved || self.scratch.as_volatile().load_u64(ANNOUNCEMENT_AT) == self.clock.next().get()
    }

    fn inline(&self, remote: RemoteSlice, data: Inline) -> WorkRequest {
        WorkRequest::unsignalled(PUBLISH_TAG, Operation::WriteInline { data, remote })
    }

    fn slot(&self) -> Result<RemoteSlice, OutOfBounds> {
        let offset = self.geometry.stride() * self.geometry.slot_of(self.clock) as u64;
        self.slots.slice(offset, self.geometry.payload_bytes())
    }

    fn post(&mut self, endpoint: &mut impl Endpoint, requests: &[WorkRequest]) -> Result<bool, PublishError> {
        match endpoint.post(requests) {
            Ok(()) => {
                self.outstanding += 1;
                Ok(true)
            }
            Err(PostError::QueueFull { .. }) => Ok(false),
            Err(PostError::Disconnected(gone)) => Err(gone.into()),
            Err(error) => Err(PublishError::Post(error)),
        }
    }
}
