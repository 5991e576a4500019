//! The suite of the contract over a device that keeps no more order than it must, as far as it takes one process.
#![allow(dead_code, reason = "the claims that take a second process are left out")]

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
use super::super::tests::connect;
use super::Unordered;
use crate::mem::{Access, HostMemory, MemoryError};
use crate::transport::verbs::Verbs;
use crate::transport::{Address, Offer, Transport};

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

/// The same with all memory in dma-bufs, for which files in memory stand: to the device both are what it can map.
struct InFiles;

impl Fixture for InFiles {
    type Transport = Verbs;
    const MODULE: &'static str = "in_dma_bufs";
    const KEYS_ARE_OF_ONE_CONNECTION: bool = false;
    const ALLOCATES_NOTHING: bool = false;
    const ROUNDS: u64 = 2_000;

    fn transport() -> Verbs {
        UnorderedFixture::transport().with_memory(in_file)
    }

    fn address() -> Address {
        UnorderedFixture::address()
    }
}

fn in_file(bytes: usize) -> Result<HostMemory, MemoryError> {
    let memory = HostMemory::shared(bytes)?;
    let file = memory.shared_file().map(|file| file.try_clone_to_owned().expect("a descriptor"));
    Ok(memory.known_as(file.expect("it can be shared")))
}

conformance!(unordered, super::UnorderedFixture, within one process);
conformance!(in_dma_bufs, super::InFiles, within one process);

#[test]
fn memory_in_a_dma_buf_is_registered_as_one_by_owners_and_peers() {
    let device = Unordered::new(0, false);
    let verbs = device.verbs(None).with_memory(in_file);
    // For requests of this process, and for those of all readers.
    let frames = verbs.allocate(100, Access::REMOTE_READ).unwrap();
    assert_eq!((device.of_dma_bufs(), device.regions()), (2, 2));
    let slots = verbs.allocate(9000, Access::REMOTE_WRITE).unwrap();
    let before = device.of_dma_bufs();
    assert_eq!(before, 3);
    let offer = || Offer { message: Vec::new(), grants: vec![frames.whole(), slots.slice(4097, 8).unwrap()] };
    let ends = connect(&verbs, offer);
    assert_eq!(device.of_dma_bufs(), before + 2, "each end grants a part of the slots");
    drop((ends, frames, slots));
    assert_eq!(device.of_dma_bufs(), 0);
}
