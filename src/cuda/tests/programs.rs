//! The programs that test and measure on a GPU, over the scripted driver: they run, and nothing of a GPU is shown.

#[path = "../../../tests/gpu/claims.rs"]
mod claims;
#[path = "../../../tests/gpu/digits.rs"]
mod digits;
#[path = "../../../tests/gpu/dma_bufs.rs"]
mod dma_bufs;
#[path = "../../../tests/gpu/folds.rs"]
mod folds;
#[path = "../../../tests/gpu/groups.rs"]
mod groups;
#[path = "../../../tests/gpu/litmus.rs"]
mod litmus;
#[path = "../../../tests/gpu/measures.rs"]
mod measures;
#[path = "../../../tests/kernels/numbers.rs"]
mod numbers;
#[path = "../../../tests/gpu/peer.rs"]
mod peer;
#[path = "../../../benches/gpu/rows.rs"]
mod rows;
#[path = "../../../tests/gpu/streams.rs"]
mod streams;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::cuda::{Gpu, Scripted, Working};
use claims::Scene;
pub(crate) use rows::rdma_of;
use rows::{Rdma, Rows, Sizes};

claims::tests_of_claims!(scene);

fn gpu() -> (Gpu, Working) {
    let driver = Arc::new(Scripted::new().with_dma_bufs());
    let (gpu, ..) = driver.open_gpu();
    (gpu, driver.work_in_a_thread())
}

fn scene() -> Scene {
    let (gpu, working) = gpu();
    let reads = (300, Duration::ZERO, Duration::from_secs(60));
    Scene {
        gpu,
        peer: other_process,
        reads,
        folds: 2,
        clocks: 12,
        busy: (1003, 3),
        call: None,
        _working: Box::new(working),
    }
}

fn other_process() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "cuda::tests::programs::the_other_process";
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command
}

#[test]
#[ignore = "it is a process of the tests here"]
fn the_other_process() {
    let (gpu, _working) = gpu();
    assert!(peer::serve(&gpu).unwrap(), "no test has started it");
}

/// All rows as they are told.
pub(crate) fn rows_told(rdma: impl FnOnce(&Gpu) -> Rdma) -> Vec<serde_json::Value> {
    let (gpu, _working) = gpu();
    let versions = [("3000 bytes", 3000), ("5004 bytes", 5004)];
    let sizes = Sizes { pairs: 3, elements: 1003, versions, samples: 4, busy: 2 };
    let mut told = Vec::new();
    Rows { gpu: &gpu, other_process, sizes, rdma: rdma(&gpu) }.measure(|row| told.push(row));
    let names: Vec<_> = told.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, Rows::names(versions.map(|(name, _)| name)));
    told
}
