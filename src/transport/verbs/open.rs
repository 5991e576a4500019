//! The choice of devices and ports to use.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use super::VerbsOptions;
use super::device::{self, Device, DeviceInfo, Port};
use super::error::OpenError;
use super::gid;
use super::pci::{PciWay, pci_way};
use crate::mem::MAX_RAILS;

/// A device and port that was chosen, and the reason.
pub(super) struct OpenedDevice {
    pub(super) device: Arc<Device>,
    pub(super) info: DeviceInfo,
    pub(super) port: Port,
    pub(super) reason: String,
}

/// The folders of the functions on the PCI bus.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// The properties by which usable ports are compared, the most important first. Each is better when it is greater.
type RailOrder = (bool, Option<Reverse<PciWay>>, bool, u32);

/// The devices of this host.
///
/// # Errors
/// There is no verbs library, or it cannot list them. For a device that cannot be opened the list has the error.
pub fn devices() -> Result<Vec<Result<DeviceInfo, OpenError>>, OpenError> {
    let open = |name: &String| Device::open(name).and_then(|device| device.info());
    Ok(device::names()?.iter().map(open).collect())
}

/// Opens the devices and ports that `options` name, or the best one. Of several named devices one must be up:
/// connections use the others once they are up.
pub(super) fn open(options: &VerbsOptions) -> Result<Vec<OpenedDevice>, OpenError> {
    if options.devices.len() > MAX_RAILS {
        let (device, what) = (options.devices.join(","), "so many rails".into());
        return Err(OpenError::Setting { device, what, remedy: format!("name {MAX_RAILS} at most") });
    }
    if options.devices.is_empty() {
        return Ok(vec![best_of(&device::names()?, options)?]);
    }
    let open = |name: &String| {
        let (name, port) = name_and_port(name);
        let options = VerbsOptions { port: port.or(options.port), ..options.clone() };
        best_of(&[name.to_owned()], &options)
    };
    let opened: Vec<_> = options.devices.iter().map(open).collect();
    let is_any_up = opened.iter().any(Result::is_ok);
    let or_down = |opened| match opened {
        Err(OpenError::PortDown { device, port, .. }) if is_any_up => open_down(&device, port),
        opened => opened,
    };
    opened.into_iter().map(or_down).collect()
}

/// Opens a device for a port that is down now.
fn open_down(name: &str, number: u8) -> Result<OpenedDevice, OpenError> {
    let device = Device::open(name)?;
    let info = device.info()?;
    let port = info.ports.iter().find(|port| port.number == number).cloned().ok_or(OpenError::NoDevice)?;
    tracing::warn!(
        device = name,
        port = number,
        "the RDMA port is down: no connection uses it until it is up"
    );
    Ok(OpenedDevice { device, info, port, reason: "it was asked for, and is down".into() })
}

/// The parts of `NAME:PORT`; without a port, the whole text is the name.
fn name_and_port(text: &str) -> (&str, Option<u8>) {
    let parts = text.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)));
    parts.map_or((text, None), |(name, port)| (name, Some(port)))
}

/// Opens the best of the devices of these names.
fn best_of(names: &[String], options: &VerbsOptions) -> Result<OpenedDevice, OpenError> {
    let gpu = options.near.as_ref().map(|address| Path::new(PCI_DEVICES).join(address));
    let (mut infos, mut devices, mut unopened) = (Vec::new(), Vec::new(), Vec::new());
    for name in names {
        match Device::open(name).and_then(|device| Ok((device.info()?, device))) {
            Ok((info, device)) => {
                infos.push(info);
                devices.push(device);
            }
            Err(error) => unopened.push(error),
        }
    }
    let around = PortComparison::of(&infos, options, options.peer.and_then(gid::route_to), current_node());
    let (best, mut errors) = best_port(&infos, options, &around, |info| way_to(gpu.as_deref(), info));
    errors.append(&mut unopened);
    let Some((index, number, reason)) = best else {
        return Err(errors.into_iter().next().unwrap_or(OpenError::NoDevice));
    };
    for error in &errors {
        tracing::info!(%error, "passed over an RDMA device");
    }
    let (info, device) = (infos.swap_remove(index), devices.swap_remove(index));
    let port = info.ports.iter().find(|port| port.number == number).cloned().ok_or(OpenError::NoDevice)?;
    Ok(OpenedDevice { device, info, port, reason })
}

/// The data for the comparison of ports, besides their own attributes.
struct PortComparison {
    /// This host's address on the route to the peer.
    route: Option<IpAddr>,
    /// The NUMA node of this processor.
    node: Option<u32>,
    /// The speed of the fastest port that can be used.
    fastest: u32,
}

impl PortComparison {
    fn of(
        infos: &[DeviceInfo],
        options: &VerbsOptions,
        route: Option<IpAddr>,
        node: Option<u32>,
    ) -> PortComparison {
        let ports = infos.iter().flat_map(|info| info.ports.iter().map(move |port| (info, port)));
        let usable = ports.filter(|(info, port)| check_port(info, port, options, route).is_ok());
        PortComparison { route, node, fastest: usable.map(|(_, port)| port.speed).max().unwrap_or(0) }
    }

    /// Whether an address of this port is on the route to the peer.
    fn is_way(&self, port: &Port) -> bool {
        port.gids.iter().any(|gid| gid.is_up && self.route == Some(gid.address()))
    }

    /// Whether another port has at least twice the speed of this port, if the speeds are known.
    fn is_slow(&self, port: &Port) -> bool {
        port.speed > 0 && self.fastest >= port.speed.saturating_mul(2)
    }
}

/// The best port of these devices, by the index of its device and its number, with the reason; and the errors of
/// devices without a usable port.
///
/// The order of preference: on the route to the peer, nearest to the GPU that holds payloads, nearest to the
/// processor of this thread, fastest. Of equal ports, this process's local rank chooses one, so that several
/// processes use several ports. The route and the processor do not count for a slow port: the port through which the
/// processes of a job meet often belongs to a network for other purposes.
fn best_port(
    infos: &[DeviceInfo],
    options: &VerbsOptions,
    around: &PortComparison,
    to_gpu: impl Fn(&DeviceInfo) -> Option<PciWay>,
) -> (Option<(usize, u8, String)>, Vec<OpenError>) {
    let (mut usable, mut errors) = (Vec::new(), Vec::new());
    for (index, info) in infos.iter().enumerate() {
        match port_of(info, options, around) {
            Ok(port) => usable.push((rank(info, port, around, to_gpu(info)), index, port)),
            Err(error) => errors.push(error),
        }
    }
    let Some(best) = usable.iter().map(|(rank, ..)| *rank).max() else { return (None, errors) };
    let is_slow_way = |(_, _, port): &&(_, _, &Port)| around.is_way(port) && around.is_slow(port);
    let slow_way = usable.iter().find(is_slow_way).map(|(_, index, _)| infos[*index].name.clone());
    let (all, equal) = (usable.len(), usable.iter().filter(|(rank, ..)| *rank == best).count());
    usable.retain(|(rank, ..)| *rank == best);
    let (rank, index, port) = usable.swap_remove(options.local_rank % equal);
    (Some((index, port.number, reason(options, rank, slow_way, all, equal))), errors)
}

/// The PCI path from a GPU, by its folder, to a device.
fn way_to(gpu: Option<&Path>, info: &DeviceInfo) -> Option<PciWay> {
    pci_way(gpu?, &device::sysfs(&info.name).join("device"))
}

fn rank(info: &DeviceInfo, port: &Port, around: &PortComparison, to_gpu: Option<PciWay>) -> RailOrder {
    let is_near = info.numa_node.is_some() && info.numa_node == around.node;
    let is_slow = around.is_slow(port);
    (around.is_way(port) && !is_slow, to_gpu.map(Reverse), is_near && !is_slow, port.speed)
}

fn reason(
    options: &VerbsOptions,
    (leads_to_peer, to_gpu, is_near, _): RailOrder,
    slow_way: Option<String>,
    all: usize,
    equal: usize,
) -> String {
    if !options.devices.is_empty() {
        return "it was asked for".into();
    }
    if all == 1 {
        return "it is the only one that can be used".into();
    }
    let mut parts = Vec::new();
    if leads_to_peer {
        parts.push("on the way to the peer".to_owned());
    } else if let Some(device) = slow_way {
        parts.push(format!(
            "{device} on the way to the peer is slow: there is a port of twice its speed or more"
        ));
    }
    if let Some(Reverse(way)) = to_gpu {
        parts.push(format!("{way} from the GPU"));
    }
    if is_near {
        parts.push("on this processor's NUMA node".to_owned());
    }
    parts.push(format!("best of {all}"));
    if equal > 1 {
        parts.push(format!("number {} of {equal} equal ones", options.local_rank % equal));
    }
    parts.join(", ")
}

/// The requested port, or the best usable one.
fn port_of<'a>(
    info: &'a DeviceInfo,
    options: &VerbsOptions,
    around: &PortComparison,
) -> Result<&'a Port, OpenError> {
    let count = u8::try_from(info.ports.len()).unwrap_or(u8::MAX);
    if let Some(number) = options.port {
        let port = info.ports.iter().find(|port| port.number == number);
        let port = port.ok_or(OpenError::NoPort { device: info.name.clone(), port: number, ports: count })?;
        return check_port(info, port, options, around.route).map(|()| port);
    }
    let mut best: Result<&Port, _> =
        Err(OpenError::NoPort { device: info.name.clone(), port: 1, ports: count });
    for port in info.ports.iter().rev() {
        match (check_port(info, port, options, around.route), &best) {
            (Ok(()), Ok(other)) if rank(info, port, around, None) < rank(info, other, around, None) => {}
            (Ok(()), _) => best = Ok(port),
            (Err(_), Ok(_)) => {}
            // The error of the first port is reported.
            (Err(error), Err(_)) => best = Err(error),
        }
    }
    best
}

fn check_port(
    info: &DeviceInfo,
    port: &Port,
    options: &VerbsOptions,
    route: Option<IpAddr>,
) -> Result<(), OpenError> {
    let (device, number) = (info.name.clone(), port.number);
    if !port.is_active {
        let remedy = match port.gids.iter().find_map(|gid| gid.interface.clone()) {
            _ if port.is_infiniband => "check the cable, and that a subnet manager runs (opensm)".into(),
            Some(interface) => format!("bring its interface up: ip link set {interface} up"),
            None => "bring its network interface up (rdma link shows which one it is)".into(),
        };
        return Err(OpenError::PortDown { device, port: number, state: port.state.clone(), remedy });
    }
    let gid_index = options.gid_index_at(port);
    if gid::choose(&port.gids, route, gid_index).is_none() {
        let (found, remedy) = match gid_index {
            Some(index) => {
                let list: Vec<String> = port.gids.iter().map(|gid| gid.index.to_string()).collect();
                let asked = options.gid_index_from.map(|variable| format!(", for which {variable} asks"));
                let found = format!("no entry {index} in its GID table{}", asked.unwrap_or_default());
                (found, format!("its entries are {}: see `slackline doctor`", list.join(", ")))
            }
            None => {
                let remedy =
                    "give its network interface an IP address, and bring it up: ip addr add, ip link set up";
                ("no address to speak from (no GID of an interface that is up)".into(), remedy.into())
            }
        };
        return Err(OpenError::NoGid { device, port: number, found, remedy });
    }
    if let Some(mtu) = options.mtu
        && (device::mtu_of_bytes(mtu).is_none() || mtu > port.mtu)
    {
        let what = format!("packets of {mtu} bytes");
        let remedy = format!(
            "choose 256, 512, 1024, 2048 or 4096, and no more than the {} that its port carries now",
            port.mtu
        );
        return Err(OpenError::Setting { device, what, remedy });
    }
    let limit = info.limits.reads_served.min(info.limits.reads_posted);
    if let Some(depth) = options.read_depth
        && !(1..=limit).contains(&depth)
    {
        let what = format!("{depth} READs and atomics under way at once");
        return Err(OpenError::Setting { device, what, remedy: format!("the device has at most {limit}") });
    }
    Ok(())
}

/// The NUMA node of the processor on which this thread runs, if it is known.
fn current_node() -> Option<u32> {
    let processor = rustix::thread::sched_getcpu();
    let folder = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{processor}")).ok()?;
    let mut names = folder.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.find_map(|name| name.strip_prefix("node")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::super::gid::{Gid, GidKind};
    use super::super::scripted::{gid, info};
    use super::*;

    fn taken<'a>(info: &'a DeviceInfo, options: &VerbsOptions) -> Result<&'a Port, OpenError> {
        let around = PortComparison::of(std::slice::from_ref(info), options, None, None);
        port_of(info, options, &around)
    }

    fn error(info: &DeviceInfo, options: &VerbsOptions) -> String {
        taken(info, options).unwrap_err().to_string()
    }

    fn other_index(index: u16) -> VerbsOptions {
        VerbsOptions { gid_index: Some(index), ..VerbsOptions::default() }
    }

    #[test]
    fn the_gid_index_that_nccl_is_told_counts_on_roce_alone() {
        let options = VerbsOptions { gid_index_from: Some("NCCL_IB_GID_INDEX"), ..other_index(3) };
        let mut info = info("mlx5_0", true, vec![gid()]);
        assert!(taken(&info, &options).is_err(), "its only entry is 1");
        info.ports[0].is_infiniband = true;
        assert!(taken(&info, &options).is_ok());
        for variable in [None, Some("SLACKLINE_RDMA_GID_INDEX"), Some("UCX_IB_GID_INDEX")] {
            let options = VerbsOptions { gid_index_from: variable, ..options.clone() };
            assert!(taken(&info, &options).is_err(), "{variable:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_port_is_said_with_the_remedy() {
        let plain = VerbsOptions::default();
        assert!(taken(&info("rxe0", true, vec![gid()]), &plain).is_ok());
        let down = error(&info("rxe0", false, vec![gid()]), &plain);
        assert_eq!(
            down,
            "port 1 of the RDMA device rxe0 is PORT_DOWN; bring its interface up: ip link set eth0 up"
        );
        let bare = error(&info("rxe0", true, Vec::new()), &plain);
        assert!(bare.contains("no address to speak from") && bare.contains("ip addr add"), "{bare}");
        let other = error(&info("rxe0", true, vec![gid()]), &other_index(7));
        assert!(other.contains("no entry 7") && other.contains("its entries are 1"), "{other}");
        let of_nccl = VerbsOptions { gid_index_from: Some("NCCL_IB_GID_INDEX"), ..other_index(7) };
        let of_nccl = error(&info("rxe0", true, vec![gid()]), &of_nccl);
        assert!(
            of_nccl.contains("no entry 7 in its GID table, for which NCCL_IB_GID_INDEX asks"),
            "{of_nccl}"
        );
        let third = error(&info("rxe0", true, vec![gid()]), &VerbsOptions { port: Some(3), ..plain.clone() });
        assert!(third.contains("has no port 3; it has ports 1 to 1"), "{third}");
        for mtu in [1500, 2048] {
            let text =
                error(&info("rxe0", true, vec![gid()]), &VerbsOptions { mtu: Some(mtu), ..plain.clone() });
            assert!(text.contains(&format!("packets of {mtu} bytes; choose 256")), "{text}");
        }
        for depth in [0, 10] {
            let other = VerbsOptions { read_depth: Some(depth), ..plain.clone() };
            let text = error(&info("rxe0", true, vec![gid()]), &other);
            assert!(
                text.contains(&format!("{depth} READs and atomics")) && text.contains("at most 9"),
                "{text}"
            );
        }
    }

    #[test]
    fn of_a_devices_ports_the_best_that_can_be_used_is_taken() {
        let mut two = info("mlx5_0", true, vec![gid()]);
        let port = |number, is_active, speed| Port { number, is_active, speed, ..two.ports[0].clone() };
        let ports = [port(1, true, 100), port(2, true, 200), port(3, false, 400)];
        two.ports = ports.to_vec();
        assert_eq!(taken(&two, &VerbsOptions::default()).unwrap().number, 2);
        two.ports[1].speed = 100;
        assert_eq!(taken(&two, &VerbsOptions::default()).unwrap().number, 1, "the first of equal ones");
    }

    #[test]
    fn the_way_to_the_peer_comes_before_nearness_and_nearness_before_speed() {
        let route = Some([10, 0, 0, 1].into());
        let port = |gids, speed| Port { speed, ..info("x", true, gids).ports.remove(0) };
        let here = info("a", true, Vec::new());
        let rank = |gids, speed, node, to_gpu| {
            rank(&here, &port(gids, speed), &PortComparison { route, node: Some(node), fastest: 100 }, to_gpu)
        };
        let there = rank(vec![gid()], 60, 5, None);
        let by_gpu = rank(Vec::new(), 60, 5, Some(PciWay::Switch));
        let farther = rank(Vec::new(), 100, 0, Some(PciWay::Node));
        let near = rank(Vec::new(), 60, 0, None);
        let fast = rank(Vec::new(), 100, 5, None);
        assert!(there > by_gpu && by_gpu > farther && farther > near && near > fast);
        assert!(rank(vec![gid()], 50, 0, None) < fast, "neither counts for one of half the speed");
        assert!(rank(vec![gid()], 0, 5, None) > fast, "of which the speed is not known");
    }

    #[test]
    fn a_slow_port_on_the_way_to_the_peer_is_passed_over_for_a_fast_one() {
        let device = |name: &str, node, is_infiniband, speed, gids| {
            let mut info = DeviceInfo { numa_node: Some(node), ..info(name, true, gids) };
            (info.ports[0].is_infiniband, info.ports[0].speed) = (is_infiniband, speed);
            info
        };
        let infiniband = Gid { bytes: [0xFE; 16], kind: GidKind::InfiniBand, interface: None, ..gid() };
        let mut infos = vec![
            device("ethernet", 0, false, 25_000, vec![gid()]),
            device("mlx5_0", 1, true, 400_000, vec![infiniband.clone()]),
            device("mlx5_1", 1, true, 400_000, vec![infiniband]),
        ];
        let best = |infos: &[DeviceInfo], local_rank| {
            let options = VerbsOptions { local_rank, ..VerbsOptions::default() };
            let around = PortComparison::of(infos, &options, Some([10, 0, 0, 1].into()), Some(0));
            let (best, errors) = best_port(infos, &options, &around, |_| None);
            assert!(errors.is_empty());
            best.map(|(index, _, reason)| (infos[index].name.clone(), reason)).unwrap()
        };
        let why =
            "ethernet on the way to the peer is slow: there is a port of twice its speed or more, best of 3";
        let second = format!("{why}, number 1 of 2 equal ones");
        assert_eq!(best(&infos, 1), ("mlx5_1".into(), second), "each process takes another");
        // Between ports that are not slow, the route to the peer decides as before.
        infos[0].ports[0].speed = 201_000;
        let reason = "on the way to the peer, on this processor's NUMA node, best of 3";
        assert_eq!(best(&infos, 1), ("ethernet".into(), reason.into()));
        // A fast port that carries no data makes no other port slow.
        infos[0].ports[0].speed = 25_000;
        infos.iter_mut().skip(1).for_each(|info| info.ports[0].is_active = false);
        let options = VerbsOptions::default();
        assert_eq!(PortComparison::of(&infos, &options, None, None).fastest, 25_000);
    }

    #[test]
    fn a_device_may_be_named_with_its_port() {
        assert_eq!(name_and_port("mlx5_0"), ("mlx5_0", None));
        assert_eq!(name_and_port("mlx5_0:2"), ("mlx5_0", Some(2)));
        assert_eq!(name_and_port("mlx5_0:x"), ("mlx5_0:x", None));
    }

    #[test]
    fn more_rails_than_there_may_be_are_refused_with_the_remedy() {
        let devices = vec!["rxe0".to_owned(); MAX_RAILS + 1];
        let Err(error) = open(&VerbsOptions { devices, ..VerbsOptions::default() }) else {
            panic!("too many")
        };
        assert!(error.to_string().contains("so many rails; name 4 at most"), "{error}");
    }

    #[test]
    fn equal_devices_are_shared_out_by_local_rank() {
        let options = VerbsOptions { local_rank: 5, ..VerbsOptions::default() };
        assert_eq!(
            reason(&options, (false, None, true, 4), None, 4, 2),
            "on this processor's NUMA node, best of 4, number 1 of 2 equal ones"
        );
    }
}
