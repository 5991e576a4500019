//! Gradients that hold a NaN or an infinity: the result of a fold shows that there is one, and only then it is
//! searched.

use smallvec::SmallVec;

use super::{NonFinite, Server};
use crate::node::Error;
use crate::node::shard::DisconnectReason;
use crate::scheme::GradientId;
use crate::time::Instant;
use crate::transport::Transport;

impl<T: Transport> Server<T> {
    /// Counts the gradients that have made a parameter of the complete fold NaN or infinite. Begins the fold again
    /// without them, unless the options allow them; true if it did.
    pub(super) fn leave_out(
        &mut self,
        found: SmallVec<[GradientId; 4]>,
        now: Instant,
    ) -> Result<bool, Error> {
        let version = self.shard.frames.latest().version.next();
        self.status.non_finite += found.len() as u64;
        let Some(frame) =
            self.work.frame.filter(|_| !found.is_empty() && self.non_finite != NonFinite::Allow)
        else {
            if self.status.diverged.is_none() {
                tracing::warn!(
                    version = version.get(),
                    gradients = found.len(),
                    "parameters are not finite any more"
                );
                self.status.diverged = Some(version);
            }
            return Ok(false);
        };
        for gradient in &found {
            let (worker, clock) = (gradient.worker, gradient.clock.get());
            tracing::warn!(worker = worker.0, clock, "left out a gradient that is not finite");
            if let (NonFinite::Refuse, Some(peer)) = (self.non_finite, worker.peer()) {
                let why = format!("its gradient of clock {clock} holds a NaN or an infinity");
                self.shard.dismiss(peer, DisconnectReason::Misbehaved(why), &mut self.events);
            }
        }
        self.work.left_out.extend(found);
        self.take_events(now);
        self.shard.frames.restart(frame, version);
        self.start_job(frame, version)?;
        Ok(true)
    }
}
