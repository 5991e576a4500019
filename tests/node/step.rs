//! Steps of a worker: what they lend, what they cost, and what dropping one does.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Duration;

use slackline::weights::{Publisher, PublisherOptions};
use slackline::{
    Address, ElementType, Error, Server, ServerOptions, Shm, Step, Table, Worker, WorkerOptions,
    scheme::SchemeConfig,
};

use crate::only_worker::{self, ELEMENTS, TIMEOUT};

fn with_worker(scheme: SchemeConfig, work: impl FnOnce(&mut Worker<Shm>)) -> Vec<f32> {
    only_worker::with_worker(Shm::new(), &Address::random(), scheme, work)
}

fn publish(mut step: Step<'_, Shm>) -> Result<(), Error> {
    let (parameters, gradient) = step.borrow()?;
    gradient.copy_from_slice(parameters);
    step.publish(None, TIMEOUT)
}

#[test]
fn a_step_lends_the_memory_that_was_pulled_into_and_is_published_from() {
    let parameters = with_worker(SchemeConfig::Bsp, |worker| {
        let mut first = None;
        for clock in 0..20 {
            let mut step = worker.step(TIMEOUT).unwrap();
            let (parameters, gradient) = step.borrow().unwrap();
            assert!(parameters.iter().all(|value| *value == 0.5f32.powi(clock)));
            let at = (parameters.as_ptr(), gradient.as_ptr());
            assert_eq!(*first.get_or_insert(at), at, "the same memory in every step");
            let alone = (step.parameters().unwrap().as_ptr(), step.gradient().unwrap().as_ptr());
            assert_eq!(alone, at);
            publish(step).unwrap();
        }
    });
    assert_eq!(parameters, [0.5f32.powi(20); ELEMENTS]);
}

#[test]
fn the_most_peers_that_an_owner_may_have_room_for_are_served() {
    let (scheme, table) = (SchemeConfig::Bsp, || Table::flat(64, ElementType::F32).unwrap());
    let mut options = PublisherOptions::default();
    options.memory.peers = 65_535;
    let mut publisher = Publisher::new(Shm::new(), &Address::random(), table(), options).unwrap();
    publisher.publish(&[0; 256], TIMEOUT).unwrap();
    assert!(publisher.readers().is_empty());

    let mut options = ServerOptions::new(scheme, 1, 0.5);
    options.memory.peers = 65_535;
    let mut server = Server::new(Shm::new(), &Address::random(), table(), &[1.0; 64], options).unwrap();
    let addresses = [server.address()];
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || server.drive(|server| server.status().left == 1, TIMEOUT).unwrap());
        let options = WorkerOptions::new(scheme);
        let mut worker = Worker::connect(Shm::new(), &addresses, options, TIMEOUT).unwrap();
        (0..2).for_each(|_| publish(worker.step(TIMEOUT).unwrap()).unwrap());
        worker.flush(TIMEOUT).unwrap();
        drop(worker);
        assert!(serving.join().unwrap());
    });
}

#[test]
fn a_flush_waits_for_a_gradient_that_had_no_time_to_be_announced() {
    const MANY: usize = 1 << 16;
    let table = Table::flat(MANY as u64, ElementType::F32).unwrap();
    let mut options = ServerOptions::new(SchemeConfig::Asp, 1, 0.5);
    options.memory.chunk_bytes = 64;
    let mut server = Server::new(Shm::new(), &Address::random(), table, &[0.0; MANY], options).unwrap();
    let (addresses, stepped) = ([server.address()], &AtomicBool::new(false));
    // While the server rests, and is driven no more.
    let ((rest, rests), (end_rest, rest_ends)) = (channel::<()>(), channel::<()>());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let options = WorkerOptions::new(SchemeConfig::Asp);
            let mut worker = Worker::connect(Shm::new(), &addresses, options, TIMEOUT).unwrap();
            let mut step = worker.step(TIMEOUT).unwrap();
            step.gradient().unwrap().fill(1.0);
            stepped.store(true, Relaxed);
            rests.recv().unwrap();
            let begun = step.publish(None, Duration::ZERO);
            assert!(matches!(begun, Err(Error::Deadline { .. })), "{begun:?}");
            let flushed = worker.flush(Duration::from_millis(100));
            assert!(
                matches!(flushed, Err(Error::Deadline { .. })),
                "the server has folded nothing: {flushed:?}"
            );
            drop(end_rest);
            worker.flush(TIMEOUT).unwrap();
        });
        assert!(server.drive(|_| stepped.load(Relaxed), TIMEOUT).unwrap());
        rest.send(()).unwrap();
        assert!(rest_ends.recv().is_err());
        assert!(server.drive(|server| server.status().left == 1, TIMEOUT).unwrap());
    });
    assert_eq!(server.parameters().unwrap(), [-0.5; MANY]);
}

#[test]
fn a_step_allocates_nothing() {
    with_worker(SchemeConfig::Bsp, |worker| {
        let mut step = || {
            publish(worker.step(TIMEOUT).unwrap()).unwrap();
        };
        // The memory for gradients is allocated when it is first used.
        (0..10).for_each(|_| step());
        let allocated = allocation_counter::measure(|| (0..100).for_each(|_| step()));
        assert_eq!(allocated.count_total, 0, "{allocated:?}");
    });
}

/// All schemes that have servers, so that the newest version may depend on the only worker's next gradient.
const SCHEMES: [&str; 9] =
    ["bsp", "asp", "ssp(2)", "essp(2)", "bap(2)", "vap(1000)", "dbw", "abs", "delay(1)"];

#[test]
fn a_dropped_step_is_begun_again_at_once_under_every_scheme() {
    for name in SCHEMES {
        let scheme: SchemeConfig = name.parse().unwrap();
        let parameters = with_worker(scheme, |worker| {
            for clock in 0..4 {
                let mut dropped = worker.step(TIMEOUT).unwrap();
                dropped.gradient().unwrap().fill(1000.0);
                let view = dropped.view();
                drop(dropped);
                let again = worker.step(TIMEOUT).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!((again.view().clock.get(), again.view().version), (clock, view.version), "{name}");
                publish(again).unwrap();
            }
            assert_eq!((worker.statistics().abandoned, worker.clock().get()), (4, 4), "{name}");
        });
        assert!(parameters.iter().all(|value| value.abs() <= 1.0), "{name}: {} was folded", parameters[0]);
    }
}

#[test]
fn a_step_that_is_suspended_is_resumed_as_it_was_and_no_other_can_be() {
    with_worker(SchemeConfig::Asp, |worker| {
        assert!(matches!(worker.resume(), Err(Error::OutOfTurn { .. })));
        let mut step = worker.step(TIMEOUT).unwrap();
        step.gradient().unwrap().fill(0.25);
        let view = step.suspend();
        let mut step = worker.resume().unwrap();
        assert_eq!((step.view(), step.gradient().unwrap()[0]), (view, 0.25));
        step.publish(None, TIMEOUT).unwrap();
        assert!(matches!(worker.resume(), Err(Error::OutOfTurn { .. })));
        assert_eq!(worker.statistics().abandoned, 0);
    });
}
