//! Groups that average parameters without a server: the same claims over every transport.

#[macro_use]
mod group {
    #[macro_use]
    pub(crate) mod suite;

    pub(crate) mod deaths;
    pub(crate) mod fixture;
    pub(crate) mod litmus;
    pub(crate) mod meeting;
    pub(crate) mod process;
    pub(crate) mod raw;
    pub(crate) mod rounds;
}

use group::fixture::Fixture;
use slackline::{Address, Mixed, Shm, Tcp};

struct ShmFixture;

impl Fixture for ShmFixture {
    type Transport = Shm;
    const MODULE: &'static str = "shm";

    fn transport() -> Shm {
        Shm::new()
    }

    fn address(_: usize) -> Address {
        Address::random()
    }
}

group!(shm, super::ShmFixture);

struct TcpFixture;

impl Fixture for TcpFixture {
    type Transport = Tcp;
    const MODULE: &'static str = "tcp";

    fn transport() -> Tcp {
        Tcp::new()
    }

    fn address(_: usize) -> Address {
        any_port()
    }
}

group!(tcp, super::TcpFixture);

/// Even ranks listen over TCP, odd ones over shared memory.
struct MixedFixture;

impl Fixture for MixedFixture {
    type Transport = Mixed;
    const MODULE: &'static str = "mixed";

    fn transport() -> Mixed {
        Mixed::default()
    }

    fn address(rank: usize) -> Address {
        if rank.is_multiple_of(2) { any_port() } else { Address::random() }
    }
}

group!(mixed, super::MixedFixture);

fn any_port() -> Address {
    Address::Tcp((std::net::Ipv4Addr::LOCALHOST, 0).into())
}
