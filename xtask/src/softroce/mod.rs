//! `cargo xtask softroce`: programs on real RDMA verbs, without RDMA hardware.
//!
//! Boots Linux in QEMU with the kernel's own soft-RoCE device (rxe) on the file system of this host, which guests see
//! read-only, and runs there what the table [`runs::RUNS`] names: scripts, perftest, test binaries of the workspace.
//! One guest, in which two processes reach each other through the device, or two guests with a network between them
//! that can lose packets and be cut. QEMU emulates the processor: it needs no rights and no KVM, and is ten times
//! slower or more, so figures are worth something only next to others of the same boot. With `--host` the runs for one
//! guest use this host's own RDMA device instead: that of `--device`, or the first by name.
//!
//! Everything lies in `softroce/` of the target directory. The kernel is downloaded there once; to have a newer one,
//! remove `softroce/kernel`.

mod console;
mod defects;
mod host;
mod judge;
mod kernel;
mod perftest;
mod play;
mod programs;
mod ratio;
mod report;
mod rig;
mod runs;
mod stage;
mod turns;

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::needs::{self, Need};
use crate::site::Site;
use crate::steps::Step;
pub(crate) use host::active;
use report::RigReport;
use rig::Rig;
use runs::{BENCH, Guests, Job, RUNS, Run, WIRE};
use std::fs;
use std::path::PathBuf;
pub(crate) use turns::{is_adapter, run as turns};

pub(crate) const COMMAND: Command = Command {
    name: "softroce",
    arguments: "[--list] [--bench] [--host [--device NAME]] [--kvm] [--last-failed] [--json FILE|-] [RUN...]",
    about: "runs on soft-RoCE in QEMU guests; --host: on this host's RDMA device",
    run,
};

/// The needs of runs in guests.
const NEEDS: &[Need] = &[Need::Qemu, Need::GuestTools, Need::Iproute2, Need::Perftest, Need::Cc];
/// The needs of runs on this host.
const HOST_NEEDS: &[Need] = &[Need::Iproute2, Need::Perftest, Need::Cc];

/// The steps: the runs for one guest, and those between two, of which one is short and has a step of its own.
pub(crate) fn steps() -> [Step; 3] {
    let step = |name, about, has: fn(&&Run) -> bool| {
        let runs = RUNS.iter().filter(has);
        let xtask = Cmd::new("cargo", &["xtask", "softroce"]);
        let cmd =
            runs.fold(xtask.clone(), |cmd, run| cmd.arg(run.name)).retry_with(xtask.arg("--last-failed"));
        Step { name, about, needs: NEEDS.to_vec(), feature: None, commands: vec![cmd] }
    };
    [
        step("softroce", "RDMA verbs on soft-RoCE, in one guest", |run| run.guests == Guests::One),
        step("softroce-wire", "what soft-RoCE sends from one guest to another", |run| run.name == WIRE),
        step("softroce-apart", "RDMA verbs on soft-RoCE, between two guests", |run| {
            run.guests == Guests::Two && run.name != WIRE
        }),
    ]
}

/// The test targets that run only on an RDMA device: plain `cargo test` and clippy leave them out.
pub(crate) fn test_targets() -> Vec<&'static str> {
    runs::targets()
}

/// The options of one call.
#[derive(Debug, Default, PartialEq, Eq)]
struct RigOptions {
    list: bool,
    bench: bool,
    host: bool,
    /// The device of this host, if it is not to be the first one.
    device: Option<String>,
    kvm: bool,
    /// Runs those that failed in the last call.
    last_failed: bool,
    json: Option<String>,
    names: Vec<String>,
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let mut options = parse(arguments)?;
    if options.last_failed {
        options.names = last_failed(site)?;
    }
    let runs = choose(&options)?;
    if options.list {
        for run in runs {
            let guests = if run.guests == Guests::One { "one guest" } else { "two guests" };
            println!("{}: {} ({guests})", run.name, run.about);
        }
        return Ok(());
    }
    needs::ensure(site, if options.host { HOST_NEEDS } else { NEEDS })?;
    let rig = Rig::new(site)?;
    // Until they have passed, all of them count as failed.
    record(site, runs.iter().map(|run| run.name))?;
    let report = if options.host {
        rig.on_host(&runs, options.device.as_deref())?
    } else {
        rig.in_guests(&runs, options.kvm)?
    };
    record(site, report.failed().into_iter())?;
    show(&report, options.json.as_deref())?;
    match report.failed().as_slice() {
        [] => Ok(()),
        failed => Err(Failure::Check { what: "cargo xtask softroce".into(), status: failed.join(", ") }),
    }
}

/// Returns the names of the runs that failed in the last call.
fn last_failed(site: &Site) -> Result<Vec<String>, Failure> {
    let text = fs::read_to_string(record_of(site)).unwrap_or_default();
    let names: Vec<String> = text.lines().map(String::from).collect();
    match names.is_empty() {
        true => Err(Failure::Usage("no run failed in the last call; leave out --last-failed".into())),
        false => Ok(names),
    }
}

/// Writes down the names of the runs that failed.
fn record(site: &Site, failed: impl Iterator<Item = &'static str>) -> Result<(), Failure> {
    let lines: String = failed.map(|name| format!("{name}\n")).collect();
    fs::write(record_of(site), lines).map_err(|error| Failure::Missing {
        what: format!("cannot write {}: {error}", record_of(site).display()),
        remedy: "make the target directory writable".into(),
    })
}

fn record_of(site: &Site) -> PathBuf {
    site.target.join("softroce/last-failed")
}

fn show(report: &RigReport, json: Option<&str>) -> Result<(), Failure> {
    if json != Some("-") {
        print!("{}", report.text());
    }
    match json {
        None => {}
        Some("-") => println!("{:#}", report.json()),
        Some(file) => {
            fs::write(file, format!("{:#}\n", report.json())).map_err(|error| Failure::Missing {
                what: format!("cannot write {file}: {error}"),
                remedy: "name a file in a folder where this user may write".into(),
            })?;
        }
    }
    Ok(())
}

fn parse(arguments: &[String]) -> Result<RigOptions, Failure> {
    let mut options = RigOptions::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => options.list = true,
            "--bench" => options.bench = true,
            "--host" => options.host = true,
            "--device" => {
                let text = "`--device` needs the name of an RDMA device";
                options.device = Some(arguments.next().cloned().ok_or(Failure::Usage(text.into()))?);
            }
            "--kvm" => options.kvm = true,
            "--last-failed" => options.last_failed = true,
            "--json" => {
                let text = "`--json` needs a file, or `-` for standard output";
                options.json = Some(arguments.next().cloned().ok_or(Failure::Usage(text.into()))?);
            }
            other if other.starts_with('-') => {
                let text = format!("`softroce` has no option `{other}`; it has {}", COMMAND.arguments);
                return Err(Failure::Usage(text));
            }
            name => options.names.push(name.into()),
        }
    }
    if options.bench && !options.names.is_empty() {
        let text = "`--bench` is a run by itself, and disturbed by others; leave out their names";
        return Err(Failure::Usage(text.into()));
    }
    if options.last_failed && (options.bench || !options.names.is_empty()) {
        let text = "`--last-failed` says itself what is run; leave out --bench and the names of runs";
        return Err(Failure::Usage(text.into()));
    }
    if options.device.is_some() && !options.host {
        return Err(Failure::Usage("`--device` is one of this host; add --host".into()));
    }
    if options.host && options.kvm {
        return Err(Failure::Usage("`--kvm` is for guests, and `--host` has none; leave one out".into()));
    }
    Ok(options)
}

/// Builds all that a run on this host and `--bench` take, so that they begin at once. Returns the command line.
pub(crate) fn build(site: &Site, name: &str) -> Result<PathBuf, Failure> {
    match RUNS.iter().find(|run| run.name == name).map(|run| run.job) {
        Some(Job::Tests { target, release, .. }) => {
            programs::test(site, &runs::selection(target, release))?;
        }
        Some(Job::UnitTests { .. }) => {
            programs::unit_tests(site)?;
        }
        Some(Job::Script | Job::Turns) | None => {}
    }
    Ok(programs::turns(site)?.1.executable)
}

/// The runs of these names, or all that there are for guests or for the host.
fn choose(options: &RigOptions) -> Result<Vec<&'static Run>, Failure> {
    if options.bench {
        return Ok(vec![&BENCH]);
    }
    for name in &options.names {
        match RUNS.iter().find(|run| run.name == *name) {
            None => {
                let known: Vec<&str> = RUNS.iter().map(|run| run.name).collect();
                let text = format!("there is no run `{name}`; there are: {}", known.join(", "));
                return Err(Failure::Usage(text));
            }
            Some(run) if options.host && run.guests != Guests::One => {
                return Err(Failure::Usage(format!("`{name}` takes two guests; leave out --host")));
            }
            Some(_) => {}
        }
    }
    let is_named = |run: &Run| options.names.is_empty() || options.names.iter().any(|name| name == run.name);
    let is_for = |run: &Run| !options.host || run.guests == Guests::One;
    Ok(RUNS.iter().filter(|run| is_named(run) && is_for(run)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(arguments: &[&str]) -> Result<Vec<&'static str>, u8> {
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string()).collect();
        let chosen = parse(&arguments).and_then(|options| choose(&options));
        chosen.map(|runs| runs.iter().map(|run| run.name).collect()).map_err(|failure| failure.exit_code())
    }

    #[test]
    fn runs_are_chosen_by_name_and_by_host() {
        assert_eq!(names(&[]).unwrap().len(), RUNS.len());
        assert_eq!(names(&["loss", "perftest", "--kvm"]), Ok(vec!["perftest", "loss"]));
        assert!(!names(&["--host"]).unwrap().contains(&"loss"));
        assert_eq!(names(&["--host", "perftest"]), Ok(vec!["perftest"]));
        for wrong in
            [&["no-such-run"][..], &["--host", "loss"], &["--host", "--kvm"], &["--json"], &["--fast"]]
        {
            assert_eq!(names(wrong), Err(2), "{wrong:?}");
        }
        assert_eq!(names(&["--host", "--device", "mlx5_1", "perftest"]), Ok(vec!["perftest"]));
        assert_eq!(names(&["--device", "mlx5_1"]), Err(2), "a guest has devices of its own");
        assert_eq!(names(&["--host", "--device"]), Err(2));
        assert_eq!(names(&["--last-failed", "loss"]), Err(2));
    }

    #[test]
    fn the_runs_that_failed_last_are_found_again() {
        let target = std::env::temp_dir().join(format!("xtask-last-failed-{}", std::process::id()));
        fs::create_dir_all(target.join("softroce")).unwrap();
        let site = Site { root: "/".into(), target: target.clone(), host: String::new(), nightly: false };
        assert_eq!(last_failed(&site).unwrap_err().exit_code(), 2);
        record(&site, ["loss", "perftest"].into_iter()).unwrap();
        assert_eq!(last_failed(&site).unwrap(), ["loss", "perftest"]);
        record(&site, std::iter::empty()).unwrap();
        assert!(last_failed(&site).is_err(), "what has passed is not run again");
        fs::remove_dir_all(target).unwrap();
    }
}
