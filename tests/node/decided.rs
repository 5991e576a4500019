//! Several servers under schemes that count versions: one decides, and the others make the same versions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use slackline::optim::{Optimizer, Schedule};
use slackline::{
    Address, ElementType, Error, Server, ServerOptions, ServerStatus, Shm, Table, Tcp, Transport, Worker,
    WorkerOptions, now, scheme::SchemeConfig,
};

use crate::only_worker::TIMEOUT;

const SHARDS: usize = 3;
const WORKERS: usize = 3;
/// Gradients that a worker publishes at most: so many elements are its own in each shard.
const CLOCKS: usize = 40;
const ELEMENTS: usize = 16 * (WORKERS * CLOCKS).div_ceil(16);

fn server<T: Transport>(transport: T, address: &Address, scheme: SchemeConfig, shard: usize) -> Server<T> {
    let table = Table::flat((SHARDS * ELEMENTS) as u64, ElementType::F32).unwrap();
    let options = ServerOptions {
        shard: (shard as u16, SHARDS as u16),
        // What a gradient has left in the parameters tells in which version it came: each makes it a little smaller.
        optimizer: Optimizer::Sgd { weight_decay: 0.01 },
        // And by its step size, which is the decider's.
        schedule: Schedule::InverseRoot { updates: 1 },
        ..ServerOptions::new(scheme, WORKERS, 1.0)
    };
    Server::new(transport, address, table, &[0.0; ELEMENTS], options).unwrap()
}

/// The end of one shard.
struct Shard {
    parameters: Vec<f32>,
    status: ServerStatus,
}

/// Trains until the decider has made some versions and all workers have left.
fn train<T: Transport>(transport: fn() -> T, address: fn() -> Address, scheme: SchemeConfig) -> Vec<Shard> {
    let mut servers: Vec<_> =
        (0..SHARDS).map(|shard| server(transport(), &address(), scheme, shard)).collect();
    let addresses: Vec<_> = servers.iter().map(Server::address).collect();
    let (last, done) = (Mutex::new(None::<ServerStatus>), AtomicUsize::new(0));
    let leaving = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let decider = servers.remove(0);
        let all_left = |server: &Server<T>| server.status().left == WORKERS as u64;
        let (last, done, addresses) = (&last, &done, &addresses);
        let mut shards = Vec::new();
        shards.push(scope.spawn(move || {
            let mut server = decider;
            assert!(server.drive(all_left, TIMEOUT).unwrap(), "{scheme}: {:?}", server.status());
            *last.lock().unwrap() = Some(server.status());
            let others_are_done = |_: &Server<T>| done.load(SeqCst) == SHARDS - 1;
            assert!(server.drive(others_are_done, TIMEOUT).unwrap(), "{scheme}: {:?}", server.status());
            Shard { parameters: server.parameters().unwrap(), status: server.status() }
        }));
        for server in servers {
            shards.push(scope.spawn(move || {
                let mut server = server;
                assert!(server.follows() && !server.status().is_following);
                server.follow(&addresses[0], TIMEOUT).unwrap();
                assert!(server.status().is_following);
                let is_there = |server: &Server<T>| {
                    let (status, last) = (server.status(), *last.lock().unwrap());
                    let is_level = |last: ServerStatus| {
                        status.version >= last.version && status.smallest_clock >= last.smallest_clock
                    };
                    all_left(server) && last.is_some_and(is_level)
                };
                assert!(server.drive(is_there, TIMEOUT).unwrap(), "{scheme}: {:?}", server.status());
                done.fetch_add(1, SeqCst);
                Shard { parameters: server.parameters().unwrap(), status: server.status() }
            }));
        }
        let workers: Vec<_> = (0..WORKERS)
            .map(|index| scope.spawn(move || work(transport(), addresses, scheme, index, leaving)))
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        shards.into_iter().map(|shard| shard.join().unwrap()).collect()
    })
}

/// Publishes gradients of which each has an element of its own in each shard. The first to have published enough ends
/// the training, since the others may wait for it.
fn work<T: Transport>(
    transport: T,
    servers: &[Address],
    scheme: SchemeConfig,
    index: usize,
    leaving: &AtomicBool,
) {
    let mut worker = Worker::connect(transport, servers, WorkerOptions::new(scheme), TIMEOUT).unwrap();
    for clock in 0..CLOCKS {
        let step = loop {
            if leaving.load(SeqCst) {
                return;
            }
            match worker.step(Duration::from_millis(20)) {
                Ok(step) => break step.suspend(),
                Err(Error::Deadline { .. }) => {}
                Err(error) => panic!("{scheme}: worker {index}: {error}"),
            }
        };
        assert_eq!(step.clock.get(), clock as u64);
        std::thread::sleep(Duration::from_micros(300 * index as u64));
        let mut step = worker.resume().unwrap();
        let gradient = step.gradient().unwrap();
        gradient.fill(0.0);
        for shard in 0..SHARDS {
            gradient[shard * ELEMENTS + index * CLOCKS + clock] = -1.0;
        }
        match step.publish(Some(1.0), Duration::from_millis(20)) {
            // The next step finishes it.
            Ok(()) | Err(Error::Deadline { .. }) => {}
            Err(error) => panic!("{scheme}: worker {index}: {error}"),
        }
    }
    leaving.store(true, SeqCst);
}

fn all_shards_are_made_of_the_same_gradients<T: Transport>(
    transport: fn() -> T,
    address: fn() -> Address,
    scheme: &str,
) {
    let shards = train(transport, address, scheme.parse().unwrap());
    let first = &shards[0];
    assert!(first.status.version.get() >= 10 && first.status.folded >= 10, "{scheme}: {:?}", first.status);
    for shard in &shards[1..] {
        assert_eq!(shard.parameters, first.parameters, "{scheme}: a version is made of other gradients");
        let told = |status: &ServerStatus| (status.version, status.smallest_clock, status.folded);
        assert_eq!(told(&shard.status), told(&first.status), "{scheme}");
        assert_eq!(shard.status.missing, 0, "{scheme}");
    }
}

const COUNTING: [&str; 8] = [
    "dbw(k=2, delivery=interrupt)",
    "dbw(k=2, delivery=wait)",
    "dbw(k=2, delivery=pull)",
    "abs(k=2, staleness=1)",
    "adasync(2)",
    "k-sync(2)",
    "vap(1.5, strength=strong)",
    "delay(2)",
];

#[test]
fn a_version_has_the_same_gradients_in_each_of_several_shards() {
    for scheme in COUNTING {
        all_shards_are_made_of_the_same_gradients(Shm::new, Address::random, scheme);
    }
}

/// By a scheme under which each shard decides for itself, and by one under which all follow the first.
#[test]
fn a_schedule_gives_each_version_its_own_step_size() {
    for scheme in ["bsp", "dbw(k=1, delivery=pull)"] {
        let scheme: SchemeConfig = scheme.parse().unwrap();
        let one_of_two = |shard: u16| {
            let table = Table::flat(32, ElementType::F32).unwrap();
            let schedule = Schedule::Steps { every: 2, factor: 0.5 };
            let options = ServerOptions { shard: (shard, 2), schedule, ..ServerOptions::new(scheme, 1, 1.0) };
            Server::new(Shm::new(), &Address::random(), table, &[0.0; 16], options).unwrap()
        };
        let servers = [one_of_two(0), one_of_two(1)];
        let addresses = servers.each_ref().map(Server::address);
        std::thread::scope(|scope| {
            let serving = servers.map(|mut server| {
                let addresses = &addresses;
                scope.spawn(move || {
                    if server.follows() {
                        server.follow(&addresses[0], TIMEOUT).unwrap();
                    }
                    assert!(server.drive(|server| server.status().version.get() == 5, TIMEOUT).unwrap());
                    server
                })
            });
            let mut worker =
                Worker::connect(Shm::new(), &addresses, WorkerOptions::new(scheme), TIMEOUT).unwrap();
            for _ in 0..5 {
                let mut step = worker.step(TIMEOUT).unwrap();
                step.gradient().unwrap().fill(-1.0);
                step.publish(None, TIMEOUT).unwrap();
            }
            // None ends before all are there.
            for server in serving.map(|serving| serving.join().unwrap()) {
                assert_eq!(server.parameters().unwrap(), [1.0 + 1.0 + 0.5 + 0.5 + 0.25; 16], "{scheme}");
            }
        });
    }
}

#[test]
fn shards_reached_over_tcp_follow_the_one_that_decides() {
    for scheme in ["dbw(k=2, delivery=interrupt)", "vap(1.5, strength=strong)"] {
        let address = || "127.0.0.1:0".parse().unwrap();
        all_shards_are_made_of_the_same_gradients(Tcp::new, address, scheme);
    }
}

/// Has a follower let its only worker go, and the worker announce a gradient after that. Returns the servers; `None` if
/// the worker noticed it too early.
fn announced_after_the_follower_let_go(scheme: SchemeConfig) -> Option<[Server<Shm>; 2]> {
    let one_of_two = |shard: u16| {
        let table = Table::flat(32, ElementType::F32).unwrap();
        let options = ServerOptions { shard: (shard, 2), ..ServerOptions::new(scheme, 1, 1.0) };
        Server::new(Shm::new(), &Address::random(), table, &[0.0; 16], options).unwrap()
    };
    let (mut decider, mut follower) = (one_of_two(0), one_of_two(1));
    let addresses = [decider.address(), follower.address()];
    let is_in = AtomicBool::new(false);
    let mut worker = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_in.load(SeqCst) {
                decider.poll(now()).unwrap();
            }
        });
        follower.follow(&addresses[0], TIMEOUT).unwrap();
        let worker = scope.spawn(|| {
            let worker = Worker::connect(Shm::new(), &addresses, WorkerOptions::new(scheme), TIMEOUT);
            is_in.store(true, SeqCst);
            worker.unwrap()
        });
        while !is_in.load(SeqCst) {
            follower.poll(now()).unwrap();
        }
        worker.join().unwrap()
    });
    // The follower's clock runs ahead of the worker's heartbeat, so that it takes the worker for dead.
    let mut ahead = now();
    let mut poll = |follower: &mut Server<Shm>| {
        ahead = ahead + Duration::from_millis(20);
        follower.poll(ahead).unwrap();
    };
    let mut step = worker.step(TIMEOUT).unwrap();
    step.gradient().unwrap().fill(-1.0);
    while follower.status().left == 0 {
        poll(&mut follower);
    }
    match step.publish(None, TIMEOUT) {
        Ok(()) => {}
        Err(Error::Evicted { shard: 1, .. }) => return None,
        Err(error) => panic!("{error}"),
    }
    let deadline = std::time::Instant::now() + TIMEOUT;
    while follower.status().version.get() == 0 {
        assert!(std::time::Instant::now() < deadline, "{:?} {:?}", decider.status(), follower.status());
        decider.poll(now()).unwrap();
        poll(&mut follower);
    }
    Some([decider, follower])
}

#[test]
fn a_gradient_that_comes_after_a_follower_let_its_worker_go_counts() {
    let scheme = "dbw(k=1, delivery=wait)".parse().unwrap();
    let servers = (0..1000).find_map(|_| announced_after_the_follower_let_go(scheme));
    let [decider, follower] = servers.expect("a worker that has not noticed");
    assert_eq!(follower.status().missing, 0);
    assert_eq!(follower.parameters().unwrap(), [1.0; 16]);
    assert_eq!(decider.parameters().unwrap(), [1.0; 16]);
}
