//! Transfers between each RDMA device and a GPU: WRITE, READ, and whether the GPU sees what was announced.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use slackline::gpu::Gpu;
use slackline::internals::job::transports::rdma_options;
use slackline::internals::transport::verbs::{GpuTransfers, devices, pci_way};
use slackline::{Verbs, VerbsOptions};

use super::check::{CheckProgress, Problem};

/// Bytes of the transfers that are timed.
const BYTES: usize = 64 << 20;
/// Versions are written and announced for so long by the device that is nearest to the GPU, and by each other one.
const LITMUS: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(50)];

/// What was tried between a GPU and one RDMA device.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TransferReport {
    pub(super) device: String,
    pub(super) works: bool,
    #[serde(flatten)]
    pub(super) problem: Option<Problem>,
    /// GB/s of one WRITE and of one READ of 64 MiB, both ends on the GPU, from the call until it is complete.
    write: Option<f64>,
    read: Option<f64>,
    /// Versions of 64 KiB that were announced, and those that the GPU did not see whole.
    versions: Option<u64>,
    torn: Option<u64>,
}

/// Tries all devices that open, the nearest to the GPU first; those that do not are told of elsewhere.
pub(super) fn look(gpu: &Gpu, progress: &CheckProgress) -> Vec<TransferReport> {
    let Ok(options) = rdma_options() else { return Vec::new() };
    let names = devices().into_iter().flatten().filter_map(|device| Some(device.ok()?.name));
    let address = gpu.properties().map(|properties| properties.pci_address).unwrap_or_default();
    let function = Path::new("/sys/bus/pci/devices").join(address);
    let way = |name: &String| {
        let way = pci_way(&function, &Path::new("/sys/class/infiniband").join(name).join("device"));
        (way.is_none(), way)
    };
    let mut names: Vec<String> = names.collect();
    names.sort_by_key(way);
    let mut reports = Vec::new();
    for device in names {
        progress.go_on(format!("gpu: transfers by {device}"));
        let options = VerbsOptions { devices: vec![device.clone()], ..options.clone() };
        let Ok(verbs) = Verbs::open(options) else { continue };
        let litmus = LITMUS[usize::from(!reports.is_empty())];
        reports.push(TransferReport::new(device, verbs.with_gpu(gpu).try_gpu(BYTES, litmus)));
    }
    reports
}

impl TransferReport {
    fn new(device: String, tried: Result<GpuTransfers, String>) -> TransferReport {
        let problem = |error: String, help: &str| Some(Problem { error, help: help.into() });
        let problem = match &tried {
            Err(error) => {
                problem(error.clone(), "the rows gpu-module and gpu-registration say what is missing")
            }
            Ok(GpuTransfers { are_intact: false, .. }) => problem(
                "bytes that it wrote or read have changed".into(),
                "turn PCIe ACS and the IOMMU off for the way between both, or use another adapter",
            ),
            Ok(GpuTransfers { torn, versions, .. }) if *torn > 0 => problem(
                format!("the GPU saw {torn} of {versions} versions before they were whole"),
                "do not use GPUDirect with this pair: name no GPU, or use TCP; and report it",
            ),
            Ok(_) => None,
        };
        let rate = |time: Duration| BYTES as f64 / time.as_secs_f64() / 1e9;
        let done = tried.ok();
        TransferReport {
            device,
            works: problem.is_none(),
            problem,
            write: done.map(|done| rate(done.write)),
            read: done.map(|done| rate(done.read)),
            versions: done.map(|done| done.versions),
            torn: done.map(|done| done.torn),
        }
    }

    /// The remedy, where it does not work.
    pub(super) fn help(&self) -> Option<&str> {
        self.problem.as_ref().map(|problem| problem.help.as_str())
    }

    /// The same for people.
    pub(super) fn text(&self) -> String {
        match (&self.problem, self.write, self.read, self.versions) {
            (Some(problem), ..) => format!("{}: FAILS: {}", self.device, problem.error),
            (None, Some(write), Some(read), Some(versions)) => format!(
                "{}: WRITE {write:.1} GB/s, READ {read:.1} GB/s, all of {versions} announced versions seen whole",
                self.device
            ),
            _ => self.device.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: GpuTransfers = GpuTransfers {
        write: Duration::from_millis(4),
        read: Duration::from_millis(8),
        are_intact: true,
        versions: 1234,
        torn: 0,
    };

    #[test]
    fn a_pair_works_where_all_bytes_and_versions_came_whole() {
        let report = |tried| TransferReport::new("mlx5_0".into(), tried);
        let good = report(Ok(DONE));
        assert!(good.works && good.problem.is_none());
        assert_eq!(
            good.text(),
            "mlx5_0: WRITE 16.8 GB/s, READ 8.4 GB/s, all of 1234 announced versions seen whole"
        );
        for (tried, part) in [
            (Ok(GpuTransfers { torn: 2, ..DONE }), "2 of 1234 versions before they were whole"),
            (Ok(GpuTransfers { are_intact: false, ..DONE }), "have changed"),
            (Err("blocks of host memory; not dma-buf: none".into()), "not dma-buf"),
        ] {
            let bad = report(tried);
            assert!(!bad.works && bad.text().contains(part), "{}", bad.text());
        }
    }
}
