//! Publishing: a gradient goes from its memory to the servers of all shards, and is waited for.

use smallvec::SmallVec;

use super::{Worker, WorkerPhase, private};
use crate::kernel::largest_magnitude;
use crate::mem::Buffer;
use crate::node::Error;
use crate::node::wait::{WaitTurn, wait};
use crate::param::{GradientMetadata, GradientSource};
use crate::time::Duration;
use crate::transport::Transport;

/// The memory that is published, one source per shard.
pub(super) type Sources = SmallVec<[GradientSource; 4]>;

/// The operation of an error that says of a gradient that it is on its way, and its step over.
pub(super) const PUBLISHING: &str = "publishing a gradient";

impl<T: Transport> Worker<T> {
    /// Bytes of one gradient.
    pub(super) fn gradient_bytes(&self) -> u64 {
        self.table.bytes() / 4 * self.options.encoding.bytes() as u64
    }

    pub(super) fn gradient_buffer(&mut self) -> Result<&mut Buffer, Error> {
        // Workers that compute in borrowed slots never need it.
        if self.gradient.is_none() {
            self.gradient = Some(private(&self.transport, self.gradient_bytes())?);
        }
        self.gradient.as_mut().ok_or(Error::InFlight { what: "gradient" })
    }

    /// Begins to publish, from one source per shard.
    pub(super) fn start_sources(&mut self, sources: Sources, loss: Option<f32>) -> Result<(), Error> {
        if let Some(since) = self.computing_since.take() {
            self.statistics.compute += self.runtime.now() - since;
        }
        (self.magnitude, self.asks_last) = (None, false);
        for (part, source) in self.parts.iter_mut().zip(&sources) {
            if self.measures_magnitude || self.own.is_some() {
                let payload = match source {
                    GradientSource::Memory(memory) => Some(memory.clone()),
                    GradientSource::Slot => part.link.borrowed_slot(),
                    #[cfg(feature = "cuda")]
                    GradientSource::Gpu(_) => return Err(super::gpu::NEEDS_BYTES.into()),
                    #[cfg(not(feature = "cuda"))]
                    GradientSource::Gpu(slice) => match *slice {},
                };
                if let (Some(own), Some(payload)) = (&mut self.own, &payload) {
                    own.keep(self.clock, part.begin / 4, payload.as_volatile());
                }
                let encoding = self.options.encoding;
                let payload = payload.filter(|_| self.measures_magnitude);
                let magnitude = payload.map(|payload| largest_magnitude(payload.as_volatile(), encoding));
                if let Some(magnitude) = magnitude {
                    self.magnitude = Some(self.magnitude.map_or(magnitude, |most| most.max(magnitude)));
                }
            }
        }
        // The magnitude of the whole gradient: a server may decide on all of it.
        let metadata = GradientMetadata { loss, magnitude: self.magnitude, others: self.others };
        // The copy is as old as its oldest part, where one server decides for all.
        let base = self.is_decided().then(|| self.view_of_parts().version);
        for (index, (part, source)) in self.parts.iter_mut().zip(sources).enumerate() {
            let shard = part.link.welcome.shard;
            if let Some(publish) = &mut part.link.publish {
                // One server decides for all once all others have the gradient.
                publish.hold(base.is_some() && index == 0 && !mutant!("decider_last"));
                publish.prove(base.is_some() && index > 0);
                publish
                    .start(source, base.unwrap_or(part.version), metadata)
                    .map_err(|source| Error::Publish { shard, source })?;
            }
            part.published = false;
        }
        self.phase = WorkerPhase::Publishing;
        Ok(())
    }

    /// Waits until no GPU copies any more. Without GPU memory, none does.
    pub(super) async fn finish_copies(&mut self, timeout: Duration) -> Result<(), Error> {
        if self.copies.are_done()? {
            return Ok(());
        }
        let runtime = self.runtime.clone();
        let done = wait(&runtime, runtime.now() + timeout, |now| {
            let progress = self.poll(now)?;
            Ok(if self.copies.are_done()? { WaitTurn::Done(()) } else { WaitTurn::of(progress) })
        });
        #[cfg(feature = "cuda")]
        return done.await?.ok_or_else(|| self.not_copied(timeout));
        #[cfg(not(feature = "cuda"))]
        done.await.map(|_| ())
    }

    pub(super) async fn finish_publish(
        &mut self,
        operation: &'static str,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.wait(timeout, operation, |worker| worker.phase != WorkerPhase::Publishing).await
    }

    /// True while a gradient is being written.
    #[doc(hidden)]
    pub fn is_publishing(&self) -> bool {
        self.phase == WorkerPhase::Publishing || self.outgoing
    }
}
