//! The messages between a publisher that arranges a tree of relays and the processes that ask for their position there.

use serde::{Deserialize, Serialize};

use super::handshake::{HandshakeError, check, decode, encode};
use crate::time::Duration;
use crate::transport::{Address, Host};

/// A process that asks which owners to read from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Joiner {
    /// The host that it runs on.
    pub host: Host,
    /// The number of the owner that it has lost, or could not reach, since it last asked.
    pub lost: Option<u64>,
    /// Its announcement, if it is a relay and not a reader.
    pub relay: Option<RelayNotice>,
}

/// The announcement of a relay, which it repeats while it lives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelayNotice {
    /// The number that the publisher has given it, once it has: relays read only from relays with smaller numbers.
    pub number: Option<u64>,
    /// The address at which it serves.
    pub address: Address,
    /// The number of relays that may read from it.
    pub branches: u16,
    /// The number of peers for which it has room now.
    pub room: u16,
    /// The number of the owner that it reads from now.
    pub reads_from: Option<u64>,
    /// Bytes per second at which versions come to it from another host; 0 as long as that is not known.
    pub speed: u64,
}

/// The publisher's answer: the owners from which to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreePosition {
    /// The number of a relay; 0 for a reader.
    pub number: u64,
    /// The time within which a relay announces itself again, in nanoseconds.
    pub again_ns: u64,
    /// The publisher's incarnation.
    pub origin: u64,
    /// The version at which it began, all zeros.
    pub begin_at: u64,
    /// The owners, in the order in which they are to be tried.
    pub owners: Vec<TreeOwner>,
}

/// One of the owners in a [`TreePosition`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeOwner {
    /// The number of the relay, or [`TreePosition::PUBLISHER`].
    pub number: u64,
    /// Its address; `None` for the one at which the publisher was asked.
    pub address: Option<Address>,
}

/// Longest address that is taken, in bytes as it is written.
const ADDRESS_MAX: usize = 1024;

fn is_sound(address: &Address) -> bool {
    let text = address.to_string();
    text.len() <= ADDRESS_MAX && !text.chars().any(char::is_control)
}

impl Joiner {
    /// Checks the words of a peer that is not trusted yet.
    pub(super) fn check(&self) -> Result<(), HandshakeError> {
        check(self.host.is_sound(), "a host whose name cannot be shown")?;
        let address = self.relay.as_ref().map(|relay| &relay.address);
        check(address.is_none_or(is_sound), "an address that cannot be shown")?;
        let number = self.relay.as_ref().and_then(|relay| relay.number);
        check(number.is_none_or(|number| number <= TreePosition::NUMBER_MAX), "a number that no relay has")
    }
}

impl TreePosition {
    /// The number that stands for the publisher itself.
    pub const PUBLISHER: u64 = 0;

    /// The largest number of a relay that is taken from its word: there are as many behind it.
    const NUMBER_MAX: u64 = u64::MAX / 2;

    /// Most owners in an answer.
    pub const OWNERS_MAX: usize = 8;

    /// Encodes the message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes the bytes of an owner.
    pub fn decode(bytes: &[u8]) -> Result<TreePosition, HandshakeError> {
        let position: TreePosition = decode(bytes)?;
        check(
            (1..=TreePosition::OWNERS_MAX).contains(&position.owners.len()),
            "a position with too few or too many owners",
        )?;
        let is_reached = position.begin_at <= super::Latest::VERSION_MAX.get();
        check(is_reached, "a version past the last one")?;
        let mut addresses = position.owners.iter().filter_map(|owner| owner.address.as_ref());
        check(addresses.all(is_sound), "an address that cannot be shown")?;
        Ok(position)
    }

    /// The time within which a relay announces itself again.
    pub fn again(&self) -> Duration {
        Duration::from_nanos(self.again_ns).clamp(Duration::from_millis(10), Duration::from_secs(60))
    }
}

/// Decodes arbitrary `bytes` as a position, and checks the result.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_position(bytes: &[u8]) {
    let Ok(position) = TreePosition::decode(bytes) else { return };
    assert!(!position.owners.is_empty() && position.owners.len() <= TreePosition::OWNERS_MAX);
    assert!(position.again() >= Duration::from_millis(10));
    assert_eq!(TreePosition::decode(&position.encode()), Ok(position));
}

/// Positions that are taken.
#[cfg(any(test, fuzzing))]
pub(crate) fn position_samples() -> Vec<Vec<u8>> {
    let relay = TreeOwner { number: 7, address: "10.0.0.1:7000".parse().ok() };
    let publisher = TreeOwner { number: TreePosition::PUBLISHER, address: None };
    vec![
        TreePosition {
            number: 9,
            again_ns: 1_000_000_000,
            origin: 7,
            begin_at: 0,
            owners: vec![relay, publisher],
        }
        .encode(),
    ]
}

/// The question of a relay.
#[cfg(any(test, fuzzing))]
pub(super) fn joiner_sample() -> Joiner {
    let address = Address::Abstract("relay".into());
    let relay =
        RelayNotice { number: Some(7), address, branches: 2, room: 60, reads_from: Some(3), speed: 1 << 30 };
    Joiner { host: Host::named("here"), lost: Some(5), relay: Some(relay) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_round_trip_and_those_that_cannot_be_are_refused() {
        for sample in position_samples() {
            let position = TreePosition::decode(&sample).unwrap();
            assert_eq!(position.encode(), sample);
            let nowhere = TreePosition { owners: Vec::new(), ..position.clone() };
            let many = TreePosition {
                owners: vec![position.owners[0].clone(); TreePosition::OWNERS_MAX + 1],
                ..position.clone()
            };
            let address = Some(Address::Path("/a\nb".into()));
            let hidden = TreePosition { owners: vec![TreeOwner { number: 1, address }], ..position };
            for bad in [nowhere, many, hidden] {
                assert!(TreePosition::decode(&bad.encode()).is_err(), "{bad:?}");
            }
        }
    }
}
