//! The side of a claim that listens and has memory: in this process, or in another one, maybe on another host.
//!
//! Claims speak to both alike. What they want is an [`Ask`]; a [`Serving`] carries it out.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use slackline::Address;
use slackline::internals::mem::{Access, RemoteKey, RemoteSlice};
use slackline::internals::transport::Received;

use super::fixture::{Fixture, wait_for};
use super::here::{Answer, Ask, NOBODY, Part, Serving};

/// The listening side, wherever it is. Clones are the same one.
pub(crate) struct Server<F>(Rc<RefCell<Box<dyn Serving>>>, PhantomData<F>);

impl<F> Clone for Server<F> {
    fn clone(&self) -> Self {
        Server(Rc::clone(&self.0), PhantomData)
    }
}

impl<F: Fixture> Server<F> {
    /// `transport` is the clients'.
    pub(crate) fn new(transport: &F::Transport) -> Server<F> {
        Server(Rc::new(RefCell::new(F::serving(transport))), PhantomData)
    }

    pub(crate) fn try_ask(&self, ask: Ask, bytes: &[u8]) -> Answer {
        self.0.borrow_mut().answer(ask, bytes)
    }

    fn ask(&self, ask: Ask) -> u64 {
        self.try_ask(ask, &[]).expect("the server does it").0.number
    }

    /// Memory for payloads.
    pub(crate) fn allocate(&self, bytes: usize, access: Access) -> Memory<F> {
        self.memory(Ask::Allocate { bytes, access: access.bits() })
    }

    /// Host memory, for words.
    pub(crate) fn allocate_words(&self, bytes: usize, access: Access) -> Memory<F> {
        self.memory(Ask::AllocateWords { bytes, access: access.bits() })
    }

    fn memory(&self, ask: Ask) -> Memory<F> {
        let region = self.ask(ask) as usize;
        let len = self.ask(Ask::Length { region }) as usize;
        Memory { server: self.clone(), region, len }
    }

    pub(crate) fn listen(&self) -> Listening<F> {
        self.try_listen(None).expect("listen")
    }

    /// Listens at `address`, or at one at which no process listens. An error is its debugging text.
    pub(crate) fn try_listen(&self, address: Option<&Address>) -> Result<Listening<F>, String> {
        let address = address.map(Address::to_string);
        let (reply, _) = self.try_ask(Ask::Listen { address }, &[])?;
        let address = reply.text.expect("where it listens").parse().expect("an address");
        Ok(Listening { server: self.clone(), listener: reply.number as usize, address })
    }

    pub(crate) fn access_violations(&self) -> u64 {
        self.ask(Ask::AccessViolations)
    }
}

/// Memory of the server. Clones are the same memory.
pub(crate) struct Memory<F: Fixture> {
    server: Server<F>,
    region: usize,
    pub(crate) len: usize,
}

impl<F: Fixture> Clone for Memory<F> {
    fn clone(&self) -> Self {
        Memory { server: self.server.clone(), ..*self }
    }
}

impl<F: Fixture> Memory<F> {
    pub(crate) fn load(&self, at: usize) -> u64 {
        self.server.ask(Ask::Load { region: self.region, at })
    }

    pub(crate) fn store(&self, at: usize, value: u64) {
        self.server.ask(Ask::Store { region: self.region, at, value });
    }

    pub(crate) fn bytes(&self, part: Range<usize>) -> Vec<u8> {
        self.server.try_ask(Ask::Read { region: self.region, part }, &[]).expect("a read").1
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        self.server.try_ask(Ask::Write { region: self.region, at }, bytes).expect("a write");
    }

    pub(crate) fn part(&self, range: Range<usize>) -> Part {
        Part { region: self.region, range }
    }

    pub(crate) fn whole(&self) -> Part {
        self.part(0..self.len)
    }

    /// Begins to [`watch`] it and the words that announce what is in it.
    pub(crate) fn watch(&self, words: &Memory<F>) {
        self.server.ask(Ask::Watch { payload: self.region, words: words.region });
    }

    /// Waits for what the watcher has to tell.
    pub(crate) fn seen(&self) -> u64 {
        self.server.ask(Ask::Seen)
    }
}

/// A listener of the server.
pub(crate) struct Listening<F: Fixture> {
    server: Server<F>,
    listener: usize,
    pub(crate) address: Address,
}

impl<F: Fixture> Listening<F> {
    pub(crate) fn poll(&self) -> Option<Arrived<F>> {
        let answer = self.server.try_ask(Ask::Poll { listener: self.listener }, &[]);
        let (reply, message) = answer.expect("a poll of the listener");
        if reply.number == NOBODY {
            return None;
        }
        let slice = |(key, offset, len)| RemoteSlice { key: RemoteKey(key), offset, len };
        let received = Received { message, grants: reply.grants.into_iter().map(slice).collect() };
        Some(Arrived { server: self.server.clone(), incoming: reply.number as usize, received })
    }

    /// False if its transport cannot wake the thread that waits.
    pub(crate) fn be_notified(&self) -> bool {
        self.server.ask(Ask::BeNotified { listener: self.listener }) != 0
    }

    pub(crate) fn wait(&self, at_most: Duration) {
        self.server.ask(Ask::Wait { listener: self.listener, at_most });
    }
}

impl<F: Fixture> Drop for Listening<F> {
    fn drop(&mut self) {
        let _gone_already = self.server.try_ask(Ask::Close { listener: self.listener }, &[]);
    }
}

/// A peer that arrived at the server.
pub(crate) struct Arrived<F: Fixture> {
    server: Server<F>,
    incoming: usize,
    pub(crate) received: Received,
}

impl<F: Fixture> Arrived<F> {
    /// An error is its debugging text.
    pub(crate) fn accept(&self, message: &[u8], grants: &[Part]) -> Result<Accepted<F>, String> {
        let ask = Ask::Accept { incoming: self.incoming, grants: grants.to_vec() };
        let (reply, _) = self.server.try_ask(ask, message)?;
        Ok(Accepted { server: self.server.clone(), endpoint: reply.number as usize })
    }

    pub(crate) fn refuse(&self, reason: &str) {
        let ask = Ask::Refuse { incoming: self.incoming };
        self.server.try_ask(ask, reason.as_bytes()).expect("a refusal");
    }
}

/// The server's end of a connection.
pub(crate) struct Accepted<F: Fixture> {
    server: Server<F>,
    endpoint: usize,
}

impl<F: Fixture> Accepted<F> {
    pub(crate) fn is_connected(&self) -> bool {
        self.server.ask(Ask::Check { endpoint: self.endpoint }) == 1
    }

    pub(crate) fn wait_until_gone(&self) {
        wait_for("the peer to be gone", || (!self.is_connected()).then_some(()));
    }

    /// Returns the bytes that the server reads of what it was granted.
    pub(crate) fn fetch(&self, remote: RemoteSlice) -> Vec<u8> {
        let remote = (remote.key.0, remote.offset, remote.len);
        self.server.try_ask(Ask::Fetch { endpoint: self.endpoint, remote }, &[]).expect("a read").1
    }
}

impl<F: Fixture> Drop for Accepted<F> {
    fn drop(&mut self) {
        let _gone_already = self.server.try_ask(Ask::Disconnect { endpoint: self.endpoint }, &[]);
    }
}
