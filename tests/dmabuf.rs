//! The transport contract with frames and slots in dma-bufs, as memory of a GPU comes to RDMA devices: here they are of
//! host memory, by `/dev/udmabuf`, so no GPU is needed.
//!
//! It takes a device whose driver imports dma-bufs (of those in Linux: mlx5, bnxt_re, irdma, efa). Elsewhere, soft-RoCE
//! included, each test fails and says NOT RUN: nothing was tested there, and nothing may look as if it had passed.
//! `cargo xtask adapters` runs them, and `cargo xtask test` where there is such a device.

#[macro_use]
mod transport {
    #[macro_use]
    pub(crate) mod suite;

    pub(crate) mod fixture;
    pub(crate) mod handshake;
    pub(crate) mod here;
    pub(crate) mod ordering;
    pub(crate) mod payloads;
    pub(crate) mod process;
    pub(crate) mod requests;
    pub(crate) mod rights;
    pub(crate) mod server;
    pub(crate) mod service;
}

use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use slackline::internals::mem::HostMemory;
use slackline::{Address, Secret, Verbs, VerbsOptions};
use transport::fixture::Fixture;
use transport::payloads::InHostMemory;

/// The device that `SLACKLINE_RIG_DEVICE` names, or the best one, with all memory in dma-bufs. The order in which it
/// applies writes is as it says, or as is said here.
fn verbs(in_order: Option<bool>) -> Verbs {
    const BYTES: usize = 4096;
    let secret = Secret::from_text("both processes know this", "this test").unwrap();
    let devices = std::env::var("SLACKLINE_RIG_DEVICE").into_iter().collect();
    let options = VerbsOptions { devices, secret: Some(secret), in_order, ..VerbsOptions::default() };
    let verbs = Verbs::open(options).unwrap_or_else(|error| panic!("NOT RUN: {error}"));
    let memory = HostMemory::shared(BYTES).unwrap();
    let buffer = memory.dma_buf().unwrap_or_else(|error| panic!("NOT RUN: {error}"));
    if let Err(error) = verbs.try_dma_buf(buffer.as_fd(), BYTES) {
        panic!("NOT RUN: {error}");
    }
    verbs.with_memory(HostMemory::in_dma_buf)
}

struct DmaBufFixture;

impl Fixture for DmaBufFixture {
    type Transport = Verbs;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "dma_bufs";
    const ROUNDS: u64 = 20_000;

    fn transport() -> Verbs {
        verbs(None)
    }

    fn address() -> Address {
        Address::Verbs((Ipv4Addr::LOCALHOST, 0).into())
    }
}

/// The same where a READ proves what was written before each word.
struct ProvedFixture;

impl Fixture for ProvedFixture {
    type Transport = Verbs;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "dma_bufs_proved";
    const ROUNDS: u64 = 5_000;

    fn transport() -> Verbs {
        verbs(Some(false))
    }

    fn address() -> Address {
        DmaBufFixture::address()
    }
}

conformance!(dma_bufs, super::DmaBufFixture);
conformance!(dma_bufs_proved, super::ProvedFixture);
