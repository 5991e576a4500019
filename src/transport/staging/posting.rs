//! Requests of an endpoint whose local memory is on a GPU. Where the lane below, one of TCP or the queue pairs of a
//! connection by RDMA, carries memory of the GPU itself, it is given them as they are. Where it does not, they are cut
//! into blocks of host memory, which it sends and receives.
//!
//! Requests take effect in the order of posting. A request that the lane carries itself is posted to it once the GPU
//! has done the work before it, in pieces where the memory is registered in pieces. A staged WRITE from a GPU is sent
//! block by block, each once its copy is done. Requests behind either are held until then; meanwhile the copies of
//! later blocks, also of later requests, are begun. A READ to a GPU is complete once the copy of its last block is,
//! or once kernels see what the lane has written. Nothing here waits.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::{StagedCopy, StagedLane, StagingBlocks};
use crate::cuda::{Gpu, GpuError, GpuSlice, Tickets};
use crate::mem::{LocalSlice, OutOfBounds, RemoteSlice, Streaming};
use crate::transport::{
    CompletionError, Flags, Operation, PostError, WorkCompletion, WorkRequest, WorkRequestId,
};

/// Requests that are handed to the lane with one call.
const BATCH: usize = 8;

/// The requests of an endpoint that has a GPU, all of which pass through here.
pub(in crate::transport) struct StagedPosting {
    gpu: Gpu,
    /// Made for the first request that needs them.
    blocks: Option<StagingBlocks>,
    /// The longest range that the peer has granted.
    longest: usize,
    depth: usize,
    /// Requests that are not complete, in order, and the number of the first.
    queue: VecDeque<StagedRequest>,
    first: u64,
    /// The number of the request of which a piece is begun next.
    next: u64,
    /// Pieces that are begun and not posted, in order.
    begun: VecDeque<LanePiece>,
    /// Pieces on the lane, in order.
    posted: VecDeque<LanePiece>,
    /// Copies to the GPU, and the numbers of their requests.
    copying: VecDeque<(u64, StagedCopy)>,
}

struct StagedRequest {
    request: WorkRequest,
    /// Bytes of it for which a piece is begun.
    begun: usize,
    /// Pieces that are begun and not done.
    pieces: usize,
    /// Its remaining part goes through blocks: the lane does not carry its memory itself.
    is_staged: bool,
    error: Option<CompletionError>,
}

/// The part of a request that the lane carries with one request of its own.
struct LanePiece {
    number: u64,
    flags: Flags,
    work: PieceWork,
}

enum PieceWork {
    /// A request as it is.
    Whole,
    /// One whose memory of a GPU the lane carries itself, once the work before it is done.
    Direct { before: Tickets, operation: Operation },
    /// A block, once the GPU has filled it.
    Write { copy: StagedCopy, remote: RemoteSlice },
    /// A block, and where its bytes go then.
    Read { block: LocalSlice, remote: RemoteSlice, into: GpuSlice },
}

impl StagedPosting {
    /// Requests to a peer whose longest grant has `longest` bytes; `None` in a library without GPUs.
    pub(in crate::transport) fn new(gpu: &Gpu, longest: usize, depth: usize) -> Option<Box<StagedPosting>> {
        Some(Box::new(StagedPosting {
            gpu: gpu.clone(),
            blocks: None,
            longest,
            depth,
            queue: VecDeque::new(),
            first: 0,
            next: 0,
            begun: VecDeque::new(),
            posted: VecDeque::new(),
            copying: VecDeque::new(),
        }))
    }

    /// True if no request is under way.
    pub(in crate::transport) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// The copies that its requests wait for, while the lane carries nothing.
    pub(in crate::transport) fn awaited_copies(&self) -> Option<&Tickets> {
        let begun = || match &self.begun.front()?.work {
            PieceWork::Direct { before, .. } => Some(before),
            PieceWork::Write { copy, .. } => Some(copy.tickets()),
            PieceWork::Whole | PieceWork::Read { .. } => None,
        };
        let copying = self.copying.front().map(|(_, copy)| copy.tickets());
        if self.posted.is_empty() { copying.or_else(begun) } else { None }
    }

    /// Takes a batch that was checked, all or nothing.
    pub(in crate::transport) fn post(
        &mut self,
        lane: &mut impl StagedLane,
        batch: &[WorkRequest],
    ) -> Result<(), PostError> {
        if self.queue.len() + batch.len() > self.depth {
            self.advance(lane);
            while self.front_is_silent() {
                self.pop();
            }
            let free = self.depth - self.queue.len();
            if batch.len() > free {
                return Err(PostError::QueueFull { free, batch: batch.len() });
            }
        }
        let taken = |request: &WorkRequest| StagedRequest {
            request: request.clone(),
            begun: 0,
            pieces: 0,
            is_staged: false,
            error: None,
        };
        self.queue.extend(batch.iter().map(taken));
        self.advance(lane);
        Ok(())
    }

    /// The next completion, if there is one.
    pub(in crate::transport) fn poll(&mut self, lane: &mut impl StagedLane) -> Option<WorkCompletion> {
        if self.queue.is_empty() {
            return None;
        }
        self.advance(lane);
        while self.front_is_over() {
            let StagedRequest { request, error, .. } = self.pop()?;
            if error.is_some() || request.flags.contains(Flags::SIGNALLED) {
                return Some(WorkCompletion { id: request.id, result: error.map_or(Ok(()), Err) });
            }
        }
        None
    }

    fn front_is_over(&self) -> bool {
        self.first < self.next && self.queue.front().is_some_and(|request| request.pieces == 0)
    }

    fn front_is_silent(&self) -> bool {
        let is_silent = |request: &StagedRequest| {
            request.error.is_none() && !request.request.flags.contains(Flags::SIGNALLED)
        };
        self.front_is_over() && self.queue.front().is_some_and(is_silent)
    }

    fn pop(&mut self) -> Option<StagedRequest> {
        let request = self.queue.pop_front()?;
        self.first += 1;
        Some(request)
    }

    /// Processes the completions of the lane and the GPU, and continues the requests that waited for them.
    pub(in crate::transport) fn advance(&mut self, lane: &mut impl StagedLane) {
        let moved = self.take_completions(lane).and_then(|()| self.take_copies());
        let moved = moved.and_then(|()| self.begin(lane)).and_then(|()| self.post_begun(lane));
        if let Err((number, error)) = moved {
            tracing::warn!(%error, "a payload of a GPU is not sent or received");
            self.cut(number, CompletionError::Gpu);
            lane.fail();
        }
        if lane.is_over() && self.posted.is_empty() {
            let unposted = self.begun.front().map_or(self.next, |piece| piece.number);
            self.cut(unposted, CompletionError::Flushed);
        }
    }

    /// Takes the completions of the lane, which completes its requests in order.
    fn take_completions(&mut self, lane: &mut impl StagedLane) -> Result<(), (u64, GpuError)> {
        let mut is_written = false;
        let taken = self.take_pieces(lane, &mut is_written);
        let seen = if is_written { lane.see(&self.gpu) } else { Ok(()) };
        taken.and(seen.map_err(|error| (self.first, error)))
    }

    /// The same; and whether the lane has written to the GPU.
    fn take_pieces(
        &mut self,
        lane: &mut impl StagedLane,
        is_written: &mut bool,
    ) -> Result<(), (u64, GpuError)> {
        while let Some(completion) = lane.poll() {
            // A piece that is not in this queue any more was given up with an earlier request.
            let Some(LanePiece { number, work, .. }) = self.posted.pop_front() else { continue };
            if let Err(error) = completion.result {
                self.tell(number, error);
                self.finish_piece(number);
                continue;
            }
            match work {
                PieceWork::Read { block, into, .. } if !self.has_failed(number) => {
                    let blocks = self.blocks.as_mut().ok_or((number, GpuError::Empty))?;
                    let copy = blocks.copy_in(&block, into).map_err(|error| (number, error))?;
                    self.copying.push_back((number, copy));
                    continue;
                }
                PieceWork::Write { copy, .. } => {
                    self.blocks.iter_mut().for_each(|blocks| blocks.give_back(copy.block.clone()));
                }
                PieceWork::Direct { .. } => *is_written |= self.reads(number),
                _ => {}
            }
            self.finish_piece(number);
        }
        Ok(())
    }

    /// Takes the copies to the GPU that are done.
    fn take_copies(&mut self) -> Result<(), (u64, GpuError)> {
        while let Some((number, copy)) = self.copying.front_mut() {
            let number = *number;
            if !copy.is_done().map_err(|error| (number, error))? {
                break;
            }
            if let (Some((_, copy)), Some(blocks)) = (self.copying.pop_front(), &mut self.blocks) {
                blocks.give_back(copy.block);
            }
            self.finish_piece(number);
        }
        Ok(())
    }

    /// A piece of a request has failed, or was flushed behind a failed one: the request completes with that failure,
    /// and its copies are not awaited.
    fn tell(&mut self, number: u64, error: CompletionError) {
        let Some(request) = self.queue.get_mut((number - self.first) as usize) else { return };
        if matches!(request.error, None | Some(CompletionError::Flushed)) {
            request.error = Some(error);
        }
        let copying = self.copying.len();
        self.copying.retain(|(of, _)| *of != number);
        request.pieces -= copying - self.copying.len();
    }

    /// Whether the request brings something to the GPU.
    fn reads(&self, number: u64) -> bool {
        let request = self.queue.get((number - self.first) as usize);
        request.is_some_and(|request| request.request.operation.is_read())
    }

    fn has_failed(&self, number: u64) -> bool {
        self.queue.get((number - self.first) as usize).is_some_and(|request| request.error.is_some())
    }

    fn finish_piece(&mut self, number: u64) {
        if let Some(request) = self.queue.get_mut((number - self.first) as usize) {
            request.pieces -= 1;
        }
    }

    /// Begins pieces, in order, for as long as there are blocks.
    fn begin(&mut self, lane: &impl StagedLane) -> Result<(), (u64, GpuError)> {
        // One ticket for the WRITEs that are begun here, and one for the READs.
        let mut marks: [Option<Tickets>; 2] = [None, None];
        loop {
            let number = self.next;
            let index = (number - self.first) as usize;
            let Some(request) = self.queue.get(index) else { return Ok(()) };
            let flags = request.request.flags;
            // The lane itself keeps a fenced request behind earlier ones, except behind copies. Pieces of a request
            // carry no fence: each piece would wait for the pieces before it, and a lane that stripes would let later
            // pieces pass the first.
            let waits_for: fn(&Operation) -> bool = match request.request.operation {
                Operation::ReadToGpu { .. } | Operation::WriteFromGpu { .. } => Operation::brings,
                _ => |operation| matches!(operation, Operation::ReadToGpu { .. }),
            };
            let is_under_way =
                |before: &StagedRequest| before.pieces > 0 && waits_for(&before.request.operation);
            let is_fenced = flags.contains(Flags::FENCE) && !mutant!("staged_fence");
            if is_fenced && self.queue.range(..index).any(is_under_way) {
                return Ok(());
            }
            let Some(request) = self.queue.get_mut(index) else { return Ok(()) };
            let (gpu, remote, reads) = match &request.request.operation {
                Operation::ReadToGpu { local, remote } => (local, remote, true),
                Operation::WriteFromGpu { local, remote } => (local, remote, false),
                _ => {
                    request.pieces = 1;
                    self.next += 1;
                    let flags = flags | Flags::SIGNALLED;
                    self.begun.push_back(LanePiece { number, flags, work: PieceWork::Whole });
                    continue;
                }
            };
            if request.begun == gpu.bytes() {
                self.next += 1;
                continue;
            }
            let failed = |error| (number, error);
            let outside = |error: OutOfBounds| (number, GpuError::Host { reason: error.to_string() });
            let begun = request.begun;
            let cut = |bytes: usize| -> Result<(GpuSlice, RemoteSlice), (u64, GpuError)> {
                let remote = remote.slice(begun as u64, bytes as u64).map_err(outside)?;
                Ok((gpu.slice(begun, bytes).map_err(outside)?, remote))
            };
            let left = gpu.bytes() - begun;
            let flags_of =
                |bytes| Flags::SIGNALLED | if bytes == left { flags & Flags::NOTIFY } else { Flags::empty() };
            let reached = match request.is_staged {
                true => 0,
                false => lane.reaches(&cut(left)?.0).map_err(failed)?,
            };
            if reached > 0 {
                let (local, remote) = cut(reached)?;
                let operation = match reads {
                    true => Operation::ReadToGpu { local, remote },
                    false => Operation::WriteFromGpu { local, remote },
                };
                let piece = WorkRequest::signalled(number, operation);
                if lane.parts(&piece) <= self.depth {
                    let mark = &mut marks[usize::from(reads)];
                    if mark.is_none() {
                        let mut before = Tickets::default();
                        self.gpu.mark(gpu, reads, &mut before).map_err(failed)?;
                        *mark = Some(before);
                    }
                    let before = mark.clone().filter(|_| !mutant!("direct_before_its_ticket"));
                    let (before, operation) = (before.unwrap_or_default(), piece.operation);
                    let (flags, work) = (flags_of(reached), PieceWork::Direct { before, operation });
                    request.begun += reached;
                    request.pieces += 1;
                    self.begun.push_back(LanePiece { number, flags, work });
                    continue;
                }
                if self.gpu.requires_gpudirect() {
                    let reason =
                        "the queue is shorter than a request that may not be staged: ask for a longer one";
                    return Err(failed(GpuError::NotDirect { bytes: reached, reason: reason.into() }));
                }
            }
            request.is_staged = true;
            let blocks = match &mut self.blocks {
                Some(blocks) => blocks,
                none => none.insert(lane.blocks(&self.gpu, self.longest).map_err(failed)?),
            };
            let Some(block) = blocks.take() else { return Ok(()) };
            let bytes = block.len().min(left);
            let (local, remote) = cut(bytes)?;
            let flags = flags_of(bytes);
            let work = match reads {
                true => PieceWork::Read { block, remote, into: local },
                false => PieceWork::Write { copy: blocks.copy_out(local, &block).map_err(failed)?, remote },
            };
            request.begun += bytes;
            request.pieces += 1;
            self.begun.push_back(LanePiece { number, flags, work });
        }
    }

    /// Posts the pieces to the lane that need not wait for a copy.
    fn post_begun(&mut self, lane: &mut impl StagedLane) -> Result<(), (u64, GpuError)> {
        loop {
            let mut batch = SmallVec::<[WorkRequest; BATCH]>::new();
            let (mut room, mut ended) = (lane.free(), Ok(()));
            while batch.len() < BATCH {
                match self.copied(batch.len()) {
                    Ok(Some(request)) => {
                        let parts = lane.parts(&request);
                        if parts > room {
                            break;
                        }
                        room -= parts;
                        batch.push(request);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        ended = Err(error);
                        break;
                    }
                }
            }
            // Pieces before a failure are posted, too: the lane has to complete them.
            let Some(WorkRequest { id: WorkRequestId(first), .. }) = batch.first() else { return ended };
            match lane.post(&batch) {
                Ok(()) => {
                    for piece in self.begun.drain(..batch.len()) {
                        if let (PieceWork::Write { copy, .. }, Some(blocks)) = (&piece.work, &mut self.blocks)
                            && mutant!("staging_block_before_written")
                        {
                            blocks.give_back(copy.block.clone());
                        }
                        self.posted.push_back(piece);
                    }
                }
                Err(PostError::QueueFull { .. }) => return ended,
                // The lane is over. Whether it tells of any of the batch does not matter: the owner hears of it here.
                Err(_) => {
                    let first = *first;
                    self.cut(first, CompletionError::Flushed);
                    return ended;
                }
            }
            if ended.is_err() || batch.len() < BATCH {
                return ended;
            }
        }
    }

    /// The begun piece at this index, as a request for the lane, if it need not wait for a copy.
    fn copied(&mut self, index: usize) -> Result<Option<WorkRequest>, (u64, GpuError)> {
        let Some(LanePiece { number, flags, work }) = self.begun.get_mut(index) else { return Ok(None) };
        let failed = |error| (*number, error);
        if let PieceWork::Write { copy, .. } = work
            && !copy.is_done().map_err(failed)?
        {
            return Ok(None);
        }
        if let PieceWork::Direct { before, .. } = work
            && !before.are_done().map_err(failed)?
        {
            return Ok(None);
        }
        let cut = |block: &LocalSlice, remote: &RemoteSlice| {
            let outside = |error: OutOfBounds| failed(GpuError::Host { reason: error.to_string() });
            block.slice(0, remote.len as usize).map_err(outside)
        };
        let streaming = Streaming::ByLength;
        let operation = match work {
            PieceWork::Whole => self.queue[(*number - self.first) as usize].request.operation.clone(),
            PieceWork::Direct { operation, .. } => operation.clone(),
            PieceWork::Write { copy, remote } => {
                Operation::Write { local: cut(&copy.block, remote)?, remote: *remote, streaming }
            }
            PieceWork::Read { block, remote, .. } => {
                Operation::Read { local: cut(block, remote)?, remote: *remote, streaming }
            }
        };
        Ok(Some(WorkRequest { id: WorkRequestId(*number), operation, flags: *flags }))
    }

    /// Gives up the requests from this number on: the first of them has failed, and the others are flushed.
    fn cut(&mut self, number: u64, error: CompletionError) {
        for (at, request) in (self.first..).zip(&mut self.queue) {
            if at >= number {
                request.pieces = 0;
                request.error.get_or_insert(if at == number { error } else { CompletionError::Flushed });
            }
        }
        self.begun.retain(|piece| piece.number < number);
        self.posted.retain(|piece| piece.number < number);
        self.copying.retain(|(of, _)| *of < number);
        self.next = self.first + self.queue.len() as u64;
    }
}
