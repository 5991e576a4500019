//! The hosts of the tree, and the way from one process to another.

use slackline::Address;

use crate::namespaces::Hosts;

/// Readers that take a host, and the fewest hosts beside the publisher's.
const READERS_PER_HOST: usize = 25;
const HOSTS_MIN: usize = 5;

/// Relays of each of these hosts, and of one that has all processes.
const RELAYS_PER_HOST: usize = 2;
const RELAYS_HERE: usize = 4;

/// Where the processes are, and what they listen at.
pub(crate) enum Wire {
    /// TCP between hosts: the publisher is on the first, relays and readers are on the others.
    Hosts(Hosts, usize),
    /// All on this host; each listens at a new address of this kind.
    Here(fn() -> Address),
}

impl Wire {
    /// Makes hosts for so many readers; it may replace this process.
    pub(crate) fn between_hosts(readers: usize) -> Wire {
        let count = 1 + readers.div_ceil(READERS_PER_HOST).max(HOSTS_MIN);
        Wire::Hosts(Hosts::new(count.try_into().expect("fewer hosts")), count)
    }

    pub(crate) fn hosts(&self) -> usize {
        match self {
            Wire::Hosts(_, count) => *count,
            Wire::Here(_) => 1,
        }
    }

    pub(crate) fn relays(&self) -> usize {
        match self {
            Wire::Hosts(_, count) => (count - 1) * RELAYS_PER_HOST,
            Wire::Here(_) => RELAYS_HERE,
        }
    }

    /// The host of a relay or a reader with this number.
    pub(crate) fn host_of(&self, number: usize) -> usize {
        match self {
            Wire::Hosts(_, count) => 1 + number % (count - 1),
            Wire::Here(_) => 0,
        }
    }

    /// An address at which a process on this host can listen.
    pub(crate) fn address(&self, host: usize) -> Address {
        match self {
            Wire::Hosts(hosts, _) => Address::Tcp((hosts[host].address(), 0).into()),
            Wire::Here(address) => address(),
        }
    }

    /// Does something on this host, where what it starts stays.
    pub(crate) fn within<R>(&self, host: usize, job: impl FnOnce() -> R) -> R {
        match self {
            Wire::Hosts(hosts, _) => hosts[host].within(job),
            Wire::Here(_) => job(),
        }
    }

    /// The network between the hosts, if there are several.
    pub(crate) fn network(&self) -> Option<&Hosts> {
        match self {
            Wire::Hosts(hosts, _) => Some(hosts),
            Wire::Here(_) => None,
        }
    }
}
