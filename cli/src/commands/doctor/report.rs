//! The findings, as a program reads them.

use serde::Serialize;
use serde_json::Value;
use slackline::internals::transport::AtomicDomain;
use slackline::internals::transport::verbs::{ArrivalOrder, DeviceInfo, Gid, GidChoice, Port};
use slackline::{Transport, Verbs};

use super::check::{Check, Problem, Status};
use super::gpu::GpuReport;
use super::limits::Limit;
use super::settings::Setting;

#[derive(Clone, Debug, Serialize)]
pub(super) struct DoctorReport {
    pub(super) version: &'static str,
    pub(super) kernel: String,
    /// The result that `--require rdma` asks for.
    pub(super) rdma: Rdma,
    pub(super) paths: Vec<PathReport>,
    pub(super) gpu: GpuReport,
    pub(super) limits: Vec<Limit>,
}

/// The device that is taken, unless a command is told otherwise.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rdma {
    pub(super) works: bool,
    pub(super) device: Option<String>,
    pub(super) port: Option<u8>,
    pub(super) reason: Option<String>,
    #[serde(flatten)]
    pub(super) problem: Option<Problem>,
}

/// A way for bytes to go.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PathReport {
    pub(super) path: &'static str,
    pub(super) device: Option<String>,
    pub(super) works: bool,
    /// The reason that it does not work, if it does not.
    #[serde(flatten)]
    pub(super) problem: Option<Problem>,
    pub(super) checks: Vec<Check>,
    #[serde(flatten)]
    pub(super) rdma: Option<RdmaReport>,
}

impl PathReport {
    /// Makes the report of a path that could be opened, from the checks that were tried over it.
    pub(super) fn tried(path: &'static str, device: Option<String>, checks: Vec<Check>) -> PathReport {
        let failed = checks.iter().find(|check| check.status == Status::Failed);
        let problem = failed.and_then(|check| Some(check.problem.as_ref()?.at(check.check)));
        PathReport { path, device, works: failed.is_none(), problem, checks, rdma: None }
    }

    /// A path that could not be opened.
    pub(super) fn closed(path: &'static str, device: Option<String>, problem: Problem) -> PathReport {
        PathReport { path, device, works: false, problem: Some(problem), checks: Vec::new(), rdma: None }
    }

    /// As people call it.
    pub(super) fn name(&self) -> String {
        match &self.device {
            None => self.path.to_owned(),
            Some(device) => format!("{} over {device}", self.path),
        }
    }
}

/// A device, and what of it is used.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RdmaReport {
    /// The kernel's driver for its hardware; none for a device in software.
    pub(super) driver: Option<String>,
    pub(super) firmware: String,
    pub(super) numa_node: Option<u32>,
    /// The form of the keys that name memory to peers.
    pub(super) keys: &'static str,
    pub(super) device_limits: DeviceLimits,
    /// The settings that are used; none if the device could not be opened.
    pub(super) chosen: Option<Chosen>,
    /// The state of the adapter behind the port, and whether a job fits.
    pub(super) adapter: Vec<Limit>,
    pub(super) ports: Vec<PortReport>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Chosen {
    pub(super) port: u8,
    pub(super) gid: Option<GidReport>,
    pub(super) gid_reason: Option<String>,
    pub(super) path_mtu: u16,
    pub(super) queue_depth: usize,
    /// Longest data that a request carries in itself, as the device has granted it. `null` if that is unknown.
    pub(super) inline_bytes: Option<u32>,
    pub(super) atomics: &'static str,
    /// Whether a peer's writes are applied in order; if not, a READ proves each payload. `null` if that is unknown.
    pub(super) in_order: Option<bool>,
    /// Who says so: `driver`, `known` (of soft-RoCE), `setting` or `assumed` (nothing could be asked).
    pub(super) in_order_says: Option<&'static str>,
    /// The same for people.
    #[serde(skip)]
    pub(super) in_order_text: Option<&'static str>,
    /// The settings of the way that packets take, and where each was set.
    pub(super) settings: Vec<Setting>,
}

impl Chosen {
    pub(super) fn new(
        verbs: &Verbs,
        gid: Option<GidChoice>,
        order: Option<ArrivalOrder>,
        settings: Vec<Setting>,
    ) -> Chosen {
        let (gid, gid_reason) = gid.map(|choice| (GidReport::new(&choice.gid), choice.reason)).unzip();
        let capabilities = verbs.capabilities();
        Chosen {
            port: verbs.port().number,
            gid,
            gid_reason,
            path_mtu: verbs.mtu(),
            queue_depth: capabilities.queue_depth,
            inline_bytes: verbs.inline_bytes().ok(),
            atomics: domain(capabilities.atomics),
            in_order: order.map(|order| order.in_order),
            in_order_says: order.map(|order| order.source.name()),
            in_order_text: order.map(|order| order.source.text()),
            settings,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct DeviceLimits {
    pub(super) queue_pairs: u32,
    pub(super) completion_queues: u32,
    pub(super) domains: u32,
    pub(super) queue_depth: u32,
    pub(super) completions: u32,
    pub(super) regions: u32,
    pub(super) region_bytes: u64,
    pub(super) reads_served: u8,
    pub(super) reads_posted: u8,
    pub(super) atomics: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PortReport {
    pub(super) number: u8,
    pub(super) state: String,
    pub(super) link: &'static str,
    pub(super) lid: u16,
    pub(super) mtu: u16,
    pub(super) gids: Vec<GidReport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct GidReport {
    pub(super) index: u16,
    pub(super) address: String,
    pub(super) kind: String,
    pub(super) interface: Option<String>,
    pub(super) is_up: bool,
}

impl GidReport {
    fn new(gid: &Gid) -> GidReport {
        GidReport {
            index: gid.index,
            address: gid.to_string(),
            kind: gid.kind.to_string(),
            interface: gid.interface.clone(),
            is_up: gid.is_up,
        }
    }
}

impl RdmaReport {
    pub(super) fn new(
        info: &DeviceInfo,
        driver: Option<String>,
        chosen: Option<Chosen>,
        adapter: Vec<Limit>,
    ) -> RdmaReport {
        let limits = &info.limits;
        RdmaReport {
            driver,
            firmware: info.firmware.clone(),
            numa_node: info.numa_node,
            keys: "of what is only read one for all peers, else one for each connection; bytes by their offset",
            device_limits: DeviceLimits {
                queue_pairs: limits.queue_pairs,
                completion_queues: limits.completion_queues,
                domains: limits.domains,
                queue_depth: limits.queue_depth,
                completions: limits.completions,
                regions: limits.regions,
                region_bytes: limits.region_bytes,
                reads_served: limits.reads_served,
                reads_posted: limits.reads_posted,
                atomics: domain(limits.atomics),
            },
            chosen,
            adapter,
            ports: info.ports.iter().map(port).collect(),
        }
    }
}

fn port(port: &Port) -> PortReport {
    PortReport {
        number: port.number,
        state: port.state.clone(),
        link: if port.is_infiniband { "InfiniBand" } else { "Ethernet" },
        lid: port.lid,
        mtu: port.mtu,
        gids: port.gids.iter().map(GidReport::new).collect(),
    }
}

fn domain(atomics: AtomicDomain) -> &'static str {
    match atomics {
        AtomicDomain::None => "none",
        AtomicDomain::Device => "device",
        AtomicDomain::Host => "host",
    }
}

impl DoctorReport {
    pub(super) fn json(&self) -> Value {
        serde_json::to_value(self).expect("it is made of texts and numbers")
    }
}
