//! Tests of properties that only the inside shows: peers that misbehave, on either side.

mod arrivals;
#[cfg(feature = "cuda")]
mod conformance;
mod encrypted;
mod fork;
#[cfg(feature = "cuda")]
mod scripted;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::task::Poll;
use std::time::Duration;

use super::hello::{ConnectionIds, Hello, Lane, Note, Terms};
use super::wire::{Kind, RESPONSE_BYTES, Request, Response};
use super::*;
use crate::channel::{Channel, ChannelSocket};
use crate::mem::{LocalSlice, RemoteKey, RemoteSlice, Streaming};
use crate::time::Instant;
use crate::transport::wireup::{Grant, LIMIT, WIRE_VERSION};
use crate::transport::{
    CompletionError, Connecting, Endpoint, Incoming, Inline, Listener, Operation, PostError, Received,
    Refusal, WorkRequest,
};
use rustix::event::{PollFd, PollFlags};

const NOW: Instant = Instant::ORIGIN;
const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn wait_for<R>(what: &str, mut step: impl FnMut() -> Option<R>) -> R {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(std::time::Instant::now() < deadline, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

fn listen(tcp: &Tcp) -> TcpListener {
    tcp.listen(&"127.0.0.1:0".parse().unwrap()).unwrap()
}

fn address_of(listener: &TcpListener) -> SocketAddr {
    let Address::Tcp(address) = listener.address() else { panic!("an address of TCP") };
    address
}

fn offer(grants: Vec<LocalSlice>) -> Offer {
    Offer { message: Vec::new(), grants }
}

/// Both ends of a connection.
fn pair(tcp: &Tcp, listener: &mut TcpListener, from_server: Offer) -> (TcpEndpoint, TcpEndpoint, Received) {
    pair_granting(tcp, listener, from_server, Offer::default())
}

fn pair_granting(
    tcp: &Tcp,
    listener: &mut TcpListener,
    from_server: Offer,
    from_client: Offer,
) -> (TcpEndpoint, TcpEndpoint, Received) {
    let mut connecting = tcp.connect(&listener.address(), from_client).unwrap();
    let mut from_server = Some(from_server);
    let mut server = None;
    let (client, received) = wait_for("a connection", || {
        if let Some(incoming) = listener.poll(NOW) {
            server = Some(incoming.accept(from_server.take().unwrap()).unwrap());
        }
        match connecting.poll(NOW) {
            Poll::Ready(connected) => Some(connected.unwrap()),
            Poll::Pending => None,
        }
    });
    (client, server.unwrap(), received)
}

/// Checks that an honest peer still gets in, and is served.
fn honest_peers_are_served(tcp: &Tcp, listener: &mut TcpListener) {
    let region = tcp.allocate(4096, ALL).unwrap();
    let (mut client, _server, received) = pair(tcp, listener, offer(vec![region.whole()]));
    let remote = received.grants[0].slice(8, 8).unwrap();
    let operation = Operation::WriteInline { data: Inline::word(77), remote };
    client.post(&[WorkRequest::signalled(1, operation)]).unwrap();
    assert_eq!(wait_for("a completion", || client.poll()).result, Ok(()));
    assert_eq!(region.as_volatile().load_u64(8), 77);
}

// ---------------------------------------------------------------------- peers that are not let in

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

#[test]
fn random_cut_and_endless_first_bytes_are_dropped_and_honest_peers_get_in() {
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    let mut open = Vec::new();
    for seed in 0..200u64 {
        let mut stream = TcpStream::connect(address_of(&listener)).unwrap();
        // It may have closed already.
        let _sent = stream.write(&noise(seed, [0, 1, 63, 64, 65, 10_000][seed as usize % 6]));
        if seed % 3 == 0 {
            open.push(stream);
        }
    }
    honest_peers_are_served(&tcp, &mut listener);
}

/// Terms that grant nothing.
fn nothing() -> Terms {
    Terms { grants: Vec::new(), blob: ConnectionIds { epoch: 1, ticket: [0; 16] } }
}

/// Opens a channel to the listener, and says nothing more.
fn open_channel(listener: &TcpListener) -> Channel {
    let terms = channel::ChannelTerms { limit: LIMIT, ..channel::ChannelTerms::new(Purpose::Transport) };
    let mut channel = Channel::connect(address_of(listener), &terms).unwrap();
    wait_for("the greeting", || {
        assert_eq!(channel.poll().unwrap(), None);
        channel.is_open().then_some(())
    });
    channel
}

#[test]
fn first_messages_that_are_none_are_dropped_and_honest_peers_get_in() {
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    let good = Hello::Offer(nothing()).encode(b"hi");
    let mut messages = vec![
        Vec::new(),
        Hello::Accept(nothing()).encode(b""),
        Hello::Note(Note::Joined).encode(&[]),
        Hello::refuse("no".into()).encode(&[]),
        Hello::Note(Note::Join([7; 16], Lane::ReverseData)).encode(&[]),
        Hello::Note(Note::Join([0; 16], Lane::ForwardHeartbeat)).encode(&[]),
        good[..good.len() - 3].to_vec(),
    ];
    messages.extend((0..100).map(|seed| noise(seed, seed as usize)));
    for message in messages {
        let mut channel = open_channel(&listener);
        channel.send(&message).unwrap();
        wait_for("the listener to hang up", || channel.poll().err());
        assert!(listener.poll(NOW).is_none());
    }
    honest_peers_are_served(&tcp, &mut listener);
}

#[test]
fn another_wire_version_is_told_which_one_is_spoken_here() {
    let tcp = Tcp::new();
    let listener = listen(&tcp);
    let mut channel = open_channel(&listener);
    let mut bytes = Hello::Note(Note::Joined).encode(&[]);
    bytes[0] = 99;
    channel.send(&bytes).unwrap();
    let answer = wait_for("an answer", || channel.poll().unwrap());
    let Ok((Hello::Refuse(Refusal { reason, .. }), _)) = Hello::decode(&answer) else { panic!("a refusal") };
    assert!(reason.contains("version 99") && reason.contains(&format!("speaks {WIRE_VERSION}")), "{reason}");
}

/// A connection that has sent its first bytes: the system does not show silent connections to the listener.
fn begin(listener: &TcpListener) -> TcpStream {
    let mut stream = TcpStream::connect(address_of(listener)).unwrap();
    stream.write_all(b"s").unwrap();
    stream
}

#[test]
fn two_hundred_half_open_connections_do_not_keep_an_honest_peer_out() {
    let tcp = Tcp::new();
    let is_shown = |_attempt| {
        let mut listener = listen(&tcp);
        let _slow: Vec<_> = (0..200).map(|_| begin(&listener)).collect();
        let begun = std::time::Instant::now();
        honest_peers_are_served(&tcp, &mut listener);
        begun.elapsed() < crate::transport::HANDSHAKE_TIMEOUT
    };
    // A busy machine may use up the time after which slow connections are dropped.
    assert!((0..10).any(is_shown), "ten times it waited until they timed out");
}

#[test]
fn connections_without_a_hello_do_not_push_out_a_slow_peer() {
    let is_shown = |_attempt| they_come_while_a_peer_is_slow();
    // The peer has five seconds for its handshake, and a busy machine may use them up.
    assert!((0..10).any(is_shown), "ten handshakes took longer than a listener waits");
}

/// False if the handshake took longer than a listener waits for one: then the peer may be dropped for that reason.
fn they_come_while_a_peer_is_slow() -> bool {
    let listener = listen(&Tcp::new());
    let begun = std::time::Instant::now();
    let is_late = || begun.elapsed() >= crate::transport::HANDSHAKE_TIMEOUT;
    let mut channel =
        Channel::connect(address_of(&listener), &channel::ChannelTerms::new(Purpose::Transport)).unwrap();
    // It is connected, and says its first message.
    assert_eq!(channel.poll().unwrap(), None);
    wait_for("an answer, which it does not look at", || {
        let mut sockets = [PollFd::new(&channel, PollFlags::IN)];
        rustix::event::poll(&mut sockets, Some(&rustix::time::Timespec::default())).ok().filter(|n| *n > 0)
    });
    let others: Vec<_> = (0..300).map(|_| begin(&listener)).collect();
    others.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    wait_for("all but 64 to be dropped", || {
        let is_open = |mut stream: &TcpStream| {
            stream.read(&mut [0; 1]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        };
        (others.iter().filter(|stream| is_open(stream)).count() <= 64).then_some(())
    });
    let outcome = wait_for("the greeting", || match channel.poll() {
        Ok(message) => {
            assert_eq!(message, None);
            channel.is_open().then_some(Ok(()))
        }
        Err(error) => Some(Err(error)),
    });
    assert!(outcome.is_ok() || is_late(), "it was dropped: {outcome:?}");
    outcome.is_ok()
}

#[test]
fn a_newcomer_that_says_too_little_is_dropped_in_time() {
    let listener = listen(&Tcp::new());
    let begun = std::time::Instant::now();
    let mut slow = begin(&listener);
    slow.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // Its bytes are not read, so the end may be a reset.
    assert!(!slow.read(&mut [0; 1]).is_ok_and(|bytes| bytes > 0), "it is shut out");
    assert!(begun.elapsed() >= crate::transport::HANDSHAKE_TIMEOUT);
}

#[test]
fn who_does_not_know_the_secret_is_not_let_in() {
    let tcp = Tcp::with_secret(Secret::random().unwrap());
    let mut listener = listen(&tcp);
    for other in [Tcp::new(), Tcp::with_secret(Secret::random().unwrap())] {
        let mut connecting = other.connect(&listener.address(), Offer::default()).unwrap();
        let error = wait_for("a refusal", || match connecting.poll(NOW) {
            Poll::Ready(result) => Some(result.err().expect("not let in")),
            Poll::Pending => None,
        });
        assert!(matches!(error, ConnectError::Channel { .. } | ConnectError::Closed { .. }), "{error}");
        assert!(listener.poll(NOW).is_none());
    }
    honest_peers_are_served(&tcp, &mut listener);
}

#[test]
fn without_a_secret_nothing_listens_beyond_loopback() {
    for beyond in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        let error = Tcp::new().listen(&beyond.parse().unwrap()).err().expect("refused");
        assert!(matches!(error, ConnectError::NeedsSecret { .. }), "{error}");
        assert!(error.to_string().contains("SLACKLINE_SECRET_FILE"), "{error}");
    }
    for within in ["127.0.0.1:0", "127.9.9.9:0", "[::ffff:127.0.0.1]:0"] {
        Tcp::new().listen(&within.parse().unwrap()).unwrap();
    }
    Tcp::with_secret(Secret::random().unwrap()).listen(&"0.0.0.0:0".parse().unwrap()).unwrap();
}

#[test]
fn without_a_secret_only_this_host_is_dialled() {
    let error = Tcp::new().connect(&"192.0.2.1:7".parse().unwrap(), Offer::default()).err().unwrap();
    assert!(error.to_string().contains("loopback"), "{error}");
    let error = Tcp::new().connect(&"@name".parse().unwrap(), Offer::default()).err().unwrap();
    assert!(error.to_string().contains("IP:PORT"), "{error}");
}

// ---------------------------------------------------------------------- requests that are invalid

/// A connector that has shaken hands, and then sends only the bytes of the test.
struct Raw {
    stream: ChannelSocket,
    theirs: Terms,
    server: TcpEndpoint,
}

impl Raw {
    fn connect(listener: &mut TcpListener, from_server: Offer) -> Raw {
        let mut channel = open_channel(listener);
        channel.send(&Hello::Offer(nothing()).encode(b"")).unwrap();
        let incoming = wait_for("the offer", || listener.poll(NOW));
        let server = incoming.accept(from_server).unwrap();
        let answer = wait_for("the answer", || channel.poll().unwrap());
        let Ok((Hello::Accept(theirs), _)) = Hello::decode(&answer) else { panic!("accepted") };
        let stream = channel.into_socket();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Raw { stream, theirs, server }
    }

    fn request(&self, sequence: u64) -> Request {
        let grant = &self.theirs.grants[0];
        let to = RemoteSlice { key: grant.key, offset: grant.offset, len: 8 };
        Request { answer: true, ..connection::words(sequence, self.theirs.blob.epoch, &to, &[666]) }
    }

    fn send(&mut self, request: &Request) {
        self.stream.write_all(request.encode().as_bytes()).unwrap();
    }

    fn response(&mut self) -> Response {
        let mut bytes = [0; RESPONSE_BYTES];
        self.stream.read_exact(&mut bytes).unwrap();
        Response::decode(&bytes).unwrap().unwrap()
    }

    fn is_shut(&mut self) -> bool {
        // A reset is as good as an end.
        !matches!(self.stream.read(&mut [0; 1]), Ok(1))
    }
}

#[test]
fn requests_outside_of_the_grant_are_refused_one_by_one_and_change_nothing() {
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    let region = tcp.allocate(4096, ALL).unwrap();
    let offences: [fn(Request) -> Request; 9] = [
        |request| Request { epoch: request.epoch ^ 1, ..request },
        |request| Request { key: RemoteKey(request.key.0 ^ 1), ..request },
        |request| Request { offset: 4096, ..request },
        |request| Request { offset: 4, ..request },
        |request| Request { offset: u64::MAX, ..request },
        |request| Request { offset: u64::MAX - 7, ..request },
        |request| Request { kind: Kind::Write, count: 0, bytes: u64::MAX, offset: 8, ..request },
        |request| Request { kind: Kind::FetchAdd, ..request },
        |request| Request { kind: Kind::Read, count: 0, bytes: 4097, ..request },
    ];
    // All offend before the first is looked at again: each is listened to for a while before it is shut out.
    let offenders = offences.iter().enumerate().map(|(index, offence)| {
        let mut raw = Raw::connect(&mut listener, offer(vec![region.whole()]));
        let good = Request { offset: 16, ..raw.request(1) };
        raw.send(&good);
        assert_eq!(raw.response(), Response::Done { sequence: 1 });
        let bad = offence(raw.request(2));
        raw.send(&bad);
        assert_eq!(raw.response(), Response::Refused { sequence: 2 }, "offence {index}");
        // Bytes behind it are not looked at.
        let behind = raw.request(3);
        raw.send(&behind);
        raw
    });
    let offenders: Vec<Raw> = offenders.collect();
    for (index, mut raw) in offenders.into_iter().enumerate() {
        assert!(raw.is_shut(), "offence {index}");
        let gone = wait_for("the server to notice", || raw.server.check().err());
        assert!(gone.reason.contains("not granted"), "{gone}");
        assert_eq!(region.as_volatile().load_u64(0), 0, "offence {index}");
    }
    honest_peers_are_served(&tcp, &mut listener);
}

#[test]
fn a_peer_hears_why_its_connection_is_closed_behind_what_was_under_way() {
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    let region = tcp.allocate(4096, ALL).unwrap();
    let mut raw = Raw::connect(&mut listener, offer(vec![region.whole()]));
    let good = Request { offset: 16, ..raw.request(1) };
    raw.send(&good);
    assert_eq!(raw.response(), Response::Done { sequence: 1 });
    // In the middle of a write.
    let write = Request { kind: Kind::Write, count: 0, bytes: 4096, ..raw.request(2) };
    raw.send(&write);
    let Raw { mut stream, theirs, server } = raw;
    server.close(7);
    let mut bytes = [0; RESPONSE_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(Response::decode(&bytes), Ok(Some(Response::Closed { code: 7 })));
    // Its later writes are dropped.
    stream.write_all(&[1; 4096]).unwrap();
    let grant = &theirs.grants[0];
    let to = RemoteSlice { key: grant.key, offset: grant.offset, len: 8 };
    let behind = Request { answer: true, ..connection::words(3, theirs.blob.epoch, &to, &[666]) };
    stream.write_all(behind.encode().as_bytes()).unwrap();
    assert!(!matches!(stream.read(&mut [0; 1]), Ok(1)), "it is answered");
    assert_eq!(region.as_volatile().load_u64(0), 0);
    honest_peers_are_served(&tcp, &mut listener);
}

#[test]
fn requests_are_sent_first_until_bulk_data_goes_with_them() {
    const BULK: usize = 64 << 10;
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    let region = tcp.allocate(BULK, ALL).unwrap();
    let (mut client, _server, received) = pair(&tcp, &mut listener, offer(vec![region.whole()]));
    let priority = |endpoint: &TcpEndpoint| {
        let socket = endpoint.data.as_ref().unwrap().socket();
        socket2::SockRef::from(socket).priority().unwrap()
    };
    let local = tcp.allocate(BULK, Access::LOCAL).unwrap();
    let [less, all] = [BULK - 8, BULK].map(|bytes| (local.slice(0, bytes).unwrap(), bytes as u64));
    let streaming = Streaming::ByLength;
    let mut post = |operation| {
        client.post(&[WorkRequest::signalled(1, operation)]).unwrap();
        assert_eq!(wait_for("a completion", || client.poll()).result, Ok(()));
        priority(&client)
    };
    let remote = |bytes| received.grants[0].slice(0, bytes).unwrap();
    // The other side sends the bytes that it reads.
    assert_eq!(post(Operation::Read { local: all.0.clone(), remote: remote(all.1), streaming }), 6);
    assert_eq!(post(Operation::Write { local: less.0, remote: remote(less.1), streaming }), 6);
    assert_eq!(post(Operation::Write { local: all.0.clone(), remote: remote(all.1), streaming }), 0);
    assert_eq!(post(Operation::Read { local: all.0, remote: remote(all.1), streaming }), 0);
}

#[test]
fn a_peer_is_woken_between_two_answers_and_once_for_each_time() {
    // More than any buffer between the two holds.
    const BYTES: usize = 64 << 20;
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    let region = tcp.allocate(BYTES, ALL).unwrap();
    region.as_volatile().write(&vec![7; BYTES]);
    let mut raw = Raw::connect(&mut listener, offer(vec![region.whole()]));
    let read = Request { kind: Kind::Read, count: 0, bytes: BYTES as u64, ..raw.request(1) };
    raw.send(&read);
    assert_eq!(raw.response(), Response::Data { sequence: 1, bytes: BYTES as u64 });
    // The answer stands still by then.
    std::thread::sleep(Duration::from_millis(200));
    raw.server.wake();
    let mut bytes = vec![0; BYTES];
    raw.stream.read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7), "nothing stands within the answer");
    assert_eq!(raw.response(), Response::Wake);
    for sequence in 2..4 {
        raw.server.wake();
        assert_eq!(raw.response(), Response::Wake);
        let request = raw.request(sequence);
        raw.send(&request);
        assert_eq!(raw.response(), Response::Done { sequence });
    }
}

#[test]
fn a_peer_that_takes_no_answers_hears_why_its_connection_is_closed() {
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    // More than any buffer between the two holds.
    let region = tcp.allocate(64 << 20, ALL).unwrap();
    // The client grants memory, too: the server closes lanes of its own.
    let page = tcp.allocate(4096, ALL).unwrap();
    let (mut client, server, received) =
        pair_granting(&tcp, &mut listener, offer(vec![region.whole()]), offer(vec![page.whole()]));
    let local = tcp.allocate(64 << 20, Access::LOCAL).unwrap().whole();
    let operation = Operation::Read { local, remote: received.grants[0], streaming: Streaming::Never };
    client.post(&[WorkRequest::signalled(1, operation)]).unwrap();
    // By then the answer has begun, and stands still.
    std::thread::sleep(Duration::from_millis(200));
    server.close(7);
    // By then the progress thread has seen the end of the server's lanes.
    std::thread::sleep(Duration::from_millis(200));
    let read = wait_for("the end of the read", || client.poll());
    assert_eq!((read.result, client.close_code()), (Err(CompletionError::Flushed), Some(7)));
    honest_peers_are_served(&tcp, &mut listener);
}

#[test]
fn a_damaged_header_and_a_request_out_of_turn_end_the_connection() {
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    let region = tcp.allocate(4096, ALL).unwrap();
    for at in 0..56 {
        let mut raw = Raw::connect(&mut listener, offer(vec![region.whole()]));
        let mut bytes = raw.request(1).encode().as_bytes().to_vec();
        bytes[at] ^= 0x10;
        // A count of words that was changed may promise more than comes.
        bytes.resize(200, 0);
        raw.stream.write_all(&bytes).unwrap();
        assert!(raw.is_shut(), "byte {at}");
        let gone = wait_for("the server to notice", || raw.server.check().err());
        assert!(gone.reason.contains("broke the protocol"), "{gone}");
    }
    for sequence in [0, 2, u64::MAX] {
        let mut raw = Raw::connect(&mut listener, offer(vec![region.whole()]));
        let request = raw.request(sequence);
        raw.send(&request);
        assert!(raw.is_shut(), "sequence {sequence}");
    }
    assert_eq!(region.as_volatile().load_u64(0), 0);
    honest_peers_are_served(&tcp, &mut listener);
}

#[test]
fn who_stalls_within_a_header_or_a_payload_holds_up_only_itself() {
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    let region = tcp.allocate(1 << 20, ALL).unwrap();
    let mut in_header = Raw::connect(&mut listener, offer(vec![region.whole()]));
    let bytes = in_header.request(1).encode();
    in_header.stream.write_all(&bytes.as_bytes()[..20]).unwrap();
    let mut in_payload = Raw::connect(&mut listener, offer(vec![region.whole()]));
    let write = Request { kind: Kind::Write, count: 0, bytes: 1 << 20, ..in_payload.request(1) };
    in_payload.send(&write);
    in_payload.stream.write_all(&[1; 70_001]).unwrap();
    wait_for("what came of the payload", || (region.as_volatile().load_u64(69_992) != 0).then_some(()));
    honest_peers_are_served(&tcp, &mut listener);
    in_header.server.check().unwrap();
    // It goes on.
    in_header.stream.write_all(&bytes.as_bytes()[20..]).unwrap();
    assert_eq!(in_header.response(), Response::Done { sequence: 1 });
    // The other one never does, and goes.
    drop(in_payload.stream);
    wait_for("the server to notice", || in_payload.server.check().err());
}

#[test]
fn a_peer_that_takes_no_answers_is_not_read_from_and_loses_none() {
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    let region = tcp.allocate(1 << 20, ALL).unwrap();
    let mut raw = Raw::connect(&mut listener, offer(vec![region.whole()]));
    // 64 MiB of answers, more than any buffer between the two holds.
    for sequence in 1..=64 {
        let read = Request { kind: Kind::Read, count: 0, bytes: 1 << 20, ..raw.request(sequence) };
        raw.send(&read);
    }
    honest_peers_are_served(&tcp, &mut listener);
    let mut payload = vec![0; 1 << 20];
    for sequence in 1..=64 {
        assert_eq!(raw.response(), Response::Data { sequence, bytes: 1 << 20 });
        raw.stream.read_exact(&mut payload).unwrap();
    }
    raw.server.check().unwrap();
}

// ---------------------------------------------------------------------- answers that are invalid

/// A listener that shakes hands, and then sends only the answers of the test.
fn raw_target(answers: &[Vec<u8>]) -> (TcpEndpoint, Received, Vec<ChannelSocket>) {
    raw_target_of_sleeper(answers, None)
}

/// The same for a client that sleeps there.
fn raw_target_of_sleeper(
    answers: &[Vec<u8>],
    doorbell: Option<&Arc<Doorbell>>,
) -> (TcpEndpoint, Received, Vec<ChannelSocket>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let mut connecting = match doorbell {
        None => Tcp::new().connect(&address, Offer::default()).unwrap(),
        Some(doorbell) => Tcp::new().connect_to_be_woken(&address, Offer::default(), doorbell).unwrap(),
    };
    let accepting = {
        let terms = channel::ChannelTerms { limit: LIMIT, ..channel::ChannelTerms::new(Purpose::Transport) };
        let answers = answers.concat();
        std::thread::spawn(move || {
            let next = || {
                let mut channel = Channel::accept(&listener, &terms).unwrap().unwrap();
                let message = wait_for("a message", || channel.poll().unwrap());
                (channel, Hello::decode(&message).unwrap().0)
            };
            let (mut first, hello) = next();
            assert!(matches!(hello, Hello::Offer(..)));
            let grant = Grant { key: RemoteKey(5), offset: 0, bytes: 1 << 20, access: Access::all() };
            let ours = Terms { grants: vec![grant], blob: ConnectionIds { epoch: 9, ticket: [4; 16] } };
            first.send(&Hello::Accept(ours).encode(b"")).unwrap();
            let (mut second, hello) = next();
            assert!(
                matches!(hello, Hello::Note(Note::Join(ticket, Lane::ForwardHeartbeat)) if ticket == [4; 16])
            );
            second.send(&Hello::Note(Note::Joined).encode(&[])).unwrap();
            let mut stream = first.into_socket();
            stream.set_nonblocking(false).unwrap();
            // Answers follow the request, as it were.
            let mut header = [0; wire::REQUEST_BYTES];
            stream.read_exact(&mut header).unwrap();
            stream.write_all(&answers).unwrap();
            vec![stream, second.into_socket()]
        })
    };
    let (mut client, received) = wait_for("a connection", || match connecting.poll(NOW) {
        Poll::Ready(connected) => Some(connected.unwrap()),
        Poll::Pending => None,
    });
    let memory = Tcp::new().allocate(4096, Access::LOCAL).unwrap();
    let grant = received.grants[0];
    let local = |at, len| memory.slice(at, len).unwrap();
    let (streaming, to) = (Streaming::default(), |len| grant.slice(0, len).unwrap());
    let batch = [
        WorkRequest::signalled(1, Operation::Write { local: local(0, 100), remote: to(100), streaming }),
        WorkRequest::signalled(2, Operation::Read { local: local(128, 100), remote: to(100), streaming }),
        WorkRequest::signalled(3, Operation::FetchAdd { local: local(256, 8), remote: to(8), add: 1 }),
    ];
    client.post(&batch).unwrap();
    (client, received, accepting.join().unwrap())
}

fn short(sequence: u64, payload: &[u8]) -> Response {
    Response::ShortData { sequence, bytes: payload.len() as u32, checksum: wire::checksum(payload) }
}

fn results(client: &mut TcpEndpoint, count: usize) -> Vec<Result<(), CompletionError>> {
    (0..count).map(|_| wait_for("a completion", || client.poll()).result).collect()
}

#[test]
fn answers_that_fit_no_request_end_the_connection_and_complete_nothing() {
    const FLUSHED: Result<(), CompletionError> = Err(CompletionError::Flushed);
    let one = |response: Response| vec![response.encode().to_vec()];
    let bad = [
        one(Response::Done { sequence: 0 }),
        one(Response::Done { sequence: 4 }),
        one(Response::Done { sequence: u64::MAX }),
        // Done without its bytes.
        one(Response::Done { sequence: 2 }),
        one(short(1, &[7; 100])),
        one(short(2, &[7; 101])),
        one(short(3, &[7; 8])),
        // A short answer comes with a checksum, a long one without.
        one(Response::Data { sequence: 2, bytes: 100 }),
        one(Response::Data { sequence: 2, bytes: u64::MAX }),
        one(Response::Value { sequence: 2, before: 1 }),
        one(Response::Value { sequence: 3, before: 1 }),
        one(Response::Refused { sequence: 0 }),
        one(Response::Refused { sequence: 4 }),
        one(Response::Refused { sequence: 3 }),
        // It has not said that it sleeps.
        one(Response::Wake),
        vec![vec![0; 200]],
        vec![noise(3, 200)],
    ];
    for (index, answers) in bad.iter().enumerate() {
        let (mut client, _, _streams) = raw_target(answers);
        assert_eq!(results(&mut client, 3), [FLUSHED; 3], "answer {index}");
        let gone = client.check().unwrap_err();
        assert!(gone.reason.contains("broke the protocol"), "answer {index}: {gone}");
    }
}

#[test]
fn a_target_that_wakes_a_sleeper_without_end_ends_the_connection() {
    let doorbell = Doorbell::new(&Address::random()).unwrap();
    let wakes = |count| vec![Response::Wake.encode().repeat(count)];
    for (count, is_honest) in [(1, true), (2, true), (1000, false)] {
        let answers = [wakes(count), vec![Response::Done { sequence: 1 }.encode().to_vec()]].concat();
        let (mut client, _, _streams) = raw_target_of_sleeper(&answers, Some(&doorbell));
        let result = wait_for("a completion", || client.poll()).result;
        assert_eq!(result.is_ok(), is_honest, "{count} times");
        assert!(doorbell.silence(), "it was woken");
    }
}

#[test]
fn answers_in_pieces_and_before_the_end_count() {
    let mut bytes = Response::Done { sequence: 1 }.encode().to_vec();
    bytes.extend(short(2, &[7; 100]).encode());
    bytes.extend([7; 100]);
    bytes.extend(&Response::Value { sequence: 3, before: 8 }.encode()[..20]);
    let (mut client, _, streams) = raw_target(&[bytes]);
    drop(streams);
    assert_eq!(results(&mut client, 3), [Ok(()), Ok(()), Err(CompletionError::Flushed)]);
    wait_for("the end", || client.check().err());
}

#[test]
fn a_corrupted_short_answer_ends_the_connection_and_completes_nothing() {
    for at in [0, 50, 99] {
        let mut payload = [7; 100];
        let header = short(2, &payload).encode();
        payload[at] ^= 0x20;
        let done = Response::Done { sequence: 1 }.encode();
        let (mut client, _, _streams) = raw_target(&[done.to_vec(), header.to_vec(), payload.to_vec()]);
        assert_eq!(
            results(&mut client, 3),
            [Ok(()), Err(CompletionError::Flushed), Err(CompletionError::Flushed)]
        );
        let gone = client.check().unwrap_err();
        assert!(gone.reason.contains("broke the protocol"), "byte {at}: {gone}");
    }
}

// ---------------------------------------------------------------------- queues and time

#[test]
fn requests_that_nobody_asked_to_hear_of_never_fill_the_queue_for_good() {
    for depth in [1, 2, 3, 8] {
        let tcp = Tcp::new().with_queue_depth(depth);
        let mut listener = listen(&tcp);
        let region = tcp.allocate(4096, ALL).unwrap();
        let (mut client, _server, received) = pair(&tcp, &mut listener, offer(vec![region.whole()]));
        let word = |at, value| {
            let remote = received.grants[0].slice(at * 8, 8).unwrap();
            WorkRequest::unsignalled(value, Operation::WriteInline { data: Inline::word(value), remote })
        };
        for round in 1..=50u64 {
            let len = 1 + round as usize % depth;
            let batch: Vec<_> = (0..len as u64).map(|at| word(at, round)).collect();
            wait_for("room", || match client.post(&batch) {
                Ok(()) => Some(()),
                Err(PostError::QueueFull { .. }) => {
                    assert_eq!(client.poll(), None);
                    None
                }
                Err(error) => panic!("{error}"),
            });
        }
        wait_for("the last one", || (region.as_volatile().load_u64(0) == 50).then_some(()));
    }
}

#[test]
fn a_reader_that_computes_for_seconds_is_not_taken_for_dead() {
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    let region = tcp.allocate(16 << 20, ALL).unwrap();
    let (mut client, mut server, received) = pair(&tcp, &mut listener, offer(vec![region.whole()]));
    let local = tcp.allocate(16 << 20, Access::LOCAL).unwrap().whole();
    let (remote, streaming) = (received.grants[0], Streaming::default());
    for id in 0..2 {
        let operation = Operation::Read { local: local.clone(), remote, streaming };
        client.post(&[WorkRequest::signalled(id, operation)]).unwrap();
    }
    // Longer than the system waits for a lane that is timed.
    std::thread::sleep(Duration::from_secs(5));
    server.check().unwrap();
    assert_eq!(results(&mut client, 2), [Ok(()), Ok(())]);
}

/// The number of this process's descriptors and of its threads.
fn held() -> (usize, usize) {
    let count = |path| std::fs::read_dir(path).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    if !crate::mem::alone("transport::tcp::tests::a_thousand_connections_leave_nothing_behind") {
        return;
    }
    let before = held();
    let tcp = Tcp::new();
    let mut listener = listen(&tcp);
    let region = tcp.allocate(4096, ALL).unwrap();
    let connect = |tcp: &Tcp, listener: &mut TcpListener| {
        let ends = pair(tcp, listener, offer(vec![region.whole()]));
        let heartbeat_word = ends.0.heartbeat_word(&ends.2.grants[0].slice(0, 8).unwrap()).unwrap();
        (ends, heartbeat_word)
    };
    drop(connect(&tcp, &mut listener));
    let settled = |what: &str, expected: (usize, usize)| {
        wait_for(what, || (held() == expected).then_some(()));
    };
    // The listening socket and the acceptor's copy of it, two to wait for lanes, one each to wake the two threads; and
    // they.
    settled("the first connection to be gone", (before.0 + 6, before.1 + 2));
    for round in 0..1000 {
        let ends = connect(&tcp, &mut listener);
        if round % 100 == 99 {
            drop(ends);
            settled("all connections to be gone", (before.0 + 6, before.1 + 2));
        }
    }
    drop(listener);
    drop(tcp);
    settled("everything to be gone", before);
}
