//! The transports of one object: shared memory and TCP, and RDMA where an address asks for it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use slackline::internals::job::transports::rdma_options;
use slackline::{
    Address, AddressError, Mixed, Named, OpenError, Secret, SecretError, Shm, Tcp, Verbs, VerbsOptions,
};

use crate::error::{Failure, slackline_status as Status};

pub(crate) type Fabric = Mixed;

/// That of publishers and readers, whose table has a name, or an empty one where there are no names.
pub(crate) type NamedFabric = Named<Mixed>;

/// The source of the secret, and whether data is encrypted with it whatever the environment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source<'a> {
    pub(crate) origin: SecretOrigin<'a>,
    pub(crate) encrypts: bool,
}

/// Where the text of the secret is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecretOrigin<'a> {
    Environment,
    Text(&'a str),
    File(&'a Path),
}

impl Source<'_> {
    pub(crate) fn read(self) -> Result<Option<Secret>, Failure> {
        let secret = match self.origin {
            SecretOrigin::Environment => Secret::from_environment()?,
            SecretOrigin::Text(text) => Some(Secret::from_text(text, "the options")?),
            SecretOrigin::File(path) => Some(Secret::from_file(path)?),
        };
        Ok(Secret::demanding(secret, self.encrypts)?)
    }
}

/// Opens what is needed to listen at or to reach `addresses`. RDMA is looked for only if one of them is of that kind:
/// it takes a device, and memory that is pinned.
pub(crate) fn fabric(secret: Source<'_>, addresses: &[Address]) -> Result<Fabric, Failure> {
    let secret = secret.read()?;
    let mixed = Mixed::new(Shm::new(), secret.clone().map_or_else(Tcp::new, Tcp::with_secret));
    let Some(peer) = addresses.iter().find_map(rdma) else { return Ok(mixed) };
    let options = rdma_options().map_err(|error| Failure::of(Status::BadArgument, &error))?;
    let options = VerbsOptions { secret, peer: Some(peer.ip()), ..options };
    Ok(mixed.with_verbs(Verbs::open(options)?))
}

/// The socket address at which RDMA peers meet, if the address asks for RDMA.
fn rdma(address: &Address) -> Option<SocketAddr> {
    match address {
        Address::Verbs(socket) => Some(*socket),
        Address::Several(addresses) => addresses.iter().find_map(rdma),
        _ => None,
    }
}

/// Reads an address in which a host may stand by its name.
pub(crate) fn address(text: &str) -> Result<Address, Failure> {
    if text.contains(',') {
        return Ok(Address::Several(text.split(',').map(one_address).collect::<Result<_, _>>()?));
    }
    one_address(text)
}

fn one_address(text: &str) -> Result<Address, Failure> {
    let error = match text.parse() {
        Ok(address) => return Ok(address),
        Err(error) => error,
    };
    let (host, address): (_, fn(SocketAddr) -> Address) = match text.strip_prefix("verbs:") {
        Some(host) => (host, Address::Verbs),
        None => (text, Address::Tcp),
    };
    resolve(host, error).map(address)
}

/// Asks the system for the address of HOST:PORT. Of several the first IPv4 address is taken, on every host the same
/// way: a name that has both kinds would otherwise be listened at with one and connected to with the other.
fn resolve(text: &str, error: AddressError) -> Result<SocketAddr, Failure> {
    let is_host = |host: &str| {
        !host.is_empty()
            && host.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter))
    };
    match text.rsplit_once(':') {
        Some((host, port)) if is_host(host) && port.parse::<u16>().is_ok() => {}
        _ => return Err(error.into()),
    }
    let unknown = |reason: String| {
        let remedy = "check the name, or write the IP address";
        Failure::new(Status::System, format!("cannot find the host of {text}: {reason}; {remedy}"))
    };
    let found: Vec<SocketAddr> =
        text.to_socket_addrs().map_err(|error| unknown(error.to_string()))?.collect();
    let chosen = found.iter().find(|address| address.is_ipv4()).or(found.first());
    chosen.copied().ok_or_else(|| unknown("it has no address".into()))
}

impl From<SecretError> for Failure {
    fn from(error: SecretError) -> Failure {
        Failure::of(Status::BadArgument, &error)
    }
}

/// A host without RDMA is told apart from one whose RDMA does not work now.
impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let status = match error {
            OpenError::Library(_)
            | OpenError::NoDevice
            | OpenError::UnknownDevice { .. }
            | OpenError::Encryption => Status::Unsupported,
            _ => Status::System,
        };
        Failure::of(status, &error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_s_name_stands_for_its_address() {
        assert_eq!(address("localhost:7314").unwrap().to_string(), "127.0.0.1:7314");
        assert_eq!(address("verbs:localhost:7").unwrap().to_string(), "verbs:127.0.0.1:7");
        assert_eq!(address("@x,localhost:7").unwrap().to_string(), "@x,127.0.0.1:7");
        assert_eq!(address("[::1]:7").unwrap().to_string(), "[::1]:7");
    }

    #[test]
    fn text_that_is_neither_an_address_nor_a_host_is_no_address() {
        for text in
            ["", "@", "name", "localhost", "localhost:x", "localhost:70000", "a b:7", ":7", "verbs:", ","]
        {
            let failure = address(text).unwrap_err();
            assert_eq!(failure.status, Status::BadArgument, "{text}: {}", failure.message);
            assert!(failure.message.contains("is no address"), "{text}: {}", failure.message);
        }
        let unknown = address("no-such-host.invalid:7").unwrap_err();
        assert_eq!(unknown.status, Status::System);
        assert!(unknown.message.contains("no-such-host.invalid:7"), "{}", unknown.message);
    }

    #[test]
    fn rdma_is_opened_where_an_address_asks_for_it_and_nowhere_else() {
        let source = Source { origin: SecretOrigin::Environment, encrypts: false };
        let open = |text: &str| fabric(source, &[address(text).unwrap()]);
        assert!(open("@x,127.0.0.1:7").is_ok());
        // This holds with a device and without one: what `Verbs::open` says is what the caller hears.
        match (open("@x,verbs:127.0.0.1:7"), Verbs::open(VerbsOptions::default())) {
            (Ok(_), Ok(_)) => {}
            (Err(failure), Err(error)) => assert_eq!(failure.message, error.to_string()),
            (ours, theirs) => panic!("{:?} and {:?}", ours.err(), theirs.err()),
        }
    }

    #[test]
    fn a_host_without_rdma_is_unsupported_and_one_that_fails_now_is_not() {
        assert_eq!(Failure::from(OpenError::NoDevice).status, Status::Unsupported);
        let (device, source, remedy) = ("rxe0".into(), std::io::Error::from_raw_os_error(1), "ask");
        assert_eq!(Failure::from(OpenError::Open { device, source, remedy }).status, Status::System);
    }
}
