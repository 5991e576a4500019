//! Gradients by name: no clock of one identity is applied twice, whatever becomes of its worker.

use std::time::Duration;

use slackline::{
    Address, Clock, Error, Server, ServerOptions, Shm, Worker, WorkerOptions, scheme::SchemeConfig,
};

use super::at_once::at_once;
use super::job::{PATIENCE, Serving, checkpointing, resume, table};

const ELEMENTS: usize = 64;

/// Schemes whose fast workers run ahead of the smallest clock.
const AHEAD: [SchemeConfig; 3] =
    [SchemeConfig::Asp, SchemeConfig::Ssp { staleness: 8 }, SchemeConfig::Essp { staleness: 8 }];

fn serving(options: ServerOptions) -> Serving {
    let server = Server::new(Shm::new(), &Address::random(), table(ELEMENTS), &[0.0; ELEMENTS], options);
    Serving::start(server.unwrap())
}

fn connect(addresses: &[Address], scheme: SchemeConfig, rank: Option<u32>) -> Result<Worker<Shm>, Error> {
    let options = WorkerOptions { identity: rank, ..WorkerOptions::new(scheme) };
    Worker::connect(Shm::new(), addresses, options, PATIENCE)
}

/// The next gradient of the worker, which is 1 in the element of its clock and 0 elsewhere.
fn publish(worker: &mut Worker<Shm>, timeout: Duration) -> Result<Clock, Error> {
    let mut step = worker.step(timeout)?;
    let clock = step.view().clock;
    let gradient = step.gradient()?;
    gradient.fill(0.0);
    gradient[clock.get() as usize] = 1.0;
    step.publish(None, timeout)?;
    Ok(clock)
}

/// Publishes so many gradients, and waits until all are applied.
fn publish_all(worker: &mut Worker<Shm>, count: u64) {
    for _ in 0..count {
        publish(worker, PATIENCE).unwrap();
    }
    worker.flush(PATIENCE).unwrap();
}

/// Counts how often the gradient of each of the first clocks was applied, with a step of -2 among two workers.
fn counts(serving: Serving, clocks: usize) -> Vec<f32> {
    serving.stop().parameters().unwrap()[..clocks].to_vec()
}

#[test]
fn a_worker_started_again_begins_after_what_was_applied_of_it() {
    for scheme in AHEAD {
        let serving = serving(ServerOptions::new(scheme, 2, -2.0));
        let addresses = [serving.address.clone()];
        let _slow = connect(&addresses, scheme, Some(1)).unwrap();
        let mut fast = connect(&addresses, scheme, Some(0)).unwrap();
        publish_all(&mut fast, 5);
        drop(fast);
        let mut again = connect(&addresses, scheme, Some(0)).unwrap();
        assert_eq!(publish(&mut again, PATIENCE).unwrap(), Clock::new(5), "{scheme}");
        again.flush(PATIENCE).unwrap();
        let other = connect(&addresses, scheme, None).unwrap();
        assert_eq!(
            other.clock(),
            Clock::new(0),
            "{scheme}: one of another name begins at the smallest clock"
        );
        assert_eq!(counts(serving, 7), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0], "{scheme}");
    }
}

#[test]
fn a_publish_that_reached_one_shard_of_two_is_not_applied_there_again() {
    at_once(AHEAD, |scheme| {
        let shard = |shard| {
            let options = ServerOptions { shard: (shard, 2), ..ServerOptions::new(scheme, 2, -2.0) };
            let half = [0.0; ELEMENTS / 2];
            Server::new(Shm::new(), &Address::random(), table(ELEMENTS), &half, options).unwrap()
        };
        let [whole, partial] = [0, 1].map(|index| Serving::start(shard(index)));
        let addresses = [whole.address.clone(), partial.address.clone()];
        let _slow = connect(&addresses, scheme, Some(1)).unwrap();
        let mut fast = connect(&addresses, scheme, Some(0)).unwrap();
        publish_all(&mut fast, 2);
        // A server that stands still has room for two gradients. The third reaches the other one alone.
        let standing = partial.stop();
        let failed = (0..3).find_map(|_| publish(&mut fast, Duration::from_secs(2)).err());
        assert!(matches!(failed, Some(Error::Deadline { .. })), "{scheme}: {failed:?}");
        let whole = whole.until("the third", |status| status.folded >= 5);
        drop(fast);
        let partial = Serving::start(standing);
        let mut again = connect(&addresses, scheme, Some(0)).unwrap();
        publish_all(&mut again, 1);
        let applied = counts(whole, 8);
        assert!(applied.iter().all(|count| *count <= 1.0), "{scheme}: {applied:?}");
        assert!(applied.iter().sum::<f32>() >= 6.0, "{scheme}: {applied:?}");
        partial.stop();
    });
}

#[test]
fn a_server_that_goes_on_from_a_checkpoint_applies_no_gradient_in_it_again() {
    for scheme in AHEAD {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        let options = || checkpointing(ServerOptions::new(scheme, 2, -2.0), &path);
        let first = serving(options());
        let addresses = [first.address.clone()];
        let slow = connect(&addresses, scheme, Some(1)).unwrap();
        let mut fast = connect(&addresses, scheme, Some(0)).unwrap();
        publish_all(&mut fast, 4);
        let mut first = first.stop();
        first.finish_checkpoint(PATIENCE).unwrap();
        drop((first, fast, slow));
        let second = Serving::start(resume(ELEMENTS, &path, options()));
        let addresses = [second.address.clone()];
        let slow = connect(&addresses, scheme, Some(1)).unwrap();
        let fast = connect(&addresses, scheme, Some(0)).unwrap();
        assert_eq!((slow.clock(), fast.clock()), (Clock::new(0), Clock::new(4)), "{scheme}");
        // A second checkpoint says it, too, though the fast worker published nothing to the server that writes it.
        drop((slow, fast));
        let mut second = second.stop();
        second.finish_checkpoint(PATIENCE).unwrap();
        drop(second);
        let third = Serving::start(resume(ELEMENTS, &path, options()));
        let fast = connect(std::slice::from_ref(&third.address), scheme, Some(0)).unwrap();
        assert_eq!(fast.clock(), Clock::new(4), "{scheme}");
        third.stop();
    }
}

#[test]
fn two_workers_of_one_rank_are_told_apart_by_refusing_the_second() {
    let scheme = SchemeConfig::Asp;
    let serving = serving(ServerOptions::new(scheme, 2, -2.0));
    let addresses = [serving.address.clone()];
    let first = connect(&addresses, scheme, Some(3)).unwrap();
    let options = WorkerOptions { identity: Some(3), ..WorkerOptions::new(scheme) };
    let refusal = |seconds| {
        let timeout = Duration::from_secs_f64(seconds);
        let second = Worker::connect(Shm::new(), &addresses, options.clone(), timeout);
        second.err().expect("a second worker of rank 3").to_string()
    };
    // It asks until its deadline, before which a busy server may not have come to it.
    let is_told =
        |seconds| refusal(seconds).contains("identity is connected: give each worker a rank of its own");
    assert!([0.3, 3.0, 30.0].into_iter().any(is_told), "{}", refusal(0.3));
    // One that was started again tries until the end of its first incarnation is noticed.
    std::thread::scope(|scope| {
        let again = scope.spawn(|| connect(&addresses, scheme, Some(3)).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        drop(first);
        again.join().unwrap();
    });
    serving.stop();
}
