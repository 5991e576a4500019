//! What the processes of a job talk over, and where they listen.

use std::net::{IpAddr, SocketAddr};

use slackline::channel::Secret;
use slackline::rendezvous::Path;
use slackline::transport::Address;
use slackline::transport::mixed::Mixed;
use slackline::transport::shm::Shm;
use slackline::transport::tcp::Tcp;

/// Shared memory and TCP, whichever fits a pair of processes.
pub(super) type Fabric = Mixed;

pub(super) fn fabric(secret: Option<&Secret>) -> Fabric {
    let tcp = secret.map_or_else(Tcp::new, |secret| Tcp::with_secret(secret.clone()));
    Mixed::new(Shm::new(), tcp)
}

/// Where a server listens that is to be reached so.
pub(super) fn listen_at(paths: &[Path], ip: IpAddr) -> Address {
    let at = |path: &Path| match path {
        Path::Shm => Some(Address::random()),
        Path::Tcp => Some(Address::Tcp(SocketAddr::new(ip, 0))),
        Path::Verbs => None,
    };
    let mut addresses: Vec<_> = paths.iter().filter_map(at).collect();
    if addresses.len() == 1 { addresses.remove(0) } else { Address::Several(addresses) }
}

/// The addresses that a listener told, one by one.
pub(super) fn flatten(address: Address) -> Vec<Address> {
    match address {
        Address::Several(addresses) => addresses,
        one => vec![one],
    }
}

/// The path that a transport of this name takes.
pub(super) fn path_of(transport: &str) -> Path {
    transport.parse().unwrap_or(Path::Shm)
}
