//! Read-my-writes: a worker's view holds what its copy guarantees and all that it has published itself, exactly.
//!
//! Each worker's gradients move elements of its own by whole numbers, so that a view counts, worker by worker, the
//! gradients that it holds: one that were missing or there twice would show, whatever the others do meanwhile.

use std::sync::Barrier;
use std::time::Duration;

use slackline::{
    Address, ElementType, Encoding, Error, ReadMode, Secret, Server, ServerOptions, Shm, Table, Tcp,
    Transport, Version, Worker, WorkerOptions, scheme::SchemeConfig,
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The other elements of a worker's share follow the one that counts.
const SHARE: usize = 700;

/// The schemes: with copies that are used again, pushed, and always fresh.
const SCHEMES: [SchemeConfig; 5] = [
    SchemeConfig::Ssp { staleness: 3 },
    SchemeConfig::Essp { staleness: 3 },
    SchemeConfig::Ssp { staleness: 0 },
    SchemeConfig::Bap { staleness: 2 },
    SchemeConfig::Asp,
];

/// A transport by which a job's nodes reach each other.
trait Carrier: Transport {
    fn new() -> (Self, Address)
    where
        Self: Sized;
}

impl Carrier for Shm {
    fn new() -> (Shm, Address) {
        (Shm::new(), Address::random())
    }
}

impl Carrier for Tcp {
    fn new() -> (Tcp, Address) {
        let secret = Secret::from_text("what both sides know", "this test").unwrap();
        (Tcp::with_secret(secret), "127.0.0.1:0".parse().unwrap())
    }
}

fn server<T: Carrier>(scheme: SchemeConfig, workers: usize, shard: (u16, u16)) -> (Server<T>, Address) {
    let table = Table::flat((workers * SHARE) as u64, ElementType::F32).unwrap();
    let range = table.shards(usize::from(shard.1)).unwrap()[usize::from(shard.0)].clone();
    // A gradient of 1 moves a parameter by 1: the weights are 1 / workers.
    let mut options = ServerOptions { shard, ..ServerOptions::new(scheme, workers, workers as f32) };
    options.memory.chunk_bytes = 1024;
    let initial = vec![0.0; (range.end - range.start) as usize / 4];
    let (transport, address) = T::new();
    let server = Server::new(transport, &address, table, &initial, options).unwrap();
    let address = server.address();
    (server, address)
}

fn options(scheme: SchemeConfig, encoding: Encoding) -> WorkerOptions {
    WorkerOptions { own_step: Some(1.0), encoding, ..WorkerOptions::new(scheme) }
}

/// Counts the gradients of each worker that a view holds. All elements of a worker's share must agree.
fn counts(parameters: &[f32]) -> Vec<u64> {
    let counts = parameters.chunks(SHARE).map(|share| {
        assert!(share.iter().all(|value| *value == share[0]), "a mixture: {share:?}");
        -share[0] as u64
    });
    counts.collect()
}

/// One clock: checks the view, and publishes.
fn work<T: Transport>(worker: &mut Worker<T>, index: usize, scheme: SchemeConfig, slots: bool) -> Vec<u64> {
    let mut step = worker.step(TIMEOUT).unwrap();
    let view = step.view();
    let held = counts(step.parameters().unwrap());
    assert_eq!(
        held[index],
        view.clock.get(),
        "{scheme}: not all of its own, or some twice: {held:?} at {view:?}"
    );
    for (other, count) in held.iter().enumerate() {
        assert!(*count >= view.smallest_clock.get(), "{scheme}: {held:?} of worker {other} at {view:?}");
    }
    if slots {
        let own = index * SHARE..(index + 1) * SHARE;
        let values: Vec<u8> = (0..held.len() * SHARE)
            .flat_map(|at| f32::from(u8::from(own.contains(&at))).to_le_bytes())
            .collect();
        let lent: Vec<_> = step.borrow_slots(TIMEOUT).unwrap().collect();
        lent[0].as_volatile().write(&values);
        step.publish_slots(None, TIMEOUT).unwrap();
    } else {
        let gradient: Vec<f32> =
            (0..held.len() * SHARE).map(|at| f32::from(u8::from(at / SHARE == index))).collect();
        step.encode(&gradient).unwrap();
        step.publish(None, TIMEOUT).unwrap();
    }
    held
}

/// Runs a job of so many workers over so many shards, each for 60 clocks.
fn job<T: Carrier>(scheme: SchemeConfig, workers: usize, shards: u16, encoding: Encoding) {
    let servers: Vec<_> = (0..shards).map(|shard| server::<T>(scheme, workers, (shard, shards))).collect();
    let addresses: Vec<_> = servers.iter().map(|(_, address)| address.clone()).collect();
    let clocks = 60;
    // A worker that leaves changes the others' weights: all stay to the end.
    let all = &Barrier::new(workers);
    std::thread::scope(|scope| {
        let serving: Vec<_> = servers
            .into_iter()
            .map(|(mut server, _)| {
                scope.spawn(move || {
                    assert!(server.drive(|server| server.status().left == workers as u64, TIMEOUT).unwrap());
                    server.parameters().unwrap()
                })
            })
            .collect();
        let working: Vec<_> = (0..workers)
            .map(|_| {
                let addresses = addresses.clone();
                scope.spawn(move || {
                    let options = options(scheme, encoding);
                    let mut worker = Worker::connect(T::new().0, &addresses, options, TIMEOUT).unwrap();
                    // Only the test cares which share is its own: each worker takes the number that the server gave it.
                    let index = usize::from(worker.links().next().unwrap().peer);
                    for _ in 0..clocks {
                        work(&mut worker, index, scheme, false);
                    }
                    worker.flush(TIMEOUT).unwrap();
                    all.wait();
                })
            })
            .collect();
        working.into_iter().for_each(|handle| handle.join().unwrap());
        let parameters: Vec<f32> = serving.into_iter().flat_map(|handle| handle.join().unwrap()).collect();
        assert_eq!(counts(&parameters), vec![clocks; workers], "{scheme}");
    });
}

#[test]
fn a_single_workers_view_is_exactly_what_it_has_published() {
    for scheme in SCHEMES {
        job::<Shm>(scheme, 1, 1, Encoding::F32);
    }
}

#[test]
fn each_worker_sees_all_of_its_own_updates_and_the_others_up_to_the_bound() {
    for scheme in SCHEMES {
        job::<Shm>(scheme, 3, 1, Encoding::F32);
    }
}

#[test]
fn shards_and_encodings_make_no_difference() {
    job::<Shm>(SchemeConfig::Ssp { staleness: 2 }, 1, 3, Encoding::Bf16);
    job::<Shm>(SchemeConfig::Essp { staleness: 2 }, 1, 2, Encoding::F16);
}

#[test]
fn nor_does_the_transport() {
    for scheme in SCHEMES {
        job::<Tcp>(scheme, 2, 1, Encoding::F32);
    }
}

#[test]
fn a_copy_that_is_used_again_shows_what_was_published_since() {
    let scheme = SchemeConfig::Ssp { staleness: 3 };
    let (mut server, address) = server::<Shm>(scheme, 2, (0, 1));
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(server.drive(|server| server.status().left == 2, TIMEOUT).unwrap());
        });
        let mut workers: Vec<_> = (0..2)
            .map(|_| {
                let options = options(scheme, Encoding::F32);
                Worker::connect(Shm::new(), std::slice::from_ref(&address), options, TIMEOUT).unwrap()
            })
            .collect();
        // The other one stands still: one copy of version 0 has to do for four clocks, and no more than that.
        for clock in 0..=3 {
            let held = work(&mut workers[0], 0, scheme, clock % 2 == 1);
            assert_eq!(held, [clock, 0]);
            assert_eq!(workers[0].statistics().bytes_pulled, 4 * 2 * SHARE as u64, "one copy");
        }
        let error = workers[0].step(Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        work(&mut workers[1], 1, scheme, false);
        let held = work(&mut workers[0], 0, scheme, false);
        assert_eq!(held, [4, 1]);
        drop(workers);
        serving.join().unwrap();
    });
}

#[test]
fn after_coming_back_a_worker_shows_only_what_the_servers_have() {
    let scheme = SchemeConfig::Ssp { staleness: 5 };
    let (mut server, address) = server::<Shm>(scheme, 2, (0, 1));
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(server.drive(|server| server.status().joined == 2, TIMEOUT).unwrap());
            assert!(server.drive(|server| server.status().workers == 0, TIMEOUT).unwrap());
        });
        let address = std::slice::from_ref(&address);
        let mut worker =
            Worker::connect(Shm::new(), address, options(scheme, Encoding::F32), TIMEOUT).unwrap();
        // Nothing is applied before two workers have joined: what this one publishes first is void when it leaves.
        for clock in 0..2 {
            assert_eq!(work(&mut worker, 0, scheme, false), [clock, 0]);
        }
        let step = worker.step(TIMEOUT).unwrap();
        assert_eq!(counts(step.parameters().unwrap()), [2, 0], "its own, though nothing was applied");
        drop(step);
        worker.reconnect(address, TIMEOUT).unwrap();
        let other = Worker::connect(Shm::new(), address, WorkerOptions::new(scheme), TIMEOUT).unwrap();
        let mut step = worker.step(TIMEOUT).unwrap();
        assert_eq!(counts(step.parameters().unwrap()), [0, 0], "what was not applied is void");
        step.gradient().unwrap()[..SHARE].fill(1.0);
        step.publish(None, TIMEOUT).unwrap();
        let step = worker.step(TIMEOUT).unwrap();
        assert_eq!(counts(step.parameters().unwrap()), [1, 0]);
        drop(step);
        drop((worker, other));
        serving.join().unwrap();
    });
}

#[test]
fn a_step_that_cannot_be_and_reading_in_place_are_errors() {
    let scheme = SchemeConfig::Bsp;
    let (mut server, address) = server::<Shm>(scheme, 1, (0, 1));
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(server.drive(|server| server.status().joined == 3, TIMEOUT).unwrap());
            assert_eq!(server.status().version, Version::new(0));
        });
        let good = options(scheme, Encoding::F32);
        let bad = [
            WorkerOptions { own_step: Some(f32::NAN), ..good.clone() },
            WorkerOptions { read: ReadMode::InPlace, ..good.clone() },
        ];
        for bad in bad {
            let error =
                Worker::connect(Shm::new(), std::slice::from_ref(&address), bad, TIMEOUT).err().unwrap();
            assert!(matches!(error, Error::Option { option: "own_step", .. }), "{error}");
        }
        Worker::connect(Shm::new(), std::slice::from_ref(&address), good, TIMEOUT).unwrap();
        serving.join().unwrap();
    });
}
