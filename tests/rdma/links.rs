//! The events that a device tells besides completions: its link goes down and comes back, once or hundreds of times.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use slackline::internals::mem::{Access, MemoryRegion, RemoteSlice};
use slackline::internals::transport::verbs::VerbsListener;
use slackline::internals::transport::{
    CompletionError, Endpoint, Inline, Listener, Offer, Operation, PostError, WorkRequest,
};
use slackline::{Transport, Verbs, VerbsOptions};

use crate::VerbsFixture;
use crate::rdma::ends::{Pair, connect, prove};
use crate::rdma::log::Log;
use crate::rdma::objects::objects;
use crate::rdma::sides;
use crate::transport::fixture::{now, run, wait_for, wait_until_gone};

fn ip(lines: String) {
    let mut ip =
        Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("`ip` of iproute2");
    ip.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success());
}

/// The interface of the device, which is up again when this is dropped.
struct Link(String);

impl Link {
    fn new() -> Link {
        Link(
            std::env::var("SLACKLINE_RIG_NETDEV").expect("SLACKLINE_RIG_NETDEV: the interface of the device"),
        )
    }

    fn set(&self, states: &[&str]) {
        ip(states.iter().map(|state| format!("link set {} {state}\n", self.0)).collect());
    }

    /// Its IPv4 address, and how many bits of that are the network's.
    fn address(&self) -> (Ipv4Addr, u8) {
        let listed =
            Command::new("ip").args(["-o", "-4", "address", "show", "dev", &self.0]).output().unwrap();
        let text = String::from_utf8(listed.stdout).unwrap();
        let (address, bits) = text.split_whitespace().find_map(|word| word.split_once('/')).expect(&text);
        (address.parse().unwrap(), bits.parse().unwrap())
    }

    fn move_to(&self, address: Ipv4Addr) {
        let (before, bits) = self.address();
        let name = &self.0;
        ip(format!("address del {before}/{bits} dev {name}\naddress add {address}/{bits} dev {name}\n"));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.set(&["up"]);
    }
}

/// A device, and both ends of a connection through it.
struct Ends {
    verbs: Verbs,
    listener: VerbsListener,
    region: MemoryRegion,
    pair: Pair<VerbsFixture>,
}

impl Ends {
    fn new() -> Ends {
        let verbs = sides::open(VerbsOptions::default());
        let mut listener = verbs.listen(&"verbs:127.0.0.1:0".parse().unwrap()).unwrap();
        let region = verbs.allocate(4096, Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
        let pair = Ends::pair(&verbs, &mut listener, &region);
        Ends { verbs, listener, region, pair }
    }

    fn pair(verbs: &Verbs, listener: &mut VerbsListener, region: &MemoryRegion) -> Pair<VerbsFixture> {
        let offer = || Offer { message: Vec::new(), grants: vec![region.whole()] };
        connect(verbs, listener, offer(), offer())
    }

    fn again(&mut self) -> Pair<VerbsFixture> {
        Ends::pair(&self.verbs, &mut self.listener, &self.region)
    }

    /// Both ends go on, once the port is up.
    fn work(&mut self, value: u64) {
        let (device, port) = (self.verbs.device(), self.verbs.port().number);
        let state = format!("/sys/class/infiniband/{device}/ports/{port}/state");
        wait_for("the port to be up again", || {
            fs::read_to_string(&state).unwrap().contains("ACTIVE").then_some(())
        });
        run(&mut self.pair.client, word(self.pair.at_client.grants[0], value)).unwrap();
        prove(&self.verbs, &mut self.pair.client, self.pair.at_client.grants[0]);
        assert_eq!(self.region.as_volatile().load_u64(0), value);
        run(&mut self.pair.server, word(self.pair.at_server.grants[0], value + 1)).unwrap();
        prove(&self.verbs, &mut self.pair.server, self.pair.at_server.grants[0]);
        assert_eq!(self.region.as_volatile().load_u64(0), value + 1);
        assert_eq!((self.pair.client.check(), self.pair.server.check()), (Ok(()), Ok(())));
    }
}

fn word(remote: RemoteSlice, value: u64) -> Operation {
    Operation::WriteInline { data: Inline::word(value), remote: remote.slice(0, 8).unwrap() }
}

/// The descriptor by which the only device that this process has open tells of events.
fn events() -> OwnedFd {
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let number = |entry: &fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        (target.as_os_str() == "anon_inode:[infinibandevent]").then_some(number)
    };
    let files = fs::read_dir("/proc/self/fd").unwrap();
    let numbers: Vec<i32> = files.filter_map(|entry| number(&entry.unwrap())).collect();
    assert_eq!(numbers.len(), 1, "one device is open, and no completion channel");
    pidfd_getfd(this, numbers[0], PidfdGetfdFlags::empty()).unwrap()
}

/// Counts the events by which the device told that the port went down or came up.
fn changes(log: &Log) -> usize {
    let told = log.with("RDMA event");
    told.iter().filter(|line| line.contains("port error") || line.contains("port active")).count()
}

fn has_some(events: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(events, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn any_check_takes_the_events_of_a_link_and_idle_connections_survive_them() {
    let (log, link, mut ends) = (Log::of_this_thread(), Link::new(), Ends::new());
    let events = events();
    let looks: [fn(&mut Ends); 3] = [
        |ends| assert_eq!(ends.pair.client.check(), Ok(())),
        |ends| assert_eq!(ends.pair.server.check(), Ok(())),
        |ends| assert!(ends.listener.poll(now()).is_none()),
    ];
    for (round, look) in looks.into_iter().enumerate() {
        look(&mut ends);
        let told = changes(&log);
        link.set(&["down", "up"]);
        wait_for("the device to tell", || has_some(&events).then_some(()));
        wait_for("both of it to be taken, and all else", || {
            look(&mut ends);
            (changes(&log) >= told + 2 && !has_some(&events)).then_some(())
        });
        ends.work(10 * round as u64);
    }
}

#[test]
fn a_request_on_a_down_link_is_a_typed_error_and_the_next_connection_works() {
    let (link, mut ends) = (Link::new(), Ends::new());
    let events = events();
    ends.work(1);
    link.set(&["down"]);
    let request = WorkRequest::signalled(1, word(ends.pair.at_client.grants[0], 3));
    let posted = ends.pair.client.post(&[request]);
    assert!(matches!(posted, Ok(()) | Err(PostError::Disconnected(_))), "{posted:?}");
    if posted.is_ok() {
        let failed = wait_for("a completion", || {
            _ = ends.pair.client.check();
            ends.pair.client.poll()
        });
        let error = failed.result.unwrap_err();
        assert!(matches!(error, CompletionError::Unreachable | CompletionError::Device { .. }), "{error}");
    }
    wait_until_gone(&mut ends.pair.client);
    wait_until_gone(&mut ends.pair.server);
    link.set(&["up"]);
    ends.pair = ends.again();
    ends.work(5);
    wait_for("what was told to be taken", || {
        assert_eq!(ends.pair.client.check(), Ok(()));
        (!has_some(&events)).then_some(())
    });
}

#[test]
fn a_connection_made_after_the_port_has_another_address_goes_by_that() {
    let (link, mut ends) = (Link::new(), Ends::new());
    let speaks_from = |ends: &Ends| ends.verbs.gid_towards(None).expect("an address").gid.address();
    let (before, _) = link.address();
    assert_eq!(speaks_from(&ends), before);
    for address in [Ipv4Addr::from(u32::from(before) ^ 0x40), before] {
        link.move_to(address);
        wait_for("the device to tell", || (speaks_from(&ends) == address).then_some(()));
        ends.pair = ends.again();
        ends.work(address.octets()[3].into());
    }
}

#[test]
fn hundreds_of_events_at_once_are_all_taken_and_hold_up_nothing() {
    const FLAPS: usize = 300;
    let (log, link, before) = (Log::of_this_thread(), Link::new(), objects(&mut Command::new("rdma")));
    let mut ends = Ends::new();
    let events = events();
    // No thread looks meanwhile.
    link.set(&["down", "up"].repeat(FLAPS));
    wait_for("all of them to be taken", || {
        assert_eq!(ends.pair.client.check(), Ok(()));
        (changes(&log) >= 2 * FLAPS && !has_some(&events)).then_some(())
    });
    ends.work(1);
    drop(events);
    drop(ends);
    assert_eq!(objects(&mut Command::new("rdma")), before);

    // Ends that are dropped with events that no thread took leave nothing behind.
    let ends = Ends::new();
    link.set(&["down", "up"].repeat(FLAPS));
    drop(ends);
    assert_eq!(objects(&mut Command::new("rdma")), before);
}
