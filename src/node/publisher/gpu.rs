//! Versions that a GPU copies into the publisher's frames.

#[cfg(test)]
mod scripted;

use std::sync::{Arc, Mutex, PoisonError};

use super::super::copies::Copies;
use super::super::wait::Backoff;
use super::super::{Error, now};
use super::Publisher;
use super::background::{Draft, Shared};
use crate::clock::{Version, VersionTag};
use crate::cuda::{GpuSlice, GpuStream};
use crate::scheme::Bound;
use crate::time::Duration;
use crate::transport::Transport;

/// A draft that its owner has let go of, while a GPU may still write it.
#[derive(Debug)]
pub(super) struct Copying {
    copies: Copies,
    /// The tag to publish it with; a draft that was dropped has none.
    tag: Option<VersionTag>,
    outcome: Arc<Outcome>,
}

/// What became of it; `None` before, and after it was told.
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
        Copying { copies, tag: None, outcome: Arc::default() }
    }

    /// Publishes the draft, or gives it up, once its copies are done. True once that has happened.
    pub(super) fn poll<T: Transport>(
        &mut self,
        publisher: impl FnOnce(&mut dyn FnMut(&mut Publisher<T>)),
    ) -> bool {
        let copied = match self.copies.are_done() {
            Ok(false) if !mutant!("publish_before_copied") => return false,
            copied => copied,
        };
        publisher(&mut |publisher| match (&copied, self.tag) {
            (Ok(_), Some(tag)) => self.outcome.set(publisher.publish_commit_tagged(tag)),
            _ => publisher.publish_abort(),
        });
        if let Err(error) = copied {
            tracing::warn!(%error, "a version is given up: a GPU did not copy it");
            self.outcome.set(Err(error));
        }
        true
    }
}

impl<T: Transport> Draft<T> {
    /// Has the GPU copy `from` into the table, from the byte `offset` on, behind the work that `stream` has now. It
    /// returns at once; the memory that is copied from may change once later work of the stream may, which is after
    /// [`Publishing::wait`], or after an event of the caller's own.
    ///
    /// Then [`commit_when_copied`](Self::commit_when_copied) publishes the draft.
    ///
    /// # Errors
    /// The bytes do not fit the table, the memory is that of another GPU, the stream captures a graph, or the driver
    /// refuses the copy.
    pub fn copy_from_gpu(&mut self, offset: u64, from: &GpuSlice, stream: &GpuStream) -> Result<(), Error> {
        let into = self.range(offset, from.bytes())?;
        Ok(stream.copy_to_host(from, &into, &mut self.copies.tickets)?)
    }

    /// Publishes it as the next version once the GPU has copied all of it. It returns at once; the publisher's thread
    /// publishes. Until then another draft has to wait.
    pub fn commit_when_copied(mut self, tag: VersionTag) -> Publishing {
        let version = self.shared.publisher().version().next();
        let outcome = Arc::<Outcome>::default();
        if self.shared.is_over() {
            // Nobody is left to publish it; the draft is given up.
            outcome.set(Err(Error::OutOfTurn { operation: "publish", reason: "the publisher was dropped" }));
        } else {
            let copies = std::mem::take(&mut self.copies);
            self.hand_over(Copying { copies, tag: Some(tag), outcome: outcome.clone() });
        }
        Publishing { version, outcome }
    }
}

impl<T: Transport> Shared<T> {
    /// Looks whether the copies of a draft are done that was handed over. True while they are not.
    pub(super) fn is_copying(&self) -> bool {
        let mut copying = self.copying();
        let Some(draft) = &mut *copying else { return false };
        if draft.poll(|act| act(&mut self.publisher())) {
            *copying = None;
        }
        copying.is_some()
    }
}

/// A version that is published once a GPU has copied it. Dropped, it is published all the same.
#[derive(Debug)]
#[must_use = "whether the version was published is told by `wait` or `poll`"]
pub struct Publishing {
    version: Version,
    outcome: Arc<Outcome>,
}

impl Publishing {
    /// The number that the version will have.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The version, once it is published; `None` before, and after it was told. It does not wait.
    ///
    /// # Errors
    /// The GPU did not copy it, and it is given up.
    pub fn poll(&mut self) -> Result<Option<Version>, Error> {
        self.outcome.take().transpose()
    }

    /// Waits, at most `timeout`, until it is published.
    ///
    /// # Errors
    /// The GPU did not copy it, and it is given up; or it is not copied by the timeout, and is published later.
    pub fn wait(mut self, timeout: Duration) -> Result<Version, Error> {
        let deadline = now() + timeout;
        let mut backoff = Backoff::new();
        loop {
            if let Some(version) = self.poll()? {
                return Ok(version);
            }
            if now() >= deadline {
                let operation = "waiting for a GPU to copy a version";
                let (needed, seen) = (Bound::version(self.version), Bound::NONE);
                return Err(Error::Deadline { operation, waited: timeout, needed, seen });
            }
            backoff.wait();
        }
    }
}
