//! A server that is driven by its own loop, and what it does while there is nothing to do.

use super::Server;
use crate::node::Error;
use crate::node::runtime::complete;
use crate::node::wait::{WaitTurn, wait};
use crate::time::{Duration, Instant};
use crate::transport::Transport;

impl<T: Transport> Server<T> {
    /// Polls until `until` says so or `timeout` has passed; false if it was the timeout. What it does between polls,
    /// [`ShardOptions::idle`](crate::node::ShardOptions::idle) says.
    pub fn drive(&mut self, until: impl Fn(&Self) -> bool, timeout: Duration) -> Result<bool, Error> {
        complete(self.drive_async(until, timeout))
    }

    pub(crate) async fn drive_async(
        &mut self,
        until: impl Fn(&Self) -> bool,
        timeout: Duration,
    ) -> Result<bool, Error> {
        let runtime = self.shard.runtime.clone();
        let deadline = runtime.now() + timeout;
        let ended = wait(&runtime, deadline, |now| {
            let progress = self.poll(now)?;
            Ok(match until(self) {
                true => WaitTurn::Done(()),
                false if progress => WaitTurn::Progress,
                false => self.sleep(now, deadline),
            })
        });
        Ok(ended.await?.is_some())
    }

    fn sleep<R>(&mut self, now: Instant, deadline: Instant) -> WaitTurn<R> {
        let until = self.scheme.poll_timeout().map_or(deadline, |timer| timer.min(deadline));
        // The chunks of a gradient that is being folded come in without a word, and so does the end of what holds up a
        // fold that counts.
        let is_busy = self.work.bound || self.aggregator.is_running();
        self.shard.sleep(is_busy, until - now)
    }
}
