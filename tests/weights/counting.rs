//! A transport that counts the bytes that its own side reads of its peers: all but single lines, which are asked for
//! again and again while a version is waited for. It can break, and damage what it reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;

use slackline::internals::mem::{Access, HostMemory, LocalSlice, MemoryRegion, RemoteSlice};
use slackline::internals::transport::{
    Capabilities, Connecting, Disconnected, Endpoint, Flags, HeartbeatWord, Incoming, Listener, Offer,
    Operation, PostError, Received, Refusal, RegisterError, Remains, WorkCompletion, WorkRequest,
};
use slackline::{Address, ConnectError, Instant, Transport};

/// Bytes of a line.
const LINE: u64 = 64;

/// The byte of a damaged read that is not as it was.
const DAMAGED: usize = 33;

/// Over another transport. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Counting<T>(T, Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    read: AtomicU64,
    /// The bytes after which one connection breaks, or 0.
    most: AtomicU64,
    /// The next read of more bytes than these is damaged; 0 for none.
    damages: AtomicU64,
}

/// A connection over another transport.
#[derive(Debug)]
pub(crate) struct CountingEndpoint<E> {
    endpoint: E,
    counts: Arc<Counts>,
    /// The requests whose completion is to come, each with the memory that is damaged then.
    in_flight: VecDeque<Option<LocalSlice>>,
    /// The memory that is damaged with the next request whose completion comes.
    damaged: Option<LocalSlice>,
}

impl<E> CountingEndpoint<E> {
    fn new(endpoint: E, counts: Arc<Counts>) -> Self {
        CountingEndpoint { endpoint, counts, in_flight: VecDeque::new(), damaged: None }
    }
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

    /// Has one bit flip in the next read of more than so many bytes, and at least a line.
    pub(crate) fn damage(&self, more_than: u64) {
        self.1.damages.store(more_than.max(LINE), Relaxed);
    }

    pub(crate) fn has_damaged(&self) -> bool {
        self.1.damages.load(Relaxed) == 0
    }

    /// The bytes that were asked for since this was called last.
    pub(crate) fn take_read(&self) -> u64 {
        self.1.read.swap(0, Relaxed)
    }
}

impl<T: Transport> Transport for Counting<T> {
    type Endpoint = CountingEndpoint<T::Endpoint>;
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
    type Endpoint = CountingEndpoint<L::Endpoint>;
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
    type Endpoint = CountingEndpoint<I::Endpoint>;

    fn received(&self) -> &Received {
        self.0.received()
    }

    fn prepare(&mut self, grants: &[LocalSlice]) {
        self.0.prepare(grants);
    }

    fn accept(self, offer: Offer) -> Result<Self::Endpoint, ConnectError> {
        Ok(CountingEndpoint::new(self.0.accept(offer)?, self.1))
    }

    fn refuse(self, refusal: Refusal) {
        self.0.refuse(refusal);
    }
}

impl<C: Connecting> Connecting for Counting<C> {
    type Endpoint = CountingEndpoint<C::Endpoint>;

    fn poll(&mut self, now: Instant) -> Poll<Result<(Self::Endpoint, Received), ConnectError>> {
        let counted = self.1.clone();
        self.0.poll(now).map_ok(|(endpoint, received)| (CountingEndpoint::new(endpoint, counted), received))
    }

    fn is_accepted(&self) -> bool {
        self.0.is_accepted()
    }
}

impl<E: Endpoint> Endpoint for CountingEndpoint<E> {
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        let most = self.counts.most.load(Relaxed);
        if most > 0 && self.counts.read.load(Relaxed) > most {
            self.counts.most.store(0, Relaxed);
            return Err(Disconnected { reason: "the test has broken it" }.into());
        }
        self.endpoint.post(batch)?;
        for request in batch {
            if let Operation::Read { local, remote, .. } = &request.operation
                && remote.len > LINE
            {
                self.counts.read.fetch_add(remote.len, Relaxed);
                let more_than = self.counts.damages.load(Relaxed);
                if more_than > 0 && remote.len > more_than {
                    self.counts.damages.store(0, Relaxed);
                    self.damaged = Some(local.clone());
                }
            }
            if request.flags.contains(Flags::SIGNALLED) {
                self.in_flight.push_back(self.damaged.take());
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        let completion = self.endpoint.poll()?;
        if let Some(damaged) = self.in_flight.pop_front().flatten() {
            let (byte, mut value) = (damaged.as_volatile().subslice(DAMAGED, 1), [0]);
            byte.read(&mut value);
            byte.write(&[value[0] ^ 4]);
        }
        Some(completion)
    }

    fn check(&mut self) -> Result<(), Disconnected> {
        self.endpoint.check()
    }

    fn map(&self, remote: &RemoteSlice) -> Option<LocalSlice> {
        self.endpoint.map(remote)
    }

    fn transport(&self) -> &'static str {
        self.endpoint.transport()
    }

    fn heartbeat_word(&self, word: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError> {
        self.endpoint.heartbeat_word(word)
    }

    fn close(self, code: u64) -> Option<Remains> {
        self.endpoint.close(code)
    }

    fn close_code(&self) -> Option<u64> {
        self.endpoint.close_code()
    }
}
