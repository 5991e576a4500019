//! Whether RDMA devices can reach memory of a GPU, as far as the driver and the system tell: the kernel module,
//! dma-bufs, nvidia-peermem, BAR1, the order in which writes become visible, and the way to each adapter.

use std::fs;
use std::path::Path;

use serde_json::json;
use slackline::internals::cuda::{GpuProperties, GpuWindow, GpuWindowError};
use slackline::internals::transport::verbs::{PciWay, pci_way};

use super::limits::{Limit, names, read};
use crate::commands::bench::size;

/// The workers of the job whose size is told against the window.
const WORKERS: u64 = 8;
/// Payloads of a server that adapters reach, as defaults are: its frames, and the slots of each worker.
const FRAMES: u64 = 3;
const SLOTS: u64 = 2;

/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`: the library flushes by a call of the host alone.
const FLUSH_BY_HOST: i32 = 1;

/// All that is found of a GPU below `root`, which is `/` on a real host. `window` is what the driver's management
/// library says.
pub(super) fn look(
    properties: &GpuProperties,
    window: &Result<GpuWindow, GpuWindowError>,
    root: &Path,
) -> Vec<Limit> {
    let device = root.join("sys/bus/pci/devices").join(&properties.pci_address);
    let has_peermem = root.join("sys/module/nvidia_peermem").is_dir();
    let mut rows = vec![module(root), registration(properties, has_peermem)];
    rows.extend(bar1(&device, window));
    rows.push(visibility(properties));
    rows.extend(adapters(&device, &root.join("sys/class/infiniband")));
    rows
}

/// The flavour of the driver's kernel module: dma-bufs of GPU memory take the open one.
fn module(root: &Path) -> Limit {
    let text = fs::read_to_string(root.join("proc/driver/nvidia/version")).unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let is_open = line.contains("Open Kernel Module");
    let help = "dma-bufs take the open kernel modules (package nvidia-open) and Linux 5.12 or later";
    match line.is_empty() {
        true => Limit::new("gpu-module", json!({ "open": null }), "unknown: the driver does not tell", None),
        false => {
            let flavour = if is_open { "open kernel modules" } else { "proprietary kernel modules" };
            let help = (!is_open).then(|| help.to_owned());
            Limit::new("gpu-module", json!({ "open": is_open, "version": line }), flavour, help)
        }
    }
}

/// How an RDMA device would come to register the memory.
fn registration(properties: &GpuProperties, has_peermem: bool) -> Limit {
    let (dma_bufs, of_own) = (properties.has_dma_bufs, properties.has_gpu_direct_rdma_of_own);
    let way = match (dma_bufs, has_peermem) {
        (true, _) => "as dma-bufs",
        (false, true) => "by nvidia-peermem",
        (false, false) => "not at all: no dma-bufs, and nvidia-peermem is not loaded",
    };
    let text = match of_own {
        true => way.to_owned(),
        false => format!("{way}; not memory that processes share (CUDA's virtual memory management)"),
    };
    let help = (!dma_bufs && !has_peermem).then(|| {
        "install the open kernel modules and Linux 5.12 or later, or: modprobe nvidia-peermem".to_owned()
    });
    let values = json!({
        "dma_bufs": dma_bufs, "nvidia_peermem": has_peermem, "gpu_direct_rdma": properties.has_gpu_direct_rdma,
        "of_shared_memory": of_own,
    });
    Limit::new("gpu-registration", values, text, help)
}

/// The window through which adapters reach the memory: what all processes have registered at one time fits in it.
fn bar1(device: &Path, told: &Result<GpuWindow, GpuWindowError>) -> Option<Limit> {
    let (bytes, free) = match told {
        Ok(window) => (window.bytes, Some(window.free)),
        Err(_) => (length_of_window(device)?, None),
    };
    // A window of 256 MiB is what hosts without large addresses give.
    let help = match free {
        _ if bytes < 1 << 30 => Some(
            "a job registers its payloads through it: turn on \"Above 4G decoding\" and \"Resizable BAR\" in the \
             host's firmware",
        ),
        Some(free) if free < bytes / 2 => Some(
            "most of it is in use, by the driver and by what other processes have registered, as a job would register \
             its payloads: end those that are not needed",
        ),
        _ => None,
    };
    let text = match (free, told) {
        (Some(free), _) => {
            let most = free / (FRAMES + WORKERS * SLOTS);
            format!(
                "{} bytes, {} of them free: for {} bytes of parameters with {WORKERS} workers, of which a server \
                 registers {FRAMES} frames and {SLOTS} slots for each worker",
                size(bytes),
                size(free),
                size(if most >> 20 == 0 { most } else { most >> 20 << 20 })
            )
        }
        (None, Err(error)) => format!("{} bytes; how many are free is not known: {error}", size(bytes)),
        (None, Ok(_)) => format!("{} bytes", size(bytes)),
    };
    Some(Limit::new("gpu-bar1", json!({ "bytes": bytes, "free": free }), text, help.map(str::to_owned)))
}

/// The length of the window, as the system has mapped it.
fn length_of_window(device: &Path) -> Option<u64> {
    // Of the function's windows it is by far the largest; which number it has depends on the others.
    let resources = read(&device.join("resource"))?;
    let window = |line: &str| -> Option<u64> {
        let mut ends =
            line.split_whitespace().map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        let (begin, end) = (ends.next()??, ends.next()??);
        (end > begin).then(|| end - begin + 1)
    };
    resources.lines().take(6).filter_map(window).max()
}

/// Who sees an adapter's writes to the memory in the order in which they come.
fn visibility(properties: &GpuProperties) -> Limit {
    let is_flushed = properties.flush_options & FLUSH_BY_HOST != 0;
    let ordering = match properties.writes_ordering {
        ..100 if is_flushed => "are flushed before kernels read them",
        ..100 => "are not visible to kernels in order: payloads are staged through host memory",
        100..200 => "are seen in order by kernels of this GPU",
        _ => "are seen in order by kernels of all GPUs",
    };
    let help = (properties.writes_ordering < 100 && !is_flushed).then(|| {
        "use a GPU and a driver with GPU_DIRECT_RDMA_WRITES_ORDERING (compute capability 9.0 or later) or with \
         cuFlushGPUDirectRDMAWrites, for GPUDirect"
            .to_owned()
    });
    let flush = match properties.flush_options {
        0 => "none",
        1 => "by a call of the host",
        2 => "by a stream",
        _ => "by a call of the host or by a stream",
    };
    let values =
        json!({ "writes_ordering": properties.writes_ordering, "flush_options": properties.flush_options });
    Limit::new("gpu-visibility", values, format!("an adapter's writes {ordering}; flushes: {flush}"), help)
}

/// The way to each RDMA device, and which of them is nearest.
fn adapters(gpu: &Path, class: &Path) -> Option<Limit> {
    let mut ways: Vec<(PciWay, String)> = names(class)
        .into_iter()
        .filter_map(|name| Some((pci_way(gpu, &class.join(&name).join("device"))?, name)))
        .collect();
    ways.sort();
    let (nearest, name) = ways.first()?.clone();
    let text = ways.iter().map(|(way, name)| format!("{name} {way}")).collect::<Vec<_>>().join(", ");
    let help = (nearest > PciWay::Switch).then(|| {
        format!("no adapter is behind one switch with the GPU; {name} is nearest, and reads from the GPU may be slow")
    });
    let values = ways.iter().map(|(way, name)| (name.clone(), json!(way.to_string()))).collect();
    let values = json!({ "nearest": name, "ways": serde_json::Value::Object(values) });
    Some(Limit::new("gpu-adapters", values, text, help))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    fn properties() -> GpuProperties {
        GpuProperties {
            driver: (13, 0),
            capability: (9, 0),
            pci_address: "0000:18:00.0".into(),
            has_dma_bufs: true,
            has_gpu_direct_rdma: true,
            has_gpu_direct_rdma_of_own: true,
            flush_options: 1,
            writes_ordering: 100,
            has_stream_words: true,
            has_posix_handles: true,
        }
    }

    /// A host without the management library.
    fn untold() -> Result<GpuWindow, GpuWindowError> {
        Err(GpuWindowError::NoLibrary("no such file".into()))
    }

    #[test]
    fn what_is_free_of_the_window_is_told_against_what_a_server_registers() {
        let nowhere = Path::new("/nowhere");
        let of = |bytes, free| {
            let rows = look(&properties(), &Ok(GpuWindow { bytes, free }), nowhere);
            row(&rows, "gpu-bar1").clone()
        };
        let most = of(128 << 30, 127 << 30);
        assert_eq!(
            most.text,
            "128G bytes, 127G of them free: for 6844M bytes of parameters with 8 workers, of which a server registers \
             3 frames and 2 slots for each worker"
        );
        assert_eq!(most.help, None);
        assert!(of(128 << 30, 10 << 30).help.unwrap().contains("other processes"));
        assert!(of(256 << 20, 200 << 20).help.unwrap().contains("Resizable BAR"));
    }

    /// A host with a GPU, and with adapters behind its switch, below its host bridge, and elsewhere.
    fn host(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("slackline-gpudirect-{name}-{}", std::process::id()));
        let devices = root.join("sys/devices");
        for (folder, node) in [
            ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", "0"),
            ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", "0"),
            ("pci0000:15/0000:15:02.0/0000:20:00.0", "0"),
            ("pci0000:38/0000:38:01.0/0000:39:00.0", "0"),
            ("pci0000:97/0000:97:01.0/0000:98:00.0", "1"),
        ] {
            fs::create_dir_all(devices.join(folder)).unwrap();
            fs::write(devices.join(folder).join("numa_node"), node).unwrap();
        }
        let gpu = devices.join("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0");
        fs::create_dir_all(root.join("sys/bus/pci/devices")).unwrap();
        symlink(&gpu, root.join("sys/bus/pci/devices/0000:18:00.0")).unwrap();
        let resource = "0x00000000c8000000 0x00000000c8ffffff 0x0000000000040200\n\
                        0x0000220000000000 0x0000223fffffffff 0x000000000014220c\n";
        fs::write(gpu.join("resource"), resource).unwrap();
        root
    }

    fn adapter(root: &Path, name: &str, function: &str) {
        let folder = root.join("sys/class/infiniband").join(name);
        fs::create_dir_all(&folder).unwrap();
        symlink(root.join("sys/devices").join(function), folder.join("device")).unwrap();
    }

    fn row<'a>(rows: &'a [Limit], name: &str) -> &'a Limit {
        rows.iter().find(|row| row.limit == name).unwrap()
    }

    #[test]
    fn the_nearest_adapter_is_the_one_with_the_shortest_way() {
        let root = host("ways");
        adapter(&root, "mlx5_3", "pci0000:97/0000:97:01.0/0000:98:00.0");
        adapter(&root, "mlx5_2", "pci0000:38/0000:38:01.0/0000:39:00.0");
        let rows = look(&properties(), &untold(), &root);
        let found = row(&rows, "gpu-adapters");
        assert_eq!(found.text, "mlx5_2 between host bridges of one NUMA node, mlx5_3 between NUMA nodes");
        assert!(found.help.as_ref().unwrap().contains("mlx5_2 is nearest"));
        adapter(&root, "mlx5_1", "pci0000:15/0000:15:02.0/0000:20:00.0");
        adapter(&root, "mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0");
        let rows = look(&properties(), &untold(), &root);
        let found = row(&rows, "gpu-adapters");
        assert!(
            found.text.starts_with("mlx5_0 behind one switch, mlx5_1 through the host bridge, "),
            "{}",
            found.text
        );
        assert_eq!(found.help, None);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn writes_that_nothing_flushes_are_said_to_be_staged_with_a_remedy() {
        let of = |writes_ordering, flush_options| {
            let properties = GpuProperties { writes_ordering, flush_options, ..properties() };
            row(&look(&properties, &untold(), Path::new("/nowhere")), "gpu-visibility").clone()
        };
        // A stream's operation is no call that the library makes.
        for options in [0, 2] {
            let found = of(0, options);
            assert!(
                found.text.contains("not visible to kernels in order: payloads are staged"),
                "{}",
                found.text
            );
            assert!(found.help.unwrap().contains("cuFlushGPUDirectRDMAWrites"));
        }
        for (ordering, options, text) in
            [(0, 1, "are flushed"), (0, 3, "are flushed"), (100, 0, "in order by")]
        {
            let found = of(ordering, options);
            assert!(found.text.contains(text) && found.help.is_none(), "{}", found.text);
        }
    }

    #[test]
    fn what_stands_in_the_way_of_registration_is_told_with_its_remedy() {
        let root = host("ways-of-registration");
        let of =
            |properties: &GpuProperties| row(&look(properties, &untold(), &root), "gpu-registration").clone();
        assert_eq!(of(&properties()).help, None);
        let without =
            GpuProperties { has_dma_bufs: false, has_gpu_direct_rdma_of_own: false, ..properties() };
        assert!(of(&without).help.unwrap().ends_with("modprobe nvidia-peermem"));
        fs::create_dir_all(root.join("sys/module/nvidia_peermem")).unwrap();
        let found = of(&without);
        assert!(
            found.help.is_none() && found.text.starts_with("by nvidia-peermem; not memory"),
            "{}",
            found.text
        );
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_module_and_the_window_are_read_and_bad_ones_have_a_remedy() {
        let root = host("module");
        let of = |name: &str| row(&look(&properties(), &untold(), &root), name).clone();
        assert!(of("gpu-module").text.starts_with("unknown"));
        fs::create_dir_all(root.join("proc/driver/nvidia")).unwrap();
        let version = root.join("proc/driver/nvidia/version");
        fs::write(&version, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n").unwrap();
        assert_eq!((of("gpu-module").text.as_str(), of("gpu-module").help), ("open kernel modules", None));
        fs::write(&version, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03\n").unwrap();
        assert!(of("gpu-module").help.unwrap().contains("nvidia-open"));
        let window = of("gpu-bar1");
        assert!(
            window.text.starts_with("256G bytes; how many are free is not known: cannot open"),
            "{}",
            window.text
        );
        assert_eq!(window.help, None);
        let small = "0x0 0x0 0x0\n0x0 0x0 0x0\n0x00000000d0000000 0x00000000dfffffff 0x0\n";
        fs::write(root.join("sys/bus/pci/devices/0000:18:00.0/resource"), small).unwrap();
        assert!(of("gpu-bar1").help.unwrap().contains("Resizable BAR"));
        fs::write(root.join("sys/bus/pci/devices/0000:18:00.0/resource"), "nonsense\n\n").unwrap();
        assert!(!look(&properties(), &untold(), &root).iter().any(|row| row.limit == "gpu-bar1"));
        fs::remove_dir_all(root).unwrap();
    }
}
