//! BAP's workers compute while parameters and gradients travel: they wait for nothing within their bound, and keep it.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::Duration;

use slackline::internals::trace::{TraceChecker, TraceRecord};
use slackline::scheme::SchemeConfig;
use slackline::weights::{Certificate, Publication};
use slackline::{
    Address, ElementType, Error, Server, ServerOptions, Shm, Table, Tcp, Transport, Version, VersionTag,
    View, Worker, WorkerOptions,
};

use super::job::PATIENCE;
use super::proxy::{Fault, Proxy};

/// Clocks that a worker may run ahead of its copy.
const STALENESS: u64 = 2;

const SCHEME: SchemeConfig = SchemeConfig::Bap { staleness: STALENESS };

/// More than the proxy lets through at once.
const ELEMENTS: usize = 64 << 10;

/// Serves a table of zeros to so many workers while `body` runs, and gives what the parameters are in the end. Each
/// update takes the mean gradient off.
fn serve<T: Transport + Send>(
    transport: T,
    at: &Address,
    workers: usize,
    body: impl FnOnce(&Address),
) -> Vec<f32>
where
    Server<T>: Send,
{
    let mut options = ServerOptions::new(SCHEME, workers, 1.0);
    // A worker whose network stands still is not lost.
    options.memory.lease = 2 * PATIENCE;
    let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
    let mut server = Server::new(transport, at, table, &[0.0; ELEMENTS], options).unwrap();
    let address = server.address();
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(server.drive(|server| server.status().left == workers as u64, 2 * PATIENCE).unwrap());
            server.parameters().unwrap()
        });
        body(&address);
        serving.join().unwrap()
    })
}

/// Begins a step within `timeout`, fills its gradient with ones, and publishes it in the background.
fn advance<T: Transport>(worker: &mut Worker<T>, timeout: Duration) -> Result<View, Error> {
    let mut step = worker.step(timeout)?;
    let view = step.view();
    step.gradient()?.fill(1.0);
    step.publish_in_background(None, timeout)?;
    Ok(view)
}

#[test]
fn within_its_bound_a_worker_waits_for_no_network_that_stands_still() {
    let any_port = "127.0.0.1:0".parse().unwrap();
    let parameters = serve(Tcp::new(), &any_port, 1, |address| {
        let proxy = Proxy::new(address, 1);
        let mut worker =
            Worker::connect(Tcp::new(), &[proxy.address()], WorkerOptions::new(SCHEME), PATIENCE).unwrap();
        advance(&mut worker, PATIENCE).unwrap();
        worker.flush(PATIENCE).unwrap();
        proxy.set(Fault::Stall);
        // With a timeout of zero, what waits at all fails: neither a newer copy nor the way of the gradient is waited
        // for.
        assert_eq!(advance(&mut worker, Duration::ZERO).unwrap().clock.get(), 1);
        assert!(worker.is_publishing(), "the network stands still");
        let step = worker.step(Duration::ZERO).unwrap();
        assert_eq!(step.view().clock.get(), 2);
        // One gradient at a time is on its way.
        let waited = step.publish_in_background(None, Duration::ZERO);
        assert!(matches!(waited, Err(Error::Deadline { .. })), "{waited:?}");
        // Nor does a publish that waits send its own before that: it is abandoned, and the clock begins again.
        let step = worker.step(Duration::ZERO).unwrap();
        assert_eq!(step.view().clock.get(), 2);
        let waited = step.publish(None, Duration::ZERO).unwrap_err();
        let of_before = "publishing the gradient of the step before";
        assert!(matches!(waited, Error::Deadline { operation, .. } if operation == of_before), "{waited}");
        proxy.set(Fault::None);
        for clock in 2..6 {
            assert_eq!(advance(&mut worker, PATIENCE).unwrap().clock.get(), clock);
        }
        worker.flush(PATIENCE).unwrap();
        assert!(!worker.is_publishing());
        let statistics = worker.statistics();
        assert_eq!(
            (statistics.clocks, statistics.bytes_pulled),
            (6, 0),
            "it found its copies in its own memory"
        );
    });
    assert_eq!(parameters, [-6.0; ELEMENTS]);
}

/// Names a table whose elements are all equal by their value, and any other as no such table has it.
fn digest(parameters: &[f32]) -> [u8; 32] {
    let mut digest = [0xff; 32];
    if parameters.iter().all(|element| *element == parameters[0]) {
        digest[..4].copy_from_slice(&parameters[0].to_le_bytes());
    }
    digest
}

fn digests(table: &Table, parameters: &[f32]) -> BTreeMap<String, [u8; 32]> {
    BTreeMap::from([(table.tensors()[0].name().to_owned(), digest(parameters))])
}

/// The record of what a worker computes on: at clock `c`, version `c - STALENESS` or a later one, which is at most so
/// many versions behind the newest.
fn certificate(worker: u64, view: &View, table: &Table, parameters: &[f32]) -> Certificate {
    let least = view.clock.get().saturating_sub(STALENESS);
    Certificate {
        reader: worker,
        sequence: view.clock.get(),
        max_staleness: Some(STALENESS),
        at_least: Some(Version::new(least)),
        exactly: None,
        began_ns: view.clock.get(),
        ended_ns: view.clock.get(),
        epoch: 1,
        origin: 0,
        version: view.version,
        newest: Version::new(view.version.get() + view.behind),
        tag: VersionTag::default(),
        published_ns: 0,
        digests: digests(table, parameters),
    }
}

/// Trains two workers, each of which connects where it is told, and has the trace checker judge what they computed on:
/// whole versions within the bound.
fn two_workers<T: Transport>(transport: impl Fn() -> T + Sync, at: [&Address; 2], clocks: u64) {
    let (mut checker, met) = (TraceChecker::new(Duration::ZERO), Barrier::new(2));
    let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
    for version in 0..=clocks {
        let publication = Publication {
            origin: 0,
            version: Version::new(version),
            tag: VersionTag::default(),
            published_ns: 0,
            complete_ns: 0,
            // What the arithmetic of ones says.
            digests: digests(&table, &[0.0 - version as f32]),
        };
        checker.add(TraceRecord::Publication(publication), (2, version));
    }
    let traces: Vec<Vec<Certificate>> = std::thread::scope(|scope| {
        let work = |(index, at): (u64, &Address)| {
            let options = WorkerOptions::new(SCHEME);
            let mut worker =
                Worker::connect(transport(), std::slice::from_ref(at), options, PATIENCE).unwrap();
            let mut trace = Vec::new();
            for _ in 0..clocks {
                let mut step = worker.step(PATIENCE).unwrap();
                trace.push(certificate(index, &step.view(), &table, step.parameters().unwrap()));
                step.gradient().unwrap().fill(1.0);
                assert!(!step.should_stop().unwrap());
                step.publish_in_background(None, PATIENCE).unwrap();
            }
            worker.flush(PATIENCE).unwrap();
            // Versions are means of both.
            met.wait();
            trace
        };
        let working: Vec<_> = (0..).zip(at).map(|one| scope.spawn(move || work(one))).collect();
        working.into_iter().map(|work| work.join().unwrap()).collect()
    });
    for certificate in traces.into_iter().flatten() {
        let at = (certificate.reader, certificate.sequence);
        checker.add(TraceRecord::Certificate(certificate), at);
    }
    let verdict = checker.finish();
    assert_eq!(verdict.violations, []);
    assert_eq!((verdict.reads, verdict.verified), (2 * clocks, 2 * clocks));
}

#[test]
fn over_shared_memory_copies_are_whole_and_within_the_bound() {
    let parameters =
        serve(Shm::new(), &Address::random(), 2, |address| two_workers(Shm::new, [address, address], 200));
    assert_eq!(parameters, [-200.0; ELEMENTS]);
}

#[test]
fn on_a_slow_link_copies_are_whole_and_within_the_bound() {
    let any_port = "127.0.0.1:0".parse().unwrap();
    let parameters = serve(Tcp::new(), &any_port, 2, |address| {
        let proxy = Proxy::new(address, 1);
        proxy.set(Fault::Trickle(8 << 10));
        two_workers(Tcp::new, [address, &proxy.address()], 20);
    });
    assert_eq!(parameters, [-20.0; ELEMENTS]);
}
