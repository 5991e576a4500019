//! A server that is driven by its own loop, and its rest while there is nothing to do.

use super::Server;
use crate::node::Error;
use crate::node::runtime::complete;
use crate::node::wait::{WaitTurn, drive};
use crate::time::Duration;
use crate::transport::Transport;

impl<T: Transport> Server<T> {
    /// Serves until workers have left or were evicted `left` times in all since this server was created
    /// ([`ServerStatus::left`](crate::node::ServerStatus::left)), or `timeout` has passed. Returns true once they have,
    /// and false after the timeout: another call continues to serve.
    /// [`ShardOptions::idle`](crate::node::ShardOptions::idle) chooses between polling and sleeping. [`Server`] has an
    /// example.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll), which end the call.
    pub fn serve(&mut self, left: u64, timeout: Duration) -> Result<bool, Error> {
        self.drive(|server| server.status().left >= left, timeout)
    }

    /// Polls until `until` returns true or `timeout` has passed; false after the timeout.
    /// [`ShardOptions::idle`](crate::node::ShardOptions::idle) chooses between polling and sleeping.
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
        // The chunks of a gradient that is being folded arrive without an announcement, and so does the end of the work
        // that holds up a fold that counts. Decisions of another server are read.
        let is_busy = self.work.bound || self.folder.is_running() || !self.owed.is_empty();
        let is_busy = is_busy || self.awaits_decisions();
        self.shard.sleep(is_busy, at_most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Idle, ServerOptions, Worker, WorkerOptions, now};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    use crate::transport::Address;
    use crate::transport::shm::Shm;
    #[cfg(feature = "tcp")]
    use crate::transport::tcp::Tcp;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// The server of one of several shards, for one worker. It sleeps while it has no work.
    fn asleep<T: Transport>(
        transport: T,
        address: &Address,
        scheme: SchemeConfig,
        shard: (u16, u16),
    ) -> Server<T> {
        let mut options = ServerOptions { shard, ..ServerOptions::new(scheme, 1, 0.1) };
        options.memory.idle = Idle::Sleep;
        let table = Table::flat(16 * u64::from(shard.1), ElementType::F32).unwrap();
        Server::new(transport, address, table, &[0.0; 16], options).unwrap()
    }

    fn sleeps<T: Transport>(server: &mut Server<T>) -> bool {
        matches!(server.sleep(Duration::ZERO), WaitTurn::Slept)
    }

    #[test]
    fn a_server_that_follows_does_not_sleep_while_it_awaits_a_decision() {
        let scheme: SchemeConfig = "dbw(k=1, delivery=wait)".parse().unwrap();
        let server = |shard| asleep(Shm::new(), &Address::random(), scheme, (shard, 2));
        let (mut decider, mut follower) = (server(0), server(1));
        let addresses = [decider.address(), follower.address()];
        std::thread::scope(|scope| {
            let following = scope.spawn(|| follower.follow(&addresses[0], PATIENCE).unwrap());
            assert!(decider.drive(|_| following.is_finished(), PATIENCE).unwrap());
        });
        let mut worker = std::thread::scope(|scope| {
            let connect =
                || Worker::connect(Shm::new(), &addresses, WorkerOptions::new(scheme), PATIENCE).unwrap();
            let connecting = scope.spawn(connect);
            while !connecting.is_finished() {
                decider.poll(now()).unwrap();
                follower.poll(now()).unwrap();
            }
            connecting.join().unwrap()
        });
        while follower.poll(now()).unwrap() {}
        assert!(sleeps(&mut follower), "there is nothing to decide on");
        let mut step = worker.step(PATIENCE).unwrap();
        step.gradient().unwrap().fill(1.0);
        step.publish(None, PATIENCE).unwrap();
        while follower.poll(now()).unwrap() {}
        assert!(
            !sleeps(&mut follower),
            "the other server decides on the gradient, and does not wake this one"
        );
        let deadline = now() + PATIENCE;
        while follower.status().version.get() == 0 {
            assert!(now() < deadline, "{:?} {:?}", decider.status(), follower.status());
            decider.poll(now()).unwrap();
            follower.poll(now()).unwrap();
        }
        while follower.poll(now()).unwrap() {}
        assert!(sleeps(&mut follower), "it is decided");
    }

    #[cfg(feature = "tcp")]
    #[test]
    fn a_newcomer_that_ends_a_sleep_is_let_in_whenever_the_last_look_was() {
        let scheme = SchemeConfig::Asp;
        let mut server = asleep(Tcp::new(), &"127.0.0.1:0".parse().unwrap(), scheme, (0, 1));
        let addresses = [server.address()];
        // To the server no time passes between two looks.
        let at = now();
        std::thread::scope(|scope| {
            let connect = || Worker::connect(Tcp::new(), &addresses, WorkerOptions::new(scheme), PATIENCE);
            let connecting = scope.spawn(connect);
            while !connecting.is_finished() {
                server.poll(at).unwrap();
                let _turn = server.sleep(PATIENCE);
            }
            connecting.join().unwrap().unwrap();
        });
    }
}
