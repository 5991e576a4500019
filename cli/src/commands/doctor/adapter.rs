//! The state of an adapter as the system tells it: its PCI Express link, its NUMA node, what its counters have
//! seen, congestion control, partitions, and the number of peers that fit its limits.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use slackline::internals::transport::verbs::{DeviceInfo, Limits, Port};

use super::limits::{Limit, names, read};
use super::pci::{self, PciLink};
use super::{encryption, priorities};

/// Queue pairs that an owner has for each peer: for data, heartbeats and READs. Each has a completion queue of its own,
/// but for those of data where the owner sleeps, 64 of which share one.
const PAIRS_EACH: u32 = 3;
/// Regions: the peer's page and its slots, each in the domain of the owner's own requests and in that of this peer, and
/// the sentinel, which a device that keeps the order of writes does without.
const REGIONS_EACH: u32 = 5;
/// Queue pairs for copies that are pushed to a peer, and for heartbeats to it; and the inline data of each, a region.
const PUSHING_EACH: u32 = 2;
/// A job with more peers than this for one owner is a large one.
const PEERS_MANY: u32 = 1000;

/// Counters that stay 0 on a sound network, and what it means if one does not (`Documentation/infiniband` of the kernel
/// for those of all ports; those of drivers by their names).
const COUNTERS: &[(&str, &str)] = &[
    ("link_downed", "the link was lost"),
    ("link_error_recovery", "the link had to recover"),
    ("symbol_error", "bits were damaged on the link"),
    ("port_rcv_errors", "damaged packets came in"),
    ("port_xmit_discards", "packets were dropped for lack of room"),
    ("out_of_sequence", "packets came out of order, or were lost"),
    ("packet_seq_err", "a peer asked for lost packets again"),
    ("implied_nak_seq_err", "answers were lost"),
    ("duplicate_request", "a peer sent requests again"),
    ("local_ack_timeout_err", "no answer came in time"),
    ("rnr_nak_retry_err", "a peer had no receive posted"),
    ("req_cqe_error", "requests ended in error"),
    ("rx_icrc_encapsulated", "packets with a wrong checksum came in"),
    ("np_ecn_marked_roce_packets", "packets had passed a full switch"),
    ("np_cnp_sent", "this host told others to slow down"),
    ("rp_cnp_handled", "this host was told to slow down"),
    ("completer_retry_err", "requests were sent again"),
    ("retry_exceeded_err", "requests were given up"),
    ("out_of_seq_request", "packets came out of order, or were lost"),
    ("rcvd_rnr_err", "a peer had no receive posted"),
    ("rcvd_seq_err", "a peer asked for lost packets again"),
    // mlx5, where its timeouts adapt.
    ("roce_adp_retrans", "packets were sent again"),
    ("roce_adp_retrans_to", "no answer came in time"),
    ("roce_slow_restart", "sending began slowly again"),
    ("req_transport_retries_exceeded", "requests were given up"),
    // bnxt_re.
    ("to_retransmits", "no answer came in time, and packets were sent again"),
    ("seq_err_naks_rcvd", "a peer asked for lost packets again"),
    ("max_retry_exceeded", "requests were given up"),
    ("rnr_naks_rcvd", "a peer had no receive posted"),
    ("missing_resp", "answers were lost"),
    // irdma.
    ("RetransSegs", "packets were sent again"),
    ("RxECNMrkd", "packets had passed a full switch"),
    ("cnpSent", "this host told others to slow down"),
    ("cnpHandled", "this host was told to slow down"),
];

/// All that is found below `root`, which is `/` on a real host.
pub(super) fn look(info: &DeviceInfo, port: &Port, root: &Path) -> Vec<Limit> {
    let class = root.join("sys/class");
    let device = class.join("infiniband").join(&info.name);
    let mut rows: Vec<Limit> = link(&device.join("device"), port).into_iter().collect();
    rows.extend(settings(&device.join("device")));
    rows.extend(numa(info, &device.join("device"), root));
    rows.push(partitions(port));
    if !port.is_infiniband {
        let interfaces = interfaces(port);
        rows.push(packets(port, &interfaces, &class));
        rows.extend(interfaces.iter().filter_map(|name| congestion(name, &class)));
        rows.extend(interfaces.iter().filter_map(|name| priorities::look(name)));
        rows.push(encryption::look(&interfaces, &class));
    }
    rows.extend(counters(&device.join("ports").join(port.number.to_string())));
    rows.push(room(&info.limits));
    rows
}

/// The PCI Express link, beside the port that it feeds.
fn link(device: &Path, port: &Port) -> Option<Limit> {
    let link = |which: &str| {
        let part = |what: &str| read(&device.join(format!("{which}_link_{what}")));
        PciLink::new(&part("speed")?, &part("width")?)
    };
    let (now, most) = (link("current")?, link("max"));
    let port_gigabits = f64::from(port.speed) / 1000.0;
    let values = json!({
        "gigatransfers_per_s": now.gigatransfers, "lanes": now.lanes, "gigabits_per_s": now.gigabits(),
        "most_gigabits_per_s": most.map(|most| most.gigabits()), "port_gigabits_per_s": port_gigabits,
    });
    let text = format!("{now} carries {:.0} Gbit/s, the port {port_gigabits:.0} Gbit/s", now.gigabits());
    let help = match most {
        Some(most) if most.gigabits() > now.gigabits() => Some(format!(
            "the adapter could have {most}: use a slot with as many lanes of that speed, and look whether the \
             firmware of the host or power saving holds it down"
        )),
        _ if now.gigabits() < port_gigabits => {
            Some("the adapter's link to the host is slower than its port: use another slot or adapter".into())
        }
        _ => None,
    };
    Some(Limit::new("pci-link", values, text, help))
}

/// Settings of the adapter's PCI function, as far as this user may read them.
fn settings(device: &Path) -> Option<Limit> {
    let config = fs::read(device.join("config")).ok()?;
    let Some(relaxed) = pci::orders_relaxed(&config) else {
        let help = Some("run this command as root, or: lspci -vv | grep -e RlxdOrd -e ATSCtl".into());
        return Some(Limit::new("pci-settings", json!({}), "unknown: shown to root only", help));
    };
    let translates = pci::translates_addresses(&config);
    let on = |is_on: bool| if is_on { "on" } else { "off" };
    let text = format!("relaxed ordering {}, address translation service {}", on(relaxed), on(translates));
    let help = (!relaxed).then(|| {
        "without relaxed ordering some hosts reach half of the bandwidth: turn it on in the host's firmware".into()
    });
    let values = json!({ "relaxed_ordering": relaxed, "address_translation_service": translates });
    Some(Limit::new("pci-settings", values, text, help))
}

/// The NUMA node that the adapter is attached to, and how far the others are.
fn numa(info: &DeviceInfo, device: &Path, root: &Path) -> Option<Limit> {
    let node = info.numa_node?;
    let folder = root.join(format!("sys/devices/system/node/node{node}"));
    let distances: Vec<u32> =
        read(&folder.join("distance"))?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let processors = read(&device.join("local_cpulist")).unwrap_or_default();
    let values = json!({ "node": node, "distances": distances, "processors": processors });
    let text = match distances.len() {
        0 | 1 => format!("the only node, processors {processors}"),
        _ => {
            let all: Vec<String> = distances.iter().map(u32::to_string).collect();
            format!("node {node}, processors {processors}; distances to nodes 0, 1, ...: {}", all.join(", "))
        }
    };
    let help = (distances.len() > 1).then(|| {
        format!("processes that use it run best there: numactl --cpunodebind={node} --membind={node}")
    });
    Some(Limit::new("numa", values, text, help))
}

fn partitions(port: &Port) -> Limit {
    let keys: Vec<u16> = port.partition_keys.iter().copied().filter(|key| key & 0x7FFF != 0).collect();
    let name = |key: &u16| {
        let member = if key & 0x8000 != 0 { "full" } else { "limited" };
        format!("{key:#06x} ({member} member)")
    };
    let text: Vec<String> = keys.iter().map(name).collect();
    let help = (!keys.iter().any(|key| key & 0x8000 != 0)).then(|| {
        "two limited members do not reach each other: have the subnet manager make this port a full member".into()
    });
    Limit::new("partitions", json!({ "keys": keys }), text.join(", "), help)
}

fn interfaces(port: &Port) -> Vec<String> {
    let mut names: Vec<String> = port.gids.iter().filter_map(|gid| gid.interface.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// The size of packets beside the MTU of the interfaces that carry them.
fn packets(port: &Port, interfaces: &[String], class: &Path) -> Limit {
    let mtu = |name: &String| Some((name.clone(), read(&class.join("net").join(name).join("mtu"))?));
    let all: BTreeMap<String, String> = interfaces.iter().filter_map(mtu).collect();
    let of: Vec<String> = all.iter().map(|(name, mtu)| format!("{name} has an MTU of {mtu}")).collect();
    let help = (port.mtu < 4096).then(|| {
        "larger packets cost less: set the MTU of the interface, of the peer's and of all switches between to 4200 \
         or more, and try the way: ping -M do -s 4172 PEER"
            .into()
    });
    let values = json!({ "bytes": port.mtu, "interface_mtu": all });
    Limit::new("packets", values, format!("of {} bytes; {}", port.mtu, of.join(", ")), help)
}

/// The priorities for which an interface marks and heeds congestion (drivers of ConnectX tell).
fn congestion(interface: &str, class: &Path) -> Option<Limit> {
    let folder = class.join("net").join(interface).join("ecn");
    let priorities = |role: &str| {
        let folder = folder.join(role).join("enable");
        let is_on = |name: &String| read(&folder.join(name)).as_deref() == Some("1");
        names(&folder).into_iter().filter(is_on).collect::<Vec<_>>()
    };
    if names(&folder).is_empty() {
        return None;
    }
    let (tells, heeds) = (priorities("roce_np"), priorities("roce_rp"));
    let list = |of: &[String]| if of.is_empty() { "none".to_owned() } else { of.join(", ") };
    let text = format!("{interface}: told for priorities {}, heeded for {}", list(&tells), list(&heeds));
    let help = (tells.is_empty() || heeds.is_empty()).then(|| {
        format!("turn it on for the priority that RDMA has: echo 1 > {}/roce_np/enable/3", folder.display())
    });
    Some(Limit::new("congestion", json!({ "told": tells, "heeded": heeds }), text, help))
}

/// Counters that are not 0 and tell of trouble.
fn counters(port: &Path) -> Option<Limit> {
    let mut found = BTreeMap::new();
    let mut looked = 0;
    for folder in ["counters", "hw_counters"].map(|folder| -> PathBuf { port.join(folder) }) {
        for (name, meaning) in COUNTERS {
            let Some(count) = read(&folder.join(name)).and_then(|text| text.parse::<u64>().ok()) else {
                continue;
            };
            looked += 1;
            if count > 0 {
                found.insert(*name, (count, *meaning));
            }
        }
    }
    let counts: BTreeMap<_, _> = found.iter().map(|(name, (count, _))| (*name, *count)).collect();
    let text: Vec<String> =
        found.iter().map(|(name, (count, meaning))| format!("{name} {count} ({meaning})")).collect();
    let text = if text.is_empty() { format!("{looked} of trouble, all 0") } else { text.join(", ") };
    (looked > 0)
        .then(|| Limit::new("counters", json!({ "looked_at": looked, "not_zero": counts }), text, None))
}

/// The number of peers of one owner for which the device has queue pairs, the queues of their completions, regions and
/// protection domains.
fn room(limits: &Limits) -> Limit {
    let pairs = limits.queue_pairs.min(limits.completion_queues);
    // The number of peers, if each takes so many queue pairs and regions beside its domain.
    let peers_with = |pushing: u32| {
        let (by_pairs, by_regions) =
            (pairs / (PAIRS_EACH + pushing), limits.regions / (REGIONS_EACH + pushing));
        [by_pairs, by_regions, limits.domains].into_iter().min().unwrap_or(0)
    };
    let (peers, pushed_to) = (peers_with(0), peers_with(PUSHING_EACH));
    let text = format!(
        "for {peers} peers of one owner ({PAIRS_EACH} queue pairs with a completion queue each, up to {REGIONS_EACH} \
         regions and a protection domain for each peer), {pushed_to} if it pushes copies (ESSP, BAP, \
         DBW with delivery=wait: {PUSHING_EACH} of pairs, queues and regions more)"
    );
    let help = (peers < PEERS_MANY).then(|| {
        let which = match peers {
            _ if peers == limits.domains => "protection domains",
            _ if peers < pairs / PAIRS_EACH => "regions",
            _ if limits.completion_queues < limits.queue_pairs => "completion queues",
            _ => "queue pairs",
        };
        format!("the device's {which} are what a larger job lacks: use more shards, or several devices")
    });
    Limit::new("room", json!({ "peers": peers, "peers_pushed_to": pushed_to }), text, help)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a made-up host.
    fn host(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("slackline-adapter-{name}-{}", std::process::id()));
        for (file, text) in files {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        root
    }

    fn port() -> Port {
        Port {
            number: 1,
            is_active: true,
            state: "PORT_ACTIVE".into(),
            is_infiniband: false,
            lid: 0,
            mtu: 1024,
            message_bytes: 1 << 30,
            speed: 400_000,
            gids: Vec::new(),
            partition_keys: vec![0xFFFF, 0, 0x0002],
            needs_global_route: false,
        }
    }

    fn limits(queue_pairs: u32, regions: u32) -> Limits {
        Limits {
            queue_pairs,
            completion_queues: 1 << 20,
            domains: 1 << 20,
            queue_depth: 8192,
            completions: 1 << 20,
            regions,
            region_bytes: u64::MAX,
            reads_served: 16,
            reads_posted: 16,
            atomics: slackline::internals::transport::AtomicDomain::None,
        }
    }

    #[test]
    fn room_is_for_as_many_peers_as_each_limit_of_the_device_allows() {
        let few = limits(30_000, 70_000);
        for (limits, peers, pushed_to, lacks) in [
            (limits(300, 1000), 100, 60, Some("queue pairs")),
            (limits(300, 350), 70, 50, Some("regions")),
            (Limits { completion_queues: 900, ..few }, 300, 180, Some("completion queues")),
            (Limits { domains: 200, ..few }, 200, 200, Some("protection domains")),
            (few, 10_000, 6_000, None),
        ] {
            let room = room(&limits);
            let expected = format!(
                "for {peers} peers of one owner (3 queue pairs with a completion queue each, up to 5 regions and a \
                 protection domain for each peer), {pushed_to} if it pushes copies (ESSP, BAP, DBW with \
                 delivery=wait: 2 of pairs, queues and regions more)"
            );
            assert_eq!(room.text, expected);
            let help = room.help.unwrap_or_default();
            assert!(lacks.map_or(help.is_empty(), |lacks| help.contains(lacks)), "{help}");
        }
    }

    fn row<'a>(rows: &'a [Limit], name: &str) -> &'a Limit {
        rows.iter().find(|row| row.limit == name).unwrap_or_else(|| panic!("no row {name}"))
    }

    #[test]
    fn a_link_slower_than_the_port_or_than_it_could_be_is_pointed_out() {
        let files = |speed, lanes| {
            [
                ("current_link_speed", speed),
                ("current_link_width", lanes),
                ("max_link_speed", "32.0 GT/s PCIe"),
                ("max_link_width", "16"),
            ]
        };
        for (name, speed, lanes, says) in [
            ("whole", "32.0 GT/s PCIe", "16", None),
            ("slow", "16.0 GT/s PCIe", "16", Some("the adapter could have 32 GT/s on 16 lanes")),
            ("narrow", "32.0 GT/s PCIe", "8", Some("the adapter could have 32 GT/s on 16 lanes")),
        ] {
            let root = host(name, &files(speed, lanes));
            let found = link(&root, &port()).unwrap();
            assert_eq!(found.help.is_some(), says.is_some(), "{}", found.text);
            assert!(says.is_none_or(|says| found.help.unwrap().contains(says)));
            fs::remove_dir_all(root).unwrap();
        }
        let root = host("old", &[("current_link_speed", "16.0 GT/s PCIe"), ("current_link_width", "16")]);
        let found = link(&root, &port()).unwrap();
        assert!(found.text.contains("carries 252 Gbit/s, the port 400 Gbit/s"), "{}", found.text);
        assert!(found.help.unwrap().contains("slower than its port"));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_the_system_tells_is_shown_and_what_it_does_not_tell_is_not() {
        let limits = limits(300, 1000);
        let info = DeviceInfo {
            name: "mlx5_0".into(),
            numa_node: Some(1),
            limits,
            firmware: String::new(),
            is_soft_roce: false,
            breaks_silently: false,
            ports: vec![port()],
        };
        let at = |file: &str| format!("sys/class/infiniband/mlx5_0/{file}");
        let (down, sent, processors) = (
            at("ports/1/counters/link_downed"),
            at("ports/1/hw_counters/np_cnp_sent"),
            at("device/local_cpulist"),
        );
        let root = host(
            "told",
            &[
                (&down, "2\n"),
                (&sent, "0\n"),
                (&processors, "32-63\n"),
                ("sys/devices/system/node/node1/distance", "21 10\n"),
            ],
        );
        let rows = look(&info, &port(), &root);
        assert_eq!(row(&rows, "counters").text, "link_downed 2 (the link was lost)");
        assert!(row(&rows, "numa").text.starts_with("node 1, processors 32-63; distances"));
        assert_eq!(row(&rows, "partitions").text, "0xffff (full member), 0x0002 (limited member)");
        assert!(row(&rows, "room").help.is_some());
        assert!(row(&rows, "packets").help.is_some(), "packets of 1024 bytes are small");
        assert!(rows.iter().all(|row| !["pci-link", "pci-settings", "congestion"].contains(&row.limit)));
        fs::remove_dir_all(root).unwrap();
    }
}
