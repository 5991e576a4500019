//! What is on the wire: the number of READs and atomics at once, and the traffic class of packets. Needs another host:
//! packets that a device sends to its own address never get there.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::task::Poll;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use slackline::internals::mem::{Access, MemoryRegion, RemoteSlice};
use slackline::internals::transport::{
    Connecting, Endpoint, Incoming, Inline, Listener, Offer, Operation, WorkRequest,
};
use slackline::{Address, Secret, Transport, Verbs, VerbsOptions};

use crate::rdma::sides;
use crate::transport::fixture::{Fixture, now, post, read, run, wait_for, wait_until_gone};
use crate::transport::payloads::InHostMemory;
use crate::transport::process::{Second, second_process};

/// READs, and as many atomics.
const READS: usize = 64;
const WORDS: usize = READS + 2;

struct WireFixture;

impl Fixture for WireFixture {
    type Transport = Verbs;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "wire";

    fn transport() -> Verbs {
        open(None, 0)
    }

    fn address() -> Address {
        Address::Verbs((crate::own_address(), 0).into())
    }

    fn start(command: &mut Command) -> io::Result<Child> {
        crate::start(command)
    }
}

/// The traffic class of the packets of this host and of those of the other: two values of DSCP, no ECN.
const CLASSES: [u8; 2] = [104, 32];

fn open(read_depth: Option<u8>, traffic_class: u8) -> Verbs {
    let secret = Some(Secret::from_text("both processes know this", "this test").unwrap());
    sides::open(VerbsOptions { read_depth, traffic_class, secret, ..VerbsOptions::default() })
}

/// Everything that this host sends and receives, as long as no more than 4 MiB of it wait to be read.
struct Wire(OwnedFd);

impl Wire {
    fn new() -> Wire {
        /// `ETH_P_ALL`, in the order of bytes of the network.
        const EVERYTHING: u32 = 3u16.to_be() as u32;
        let protocol = NonZeroU32::new(EVERYTHING).map(Protocol::from_raw);
        let (kind, flags) = (SocketType::DGRAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
        let socket =
            socket_with(AddressFamily::PACKET, kind, flags, protocol).expect("the right to see packets");
        set_socket_recv_buffer_size_force(&socket, 4 << 20).unwrap();
        Wire(socket)
    }

    fn next(&self) -> Option<Packet> {
        let mut bytes = [0; 128];
        loop {
            match recv(&self.0, &mut bytes, RecvFlags::empty()) {
                Ok((_, len)) => {
                    if let Some(packet) = Packet::parse(&bytes[..len.min(bytes.len())]) {
                        return Some(packet);
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A packet of RoCE v2 over IPv4.
struct Packet {
    from: Ipv4Addr,
    traffic_class: u8,
    opcode: u8,
    number: u32,
}

impl Packet {
    /// IPv4, UDP to port 4791, base transport header (InfiniBand Architecture Specification, volume 1, 9.2).
    fn parse(bytes: &[u8]) -> Option<Packet> {
        let first = *bytes.first()?;
        let (ip, udp) = bytes.split_at_checked(4 * usize::from(first & 0xF))?;
        let is_roce = first >> 4 == 4 && *ip.get(9)? == 17 && udp.get(2..4)? == 4791u16.to_be_bytes();
        let header = udp.get(8..20).filter(|_| is_roce)?;
        let from = <[u8; 4]>::try_from(ip.get(12..16)?).ok()?.into();
        let number = u32::from_be_bytes([0, header[9], header[10], header[11]]);
        Some(Packet { from, traffic_class: ip[1], opcode: header[0], number })
    }

    /// A READ, a compare-swap or a fetch-add.
    fn asks(&self) -> bool {
        matches!(self.opcode, 0x0C | 0x13 | 0x14)
    }

    /// All of what a READ of one packet brings back, or what an atomic does.
    fn answers(&self) -> bool {
        matches!(self.opcode, 0x10 | 0x12)
    }
}

/// The READs and atomics of one side. Each is a packet, and so is its answer, which has its number.
#[derive(Default)]
struct Flight {
    asked: HashSet<u32>,
    open: HashSet<u32>,
    most: usize,
}

impl Flight {
    fn see(&mut self, packet: &Packet, is_own: bool) {
        if packet.asks() && is_own {
            self.asked.insert(packet.number);
            self.open.insert(packet.number);
            self.most = self.most.max(self.open.len());
        } else if packet.answers() && !is_own {
            self.open.remove(&packet.number);
        }
    }
}

/// Memory whose last word the peer sets once it has had all that it asked for.
fn region(verbs: &Verbs) -> MemoryRegion {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    verbs.allocate(8 * WORDS, access).unwrap()
}

fn offer(region: &MemoryRegion) -> Offer {
    Offer { message: Vec::new(), grants: vec![region.whole()] }
}

fn word(remote: RemoteSlice, index: usize) -> RemoteSlice {
    remote.slice(8 * index as u64, 8).unwrap()
}

/// Asks for all of it at once, and waits for that, and does `meanwhile`.
fn ask(verbs: &Verbs, endpoint: &mut impl Endpoint, remote: RemoteSlice, mut meanwhile: impl FnMut()) {
    let local = verbs.allocate(16 * READS, Access::LOCAL).unwrap();
    let requests = (0..READS).flat_map(|index| {
        let into = |index: usize| local.slice(8 * index, 8).unwrap();
        let add = Operation::FetchAdd { local: into(READS + index), remote: word(remote, READS), add: 1 };
        let id = index as u64;
        [WorkRequest::signalled(id, read(into(index), word(remote, index))), WorkRequest::signalled(id, add)]
    });
    wait_for("the connection to stand", || {
        endpoint.check().unwrap();
        endpoint.post(&[]).is_ok().then_some(())
    });
    post(endpoint, &requests.collect::<Vec<_>>());
    let mut done = 0;
    wait_for("all of it", || {
        meanwhile();
        while let Some(completion) = endpoint.poll() {
            assert_eq!(completion.result, Ok(()));
            done += 1;
        }
        (done == 2 * READS).then_some(())
    });
    for index in 0..READS {
        assert_eq!(local.as_volatile().load_u64(8 * (READS + index)), index as u64);
    }
    run(endpoint, Operation::WriteInline { data: Inline::word(1), remote: word(remote, WORDS - 1) }).unwrap();
}

/// Both sides ask for a lot at once, and neither has more on the wire than the side with less allows.
fn neither_has_more_on_the_wire(claim: &str, at_first: Option<u8>, at_second: Option<u8>) {
    let most = usize::from(at_first.or(at_second).unwrap());
    if let Some(address) = second_process() {
        let verbs = open(at_second, CLASSES[1]);
        let region = region(&verbs);
        let mut connecting = verbs.connect(&address, offer(&region)).unwrap();
        let (mut endpoint, received) = wait_for("the answer", || match connecting.poll(now()) {
            Poll::Pending => None,
            Poll::Ready(connected) => Some(connected.unwrap()),
        });
        ask(&verbs, &mut endpoint, received.grants[0], || {});
        wait_until_gone(&mut endpoint);
        return;
    }
    assert!(std::env::var_os("SLACKLINE_RIG_RUN").is_some(), "this test needs another host");
    let verbs = open(at_first, CLASSES[0]);
    let (region, wire) = (region(&verbs), Wire::new());
    let mut listener = verbs.listen(&WireFixture::address()).unwrap();
    let mut second = Second::start::<WireFixture>(claim, &listener.address());
    let incoming = wait_for("a peer", || listener.poll(now()));
    let remote = incoming.received().grants[0];
    let mut endpoint = incoming.accept(offer(&region)).unwrap();

    let (mut own, mut other) = (Flight::default(), Flight::default());
    let mut classes = [(); 2].map(|()| HashSet::new());
    let mut look = || {
        while let Some(packet) = wire.next() {
            let is_own = IpAddr::from(packet.from) == crate::own_address();
            own.see(&packet, is_own);
            other.see(&packet, !is_own);
            classes[usize::from(!is_own)].insert(packet.traffic_class);
        }
    };
    ask(&verbs, &mut endpoint, remote, &mut look);
    wait_for("the other side to have all", || {
        look();
        endpoint.check().unwrap();
        (region.as_volatile().load_u64(8 * (WORDS - 1)) == 1).then_some(())
    });
    look();
    drop(endpoint);
    second.wait();
    for flight in [own, other] {
        assert_eq!((flight.asked.len(), flight.open.len()), (2 * READS, 0), "all of it was seen");
        assert!((1..=most).contains(&flight.most), "{} at once, where {most} may be", flight.most);
    }
    assert_eq!(classes, CLASSES.map(|class| HashSet::from([class])), "requests and answers alike");
}

#[test]
fn a_side_that_could_ask_many_reads_keeps_to_the_few_that_its_peer_answers() {
    let claim = "a_side_that_could_ask_many_reads_keeps_to_the_few_that_its_peer_answers";
    neither_has_more_on_the_wire(claim, None, Some(2));
}

#[test]
fn who_answers_few_reads_at_once_is_never_asked_for_more() {
    neither_has_more_on_the_wire("who_answers_few_reads_at_once_is_never_asked_for_more", Some(2), None);
}
