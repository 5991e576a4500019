//! Two incarnations of one server, and one file.

use std::path::Path;
use std::time::Duration;

use slackline::checkpoint::{Checkpoint, CheckpointError};
use slackline::{Error, Server, ServerOptions, Shm, Version, scheme::SchemeConfig};

use super::job::{PATIENCE, Serving, checkpointing, new, resume, train, worker};

fn options(path: &Path) -> ServerOptions {
    checkpointing(ServerOptions::new(SchemeConfig::Bsp, 1, 0.05), path)
}

/// Has a worker train for so many clocks, and a checkpoint written.
fn go_on(server: Server<Shm>, clocks: u64) -> Server<Shm> {
    let serving = Serving::start(server);
    let mut worker = worker(&serving.address, SchemeConfig::Bsp);
    (0..clocks).for_each(|_| _ = train(&mut worker).unwrap());
    worker.flush(PATIENCE).unwrap();
    drop(worker);
    let mut server = serving.stop();
    server.finish_checkpoint(PATIENCE).unwrap();
    server
}

/// The last checkpoint of a server, which another has superseded.
fn assert_superseded(server: &mut Server<Shm>, by: &Server<Shm>) {
    server.request_checkpoint().unwrap();
    for error in [server.drive(|_| false, PATIENCE).err(), server.finish_checkpoint(PATIENCE).err()] {
        let Some(Error::Checkpoint(CheckpointError::Superseded { epoch, owner, .. })) = error else {
            panic!("it goes on: {error:?}")
        };
        assert_eq!((epoch, owner), (server.epoch(), by.epoch()));
    }
    assert_eq!(server.status().checkpoints_failed, 1);
}

#[test]
fn a_server_that_wakes_after_its_successor_began_ends_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    // It is not driven, and so as good as stopped, while its successor begins.
    let mut stopped = go_on(new(64, options(&path)), 3);
    let mut successor = resume(64, &path, options(&path));
    assert_superseded(&mut stopped, &successor);
    assert_eq!(Checkpoint::read(&path).unwrap().epoch(), stopped.epoch());
    successor = go_on(successor, 2);
    let newest = Checkpoint::read(&path).unwrap();
    assert_eq!((newest.epoch(), newest.version()), (successor.epoch(), Version::new(5)));
    // That it ended is not forgotten.
    assert!(stopped.drive(|_| false, Duration::ZERO).is_err());
    assert_eq!(Checkpoint::read(&path).unwrap().epoch(), successor.epoch());
}

#[test]
fn of_two_servers_that_begin_with_one_file_the_last_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let (mut one, other) = (new(64, options(&path)), new(64, options(&path)));
    assert_superseded(&mut one, &other);
    assert!(!path.exists());
    let other = go_on(other, 1);
    assert_eq!(Checkpoint::read(&path).unwrap().epoch(), other.epoch());
}
