//! Aggregation: one pass over memory that sums gradients and steps the optimiser, chunk by chunk, on as many threads
//! as asked.
//!
//! Chunk `i` always belongs to thread `i mod threads`, so its memory stays with one core (Luo et al., PHub, SoCC
//! 2018). A chunk is folded as soon as it has landed from all workers of the job; the job as a whole counts only once
//! all their gradients are announced, and until then it can be thrown away: parameters and optimiser state are
//! written to other memory than they are read from.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use crossbeam::utils::CachePadded;
use smallvec::SmallVec;

use super::{Backoff, Error, surroundings};
use crate::clock::Clock;
use crate::kernel::{Fold, FoldError, Gradient, Moments, Optimizer, Pass};
use crate::mem::{LocalSlice, OutOfBounds};
use crate::param::{Desk, Progress};
use crate::table::ElementType;

/// One gradient of a job.
pub(super) struct Input {
    pub(super) desk: Desk,
    pub(super) clock: Clock,
    pub(super) payload: LocalSlice,
    pub(super) weight: f32,
}

impl Input {
    fn has(&self, chunk: usize) -> bool {
        self.desk.landed(self.clock) > chunk || self.desk.published() > self.clock
    }
}

/// An array to read and one to write.
pub(super) struct Stage {
    pub(super) from: LocalSlice,
    pub(super) to: LocalSlice,
}

impl Stage {
    fn chunk(&self, offset: usize, len: usize) -> Pass<'_> {
        let cut = |slice: &LocalSlice| (slice.len(), offset, len);
        debug_assert!(cut(&self.from) == cut(&self.to));
        Pass {
            from: self.from.as_volatile().subslice(offset, len),
            to: self.to.as_volatile().subslice(offset, len),
        }
    }
}

/// What each chunk of a job measured. Stored by the thread that folds the chunk before it counts the chunk as done.
#[derive(Default)]
pub(super) struct Measured {
    /// By chunk: the words of [`Moments::sum_norm_squared`] and [`Moments::each_norm_squared`].
    words: Vec<[AtomicU64; 2]>,
}

impl Measured {
    /// Room for so many chunks.
    pub(super) fn resize(&mut self, chunks: usize) {
        self.words.resize_with(chunks, Default::default);
    }

    fn set(&self, chunk: usize, moments: Moments) {
        let values = [moments.sum_norm_squared, moments.each_norm_squared];
        for (word, value) in self.words[chunk].iter().zip(values) {
            word.store(value.to_bits(), Ordering::Relaxed);
        }
    }

    fn get(&self, chunk: usize) -> [f64; 2] {
        [0, 1].map(|index| f64::from_bits(self.words[chunk][index].load(Ordering::Relaxed)))
    }
}

/// Everything that threads need to know of one fold.
pub(super) struct Job {
    pub(super) inputs: Vec<Input>,
    pub(super) encoding: ElementType,
    pub(super) optimizer: Optimizer,
    pub(super) learning_rate: f32,
    pub(super) step: u64,
    pub(super) parameters: Stage,
    pub(super) states: Vec<Stage>,
    pub(super) chunk_bytes: usize,
    pub(super) streaming: bool,
    pub(super) progress: Progress,
    /// If the fold is to be measured: room for all chunks.
    pub(super) measured: Option<Measured>,
}

impl Job {
    fn chunks(&self) -> usize {
        self.parameters.from.len().div_ceil(self.chunk_bytes)
    }

    fn is_ready(&self, chunk: usize) -> bool {
        self.inputs.iter().all(|input| input.has(chunk))
    }

    fn run(&self, chunk: usize) -> Result<(), FoldError> {
        let offset = chunk * self.chunk_bytes;
        let len = self.chunk_bytes.min(self.parameters.from.len() - offset);
        let width = self.encoding.bytes();
        let gradients: SmallVec<[Gradient<'_>; 32]> = self
            .inputs
            .iter()
            .map(|input| Gradient {
                elements: input.payload.as_volatile().subslice(offset / 4 * width, len / 4 * width),
                weight: input.weight,
            })
            .collect();
        let states: SmallVec<[Pass<'_>; 2]> =
            self.states.iter().map(|state| state.chunk(offset, len)).collect();
        let fold = Fold {
            gradients: &gradients,
            encoding: self.encoding,
            optimizer: self.optimizer,
            learning_rate: self.learning_rate,
            step: self.step,
            parameters: self.parameters.chunk(offset, len),
            states: &states,
            streaming: self.streaming,
        };
        match &self.measured {
            None => fold.run(),
            Some(measured) => fold.run_measured().map(|moments| measured.set(chunk, moments)),
        }
    }

    /// What all chunks measured, added in their order: the same whichever threads folded them.
    fn moments(&self) -> Option<Moments> {
        let measured = self.measured.as_ref()?;
        let mut moments = Moments::of(self.inputs.iter().map(|input| input.weight));
        for chunk in 0..self.chunks() {
            let [sum_norm_squared, each_norm_squared] = measured.get(chunk);
            moments.add(Moments { sum_norm_squared, each_norm_squared, ..moments });
        }
        Some(moments)
    }
}

struct Shared {
    /// Written by the owner between jobs, read by all threads during one.
    job: RwLock<Option<Job>>,
    /// Which job it is; threads wait for it to change.
    generation: AtomicU64,
    abort: AtomicBool,
    stop: AtomicBool,
    failed: AtomicBool,
    /// How many of its own chunks each thread has folded in this job.
    done: Box<[CachePadded<AtomicUsize>]>,
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, Option<Job>> {
        self.job.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<Job>> {
        self.job.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Folds this thread's next chunk, if it has one and it is ready. `None` if the thread has none left.
    fn step(&self, job: &Job, thread: usize) -> Option<bool> {
        let done = self.done[thread].load(Ordering::Relaxed);
        let chunk = thread + done * self.done.len();
        if chunk >= job.chunks() {
            return None;
        }
        if !job.is_ready(chunk) {
            return Some(false);
        }
        if job.run(chunk).is_err() {
            self.failed.store(true, Ordering::Relaxed);
            return Some(false);
        }
        // Release: whoever sees the count sees the chunk.
        self.done[thread].store(done + 1, Ordering::Release);
        let whole = (0..self.done.len())
            .map(|thread| thread + self.done[thread].load(Ordering::Acquire) * self.done.len())
            .min()
            .map_or(0, |chunk| chunk.min(job.chunks()));
        job.progress.raise(whole);
        Some(true)
    }

    fn is_complete(&self, job: &Job) -> bool {
        let folded: usize = self.done.iter().map(|done| done.load(Ordering::Acquire)).sum();
        folded == job.chunks()
    }

    fn serve(&self, thread: usize) {
        let mut seen = 0;
        let mut backoff = Backoff::new();
        while !self.stop.load(Ordering::Relaxed) {
            let generation = self.generation.load(Ordering::Acquire);
            if generation == seen {
                backoff.wait_for_unpark();
                continue;
            }
            seen = generation;
            backoff.reset();
            let job = self.read();
            let Some(job) = job.as_ref() else { continue };
            while !self.abort.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) {
                match self.step(job, thread) {
                    None => break,
                    Some(true) => backoff.reset(),
                    Some(false) => backoff.wait(),
                }
            }
        }
    }
}

/// The threads that fold. With one there are none besides the caller's own, and nothing happens outside
/// [`advance`](Self::advance).
pub(super) struct Aggregator {
    running: bool,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Chunks that one call of `advance` folds at most, so that its caller keeps looking after its peers.
const CHUNKS_PER_TURN: usize = 16;

impl Aggregator {
    pub(super) fn new(threads: usize) -> Result<Aggregator, Error> {
        if !(1..=1024).contains(&threads) {
            return Err(Error::Option {
                option: "threads",
                value: threads.to_string(),
                reason: "use 1 to 1024, as many as there are cores to spare",
            });
        }
        let shared = Arc::new(Shared {
            job: RwLock::new(None),
            generation: AtomicU64::new(0),
            abort: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            done: (0..threads).map(|_| CachePadded::new(AtomicUsize::new(0))).collect(),
        });
        let mut aggregator = Aggregator { running: false, shared: Arc::clone(&shared), threads: Vec::new() };
        for thread in 1..threads {
            let shared = Arc::clone(&shared);
            let spawned = std::thread::Builder::new()
                .name(format!("slackline-fold-{thread}"))
                .spawn(move || shared.serve(thread))
                .map_err(|source| Error::Thread { what: "folding", source })?;
            aggregator.threads.push(spawned);
        }
        Ok(aggregator)
    }

    /// Begins a job, throwing away the one that runs.
    pub(super) fn begin(
        &mut self,
        fill: impl FnOnce(Option<Job>) -> Result<Job, OutOfBounds>,
    ) -> Result<(), Error> {
        self.shared.abort.store(true, Ordering::Relaxed);
        // Threads let go of the lock after the chunk they are at.
        let mut job = self.shared.write();
        for done in &self.shared.done {
            done.store(0, Ordering::Relaxed);
        }
        self.shared.failed.store(false, Ordering::Relaxed);
        *job = Some(fill(job.take())?);
        self.shared.abort.store(false, Ordering::Relaxed);
        drop(job);
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.wake();
        self.running = true;
        Ok(())
    }

    /// Has the threads look what there is to do.
    fn wake(&self) {
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }

    /// True between `begin` and `end`.
    pub(super) fn is_running(&self) -> bool {
        self.running
    }

    /// Folds this thread's chunks as far as they have come. True if it got anywhere.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
        let job = self.shared.read();
        let Some(job) = job.as_ref() else { return Ok(false) };
        let mut progress = false;
        for _ in 0..CHUNKS_PER_TURN {
            if let Some(surroundings) = surroundings::installed() {
                surroundings.breathe();
            }
            match self.shared.step(job, 0) {
                Some(true) => progress = true,
                Some(false) | None => break,
            }
        }
        if self.shared.failed.load(Ordering::Relaxed) {
            // Which of a fold's preconditions failed is the same for every chunk: ask the first.
            job.run(0)?;
        }
        Ok(progress)
    }

    /// True if all chunks are folded.
    pub(super) fn is_complete(&self) -> bool {
        self.shared.read().as_ref().is_some_and(|job| self.shared.is_complete(job))
    }

    /// What a complete job measured, if it was to.
    pub(super) fn moments(&self) -> Option<Moments> {
        self.shared.read().as_ref().and_then(Job::moments)
    }

    /// Ends the job, finished or not, and lets go of the workers' memory.
    pub(super) fn end(&mut self) {
        if !std::mem::take(&mut self.running) {
            return;
        }
        self.shared.abort.store(true, Ordering::Relaxed);
        if let Some(job) = self.shared.write().as_mut() {
            job.inputs.clear();
        }
    }
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wake();
        for thread in self.threads.drain(..) {
            // A fold that panicked has been reported by the panic hook already.
            let _ = thread.join();
        }
    }
}
