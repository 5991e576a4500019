//! The greeting and sealed messages between two honest sides, with an attacker in between whose actions are the bytes
//! of the input.

use super::greeting::{Agreed, Greeting, GreetingStep, OPENING_BYTES};
use super::session::{HEADER_BYTES, Session, body_bytes};
use super::{Identity, Purpose, Secret};

/// Passes a message of the handshake on as it is. This and the next three are the actions of the attacker.
const PASS: u8 = 0;
/// Changes some bytes: their number, then for each its position and the bits to flip.
const CHANGE: u8 = 1;
/// Says something else instead: 64 bytes.
const REPLACE: u8 = 2;
/// Sends it back to the side that said it.
const REFLECT: u8 = 3;
const ACTIONS: u8 = 4;

/// The first byte of an input: the two sides know different secrets.
const UNAUTHENTICATED: u8 = 1;
/// Neither has a secret.
const OPEN: u8 = 2;
/// They mean different things by the connection.
const MIXED_UP: u8 = 4;
/// The client has a reader's secret, derived from its own secret.
const READER: u8 = 8;

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Applies the attacker's next action to `message`. Returns the result, and whether it goes back to the side
    /// that said it.
    fn deliver(&mut self, message: &[u8]) -> (Vec<u8>, bool) {
        let mut delivered = message.to_vec();
        match self.byte().unwrap_or(PASS) % ACTIONS {
            CHANGE => {
                for _ in 0..self.byte().unwrap_or(0) % 4 {
                    let (at, flip) = (self.byte().unwrap_or(0), self.byte().unwrap_or(0));
                    delivered[usize::from(at) % message.len()] ^= flip;
                }
            }
            REPLACE => {
                let said = self.take(message.len());
                delivered[..said.len()].copy_from_slice(said);
            }
            REFLECT => return (delivered, true),
            _ => {}
        }
        (delivered, false)
    }
}

/// Runs a handshake whose messages the attacker passes on, changes, replaces or sends back. A side that ends up
/// with an open channel must know the same secret as the other side, and must have been told only what that side
/// said. Then both must agree on their identities and on the keys.
pub(crate) fn fuzz_greeting(bytes: &[u8]) {
    let mut script = Script(bytes);
    let setting = script.byte().unwrap_or(0);
    let secret =
        |text| (setting & OPEN == 0).then(|| Secret::from_text(text, "a test").expect("long enough"));
    let ours = secret("a secret of two sides");
    let theirs = if setting & UNAUTHENTICATED == 0 { ours.clone() } else { secret("another of nobody's") };
    let purpose = if setting & MIXED_UP == 0 { Purpose::Transport } else { Purpose::Rendezvous };
    let who = [Identity { role: 1, rank: Some(7), epoch: 11 }, Identity { role: 2, rank: None, epoch: 13 }];
    let reads = setting & READER != 0 && ours.is_some();
    let of_client = if reads { ours.as_ref().map(Secret::reading) } else { ours.clone() };
    let client = Greeting::client(of_client.as_ref(), Purpose::Transport, who[0]);
    let (client, hello) = client.expect("there are random numbers");
    let server = Greeting::server(theirs.as_ref(), purpose, who[1]);
    let may_open = ours == theirs && purpose == Purpose::Transport;

    let mut sides = [client, server];
    let mut agreed: [Option<Agreed>; 2] = [None, None];
    let (mut message, mut from, mut honest) = (hello, 0, true);
    loop {
        let (mut delivered, back) = script.deliver(&message);
        let to = if back { from } else { 1 - from };
        honest &= !back && delivered == message;
        // A stream has no ends of messages: as much is read as is waited for.
        let mut wanted = sides[to].wanted(&[]).min(delivered.len());
        wanted = sides[to].wanted(&delivered[..wanted]);
        delivered.resize(wanted, 0);
        match sides[to].receive(&delivered) {
            Ok(GreetingStep::Answer(answer)) => (message, from) = (answer, to),
            Ok(GreetingStep::Done(answer, with)) => {
                // The client opens first. Whether the server opens depends on its next message.
                assert!(honest && may_open, "opened to one that is not the peer");
                assert_eq!((with.peer, with.reads_only), (who[1 - to], reads && to == 1));
                agreed[to] = Some(with);
                let Some(answer) = answer else { break };
                (message, from) = (answer, to);
            }
            Err(failed) => {
                assert!(!(honest && may_open), "two honest sides could not agree: {}", failed.error);
                assert!(failed.answer.is_none() || to == 1, "a client refuses no server");
                // The other side is told, and believes nothing more of it than an error's text.
                if let Some(answer) = failed.answer {
                    assert_eq!(answer.len(), OPENING_BYTES);
                    let mut heard = script.deliver(&answer).0;
                    heard.resize(sides[0].wanted(&heard), 0);
                    let heard = sides[0].receive(&heard);
                    assert!(!matches!(heard, Ok(GreetingStep::Done(..))), "opened by a refusal");
                }
                return;
            }
        }
    }
    let [Some(client), Some(server)] = agreed else { panic!("a side is open, and the other is not") };
    let (mut client, mut server) = (client.session, server.session);
    for turn in 0..2 {
        let (sending, receiving) =
            if turn == 0 { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let mut sealed = Vec::new();
        sending.seal(script.0, &mut sealed);
        let (header, body) = sealed.split_at(HEADER_BYTES);
        assert_eq!(receiving.open_header(header).expect("both have the same keys"), script.0.len());
        assert_eq!(receiving.open_body(body).expect("both have the same keys"), script.0);
    }
}

/// Settings and actions from which to begin.
pub(crate) fn greeting_samples() -> Vec<Vec<u8>> {
    let changed_welcome = vec![0, PASS, CHANGE, 1, 40, 1];
    let changed_confirmation = vec![0, PASS, PASS, CHANGE, 1, 20, 1];
    let replaced_hello = [&[0, REPLACE][..], b"slk-hail", &[1, 0, 0, 0, 2, 0, 0, 0]].concat();
    let settings =
        [0, UNAUTHENTICATED, OPEN, MIXED_UP, READER, READER | UNAUTHENTICATED].map(|setting| vec![setting]);
    let others = [changed_welcome, changed_confirmation, replaced_hello, vec![0, REFLECT]];
    settings.into_iter().chain(others).collect()
}

/// The sessions of two sides that know the same secret.
pub(super) fn sessions() -> [Session; 2] {
    let client = Greeting::client(None, Purpose::Transport, Identity::default());
    let (mut client, hello) = client.expect("there are random numbers");
    let mut server = Greeting::server(None, Purpose::Transport, Identity::default());
    let Ok(GreetingStep::Answer(welcome)) = server.receive(&hello) else { panic!("refused a hello") };
    let Ok(GreetingStep::Done(Some(answer), at_client)) = client.receive(&welcome) else {
        panic!("not welcomed")
    };
    let Ok(GreetingStep::Done(None, at_server)) = server.receive(&answer) else { panic!("not confirmed") };
    [at_client.session, at_server.session]
}

/// Sealed messages whose order and bytes the attacker changes: the opened messages are the sealed ones, in order.
pub(crate) fn fuzz_sealed(bytes: &[u8]) {
    let mut script = Script(bytes);
    let [mut sending, mut receiving] = sessions();
    let is_unauthenticated_peer = script.byte().unwrap_or(0) & UNAUTHENTICATED != 0;
    if is_unauthenticated_peer {
        let [_, other] = sessions();
        receiving = other;
    }
    let mut payload = |_| {
        let len = script.byte().map_or(0, usize::from);
        script.take(len).to_vec()
    };
    let payloads: Vec<Vec<u8>> = (0..4).map(&mut payload).collect();
    let sealed: Vec<Vec<u8>> = payloads
        .iter()
        .map(|payload| {
            let mut sealed = Vec::new();
            sending.seal(payload, &mut sealed);
            assert_eq!(sealed.len(), HEADER_BYTES + body_bytes(payload.len()));
            sealed
        })
        .collect();
    for next in 0..payloads.len() {
        let which = usize::from(script.byte().unwrap_or(next as u8)) % payloads.len();
        let mut delivered = sealed[which].clone();
        match script.byte().unwrap_or(0) % 4 {
            1 => {
                let at = usize::from(script.byte().unwrap_or(0)) % delivered.len();
                delivered[at] ^= script.byte().unwrap_or(0);
            }
            2 => delivered.truncate(script.byte().map_or(0, usize::from)),
            3 => {
                let len = usize::from(script.byte().unwrap_or(0));
                delivered.extend(script.take(len));
            }
            _ => {}
        }
        // Another message with the same payload is not the same message.
        let is_whole = which == next && delivered == sealed[which] && !is_unauthenticated_peer;
        let (header, body) = delivered.split_at(HEADER_BYTES.min(delivered.len()));
        let opened = receiving.open_header(header).and_then(|bytes| match body_bytes(bytes) == body.len() {
            true => receiving.open_body(body),
            false => Err(super::ChannelError::Damaged),
        });
        assert_eq!(opened.is_ok(), is_whole, "message {which} at position {next}");
        let Ok(opened) = opened else {
            // A channel is of no use after an error.
            return;
        };
        assert_eq!(opened, payloads[next]);
    }
}

/// Conversations from which to begin.
pub(crate) fn sealed_samples() -> Vec<Vec<u8>> {
    let words = b"\0\x02hi\0\x03all\x04bye!";
    vec![words.to_vec(), [&words[..], &[0, 0, 1, 1, 4, 1]].concat(), [&words[..], &[1, 0]].concat()]
}
