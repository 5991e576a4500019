//! Requests whose memory here is on a GPU: payloads go through blocks of host memory.
//!
//! A payload that comes is received block by block, each of which the GPU copies while the next one is received. The
//! requests behind it are held until the copies are done: words, which announce payloads, wait in a row, and behind
//! them further payloads are received; no other request is begun before. An answer is copied block by block, each of
//! which is sent while the next ones are copied. Nothing here waits.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::{RESPONSE_BYTES, ServeOutcome, ServeStep, Target, Wants, memory};
use crate::cuda::{GpuError, GpuSlice};
use crate::mem::{self, LocalSlice, OutOfBounds, VolatileSlice};
use crate::transport::PayloadSlice;
use crate::transport::staging::{StagedCopy, StagingBlocks};
use crate::transport::tcp::check::Span;
use crate::transport::tcp::initiator::Broken;
use crate::transport::tcp::staged::{NOT_COPIED, blocks};
use crate::transport::tcp::wire::{Kind, Request, Response, SHORT_BYTES, checksum};

/// Most requests and copies that are held; a peer that sends more waits.
const MAX_HELD: usize = 64;

/// The state of a lane for memory of a GPU.
pub(super) struct StagedServing {
    blocks: StagingBlocks,
    /// The payload that comes or goes.
    step: StagedStep,
    /// The block that is being filled, and how much of it is.
    filling: Option<(LocalSlice, usize)>,
    /// In the order of the lane.
    held: VecDeque<HeldWork>,
    /// Blocks of the answer, in order, with their bytes and the number of bytes sent.
    leaving: VecDeque<(StagedCopy, usize, usize)>,
}

enum StagedStep {
    None,
    /// The payload of a write.
    Coming {
        into: GpuSlice,
        received: usize,
        answer: bool,
        notify: bool,
    },
    /// The request of an answer: the bytes of which copies were begun, and the bytes sent.
    Leaving {
        from: GpuSlice,
        asked: usize,
        sent: usize,
    },
}

/// Work that is done once the copies before it are.
enum HeldWork {
    Copy(StagedCopy),
    /// A request that nothing is left to do of.
    Done {
        sequence: u64,
        answer: bool,
        notify: bool,
    },
    /// Words of host memory.
    Words(Box<Request>, Span),
}

impl StagedServing {
    /// Where the next bytes of a payload go, at most `rest`, if there is a block.
    pub(super) fn room(&mut self, rest: usize) -> Option<VolatileSlice<'_>> {
        if self.filling.is_none() {
            self.filling = Some((self.blocks.take()?, 0));
        }
        let (block, filled) = self.filling.as_ref()?;
        Some(block.as_volatile().subslice(*filled, rest.min(block.len() - filled)))
    }

    /// The bytes that are missing of the payload that comes.
    pub(super) fn missing(&self) -> Option<usize> {
        match &self.step {
            StagedStep::Coming { into, received, .. } => Some(into.bytes() - received),
            _ => None,
        }
    }

    /// So many bytes have arrived in the block. The GPU copies a block once it is full, and the last one.
    pub(super) fn came(&mut self, bytes: usize) -> Result<(), Broken> {
        let StagedStep::Coming { into, received, .. } = &mut self.step else { return Ok(()) };
        let Some((block, filled)) = &mut self.filling else { return Ok(()) };
        *received += bytes;
        *filled += bytes;
        if *filled == block.len() || *received == into.bytes() {
            let piece = slice(into, *received - *filled, *filled)?;
            self.held.push_back(HeldWork::Copy(self.blocks.copy_in(block, piece).map_err(broken)?));
            self.filling = None;
        }
        Ok(())
    }

    /// Begins copies of the answer for as long as there are free blocks. Returns the part that can be sent now.
    fn copied(&mut self) -> Result<Option<VolatileSlice<'_>>, Broken> {
        if let StagedStep::Leaving { from, asked, .. } = &mut self.step {
            while *asked < from.bytes()
                && let Some(block) = self.blocks.take()
            {
                let bytes = block.len().min(from.bytes() - *asked);
                let copy = self.blocks.copy_out(slice(from, *asked, bytes)?, &block).map_err(broken)?;
                self.leaving.push_back((copy, bytes, 0));
                *asked += bytes;
            }
        }
        let Some((copy, bytes, sent)) = self.leaving.front_mut() else { return Ok(None) };
        let is_copied = copy.is_done().map_err(broken)?;
        Ok(is_copied.then(|| copy.block.as_volatile().subslice(*sent, *bytes - *sent)))
    }

    /// So many bytes of the answer are sent. True if that was all of it.
    fn left(&mut self, count: usize) -> bool {
        let StagedStep::Leaving { from, sent, .. } = &mut self.step else { return true };
        *sent += count;
        let is_over = *sent == from.bytes();
        if let Some((_, bytes, of_block)) = self.leaving.front_mut() {
            *of_block += count;
            if of_block == bytes
                && let Some((copy, ..)) = self.leaving.pop_front()
            {
                self.blocks.give_back(copy.block);
            }
        }
        if is_over {
            self.step = StagedStep::None;
        }
        is_over
    }
}

impl Target {
    /// True while a GPU copies for the lane: it has to be looked at again, even if the system reports no event.
    pub(in super::super) fn is_copying(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| !gpu.held.is_empty() || !gpu.leaving.is_empty())
    }

    /// True while requests are held.
    pub(in super::super) fn is_holding(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| !gpu.held.is_empty())
    }

    /// Carries out held requests that need not wait any more.
    pub(super) fn release_held(&mut self) -> Result<(), Broken> {
        while let Some(gpu) = &mut self.gpu {
            if let Some(HeldWork::Copy(copy)) = gpu.held.front_mut()
                && !copy.is_done().map_err(broken)?
            {
                return Ok(());
            }
            match gpu.held.pop_front() {
                None => return Ok(()),
                Some(HeldWork::Copy(copy)) => gpu.blocks.give_back(copy.block),
                Some(HeldWork::Done { sequence, answer, notify }) => self.done(sequence, answer, notify),
                Some(HeldWork::Words(request, span)) => {
                    mem::fence(Ordering::Release);
                    request.store_words(&memory(&self.connection, &span));
                    self.done(request.sequence, request.answer, request.notify);
                }
            }
        }
        Ok(())
    }

    /// Holds words for a span of host memory, or a request for an answer alone, behind copies. If there is no room,
    /// returns the event to wait for.
    pub(super) fn hold(&mut self, request: &Request, len: usize, span: Option<Span>) -> Option<Wants> {
        let held = self.gpu.as_mut().map(|gpu| &mut gpu.held).filter(|held| held.len() < MAX_HELD);
        let Some(held) = held else { return Some(Wants::Copies) };
        let Request { sequence, answer, notify, .. } = *request;
        held.push_back(match span {
            Some(span) => HeldWork::Words(Box::new(*request), span),
            None => HeldWork::Done { sequence, answer, notify },
        });
        self.begin(request, len);
        None
    }

    /// Carries out, or begins, a request for memory of a GPU. If it cannot begin yet, returns the event to wait for.
    pub(super) fn carry_out_on_gpu(
        &mut self,
        request: &Request,
        len: usize,
        span: &Span,
        grant: &GpuSlice,
    ) -> Result<Option<Wants>, Broken> {
        if self.gpu.is_none() {
            let of_gpu = |memory: &PayloadSlice| match memory {
                PayloadSlice::Gpu(slice) => Some(slice.bytes()),
                PayloadSlice::Host(_) => None,
            };
            let longest = self.connection.memory.iter().filter_map(of_gpu).max();
            self.gpu = Some(Box::new(self.staged(longest.unwrap_or(grant.bytes()))?));
        }
        let is_holding = self.is_holding();
        let Some(gpu) = &mut self.gpu else { return Err(NOT_COPIED) };
        let memory = slice(grant, span.offset, span.bytes)?;
        let Request { sequence, answer, notify, .. } = *request;
        let done = HeldWork::Done { sequence, answer, notify };
        match request.kind {
            Kind::Write | Kind::Words if gpu.held.len() >= MAX_HELD => return Ok(Some(Wants::Copies)),
            Kind::Write | Kind::Words if span.bytes == 0 => gpu.held.push_back(done),
            Kind::Write => {
                gpu.step = StagedStep::Coming { into: memory, received: 0, answer, notify };
                self.state = ServeStep::OnGpu;
            }
            // A short payload that travelled with its header.
            Kind::Words => {
                let Some(block) = gpu.blocks.take() else { return Ok(Some(Wants::Copies)) };
                request.store_words(&block.as_volatile());
                gpu.held.push_back(HeldWork::Copy(gpu.blocks.copy_in(&block, memory).map_err(broken)?));
                gpu.held.push_back(done);
            }
            _ if is_holding => return Ok(Some(Wants::Copies)),
            Kind::Read if !self.out_end.is_multiple_of(8) => return Ok(Some(Wants::Output)),
            // There is nothing to copy for it.
            Kind::Read if span.bytes == 0 => {}
            Kind::Read => {
                gpu.step = StagedStep::Leaving { from: memory, asked: 0, sent: 0 };
                self.state = ServeStep::OnGpu;
            }
            // Words that are counted are never on a GPU.
            Kind::FetchAdd | Kind::CompareSwap | Kind::Nothing => {
                self.begin(request, len);
                self.refuse();
                return Ok(None);
            }
        }
        self.begin(request, len);
        if request.kind == Kind::Read {
            if span.bytes > SHORT_BYTES {
                self.answer(Response::Data { sequence, bytes: request.bytes });
            } else if span.bytes == 0 {
                self.answer(Response::ShortData { sequence, bytes: 0, checksum: checksum(&[]) });
            }
        }
        Ok(None)
    }

    fn staged(&self, longest: usize) -> Result<StagedServing, Broken> {
        let gpu = self.connection.gpu.as_ref().ok_or(NOT_COPIED)?;
        let blocks = blocks(gpu, longest).map_err(broken)?;
        let (held, leaving) = (VecDeque::with_capacity(MAX_HELD), VecDeque::new());
        Ok(StagedServing { blocks, step: StagedStep::None, filling: None, held, leaving })
    }

    /// Takes the payload's bytes from the inbox. If they are not complete, returns the event to wait for.
    pub(super) fn digest_on_gpu(&mut self) -> Result<Option<Wants>, Broken> {
        while let Some(gpu) = &mut self.gpu
            && let Some(missing) = gpu.missing()
        {
            if missing == 0 {
                if let StagedStep::Coming { answer, notify, .. } = gpu.step {
                    let sequence = self.sequence;
                    gpu.held.push_back(HeldWork::Done { sequence, answer, notify });
                }
                gpu.step = StagedStep::None;
                self.state = ServeStep::Header;
                return Ok(None);
            }
            if self.begin == self.end {
                self.compact();
                return Ok(Some(Wants::Input));
            }
            let Some(room) = gpu.room(missing) else { return Ok(Some(Wants::Copies)) };
            let taken = room.len().min(self.end - self.begin);
            room.subslice(0, taken).write(&self.inbox.0[self.begin..self.begin + taken]);
            self.begin += taken;
            gpu.came(taken)?;
        }
        Ok(Some(Wants::Output))
    }

    /// True while an answer goes out of memory of a GPU.
    pub(super) fn is_leaving_gpu(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| matches!(gpu.step, StagedStep::Leaving { .. }))
    }

    /// Sends waiting bytes and the copied part of an answer, as far as they fit. Returns how the turn ends, if it
    /// ends here.
    pub(super) fn flush_from_gpu(&mut self, budget: &mut usize) -> Result<Option<ServeOutcome>, Broken> {
        let Some(gpu) = &mut self.gpu else { return Ok(None) };
        let StagedStep::Leaving { from, .. } = &gpu.step else { return Ok(None) };
        let is_short = from.bytes() <= SHORT_BYTES;
        let waiting = VolatileSlice::from_ref(&self.outbox.0[self.out_begin..self.out_end]);
        let copied = gpu.copied()?;
        if is_short && let Some(payload) = copied {
            // It is told together with its checksum.
            let (sequence, bytes, begin) = (self.sequence, payload.len(), self.out_end + RESPONSE_BYTES);
            let answer = &mut self.outbox.0[begin..begin + bytes];
            payload.read(answer);
            let checksum = checksum(answer);
            gpu.left(bytes);
            self.state = ServeStep::Header;
            self.answer(Response::ShortData { sequence, bytes: bytes as u32, checksum });
            self.out_end += bytes;
            return Ok(None);
        }
        let pieces = [waiting, copied.unwrap_or(VolatileSlice::from_ref(&[]))];
        if pieces.iter().all(|piece| piece.is_empty()) {
            return Ok(Some(ServeOutcome::Copying));
        }
        if *budget == 0 {
            return Ok(Some(ServeOutcome::More));
        }
        let in_outbox = waiting.len();
        let bytes = match self.socket.send(&pieces)? {
            super::Moved::Bytes(bytes) => bytes,
            super::Moved::Nothing => return Ok(Some(ServeOutcome::Blocked)),
        };
        *budget = budget.saturating_sub(bytes);
        self.out_begin += bytes.min(in_outbox);
        if self.out_begin == self.out_end {
            (self.out_begin, self.out_end) = (0, 0);
        }
        if bytes > in_outbox && gpu.left(bytes - in_outbox) {
            self.state = ServeStep::Header;
        }
        Ok(None)
    }
}

fn slice(memory: &GpuSlice, offset: usize, bytes: usize) -> Result<GpuSlice, Broken> {
    let outside = |error: OutOfBounds| broken(GpuError::Host { reason: error.to_string() });
    memory.slice(offset, bytes).map_err(outside)
}

fn broken(error: GpuError) -> Broken {
    tracing::warn!(%error, "a payload for memory of a GPU, or from it, is not copied");
    NOT_COPIED
}
