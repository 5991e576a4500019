//! What a process asks of its RDMA devices.

use std::net::IpAddr;

use super::INLINE_BYTES;
use super::device::Port;
use crate::channel::Secret;

/// Settings of RDMA. The default is right for most: the best device and port of this host.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// The devices, by their names, or `NAME:PORT`; the best one if none is named. Where several are, up to
    /// [`MAX_RAILS`](crate::mem::MAX_RAILS), long requests of each connection are striped by their speeds over those
    /// that are up on both sides when it is made, the first with the peer's first and so on; each of these must have a
    /// way to the peer's, and one at least is to be up when they are opened. A port may be named several times: each
    /// time is a queue pair more, for links that give one queue pair one of several ways. Memory is pinned, and
    /// counted, once for each. Best where a process has a host to itself: several do better with a device for each.
    pub devices: Vec<String>,
    /// The port where a name has none, counted from 1. If none is given, the best of the device's ports that carry
    /// data, by the rules for the best device.
    pub port: Option<u8>,
    /// The entry of the port's GID table to speak from; the best one towards each peer if none is named.
    pub gid_index: Option<u16>,
    /// The variable that says so, if one does. What NCCL's says of RoCE is not taken for InfiniBand, as by NCCL.
    #[doc(hidden)]
    pub gid_index_from: Option<&'static str>,
    /// Largest packet in bytes: 256, 512, 1024, 2048 or 4096; what both ports carry if none is given.
    pub mtu: Option<u16>,
    /// Requests that may be outstanding on an endpoint: 1024, or half as many as the device takes.
    pub queue_depth: Option<usize>,
    /// READs and atomics that may be under way on a connection at once, each way: 16, or as many as the devices of
    /// both sides take. No more than the device has under way and answers; the side with less decides, and a number
    /// between two powers of two counts as the lesser one. For tests: few.
    #[doc(hidden)]
    pub read_depth: Option<u8>,
    /// Longest data that a request carries in itself, in bytes: 64, or as much as the device takes.
    pub inline_bytes: u32,
    /// The address on the PCI bus of a GPU that payloads are on, as in `/sys/bus/pci/devices`: of devices on the way to
    /// the peer the nearest to it are preferred.
    pub near: Option<String>,
    /// A peer, if one is known beforehand: devices on the way to it are preferred, unless another has twice the speed.
    pub peer: Option<IpAddr>,
    /// This process's number among those of its job on this host. Of several devices that are equally good each local
    /// rank takes another.
    pub local_rank: usize,
    /// The service level of packets, 0 to 15: on InfiniBand the lane that they take, on Ethernet their priority,
    /// where no DSCP says it.
    pub service_level: u8,
    /// The traffic class of packets with a global route header, which RoCE v2 has always: DSCP in the upper six bits,
    /// ECN in the others. Networks without loss often want 104 or 106.
    pub traffic_class: u8,
    /// The partition, by the value of its key, with or without the bit of full members; the first of the port's table
    /// if none is given. Both sides must be in it, one of them as a full member, as which a port is taken where it has
    /// both keys. On Ethernet there is one, 0xFFFF.
    pub partition_key: Option<u16>,
    /// The variable that says so, if one does. What UCX's says is not taken for Ethernet, as by UCX.
    #[doc(hidden)]
    pub partition_key_from: Option<&'static str>,
    /// The local ACK timeout (`ibv_qp_attr.timeout`): 4.096 us times 2 to this power, 1 to 31. 16 (268 ms) if none is
    /// given.
    pub timeout: Option<u8>,
    /// Retransmissions (`ibv_qp_attr.retry_cnt`) before the connection is over, 0 to 7 (soft-RoCE: 6). 6 if none
    /// is given: with the time of 16 a peer is lost after 1.9 s, and some devices take four times as long.
    pub retries: Option<u8>,
    /// Whether this process's devices are taken to apply what peers write in the order of their requests (true), or
    /// in any order (false); the device is asked if nothing is said. Where they may be in any order, a peer has a
    /// READ prove what it wrote before each word that announces it: one round trip more. A device that is wrongly
    /// taken to keep the order corrupts data without a sign.
    pub in_order: Option<bool>,
    /// Whether devices are asked to write payloads, and the answers to READs, in relaxed order: true unless it is set.
    /// Words that announce are never written so. A device or host that gains nothing by it loses nothing, either: this
    /// is for measurements, and for hosts on which it is known to fail.
    pub relaxed_ordering: bool,
    /// The number of the first packet of each connection, modulo 2^24; random if none is given. For tests: numbers
    /// wrap around.
    #[doc(hidden)]
    pub first_packet: Option<u32>,
    /// The secret that all peers know; without one only peers on this host are let in.
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
    /// The entry of the GID table that is to be spoken from at this port, if one is asked for.
    #[doc(hidden)]
    pub fn gid_index_at(&self, port: &Port) -> Option<u16> {
        let is_of_nccl = self.gid_index_from.is_some_and(|variable| variable.starts_with("NCCL_"));
        self.gid_index.filter(|_| !(port.is_infiniband && is_of_nccl))
    }

    /// The key of the partition that is to be used at this port, if one is asked for.
    #[doc(hidden)]
    pub fn partition_key_at(&self, port: &Port) -> Option<u16> {
        let is_of_ucx = self.partition_key_from.is_some_and(|variable| variable.starts_with("UCX_"));
        self.partition_key.filter(|_| port.is_infiniband || !is_of_ucx)
    }
}
