//! Publishing in the background: the next step begins while the gradient of the last one is on its way.

use super::{Worker, WorkerPhase};
use crate::node::runtime::complete;
use crate::node::{Error, Step};
use crate::scheme::WorkerEvent;
use crate::time::{Duration, Instant};
use crate::transport::Transport;

impl<T: Transport> Step<'_, T> {
    /// Publishes the gradient as [`publish`](Self::publish) does, and under BAP does not wait for it: the next step may
    /// begin while it is on its way to the servers, as its scheme does not wait for it either. One gradient at a time
    /// is on its way, so this call first waits, at most `timeout`, for the gradient of the step before; if it meets its
    /// deadline there, this step is abandoned. [`should_stop`](Self::should_stop) drives the gradient forward, as every
    /// wait does; over TCP and RDMA most of the way needs no help of this thread.
    ///
    /// The gradients of two successive steps lie in memory of their own, and [`gradient`](Self::gradient) lends them by
    /// turns. A worker that reads its own writes, or whose gradients lie in memory of the caller's, waits until all
    /// servers have the gradient, and so does a worker of any other scheme.
    ///
    /// # Errors
    /// The errors of [`publish`](Self::publish).
    pub fn publish_in_background(self, loss: Option<f32>, timeout: Duration) -> Result<(), Error> {
        complete(self.publish_in_background_async(loss, timeout))
    }

    pub(crate) async fn publish_in_background_async(
        self,
        loss: Option<f32>,
        timeout: Duration,
    ) -> Result<(), Error> {
        if !self.worker.may_go_on() {
            return self.publish_async(loss, timeout).await;
        }
        let deadline = self.worker.runtime.now() + timeout;
        self.worker.finish_copies(timeout).await?;
        self.worker.finish_outgoing(deadline - self.worker.runtime.now()).await?;
        self.worker.start_memory(loss)?;
        self.worker.go_on();
        Ok(())
    }
}

impl<T: Transport> Worker<T> {
    /// True if the next step may begin while a gradient is on its way.
    fn may_go_on(&self) -> bool {
        let scheme = self.kind.built_in();
        scheme.is_some_and(|scheme| scheme.publishes_in_background())
            && self.own.is_none()
            && !self.is_callers_gradient
    }

    /// Leaves the gradient that is being published on its way, and goes on to the next clock.
    fn go_on(&mut self) {
        self.outgoing = true;
        // The gradient of the step before has arrived.
        std::mem::swap(&mut self.gradient, &mut self.other_gradient);
        self.end_clock(self.runtime.now());
    }

    /// The clock is over: its gradient is out, or will be without this worker's waiting for it.
    pub(super) fn end_clock(&mut self, now: Instant) {
        self.clock = self.clock.next();
        self.statistics.clocks += 1;
        self.counted = false;
        self.scheme.handle_event(now, WorkerEvent::Published { magnitude: self.magnitude });
        self.phase = WorkerPhase::Deciding;
    }

    /// Looks whether all servers have the gradient that is being published, once the links were moved on.
    pub(super) fn has_arrived(&mut self) -> bool {
        for part in &mut self.parts {
            part.published |= part.link.publish.as_mut().is_none_or(|publish| publish.take());
        }
        self.release_first();
        self.parts.iter().all(|part| part.published)
    }

    /// Moves a gradient on that is on its way.
    pub(super) fn advance_outgoing(&mut self) -> Result<(), Error> {
        if self.outgoing {
            for part in &mut self.parts {
                part.link.advance()?;
            }
            self.outgoing = !self.has_arrived();
        }
        Ok(())
    }

    /// Waits until no gradient is on its way.
    pub(super) async fn finish_outgoing(&mut self, timeout: Duration) -> Result<(), Error> {
        if !self.outgoing {
            return Ok(());
        }
        // From here on the worker waits.
        let begun = self.runtime.now();
        self.statistics.compute += self.computing_since.take().map_or(Duration::ZERO, |since| begun - since);
        self.wait(timeout, "publishing the gradient of the step before", |worker| !worker.outgoing).await
    }
}
