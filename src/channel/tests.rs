//! Claims about channels: who is let in, what is noticed, what a stranger can cost.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::greeting::{Agreed, GREETING_BYTES, Greeting, Step};
use super::{CHANNEL_VERSION, Channel, ChannelError, Identity, Purpose, Secret, Terms};

fn terms(secret: Option<&Secret>) -> Terms {
    Terms { secret: secret.cloned(), ..Terms::new(Purpose::Rendezvous) }
}

fn secret(text: &str) -> Secret {
    Secret::from_text(text, "a test").unwrap()
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn pair(client: &Terms, server: &Terms) -> (Channel, Channel) {
    let (listener, address) = listener();
    let client = Channel::connect(address, client).unwrap();
    (client, Channel::accept(listener.accept().unwrap().0, server).unwrap())
}

/// Polls both until one has something to say, or fails.
fn meet(a: &mut Channel, b: &mut Channel) -> (Result<Vec<u8>, ChannelError>, bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
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
fn both_sides_learn_who_the_other_is_and_messages_of_every_size_arrive_in_order() {
    let shared = secret("a secret that both know");
    let client = Identity { role: 2, rank: Some(0), epoch: 0 };
    let server = Identity { role: 1, rank: None, epoch: u64::MAX - 1 };
    let limit = 3 << 20;
    let (mut a, mut b) = pair(
        &Terms { identity: client, limit, ..terms(Some(&shared)) },
        &Terms { identity: server, limit, ..terms(Some(&shared)) },
    );
    let sizes = [0, 1, 31, 32, 65_535, 65_536, 65_537, limit];
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
        let deadline = Instant::now() + Duration::from_secs(20);
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
    let (mut a, mut b) = pair(&Terms::new(Purpose::Transport), &Terms::new(Purpose::Rendezvous));
    let (error, _) = meet(&mut a, &mut b);
    assert!(matches!(error, Err(ChannelError::Purpose { theirs: "memory over tcp", .. })), "{error:?}");
    let error = loop {
        if let Err(error) = a.poll() {
            break error;
        }
    };
    assert!(error.to_string().contains("it serves a meeting point, not memory over tcp"), "{error}");
}

#[test]
fn another_version_is_named_on_both_sides() {
    let (listener, address) = listener();
    let mut stranger = TcpStream::connect(address).unwrap();
    let mut server = Channel::accept(listener.accept().unwrap().0, &terms(None)).unwrap();
    let (_, mut hail) = Greeting::client(None, Purpose::Rendezvous, Identity::default(), [7; 32]);
    hail[8] = 9;
    stranger.write_all(&hail).unwrap();
    let error = loop {
        if let Err(error) = server.poll() {
            break error;
        }
    };
    assert!(matches!(error, ChannelError::Version { theirs: 9 }), "{error:?}");
    let mut answer = [0; GREETING_BYTES];
    stranger.read_exact(&mut answer).unwrap();
    let (mut client, _) = Greeting::client(None, Purpose::Rendezvous, Identity::default(), [7; 32]);
    answer[8] = CHANNEL_VERSION as u8 + 1;
    let Err(failed) = client.receive(&answer) else { panic!("a refusal was taken for an answer") };
    assert!(failed.error.to_string().contains(&format!("version {}", CHANNEL_VERSION + 1)));
}

#[test]
fn without_a_secret_only_loopback_is_dialled() {
    let far = "192.0.2.1:7000".parse().unwrap();
    let error = Channel::connect(far, &terms(None)).err().expect("refused");
    assert!(matches!(error, ChannelError::NeedsSecret { .. }));
    assert!(error.to_string().contains("mode 0600"), "{error}");
}

/// The four messages of a good greeting, and what both sides agreed on.
fn conversation(secret: &Secret) -> ([[u8; GREETING_BYTES]; 4], Box<Agreed>, Box<Agreed>) {
    let who = |role| Identity { role, rank: Some(role), epoch: 5 };
    let (mut client, hail) = Greeting::client(Some(secret), Purpose::Transport, who(1), [1; 32]);
    let mut server = Greeting::server(Some(secret), Purpose::Transport, who(2), [2; 32]);
    let Ok(Step::Answer(dare)) = server.receive(&hail) else { panic!() };
    let Ok(Step::Answer(proof)) = client.receive(&dare) else { panic!() };
    let Ok(Step::Done(Some(welcome), at_server)) = server.receive(&proof) else { panic!() };
    let Ok(Step::Done(None, at_client)) = client.receive(&welcome) else { panic!() };
    ([hail, dare, proof, welcome], at_client, at_server)
}

#[test]
fn a_replayed_greeting_is_refused() {
    let secret = secret("a secret that both know");
    let ([hail, _, proof, _], ..) = conversation(&secret);
    let mut server = Greeting::server(Some(&secret), Purpose::Transport, Identity::default(), [3; 32]);
    assert!(matches!(server.receive(&hail), Ok(Step::Answer(_))));
    let Err(failed) = server.receive(&proof) else { panic!("a replayed proof was taken") };
    assert!(matches!(failed.error, ChannelError::Secret));
}

#[test]
fn a_proof_cannot_be_sent_back_to_its_author() {
    let secret = secret("a secret that both know");
    let (mut client, hail) =
        Greeting::client(Some(&secret), Purpose::Transport, Identity::default(), [1; 32]);
    // A mirror that knows no secret: it answers with the client's own words.
    let mut dare = hail;
    dare[..8].copy_from_slice(b"slk-dare");
    let Ok(Step::Answer(mut proof)) = client.receive(&dare) else { panic!() };
    proof[..8].copy_from_slice(b"slk-well");
    assert!(client.receive(&proof).is_err());
}

#[test]
fn every_changed_byte_of_a_greeting_is_noticed() {
    let secret = secret("a secret that both know");
    let who = |role| Identity { role, rank: Some(role), epoch: 5 };
    for message in 0..4 {
        for at in 0..GREETING_BYTES {
            let (mut client, mut hail) = Greeting::client(Some(&secret), Purpose::Transport, who(1), [1; 32]);
            let mut server = Greeting::server(Some(&secret), Purpose::Transport, who(2), [2; 32]);
            let change = |number, bytes: &mut [u8; GREETING_BYTES]| {
                if number == message {
                    bytes[at] ^= 0x41;
                }
            };
            let mut talk = || -> Option<()> {
                change(0, &mut hail);
                let Ok(Step::Answer(mut dare)) = server.receive(&hail) else { return None };
                change(1, &mut dare);
                let Ok(Step::Answer(mut proof)) = client.receive(&dare) else { return None };
                change(2, &mut proof);
                let Ok(Step::Done(Some(mut welcome), _)) = server.receive(&proof) else { return None };
                change(3, &mut welcome);
                client.receive(&welcome).is_ok().then_some(())
            };
            assert!(talk().is_none(), "message {message}, byte {at}");
        }
    }
}

#[test]
fn a_damaged_repeated_or_reflected_message_is_noticed() {
    let (_, mut at_client, mut at_server) = conversation(&secret("a secret that both know"));
    let mut sealed = Vec::new();
    at_client.sending.seal(b"add 1", &mut sealed);
    let body = sealed[4..].to_vec();
    for at in 0..body.len() {
        let mut bad = body.clone();
        bad[at] ^= 1;
        let (_, _, mut fresh) = conversation(&secret("a secret that both know"));
        assert!(matches!(fresh.receiving.open(&mut bad), Err(ChannelError::Damaged)));
    }
    assert!(at_client.receiving.open(&mut body.clone()).is_err(), "reflected");
    assert!(at_server.receiving.open(&mut body.clone()).is_ok());
    assert!(at_server.receiving.open(&mut body.clone()).is_err(), "repeated");
}

#[test]
fn a_promise_of_a_long_message_allocates_nothing_before_it_comes() {
    let (listener, address) = listener();
    let mut stranger = TcpStream::connect(address).unwrap();
    let mut server = Channel::accept(listener.accept().unwrap().0, &terms(None)).unwrap();
    stranger.write_all(&[0xFF; 4096]).unwrap();
    let error = loop {
        if let Err(error) = server.poll() {
            break error;
        }
    };
    assert!(matches!(error, ChannelError::Foreign));

    let (mut a, mut b) = pair(&Terms { limit: 8, ..terms(None) }, &Terms { limit: 8, ..terms(None) });
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
    let (mut a, mut b) = (a.into_stream(), b.into_stream());
    a.write_all(b"bare").unwrap();
    b.set_nonblocking(false).unwrap();
    let mut bytes = [0; 4];
    b.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"bare");
}

proptest! {
    #[test]
    fn no_bytes_of_a_stranger_panic(messages in prop::collection::vec(any::<[u8; 32]>(), 2..8), good in 0usize..6) {
        let tags: [&[u8; 8]; 6] =
            [b"slk-hail", b"slk-dare", b"slk-prov", b"slk-well", b"slk-nope", b"slk-shm\0"];
        let mut server = Greeting::server(None, Purpose::Transport, Identity::default(), [2; 32]);
        let (mut client, _) = Greeting::client(None, Purpose::Transport, Identity::default(), [1; 32]);
        for pair in messages.chunks_exact(2) {
            let mut message: [u8; 64] = [pair[0], pair[1]].concat().try_into().unwrap();
            message[..8].copy_from_slice(tags[good]);
            if pair[0][0] & 1 == 0 {
                message[8..12].copy_from_slice(&CHANNEL_VERSION.to_le_bytes());
                message[12..16].copy_from_slice(&2u32.to_le_bytes());
            }
            prop_assert!(!matches!(server.receive(&message), Ok(Step::Done(..))));
            prop_assert!(!matches!(client.receive(&message), Ok(Step::Done(..))));
        }
    }
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
    let mut server = Channel::accept(listener.accept().unwrap().0, &terms(None)).unwrap();
    while !client.is_open() {
        client.poll().unwrap();
        server.poll().unwrap();
        assert!(Instant::now() < deadline, "no greeting");
    }
}
