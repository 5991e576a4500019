//! Peers that talk nonsense, and peers that do not belong.

use std::time::Duration;

use slackline::internals::param::{HandshakeError, LAYOUT_VERSION, PeerHello, PeerRole};
use slackline::internals::transport::{Incoming, Inline, Listener, Offer};
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{
    Address, ConnectError, ElementType, Encoding, Error, Server, ServerOptions, Shm, Table, Transport,
    Version, Worker, WorkerOptions, scheme::SchemeConfig,
};

use super::raw::{Raw, say, worker_role};
use super::second::{PATIENCE, drive, server, table, train, worker};

const ASP: SchemeConfig = SchemeConfig::Asp;

fn evicted_and_nothing_applied(what: &str, misbehave: impl FnOnce(&mut Raw, u64)) {
    let mut server = server(4, ServerOptions::new(ASP, 2, -1.0));
    let (address, epoch) = (server.address(), server.epoch());
    std::thread::scope(|scope| {
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let good_address = address.clone();
        let good = scope.spawn(move || {
            let mut worker = worker(&good_address, ASP);
            // Only now, so that nothing is folded before the other one is judged.
            may_go.recv_timeout(PATIENCE).unwrap();
            for _ in 0..10 {
                train(&mut worker, 1.0).unwrap();
            }
            worker.flush(PATIENCE).unwrap();
        });
        drive(&mut server, "the good worker", |server| server.status().joined == 1);
        let mut raw = Raw::join(&address, worker_role(ASP), || {
            server.poll(slackline::now()).unwrap();
        });
        misbehave(&mut raw, epoch);
        drive(&mut server, what, |server| server.status().left == 1);
        assert_eq!((server.status().folded, server.status().version), (0, Version::new(0)), "{what}");
        go.send(()).unwrap();
        drive(&mut server, "the good worker's end", |server| server.status().left == 2);
        good.join().unwrap();
    });
    assert_eq!(server.parameters().unwrap(), [10.0; 4], "{what}");
}

#[test]
fn a_gradient_with_a_wrong_header_evicts_its_worker_and_is_not_applied() {
    // Clock, base version, epoch, bytes, encoding, checksum, loss, 0.
    let good = |epoch| [0, 0, epoch, 16, 0, 0, 0, 0];
    type Spoil = fn(&mut [u64; 8]);
    let faults: [(&str, Spoil); 7] = [
        ("another epoch", |words| words[2] ^= 1),
        ("another clock", |words| words[0] = 7),
        ("fewer bytes", |words| words[3] = 8),
        ("more bytes", |words| words[3] = 1 << 60),
        ("another encoding", |words| words[4] = 1),
        ("another checksum", |words| words[5] = 1),
        ("a sum over two workers, of which ASP knows no weight", |words| words[4] = 1 << 32),
    ];
    for (what, spoil) in faults {
        evicted_and_nothing_applied(what, |raw, epoch| {
            let mut words = good(epoch);
            spoil(&mut words);
            raw.write_header(0, words);
            raw.announce(1);
        });
    }
}

#[test]
fn a_published_clock_far_ahead_evicts_its_worker() {
    for clock in [1, 1 << 40, u64::MAX] {
        evicted_and_nothing_applied("an announcement of nothing", |raw, _| raw.announce(clock));
    }
}

#[test]
fn a_worker_that_publishes_without_credit_is_evicted() {
    let mut options = ServerOptions::new(SchemeConfig::Bsp, 2, -1.0);
    // Not for its silence: this one is evicted for what it writes.
    options.memory.lease = 10 * PATIENCE;
    // Its fellow never comes, so that nothing of it is folded and no slot is given back.
    let mut server = server(4, options);
    let (address, epoch) = (server.address(), server.epoch());
    let mut raw = Raw::join(&address, worker_role(SchemeConfig::Bsp), || {
        server.poll(slackline::now()).unwrap();
    });
    let gradient = |clock| [clock, 0, epoch, 16, 0, 0, 0, 0];
    for clock in 0..2 {
        raw.write_header(clock as usize % 2, gradient(clock));
        raw.announce(clock + 1);
        for _ in 0..100 {
            server.poll(slackline::now()).unwrap();
        }
    }
    assert_eq!(server.status().left, 0, "two gradients fit two slots");
    raw.write_header(0, gradient(2));
    raw.announce(3);
    drive(&mut server, "the eviction", |server| server.status().left == 1);
}

#[test]
fn workers_without_heartbeat_are_evicted_and_false_chunk_counts_do_no_harm() {
    let mut options = ServerOptions::new(SchemeConfig::Bsp, 2, -1.0);
    // Longer than a busy machine may keep a heartbeat from its turn.
    options.memory.lease = Duration::from_millis(1500);
    options.memory.chunk_bytes = 64;
    let mut server = server(64, options);
    let address = server.address();
    std::thread::scope(|scope| {
        let good = scope.spawn(|| {
            let mut worker = worker(&address, SchemeConfig::Bsp);
            for _ in 0..5 {
                train(&mut worker, 1.0).unwrap();
            }
            worker.flush(PATIENCE).unwrap();
        });
        drive(&mut server, "the good worker", |server| server.status().joined == 1);
        let mut raw = Raw::join(&address, worker_role(SchemeConfig::Bsp), || {
            server.poll(slackline::now()).unwrap();
        });
        raw.beat_once();
        // All chunks of clock 0 are there, it says, and announces nothing.
        raw.write(8, Inline::word(0xFF_FFFF));
        drive(&mut server, "the eviction", |server| server.status().left == 1);
        assert_eq!(
            raw.control((2 + usize::from(raw.welcome.peer)) * 64 + 24),
            3,
            "its line says that it was silent"
        );
        drive(&mut server, "the good worker's end", |server| server.status().left == 2);
        good.join().unwrap();
    });
    assert_eq!(server.parameters().unwrap(), [5.0; 64]);
}

/// Some bytes, different for each seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(step).take(len).collect()
}

fn refusal(result: Result<impl Sized, ConnectError>) -> String {
    match result {
        Err(ConnectError::Refused { reason, .. }) => reason,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("taken in"),
    }
}

#[test]
fn random_bytes_for_a_first_message_are_refused_with_a_reason() {
    let mut server = server(4, ServerOptions::new(ASP, 1, 1.0));
    let address = server.address();
    let good = PeerHello::from(worker_role(ASP)).encode();
    for seed in 0..200 {
        let mut message = noise(seed, seed as usize);
        if seed % 2 == 0 {
            // Half of them begin well.
            message.splice(0..0, good[..16].iter().copied());
            message.extend([0xFF; 8]);
        }
        let said = say(&address, message, || {
            server.poll(slackline::now()).unwrap();
        });
        let reason = refusal(said);
        let expected =
            if seed % 2 == 0 { "its message is damaged" } else { "its message is not slackline's" };
        assert!(reason.contains(expected), "seed {seed}: {reason}");
    }
    assert_eq!((server.status().refused, server.status().joined), (200, 0));
}

#[test]
fn peers_of_different_layout_versions_name_both() {
    let mut server = server(4, ServerOptions::new(ASP, 1, 1.0));
    let mut hello = PeerHello::from(worker_role(ASP)).encode();
    hello[8] = 99;
    let ours = format!("version {LAYOUT_VERSION}");
    let said = say(&server.address(), hello.clone(), || {
        server.poll(slackline::now()).unwrap();
    });
    let reason = refusal(said);
    assert!(reason.contains("layout version 99") && reason.contains(&ours), "{reason}");

    // The other way round: an owner that answers in another version.
    let address = Address::random();
    let mut listener = Shm::new().listen(&address).unwrap();
    std::thread::scope(|scope| {
        let connecting =
            scope.spawn(|| Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE).err());
        let incoming = super::second::wait_for("a reader", || listener.poll(slackline::now()));
        let _endpoint = incoming.accept(Offer { message: hello, grants: Vec::new() }).unwrap();
        let error = connecting.join().unwrap().unwrap();
        let version = |source: &HandshakeError| matches!(source, HandshakeError::Version { theirs: 99 });
        assert!(matches!(&error, Error::Handshake { source, .. } if version(source)), "{error}");
        let text = error.to_string();
        assert!(text.contains("layout version 99") && text.contains(&ours), "{text}");
    });
}

fn connect(server: &mut Server<Shm>, options: WorkerOptions) -> Result<Worker<Shm>, Error> {
    let address = server.address();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| Worker::connect(Shm::new(), &[address], options, PATIENCE));
        while !connecting.is_finished() {
            server.poll(slackline::now()).unwrap();
        }
        connecting.join().unwrap()
    })
}

fn refused(result: Result<Worker<Shm>, Error>) -> String {
    match result {
        Err(Error::Connect(ConnectError::Refused { reason, .. })) => reason,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("taken in"),
    }
}

#[test]
fn a_worker_too_many_and_one_of_another_scheme_read_why_they_are_refused() {
    let mut options = ServerOptions::new(ASP, 1, 1.0);
    options.memory.peers = 1;
    let mut server = server(4, options);
    let reason = refused(connect(&mut server, WorkerOptions::new(SchemeConfig::Ssp { staleness: 4 })));
    assert!(reason.contains("ssp(4)") && reason.contains("asp"), "{reason}");
    let first = connect(&mut server, WorkerOptions::new(ASP)).unwrap();
    let reason = refused(connect(&mut server, WorkerOptions::new(ASP)));
    assert!(reason.contains("as many peers as `peers` allows (1); raise it"), "{reason}");
    drop(first);
    drive(&mut server, "it to leave", |server| server.status().left == 1);
    connect(&mut server, WorkerOptions::new(ASP)).unwrap();
}

#[test]
fn a_worker_that_is_started_again_waits_for_its_room_in_a_full_server() {
    let mut options = ServerOptions::new(ASP, 1, 1.0);
    options.memory.peers = 1;
    let mut server = server(4, options);
    let options = WorkerOptions { identity: Some(0), ..WorkerOptions::new(ASP) };
    let first = connect(&mut server, options.clone()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(first);
        });
        connect(&mut server, options).unwrap();
    });
    assert_eq!(server.status().joined, 2);
}

#[test]
fn a_worker_of_another_encoding_is_refused_and_does_not_stop_the_server() {
    for scheme in [SchemeConfig::Bsp, ASP] {
        let mut server = server(4, ServerOptions::new(scheme, 1, -1.0));
        let mut first = connect(&mut server, WorkerOptions::new(scheme)).unwrap();
        let halves = WorkerOptions { encoding: Encoding::Bf16, ..WorkerOptions::new(scheme) };
        let reason = refused(connect(&mut server, halves.clone()));
        assert!(reason.contains("Bf16") && reason.contains("F32"), "{reason}");
        std::thread::scope(|scope| {
            let training = scope.spawn(|| {
                train(&mut first, 1.0).unwrap();
                first.flush(PATIENCE).unwrap();
                drop(first);
            });
            drive(&mut server, "its gradient", |server| server.status().left == 1);
            training.join().unwrap();
        });
        assert_eq!(server.parameters().unwrap(), [1.0; 4]);
        // Once no worker is in that publishes otherwise, it is welcome.
        connect(&mut server, halves).unwrap();
    }
}

#[test]
fn a_publisher_takes_no_workers_and_says_so() {
    let mut publisher =
        Publisher::new(Shm::new(), &Address::random(), table(4), PublisherOptions::default()).unwrap();
    let hello = PeerHello::from(worker_role(ASP)).encode();
    let said = say(&publisher.address(), hello, || {
        publisher.poll(slackline::now());
    });
    let reason = refusal(said);
    assert!(reason.contains("it takes readers, not workers"), "{reason}");
}

#[test]
fn memory_that_cannot_be_had_is_an_error_and_no_abort() {
    for bytes in [1u64 << 45, 1 << 60] {
        let table = Table::flat(bytes / 4, ElementType::F32).unwrap();
        let options = ServerOptions::new(ASP, 1, 1.0);
        let error = Server::new(Shm::new(), &Address::random(), table.clone(), &[], options).err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, Error::Register(_) | Error::Option { .. } | Error::Length { .. }), "{text}");
        let made = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default());
        assert!(bytes < 1 << 60 || made.is_err());
    }
}

#[test]
fn a_reader_of_a_server_needs_no_scheme_and_makes_room_when_it_goes() {
    let mut options = ServerOptions::new(ASP, 1, 1.0);
    options.memory.peers = 1;
    let mut server = server(4, options);
    for round in 0..5 {
        let raw = Raw::join(&server.address(), PeerRole::Reader, || {
            server.poll(slackline::now()).unwrap();
        });
        assert_eq!((server.status().readers, raw.welcome.peer), (1, 0), "{round}");
        drop(raw);
        drive(&mut server, "it to be gone", |server| server.status().readers == 0);
    }
}
