//! The greeting and sealed messages between two honest sides, with somebody in between who does what the bytes say.

use super::greeting::{Agreed, GREETING_BYTES, Greeting, Step};
use super::seal::{LENGTH_BYTES, Seal, TAG_BYTES};
use super::{Identity, Purpose, Secret};

type Message = [u8; GREETING_BYTES];

/// What the one in between does with a message of the greeting that is on its way.
const PASS: u8 = 0;
/// Changes some bytes: their number, then for each its place and what is flipped.
const CHANGE: u8 = 1;
/// Says something else instead: 64 bytes.
const REPLACE: u8 = 2;
/// Sends it back to who said it.
const REFLECT: u8 = 3;
const ACTIONS: u8 = 4;

/// The first byte of an input: the two sides know different secrets.
const STRANGERS: u8 = 1;
/// Neither has a secret.
const OPEN: u8 = 2;
/// They mean different things by the connection.
const MIXED_UP: u8 = 4;

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

    /// What becomes of `message`, and whether it comes back to who said it.
    fn deliver(&mut self, message: &Message) -> (Message, bool) {
        let mut delivered = *message;
        match self.byte().unwrap_or(PASS) % ACTIONS {
            CHANGE => {
                for _ in 0..self.byte().unwrap_or(0) % 4 {
                    let (at, flip) = (self.byte().unwrap_or(0), self.byte().unwrap_or(0));
                    delivered[usize::from(at) % GREETING_BYTES] ^= flip;
                }
            }
            REPLACE => {
                let said = self.take(GREETING_BYTES);
                delivered[..said.len()].copy_from_slice(said);
            }
            REFLECT => return (delivered, true),
            _ => {}
        }
        (delivered, false)
    }
}

/// A greeting whose messages the one in between passes on, changes, replaces or sends back. Whoever ends up with an
/// open channel knows the same secret as the other side and has been told nothing but what that side said; then
/// both agree on who they are and on the keys.
pub(crate) fn fuzz_greeting(bytes: &[u8]) {
    let mut script = Script(bytes);
    let setting = script.byte().unwrap_or(0);
    let secret =
        |text| (setting & OPEN == 0).then(|| Secret::from_text(text, "a test").expect("long enough"));
    let ours = secret("a secret of two sides");
    let theirs = if setting & STRANGERS == 0 { ours.clone() } else { secret("another of nobody's") };
    let purpose = if setting & MIXED_UP == 0 { Purpose::Transport } else { Purpose::Rendezvous };
    let who = [Identity { role: 1, rank: Some(7), epoch: 11 }, Identity { role: 2, rank: None, epoch: 13 }];
    let (client, hail) = Greeting::client(ours.as_ref(), Purpose::Transport, who[0], [1; 32]);
    let server = Greeting::server(theirs.as_ref(), purpose, who[1], [2; 32]);
    let may_open = ours == theirs && purpose == Purpose::Transport;

    let mut sides = [client, server];
    let mut agreed: [Option<Box<Agreed>>; 2] = [None, None];
    let (mut message, mut from, mut honest) = (hail, 0, true);
    loop {
        let (delivered, back) = script.deliver(&message);
        let to = if back { from } else { 1 - from };
        honest &= !back && delivered == message;
        match sides[to].receive(&delivered) {
            Ok(Step::Answer(answer)) => (message, from) = (answer, to),
            Ok(Step::Done(answer, with)) => {
                assert!(honest && may_open, "opened to one that is not the peer");
                assert_eq!(with.peer, who[1 - to]);
                agreed[to] = Some(with);
                let Some(answer) = answer else { break };
                (message, from) = (answer, to);
            }
            Err(failed) => {
                assert!(!(honest && may_open), "two honest sides could not agree: {}", failed.error);
                assert!(failed.answer.is_none() || to == 1, "a client refuses nobody");
                // The other side is told, and believes nothing more of it than an error's text.
                if let Some(answer) = failed.answer {
                    let heard = sides[0].receive(&script.deliver(&answer).0);
                    assert!(!matches!(heard, Ok(Step::Done(..))), "opened by a refusal");
                }
                return;
            }
        }
    }
    let [Some(client), Some(server)] = agreed else { panic!("a side is open, and the other is not") };
    let (mut client, mut server) = (*client, *server);
    for (sending, receiving) in
        [(&mut client.sending, &mut server.receiving), (&mut server.sending, &mut client.receiving)]
    {
        let mut sealed = Vec::new();
        sending.seal(script.0, &mut sealed);
        let mut inner = sealed.split_off(LENGTH_BYTES);
        receiving.open(&mut inner).expect("both have the same keys");
        assert_eq!(inner, script.0);
    }
}

/// Settings and actions from which to begin.
pub(crate) fn greeting_samples() -> Vec<Vec<u8>> {
    let changed_proof = vec![0, PASS, PASS, CHANGE, 1, 40, 1];
    let replaced_hail = [&[0, REPLACE][..], b"slk-hail", &[1, 0, 0, 0, 2, 0, 0, 0]].concat();
    vec![vec![0], vec![STRANGERS], vec![OPEN], vec![MIXED_UP], changed_proof, replaced_hail, vec![0, REFLECT]]
}

/// Sealed messages whose order and bytes the one in between changes: what is opened is what was sealed, in its order.
pub(crate) fn fuzz_sealed(bytes: &[u8]) {
    let mut script = Script(bytes);
    let mut sending = Seal::new([5; 32]);
    let mut receiving = Seal::new([if script.byte().unwrap_or(0) & STRANGERS == 0 { 5 } else { 6 }; 32]);
    let is_stranger = bytes.first().is_some_and(|setting| setting & STRANGERS != 0);
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
            assert_eq!(sealed[..LENGTH_BYTES], (payload.len() as u32).to_le_bytes());
            assert_eq!(sealed.len(), LENGTH_BYTES + payload.len() + TAG_BYTES);
            sealed.split_off(LENGTH_BYTES)
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
        let is_whole = which == next && delivered == sealed[which] && !is_stranger;
        let opened = receiving.open(&mut delivered);
        assert_eq!(opened.is_ok(), is_whole, "message {which} in place {next}");
        if opened.is_err() {
            // A channel is of no use after an error.
            return;
        }
        assert_eq!(delivered, payloads[next]);
    }
}

/// Conversations from which to begin.
pub(crate) fn sealed_samples() -> Vec<Vec<u8>> {
    let words = b"\0\x02hi\0\x03all\x04bye!";
    vec![words.to_vec(), [&words[..], &[0, 0, 1, 1, 4, 1]].concat(), [&words[..], &[1, 0]].concat()]
}
