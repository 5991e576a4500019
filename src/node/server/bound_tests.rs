//! Workers that come and go while a fold that counts has not ended.

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Server, ServerOptions};
    use crate::clock::Clock;
    use crate::node::checkpoint::Checkpoint;
    use crate::node::{CheckpointOptions, Error, ShardOptions, Worker, WorkerOptions, now};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn table() -> Table {
        Table::flat(16, ElementType::F32).unwrap()
    }

    /// A server of two frames, one of which [`hold`] can hold.
    fn server(scheme: SchemeConfig, workers: usize, path: &Path) -> Server<Shm> {
        let options = ServerOptions::new(scheme, workers, 0.1);
        let memory = ShardOptions { frames: 2, ..options.memory };
        let options = ServerOptions { checkpoint: Some(CheckpointOptions::new(path)), memory, ..options };
        Server::new(Shm::new(), &Address::random(), table(), &[0.0; 16], options).unwrap()
    }

    /// Acts as if a checkpoint were copying the frame that the next fold writes: the fold begins no earlier than the
    /// frame is released.
    fn hold(server: &mut Server<Shm>, is_held: bool) {
        let (latest, current) = (server.shard.frames.latest(), server.current);
        server.checkpoints.as_mut().unwrap().pretend(is_held, 1 - latest.frame, current);
    }

    fn until(server: &mut Server<Shm>, done: impl Fn(&Server<Shm>) -> bool) {
        assert!(server.drive(done, PATIENCE).unwrap(), "{:?}", server.status());
    }

    /// Does a worker's work while the server is driven.
    fn during<R: Send>(server: &mut Server<Shm>, work: impl FnOnce() -> Result<R, Error> + Send) -> R {
        std::thread::scope(|scope| {
            let working = scope.spawn(work);
            until(server, |_| working.is_finished());
            working.join().unwrap().unwrap()
        })
    }

    fn connect(server: &mut Server<Shm>, scheme: SchemeConfig, rank: u32) -> Worker<Shm> {
        let addresses = [server.address()];
        let options = WorkerOptions { identity: Some(rank), ..WorkerOptions::new(scheme) };
        during(server, || Worker::connect(Shm::new(), &addresses, options, PATIENCE))
    }

    fn publish(worker: &mut Worker<Shm>, loss: Option<f32>) -> Result<(), Error> {
        let mut step = worker.step(PATIENCE)?;
        step.gradient()?.fill(1.0);
        step.publish(loss, PATIENCE)
    }

    /// The scheme's smallest clock is far ahead of the announced one, which the checkpoint holds.
    #[test]
    fn a_checkpoint_under_a_fold_knows_those_that_went_before_its_begin() {
        let (folder, scheme) = (tempfile::tempdir().unwrap(), SchemeConfig::Asp);
        let path = folder.path().join("shard");
        let mut server = server(scheme, 3, &path);
        let [mut gone, straggler, mut last] = [1, 2, 3].map(|rank| connect(&mut server, scheme, rank));
        for (worker, clocks) in [(&mut gone, 3), (&mut last, 5)] {
            during(&mut server, || {
                (0..clocks).try_for_each(|_| publish(worker, None))?;
                worker.flush(PATIENCE)
            });
        }
        drop(gone);
        until(&mut server, |server| server.status().left == 1);
        hold(&mut server, true);
        during(&mut server, || publish(&mut last, None));
        until(&mut server, |server| server.work.bound);
        drop(straggler);
        until(&mut server, |server| server.status().left == 2);
        assert_eq!((server.announced_clock, server.smallest_clock()), (Clock::new(0), Clock::new(5)));
        let another = connect(&mut server, scheme, 4);
        assert!(server.work.bound);
        hold(&mut server, false);
        server.request_checkpoint().unwrap();
        server.checkpoint().unwrap();
        // All die.
        drop((server, last, another));

        let checkpoint = Checkpoint::read(&path).unwrap();
        assert_eq!((checkpoint.version().get(), checkpoint.smallest_clock()), (8, Clock::new(0)));
        let (options, at) = (ServerOptions::new(scheme, 1, 0.1), Address::random());
        let mut server = Server::resume(Shm::new(), &at, table(), checkpoint, options).unwrap();
        let again = connect(&mut server, scheme, 1);
        assert_eq!(again.clock(), Clock::new(3), "its first three gradients are in the parameters");
    }

    #[test]
    fn the_sum_of_a_host_that_leaves_under_its_fold_counts_all_its_workers() {
        let (folder, scheme) = (tempfile::tempdir().unwrap(), SchemeConfig::Bsp);
        let mut server = server(scheme, 2, &folder.path().join("shard"));
        let [mut host, mut worker] = [1, 2].map(|rank| connect(&mut server, scheme, rank));
        hold(&mut server, true);
        during(&mut server, || {
            let mut step = host.step(PATIENCE)?;
            step.gradient()?.fill(4.0);
            step.suspend();
            host.publish_sum(4, Some(1.0))?;
            while host.is_publishing() {
                host.poll(now())?;
            }
            publish(&mut worker, Some(6.0))
        });
        until(&mut server, |server| server.work.bound);
        drop(host);
        until(&mut server, |server| server.status().left == 1);
        hold(&mut server, false);
        until(&mut server, |server| server.status().version.get() == 1);
        let status = server.status();
        assert_eq!((status.gradients, status.folded, status.loss), (5, 5, Some(2.0)));
    }
}
