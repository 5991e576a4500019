//! Slots: none is written before it was consumed, whichever workers come and go.

use std::time::{Duration, Instant};

use slackline::internals::mem::{Access, MemoryRegion};
use slackline::internals::param::{GradientMetadata, GradientSource, PeerRole, Publish, PublishError};
use slackline::internals::transport::Endpoint;
use slackline::weights::{Reader, ReaderOptions};
use slackline::{
    Clock, Encoding, Error, Eviction, Server, ServerOptions, Shm, Transport, Version, Worker, WorkerOptions,
    scheme::{Bound, SchemeConfig},
};

use super::raw::{Raw, worker_role};
use super::second::{PATIENCE, drive, server, train};

#[test]
fn a_third_gradient_waits_for_a_slot_and_overwrites_nothing() {
    let mut server = server(4, ServerOptions::new(SchemeConfig::Asp, 1, -1.0));
    let address = server.address();
    let mut worker = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            Worker::connect(Shm::new(), &[address], WorkerOptions::new(SchemeConfig::Asp), PATIENCE).unwrap()
        });
        drive(&mut server, "the worker", |server| server.status().joined == 1);
        connecting.join().unwrap()
    });
    // From here on the server does nothing for a while.
    for value in [1.0, 2.0] {
        let mut step = worker.step(PATIENCE).unwrap();
        step.gradient().unwrap().fill(value);
        step.publish(None, PATIENCE).unwrap();
    }
    let timeout = Duration::from_millis(300);
    let mut step = worker.step(PATIENCE).unwrap();
    step.gradient().unwrap().fill(4.0);
    let begun = Instant::now();
    let error = step.publish(None, timeout).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    // On a machine however busy: it does not wait for the server.
    assert!(begun.elapsed() < timeout + Duration::from_secs(30));
    // The third lands once there is room, and all three count once.
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| {
            worker.step(PATIENCE).unwrap().suspend();
            worker.flush(PATIENCE).unwrap();
            drop(worker);
        });
        drive(&mut server, "the end", |server| server.status().left == 1);
        ending.join().unwrap();
    });
    assert_eq!(server.status().folded, 3);
    assert_eq!(server.parameters().unwrap(), [7.0; 4]);
}

/// The fold waits, and no other peer gets the indices of its workers, until a pin is let go.
#[test]
fn a_waiting_fold_outlives_its_worker_and_leaves_the_next_one_its_credits() {
    let mut options = ServerOptions::new(SchemeConfig::Asp, 1, -1.0);
    options.memory.frames = 2;
    let mut server = server(4, options);
    let address = server.address();
    std::thread::scope(|scope| {
        let (step, steps) = std::sync::mpsc::channel::<()>();
        let at = address.clone();
        let training = scope.spawn(move || {
            let options = WorkerOptions { identity: Some(7), ..WorkerOptions::new(SchemeConfig::Asp) };
            let mut worker = Worker::connect(Shm::new(), &[at], options, PATIENCE).unwrap();
            for _ in 0..3 {
                train(&mut worker, 1.0).unwrap();
                steps.recv_timeout(PATIENCE).unwrap();
            }
        });
        drive(&mut server, "version 1", |server| server.status().version == Version::new(1));
        let connecting = scope
            .spawn(|| Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE).unwrap());
        drive(&mut server, "a reader", |server| server.status().readers == 1);
        let mut reader = connecting.join().unwrap();
        let pinned = reader.pin(Bound::version(Version::new(1)), PATIENCE).unwrap();
        step.send(()).unwrap();
        drive(&mut server, "version 2", |server| server.status().version == Version::new(2));
        step.send(()).unwrap();
        // The third is announced, and has no frame to go to. Its worker leaves, and another one joins.
        for _ in 0..100 {
            poll(&mut server);
            std::thread::sleep(Duration::from_millis(1));
        }
        step.send(()).unwrap();
        training.join().unwrap();
        drive(&mut server, "the worker to leave", |server| server.status().left == 1);
        let next = Raw::join(&address, worker_role(SchemeConfig::Asp), || {
            poll(&mut server);
        });
        // Another index, for the fold still reads the inbox of this one.
        assert_eq!((next.welcome.peer, server.status().version), (2, Version::new(2)));
        assert_eq!(next.welcome.clock, Clock::new(2), "it is another worker");
        let role =
            PeerRole::Worker { encoding: Encoding::F32, scheme: "asp".into(), identity: 7, session: 0 };
        let again = Raw::join(&address, role, || {
            poll(&mut server);
        });
        assert_eq!(again.welcome.clock, Clock::new(3), "its gradient of clock 2 is taken");
        drop(pinned);
        drive(&mut server, "version 3", |server| server.status().version == Version::new(3));
        assert_eq!(server.parameters().unwrap(), [3.0; 4]);
        assert_eq!(
            next.consumed(),
            next.welcome.clock.get(),
            "it has published nothing that could be consumed"
        );
    });
}

/// A worker by hand that publishes as a real one does, and has no heart.
struct Zombie {
    raw: Raw,
    publish: Publish,
    gradient: MemoryRegion,
}

impl Zombie {
    fn join(server: &mut Server<Shm>) -> Zombie {
        let address = server.address();
        let raw = Raw::join(&address, worker_role(SchemeConfig::Asp), || poll(server));
        let region = |bytes| Shm::new().allocate(bytes, Access::LOCAL).unwrap();
        let scratch = region(Publish::SCRATCH_BYTES).whole();
        let publish = Publish::new(&raw.welcome, &raw.received.grants, scratch).unwrap().unwrap();
        Zombie { raw, publish, gradient: region(16) }
    }

    /// Begins to publish its next gradient, which is `value` everywhere.
    fn start(&mut self, value: f32) {
        self.gradient.as_volatile().write(&[value.to_le_bytes(); 4].concat());
        self.publish
            .start(
                GradientSource::Memory(self.gradient.whole()),
                Version::new(0),
                GradientMetadata::default(),
            )
            .unwrap();
    }

    /// Goes on for a while. True once the gradient is announced.
    fn go_on(&mut self) -> Result<bool, PublishError> {
        for _ in 0..100 {
            self.publish.advance(&mut self.raw.endpoint)?;
            while let Some(completion) = self.raw.endpoint.poll() {
                self.publish.complete(completion);
            }
        }
        Ok(self.publish.take())
    }
}

fn poll(server: &mut Server<Shm>) {
    server.poll(slackline::now()).unwrap();
}

/// A server with two frames, of which a reader holds one: the third gradient of the zombie is bound and cannot be
/// folded, the fourth fills the other slot, the fifth waits. Then the zombie is evicted. `after` gets all of it.
fn with_a_zombie(after: impl FnOnce(&mut Server<Shm>, Zombie, &mut dyn FnMut(&mut Server<Shm>))) {
    let mut options = ServerOptions::new(SchemeConfig::Asp, 1, -1.0);
    options.memory.frames = 2;
    // The zombie has no heart: it has the time of a handshake, too, until it beats once.
    options.memory.lease = Duration::from_secs(2);
    let mut server = server(4, options);
    let address = server.address();
    std::thread::scope(|scope| {
        let mut zombie = Zombie::join(&mut server);
        zombie.start(1.0);
        assert_eq!(zombie.go_on(), Ok(true));
        drive(&mut server, "version 1", |server| server.status().version == Version::new(1));
        let connecting = scope
            .spawn(|| Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE).unwrap());
        drive(&mut server, "a reader", |server| server.status().readers == 1);
        let mut reader = connecting.join().unwrap();
        let mut pinned = Some(reader.pin(Bound::version(Version::new(1)), PATIENCE).unwrap());
        zombie.start(2.0);
        assert_eq!(zombie.go_on(), Ok(true));
        drive(&mut server, "version 2", |server| server.status().version == Version::new(2));
        for value in [4.0, 8.0] {
            zombie.start(value);
            assert_eq!(zombie.go_on(), Ok(true));
        }
        poll(&mut server);
        zombie.start(1000.0);
        assert_eq!(zombie.go_on(), Ok(false), "both slots are full");
        zombie.raw.beat_once();
        drive(&mut server, "the eviction", |server| server.status().left == 1);
        let mut unpin = |server: &mut Server<Shm>| {
            pinned.take();
            drive(server, "version 3", |server| server.status().version == Version::new(3));
        };
        after(&mut server, zombie, &mut unpin);
    });
    assert_eq!(server.parameters().unwrap(), [7.0; 4], "what was bound, as it was when it was bound");
}

#[test]
fn an_index_is_not_given_again_while_a_fold_reads_its_last_inbox() {
    with_a_zombie(|server, mut zombie, unpin| {
        let address = server.address();
        let next = Raw::resume(&address, worker_role(SchemeConfig::Asp), 9, || poll(server));
        assert_ne!(next.welcome.peer, zombie.raw.welcome.peer);
        assert_eq!(zombie.go_on(), Err(PublishError::Evicted { why: Eviction::Silent }));
        unpin(server);
        // From here on the index is free.
        let third = Raw::join(&address, worker_role(SchemeConfig::Asp), || poll(server));
        assert_eq!(third.welcome.peer, zombie.raw.welcome.peer);
    });
}

#[test]
fn a_zombie_takes_no_credit_from_the_line_of_its_successor() {
    with_a_zombie(|server, mut zombie, unpin| {
        unpin(server);
        let address = server.address();
        let next = Raw::resume(&address, worker_role(SchemeConfig::Asp), 9, || poll(server));
        assert_eq!((next.welcome.peer, next.consumed()), (zombie.raw.welcome.peer, 9));
        assert_eq!(zombie.go_on(), Err(PublishError::Evicted { why: Eviction::Replaced }));
        assert_eq!(zombie.publish.consumed(), Clock::new(2), "it has learned nothing");
    });
}
