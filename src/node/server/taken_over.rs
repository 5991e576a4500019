//! Servers that follow another one at an older version than they have begun at.

#[cfg(all(test, feature = "checkpoint"))]
mod tests {
    use std::path::Path;

    use super::super::{IncarnationStart, Server, ServerOptions};
    use crate::clock::{Clock, Version};
    use crate::node::checkpoint::Checkpoint;
    use crate::node::taken::Applied;
    use crate::node::{CheckpointOptions, Worker, WorkerOptions};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    const PATIENCE: Duration = Duration::from_secs(60);
    const ELEMENTS: usize = 16;
    /// Versions between two checkpoints.
    const EVERY: u64 = 10;

    /// The server of one of two shards, which has gone on from a checkpoint at this version.
    fn resumed(shard: u16, version: u64, checkpoint: Option<CheckpointOptions>) -> Server<Shm> {
        let scheme: SchemeConfig = "dbw".parse().unwrap();
        let options = ServerOptions { checkpoint, shard: (shard, 2), ..ServerOptions::new(scheme, 1, 0.1) };
        let start = IncarnationStart {
            parameters: &[0.0; ELEMENTS],
            states: &[],
            version: Version::new(version),
            smallest_clock: Clock::new(version),
            folded: 0,
            applied: Applied::default(),
            learned: None,
            from: None,
            folder: None,
        };
        let table = Table::flat(2 * ELEMENTS as u64, ElementType::F32).unwrap();
        Server::begin(Shm::new(), &Address::random(), table, start, options).unwrap()
    }

    /// The worker of this rank, once it has joined both shards.
    fn connect(addresses: &[Address], identity: Option<u32>) -> Worker<Shm> {
        let scheme: SchemeConfig = "dbw".parse().unwrap();
        let options = WorkerOptions { identity, ..WorkerOptions::new(scheme) };
        Worker::connect(Shm::new(), addresses, options, PATIENCE).unwrap()
    }

    fn publish(worker: &mut Worker<Shm>) {
        let mut step = worker.step(PATIENCE).unwrap();
        step.gradient().unwrap().fill(1.0);
        step.publish(Some(1.0), PATIENCE).unwrap();
    }

    fn on_disk(path: &Path) -> Option<u64> {
        Some(Checkpoint::read(path).ok()?.version().get())
    }

    #[test]
    fn a_follower_that_takes_over_an_older_version_goes_on_writing_checkpoints() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard-1");
        let checkpoint = CheckpointOptions { every: Some(EVERY), ..CheckpointOptions::new(&path) };
        let (mut decider, mut follower) = (resumed(0, 20, None), resumed(1, 120, Some(checkpoint)));
        let addresses = [decider.address(), follower.address()];
        let first = addresses[0].clone();
        std::thread::scope(|scope| {
            let following = scope.spawn(|| {
                follower.follow(&first, PATIENCE).unwrap();
                assert!(follower.drive(|_| on_disk(&path) == Some(20), PATIENCE).unwrap(), "none at once");
                assert!(follower.drive(|server| server.status().left == 1, PATIENCE).unwrap());
            });
            let working = scope.spawn(move || {
                let mut worker = connect(&addresses, None);
                (0..EVERY).for_each(|_| publish(&mut worker));
                worker.flush(PATIENCE).unwrap();
            });
            let is_over = |_: &Server<Shm>| following.is_finished() && working.is_finished();
            assert!(decider.drive(is_over, PATIENCE).unwrap());
            following.join().unwrap();
            working.join().unwrap();
        });
        drop(follower);
        assert_eq!(on_disk(&path), Some(20 + EVERY));
    }

    /// Each server has a checkpoint of its own, and the follower's may be the later one.
    #[test]
    fn a_follower_that_is_ahead_of_its_decider_takes_no_clock_again() {
        let (mut decider, mut follower) = (resumed(0, 20, None), resumed(1, 120, None));
        let addresses = [decider.address(), follower.address()];
        let first = addresses[0].clone();
        std::thread::scope(|scope| {
            let following = scope.spawn(|| {
                follower.follow(&first, PATIENCE).unwrap();
                assert!(follower.drive(|server| server.status().left == 2, PATIENCE).unwrap());
            });
            let working = scope.spawn(move || {
                // By their ranks, or with random numbers for names.
                [Some(3), None].map(|identity| {
                    let mut worker = connect(&addresses, identity);
                    let begun = worker.clock();
                    publish(&mut worker);
                    worker.flush(PATIENCE).unwrap();
                    begun
                })
            });
            let is_over = |_: &Server<Shm>| following.is_finished() && working.is_finished();
            assert!(decider.drive(is_over, PATIENCE).unwrap());
            following.join().unwrap();
            let begun = working.join().unwrap();
            assert!(begun.iter().all(|clock| *clock >= Clock::new(120)), "{begun:?}");
        });
    }
}
