//! `cargo xtask adapters`: the suite, `slackline doctor` and the measurements on an RDMA adapter of this host, with a
//! record for `docs/adapters/`. A host without one has NOT RUN it, which is a failure.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;
use crate::softroce;
use crate::steps::TESTED;

pub(crate) const COMMAND: Command = Command {
    name: "adapters",
    arguments: "[--device NAME]",
    about: "the suite, doctor and bench on this host's RDMA adapter; writes docs/adapters/NAME.md",
    run,
};

const DEVICES: &str = "/sys/class/infiniband";
/// The run of `cargo xtask softroce` that has the suite.
const SUITE: &str = "verbs";
/// The contract with all memory in dma-bufs: `tests/dmabuf.rs`.
const IN_DMA_BUFS: &str = "dmabuf";
/// Measurements besides those that perftest has, each by its name and options of `slackline bench`.
const MEASURED: [(&str, &[&str]); 4] = [
    ("publish without proofs", &["--op", "publish", "--order", "in-order"]),
    ("publish with a proof before each word", &["--op", "publish", "--order", "read"]),
    ("read in relaxed order", &["--op", "read", "--relaxed-ordering", "true"]),
    ("read without relaxed order", &["--op", "read", "--relaxed-ordering", "false"]),
];
/// The time of all parts together, once they are built.
const TIME: Duration = Duration::from_secs(15 * 60);

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let wanted = match arguments {
        [] => None,
        [option, name] if option == "--device" => Some(name.as_str()),
        _ => return Err(Failure::Usage(format!("`adapters` takes {} and nothing else", COMMAND.arguments))),
    };
    let not_run = |reason: String| Failure::Missing {
        what: format!("NOT RUN: {reason}"),
        remedy: "run this on a host with an RDMA adapter whose link is up; cargo xtask softroce does without"
            .into(),
    };
    check(Path::new(DEVICES), wanted).map_err(not_run)?;
    let slackline = softroce::build(site, SUITE)?.to_string_lossy().into_owned();
    let in_dma_bufs = |more: &str| {
        let packages = TESTED.join(" ");
        let script = format!(
            "ulimit -l unlimited 2>/dev/null; exec cargo test {packages} --test {IN_DMA_BUFS} {more}"
        );
        Cmd::new("sh", &["-c", &script])
    };
    in_dma_bufs("--no-run").run(site)?;
    let said = doctor(site, &slackline, wanted)?;
    let (adapter, why) = taken(&said).map_err(not_run)?;
    check(Path::new(DEVICES), Some(&adapter)).map_err(not_run)?;
    let adapter = adapter.as_str();
    let softroce = |more| Cmd::new("cargo", &["xtask", "softroce", "--host", "--device", adapter]).arg(more);
    let bench = ["bench", "--transport", "verbs", "--bytes", "64K,1M", "--device", adapter];
    let measured = MEASURED.map(|(name, options)| {
        (name, options.iter().fold(Cmd::new(&slackline, &bench), |cmd, one| cmd.arg(one)))
    });
    let memory = in_dma_bufs("-- --test-threads 1").env("SLACKLINE_RIG_DEVICE", adapter);
    let suite = [
        ("doctor", Ok(Cmd::new(&slackline, &["doctor", "--require", "rdma", "--device", adapter]))),
        ("the contract, torn reads and what can go wrong", Ok(softroce(SUITE))),
        ("the contract with all memory in dma-bufs", dma_bufs(&said, adapter).map(|()| memory)),
    ];
    let measured = measured.into_iter().chain([("beside perftest", softroce("--bench"))]);
    let steps = suite.into_iter().chain(measured.map(|(name, step)| (name, Ok(step))));
    let deadline = Instant::now() + TIME;
    let (mut record, mut failed) = (heading(site, adapter, &why), Vec::new());
    for (name, step) in steps {
        println!("{name}");
        let part = match step {
            Ok(step) => Part::run(site, &step, deadline.saturating_duration_since(Instant::now()))?,
            Err(lacks) => Part::Without(lacks),
        };
        record += &section(name, &part);
        if !part.is_good() {
            failed.push(name);
        }
    }
    let folder = site.root.join("docs/adapters");
    let file = folder.join(format!("{adapter}.md"));
    fs::create_dir_all(&folder).and_then(|()| fs::write(&file, record)).map_err(|error| {
        Failure::Missing {
            what: format!("cannot write {}: {error}", file.display()),
            remedy: "make the folder docs writable".into(),
        }
    })?;
    println!("the record is {}", file.display());
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(Failure::Check { what: "cargo xtask adapters".into(), status: failed.join(", ") }),
    }
}

/// Whether the device of this name, or any, is an adapter that could be tried; if not, the reason.
fn check(devices: &Path, wanted: Option<&str>) -> Result<(), String> {
    let is_wanted = |device: &Path| wanted.is_none_or(|name| device.ends_with(name));
    let active: Vec<_> = softroce::active(devices).filter(|device| is_wanted(device)).collect();
    let Some(first) = active.first() else {
        let name = wanted.map_or(String::new(), |name| format!(" {name}"));
        return Err(format!("this host has no RDMA device{name} with an active port"));
    };
    match active.iter().any(|device| softroce::is_adapter(device)) {
        true => Ok(()),
        false => {
            let name = first.file_name().unwrap_or_default().to_string_lossy();
            Err(format!("the RDMA device {name} is one in software; --device names another"))
        }
    }
}

/// The device that the library takes and why, from the JSON of `slackline doctor`; or the reason why there is none.
fn taken(doctor: &[u8]) -> Result<(String, String), String> {
    let report: Value = serde_json::from_slice(doctor).unwrap_or_default();
    let rdma = &report["rdma"];
    let text = |name: &str| rdma[name].as_str().map(String::from);
    let why = text("reason").or_else(|| text("error")).unwrap_or_else(|| "it does not say why".into());
    match text("device") {
        Some(device) => Ok((device, why)),
        None => Err(format!("slackline doctor finds no RDMA device: {why}")),
    }
}

/// The JSON of `slackline doctor` about the device of this name, or about all.
fn doctor(site: &Site, slackline: &str, wanted: Option<&str>) -> Result<Vec<u8>, Failure> {
    let ask = Cmd::new(slackline, &["doctor", "--json"]);
    Ok(wanted.iter().fold(ask, |ask, name| ask.arg("--device").arg(name)).outcome(site)?.stdout)
}

/// Whether this device takes dma-bufs of this host, from that JSON; if not, the reason.
fn dma_bufs(doctor: &[u8], adapter: &str) -> Result<(), String> {
    let report: Value = serde_json::from_slice(doctor).unwrap_or_default();
    let of = |value: &Value, list: &str| value[list].as_array().cloned().unwrap_or_default();
    let path = of(&report, "paths").into_iter().find(|path| path["device"] == adapter).unwrap_or_default();
    let check = of(&path, "checks").into_iter().find(|check| check["check"] == "dma-buf").unwrap_or_default();
    match check["status"].as_str() {
        Some("ok") => Ok(()),
        _ => Err(check["error"].as_str().unwrap_or("slackline doctor has not tried a dma-buf").into()),
    }
}

/// Returns why the contract is not run in dma-bufs on this host, if it is not: it takes an adapter that imports them.
pub(crate) fn without_dma_bufs(site: &Site) -> Option<String> {
    let adapter = || -> Result<(), String> {
        check(Path::new(DEVICES), None)?;
        let slackline = softroce::build(site, SUITE).map_err(|failure| failure.to_string())?;
        let said = doctor(site, &slackline.to_string_lossy(), None).map_err(|failure| failure.to_string())?;
        dma_bufs(&said, &taken(&said)?.0)
    };
    adapter().err()
}

/// What came of a step.
enum Part {
    Ended(Output),
    /// With the text that it had printed when the time was up.
    Late(Output),
    /// There was no time left to begin.
    NotBegun,
    /// The adapter or this host lacks what it takes.
    Without(String),
}

impl Part {
    /// Runs a step in the time that is left.
    fn run(site: &Site, step: &Cmd, left: Duration) -> Result<Part, Failure> {
        if left.is_zero() {
            return Ok(Part::NotBegun);
        }
        let (output, is_late) = step.outcome_for(site, left)?;
        Ok(if is_late { Part::Late(output) } else { Part::Ended(output) })
    }

    fn is_good(&self) -> bool {
        matches!(self, Part::Ended(output) if output.status.success())
    }
}

fn heading(site: &Site, adapter: &str, why: &str) -> String {
    let said = |program: &str, arguments: &[&str]| {
        Cmd::new(program, arguments).output(site).unwrap_or_default().trim().to_owned()
    };
    format!(
        "# {adapter}\n\nLinux {}, {}, commit {}. Made by `cargo xtask adapters`, with this device in all parts \
         ({why}).\n",
        said("uname", &["-r"]),
        said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        said("git", &["rev-parse", "--short", "HEAD"])
    )
}

/// A part of the record: the text that a step has printed, and how it ended.
fn section(name: &str, part: &Part) -> String {
    let minutes = TIME.as_secs() / 60;
    let (result, output) = match part {
        Part::Ended(output) if output.status.success() => ("ok".to_owned(), Some(output)),
        Part::Ended(output) => (format!("FAILED ({})", output.status), Some(output)),
        Part::Late(output) => (format!("NOT RUN to its end: {minutes} minutes were over"), Some(output)),
        Part::NotBegun => (format!("NOT RUN: {minutes} minutes were over"), None),
        Part::Without(lacks) => (format!("NOT RUN: {lacks}"), None),
    };
    let mut text = format!("\n## {name}: {result}\n\n");
    for stream in output.iter().flat_map(|output| [&output.stdout, &output.stderr]) {
        let said = String::from_utf8_lossy(stream);
        if !said.trim().is_empty() {
            let _ = write!(text, "```text\n{}\n```\n", said.trim_end());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn host(name: &str, devices: &[(&str, &str, bool)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("slackline-adapters-{name}-{}", std::process::id()));
        for (device, state, has_driver) in devices {
            fs::create_dir_all(root.join(device).join("ports/1")).unwrap();
            fs::write(root.join(device).join("ports/1/state"), state).unwrap();
            if *has_driver {
                fs::create_dir_all(root.join(device).join("device/driver")).unwrap();
            }
        }
        root
    }

    #[test]
    fn an_adapter_is_a_device_with_a_driver_and_an_active_port() {
        let both = || vec![("mlx5_0", "4: ACTIVE", true), ("rxe0", "4: ACTIVE", false)];
        for (name, devices, wanted, found) in [
            ("none", vec![], None, Err("no RDMA device with")),
            ("down", vec![("mlx5_0", "1: DOWN", true)], None, Err("no RDMA device with")),
            ("soft", vec![("rxe0", "4: ACTIVE", false)], None, Err("rxe0 is one in software")),
            ("two", both(), None, Ok(())),
            ("named", both(), Some("mlx5_0"), Ok(())),
            ("wrong", both(), Some("mlx5_1"), Err("no RDMA device mlx5_1 with")),
            ("other", both(), Some("rxe0"), Err("rxe0 is one in software")),
        ] {
            let root = host(name, &devices);
            match (check(&root, wanted), found) {
                (Ok(()), Ok(())) => {}
                (Err(reason), Err(expected)) => assert!(reason.contains(expected), "{reason}"),
                (found, _) => panic!("{name}: {found:?}"),
            }
            let _never_made = fs::remove_dir_all(root);
        }
    }

    #[test]
    fn the_device_of_all_parts_is_the_one_that_the_library_takes() {
        let said = r#"{"rdma": {"works": true, "device": "mlx5_1", "reason": "best of 2"}}"#;
        assert_eq!(taken(said.as_bytes()), Ok(("mlx5_1".into(), "best of 2".into())));
        let none = r#"{"rdma": {"works": false, "device": null, "error": "no library"}}"#;
        assert!(taken(none.as_bytes()).unwrap_err().ends_with("finds no RDMA device: no library"));
        assert!(taken(b"").is_err());
    }

    #[test]
    fn a_device_without_dma_bufs_has_not_run_what_takes_them() {
        let said = |check: &str| {
            let checks = format!(r#"[{{"check": "write", "status": "ok"}}{check}]"#);
            format!(r#"{{"paths": [{{"device": "rxe0"}}, {{"device": "mlx5_0", "checks": {checks}}}]}}"#)
        };
        let taken = said(r#", {"check": "dma-buf", "status": "ok"}"#);
        assert_eq!(dma_bufs(taken.as_bytes(), "mlx5_0"), Ok(()));
        let refused = said(r#", {"check": "dma-buf", "status": "unavailable", "error": "no /dev/udmabuf"}"#);
        let lacks = dma_bufs(refused.as_bytes(), "mlx5_0").unwrap_err();
        assert_eq!(lacks, "no /dev/udmabuf");
        let part = Part::Without(lacks);
        assert!(!part.is_good());
        assert_eq!(section("in dma-bufs", &part), "\n## in dma-bufs: NOT RUN: no /dev/udmabuf\n\n");
        for untried in [said(""), String::new()] {
            assert!(dma_bufs(untried.as_bytes(), "mlx5_0").unwrap_err().contains("has not tried"));
        }
        assert!(dma_bufs(taken.as_bytes(), "rxe0").is_err());
    }

    #[test]
    fn parts_share_one_deadline_and_those_left_are_not_run() {
        let site = Site { root: "/".into(), target: "/".into(), host: String::new(), nightly: false };
        let late = Cmd::new("sh", &["-c", "echo begun; sleep 1000"]);
        let late = Part::run(&site, &late, Duration::from_secs(5)).unwrap();
        let rest = Part::run(&site, &Cmd::new("true", &[]), Duration::ZERO).unwrap();
        assert!(!late.is_good() && !rest.is_good());
        let said = section("suite", &late);
        assert!(said.contains("suite: NOT RUN to its end: 15 minutes") && said.contains("begun"), "{said}");
        assert_eq!(section("bench", &rest), "\n## bench: NOT RUN: 15 minutes were over\n\n");
        let good = Part::run(&site, &Cmd::new("true", &[]), Duration::from_secs(60)).unwrap();
        assert!(good.is_good());
    }

    #[test]
    fn a_record_says_what_failed() {
        let ended = |code, text: &str| {
            Part::Ended(Output {
                status: std::process::ExitStatus::from_raw(code),
                stdout: text.into(),
                stderr: Vec::new(),
            })
        };
        assert_eq!(section("doctor", &ended(0, "fine\n")), "\n## doctor: ok\n\n```text\nfine\n```\n");
        assert!(section("doctor", &ended(256, "")).contains("doctor: FAILED (exit status: 1)"));
    }
}
