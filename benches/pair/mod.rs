//! Two connected endpoints in one process, and memory that one side granted the other.

use std::task::Poll;
use std::time::Instant as Clock;

use slackline::internals::mem::{Access, LocalSlice, MemoryRegion, RemoteSlice};
use slackline::internals::transport::{Connecting, Incoming, Listener, Offer};
use slackline::{Address, Instant, Transport};

pub(crate) struct Pair<T: Transport> {
    pub(crate) client: T::Endpoint,
    pub(crate) remote: RemoteSlice,
    pub(crate) local: LocalSlice,
    _server: T::Endpoint,
    _granted: MemoryRegion,
}

impl<T: Transport> Pair<T> {
    /// A pair with so many bytes on either side.
    pub(crate) fn connect(transport: &T, address: &Address, bytes: usize) -> Pair<T> {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let granted = transport.allocate(bytes, access).expect("memory");
        let local = transport.allocate(bytes, Access::LOCAL).expect("memory").whole();
        // Every page is there.
        granted.as_volatile().write(&vec![1; bytes]);
        local.as_volatile().write(&vec![1; bytes]);
        let mut listener = transport.listen(address).expect("a listener");
        let mut connecting = transport.connect(&listener.address(), Offer::default()).expect("a socket");
        let (begun, mut server) = (Clock::now(), None);
        loop {
            let now = Instant::ORIGIN + begun.elapsed();
            if let Some(incoming) = listener.poll(now) {
                let offer = Offer { message: Vec::new(), grants: vec![granted.whole()] };
                server = Some(incoming.accept(offer).expect("a peer"));
            }
            if let Poll::Ready(connected) = connecting.poll(now) {
                let (client, received) = connected.expect("an answer");
                let server = server.expect("the side that answered");
                return Pair {
                    client,
                    remote: received.grants[0],
                    local,
                    _server: server,
                    _granted: granted,
                };
            }
        }
    }
}
