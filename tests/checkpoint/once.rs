//! A worker that went in the middle of its clock and joined again: what it had written is applied once or not at all.

use slackline::internals::mem::Access;
use slackline::internals::param::{GradientMetadata, GradientSource, PeerHello, PeerRole, Publish, Welcome};
use slackline::internals::transport::shm::ShmEndpoint;
use slackline::internals::transport::{Connecting, Endpoint, Offer, Received};
use slackline::{
    Address, Clock, Encoding, Server, ServerOptions, Shm, Transport, Version, Worker, scheme::SchemeConfig,
};

use super::job::{PATIENCE, table, wait_for, worker};

fn poll(server: &mut Server<Shm>) {
    server.poll(slackline::now()).unwrap();
}

/// Polls the server until `work`, in another thread, has ended.
fn meanwhile<R: Send>(server: &mut Server<Shm>, work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let working = scope.spawn(work);
        wait_for("the other thread", || {
            poll(server);
            working.is_finished().then_some(())
        });
        working.join().unwrap()
    })
}

fn server(scheme: SchemeConfig, workers: usize) -> Server<Shm> {
    let options = ServerOptions::new(scheme, workers, -1.0);
    Server::new(Shm::new(), &Address::random(), table(ELEMENTS), &[0.0; ELEMENTS], options).unwrap()
}

const ELEMENTS: usize = 512;

/// The gradient of this clock of the worker, which is `value` everywhere.
fn publish(worker: &mut Worker<Shm>, value: f32) -> Clock {
    let mut step = worker.step(PATIENCE).unwrap();
    let view = step.view();
    step.gradient().unwrap().fill(value);
    step.publish(None, PATIENCE).unwrap();
    view.clock
}

#[test]
fn a_waiting_gradient_is_dropped_with_its_worker_and_the_next_makes_it_anew() {
    let mut server = server(SchemeConfig::Bsp, 2);
    let address = server.address();
    let [mut left, mut stays] =
        meanwhile(&mut server, || [worker(&address, SchemeConfig::Bsp), worker(&address, SchemeConfig::Bsp)]);
    meanwhile(&mut server, || publish(&mut left, 1000.0));
    drop(left);
    wait_for("it to leave", || {
        poll(&mut server);
        (server.status().left == 1).then_some(())
    });
    let mut came_back = meanwhile(&mut server, || worker(&address, SchemeConfig::Bsp));
    assert_eq!(meanwhile(&mut server, || publish(&mut came_back, 10.0)), Clock::new(0));
    assert_eq!(meanwhile(&mut server, || publish(&mut stays, 100.0)), Clock::new(0));
    meanwhile(&mut server, || {
        came_back.flush(PATIENCE).unwrap();
        stays.flush(PATIENCE).unwrap();
    });
    assert_eq!((server.status().folded, server.status().version), (2, Version::new(1)));
    assert_eq!(server.parameters().unwrap(), [55.0; ELEMENTS]);
}

#[test]
fn a_gradient_applied_before_its_worker_left_is_not_counted_for_the_next() {
    for scheme in [SchemeConfig::Asp, SchemeConfig::Ssp { staleness: 1 }, SchemeConfig::Bsp] {
        let mut server = server(scheme, 1);
        let address = server.address();
        for round in 0..4 {
            // Leaves as soon as the server has the gradient, applied or not.
            let (clock, gone) = meanwhile(&mut server, || {
                let mut worker = worker(&address, scheme);
                (publish(&mut worker, 1.0), worker)
            });
            if round % 2 == 0 {
                wait_for("it to be applied", || {
                    poll(&mut server);
                    (server.status().smallest_clock > clock).then_some(())
                });
            }
            drop(gone);
            wait_for("it to leave", || {
                poll(&mut server);
                (server.status().left == round + 1).then_some(())
            });
            let status = server.status();
            assert_eq!(status.folded, status.smallest_clock.get(), "{scheme}: each clock once");
            assert_eq!(server.parameters().unwrap(), [status.folded as f32; ELEMENTS], "{scheme}");
        }
    }
}

/// A worker by hand, which can stop anywhere.
fn join(address: &Address, scheme: SchemeConfig) -> (ShmEndpoint, Welcome, Received) {
    let role =
        PeerRole::Worker { encoding: Encoding::F32, scheme: scheme.to_string(), identity: 0, session: 0 };
    let message = PeerHello::from(role.clone()).encode();
    let mut connecting = Shm::new().connect(address, Offer { message, grants: Vec::new() }).unwrap();
    let (endpoint, received) = wait_for("an answer", || match connecting.poll(slackline::now()) {
        std::task::Poll::Ready(answer) => Some(answer.unwrap()),
        std::task::Poll::Pending => None,
    });
    let welcome = Welcome::decode(&received.message, &role, &received.grants).unwrap();
    (endpoint, welcome, received)
}

#[test]
fn a_slot_written_and_never_announced_does_not_reach_the_next_worker() {
    let mut server = server(SchemeConfig::Asp, 1);
    let address = server.address();
    let (endpoint, welcome, received) = meanwhile(&mut server, || join(&address, SchemeConfig::Asp));
    let shm = Shm::new();
    let gradient = shm.allocate(ELEMENTS * 4, Access::LOCAL).unwrap();
    gradient.as_volatile().write(&[0x7F; ELEMENTS * 4]);
    // Everything but the announcement: computed in the slot, and its header written by hand.
    let slot = endpoint.map(&received.grants[3].slice(0, ELEMENTS as u64 * 4).unwrap()).unwrap();
    slot.as_volatile().write(&[0x7F; ELEMENTS * 4]);
    let page = endpoint.map(&received.grants[2]).unwrap();
    for (word, value) in [0, 0, welcome.epoch, ELEMENTS as u64 * 4].into_iter().enumerate() {
        page.as_volatile().store_u64(3 * 64 + word * 8, value);
    }
    poll(&mut server);
    drop((slot, page, endpoint));
    wait_for("it to leave", || {
        poll(&mut server);
        (server.status().left == 1).then_some(())
    });
    // The next worker at this index announces its first gradient: its own slot is fresh memory.
    let (mut endpoint, next, received) = meanwhile(&mut server, || join(&address, SchemeConfig::Asp));
    assert_eq!((next.peer, next.clock), (welcome.peer, Clock::new(0)));
    assert_ne!(next.generation, welcome.generation);
    let slot = endpoint.map(&received.grants[3].slice(0, 4).unwrap()).unwrap();
    let mut first = [1; 4];
    slot.as_volatile().read(&mut first);
    assert_eq!(first, [0; 4]);
    gradient.as_volatile().write(&[0; ELEMENTS * 4]);
    let scratch = shm.allocate(Publish::SCRATCH_BYTES, Access::LOCAL).unwrap().whole();
    let mut publish = Publish::new(&next, &received.grants, scratch).unwrap().unwrap();
    publish
        .start(GradientSource::Memory(gradient.whole()), Version::new(0), GradientMetadata::default())
        .unwrap();
    wait_for("the gradient", || {
        publish.advance(&mut endpoint).unwrap();
        while let Some(completion) = endpoint.poll() {
            publish.complete(completion);
        }
        poll(&mut server);
        (server.status().folded == 1).then_some(())
    });
    assert_eq!(server.parameters().unwrap(), [0.0; ELEMENTS]);
}

#[test]
fn a_gradient_voided_with_its_worker_is_counted_and_a_flushed_one_is_not() {
    for (scheme, workers, expected) in [(SchemeConfig::Bsp, 2, (1, 0)), (SchemeConfig::Asp, 1, (0, 1))] {
        let mut server = server(scheme, workers);
        let address = server.address();
        let mut joined: Vec<_> =
            (0..workers).map(|_| meanwhile(&mut server, || worker(&address, scheme))).collect();
        let mut left = joined.remove(0);
        meanwhile(&mut server, || publish(&mut left, 1.0));
        if workers == 1 {
            meanwhile(&mut server, || left.flush(PATIENCE).unwrap());
        }
        drop(left);
        wait_for("it to leave", || {
            poll(&mut server);
            (server.status().left == 1).then_some(())
        });
        let status = server.status();
        assert_eq!((status.voided, status.folded, status.dropped), (expected.0, expected.1, 0), "{scheme}");
    }
}
