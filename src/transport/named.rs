//! Several owners behind one address, each with a table of its own that peers ask for by name: the adapters of a model,
//! say.
//!
//! The name travels before the message of the layer above, in the handshake alone; the connection that comes of it is
//! the other transport's own.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    Address, ArrivalWatch, Capabilities, ConnectError, Doorbell, GpuGrant, Incoming, Listener,
    MAX_PENDING_HANDSHAKES, Offer, Received, Refusal, RegisterError, Simulator, Transport,
};
use crate::cuda::{Gpu, GpuMemory};
use crate::mem::{Access, ForkGuard, HostMemory, LocalSlice, MemoryRegion};
use crate::time::{Duration, Instant};

/// Begins a message before which a name stands: its length, a byte, and the name follow.
pub(crate) const NAMED: &[u8; 8] = b"slk-name";

/// Longest name in bytes.
const NAME_MAX: usize = 255;

/// The time after which a peer may ask again for a table that is not there, or whose owner is busy.
const RETRY_AFTER: Duration = Duration::from_millis(50);

type IncomingOf<T> = <<T as Transport>::Listener as Listener>::Incoming;

/// One address behind which several publishers serve a table each, by name. Each has versions, readers and settings of
/// its own; they share the listener.
///
/// ```
/// use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
/// use slackline::{Address, ElementType, Named, Shm, Table, Tables, VersionTag};
/// use std::time::Duration;
///
/// let timeout = Duration::from_secs(10);
/// let tables = Tables::listen(Shm::new(), &Address::random())?;
/// let table = Table::flat(8, ElementType::F32)?;
/// let publish = |name| {
///     let named = tables.named(name);
///     Publisher::new(named, tables.address(), table.clone(), PublisherOptions::default())?.into_background()
/// };
/// let (base, adapter) = (publish("base")?, publish("adapter-7")?);
/// base.publish(&[1; 32], VersionTag::default(), timeout)?;
/// adapter.publish(&[7; 32], VersionTag::default(), timeout)?;
///
/// let transport = Named::new(Shm::new(), "adapter-7");
/// let mut reader = Reader::connect(transport, tables.address(), ReaderOptions::default(), timeout)?;
/// assert_eq!(reader.snapshot(Wanted::newest(), timeout)?.bytes(), [7; 32]);
/// # Ok::<(), slackline::Error>(())
/// ```
#[derive(Debug)]
pub struct Tables<T: Transport> {
    transport: T,
    hub: Arc<TableHub<T>>,
}

impl<T: Transport + Clone> Tables<T> {
    /// Begins to listen at `address`.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn listen(transport: T, address: &Address) -> Result<Tables<T>, ConnectError> {
        let listener = transport.listen(address)?;
        Ok(Tables { transport, hub: TableHub::new(listener) })
    }

    /// The address at which all tables are reached.
    pub fn address(&self) -> &Address {
        &self.hub.address
    }

    /// The names of the tables that are served now; none in a forked child, which serves none.
    pub fn names(&self) -> Vec<String> {
        if self.hub.guard.is_inherited() {
            return Vec::new();
        }
        self.hub.lock().tables.keys().map(|name| name.to_string()).collect()
    }

    /// The transport for a [`Publisher`](crate::node::Publisher) or a [`Relay`](crate::node::Relay) that serves the
    /// table of this name, whatever address it is told to listen at. No two of them serve one name at once.
    pub fn named(&self, name: &str) -> Named<T> {
        let hub = Some(Arc::clone(&self.hub));
        Named { transport: self.transport.clone(), name: name.into(), hub }
    }
}

/// A transport over which a peer asks for the table of a name, or serves it.
#[derive(Debug)]
pub struct Named<T: Transport> {
    transport: T,
    name: Arc<str>,
    /// The listener that is shared; `None` for one of its own.
    hub: Option<Arc<TableHub<T>>>,
}

impl<T: Transport + Clone> Clone for Named<T> {
    fn clone(&self) -> Self {
        Named { transport: self.transport.clone(), name: self.name.clone(), hub: self.hub.clone() }
    }
}

impl<T: Transport> Named<T> {
    /// For a reader of the table of this name, or for a publisher or relay that serves it at an address of its own. An
    /// empty name stands for the table of an owner that has one without a name.
    pub fn new(transport: T, name: &str) -> Named<T> {
        Named { transport, name: name.into(), hub: None }
    }
}

impl<T: Transport> Transport for Named<T> {
    type Endpoint = T::Endpoint;
    type Listener = NamedListener<T>;
    type Connecting = T::Connecting;

    fn capabilities(&self) -> Capabilities {
        self.transport.capabilities()
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.transport.register(memory, access)
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.transport.allocate(bytes, access)
    }

    fn listen(&self, address: &Address) -> Result<NamedListener<T>, ConnectError> {
        check(&self.name, "listen", address)?;
        let hub = match &self.hub {
            Some(hub) => Arc::clone(hub),
            None => TableHub::new(self.transport.listen(address)?),
        };
        let operation = "listen";
        if hub.guard.is_inherited() {
            let source = io::Error::other("this process was forked from the one that listens there");
            let (address, remedy) = (address.clone(), "make `Tables` in the child itself");
            return Err(ConnectError::System { operation, address, source, remedy });
        }
        let mut sharing = hub.lock();
        if sharing.tables.contains_key(&self.name) {
            let taken = format!("a table called `{}` is served there already", self.name);
            let source = io::Error::new(io::ErrorKind::AddrInUse, taken);
            let (address, remedy) = (hub.address.clone(), "give each table a name of its own");
            return Err(ConnectError::System { operation, address, source, remedy });
        }
        sharing.tables.insert(self.name.clone(), VecDeque::new());
        drop(sharing);
        Ok(NamedListener { hub, name: self.name.clone(), is_shared: self.hub.is_some() })
    }

    fn access_violations(&self) -> u64 {
        self.transport.access_violations()
    }

    fn rails_lost(&self) -> u64 {
        self.transport.rails_lost()
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<T::Connecting, ConnectError> {
        self.transport.connect(address, self.name_offer(address, offer)?)
    }

    fn connect_to_be_woken(
        &self,
        address: &Address,
        offer: Offer,
        doorbell: &Arc<Doorbell>,
    ) -> Result<T::Connecting, ConnectError> {
        self.transport.connect_to_be_woken(address, self.name_offer(address, offer)?, doorbell)
    }

    fn gpu(&self) -> Option<&Gpu> {
        self.transport.gpu()
    }

    fn register_on_gpu(&self, memory: &GpuMemory) -> Result<(), RegisterError> {
        self.transport.register_on_gpu(memory)
    }

    fn simulator(&self) -> Option<Arc<dyn Simulator>> {
        self.transport.simulator()
    }
}

impl<T: Transport> Named<T> {
    /// The same offer for the table of this name.
    fn name_offer(&self, address: &Address, offer: Offer) -> Result<Offer, ConnectError> {
        check(&self.name, "connect", address)?;
        if self.name.is_empty() {
            return Ok(offer);
        }
        let message = [&NAMED[..], &[self.name.len() as u8], self.name.as_bytes(), &offer.message].concat();
        Ok(Offer { message, ..offer })
    }
}

/// The listener that several owners share, and the peers that have come for each of their tables.
struct SharedListener<T: Transport> {
    listener: T::Listener,
    tables: BTreeMap<Arc<str>, VecDeque<NamedIncoming<T>>>,
}

impl<T: Transport> std::fmt::Debug for SharedListener<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedListener").field("tables", &self.tables.keys()).finish_non_exhaustive()
    }
}

/// The listener behind its lock, which a thread of the process may hold when that forks: in the child it may be held
/// for ever.
#[derive(Debug)]
struct TableHub<T: Transport> {
    guard: ForkGuard,
    /// The address of the listener, which stays the same.
    address: Address,
    shared: Mutex<SharedListener<T>>,
}

impl<T: Transport> TableHub<T> {
    fn new(listener: T::Listener) -> Arc<TableHub<T>> {
        let address = listener.address();
        let shared = Mutex::new(SharedListener { listener, tables: BTreeMap::new() });
        Arc::new(TableHub { guard: ForkGuard::new(), address, shared })
    }

    fn lock(&self) -> MutexGuard<'_, SharedListener<T>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Transport> SharedListener<T> {
    /// Sorts the peers that have come by the tables that they ask for.
    fn sort(&mut self, now: Instant) {
        while let Some(incoming) = self.listener.poll(now) {
            let received = incoming.received();
            let (name, message) = match split(&received.message) {
                Ok(split) => split,
                Err(reason) => {
                    incoming.refuse(reason.into());
                    continue;
                }
            };
            match self.tables.get_mut(name) {
                Some(waiting) if waiting.len() < MAX_PENDING_HANDSHAKES => {
                    let received = Received { message: message.to_vec(), grants: received.grants.clone() };
                    waiting.push_back(NamedIncoming { incoming, received });
                }
                Some(_) => {
                    incoming.refuse(Refusal::temporary(RETRY_AFTER, "too many peers wait for this table"))
                }
                None => {
                    let names = self.tables.keys().map(|name| &**name).filter(|name| !name.is_empty());
                    let there = names.collect::<Vec<&str>>().join(", ");
                    let reason = match name {
                        "" => "tables are served here by name".to_owned(),
                        name => format!("there is no table called `{name}` here"),
                    };
                    let reason = match there.is_empty() {
                        true => format!("{reason}; ask for its table without a name"),
                        false => format!("{reason}; ask for one of these: {there}"),
                    };
                    incoming.refuse(Refusal::temporary(RETRY_AFTER, reason));
                }
            }
        }
    }
}

/// The side of one owner of a listener that may be shared.
pub struct NamedListener<T: Transport> {
    hub: Arc<TableHub<T>>,
    name: Arc<str>,
    is_shared: bool,
}

impl<T: Transport> Listener for NamedListener<T> {
    type Endpoint = T::Endpoint;
    type Incoming = NamedIncoming<T>;

    fn address(&self) -> Address {
        self.hub.address.clone()
    }

    fn poll(&mut self, now: Instant) -> Option<NamedIncoming<T>> {
        let mut hub = self.hub.lock();
        hub.sort(now);
        hub.tables.get_mut(&self.name)?.pop_front()
    }

    fn be_notified(&mut self) -> Result<bool, ConnectError> {
        // A notification for one of the publishers that share the listener would wake any of them.
        if self.is_shared { Ok(false) } else { self.hub.lock().listener.be_notified() }
    }

    fn watch_arrivals(&mut self) -> Option<ArrivalWatch> {
        // Nor can the listener tell which of them a peer arrives for.
        if self.is_shared { None } else { self.hub.lock().listener.watch_arrivals() }
    }

    fn has_caught_up(&mut self) -> bool {
        self.hub.lock().listener.has_caught_up()
    }

    fn wait(&mut self, timeout: Duration) {
        if !self.is_shared {
            self.hub.lock().listener.wait(timeout);
        }
    }
}

impl<T: Transport> Drop for NamedListener<T> {
    fn drop(&mut self) {
        if !self.hub.guard.is_inherited() {
            self.hub.lock().tables.remove(&self.name);
        }
    }
}

/// A peer that has asked for one owner's table.
pub struct NamedIncoming<T: Transport> {
    incoming: IncomingOf<T>,
    /// Without the name.
    received: Received,
}

impl<T: Transport> Incoming for NamedIncoming<T> {
    type Endpoint = T::Endpoint;

    fn received(&self) -> &Received {
        &self.received
    }

    fn reads_only(&self) -> bool {
        self.incoming.reads_only()
    }

    fn grant_gpu(&mut self, grants: Vec<GpuGrant>) -> Result<(), &'static str> {
        self.incoming.grant_gpu(grants)
    }

    fn prepare(&mut self, grants: &[LocalSlice]) {
        self.incoming.prepare(grants);
    }

    fn accept(self, offer: Offer) -> Result<T::Endpoint, ConnectError> {
        self.incoming.accept(offer)
    }

    fn refuse(self, refusal: Refusal) {
        self.incoming.refuse(refusal);
    }
}

/// A name that can be sent and shown.
fn is_name(name: &str) -> bool {
    name.len() <= NAME_MAX && !name.chars().any(char::is_control)
}

fn check(name: &str, operation: &'static str, address: &Address) -> Result<(), ConnectError> {
    if is_name(name) {
        return Ok(());
    }
    let source = io::Error::new(io::ErrorKind::InvalidInput, "the name of a table cannot be sent");
    let remedy = "use at most 255 bytes, and no control characters";
    Err(ConnectError::System { operation, address: address.clone(), source, remedy })
}

/// The name before a message, or an empty one, and the message.
fn split(bytes: &[u8]) -> Result<(&str, &[u8]), &'static str> {
    let Some(named) = bytes.strip_prefix(NAMED) else { return Ok(("", bytes)) };
    let name = named.split_first().and_then(|(len, rest)| rest.split_at_checked(usize::from(*len)));
    let (name, message) = name.ok_or("the name of its table is cut off")?;
    let name = std::str::from_utf8(name).ok().filter(|name| is_name(name) && !name.is_empty());
    Ok((name.ok_or("the name of its table is none")?, message))
}

/// Splits arbitrary `bytes`, and checks the result.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_name(bytes: &[u8]) {
    let Ok((name, message)) = split(bytes) else { return };
    assert!(is_name(name) && bytes.ends_with(message));
    assert!(name.is_empty() == (message.len() == bytes.len()));
}

/// Names with a message that are taken.
#[cfg(any(test, fuzzing))]
pub(crate) fn name_samples() -> Vec<Vec<u8>> {
    vec![b"slk-name\x09adapter-7SLACKLIN".to_vec(), b"SLACKLIN".to_vec()]
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::diagnostic::Diagnostic;
    use crate::mem::{alone, true_in_a_forked_child};
    use crate::transport::shm::Shm;

    #[test]
    fn a_forked_child_waits_for_no_lock_to_know_the_address() {
        if !alone("transport::named::tests::a_forked_child_waits_for_no_lock_to_know_the_address") {
            return;
        }
        let tables = Tables::listen(Shm::new(), &Address::random()).unwrap();
        let mut listener = Some(tables.named("base").listen(tables.address()).unwrap());
        // As a thread of the parent may when its process forks.
        let held = tables.hub.lock();
        assert!(true_in_a_forked_child(|| {
            let (tell, told) = channel();
            let listener = listener.take().unwrap();
            std::thread::spawn(move || tell.send(listener.address()));
            told.recv_timeout(std::time::Duration::from_secs(10)).as_ref() == Ok(tables.address())
        }));
        drop(held);
        assert_eq!(listener.unwrap().address(), *tables.address());
    }

    #[test]
    fn a_name_that_cannot_be_sent_is_no_error_to_try_again() {
        for bad in ["a\nb".to_owned(), "e".repeat(256)] {
            let error = Named::new(Shm::new(), &bad).listen(&Address::random()).err().unwrap();
            assert!(!error.is_retryable() && error.to_string().contains("no control characters"), "{error}");
        }
    }

    #[test]
    fn names_stand_before_messages_and_bad_ones_are_refused() {
        assert_eq!(split(&name_samples()[0]), Ok(("adapter-7", &b"SLACKLIN"[..])));
        assert_eq!(split(b"SLACKLIN"), Ok(("", &b"SLACKLIN"[..])));
        for bad in
            [&b"slk-name"[..], b"slk-name\x05four", b"slk-name\x00", b"slk-name\x01\n", b"slk-name\x01\xff"]
        {
            assert!(split(bad).is_err(), "{bad:?}");
        }
        name_samples().iter().for_each(|sample| fuzz_name(sample));
    }
}
