//! A rail whose network goes down: a connection, and a job, go on over the other.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use slackline::internals::transport::{CompletionError, Endpoint, WorkCompletion, WorkRequest};
use slackline::{
    ElementType, Error, Server, ServerOptions, Table, Transport, Verbs, Worker, WorkerOptions,
    scheme::SchemeConfig,
};

use super::rails::{Ends, STRIPED, sent_by};
use crate::transport::fixture::{
    Fixture, bytes_of, completion, noise, post, wait_for, wait_until_gone, write,
};
use crate::{RailsFixture, environment};

const TIMEOUT: Duration = Duration::from_secs(60);

/// An interface that is up again when this is dropped.
struct Link(String);

impl Link {
    /// The interface of the first device, or of the second.
    fn of(rail: usize) -> Link {
        Link(environment(["SLACKLINE_RIG_NETDEV", "SLACKLINE_RIG_NETDEV_2"][rail]))
    }

    fn set(&self, state: &str) {
        let status = Command::new("ip").args(["link", "set", &self.0, state]).status();
        assert!(status.expect("ip of iproute2").success());
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.set("up");
    }
}

/// A payload and its announcement, and the completion of that; both sides look at the connection meanwhile.
fn round(ends: &mut Ends, round: u64) -> WorkCompletion {
    let new = noise(round, STRIPED);
    let local = ends.local(&new).slice(0, STRIPED).unwrap();
    let batch = [
        WorkRequest::unsignalled(0, write(local, ends.remote())),
        WorkRequest::signalled(round, ends.word(round)),
    ];
    post(&mut ends.pair.client, &batch);
    let told = wait_for("a completion", || {
        _ = (ends.pair.server.check(), ends.pair.client.check());
        ends.pair.client.poll()
    });
    if told.result.is_ok() {
        assert_eq!(ends.page.as_volatile().load_u64(0), round);
        assert!(bytes_of(&ends.payload.whole()) == new, "the payload of round {round} is not whole");
    }
    told
}

#[test]
fn a_rail_whose_network_goes_down_is_lost_until_the_next_connection() {
    let (mut ends, link) = (Ends::new(STRIPED), Link::of(1));
    assert_eq!(round(&mut ends, 1).result, Ok(()));
    link.set("down");
    for next in 2..20 {
        assert_eq!(round(&mut ends, next).result, Ok(()));
    }
    assert_eq!(ends.transport.rails_lost(), 2, "each side counts it");
    link.set("up");
    let before = sent_by(1);
    assert_eq!(round(&mut ends, 20).result, Ok(()));
    assert_eq!(sent_by(1), before, "a lost rail stays lost");
    let mut ends = Ends::new(STRIPED);
    assert_eq!(round(&mut ends, 1).result, Ok(()));
    assert!(sent_by(1) > before, "the next connection is over both");
}

#[test]
fn a_first_rail_whose_network_goes_down_ends_the_connection_in_time() {
    let (mut ends, link) = (Ends::new(STRIPED), Link::of(0));
    link.set("down");
    ends.pair.client.post(&[WorkRequest::signalled(1, ends.word(1))]).unwrap();
    let error = completion(&mut ends.pair.client).result.unwrap_err();
    assert!(matches!(error, CompletionError::Unreachable | CompletionError::Device { .. }), "{error}");
    wait_until_gone(&mut ends.pair.client);
    wait_until_gone(&mut ends.pair.server);
    assert_eq!(ends.transport.rails_lost(), 0);
}

/// Packets that each device sends for a round of a new connection over this transport.
fn sent_for_a_round(transport: &Verbs) -> [u64; 2] {
    let mut ends = Ends::over(transport.clone(), transport, STRIPED);
    let before = [0, 1].map(sent_by);
    assert_eq!(round(&mut ends, 1).result, Ok(()));
    [0, 1].map(|rail| sent_by(rail) - before[rail])
}

/// Waits until new connections over this transport are over both rails.
fn wait_for_both(transport: &Verbs) {
    wait_for("both rails", || sent_for_a_round(transport).iter().all(|sent| *sent > 0).then_some(()));
}

#[test]
fn a_process_that_starts_while_a_rail_is_down_uses_it_once_it_is_up() {
    for rail in [0, 1] {
        let link = Link::of(rail);
        link.set("down");
        let transport = RailsFixture::transport();
        let sent = sent_for_a_round(&transport);
        assert!(sent[rail] == 0 && sent[1 - rail] > 0, "{sent:?} without rail {rail}");
        link.set("up");
        wait_for_both(&transport);
        link.set("down");
        let sent = sent_for_a_round(&transport);
        assert!(sent[rail] == 0 && sent[1 - rail] > 0, "{sent:?} without rail {rail} again");
        drop(link);
        wait_for_both(&transport);
    }
}

const WORKERS: usize = 2;
const CLOCKS: u64 = 60;
const STALENESS: u64 = 2;

/// A clock of a worker, which adds a gradient of 1.
fn work(worker: &mut Worker<Verbs>) -> Result<(), Error> {
    let mut step = worker.step(TIMEOUT)?;
    let parameters = step.parameters()?;
    assert!(parameters.iter().all(|value| *value == parameters[0]), "a worker got a mixture");
    step.gradient()?.fill(1.0);
    step.publish(None, TIMEOUT)?;
    Ok(())
}

/// Counts a worker that has ended, however it did, when it is dropped.
struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A job in the middle of which the link of a rail goes down, and whose workers connect again where their connection is
/// over: the number of times that each did.
fn job_that_loses(rail: usize) -> Vec<u64> {
    const ELEMENTS: usize = 64 << 10;
    let scheme = SchemeConfig::Ssp { staleness: STALENESS };
    let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
    // A gradient of 1 moves a parameter by 1, also after the other worker has ended.
    let mut options = ServerOptions::new(scheme, WORKERS, 1.0);
    options.additive = true;
    options.memory.chunk_bytes = 2 * STRIPED as u64;
    let transport = RailsFixture::transport();
    // The conversations go over loopback, which outlasts the link.
    let mut server =
        Server::new(transport.clone(), &RailsFixture::address(), table, &[0.0; ELEMENTS], options).unwrap();
    let (address, link, (cut, is_time)) = (server.address(), Link::of(rail), mpsc::channel());
    let (link_is_down, is_down) = mpsc::channel();
    let mut is_down = Some(is_down);
    let ended = &AtomicUsize::new(0);
    let (parameters, (status, published), lost, reconnects) = std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(server.drive(|_| ended.load(Ordering::Relaxed) == WORKERS, 3 * TIMEOUT).unwrap());
            (server.parameters().unwrap(), server.status())
        });
        let start = |index| {
            let (address, cut) = (std::slice::from_ref(&address), cut.clone());
            // The first worker waits for it, and by the bound of the scheme the other one with it.
            let mut is_down = is_down.take();
            scope.spawn(move || {
                let _ended = Ended(ended);
                let transport = RailsFixture::transport();
                let options = WorkerOptions::new(scheme);
                let mut worker = Worker::connect(transport.clone(), address, options, TIMEOUT).unwrap();
                let mut published = 0;
                while worker.clock().get() < CLOCKS {
                    if (index, worker.clock().get()) == (0, CLOCKS / 3) {
                        cut.send(()).unwrap();
                    }
                    // However long it takes to cut the link, there are clocks left in which the loss has to show.
                    if worker.clock().get() >= 2 * CLOCKS / 3
                        && let Some(is_down) = is_down.take()
                    {
                        is_down.recv_timeout(TIMEOUT).unwrap();
                    }
                    match work(&mut worker) {
                        Ok(()) => published += 1,
                        Err(error) => {
                            assert!(error.is_loss(), "{error}");
                            worker.reconnect(address, TIMEOUT).unwrap();
                        }
                    }
                }
                // A gradient that was not announced when its worker ends does not count.
                worker.flush(TIMEOUT).unwrap();
                (worker.statistics().reconnects, transport.rails_lost(), published)
            })
        };
        let workers: Vec<_> = (0..WORKERS).map(start).collect();
        is_time.recv().unwrap();
        link.set("down");
        link_is_down.send(()).unwrap();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        let (parameters, status) = serving.join().unwrap();
        let at_workers: u64 = ended.iter().map(|(_, lost, _)| lost).sum();
        let published: u64 = ended.iter().map(|(_, _, published)| published).sum();
        let reconnects: Vec<u64> = ended.into_iter().map(|(reconnects, ..)| reconnects).collect();
        let lost = [status.rails_lost, at_workers];
        (parameters, (status, published), lost, reconnects)
    });
    let expected = -(status.folded as f32);
    assert!(parameters.iter().all(|value| *value == expected), "{} instead of {expected}", parameters[0]);
    // Each gradient counts once, but for those under way when the connection of their worker was over. A worker that
    // comes back goes on where the others are, who may have gone on without it.
    let (all, in_flight) = (WORKERS as u64 * CLOCKS, (STALENESS + 1) * reconnects.iter().sum::<u64>());
    let expected = published.saturating_sub(in_flight)..=all.min(published + in_flight);
    assert!(expected.contains(&status.folded), "{published} published: {status:?}");
    assert!(reconnects != [0; WORKERS] || published == all);
    let narrowed = if rail > 0 { WORKERS as u64 } else { 0 };
    assert_eq!(lost, [narrowed; 2], "each side of a connection that is narrowed counts it");
    drop(link);
    wait_for_both(&transport);
    reconnects
}

#[test]
fn a_job_goes_on_when_a_rail_goes_down_and_tears_and_loses_nothing() {
    assert_eq!(job_that_loses(1), [0; WORKERS], "no worker came back");
}

#[test]
fn a_job_whose_workers_connect_again_goes_on_without_the_first_rail() {
    let reconnects = job_that_loses(0);
    assert!(reconnects.iter().all(|count| *count > 0), "each worker came back: {reconnects:?}");
}
