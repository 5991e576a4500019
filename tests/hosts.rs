//! The transport contract and the torn-read litmus over TCP between two hosts, which are network namespaces.
//!
//! Slow, and needs `ip` and root or user namespaces: `cargo xtask test hosts`.

mod network {
    pub(crate) mod far;
    pub(crate) mod namespaces;
}
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
mod litmus {
    pub(crate) mod over_network;
    pub(crate) mod reading;
    pub(crate) mod writing;
}

#[path = "../examples/parameter_server.rs"]
mod parameter_server;
#[allow(dead_code, reason = "its jobs on one host are of tests/job.rs")]
#[path = "job/processes.rs"]
mod processes;
#[path = "job/program.rs"]
mod program;

use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use litmus::over_network::{self, Setup, TCP_SIZES};
use litmus::writing::first_process;
use network::far::Far;
use network::namespaces::{Host, Hosts};
use processes::{Meeting, Processes, all_succeeded};
use slackline::{Address, Secret, Tcp};
use transport::fixture::Fixture;
use transport::payloads::InHostMemory;
use transport::process::second_process;

/// The hosts of this process: the first for the side that listens, the second for the side that connects.
static HOSTS: LazyLock<Hosts> = LazyLock::new(|| Hosts::new(2));

// ---------------------------------------------------------------------- the contract

struct BetweenHosts;

impl Fixture for BetweenHosts {
    type Transport = Far<Tcp>;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "tcp_between_hosts";
    const ROUNDS: u64 = 20_000;

    fn transport() -> Far<Tcp> {
        let hosts = second_process().is_none().then(|| [&HOSTS[0], &HOSTS[1]]);
        let secret = Secret::from_text("all hosts know this", "this test").unwrap();
        Far { transport: Tcp::with_secret(secret), hosts }
    }

    fn address() -> Address {
        Address::Tcp((HOSTS[0].address(), 0).into())
    }

    fn start(command: &mut Command) -> io::Result<Child> {
        HOSTS[1].within(|| command.spawn())
    }
}

conformance!(tcp_between_hosts, super::BetweenHosts);

// ---------------------------------------------------------------------- the litmus

/// The writer on one host, the reader on another.
fn apart(claim: fn(&str, Setup), name: &str) {
    let Some(_alone) = first_process() else { return };
    let start = |command: &mut Command| HOSTS[0].within(|| command.spawn());
    let listens_at = || Address::Tcp((HOSTS[0].address(), 0).into());
    let setup = Setup { listens_at, start, sizes: TCP_SIZES, steps: 5_000, torn: (2, 2) };
    HOSTS[1].within(|| claim(name, setup));
}

#[test]
fn pulls_between_hosts_are_whole_of_every_size() {
    apart(over_network::pulls_are_whole_of_every_size, "pulls_between_hosts_are_whole_of_every_size");
}

#[test]
fn frames_followed_and_pushed_between_hosts_are_whole() {
    let name = "frames_followed_and_pushed_between_hosts_are_whole";
    apart(over_network::frames_followed_and_pushed_are_whole, name);
}

#[test]
fn without_the_second_look_at_the_header_torn_reads_are_found_between_hosts() {
    let name = "without_the_second_look_at_the_header_torn_reads_are_found_between_hosts";
    apart(over_network::without_the_second_look_at_the_header_torn_reads_are_found, name);
}

// ---------------------------------------------------------------------- a job

#[test]
fn a_process_runs_the_program_of_its_job() {
    program::run();
}

#[test]
fn the_workers_of_each_host_are_one_worker_to_a_server_on_another() {
    let hosts = Hosts::new(3);
    let meeting = hosts[0].within(|| Meeting::at(hosts[0].address().into()));
    let start = |(rank, host): (usize, usize)| {
        hosts[host].within(|| meeting.start("pull_to_one", rank, 5, &[("PER_HOST", "1")]))
    };
    // The server is alone on its host.
    let ended = Processes([0, 1, 2, 1, 2].into_iter().enumerate().map(start).collect()).end();
    all_succeeded(&ended);
    let expected = format!("50 versions to {:.6}", 1.0 - 0.9f64.powi(50));
    let said = &ended[0].stdout;
    assert!(said.contains(&expected) && said.contains(", 2 joined"), "{said}, not {expected}");
}

// ---------------------------------------------------------------------- the hosts themselves

#[test]
fn hosts_reach_each_other_over_their_cables_and_nobody_else_reaches_them() {
    let hosts = Hosts::new(3);
    let listener = hosts[0].within(|| TcpListener::bind((hosts[0].address(), 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let reach = || TcpStream::connect_timeout(&address, Duration::from_secs(4));
    for (host, from) in [(1, "10.77.0.2"), (2, "10.77.0.3")] {
        let stream = hosts[host].within(reach).expect("a host reaches another");
        assert_eq!(stream.local_addr().unwrap().ip().to_string(), from);
        assert_eq!(listener.accept().unwrap().1, stream.local_addr().unwrap());
    }
    assert!(reach().is_err(), "from outside");
    hosts.unplug(1);
    assert!(hosts[1].within(reach).is_err(), "without a cable");
    hosts[2].within(reach).expect("the others go on");
    hosts.plug(1);
    transport::fixture::wait_for("the cable to be back", || hosts[1].within(reach).ok());
}

const HOLDER: &str = "SLACKLINE_TEST_HOLDS_HOSTS";

/// Lists the namespaces of a process's hosts, to which its descriptors lead. A namespace is gone once nothing leads
/// there any more.
fn spaces(process: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let links = links.map(|link| link.to_string_lossy().into_owned());
    links.filter(|link| link.starts_with("net:[")).collect()
}

#[test]
fn hosts_and_what_runs_there_are_gone_with_a_killed_test() {
    if std::env::var_os(HOLDER).is_some() {
        let hosts = Hosts::new(3);
        let mut sleeper = hosts[2].within(|| Host::command("sleep").arg("1000").spawn().unwrap());
        println!("\nholds {}", sleeper.id());
        // Killed long before.
        sleeper.wait().unwrap();
    }
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hosts_and_what_runs_there_are_gone_with_a_killed_test", "--nocapture"])
        .env(HOLDER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    while !said.contains("holds ") || !said.ends_with('\n') {
        let mut bytes = [0; 256];
        let count = holder.stdout.as_mut().unwrap().read(&mut bytes).unwrap();
        assert!(count > 0, "{said}");
        said.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
    let sleeper: u32 = said.rsplit_once("holds ").unwrap().1.trim().parse().unwrap();
    let held = spaces(holder.id());
    assert_eq!(held.len(), 4, "three hosts and a switch");
    let link = |pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).map(|link| link.display().to_string());
    // Before that it does not know yet with which process it is to end.
    transport::fixture::wait_for("the sleeper to sleep", || {
        (std::fs::read_to_string(format!("/proc/{sleeper}/comm")).ok()? == "sleep\n").then_some(())
    });
    assert!(held.contains(&link(sleeper).unwrap()), "the sleeper is on its host");
    holder.kill().unwrap();
    holder.wait().unwrap();
    transport::fixture::wait_for("the sleeper to be gone", || link(sleeper).is_err().then_some(()));
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(process) = process.file_name().to_string_lossy().parse() else { continue };
        assert!(!link(process).is_ok_and(|link| held.contains(&link)), "process {process} is on a host");
        assert!(!spaces(process).iter().any(|space| held.contains(space)), "process {process} holds a host");
    }
}
