//! Servers and workers that sleep, and what it takes to wake them.

use std::io::Write;
use std::time::{Duration, Instant};

use slackline::scheme::SchemeConfig;
use slackline::{ElementType, Idle, Server, ServerOptions, Table, Worker, WorkerOptions};

use crate::VerbsFixture;
use crate::transport::fixture::Fixture;

const PATIENCE: Duration = Duration::from_secs(60);
const ELEMENTS: usize = 16;
const ROUNDS: usize = 300;
/// Time between two gradients, in which who sleeps falls asleep.
const PAUSE: Duration = Duration::from_millis(5);

/// The times from the call that publishes a gradient until the worker has a version with it, in order of length.
fn rounds(server_idle: Idle, worker_idle: Idle) -> Vec<Duration> {
    let (transport, scheme) = (VerbsFixture::transport(), SchemeConfig::Bsp);
    let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
    let mut options = ServerOptions::new(scheme, 1, 0.1);
    options.memory.idle = server_idle;
    let mut server =
        Server::new(transport.clone(), &VerbsFixture::address(), table, &[0.0; ELEMENTS], options).unwrap();
    let address = server.address();
    let mut times = std::thread::scope(|scope| {
        let serving = scope.spawn(move || server.drive(|server| server.status().left == 1, 2 * PATIENCE));
        let options = WorkerOptions { idle: worker_idle, ..WorkerOptions::new(scheme) };
        let mut worker = Worker::connect(transport, &[address], options, PATIENCE).unwrap();
        let mut round = || {
            let mut step = worker.step(PATIENCE).unwrap();
            step.gradient().unwrap().fill(1e-6);
            std::thread::sleep(PAUSE);
            let begun = Instant::now();
            step.publish(None, PATIENCE).unwrap();
            worker.flush(PATIENCE).unwrap();
            begun.elapsed()
        };
        let times: Vec<Duration> = (0..ROUNDS).map(|_| round()).collect();
        drop(worker);
        assert!(serving.join().unwrap().unwrap(), "the server saw its worker leave");
        times
    });
    times.sort_unstable();
    times
}

#[test]
fn rounds_end_with_sleepers_and_what_waking_costs_is_measured_by_rdma() {
    for (server, worker) in [(Idle::Poll, Idle::Poll), (Idle::Sleep, Idle::Poll), (Idle::Sleep, Idle::Sleep)]
    {
        let times = rounds(server, worker);
        // For the table of `cargo xtask softroce`: libtest keeps what `println!` says of a test that passes.
        writeln!(
            std::io::stdout(),
            "\nMEASURED {ROUNDS} rounds with {ELEMENTS} parameters, {PAUSE:?} apart, server: {server:?}, worker: \
             {worker:?}: median {:.0} us, p99 {:.0} us",
            times[ROUNDS / 2].as_secs_f64() * 1e6,
            times[ROUNDS * 99 / 100].as_secs_f64() * 1e6,
        )
        .unwrap();
    }
}
