//! A man in the middle of an encrypted connection, and peers that do not agree on encryption.

use std::net::Shutdown;
use std::sync::Mutex;

use super::super::connection::lock;
use super::super::record::{CUT, DAMAGED};
use super::*;
use crate::diagnostic::Diagnostic;
use crate::transport::Disconnected;

/// The change that the man in the middle makes to the records of one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tamper {
    /// Flips a bit of this byte of the first record.
    Flip(usize),
    /// Keeps the first record to itself.
    Drop,
    /// Passes the first record on twice.
    Repeat,
    /// Passes the second record on before the first.
    Swap,
    /// Passes half of the first record on, and then the end of the stream.
    Cut,
}

/// The bytes that the man in the middle has received, and its orders.
#[derive(Default)]
struct Middle {
    heard: Mutex<Vec<u8>>,
    to_server: Mutex<Option<Tamper>>,
    to_client: Mutex<Option<Tamper>>,
}

/// Relays connections to a listener; returns the address at which it takes them.
fn relay(target: SocketAddr) -> (Address, Arc<Middle>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, middle) = (Address::Tcp(listener.local_addr().unwrap()), Arc::new(Middle::default()));
    let shared = Arc::clone(&middle);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(target).unwrap());
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let (there, here) = (Arc::clone(&shared), Arc::clone(&shared));
            std::thread::spawn(move || pass(client, server, &there.heard, &there.to_server));
            std::thread::spawn(move || pass(back.0, back.1, &here.heard, &here.to_client));
        }
    });
    (address, middle)
}

/// Passes the bytes of one direction on, until one side is gone. From the first record on that is to be changed, it
/// passes whole records.
fn pass(mut from: TcpStream, mut to: TcpStream, heard: &Mutex<Vec<u8>>, tamper: &Mutex<Option<Tamper>>) {
    let (mut bytes, mut waiting, mut held) = (vec![0; 1 << 16], Vec::new(), None);
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        lock(heard).extend(&bytes[..read]);
        waiting.extend(&bytes[..read]);
        let tamper = *lock(tamper);
        let passed = match tamper {
            None => std::mem::take(&mut waiting),
            Some(tamper) => take_records(&mut waiting, tamper, &mut held),
        };
        if to.write_all(&passed).is_err() || (tamper == Some(Tamper::Cut) && !passed.is_empty()) {
            break;
        }
    }
    let _gone = to.shutdown(Shutdown::Write);
}

/// Takes whole records out of `waiting`, and changes the first one of all, which then stays in `held`.
fn take_records(waiting: &mut Vec<u8>, tamper: Tamper, held: &mut Option<Vec<u8>>) -> Vec<u8> {
    let mut passed = Vec::new();
    while let Some(length) = waiting.first_chunk::<4>() {
        let whole = 4 + u32::from_le_bytes(*length) as usize + 16;
        if waiting.len() < whole {
            break;
        }
        let mut record: Vec<u8> = waiting.drain(..whole).collect();
        match (tamper, &held) {
            (Tamper::Flip(at), None) => {
                let changed = record.clone();
                *held = Some(changed);
                let at = at % record.len();
                record[at] ^= 0x10;
                passed.extend(record);
            }
            (Tamper::Drop | Tamper::Swap, None) => *held = Some(record),
            (Tamper::Repeat, None) => {
                passed.extend(record.repeat(2));
                *held = Some(record);
            }
            (Tamper::Cut, None) => {
                passed.extend(&record[..whole / 2]);
                return passed;
            }
            (Tamper::Swap, Some(first)) if !first.is_empty() => {
                passed.extend(record);
                passed.extend(first);
                *held = Some(Vec::new());
            }
            _ => passed.extend(record),
        }
    }
    passed
}

fn encrypting(secret: &Secret) -> Tcp {
    Tcp::with_secret(secret.clone().encrypting())
}

/// A connection by way of a man in the middle: the client, the server, the memory of the server, and a buffer of the
/// client.
struct Relayed {
    middle: Arc<Middle>,
    client: TcpEndpoint,
    server: TcpEndpoint,
    remote: RemoteSlice,
    region: MemoryRegion,
    local: MemoryRegion,
    _listener: TcpListener,
}

impl Relayed {
    fn connect(tcp: &Tcp, bytes: usize) -> Relayed {
        let mut listener = listen(tcp);
        let (address, middle) = relay(address_of(&listener));
        let (region, local) =
            (tcp.allocate(bytes, ALL).unwrap(), tcp.allocate(bytes, Access::LOCAL).unwrap());
        let mut connecting = tcp.connect(&address, Offer::default()).unwrap();
        let mut server = None;
        let (client, received) = wait_for("a connection", || {
            if let Some(incoming) = listener.poll(NOW) {
                server = Some(incoming.accept(offer(vec![region.whole()])).unwrap());
            }
            match connecting.poll(NOW) {
                Poll::Ready(connected) => Some(connected.unwrap()),
                Poll::Pending => None,
            }
        });
        let (server, remote) = (server.unwrap(), received.grants[0]);
        Relayed { middle, client, server, remote, region, local, _listener: listener }
    }

    fn write(&self, id: u64) -> WorkRequest {
        let (local, remote, streaming) = (self.local.whole(), self.remote, Streaming::default());
        WorkRequest::signalled(id, Operation::Write { local, remote, streaming })
    }

    fn read(&self, id: u64) -> WorkRequest {
        let (local, remote, streaming) = (self.local.whole(), self.remote, Streaming::default());
        WorkRequest::signalled(id, Operation::Read { local, remote, streaming })
    }

    fn carry_out(&mut self, request: WorkRequest) {
        self.client.post(&[request]).unwrap();
        assert_eq!(wait_for("a completion", || self.client.poll()).result, Ok(()));
    }
}

/// Bytes that are unlike all others on the wire.
fn gradients(bytes: usize) -> Vec<u8> {
    (0..bytes as u32 / 4).flat_map(|index| (index as f32 * 0.37).sin().to_le_bytes()).collect()
}

#[test]
fn a_listener_sees_gradients_in_the_clear_and_not_once_they_are_encrypted() {
    let secret = Secret::random().unwrap();
    let bytes = 300_000;
    let pattern = gradients(bytes);
    for (tcp, is_seen) in [(Tcp::with_secret(secret.clone()), true), (encrypting(&secret), false)] {
        let mut relayed = Relayed::connect(&tcp, bytes);
        relayed.local.as_volatile().write(&pattern);
        relayed.carry_out(relayed.write(1));
        let mut arrived = vec![0; bytes];
        relayed.region.as_volatile().read(&mut arrived);
        assert!(arrived == pattern);
        relayed.carry_out(relayed.read(2));
        let heard = lock(&relayed.middle.heard);
        assert!(heard.len() > 2 * bytes);
        for at in (0..bytes - 16).step_by(4096) {
            let part = &pattern[at..at + 16];
            assert_eq!(heard.windows(16).any(|window| window == part), is_seen, "at byte {at}");
        }
    }
}

/// The ends of both sides after a change of the bytes to the server.
fn tampered(tamper: Tamper) -> (Disconnected, u64) {
    let mut relayed = Relayed::connect(&encrypting(&Secret::random().unwrap()), 4096);
    *lock(&relayed.middle.to_server) = Some(tamper);
    for value in 1..=400 {
        let remote = relayed.remote.slice(0, 8).unwrap();
        let operation = Operation::WriteInline { data: Inline::word(value), remote };
        if relayed.client.post(&[WorkRequest::signalled(value, operation)]).is_err() {
            break;
        }
        relayed.client.poll();
    }
    // A length that grew makes the record wait for more bytes than it had.
    relayed.local.as_volatile().write(&gradients(4096));
    let _over_already = relayed.client.post(&vec![relayed.write(1000); 100]);
    let over = wait_for("the server to notice", || {
        relayed.client.poll();
        relayed.server.check().err()
    });
    wait_for("the client to hear of it", || {
        relayed.client.poll();
        relayed.client.check().err()
    });
    (over, relayed.region.as_volatile().load_u64(0))
}

#[test]
fn a_flipped_bit_ends_the_connection_and_applies_nothing() {
    // Both ends of the length, of the request and of the tag.
    for at in [0, 1, 2, 3, 4, 30, 59, 60, 70, 75] {
        let (over, word) = tampered(Tamper::Flip(at));
        assert_eq!((over.reason, word), (DAMAGED.0, 0), "byte {at}");
    }
}

#[test]
fn a_dropped_and_a_swapped_record_end_the_connection_and_apply_nothing() {
    for tamper in [Tamper::Drop, Tamper::Swap] {
        let (over, word) = tampered(tamper);
        assert_eq!((over.reason, word), (DAMAGED.0, 0), "{tamper:?}");
    }
}

#[test]
fn a_repeated_record_is_applied_once_and_ends_the_connection() {
    let (over, word) = tampered(Tamper::Repeat);
    assert_eq!((over.reason, word), (DAMAGED.0, 1));
}

#[test]
fn a_record_that_is_cut_off_ends_the_connection_and_applies_nothing() {
    let (over, word) = tampered(Tamper::Cut);
    assert_eq!((over.reason, word), (CUT.0, 0));
}

#[test]
fn a_changed_answer_ends_the_connection_and_completes_nothing() {
    for tamper in [Tamper::Flip(4), Tamper::Flip(43), Tamper::Cut] {
        let mut relayed = Relayed::connect(&encrypting(&Secret::random().unwrap()), 4096);
        relayed.region.as_volatile().store_u64(0, 7);
        *lock(&relayed.middle.to_client) = Some(tamper);
        relayed.client.post(&[relayed.read(1)]).unwrap();
        let completion = wait_for("a completion", || relayed.client.poll());
        assert_eq!(completion.result, Err(CompletionError::Flushed));
        assert_eq!(relayed.local.as_volatile().load_u64(0), 0);
        let expected = if tamper == Tamper::Cut { CUT } else { DAMAGED };
        assert_eq!(relayed.client.check().unwrap_err().reason, expected.0, "{tamper:?}");
    }
}

#[test]
fn a_peer_that_does_not_encrypt_is_refused_by_name_and_the_other_way_round() {
    let secret = Secret::random().unwrap();
    let of = |encrypts| if encrypts { encrypting(&secret) } else { Tcp::with_secret(secret.clone()) };
    for (server, client) in [(false, false), (false, true), (true, false), (true, true)] {
        let (tcp, other) = (of(server), of(client));
        let mut listener = listen(&tcp);
        let mut connecting = other.connect(&listener.address(), Offer::default()).unwrap();
        let mut accepted = None;
        let outcome = wait_for("an outcome", || {
            if let Some(incoming) = listener.poll(NOW) {
                assert_eq!(server, client, "a peer that must not get in");
                accepted = Some(incoming.accept(Offer::default()).unwrap());
            }
            match connecting.poll(NOW) {
                Poll::Ready(outcome) => Some(outcome.map(drop)),
                Poll::Pending => None,
            }
        });
        match outcome {
            Ok(()) => assert!(server == client && accepted.is_some()),
            Err(error) => {
                let text = error.to_string();
                assert_ne!(server, client, "{text}");
                let theirs = if server { "data is encrypted" } else { "data is in the clear" };
                assert!(text.contains(theirs) && text.contains("SLACKLINE_TCP_ENCRYPT"), "{text}");
                assert!(!error.is_retryable());
            }
        }
        honest_peers_are_served(&tcp, &mut listener);
    }
}

#[test]
fn records_that_were_received_and_not_yet_served_are_not_forgotten() {
    // Longer than a turn of the thread and than all buffers: bytes that were received and not served must not be lost.
    let tcp = encrypting(&Secret::random().unwrap());
    let mut relayed = Relayed::connect(&tcp, 5 << 20);
    let pattern = gradients(5 << 20);
    relayed.local.as_volatile().write(&pattern);
    for id in 0..6 {
        relayed.carry_out(relayed.write(id));
    }
    let mut arrived = vec![0; 5 << 20];
    relayed.region.as_volatile().read(&mut arrived);
    assert!(arrived == pattern);
}
