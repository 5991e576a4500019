//! `slackline doctor`: finds out what works here by doing it, and suggests a remedy for what does not work.

mod adapter;
mod check;
mod encryption;
mod gpu;
mod gpu_transfers;
mod gpudirect;
mod iommu;
mod limits;
mod loopback;
mod netlink;
mod pci;
mod priorities;
mod rdma;
mod report;
pub(super) mod settings;
mod show;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use slackline::{Address, Shm, Tcp};

use crate::failure::Failure;
use crate::output;
use check::{CheckProgress, Problem};
use report::{DoctorReport, PathReport};

/// Test shared memory, TCP and RDMA on this host and suggest fixes.
///
/// Over shared memory, TCP and every RDMA device this process connects with itself: it registers memory, writes, reads,
/// adds, swaps, announces, and compares all bytes. It prints the choices with their reasons, the limits, and
/// for each failure the remedy. RDMA is tried with the settings that the environment has for jobs. Times are of one
/// request at a time, medians of a tenth of a second; `slackline bench` measures properly.
#[derive(clap::Args, Debug)]
#[command(after_help = EXIT_CODES, after_long_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Fail unless this works; rdma is the RDMA device that a job would take, gpu each GPU, and gpudirect an RDMA
    /// device that reads and writes it
    #[arg(long, value_enum, value_name = "PATH")]
    require: Option<Required>,

    /// Try this RDMA device and no other [default: all of them; a job takes the one in SLACKLINE_RDMA_DEVICE]
    #[arg(long, value_name = "NAME[:PORT]")]
    device: Option<String>,

    /// Write the findings as JSON; - for stdout, which then holds nothing else
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Required {
    Shm,
    Tcp,
    Verbs,
    /// The same as verbs
    Rdma,
    /// Each GPU
    Gpu,
    /// An RDMA device that reads and writes memory of each GPU
    Gpudirect,
}

const EXIT_CODES: &str =
    "Exit codes: 0 found out, 1 what --require or --device names does not work, 2 wrong options.";

const EXAMPLES: &str = "Examples:
  slackline doctor
  slackline doctor --require rdma --device mlx5_0
      in a job's prologue: fails, with the reason, on a host whose device does not work
  slackline doctor --json | jq '.paths[] | {path, device, works, error, help}'

Exit codes: 0 found out, 1 what --require or --device names does not work, 2 wrong options.";

/// Runs `slackline doctor`.
pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    match examine(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn examine(args: &DoctorArgs) -> Result<(), Failure> {
    let file = args.json.as_deref().filter(|path| *path != Path::new("-"));
    if let Some(file) = file {
        output::check("--json", file)?;
    }
    let report = look(args.device.as_deref());
    let json = || format!("{:#}\n", report.json());
    match (&args.json, file) {
        (Some(_), None) => output::print(&json())?,
        (_, file) => {
            let kept = file.map_or(Ok(()), |file| output::keep("--json", file, &json()));
            kept.and(output::print(&show::text(&report)))?;
        }
    }
    // A device is named because it is to be used.
    let named = args.device.as_ref().map(|_| Required::Rdma);
    let mut required = args.require.into_iter().chain(named);
    match required.find_map(|required| missing(&report, required)) {
        None => Ok(()),
        Some((what, problem)) => {
            Err(Failure::failed(format!("{what} does not work: {}", problem.error)).help(&problem.help))
        }
    }
}

fn look(device: Option<&str>) -> DoctorReport {
    let progress = CheckProgress::begin("shm");
    let local = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let shm = loopback::try_all(&Shm::new(), &Address::random(), None, &progress);
    let tcp = loopback::try_all(&Tcp::new(), &local, None, &progress);
    let (devices, rdma) = rdma::examine(device, &progress);
    let own = [PathReport::tried("shm", None, shm), PathReport::tried("tcp", None, tcp)];
    DoctorReport {
        version: env!("CARGO_PKG_VERSION"),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
        rdma,
        paths: own.into_iter().chain(devices).collect(),
        gpu: gpu::look(&progress),
        limits: limits::look(),
    }
}

/// Returns the problem of the path that has to work, with the name of that path, if there is a problem.
fn missing(report: &DoctorReport, required: Required) -> Option<(&'static str, Problem)> {
    let (what, name) = match required {
        Required::Verbs | Required::Rdma => {
            return report.rdma.problem.clone().map(|problem| ("RDMA", problem));
        }
        Required::Gpu => return report.gpu.missing(false).map(|problem| ("a GPU", problem)),
        Required::Gpudirect => return report.gpu.missing(true).map(|problem| ("GPUDirect", problem)),
        Required::Shm => ("shared memory", "shm"),
        Required::Tcp => ("TCP", "tcp"),
    };
    let path = report.paths.iter().find(|path| path.path == name)?;
    path.problem.clone().map(|problem| (what, problem))
}
