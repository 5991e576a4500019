//! Every call that waits returns by its deadline.

use std::time::{Duration, Instant};

use slackline::internals::mem::Access;
use slackline::internals::param::{ControlLayout, FrameGeometry, Frames, Latest, PeerInbox, Welcome};
use slackline::internals::transport::{Incoming, Listener, Offer};
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{
    Address, Clock, ConnectError, Error, Server, ServerOptions, Shm, Tcp, Transport, Version, Worker,
    WorkerOptions,
    scheme::{Bound, SchemeConfig},
};

use super::raw::{Raw, worker_role};
use super::second::{NOTICE, PATIENCE, drive, server, table, train, wait_for, worker};

const SHORT: Duration = Duration::from_millis(300);
/// Time that a busy machine may add. Without its deadline each of these calls would wait for longer.
const SLACK: Duration = Duration::from_secs(30);

fn in_time<R>(what: &str, call: impl FnOnce() -> Result<R, Error>) {
    let begun = Instant::now();
    let error = call().err().unwrap_or_else(|| panic!("{what} found what was not there"));
    let took = begun.elapsed();
    assert!(matches!(error, Error::Deadline { .. }), "{what}: {error}");
    assert!((SHORT..SHORT + SLACK).contains(&took), "{what} took {took:?}");
}

#[test]
fn a_listener_that_never_answers_and_a_missing_one_are_errors_in_time() {
    let address = Address::random();
    let listener = Shm::new().listen(&address).unwrap();
    for scheme in [SchemeConfig::Bsp, SchemeConfig::Essp { staleness: 1 }] {
        in_time("Worker::connect", || {
            Worker::connect(Shm::new(), std::slice::from_ref(&address), WorkerOptions::new(scheme), SHORT)
        });
    }
    in_time("Reader::connect", || Reader::connect(Shm::new(), &address, ReaderOptions::default(), SHORT));
    drop(listener);
    let begun = Instant::now();
    let error = Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE).err().unwrap();
    assert!(matches!(error, Error::Connect(_)) && begun.elapsed() < SLACK, "{error}");
    assert!(error.to_string().contains("no process listens there"), "{error}");
}

#[test]
fn a_worker_and_a_reader_that_wait_for_their_server_get_in_once_it_listens() {
    let address = Address::random();
    let bsp = WorkerOptions { waits_for_server: true, ..WorkerOptions::new(SchemeConfig::Bsp) };
    let read = ReaderOptions { waits_for_server: true, ..ReaderOptions::default() };
    std::thread::scope(|scope| {
        let working =
            scope.spawn(|| Worker::connect(Shm::new(), std::slice::from_ref(&address), bsp, PATIENCE));
        let reading = scope.spawn(|| Reader::connect(Shm::new(), &address, read, PATIENCE));
        // Both have tried by then. Were they later, they would find the server at their first attempt.
        std::thread::sleep(SHORT);
        assert!(!working.is_finished() && !reading.is_finished());
        let mut server = Server::new(
            Shm::new(),
            &address,
            table(4),
            &[0.0; 4],
            ServerOptions::new(SchemeConfig::Bsp, 1, 0.1),
        )
        .unwrap();
        let are_done = || working.is_finished() && reading.is_finished();
        assert!(server.drive(|_| are_done(), PATIENCE).unwrap());
        assert!(working.join().unwrap().is_ok());
        assert!(reading.join().unwrap().is_ok());
    });
}

#[test]
fn a_wait_for_a_server_that_never_listens_ends_and_says_so() {
    let read = ReaderOptions { waits_for_server: true, ..ReaderOptions::default() };
    let begun = Instant::now();
    let error = Reader::connect(Shm::new(), &Address::random(), read, SHORT).err().unwrap();
    assert!((SHORT / 4..SHORT + SLACK).contains(&begun.elapsed()), "{error} after {:?}", begun.elapsed());
    assert!(error.to_string().contains("no process listens there"), "{error}");
}

#[test]
fn a_server_that_is_silent_is_told_from_a_host_that_does_not_answer() {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let socket = listener.local_addr().unwrap().as_socket().unwrap();
    let connect =
        || Reader::connect(Tcp::new(), &Address::Tcp(socket), ReaderOptions::default(), SHORT).err().unwrap();
    // The system keeps one connection more than the queue is said to hold, and takes no further one.
    let first = connect();
    assert!(matches!(first, Error::Deadline { .. }), "{first}");
    assert!(first.to_string().contains("accepted the connection but does not answer"), "{first}");
    let full = connect();
    assert!(matches!(full, Error::Connect(ConnectError::System { .. })), "{full}");
    assert!(full.to_string().contains("the host does not answer"), "{full}");
}

#[test]
fn calls_of_a_reader_whose_publisher_makes_nothing_new_end_in_time() {
    let address = Address::random();
    let mut publisher = Publisher::new(Shm::new(), &address, table(4), PublisherOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut reader =
                Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE).unwrap();
            let one = Bound::version(Version::new(1));
            in_time("refresh_to", || reader.refresh_to(Version::new(1), SHORT));
            in_time("pin", || reader.pin(one, SHORT).map(drop));
            in_time("pin of a clock", || {
                reader.pin(Bound { version: Version::new(0), smallest_clock: Clock::new(1) }, SHORT).map(drop)
            });
            // And none of them is in the way of the next.
            assert_eq!(reader.refresh(0, PATIENCE).unwrap().version, Version::new(0));
        });
        publisher
            .drive(|publisher| publisher.joined() == 1 && publisher.readers().is_empty(), PATIENCE)
            .unwrap();
        reading.join().unwrap();
    });
}

#[test]
fn calls_of_a_worker_whose_server_stands_still_end_in_time() {
    let mut server = server(4, ServerOptions::new(SchemeConfig::Bsp, 1, -1.0));
    let address = server.address();
    let mut worker = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| worker(&address, SchemeConfig::Bsp));
        drive(&mut server, "the worker", |server| server.status().joined == 1);
        connecting.join().unwrap()
    });
    train(&mut worker, 1.0).unwrap();
    in_time("step", || worker.step(SHORT).map(drop));
    in_time("step again", || worker.step(SHORT).map(drop));
    in_time("flush", || worker.flush(SHORT));
    in_time("pin", || worker.pin(0, Bound::version(Version::new(1)), SHORT).map(drop));
    std::thread::scope(|scope| {
        let going_on = scope.spawn(|| {
            assert_eq!(worker.step(PATIENCE).unwrap().view().version, Version::new(1));
            drop(worker);
        });
        drive(&mut server, "the end", |server| server.status().left == 1);
        going_on.join().unwrap();
    });
}

#[test]
fn a_bsp_worker_without_its_peers_times_out_and_goes_on_when_they_come() {
    let mut server = server(4, ServerOptions::new(SchemeConfig::Bsp, 2, -1.0));
    let address = server.address();
    std::thread::scope(|scope| {
        let early = scope.spawn(|| {
            let mut worker = worker(&address, SchemeConfig::Bsp);
            train(&mut worker, 1.0).unwrap();
            in_time("step", || worker.step(SHORT).map(drop));
            in_time("step again", || worker.step(SHORT).map(drop));
            let late = scope.spawn(|| {
                let mut worker = self::worker(&address, SchemeConfig::Bsp);
                train(&mut worker, 3.0).unwrap();
                worker.flush(PATIENCE).unwrap();
            });
            let step = worker.step(PATIENCE).unwrap();
            assert_eq!(step.view().version, Version::new(1));
            assert_eq!(step.parameters().unwrap(), [2.0; 4]);
            drop(step);
            late.join().unwrap();
        });
        drive(&mut server, "the end", |server| server.status().left == 2);
        early.join().unwrap();
    });
}

#[test]
fn a_begin_that_has_to_finish_a_publish_first_keeps_its_deadline_over_both() {
    // A deadline for each would come to 1.8 of them. The longer it is, the less a busy machine adds to it.
    let is_kept = |seconds| {
        let timeout = Duration::from_secs(seconds);
        a_begin_that_finishes_a_publish_takes(timeout) < timeout * 3 / 2
    };
    assert!([1, 4, 16].into_iter().any(is_kept), "each time it took half as long again");
}

/// Returns the time that a begin takes whose publish is done after four fifths of `timeout`.
fn a_begin_that_finishes_a_publish_takes(timeout: Duration) -> Duration {
    let scheme = SchemeConfig::Ssp { staleness: 2 };
    let mut server = server(4, ServerOptions::new(scheme, 2, -1.0));
    let address = server.address();
    let mut worker = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| worker(&address, scheme));
        drive(&mut server, "the worker", |server| server.status().joined == 1);
        connecting.join().unwrap()
    });
    let _publishes_nothing = Raw::join(&address, worker_role(scheme), || {
        server.poll(slackline::now()).unwrap();
    });
    for _ in 0..2 {
        train(&mut worker, 1.0).unwrap();
    }
    let step = worker.step(NOTICE).unwrap();
    // No slot is free: this waits for the server.
    step.start_publish(None).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let begun = Instant::now();
            let error = worker.step(timeout).unwrap_err();
            (error, begun.elapsed())
        });
        std::thread::sleep(timeout * 4 / 5);
        // Slots, but not the other worker's clock 0, which clock 3 waits for.
        server.poll(slackline::now()).unwrap();
        let (error, took) = waiting.join().unwrap();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        took
    })
}

#[test]
fn a_control_page_that_contradicts_itself_holds_no_peer_past_the_deadline() {
    let (address, shm) = (Address::random(), Shm::new());
    let mut listener = shm.listen(&address).unwrap();
    let layout = ControlLayout { peers: 1, frames: 2 };
    let geometry = FrameGeometry { frames: 2, payload_bytes: 64, chunk_bytes: 64 };
    let region = |bytes, access| shm.allocate(bytes, access).unwrap();
    let control = region(layout.bytes(), Access::REMOTE_READ);
    let payload = region(geometry.bytes() as usize, Access::REMOTE_READ);
    let page = region(PeerInbox::page_bytes(0), Access::REMOTE_READ | Access::REMOTE_WRITE);
    let frames = Frames::new(control.clone(), payload.clone(), layout, geometry, 7);
    // It says that frame 0 is version 5; the frame says that it is version 0.
    control.as_volatile().store_u64(64, Latest { version: Version::new(5), frame: 0 }.to_word());
    let welcome = Welcome {
        epoch: frames.epoch(),
        peer: 0,
        generation: 0,
        clock: Clock::new(0),
        table: table(16),
        shard: 0,
        shards: 1,
        layout,
        geometry,
        slots: None,
        lease_ns: 1_000_000_000,
        scheme: None,
        decided: None,
        deltas: None,
    };
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut reader =
                Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE).unwrap();
            in_time("pin", || reader.pin(Bound::NONE, SHORT).map(drop));
            in_time("refresh_to", || reader.refresh_to(Version::new(0), SHORT));
            // A frame that is not there at all is an error at once.
            control.as_volatile().store_u64(64, Latest { version: Version::new(5), frame: 2 }.to_word());
            let error = reader.pin(Bound::NONE, PATIENCE).err().unwrap();
            assert!(matches!(error, Error::Pin { .. }), "{error}");
            let error = reader.refresh_to(Version::new(0), PATIENCE).unwrap_err();
            assert!(matches!(error, Error::Pull { .. }), "{error}");
        });
        let incoming = wait_for("a reader", || listener.poll(slackline::now()));
        let grants = vec![control.whole(), payload.whole(), page.whole()];
        let _endpoint = incoming.accept(Offer { message: welcome.encode(), grants }).unwrap();
        reading.join().unwrap();
    });
}
