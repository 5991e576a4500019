//! A server that is in this process and at hand, with one region of memory, and clients of it.

use slackline::Transport;
use slackline::internals::mem::{Access, LocalSlice, MemoryRegion, RemoteSlice};
use slackline::internals::transport::{Incoming, Listener, Offer};

use super::ends::connect;
use crate::transport::fixture::{EndpointOf, Fixture, ListenerOf, local, now, wait_for};

/// A server with one region of memory, and clients of it, all in this process.
pub(crate) struct Target<F: Fixture> {
    pub(crate) transport: F::Transport,
    pub(crate) listener: ListenerOf<F>,
    pub(crate) region: MemoryRegion,
}

/// A client of a [`Target`], and the server's end that keeps it alive.
pub(crate) struct Client<F: Fixture> {
    pub(crate) endpoint: EndpointOf<F>,
    pub(crate) remote: RemoteSlice,
    pub(crate) server: EndpointOf<F>,
}

impl<F: Fixture> Target<F> {
    pub(crate) fn new(bytes: usize, access: Access) -> Self {
        let transport = F::transport();
        let region = transport.allocate(bytes, access).expect("allocate");
        let listener = transport.listen(&F::address()).expect("listen");
        Target { transport, listener, region }
    }

    /// Connects a client that is granted the whole region.
    pub(crate) fn client(&mut self) -> Client<F> {
        let offer = Offer { message: Vec::new(), grants: vec![self.region.whole()] };
        let pair = connect::<F>(&self.transport, &mut self.listener, Offer::default(), offer);
        Client { endpoint: pair.client, remote: pair.at_client.grants[0], server: pair.server }
    }

    /// Memory for the client's own side, filled with `bytes`.
    pub(crate) fn local(&self, bytes: &[u8]) -> LocalSlice {
        local(&self.transport, bytes)
    }
}

/// Lets one peer in.
pub(crate) fn accept<F: Fixture>(listener: &mut ListenerOf<F>, offer: Offer) -> EndpointOf<F> {
    let incoming = wait_for("a peer", || {
        let incoming = listener.poll(now());
        if incoming.is_none() {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        incoming
    });
    incoming.accept(offer).expect("accept")
}
