//! A server that is driven by its own loop, and what it does while there is nothing to do.

use super::Server;
use crate::node::Error;
use crate::node::runtime::complete;
use crate::node::wait::{WaitTurn, drive};
use crate::time::Duration;
use crate::transport::Transport;

impl<T: Transport> Server<T> {
    /// Serves until workers have left or were evicted `left` times in all since this server was created
    /// ([`ServerStatus::left`](crate::node::ServerStatus::left)), or `timeout` has passed. Returns true once they have,
    /// and false if it was the timeout: serving can go on with another call. What it does between polls,
    /// [`ShardOptions::idle`](crate::node::ShardOptions::idle) says. [`Server`] has an example.
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll), at which it ends.
    pub fn serve(&mut self, left: u64, timeout: Duration) -> Result<bool, Error> {
        self.drive(|server| server.status().left >= left, timeout)
    }

    /// Polls until `until` says so or `timeout` has passed; false if it was the timeout. What it does between polls,
    /// [`ShardOptions::idle`](crate::node::ShardOptions::idle) says.
    #[doc(hidden)]
    pub fn drive(&mut self, until: impl Fn(&Self) -> bool, timeout: Duration) -> Result<bool, Error> {
        complete(self.drive_async(until, timeout))
    }

    pub(crate) async fn drive_async(
        &mut self,
        until: impl Fn(&Self) -> bool,
        timeout: Duration,
    ) -> Result<bool, Error> {
        drive(self.shard.runtime.clone(), self, Self::poll, Self::sleep, until, timeout).await
    }

    fn sleep(&mut self, at_most: Duration) -> WaitTurn<()> {
        let timer = self.scheme.poll_timeout().map(|at| at.saturating_since(self.shard.runtime.now()));
        let at_most = timer.map_or(at_most, |timer| at_most.min(timer));
        // The chunks of a gradient that is being folded come in without a word, and so does the end of what holds up a
        // fold that counts.
        let is_busy = self.work.bound || self.folder.is_running() || !self.owed.is_empty();
        self.shard.sleep(is_busy, at_most)
    }
}
