//! Workers that die, stall, or are only slow.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use slackline::internals::mem::Access;
use slackline::internals::param::{GradientMetadata, GradientSource, Publish};
use slackline::internals::transport::Endpoint;
use slackline::optim::Optimizer;
use slackline::{Address, Server, ServerOptions, Shm, Transport, Version, scheme::SchemeConfig};

use super::at_once::at_once;
use super::raw::{Raw, worker_role};
use super::second::{
    EVICTED, LONG_LEASE, NOTICE, PATIENCE, SCHEMES, Second, drive, retry, scheme, server, told, train,
    train_until_it_fails, wait_for, worker,
};

/// Longer than a busy machine keeps a heartbeat from its turn.
const LEASE: Duration = Duration::from_millis(1500);

/// Two workers in threads that train until they are told to stop, and count their clocks.
struct Survivors {
    clocks: [AtomicU64; 2],
    stop: AtomicBool,
}

impl Survivors {
    fn new() -> Survivors {
        Survivors { clocks: [AtomicU64::new(0), AtomicU64::new(0)], stop: AtomicBool::new(false) }
    }

    fn train(&self, which: usize, address: &Address, scheme: SchemeConfig) {
        let mut worker = worker(address, scheme);
        while !self.stop.load(SeqCst) {
            train(&mut worker, 1.0).unwrap();
            self.clocks[which].fetch_add(1, SeqCst);
        }
    }

    /// Drives the server until both have made 30 clocks more.
    fn go_on(&self, server: &mut Server<Shm>) {
        let before = self.clocks.each_ref().map(|clock| clock.load(SeqCst));
        drive(server, "the survivors to go on", |_| {
            self.clocks.iter().zip(before).all(|(clock, before)| clock.load(SeqCst) >= before + 30)
        });
    }
}

/// Trains two workers in threads and one in a process under `name`; `then` is what happens to the process.
fn three_workers(
    claim: impl Fn(),
    name: &str,
    lease: Duration,
    then: impl FnOnce(&mut Second, &mut Server<Shm>, &Survivors),
) {
    let scheme = scheme(name);
    let mut options = ServerOptions::new(scheme, 3, 0.001);
    options.memory.lease = lease;
    let mut server = server(1000, options);
    let address = server.address();
    let mut victim = Second::start(claim, &[address.to_string(), name.to_owned()]);
    let survivors = Survivors::new();
    std::thread::scope(|scope| {
        for which in 0..2 {
            let (survivors, address) = (&survivors, &address);
            scope.spawn(move || survivors.train(which, address, scheme));
        }
        drive(&mut server, "all to train", |server| {
            server.status().joined == 3 && server.status().version >= Version::new(30)
        });
        then(&mut victim, &mut server, &survivors);
        survivors.stop.store(true, SeqCst);
        drive(&mut server, "all to end", |server| server.status().left == 3);
    });
}

#[test]
fn a_killed_worker_is_noticed_and_the_others_go_on_under_every_scheme() {
    if let Some(words) = told() {
        train_until_it_fails(&words);
    }
    for name in SCHEMES {
        let claim = a_killed_worker_is_noticed_and_the_others_go_on_under_every_scheme;
        three_workers(claim, name, LONG_LEASE, |victim, server, survivors| {
            victim.kill();
            let noticed = server.drive(|server| server.status().left == 1, NOTICE).unwrap();
            assert!(noticed, "{name}: its death is not noticed");
            survivors.go_on(server);
        });
    }
}

#[test]
fn a_stopped_worker_is_evicted_after_its_lease_and_told_when_it_continues() {
    if let Some(words) = told() {
        train_until_it_fails(&words);
    }
    at_once(SCHEMES, |name| {
        let claim = a_stopped_worker_is_evicted_after_its_lease_and_told_when_it_continues;
        three_workers(claim, name, LEASE, |victim, server, survivors| {
            assert_eq!(server.status().left, 0, "no live worker is evicted");
            victim.signal(Signal::STOP);
            drive(server, "the eviction", |server| server.status().left == 1);
            survivors.go_on(server);
            victim.signal(Signal::CONT);
            let ended = Cell::new(None);
            let victim = std::cell::RefCell::new(victim);
            drive(server, "the evicted worker to end", |_| {
                ended.set(victim.borrow_mut().ended());
                ended.get().is_some()
            });
            assert_eq!(ended.get().and_then(|status| status.code()), Some(EVICTED), "{name}");
        });
    });
}

#[test]
fn a_worker_that_computes_for_longer_than_the_lease_is_not_evicted() {
    let mut options = ServerOptions::new(SchemeConfig::Bsp, 1, 1.0);
    options.memory.lease = LEASE;
    let mut server = server(10, options);
    let address = server.address();
    std::thread::scope(|scope| {
        let computing = scope.spawn(move || {
            let mut worker = worker(&address, SchemeConfig::Bsp);
            for _ in 0..2 {
                let mut step = worker.step(NOTICE).unwrap();
                std::thread::sleep(2 * LEASE);
                step.gradient().unwrap().fill(1.0);
                step.publish(None, NOTICE).unwrap();
            }
            worker.flush(NOTICE).unwrap();
        });
        drive(&mut server, "two clocks", |server| server.status().version == Version::new(2));
        assert_eq!(server.status().left, 0);
        drive(&mut server, "the end", |server| server.status().left == 1);
        computing.join().unwrap();
    });
}

const ELEMENTS: usize = 16 << 10;

fn momentum() -> ServerOptions {
    let optimizer = Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 };
    let mut options = ServerOptions { optimizer, ..ServerOptions::new(SchemeConfig::Bsp, 2, 0.1) };
    options.memory.chunk_bytes = 1024;
    options
}

/// Joins, lets a part of a gradient land, waits until the server has begun to fold it, and kills its own process.
fn die_in_the_middle_of_a_publish(address: &Address) -> ! {
    let mut raw = retry_join(address);
    let shm = Shm::new();
    let gradient = shm.allocate(ELEMENTS * 4, Access::LOCAL).unwrap();
    gradient.as_volatile().write(&[0x7F; ELEMENTS * 4]);
    let scratch = shm.allocate(Publish::SCRATCH_BYTES, Access::LOCAL).unwrap().whole();
    let mut publish = Publish::new(&raw.welcome, &raw.received.grants, scratch).unwrap().unwrap();
    publish
        .start(GradientSource::Memory(gradient.whole()), Version::new(0), GradientMetadata::default())
        .unwrap();
    // A slot, then three batches of eight chunks out of 64.
    for _ in 0..5 {
        assert!(publish.advance(&mut raw.endpoint).unwrap());
        while let Some(completion) = raw.endpoint.poll() {
            publish.complete(completion);
        }
    }
    wait_for("the server to fold what has landed", || (raw.chunks_folded() >= 16).then_some(()));
    assert!(publish.is_active(), "nothing is announced");
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("killed");
}

fn retry_join(address: &Address) -> Raw {
    Raw::join(address, worker_role(SchemeConfig::Bsp), || {})
}

#[test]
fn nothing_shows_of_a_gradient_whose_worker_died_before_it_was_announced() {
    if let Some(words) = told() {
        die_in_the_middle_of_a_publish(&words[0].parse().unwrap());
    }
    for threads in [1, 2] {
        let mut server = server(ELEMENTS, ServerOptions { threads, ..momentum() });
        let address = server.address();
        let claim = nothing_shows_of_a_gradient_whose_worker_died_before_it_was_announced;
        let mut victim = Second::start(claim, &[address.to_string()]);
        let gradient = |clock: u64, index: usize| (index as f32 * 0.01).sin() + clock as f32;
        std::thread::scope(|scope| {
            let surviving = scope.spawn(|| {
                let mut worker = retry(|| {
                    let options = slackline::WorkerOptions::new(SchemeConfig::Bsp);
                    slackline::Worker::connect(Shm::new(), std::slice::from_ref(&address), options, NOTICE)
                });
                for clock in 0..5 {
                    let mut step = worker.step(super::second::PATIENCE).unwrap();
                    for (index, value) in step.gradient().unwrap().iter_mut().enumerate() {
                        *value = gradient(clock, index);
                    }
                    step.publish(None, NOTICE).unwrap();
                }
                worker.flush(super::second::PATIENCE).unwrap();
            });
            drive(&mut server, "five versions", |server| server.status().left == 2);
            surviving.join().unwrap();
        });
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(victim.wait().signal(), Some(9), "it saw its chunks folded before it died");
        assert_eq!((server.status().version, server.status().folded), (Version::new(5), 5));

        let (mut parameters, mut momenta) = (vec![0.0f32; ELEMENTS], vec![0.0f32; ELEMENTS]);
        for clock in 0..5 {
            for (index, (p, m)) in parameters.iter_mut().zip(&mut momenta).enumerate() {
                *m = 0.9 * *m + gradient(clock, index);
                *p -= 0.1 * *m;
            }
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert!(bits(&server.parameters().unwrap()) == bits(&parameters), "with {threads} threads");
    }
}

#[test]
fn a_server_counts_how_many_versions_each_gradient_is_behind() {
    let scheme = SchemeConfig::Asp;
    let mut server = server(100, ServerOptions::new(scheme, 2, 0.001));
    let address = server.address();
    let (has_begun, may_end) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut slow = worker(&address, scheme);
            let mut step = slow.step(PATIENCE).unwrap();
            step.gradient().unwrap().fill(1.0);
            has_begun.store(true, SeqCst);
            wait_for("the fast one to end", || may_end.load(SeqCst).then_some(()));
            step.publish(None, PATIENCE).unwrap();
            slow.flush(PATIENCE).unwrap();
        });
        drive(&mut server, "the slow one to begin", |_| has_begun.load(SeqCst));
        let fast = scope.spawn(|| {
            let mut fast = worker(&address, scheme);
            let behind = (0..3).map(|before| {
                let mut step = fast.step(PATIENCE).unwrap();
                let computed_on = step.view().version.get();
                step.gradient().unwrap().fill(1.0);
                step.publish(None, PATIENCE).unwrap();
                before - computed_on
            });
            let behind: Vec<u64> = behind.collect();
            fast.flush(PATIENCE).unwrap();
            behind
        });
        drive(&mut server, "the fast one to end", |server| server.status().left == 1);
        // Version n + 1 has the gradient that is the fast one's n-th, from 0, and version 4 has the slow one's.
        let behind = fast.join().unwrap();
        may_end.store(true, SeqCst);
        drive(&mut server, "the slow one to end", |server| server.status().left == 2);
        let expected =
            (4, behind.iter().sum::<u64>() + 3, behind.iter().filter(|behind| **behind == 0).count());
        let status = server.status();
        assert_eq!((status.folded, status.versions_behind, status.fresh as usize), expected, "{behind:?}");
    });
}
