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

/// A device and port that was chosen, and why.
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

/// Opens the devices and ports that `options` name, or the best one.
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
    options.devices.iter().map(open).collect()
}

/// The parts of `NAME:PORT`; without a port, all of it is the name.
fn name_and_port(text: &str) -> (&str, Option<u8>) {
    let parts = text.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)));
    parts.map_or((text, None), |(name, port)| (name, Some(port)))
}

/// Opens the best of the devices of these names: whose address is on the way to the peer, nearest to the GPU that
/// payloads are on, nearest to the processor that this runs on, fastest; and of those that are equal the one for this
/// process's local rank, so that several processes take several.
fn best_of(names: &[String], options: &VerbsOptions) -> Result<OpenedDevice, OpenError> {
    let route = options.peer.and_then(gid::route_to);
    let node = current_node();
    let gpu = options.near.as_ref().map(|address| Path::new(PCI_DEVICES).join(address));
    let (mut usable, mut errors) = (Vec::new(), Vec::new());
    for name in names {
        match Device::open(name).and_then(|device| Ok((device.info()?, device))) {
            Ok((info, device)) => match port_of(&info, options, route) {
                Ok(port) => usable.push((
                    rank(&info, port, route, node, way_to(gpu.as_deref(), &info)),
                    Arc::clone(&device),
                    info.clone(),
                    port.number,
                )),
                Err(error) => errors.push(error),
            },
            Err(error) => errors.push(error),
        }
    }
    let Some(best) = usable.iter().map(|(rank, ..)| *rank).max() else {
        return Err(errors.into_iter().next().unwrap_or(OpenError::NoDevice));
    };
    for error in &errors {
        tracing::info!(%error, "passed over an RDMA device");
    }
    let (all, equal) = (usable.len(), usable.iter().filter(|(rank, ..)| *rank == best).count());
    usable.retain(|(rank, ..)| *rank == best);
    let (rank, device, info, number) = usable.swap_remove(options.local_rank % equal);
    let port = info.ports.iter().find(|port| port.number == number).cloned().ok_or(OpenError::NoDevice)?;
    let reason = reason(options, rank, all, equal);
    Ok(OpenedDevice { device, info, port, reason })
}

/// The way from a GPU, by its folder, to a device.
fn way_to(gpu: Option<&Path>, info: &DeviceInfo) -> Option<PciWay> {
    pci_way(gpu?, &device::sysfs(&info.name).join("device"))
}

fn rank(
    info: &DeviceInfo,
    port: &Port,
    route: Option<IpAddr>,
    node: Option<u32>,
    to_gpu: Option<PciWay>,
) -> RailOrder {
    let leads_to_peer = port.gids.iter().any(|gid| gid.is_up && route == Some(gid.address()));
    (leads_to_peer, to_gpu.map(Reverse), info.numa_node.is_some() && info.numa_node == node, port.speed)
}

fn reason(
    options: &VerbsOptions,
    (leads_to_peer, to_gpu, is_near, _): RailOrder,
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

/// The port that is asked for, or the best of those that can be used.
fn port_of<'a>(
    info: &'a DeviceInfo,
    options: &VerbsOptions,
    route: Option<IpAddr>,
) -> Result<&'a Port, OpenError> {
    let count = u8::try_from(info.ports.len()).unwrap_or(u8::MAX);
    if let Some(number) = options.port {
        let port = info.ports.iter().find(|port| port.number == number);
        let port = port.ok_or(OpenError::NoPort { device: info.name.clone(), port: number, ports: count })?;
        return check_port(info, port, options, route).map(|()| port);
    }
    let mut best: Result<&Port, _> =
        Err(OpenError::NoPort { device: info.name.clone(), port: 1, ports: count });
    for port in info.ports.iter().rev() {
        match (check_port(info, port, options, route), &best) {
            (Ok(()), Ok(other))
                if rank(info, port, route, None, None) < rank(info, other, route, None, None) => {}
            (Ok(()), _) => best = Ok(port),
            (Err(_), Ok(_)) => {}
            // The first port's is told.
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

/// The NUMA node of the processor that this thread runs on, where that can be told.
fn current_node() -> Option<u32> {
    let processor = rustix::thread::sched_getcpu();
    let folder = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{processor}")).ok()?;
    let mut names = folder.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.find_map(|name| name.strip_prefix("node")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::super::scripted::{gid, info};
    use super::*;

    fn error(info: &DeviceInfo, options: &VerbsOptions) -> String {
        port_of(info, options, None).unwrap_err().to_string()
    }

    fn other_index(index: u16) -> VerbsOptions {
        VerbsOptions { gid_index: Some(index), ..VerbsOptions::default() }
    }

    #[test]
    fn the_gid_index_that_nccl_is_told_counts_on_roce_alone() {
        let options = VerbsOptions { gid_index_from: Some("NCCL_IB_GID_INDEX"), ..other_index(3) };
        let mut info = info("mlx5_0", true, vec![gid()]);
        assert!(port_of(&info, &options, None).is_err(), "its only entry is 1");
        info.ports[0].is_infiniband = true;
        assert!(port_of(&info, &options, None).is_ok());
        for variable in [None, Some("SLACKLINE_RDMA_GID_INDEX"), Some("UCX_IB_GID_INDEX")] {
            let options = VerbsOptions { gid_index_from: variable, ..options.clone() };
            assert!(port_of(&info, &options, None).is_err(), "{variable:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_port_is_said_with_the_remedy() {
        let plain = VerbsOptions::default();
        assert!(port_of(&info("rxe0", true, vec![gid()]), &plain, None).is_ok());
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
        assert_eq!(port_of(&two, &VerbsOptions::default(), None).unwrap().number, 2);
        two.ports[1].speed = 100;
        assert_eq!(
            port_of(&two, &VerbsOptions::default(), None).unwrap().number,
            1,
            "the first of equal ones"
        );
    }

    #[test]
    fn the_way_to_the_peer_comes_before_nearness_and_nearness_before_speed() {
        let route = Some([10, 0, 0, 1].into());
        let port = |gids, speed| Port { speed, ..info("x", true, gids).ports.remove(0) };
        let here = info("a", true, Vec::new());
        let there = rank(&here, &port(vec![gid()], 1), route, Some(5), None);
        let by_gpu = rank(&here, &port(Vec::new(), 1), route, Some(5), Some(PciWay::Switch));
        let farther = rank(&here, &port(Vec::new(), 100), route, Some(0), Some(PciWay::Node));
        let near = rank(&here, &port(Vec::new(), 1), route, Some(0), None);
        let fast = rank(&here, &port(Vec::new(), 100), route, Some(5), None);
        assert!(there > by_gpu && by_gpu > farther && farther > near && near > fast);
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
            reason(&options, (false, None, true, 4), 4, 2),
            "on this processor's NUMA node, best of 4, number 1 of 2 equal ones"
        );
    }
}
