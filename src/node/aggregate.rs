//! Aggregation: one pass over memory that sums gradients and steps the optimiser, chunk by chunk, on as many threads
//! as asked.
//!
//! Chunk `i` always belongs to thread `i mod threads`, so its memory stays with one core (Luo et al., PHub, SoCC
//! 2018). A chunk is folded as soon as it has landed from all workers of the job; the job as a whole counts only once
//! all their gradients are announced, and until then it can be thrown away: parameters and optimiser state are
//! written to other memory than they are read from.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use super::folder::{FillJob, FoldMetadata, Folder};
use super::{Backoff, Error};
use crate::clock::Clock;
use crate::kernel::{Fold, FoldError, Gradient, Moments, Operand, Optimizer, Pass, largest_magnitude};
use crate::mem::{OwnThread, VolatileSlice};
use crate::param::{PeerInbox, Progress};
use crate::scheme::GradientId;
use crate::table::Encoding;
use crate::transport::PayloadSlice;

/// One gradient of a job.
pub(super) struct Input {
    pub(super) gradient: GradientId,
    pub(super) inbox: PeerInbox,
    pub(super) clock: Clock,
    pub(super) payload: PayloadSlice,
    pub(super) weight: f32,
}

impl Input {
    fn has(&self, chunk: usize) -> bool {
        self.inbox.landed(self.clock) > chunk || self.inbox.published() > self.clock
    }
}

/// An array to read and one to write.
#[derive(Clone)]
pub(super) struct FoldArray {
    pub(super) from: PayloadSlice,
    pub(super) to: PayloadSlice,
}

impl FoldArray {
    /// The chunk, of an array that stands in an error as `from` and `to`.
    fn chunk(
        &self,
        offset: usize,
        len: usize,
        (from, to): (Operand, Operand),
    ) -> Result<Pass<'_>, FoldError> {
        debug_assert!(self.from.len() == self.to.len());
        Ok(Pass {
            from: bytes(&self.from, from)?.subslice(offset, len),
            to: bytes(&self.to, to)?.subslice(offset, len),
        })
    }
}

/// The bytes of an operand, which must be in host memory.
fn bytes(payload: &PayloadSlice, operand: Operand) -> Result<VolatileSlice<'_>, FoldError> {
    Ok(payload.host().ok_or(FoldError::OnGpu { operand })?.as_volatile())
}

/// Measurements of each chunk of a job. The thread that folds a chunk stores them before it counts the chunk as
/// done.
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
pub(super) struct FoldJob {
    pub(super) inputs: Vec<Input>,
    pub(super) encoding: Encoding,
    pub(super) optimizer: Optimizer,
    pub(super) learning_rate: f32,
    pub(super) step: u64,
    pub(super) parameters: FoldArray,
    pub(super) states: Vec<FoldArray>,
    pub(super) chunk_bytes: usize,
    pub(super) streaming: bool,
    /// Says how much of the parameters is whole, where readers follow them.
    pub(super) progress: Option<Progress>,
    /// All gradients were announced and accepted: their workers' words are not read any more, since a worker can change
    /// them.
    pub(super) bound: AtomicBool,
    /// If the fold is to be measured: room for all chunks.
    pub(super) measured: Option<Measured>,
}

impl FoldJob {
    pub(super) fn chunks(&self) -> usize {
        self.parameters.from.len().div_ceil(self.chunk_bytes)
    }

    /// Publishes to followers how many chunks of the parameters are whole.
    pub(super) fn say_whole(&self, chunks: usize) {
        if let Some(progress) = &self.progress {
            progress.raise(chunks);
        }
    }

    /// True if the chunk has landed of all gradients.
    pub(super) fn is_ready(&self, chunk: usize) -> bool {
        // Acquire: the thread that bound the job has seen the announcements, and so the payloads written before them.
        (self.bound.load(Ordering::Acquire) && !mutant!("bound"))
            || self.inputs.iter().all(|input| input.has(chunk))
    }

    /// Folds a chunk; whether its new parameters and second moments are finite.
    fn run(&self, chunk: usize) -> Result<bool, FoldError> {
        let offset = chunk * self.chunk_bytes;
        let len = self.chunk_bytes.min(self.parameters.from.len() - offset);
        let width = self.encoding.bytes();
        let mut gradients = SmallVec::<[Gradient<'_>; 32]>::new();
        for (index, input) in self.inputs.iter().enumerate() {
            let elements = bytes(&input.payload, Operand::Gradient(index))?;
            let elements = elements.subslice(offset / 4 * width, len / 4 * width);
            gradients.push(Gradient { elements, weight: input.weight });
        }
        let mut states = SmallVec::<[Pass<'_>; 2]>::new();
        for (index, state) in self.states.iter().enumerate() {
            states.push(state.chunk(offset, len, (Operand::StateFrom(index), Operand::StateTo(index)))?);
        }
        let fold = Fold {
            gradients: &gradients,
            encoding: self.encoding,
            optimizer: self.optimizer,
            learning_rate: self.learning_rate,
            step: self.step,
            parameters: self.parameters.chunk(
                offset,
                len,
                (Operand::ParametersFrom, Operand::ParametersTo),
            )?,
            states: &states,
            streaming: self.streaming,
        };
        match &self.measured {
            None => fold.run(),
            Some(measured) => fold.run_measured().map(|(moments, finite)| {
                measured.set(chunk, moments);
                finite
            }),
        }
    }

    /// Adds the measurements of all chunks in their order: the sum is the same whichever threads folded them.
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

struct FoldShared {
    /// Written by the owner between jobs, read by all threads during one.
    job: RwLock<Option<FoldJob>>,
    /// The number of the job; threads wait for it to change.
    generation: AtomicU64,
    abort: AtomicBool,
    stop: AtomicBool,
    failed: AtomicBool,
    /// A chunk of this job has a parameter or a second moment that is not finite.
    tainted: AtomicBool,
    /// The message of the panic that ended a thread's work on this job.
    panicked: Mutex<Option<String>>,
    /// For each thread, the number of its own chunks that it has folded in this job.
    done: Box<[CachePadded<AtomicUsize>]>,
}

impl FoldShared {
    fn read(&self) -> RwLockReadGuard<'_, Option<FoldJob>> {
        self.job.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<FoldJob>> {
        self.job.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Folds this thread's next chunk, if it has one and it is ready. `None` if the thread has none left.
    fn step(&self, job: &FoldJob, thread: usize) -> Option<bool> {
        let done = self.done[thread].load(Ordering::Relaxed);
        let chunk = thread + done * self.done.len();
        if chunk >= job.chunks() {
            return None;
        }
        if !job.is_ready(chunk) {
            return Some(false);
        }
        match job.run(chunk) {
            Ok(true) => {}
            // Relaxed: the count below brings it along.
            Ok(false) => self.tainted.store(true, Ordering::Relaxed),
            Err(_) => {
                self.failed.store(true, Ordering::Relaxed);
                return Some(false);
            }
        }
        // Release: a thread that sees the count sees the chunk.
        self.done[thread].store(done + 1, Ordering::Release);
        let whole = (0..self.done.len())
            .map(|thread| thread + self.done[thread].load(Ordering::Acquire) * self.done.len())
            .min()
            .map_or(0, |chunk| chunk.min(job.chunks()));
        job.say_whole(whole);
        Some(true)
    }

    fn is_complete(&self, job: &FoldJob) -> bool {
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
                // A thread that just ended would leave its chunks undone and the owner waiting for them.
                match catch_unwind(AssertUnwindSafe(|| self.step(job, thread))) {
                    Ok(None) => break,
                    Ok(Some(true)) => backoff.reset(),
                    Ok(Some(false)) => backoff.wait(),
                    Err(panic) => {
                        *self.panicked.lock().unwrap_or_else(PoisonError::into_inner) = Some(text(&*panic));
                        self.failed.store(true, Ordering::Release);
                        break;
                    }
                }
            }
        }
    }
}

/// The threads that fold. With one there are none besides the caller's own, and nothing happens outside
/// [`advance`](Self::advance).
pub(super) struct Aggregator {
    running: bool,
    shared: Arc<FoldShared>,
    threads: Vec<OwnThread>,
}

impl Aggregator {
    pub(super) fn new(threads: usize) -> Result<Aggregator, Error> {
        if !(1..=1024).contains(&threads) {
            return Err(Error::Option {
                option: "threads",
                value: threads.to_string(),
                reason: "use 1 to 1024, as many as there are cores to spare",
            });
        }
        let shared = Arc::new(FoldShared {
            job: RwLock::new(None),
            generation: AtomicU64::new(0),
            abort: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            tainted: AtomicBool::new(false),
            panicked: Mutex::new(None),
            done: (0..threads).map(|_| CachePadded::new(AtomicUsize::new(0))).collect(),
        });
        let mut aggregator = Aggregator { running: false, shared: Arc::clone(&shared), threads: Vec::new() };
        for thread in 1..threads {
            let shared = Arc::clone(&shared);
            let started = OwnThread::start(&format!("slackline-fold-{thread}"), move || shared.serve(thread));
            aggregator.threads.push(started.map_err(|source| Error::Thread { what: "folding", source })?);
        }
        Ok(aggregator)
    }

    /// Has the threads look for work.
    fn wake(&self) {
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl Folder for Aggregator {
    fn begin(&mut self, fill: FillJob<'_>) -> Result<(), Error> {
        self.shared.abort.store(true, Ordering::Relaxed);
        // Threads release the lock after their current chunk.
        let mut job = self.shared.write();
        for done in &self.shared.done {
            done.store(0, Ordering::Relaxed);
        }
        self.shared.failed.store(false, Ordering::Relaxed);
        self.shared.tainted.store(false, Ordering::Relaxed);
        *job = Some(fill(job.take())?);
        self.shared.abort.store(false, Ordering::Relaxed);
        drop(job);
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.wake();
        self.running = true;
        Ok(())
    }

    fn bind(&mut self, _: FoldMetadata) {
        if let Some(job) = self.shared.read().as_ref() {
            job.bound.store(true, Ordering::Release);
        }
        self.wake();
    }

    fn is_running(&self) -> bool {
        self.running
    }

    fn advance(&mut self, chunks: usize) -> Result<bool, Error> {
        let job = self.shared.read();
        let Some(job) = job.as_ref() else { return Ok(false) };
        let mut progress = false;
        for _ in 0..chunks {
            match self.shared.step(job, 0) {
                Some(true) => progress = true,
                Some(false) | None => break,
            }
        }
        if self.shared.failed.load(Ordering::Acquire) {
            if let Some(cause) = self.shared.panicked.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Err(Error::FoldPanicked { cause });
            }
            // Which of a fold's preconditions failed is the same for every chunk: ask the first.
            job.run(0)?;
        }
        Ok(progress)
    }

    fn is_complete(&self) -> bool {
        self.shared.read().as_ref().is_some_and(|job| self.shared.is_complete(job))
    }

    fn is_finite(&self) -> bool {
        !self.shared.tainted.load(Ordering::Relaxed)
    }

    fn non_finite(&mut self) -> Result<Option<SmallVec<[GradientId; 4]>>, Error> {
        let job = self.shared.read();
        let Some(job) = job.as_ref() else { return Ok(Some(SmallVec::new())) };
        let is_bad = |input: &&Input| {
            let Some(payload) = input.payload.host() else { return false };
            let payload = payload.as_volatile();
            let bytes = job.parameters.from.len() / 4 * job.encoding.bytes();
            !largest_magnitude(payload.subslice(0, bytes), job.encoding).is_finite()
        };
        Ok(Some(job.inputs.iter().filter(is_bad).map(|input| input.gradient).collect()))
    }

    fn moments(&self) -> Option<Moments> {
        self.shared.read().as_ref().and_then(FoldJob::moments)
    }

    fn end(&mut self) {
        if !std::mem::take(&mut self.running) {
            return;
        }
        self.shared.abort.store(true, Ordering::Relaxed);
        if let Some(job) = self.shared.write().as_mut() {
            job.inputs.clear();
        }
    }

    /// Its threads release a job before the next one begins.
    fn is_quiet(&mut self) -> Result<bool, Error> {
        Ok(true)
    }
}

/// Returns the message of a panic.
fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it said nothing").to_owned()
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        for thread in self.threads.drain(..) {
            // A fold that panicked has been reported by the panic hook already.
            let to_wake = thread.thread().clone();
            let _has_panicked = thread.end(|| {
                self.shared.stop.store(true, Ordering::Relaxed);
                to_wake.unpark();
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Access, DeviceKeys, HostMemory, MemoryRegion};
    use crate::param::{ControlLayout, FrameGeometry, Frames};

    #[test]
    fn a_panic_in_a_fold_thread_fails_the_fold_with_its_cause() {
        let region = |bytes: u64| {
            let memory = HostMemory::anonymous(bytes as usize).unwrap();
            MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ())
        };
        let layout = ControlLayout { peers: 1, frames: 2 };
        let geometry = FrameGeometry { frames: 2, payload_bytes: 128, chunk_bytes: 64 };
        let frames =
            Frames::new(region(layout.bytes() as u64), region(geometry.bytes()), layout, geometry, 7);
        // Room for the measurements of one chunk: the thread that folds the second one panics.
        let mut measured = Measured::default();
        measured.resize(1);
        let job = FoldJob {
            inputs: Vec::new(),
            encoding: Encoding::F32,
            optimizer: Optimizer::Sgd { weight_decay: 0.0 },
            learning_rate: 0.1,
            step: 1,
            parameters: FoldArray { from: frames.payload(0), to: frames.payload(1) },
            states: Vec::new(),
            chunk_bytes: 64,
            streaming: false,
            progress: Some(frames.progress(1)),
            measured: Some(measured),
            bound: AtomicBool::new(true),
        };
        let mut aggregator = Aggregator::new(2).unwrap();
        let mut job = Some(job);
        aggregator.begin(&mut |_| Ok(job.take().expect("it is begun once"))).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let error = loop {
            if let Err(error) = aggregator.advance(16) {
                break error;
            }
            assert!(std::time::Instant::now() < deadline, "the panic is not told");
        };
        let Error::FoldPanicked { cause } = error else { panic!("another error: {error}") };
        assert!(cause.contains("index out of bounds"), "{cause}");
    }
}
