//! A transport that counts the bytes that its own side reads of its peers: all but single lines, which are asked for
//! again and again while a version is waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;

use slackline::internals::mem::{Access, HostMemory, LocalSlice, MemoryRegion, RemoteSlice};
use slackline::internals::transport::{
    Capabilities, Connecting, Disconnected, Endpoint, HeartbeatWord, Incoming, Listener, Offer, Operation,
    PostError, Received, Refusal, RegisterError, WorkCompletion, WorkRequest,
};
use slackline::{Address, ConnectError, Instant, Transport};

/// Bytes of a line.
const LINE: u64 = 64;

/// Over another transport. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Counting<T>(T, Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    read: AtomicU64,
    /// The bytes after which one connection breaks, or 0.
    most: AtomicU64,
}

impl<T> Counting<T> {
    pub(crate) fn new(transport: T) -> Counting<T> {
        Counting(transport, Arc::default())
    }

    /// Has the connection break that reads more than so many bytes, and no other.
    pub(crate) fn break_after(&self, bytes: u64) {
        self.1.most.store(bytes, Relaxed);
    }

    pub(crate) fn has_broken(&self) -> bool {
        self.1.most.load(Relaxed) == 0
    }

    /// The bytes that were asked for since this was called last.
    pub(crate) fn take_read(&self) -> u64 {
        self.1.read.swap(0, Relaxed)
    }
}

impl<T: Transport> Transport for Counting<T> {
    type Endpoint = Counting<T::Endpoint>;
    type Listener = Counting<T::Listener>;
    type Connecting = Counting<T::Connecting>;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.0.register(memory, access)
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.0.allocate(bytes, access)
    }

    fn listen(&self, address: &Address) -> Result<Self::Listener, ConnectError> {
        Ok(Counting(self.0.listen(address)?, self.1.clone()))
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<Self::Connecting, ConnectError> {
        Ok(Counting(self.0.connect(address, offer)?, self.1.clone()))
    }
}

impl<L: Listener> Listener for Counting<L> {
    type Endpoint = Counting<L::Endpoint>;
    type Incoming = Counting<L::Incoming>;

    fn address(&self) -> Address {
        self.0.address()
    }

    fn poll(&mut self, now: Instant) -> Option<Self::Incoming> {
        Some(Counting(self.0.poll(now)?, self.1.clone()))
    }

    fn has_caught_up(&mut self) -> bool {
        self.0.has_caught_up()
    }
}

impl<I: Incoming> Incoming for Counting<I> {
    type Endpoint = Counting<I::Endpoint>;

    fn received(&self) -> &Received {
        self.0.received()
    }

    fn prepare(&mut self, grants: &[LocalSlice]) {
        self.0.prepare(grants);
    }

    fn accept(self, offer: Offer) -> Result<Self::Endpoint, ConnectError> {
        Ok(Counting(self.0.accept(offer)?, self.1))
    }

    fn refuse(self, refusal: Refusal) {
        self.0.refuse(refusal);
    }
}

impl<C: Connecting> Connecting for Counting<C> {
    type Endpoint = Counting<C::Endpoint>;

    fn poll(&mut self, now: Instant) -> Poll<Result<(Self::Endpoint, Received), ConnectError>> {
        let counted = self.1.clone();
        self.0.poll(now).map_ok(|(endpoint, received)| (Counting(endpoint, counted), received))
    }

    fn is_accepted(&self) -> bool {
        self.0.is_accepted()
    }
}

impl<E: Endpoint> Endpoint for Counting<E> {
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        let most = self.1.most.load(Relaxed);
        if most > 0 && self.1.read.load(Relaxed) > most {
            self.1.most.store(0, Relaxed);
            return Err(Disconnected { reason: "the test has broken it" }.into());
        }
        self.0.post(batch)?;
        let reads = batch.iter().filter_map(|request| match &request.operation {
            Operation::Read { remote, .. } if remote.len > LINE => Some(remote.len),
            _ => None,
        });
        self.1.read.fetch_add(reads.sum(), Relaxed);
        Ok(())
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        self.0.poll()
    }

    fn check(&mut self) -> Result<(), Disconnected> {
        self.0.check()
    }

    fn map(&self, remote: &RemoteSlice) -> Option<LocalSlice> {
        self.0.map(remote)
    }

    fn transport(&self) -> &'static str {
        self.0.transport()
    }

    fn heartbeat_word(&self, word: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError> {
        self.0.heartbeat_word(word)
    }

    fn close(self, code: u64) {
        self.0.close(code);
    }

    fn close_code(&self) -> Option<u64> {
        self.0.close_code()
    }
}
