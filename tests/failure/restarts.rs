//! Processes that are killed or stopped in the middle of their work, started again, and go on.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use slackline::checkpoint::{Checkpoint, CheckpointOptions};
use slackline::{
    Address, Clock, Error, Eviction, Server, ServerOptions, Shm, Version, Worker, WorkerOptions,
    scheme::SchemeConfig,
};

use super::at_once::at_once;
use super::second::{PATIENCE, SCHEMES, Second, drive, scheme, server, table, told, train, wait_for, worker};

/// Clocks of the job in which each gradient has an element of its own.
const CLOCKS: usize = 3000;

/// The gradient of clock `c` is 1 in element `c`, and 0 elsewhere.
fn mark_clocks(words: &[String]) -> ! {
    let mut worker = worker(&words[0].parse().unwrap(), scheme(&words[1]));
    while worker.clock() < Clock::new(CLOCKS as u64) {
        let mut step = worker.step(PATIENCE).unwrap();
        let clock = step.view().clock.get() as usize;
        let gradient = step.gradient().unwrap();
        gradient.fill(0.0);
        gradient[clock] = 1.0;
        step.publish(None, PATIENCE).unwrap();
    }
    worker.flush(PATIENCE).unwrap();
    std::process::exit(0);
}

#[test]
fn a_killed_and_restarted_worker_never_has_a_gradient_applied_twice() {
    if let Some(words) = told() {
        mark_clocks(&words);
    }
    for name in SCHEMES {
        // A step of -1: element `c` counts how often a gradient of clock `c` was applied.
        let mut server = server(CLOCKS, ServerOptions::new(scheme(name), 1, -1.0));
        let words = [server.address().to_string(), name.to_owned()];
        let claim = a_killed_and_restarted_worker_never_has_a_gradient_applied_twice;
        for incarnation in 1..=5u64 {
            let mut victim = Second::start(claim, &words);
            drive(&mut server, "a part of the job", |server| {
                server.status().smallest_clock >= Clock::new(incarnation * 500 + incarnation * 7 % 5)
            });
            victim.kill();
            drive(&mut server, "its death to be noticed", |server| server.status().left == incarnation);
        }
        let last = RefCell::new(Second::start(claim, &words));
        drive(&mut server, "the end", |_| last.borrow_mut().ended().is_some_and(|status| status.success()));
        // A gradient that was published and not applied was made again, for the clock had not moved: none is missing.
        assert_eq!(server.parameters().unwrap(), [1.0; CLOCKS], "{name}");
        assert_eq!(server.status().version, Version::new(CLOCKS as u64), "{name}");
    }
}

/// Clocks of the worker that is killed, beside one that is slow and stays.
const MARKED: usize = 400;

/// As `mark_clocks`, of the worker of rank 0.
fn mark_clocks_of_rank(words: &[String]) -> ! {
    let options = WorkerOptions { identity: Some(0), ..WorkerOptions::new(scheme(&words[1])) };
    let address = words[0].parse().unwrap();
    let mut worker = Worker::connect(Shm::new(), &[address], options, PATIENCE).unwrap();
    while worker.clock() < Clock::new(MARKED as u64) {
        let mut step = worker.step(PATIENCE).unwrap();
        let clock = step.view().clock.get() as usize;
        let gradient = step.gradient().unwrap();
        gradient.fill(0.0);
        gradient[clock] = 1.0;
        step.publish(None, PATIENCE).unwrap();
    }
    worker.flush(PATIENCE).unwrap();
    std::process::exit(0);
}

#[test]
fn a_worker_killed_beside_a_slow_one_has_no_clock_applied_twice() {
    if let Some(words) = told() {
        mark_clocks_of_rank(&words);
    }
    at_once(SCHEMES, |name| {
        // Two workers: each gradient counts half, so a step of -2 counts how often that of a clock was applied.
        let mut server = server(MARKED, ServerOptions::new(scheme(name), 2, -2.0));
        let address = server.address();
        let words = [address.to_string(), name.to_owned()];
        let claim = a_worker_killed_beside_a_slow_one_has_no_clock_applied_twice;
        let stop = std::sync::atomic::AtomicBool::new(false);
        let is_away = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut slow = worker(&address, scheme(name));
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    // It does not overtake the other one while that is away, however long its start takes.
                    if !is_away.load(std::sync::atomic::Ordering::SeqCst) {
                        train(&mut slow, 0.0).unwrap();
                    }
                    std::thread::sleep(Duration::from_millis(4));
                }
            });
            for incarnation in 1..=3u64 {
                let mut victim = Second::start(claim, &words);
                drive(&mut server, "it to join", |server| server.status().workers == 2);
                is_away.store(false, std::sync::atomic::Ordering::SeqCst);
                let folded = server.status().folded;
                drive(&mut server, "a part of the job", |server| {
                    server.status().folded >= folded + 40 + incarnation * 7 % 5
                });
                is_away.store(true, std::sync::atomic::Ordering::SeqCst);
                victim.kill();
                drive(&mut server, "its death to be noticed", |server| server.status().left == incarnation);
            }
            is_away.store(false, std::sync::atomic::Ordering::SeqCst);
            let last = RefCell::new(Second::start(claim, &words));
            drive(&mut server, "the end", |_| {
                last.borrow_mut().ended().is_some_and(|status| status.success())
            });
            stop.store(true, std::sync::atomic::Ordering::SeqCst);
            drive(&mut server, "all to leave", |server| server.status().workers == 0);
        });
        let counts = server.parameters().unwrap();
        assert!(counts.iter().all(|count| *count == 0.0 || *count == 1.0), "{name}: {counts:?}");
        // Where the smallest clock has moved past it while it was away, it begins later.
        assert!(counts.contains(&1.0), "{name}");
    });
}

const ELEMENTS: usize = 1000;

fn checkpointing(path: &Path) -> ServerOptions {
    let checkpoint = CheckpointOptions { every: Some(5), ..CheckpointOptions::new(path) };
    ServerOptions {
        checkpoint: Some(checkpoint),
        ..ServerOptions::new(SchemeConfig::Ssp { staleness: 1 }, 2, -1.0)
    }
}

/// A server in the second process, from its checkpoint if there is one, until it is killed.
fn serve(words: &[String]) -> ! {
    let (address, path): (Address, _) = (words[0].parse().unwrap(), Path::new(&words[1]));
    let options = checkpointing(path);
    let mut server = match path.exists() {
        true => {
            let checkpoint = Checkpoint::read(path).unwrap();
            Server::resume(Shm::new(), &address, table(ELEMENTS), checkpoint, options)
        }
        false => Server::new(Shm::new(), &address, table(ELEMENTS), &[0.0; ELEMENTS], options),
    }
    .unwrap();
    server.drive(|_| false, 10 * PATIENCE).unwrap();
    panic!("this server was not killed");
}

#[test]
fn a_server_killed_repeatedly_loses_only_work_after_its_last_checkpoint() {
    if let Some(words) = told() {
        serve(&words);
    }
    let folder = tempfile::tempdir().unwrap();
    let (address, path) = (Address::random(), folder.path().join("shard"));
    let words = [address.to_string(), path.to_str().unwrap().to_owned()];
    let claim = a_server_killed_repeatedly_loses_only_work_after_its_last_checkpoint;
    let mut server = Second::start(claim, &words);
    let scheme = SchemeConfig::Ssp { staleness: 1 };
    let connect = || {
        super::second::retry(|| {
            let options = slackline::WorkerOptions::new(scheme);
            Worker::connect(Shm::new(), std::slice::from_ref(&address), options, PATIENCE)
        })
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut worker = connect();
                    while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                        match train(&mut worker, 1.0) {
                            Ok(_) => {}
                            // Killed again while it came back: once more.
                            Err(Error::ServerLost { .. } | Error::OutOfTurn { .. }) => {
                                let _ = worker.reconnect(std::slice::from_ref(&address), PATIENCE);
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    worker.statistics().reconnects
                })
            })
            .collect();
        let mut newest = Version::new(0);
        for _ in 0..4 {
            // Some progress in each incarnation; what is on the disk is always whole, and never goes back.
            let read = || Checkpoint::read(&path).ok();
            let checkpoint =
                wait_for("a checkpoint", || read().filter(|read| read.version().get() >= newest.get() + 50));
            newest = checkpoint.version();
            server.kill();
            let checkpoint = Checkpoint::read(&path).unwrap();
            assert!(checkpoint.version() >= newest);
            // Two workers: each update is half a step.
            let expected = checkpoint.version().get() as f32 * 0.5;
            assert_eq!(checkpoint.parameters(), [expected; ELEMENTS]);
            newest = checkpoint.version();
            server = Second::start(claim, &words);
        }
        wait_for("the last incarnation to go on", || {
            Checkpoint::read(&path).ok().filter(|read| read.version().get() >= newest.get() + 50)
        });
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        for worker in workers {
            assert!(worker.join().unwrap() > 0);
        }
    });
}

/// Trains until it is evicted, comes back, trains on and ends well.
fn come_back(words: &[String]) -> ! {
    let address: Address = words[0].parse().unwrap();
    let mut worker = worker(&address, scheme(&words[1]));
    let error = loop {
        match train(&mut worker, 1.0) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Evicted { why: Eviction::Silent, .. }), "{error}");
    let before = worker.clock();
    worker.reconnect(&[address], PATIENCE).unwrap();
    assert!(worker.clock() >= before);
    for _ in 0..10 {
        train(&mut worker, 1.0).unwrap();
    }
    std::process::exit(0);
}

#[test]
fn an_evicted_worker_comes_back_and_goes_on_beside_those_who_stayed() {
    if let Some(words) = told() {
        come_back(&words);
    }
    for name in SCHEMES {
        let mut options = ServerOptions::new(scheme(name), 2, 0.001);
        // Longer than a busy machine keeps a heartbeat from its turn.
        options.memory.lease = Duration::from_millis(1500);
        let mut server = server(ELEMENTS, options);
        let address = server.address();
        let claim = an_evicted_worker_comes_back_and_goes_on_beside_those_who_stayed;
        let victim = RefCell::new(Second::start(claim, &[address.to_string(), name.to_owned()]));
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut worker = worker(&address, scheme(name));
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    train(&mut worker, 1.0).unwrap();
                }
            });
            drive(&mut server, "a start", |server| server.status().version >= Version::new(30));
            victim.borrow().signal(Signal::STOP);
            drive(&mut server, "the eviction", |server| server.status().left == 1);
            victim.borrow().signal(Signal::CONT);
            drive(&mut server, "it to end", |_| victim.borrow_mut().ended().is_some_and(|end| end.success()));
            stop.store(true, std::sync::atomic::Ordering::SeqCst);
            drive(&mut server, "all to leave", |server| server.status().workers == 0);
        });
        assert_eq!((server.status().joined, server.status().lost_updates), (3, None), "{name}");
    }
}
