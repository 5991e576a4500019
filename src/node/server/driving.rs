//! A server that is driven by its own loop, and what it does while there is nothing to do.

use super::Server;
use crate::node::wait::drive;
use crate::node::{Backoff, Error, now};
use crate::time::Duration;
use crate::transport::Transport;

impl<T: Transport> Server<T> {
    /// Polls until `until` says so or `timeout` has passed; false if it was the timeout. What it does between polls,
    /// [`ShardOptions::idle`](crate::node::ShardOptions::idle) says.
    pub fn drive(&mut self, until: impl Fn(&Self) -> bool, timeout: Duration) -> Result<bool, Error> {
        drive(self, Self::poll, Self::stand_back, until, timeout)
    }

    fn stand_back(&mut self, at_most: Duration, backoff: &mut Backoff) {
        let timer = self.scheme.poll_timeout().map(|at| at.saturating_since(now()));
        let at_most = timer.map_or(at_most, |timer| at_most.min(timer));
        // The chunks of a gradient that is being folded come in without a word.
        let is_busy = self.work.frame.is_some();
        self.shard.stand_back(is_busy, at_most, backoff);
    }
}
