//! A server with one region of memory, wherever it is, and clients in this process.

use std::task::Poll;

use slackline::Transport;
use slackline::internals::mem::{Access, LocalSlice, RemoteSlice};
use slackline::internals::transport::{Connecting, Offer, Received};

use super::fixture::{EndpointOf, Fixture, local, now, wait_for};
use super::here::Part;
use super::server::{Accepted, Listening, Memory, Server};

/// One connection: the client's end of it, and the server's, wherever that is.
pub(crate) struct Joined<F: Fixture> {
    pub(crate) client: EndpointOf<F>,
    pub(crate) server: Accepted<F>,
    /// The message and the grants of the server.
    pub(crate) at_client: Received,
    /// The message and the grants of the client.
    pub(crate) at_server: Received,
}

/// Connects to a server, which answers with `message` and `grants`.
pub(crate) fn join<F: Fixture>(
    transport: &F::Transport,
    listening: &Listening<F>,
    offer: Offer,
    message: &[u8],
    grants: &[Part],
) -> Joined<F> {
    let mut connecting = transport.connect(&listening.address, offer).expect("connect");
    let (mut server, mut client) = (None::<(Accepted<F>, Received)>, None);
    wait_for("both sides of a connection", || {
        if server.is_none()
            && let Some(arrived) = listening.poll()
        {
            server = Some((arrived.accept(message, grants).expect("accept"), arrived.received));
        }
        if let Some((server, _)) = &server {
            assert!(server.is_connected(), "the server's side stays connected");
        }
        if client.is_none()
            && let Poll::Ready(result) = connecting.poll(now())
        {
            client = Some(result.expect("the client's side connects"));
        }
        (server.is_some() && client.is_some()).then_some(())
    });
    let ((server, at_server), (client, at_client)) = (server.unwrap(), client.unwrap());
    Joined { client, server, at_client, at_server }
}

/// A server that listens and has one region of memory.
pub(crate) struct Service<F: Fixture> {
    /// The clients'.
    pub(crate) transport: F::Transport,
    pub(crate) server: Server<F>,
    pub(crate) listening: Listening<F>,
    pub(crate) memory: Memory<F>,
}

/// A client of a [`Service`], and the server's end that keeps it alive.
pub(crate) struct Caller<F: Fixture> {
    pub(crate) endpoint: EndpointOf<F>,
    pub(crate) remote: RemoteSlice,
    pub(crate) server: Accepted<F>,
}

impl<F: Fixture> Service<F> {
    pub(crate) fn new(bytes: usize, access: Access) -> Self {
        let transport = F::transport();
        let server = Server::new(&transport);
        let memory = server.allocate(bytes, access);
        Service { transport, listening: server.listen(), server, memory }
    }

    /// Connects a client that is granted the whole region.
    pub(crate) fn caller(&self) -> Caller<F> {
        let grants = [self.memory.whole()];
        let joined = join(&self.transport, &self.listening, Offer::default(), &[], &grants);
        Caller { endpoint: joined.client, remote: joined.at_client.grants[0], server: joined.server }
    }

    /// Lets a second process in, granting it the whole region.
    pub(crate) fn accept(&self) -> Accepted<F> {
        let arrived = wait_for("a peer", || {
            let arrived = self.listening.poll();
            if arrived.is_none() {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            arrived
        });
        arrived.accept(&[], &[self.memory.whole()]).expect("accept")
    }

    /// Memory for the clients' own side, filled with `bytes`.
    pub(crate) fn local(&self, bytes: &[u8]) -> LocalSlice {
        local(&self.transport, bytes)
    }
}
