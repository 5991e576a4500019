//! Claims about channels: which peers are accepted, which attacks are noticed, and the cost of an unauthenticated peer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::fuzz::sessions;
use super::greeting::{Greeting, GreetingStep, OPENING_BYTES};
use super::session::{HEADER_BYTES, Session, body_bytes};
use super::{CHANNEL_VERSION, Channel, ChannelError, ChannelTerms, Identity, Purpose, Secret};

fn terms(secret: Option<&Secret>) -> ChannelTerms {
    ChannelTerms { secret: secret.cloned(), ..ChannelTerms::new(Purpose::Rendezvous) }
}

fn secret(text: &str) -> Secret {
    Secret::from_text(text, "a test").unwrap()
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn pair(client: &ChannelTerms, server: &ChannelTerms) -> (Channel, Channel) {
    let (listener, address) = listener();
    let client = Channel::connect(address, client).unwrap();
    (client, Channel::accept(&listener, server).unwrap().unwrap())
}

#[cfg(feature = "verbs")]
#[test]
fn nothing_is_said_before_the_poll_after_a_connection_is_taken() {
    let (listener, address) = listener();
    let mut client = Channel::connect(address, &terms(None)).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !client.is_taken().unwrap() {
        assert!(Instant::now() < deadline, "the connection is not taken");
        std::thread::yield_now();
    }
    stream.set_nonblocking(true).unwrap();
    let heard = |stream: &TcpStream| stream.peek(&mut [0]);
    assert_eq!(heard(&stream).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    client.poll().unwrap();
    stream.set_nonblocking(false).unwrap();
    assert_eq!(heard(&stream).unwrap(), 1);
}

/// Polls both until one has something to say, or fails.
fn meet(a: &mut Channel, b: &mut Channel) -> (Result<Vec<u8>, ChannelError>, bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        for (first, channel) in [(true, &mut *a), (false, &mut *b)] {
            match channel.poll() {
                Ok(None) => {}
                Ok(Some(message)) => return (Ok(message), first),
                Err(error) => return (Err(error), first),
            }
        }
        assert!(Instant::now() < deadline, "nothing happened");
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_reader_is_known_as_one_and_opens_nothing_but_memory() {
    let job = secret("a secret that both know");
    let reading = job.reading();
    let of = |secret: &Secret, purpose| ChannelTerms {
        secret: Some(secret.clone()),
        ..ChannelTerms::new(purpose)
    };
    for purpose in [Purpose::Transport, Purpose::EncryptedTransport, Purpose::Verbs] {
        for (client, reads_only) in [(&reading, true), (&job, false)] {
            let (mut a, mut b) = pair(&of(client, purpose), &of(&job, purpose));
            a.send(b"hello").unwrap();
            assert_eq!(meet(&mut a, &mut b).0.unwrap(), b"hello");
            assert_eq!((a.reads_only(), b.reads_only()), (false, reads_only), "{purpose:?}");
        }
        // The secret of another job, and a listener that has no more than the reader has.
        for server in [&secret("a secret of another job"), &reading] {
            let (mut a, mut b) = pair(&of(&reading, purpose), &of(server, purpose));
            a.send(b"hello").unwrap();
            let error = meet(&mut a, &mut b).0.unwrap_err();
            assert!(matches!(error, ChannelError::Secret | ChannelError::ReadingOnly), "{error}");
        }
    }
    for purpose in [Purpose::Rendezvous, Purpose::Measurement] {
        let refused = Greeting::client(Some(&reading), purpose, Identity::default()).err().unwrap();
        assert!(matches!(refused, ChannelError::ReadingOnly), "{refused}");
    }
}

/// An attacker that knows the reader's secret has the key that both sides share. The publisher's own key, by which it
/// answers, cannot be derived from that secret.
#[test]
fn a_reader_cannot_pass_for_an_owner() {
    let job = secret("a secret that both know");
    let (reading, purpose) = (job.reading(), Purpose::Transport);
    let (_, hello) = Greeting::client(Some(&reading), purpose, Identity::default()).unwrap();
    let shared = reading.keys(true, true).unwrap().shared;
    let reads = |private: &[u8; 32]| {
        let noise = snow::Builder::new("Noise_NKpsk0_25519_ChaChaPoly_SHA256".parse().unwrap());
        let noise = noise.psk(0, &shared).unwrap().prologue(&hello[..16]).unwrap();
        let mut noise = noise.local_private_key(private).unwrap().build_responder().unwrap();
        noise.read_message(&hello[16..], &mut []).is_ok()
    };
    assert!(reads(&job.keys(true, false).unwrap().of_owner.unwrap()));
    assert!(!reads(&[7; 32]) && !reads(&shared));
}

#[test]
fn both_sides_learn_identities_and_messages_of_every_size_arrive_in_order() {
    let shared = secret("a secret that both know");
    let client = Identity { role: 2, rank: Some(0), epoch: 0 };
    let server = Identity { role: 1, rank: None, epoch: u64::MAX - 1 };
    let limit = 3 << 20;
    let (mut a, mut b) = pair(
        &ChannelTerms { identity: client, limit, ..terms(Some(&shared)) },
        &ChannelTerms { identity: server, limit, ..terms(Some(&shared)) },
    );
    let sizes = [0, 1, 65_518, 65_519, 65_520, 65_536, 2 * 65_519, limit];
    for (index, size) in sizes.into_iter().enumerate() {
        a.send(&vec![index as u8; size]).unwrap();
        b.send(&vec![!(index as u8); size]).unwrap();
    }
    let mut heard = [0, 0];
    while heard.iter().any(|count| *count < sizes.len()) {
        let (message, first) = meet(&mut a, &mut b);
        let count = &mut heard[usize::from(first)];
        let byte = if first { !(*count as u8) } else { *count as u8 };
        assert_eq!(message.unwrap(), vec![byte; sizes[*count]]);
        *count += 1;
    }
    assert_eq!((a.peer(), b.peer()), (Some(server), Some(client)));
    assert!(a.is_flushed() && b.is_flushed());
}

#[test]
fn who_does_not_know_the_secret_is_told_so_and_learns_nothing() {
    let right = secret("a secret that one knows");
    for (client, server) in [
        (Some(secret("a secret that is wrong")), Some(right.clone())),
        (None, Some(right.clone())),
        (Some(right.clone()), None),
    ] {
        let (mut a, mut b) = pair(&terms(client.as_ref()), &terms(server.as_ref()));
        a.send(b"for those who know").unwrap();
        let (mut errors, mut both) = (Vec::new(), [&mut a, &mut b]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while errors.len() < 2 && Instant::now() < deadline {
            for channel in &mut both {
                if let Err(error) = channel.poll()
                    && errors.len() < 2
                {
                    errors.push(error.to_string());
                }
            }
        }
        assert!(errors[0].contains("do not know the same secret"), "{errors:?}");
        assert!(both.iter().all(|channel| !channel.is_open()));
    }
}

#[test]
fn the_wrong_kind_of_port_says_what_it_is() {
    let (mut a, mut b) =
        pair(&ChannelTerms::new(Purpose::Transport), &ChannelTerms::new(Purpose::Rendezvous));
    let (error, _) = meet(&mut a, &mut b);
    assert!(matches!(error, Err(ChannelError::Purpose { theirs: "memory over tcp", .. })), "{error:?}");
    let error = error_of(&mut a);
    assert!(error.to_string().contains("it serves a rendezvous, not memory over tcp"), "{error}");
}

/// Bytes that processes of channel version 1 sent: a hello of a worker to a rendezvous, and the answer of a
/// rendezvous to a hello of version 2.
const HELLO_1: &str = "736c6b2d6861696c010000000100000002000000000000000000000000000000\
                      eeb03078786d2bf32d60a31e7a0d6a78a50e1e1d5e4b6f29ffdb038e61ee9095";
const REFUSAL_1: &str = "736c6b2d6e6f7065010000000101000000000000000000000000000000000000\
                         0000000000000000000000000000000000000000000000000000000000000000";

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&hexadecimal[at..at + 2], 16).unwrap();
    (0..hexadecimal.len()).step_by(2).map(digit).collect()
}

fn error_of(channel: &mut Channel) -> ChannelError {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match channel.poll() {
            Ok(message) => assert_eq!(message, None),
            Err(error) => return error,
        }
        assert!(Instant::now() < deadline, "it does not fail");
    }
}

#[test]
fn a_client_of_version_1_is_refused_by_name_and_can_read_the_refusal() {
    let (listener, address) = listener();
    let mut old = TcpStream::connect(address).unwrap();
    let mut server = Channel::accept(&listener, &terms(None)).unwrap().unwrap();
    old.write_all(&bytes(HELLO_1)).unwrap();
    let error = error_of(&mut server);
    assert!(matches!(error, ChannelError::Version { theirs: 1 }), "{error:?}");
    drop(server);
    // A peer of version 1 reads as many bytes as its own refusals have, and finds tag, version and reason as in those.
    let mut answer = Vec::new();
    old.read_to_end(&mut answer).unwrap();
    let expected = [b"slk-nope", &CHANNEL_VERSION.to_le_bytes()[..], &bytes(REFUSAL_1)[12..]].concat();
    assert_eq!(answer, expected);
}

#[test]
fn a_server_of_version_1_is_named_to_the_client() {
    let (listener, address) = listener();
    let mut client = Channel::connect(address, &terms(None)).unwrap();
    let mut old = listener.accept().unwrap().0;
    assert_eq!(client.poll().unwrap(), None);
    // It reads a whole hello before it answers, and resets the connection if that is longer than its own.
    let mut hello = vec![0; bytes(HELLO_1).len()];
    old.read_exact(&mut hello).unwrap();
    old.set_nonblocking(true).unwrap();
    assert!(old.read(&mut [0]).is_err(), "the hello is longer than one of version 1");
    assert_eq!(hello[..8], bytes(HELLO_1)[..8]);
    old.write_all(&bytes(REFUSAL_1)).unwrap();
    let error = error_of(&mut client);
    assert!(matches!(error, ChannelError::Version { theirs: 1 }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("version 1") && text.contains(&format!("version {CHANNEL_VERSION}")), "{text}");
}

#[test]
fn without_a_secret_only_loopback_is_dialled() {
    let far = "192.0.2.1:7000".parse().unwrap();
    let error = Channel::connect(far, &terms(None)).err().expect("refused");
    assert!(matches!(error, ChannelError::NeedsSecret { .. }));
    assert!(error.to_string().contains("mode 0600"), "{error}");
}

fn client(secret: &Secret) -> (Greeting, Vec<u8>) {
    let identity = Identity { role: 1, rank: Some(1), epoch: 5 };
    Greeting::client(Some(secret), Purpose::Transport, identity).unwrap()
}

fn server(secret: &Secret) -> Greeting {
    Greeting::server(Some(secret), Purpose::Transport, Identity { role: 2, rank: Some(2), epoch: 5 })
}

#[test]
fn a_recorded_handshake_opens_nothing_when_it_is_repeated() {
    let secret = secret("a secret that both know");
    let (mut honest, hello) = client(&secret);
    let mut first = server(&secret);
    let Ok(GreetingStep::Answer(welcome)) = first.receive(&hello) else { panic!() };
    let Ok(GreetingStep::Done(Some(confirmation), _)) = honest.receive(&welcome) else { panic!() };
    assert!(matches!(first.receive(&confirmation), Ok(GreetingStep::Done(None, _))));
    // A hello can be repeated, which is why the channel does not open to it.
    let mut second = server(&secret);
    assert!(matches!(second.receive(&hello), Ok(GreetingStep::Answer(_))));
    let Err(failed) = second.receive(&confirmation) else { panic!("a repeated confirmation was taken") };
    assert!(matches!(failed.error, ChannelError::Secret));
    let (mut other, _) = client(&secret);
    let Err(failed) = other.receive(&welcome) else { panic!("a repeated welcome was taken") };
    assert!(matches!(failed.error, ChannelError::Secret));
}

#[test]
fn a_hello_cannot_be_sent_back_to_its_author() {
    let (mut client, mut hello) = client(&secret("a secret that both know"));
    // A mirror that knows no secret: it answers with the client's own words.
    hello[..8].copy_from_slice(b"slk-well");
    hello.resize(client.wanted(&hello), 0);
    assert!(client.receive(&hello).is_err());
}

#[test]
fn every_changed_byte_of_a_handshake_is_noticed() {
    let secret = secret("a secret that both know");
    let lengths = [OPENING_BYTES, 80, 32];
    for (message, length) in lengths.into_iter().enumerate() {
        for at in 0..length {
            let (mut client, mut hello) = client(&secret);
            let mut server = server(&secret);
            let change = |number, bytes: &mut Vec<u8>| {
                assert_eq!(bytes.len(), lengths[number]);
                if number == message {
                    bytes[at] ^= 0x41;
                }
            };
            let mut talk = || -> Option<()> {
                change(0, &mut hello);
                let Ok(GreetingStep::Answer(mut welcome)) = server.receive(&hello) else { return None };
                change(1, &mut welcome);
                let Ok(GreetingStep::Done(Some(mut answer), _)) = client.receive(&welcome) else {
                    return None;
                };
                change(2, &mut answer);
                server.receive(&answer).is_ok().then_some(())
            };
            assert!(talk().is_none(), "message {message}, byte {at}");
        }
    }
}

#[test]
fn neither_who_one_is_nor_what_one_says_can_be_read_on_the_way() {
    let secret = secret("a secret that both know");
    let identity = Identity { role: 0x2222_2222, rank: Some(0x3333_3332), epoch: 0x4444_4444_4444_4444 };
    let (mut client, hello) = Greeting::client(Some(&secret), Purpose::Transport, identity).unwrap();
    let mut server = Greeting::server(Some(&secret), Purpose::Transport, identity);
    let Ok(GreetingStep::Answer(welcome)) = server.receive(&hello) else { panic!() };
    let Ok(GreetingStep::Done(Some(confirmation), mut agreed)) = client.receive(&welcome) else { panic!() };
    let mut sealed = Vec::new();
    agreed.session.seal(b"the words of a client", &mut sealed);
    let said = [hello, welcome, confirmation, sealed].concat();
    let contains = |words: &[u8]| said.windows(words.len()).any(|window| window == words);
    assert!(contains(b"slk-hail") && contains(b"slk-well"), "these are for everybody to read");
    for hidden in [&b"words"[..], &[0x22; 4], &[0x33; 4], &[0x44; 4]] {
        assert!(!contains(hidden), "{hidden:x?} can be read");
    }
}

fn open(session: &mut Session, sealed: &[u8]) -> Result<Vec<u8>, ChannelError> {
    let (header, body) = sealed.split_at(HEADER_BYTES);
    assert_eq!(body_bytes(session.open_header(header)?), body.len());
    session.open_body(body)
}

#[test]
fn a_damaged_repeated_or_reflected_message_is_noticed() {
    let damaged = |at_client: &[u8], mut at_server: Session| {
        matches!(open(&mut at_server, at_client), Err(ChannelError::Damaged))
    };
    for at in 0..HEADER_BYTES + body_bytes(5) {
        let [mut at_client, at_server] = sessions();
        let mut sealed = Vec::new();
        at_client.seal(b"add 1", &mut sealed);
        sealed[at] ^= 1;
        assert!(damaged(&sealed, at_server), "byte {at}");
    }
    let [mut at_client, mut at_server] = sessions();
    let mut sealed = Vec::new();
    at_client.seal(b"add 1", &mut sealed);
    assert!(open(&mut at_client, &sealed).is_err(), "reflected");
    assert_eq!(open(&mut at_server, &sealed).unwrap(), b"add 1");
    assert!(open(&mut at_server, &sealed).is_err(), "repeated");
}

#[test]
fn a_promise_of_a_long_message_allocates_nothing_before_it_comes() {
    let (listener, address) = listener();
    let mut unauthenticated_peer = TcpStream::connect(address).unwrap();
    let mut server = Channel::accept(&listener, &terms(None)).unwrap().unwrap();
    unauthenticated_peer.write_all(&[0xFF; 4096]).unwrap();
    let error = error_of(&mut server);
    assert!(matches!(error, ChannelError::Foreign));

    let (mut a, mut b) =
        pair(&ChannelTerms { limit: 8, ..terms(None) }, &ChannelTerms { limit: 8, ..terms(None) });
    a.send(b"nine byte").unwrap();
    let (result, first) = meet(&mut a, &mut b);
    assert!(!first && matches!(result, Err(ChannelError::Oversized { bytes: 9, limit: 8 })), "{result:?}");
}

#[test]
fn nothing_is_read_past_the_end_of_a_message() {
    let (mut a, mut b) = pair(&terms(None), &terms(None));
    a.send(b"from here on bare").unwrap();
    let (message, first) = meet(&mut a, &mut b);
    assert!(!first);
    assert_eq!(message.unwrap(), b"from here on bare");
    let (mut a, mut b) = (a.into_socket(), b.into_socket());
    a.write_all(b"bare").unwrap();
    b.set_nonblocking(false).unwrap();
    let mut bytes = [0; 4];
    b.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"bare");
}

proptest! {
    #[test]
    fn no_bytes_of_a_peer_panic(mut message in prop::collection::vec(any::<u8>(), 0..100), tag in 0usize..4) {
        let (mut client, _) = Greeting::client(None, Purpose::Transport, Identity::default()).unwrap();
        let server = || Greeting::server(None, Purpose::Transport, Identity::default());
        let (mut waiting, mut welcomed) = (server(), server());
        let (_, hello) = Greeting::client(None, Purpose::Transport, Identity::default()).unwrap();
        prop_assert!(matches!(welcomed.receive(&hello), Ok(GreetingStep::Answer(_))));
        if message.len() >= 16 {
            let tags: [&[u8; 8]; 4] = [b"slk-hail", b"slk-well", b"slk-nope", b"slk-shm\0"];
            message[..8].copy_from_slice(tags[tag]);
            if message[15] & 1 == 0 {
                message[8..12].copy_from_slice(&CHANNEL_VERSION.to_le_bytes());
                message[12..16].copy_from_slice(&2u32.to_le_bytes());
            }
        }
        for side in [&mut client, &mut waiting, &mut welcomed] {
            let mut heard = message.clone();
            heard.resize(side.wanted(&message), 0);
            prop_assert!(side.receive(&heard).is_err());
        }
    }
}

#[test]
fn a_port_at_which_no_process_listens_is_not_the_clients_own() {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let own = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&own, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    let stream = TcpStream::from(own);
    connect(&stream, &stream.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let address = stream.local_addr().unwrap();
    match Channel::dialled(stream, &terms(None)).poll().unwrap_err() {
        ChannelError::System { operation: "connect", source } => {
            assert_eq!(source.kind(), std::io::ErrorKind::ConnectionRefused);
        }
        error => panic!("{error}"),
    }
    // The listener that was to be there finds its port free.
    super::listen(address).unwrap();
}

/// The coordinator of a job keeps some of the initial values on their way to each member all the time.
#[test]
fn messages_that_are_sent_are_not_kept_while_there_are_more() {
    const WAITING: usize = 1 << 20;
    let (mut sender, mut reader) = pair(&terms(None), &terms(None));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !(sender.is_open() && reader.is_open()) {
        sender.poll().unwrap();
        reader.poll().unwrap();
    }
    let (message, mut heard) = (vec![7; 64 << 10], 0);
    while heard < 64 * WAITING {
        while sender.backlog() < WAITING {
            sender.send(&message).unwrap();
        }
        assert_eq!(sender.poll().unwrap(), None);
        assert!(sender.kept() < 4 * WAITING, "{} bytes are kept", sender.kept());
        heard += reader.poll().unwrap().map_or(0, |message| message.len());
        assert!(Instant::now() < deadline, "only {heard} bytes came");
    }
}

/// Since Linux 6.15 a listener that waits for a client's first bytes takes none that echo a time which it has told in
/// answer to a keep-alive probe.
#[test]
fn a_client_whose_first_word_comes_late_is_heard() {
    let listener = super::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut client = Channel::connect(listener.local_addr().unwrap(), &terms(None)).unwrap();
    client.send(b"at last").unwrap();
    // Longer than until the first probe.
    std::thread::sleep(Duration::from_millis(1500));
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut server = loop {
        assert_eq!(client.poll().unwrap(), None);
        match Channel::accept(&listener, &terms(None)) {
            Ok(server) => break server.unwrap(),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        assert!(Instant::now() < deadline, "it was not heard");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(meet(&mut client, &mut server).0.unwrap(), b"at last");
}

#[test]
fn a_listener_whose_queue_is_full_is_dialled_again_before_the_system_does() {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let _full = TcpStream::connect(address).unwrap();
    let mut client = Channel::connect(address, &terms(None)).unwrap();
    let first = client.local_address().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while client.local_address().unwrap() == first {
        assert_eq!(client.poll().unwrap(), None);
        assert!(Instant::now() < deadline, "it waits for the system");
    }
    drop(listener.accept().unwrap());
    let mut server = Channel::accept(&listener, &terms(None)).unwrap().unwrap();
    while !client.is_open() {
        client.poll().unwrap();
        server.poll().unwrap();
        assert!(Instant::now() < deadline, "no greeting");
    }
}
