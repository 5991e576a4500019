//! Nodes that sleep while they wait, and are woken by the event that they wait for.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Error;
use super::link::{Link, SLEEP_TAG};
use super::runtime::Runtime;
use super::wait::WaitTurn;
use crate::param::{SleepWord, fence_before_sleeping};
use crate::time::Duration;
use crate::transport::{Address, Doorbell, Endpoint};

/// Behaviours of a node while it waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Idle {
    /// Poll without pause, or with short pauses after a while: an event is seen at once, at the cost of a processor.
    #[default]
    Poll,
    /// Sleep until a peer that has something new wakes this node, or for 20 ms at most (100 ms for a worker or a reader
    /// over TCP or RDMA). An owner (a server or a publisher) is woken over RDMA by WRITEs with immediate data, over TCP
    /// by the thread that carries out the write, over shared memory by an eventfd. A worker or a reader is woken over
    /// shared memory by an eventfd, over TCP and RDMA by a message.
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
        Ok(Some(Doorbell::new(address)?))
    }
}

/// The way in which a peer sleeps until one owner wakes it.
pub(super) struct Sleeper {
    doorbell: Arc<Doorbell>,
    word: SleepWord,
    step: SleepStep,
}

/// The next step of a peer on its way into its sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SleepStep {
    /// The owner is to be told that this peer sleeps.
    Tell,
    /// It is being told.
    Telling,
    /// It knows: this node has to look once more for the awaited event.
    Look,
    /// It wakes this peer as soon as there is something new.
    Sleep,
}

/// A sleep ends after so long in any case, where the end of each owner is seen at once, and where it is not: no wake-up
/// is owed.
const LOOK_EVERY: (Duration, Duration) = match cfg!(test) {
    true => (Duration::from_secs(3600), Duration::from_secs(3600)),
    false => (Duration::from_millis(100), Duration::from_millis(20)),
};

impl Sleeper {
    pub(super) fn new(doorbell: Arc<Doorbell>, word: SleepWord) -> Sleeper {
        Sleeper { doorbell, word, step: SleepStep::Tell }
    }

    /// The owner knows that this peer sleeps.
    pub(super) fn is_told(&mut self) {
        fence_before_sleeping();
        self.step = SleepStep::Look;
    }
}

impl<E: Endpoint> Link<E> {
    /// Takes the next step on the way into a sleep, if nothing is under way whose end is not told by a wake-up. True
    /// once there is none left.
    fn prepare_to_sleep(&mut self) -> bool {
        if self.is_at_work() {
            return false;
        }
        let Some(sleeper) = &mut self.sleeper else { return false };
        match sleeper.step {
            SleepStep::Tell => {
                let request = sleeper.word.say(SLEEP_TAG);
                // Without room it is said later; the loss of the owner is noticed elsewhere.
                if self.endpoint.post(&[request]).is_ok() {
                    sleeper.step = SleepStep::Telling;
                }
                false
            }
            SleepStep::Telling => false,
            SleepStep::Look => {
                // The next turn looks.
                sleeper.step = SleepStep::Sleep;
                false
            }
            SleepStep::Sleep => true,
        }
    }
}

/// The end of a turn of a wait for the owners of `links`: sleeps, for `at_most`, if there was nothing to do and all of
/// them know that this node sleeps. They are told first, and then the node looks once more for the awaited event.
pub(super) fn rest<'a, R, E: Endpoint + 'a>(
    turn: WaitTurn<R>,
    links: impl Iterator<Item = &'a mut Link<E>>,
    at_most: Duration,
) -> WaitTurn<R> {
    let mut links = links.peekable();
    let Some(Sleeper { doorbell, .. }) = links.peek().and_then(|link| link.sleeper.as_ref()) else {
        return turn;
    };
    let doorbell = Arc::clone(doorbell);
    if !matches!(turn, WaitTurn::Idle) || at_most.is_zero() {
        return turn;
    }
    let mut links: SmallVec<[&mut Link<E>; 4]> = links.collect();
    let mut are_ready = true;
    for link in &mut links {
        are_ready &= link.prepare_to_sleep();
    }
    if !are_ready {
        return turn;
    }
    let descriptors: SmallVec<[BorrowedFd<'_>; 4]> =
        links.iter().filter_map(|link| link.endpoint.wake_fd()).collect();
    let look_every = if descriptors.len() == links.len() { LOOK_EVERY.0 } else { LOOK_EVERY.1 };
    let is_rung = doorbell.wait(&descriptors, at_most.min(look_every));
    drop(descriptors);
    if !is_rung {
        return WaitTurn::Slept;
    }
    // Which of them have rung is not known, and each rings once for each time that it is told.
    for link in links {
        link.endpoint.hear_wake();
        link.sleeper.iter_mut().for_each(|sleeper| sleeper.step = SleepStep::Tell);
    }
    doorbell.silence();
    WaitTurn::Progress
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
    #[cfg(feature = "tcp")]
    use crate::{channel::Secret, transport::tcp::Tcp};

    const PATIENCE: Duration = Duration::from_secs(60);
    const ROUNDS: u64 = 2000;

    fn asleep() -> ReaderOptions {
        ReaderOptions { idle: Idle::Sleep, ..ReaderOptions::default() }
    }

    /// An address of this transport's that no other owner has.
    fn unnamed(transport: &impl Transport) -> Address {
        match transport.capabilities().name {
            "tcp" => "127.0.0.1:0".parse().unwrap(),
            _ => Address::random(),
        }
    }

    fn publisher<T: Transport>(transport: T) -> Publisher<T> {
        let (address, table) = (unnamed(&transport), Table::flat(16, ElementType::F32).unwrap());
        Publisher::new(transport, &address, table, PublisherOptions::default()).unwrap()
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

    /// Refreshes a copy.
    fn refresh<T: Transport>(reader: &mut Reader<T>, version: Version) {
        assert_eq!(reader.refresh_to(version, PATIENCE).unwrap().version, version);
    }

    #[test]
    fn a_reader_that_sleeps_is_woken_by_each_version() {
        woken_each_time(Shm::new(), refresh);
        woken_each_time(Mixed::default(), |reader, version| {
            assert_eq!(reader.hold(Bound::version(version), PATIENCE).unwrap().version, version);
        });
    }

    #[cfg(feature = "tcp")]
    #[test]
    fn a_reader_that_sleeps_is_woken_over_tcp_whether_it_is_encrypted_or_not() {
        let encrypting =
            Secret::from_text("at least 32 bytes that no one knows", "a test").unwrap().encrypting();
        woken_each_time(Tcp::new(), refresh);
        woken_each_time(Tcp::with_secret(encrypting), refresh);
    }

    /// Two workers of a server take so many clocks, all of them asleep while they wait.
    fn trains<T: Transport + Clone>(transport: &T, scheme: SchemeConfig, read: ReadMode, servers: u16) {
        let table = Table::flat(64, ElementType::F32).unwrap();
        let mut options = ServerOptions::new(scheme, 2, 0.1);
        options.memory.idle = Idle::Sleep;
        let serving: Vec<_> = (0..servers)
            .map(|shard| {
                let options = ServerOptions { shard: (shard, servers), ..options.clone() };
                let initial = vec![0.0; 64 / usize::from(servers)];
                let address = unnamed(transport);
                Server::new(transport.clone(), &address, table.clone(), &initial, options).unwrap()
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
                    let mut worker =
                        Worker::connect(transport.clone(), &addresses, options, PATIENCE).unwrap();
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
        trains(&Shm::new(), SchemeConfig::Bsp, ReadMode::InPlace, 2);
        trains_by_copies(&Shm::new());
    }

    #[cfg(feature = "tcp")]
    #[test]
    fn workers_that_sleep_are_woken_over_tcp_for_whatever_they_wait_for() {
        trains_by_copies(&Tcp::new());
    }

    fn trains_by_copies<T: Transport + Clone>(transport: &T) {
        trains(transport, SchemeConfig::Bsp, ReadMode::Copy, 1);
        trains(transport, SchemeConfig::Ssp { staleness: 1 }, ReadMode::Copy, 2);
        trains(transport, SchemeConfig::Essp { staleness: 1 }, ReadMode::Copy, 1);
        // Each publishes until it has no slot left.
        trains(transport, SchemeConfig::Asp, ReadMode::Copy, 1);
    }

    #[test]
    fn a_newcomer_wakes_the_thread_of_a_publisher_that_sleeps() {
        are_let_in(Shm::new());
        are_let_in(Mixed::default());
        #[cfg(feature = "tcp")]
        are_let_in(Tcp::new());
    }

    fn are_let_in<T: Transport + Clone>(transport: T) {
        let (address, table) = (unnamed(&transport), Table::flat(16, ElementType::F32).unwrap());
        let mut options = PublisherOptions::default();
        options.memory.idle = Idle::Sleep;
        let publisher = Publisher::new(transport.clone(), &address, table, options).unwrap();
        let publisher = publisher.into_background().unwrap();
        for _ in 0..2 {
            // Longer than the thread stays awake.
            std::thread::sleep(Duration::from_millis(300));
            // On a busy machine a handshake may take longer than that: then the thread sleeps on, and the next newcomer
            // wakes it.
            let connect = |_| {
                let options = ReaderOptions::default();
                Reader::connect(transport.clone(), &publisher.address(), options, PATIENCE / 6).ok()
            };
            assert!((0..6).find_map(connect).is_some(), "newcomers do not wake it");
        }
        std::thread::sleep(Duration::from_millis(300));
        // The end wakes it, too.
        drop(publisher);
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
                has_slept |= publisher.shard.peers.iter().flatten().any(|peer| peer.inbox.sleeps() == 1);
            }
            let mut reader = reading.join().unwrap();
            assert!(has_slept, "the owner sees that it sleeps");
            publisher.publish(&[1; 64], PATIENCE).unwrap();
            assert_eq!(reader.refresh_to(Version::new(1), PATIENCE).unwrap().version, Version::new(1));
        });
    }
}
