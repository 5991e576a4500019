//! A version on its way: planned, folded chunk by chunk, and made the newest.

use std::sync::atomic::AtomicBool;

use super::{FoldSource, Server};
use crate::clock::Version;
use crate::mem::streaming_threshold;
use crate::node::Error;
use crate::node::aggregate::{FoldArray, FoldJob, Input, Measured};
use crate::node::shard::Shard;
use crate::scheme::{ServerEvent, Share, Statistics};
use crate::table::Encoding;
use crate::time::Instant;
use crate::transport::{PayloadMemory, Transport};

/// Chunks that one poll folds at most.
const CHUNKS_PER_TURN: usize = 16;

impl<T: Transport> Server<T> {
    /// Plans the next fold; memory is touched once the first chunk has arrived.
    pub(super) fn plan(&mut self) {
        self.abandon();
        std::mem::swap(&mut self.work.shares, &mut self.shares);
        // A share of a worker that is not in has nothing to be folded.
        let (mut shares, mut sources) =
            (std::mem::take(&mut self.work.shares), std::mem::take(&mut self.work.sources));
        shares.retain(|share| {
            let source = share.gradient.worker.peer().and_then(|peer| self.source(peer));
            let is_in = source.is_some();
            sources.extend(source);
            is_in
        });
        (self.work.shares, self.work.sources) = (shares, sources);
    }

    /// Throws away the fold that was begun. Its frame is written again by the next.
    pub(super) fn abandon(&mut self) {
        self.folder.end();
        self.work.shares.clear();
        self.work.sources.clear();
        self.work.bound = false;
    }

    /// Works on the planned fold as far as its gradients have come. True if it got anywhere.
    pub(super) fn fold(&mut self, now: Instant) -> Result<bool, Error> {
        // Without shares an `Apply` is a step on a gradient of zero, and without an `Apply` there is nothing to do.
        if self.work.shares.is_empty() && !self.work.bound {
            return Ok(false);
        }
        if !self.folder.is_running() && !self.begin_fold()? {
            return Ok(false);
        }
        let moved = self.folder.advance(self.shard.runtime.steps(CHUNKS_PER_TURN))?;
        if !self.work.bound || !self.folder.is_complete() {
            return Ok(moved);
        }
        if !self.folder.is_finite() {
            let Some(found) = self.folder.non_finite()? else { return Ok(moved) };
            if self.leave_out(found, now)? {
                return Ok(true);
            }
        }
        self.finish_fold(now);
        Ok(true)
    }

    /// Begins to fold if the first chunk has come from every worker of the fold and a frame is free.
    fn begin_fold(&mut self) -> Result<bool, Error> {
        let mut sources = self.work.shares.iter().zip(&self.work.sources);
        let has_begun = |(share, FoldSource { inbox, .. }): (&Share, &FoldSource)| {
            let clock = share.gradient.clock;
            inbox.landed(clock) > 0 || inbox.published() > clock
        };
        if !self.folder.is_quiet()? {
            return Ok(false);
        }
        // A fold that counts was announced whole: that is not asked again, since a worker can take it back.
        if !self.work.bound && !sources.all(has_begun) {
            return Ok(false);
        }
        let checkpoints = self.checkpoints.as_ref();
        // The states to be written are being copied for a checkpoint: look again at the next poll.
        if !self.states.is_empty() && checkpoints.is_some_and(|writer| writer.holds_states(1 - self.current))
        {
            return Ok(false);
        }
        let version = self.shard.next_version()?;
        let frame = match self.work.frame {
            Some(frame) => {
                self.shard.frames.restart(frame, version);
                frame
            }
            None => {
                let peers = &self.shard.peers;
                let is_pinned = |frame| {
                    Shard::<T>::is_pinned(peers, frame)
                        || checkpoints.is_some_and(|writer| writer.holds_frame(frame))
                };
                match self.shard.frames.begin(version, is_pinned) {
                    Ok(frame) => frame,
                    // Readers pin all other frames: look again at the next poll.
                    Err(crate::param::Pinned) => return Ok(false),
                }
            }
        };
        self.work.frame = Some(frame);
        self.start_job(frame, version)?;
        // Peers that wait for the version follow the fold.
        self.shard.note_news();
        Ok(true)
    }

    pub(super) fn start_job(&mut self, frame: u8, version: Version) -> Result<(), Error> {
        let frames = &self.shard.frames;
        let parameters = FoldArray { from: frames.payload(frames.latest().frame), to: frames.payload(frame) };
        let progress = frames.progress(frame);
        let chunk_bytes = frames.geometry().chunk_bytes as usize;
        let streaming = frames.geometry().payload_bytes as usize >= streaming_threshold();
        if !self.work.bound {
            self.work.learning_rate = self.next_rate();
        }
        let (optimizer, learning_rate, current) = (self.optimizer, self.work.learning_rate, self.current);
        let chunks = frames.geometry().chunks();
        let measures = self.measures_moments;
        // All workers of a server publish in one encoding: others are not admitted.
        let geometry = |source: &FoldSource| source.inbox.slot_geometry().map(|slots| slots.encoding);
        let encoding = self.work.sources.iter().find_map(geometry).unwrap_or(Encoding::F32);
        let (states, work) = (&self.states, &self.work);
        self.folder.begin(&mut |old| {
            // The vectors of the last job are used again.
            let (mut inputs, mut stages, measured) =
                old.map_or_else(Default::default, |old| (old.inputs, old.states, old.measured));
            let mut measured: Measured = measured.unwrap_or_default();
            if measures {
                measured.resize(chunks);
            }
            inputs.clear();
            stages.clear();
            for (share, FoldSource { inbox, .. }) in work.shares.iter().zip(&work.sources) {
                let (gradient, clock) = (share.gradient, share.gradient.clock);
                let Some(payload) = inbox.payload(clock) else { continue };
                if work.left_out.contains(&gradient) {
                    continue;
                }
                inputs.push(Input { gradient, inbox: inbox.clone(), clock, payload, weight: share.weight });
            }
            for state in states {
                let whole = |memory: &PayloadMemory| memory.slice(0, memory.len());
                stages.push(FoldArray { from: whole(&state[current])?, to: whole(&state[1 - current])? });
            }
            Ok(FoldJob {
                inputs,
                encoding,
                optimizer,
                learning_rate,
                step: version.get(),
                parameters: parameters.clone(),
                states: stages,
                chunk_bytes,
                streaming,
                progress: Some(progress.clone()),
                bound: AtomicBool::new(false),
                measured: measures.then_some(measured),
            })
        })?;
        if self.work.bound {
            self.folder.bind(self.metadata());
        }
        Ok(())
    }

    /// All chunks are folded and all gradients announced: the frame becomes the newest version.
    pub(super) fn finish_fold(&mut self, now: Instant) {
        let version = self.shard.frames.latest().version.next();
        let moments = self.folder.moments();
        let (mean_norm_squared, variance) = moments.map_or((None, None), |moments| moments.statistics());
        let metadata = self.metadata();
        // Sums over several workers vary less than the gradient of one.
        let variance = variance.filter(|_| metadata.workers == self.work.shares.len() as u64);
        let learning_rate = self.optimizer.step_of_sgd(self.work.learning_rate);
        let statistics = Statistics { mean_norm_squared, variance, loss: metadata.loss, learning_rate };
        let statistics = self.of_all_shards(statistics);
        self.status.gradients = 0;
        self.status.loss = statistics.loss.or(self.status.loss);
        self.status.mean_norm_squared = mean_norm_squared.or(self.status.mean_norm_squared);
        self.status.variance = variance.or(self.status.variance);
        self.folder.end();
        // The scheme learns of it first, so that the frame can say which clocks it holds; no other process can see
        // the version before the commit, and nothing is asked of the scheme in between.
        self.scheme.handle_event(now, ServerEvent::Applied { version, statistics });
        let clock = self.smallest_clock();
        for (share, source) in self.work.shares.iter().zip(&self.work.sources) {
            match self.work.left_out.contains(&share.gradient) {
                true => self.status.dropped += 1,
                false => {
                    let header = source.inbox.header_again(share.gradient.clock, self.shard.frames.epoch());
                    let base = header.map_or(version, |header| header.base);
                    let workers = 1 + self.others(source, header);
                    self.status.gradients = self.status.gradients.saturating_add(workers);
                    self.status.count_folded(workers, base, version);
                }
            }
            self.shard.taken.apply(source.identity, share.gradient.clock);
            let index = share.gradient.worker.index();
            // Another worker may have the index by now.
            let is_same =
                self.shard.peers[index].as_ref().is_some_and(|peer| peer.generation == source.generation);
            if let (true, Some(state)) = (is_same, &mut self.workers[index]) {
                state.consume(share.gradient.clock);
            }
        }
        if let Some(frame) = self.work.frame.take() {
            for (state, index) in self.workers.iter().zip(0..) {
                if let Some(state) = state {
                    self.shard.frames.set_included(frame, index, state.consumed);
                }
            }
            self.shard.frames.commit(frame, version, clock);
            self.shard.note_news();
        }
        self.say_clock(clock);
        self.announced_clock = clock;
        self.current = 1 - self.current;
        self.work.bound = false;
        self.release_peers();
        // The workers' slots are released once the new version can be read.
        for share in &self.work.shares {
            let worker = share.gradient.worker;
            if let (Some(state), Some(peer)) = (&self.workers[worker.index()], worker.peer()) {
                self.shard.set_consumed(peer, state.consumed);
            }
        }
        std::mem::swap(&mut self.newest, &mut self.work.shares);
        self.work.shares.clear();
        self.work.sources.clear();
        self.work.left_out.clear();
        if self.following.is_some() {
            // The decisions do not tell which versions the decider pushes. A worker that has got one of them waits
            // for it here.
            (0..self.shard.peers.len() as u16).for_each(|peer| self.push_to(peer));
        }
    }

    /// The smallest clock can move without a version: when a worker leaves, or a gradient is dropped.
    pub(super) fn announce_clock(&mut self) {
        let clock = self.smallest_clock();
        if clock != self.announced_clock && !self.work.bound {
            // A worker may follow a fold that was begun in hope, and that never ends if a gradient of it does not come.
            // Once the frame is given up the worker looks at this clock, and the fold begins again if it still can.
            if let Some(frame) = self.work.frame.take() {
                self.folder.end();
                self.shard.frames.abandon(frame);
            }
            self.say_clock(clock);
            self.announced_clock = clock;
            self.shard.frames.set_smallest_clock(clock);
            self.shard.note_news();
        }
    }
}
