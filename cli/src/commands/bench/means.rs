//! Settings of the way that the bytes travel: the RDMA device, and the secret that both hosts share.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use slackline::internals::job::transports::{Origins, rdma_settings};
use slackline::internals::transport::verbs::ArrivalOrder;
use slackline::{Secret, TransportKind, Verbs, VerbsOptions};

use super::error::BenchError;
use super::memory::MemoryArgs;

/// Requests that an RDMA queue has room for at least: a ping-pong posts two at once.
const LEAST_DEPTH: u16 = 16;

/// The RDMA device and its settings. Settings that are not given are those of the environment for jobs
/// (SLACKLINE_RDMA_*, or the variables NCCL_IB_* and UCX_* of the same meaning).
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeviceArgs {
    /// verbs: the RDMA device, or several to stripe over: NAME or NAME:PORT [default: as in the environment, else the
    /// best one]
    #[arg(long, help_heading = "RDMA", value_name = "NAME,...", value_delimiter = ',')]
    pub(super) device: Vec<String>,
    /// verbs: its port, from 1 [default: as in the environment, else the first that is up]
    #[arg(long, help_heading = "RDMA", value_name = "N")]
    pub(super) port: Option<u8>,
    /// verbs: the entry of the port's GID table to speak from [default: as in the environment, else the best one
    /// towards the other side]
    #[arg(long, help_heading = "RDMA", value_name = "N")]
    pub(super) gid_index: Option<u16>,
    /// verbs: largest packet in bytes: 256, 512, 1024, 2048 or 4096 [default: as in the environment, else the largest
    /// that both ports carry]
    #[arg(long, help_heading = "RDMA", value_name = "BYTES")]
    pub(super) mtu: Option<u16>,
    /// verbs: service level, 0 to 15 [default: as in the environment, else 0]
    #[arg(long, help_heading = "RDMA", value_name = "N")]
    pub(super) sl: Option<u8>,
    /// verbs: traffic class, DSCP in its upper six bits [default: as in the environment, else 0]
    #[arg(long, help_heading = "RDMA", value_name = "N")]
    pub(super) tclass: Option<u8>,
    /// verbs: the partition, by the value of its key, as 0x8012 [default: as in the environment, else the first of the
    /// port]
    #[arg(long, help_heading = "RDMA", value_name = "KEY", value_parser = partition_key)]
    pub(super) pkey: Option<u16>,
    /// verbs: the local ACK timeout (ibv_qp_attr.timeout), 1 to 31: 4.096 us times 2 to this power [default: as in
    /// the environment, else 16]
    #[arg(long, help_heading = "RDMA", value_name = "N")]
    pub(super) qp_timeout: Option<u8>,
    /// verbs: retransmissions without an answer (ibv_qp_attr.retry_cnt), 0 to 7 [default: as in the environment, else
    /// 6]
    #[arg(long, help_heading = "RDMA", value_name = "N")]
    pub(super) retries: Option<u8>,
    /// verbs: the order in which this device is assumed to apply the other side's writes [default: as in the
    /// environment, else auto]
    #[arg(long, help_heading = "RDMA", value_enum)]
    pub(super) order: Option<WriteOrder>,
    /// verbs: whether this device is asked to write payloads and answers in relaxed order [default: as in the
    /// environment, else true]
    #[arg(long, help_heading = "RDMA", value_name = "BOOL")]
    pub(super) relaxed_ordering: Option<bool>,
    /// verbs: longest write whose bytes travel in the request itself [default: 64, or as much as the device can]
    #[arg(long, help_heading = "RDMA", value_name = "BYTES", value_parser = clap::value_parser!(u32).range(..=4096))]
    pub(super) inline: Option<u32>,
}

/// The order in which a device applies what peers write, as SLACKLINE_RDMA_ORDER says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum WriteOrder {
    /// The device is asked.
    Auto,
    /// That of the requests.
    InOrder,
    /// Any: a READ proves what was written before each word that announces it.
    Read,
}

impl WriteOrder {
    fn in_order(self) -> Option<bool> {
        match self {
            WriteOrder::Auto => None,
            WriteOrder::InOrder => Some(true),
            WriteOrder::Read => Some(false),
        }
    }
}

/// A number, decimal or, after `0x`, hexadecimal.
fn partition_key(text: &str) -> Result<u16, std::num::ParseIntError> {
    text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u16::from_str_radix(digits, 16))
}

impl DeviceArgs {
    /// Refuses what means nothing over `transport`.
    pub(super) fn check(&self, transport: TransportKind) -> Result<(), BenchError> {
        let given = [
            ("--device", !self.device.is_empty()),
            ("--port", self.port.is_some()),
            ("--gid-index", self.gid_index.is_some()),
            ("--mtu", self.mtu.is_some()),
            ("--inline", self.inline.is_some()),
            ("--sl", self.sl.is_some()),
            ("--tclass", self.tclass.is_some()),
            ("--pkey", self.pkey.is_some()),
            ("--qp-timeout", self.qp_timeout.is_some()),
            ("--retries", self.retries.is_some()),
            ("--order", self.order.is_some()),
            ("--relaxed-ordering", self.relaxed_ordering.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) if transport != TransportKind::Verbs => Err(BenchError::usage(
                format!("{option} means something only over RDMA"),
                "leave it out, or use --transport verbs",
            )),
            _ => Ok(()),
        }
    }
}

impl DeviceArgs {
    /// Where settings are from, if those of the environment are from there.
    fn origins(&self, environment: Origins) -> Origins {
        fn told<T>(
            option: &Option<T>,
            name: &'static str,
            otherwise: Option<&'static str>,
        ) -> Option<&'static str> {
            option.as_ref().map(|_| name).or(otherwise)
        }
        Origins {
            gid_index: told(&self.gid_index, "--gid-index", environment.gid_index),
            mtu: told(&self.mtu, "--mtu", environment.mtu),
            service_level: told(&self.sl, "--sl", environment.service_level),
            traffic_class: told(&self.tclass, "--tclass", environment.traffic_class),
            partition_key: told(&self.pkey, "--pkey", environment.partition_key),
            timeout: told(&self.qp_timeout, "--qp-timeout", environment.timeout),
            retries: told(&self.retries, "--retries", environment.retries),
            order: told(&self.order, "--order", environment.order),
            relaxed_ordering: told(
                &self.relaxed_ordering,
                "--relaxed-ordering",
                environment.relaxed_ordering,
            ),
        }
    }
}

/// All that opening a transport takes.
#[derive(Clone, Debug, Default)]
pub(super) struct Means {
    pub(super) device: DeviceArgs,
    pub(super) memory: MemoryArgs,
    pub(super) queue_depth: Option<u16>,
    /// The secret that both hosts share; none if both sides are on this host.
    pub(super) secret: Option<Secret>,
    /// The address of the other side, if it is on another host.
    pub(super) peer: Option<IpAddr>,
    pub(super) order: FoundOrder,
}

/// The order in which this side's device applies writes, once it has been found out: for all rows alike, as a driver is
/// asked over a connection of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundOrder(Arc<OnceLock<Option<ArrivalOrder>>>);

impl FoundOrder {
    pub(super) fn of(&self, verbs: &Verbs) -> Option<ArrivalOrder> {
        *self.0.get_or_init(|| verbs.arrival_order().ok())
    }
}

impl Means {
    /// The same for an owner, which a GPU of its peers alone does not concern.
    pub(super) fn of_owner(&self) -> Means {
        Means { memory: self.memory.of_owner(), ..self.clone() }
    }

    /// The settings of RDMA: those of the environment, as far as no option says otherwise.
    pub(super) fn verbs(&self) -> Result<VerbsOptions, BenchError> {
        Ok(self.settings()?.0)
    }

    /// The same, and for each setting the variable or the option that says it.
    pub(super) fn settings(&self) -> Result<(VerbsOptions, Origins), BenchError> {
        let (environment, from) = rdma_settings()?;
        Ok((self.over(environment), self.device.origins(from)))
    }

    fn over(&self, environment: VerbsOptions) -> VerbsOptions {
        let DeviceArgs {
            device,
            port,
            gid_index,
            mtu,
            inline,
            sl,
            tclass,
            pkey,
            qp_timeout,
            retries,
            order,
            relaxed_ordering,
        } = self.device.clone();
        VerbsOptions {
            devices: if device.is_empty() { environment.devices } else { device },
            port: port.or(environment.port),
            gid_index: gid_index.or(environment.gid_index),
            gid_index_from: environment.gid_index_from.filter(|_| gid_index.is_none()),
            mtu: mtu.or(environment.mtu),
            service_level: sl.unwrap_or(environment.service_level),
            traffic_class: tclass.unwrap_or(environment.traffic_class),
            partition_key: pkey.or(environment.partition_key),
            partition_key_from: environment.partition_key_from.filter(|_| pkey.is_none()),
            timeout: qp_timeout.or(environment.timeout),
            retries: retries.or(environment.retries),
            relaxed_ordering: relaxed_ordering.unwrap_or(environment.relaxed_ordering),
            in_order: order.map_or(environment.in_order, WriteOrder::in_order),
            queue_depth: self.queue_depth.map(|depth| depth.max(LEAST_DEPTH).into()),
            inline_bytes: inline.unwrap_or(environment.inline_bytes),
            peer: self.peer,
            secret: self.secret.clone(),
            ..environment
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_win_over_the_environment_and_what_they_leave_out_is_its() {
        let environment = || VerbsOptions {
            devices: vec!["mlx5_0".into()],
            gid_index: Some(3),
            mtu: Some(1024),
            traffic_class: 106,
            retries: Some(5),
            in_order: Some(false),
            ..VerbsOptions::default()
        };
        let settings = |device| {
            let options = Means { device, ..Means::default() }.over(environment());
            let VerbsOptions { devices, gid_index, mtu, traffic_class, retries, in_order, .. } = options;
            (devices.concat(), gid_index, mtu, traffic_class, retries, in_order)
        };
        let same = settings(DeviceArgs::default());
        assert_eq!(same, ("mlx5_0".into(), Some(3), Some(1024), 106, Some(5), Some(false)));
        let given = DeviceArgs {
            device: vec!["mlx5_1".into()],
            mtu: Some(4096),
            tclass: Some(0),
            order: Some(WriteOrder::Auto),
            ..DeviceArgs::default()
        };
        let from = Origins {
            gid_index: Some("NCCL_IB_GID_INDEX"),
            mtu: Some("SLACKLINE_RDMA_MTU"),
            ..Origins::default()
        };
        let from = given.origins(from);
        assert_eq!((from.gid_index, from.mtu), (Some("NCCL_IB_GID_INDEX"), Some("--mtu")));
        assert_eq!((from.traffic_class, from.order, from.retries), (Some("--tclass"), Some("--order"), None));
        assert_eq!(settings(given), ("mlx5_1".into(), Some(3), Some(4096), 0, Some(5), None));
    }
}
