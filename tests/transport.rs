//! The transport contract, as claims: one suite, instantiated for every transport.
//!
//! A claim is a function generic over a [`Fixture`]. It uses the public contract only, waits with a deadline, and
//! asks for capabilities where the contract lets transports differ.

#[macro_use]
mod transport {
    #[macro_use]
    pub(crate) mod suite;

    pub(crate) mod apart;
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

use slackline::{Address, Secret, Shm, Tcp, sim::fabric::SimTransport};
use transport::apart::Apart;
use transport::fixture::Fixture;
use transport::payloads::InHostMemory;

struct ShmFixture;

impl Fixture for ShmFixture {
    type Transport = Shm;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "shm";
    const GRANTS_END_WITH_THEIR_PART: bool = false;
    const ACCESS_VIOLATIONS_ARE_COUNTED: bool = false;

    fn transport() -> Shm {
        Shm::new()
    }

    fn address() -> Address {
        Address::random()
    }
}

conformance!(shm, super::ShmFixture);
conformance!(shm_apart, super::Apart<super::ShmFixture>, apart);

struct TcpFixture;

impl Fixture for TcpFixture {
    type Transport = Tcp;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "tcp";
    const ROUNDS: u64 = 20_000;

    fn transport() -> Tcp {
        Tcp::new()
    }

    /// Returns port 0. To a listener it means any free port; to a client, a port at which no process can listen.
    fn address() -> Address {
        Address::Tcp((std::net::Ipv4Addr::LOCALHOST, 0).into())
    }
}

conformance!(tcp, super::TcpFixture);
conformance!(tcp_apart, super::Apart<super::TcpFixture>, apart);

/// TCP with all that follows the handshake encrypted.
struct EncryptedTcpFixture;

impl Fixture for EncryptedTcpFixture {
    type Transport = Tcp;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "tcp_encrypted";
    const ROUNDS: u64 = TcpFixture::ROUNDS;

    fn transport() -> Tcp {
        let secret = Secret::from_text("the secret of both processes", "a test").expect("it is long enough");
        Tcp::with_secret(secret.encrypting())
    }

    fn address() -> Address {
        TcpFixture::address()
    }
}

conformance!(tcp_encrypted, super::EncryptedTcpFixture);
conformance!(tcp_encrypted_apart, super::Apart<super::EncryptedTcpFixture>, apart);

struct SimFixture;

impl Fixture for SimFixture {
    type Transport = SimTransport;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "sim";
    const KEYS_ARE_OF_ONE_CONNECTION: bool = false;
    const ACCESS_VIOLATIONS_ARE_COUNTED: bool = false;
    const ALLOCATES_NOTHING: bool = false;
    const ROUNDS: u64 = 2_000;

    fn transport() -> SimTransport {
        SimTransport::new(1)
    }

    /// Returns any address: no other test is in the network of a test.
    fn address() -> Address {
        Address::random()
    }
}

// There is no second process: the network is memory of this one.
conformance!(sim, super::SimFixture, within one process);
