//! The serving end of a lane: requests come in, and are carried out on this process's own memory.
//!
//! Payloads go from the socket straight into registered memory and back. Besides, a lane needs two fixed buffers:
//! nothing is allocated for a request, and while a peer does not take its answers, nothing more of it is read.

#[cfg_attr(not(feature = "cuda"), path = "target/gpu/absent.rs")]
mod gpu;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use self::gpu::StagedServing;

use super::check::{Span, check};
use super::connection::Connection;
use super::initiator::{Broken, PROTOCOL};
use super::socket::{Moved, Socket};
use super::wire::{Kind, MAX_REQUEST_BYTES, RESPONSE_BYTES, Request, Response, SHORT_BYTES, checksum};
use crate::mem::{self, Streaming, VolatileSlice};
use crate::transport::PayloadSlice;

/// A lane's turn ends after so many bytes, so that a lane without a pause does not keep the others waiting.
const TURN_BYTES: usize = 1 << 20;

/// Arrivals on a lane for heartbeats that are received together where they are counted.
const BEATS_AT_ONCE: u8 = 8;

/// More than the heartbeats of eight arrivals are, unless a peer beats far too often, and less than any lane holds.
const CROWDED_BYTES: u64 = 1 << 10;

/// Holds the longest request with a short payload, and a row of small ones.
const INBOX_BYTES: usize = 8 << 10;
/// Holds the longest short answer, and a row of small ones.
const OUTBOX_BYTES: usize = 8 << 10;

const _: () = assert!(INBOX_BYTES >= MAX_REQUEST_BYTES + SHORT_BYTES);
const _: () = assert!(OUTBOX_BYTES >= 2 * RESPONSE_BYTES + SHORT_BYTES);

/// Longest time for which a refused peer may continue to send, and most bytes: if the socket were closed at once, the
/// system would discard the refusal because of the unread bytes.
const DRAIN_TIME: Duration = Duration::from_secs(2);
const DRAIN_BYTES: usize = 1 << 30;

pub(super) const OFFENDED: Broken = Broken("the peer asked for what it was not granted, and was refused");

/// Bytes whose words are aligned where they are aligned in memory: a copy between the two cuts no word.
#[repr(C, align(64))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServeOutcome {
    /// Everything that was there is served.
    Idle,
    /// There is more to do; others first.
    More,
    /// The peer does not take its answers.
    Blocked,
    /// Nothing is sent or received before a GPU has copied.
    Copying,
}

/// The event that must happen before more requests can be carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    Input,
    Output,
    /// Copies of a GPU.
    Copies,
}

enum ServeStep {
    /// Between two requests.
    Header,
    /// In the payload of a write.
    Payload { span: Span, received: usize, answer: bool, notify: bool },
    /// In the payload of an answer.
    Answering { span: Span, sent: usize },
    /// In a payload that comes into memory of a GPU, or goes out of it.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "there is no such memory"))]
    OnGpu,
    /// A request was refused, or the connection is closed.
    Draining { until: Instant, bytes: usize },
}

/// The serving end of one lane.
pub(super) struct Target {
    socket: Socket,
    connection: Arc<Connection>,
    /// Counts refused requests.
    access_violations: Arc<AtomicU64>,
    state: ServeStep,
    /// Made for the first request for memory of a GPU.
    gpu: Option<Box<StagedServing>>,
    /// Sequence of the last request that began.
    sequence: u64,
    /// A completion that is to be told, and was not yet. A later answer of any kind tells it too.
    to_tell: Option<u64>,
    /// The peer is to be woken, between two answers.
    wakes: bool,
    /// Arrivals that were counted, and of which nothing is received yet.
    unread: u8,
    inbox: Box<Aligned<INBOX_BYTES>>,
    begin: usize,
    end: usize,
    outbox: Box<Aligned<OUTBOX_BYTES>>,
    out_begin: usize,
    out_end: usize,
}

impl Target {
    pub(super) fn new(
        socket: Socket,
        connection: Arc<Connection>,
        access_violations: Arc<AtomicU64>,
    ) -> Target {
        Target {
            socket,
            connection,
            access_violations,
            state: ServeStep::Header,
            gpu: None,
            sequence: 0,
            to_tell: None,
            wakes: false,
            unread: 0,
            inbox: Box::new(Aligned([0; INBOX_BYTES])),
            begin: 0,
            end: 0,
            outbox: Box::new(Aligned([0; OUTBOX_BYTES])),
            out_begin: 0,
            out_end: 0,
        }
    }

    /// Allows as much silence as the owner of its connection does.
    pub(super) fn allow_silence(&self) {
        self.connection.allow_silence_on(&self.socket);
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// True if answers wait to be sent; then nothing is received.
    pub(super) fn is_sending(&self) -> bool {
        self.out_begin < self.out_end
            || matches!(self.state, ServeStep::Answering { .. })
            || self.is_leaving_gpu()
    }

    /// True if there is more to serve of which the system does not tell.
    pub(super) fn has_input(&self) -> bool {
        self.socket.has_input()
    }

    /// True if the lane is only kept so that its peer hears why it ends.
    pub(super) fn is_draining(&self) -> bool {
        matches!(self.state, ServeStep::Draining { .. })
    }

    /// True if a lane that is draining has done so for long enough.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        matches!(self.state, ServeStep::Draining { until, .. } if now >= until)
    }

    /// Has the next turn wake the peer.
    pub(super) fn wake(&mut self) {
        self.wakes = true;
    }

    /// Bytes have arrived on a lane for heartbeats. True if they were counted and can wait: to receive each heartbeat
    /// by itself would be most of the cost of an idle peer.
    pub(super) fn leave_unread(&mut self) -> bool {
        if self.is_draining() || !self.connection.add_arrival() {
            return false;
        }
        self.unread += 1;
        self.unread < BEATS_AT_ONCE
    }

    /// True if so much was left unread that the lane may be full: then the system tells nothing more of it.
    pub(super) fn is_crowded(&self) -> bool {
        self.unread > 0 && self.socket.waiting() >= CROWDED_BYTES
    }

    /// Serves the requests that have arrived, for one turn.
    pub(super) fn serve(&mut self) -> Result<ServeOutcome, Broken> {
        self.unread = 0;
        let mut budget = TURN_BYTES;
        let mut is_dry = false;
        loop {
            self.release_held()?;
            if let Some(turn) = self.flush(&mut budget)? {
                return Ok(turn);
            }
            match self.digest()? {
                Wants::Output => continue,
                Wants::Copies => {
                    self.tell();
                    return Ok(self.flush(&mut budget)?.unwrap_or(ServeOutcome::Copying));
                }
                Wants::Input => {}
            }
            if is_dry || budget == 0 {
                self.tell();
                let turn = if is_dry { ServeOutcome::Idle } else { ServeOutcome::More };
                return Ok(self.flush(&mut budget)?.unwrap_or(turn));
            }
            is_dry = self.receive(&mut budget)?;
        }
    }

    /// Sends the answers that wait, as far as they fit; says how the turn ends if some are left.
    fn flush(&mut self, budget: &mut usize) -> Result<Option<ServeOutcome>, Broken> {
        while self.is_sending() {
            if self.is_leaving_gpu() {
                match self.flush_from_gpu(budget)? {
                    Some(turn) => return Ok(Some(turn)),
                    None => continue,
                }
            }
            let waiting = VolatileSlice::from_ref(&self.outbox.0[self.out_begin..self.out_end]);
            let mut payload = None;
            if let ServeStep::Answering { span, sent } = &self.state {
                if *budget == 0 {
                    return Ok(Some(ServeOutcome::More));
                }
                let rest = (span.bytes - sent).min(TURN_BYTES);
                payload = Some(memory(&self.connection, span).subslice(*sent, rest));
            }
            let in_outbox = waiting.len();
            let pieces = [waiting, payload.unwrap_or(VolatileSlice::from_ref(&[]))];
            let bytes = match self.socket.send(&pieces)? {
                Moved::Bytes(bytes) => bytes,
                Moved::Nothing => return Ok(Some(ServeOutcome::Blocked)),
            };
            *budget = budget.saturating_sub(bytes);
            self.out_begin += bytes.min(in_outbox);
            if self.out_begin == self.out_end {
                (self.out_begin, self.out_end) = (0, 0);
            }
            if let ServeStep::Answering { span, sent } = &mut self.state {
                *sent += bytes.saturating_sub(in_outbox);
                if *sent == span.bytes {
                    self.state = ServeStep::Header;
                }
            }
        }
        Ok(None)
    }

    /// Receives once. True if the socket is empty then: a short read says so without another call.
    fn receive(&mut self, budget: &mut usize) -> Result<bool, Broken> {
        let (mut straight, mut buffer) = (None, &mut self.inbox.0[self.end..]);
        if let ServeStep::Payload { span, received, .. } = &self.state {
            let rest = span.bytes - received;
            let piece = rest.min(TURN_BYTES);
            straight = Some(memory(&self.connection, span).subslice(*received, piece));
            if piece < rest {
                // The bytes that would come into the buffer belong into the memory.
                buffer = &mut [];
            }
        }
        let missing = self.gpu.as_ref().and_then(|gpu| gpu.missing());
        if let (Some(gpu), Some(rest)) = (&mut self.gpu, missing.filter(|rest| *rest > 0)) {
            straight = gpu.room(rest);
            if straight.is_some_and(|room| room.len() < rest) {
                buffer = &mut [];
            }
        }
        let room = straight.map_or(0, |memory| memory.len());
        let asked = room + buffer.len();
        let bytes = match self.socket.receive(straight, buffer) {
            Ok(Moved::Bytes(bytes)) => bytes,
            Ok(Moved::Nothing) => return Ok(true),
            Err(_) if self.is_draining() => return Err(OFFENDED),
            Err(broken) => return Err(broken),
        };
        if self.socket.is_timed() {
            // The system reports no event for bytes that were received before it was asked.
            self.connection.add_arrival();
        }
        *budget = budget.saturating_sub(bytes);
        if let ServeStep::Payload { received, .. } = &mut self.state {
            *received += bytes.min(room);
        } else if let Some(gpu) = &mut self.gpu {
            gpu.came(bytes.min(room))?;
        }
        self.end += bytes.saturating_sub(room);
        Ok(bytes < asked)
    }

    /// Carries out the requests that the inbox holds.
    fn digest(&mut self) -> Result<Wants, Broken> {
        loop {
            match &mut self.state {
                ServeStep::Header => {
                    if OUTBOX_BYTES - self.out_end < 2 * RESPONSE_BYTES + SHORT_BYTES {
                        return Ok(Wants::Output);
                    }
                    if std::mem::take(&mut self.wakes) {
                        self.say(Response::Wake);
                    }
                    let decoded = Request::decode(&self.inbox.0[self.begin..self.end]);
                    let decoded = decoded.map_err(|error| {
                        tracing::warn!(%error, "a tcp peer broke the protocol");
                        Broken(PROTOCOL)
                    })?;
                    let Some((request, len)) = decoded else {
                        self.compact();
                        return Ok(Wants::Input);
                    };
                    if request.sequence != self.sequence + 1 {
                        tracing::warn!("a tcp peer broke the protocol: a request out of turn");
                        return Err(Broken(PROTOCOL));
                    }
                    if let Some(wants) = self.carry_out(&request, len)? {
                        return Ok(wants);
                    }
                }
                ServeStep::Payload { span, received, answer, notify } => {
                    let taken = (span.bytes - *received).min(self.end - self.begin);
                    let (answer, notify) = (*answer, *notify);
                    let piece = &self.inbox.0[self.begin..self.begin + taken];
                    memory(&self.connection, span).subslice(*received, taken).write(piece);
                    self.begin += taken;
                    *received += taken;
                    if *received < span.bytes {
                        self.compact();
                        return Ok(Wants::Input);
                    }
                    self.state = ServeStep::Header;
                    self.done(self.sequence, answer, notify);
                }
                ServeStep::OnGpu => {
                    if let Some(wants) = self.digest_on_gpu()? {
                        return Ok(wants);
                    }
                }
                ServeStep::Answering { .. } => return Ok(Wants::Output),
                ServeStep::Draining { bytes, .. } => {
                    *bytes += self.end - self.begin;
                    if *bytes > DRAIN_BYTES {
                        return Err(OFFENDED);
                    }
                    (self.begin, self.end) = (0, 0);
                    return Ok(Wants::Input);
                }
            }
        }
    }

    /// Carries out, or begins, a request whose header is `len` bytes long at the begin of the inbox. If it cannot begin
    /// yet, it returns the event to wait for, and has taken no bytes.
    #[inline]
    fn carry_out(&mut self, request: &Request, len: usize) -> Result<Option<Wants>, Broken> {
        let connection = Arc::clone(&self.connection);
        let is_nothing = request.kind == Kind::Nothing && request.epoch == connection.ours.blob.epoch;
        let span = check(connection.grants(), connection.ours.blob.epoch, request);
        if let Some(span) = &span
            && let PayloadSlice::Gpu(grant) = &connection.memory[span.grant]
        {
            return self.carry_out_on_gpu(request, len, span, grant);
        }
        if self.is_holding() {
            let may_be_held = is_nothing || (request.kind == Kind::Words && span.is_some());
            return Ok(if may_be_held { self.hold(request, len, span) } else { Some(Wants::Copies) });
        }
        if is_nothing {
            self.begin(request, len);
            self.done(request.sequence, request.answer, request.notify);
            return Ok(None);
        }
        let Some(span) = span else {
            self.begin(request, len);
            self.refuse();
            return Ok(None);
        };
        let target = memory(&connection, &span);
        match request.kind {
            Kind::Write if span.bytes <= SHORT_BYTES => {
                if self.end - self.begin < len + span.bytes {
                    self.compact();
                    return Ok(Some(Wants::Input));
                }
                self.begin(request, len);
                // Promise 1 of the contract: this write becomes visible after all earlier ones.
                mem::fence(Ordering::Release);
                let payload = &self.inbox.0[self.begin..self.begin + span.bytes];
                target.copy_from(VolatileSlice::from_ref(payload), Streaming::Never);
                self.begin += span.bytes;
                self.done(request.sequence, request.answer, request.notify);
            }
            Kind::Write => {
                self.begin(request, len);
                mem::fence(Ordering::Release);
                let (answer, notify) = (request.answer, request.notify);
                self.state = ServeStep::Payload { span, received: 0, answer, notify };
            }
            Kind::Words => {
                self.begin(request, len);
                mem::fence(Ordering::Release);
                request.store_words(&target);
                self.done(request.sequence, request.answer, request.notify);
            }
            Kind::Read if span.bytes <= SHORT_BYTES => {
                if !self.out_end.is_multiple_of(8) {
                    // Behind an answer of odd length the copy would cut words.
                    return Ok(Some(Wants::Output));
                }
                self.begin(request, len);
                let begin = self.out_end + RESPONSE_BYTES;
                let payload = &mut self.outbox.0[begin..begin + span.bytes];
                target.read(payload);
                mem::fence(Ordering::Acquire);
                let (bytes, checksum) = (span.bytes as u32, checksum(payload));
                self.answer(Response::ShortData { sequence: request.sequence, bytes, checksum });
                self.out_end += span.bytes;
            }
            Kind::Read => {
                self.begin(request, len);
                self.answer(Response::Data { sequence: request.sequence, bytes: request.bytes });
                self.state = ServeStep::Answering { span, sent: 0 };
            }
            Kind::FetchAdd => {
                self.begin(request, len);
                let before = target.fetch_add(0, request.words[0]);
                self.answer(Response::Value { sequence: request.sequence, before });
            }
            Kind::CompareSwap => {
                self.begin(request, len);
                let before = target.compare_swap(0, request.words[0], request.words[1]);
                self.answer(Response::Value { sequence: request.sequence, before });
            }
            Kind::Nothing => self.refuse(),
        }
        Ok(None)
    }

    fn begin(&mut self, request: &Request, len: usize) {
        self.sequence = request.sequence;
        self.begin += len;
    }

    fn done(&mut self, sequence: u64, answer: bool, notify: bool) {
        if answer {
            self.to_tell = Some(sequence);
        }
        if notify {
            self.connection.ring();
        }
    }

    fn refuse(&mut self) {
        self.access_violations.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            connection = self.connection.id,
            "refused a request of a tcp peer: unknown key, range outside of the grant, or a right that was not granted"
        );
        self.answer(Response::Refused { sequence: self.sequence });
        self.drain();
    }

    /// Tells the peer that the connection is closed, and takes nothing of it from now on. False if there is an answer
    /// under way, which this cannot interrupt.
    pub(super) fn close(&mut self, code: u64) -> bool {
        match self.state {
            ServeStep::Answering { .. } => return false,
            ServeStep::OnGpu if self.is_leaving_gpu() => return false,
            ServeStep::Draining { .. } => {}
            ServeStep::Header | ServeStep::Payload { .. } | ServeStep::OnGpu => {
                self.tell();
                self.answer(Response::Closed { code });
                self.drain();
            }
        }
        true
    }

    fn drain(&mut self) {
        // Copies that are under way keep their memory.
        self.gpu = None;
        self.state = ServeStep::Draining { until: Instant::now() + DRAIN_TIME, bytes: 0 };
    }

    /// Tells the completion that waits to be told.
    fn tell(&mut self) {
        if let Some(sequence) = self.to_tell {
            self.answer(Response::Done { sequence });
        }
    }

    #[inline]
    fn answer(&mut self, response: Response) {
        self.to_tell = None;
        self.say(response);
    }

    #[inline]
    fn say(&mut self, response: Response) {
        self.outbox.0[self.out_end..self.out_end + RESPONSE_BYTES].copy_from_slice(&response.encode());
        self.out_end += RESPONSE_BYTES;
    }

    /// Makes room at the end of the inbox.
    fn compact(&mut self) {
        if self.begin > 0 {
            self.inbox.0.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The end of a lane ends its connection.
        self.connection.fail(super::initiator::ENDED);
    }
}

/// The host memory of a span: spans on a GPU were handled before.
fn memory<'a>(connection: &'a Connection, span: &Span) -> VolatileSlice<'a> {
    let host = connection.memory[span.grant].host().expect("memory of a GPU is staged");
    host.as_volatile().subslice(span.offset, span.bytes)
}
