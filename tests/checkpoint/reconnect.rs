//! Workers that come back, to a server that was taken up from its checkpoint or that had taken them for dead.

use std::time::Duration;

use slackline::internals::param::{PeerHello, PeerRole, WorkerProgress};
use slackline::internals::transport::{Connecting, Offer};
use slackline::{
    Clock, ConnectError, Encoding, Error, ReadMode, ServerOptions, Shm, Transport, Version, Worker,
    WorkerOptions, now, scheme::SchemeConfig,
};

use super::job::{PATIENCE, Serving, checkpointing, new, resume, schemes, train, wait_for, worker};

const ELEMENTS: usize = 500;

/// A short wait, for what never comes.
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn a_server_that_dies_is_resumed_elsewhere_and_its_workers_go_on_to_the_end() {
    for scheme in schemes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        let mut options = checkpointing(ServerOptions::new(scheme, 3, 0.1), &path);
        options.checkpoint.as_mut().unwrap().every = Some(10);
        let (loss, losses) = std::sync::mpsc::channel();
        let mut to_workers = Vec::new();
        let first = Serving::start(new(ELEMENTS, options.clone()));
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let (address, loss) = (first.address.clone(), loss.clone());
                let (to_worker, addresses) = std::sync::mpsc::channel();
                to_workers.push(to_worker);
                std::thread::spawn(move || {
                    let mut worker = worker(&address, scheme);
                    let mut reached = Clock::new(0);
                    // Without a bound one may be at its end before the others have begun.
                    while worker.clock() < Clock::new(150) || worker.statistics().reconnects == 0 {
                        match train(&mut worker) {
                            Ok(view) => {
                                assert!(view.clock >= reached, "{scheme}: a clock went back");
                                let bound = scheme.staleness().unwrap_or(u64::MAX);
                                assert!(view.staleness() <= bound, "{scheme}: {view:?}");
                                reached = view.clock;
                            }
                            Err(Error::ServerLost { .. }) => {
                                loss.send(reached).unwrap();
                                let address = addresses.recv_timeout(PATIENCE).unwrap();
                                worker.reconnect(&[address], PATIENCE).unwrap();
                                assert!(worker.clock() >= reached);
                            }
                            Err(error) => panic!("{scheme}: {error}"),
                        }
                    }
                    worker.flush(PATIENCE).unwrap();
                    (worker.statistics().reconnects, worker.step(PATIENCE).map(|step| step.view().version))
                })
            })
            .collect();
        let first = first.until("a checkpoint and more", |status| {
            status.checkpointed >= Some(Version::new(20)) && status.smallest_clock >= Clock::new(20)
        });
        let died = first.stop();
        let (version, clock) = (died.status().version, died.status().smallest_clock);
        drop(died);
        let second = resume(ELEMENTS, &path, options.clone());
        let (restored, restored_clock) = (second.status().version, second.status().smallest_clock);
        let restored_folded = second.status().folded;
        assert!(restored >= Version::new(20) && restored <= version && restored_clock <= clock, "{scheme}");
        let second = Serving::start(second);
        for to_worker in to_workers {
            losses.recv_timeout(PATIENCE).unwrap();
            to_worker.send(second.address.clone()).unwrap();
        }
        // No worker leaves before all have ended: they wait for each other's clocks.
        let second =
            second.until("the end", |status| status.smallest_clock >= Clock::new(150) || status.left > 0);
        for worker in workers {
            let (reconnects, newest) = worker.join().unwrap();
            assert_eq!(reconnects, 1, "{scheme}");
            assert!(newest.is_ok_and(|newest| newest >= restored), "{scheme}");
        }
        let server = second.stop();
        let status = server.status();
        let lost = status.lost_updates.unwrap();
        assert!(lost <= version.get() - restored.get(), "{scheme}: {lost} of {version:?} less {restored:?}");
        // It counts on from what the incarnation before had folded in. Under BSP several gradients make one version.
        let (made, folded) = (status.version.get() - restored.get(), status.folded - restored_folded);
        assert!(restored_folded >= restored.get(), "{scheme}: {restored_folded} in {restored:?}");
        assert!(made == folded || scheme == SchemeConfig::Bsp && made < folded, "{scheme}: {status:?}");
        // All workers pull towards the same point.
        let clock = 0.1;
        for (index, value) in server.parameters().unwrap().iter().enumerate() {
            let target = (index as f32 * 0.07).sin() + clock;
            assert!((value - target).abs() < 0.1, "{scheme}: {value} against {target}");
        }
    }
}

/// Brings a worker to where `name` says.
fn come_to(name: &str, worker: &mut Worker<Shm>) {
    match name {
        "deciding" => {
            publish(worker);
        }
        "computing" => {
            worker.step(PATIENCE).unwrap().suspend();
        }
        "refreshing" => {
            publish(worker);
            // The other worker does not move: nothing newer comes.
            assert!(matches!(worker.step(SHORT), Err(Error::Deadline { .. })));
        }
        "publishing" => {
            let mut step = worker.step(PATIENCE).unwrap();
            if step.gradient().is_ok_and(|gradient| !gradient.is_empty()) {
                step.start_publish(None).unwrap();
            }
        }
        name => unreachable!("{name}"),
    }
}

fn publish(worker: &mut Worker<Shm>) {
    let mut step = worker.step(PATIENCE).unwrap();
    step.gradient().unwrap().fill(0.5);
    step.publish(None, PATIENCE).unwrap();
}

#[test]
fn a_worker_reconnects_from_wherever_it_is_reading_copies_or_in_place() {
    for (read, from) in [ReadMode::Copy, ReadMode::InPlace]
        .into_iter()
        .flat_map(|read| ["deciding", "computing", "refreshing", "publishing"].map(|from| (read, from)))
    {
        for server_dies in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("shard");
            let options = checkpointing(ServerOptions::new(SchemeConfig::Bsp, 2, 0.1), &path);
            let mut serving = Serving::start(new(ELEMENTS, options.clone()));
            let connect = |options| {
                Worker::connect(Shm::new(), std::slice::from_ref(&serving.address), options, PATIENCE)
                    .unwrap()
            };
            let mut worker = connect(WorkerOptions { read, ..WorkerOptions::new(SchemeConfig::Bsp) });
            let mut other = connect(WorkerOptions::new(SchemeConfig::Bsp));
            come_to(from, &mut worker);
            if server_dies {
                let mut server = serving.stop();
                server.finish_checkpoint(PATIENCE).unwrap();
                drop(server);
                if from != "deciding" {
                    let told = wait_for("the loss to be told", || worker.step(SHORT).err());
                    assert!(matches!(told, Error::ServerLost { .. }), "{from}: {told}");
                }
                serving = Serving::start(resume(ELEMENTS, &path, options));
            }
            let addresses = [serving.address.clone()];
            std::thread::scope(|scope| {
                let returning = scope.spawn(|| other.reconnect(&addresses, PATIENCE).unwrap());
                worker.reconnect(&addresses, PATIENCE).unwrap();
                returning.join().unwrap();
            });
            assert_eq!(worker.statistics().reconnects, 1);
            // They may begin at different clocks: the one that is behind goes first.
            std::thread::scope(|scope| {
                for worker in [&mut worker, &mut other] {
                    scope.spawn(move || {
                        while worker.clock() < Clock::new(6) {
                            publish(worker);
                        }
                        worker.flush(PATIENCE).unwrap();
                    });
                }
            });
            let status = serving.stop().status();
            assert!(status.version >= Version::new(4) && status.workers == 2, "{read:?} {from}: {status:?}");
        }
    }
}

#[test]
fn a_reconnect_that_fails_is_told_by_every_call_until_one_succeeds() {
    let scheme = SchemeConfig::Bsp; // Each clock sees the newest version.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let options = checkpointing(ServerOptions::new(scheme, 1, 0.1), &path);
    let serving = Serving::start(new(ELEMENTS, options.clone()));
    let mut worker = worker(&serving.address, scheme);
    for _ in 0..5 {
        train(&mut worker).unwrap();
    }
    worker.flush(PATIENCE).unwrap();
    let mut server = serving.stop();
    server.finish_checkpoint(PATIENCE).unwrap();
    let serving = Serving::start(server);
    for _ in 0..3 {
        train(&mut worker).unwrap();
    }
    worker.flush(PATIENCE).unwrap();
    worker.step(PATIENCE).unwrap().suspend();
    let address = [serving.address.clone()];
    drop(serving.stop());
    let begun = std::time::Instant::now();
    let error = worker.reconnect(&address, SHORT).unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error}");
    assert!(begun.elapsed() < PATIENCE / 2);
    let errors = [
        worker.step(SHORT).err(),
        worker.resume().err(),
        worker.poll(slackline::now()).err(),
        worker.flush(SHORT).err(),
        worker.reconnect(&[], SHORT).err(),
    ];
    for (index, error) in errors.into_iter().enumerate() {
        let fits = matches!(error, Some(Error::OutOfTurn { .. } | Error::Shards { .. }));
        assert!(fits, "call {index}: {error:?}");
    }
    // What it had seen is not forgotten meanwhile.
    let serving = Serving::start(resume(ELEMENTS, &path, options));
    worker.reconnect(std::slice::from_ref(&serving.address), PATIENCE).unwrap();
    assert_eq!(worker.clock(), Clock::new(8));
    train(&mut worker).unwrap();
    worker.flush(PATIENCE).unwrap();
    let status = serving.stop().status();
    assert_eq!((status.lost_updates, status.version), (Some(3), Version::new(6)));
    assert_eq!(status.smallest_clock, Clock::new(9), "the shard's clock has jumped to its only worker's");
}

#[test]
fn a_server_that_comes_late_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let options = checkpointing(ServerOptions::new(SchemeConfig::Bsp, 1, 0.1), &path);
    let mut server = new(ELEMENTS, options.clone());
    server.finish_checkpoint(PATIENCE).unwrap();
    let serving = Serving::start(server);
    let mut worker = worker(&serving.address, SchemeConfig::Bsp);
    let address = serving.address.clone();
    drop(serving.stop());
    let returning = std::thread::spawn({
        let address = address.clone();
        move || {
            worker.reconnect(&[address], PATIENCE).unwrap();
            train(&mut worker).unwrap();
        }
    });
    std::thread::sleep(3 * SHORT);
    let checkpoint = slackline::checkpoint::Checkpoint::read(&path).unwrap();
    let table = super::job::table(ELEMENTS);
    let server = slackline::Server::resume(Shm::new(), &address, table, checkpoint, options).unwrap();
    let serving = Serving::start(server);
    returning.join().unwrap();
    serving.stop();
}

#[test]
fn a_clock_that_nobody_can_have_reached_is_refused_and_moves_nothing() {
    let mut server = new(ELEMENTS, ServerOptions::new(SchemeConfig::Asp, 1, 0.1));
    let address = server.address();
    let role = PeerRole::Worker { encoding: Encoding::F32, scheme: "asp".into(), identity: 0, session: 0 };
    let mut say = |clock: u64| {
        let resume = Some(WorkerProgress { clock: Clock::new(clock), epoch: 1, version: Version::new(0) });
        let message = PeerHello { resume, ..role.clone().into() }.encode();
        let mut connecting = Shm::new().connect(&address, Offer { message, grants: Vec::new() }).unwrap();
        let answer = wait_for("an answer", || {
            server.poll(now()).unwrap();
            match connecting.poll(now()) {
                std::task::Poll::Ready(answer) => Some(answer),
                std::task::Poll::Pending => None,
            }
        });
        (answer.map(|_| ()), server.status())
    };
    for clock in [u64::MAX, (1 << 62) + 1, 1 << 62, (1 << 32) + 1] {
        let (answer, status) = say(clock);
        assert!(matches!(answer, Err(ConnectError::Refused { .. })), "{clock}: {answer:?}");
        assert_eq!((status.smallest_clock, status.joined), (Clock::new(0), 0));
    }
    let (answer, status) = say(1 << 32);
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!((status.smallest_clock, status.joined), (Clock::new(1 << 32), 1));
}
