//! The address at which a peer listens.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::diagnostic::{Diagnostic, remedy_of};

/// The address at which a peer listens. Written as `@name` (shared memory, a name that vanishes with its process),
/// as a path with a `/` in it (shared memory, a socket file), as `IP:PORT` (TCP; an IPv6 address in brackets), or
/// as `verbs:IP:PORT` (RDMA). Names and paths cannot hold a comma.
///
/// ```
/// use slackline::Address;
/// let address: Address = "@job-7".parse()?;
/// assert_eq!(address.to_string(), "@job-7");
/// let address: Address = "[::1]:7000".parse()?;
/// assert_eq!(address.to_string(), "[::1]:7000");
/// # Ok::<(), slackline::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Address {
    /// A Unix socket in the abstract namespace: gone with the process that listens.
    Abstract(String),
    /// A Unix socket file, in a folder that only its owner may enter.
    Path(PathBuf),
    /// An IP address and a TCP port. Names of hosts are resolved before.
    Tcp(SocketAddr),
    /// RDMA: where the two sides find each other, an IP address and a TCP port.
    Verbs(SocketAddr),
    /// All of these at once, for a listener that is reached over several transports; written with commas between
    /// them. None of them is itself a list.
    Several(Vec<Address>),
}

/// The prefix of an address for RDMA.
const VERBS: &str = "verbs:";

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no address: {}", remedy_of(self))]
pub struct AddressError {
    text: String,
}

impl Diagnostic for AddressError {
    fn operation(&self) -> &'static str {
        "reading an address"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        let forms = "write @NAME (1 to 100 bytes), a path with a / in it, IP:PORT or verbs:IP:PORT, several with \
                     commas between them";
        Some(forms.into())
    }
}

impl Address {
    /// Makes a name in the abstract namespace that no process can guess.
    pub fn random() -> Address {
        let mut bytes = [0; 16];
        // Without a random source the name would be guessable; peers are checked by their credentials all the same.
        if let Err(error) = getrandom::fill(&mut bytes) {
            tracing::warn!(%error, "no random source: the address can be guessed");
            bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
        }
        Address::Abstract(format!("slackline-{:032x}", u128::from_le_bytes(bytes)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Abstract(name) => write!(f, "@{name}"),
            Address::Path(path) => write!(f, "{}", path.display()),
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Verbs(address) => write!(f, "{VERBS}{address}"),
            Address::Several(addresses) => {
                for (index, address) in addresses.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(f, "{comma}{address}")?;
                }
                Ok(())
            }
        }
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.to_string()
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.contains(',') {
            let addresses = text.split(',').map(str::parse).collect::<Result<_, _>>();
            return addresses.map(Address::Several).map_err(|_| AddressError { text: text.to_owned() });
        }
        if let Some(socket) = text.strip_prefix(VERBS) {
            let socket = socket.parse().map_err(|_| AddressError { text: text.to_owned() })?;
            return Ok(Address::Verbs(socket));
        }
        match text.strip_prefix('@') {
            Some(name) if (1..=100).contains(&name.len()) && !name.contains('\0') => {
                Ok(Address::Abstract(name.to_owned()))
            }
            None if text.contains('/') && !text.contains('\0') => Ok(Address::Path(text.into())),
            Some(_) => Err(AddressError { text: text.to_owned() }),
            None => match text.parse() {
                Ok(address) => Ok(Address::Tcp(address)),
                Err(_) => Err(AddressError { text: text.to_owned() }),
            },
        }
    }
}

/// Parses arbitrary `bytes` as an address, and checks that it is printed and sent as it was parsed.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_address(bytes: &[u8]) {
    let Some(address) = std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<Address>().ok()) else {
        return;
    };
    assert_eq!(address.to_string().parse().as_ref(), Ok(&address));
    let sent = postcard::to_allocvec(&address).expect("an address can be sent");
    assert_eq!(postcard::from_bytes::<Address>(&sent).as_ref(), Ok(&address));
    if let Address::Several(addresses) = &address {
        let is_list = |address: &Address| matches!(address, Address::Several(_));
        assert!(addresses.len() > 1 && !addresses.iter().any(is_list));
    }
}

/// Addresses of every kind.
#[cfg(any(test, fuzzing))]
pub(crate) fn address_samples() -> Vec<Vec<u8>> {
    [
        "@x",
        "/run/user/0/s",
        "./s",
        "10.0.0.1:7000",
        "[fe80::1%2]:1",
        "verbs:10.0.0.1:7",
        "@x,verbs:[::1]:7,./s",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_and_rubbish_is_refused() {
        for text in [
            "@x",
            "/run/user/0/s",
            "./s",
            "10.0.0.1:7000",
            "[fe80::1%2]:1",
            "verbs:10.0.0.1:7",
            "@x,verbs:[::1]:7,./s",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "@",
            "name",
            "@a\0b",
            "a/\0",
            "10.0.0.1",
            "localhost:7000",
            "10.0.0.1:70000",
            "verbs:",
            "verbs:x",
            "@x,",
            ",",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
        assert_ne!(Address::random(), Address::random());
    }
}
