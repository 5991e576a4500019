//! Hosts whose links carry little, which are network namespaces.

use std::net::SocketAddr;

use slackline::{Address, Secret, Tcp};

#[expect(dead_code, reason = "used by tests")]
#[path = "../../tests/network/namespaces.rs"]
mod namespaces;
use namespaces::{Host, Hosts};

/// Bytes per second that the cable of each host carries, each way: so few that processors do not count.
pub(super) const LINK: f64 = 20e6;

/// The order in which a host sends what waits for its cable.
#[derive(Clone, Copy)]
pub(super) enum Queue {
    /// As it came: a request to the host before waits behind all that is on its way to the host behind.
    OneForAll,
    /// By priority, as Linux does unless it is told otherwise.
    Bands,
}

impl Queue {
    /// The discipline's name, as `tc` has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Queue::OneForAll => "pfifo",
            Queue::Bands => "pfifo_fast",
        }
    }
}

/// Makes so many hosts.
pub(super) fn hosts(count: usize, queue: Queue) -> Hosts {
    let hosts = Hosts::new(count as u8);
    (0..count).for_each(|host| limit(&hosts[host], queue));
    hosts
}

pub(super) fn transport() -> Tcp {
    Tcp::with_secret(Secret::from_text("all hosts know this", "this benchmark").expect("a secret"))
}

/// The address of an owner on this host.
pub(super) fn at(host: &Host) -> Address {
    Address::Tcp(SocketAddr::new(host.address().into(), 9000))
}

/// Limits what a host sends: all receive from one other alone. Its own queue loses nothing.
fn limit(host: &Host, queue: Queue) {
    // Packets as a wire carries them: the kernel would send dozens as one, and the limit let them pass as one.
    host.run("ip", &["link", "set", "eth0", "gso_max_size", "2000"]);
    host.run("sh", &["-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"]);
    let bits = (8.0 * LINK) as u64;
    let tc = |arguments: String| drop(host.run("tc", &arguments.split(' ').collect::<Vec<_>>()));
    tc("qdisc add dev eth0 root handle 1: htb default 1".into());
    tc(format!("class add dev eth0 parent 1: classid 1:1 htb rate {bits}bit burst 6056 cburst 6056"));
    let limit = match queue {
        Queue::OneForAll => " limit 1000",
        Queue::Bands => "",
    };
    tc(format!("qdisc add dev eth0 parent 1:1 {}{limit}", queue.name()));
}
