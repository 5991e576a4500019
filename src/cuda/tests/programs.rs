//! The programs that test and measure on a GPU, over the scripted driver: they run, and nothing of a GPU is shown.

#[path = "../../../tests/gpu/claims.rs"]
mod claims;
#[path = "../../../tests/gpu/digits.rs"]
mod digits;
#[path = "../../../tests/gpu/dma_bufs.rs"]
mod dma_bufs;
#[path = "../../../tests/gpu/folds.rs"]
mod folds;
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
use rows::{Rows, Sizes};

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

#[test]
fn every_row_is_measured_or_says_that_it_is_not_there() {
    let (gpu, _working) = gpu();
    let versions = [("3000 bytes", 3000), ("5004 bytes", 5004)];
    let sizes = Sizes { pairs: 3, elements: 1003, versions, samples: 4, busy: 2 };
    let mut told = Vec::new();
    Rows { gpu: &gpu, other_process, sizes }.measure(|row| told.push(row));
    let names: Vec<_> = told.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, Rows::names(versions.map(|(name, _)| name)));
    for row in &told {
        let is_positive =
            |pair: &serde_json::Value| pair[0].as_f64() > Some(0.0) && pair[1].as_f64() > Some(0.0);
        match row["missing"].as_str() {
            Some(reason) => assert!(reason.contains("no such row yet"), "{reason}"),
            None => {
                let pairs = row["pairs"].as_array().unwrap_or_else(|| panic!("{row}"));
                assert!(pairs.len() == 3 && pairs.iter().all(is_positive), "{row}");
            }
        }
    }
}
