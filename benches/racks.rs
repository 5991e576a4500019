//! Averages between hosts in two racks, real and simulated, beside what a fluid does by hand: the networks of
//! `tests/sim/racks.rs` as far as pairs of workers meet them.
//!
//! Hosts are network namespaces, racks are bridges, links are limited by the kernel (`tc`, HTB). Two connections that
//! send as fast as they may, one each way, tell at first how many bytes the link between the racks carries beside
//! headers and acknowledgements; messages are measured out by that. It takes root, or user namespaces, and `ip` and
//! `tc` of iproute2: `cargo bench --bench racks -- [--repeat N]`.

mod arguments;
#[expect(dead_code, reason = "used by tests")]
#[path = "../tests/network/namespaces.rs"]
mod namespaces;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use namespaces::{Host, Hosts};
use slackline::group::{GroupListener, GroupMember, GroupOptions};
use slackline::scheme::{Partition, SchemeConfig};
use slackline::sim::{Cluster, Collective, Racks, Until};
use slackline::{Address, Secret, Tcp};

/// Bytes per second that a link of racks carries.
const UPLINK: f64 = 16e6;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Long enough for a connection to send as fast as the link carries.
const SETTLING: Duration = Duration::from_secs(1);

/// One network, and what happens on it: workers 0 and 1 are in the first rack, 2 and 3 in the second. In round 0 the
/// pairs {0, 1} and {2, 3} average within their racks, in round 1 {0, 2} and {1, 3} across.
struct Case {
    name: &'static str,
    /// The seconds that a message takes alone on the link of racks.
    seconds: f64,
    /// Seconds that each worker computes in each round.
    computes: [f64; 4],
    /// The rate of the link of worker 2, each way, in that of racks, if it is limited.
    slow: Option<f64>,
    /// Whether an endless flow of others goes from the first rack to the second.
    others: bool,
    /// The seconds at which workers 0 and 1 have the mean of round 1, by hand.
    fluid: [f64; 2],
}

/// For the times by hand, see the tests of the same networks. With an endless flow in one direction each of the two
/// pairs has a third of that direction: both begin at 2 s, and take three times 0.9 s.
const CASES: [Case; 3] = [
    Case {
        name: "pairs share the links of racks",
        seconds: 1.8,
        computes: [1.0, 1.5, 1.0, 1.5],
        slow: None,
        others: false,
        fluid: [5.6, 6.1],
    },
    Case {
        name: "a slow link leaves its share to others",
        seconds: 1.6,
        computes: [1.0; 4],
        slow: Some(0.2),
        others: false,
        fluid: [18.0, 12.0],
    },
    Case {
        name: "a flow of others takes a part",
        seconds: 0.9,
        computes: [1.0; 4],
        slow: None,
        others: true,
        fluid: [4.7, 4.7],
    },
];

const USAGE: &str = "usage: cargo bench --bench racks -- [--repeat N]";

fn main() {
    let arguments = arguments::given(USAGE);
    let repeat: usize = match arguments.as_slice() {
        [] => 5,
        [option, count] if option == "--repeat" => {
            count.parse().ok().filter(|count| *count > 0).expect("a number of runs")
        }
        _ => arguments::misused(USAGE),
    };
    // The other members would wait for one that has failed.
    std::panic::set_hook(Box::new(|failure| {
        eprintln!("{failure}");
        std::process::exit(1);
    }));
    let rate = link_rate(&racks(), [(0, 2), (3, 1)]);
    println!("the link of racks is limited to {UPLINK} bytes/s and carries {rate:.0} each way\n");
    println!(
        "seconds at which worker 0 and worker 1 have the mean of round 1; real ones: median (least to most) of {repeat}"
    );
    println!("{:<40} {:>6} {:>9} {:>22} {:>11}", "network", "fluid", "simulated", "real", "real/fluid");
    for case in &CASES {
        let runs: Vec<[f64; 2]> = (0..repeat).map(|_| case.run(rate)).collect();
        for worker in [0, 1] {
            let mut real: Vec<f64> = runs.iter().map(|run| run[worker]).collect();
            real.sort_by(f64::total_cmp);
            let (median, fluid) = (real[real.len() / 2], case.fluid[worker]);
            let told = format!("{median:.2} ({:.2} to {:.2})", real[0], real[real.len() - 1]);
            let (simulated, ratio) = (case.simulate(worker, rate), median / fluid);
            println!("{:<40} {fluid:>6.2} {simulated:>9.2} {told:>22} {ratio:>11.2}", case.name);
        }
    }
}

impl Case {
    /// The simulator's time at which a worker has the mean of round 1.
    fn simulate(&self, worker: usize, rate: f64) -> f64 {
        let scheme = SchemeConfig::DsSync { group: 2, partition: Partition::Digits, period: 1 };
        let mut cluster = Cluster::new(scheme, 4, 1);
        cluster.network.message_bytes = Some((self.seconds * rate) as u64);
        let links = self.slow.map_or(Vec::new(), |slow| vec![1e9, 1e9, slow * rate, 1e9]);
        let others = if self.others { vec![(0, 1)] } else { Vec::new() };
        let racks = Racks { size: 2, uplink: rate, links, others, average: Collective::Ring };
        cluster.network.racks = Some(racks);
        cluster.factors = self.computes.to_vec();
        // Just after the mean, and long before the next one within the rack could be done.
        cluster.until = Until::Seconds(self.fluid[worker] + 0.4);
        let report = cluster.run().expect("a network that can be");
        report.end - report.of_workers[worker].wasted
    }

    /// Seconds from the start until workers 0 and 1 have the mean of round 1, on hosts.
    fn run(&self, rate: f64) -> [f64; 2] {
        let hosts = racks();
        if let Some(slow) = self.slow {
            limit(&hosts[2], "eth0", slow * UPLINK);
            limit(&hosts.switch, "port3", slow * UPLINK);
        }
        let (start, elements) = (&Barrier::new(4), (self.seconds * rate / 4.0) as usize);
        let secret = || Secret::from_text("all hosts know this", "this benchmark").expect("a secret");
        let addresses: Vec<Address> = (0..4)
            .map(|rank| Address::Tcp(SocketAddr::new(hosts[rank].address().into(), 9000 + rank as u16)))
            .collect();
        let flow = self.others.then(|| EndlessFlow::start(&hosts[0], &hosts[3]));
        let (hosts, addresses) = (&hosts, &addresses);
        let times = std::thread::scope(|scope| {
            let members: Vec<_> = (0..4)
                .map(|rank| {
                    scope.spawn(move || {
                        hosts[rank].within(|| {
                            let transport = Tcp::with_secret(secret());
                            let options = GroupOptions { lease: TIMEOUT, ..GroupOptions::default() };
                            let at = &addresses[rank];
                            let listener: GroupListener<Tcp> =
                                GroupMember::listen(transport, at, rank, 4, elements, options)
                                    .expect("a listener");
                            let mut member = listener.connect(addresses, TIMEOUT).expect("all members");
                            start.wait();
                            let begun = Instant::now();
                            for round in 0..2 {
                                std::thread::sleep(Duration::from_secs_f64(self.computes[rank]));
                                let other = rank ^ (1 << round);
                                let pair = [rank.min(other), rank.max(other)];
                                let mean = member.average(round, &pair, TIMEOUT).expect("a mean");
                                assert_eq!((mean.members, mean.skipped), (2, false), "a member was given up");
                            }
                            let time = begun.elapsed().as_secs_f64();
                            // No member leaves while another one still averages.
                            start.wait();
                            time
                        })
                    })
                })
                .collect();
            members.into_iter().map(|member| member.join().expect("a member")).collect::<Vec<_>>()
        });
        drop(flow);
        [times[0], times[1]]
    }
}

/// Four hosts in two racks: a bridge for each rack, and one cable between them.
fn racks() -> Hosts {
    let hosts = Hosts::new(4);
    let ip = |host: &Host, arguments: &str| drop(host.run("ip", &arguments.split(' ').collect::<Vec<_>>()));
    ip(&hosts.switch, "link add bridge2 type bridge forward_delay 0");
    ip(&hosts.switch, "link set bridge2 up");
    ip(&hosts.switch, "link add uplink1 type veth peer name uplink2");
    ip(&hosts.switch, "link set uplink1 master bridge up");
    ip(&hosts.switch, "link set uplink2 master bridge2 up");
    for port in ["port3", "port4"] {
        ip(&hosts.switch, &format!("link set {port} master bridge2"));
    }
    ["uplink1", "uplink2"].iter().for_each(|port| limit(&hosts.switch, port, UPLINK));
    for host in 0..4 {
        // Packets as a wire carries them: the kernel would send dozens as one, and the limit let them pass as one.
        ip(&hosts[host], "link set eth0 gso_max_size 2000");
        // Connections of a kind that share a link evenly.
        hosts[host].run("sh", &["-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"]);
    }
    hosts
}

/// Limits the bytes per second that a device sends; its queue holds a hundred packets.
fn limit(host: &Host, device: &str, rate: f64) {
    let bits = (8.0 * rate).round();
    let tc = |arguments: String| drop(host.run("tc", &arguments.split(' ').collect::<Vec<_>>()));
    tc(format!("qdisc add dev {device} root handle 1: htb default 1"));
    tc(format!("class add dev {device} parent 1: classid 1:1 htb rate {bits}bit burst 3028 cburst 3028"));
    tc(format!("qdisc add dev {device} parent 1:1 pfifo limit 100"));
}

/// The bytes per second that a link carries each way, without headers and acknowledgements, while it is full both ways:
/// the link of racks, or that of worker 2.
fn link_rate(hosts: &Hosts, flows: [(usize, usize); 2]) -> f64 {
    let flows = flows.map(|(from, to)| EndlessFlow::start(&hosts[from], &hosts[to]));
    let carried = || flows.iter().map(|flow| flow.carried.load(Ordering::Relaxed)).sum::<u64>();
    std::thread::sleep(SETTLING);
    let (begun, before) = (Instant::now(), carried());
    std::thread::sleep(4 * SETTLING);
    (carried() - before) as f64 / begun.elapsed().as_secs_f64() / flows.len() as f64
}

/// A TCP connection that sends as fast as it may until it is dropped.
struct EndlessFlow {
    stream: TcpStream,
    /// Bytes that have come.
    carried: Arc<AtomicU64>,
}

impl EndlessFlow {
    fn start(from: &Host, to: &Host) -> EndlessFlow {
        let at = SocketAddr::new(to.address().into(), 9100);
        let listener = to.within(|| TcpListener::bind(at)).expect("a port");
        let mut sender = from.within(|| TcpStream::connect(at)).expect("a connection");
        let stream = sender.try_clone().expect("a descriptor");
        let carried = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&carried);
        std::thread::spawn(move || {
            let (mut receiver, _) = listener.accept().expect("the connection");
            let mut bytes = [0; 1 << 14];
            // Until the other end is shut down.
            while let Ok(count @ 1..) = receiver.read(&mut bytes) {
                counted.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        std::thread::spawn(move || {
            let bytes = [0; 1 << 14];
            while sender.write_all(&bytes).is_ok() {}
        });
        EndlessFlow { stream, carried }
    }
}

impl Drop for EndlessFlow {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
