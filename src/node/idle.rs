//! Nodes that sleep while they wait, and are woken by what they wait for.

use std::sync::Arc;

use super::Error;
use super::link::Link;
use super::runtime::Runtime;
use super::wait::WaitTurn;
use crate::param::SleepWord;
use crate::time::Duration;
use crate::transport::{Address, ConnectError, Doorbell, Endpoint};

/// Behaviours of a node while it waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Idle {
    /// Look for something again and again, standing back a little in between: what comes is seen at once, for a
    /// processor's time.
    #[default]
    Poll,
    /// Sleep until a peer that has announced something wakes this node, or for 20 ms at most. An owner (a server or a
    /// publisher) is woken over RDMA by WRITEs with immediate data, over TCP by the thread that carries out the write,
    /// over shared memory by an eventfd. A worker or a reader is woken over shared memory alone, and polls if it is
    /// connected to any owner in another way.
    Sleep,
}

impl Idle {
    /// A doorbell for a worker or a reader that sleeps, for owners to ring.
    pub(super) fn doorbell(
        self,
        runtime: &Runtime,
        address: &Address,
    ) -> Result<Option<Arc<Doorbell>>, Error> {
        if self == Idle::Poll || runtime.simulator().is_some() {
            return Ok(None);
        }
        let doorbell = Doorbell::new().map_err(|source| ConnectError::no_doorbell(address, source))?;
        Ok(Some(doorbell))
    }
}

/// The doorbell at which a peer sleeps, and the word by which it tells one owner so.
pub(super) struct Sleeper {
    doorbell: Arc<Doorbell>,
    word: SleepWord,
}

/// A sleep ends after so long in any case: connections are looked after that often, and no wake-up is owed.
const LOOK_EVERY: Duration = if cfg!(test) { Duration::from_secs(3600) } else { Duration::from_millis(20) };

impl Sleeper {
    /// None where the owner at the other end has no way to wake this peer.
    pub(super) fn new(
        doorbell: Arc<Doorbell>,
        word: Option<SleepWord>,
        address: &Address,
    ) -> Option<Sleeper> {
        if word.is_none() {
            tracing::info!(%address, "this transport cannot wake a peer that sleeps: polling");
        }
        word.map(|word| Sleeper { doorbell, word })
    }
}

/// The end of a turn of a wait for the owners of `links`: sleeps, for `at_most`, if there was nothing to do and all of
/// them know that this node sleeps. They are told first, and what is waited for is looked at once more.
pub(super) fn rest<'a, R, E: Endpoint + 'a>(
    turn: WaitTurn<R>,
    links: impl Iterator<Item = &'a Link<E>> + Clone,
    at_most: Duration,
) -> WaitTurn<R> {
    let sleepers = links.clone().filter_map(|link| link.sleeper.as_ref());
    let Some(Sleeper { doorbell, .. }) = sleepers.clone().next() else { return turn };
    let is_idle = matches!(turn, WaitTurn::Idle) && !at_most.is_zero();
    if !is_idle || !links.clone().all(Link::may_sleep) {
        // An owner need not wake this node: it is awake, or its wait has ended.
        sleepers.filter(|sleeper| sleeper.word.is_set()).for_each(|sleeper| sleeper.word.clear());
        return turn;
    }
    let mut all_know = true;
    for sleeper in sleepers.filter(|sleeper| !sleeper.word.is_set()) {
        sleeper.word.set();
        all_know = false;
    }
    if all_know {
        doorbell.wait(&[], at_most.min(LOOK_EVERY));
    }
    WaitTurn::Slept
}

#[cfg(test)]
mod tests {
    //! Under these tests a sleep ends by itself only after an hour: a wake-up that is lost shows as a deadline.

    use std::sync::mpsc;

    use super::*;
    use crate::clock::{Clock, Version};
    use crate::node::{
        Publisher, PublisherOptions, ReadMode, Reader, ReaderOptions, Server, ServerOptions, Worker,
        WorkerOptions, now,
    };
    use crate::scheme::{Bound, SchemeConfig};
    use crate::table::{ElementType, Table};
    use crate::transport::Transport;
    use crate::transport::mixed::Mixed;
    use crate::transport::shm::Shm;

    const PATIENCE: Duration = Duration::from_secs(60);
    const ROUNDS: u64 = 2000;

    fn asleep() -> ReaderOptions {
        ReaderOptions { idle: Idle::Sleep, ..ReaderOptions::default() }
    }

    fn publisher<T: Transport>(transport: T) -> Publisher<T> {
        let table = Table::flat(16, ElementType::F32).unwrap();
        Publisher::new(transport, &Address::random(), table, PublisherOptions::default()).unwrap()
    }

    /// Publishes a version each time that a reader says that it has the one before, which `wait` gives it.
    fn woken_each_time<T, W>(transport: T, wait: W)
    where
        T: Transport + Clone,
        W: Fn(&mut Reader<T>, Version) + Send,
    {
        let mut publisher = publisher(transport.clone());
        let (address, (said, hears)) = (publisher.address(), mpsc::channel());
        std::thread::scope(|scope| {
            let reading = scope.spawn(move || {
                let mut reader = Reader::connect(transport, &address, asleep(), PATIENCE).unwrap();
                assert!(reader.link.sleeper.is_some());
                for version in 1..=ROUNDS {
                    said.send(()).unwrap();
                    wait(&mut reader, Version::new(version));
                }
            });
            for round in 0..ROUNDS {
                while hears.try_recv().is_err() && !reading.is_finished() {
                    publisher.poll(now());
                }
                // At another point of the way into its sleep each time.
                for _ in 0..round * 16 % 8192 {
                    std::hint::spin_loop();
                }
                publisher.publish(&[round as u8; 64], PATIENCE).unwrap();
            }
        });
    }

    #[test]
    fn a_reader_that_sleeps_is_woken_by_each_version() {
        woken_each_time(Shm::new(), |reader, version| {
            assert_eq!(reader.refresh_to(version, PATIENCE).unwrap().version, version);
        });
        woken_each_time(Mixed::default(), |reader, version| {
            assert_eq!(reader.hold(Bound::version(version), PATIENCE).unwrap().version, version);
        });
    }

    /// Two workers of a server take so many clocks, all of them asleep while they wait.
    fn trains(scheme: SchemeConfig, read: ReadMode, servers: u16) {
        let table = Table::flat(64, ElementType::F32).unwrap();
        let mut options = ServerOptions::new(scheme, 2, 0.1);
        options.memory.idle = Idle::Sleep;
        let serving: Vec<_> = (0..servers)
            .map(|shard| {
                let options = ServerOptions { shard: (shard, servers), ..options.clone() };
                let initial = vec![0.0; 64 / usize::from(servers)];
                Server::new(Shm::new(), &Address::random(), table.clone(), &initial, options).unwrap()
            })
            .collect();
        let addresses: Vec<_> = serving.iter().map(Server::address).collect();
        std::thread::scope(|scope| {
            for mut server in serving {
                scope.spawn(move || {
                    assert!(server.drive(|server| server.status().left == 2, PATIENCE).unwrap())
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let options = WorkerOptions { idle: Idle::Sleep, read, ..WorkerOptions::new(scheme) };
                    let mut worker = Worker::connect(Shm::new(), &addresses, options, PATIENCE).unwrap();
                    while worker.clock() < Clock::new(500) {
                        let mut step = worker.step(PATIENCE).unwrap();
                        step.gradient().unwrap().fill(1e-3);
                        step.publish(None, PATIENCE).unwrap();
                    }
                    worker.flush(PATIENCE).unwrap();
                });
            }
        });
    }

    #[test]
    fn workers_that_sleep_are_woken_for_whatever_they_wait_for() {
        trains(SchemeConfig::Bsp, ReadMode::Copy, 1);
        trains(SchemeConfig::Bsp, ReadMode::InPlace, 2);
        trains(SchemeConfig::Ssp { staleness: 1 }, ReadMode::Copy, 2);
        trains(SchemeConfig::Essp { staleness: 1 }, ReadMode::Copy, 1);
        // Each publishes until it has no slot left.
        trains(SchemeConfig::Asp, ReadMode::Copy, 1);
    }

    #[test]
    fn a_reader_that_sleeps_gives_up_at_its_deadline_and_is_awake() {
        let mut publisher = publisher(Shm::new());
        let address = publisher.address();
        std::thread::scope(|scope| {
            let reading = scope.spawn(move || {
                let mut reader = Reader::connect(Shm::new(), &address, asleep(), PATIENCE).unwrap();
                let late = reader.refresh_to(Version::new(1), Duration::from_millis(50)).unwrap_err();
                assert!(matches!(late, Error::Deadline { .. }), "{late}");
                reader
            });
            let mut has_slept = false;
            while !reading.is_finished() {
                publisher.poll(now());
                has_slept |= publisher.shard.peers.iter().flatten().any(|peer| peer.inbox.sleeps());
            }
            let mut reader = reading.join().unwrap();
            assert!(has_slept, "the owner sees that it sleeps");
            assert!(!publisher.shard.peers.iter().flatten().any(|peer| peer.inbox.sleeps()));
            publisher.publish(&[1; 64], PATIENCE).unwrap();
            assert_eq!(reader.refresh_to(Version::new(1), PATIENCE).unwrap().version, Version::new(1));
        });
    }
}
