//! The choice of a port's local address. A wrong address reaches no peer, or reaches the peer over a slow path: the
//! choice is made by rank, logged with its reason, and can be overruled.

use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};

/// The kind of network of an entry in a port's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet without IP: one Ethernet segment only.
    RoceV1,
    /// RDMA over Converged Ethernet inside UDP: routed as IP is.
    RoceV2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        })
    }
}

/// One entry of a port's table of addresses (InfiniBand Architecture Specification, volume 1, 4.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its index in the table.
    pub index: u16,
    /// The 128 bits.
    pub bytes: [u8; 16],
    /// The kind of its network.
    pub kind: GidKind,
    /// The network interface behind it, if there is one.
    pub interface: Option<String>,
    /// Whether that interface is up; true if there is none.
    pub is_up: bool,
    /// Whether this network namespace has the address; true where that is not known. The table belongs to the port, and
    /// has the addresses of all containers that share it.
    pub is_own: bool,
}

impl Gid {
    /// The IP address from which the GID is made; for InfiniBand the same bits, which are not an IP address.
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.bytes).to_canonical()
    }

    fn is_link_local(&self) -> bool {
        self.bytes[0] == 0xFE && self.bytes[1] & 0xC0 == 0x80
    }

    fn is_empty(&self) -> bool {
        self.bytes[8..] == [0; 8]
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address())
    }
}

/// The chosen address, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidChoice {
    /// The entry.
    pub gid: Gid,
    /// The reason why this entry was chosen and not another, as readable text.
    pub reason: String,
}

/// The address that this host would use towards `peer`, as the kernel routes; nothing is sent.
pub(super) fn route_to(peer: IpAddr) -> Option<IpAddr> {
    let any = if peer.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // The port does not matter: to connect a datagram socket only queries the routing table.
    socket.connect((peer, 4791)).ok()?;
    Some(socket.local_addr().ok()?.ip().to_canonical())
}

/// Whether this network namespace has the address of an entry, as far as the system tells: it binds no socket to an
/// address of another one. It binds none to a link-local address without the interface either, and an InfiniBand GID is
/// no IP address.
pub(super) fn is_own(kind: GidKind, address: IpAddr) -> bool {
    let is_link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    kind == GidKind::InfiniBand || is_link_local || UdpSocket::bind((address, 0)).is_ok()
}

/// The properties that are compared, the most important first. Each is better when it is greater.
type GidOrder = (bool, bool, bool, bool, bool, bool, Reverse<u16>);

fn rank(gid: &Gid, route: Option<IpAddr>) -> GidOrder {
    (
        gid.kind != GidKind::RoceV1,
        gid.is_up,
        gid.is_own,
        route == Some(gid.address()),
        !gid.is_link_local() || gid.kind == GidKind::InfiniBand,
        gid.address().is_ipv4(),
        Reverse(gid.index),
    )
}

/// The best entry for the local address, where `route` is this host's address on the route to the peer; or the entry
/// number `wanted`. `None` if no entry is usable.
///
/// In this order: routed (RoCE v2 before v1), its interface is up, an address of this network namespace, on the route
/// to the peer, not link-local, IPv4 before IPv6, and the first of equal entries.
pub(super) fn choose(gids: &[Gid], route: Option<IpAddr>, wanted: Option<u16>) -> Option<GidChoice> {
    if let Some(index) = wanted {
        let gid = gids.iter().find(|gid| gid.index == index && !gid.is_empty())?;
        return Some(GidChoice { gid: gid.clone(), reason: "it was asked for".into() });
    }
    let usable = || gids.iter().filter(|gid| !gid.is_empty() && gid.is_up);
    let best = usable().max_by_key(|gid| rank(gid, route))?;
    Some(GidChoice { gid: best.clone(), reason: reason(best, route, usable().count()) })
}

fn reason(gid: &Gid, route: Option<IpAddr>, usable: usize) -> String {
    let mut parts = vec![gid.kind.to_string()];
    if let Some(interface) = &gid.interface {
        parts.push(format!("{interface} is up"));
    }
    if !gid.is_own {
        parts.push("an address of another network namespace".into());
    }
    if route == Some(gid.address()) {
        parts.push("on the way to the peer".into());
    }
    if gid.kind != GidKind::InfiniBand {
        parts.push(if gid.is_link_local() { "link-local".into() } else { "not link-local".into() });
        parts.push(if gid.address().is_ipv4() { "IPv4".into() } else { "IPv6".into() });
    }
    parts.push(format!("best of {usable}"));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u16, kind: GidKind, address: &str) -> Gid {
        let bytes = match address.parse().unwrap() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Gid { index, bytes, kind, interface: Some(format!("eth{index}")), is_up: true, is_own: true }
    }

    fn table() -> Vec<Gid> {
        vec![
            gid(0, GidKind::RoceV1, "fe80::1"),
            gid(1, GidKind::RoceV2, "fe80::1"),
            gid(2, GidKind::RoceV1, "10.0.0.1"),
            gid(3, GidKind::RoceV2, "2001:db8::1"),
            gid(4, GidKind::RoceV2, "10.0.0.1"),
            gid(5, GidKind::RoceV2, "10.1.0.1"),
        ]
    }

    fn chosen(gids: &[Gid], route: Option<&str>) -> u16 {
        choose(gids, route.map(|route| route.parse().unwrap()), None).unwrap().gid.index
    }

    #[test]
    fn routed_before_unrouted_ipv4_before_ipv6_and_link_local_last() {
        let mut gids = table();
        let mut order = Vec::new();
        while !gids.is_empty() {
            let best = chosen(&gids, None);
            order.push(best);
            gids.retain(|gid| gid.index != best);
        }
        assert_eq!(order, [4, 5, 3, 1, 2, 0]);
    }

    #[test]
    fn the_way_to_the_peer_decides_among_those_that_are_up() {
        assert_eq!(chosen(&table(), Some("10.1.0.1")), 5);
        assert_eq!(chosen(&table(), Some("2001:db8::1")), 3);
        assert_eq!(chosen(&table(), Some("fe80::1")), 1, "only if the way goes there, link-local is taken");
        let mut gids = table();
        gids[5].is_up = false;
        assert_eq!(chosen(&gids, Some("10.1.0.1")), 4, "what is down leads nowhere");
    }

    #[test]
    fn addresses_of_other_containers_come_after_those_of_this_one() {
        let mut gids = table();
        gids[4].is_own = false;
        assert_eq!(chosen(&gids, None), 5);
        gids.iter_mut().for_each(|gid| gid.is_own = false);
        let choice = choose(&gids, None, None).unwrap();
        assert_eq!(choice.gid.index, 4, "a host that says so of all has none that is better");
        assert!(choice.reason.contains("of another network namespace"), "{}", choice.reason);
    }

    #[test]
    fn the_system_tells_which_addresses_are_of_this_namespace() {
        let is_own = |kind, address: &str| is_own(kind, address.parse().unwrap());
        assert!(is_own(GidKind::RoceV2, "127.0.0.1"));
        // Of the block for documentation, which no host has.
        assert!(!is_own(GidKind::RoceV2, "192.0.2.1"));
        assert!(is_own(GidKind::RoceV2, "fe80::1") && is_own(GidKind::InfiniBand, "fe80::2:c903:1"));
    }

    #[test]
    fn an_entry_that_was_asked_for_is_taken_and_empty_ones_never_are() {
        let mut gids = table();
        assert_eq!(choose(&gids, None, Some(0)).unwrap().gid.index, 0);
        assert_eq!(choose(&gids, None, Some(9)), None);
        gids[0].bytes = [0; 16];
        assert_eq!(choose(&gids, None, Some(0)), None);
        assert_eq!(choose(&gids[..1], None, None), None);
    }

    #[test]
    fn infiniband_prefixes_are_not_taken_for_link_local_addresses() {
        let gids = [gid(0, GidKind::InfiniBand, "fe80::2:c903:1")];
        let choice = choose(&gids, None, None).unwrap();
        assert!(!choice.reason.contains("link-local"), "{}", choice.reason);
    }

    #[test]
    fn the_reason_says_what_was_compared() {
        let choice = choose(&table(), Some("10.0.0.1".parse().unwrap()), None).unwrap();
        let reason = "RoCE v2, eth4 is up, on the way to the peer, not link-local, IPv4, best of 6";
        assert_eq!(choice.reason, reason);
    }

    #[test]
    fn the_way_to_this_host_is_found() {
        let loopback: IpAddr = [127, 0, 0, 1].into();
        assert_eq!(route_to(loopback), Some(loopback));
    }
}
