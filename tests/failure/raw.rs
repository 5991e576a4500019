//! A peer that speaks the protocol by hand, and so can break it.

use std::task::Poll;

use slackline::param::{Hello, Role, Welcome};
use slackline::scheme::Config;
use slackline::table::ElementType;
use slackline::transport::shm::{Shm, ShmEndpoint};
use slackline::transport::{
    Address, ConnectError, Connecting, Endpoint, Inline, Offer, Operation, Received, Transport, WorkRequest,
};

use super::second::wait_for;

/// A connected worker without a heartbeat.
pub(super) struct Raw {
    pub(super) endpoint: ShmEndpoint,
    pub(super) welcome: Welcome,
    pub(super) received: Received,
}

pub(super) fn worker_role(scheme: Config) -> Role {
    Role::Worker { encoding: ElementType::F32, scheme }
}

/// Says `message`, and hears what the listener answers; `meanwhile` drives the listener.
pub(super) fn say(
    address: &Address,
    message: Vec<u8>,
    mut meanwhile: impl FnMut(),
) -> Result<(ShmEndpoint, Received), ConnectError> {
    let offer = Offer { message, grants: Vec::new() };
    let mut connecting = Shm::new().connect(address, offer)?;
    wait_for("an answer", || {
        meanwhile();
        match connecting.poll(slackline::node::now()) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    })
}

impl Raw {
    pub(super) fn join(address: &Address, role: Role, meanwhile: impl FnMut()) -> Raw {
        let message = Hello { role: role.clone(), push: None, resume: None }.encode();
        let (endpoint, received) = say(address, message, meanwhile).unwrap();
        let welcome = Welcome::decode(&received.message, &role, &received.grants).unwrap();
        Raw { endpoint, welcome, received }
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
