//! The end of one incarnation of a server and the begin of the next: checkpoints.

use super::{IncarnationStart, Server, ServerOptions};
use crate::clock::Version;
use crate::node::checkpoint::{Checkpoint, CheckpointError, CheckpointWrite, Checkpointer};
use crate::node::runtime::complete;
use crate::node::wait::{WaitTurn, wait};
use crate::node::{Awaited, Error};
use crate::scheme::Bound;
use crate::table::Table;
use crate::time::Duration;
use crate::transport::{Address, Transport};

impl<T: Transport> Server<T> {
    /// As [`new`](Self::new), from a checkpoint of an earlier incarnation: parameters, optimiser state, version,
    /// smallest clock and the count of gradients go on where it was written. The epoch is a new one, so that nothing of
    /// the old incarnation reaches this one.
    ///
    /// Nothing is applied before [`workers`](ServerOptions::workers) of them are in, as at the begin of a job; as many
    /// as [`Checkpoint::clocks`] has were in when it was written. `table`, shard and optimiser must be the
    /// checkpoint's; the optimiser's constants, the scheme and the learning rate may be others. If it is the checkpoint
    /// before a damaged one that this server is to replace, the damaged file is renamed when this server begins: its
    /// name then ends in `.damaged`.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new); [`Error::Checkpoint`]: `table`, shard or optimiser are not the checkpoint's,
    /// or the damaged file could not be renamed.
    pub fn resume(
        transport: T,
        address: &Address,
        table: Table,
        checkpoint: Checkpoint,
        options: ServerOptions,
    ) -> Result<Self, Error> {
        checkpoint.check(&table, options.shard, &options.optimizer)?;
        let (version, smallest_clock) = (checkpoint.version(), checkpoint.smallest_clock());
        let (parameters, states) = (checkpoint.parameters(), checkpoint.states());
        let (folded, applied) = (checkpoint.folded(), checkpoint.applied().clone());
        // The learned state of another scheme, or of the same one with other settings, does not apply here.
        let learned = checkpoint.learned().filter(|_| checkpoint.scheme() == options.scheme.to_string());
        let folder = None;
        let start = IncarnationStart {
            parameters,
            states,
            version,
            smallest_clock,
            folded,
            applied,
            learned,
            from: Some(&checkpoint),
            folder,
        };
        let server = Self::begin(transport, address, table, start, options)?;
        tracing::info!(
            shard = checkpoint.shard().0,
            version = version.get(),
            clock = smallest_clock.get(),
            epoch = server.epoch(),
            written_by = checkpoint.epoch(),
            "resumed from a checkpoint"
        );
        Ok(server)
    }

    /// Asks for a checkpoint of the newest version. The next [`poll`](Self::poll) begins it, or a later one, once the
    /// checkpoint that is being written has ended. [`ServerStatus::checkpointed`](super::ServerStatus::checkpointed)
    /// tells its end.
    #[doc(hidden)]
    pub fn request_checkpoint(&mut self) -> Result<(), Error> {
        self.writer()?.request();
        Ok(())
    }

    /// Serves until the version that is the newest now, or a later one, is safely on the disk, at most `timeout`; the
    /// last thing before a clean end. Returns the version. Once the time is over, the end of the server does not wait
    /// for the disk either.
    #[doc(hidden)]
    pub fn finish_checkpoint(&mut self, timeout: Duration) -> Result<Version, Error> {
        if !self.is_ready() {
            let reason =
                "another server decides for this one, which has not reached it and holds nothing new";
            return Err(Error::OutOfTurn { operation: "write a checkpoint", reason });
        }
        let newest = self.shard.frames.latest().version;
        let mut requested = false;
        let runtime = self.shard.runtime.clone();
        let written = wait(&runtime, runtime.now() + timeout, |at| {
            let progress = match self.poll(at) {
                // The deciding server may have ended before.
                Err(Error::ServerLost { .. } | Error::Evicted { .. }) if self.follows() => true,
                polled => polled?,
            };
            let writer = self.writer()?;
            // Asked first: a checkpoint that ends between the two questions was then written, or has failed.
            let idle = writer.is_idle();
            if let Some(written) = writer.written().filter(|written| *written >= newest) {
                return Ok(WaitTurn::Done(written));
            }
            // A checkpoint that was under way already may be of an older version: only one requested here counts.
            if idle && !std::mem::replace(&mut requested, true) {
                writer.request();
            } else if idle {
                let panicked = Error::OutOfTurn {
                    operation: "write a checkpoint",
                    reason: "the thread that writes them has panicked, and said why",
                };
                return Err(writer.failure().map_or(panicked, Error::from));
            }
            Ok(WaitTurn::of(progress))
        });
        if let Some(written) = complete(written)? {
            return Ok(written);
        }
        let writer = self.writer()?;
        writer.give_up();
        let seen = Bound::version(writer.written().unwrap_or_default());
        let (operation, needed) = ("writing a checkpoint", Bound::version(newest));
        Err(Error::Deadline { operation, waited: timeout, needed, seen, awaited: Awaited::File })
    }

    /// True if the server writes checkpoints.
    pub(crate) fn keeps_checkpoints(&self) -> bool {
        self.checkpoints.is_some()
    }

    /// Takes the reason why the last checkpoint that failed could not be written, once for each that failed or for
    /// several together.
    #[doc(hidden)]
    pub fn checkpoint_failure(&mut self) -> Option<CheckpointError> {
        self.checkpoints.as_ref()?.failure()
    }

    fn writer(&mut self) -> Result<&mut Checkpointer, Error> {
        self.checkpoints.as_mut().ok_or(Error::OutOfTurn {
            operation: "write a checkpoint",
            reason: "the server has no `checkpoint` among its options",
        })
    }

    /// Begins a checkpoint if one is due: the newest frame and the states that belong to it, which only the end of a
    /// fold changes, and that happens in this thread.
    ///
    /// # Errors
    /// [`CheckpointError::Superseded`]: another incarnation goes on from this one's checkpoint, and workers should not
    /// be served by both.
    pub(super) fn checkpoint(&mut self) -> Result<(), CheckpointError> {
        let latest = self.shard.frames.latest();
        let Some(writer) = &mut self.checkpoints else { return Ok(()) };
        if let Some(superseded) = writer.superseded() {
            return Err(superseded);
        }
        if !writer.is_due(latest.version) {
            return Ok(());
        }
        if let Some(since) = self.status.diverged {
            writer.refuse(latest.version, since);
            return Ok(());
        }
        let mut tensors = Vec::with_capacity(1 + self.states.len());
        tensors.push(self.shard.frames.payload(latest.frame));
        for state in &self.states {
            // A region may be longer than was asked for.
            let Ok(slice) = state[self.current].slice(0, tensors[0].len()) else { return Ok(()) };
            tensors.push(slice);
        }
        let order = CheckpointWrite {
            version: latest.version,
            smallest_clock: self.announced_clock,
            clocks: self.workers.iter().flatten().map(|worker| worker.consumed).collect(),
            folded: self.status.folded,
            applied: self.shard.taken.applied(self.announced_clock),
            learned: self.scheme.learned(),
            tensors,
            gpu: self.shard.transport().gpu().cloned(),
        };
        writer.begin(order, latest.frame, self.current);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;
    use crate::clock::Clock;
    use crate::kernel::Optimizer;
    use crate::node::now;
    use crate::node::taken::Applied;
    use crate::node::{CheckpointOptions, ShardOptions, Worker, WorkerOptions};
    use crate::param::{Latest, PeerHello, PeerRole, PublishError, WorkerProgress};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Encoding};
    use crate::transport::shm::Shm;
    use crate::transport::{Connecting, Endpoint, Inline, Offer, Operation, Transport, WorkRequest};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Returns how many of three possible versions are made while the newest frame and its states are being copied.
    /// Waits for at least `least` of them.
    fn versions_made_meanwhile(least: u64, frames: u8, optimizer: Optimizer) -> u64 {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Some(CheckpointOptions::new(folder.path().join("shard")));
        let options =
            ServerOptions { optimizer, checkpoint, ..ServerOptions::new(SchemeConfig::Asp, 1, 0.1) };
        let options = ServerOptions { memory: ShardOptions { frames, ..options.memory }, ..options };
        let table = Table::flat(64, ElementType::F32).unwrap();
        let mut server = Server::new(Shm::new(), &Address::random(), table, &[0.0; 64], options).unwrap();
        let address = server.address();
        std::thread::scope(|scope| {
            let working = scope.spawn(move || {
                let options = WorkerOptions::new(SchemeConfig::Asp);
                let mut worker = Worker::connect(Shm::new(), &[address], options, PATIENCE).unwrap();
                for _ in 0..4 {
                    let mut step = worker.step(PATIENCE).unwrap();
                    step.gradient().unwrap().fill(1.0);
                    step.publish(None, PATIENCE).unwrap();
                }
                worker.flush(PATIENCE).unwrap();
            });
            assert!(server.drive(|server| server.status().version >= Version::new(1), PATIENCE).unwrap());
            let (latest, current) = (server.shard.frames.latest(), server.current);
            server.writer().unwrap().pretend(true, latest.frame, current);
            let enough = Version::new((latest.version.get() + least).min(4));
            assert!(server.drive(|server| server.status().version >= enough, PATIENCE).unwrap());
            server
                .drive(|server| server.status().version >= Version::new(4), Duration::from_millis(200))
                .unwrap();
            let made = latest.version.behind(server.status().version);
            server.writer().unwrap().pretend(false, latest.frame, current);
            // The workers that had to wait continue at once.
            assert!(server.drive(|server| server.status().version >= Version::new(4), PATIENCE).unwrap());
            assert!(server.drive(|_| working.is_finished(), PATIENCE).unwrap());
            4u64.saturating_sub(latest.version.get()).min(made)
        })
    }

    /// A server of one worker that begins with this version and smallest clock.
    fn late(version: Version, smallest_clock: Clock) -> Server<Shm> {
        let (folded, applied) = (0, Applied::default());
        let start = IncarnationStart {
            parameters: &[0.0; 4],
            states: &[],
            version,
            smallest_clock,
            folded,
            applied,
            learned: None,
            from: None,
            folder: None,
        };
        let table = Table::flat(4, ElementType::F32).unwrap();
        let options = ServerOptions::new(SchemeConfig::Asp, 1, 0.1);
        Server::begin(Shm::new(), &Address::random(), table, start, options).unwrap()
    }

    fn publish(worker: &mut Worker<Shm>) -> Result<(), Error> {
        let mut step = worker.step(PATIENCE)?;
        step.gradient()?.fill(1.0);
        step.publish(None, PATIENCE)
    }

    fn connect(address: Address) -> Worker<Shm> {
        Worker::connect(Shm::new(), &[address], WorkerOptions::new(SchemeConfig::Asp), PATIENCE).unwrap()
    }

    #[test]
    fn a_server_makes_the_last_version_and_then_says_that_it_was_the_last() {
        let last = Latest::VERSION_MAX;
        let mut server = late(Version::new(last.get() - 1), Clock::new(0));
        let address = server.address();
        std::thread::scope(|scope| {
            let working = scope.spawn(move || {
                let mut worker = connect(address);
                publish(&mut worker).and_then(|()| publish(&mut worker)).unwrap();
                worker
            });
            let error = server.drive(|_| false, PATIENCE).unwrap_err();
            assert!(matches!(error, Error::LastVersion { version } if version == last), "{error}");
            assert_eq!(server.status().version, last);
            drop(working.join().unwrap());
        });
    }

    #[test]
    fn a_worker_publishes_up_to_the_last_clock_and_the_one_after_is_an_error() {
        let last = WorkerProgress::CLOCK_MAX;
        let mut server = late(Version::new(0), Clock::new(last.get() - 1));
        let address = server.address();
        std::thread::scope(|scope| {
            let working = scope.spawn(move || {
                let mut worker = connect(address);
                publish(&mut worker).unwrap();
                worker.flush(PATIENCE).unwrap();
                publish(&mut worker).unwrap_err()
            });
            assert!(server.drive(|_| working.is_finished(), PATIENCE).unwrap());
            let error = working.join().unwrap();
            let source = PublishError::LastClock { clock: last };
            assert!(matches!(&error, Error::Publish { source: is, .. } if *is == source), "{error}");
        });
        assert_eq!((server.status().smallest_clock, server.status().misbehaved), (last, 0));
    }

    #[test]
    fn only_a_fold_that_would_write_what_is_being_copied_waits() {
        let (sgd, momentum) =
            (Optimizer::Sgd { weight_decay: 0.0 }, Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 });
        assert_eq!(versions_made_meanwhile(1, 2, sgd), 1, "the frame is held");
        assert_eq!(versions_made_meanwhile(1, 3, momentum), 1, "the state is held");
        assert!(versions_made_meanwhile(2, 3, sgd) > 1, "there is a third frame, and no state");
    }

    #[test]
    fn a_server_whose_last_checkpoint_had_its_time_does_not_wait_for_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Some(CheckpointOptions::new(folder.path().join("shard")));
        let options = ServerOptions { checkpoint, ..ServerOptions::new(SchemeConfig::Asp, 1, 0.1) };
        let table = Table::flat(4, ElementType::F32).unwrap();
        let mut server = Server::new(Shm::new(), &Address::random(), table, &[0.0; 4], options).unwrap();
        let disk = server.writer().unwrap().hang();
        let error = server.finish_checkpoint(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(error.to_string().contains("version 0 is not written yet; the disk may be slow"), "{error}");
        let ending = std::thread::spawn(move || drop(server));
        let deadline = now() + PATIENCE;
        while !ending.is_finished() {
            assert!(now() < deadline, "its end waits for the disk");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(disk);
    }

    #[test]
    fn a_server_that_does_not_begin_leaves_a_damaged_checkpoint_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        let table = || Table::flat(4, ElementType::F32).unwrap();
        let options = |learning_rate| {
            let checkpoint = Some(CheckpointOptions::new(&path));
            ServerOptions { checkpoint, ..ServerOptions::new(SchemeConfig::Asp, 1, learning_rate) }
        };
        let mut server =
            Server::new(Shm::new(), &Address::random(), table(), &[0.0; 4], options(0.1)).unwrap();
        server.finish_checkpoint(PATIENCE).unwrap();
        drop(server);
        std::fs::rename(&path, folder.path().join("shard.previous")).unwrap();
        std::fs::write(&path, "damaged").unwrap();
        let resume = |learning_rate| {
            let earlier = Checkpoint::read(&path).unwrap();
            Server::resume(Shm::new(), &Address::random(), table(), earlier, options(learning_rate))
        };
        assert!(matches!(resume(f32::NAN).map(drop), Err(Error::Option { option: "learning_rate", .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"damaged");
        resume(0.1).map(drop).unwrap();
        assert_eq!(std::fs::read(folder.path().join("shard.damaged")).unwrap(), b"damaged");
    }

    #[test]
    fn a_server_that_never_followed_has_no_last_checkpoint_to_wait_for() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Some(CheckpointOptions::new(folder.path().join("shard")));
        let options = ServerOptions::new("dbw".parse::<SchemeConfig>().unwrap(), 1, 0.1);
        let options = ServerOptions { checkpoint, shard: (1, 2), ..options };
        let table = Table::flat(32, ElementType::F32).unwrap();
        let mut server = Server::new(Shm::new(), &Address::random(), table, &[0.0; 16], options).unwrap();
        let error = server.finish_checkpoint(PATIENCE).unwrap_err();
        assert!(matches!(error, Error::OutOfTurn { .. }), "{error}");
    }

    #[test]
    fn a_server_that_decides_needs_room_for_those_that_follow() {
        let begin = |shard, peers| {
            let options = ServerOptions::new("dbw".parse::<SchemeConfig>().unwrap(), 4, 0.1);
            let memory = ShardOptions { peers, ..options.memory };
            let options = ServerOptions { memory, shard: (shard, 3), ..options };
            let table = Table::flat(48, ElementType::F32).unwrap();
            Server::new(Shm::new(), &Address::random(), table, &[0.0; 16], options)
        };
        let error = begin(0, 5).err().expect("there is no room for two followers");
        assert!(matches!(error, Error::Option { option: "peers", .. }), "{error}");
        assert!(begin(0, 6).is_ok() && begin(1, 4).is_ok());
    }

    #[test]
    fn a_gradient_past_the_last_clock_evicts_its_worker_and_is_not_applied() {
        let last = WorkerProgress::CLOCK_MAX;
        let mut server = late(Version::new(0), last);
        let (encoding, scheme) = (Encoding::F32, SchemeConfig::Asp);
        let scheme = scheme.to_string();
        let role = PeerRole::Worker { encoding, scheme, identity: 1, session: 0 };
        let hello = PeerHello::from(role);
        let offer = Offer { message: hello.encode(), grants: Vec::new() };
        let mut connecting = Shm::new().connect(&server.address(), offer).unwrap();
        let deadline = now() + PATIENCE;
        let (mut endpoint, received) = loop {
            server.poll(now()).unwrap();
            if let Poll::Ready(connected) = connecting.poll(now()) {
                break connected.unwrap();
            }
            assert!(now() < deadline, "no answer");
        };
        // Its own page: the header of the slot, then the announcement.
        let header = [last.get(), 0, server.epoch(), 16, 0, 0, 0, 0];
        for (offset, data) in
            [(64 * (3 + last.get() % 2), Inline::line(header)), (0, Inline::word(last.get() + 1))]
        {
            let remote = received.grants[2].slice(offset, data.len_bytes()).unwrap();
            let request = WorkRequest::unsignalled(0, Operation::WriteInline { data, remote });
            endpoint.post(&[request]).unwrap();
        }
        assert!(server.drive(|server| server.status().left == 1, PATIENCE).unwrap());
        assert_eq!((server.status().misbehaved, server.status().folded), (1, 0));
    }
}
