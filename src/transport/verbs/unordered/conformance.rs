//! The suite of the contract over a device that keeps no more order than it must, as far as it takes one process.
#![allow(
    dead_code,
    reason = "the claims that take a second process, and those that are told of writes, are left out"
)]

#[macro_use]
#[path = "../../../../tests/transport/suite.rs"]
mod suite;

#[path = "../../../../tests/transport/fixture.rs"]
mod fixture;
#[path = "../../../../tests/transport/handshake.rs"]
mod handshake;
#[path = "../../../../tests/transport/here.rs"]
mod here;
#[path = "../../../../tests/transport/ordering.rs"]
mod ordering;
#[path = "../../../../tests/transport/process.rs"]
mod process;
#[path = "../../../../tests/transport/requests.rs"]
mod requests;
#[path = "../../../../tests/transport/rights.rs"]
mod rights;
#[path = "../../../../tests/transport/server.rs"]
mod server;
#[path = "../../../../tests/transport/service.rs"]
mod service;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use self::fixture::Fixture;
use super::Unordered;
use crate::transport::Address;
use crate::transport::verbs::Verbs;

/// The claims, where the suite looks for them.
mod transport {
    pub(super) use super::{handshake, ordering, requests, rights};
}

struct UnorderedFixture;

impl Fixture for UnorderedFixture {
    type Transport = Verbs;
    const MODULE: &'static str = "unordered";
    /// Each device numbers its keys from 1.
    const KEYS_ARE_OF_ONE_CONNECTION: bool = false;
    /// The device allocates where an adapter does not.
    const ALLOCATES_NOTHING: bool = false;
    const ROUNDS: u64 = 2_000;

    /// A device of its own, which takes its steps for as long as anything of the transport is left.
    fn transport() -> Verbs {
        let device = Unordered::new(0, false);
        let verbs = device.verbs(None);
        let shared = Arc::downgrade(&verbs.shared);
        std::thread::spawn(move || {
            while shared.strong_count() > 0 {
                if !device.step() {
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        });
        verbs
    }

    fn address() -> Address {
        Address::Verbs((Ipv4Addr::LOCALHOST, 0).into())
    }
}

// The device has no receives: it tells no owner of a write.
conformance!(unordered, super::UnorderedFixture, within one process, never noticed);
