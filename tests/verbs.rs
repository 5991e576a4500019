//! The transport contract over RDMA. Needs an RDMA device, of whatever kind: `cargo xtask softroce` makes a software
//! one in a virtual machine. Without one every test here fails.

#[macro_use]
mod transport {
    #[macro_use]
    pub(crate) mod suite;

    pub(crate) mod fixture;
    pub(crate) mod handshake;
    pub(crate) mod ordering;
    pub(crate) mod process;
    pub(crate) mod requests;
    pub(crate) mod rights;
}

use std::net::Ipv4Addr;

use slackline::transport::Address;
use slackline::transport::verbs::{Verbs, VerbsOptions};
use transport::fixture::Fixture;

struct VerbsFixture;

impl Fixture for VerbsFixture {
    type Transport = Verbs;
    const MODULE: &'static str = "verbs";
    const ROUNDS: u64 = 20_000;

    fn transport() -> Verbs {
        Verbs::open(VerbsOptions::default()).unwrap_or_else(|error| panic!("these tests need RDMA: {error}"))
    }

    fn address() -> Address {
        Address::Verbs((Ipv4Addr::LOCALHOST, 0).into())
    }
}

conformance!(verbs, super::VerbsFixture);
