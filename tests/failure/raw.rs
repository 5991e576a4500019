//! A peer that speaks the protocol by hand, and so can break it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use slackline::internals::mem::{Access, LocalSlice, MemoryRegion};
use slackline::internals::param::{
    ControlLayout, FrameGeometry, PeerHello, PeerRole, PushGrant, Welcome, WorkerProgress,
};
use slackline::internals::transport::shm::ShmEndpoint;
use slackline::internals::transport::{
    Connecting, Endpoint, Inline, Offer, Operation, Received, WorkRequest,
};
use slackline::{Address, Clock, ConnectError, Encoding, Shm, Transport, Version, scheme::SchemeConfig};

use super::second::wait_for;

/// The offset of the heartbeat in a peer's page.
pub(super) const HEARTBEAT: usize = 64;

/// A connected worker without a heartbeat.
pub(super) struct Raw {
    pub(super) endpoint: ShmEndpoint,
    pub(super) welcome: Welcome,
    pub(super) received: Received,
}

/// The role of a worker with an identity of its own.
pub(super) fn worker_role(scheme: SchemeConfig) -> PeerRole {
    static WORKERS: AtomicU64 = AtomicU64::new(1 << 63);
    let identity = WORKERS.fetch_add(1, Ordering::Relaxed);
    PeerRole::Worker { encoding: Encoding::F32, scheme: scheme.to_string(), identity, session: 0 }
}

/// Says `message`, and hears what the listener answers; `meanwhile` drives the listener.
pub(super) fn say(
    address: &Address,
    message: Vec<u8>,
    meanwhile: impl FnMut(),
) -> Result<(ShmEndpoint, Received), ConnectError> {
    make(address, Offer { message, grants: Vec::new() }, meanwhile)
}

/// Makes an offer, and hears what the listener answers.
fn make(
    address: &Address,
    offer: Offer,
    mut meanwhile: impl FnMut(),
) -> Result<(ShmEndpoint, Received), ConnectError> {
    let mut connecting = Shm::new().connect(address, offer)?;
    wait_for("an answer", || {
        meanwhile();
        match connecting.poll(slackline::now()) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    })
}

impl Raw {
    pub(super) fn join(address: &Address, role: PeerRole, meanwhile: impl FnMut()) -> Raw {
        Self::offer(address, PeerHello::from(role), Vec::new(), meanwhile)
    }

    /// As `join`, to begin at `clock` or later.
    pub(super) fn resume(address: &Address, role: PeerRole, clock: u64, meanwhile: impl FnMut()) -> Raw {
        let resume = Some(WorkerProgress { clock: Clock::new(clock), epoch: 1, version: Version::new(0) });
        Self::offer(address, PeerHello { resume, ..role.into() }, Vec::new(), meanwhile)
    }

    /// As `join`, with frames that new versions are pushed to.
    pub(super) fn join_pushed(
        address: &Address,
        role: PeerRole,
        geometry: FrameGeometry,
        meanwhile: impl FnMut(),
    ) -> Raw {
        let layout = ControlLayout { peers: 0, frames: geometry.frames };
        let lengths = [layout.bytes(), geometry.bytes() as usize];
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let regions = lengths.map(|len| Shm::new().allocate(len, access).unwrap());
        let hello = PeerHello { push: Some(PushGrant { layout, geometry }), ..role.into() };
        Self::offer(address, hello, regions.iter().map(MemoryRegion::whole).collect(), meanwhile)
    }

    fn offer(address: &Address, hello: PeerHello, grants: Vec<LocalSlice>, meanwhile: impl FnMut()) -> Raw {
        let offer = Offer { message: hello.encode(), grants };
        let (endpoint, received) = make(address, offer, meanwhile).unwrap();
        let welcome = Welcome::decode(&received.message, &hello.role, &received.grants).unwrap();
        Raw { endpoint, welcome, received }
    }

    /// The clock before which the server says that it has consumed all gradients of this peer.
    pub(super) fn consumed(&self) -> u64 {
        self.control((2 + usize::from(self.welcome.peer)) * 64)
    }

    /// Beats once, and then no more: its lease begins.
    pub(super) fn beat_once(&mut self) {
        self.write(HEARTBEAT, Inline::word(1));
    }

    /// Writes words at `offset` of its own page.
    pub(super) fn write(&mut self, offset: usize, data: Inline) {
        let remote = self.received.grants[2].slice(offset as u64, data.len_bytes()).unwrap();
        let request = WorkRequest::unsignalled(0, Operation::WriteInline { data, remote });
        self.endpoint.post(&[request]).unwrap();
    }

    /// Writes the header of slot `slot`.
    pub(super) fn write_header(&mut self, slot: usize, words: [u64; 8]) {
        self.write((3 + slot) * 64, Inline::line(words));
    }

    /// Announces that gradients of clocks before `clock` are there.
    pub(super) fn announce(&mut self, clock: u64) {
        self.write(0, Inline::word(clock));
    }

    /// A word of the control page.
    pub(super) fn control(&self, offset: usize) -> u64 {
        self.endpoint.map(&self.received.grants[0]).unwrap().as_volatile().load_u64(offset)
    }

    /// Chunks of the frame that is being written which are whole.
    pub(super) fn chunks_folded(&self) -> u64 {
        let writing = self.control(64 + 16);
        if writing == 0 {
            return 0;
        }
        let (peers, frame) = (usize::from(self.welcome.layout.peers), (writing & 0xFF) as usize);
        self.control((2 + peers + frame) * 64 + 56) & 0xFF_FFFF
    }
}
