//! The settings of a process for its RDMA devices.

use std::net::IpAddr;

use super::INLINE_BYTES;
use super::device::Port;
use crate::channel::Secret;

/// Settings of RDMA. The default is right for most: the best device and port of this host.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// The devices, by their names, or `NAME:PORT`; the best one if none is named. If several are named, up to
    /// [`MAX_RAILS`](crate::mem::MAX_RAILS), long requests of each connection are striped, in proportion to the
    /// devices' speeds, over the devices that are up on both sides when the connection is made: the first device is
    /// paired with the peer's first and so on. Each of these must have a path to its partner, and at least one must
    /// be up when they are opened. A port may be named several times: each time adds a queue pair, for links that
    /// send one queue pair over one of several paths. Memory is pinned, and counted, once for each device. Best if a
    /// process has a host to itself: several processes do better with one device each.
    pub devices: Vec<String>,
    /// The port for names without one, counted from 1. If none is given, the best of the device's ports that carry
    /// data, by the rules for the best device.
    pub port: Option<u8>,
    /// The entry of the port's GID table for the local address; the best entry towards each peer if none is given.
    pub gid_index: Option<u16>,
    /// The variable that gives this entry, if any. As in NCCL, the variable of NCCL applies to RoCE and not to
    /// InfiniBand.
    #[doc(hidden)]
    pub gid_index_from: Option<&'static str>,
    /// Largest packet in bytes: 256, 512, 1024, 2048 or 4096; the largest that both ports carry if none is given.
    pub mtu: Option<u16>,
    /// Requests that may be outstanding on an endpoint: 1024, or half as many as the device supports.
    pub queue_depth: Option<usize>,
    /// READs and atomics that may be under way on a connection at once, in each direction: 16, or as many as the
    /// devices of both sides support. Never more than the device can have under way and can answer; the side with the
    /// lower number decides, and a number between two powers of two counts as the lower one. For tests: few.
    #[doc(hidden)]
    pub read_depth: Option<u8>,
    /// Longest inline data of a request, in bytes: 64, or as much as the device supports.
    pub inline_bytes: u32,
    /// The address on the PCI bus of a GPU that holds payloads, as in `/sys/bus/pci/devices`: of the devices on the
    /// route to the peer, the nearest to this GPU are preferred.
    pub near: Option<String>,
    /// A peer, if one is known beforehand: devices on the route to it are preferred, unless another device has twice
    /// the speed.
    pub peer: Option<IpAddr>,
    /// This process's number among the processes of its job on this host. Of several equally good devices, each local
    /// rank takes a different one.
    pub local_rank: usize,
    /// The service level of packets, 0 to 15: on InfiniBand it selects their lane, on Ethernet their priority, if no
    /// DSCP does.
    pub service_level: u8,
    /// The traffic class of packets with a global route header, which RoCE v2 always has: DSCP in the upper six bits,
    /// ECN in the others. Lossless networks often require 104 or 106.
    pub traffic_class: u8,
    /// The partition, by the value of its key, with or without the bit of full members; the first of the port's table
    /// if none is given. Both sides must be in it, and one of them as a full member. A port with both keys counts as
    /// a full member. On Ethernet the only partition is 0xFFFF.
    pub partition_key: Option<u16>,
    /// The variable that gives this key, if any. As in UCX, the variable of UCX does not apply to Ethernet.
    #[doc(hidden)]
    pub partition_key_from: Option<&'static str>,
    /// The local ACK timeout (`ibv_qp_attr.timeout`): 4.096 us times 2 to this power, 1 to 31. 16 (268 ms) if none is
    /// given. Intel's driver irdma ignores it.
    pub timeout: Option<u8>,
    /// Retransmissions (`ibv_qp_attr.retry_cnt`) before the connection is over, 0 to 7 (soft-RoCE: 6). 6 if none is
    /// given: with the timeout 16 a peer is lost after 1.9 s, and some devices take four times as long.
    pub retries: Option<u8>,
    /// Whether this process's devices are assumed to apply peers' writes in the order of the requests (true), or in
    /// any order (false); the device is queried if none is given. If writes may be applied in any order, a peer uses
    /// a READ to prove its earlier writes before each word that announces them: one more round trip. If a device is
    /// wrongly assumed to keep the order, data is corrupted silently.
    pub in_order: Option<bool>,
    /// Whether devices are asked to write payloads, and the answers to READs, with relaxed ordering: true by default.
    /// Announcing words are never written so. A device or host that gains nothing by it also loses nothing: the
    /// setting is for measurements, and for hosts on which relaxed ordering is known to fail.
    pub relaxed_ordering: bool,
    /// The number of the first packet of each connection, modulo 2^24; random if none is given. For tests: numbers
    /// wrap around.
    #[doc(hidden)]
    pub first_packet: Option<u32>,
    /// The secret that all peers know; without one only peers on this host are admitted.
    pub secret: Option<Secret>,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        VerbsOptions {
            devices: Vec::new(),
            port: None,
            gid_index: None,
            gid_index_from: None,
            mtu: None,
            queue_depth: None,
            read_depth: None,
            inline_bytes: INLINE_BYTES,
            near: None,
            peer: None,
            local_rank: 0,
            service_level: 0,
            traffic_class: 0,
            partition_key: None,
            partition_key_from: None,
            timeout: None,
            retries: None,
            in_order: None,
            relaxed_ordering: true,
            first_packet: None,
            secret: None,
        }
    }
}

impl VerbsOptions {
    /// The entry of the GID table for this port's local address, if the options request one.
    #[doc(hidden)]
    pub fn gid_index_at(&self, port: &Port) -> Option<u16> {
        let is_of_nccl = self.gid_index_from.is_some_and(|variable| variable.starts_with("NCCL_"));
        self.gid_index.filter(|_| !(port.is_infiniband && is_of_nccl))
    }

    /// The key of the partition to use at this port, if the options request one.
    #[doc(hidden)]
    pub fn partition_key_at(&self, port: &Port) -> Option<u16> {
        let is_of_ucx = self.partition_key_from.is_some_and(|variable| variable.starts_with("UCX_"));
        self.partition_key.filter(|_| port.is_infiniband || !is_of_ucx)
    }
}
