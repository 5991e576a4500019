//! One step of a worker: the parameters of a clock, and the gradient that is computed from them.

use super::publish::PUBLISHING;
use super::{Part, Sources, View, Worker, WorkerPhase};
use crate::mem::{LocalSlice, VolatileSlice};
use crate::node::Error;
use crate::node::runtime::complete;
use crate::param::{GradientSource, PinError};
use crate::scheme::WorkerEvent;
use crate::table::Encoding;
use crate::time::Duration;
use crate::transport::Transport;

/// The parameters of one clock, and the memory for the gradient that is computed from them.
///
/// [`Worker::step`] makes it; publishing consumes it, so no gradient is published twice and none without parameters:
///
/// ```compile_fail,E0382
/// # use slackline::{Error, Shm, Step};
/// # fn publish_twice(step: Step<'_, Shm>, timeout: std::time::Duration) -> Result<(), Error> {
/// step.publish(None, timeout)?;
/// step.publish(None, timeout)?; // error: use of moved value
/// # Ok(()) }
/// ```
///
/// Dropping a step abandons it, as [`abandon`](Self::abandon) does: nothing of it is published.
#[must_use = "a step that is dropped is abandoned: call `publish`"]
pub struct Step<'a, T: Transport> {
    pub(super) worker: &'a mut Worker<T>,
    view: View,
}

impl<'a, T: Transport> Step<'a, T> {
    pub(super) fn new(worker: &'a mut Worker<T>, view: View) -> Self {
        Step { worker, view }
    }

    /// The worker, to look at.
    #[doc(hidden)]
    pub fn worker(&self) -> &Worker<T> {
        self.worker
    }

    /// The clock and the version of the parameters.
    pub fn view(&self) -> View {
        self.view
    }

    /// The parameters as one flat array of the whole table. Nothing is copied: it is the memory that they were pulled
    /// into.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`]: this worker reads parameters in place. [`Error::InFlight`]: a GPU or a request still uses
    /// the memory. The errors of a GPU whose copy failed.
    pub fn parameters(&self) -> Result<&[f32], Error> {
        // Complete copies of a GPU are released.
        self.worker.copies.are_done()?;
        let buffer = self.worker.parameters.as_ref().ok_or(IN_PLACE)?;
        buffer.f32s().ok_or(Error::InFlight { what: "parameters" })
    }

    /// The memory for an f32 gradient of the whole table, which is published from there. It holds its last content.
    ///
    /// # Errors
    /// [`Error::Encoding`]: this worker's gradients are bf16 or f16; use [`encode`](Self::encode). [`Error::InFlight`]:
    /// a GPU or a request still uses the memory. [`Error::Register`]: there is no memory for it. The errors of a GPU
    /// whose copy failed.
    pub fn gradient(&mut self) -> Result<&mut [f32], Error> {
        self.worker.expect_f32()?;
        self.worker.copies.are_done()?;
        self.worker.gradient_buffer()?.f32s_mut().ok_or(Error::InFlight { what: "gradient" })
    }

    /// The [`parameters`](Self::parameters) and the [`gradient`](Self::gradient) at once.
    ///
    /// # Errors
    /// The errors of both.
    pub fn borrow(&mut self) -> Result<(&[f32], &mut [f32]), Error> {
        self.worker.expect_f32()?;
        self.worker.copies.are_done()?;
        self.worker.gradient_buffer()?;
        let worker = &mut *self.worker;
        let parameters = worker.parameters.as_ref().ok_or(IN_PLACE)?;
        let parameters = parameters.f32s().ok_or(Error::InFlight { what: "parameters" })?;
        let gradient = worker.gradient.as_mut().and_then(|gradient| gradient.f32s_mut());
        Ok((parameters, gradient.ok_or(Error::InFlight { what: "gradient" })?))
    }

    /// The parameters of one shard in the server's memory, which the server leaves as they are during this step. Only
    /// for workers that are connected with [`ReadMode::InPlace`](super::ReadMode::InPlace).
    ///
    /// ```
    /// use slackline::{Address, ElementType, ReadMode, Server, ServerOptions, Shm, Table, Worker, WorkerOptions};
    /// use slackline::scheme::SchemeConfig;
    /// use std::time::Duration;
    ///
    /// let (address, timeout) = (Address::random(), Duration::from_secs(10));
    /// let (table, options) = (Table::flat(2, ElementType::F32)?, ServerOptions::new(SchemeConfig::Bsp, 1, 0.5));
    /// let mut server = Server::new(Shm::new(), &address, table, &[1.0, 2.0], options)?;
    /// let working = std::thread::spawn(move || {
    ///     let options = WorkerOptions { read: ReadMode::InPlace, ..WorkerOptions::default() };
    ///     let mut worker = Worker::connect(Shm::new(), &[address], options, timeout)?;
    ///     let mut step = worker.step(timeout)?;
    ///     let mut second = [0; 4];
    ///     step.in_place(0)?.subslice(4, 4).read(&mut second); // of the only shard
    ///     step.gradient()?.fill(f32::from_ne_bytes(second));
    ///     step.publish(None, timeout)
    /// });
    /// server.serve(1, timeout)?;
    /// working.join().unwrap()?;
    /// assert_eq!(server.parameters()?, [0.0, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfTurn`]: this worker reads copies, or there is no such shard.
    pub fn in_place(&self, shard: usize) -> Result<VolatileSlice<'_>, Error> {
        let pins = self.worker.parts.get(shard).and_then(|part| part.link.pins.as_ref());
        pins.and_then(|pins| pins.bytes()).ok_or(Error::OutOfTurn {
            operation: "read in place",
            reason: "this worker reads copies, or there is no such shard: connect it to read in place",
        })
    }

    /// Rounds an f32 gradient of the whole table to the worker's encoding, ready to be published. It replaces
    /// the content of [`gradient`](Self::gradient).
    ///
    /// # Errors
    /// [`Error::Length`]: `gradient` is not as long as the table. [`Error::InFlight`]: a GPU or a request still uses
    /// the memory. [`Error::Register`]: there is no memory for it. The errors of a GPU whose copy failed.
    pub fn encode(&mut self, gradient: &[f32]) -> Result<(), Error> {
        let encoding = self.worker.options.encoding;
        let expected = (self.worker.table.bytes() / 4) as usize;
        if gradient.len() != expected {
            return Err(Error::Length { given: gradient.len(), expected, unit: "values" });
        }
        self.worker.copies.are_done()?;
        let buffer = self.worker.gradient_buffer()?;
        let bytes = buffer.bytes_mut().ok_or(Error::InFlight { what: "gradient" })?;
        let len = expected * encoding.bytes();
        crate::kernel::encode(gradient, VolatileSlice::from_mut(&mut bytes[..len]), encoding);
        Ok(())
    }

    /// Publishes the gradient, waiting at most `timeout` for free slots. `loss` is told to the server. When it returns,
    /// every server has the gradient whole. After an [`Error::Deadline`] it is still on its way, and the next
    /// [`Worker::step`] finishes it, with one exception: after a
    /// [`publish_in_background`](Self::publish_in_background) this call first waits for the gradient of that step. If
    /// the time ends there, as the error's operation says, this step is abandoned, and its gradient is not published.
    /// A step whose gradient a GPU has not copied by then is abandoned, which another error says.
    ///
    /// # Errors
    /// [`Error::Deadline`], as above. [`Error::ServerLost`], [`Error::Evicted`]: a server is gone, or has evicted this
    /// worker; [`reconnect`](Worker::reconnect). [`Error::Publish`]: a write failed, and the gradient may be lost.
    /// [`Error::InFlight`]: a GPU or a request still uses the gradient's memory. The errors of a GPU, and of a scheme
    /// that gave up.
    pub fn publish(self, loss: Option<f32>, timeout: Duration) -> Result<(), Error> {
        complete(self.publish_async(loss, timeout))
    }

    pub(crate) async fn publish_async(self, loss: Option<f32>, timeout: Duration) -> Result<(), Error> {
        let deadline = self.worker.runtime.now() + timeout;
        self.worker.finish_copies(timeout).await?;
        self.worker.finish_outgoing(deadline - self.worker.runtime.now()).await?;
        self.worker.start_memory(loss)?;
        self.worker.finish_publish(PUBLISHING, deadline - self.worker.runtime.now()).await
    }

    /// Begins to publish the gradient. Poll the worker until [`Worker::is_publishing`] is false, or begin the next
    /// step, which finishes this one.
    ///
    /// # Errors
    /// A GPU still copies the gradient, or the gradient of the step before is still
    /// [on its way](Self::publish_in_background); the step is abandoned.
    pub fn start_publish(self, loss: Option<f32>) -> Result<(), Error> {
        let too_early = |reason| Err(Error::OutOfTurn { operation: "begin to publish", reason });
        if !self.worker.copies.are_done()? {
            return too_early("a GPU still copies: call `publish`, or wait for it first");
        }
        self.worker.advance_outgoing()?;
        if self.worker.outgoing {
            return too_early(
                "the gradient of the step before is on its way: call `publish`, or wait for it first",
            );
        }
        self.worker.start_memory(loss)
    }

    /// Waits for a free slot at every server, at most `timeout`, and lends them, one per shard in order: the worker
    /// computes straight into them, and [`publish_slots`](Self::publish_slots) announces them. No other process writes
    /// them, and the server reads them only once they are announced.
    #[doc(hidden)]
    pub fn borrow_slots(
        &mut self,
        timeout: Duration,
    ) -> Result<impl ExactSizeIterator<Item = LocalSlice>, Error> {
        self.worker.reserve_slots(timeout)?;
        let mut slots = smallvec::SmallVec::<[LocalSlice; 4]>::new();
        for part in &self.worker.parts {
            let not_mapped = Error::Pin { shard: part.link.welcome.shard, source: PinError::NotMapped };
            slots.push(part.link.borrowed_slot().ok_or(not_mapped)?);
        }
        Ok(slots.into_iter())
    }

    /// Publishes the slots that were borrowed. Nothing is copied.
    #[doc(hidden)]
    pub fn publish_slots(self, loss: Option<f32>, timeout: Duration) -> Result<(), Error> {
        let sources = self.worker.parts.iter().map(|_| GradientSource::Slot).collect();
        self.worker.start_sources(sources, loss)?;
        complete(self.worker.finish_publish(PUBLISHING, timeout))
    }

    /// Returns true if a server has asked that this worker abandon the step: its parameters are older than that server
    /// wants. It never waits, so that it can be asked in the middle of a batch. It costs a load per server whose memory
    /// is mapped; elsewhere it returns the result of the last read of the server's memory, and begins the next read if
    /// none is under way (over TCP some microseconds).
    ///
    /// # Errors
    /// [`Error::ServerLost`], [`Error::Evicted`]: a server is gone, or has let this worker go. [`Error::Post`]: the
    /// read could not be posted.
    pub fn should_stop(&mut self) -> Result<bool, Error> {
        let mut stop = false;
        self.worker.advance_outgoing()?;
        for part in &mut self.worker.parts {
            stop |= part.link.interrupt()? > part.version;
        }
        Ok(stop)
    }

    /// Abandons this step: nothing of it is published, and the next [`Worker::step`] begins the same clock again. Where
    /// a server has asked for that, the next step brings newer parameters, at least as new as the server asked for.
    /// Elsewhere it begins at once on the same parameters, which still satisfy the scheme: under no scheme does it wait
    /// for a version that may depend on this worker's own gradient.
    ///
    /// # Errors
    /// The errors of [`should_stop`](Self::should_stop).
    pub fn abandon(self) -> Result<(), Error> {
        // Not a second time in `drop`.
        std::mem::ManuallyDrop::new(self).worker.abandon()
    }

    /// Leaves this step open without the borrow of the worker, for callers that cannot hold one, such as a handle of a
    /// C program. [`Worker::resume`] returns to it.
    #[doc(hidden)]
    pub fn suspend(self) -> View {
        let view = self.view;
        // It owns nothing: only its `drop`, which abandons the step, is left out.
        std::mem::forget(self);
        view
    }
}

impl<T: Transport> std::fmt::Debug for Step<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Step").field(&self.view).finish()
    }
}

impl<T: Transport> Drop for Step<'_, T> {
    fn drop(&mut self) {
        // The loss of a server is reported by the next call that can.
        if let Err(error) = self.worker.abandon() {
            tracing::debug!(%error, "a step was dropped");
        }
    }
}

pub(super) const IN_PLACE: Error = Error::OutOfTurn {
    operation: "read parameters",
    reason: "this worker reads them in place: use `in_place`",
};

impl<T: Transport> Worker<T> {
    fn expect_f32(&self) -> Result<(), Error> {
        match self.options.encoding {
            Encoding::F32 => Ok(()),
            encoding => Err(Error::Encoding { encoding }),
        }
    }

    pub(super) fn start_memory(&mut self, loss: Option<f32>) -> Result<(), Error> {
        self.gradient_buffer()?;
        let width = self.options.encoding.bytes();
        let Some(gradient) = &mut self.gradient else { return Err(Error::InFlight { what: "gradient" }) };
        let mut sources = Sources::new();
        for part in &self.parts {
            sources.push(GradientSource::Memory(
                gradient.slice(part.begin / 4 * width, part.bytes / 4 * width)?,
            ));
        }
        self.start_sources(sources, loss)?;
        self.count_published();
        Ok(())
    }

    /// Counts the bytes of a gradient that is being written.
    pub(super) fn count_published(&mut self) {
        let width = self.options.encoding.bytes();
        self.statistics.bytes_published += self.gradient_bytes();
        for part in &mut self.parts {
            part.bytes_published += (part.bytes / 4 * width) as u64;
        }
    }

    fn reserve_slots(&mut self, timeout: Duration) -> Result<(), Error> {
        let deadline = self.runtime.now() + timeout;
        complete(self.finish_outgoing(timeout))?;
        for part in &mut self.parts {
            let shard = part.link.welcome.shard;
            if let Some(publish) = &mut part.link.publish {
                publish.reserve().map_err(|source| Error::Publish { shard, source })?;
            }
        }
        let is_reserved =
            |part: &Part<T>| part.link.publish.as_ref().is_some_and(|publish| publish.reserved().is_some());
        let left = deadline - self.runtime.now();
        complete(self.wait(left, "waiting for a free slot", |worker| worker.parts.iter().all(is_reserved)))
    }

    /// Does nothing once the gradient is on its way.
    fn abandon(&mut self) -> Result<(), Error> {
        if self.phase != WorkerPhase::Computing {
            return Ok(());
        }
        let now = self.runtime.now();
        if let Some(since) = self.computing_since.take() {
            self.statistics.compute += now - since;
        }
        self.statistics.abandoned += 1;
        let mut is_asked = false;
        for part in &mut self.parts {
            let least = part.link.interrupt()?;
            is_asked |= least > part.version;
            part.least = part.least.max(least);
        }
        if is_asked {
            self.scheme.handle_event(now, WorkerEvent::Interrupted);
            self.phase = WorkerPhase::Deciding;
        }
        Ok(())
    }
}
