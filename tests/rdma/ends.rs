//! Connections of which both ends are in this process and at hand.

use std::task::Poll;

use slackline::Transport;
use slackline::internals::mem::{Access, RemoteSlice};
use slackline::internals::transport::{Connecting, Endpoint, Incoming, Listener, Offer, Received};

use crate::transport::fixture::{EndpointOf, Fixture, ListenerOf, now, read, run, wait_for};

/// Both ends of one connection, in one process.
pub(crate) struct Pair<F: Fixture> {
    pub(crate) client: EndpointOf<F>,
    pub(crate) server: EndpointOf<F>,
    /// The message and the grants of the server.
    pub(crate) at_client: Received,
    /// The message and the grants of the client.
    #[allow(dead_code, reason = "one test binary of two looks at it")]
    pub(crate) at_server: Received,
}

/// Connects to `listener`, each side making its offer.
pub(crate) fn connect<F: Fixture>(
    transport: &F::Transport,
    listener: &mut ListenerOf<F>,
    from_client: Offer,
    from_server: Offer,
) -> Pair<F> {
    let mut connecting = transport.connect(&listener.address(), from_client).expect("connect");
    let mut offer = Some(from_server);
    let (mut server, mut client) = (None::<(EndpointOf<F>, Received)>, None);
    wait_for("both sides of a connection", || {
        if server.is_none()
            && let Some(incoming) = listener.poll(now())
        {
            let said = incoming.received();
            let said = Received { message: said.message.clone(), grants: said.grants.clone() };
            server = Some((incoming.accept(offer.take().unwrap()).expect("accept"), said));
        }
        if let Some((server, _)) = &mut server {
            server.check().expect("the server's side stays connected");
        }
        if client.is_none()
            && let Poll::Ready(result) = connecting.poll(now())
        {
            client = Some(result.expect("the client's side connects"));
        }
        (server.is_some() && client.is_some()).then_some(())
    });
    let ((server, at_server), (client, at_client)) = (server.unwrap(), client.unwrap());
    Pair { client, server, at_client, at_server }
}

/// Waits until the processor of the target sees all that this endpoint has written: what is complete may be on its way
/// to memory still, and a READ behind it is answered once it is there.
pub(crate) fn prove(transport: &impl Transport, endpoint: &mut impl Endpoint, remote: RemoteSlice) {
    let into = transport.allocate(8, Access::LOCAL).expect("memory for a word").slice(0, 8).unwrap();
    run(endpoint, read(into, remote.slice(0, 8).unwrap())).expect("it may be read");
}
