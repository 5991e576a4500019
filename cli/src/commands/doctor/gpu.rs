//! The GPUs of this host and their driver. Nothing is tried with them: this build cannot.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::limits::names;

/// The driver's library, and where systems keep it.
const LIBRARY: &str = "libcuda.so.1";
const FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
];

#[derive(Clone, Debug, Serialize)]
pub(super) struct Gpu {
    supported: bool,
    driver: Option<PathBuf>,
    models: Vec<String>,
    /// Whether the module is loaded by which RDMA devices reach memory of these GPUs without dma-bufs.
    nvidia_peermem: bool,
    error: &'static str,
    pub(super) help: &'static str,
}

pub(super) fn look() -> Gpu {
    let search = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&search).chain(FOLDERS.iter().map(PathBuf::from));
    let driver = folders.map(|folder| folder.join(LIBRARY)).find(|file| file.is_file());
    let gpus = Path::new("/proc/driver/nvidia/gpus");
    let model = |gpu: &String| {
        let text = fs::read_to_string(gpus.join(gpu).join("information")).ok()?;
        Some(text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim().to_owned())
    };
    let models = names(gpus).iter().filter_map(model).collect();
    let error = "this build of slackline has no GPU support: GPU memory was not tried";
    let nvidia_peermem = Path::new("/sys/module/nvidia_peermem").is_dir();
    Gpu { supported: false, driver, models, nvidia_peermem, error, help: "keep parameters in host memory" }
}

impl Gpu {
    pub(super) fn text(&self) -> String {
        let driver = match &self.driver {
            Some(file) => format!("there is a driver, {}", file.display()),
            None => format!("no {LIBRARY} found either"),
        };
        let models =
            if self.models.is_empty() { String::new() } else { format!(", for {}", self.models.join(", ")) };
        let is_loaded = if self.nvidia_peermem { "is" } else { "is not" };
        let keys = match self.models.is_empty() && !self.nvidia_peermem {
            true => String::new(),
            false => format!(
                "; RDMA devices take keys for its memory by dma-buf where `dma-buf` is ok above, else by \
                 nvidia-peermem, which {is_loaded} loaded"
            ),
        };
        format!("{}; {driver}{models}{keys}", self.error)
    }
}
