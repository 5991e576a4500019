//! The GPUs of this host: their driver, what they can do, and a copy to each and back.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use slackline::Diagnostic;
use slackline::gpu::{Gpu, GpuError};
use slackline::internals::cuda::GpuWindow;

use super::check::{CheckProgress, Problem};
use super::gpu_transfers::{self, TransferReport};
use super::gpudirect;
use super::limits::Limit;

/// Bytes of the copies that are tried.
const COPY_BYTES: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Serialize)]
pub(super) struct GpuReport {
    works: bool,
    /// The reason for which there is no GPU to use, if there is none.
    #[serde(flatten)]
    pub(super) problem: Option<Problem>,
    devices: Vec<DeviceReport>,
}

#[derive(Clone, Debug, Serialize)]
struct DeviceReport {
    ordinal: u32,
    name: String,
    works: bool,
    #[serde(flatten)]
    problem: Option<Problem>,
    cuda: Option<String>,
    capability: Option<String>,
    pci_address: Option<String>,
    /// Whether RDMA devices reach its memory.
    rdma: Vec<Limit>,
    /// What each RDMA device did with it.
    transfers: Vec<TransferReport>,
    /// GB/s of one copy of 64 MiB, from the call until its end is known.
    to_gpu: Option<f64>,
    to_host: Option<f64>,
}

pub(super) fn look(progress: &CheckProgress) -> GpuReport {
    let (devices, problem) = match Gpu::count() {
        Ok(0) => (Vec::new(), Some(problem(&GpuError::NoDevice { ordinal: 0, count: 0 }))),
        Ok(count) => ((0..count).map(|ordinal| device(ordinal, progress)).collect(), None),
        Err(error) => (Vec::new(), Some(problem(&error))),
    };
    let works = !devices.is_empty() && devices.iter().all(|device: &DeviceReport| device.works);
    GpuReport { works, problem, devices }
}

fn problem(error: &GpuError) -> Problem {
    let (text, help) = (error.to_string(), error.remedy().unwrap_or_default().into_owned());
    let cause = text.strip_suffix(&format!("; {help}")).unwrap_or(&text);
    Problem { error: cause.to_owned(), help }
}

fn device(ordinal: u32, progress: &CheckProgress) -> DeviceReport {
    progress.go_on(format!("gpu: copies of GPU {ordinal}"));
    let gpu = Gpu::open(ordinal);
    let transfers = gpu.as_ref().map_or_else(|_| Vec::new(), |gpu| gpu_transfers::look(gpu, progress));
    let name = gpu.as_ref().map(|gpu| gpu.name().to_owned()).unwrap_or_default();
    let tried = gpu.and_then(|gpu| Ok((gpu.properties()?, gpu.try_copies(COPY_BYTES, PATIENCE)?)));
    let (properties, copies, mut problem) = match tried {
        Ok((properties, copies)) => (Some(properties), copies, None),
        Err(error) => (None, None, Some(problem(&error))),
    };
    if problem.is_none() && copies.is_none_or(|copies| !copies.are_intact) {
        let error = match copies {
            None => format!("a copy of 64 MiB did not end within {PATIENCE:?}"),
            Some(_) => "bytes that were copied to it and back have changed".to_owned(),
        };
        let help =
            "look at `nvidia-smi -q` and at the kernel's log (`dmesg`) for errors of the GPU".to_owned();
        problem = Some(Problem { error, help });
    }
    let rate = |time: Duration| COPY_BYTES as f64 / time.as_secs_f64() / 1e9;
    let version = |(major, minor): (i32, i32)| format!("{major}.{minor}");
    DeviceReport {
        ordinal,
        name,
        works: problem.is_none(),
        problem,
        rdma: properties.as_ref().map_or_else(Vec::new, |found| {
            gpudirect::look(found, &GpuWindow::of(&found.pci_address), Path::new("/"))
        }),
        cuda: properties.as_ref().map(|properties| version(properties.driver)),
        capability: properties.as_ref().map(|properties| version(properties.capability)),
        pci_address: properties.map(|properties| properties.pci_address),
        transfers,
        to_gpu: copies.map(|copies| rate(copies.to_gpu)),
        to_host: copies.map(|copies| rate(copies.to_host)),
    }
}

impl GpuReport {
    /// The reason why a GPU cannot be used, if there is one; or why no RDMA device reaches one.
    pub(super) fn missing(&self, rdma: bool) -> Option<Problem> {
        let of_devices = self.devices.iter().find_map(|device| {
            let has_way = device.transfers.iter().any(|transfer| transfer.works);
            let tried = || device.transfers.iter().find_map(|transfer| transfer.problem.clone());
            let no_way = || {
                let error = format!("no RDMA device of this host can be used beside GPU {}", device.ordinal);
                tried().unwrap_or(Problem { error, help: "see the rows of the RDMA devices".into() })
            };
            device.problem.clone().or_else(|| (rdma && !has_way).then(no_way))
        });
        self.problem.clone().or(of_devices)
    }

    /// The rows of the table for people: their names, what there is, and the remedy for what does not work.
    pub(super) fn rows(&self) -> Vec<(&'static str, String, Option<&str>)> {
        if let Some(Problem { error, help }) = &self.problem {
            return vec![("gpu", format!("none: {error}"), Some(help))];
        }
        fn part(text: &Option<String>) -> &str {
            text.as_deref().unwrap_or("?")
        }
        let mut rows = Vec::new();
        for device in &self.devices {
            let DeviceReport { ordinal, name, cuda, capability, .. } = device;
            let mut text =
                format!("{ordinal}: {name}, driver of CUDA {}, capability {}", part(cuda), part(capability));
            if let (Some(to_gpu), Some(to_host)) = (device.to_gpu, device.to_host) {
                text += &format!(", copies {to_gpu:.1} GB/s to it and {to_host:.1} GB/s from it");
            }
            rows.push(match &device.problem {
                None => ("gpu", text, None),
                Some(Problem { error, help }) => {
                    ("gpu", format!("{text}; FAILS: {error}"), Some(help.as_str()))
                }
            });
            rows.extend(device.rdma.iter().map(|row| (row.limit, row.text.clone(), row.help.as_deref())));
            rows.extend(device.transfers.iter().map(|row| ("gpu-rdma", row.text(), row.help())));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_of_a_gpu_is_told_with_its_remedy_once() {
        let operation = "initialising the driver";
        let late = GpuError::Driver { operation: "waiting for a copy of a GPU", code: 999 };
        for (error, cause, remedy) in [
            (
                GpuError::NoDriver { reason: "no such file".into() },
                "libcuda.so.1: no such file",
                "--gpus all",
            ),
            (GpuError::NoDevice { ordinal: 0, count: 0 }, "this process sees 0", "rights on /dev/nvidia*"),
            (GpuError::Driver { operation, code: 999 }, "CUDA error 999", "/dev/nvidia-uvm"),
            (GpuError::Driver { operation, code: 804 }, "CUDA error 804", "cuda/compat"),
            (GpuError::StubDriver, "is the stub", "LD_LIBRARY_PATH"),
            (
                GpuError::NotCopied { waited: PATIENCE, cause: Some(Box::new(late)) },
                "within 5s: waiting for a copy of a GPU failed with CUDA error 999",
                "Xid",
            ),
            // What it ends in is all that there is to say.
            (GpuError::Empty, "at least one byte", ""),
        ] {
            let problem = problem(&error);
            assert!(problem.error.contains(cause) && problem.help.contains(remedy), "{problem:?}");
            assert!(!problem.error.ends_with(';') && !problem.error.ends_with(' '), "{problem:?}");
            assert!(remedy.is_empty() || !problem.error.contains(remedy), "{problem:?}");
            let report = GpuReport { works: false, problem: Some(problem.clone()), devices: Vec::new() };
            let rows = report.rows();
            assert_eq!(rows, [("gpu", format!("none: {}", problem.error), Some(problem.help.as_str()))]);
            assert_eq!(report.missing(true).map(|missing| missing.error), Some(problem.error.clone()));
        }
    }
}
