//! Coming back: to servers that were restarted, or that took this worker for dead.

use super::join::{self, JoiningWorker, Reached};
use super::{Part, Worker, WorkerPhase, private};
use crate::clock::Clock;
use crate::node::Error;
use crate::node::runtime::complete;
use crate::scheme::WorkerEvent;
use crate::time::Duration;
use crate::transport::{Address, Transport};

impl<T: Transport> Worker<T> {
    /// Leaves all servers and connects again within `timeout`, to the servers of all shards, in any order: after an
    /// [`Error::ServerLost`] or [`Error::Evicted`], or whenever the servers have other addresses. It keeps trying
    /// while a server is not there yet. Then call [`step`](Worker::step).
    ///
    /// A gradient whose publishing had not returned is void: it was applied once or not at all, and is never sent
    /// again. The worker goes on at the clock that the servers tell, which is its own or a later one; the parameters
    /// are the servers', and may be older than its own where a server resumed from a checkpoint. Memory and statistics
    /// stay, except memory of the parameters to which a GPU still copies for the earlier connections: the worker uses
    /// memory of its own then.
    ///
    /// After an error there are no connections: every call says so until a `reconnect` succeeds.
    ///
    /// # Errors
    /// The errors of [`connect`](Worker::connect); [`Error::Shards`] also where the servers have another table than
    /// before.
    pub fn reconnect(&mut self, servers: &[Address], timeout: Duration) -> Result<(), Error> {
        complete(self.reconnect_async(servers, timeout))
    }

    pub(crate) async fn reconnect_async(
        &mut self,
        servers: &[Address],
        timeout: Duration,
    ) -> Result<(), Error> {
        let deadline = self.runtime.now() + timeout;
        if !self.parts.is_empty() {
            self.reached = self.parts.iter_mut().map(Part::reached).collect();
            // Before anything can fail, so that the servers need not wait for the lease.
            self.parts.clear();
            self.runtime.sleep(join::LEAVING.min(timeout)).await;
        }
        // A copy that a GPU makes for a connection that is gone cannot be called off: it keeps the memory.
        let bytes = self.table.bytes();
        if let Some(lent) = self.parameters.as_mut().filter(|memory| memory.bytes().is_none()) {
            *lent = private(&self.transport, bytes)?;
        }
        self.phase = WorkerPhase::Apart;
        self.computing_since = None;
        // Whether a gradient on its way was announced only the servers know.
        let announced = self.clock.get() - u64::from(std::mem::take(&mut self.outgoing));
        self.clock = Clock::new(announced);
        let reached = Reached { clock: self.clock, shards: &self.reached };
        let links = join::join(
            &self.transport,
            servers,
            JoiningWorker { options: &self.options, scheme: &self.kind, identity: self.identity },
            Some(reached),
            deadline - self.runtime.now(),
        )
        .await?;
        if join::check_shards(&links)? != self.table {
            let reason = "it is another table than this worker's".into();
            return Err(Error::Shards { reason });
        }
        join::check_read_mode(&links, &self.options, &self.kind)?;
        self.clock = join::clock(&links);
        self.consumed = self.clock;
        // Its published gradients are in the parameters of these servers, or void.
        self.parts = Part::of(links, &self.options, &self.needs);
        self.asks_last = false;
        super::ask_included(&mut self.parts, &self.options)?;
        self.scheme = self.kind.worker();
        self.scheme.handle_event(self.runtime.now(), WorkerEvent::Joined { clock: self.clock });
        self.phase = WorkerPhase::Deciding;
        self.members = 0;
        self.counted = false;
        self.statistics.reconnects += 1;
        tracing::info!(clock = self.clock.get(), "connected again");
        Ok(())
    }
}
