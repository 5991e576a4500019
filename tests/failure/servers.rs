//! Servers and publishers that die, and what their peers are told.

use std::time::{Duration, Instant};

use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{
    Address, Error, Server, ServerOptions, Shm, Version, Worker,
    scheme::{Bound, SchemeConfig},
};

use super::second::{
    LONG_LEASE, NOTICE, PATIENCE, SCHEMES, Second, drive, retry, scheme, server, table, told, train,
    wait_for, worker,
};

/// A server in the second process, until it is killed.
fn serve(words: &[String]) -> ! {
    let (address, scheme) = (words[0].parse().unwrap(), scheme(&words[1]));
    let mut options = ServerOptions::new(scheme, 2, 0.001);
    options.memory.lease = LONG_LEASE;
    let mut server = Server::new(Shm::new(), &address, table(1000), &[0.0; 1000], options).unwrap();
    server.drive(|_| false, PATIENCE).unwrap();
    panic!("this server was not killed");
}

#[test]
fn every_worker_of_a_killed_server_is_told_so_in_time_and_again() {
    if let Some(words) = told() {
        serve(&words);
    }
    for name in SCHEMES {
        let address = Address::random();
        let claim = every_worker_of_a_killed_server_is_told_so_in_time_and_again;
        let mut server = Second::start(claim, &[address.to_string(), name.to_owned()]);
        let scheme = scheme(name);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..2)
                .map(|_| {
                    let address = address.clone();
                    let (trained, has_trained) = std::sync::mpsc::channel();
                    let handle = scope.spawn(move || {
                        let options = slackline::WorkerOptions::new(scheme);
                        let addresses = std::slice::from_ref(&address);
                        let mut worker =
                            retry(|| Worker::connect(Shm::new(), addresses, options.clone(), PATIENCE));
                        let error = loop {
                            match train(&mut worker, 1.0) {
                                Ok(clock) if clock.get() == 20 => trained.send(()).unwrap(),
                                Ok(_) => {}
                                Err(error) => break error,
                            }
                        };
                        let at = Instant::now();
                        // The handle keeps saying so.
                        std::thread::sleep(Duration::from_millis(50));
                        let again = [worker.step(NOTICE).err(), worker.flush(NOTICE).err()];
                        (error, again, at)
                    });
                    (handle, has_trained)
                })
                .collect();
            for (_, has_trained) in &workers {
                has_trained.recv_timeout(PATIENCE).unwrap();
            }
            server.kill();
            let killed = Instant::now();
            for (handle, _) in workers {
                let (error, again, at) = handle.join().unwrap();
                assert!(matches!(error, Error::ServerLost { .. }), "{name}: {error}");
                let late = at.saturating_duration_since(killed);
                assert!(late < NOTICE, "{name}: told after {late:?}");
                for error in again {
                    assert!(matches!(error, Some(Error::ServerLost { .. })), "{name}: {error:?}");
                }
            }
        });
    }
}

/// A publisher in the second process, until it is killed.
fn publish(address: &Address) -> ! {
    let mut publisher = Publisher::new(Shm::new(), address, table(100), PublisherOptions::default()).unwrap();
    publisher.publish(&[1; 400], PATIENCE).unwrap();
    publisher.drive(|_| false, PATIENCE).unwrap();
    panic!("this publisher was not killed");
}

#[test]
fn a_reader_of_a_dead_publisher_is_told_though_it_has_all_it_asked_for() {
    if let Some(words) = told() {
        publish(&words[0].parse().unwrap());
    }
    let address = Address::random();
    let claim = a_reader_of_a_dead_publisher_is_told_though_it_has_all_it_asked_for;
    let mut publisher = Second::start(claim, &[address.to_string()]);
    let connect = || retry(|| Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE));
    let (mut refreshes, mut copies, mut pins, mut polls) = (connect(), connect(), connect(), connect());
    refreshes.refresh_to(Version::new(1), PATIENCE).unwrap();
    copies.refresh_to(Version::new(1), PATIENCE).unwrap();
    drop(pins.pin(Bound::version(Version::new(1)), PATIENCE).unwrap());
    polls.refresh(0, PATIENCE).unwrap();
    publisher.kill();
    let killed = Instant::now();
    // Each by the call that its user makes: all find a version that satisfies them, in a dead process's memory.
    let mut poll = || {
        polls.begin_refresh(5);
        polls.poll(slackline::now()).err()
    };
    let told = [
        wait_for("refresh to say so", || refreshes.refresh(5, NOTICE).err()),
        wait_for("refresh_to to say so", || copies.refresh_to(Version::new(1), NOTICE).err()),
        wait_for("pin to say so", || pins.pin(Bound::NONE, NOTICE).err()),
        wait_for("poll to say so", &mut poll),
    ];
    assert!(killed.elapsed() < NOTICE, "told after {:?}", killed.elapsed());
    for error in told {
        assert!(matches!(error, Error::ServerLost { .. }), "{error}");
    }
}

#[test]
fn a_restarted_server_is_another_one_and_old_handles_keep_failing() {
    let options = || ServerOptions::new(SchemeConfig::Ssp { staleness: 1 }, 1, -1.0);
    let mut first = server(10, options());
    let (address, epoch) = (first.address(), first.epoch());
    let scheme = SchemeConfig::Ssp { staleness: 1 };
    let (mut old, first) = std::thread::scope(|scope| {
        let training = scope.spawn(|| {
            let mut worker = worker(&address, scheme);
            for _ in 0..5 {
                train(&mut worker, 1.0).unwrap();
            }
            worker.flush(PATIENCE).unwrap();
            worker
        });
        drive(&mut first, "five versions", |server| server.status().version == Version::new(5));
        (training.join().unwrap(), first)
    });
    drop(first);
    let initial = [0.0; 10];
    // A process that another test starts has this socket until it runs its program.
    let mut second = retry(|| Server::new(Shm::new(), &address, table(10), &initial, options()));
    assert_ne!(second.epoch(), epoch);
    std::thread::scope(|scope| {
        let training = scope.spawn(|| {
            for _ in 0..3 {
                // What is published into the old incarnation's memory is lost, and said to be by the next wait.
                let error = wait_for("the old handle to fail", || train(&mut old, 100.0).err());
                assert!(matches!(error, Error::ServerLost { .. } | Error::OutOfTurn { .. }), "{error}");
                let error = old.step(NOTICE).unwrap_err();
                assert!(matches!(error, Error::ServerLost { .. }), "{error}");
            }
            let mut new = worker(&address, scheme);
            for _ in 0..5 {
                train(&mut new, 1.0).unwrap();
            }
            new.flush(PATIENCE).unwrap();
        });
        drive(&mut second, "the new worker's end", |server| server.status().left == 1);
        training.join().unwrap();
    });
    assert_eq!((second.status().joined, second.parameters().unwrap()), (1, vec![5.0; 10]));
}
