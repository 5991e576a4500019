//! Requests to the side that listens, and their execution in the process of that side.

use std::ops::Range;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackline::Transport;
use slackline::internals::mem::{Access, MemoryRegion, RemoteKey, RemoteSlice};
use slackline::internals::transport::{Endpoint, GpuGrant, Incoming, Listener, Offer, PayloadMemory};

use super::fixture::{EndpointOf, Fixture, ListenerOf, now, payload, read, run};
use super::ordering::watch;
use super::payloads::Payloads;

/// A request to the listening side. Each object that it makes gets the number that the answer tells, counted for each
/// kind. Bytes travel beside the request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    Process,
    Allocate { bytes: usize, access: u32 },
    AllocateWords { bytes: usize, access: u32 },
    Length { region: usize },
    Load { region: usize, at: usize },
    Store { region: usize, at: usize, value: u64 },
    Read { region: usize, part: Range<usize> },
    Write { region: usize, at: usize },
    Watch { payload: usize, words: usize },
    Seen,
    Listen { address: Option<String> },
    Close { listener: usize },
    BeNotified { listener: usize },
    Wait { listener: usize, at_most: Duration },
    Poll { listener: usize },
    Accept { incoming: usize, grants: Vec<Part> },
    Refuse { incoming: usize },
    Check { endpoint: usize },
    Fetch { endpoint: usize, remote: Slice },
    Disconnect { endpoint: usize },
    AccessViolations,
}

/// A part of a region of the listening side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) region: usize,
    pub(crate) range: Range<usize>,
}

/// A [`RemoteSlice`]: its key, offset and length.
pub(crate) type Slice = (u64, u64, u64);

/// The reply to a request.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) number: u64,
    pub(crate) text: Option<String>,
    pub(crate) grants: Vec<Slice>,
}

/// The number in a reply while no peer has arrived.
pub(crate) const NOBODY: u64 = u64::MAX;

/// A reply and its bytes, or the error's debugging text.
pub(crate) type Answer = Result<(Reply, Vec<u8>), String>;

/// A side that carries requests out.
pub(crate) trait Serving {
    /// # Panics
    /// On what no claim asks for.
    fn answer(&mut self, ask: Ask, bytes: &[u8]) -> Answer;
}

type IncomingOf<F> = <ListenerOf<F> as Listener>::Incoming;

/// The listening side itself.
pub(crate) struct Here<F: Fixture> {
    transport: F::Transport,
    /// What is granted of each, with these rights.
    regions: Vec<(PayloadMemory, Access)>,
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

    /// A region that has words.
    fn words(&self, number: usize) -> &MemoryRegion {
        self.regions[number].0.host().expect("words are in host memory")
    }

    fn listener(&mut self, number: usize) -> &mut ListenerOf<F> {
        self.listeners[number].as_mut().expect("it listens")
    }

    fn endpoint(&mut self, number: usize) -> &mut EndpointOf<F> {
        self.endpoints[number].as_mut().expect("it is connected")
    }
}

impl<F: Fixture> Serving for Here<F> {
    fn answer(&mut self, ask: Ask, bytes: &[u8]) -> Answer {
        let number = |number: u64| Ok((Reply { number, ..Reply::default() }, Vec::new()));
        match ask {
            Ask::Process => Ok((Reply { text: Some(this_process()), ..Reply::default() }, Vec::new())),
            Ask::Allocate { bytes, access } => {
                let access = Access::from_bits(access).expect("rights");
                let memory = F::Payloads::granted(&self.transport, bytes, access).map_err(debug_text)?;
                self.regions.push((memory, access));
                number(self.regions.len() as u64 - 1)
            }
            Ask::AllocateWords { bytes, access } => {
                let access = Access::from_bits(access).expect("rights");
                let region = self.transport.allocate(bytes, access).map_err(debug_text)?;
                self.regions.push((region.into(), access));
                number(self.regions.len() as u64 - 1)
            }
            Ask::Length { region } => number(self.regions[region].0.len() as u64),
            Ask::Load { region, at } => number(self.words(region).as_volatile().load_u64(at)),
            Ask::Store { region, at, value } => {
                self.words(region).as_volatile().store_u64(at, value);
                number(0)
            }
            Ask::Read { region, part } => {
                let slice = self.regions[region].0.slice(part.start, part.len()).expect("a part of it");
                F::Payloads::see(&self.transport);
                Ok((Reply::default(), F::Payloads::bytes(&slice)))
            }
            Ask::Write { region, at } => {
                let slice = self.regions[region].0.slice(at, bytes.len()).expect("a part of it");
                F::Payloads::set(&slice, bytes);
                number(0)
            }
            Ask::Watch { payload, words } => {
                let (payload, words) = (self.regions[payload].0.clone(), self.words(words).clone());
                let transport = self.transport.clone();
                self.watching = Some(std::thread::spawn(move || watch::<F>(&transport, &payload, &words)));
                number(0)
            }
            Ask::Seen => {
                let watching = self.watching.take().expect("a thread watches");
                number(watching.join().expect("the watcher saw nothing wrong"))
            }
            Ask::Listen { address } => {
                let address = address.map_or_else(F::address, |text| text.parse().expect("an address"));
                let listener = self.transport.listen(&address).map_err(debug_text)?;
                let text = Some(listener.address().to_string());
                let number = keep(&mut self.listeners, listener);
                Ok((Reply { number, text, ..Reply::default() }, Vec::new()))
            }
            Ask::Close { listener } => {
                self.listeners[listener] = None;
                number(0)
            }
            Ask::BeNotified { listener } => {
                let is_notified = self.listener(listener).be_notified().map_err(debug_text)?;
                number(is_notified.into())
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
                let mut incoming = self.arrived[incoming].take().expect("it is answered once");
                let (mut offer, mut on_gpu) =
                    (Offer { message: bytes.to_vec(), ..Offer::default() }, Vec::new());
                for (at, Part { region, range }) in grants.into_iter().enumerate() {
                    match &self.regions[region] {
                        (PayloadMemory::Host(region), _) => {
                            offer.grants.push(region.slice(range.start, range.len()).expect("a part of it"));
                        }
                        (PayloadMemory::Gpu(memory), access) => {
                            assert_eq!(range, 0..memory.bytes(), "memory of a GPU is granted as a whole");
                            on_gpu.push(GpuGrant { at, memory: memory.clone(), access: *access });
                        }
                    }
                }
                if !on_gpu.is_empty() {
                    incoming.grant_gpu(on_gpu)?;
                }
                let endpoint = incoming.accept(offer).map_err(debug_text)?;
                number(keep(&mut self.endpoints, endpoint))
            }
            Ask::Refuse { incoming } => {
                let incoming = self.arrived[incoming].take().expect("it is answered once");
                incoming.refuse(String::from_utf8_lossy(bytes).into_owned().into());
                number(0)
            }
            Ask::Check { endpoint } => number(self.endpoint(endpoint).check().is_ok().into()),
            Ask::Fetch { endpoint, remote: (key, offset, len) } => {
                let remote = RemoteSlice { key: RemoteKey(key), offset, len };
                let local = payload::<F>(&self.transport, &vec![0; len as usize]);
                run(self.endpoint(endpoint), read(local.clone(), remote)).map_err(debug_text)?;
                Ok((Reply::default(), F::Payloads::bytes(&local)))
            }
            Ask::Disconnect { endpoint } => {
                self.endpoints[endpoint] = None;
                number(0)
            }
            Ask::AccessViolations => number(self.transport.access_violations()),
        }
    }
}

/// A name of this process that no other one has: the boot id of its host, and its process id.
pub(crate) fn this_process() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the boot id of this host");
    format!("{} {}", boot.trim(), std::process::id())
}

fn debug_text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}
