//! The costs of publishing, pulling and folding on the first GPU of this machine, a line of JSON for each row:
//! `cargo xtask gpu` makes a record of them. The first line has the device and the names of the rows.

#[path = "../tests/gpu/peer.rs"]
mod peer;
#[path = "gpu/rows.rs"]
mod rows;

use std::process::Command;

use rows::{Rows, Sizes, rdma_of};
use serde_json::json;
use slackline::gpu::Gpu;
use slackline::{Verbs, VerbsOptions};

const SIZES: Sizes = Sizes {
    pairs: 9,
    elements: 250_000_000,
    versions: [("64 MiB", 64 << 20), ("1 GiB", 1 << 30)],
    samples: 1000,
    busy: 20,
};

fn main() -> peer::Outcome<()> {
    let gpu = Gpu::open(0)?;
    if peer::serve(&gpu)? {
        return Ok(());
    }
    let properties = gpu.properties()?;
    let pair = |(major, minor): (i32, i32)| format!("{major}.{minor}");
    println!(
        "{}",
        json!({
            "device": {
                "name": gpu.name(),
                "CUDA version of the driver": pair(properties.driver),
                "compute capability": pair(properties.capability),
                "PCI address": properties.pci_address,
                "DMA_BUF_SUPPORTED": properties.has_dma_bufs,
                "GPU_DIRECT_RDMA_SUPPORTED": properties.has_gpu_direct_rdma,
                "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": properties.has_gpu_direct_rdma_of_own,
                "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS": properties.flush_options,
                "GPU_DIRECT_RDMA_WRITES_ORDERING": properties.writes_ordering,
                "CAN_USE_64_BIT_STREAM_MEM_OPS": properties.has_stream_words,
                "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": properties.has_posix_handles,
            },
            "names": Rows::names(SIZES.versions.map(|(name, _)| name)),
        })
    );
    let options = VerbsOptions { near: Some(properties.pci_address), ..VerbsOptions::default() };
    let rdma = rdma_of(&gpu, Verbs::open(options));
    Rows { gpu: &gpu, other_process, sizes: SIZES, rdma }.measure(|row| println!("{row}"));
    Ok(())
}

fn other_process() -> Command {
    Command::new(std::env::current_exe().expect("this program"))
}
