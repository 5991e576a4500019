//! The side of a claim that listens and has memory: in this process, or in another one, maybe on another host.
//!
//! Claims speak to both alike. What they want is an [`Ask`]; [`Here`] carries it out, `elsewhere` takes it to a process
//! that has a [`Here`] of its own.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackline::mem::{Access, MemoryRegion, RemoteKey, RemoteSlice};
use slackline::transport::{Address, Endpoint, Incoming, Listener, Offer, Received, Transport};

use super::elsewhere::Elsewhere;
use super::fixture::{EndpointOf, Fixture, ListenerOf, bytes_of, now, read, run, wait_for};
use super::ordering::watch;

/// What the listening side is to do. What is made gets the number that the answer tells, counted for each kind; bytes
/// travel beside it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    Process,
    Allocate { bytes: usize, access: u32 },
    Load { region: usize, at: usize },
    Store { region: usize, at: usize, value: u64 },
    Read { region: usize, part: Range<usize> },
    Write { region: usize, at: usize },
    Watch { region: usize },
    Seen,
    Listen { address: Option<String> },
    Close { listener: usize },
    BeNotified { listener: usize },
    Wait { listener: usize, at_most: Duration },
    Poll { listener: usize },
    Accept { incoming: usize, grants: Vec<Part> },
    Refuse { incoming: usize },
    IsThere { endpoint: usize },
    Fetch { endpoint: usize, remote: Slice },
    HangUp { endpoint: usize },
    Trespasses,
}

/// A part of a region of the listening side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    region: usize,
    range: Range<usize>,
}

/// A [`RemoteSlice`]: its key, offset and length.
pub(crate) type Slice = (u64, u64, u64);

/// What came of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reply {
    number: u64,
    text: Option<String>,
    grants: Vec<Slice>,
}

/// The number of who has not arrived.
const NOBODY: u64 = u64::MAX;

/// A reply and its bytes, or the error's debugging text.
pub(crate) type Answer = Result<(Reply, Vec<u8>), String>;

type IncomingOf<F> = <ListenerOf<F> as Listener>::Incoming;

/// The listening side itself.
pub(crate) struct Here<F: Fixture> {
    transport: F::Transport,
    regions: Vec<MemoryRegion>,
    listeners: Vec<Option<ListenerOf<F>>>,
    arrived: Vec<Option<IncomingOf<F>>>,
    endpoints: Vec<Option<EndpointOf<F>>>,
    watching: Option<JoinHandle<u64>>,
}

fn keep<T>(things: &mut Vec<Option<T>>, thing: T) -> u64 {
    things.push(Some(thing));
    things.len() as u64 - 1
}

impl<F: Fixture> Here<F> {
    pub(crate) fn new(transport: F::Transport) -> Here<F> {
        let (listeners, arrived, endpoints) = (Vec::new(), Vec::new(), Vec::new());
        Here { transport, regions: Vec::new(), listeners, arrived, endpoints, watching: None }
    }

    fn listener(&mut self, number: usize) -> &mut ListenerOf<F> {
        self.listeners[number].as_mut().expect("it listens")
    }

    fn endpoint(&mut self, number: usize) -> &mut EndpointOf<F> {
        self.endpoints[number].as_mut().expect("it is connected")
    }

    /// # Panics
    /// On what no claim asks for.
    pub(crate) fn answer(&mut self, ask: Ask, bytes: Vec<u8>) -> Answer {
        let number = |number: u64| Ok((Reply { number, ..Reply::default() }, Vec::new()));
        match ask {
            Ask::Process => Ok((Reply { text: Some(this_process()), ..Reply::default() }, Vec::new())),
            Ask::Allocate { bytes, access } => {
                let access = Access::from_bits(access).expect("rights");
                let region = self.transport.allocate(bytes, access).map_err(text)?;
                assert_eq!(region.len(), bytes, "claims ask for whole pages");
                self.regions.push(region);
                number(self.regions.len() as u64 - 1)
            }
            Ask::Load { region, at } => number(self.regions[region].as_volatile().load_u64(at)),
            Ask::Store { region, at, value } => {
                self.regions[region].as_volatile().store_u64(at, value);
                number(0)
            }
            Ask::Read { region, part } => {
                let slice = self.regions[region].slice(part.start, part.len()).expect("a part of it");
                Ok((Reply::default(), bytes_of(&slice)))
            }
            Ask::Write { region, at } => {
                self.regions[region]
                    .slice(at, bytes.len())
                    .expect("a part of it")
                    .as_volatile()
                    .write(&bytes);
                number(0)
            }
            Ask::Watch { region } => {
                let region = self.regions[region].clone();
                self.watching = Some(std::thread::spawn(move || watch::<F>(&region)));
                number(0)
            }
            Ask::Seen => {
                let watching = self.watching.take().expect("somebody watches");
                number(watching.join().expect("the watcher saw nothing wrong"))
            }
            Ask::Listen { address } => {
                let address = address.map_or_else(F::address, |text| text.parse().expect("an address"));
                let listener = self.transport.listen(&address).map_err(text)?;
                let text = Some(listener.address().to_string());
                let number = keep(&mut self.listeners, listener);
                Ok((Reply { number, text, ..Reply::default() }, Vec::new()))
            }
            Ask::Close { listener } => {
                self.listeners[listener] = None;
                number(0)
            }
            Ask::BeNotified { listener } => {
                number(self.listener(listener).be_notified().map_err(text)?.into())
            }
            Ask::Wait { listener, at_most } => {
                self.listener(listener).wait(at_most);
                number(0)
            }
            Ask::Poll { listener } => {
                let Some(incoming) = self.listener(listener).poll(now()) else { return number(NOBODY) };
                let received = incoming.received();
                let grants =
                    received.grants.iter().map(|slice| (slice.key.0, slice.offset, slice.len)).collect();
                let message = received.message.clone();
                let number = keep(&mut self.arrived, incoming);
                Ok((Reply { number, grants, ..Reply::default() }, message))
            }
            Ask::Accept { incoming, grants } => {
                let of = |part: &Part| self.regions[part.region].slice(part.range.start, part.range.len());
                let grants = grants.iter().map(|part| of(part).expect("a part of it")).collect();
                let incoming = self.arrived[incoming].take().expect("it is answered once");
                let endpoint = incoming.accept(Offer { message: bytes, grants }).map_err(text)?;
                number(keep(&mut self.endpoints, endpoint))
            }
            Ask::Refuse { incoming } => {
                let incoming = self.arrived[incoming].take().expect("it is answered once");
                incoming.refuse(&String::from_utf8(bytes).expect("a reason"));
                number(0)
            }
            Ask::IsThere { endpoint } => number(self.endpoint(endpoint).check().is_ok().into()),
            Ask::Fetch { endpoint, remote: (key, offset, len) } => {
                let remote = RemoteSlice { key: RemoteKey(key), offset, len };
                let region = self.transport.allocate(len as usize, Access::LOCAL).map_err(text)?;
                let local = region.slice(0, len as usize).expect("all of it");
                run(self.endpoint(endpoint), read(local.clone(), remote)).map_err(text)?;
                Ok((Reply::default(), bytes_of(&local)))
            }
            Ask::HangUp { endpoint } => {
                self.endpoints[endpoint] = None;
                number(0)
            }
            Ask::Trespasses => number(self.transport.trespasses()),
        }
    }
}

/// A name of this process that no other one has: which life of which host it is of, and its number there.
pub(crate) fn this_process() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("this host's life");
    format!("{} {}", boot.trim(), std::process::id())
}

fn text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

enum Place<F: Fixture> {
    Here(Here<F>),
    Elsewhere(Elsewhere),
}

/// The listening side, wherever it is. Clones are the same one.
pub(crate) struct Server<F: Fixture>(Rc<RefCell<Place<F>>>);

impl<F: Fixture> Clone for Server<F> {
    fn clone(&self) -> Self {
        Server(Rc::clone(&self.0))
    }
}

impl<F: Fixture> Server<F> {
    /// In another process, if the fixture says so, and with a transport that is a clone of the client's otherwise.
    pub(crate) fn new(transport: &F::Transport) -> Server<F> {
        let place = match F::SERVERS_ARE_ELSEWHERE {
            true => Place::Elsewhere(Elsewhere::start::<F>()),
            false => Place::Here(Here::new(transport.clone())),
        };
        Server(Rc::new(RefCell::new(place)))
    }

    fn try_ask(&self, ask: Ask, bytes: &[u8]) -> Answer {
        match &mut *self.0.borrow_mut() {
            Place::Here(here) => here.answer(ask, bytes.to_vec()),
            Place::Elsewhere(elsewhere) => elsewhere.ask(&ask, bytes),
        }
    }

    fn ask(&self, ask: Ask) -> u64 {
        self.try_ask(ask, &[]).expect("the server does it").0.number
    }

    /// What [`this_process`] says where it is.
    pub(crate) fn process(&self) -> String {
        let (reply, _) = self.try_ask(Ask::Process, &[]).expect("the server does it");
        reply.text.expect("a name")
    }

    pub(crate) fn allocate(&self, bytes: usize, access: Access) -> Memory<F> {
        let region = self.ask(Ask::Allocate { bytes, access: access.bits() }) as usize;
        Memory { server: self.clone(), region, len: bytes }
    }

    pub(crate) fn listen(&self) -> Listening<F> {
        self.try_listen(None).expect("listen")
    }

    /// At `address`, or one that nobody listens at. An error is its debugging text.
    pub(crate) fn try_listen(&self, address: Option<&Address>) -> Result<Listening<F>, String> {
        let address = address.map(Address::to_string);
        let (reply, _) = self.try_ask(Ask::Listen { address }, &[])?;
        let address = reply.text.expect("where it listens").parse().expect("an address");
        Ok(Listening { server: self.clone(), listener: reply.number as usize, address })
    }

    pub(crate) fn trespasses(&self) -> u64 {
        self.ask(Ask::Trespasses)
    }
}

/// Memory of the server.
pub(crate) struct Memory<F: Fixture> {
    server: Server<F>,
    region: usize,
    pub(crate) len: usize,
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

    /// Begins to [`watch`] it.
    pub(crate) fn watch(&self) {
        self.server.ask(Ask::Watch { region: self.region });
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
        let (reply, message) = answer.expect("a look at the door");
        if reply.number == NOBODY {
            return None;
        }
        let slice = |(key, offset, len)| RemoteSlice { key: RemoteKey(key), offset, len };
        let received = Received { message, grants: reply.grants.into_iter().map(slice).collect() };
        Some(Arrived { server: self.server.clone(), incoming: reply.number as usize, received })
    }

    pub(crate) fn be_notified(&self) -> bool {
        self.server.ask(Ask::BeNotified { listener: self.listener }) == 1
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

/// Somebody who arrived at the server.
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
        self.server.ask(Ask::IsThere { endpoint: self.endpoint }) == 1
    }

    pub(crate) fn wait_until_gone(&self) {
        wait_for("the peer to be gone", || (!self.is_connected()).then_some(()));
    }

    /// What the server reads of what it was granted.
    pub(crate) fn fetch(&self, remote: RemoteSlice) -> Vec<u8> {
        let remote = (remote.key.0, remote.offset, remote.len);
        self.server.try_ask(Ask::Fetch { endpoint: self.endpoint, remote }, &[]).expect("a read").1
    }
}

impl<F: Fixture> Drop for Accepted<F> {
    fn drop(&mut self) {
        let _gone_already = self.server.try_ask(Ask::HangUp { endpoint: self.endpoint }, &[]);
    }
}
