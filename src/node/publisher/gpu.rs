//! Versions that a GPU copies into the publisher's frames.

#[cfg(test)]
mod encoded;
#[cfg(test)]
mod scripted;

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::super::Error;
use super::super::copies::Copies;
use super::super::runtime::{Runtime, complete};
use super::super::shard::expect_owner;
use super::super::wait::{WaitTurn, wait};
use super::Publisher;
use super::background::{BackgroundPublisher, Draft, GONE, Shared};
use crate::clock::{Version, VersionTag};
use crate::cuda::{GpuError, GpuFrames, GpuSlice, GpuStream};
use crate::mem::ForkGuard;
use crate::table::Encoding;
use crate::time::Duration;
use crate::transport::{PayloadMemory, PayloadSlice, Transport};

/// A draft that its owner has released, while a GPU may still write it.
#[derive(Debug)]
pub(super) struct Copying {
    copies: Copies,
    /// The tag to publish it with; a draft that was dropped has none.
    tag: Option<VersionTag>,
    /// The error for which it is given up.
    fault: Option<Error>,
    outcome: Arc<Outcome>,
}

/// Its outcome; `None` before, and after it was taken.
#[derive(Debug, Default)]
struct Outcome(Mutex<Option<Result<Version, Error>>>);

impl Outcome {
    fn set(&self, outcome: Result<Version, Error>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }

    fn take(&self) -> Option<Result<Version, Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Copying {
    pub(super) fn dropped(copies: Copies) -> Copying {
        Copying { copies, tag: None, fault: None, outcome: Arc::default() }
    }

    /// True once its copies are done, or over after a fault.
    fn is_over(&mut self) -> bool {
        match self.copies.are_done() {
            Ok(is_done) => is_done || mutant!("publish_before_copied"),
            Err(error) => {
                tracing::warn!(%error, "a version is given up: a GPU did not copy it");
                (self.tag, self.fault) = (None, Some(error));
                true
            }
        }
    }

    /// Publishes the draft, or gives it up. Returns the outcome and its receiver; `None` for a dropped draft.
    fn end<T: Transport>(mut self, shared: &Shared<T>) -> Option<(Arc<Outcome>, Result<Version, Error>)> {
        let told = match self.tag.take() {
            Some(tag) => {
                shared.prepare_commit();
                Some(shared.publisher().commit_draft(tag).map(|(version, _)| version))
            }
            None => {
                shared.publisher().publish_abort();
                self.fault.take().map(Err)
            }
        };
        told.map(|told| (self.outcome.clone(), told))
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if self.tag.is_some() {
            // Nobody is left to publish it.
            self.outcome.set(Err(GONE));
        }
    }
}

impl<T: Transport> BackgroundPublisher<T> {
    /// Lends the frames to a kernel that publishes, if they are on a GPU. This publisher publishes no more, and still
    /// takes readers in.
    #[doc(hidden)]
    pub fn lend_frames(&self) -> Option<GpuFrames> {
        expect_owner(self.shared.guard, "lend frames").ok()?;
        let mut publisher = self.shared.publisher();
        let frames = &mut publisher.shard.frames;
        let PayloadMemory::Gpu(memory) = frames.memory() else { return None };
        let whole = memory.whole();
        let (latest, headers) = frames.lend();
        let geometry = frames.geometry();
        Some(GpuFrames {
            control: frames.control().clone(),
            latest,
            headers,
            frames: whole,
            stride: geometry.stride() as usize,
            bytes: geometry.payload_bytes as usize,
            count: geometry.frames,
        })
    }
}

impl<T: Transport> Draft<T> {
    /// Has the GPU copy `from` into the table, from the byte `offset` on, behind the work that `stream` has now, and
    /// does not wait for it. The stream does not wait either: the memory that is copied from must stay as it is until
    /// [`Publishing::wait`] or [`Publishing::poll`] has told the version.
    ///
    /// Then [`commit_when_copied`](Self::commit_when_copied) publishes the draft.
    ///
    /// # Errors
    /// The bytes do not fit the table, the memory is on another GPU, the stream captures a graph, or the driver refuses
    /// the copy.
    pub fn copy_from_gpu(&mut self, offset: u64, from: &GpuSlice, stream: &GpuStream) -> Result<(), Error> {
        let into = self.range(offset, from.bytes())?;
        let copies = self.copies.tickets();
        match &into {
            PayloadSlice::Host(into) => stream.copy_to_host(from, into, copies)?,
            PayloadSlice::Gpu(into) => stream.copy_within(from, into, copies)?,
        }
        Ok(())
    }

    /// As [`copy_from_gpu`](Self::copy_from_gpu), of f32 elements, which the GPU rounds to `encoding` on their way: to
    /// nearest, ties to even, as for a gradient ([`Step::encode`](crate::Step::encode)). The table is written from the
    /// byte `offset` on, as many elements as `from` has. The first conversion on a GPU loads the library's kernels,
    /// which the driver may have to compile: that can take seconds.
    ///
    /// # Errors
    /// They are not whole f32 elements, or not aligned where they are or in the table; as
    /// [`copy_from_gpu`](Self::copy_from_gpu).
    pub fn encode_from_gpu(
        &mut self,
        offset: u64,
        from: &GpuSlice,
        encoding: Encoding,
        stream: &GpuStream,
    ) -> Result<(), Error> {
        let into = self.range(offset, from.bytes() / 4 * encoding.bytes())?;
        let copies = self.copies.tickets();
        match &into {
            PayloadSlice::Host(into) => stream.encode_to_host(from, into, encoding, copies)?,
            PayloadSlice::Gpu(into) => stream.encode_within(from, into, encoding, copies)?,
        }
        Ok(())
    }

    /// Publishes it as the next version once the GPU has copied all of it. It returns at once; the publisher's thread
    /// publishes. Until then another draft has to wait.
    pub fn commit_when_copied(mut self, tag: VersionTag) -> Publishing {
        let version = self.shared.look(Publisher::version).next();
        let (shared, outcome): (Arc<dyn CopyingPublisher>, _) =
            (self.shared.clone(), Arc::<Outcome>::default());
        match expect_owner(self.shared.guard, "publish") {
            Err(error) => outcome.set(Err(error)),
            Ok(()) => {
                let copies = std::mem::take(&mut self.copies);
                // Where the publisher was dropped, so is this, with this draft's part of it.
                self.hand_over(Copying { copies, tag: Some(tag), fault: None, outcome: outcome.clone() });
            }
        }
        Publishing { version, outcome, guard: self.shared.guard, publisher: Arc::downgrade(&shared) }
    }
}

/// A publisher of any transport, as seen by a caller that waits for a version that a GPU copies.
pub(super) trait CopyingPublisher: std::fmt::Debug + Send + Sync {
    /// Publishes the draft that was handed over if its copies are done.
    fn look_after_copies(&self);

    /// The error that a draft which was handed over is not copied after so long.
    fn late(&self, waited: Duration) -> Error;
}

impl<T: Transport> CopyingPublisher for Shared<T> {
    fn look_after_copies(&self) {
        self.is_copying();
    }

    fn late(&self, waited: Duration) -> Error {
        // Another thread that looks has the draft for a moment.
        for _ in 0..1000 {
            if let Some(draft) = &*self.copying() {
                return draft.copies.late(waited);
            }
            std::thread::yield_now();
        }
        GpuError::NotCopied { waited, cause: None }.into()
    }
}

impl<T: Transport> Shared<T> {
    /// Looks whether the copies of a draft are done that was handed over. True while they are not.
    pub(super) fn is_copying(&self) -> bool {
        if self.guard.is_inherited() || !self.copying_is_open.load(Acquire) {
            return false;
        }
        // The memory of the copies is released here, without a lock: the destructor of its owner may do anything.
        let Some(mut draft) = self.copying().take() else {
            return true; // another thread looks
        };
        if !draft.is_over() {
            *self.copying() = Some(draft);
            return true;
        }
        let told = draft.end(self);
        self.copying_is_open.store(false, Release);
        // A caller that receives the outcome may begin the next version at once.
        if let Some((outcome, told)) = told {
            outcome.set(told);
        }
        false
    }
}

/// A version that is published once a GPU has copied it, also if this is dropped; but not if the publisher is.
#[derive(Debug)]
#[must_use = "whether the version was published is told by `wait` or `poll`"]
pub struct Publishing {
    version: Version,
    outcome: Arc<Outcome>,
    guard: ForkGuard,
    /// The publisher, for as long as it is there.
    publisher: Weak<dyn CopyingPublisher>,
}

impl Publishing {
    /// The number that the version will have.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The version, once it is published; `None` before, and after it was told. It does not wait.
    ///
    /// # Errors
    /// The GPU did not copy it, and it is given up; the publisher was dropped; or this is a forked child.
    pub fn poll(&mut self) -> Result<Option<Version>, Error> {
        expect_owner(self.guard, "publish")?;
        self.outcome.take().transpose()
    }

    /// Waits, at most `timeout`, until it is published. This thread looks for the end of the copy itself: the
    /// publisher's thread may sleep, and takes longer to wake than a small copy takes.
    ///
    /// # Errors
    /// The GPU did not copy it, and it is given up; the publisher was dropped; this is a forked child; or it is not
    /// copied by the timeout ([`GpuError::NotCopied`]), and may be waited for again.
    pub fn wait(&mut self, timeout: Duration) -> Result<Version, Error> {
        let runtime = Runtime::default();
        let told = wait(&runtime, runtime.now() + timeout, |_| {
            if let Some(publisher) = self.publisher.upgrade() {
                publisher.look_after_copies();
            }
            Ok(self.poll()?.map_or(WaitTurn::Idle, WaitTurn::Done))
        });
        complete(told)?.ok_or_else(|| match self.publisher.upgrade() {
            Some(publisher) => publisher.late(timeout),
            None => GpuError::NotCopied { waited: timeout, cause: None }.into(),
        })
    }
}
