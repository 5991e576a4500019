//! `slackline doctor` from outside: what works is said with figures, what does not with the reason and the remedy.

use std::process::{Command, Output};

use serde_json::Value;
use slackline::gpu::{Gpu, GpuError};
use slackline::{Verbs, VerbsOptions};

fn doctor(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.arg("doctor").args(arguments).env_remove("RUST_LOG").output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard error without the lines that say what is being tried: on a slow machine, there are some.
fn failure(stderr: &[u8]) -> String {
    let text = text(stderr);
    text.split_inclusive('\n').filter(|line| !line.starts_with("slackline doctor: ")).collect()
}

fn json(arguments: &[&str]) -> Value {
    let output = doctor(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    // All of standard output is one JSON value.
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout)))
}

/// Returns the reason that there is no RDMA on this machine, if there is none: what is wrong, and the remedy.
fn no_rdma() -> Option<(String, String)> {
    let error = Verbs::open(VerbsOptions::default()).err()?.to_string();
    let (error, help) = error.rsplit_once("; ").unwrap_or_else(|| panic!("no remedy: {error}"));
    Some((error.to_owned(), help.to_owned()))
}

fn has_gpu_driver() -> bool {
    !matches!(Gpu::count(), Err(GpuError::NoDriver { .. }))
}

fn path<'a>(report: &'a Value, name: &str) -> &'a Value {
    let paths = report["paths"].as_array().unwrap();
    paths.iter().find(|path| path["path"] == name).unwrap_or_else(|| panic!("no {name}: {report}"))
}

#[test]
fn shm_and_tcp_work_with_figures_and_the_reason_for_no_rdma_has_a_remedy() {
    let output = doctor(&[]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for name in ["shm", "tcp"] {
        let block = said.split("\n\n").find(|block| block.starts_with(name)).unwrap();
        assert!(block.lines().next().unwrap().ends_with("works"), "{block}");
        for check in ["host-memory", "connect", "write", "read", "fetch-add", "compare-swap", "visibility"] {
            let line = block.lines().find(|line| line.starts_with(check)).unwrap();
            assert!(line.contains(" ok ") && line.contains('s'), "{line}");
        }
    }
    for limit in ["locked-memory", "open-files", "huge-pages", "iommu", "acs", "gpu"] {
        assert!(said.lines().any(|line| line.starts_with(limit)), "{limit}: {said}");
    }
    if !has_gpu_driver() {
        let line = said.lines().find(|line| line.starts_with("gpu")).unwrap();
        assert!(line.contains("none: cannot open libcuda.so.1"), "{line}");
        assert!(said.contains("install the NVIDIA driver"), "{said}");
    }
    match no_rdma() {
        Some((error, help)) => {
            assert!(said.ends_with(&format!("no RDMA: {error}\nhelp: {help}\n")), "{said}");
            assert!(said.contains("verbs  FAILS"), "{said}");
        }
        None => assert!(said.contains("verbs over "), "{said}"),
    }
}

#[test]
fn what_is_required_decides_the_exit_code() {
    for works in ["shm", "tcp"] {
        assert!(doctor(&["--require", works]).status.success(), "{works}");
    }
    let Some((error, help)) = no_rdma() else { return };
    for name in ["rdma", "verbs"] {
        let output = doctor(&["--require", name]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(failure(&output.stderr), format!("error: RDMA does not work: {error}\nhelp: {help}\n"));
        assert!(text(&output.stdout).contains("tcp"), "all that was found is said all the same");
    }
}

#[test]
fn json_has_the_same_facts() {
    let report = json(&["--json"]);
    for name in ["shm", "tcp"] {
        let path = path(&report, name);
        assert_eq!(path["works"], true, "{path}");
        assert_eq!(path["error"], Value::Null);
        let checks = path["checks"].as_array().unwrap();
        assert_eq!(checks.len(), 8, "{path}");
        for check in checks.iter().filter(|check| check["check"] != "huge-pages") {
            assert_eq!(check["status"], "ok", "{check}");
            let figures = check["figures"].as_array().unwrap();
            assert!(figures.iter().all(|figure| figure["ns"].as_f64().unwrap() > 0.0), "{check}");
        }
        let huge = checks.iter().find(|check| check["check"] == "huge-pages").unwrap();
        assert!(
            huge["status"] == "ok" || huge["help"].as_str().is_some_and(|help| !help.is_empty()),
            "{huge}"
        );
    }
    let gpu = &report["gpu"];
    if !has_gpu_driver() {
        assert_eq!((&gpu["works"], &gpu["devices"]), (&false.into(), &Value::Array(Vec::new())));
        assert!(gpu["error"].as_str().is_some_and(|error| error.contains("libcuda.so.1")), "{gpu}");
    }
    let limits = report["limits"].as_array().unwrap();
    assert!(limits.iter().all(|limit| !limit["text"].as_str().unwrap().is_empty()));
    if let Some((error, help)) = no_rdma() {
        let rdma = &report["rdma"];
        assert_eq!(
            (&rdma["works"], &rdma["error"], &rdma["help"]),
            (&false.into(), &error.into(), &help.into())
        );
        assert_eq!(path(&report, "verbs")["works"], false);
    }
}

#[test]
fn json_goes_into_a_file_beside_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("doctor.json");
    let output = doctor(&["--require", "shm", "--json", file.to_str().unwrap()]);
    assert!(output.status.success() && text(&output.stdout).starts_with("slackline "));
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(path(&report, "shm")["works"], true);
}

#[test]
fn a_device_that_is_not_there_is_no_rdma() {
    let output = doctor(&["--device", "no-such-device", "--require", "rdma"]);
    assert_eq!(output.status.code(), Some(1));
    let said = failure(&output.stderr);
    assert!(said.starts_with("error: RDMA does not work: ") && said.contains("\nhelp: "), "{said}");
}

#[test]
fn a_device_that_is_named_has_to_work_whatever_else_is_required() {
    let output = doctor(&["--device", "no-such-device", "--require", "shm"]);
    assert_eq!(output.status.code(), Some(1));
    let said = failure(&output.stderr);
    assert!(said.starts_with("error: RDMA does not work: ") && said.contains("\nhelp: "), "{said}");
}

#[test]
fn wrong_calls_are_refused_before_anything_is_tried() {
    for arguments in [
        &["--require", "infiniband"][..],
        &["--require"],
        &["--device"],
        &["--frobnicate"],
        &["rxe0"],
        &["--json", "/no/such/folder/doctor.json"],
    ] {
        let output = doctor(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}
