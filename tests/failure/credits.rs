//! Slots: none is written before it was consumed, whoever comes and goes.

use std::time::{Duration, Instant};

use slackline::Error;
use slackline::clock::Version;
use slackline::node::{Reader, ReaderOptions, Server, ServerOptions, Worker, WorkerOptions};
use slackline::scheme::{Bound, Config};
use slackline::transport::shm::Shm;

use super::raw::{Raw, worker_role};
use super::second::{PATIENCE, drive, server, train, worker};

#[test]
fn a_third_gradient_waits_for_a_slot_and_overwrites_nothing() {
    let mut server = server(4, ServerOptions::new(Config::Asp, 1, -1.0));
    let address = server.address();
    let mut worker = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            Worker::connect(Shm::new(), &[address], WorkerOptions::new(Config::Asp), PATIENCE).unwrap()
        });
        drive(&mut server, "the worker", |server| server.status().joined == 1);
        connecting.join().unwrap()
    });
    // From here on the server does nothing for a while.
    let timeout = Duration::from_millis(300);
    for value in [1.0, 2.0] {
        worker.begin(timeout).unwrap();
        worker.gradient().unwrap().fill(value);
        worker.publish(None, timeout).unwrap();
    }
    worker.begin(timeout).unwrap();
    worker.gradient().unwrap().fill(4.0);
    let begun = Instant::now();
    let error = worker.publish(None, timeout).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    assert!(begun.elapsed() < timeout + Duration::from_secs(2));
    // The third lands once there is room, and all three count once.
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| {
            worker.begin(PATIENCE).unwrap();
            worker.flush(PATIENCE).unwrap();
            drop(worker);
        });
        drive(&mut server, "the end", |server| server.status().left == 1);
        ending.join().unwrap();
    });
    assert_eq!(server.status().folded, 3);
    assert_eq!(server.parameters().unwrap(), [7.0; 4]);
}

/// Everything that stands still until somebody lets go of a pin.
#[test]
fn a_fold_that_waits_for_a_frame_outlives_its_worker_and_leaves_the_next_one_its_credits() {
    let mut options = ServerOptions::new(Config::Asp, 1, -1.0);
    options.memory.frames = 2;
    let mut server = server(4, options);
    let address = server.address();
    std::thread::scope(|scope| {
        let (step, steps) = std::sync::mpsc::channel::<()>();
        let at = address.clone();
        let training = scope.spawn(move || {
            let mut worker = worker(&at, Config::Asp);
            for _ in 0..3 {
                train(&mut worker, 1.0).unwrap();
                steps.recv_timeout(PATIENCE).unwrap();
            }
        });
        let poll = |server: &mut Server<Shm>| server.poll(slackline::node::now()).unwrap();
        drive(&mut server, "version 1", |server| server.status().version == Version(1));
        let connecting = scope
            .spawn(|| Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE).unwrap());
        drive(&mut server, "a reader", |server| server.status().readers == 1);
        let mut reader = connecting.join().unwrap();
        let pinned = reader.pin(Bound::version(Version(1)), PATIENCE).unwrap();
        step.send(()).unwrap();
        drive(&mut server, "version 2", |server| server.status().version == Version(2));
        step.send(()).unwrap();
        // The third is announced, and has no frame to go to. Its worker leaves, and another takes its place.
        for _ in 0..100 {
            poll(&mut server);
            std::thread::sleep(Duration::from_millis(1));
        }
        step.send(()).unwrap();
        training.join().unwrap();
        drive(&mut server, "the worker to leave", |server| server.status().left == 1);
        let next = Raw::join(&address, worker_role(Config::Asp), || {
            poll(&mut server);
        });
        assert_eq!((next.welcome.peer, server.status().version), (0, Version(2)));
        drop(pinned);
        drive(&mut server, "version 3", |server| server.status().version == Version(3));
        assert_eq!(server.parameters().unwrap(), [3.0; 4]);
        let consumed = next.control((2 + usize::from(next.welcome.peer)) * 64);
        assert_eq!(consumed, next.welcome.clock.0, "it has published nothing that could be consumed");
    });
}
