//! Helpers of all claims: a transport, deadlines, requests that are waited for.

use std::io;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::task::Poll;
use std::time::Duration;

use slackline::internals::mem::{Access, LocalSlice, RemoteSlice, Streaming};
use slackline::internals::transport::{
    CompletionError, Connecting, Endpoint, Operation, PayloadSlice, PostError, WorkCompletion, WorkRequest,
};
use slackline::{Address, ConnectError, Instant, Transport};

use super::here::{Here, Serving};
use super::payloads::Payloads;

/// Longest time that any wait in this suite may take: far more than any of them needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A transport under test.
pub(crate) trait Fixture: Sized + 'static {
    type Transport: Transport + Clone;
    /// Where payloads are.
    type Payloads: Payloads<Self::Transport>;
    /// The module of the test binary that holds this transport's tests, for tests that run a process of their own.
    const MODULE: &'static str;
    /// Number of payloads that are announced while a thread watches that none is late. Fewer where each takes more
    /// switches between threads than this machine may have processors for.
    const ROUNDS: u64 = 100_000;
    /// Number of them that the writer may be ahead of the watcher: without a limit, a watcher that gets no processor
    /// sees little. 1 where nothing may write what the watcher looks at.
    const AHEAD: u64 = 256;
    /// Number of times that each of two endpoints adds to a word.
    const ADDS: u64 = 20_000;
    /// False where keys are handed out that open something on other connections, too, as some devices do.
    const KEYS_ARE_OF_ONE_CONNECTION: bool = true;
    /// False where a grant of a part of a region opens all of it, as where the region is mapped.
    const GRANTS_END_WITH_THEIR_PART: bool = true;
    /// True where peers may read what they were granted to write, as a device proves writes to a GPU by READs.
    const WRITTEN_MAY_BE_READ: bool = false;
    /// False where access violations, of peers that reach for what they were not granted, are not counted.
    const ACCESS_VIOLATIONS_ARE_COUNTED: bool = true;
    /// False where the data path may allocate: where it is a model of one.
    const ALLOCATES_NOTHING: bool = true;
    fn transport() -> Self::Transport;
    /// Returns an address at which no process listens.
    fn address() -> Address;
    /// Returns the transport of the side that serves. `transport` is that of the clients.
    fn transport_to_serve(transport: &Self::Transport) -> Self::Transport {
        transport.clone()
    }
    /// Returns the side that serves in a claim. `transport` is that of the clients.
    fn serving(transport: &Self::Transport) -> Box<dyn Serving> {
        Box::new(Here::<Self>::new(Self::transport_to_serve(transport)))
    }
    /// Starts the second process of a test where it belongs.
    fn start(command: &mut Command) -> io::Result<Child> {
        command.spawn()
    }
}

pub(crate) type EndpointOf<F> = <<F as Fixture>::Transport as Transport>::Endpoint;
pub(crate) type ListenerOf<F> = <<F as Fixture>::Transport as Transport>::Listener;

pub(crate) fn now() -> Instant {
    static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    Instant::from_nanos(ORIGIN.elapsed().as_nanos() as u64)
}

/// Calls `step` until it returns something.
///
/// # Panics
/// After [`PATIENCE`], naming what was waited for.
pub(crate) fn wait_for<R>(what: &str, mut step: impl FnMut() -> Option<R>) -> R {
    let deadline = now() + PATIENCE;
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(now() < deadline, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Waits for the outcome of a connection that is to fail.
pub(crate) fn connect_error<F: Fixture>(
    mut connecting: <F::Transport as Transport>::Connecting,
    mut meanwhile: impl FnMut(),
) -> ConnectError {
    wait_for("a connection to fail", || {
        meanwhile();
        match connecting.poll(now()) {
            Poll::Pending => None,
            Poll::Ready(Err(error)) => Some(error),
            Poll::Ready(Ok(_)) => panic!("the connection was to fail"),
        }
    })
}

/// A payload of one's own side: these bytes.
pub(crate) fn payload<F: Fixture>(transport: &F::Transport, bytes: &[u8]) -> PayloadSlice {
    let slice = F::Payloads::own(transport, bytes.len().max(8)).slice(0, bytes.len()).unwrap();
    F::Payloads::set(&slice, bytes);
    slice
}

/// Host memory of one's own side, filled with `bytes`.
pub(crate) fn local(transport: &impl Transport, bytes: &[u8]) -> LocalSlice {
    let region = transport.allocate(bytes.len().max(8), Access::LOCAL).expect("allocate");
    let slice = region.slice(0, bytes.len()).unwrap();
    slice.as_volatile().write(bytes);
    slice
}

pub(crate) fn bytes_of(slice: &LocalSlice) -> Vec<u8> {
    let mut bytes = vec![0; slice.len()];
    slice.as_volatile().read(&mut bytes);
    bytes
}

/// Some bytes, different for each seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(step).take(len).collect()
}

pub(crate) fn write(local: impl Into<PayloadSlice>, remote: RemoteSlice) -> Operation {
    local.into().write(remote, Streaming::default())
}

pub(crate) fn read(local: impl Into<PayloadSlice>, remote: RemoteSlice) -> Operation {
    local.into().read(remote, Streaming::default())
}

/// Posts a batch, polling while the queue is full. Completions that come meanwhile must be successes.
pub(crate) fn post(endpoint: &mut impl Endpoint, batch: &[WorkRequest]) {
    wait_for("room in the queue", || match endpoint.post(batch) {
        Ok(()) => Some(()),
        Err(PostError::QueueFull { .. }) => {
            if let Some(completion) = endpoint.poll() {
                completion.result.expect("a request failed");
            }
            None
        }
        Err(error) => panic!("{error}"),
    });
}

pub(crate) fn completion(endpoint: &mut impl Endpoint) -> WorkCompletion {
    wait_for("a completion", || endpoint.poll())
}

/// Carries out one operation and tells how it ended. No other completion may be under way.
pub(crate) fn run(endpoint: &mut impl Endpoint, operation: Operation) -> Result<(), CompletionError> {
    const ID: u64 = 0xD0;
    post(endpoint, &[WorkRequest::signalled(ID, operation)]);
    let completion = completion(endpoint);
    assert_eq!(completion.id.0, ID);
    completion.result
}

/// Waits until `endpoint` finds its peer gone.
pub(crate) fn wait_until_gone(endpoint: &mut impl Endpoint) {
    wait_for("the peer to be gone", || endpoint.check().err());
}
