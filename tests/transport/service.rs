//! A server with memory, wherever it is, and clients in this process.

use std::task::Poll;

use slackline::Transport;
use slackline::internals::mem::{Access, LocalSlice, RemoteSlice};
use slackline::internals::transport::{Connecting, Offer, PayloadSlice, Received};

use super::fixture::{EndpointOf, Fixture, local, now, payload, wait_for};
use super::here::Part;
use super::payloads::Payloads;
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

/// A server that listens and has memory for payloads and for words.
pub(crate) struct Service<F: Fixture> {
    /// The clients'.
    pub(crate) transport: F::Transport,
    pub(crate) server: Server<F>,
    pub(crate) listening: Listening<F>,
    /// Payloads are here.
    pub(crate) memory: Memory<F>,
    /// The same memory, unless that is on a GPU: then as much host memory.
    pub(crate) words: Memory<F>,
}

/// A client of a [`Service`], and the server's end that keeps it alive.
pub(crate) struct Caller<F: Fixture> {
    pub(crate) endpoint: EndpointOf<F>,
    pub(crate) remote: RemoteSlice,
    /// The memory of words.
    pub(crate) words: RemoteSlice,
    pub(crate) server: Accepted<F>,
}

impl<F: Fixture> Service<F> {
    pub(crate) fn new(bytes: usize, access: Access) -> Self {
        let transport = F::transport();
        let server = Server::new(&transport);
        let memory = server.allocate(bytes, access);
        let words = if F::Payloads::ARE_GRANTED_ON_A_GPU {
            server.allocate_words(bytes, access)
        } else {
            memory.clone()
        };
        Service { transport, listening: server.listen(), server, memory, words }
    }

    /// All of its memory: [`granted`] tells a client which is which.
    fn grants(&self) -> Vec<Part> {
        let on_host = F::Payloads::ARE_GRANTED_ON_A_GPU.then(|| self.words.whole());
        std::iter::once(self.memory.whole()).chain(on_host).collect()
    }

    /// Connects a client that is granted all memory.
    pub(crate) fn caller(&self) -> Caller<F> {
        let joined = join(&self.transport, &self.listening, Offer::default(), &[], &self.grants());
        let [remote, words] = granted(&joined.at_client);
        Caller { endpoint: joined.client, remote, words, server: joined.server }
    }

    /// Lets a second process in, granting it all memory.
    pub(crate) fn accept(&self) -> Accepted<F> {
        let arrived = wait_for("a peer", || {
            let arrived = self.listening.poll();
            if arrived.is_none() {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            arrived
        });
        arrived.accept(&[], &self.grants()).expect("accept")
    }

    /// A payload of the clients' own side: these bytes.
    pub(crate) fn payload(&self, bytes: &[u8]) -> PayloadSlice {
        payload::<F>(&self.transport, bytes)
    }

    /// Host memory of the clients' own side, filled with `bytes`.
    pub(crate) fn local(&self, bytes: &[u8]) -> LocalSlice {
        local(&self.transport, bytes)
    }
}

/// The payloads and the words of a [`Service`], as it grants them.
pub(crate) fn granted(received: &Received) -> [RemoteSlice; 2] {
    let [payloads, .., words] = received.grants[..] else { return [received.grants[0]; 2] };
    [payloads, words]
}
