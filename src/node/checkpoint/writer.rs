//! The thread that writes checkpoints while its server goes on.
//!
//! An order names the newest frame and the copies of the optimiser's state that belong to it. The thread copies
//! them into memory of its own, releases them, and only then touches the disk. Until it has released them the server
//! writes neither: the frame is pinned, and a fold whose output would be that copy of the state waits. Only the
//! thread that also gives the orders asks about the two, so one word is enough: the thread's release store after
//! its last load of the frame, and the server's acquire load before its first store to it.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::header::Header;
use super::{Checkpoint, CheckpointError, CheckpointOptions, file};
use crate::clock::{Clock, Version};
use crate::cuda::Gpu;
use crate::kernel::Optimizer;
use crate::mem::OwnThread;
use crate::node::taken::Applied;
use crate::node::{Error, payloads};
use crate::table::Table;
use crate::transport::PayloadSlice;

/// The facts that all checkpoints of one incarnation of a server share.
pub(in crate::node) struct CheckpointIdentity {
    pub(in crate::node) table: Table,
    pub(in crate::node) shard: (u16, u16),
    pub(in crate::node) range: Range<u64>,
    pub(in crate::node) epoch: u64,
    pub(in crate::node) scheme: String,
    pub(in crate::node) optimizer: Optimizer,
}

/// One checkpoint to write.
pub(in crate::node) struct CheckpointWrite {
    pub(in crate::node) version: Version,
    pub(in crate::node) smallest_clock: Clock,
    /// For each worker that is in: the clock before which all its gradients are in the parameters.
    pub(in crate::node) clocks: Vec<Clock>,
    /// Gradients that were folded in, in all incarnations.
    pub(in crate::node) folded: u64,
    pub(in crate::node) applied: Applied,
    /// The learned state of the scheme, as text.
    pub(in crate::node) learned: Option<String>,
    /// The newest frame's payload, then the current states.
    pub(in crate::node) tensors: Vec<PayloadSlice>,
    /// The GPU that they may be on.
    pub(in crate::node) gpu: Option<Gpu>,
}

const IDLE: u8 = 0;
/// The server's memory is being read.
const COPYING: u8 = 1;
/// It is not any more.
const WRITING: u8 = 2;

struct WriterShared {
    phase: AtomicU8,
    /// One more than the newest version on the disk; 0 for none.
    written: AtomicU64,
    failed: AtomicU64,
    /// The error of the last checkpoint that failed, until a caller asks for it.
    failure: Mutex<Option<CheckpointError>>,
    /// The incarnation that may write the file instead of this one.
    owner: OnceLock<u64>,
}

/// Gives orders to the thread, one at a time.
pub(in crate::node) struct Checkpointer {
    every: Option<u64>,
    shared: Arc<WriterShared>,
    orders: Option<SyncSender<CheckpointWrite>>,
    thread: Option<OwnThread>,
    /// The frame and the copy of the states that the last order named.
    source: (u8, usize),
    /// A request that is not begun yet.
    wanted: bool,
    /// The version of the last order, or the first of this incarnation.
    last: Version,
    path: PathBuf,
    epoch: u64,
}

impl Checkpointer {
    /// Makes the incarnation the owner of the file, and starts the thread. It begins at the version `first`, and may go
    /// on `from` a checkpoint.
    pub(in crate::node) fn start(
        options: CheckpointOptions,
        identity: CheckpointIdentity,
        first: Version,
        from: Option<&Checkpoint>,
    ) -> Result<Checkpointer, Error> {
        check(&options, &identity)?;
        // Now rather than at the first checkpoint.
        options.try_folder()?;
        let was_damaged = from.is_some_and(|from| from.is_before_damaged(&options.path));
        file::claim(&options.path, identity.epoch, was_damaged)?;
        let epoch = identity.epoch;
        let shared = Arc::new(WriterShared {
            phase: AtomicU8::new(IDLE),
            written: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            failure: Mutex::new(None),
            owner: OnceLock::new(),
        });
        let (orders, to_do) = sync_channel(1);
        let (every, seen, path) = (options.every, Arc::clone(&shared), options.path.clone());
        let write = move || serve(&options, &identity, &to_do, &seen);
        let thread = OwnThread::start("slackline-checkpoint", write)
            .map_err(|source| Error::Thread { what: "checkpoints", source })?;
        Ok(Checkpointer {
            every,
            shared,
            orders: Some(orders),
            thread: Some(thread),
            source: (0, 0),
            wanted: false,
            last: first,
            path,
            epoch,
        })
    }

    fn phase(&self) -> u8 {
        // Acquire: all reads of the server's memory by the thread precede the next writes there.
        self.shared.phase.load(Ordering::Acquire)
    }

    /// Asks for one more checkpoint, which begins as soon as the running one has ended.
    pub(in crate::node) fn request(&mut self) {
        self.wanted = true;
    }

    /// The server continues at `version`, the version of the deciding server, and versions are counted from there. If
    /// it had begun at another version, the file on the disk has that version, and the next checkpoint is written at
    /// once.
    pub(in crate::node) fn go_on_at(&mut self, version: Version) {
        self.wanted |= self.every.is_some() && version != self.last;
        self.last = version;
    }

    /// True if one is to be begun now that `version` is the newest.
    pub(in crate::node) fn is_due(&self, version: Version) -> bool {
        let due = self.every.is_some_and(|every| self.last.behind(version) >= every);
        (self.wanted || due) && self.phase() == IDLE
    }

    /// Begins a checkpoint. `frame` and `states` say where the order's memory is.
    pub(in crate::node) fn begin(&mut self, order: CheckpointWrite, frame: u8, states: usize) {
        (self.wanted, self.last, self.source) = (false, order.version, (frame, states));
        // Release is not needed: the channel brings the order, and only this thread asks before the answer.
        self.shared.phase.store(COPYING, Ordering::Relaxed);
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        if !sent {
            // The thread has panicked, and the panic hook has said so: nothing is copied, and the server shall not
            // wait.
            self.shared.phase.store(IDLE, Ordering::Relaxed);
            self.shared.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a checkpoint that is not written because the parameters are not finite since a version.
    pub(in crate::node) fn refuse(&mut self, version: Version, since: Version) {
        (self.wanted, self.last) = (false, version);
        let error = CheckpointError::NotFinite { file: self.path.clone(), since: since.get() };
        *self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.shared.failed.fetch_add(1, Ordering::Release);
    }

    /// True while `frame` is being copied.
    pub(in crate::node) fn holds_frame(&self, frame: u8) -> bool {
        self.source.0 == frame && self.phase() == COPYING
    }

    /// True while this copy of the states is being copied.
    pub(in crate::node) fn holds_states(&self, states: usize) -> bool {
        self.source.1 == states && self.phase() == COPYING
    }

    /// True if nothing is under way or wanted.
    pub(in crate::node) fn is_idle(&self) -> bool {
        !self.wanted && self.phase() == IDLE
    }

    /// The newest version of this incarnation that is safely on the disk.
    pub(in crate::node) fn written(&self) -> Option<Version> {
        self.shared.written.load(Ordering::Acquire).checked_sub(1).map(Version::new)
    }

    /// Returns the number of checkpoints that could not be written.
    pub(in crate::node) fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// The error of an incarnation whose file another has begun with: it writes none any more.
    pub(in crate::node) fn superseded(&self) -> Option<CheckpointError> {
        let owner = *self.shared.owner.get()?;
        Some(CheckpointError::Superseded { file: self.path.clone(), epoch: self.epoch, owner })
    }

    /// Acts as if the thread were copying `frame` and `states`, for as long as a test wants it to.
    #[cfg(test)]
    pub(in crate::node) fn pretend(&mut self, copying: bool, frame: u8, states: usize) {
        self.source = (frame, states);
        self.shared.phase.store(if copying { COPYING } else { IDLE }, Ordering::Relaxed);
    }

    /// Acts as if the disk did not answer for as long as the result is kept.
    #[cfg(test)]
    pub(in crate::node) fn hang(&mut self) -> SyncSender<()> {
        let (disk, answer) = sync_channel::<()>(1);
        self.shared.phase.store(WRITING, Ordering::Relaxed);
        self.thread = OwnThread::start("a disk", move || _ = answer.recv()).ok();
        disk
    }

    /// Stops waiting for the thread, which has had its time: a disk that does not answer holds up no end.
    pub(in crate::node) fn give_up(&mut self) {
        self.thread = None;
    }

    /// Returns the error of the last checkpoint that failed, the first time that a caller asks for it.
    pub(in crate::node) fn failure(&self) -> Option<CheckpointError> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        // The thread finishes its current checkpoint, so that no half of a file is left behind, and gets no more
        // orders. A thread that was given up ends by itself, or with its process.
        let orders = self.orders.take();
        match self.thread.take() {
            Some(thread) => _ = thread.end(move || drop(orders)),
            None => drop(orders),
        }
    }
}

fn check(options: &CheckpointOptions, identity: &CheckpointIdentity) -> Result<(), Error> {
    if options.every == Some(0) {
        let reason = "use at least 1, or leave it out to write on request only";
        return Err(Error::Option { option: "checkpoint.every", value: "0".into(), reason });
    }
    // JSON has no infinities: a checkpoint that cannot be read again is none.
    let text = serde_json::to_string(&identity.optimizer).unwrap_or_default();
    if serde_json::from_str::<Optimizer>(&text).ok() != Some(identity.optimizer) {
        let value = format!("{:?}", identity.optimizer);
        let reason = "a checkpoint cannot hold it: its constants must be finite";
        return Err(Error::Option { option: "optimizer", value, reason });
    }
    Ok(())
}

fn serve(
    options: &CheckpointOptions,
    identity: &CheckpointIdentity,
    orders: &Receiver<CheckpointWrite>,
    shared: &WriterShared,
) {
    // A panic between here and the end must not hold the server's memory for ever.
    struct LetGo<'a>(&'a WriterShared);
    impl Drop for LetGo<'_> {
        fn drop(&mut self) {
            self.0.phase.store(IDLE, Ordering::Release);
        }
    }
    let _end = LetGo(shared);
    let mut copies: Vec<Vec<u8>> = Vec::new();
    while let Ok(order) = orders.recv() {
        let begun = std::time::Instant::now();
        copies.resize_with(order.tensors.len(), Vec::new);
        let CheckpointWrite { version, smallest_clock, clocks, folded, applied, learned, tensors, gpu } =
            order;
        let copying = copies.iter_mut().zip(&tensors).try_for_each(|(copy, tensor)| {
            copy.resize(tensor.len(), 0);
            payloads::read(tensor, gpu.as_ref(), copy)
        });
        drop(tensors);
        shared.phase.store(WRITING, Ordering::Release);
        let copied = begun.elapsed();
        let header = Header {
            format: Header::FORMAT,
            shard: identity.shard.0,
            shards: identity.shard.1,
            range: [identity.range.start, identity.range.end],
            version,
            smallest_clock,
            clocks,
            epoch: identity.epoch,
            scheme: identity.scheme.clone(),
            learned,
            optimizer: identity.optimizer,
            folded,
            applied,
            table: identity.table.clone(),
        };
        let (path, shard) = (&options.path, identity.shard.0);
        let is_copied = copying.map_err(|error| {
            let (file, reason) = (path.clone(), error.to_string());
            CheckpointError::Gpu { file, reason }
        });
        match is_copied.and_then(|()| file::write(path, &header, &copies)) {
            Ok(()) => {
                shared.written.store(version.get() + 1, Ordering::Release);
                let written = begun.elapsed() - copied;
                tracing::info!(
                    shard, version = version.get(), clock = smallest_clock.get(), path = %path.display(), ?copied,
                    ?written,
                    "checkpoint written"
                );
            }
            Err(error) => {
                if let CheckpointError::Superseded { owner, .. } = error {
                    // It may be known already.
                    let _ = shared.owner.set(owner);
                }
                tracing::warn!(shard, version = version.get(), %error, "checkpoint failed");
                *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                shared.failed.fetch_add(1, Ordering::Release);
            }
        }
        shared.phase.store(IDLE, Ordering::Release);
    }
}
