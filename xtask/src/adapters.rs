//! `cargo xtask adapters`: the suite, `slackline doctor` and the measurements on an RDMA adapter of this host, with a
//! record for `docs/adapters/`. A host without one has NOT RUN it, which is a failure.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Output;

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;
use crate::softroce;

pub(crate) const COMMAND: Command = Command {
    name: "adapters",
    arguments: "",
    about: "the suite, doctor and bench on this host's RDMA adapter; writes docs/adapters/NAME.md",
    run,
};

const DEVICES: &str = "/sys/class/infiniband";

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    if !arguments.is_empty() {
        return Err(Failure::Usage("`adapters` takes no arguments".into()));
    }
    let adapter = find(Path::new(DEVICES)).map_err(|reason| Failure::Missing {
        what: format!("NOT RUN: {reason}"),
        remedy: "run this on a host with an RDMA adapter whose link is up; cargo xtask softroce does without"
            .into(),
    })?;
    let host = ["xtask", "softroce", "--host"];
    let softroce = |more: &[&str]| Cmd::new("cargo", &[&host[..], more].concat());
    let slackline = ["run", "--release", "-q", "-p", "slackline-cli", "--bin", "slackline", "--"];
    let doctor = ["doctor", "--require", "rdma", "--device", adapter.as_str()];
    let steps = [
        ("doctor", Cmd::new("cargo", &[&slackline[..], &doctor].concat())),
        ("the contract, torn reads and what can go wrong", softroce(&["verbs"])),
        ("beside perftest", softroce(&["--bench"])),
    ];
    let (mut record, mut failed) = (heading(site, &adapter), Vec::new());
    for (name, step) in steps {
        println!("{name}");
        let output = step.outcome(site)?;
        record += &section(name, &output);
        if !output.status.success() {
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

/// The first device by name, which is the one that `cargo xtask softroce --host` takes; or the reason why that is no
/// adapter that could be tried.
fn find(devices: &Path) -> Result<String, String> {
    let Some(first) = softroce::active(devices).next() else {
        return Err("this host has no RDMA device with an active port".into());
    };
    let name = first.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // A device in software has no hardware behind it, and so no driver.
    match first.join("device/driver").exists() {
        true => Ok(name),
        false => Err(format!("the RDMA device {name} is one in software")),
    }
}

fn heading(site: &Site, adapter: &str) -> String {
    let said = |program: &str, arguments: &[&str]| {
        Cmd::new(program, arguments).output(site).unwrap_or_default().trim().to_owned()
    };
    format!(
        "# {adapter}\n\nLinux {}, {}, commit {}. Made by `cargo xtask adapters`.\n",
        said("uname", &["-r"]),
        said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        said("git", &["rev-parse", "--short", "HEAD"])
    )
}

/// A part of the record: the text that a step has printed, and how it ended.
fn section(name: &str, output: &Output) -> String {
    let result =
        if output.status.success() { "ok".to_owned() } else { format!("FAILED ({})", output.status) };
    let mut text = format!("\n## {name}: {result}\n\n");
    for stream in [&output.stdout, &output.stderr] {
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
        for (name, devices, found) in [
            ("none", vec![], Err("no RDMA device")),
            ("down", vec![("mlx5_0", "1: DOWN", true)], Err("no RDMA device")),
            ("soft", vec![("rxe0", "4: ACTIVE", false)], Err("rxe0 is one in software")),
            ("two", vec![("mlx5_0", "1: DOWN", true), ("mlx5_1", "4: ACTIVE", true)], Ok("mlx5_1")),
        ] {
            let root = host(name, &devices);
            match (find(&root), found) {
                (Ok(adapter), Ok(expected)) => assert_eq!(adapter, expected),
                (Err(reason), Err(expected)) => assert!(reason.contains(expected), "{reason}"),
                (found, _) => panic!("{name}: {found:?}"),
            }
            let _never_made = fs::remove_dir_all(root);
        }
    }

    #[test]
    fn a_record_says_what_failed() {
        let output = |code, text: &str| Output {
            status: std::process::ExitStatus::from_raw(code),
            stdout: text.into(),
            stderr: Vec::new(),
        };
        assert_eq!(section("doctor", &output(0, "fine\n")), "\n## doctor: ok\n\n```text\nfine\n```\n");
        assert!(section("doctor", &output(256, "")).contains("doctor: FAILED (exit status: 1)"));
    }
}
