//! The messages between a hub and its members, once both sides have proved the secret.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Introduction, MAX_ADDRESSES, MAX_MEMBERS, MAX_MESSAGE_BYTES, Member, MemberId};
use crate::transport::Address;

/// Longest message on a channel: a list of all members, or one of the job with its frame.
pub(super) const LIMIT: usize = 8 << 20;

const _: () = assert!(MAX_MESSAGE_BYTES + 64 < LIMIT);

/// Longest text of an address that is taken.
const ADDRESS_MAX: usize = 256;

/// Longest reason of a refusal that is taken; ours are a sentence.
const REASON_MAX: usize = 4096;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ToHub {
    /// First, and once.
    Introduce(Introduction),
    /// The addresses at which the member's memory is reached from now on, and the UUID of the GPU that its payloads are
    /// on.
    Announce(Vec<Address>, Option<[u8; 16]>),
    /// A message of the job.
    Say(Vec<u8>),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromHub {
    /// The member is in. `was_up` says whether an earlier process of its rank has announced addresses.
    Welcome { id: MemberId, role_rank: u32, generation: u64, was_up: bool, epoch: u64 },
    /// The process is not let in. `again` says whether it is worth trying again.
    Refuse { reason: String, again: bool },
    /// The members that are in.
    Members(Vec<Member>),
    /// A message of the job.
    Say(Vec<u8>),
}

pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    // Serialising to a Vec cannot fail for types without maps of unknown length, and there are none.
    postcard::to_allocvec(message).expect("messages always serialise")
}

/// A well-formed message within its bounds, or `None`.
pub(super) fn decode<M: DeserializeOwned + Sound>(bytes: &[u8]) -> Option<M> {
    let (message, rest) = postcard::take_from_bytes::<M>(bytes).ok()?;
    (rest.is_empty() && message.is_sound()).then_some(message)
}

/// Whether a message of another process is within its bounds.
pub(super) trait Sound {
    fn is_sound(&self) -> bool;
}

fn sound_addresses(addresses: &[Address]) -> bool {
    let sound = |address: &Address| sound_text(&address.to_string(), ADDRESS_MAX);
    addresses.len() <= MAX_ADDRESSES && addresses.iter().all(sound)
}

/// Short enough, and nothing in it that a terminal would act on: it comes from another process, and is shown.
fn sound_text(text: &str, most: usize) -> bool {
    text.len() <= most && !text.chars().any(char::is_control)
}

impl Sound for ToHub {
    fn is_sound(&self) -> bool {
        match self {
            ToHub::Introduce(introduction) => {
                introduction.host.is_sound()
                    && introduction.role_rank.is_none_or(|rank| (rank as usize) < MAX_MEMBERS)
            }
            ToHub::Announce(addresses, _) => sound_addresses(addresses),
            ToHub::Say(bytes) => bytes.len() <= MAX_MESSAGE_BYTES,
        }
    }
}

impl Sound for FromHub {
    fn is_sound(&self) -> bool {
        match self {
            FromHub::Welcome { .. } => true,
            FromHub::Refuse { reason, .. } => sound_text(reason, REASON_MAX),
            FromHub::Members(members) => {
                let sound = |member: &Member| member.host.is_sound() && sound_addresses(&member.addresses);
                members.len() <= MAX_MEMBERS && members.iter().all(sound)
            }
            FromHub::Say(bytes) => bytes.len() <= MAX_MESSAGE_BYTES,
        }
    }
}

/// Decodes arbitrary `bytes` as a message to and from a hub, and checks the result.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_messages(bytes: &[u8]) {
    fn shown(text: &str) {
        assert!(!text.chars().any(char::is_control), "shown to a user: {text:?}");
    }
    if let Some(message) = decode::<ToHub>(bytes) {
        match &message {
            ToHub::Introduce(introduction) => shown(&introduction.host.name),
            ToHub::Announce(addresses, _) => addresses.iter().for_each(|address| shown(&address.to_string())),
            ToHub::Say(_) => {}
        }
        assert_eq!(decode(&encode(&message)), Some(message));
    }
    if let Some(message) = decode::<FromHub>(bytes) {
        match &message {
            FromHub::Refuse { reason, .. } => shown(reason),
            FromHub::Members(members) => {
                for member in members {
                    shown(&member.host.name);
                    member.addresses.iter().for_each(|address| shown(&address.to_string()));
                }
            }
            FromHub::Welcome { .. } | FromHub::Say(_) => {}
        }
        assert_eq!(decode(&encode(&message)), Some(message));
    }
}

/// Messages of every kind.
#[cfg(any(test, fuzzing))]
pub(crate) fn message_samples() -> Vec<Vec<u8>> {
    use super::{Host, MemberRole};
    let addresses: Vec<Address> = vec![Address::Abstract("x".into()), Address::Path("./s".into())];
    let (id, role, host) = (MemberId(1), MemberRole::Worker, Host::named("h"));
    let introduction =
        Introduction { role, role_rank: Some(2), rank: Some(3), host: host.clone(), process: 4 };
    let member = Member {
        id,
        role,
        role_rank: 2,
        generation: 5,
        rank: None,
        host,
        process: 4,
        addresses: addresses.clone(),
        gpu: Some([7; 16]),
    };
    vec![
        encode(&ToHub::Introduce(introduction)),
        encode(&ToHub::Announce(addresses, None)),
        encode(&ToHub::Say(b"hi".to_vec())),
        encode(&FromHub::Welcome { id, role_rank: 2, generation: 5, was_up: true, epoch: 6 }),
        encode(&FromHub::Refuse { reason: "no room".into(), again: true }),
        encode(&FromHub::Members(vec![member.clone(), member])),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::{Host, MemberRole};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_round_trip_and_what_is_out_of_bounds_is_refused() {
        let announce =
            ToHub::Announce(vec!["@x".parse().unwrap(), "[::1]:7".parse().unwrap()], Some([9; 16]));
        assert_eq!(decode::<ToHub>(&encode(&announce)), Some(announce));
        let many = ToHub::Announce(vec![Address::random(); MAX_ADDRESSES + 1], None);
        assert_eq!(decode::<ToHub>(&encode(&many)), None);
        let mut introduction = Introduction::new(MemberRole::Worker, Host::named("evil\u{1b}[2J"));
        assert_eq!(decode::<ToHub>(&encode(&ToHub::Introduce(introduction.clone()))), None);
        introduction.host = Host::named("good");
        introduction.role_rank = Some(u32::MAX);
        assert_eq!(decode::<ToHub>(&encode(&ToHub::Introduce(introduction))), None);
        let long = FromHub::Say(vec![0; MAX_MESSAGE_BYTES + 1]);
        assert_eq!(decode::<FromHub>(&encode(&long)), None);
    }

    /// Found by the property test of all decoders: hosts' names were looked at, addresses and reasons were not.
    #[test]
    fn an_address_or_a_reason_that_a_terminal_would_act_on_is_refused() {
        for text in ["\u{19}/s", "@a\u{1b}[2J", "@ok,./\n"] {
            let announce = ToHub::Announce(vec![text.parse().unwrap()], None);
            assert_eq!(decode::<ToHub>(&encode(&announce)), None, "{text:?}");
        }
        for (reason, taken) in
            [("no room", true), ("no\u{1b}[2J", false), (&*"x".repeat(REASON_MAX + 1), false)]
        {
            let refusal = FromHub::Refuse { reason: reason.into(), again: true };
            assert_eq!(decode::<FromHub>(&encode(&refusal)).is_some(), taken);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz_messages(&bytes);
        }
    }
}
