//! Any transport between two hosts, in one process: the listening side is on one, the connecting side on the other.
//!
//! A socket belongs to the namespace in which it was made, whichever thread uses it later.

use std::task::Poll;

use slackline::internals::mem::{Access, HostMemory, MemoryRegion};
use slackline::internals::transport::{Capabilities, Connecting, Offer, Received, RegisterError};
use slackline::{Address, ConnectError, Instant, Transport};

use super::namespaces::Host;

/// The transport, and the hosts of the listening and of the connecting side; none in a process that is on its host
/// already.
#[derive(Clone)]
pub(crate) struct Far<T> {
    pub(crate) transport: T,
    pub(crate) hosts: Option<[&'static Host; 2]>,
}

fn within<R>(host: Option<&Host>, job: impl FnOnce() -> R) -> R {
    match host {
        Some(host) => host.within(job),
        None => job(),
    }
}

impl<T: Transport> Transport for Far<T> {
    type Endpoint = T::Endpoint;
    type Listener = T::Listener;
    type Connecting = FarConnecting<T::Connecting>;

    fn capabilities(&self) -> Capabilities {
        self.transport.capabilities()
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.transport.register(memory, access)
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.transport.allocate(bytes, access)
    }

    fn access_violations(&self) -> u64 {
        self.transport.access_violations()
    }

    fn rails_lost(&self) -> u64 {
        self.transport.rails_lost()
    }

    fn listen(&self, address: &Address) -> Result<T::Listener, ConnectError> {
        within(self.hosts.map(|hosts| hosts[0]), || self.transport.listen(address))
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<Self::Connecting, ConnectError> {
        let host = self.hosts.map(|hosts| hosts[1]);
        let connecting = within(host, || self.transport.connect(address, offer))?;
        Ok(FarConnecting { connecting, host })
    }
}

/// A connection in the making, which may dial once more.
pub(crate) struct FarConnecting<C> {
    connecting: C,
    host: Option<&'static Host>,
}

impl<C: Connecting> Connecting for FarConnecting<C> {
    type Endpoint = C::Endpoint;

    fn poll(&mut self, now: Instant) -> Poll<Result<(C::Endpoint, Received), ConnectError>> {
        within(self.host, || self.connecting.poll(now))
    }
}
