//! The thread that serves peers, by itself.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::super::hello::{ConnectionIds, Terms};
use super::super::wire::Response;
use super::*;

#[test]
fn a_thread_without_a_turn_has_not_caught_up_and_an_idle_one_has() {
    let engine = Engine::start(Arc::default()).unwrap();
    // The thread that is woken by the question waits for this.
    let held = lock(&engine.shared.commands);
    assert!(engine.has_caught_up(), "nothing was asked before");
    for _ in 0..50 {
        assert!(!engine.has_caught_up());
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(held);
    let deadline = Instant::now() + Duration::from_secs(60);
    for _ in 0..3 {
        while !engine.has_caught_up() {
            assert!(Instant::now() < deadline, "a question is not answered");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_peer_that_is_let_go_as_the_thread_ends_is_told_why() {
    let engine = Engine::start(Arc::default()).unwrap();
    let terms = || Terms { grants: Vec::new(), blob: ConnectionIds { epoch: 1, ticket: [0; 16] } };
    let connection = || Arc::new(Connection::new(terms(), Vec::new(), terms(), None));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let served = connection();
    engine.tell(Command::Serve(Socket::bare(stream), Arc::clone(&served)));
    // The thread waits for this within a command, and looks whether it is to end right after that.
    let held = lock(&engine.shared.expected);
    engine.tell(Command::Forget(connection()));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !lock(&engine.shared.commands).is_empty() {
        assert!(Instant::now() < deadline, "the thread takes no commands");
        std::thread::yield_now();
    }
    engine.tell(Command::Part(served, 7, [None, None]));
    engine.shared.stop.store(true, Ordering::Release);
    drop(held);
    drop(engine);
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, Response::Closed { code: 7 }.encode());
}

/// An event from before a copy began does not tell the peer's end.
#[test]
fn an_event_from_before_a_copy_does_not_end_a_connection() {
    let mut progress = ProgressState::new(Arc::default()).unwrap();
    let terms = || Terms { grants: Vec::new(), blob: ConnectionIds { epoch: 1, ticket: [0; 16] } };
    let connection = Arc::new(Connection::new(terms(), Vec::new(), terms(), None));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    progress.serve(Socket::bare(stream), Arc::clone(&connection));
    // As a copy begins behind which nothing is received.
    progress.wants(0, epoll::EventFlags::empty(), false);
    let token = u64::from(progress.sources[0].generation) << 32;
    progress.handle(token, epoll::EventFlags::IN);
    assert!(connection.over().is_none(), "the peer is there");
    progress.handle(token, epoll::EventFlags::IN | epoll::EventFlags::HUP);
    assert!(connection.over().is_some(), "the peer is gone");
}

/// The same with a thread that panics at its first step.
fn ended() -> Engine {
    let progress = ProgressState::new(Arc::default()).unwrap();
    let shared = Arc::clone(&progress.shared);
    let run = move || {
        let _dropped = progress;
        panic!("on purpose");
    };
    let thread = Some(OwnThread::start("slackline-tcp", run).unwrap());
    let engine = Engine { shared, thread, guard: ForkGuard::new() };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !engine.has_ended() {
        assert!(Instant::now() < deadline, "the thread does not end");
        std::thread::yield_now();
    }
    engine
}

#[test]
fn who_asks_a_thread_that_has_ended_is_not_kept_waiting() {
    let engine = ended();
    for _ in 0..3 {
        assert!(engine.has_caught_up());
    }
    let terms = || Terms { grants: Vec::new(), blob: ConnectionIds { epoch: 1, ticket: [0; 16] } };
    let connection = Arc::new(Connection::new(terms(), Vec::new(), terms(), None));
    engine.expect(Expected { connection: Arc::clone(&connection), lanes: vec![Lane::ReverseData] });
    engine.tell(Command::Forget(Arc::clone(&connection)));
    assert_eq!(Arc::strong_count(&connection), 1, "it is forgotten");
    assert!(connection.over().is_some_and(|over| over.reason.contains("has ended")));
}

#[test]
fn connections_end_with_the_thread_that_serves_them() {
    let mut progress = ProgressState::new(Arc::default()).unwrap();
    let terms = |byte| Terms { grants: Vec::new(), blob: ConnectionIds { epoch: 1, ticket: [byte; 16] } };
    let [served, told, expected] =
        [0, 1, 2].map(|byte| Arc::new(Connection::new(terms(byte), Vec::new(), terms(byte), None)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _peers = [(); 2].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    let socket = || Socket::bare(listener.accept().unwrap().0);
    progress.serve(socket(), Arc::clone(&served));
    lock(&progress.shared.commands).push(Command::Serve(socket(), Arc::clone(&told)));
    let waits = Expected { connection: Arc::clone(&expected), lanes: vec![Lane::ReverseData] };
    lock(&progress.shared.expected).insert([2; 16], waits);
    drop(progress);
    for connection in [served, told, expected] {
        assert!(connection.over().is_some_and(|over| over.reason.contains("has ended")));
    }
}

#[test]
fn a_thread_that_has_ended_is_started_again_for_the_next_listener() {
    let tcp = crate::transport::tcp::Tcp::new();
    *lock(&tcp.engine) = Some(Arc::new(ended()));
    assert!(tcp.has_caught_up() && tcp.has_caught_up());
    let address = "127.0.0.1:0".parse().unwrap();
    let _listener = crate::transport::Transport::listen(&tcp, &address).unwrap();
    assert!(!lock(&tcp.engine).as_ref().unwrap().has_ended());
}
