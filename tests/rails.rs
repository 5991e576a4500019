//! The transport contract, the torn-read litmus and what striping can get wrong, over two RDMA devices side by side.
//!
//! Needs two RDMA devices, as one guest of `cargo xtask softroce` has them; without them every test here fails.

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

mod rdma {
    mod devices;
    mod ends;
    mod lost_rails;
    pub(crate) mod objects;
    mod rails;
}
mod litmus {
    pub(crate) mod over_network;
    pub(crate) mod reading;
    pub(crate) mod writing;
}

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use litmus::over_network::{self, Setup, Size};
use litmus::writing::{DEVICES, first_process};
use slackline::{Address, Secret, Verbs, VerbsOptions};
use transport::fixture::Fixture;
use transport::payloads::InHostMemory;

fn environment(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name}: these tests need two RDMA devices"))
}

/// The names of both devices.
fn devices() -> Vec<String> {
    ["SLACKLINE_RIG_DEVICE", "SLACKLINE_RIG_DEVICE_2"].map(environment).to_vec()
}

/// RDMA over these devices.
fn over(devices: &[String], queue_depth: Option<usize>) -> Verbs {
    let secret = Secret::from_text("both processes know this", "this test").unwrap();
    let options = VerbsOptions {
        devices: devices.to_vec(),
        queue_depth,
        secret: Some(secret),
        ..VerbsOptions::default()
    };
    Verbs::open(options).unwrap_or_else(|error| panic!("these tests need RDMA: {error}"))
}

// ---------------------------------------------------------------------- the contract

struct RailsFixture;

impl Fixture for RailsFixture {
    type Transport = Verbs;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "contract";
    const ROUNDS: u64 = 5_000;

    fn transport() -> Verbs {
        over(&devices(), None)
    }

    fn address() -> Address {
        Address::Verbs((Ipv4Addr::LOCALHOST, 0).into())
    }
}

conformance!(contract, super::RailsFixture);

// ---------------------------------------------------------------------- the litmus

/// Sizes that are striped, but for the first.
fn setup() -> Setup {
    const SIZES: &[Size] = &[(64, 3, 1_000), (64 << 10, 16, 400), (1 << 20, 64, 60)];
    let listens_at = || Address::Verbs((Ipv4Addr::LOCALHOST, 0).into());
    Setup { listens_at, start: Command::spawn, sizes: SIZES, steps: 500, torn: (2, 2) }
}

/// Runs a litmus in a process that is told to use both devices, and tells those that it starts.
fn with_both(claim: &str, litmus: impl FnOnce(&str, Setup)) {
    if std::env::var_os(DEVICES).is_none() {
        let mut again = Command::new(std::env::current_exe().expect("this binary"));
        again.args(["--exact", claim, "--nocapture", "--test-threads=1"]).env(DEVICES, devices().join(","));
        // What the harness says there is no verdict of this one.
        let status = again.stdout(Stdio::null()).status().expect("run this binary again");
        return assert!(status.success(), "{status}");
    }
    let Some(_alone) = first_process() else { return };
    litmus(claim, setup());
}

#[test]
fn pulls_over_two_rails_are_whole_of_every_size() {
    with_both("pulls_over_two_rails_are_whole_of_every_size", over_network::pulls_are_whole_of_every_size);
}

#[test]
fn frames_followed_and_pushed_over_two_rails_are_whole() {
    with_both(
        "frames_followed_and_pushed_over_two_rails_are_whole",
        over_network::frames_followed_and_pushed_are_whole,
    );
}

#[test]
fn without_the_second_look_at_headers_torn_reads_are_found_over_two_rails() {
    with_both(
        "without_the_second_look_at_headers_torn_reads_are_found_over_two_rails",
        over_network::without_the_second_look_at_the_header_torn_reads_are_found,
    );
}
