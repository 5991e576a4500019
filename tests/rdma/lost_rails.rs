//! A rail whose network goes down: a connection, and a job, go on over the other.

use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use slackline::internals::transport::{CompletionError, Endpoint, WorkCompletion, WorkRequest};
use slackline::{
    ElementType, Server, ServerOptions, Table, Transport, Worker, WorkerOptions, scheme::SchemeConfig,
};

use super::rails::{Ends, STRIPED, sent_by_second};
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
    let before = sent_by_second();
    assert_eq!(round(&mut ends, 20).result, Ok(()));
    assert_eq!(sent_by_second(), before, "a lost rail stays lost");
    let mut ends = Ends::new(STRIPED);
    assert_eq!(round(&mut ends, 1).result, Ok(()));
    assert!(sent_by_second() > before, "the next connection is over both");
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

#[test]
fn a_job_goes_on_when_a_rail_goes_down_and_tears_and_loses_nothing() {
    const WORKERS: usize = 2;
    const CLOCKS: u64 = 60;
    const ELEMENTS: usize = 64 << 10;
    let scheme = SchemeConfig::Ssp { staleness: 2 };
    let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
    // A gradient of 1 moves a parameter by 1, also after the other worker has ended.
    let mut options = ServerOptions::new(scheme, WORKERS, 1.0);
    options.additive = true;
    options.memory.chunk_bytes = 2 * STRIPED as u64;
    let transport = RailsFixture::transport();
    let mut server =
        Server::new(transport, &RailsFixture::address(), table, &[0.0; ELEMENTS], options).unwrap();
    let (address, link, (cut, is_time)) = (server.address(), Link::of(1), mpsc::channel());
    let (status, parameters) = std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(server.drive(|server| server.status().left == WORKERS as u64, TIMEOUT).unwrap());
            (server.status(), server.parameters().unwrap())
        });
        for index in 0..WORKERS {
            let (address, cut) = (std::slice::from_ref(&address), cut.clone());
            scope.spawn(move || {
                let transport = RailsFixture::transport();
                let options = WorkerOptions::new(scheme);
                let mut worker = Worker::connect(transport.clone(), address, options, TIMEOUT).unwrap();
                for clock in 0..CLOCKS {
                    if (index, clock) == (0, CLOCKS / 3) {
                        cut.send(()).unwrap();
                    }
                    let mut step = worker.step(TIMEOUT).unwrap();
                    let parameters = step.parameters().unwrap();
                    let is_whole = parameters.iter().all(|value| *value == parameters[0]);
                    assert!(is_whole, "worker {index} got a mixture at clock {clock}");
                    step.gradient().unwrap().fill(1.0);
                    step.publish(None, TIMEOUT).unwrap();
                }
                // A gradient that was not announced when its worker ends does not count.
                worker.flush(TIMEOUT).unwrap();
                assert_eq!(transport.rails_lost(), 1, "worker {index} goes on over one rail");
            });
        }
        is_time.recv().unwrap();
        link.set("down");
        serving.join().unwrap()
    });
    assert_eq!((status.joined, status.rails_lost), (WORKERS as u64, WORKERS as u64), "no worker came back");
    let expected = -((WORKERS as u64 * CLOCKS) as f32);
    assert!(parameters.iter().all(|value| *value == expected), "{} instead of {expected}", parameters[0]);
}
