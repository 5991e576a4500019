//! One server: what it writes, when, and what comes of it.

use std::time::Duration;

use slackline::checkpoint::{Checkpoint, CheckpointError, CheckpointOptions};
use slackline::optim::{AdamParameters, Optimizer};
use slackline::{Address, Clock, Error, Server, ServerOptions, Shm, Version, scheme::SchemeConfig};

use super::job::{PATIENCE, Serving, bits, checkpointing, new, resume, table, train, wait_for, worker};

const ELEMENTS: usize = 5_003;

#[test]
fn training_resumed_from_a_checkpoint_is_bit_for_bit_that_without_a_stop() {
    let adam = AdamParameters { weight_decay: 0.01, ..AdamParameters::default() };
    for optimizer in [
        Optimizer::Sgd { weight_decay: 0.01 },
        Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 },
        Optimizer::Adam(adam),
        Optimizer::AdamW(adam),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        let options = || {
            checkpointing(
                ServerOptions { optimizer, ..ServerOptions::new(SchemeConfig::Bsp, 1, 0.05) },
                &path,
            )
        };
        let serving = Serving::start(new(ELEMENTS, options()));
        let mut straight = worker(&serving.address, SchemeConfig::Bsp);
        for _ in 0..25 {
            train(&mut straight).unwrap();
        }
        straight.flush(PATIENCE).unwrap();
        let expected = serving.stop().parameters().unwrap();

        let serving = Serving::start(new(ELEMENTS, options()));
        let mut worker = worker(&serving.address, SchemeConfig::Bsp);
        for clock in 0..10 {
            assert_eq!(train(&mut worker).unwrap().clock, Clock::new(clock));
        }
        worker.flush(PATIENCE).unwrap();
        let mut server = serving.stop();
        assert_eq!(server.finish_checkpoint(PATIENCE).unwrap(), Version::new(10));
        assert_eq!(server.status().checkpointed, Some(Version::new(10)));
        let epoch = server.epoch();
        drop(server);

        let resumed = resume(ELEMENTS, &path, options());
        assert_ne!(resumed.epoch(), epoch, "another incarnation");
        let status = resumed.status();
        assert_eq!((status.version, status.smallest_clock), (Version::new(10), Clock::new(10)));
        let serving = Serving::start(resumed);
        worker.reconnect(std::slice::from_ref(&serving.address), PATIENCE).unwrap();
        for clock in 10..25 {
            let view = train(&mut worker).unwrap();
            assert_eq!((view.clock, view.version), (Clock::new(clock), Version::new(clock)));
        }
        worker.flush(PATIENCE).unwrap();
        assert_eq!((worker.statistics().clocks, worker.statistics().reconnects), (25, 1));
        let server = serving.stop();
        assert_eq!((server.status().version, server.status().lost_updates), (Version::new(25), Some(0)));
        assert!(bits(&server.parameters().unwrap()) == bits(&expected), "{optimizer:?}");
    }
}

#[test]
fn the_checkpoint_that_a_server_went_on_from_outlives_the_damaged_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let options = || checkpointing(ServerOptions::new(SchemeConfig::Bsp, 1, 0.05), &path);
    let serving = Serving::start(new(ELEMENTS, options()));
    let mut worker = worker(&serving.address, SchemeConfig::Bsp);
    train(&mut worker).unwrap();
    worker.flush(PATIENCE).unwrap();
    let mut server = serving.stop();
    assert_eq!(server.finish_checkpoint(PATIENCE).unwrap(), Version::new(1));
    let serving = Serving::start(server);
    train(&mut worker).unwrap();
    worker.flush(PATIENCE).unwrap();
    let mut server = serving.stop();
    assert_eq!(server.finish_checkpoint(PATIENCE).unwrap(), Version::new(2));
    drop(server);
    std::fs::write(&path, "damaged").unwrap();

    // The file is the one that the server writes, though it is spelled differently.
    let name = folder.path().file_name().unwrap();
    let mut resumed = resume(ELEMENTS, &folder.path().join("..").join(name).join("shard"), options());
    assert_eq!(resumed.status().version, Version::new(1));
    assert_eq!(std::fs::read(folder.path().join("shard.damaged")).unwrap(), b"damaged");
    // As the next checkpoint is written, the one before stays what it was, and outlives damage to the new one.
    resumed.request_checkpoint().unwrap();
    assert_eq!(resumed.finish_checkpoint(PATIENCE).unwrap(), Version::new(1));
    drop(resumed);
    std::fs::write(&path, "damaged again").unwrap();
    assert_eq!(Checkpoint::read(&path).unwrap().version(), Version::new(1));
}

#[test]
fn a_checkpoint_says_what_it_holds_and_is_refused_by_another_job() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let options = || checkpointing(ServerOptions::new(SchemeConfig::Ssp { staleness: 1 }, 1, 0.05), &path);
    let serving = Serving::start(new(64, options()));
    let mut trained = worker(&serving.address, SchemeConfig::Ssp { staleness: 1 });
    for _ in 0..3 {
        train(&mut trained).unwrap();
    }
    trained.flush(PATIENCE).unwrap();
    let mut server = serving.stop();
    server.finish_checkpoint(PATIENCE).unwrap();
    let checkpoint = Checkpoint::read(&path).unwrap();
    assert_eq!((checkpoint.version(), checkpoint.smallest_clock()), (Version::new(3), Clock::new(3)));
    assert_eq!((checkpoint.clocks(), checkpoint.epoch()), (&[Clock::new(3)][..], server.epoch()));
    assert_eq!((checkpoint.table(), checkpoint.shard()), (server.table(), (0, 1)));
    assert_eq!(bits(checkpoint.parameters()), bits(&server.parameters().unwrap()));
    assert_eq!(checkpoint.states().len(), 0);

    let momentum = Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 };
    for (what, table, options) in [
        ("table", table(65), options()),
        ("shard", table(64), ServerOptions { shard: (1, 2), ..options() }),
        ("optimizer", table(64), ServerOptions { optimizer: momentum, ..options() }),
    ] {
        let resumed = Server::resume(Shm::new(), &Address::random(), table, checkpoint.clone(), options);
        let Err(Error::Checkpoint(error)) = resumed else { panic!("taken up by a job of another {what}") };
        assert!(matches!(&error, CheckpointError::OtherJob { what: named, .. } if *named == what), "{error}");
    }
}

#[test]
fn a_checkpoint_is_written_every_so_many_versions_and_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let mut options = checkpointing(ServerOptions::new(SchemeConfig::Bsp, 1, 0.05), &path);
    options.checkpoint.as_mut().unwrap().every = Some(4);
    let serving = Serving::start(new(16, options));
    let mut worker = worker(&serving.address, SchemeConfig::Bsp);
    for _ in 0..3 {
        train(&mut worker).unwrap();
    }
    worker.flush(PATIENCE).unwrap();
    let serving = serving.until("a third version", |status| status.version == Version::new(3));
    assert!(!path.exists());
    train(&mut worker).unwrap();
    let serving = serving.until("a first checkpoint", |status| status.checkpointed == Some(Version::new(4)));
    assert_eq!(Checkpoint::read(&path).unwrap().version(), Version::new(4));
    train(&mut worker).unwrap();
    worker.flush(PATIENCE).unwrap();
    let mut server = serving.stop();
    // The second is wanted while the first may be under way, and is not forgotten.
    server.request_checkpoint().unwrap();
    server.poll(slackline::now()).unwrap();
    server.request_checkpoint().unwrap();
    let serving =
        Serving::start(server).until("its request", |status| status.checkpointed == Some(Version::new(5)));
    // The request that had to wait may be begun a few versions later, and the next is counted from there.
    for _ in 0..8 {
        train(&mut worker).unwrap();
    }
    serving.until("the next", |status| status.checkpointed >= Some(Version::new(9))).stop();
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_counted_and_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gone/shard");
    let mut options = checkpointing(ServerOptions::new(SchemeConfig::Bsp, 1, 0.05), &path);
    options.checkpoint.as_mut().unwrap().every = Some(1);
    let error =
        Server::new(Shm::new(), &Address::random(), table(16), &[0.0; 16], options.clone()).err().unwrap();
    assert!(matches!(error, Error::Checkpoint(CheckpointError::Write { .. })), "found at once: {error}");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let server = new(16, options);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    let serving = Serving::start(server);
    let mut worker = worker(&serving.address, SchemeConfig::Bsp);
    for _ in 0..5 {
        train(&mut worker).unwrap();
    }
    worker.flush(PATIENCE).unwrap();
    let serving = serving.until("failures", |status| status.checkpoints_failed >= 1);
    let mut server = serving.stop();
    assert_eq!((server.status().version, server.status().checkpointed), (Version::new(5), None));
    let why = server.checkpoint_failure().expect("the reason is told");
    assert!(matches!(why, CheckpointError::Write { .. }), "{why}");
    assert!(server.checkpoint_failure().is_none(), "once");
    let error = server.finish_checkpoint(PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(CheckpointError::Write { .. })), "{error}");
    // The folder comes back, and with it the checkpoints.
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    assert_eq!(server.finish_checkpoint(PATIENCE).unwrap(), Version::new(5));
}

#[test]
fn options_that_cannot_be_are_refused_at_once() {
    let server = |options| Server::new(Shm::new(), &Address::random(), table(4), &[0.0; 4], options).err();
    let good = ServerOptions::new(SchemeConfig::Bsp, 1, 0.05);
    let never = CheckpointOptions { every: Some(0), ..CheckpointOptions::new("x") };
    let error = server(ServerOptions { checkpoint: Some(never), ..good.clone() });
    assert!(matches!(error, Some(Error::Option { .. })), "{error:?}");
    let error = server(checkpointing(good.clone(), "/"));
    assert!(matches!(error, Some(Error::Checkpoint(CheckpointError::NoName { .. }))), "{error:?}");
    let endless = Optimizer::Sgd { weight_decay: f32::INFINITY };
    let error = server(checkpointing(ServerOptions { optimizer: endless, ..good.clone() }, "x"));
    assert!(matches!(error, Some(Error::Option { .. })), "{error:?}");
    let mut without = new(4, good);
    assert!(matches!(without.request_checkpoint(), Err(Error::OutOfTurn { .. })));
    assert!(matches!(without.finish_checkpoint(Duration::ZERO), Err(Error::OutOfTurn { .. })));
}

#[test]
fn a_checkpoint_is_one_whole_version_though_folds_go_on_beneath_it() {
    const LARGE: usize = 1 << 20;
    let optimizer = Optimizer::Momentum { momentum: 0.5, weight_decay: 0.0 };
    for frames in [2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        let mut options = checkpointing(
            ServerOptions { optimizer, ..ServerOptions::new(SchemeConfig::Asp, 1, -1.0) },
            &path,
        );
        options.checkpoint.as_mut().unwrap().every = Some(1);
        options.memory.frames = frames;
        let serving = Serving::start(new(LARGE, options));
        let mut worker = worker(&serving.address, SchemeConfig::Asp);
        let training = std::thread::spawn(move || {
            for _ in 0..150 {
                let mut step = worker.step(PATIENCE).unwrap();
                step.gradient().unwrap().fill(1.0);
                step.publish(None, PATIENCE).unwrap();
            }
            worker.flush(PATIENCE).unwrap();
        });
        let (mut expected, mut seen) = (vec![(0.5f32, 0.0f32)], Vec::new());
        for version in 0..150 {
            let (parameter, momentum) = expected[version];
            let momentum = 0.5 * momentum + 1.0;
            expected.push((parameter + momentum, momentum));
        }
        while !training.is_finished() || seen.is_empty() {
            let checkpoint = match Checkpoint::read(&path) {
                Ok(checkpoint) => checkpoint,
                Err(CheckpointError::Missing { .. }) => continue,
                Err(error) => panic!("{error}"),
            };
            let version = checkpoint.version().get() as usize;
            let (parameter, momentum) = expected[version];
            assert!(checkpoint.parameters().iter().all(|value| *value == parameter), "version {version}");
            assert!(checkpoint.states()[0].iter().all(|value| *value == momentum), "version {version}");
            if seen.last() != Some(&version) {
                seen.push(version);
            }
        }
        training.join().unwrap();
        assert!(seen.is_sorted(), "{seen:?}");
        let mut server = serving.stop();
        assert_eq!(server.finish_checkpoint(PATIENCE).unwrap(), Version::new(150));
        assert_eq!(wait_for("the last", || Checkpoint::read(&path).ok()).version(), Version::new(150));
    }
}
