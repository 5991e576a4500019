//! The posting end of a lane: half a queue pair, driven by the thread that posts and polls, with no thread between.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::connection::words;
use super::socket::{MAX_PIECES, Moved, Socket};
use super::wire::{self, Encoded, Kind, MAX_WORDS, RESPONSE_BYTES, Request, Response, SHORT_BYTES};
use crate::mem::{self, LocalSlice, RemoteSlice, VolatileSlice};
use crate::transport::doorbell::Doorbell;
use crate::transport::{
    CompletionError, Flags, Operation, PostError, WorkCompletion, WorkRequest, WorkRequestId,
};

/// Sent with one call: long enough that the call does not count, short enough that the other end begins early.
const SEND_BYTES: usize = 1 << 20;

/// Bytes received at a time, besides bytes that go straight to their memory.
const BUFFER_BYTES: usize = 8 << 10;

/// A write of so many bytes is bulk data.
const BULK_BYTES: usize = 64 << 10;

/// Words that a write of up to so many bytes carries behind its header, instead of a payload.
const WORDS_BYTES: usize = 8 * MAX_WORDS;

/// More wake-ups than an honest peer sends between two answers.
const MAX_WAKES: u32 = 8;

/// A lane is over, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) &'static str);

pub(super) const REFUSED: &str = "the peer refused a request";
pub(super) const ENDED: &str = "the peer process ended or closed the connection";
pub(super) const CLOSED: &str = "the peer closed the connection and said why";
pub(super) const SILENT: &str =
    "the peer has not answered for seconds: its host or the network between is down";
pub(super) const PROTOCOL: &str = "the peer broke the protocol";

/// Returns the reason that the lane is over, from the error of its socket.
pub(super) fn reason(error: &io::Error) -> Broken {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            Broken(SILENT)
        }
        _ => Broken(ENDED),
    }
}

/// A request that was posted and is not yet done, or whose completion was not yet polled.
struct Posted {
    id: WorkRequestId,
    signalled: bool,
    header: Encoded,
    /// The local memory, owned until the request is done: where a payload comes from, or where an answer goes.
    memory: Option<LocalSlice>,
    answer: Answer,
    /// It is not sent before the request of this sequence is done: the last one before it that may bring its payload.
    /// 0 if there is none, or it has no fence.
    behind: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Done when it, or a later one, is said to be.
    None,
    /// The range.
    Data,
    /// The old value of the word.
    Value,
    /// Asked for by this side itself, so that earlier requests are heard of; no caller polls it.
    Internal,
}

/// Requests that are on their way, in order of posting.
pub(super) struct Initiator {
    socket: Socket,
    /// It has asked and told so far, and sent no bulk data: the system sends it first.
    is_first: bool,
    epoch: u64,
    depth: usize,
    queue: VecDeque<Posted>,
    /// The number of internal requests in the queue.
    internal: usize,
    /// Sequence of the request at the front of the queue.
    front: u64,
    /// All requests up to this one are done.
    done: u64,
    /// Index in the queue of the first request that is not wholly sent, and how much of it is.
    unsent: usize,
    sent_bytes: usize,
    /// True if the system's buffer was full. A caller that polls in a loop would fill every little gap in it with a
    /// call of its own; so from then on a good part of it must be free first.
    is_blocked: bool,
    /// Sequence of the last request whose answer has bytes; 0 if there was none.
    last_bringing: u64,
    /// Requests since the last one with an answer.
    unasked: usize,
    /// The progress of the answer at `done + 1`, if it is a long one that is arriving.
    arriving: Option<Arriving>,
    buffer: Box<[u8; BUFFER_BYTES]>,
    begin: usize,
    end: usize,
    refused: Option<u64>,
    /// The code with which the peer gave its reason for closing the connection, if it sent one.
    close_code: Option<u64>,
    /// The doorbell at which this side sleeps until the peer wakes it.
    doorbell: Option<Arc<Doorbell>>,
    /// How often the peer has woken this side since the request up to which all were done then.
    wakes: (u64, u32),
    broken: Option<Broken>,
}

struct Arriving {
    sequence: u64,
    received: usize,
    /// The checksum that a short answer must have.
    checksum: Option<u32>,
}

impl Initiator {
    pub(super) fn new(socket: Socket, epoch: u64, depth: usize) -> Initiator {
        socket.send_first(true);
        Initiator {
            socket,
            is_first: true,
            epoch,
            depth,
            queue: VecDeque::new(),
            internal: 0,
            front: 1,
            done: 0,
            unsent: 0,
            sent_bytes: 0,
            is_blocked: false,
            last_bringing: 0,
            unasked: 0,
            arriving: None,
            buffer: Box::new([0; BUFFER_BYTES]),
            begin: 0,
            end: 0,
            refused: None,
            close_code: None,
            doorbell: None,
            wakes: (0, 0),
            broken: None,
        }
    }

    /// Has the peer's wake-ups ring this.
    pub(super) fn set_doorbell(&mut self, doorbell: Arc<Doorbell>) {
        self.doorbell = Some(doorbell);
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Ends it, and gives the memory of its requests back; the socket is the caller's to close.
    pub(super) fn into_socket(self) -> Socket {
        self.socket
    }

    #[inline]
    pub(super) fn broken(&self) -> Option<Broken> {
        self.broken
    }

    pub(super) fn close_code(&self) -> Option<u64> {
        self.close_code
    }

    /// True if there is nothing to send and nothing to hear of.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Requests for which there is room.
    pub(super) fn free(&self) -> usize {
        self.depth - (self.queue.len() - self.internal)
    }

    /// Ends the lane, after it has processed the answers that have arrived.
    pub(super) fn end(&mut self, why: Broken) {
        while self.broken.is_none() && self.receive() {}
        self.fail(why);
    }

    /// Ends the lane now.
    pub(super) fn fail(&mut self, why: Broken) {
        if self.broken.is_none() {
            self.broken = Some(why);
            self.socket.close();
        }
    }

    /// Requests that were checked and fit the queue's depth are taken, or none is.
    #[inline]
    pub(super) fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        if self.queue.len() - self.internal + batch.len() > self.depth {
            self.make_room(batch.len())?;
        }
        for request in batch {
            let posted = self.prepare(request);
            self.queue.push_back(posted);
        }
        self.send();
        Ok(())
    }

    #[cold]
    fn make_room(&mut self, batch: usize) -> Result<(), PostError> {
        self.advance();
        while self.front_is_silent() {
            self.pop();
        }
        let free = self.free();
        if batch <= free {
            return Ok(());
        }
        if self.unasked > 0 && self.broken.is_none() {
            // No caller asked to hear of the last few, and as long as none does they stay in the queue.
            self.unasked = 0;
            let header = Request {
                kind: Kind::Nothing,
                answer: true,
                ..words(
                    self.next(),
                    self.epoch,
                    &RemoteSlice { key: mem::RemoteKey(0), offset: 0, len: 0 },
                    &[],
                )
            };
            let (id, memory, answer) = (WorkRequestId(0), None, Answer::Internal);
            let header = header.encode();
            self.queue.push_back(Posted { id, signalled: false, header, memory, answer, behind: 0 });
            self.internal += 1;
            self.send();
        }
        Err(PostError::QueueFull { free, batch })
    }

    fn next(&self) -> u64 {
        self.front + self.queue.len() as u64
    }

    #[inline]
    fn prepare(&mut self, request: &WorkRequest) -> Posted {
        if self.is_first
            && matches!(&request.operation, Operation::Write { local, .. } if local.len() >= BULK_BYTES)
        {
            self.is_first = false;
            self.socket.send_first(false);
        }
        let signalled = request.flags.contains(Flags::SIGNALLED);
        self.unasked += 1;
        // Unsignalled requests are asked about now and then, so that their queue entries and their memory come free.
        let answer = signalled || self.unasked >= (self.depth / 4).max(1);
        if answer {
            self.unasked = 0;
        }
        let notify = request.flags.contains(Flags::NOTIFY);
        let plain = |kind, remote: &RemoteSlice| Request {
            kind,
            answer,
            notify,
            ..words(self.next(), self.epoch, remote, &[])
        };
        let with = |kind, remote: &RemoteSlice, values: &[u64]| Request {
            kind,
            answer,
            notify,
            ..words(self.next(), self.epoch, remote, values)
        };
        // The target carries requests out one by one: a fence has something to wait for only where the payload comes
        // from memory of this side, to which an earlier request may bring it.
        let is_fenced = request.flags.contains(Flags::FENCE);
        let behind = match &request.operation {
            Operation::Write { .. } if is_fenced && self.last_bringing > self.done => self.last_bringing,
            _ => 0,
        };
        let (header, memory, expected) = match &request.operation {
            Operation::WriteInline { data, remote } => {
                (with(Kind::Words, remote, data.words()), None, Answer::None)
            }
            Operation::Write { local, remote, .. } if behind > 0 => {
                (plain(Kind::Write, remote), Some(local.clone()), Answer::None)
            }
            Operation::Write { local, remote, .. } => match as_words(local, remote) {
                Some(values) => (with(Kind::Words, remote, &values), None, Answer::None),
                None => (plain(Kind::Write, remote), Some(local.clone()), Answer::None),
            },
            Operation::Read { local, remote, .. } => {
                (plain(Kind::Read, remote), Some(local.clone()), Answer::Data)
            }
            // Refused when it was checked, or cut into blocks of host memory.
            Operation::ReadToGpu { remote, .. } | Operation::WriteFromGpu { remote, .. } => {
                (plain(Kind::Read, remote), None, Answer::None)
            }
            Operation::FetchAdd { local, remote, add } => {
                (with(Kind::FetchAdd, remote, &[*add]), Some(local.clone()), Answer::Value)
            }
            Operation::CompareSwap { local, remote, compare, swap } => {
                (with(Kind::CompareSwap, remote, &[*compare, *swap]), Some(local.clone()), Answer::Value)
            }
        };
        if expected != Answer::None {
            self.last_bringing = self.next();
        }
        Posted { id: request.id, signalled, header: header.encode(), memory, answer: expected, behind }
    }

    /// True if the request at the front is done and no caller polls its completion.
    #[inline]
    fn front_is_silent(&self) -> bool {
        self.front <= self.done && self.queue.front().is_some_and(|posted| !posted.signalled)
    }

    #[inline]
    fn pop(&mut self) -> Option<Posted> {
        let posted = self.queue.pop_front()?;
        self.internal -= usize::from(posted.answer == Answer::Internal);
        self.front += 1;
        self.unsent = self.unsent.saturating_sub(1);
        Some(posted)
    }

    /// The next completion, if there is one.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<WorkCompletion> {
        let mut advanced = false;
        while !self.queue.is_empty() {
            if self.front <= self.done {
                let posted = self.pop()?;
                if posted.signalled {
                    return Some(WorkCompletion { id: posted.id, result: Ok(()) });
                }
            } else if self.broken.is_some() {
                let error = match self.refused {
                    Some(sequence) if sequence == self.front => CompletionError::RemoteAccess,
                    _ => CompletionError::Flushed,
                };
                let posted = self.pop()?;
                if posted.answer != Answer::Internal {
                    return Some(WorkCompletion { id: posted.id, result: Err(error) });
                }
            } else {
                if advanced {
                    return None;
                }
                self.advance();
                advanced = true;
            }
        }
        None
    }

    /// Sends bytes that did not fit before and processes the peer's answers, as far as both go without waiting.
    pub(super) fn advance(&mut self) {
        self.send();
        while self.broken.is_none() && self.receive() {}
        let next = self.queue.get(self.unsent);
        if next.is_some_and(|posted| posted.behind > 0 && posted.behind <= self.done) {
            // The awaited event has come. The caller may sleep now until there is another one.
            self.send();
        }
    }

    #[inline]
    fn send(&mut self) {
        while self.broken.is_none() && self.unsent < self.queue.len() {
            if self.is_blocked && !self.socket.has_room() {
                return;
            }
            let mut pieces = SmallVec::<[VolatileSlice<'_>; MAX_PIECES]>::new();
            let (mut skip, mut total) = (self.sent_bytes, 0);
            for posted in self.queue.range(self.unsent..) {
                if total >= SEND_BYTES || pieces.len() + 2 > MAX_PIECES || posted.behind > self.done {
                    break;
                }
                let header = VolatileSlice::from_ref(posted.header.as_bytes());
                for piece in [Some(header), posted.payload()].into_iter().flatten() {
                    let skipped = skip.min(piece.len());
                    skip -= skipped;
                    let wanted = (piece.len() - skipped).min(SEND_BYTES);
                    if wanted > 0 {
                        pieces.push(piece.subslice(skipped, wanted));
                        total += wanted;
                    }
                }
            }
            if pieces.is_empty() {
                // A fence holds the first one back.
                return;
            }
            match self.socket.send(&pieces) {
                Ok(Moved::Bytes(bytes)) => {
                    drop(pieces);
                    self.count_sent(bytes);
                    self.is_blocked = bytes < total;
                    if self.is_blocked {
                        return;
                    }
                }
                Ok(Moved::Nothing) => {
                    self.is_blocked = true;
                    return;
                }
                Err(broken) => {
                    drop(pieces);
                    // The peer's last answer may be a refusal.
                    self.end(broken);
                }
            }
        }
    }

    fn count_sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
        while let Some(posted) = self.queue.get(self.unsent) {
            let len = posted.header.as_bytes().len() + posted.payload().map_or(0, |payload| payload.len());
            if self.sent_bytes < len {
                return;
            }
            self.sent_bytes -= len;
            self.unsent += 1;
        }
    }

    /// Receives once and processes the received bytes. False if there are no more for now, or the lane is over.
    fn receive(&mut self) -> bool {
        let (memory, room) = match &self.arriving {
            Some(Arriving { sequence, received, .. }) => {
                let posted = &self.queue[(sequence - self.front) as usize];
                let memory = posted.memory.as_ref().map(LocalSlice::as_volatile);
                let rest = memory.map(|memory| memory.subslice(*received, memory.len() - received));
                (rest, rest.map_or(0, |rest| rest.len()))
            }
            None => (None, 0),
        };
        // While an answer arrives the buffer is empty: its bytes were taken first.
        let asked = room + BUFFER_BYTES - self.end;
        let bytes = match self.socket.receive(memory, &mut self.buffer[self.end..]) {
            Ok(Moved::Bytes(bytes)) => bytes,
            Ok(Moved::Nothing) => return false,
            Err(broken) => {
                self.fail(broken);
                return false;
            }
        };
        self.end += bytes.saturating_sub(room);
        if let Some(arriving) = &mut self.arriving {
            arriving.received += bytes.min(room);
        }
        if let Err(why) = self.digest() {
            self.fail(why);
            return false;
        }
        bytes == asked
    }

    /// Processes the content of the buffer.
    fn digest(&mut self) -> Result<(), Broken> {
        loop {
            if let Some(Arriving { sequence, received, checksum }) = &mut self.arriving {
                let index = (*sequence - self.front) as usize;
                let memory = self.queue[index].memory.as_ref().map(LocalSlice::as_volatile);
                let memory = memory.ok_or(Broken(PROTOCOL))?;
                let taken = (memory.len() - *received).min(self.end - self.begin);
                memory.subslice(*received, taken).write(&self.buffer[self.begin..self.begin + taken]);
                self.begin += taken;
                *received += taken;
                if *received < memory.len() {
                    break;
                }
                if checksum.is_some_and(|expected| !matches(&memory, expected)) {
                    tracing::warn!("an answer of a tcp peer was changed on its way");
                    return Err(Broken(PROTOCOL));
                }
                // Promise 2: reads after this completion return nothing older than this read did.
                mem::fence(Ordering::Acquire);
                self.done = *sequence;
                self.arriving = None;
            }
            match Response::decode(&self.buffer[self.begin..self.end]) {
                Ok(Some(response)) => {
                    self.begin += RESPONSE_BYTES;
                    self.take(response)?;
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "a tcp peer broke the protocol");
                    return Err(Broken(PROTOCOL));
                }
            }
        }
        self.buffer.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
        Ok(())
    }

    #[inline]
    fn take(&mut self, response: Response) -> Result<(), Broken> {
        match response {
            Response::Done { sequence } => {
                self.is_sent(sequence)?;
                self.is_plain_up_to(sequence)?;
                self.done = sequence;
            }
            Response::Data { sequence, bytes } => self.expect_data(sequence, bytes, None)?,
            Response::ShortData { sequence, bytes, checksum } => {
                self.expect_data(sequence, bytes.into(), Some(checksum))?;
            }
            Response::Value { sequence, before } => {
                let posted = self.answered(sequence, Answer::Value)?;
                let memory = posted.memory.as_ref().ok_or(Broken(PROTOCOL))?;
                memory.as_volatile().store_u64(0, before);
                self.done = sequence;
            }
            Response::Refused { sequence } => {
                self.is_sent(sequence)?;
                self.is_plain_up_to(sequence - 1)?;
                self.done = sequence - 1;
                self.refused = Some(sequence);
                return Err(Broken(REFUSED));
            }
            Response::Closed { code } => {
                self.close_code = Some(code);
                return Err(Broken(CLOSED));
            }
            Response::Wake => self.take_wake()?,
        }
        Ok(())
    }

    /// The peer wakes this side once for each request that tells it of a sleep: a peer that sent wake-ups without end
    /// would hold up the thread that processes its answers.
    fn take_wake(&mut self) -> Result<(), Broken> {
        let (done, wakes) = &mut self.wakes;
        *wakes = if std::mem::replace(done, self.done) == self.done { *wakes + 1 } else { 1 };
        match &self.doorbell {
            Some(doorbell) if *wakes <= MAX_WAKES => doorbell.ring(),
            _ => return Err(Broken(PROTOCOL)),
        }
        Ok(())
    }

    /// The bytes of a read come next. Short answers carry a checksum, longer ones none.
    fn expect_data(&mut self, sequence: u64, bytes: u64, checksum: Option<u32>) -> Result<(), Broken> {
        let posted = self.answered(sequence, Answer::Data)?;
        let is_expected = posted.memory.as_ref().map(|memory| memory.len() as u64) == Some(bytes);
        if !is_expected || checksum.is_some() != (bytes <= SHORT_BYTES as u64) {
            return Err(Broken(PROTOCOL));
        }
        self.done = sequence - 1;
        self.arriving = Some(Arriving { sequence, received: 0, checksum });
        Ok(())
    }

    /// The request that `sequence` answers, whose kind must fit the answer; the requests before it are done.
    fn answered(&self, sequence: u64, answer: Answer) -> Result<&Posted, Broken> {
        self.is_sent(sequence)?;
        self.is_plain_up_to(sequence - 1)?;
        let posted = &self.queue[(sequence - self.front) as usize];
        if posted.answer == answer { Ok(posted) } else { Err(Broken(PROTOCOL)) }
    }

    /// A peer may answer each request once: a peer that sent answers without end would hold up the thread that
    /// processes them.
    fn is_sent(&self, sequence: u64) -> Result<(), Broken> {
        let first_unsent = self.front + self.unsent as u64;
        if sequence > self.done && sequence < first_unsent { Ok(()) } else { Err(Broken(PROTOCOL)) }
    }

    /// Checks that no request up to `sequence` (which was sent, or is the last one done) needs bytes in its answer,
    /// since one answer says that all of them are done. The bytes of such a request never came.
    fn is_plain_up_to(&self, sequence: u64) -> Result<(), Broken> {
        let from = (self.done + 1 - self.front) as usize;
        let mut passed = self.queue.range(from..(sequence + 1 - self.front) as usize);
        if passed.all(|posted| matches!(posted.answer, Answer::None | Answer::Internal)) {
            Ok(())
        } else {
            Err(Broken(PROTOCOL))
        }
    }
}

impl Posted {
    #[inline]
    fn payload(&self) -> Option<VolatileSlice<'_>> {
        if self.answer != Answer::None {
            return None;
        }
        self.memory.as_ref().map(LocalSlice::as_volatile)
    }
}

/// Returns whether a short answer matches its checksum. No other writer changes it before it is complete.
#[inline]
fn matches(answer: &VolatileSlice<'_>, checksum: u32) -> bool {
    let mut copy = [0; SHORT_BYTES];
    let copy = &mut copy[..answer.len()];
    answer.read(copy);
    wire::checksum(copy) == checksum
}

/// The words of a short write from aligned memory to aligned memory: they travel with the header and arrive whole.
#[inline]
fn as_words(local: &LocalSlice, remote: &RemoteSlice) -> Option<SmallVec<[u64; MAX_WORDS]>> {
    let len = local.len();
    let aligned = (len | local.offset()).is_multiple_of(8) && remote.offset.is_multiple_of(8);
    if len == 0 || len > WORDS_BYTES || !aligned {
        return None;
    }
    let memory = local.as_volatile();
    Some((0..len).step_by(8).map(|at| memory.load(at, Ordering::Acquire)).collect())
}
