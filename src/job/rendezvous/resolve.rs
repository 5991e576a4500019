//! The addresses of a rendezvous, whose name may not be known yet.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::RendezvousError;

/// Between two questions for a name: a service of a cluster publishes the name of a process once the process is up.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Returns the addresses of `HOST:PORT`, at least one. It asks again, until `deadline`, while the name is not known.
///
/// # Errors
/// [`RendezvousError::Resolve`].
pub(super) fn resolve(address: &str, deadline: Instant) -> Result<Vec<SocketAddr>, RendezvousError> {
    let mut is_told = false;
    loop {
        let source = match address.to_socket_addrs().map(Iterator::collect::<Vec<_>>) {
            Ok(found) if !found.is_empty() => return Ok(found),
            Ok(_) => Error::other("it has no address"),
            Err(error) => error,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if source.kind() == ErrorKind::InvalidInput || left.is_zero() {
            return Err(RendezvousError::Resolve { address: address.into(), source });
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::warn!(address, error = %source, "the rendezvous cannot be found yet; asking again");
        }
        std::thread::sleep(left.min(ASK_EVERY));
    }
}

/// Returns the address at which rank 0 listens where the others meet it at `HOST:PORT`: an address that other hosts
/// reach, if the name has one. It resolves the name as a process that joins does, until `deadline`. Unless all
/// processes are known to be on one host (`is_one_host`), a name that leads to this host alone is an error.
///
/// # Errors
/// [`RendezvousError::Resolve`], [`RendezvousError::OnlyHere`].
pub fn listen_address(
    address: &str,
    deadline: Instant,
    is_one_host: bool,
) -> Result<SocketAddr, RendezvousError> {
    choose(address, &resolve(address, deadline)?, is_one_host)
}

/// Returns the one of the addresses of `HOST:PORT`, of which there is at least one, at which rank 0 listens.
fn choose(address: &str, found: &[SocketAddr], is_one_host: bool) -> Result<SocketAddr, RendezvousError> {
    match reached_by_others(found) {
        Some(reached) => Ok(reached),
        None if is_one_host || means_this_host(address) => Ok(found[0]),
        None => Err(RendezvousError::OnlyHere { address: address.into(), at: found[0].ip() }),
    }
}

/// Whether these words for a host and its port ask for nothing but an address of this host: Debian maps the host's own
/// name to one, too, and there it is not meant so.
fn means_this_host(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let is_loopback = |name: &str| matches!(name, "localhost" | "ip6-localhost" | "ip6-loopback");
    is_loopback(host) || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

/// Returns the first of these addresses that other hosts reach. They cannot use a link-local one of IPv6, which takes
/// the number of an interface of their own.
fn reached_by_others(found: &[SocketAddr]) -> Option<SocketAddr> {
    let is_own = |ip: IpAddr| ip.is_loopback() || matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    found.iter().copied().find(|socket| !is_own(socket.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_known_is_asked_for_until_the_deadline() {
        let begun = Instant::now();
        let error = resolve("no.such.host.invalid:1", begun + Duration::from_millis(30)).unwrap_err();
        assert!(matches!(error, RendezvousError::Resolve { .. }), "{error}");
        assert!(begun.elapsed() >= Duration::from_millis(30), "it may be known later");
    }

    #[test]
    fn what_is_no_address_is_refused_at_once() {
        let hour = Instant::now() + Duration::from_secs(3600);
        let error = resolve("no port", hour).unwrap_err();
        assert!(matches!(error, RendezvousError::Resolve { .. }), "{error}");
    }

    #[test]
    fn of_the_addresses_of_a_name_rank_0_takes_one_that_other_hosts_reach() {
        let reached = |found: &[&str]| {
            let found: Vec<SocketAddr> = found.iter().map(|address| address.parse().unwrap()).collect();
            reached_by_others(&found).map(|socket| socket.to_string())
        };
        assert_eq!(reached(&["127.0.1.1:7", "192.0.2.1:7"]).as_deref(), Some("192.0.2.1:7"));
        assert_eq!(reached(&["[fe80::1]:7", "192.0.2.1:7", "192.0.2.2:7"]).as_deref(), Some("192.0.2.1:7"));
        assert_eq!(reached(&["[::1]:7", "[2001:db8::1]:7"]).as_deref(), Some("[2001:db8::1]:7"));
        assert_eq!(reached(&["127.0.1.1:7", "[fe80::1]:7"]), None);
    }

    #[test]
    fn rank_0_listens_where_its_rendezvous_is() {
        let now = Instant::now();
        for address in ["127.0.0.1:7", "[::1]:7", "192.0.2.1:7"] {
            assert_eq!(listen_address(address, now, false).unwrap().to_string(), address);
        }
    }

    #[test]
    fn a_name_of_this_host_alone_is_refused_where_there_may_be_other_hosts() {
        let chosen = |address: &str, found: &[&str], is_one_host| {
            let found: Vec<SocketAddr> = found.iter().map(|address| address.parse().unwrap()).collect();
            choose(address, &found, is_one_host).map(|socket| socket.to_string())
        };
        let (debian, both) = (["127.0.1.1:7"], ["127.0.1.1:7", "192.0.2.1:7"]);
        let error = chosen("node1:7", &debian, false).unwrap_err().to_string();
        assert!(error.contains("node1:7") && error.contains("127.0.1.1"), "{error}");
        assert!(error.contains("/etc/hosts") && error.contains("--rendezvous IP:PORT"), "{error}");
        assert_eq!(chosen("node1:7", &debian, true).unwrap(), "127.0.1.1:7");
        assert_eq!(chosen("node1:7", &both, false).unwrap(), "192.0.2.1:7");
        for address in ["localhost:7", "127.0.0.1:7"] {
            assert_eq!(chosen(address, &["127.0.0.1:7"], false).unwrap(), "127.0.0.1:7");
        }
        assert_eq!(chosen("[::1]:7", &["[::1]:7"], false).unwrap(), "[::1]:7");
    }
}
