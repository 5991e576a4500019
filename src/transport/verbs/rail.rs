//! One port of one device, as the connections of a transport use it.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::arrival_order::{ArrivalOrder, ArrivalOrderSource};
use super::device::{Device, DeviceInfo, Port};
use super::gid::{self, Gid, GidChoice, GidKind};
use super::hello::PortAddress;
use super::open::OpenedDevice;
use super::path::{self, PathSettings};
use super::queue_pair::QueuePairPath;
use super::region::ProtectionDomain;
use super::{OpenError, PIECE_BYTES_MAX, VerbsOptions, power_of_two_below};
use crate::transport::{Address, ConnectError, MAKE_RDMA_CONNECTION};

/// READs and atomics that may be under way, unless the options say otherwise or a device supports fewer: a higher
/// number brings no more speed.
const READ_DEPTH: u8 = 16;

/// A port, and the state that all connections through it share.
#[derive(Clone)]
pub(super) struct Rail {
    pub(super) device: Arc<Device>,
    pub(super) info: DeviceInfo,
    /// The port as it was opened. Its addresses and tables, and its speed if it was down then, may have changed
    /// since: [`state`](Self::state) has the current ones.
    pub(super) port: Port,
    state: Arc<Mutex<PortState>>,
    /// The reason why the port was chosen.
    pub(super) reason: String,
    /// The domain of all memory that requests of this process use.
    pub(super) domain: Arc<ProtectionDomain>,
    /// The domain of the memory that peers may only read, registered once for all of them, and of the queue pairs
    /// that serve these READs.
    pub(super) read_domain: Arc<ProtectionDomain>,
    /// The requested entry of the GID table for the local address, if any, and the variable that requests it, if any.
    gid_index: Option<u16>,
    gid_index_from: Option<&'static str>,
    /// Largest packet in bytes, if requested.
    mtu: Option<u16>,
    /// The partition, if requested.
    partition_key: Option<u16>,
    /// READs and atomics that may be under way at once in each direction, if the device supports so many.
    pub(super) read_depth: u8,
    /// The settings of the packets' path.
    pub(super) settings: PathSettings,
    /// Whether the device is assumed to apply writes in order, regardless of its own answer.
    pub(super) in_order: Option<bool>,
    /// Whether the device is asked for relaxed ordering of writes into memory that announces nothing.
    relaxed_ordering: bool,
}

/// The addresses and tables of a port at its last query.
struct PortState {
    port: Port,
    /// The index of the partition key in the port's table, if the table has it.
    pkey_index: Option<u16>,
    /// The device's count of changes by then ([`Device::port_changes`]).
    changes: u64,
}

impl Rail {
    /// Makes the rail of `options` over a device and port that they have chosen.
    pub(super) fn new(opened: OpenedDevice, options: &VerbsOptions) -> Result<Rail, OpenError> {
        let OpenedDevice { device, info, port, reason } = opened;
        let domain = || {
            ProtectionDomain::new(&device, options.relaxed_ordering).map_err(|source| OpenError::System {
                operation: "make a protection domain",
                device: info.name.clone(),
                source,
                remedy: "see the kernel's log (dmesg)",
            })
        };
        let settings = PathSettings::new(options, &info, &port)?;
        // Changes that the device reported before the query are in its answer.
        let changes = device.port_changes();
        let pkey_index = path::index_of(options.partition_key_at(&port), &port.partition_keys);
        Ok(Rail {
            domain: domain()?,
            read_domain: domain()?,
            gid_index: options.gid_index_at(&port),
            gid_index_from: options.gid_index_from,
            mtu: options.mtu,
            partition_key: options.partition_key_at(&port),
            state: Arc::new(Mutex::new(PortState { port: port.clone(), pkey_index, changes })),
            read_depth: options.read_depth.unwrap_or(READ_DEPTH),
            settings,
            in_order: options.in_order,
            relaxed_ordering: options.relaxed_ordering,
            device,
            info,
            port,
            reason,
        })
    }

    /// A domain for the memory that one peer may access.
    pub(super) fn peer_domain(&self) -> io::Result<Arc<ProtectionDomain>> {
        ProtectionDomain::new(&self.device, self.relaxed_ordering)
    }

    /// Longest single request that the device gets, in bytes.
    pub(super) fn piece_bytes(&self) -> usize {
        self.port.message_bytes.clamp(1, PIECE_BYTES_MAX) as usize
    }

    /// Whether the device applies a peer's writes in order, if that is known without a query.
    pub(super) fn known_arrival_order(&self) -> Option<ArrivalOrder> {
        let of_options =
            self.in_order.map(|in_order| ArrivalOrder { in_order, source: ArrivalOrderSource::Options });
        let known = ArrivalOrder { in_order: true, source: ArrivalOrderSource::SoftRoce };
        of_options.or(self.info.is_soft_roce.then_some(known))
    }

    /// The port's current addresses and tables, queried again if the device has reported a change. An existing
    /// connection keeps the addresses with which it was made.
    fn state(&self) -> MutexGuard<'_, PortState> {
        self.device.take_events();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (changes, device, number) = (self.device.port_changes(), &self.info.name, self.port.number);
        if state.changes == changes {
            return state;
        }
        match self.device.port(number) {
            Ok(port) => {
                tracing::info!(
                    device,
                    port = number,
                    state = port.state,
                    lid = port.lid,
                    gids = port.gids.len(),
                    mtu = port.mtu,
                    "the RDMA port has changed: new connections go by what it has now"
                );
                state.pkey_index = path::index_of(self.partition_key, &port.partition_keys);
                (state.port, state.changes) = (port, changes);
            }
            // The next connection repeats the query.
            Err(error) => tracing::warn!(device, port = number, %error, "the RDMA port has changed"),
        }
        state
    }

    /// The speed of its port in Mbit/s; 0 if unknown.
    pub(super) fn speed(&self) -> u32 {
        self.state().port.speed
    }

    /// Checks that its port carries data now: this queries the device, regardless of its earlier events.
    pub(super) fn check_up(&self, at: &Address) -> Result<(), ConnectError> {
        let source = match self.device.is_port_active(self.port.number) {
            Ok(true) => return Ok(()),
            Ok(false) => {
                let (device, number) = (&self.info.name, self.port.number);
                let reason = format!("port {number} of the RDMA device {device} is down");
                io::Error::new(io::ErrorKind::NetworkDown, reason)
            }
            Err(error) => error,
        };
        let (operation, address) = (MAKE_RDMA_CONNECTION, at.clone());
        let remedy = "check the cable, and bring its network interface up (rdma link shows which one it is)";
        Err(ConnectError::System { operation, address, source, remedy })
    }

    /// Largest packet in bytes.
    pub(super) fn mtu(&self) -> u16 {
        self.mtu.unwrap_or_else(|| self.state().port.mtu)
    }

    pub(super) fn choose_gid(&self, peer: Option<IpAddr>) -> Option<GidChoice> {
        let route = peer.and_then(gid::route_to);
        gid::choose(&self.state().port.gids, route, self.gid_index)
    }

    /// The local address for packets to `peer`.
    pub(super) fn gid_towards(&self, peer: Option<IpAddr>, at: &Address) -> Result<GidChoice, ConnectError> {
        let choice = self.choose_gid(peer).ok_or_else(|| {
            let (source, remedy) = self.no_gid();
            let (operation, address) = (MAKE_RDMA_CONNECTION, at.clone());
            ConnectError::System { operation, address, source, remedy }
        })?;
        tracing::info!(gid = %choice.gid, index = choice.gid.index, reason = choice.reason, "GID chosen");
        Ok(choice)
    }

    /// The error of a port without a usable local address, and the remedy.
    fn no_gid(&self) -> (io::Error, &'static str) {
        let Some(index) = self.gid_index else {
            let remedy = "give the RDMA device's network interface an IP address, and bring it up";
            return (io::Error::from_raw_os_error(libc::EADDRNOTAVAIL), remedy);
        };
        let (device, asked) = (&self.info.name, self.gid_index_from.unwrap_or("`VerbsOptions::gid_index`"));
        let reason =
            format!("{device} has no entry {index} in its GID table any more, for which {asked} asks");
        let remedy = "ask for an entry that it has, or for none; `slackline doctor` lists them";
        (io::Error::new(io::ErrorKind::AddrNotAvailable, reason), remedy)
    }

    /// Returns the port address of this side, for the peer.
    pub(super) fn port_address(&self, from: &Gid) -> PortAddress {
        let (limits, port) = (&self.info.limits, &self.state().port);
        PortAddress {
            is_infiniband: port.is_infiniband,
            lid: port.lid,
            gid: from.bytes,
            is_routed: from.kind == GidKind::RoceV2,
            needs_global_route: port.needs_global_route,
            mtu: self.mtu.unwrap_or(port.mtu),
            reads_served: power_of_two_below(limits.reads_served.min(self.read_depth)),
            reads_posted: power_of_two_below(limits.reads_posted.min(self.read_depth)),
        }
    }

    /// The path between two ports, if there is one.
    pub(super) fn path(
        &self,
        from: &GidChoice,
        ours: &PortAddress,
        theirs: &PortAddress,
    ) -> Result<QueuePairPath, &'static str> {
        if ours.is_infiniband != theirs.is_infiniband {
            return Err("one side is on InfiniBand, the other on Ethernet: use another device");
        }
        if !ours.is_infiniband && ours.is_routed != theirs.is_routed {
            return Err(
                "one side speaks RoCE v1, the other RoCE v2: choose the same kind of GID on both sides",
            );
        }
        let gid_index = u8::try_from(from.gid.index)
            .map_err(|_| "this side's GID index is greater than 255: choose another one")?;
        let is_ipv4 =
            |address: &PortAddress| std::net::Ipv6Addr::from(address.gid).to_ipv4_mapped().is_some();
        if !ours.is_infiniband && ours.is_routed && is_ipv4(ours) != is_ipv4(theirs) {
            return Err("one side speaks from an IPv4 address, the other from IPv6: choose GIDs of one kind");
        }
        let mtu = ours.mtu.min(theirs.mtu);
        let port = self.port.number;
        let pkey_index =
            self.state().pkey_index.ok_or("this side's port is no longer in the job's partition")?;
        let settings = PathSettings { pkey_index, ..self.settings };
        Ok(QueuePairPath { port, gid_index, mtu, settings, ours: *ours, theirs: *theirs })
    }
}
