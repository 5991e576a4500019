//! Jobs of two shards of which one dies: it comes back at an older clock than the other stands at.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use slackline::checkpoint::Checkpoint;
use slackline::{
    Address, Clock, Error, Server, ServerOptions, ServerStatus, Shm, Worker, WorkerOptions,
    scheme::SchemeConfig,
};

use super::at_once::at_once;
use super::job::{PATIENCE, Serving, checkpointing, schemes, table, train, wait_for};

const ELEMENTS: usize = 320;

fn options(scheme: SchemeConfig, workers: usize, shard: u16, folder: &std::path::Path) -> ServerOptions {
    let options = ServerOptions { shard: (shard, 2), ..ServerOptions::new(scheme, workers, 0.1) };
    checkpointing(options, folder.join(format!("shard-{shard}")))
}

fn start(scheme: SchemeConfig, workers: usize, folder: &std::path::Path) -> [Serving; 2] {
    let ranges = table(ELEMENTS).shards(2).unwrap();
    [0u16, 1].map(|shard| {
        let range = &ranges[usize::from(shard)];
        let initial = vec![0.5; (range.end - range.start) as usize / 4];
        let options = options(scheme, workers, shard, folder);
        let address = Address::random();
        Serving::start(Server::new(Shm::new(), &address, table(ELEMENTS), &initial, options).unwrap())
    })
}

fn take_up(scheme: SchemeConfig, workers: usize, shard: u16, folder: &std::path::Path) -> Server<Shm> {
    let options = options(scheme, workers, shard, folder);
    let checkpoint = Checkpoint::read(folder.join(format!("shard-{shard}"))).unwrap();
    Server::resume(Shm::new(), &Address::random(), table(ELEMENTS), checkpoint, options).unwrap()
}

fn connect(addresses: &[Address], scheme: SchemeConfig) -> Worker<Shm> {
    Worker::connect(Shm::new(), addresses, WorkerOptions::new(scheme), PATIENCE).unwrap()
}

#[test]
fn workers_rejoin_two_shards_in_any_order_though_one_is_at_an_older_clock() {
    at_once(schemes(), |scheme| {
        let folder = tempfile::tempdir().unwrap();
        let [survivor, mut victim] = start(scheme, 2, folder.path());
        // The addresses of the servers now, as the process that starts them would tell them.
        let addresses = Mutex::new(vec![survivor.address.clone(), victim.address.clone()]);
        let (is_last, end) = (AtomicBool::new(false), Clock::new(300));
        let (ended, victim) = std::thread::scope(|scope| {
            let train_to_the_end = |which: usize| {
                let mut worker = connect(&addresses.lock().unwrap().clone(), scheme);
                while worker.clock() < end || !is_last.load(SeqCst) {
                    match train(&mut worker) {
                        Ok(view) => {
                            let bound = scheme.staleness().unwrap_or(u64::MAX);
                            assert!(view.staleness() <= bound, "{scheme}: {view:?}");
                        }
                        Err(Error::ServerLost { .. }) => {
                            // In different orders, and not at one moment.
                            std::thread::sleep(Duration::from_millis(30 * which as u64));
                            let before = worker.clock();
                            wait_for("the servers", || {
                                let mut addresses = addresses.lock().unwrap().clone();
                                addresses.rotate_left(which);
                                worker.reconnect(&addresses, Duration::from_millis(250)).ok()
                            });
                            assert!(worker.clock() >= before, "{scheme}");
                        }
                        Err(error) => panic!("{scheme}: {error}"),
                    }
                }
                worker.flush(PATIENCE).unwrap();
                // Leaves: the other may have a clock to go.
                (worker.clock(), worker.statistics().reconnects)
            };
            let workers = [0, 1].map(|which| scope.spawn(move || train_to_the_end(which)));
            // Three times, each time from a checkpoint that is long past.
            for _ in 0..3 {
                let mut server = victim.stop();
                server.finish_checkpoint(PATIENCE).unwrap();
                // Versions, not clocks: those may move as far at once.
                let begun = server.status().version;
                let more = |status: &ServerStatus| status.version.get() >= begun.get() + 20;
                drop(Serving::start(server).until("more", more).stop());
                let resumed = take_up(scheme, 2, 1, folder.path());
                assert!(resumed.status().version <= begun, "{scheme}");
                victim = Serving::start(resumed);
                addresses.lock().unwrap()[1] = victim.address.clone();
                victim = victim.until("both to be back", |status| status.workers == 2);
            }
            is_last.store(true, SeqCst);
            (workers.map(|worker| worker.join().unwrap()), victim)
        });
        for (clock, reconnects) in ended {
            assert!(reconnects > 0 && clock >= end, "{scheme}");
        }
        let statuses = [survivor.stop().status(), victim.stop().status()];
        for status in statuses {
            // Without a bound each shard counts for itself.
            assert!(scheme == SchemeConfig::Asp || status.smallest_clock >= end, "{scheme}: {status:?}");
        }
        assert!(statuses[1].lost_updates > Some(0), "{scheme}");
    });
}

#[test]
fn a_worker_alone_takes_a_restored_shard_to_its_own_clock_at_once() {
    for scheme in schemes() {
        let folder = tempfile::tempdir().unwrap();
        let [survivor, victim] = start(scheme, 1, folder.path());
        let mut worker = connect(&[survivor.address.clone(), victim.address.clone()], scheme);
        let mut server = victim.stop();
        server.finish_checkpoint(PATIENCE).unwrap();
        let victim = Serving::start(server);
        for _ in 0..10 {
            train(&mut worker).unwrap();
        }
        worker.flush(PATIENCE).unwrap();
        drop(victim.stop());
        wait_for("the loss to be told", || worker.step(PATIENCE).err());
        let victim = Serving::start(take_up(scheme, 1, 1, folder.path()));
        worker.reconnect(&[victim.address.clone(), survivor.address.clone()], PATIENCE).unwrap();
        assert_eq!(worker.clock(), Clock::new(10), "{scheme}");
        let view = train(&mut worker).unwrap();
        assert_eq!((view.clock, view.version.get()), (Clock::new(10), 0), "{scheme}");
        worker.flush(PATIENCE).unwrap();
        let (kept, restored) = (survivor.stop().status(), victim.stop().status());
        assert_eq!((kept.version.get(), restored.version.get()), (11, 1), "{scheme}");
        assert_eq!(
            (kept.smallest_clock, restored.smallest_clock),
            (Clock::new(11), Clock::new(11)),
            "{scheme}"
        );
        assert_eq!((kept.lost_updates, restored.lost_updates), (None, Some(10)), "{scheme}");
    }
}

#[test]
fn a_new_worker_finds_one_clock_though_the_shards_stand_at_two() {
    for scheme in [SchemeConfig::Bsp, SchemeConfig::Ssp { staleness: 1 }, SchemeConfig::Essp { staleness: 1 }]
    {
        let folder = tempfile::tempdir().unwrap();
        let [survivor, victim] = start(scheme, 1, folder.path());
        let mut server = victim.stop();
        server.finish_checkpoint(PATIENCE).unwrap();
        let victim = Serving::start(server);
        let mut worker = connect(&[survivor.address.clone(), victim.address.clone()], scheme);
        for _ in 0..10 {
            train(&mut worker).unwrap();
        }
        worker.flush(PATIENCE).unwrap();
        // It dies with one of its servers: no process is left that knows how far that server had come.
        drop(victim.stop());
        drop(worker);
        let victim = Serving::start(take_up(scheme, 1, 1, folder.path()));
        let mut fresh = connect(&[survivor.address.clone(), victim.address.clone()], scheme);
        assert_eq!(fresh.clock(), Clock::new(10), "{scheme}");
        train(&mut fresh).unwrap();
        fresh.flush(PATIENCE).unwrap();
        survivor.stop();
        victim.stop();
    }
}
