//! The transport contract, the torn-read litmus and what can go wrong, over RDMA.
//!
//! Needs an RDMA device, of whatever kind; without one every test here fails. `cargo xtask softroce` makes a software
//! one in a virtual machine. Where SLACKLINE_RIG_RUN names a program that runs a command line on another host, whose
//! address is SLACKLINE_RIG_PEER, the second process of each test that has two is started there, and so are the servers
//! of `verbs_apart`'s claims; this host's address is then SLACKLINE_RIG_ADDRESS.

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

mod rdma {
    pub(crate) mod ends;
    mod fork;
    mod hazards;
    pub(crate) mod log;
    mod notice;
    pub(crate) mod objects;
    mod probe;
    mod readers;
    pub(crate) mod sides;
    mod target;
    mod waking;
}
#[path = "node/host_job.rs"]
mod host_job;
#[path = "rdma/links.rs"]
mod links;
#[path = "node/memory.rs"]
mod memory;
#[path = "node/only_worker.rs"]
mod only_worker;
#[path = "traces/runs.rs"]
mod traces;
#[path = "rdma/wire.rs"]
mod wire;
mod litmus {
    pub(crate) mod over_network;
    pub(crate) mod reading;
    pub(crate) mod writing;
}

use std::io;
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};

use litmus::over_network::{self, Setup, Size};
use litmus::writing::first_process;
use slackline::{Address, Secret, Verbs, VerbsOptions};
use transport::apart::{Apart, own_address, process_of};
use transport::fixture::Fixture;
use transport::here::this_process;
use transport::payloads::InHostMemory;
use transport::server::Server;

/// Returns the address at which second processes listen.
fn second_address() -> IpAddr {
    std::env::var("SLACKLINE_RIG_PEER")
        .map_or_else(|_| own_address(), |text| text.parse().expect("an address"))
}

/// Starts a second process: on the other host, if there is one.
fn start(command: &mut Command) -> io::Result<Child> {
    let Some(run) = std::env::var_os("SLACKLINE_RIG_RUN") else { return command.spawn() };
    let mut there = Command::new(run);
    there.arg("env").args([format!("SLACKLINE_RIG_ADDRESS={}", second_address())]);
    for (name, value) in command.get_envs() {
        let (name, value) = (name.to_string_lossy(), value.unwrap_or_default().to_string_lossy());
        there.arg(format!("{name}={value}"));
    }
    there.arg(command.get_program()).args(command.get_args());
    there.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

fn verbs() -> Verbs {
    verbs_that_apply(None)
}

/// The device is taken to apply writes in order, or in any order.
fn verbs_that_apply(in_order: Option<bool>) -> Verbs {
    let secret = Secret::from_text("both processes know this", "this test").unwrap();
    let devices = std::env::var("SLACKLINE_RIG_DEVICE").into_iter().collect();
    let options = VerbsOptions { devices, secret: Some(secret), in_order, ..VerbsOptions::default() };
    Verbs::open(options).unwrap_or_else(|error| panic!("these tests need RDMA: {error}"))
}

// ---------------------------------------------------------------------- the contract

struct VerbsFixture;

impl Fixture for VerbsFixture {
    type Transport = Verbs;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "verbs";
    const ROUNDS: u64 = 20_000;

    fn transport() -> Verbs {
        verbs()
    }

    fn address() -> Address {
        Address::Verbs((own_address(), 0).into())
    }

    fn start(command: &mut Command) -> io::Result<Child> {
        start(command)
    }
}

/// The same where a READ proves what was written before each word.
struct ProvedFixture;

impl Fixture for ProvedFixture {
    type Transport = Verbs;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "verbs_proved";
    const ROUNDS: u64 = 5_000;

    fn transport() -> Verbs {
        verbs_that_apply(Some(false))
    }

    fn address() -> Address {
        VerbsFixture::address()
    }

    fn start(command: &mut Command) -> io::Result<Child> {
        start(command)
    }
}

conformance!(verbs, super::VerbsFixture);
conformance!(verbs_proved, super::ProvedFixture);
conformance!(verbs_apart, super::Apart<super::VerbsFixture>, apart);

#[test]
fn the_servers_of_verbs_apart_are_in_the_other_guest_if_there_is_one() {
    let boot = |process: String| process.split(' ').next().unwrap().to_owned();
    let server = Server::<Apart<VerbsFixture>>::new(&verbs());
    let is_here = boot(process_of(&server)) == boot(this_process());
    assert_eq!(is_here, std::env::var_os("SLACKLINE_RIG_RUN").is_none());
}

// ---------------------------------------------------------------------- the litmus

/// A software device moves some 50 MB a second where the machine itself is emulated, and 6 between two such machines,
/// where a READ takes longer than the writer does for a hundred small versions.
fn setup() -> Setup {
    const NEAR: &[Size] = &[(64, 3, 4_000), (64 << 10, 16, 400), (1 << 20, 64, 60)];
    const FAR: &[Size] = &[(4096, 255, 200), (64 << 10, 255, 100), (1 << 20, 128, 20)];
    let is_far = std::env::var_os("SLACKLINE_RIG_RUN").is_some();
    let (sizes, steps, torn) = if is_far { (FAR, 200, (6, 128)) } else { (NEAR, 500, (2, 2)) };
    Setup { listens_at: || Address::Verbs((second_address(), 0).into()), start, sizes, steps, torn }
}

#[test]
fn pulls_by_rdma_are_whole_of_every_size() {
    let Some(_alone) = first_process() else { return };
    over_network::pulls_are_whole_of_every_size("pulls_by_rdma_are_whole_of_every_size", setup());
}

#[test]
fn frames_followed_and_pushed_by_rdma_are_whole() {
    let Some(_alone) = first_process() else { return };
    over_network::frames_followed_and_pushed_are_whole(
        "frames_followed_and_pushed_by_rdma_are_whole",
        setup(),
    );
}

#[test]
fn without_the_second_look_at_the_header_torn_reads_are_found_by_rdma() {
    let Some(_alone) = first_process() else { return };
    let claim = "without_the_second_look_at_the_header_torn_reads_are_found_by_rdma";
    over_network::without_the_second_look_at_the_header_torn_reads_are_found(claim, setup());
}
