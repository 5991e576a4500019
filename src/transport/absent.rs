//! Stands in for a transport without which the library is built: no value of these types exists.
#![forbid(unsafe_code)]

#[cfg(not(feature = "verbs"))]
use std::os::fd::BorrowedFd;
#[cfg(not(feature = "tcp"))]
use std::sync::Arc;
use std::task::Poll;

#[cfg(not(feature = "tcp"))]
use super::doorbell::Doorbell;
use super::{
    Address, Capabilities, ConnectError, Connecting, Disconnected, Endpoint, HeartbeatWord, Incoming,
    Listener, Offer, PostError, Received, Refusal, RegisterError, Transport, WorkCompletion, WorkRequest,
};
use crate::mem::{Access, HostMemory, LocalSlice, MemoryRegion, RemoteSlice};
#[cfg(not(feature = "verbs"))]
use crate::time::Duration;
use crate::time::Instant;

/// The transport.
#[derive(Clone, Debug)]
pub enum Absent {}

/// Its listener.
pub enum AbsentListener {}

/// A peer that arrives there.
pub enum AbsentIncoming {}

/// A connection in the making.
pub enum AbsentConnecting {}

/// A connected peer.
pub enum AbsentEndpoint {}

impl Transport for Absent {
    type Endpoint = AbsentEndpoint;
    type Listener = AbsentListener;
    type Connecting = AbsentConnecting;

    fn capabilities(&self) -> Capabilities {
        match *self {}
    }

    fn register(&self, _: HostMemory, _: Access) -> Result<MemoryRegion, RegisterError> {
        match *self {}
    }

    fn allocate(&self, _: usize, _: Access) -> Result<MemoryRegion, RegisterError> {
        match *self {}
    }

    fn listen(&self, _: &Address) -> Result<AbsentListener, ConnectError> {
        match *self {}
    }

    fn connect(&self, _: &Address, _: Offer) -> Result<AbsentConnecting, ConnectError> {
        match *self {}
    }
}

#[cfg(not(feature = "tcp"))]
impl Absent {
    pub(super) fn has_caught_up(&self) -> bool {
        match *self {}
    }
}

impl AbsentListener {
    #[cfg(not(feature = "tcp"))]
    pub(super) fn set_doorbell(&mut self, _: Option<Arc<Doorbell>>) {
        match *self {}
    }

    #[cfg(not(feature = "verbs"))]
    pub(super) fn end_notices(&mut self) {
        match *self {}
    }

    #[cfg(not(feature = "verbs"))]
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        match *self {}
    }

    #[cfg(not(feature = "verbs"))]
    pub(super) fn wait_with(&self, _: &[BorrowedFd<'_>], _: Duration) {
        match *self {}
    }
}

impl Listener for AbsentListener {
    type Endpoint = AbsentEndpoint;
    type Incoming = AbsentIncoming;

    fn address(&self) -> Address {
        match *self {}
    }

    fn poll(&mut self, _: Instant) -> Option<AbsentIncoming> {
        match *self {}
    }
}

impl Incoming for AbsentIncoming {
    type Endpoint = AbsentEndpoint;

    fn received(&self) -> &Received {
        match *self {}
    }

    fn accept(self, _: Offer) -> Result<AbsentEndpoint, ConnectError> {
        match self {}
    }

    fn refuse(self, _: Refusal) {
        match self {}
    }
}

impl Connecting for AbsentConnecting {
    type Endpoint = AbsentEndpoint;

    fn poll(&mut self, _: Instant) -> Poll<Result<(AbsentEndpoint, Received), ConnectError>> {
        match *self {}
    }
}

impl Endpoint for AbsentEndpoint {
    fn post(&mut self, _: &[WorkRequest]) -> Result<(), PostError> {
        match *self {}
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        match *self {}
    }

    fn check(&mut self) -> Result<(), Disconnected> {
        match *self {}
    }

    fn map(&self, _: &RemoteSlice) -> Option<LocalSlice> {
        match *self {}
    }

    fn transport(&self) -> &'static str {
        match *self {}
    }

    fn heartbeat_word(&self, _: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError> {
        match *self {}
    }
}
