//! Hosts with networks of their own, made by a test: network namespaces, joined by a bridge in one more.
//!
//! None of them has a name. Descriptors of this process hold them, and the processes in them, so that all of it is gone
//! with the test, however that ends: there is nothing to remove. A host has the loopback device, and `eth0` with the
//! address [`Host::address`].
//!
//! Needs `ip` (of iproute2), and root. A process that is not root becomes root in a user namespace of its own, where
//! the system allows that: see [`Hosts::new`].

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// The packages with which the programs come that are needed.
const PACKAGES: &str =
    "`ip` comes with iproute2, `nft` with nftables, `unshare` and `setpriv` with util-linux";

/// The variable that is set for a process that became root of a user namespace, so that it is tried once.
const MAPPED: &str = "SLACKLINE_TEST_IS_MAPPED";

/// Several hosts and the switch between them.
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    pub(crate) switch: Host,
}

/// A host, or a switch.
pub(crate) struct Host {
    name: char,
    address: Ipv4Addr,
    space: File,
}

impl Hosts {
    /// Makes so many hosts, each of which reaches the others: 10.77.0.1, 10.77.0.2 and so on.
    ///
    /// A process that is not root becomes root in a user namespace, which takes a process without threads. So this one
    /// is replaced by `unshare`, which starts its program again from the beginning, with the same arguments.
    ///
    /// # Panics
    /// If that is not to be had here, saying what is missing.
    pub(crate) fn new(count: u8) -> Hosts {
        become_root();
        let switch = Host::new('*', Ipv4Addr::UNSPECIFIED);
        switch.ip("link set lo up");
        switch.ip("link add bridge type bridge forward_delay 0");
        switch.ip("link set bridge up");
        let mut hosts = Vec::new();
        for number in 1..=count {
            let host = Host::new(char::from(b'a' + number - 1), Ipv4Addr::new(10, 77, 0, number));
            let namespace = format!("/proc/{}/fd/{}", std::process::id(), switch.space.as_raw_fd());
            host.ip("link set lo up");
            host.ip(&format!("link add eth0 type veth peer name port{number} netns {namespace}"));
            host.ip(&format!("addr add {}/24 dev eth0", host.address));
            switch.ip(&format!("link set port{number} master bridge up"));
            host.ip("link set eth0 up");
            hosts.push(host);
        }
        Hosts { hosts, switch }
    }

    /// Pulls the cable of a host: whatever it and others send each other is lost without a word.
    pub(crate) fn unplug(&self, host: usize) {
        self.switch.ip(&format!("link set port{} down", host + 1));
    }

    /// Puts it back.
    pub(crate) fn plug(&self, host: usize) {
        self.switch.ip(&format!("link set port{} up", host + 1));
    }
}

impl std::ops::Index<usize> for Hosts {
    type Output = Host;

    fn index(&self, host: usize) -> &Host {
        &self.hosts[host]
    }
}

impl Host {
    fn new(name: char, address: Ipv4Addr) -> Host {
        // A thread of its own, so that no other thread stays there.
        let space = std::thread::spawn(|| {
            #[expect(deprecated, reason = "unsafe only where descriptors are unshared, which these are not")]
            rustix::thread::unshare(UnshareFlags::NEWNET).unwrap_or_else(|error| {
                panic!("cannot make a network namespace: {error}; be root, with the right CAP_SYS_ADMIN")
            });
            own_space()
        });
        let space = space.join().expect("a network namespace, which takes root");
        Host { name, address, space }
    }

    /// Returns the address at which others reach it.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Does something on this host: the calling thread is there until it is done, and what it starts stays there.
    pub(crate) fn within<R>(&self, job: impl FnOnce() -> R) -> R {
        struct Back(File);
        impl Drop for Back {
            fn drop(&mut self) {
                go(&self.0);
            }
        }
        let _back = Back(own_space());
        go(&self.space);
        job()
    }

    /// A command that is to be spawned [within](Host::within) a host: it dies with the thread that spawns it.
    pub(crate) fn command(program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", program]).env("PATH", path());
        command
    }

    /// Runs a program here, which must succeed; its output.
    ///
    /// # Panics
    /// If it does not, or is not there, with what it said.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> String {
        self.try_run(program, arguments).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs a program here; its output, or what went wrong.
    pub(crate) fn try_run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(arguments).env("PATH", path()).stdin(Stdio::null());
        let what = || format!("on host {}: {program} {}", self.name, arguments.join(" "));
        let output = self.within(|| command.output());
        let output = output.map_err(|error| format!("{}: {error} ({PACKAGES})", what()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("{}: {}", what(), String::from_utf8_lossy(&output.stderr)))
    }

    fn ip(&self, arguments: &str) {
        self.run("ip", &arguments.split(' ').collect::<Vec<_>>());
    }
}

fn own_space() -> File {
    File::open("/proc/thread-self/ns/net").expect("the network namespace of this thread")
}

fn go(space: &File) {
    move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
        .unwrap_or_else(|error| panic!("cannot enter a network namespace: {error}"));
}

/// Returns the search path, with the folders of the programs for administrators: an ordinary user's path may lack them.
fn path() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

fn become_root() {
    if rustix::process::geteuid().is_root() {
        return;
    }
    let needed = "hosts that are network namespaces take root, or the right to make user namespaces";
    assert!(std::env::var_os(MAPPED).is_none(), "{needed}, and this process got neither");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--"]).env(MAPPED, "1");
    command.arg(std::env::current_exe().expect("this program")).args(std::env::args_os().skip(1));
    let able = Command::new("unshare").args(["--user", "--map-root-user", "--net", "true"]).output();
    let refusal = match able {
        Ok(output) if output.status.success() => command.exec().to_string(),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("unshare: {error} ({PACKAGES})"),
    };
    panic!(
        "{needed}: {refusal}; run this as root, or let users make them \
         (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)"
    );
}
