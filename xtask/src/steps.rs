//! The table of what CI checks. The order here is the order in which the steps run.

use crate::aarch64;
use crate::adapters;
use crate::asan;
use crate::bindgen;
use crate::book;
use crate::cmd::Cmd;
use crate::deny;
use crate::fuzz;
use crate::gpu;
use crate::install;
use crate::loom;
use crate::mutants;
use crate::needs::{self, Need};
use crate::ptx;
use crate::public_api;
use crate::site::Site;
use crate::softroce;
use crate::wheel;
use std::path::Path;

/// One step of `cargo xtask test`.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The programs and libraries that must be installed before it can run.
    pub(crate) needs: Vec<Need>,
    /// A feature that some machines lack, and that cannot be installed on each of them.
    pub(crate) feature: Option<Feature>,
    /// Run one after the other; the first that fails fails the step.
    pub(crate) commands: Vec<Cmd>,
}

/// Something that a machine has or has not: a step that takes it is not run where it is missing, and says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// An RDMA adapter whose driver imports dma-bufs, and a kernel that makes some of host memory.
    DmaBufs,
    /// An NVIDIA GPU.
    Gpu,
    /// A network that delays and loses packets, made by the kernel (`sch_netem`).
    Netem,
    /// A rustdoc that writes the JSON out of which the public items are listed.
    RustdocJson,
    /// Programs that can be installed on some machines and not on others: installed where they can be.
    Installed(Need),
}

impl Feature {
    /// Returns why the feature is not there, if it is not.
    pub(crate) fn missing(self, site: &Site) -> Option<String> {
        match self {
            Feature::DmaBufs => adapters::without_dma_bufs(site),
            Feature::Gpu => gpu::missing(Path::new("/dev")),
            Feature::Netem => {
                // In a network of its own, and where that takes it as root of its own.
                let script = "PATH=$PATH:/usr/sbin:/sbin; id=; [ $(id -u) = 0 ] || id='--user --map-root-user'; \
                              unshare $id --net tc qdisc add dev lo root netem delay 1ms";
                let found = Cmd::new("sh", &["-c", script]).output(site);
                found
                    .is_none()
                    .then(|| "this kernel has no netem (sch_netem), which delays and loses packets".into())
            }
            Feature::RustdocJson => public_api::missing(site),
            Feature::Installed(need) => needs::ensure(site, &[need]).err().map(|failure| failure.to_string()),
        }
    }
}

/// The packages of which tests are built: all but the Python module, whose tests run on its wheel. All steps that build
/// tests into cargo's own folder name these same ones, so that each finds what others have built: for other packages
/// cargo builds each dependency, and the library, once more, since their features differ.
pub(crate) const TESTED: [&str; 3] = ["--workspace", "--exclude", "slackline-python"];

/// Builds the command line in release, out of the library that the slow suites have.
pub(crate) fn build_command_line() -> Cmd {
    Cmd::new("cargo", &[&["build", "--release"], &TESTED[..], &["--bin", "slackline"]].concat())
}

/// An integration test that is too slow for the test profile, and so runs by name, in release.
struct Slow {
    /// Name of the step, and of the test target: `tests/<name>.rs` of whichever packages have it.
    name: &'static str,
    about: &'static str,
    needs: &'static [Need],
    feature: Option<Feature>,
    /// How many of its tests run at a time, where that is not the number of processors: more of those that mostly
    /// sleep, and one of those that may replace their process.
    at_once: Option<&'static str>,
}

impl Slow {
    const fn new(name: &'static str, about: &'static str) -> Slow {
        Slow { name, about, needs: &[], feature: None, at_once: None }
    }

    fn command(&self) -> Cmd {
        let selection = [&TESTED[..], &["--test", self.name]].concat();
        let command = Cmd::new("cargo", &[&["test", "--release"], &selection[..]].concat()).suite();
        let command = match self.at_once {
            Some(tests) => command.arg("--").arg("--test-threads").arg(tests),
            None => command,
        };
        command.retry()
    }
}

/// Tests that run at a time where many of them sleep most of the time: twice as many as CI has processors.
pub(crate) fn many_at_once(tests: Cmd) -> Cmd {
    tests.env("RUST_TEST_THREADS", "4")
}

/// The slow suites. Nothing is ignored: what plain `cargo test` leaves out stands here.
///
/// To add one, write `tests/litmus.rs` of a package, keep it out of plain `cargo test` in that package's
/// Cargo.toml, and list it here:
///
/// ```text
/// [[test]]
/// name = "litmus"
/// test = false
///
/// Slow::new("litmus", "the memory protocol under every order it may meet"),
/// ```
///
/// A suite that is listed but does not exist, or has no test in it, fails its step.
const SLOW: &[Slow] = &[
    Slow::new("twins", "the simulator agrees with runs on real processes within 5 %"),
    Slow::new("litmus", "no torn read is accepted, between two processes"),
    Slow::new("kill", "workers and servers killed in the middle of training leave nothing behind"),
    Slow {
        at_once: Some("4"),
        ..Slow::new(
            "pauses",
            "processes of a run that are paused for longer than the lease harm none of the others",
        )
    },
    Slow::new("starve", "a run on a machine that is far too busy for it loses no process"),
    Slow {
        at_once: Some("4"),
        ..Slow::new("restart", "workers and servers killed in the middle of training come back and go on")
    },
    Slow {
        needs: &[Need::Cxx],
        ..Slow::new(
            "kernels",
            "the kernels of GPUs, compiled for the CPU, give the bits of the library's own",
        )
    },
    Slow {
        needs: &[Need::FashionMnist, Need::Mnist5k],
        ..Slow::new("data", "the models learn Fashion-MNIST and MNIST from the files that packages have")
    },
    Slow {
        needs: &[Need::Iproute2],
        at_once: Some("1"), // one of them may replace the process by one with other namespaces
        ..Slow::new("tree", "readers behind relays read whole versions though anybody dies or is cut off")
    },
    Slow {
        needs: &[Need::Iproute2, Need::Nftables],
        at_once: Some("4"),
        ..Slow::new(
            "hosts",
            "the contract, the litmus and the main job over TCP between hosts that are network namespaces",
        )
    },
    Slow {
        feature: Some(Feature::DmaBufs),
        at_once: Some("1"),
        ..Slow::new(
            "dmabuf",
            "the contract with all memory in dma-bufs, as a GPU's comes to an RDMA adapter, without a GPU",
        )
    },
    Slow {
        needs: &[Need::Iproute2],
        feature: Some(Feature::Netem),
        ..Slow::new("netem", "the main job over a network that delays and loses packets")
    },
    Slow::new(
        "faults",
        "networks that delay, cut, stall and damage, and unauthenticated peers, harm only their victim",
    ),
    Slow {
        needs: &[Need::FashionMnist],
        ..Slow::new("reproduce", "a part of each reproduction is computed again and agrees with its record")
    },
    Slow::new("schemes", "every scheme trains the digits with real workers"),
    Slow::new(
        "seeds",
        "the node protocol over a hostile network keeps its promises in ten thousand simulated runs",
    ),
    Slow::new("seeds_by_scheme", "the same under each scheme, each with two thousand runs of its own"),
    Slow::new("unauthenticated_peers", "unauthenticated peers at the rendezvous of a job do not disturb it"),
];

/// Steps that take long and seldom find something that the others do not: `cargo xtask test` leaves them out and says
/// so, `cargo xtask test --all` runs them, and so does a call that names them.
pub(crate) const LONG: &[&str] = &["softroce-apart", "aarch64", "asan"];

/// The steps that come first, in this order: those of [`BESIDE`] begin once none of [`ALONE`] is left, and then have
/// the time in which `clippy` leaves a processor idle and the tests wait.
const FIRST: &[&str] = &["fmt", "twins", "clippy"];

/// The steps that come last, before those of [`BESIDE`] and [`LONG`]: a run for which a machine is too slow leaves out
/// those at the end. None of them is long, so that one that begins just before the time is over ends soon after it. The
/// commit decides with which of them a run begins, so that a slow machine leaves out other ones at other commits.
const LAST: &[&str] =
    &["faults", "schemes", "unauthenticated_peers", "unit-mutants", "softroce-wire", "bindings"];

/// Steps that only compute, and build where the others do not meanwhile: a run of all steps has them beside the others,
/// one after the other in this order and at the lowest priority, since most of the others wait for much of their time.
///
/// The first builds what the last three of them run.
pub(crate) const BESIDE: &[&str] =
    &["slow-suites", "public-api", "fuzz", "loom", "mutants", "reproduce", "seeds", "seeds_by_scheme"];

/// Steps beside which nothing else runs: they hold times against each other.
pub(crate) const ALONE: &[&str] = &["twins"];

/// Features of the library that a user may switch on alone; `oracle` is for one test and links other libraries.
const FEATURES: &[&str] = &["cuda", "verbs", "tcp", "checkpoint", "sim"];

/// `--all-targets` leaves out the tests that plain `cargo test` leaves out: they are named, all in one call. Then the
/// library as others build it: the rest of the workspace switches on features that it must also compile without.
fn clippy() -> Vec<Cmd> {
    let deny = |cmd: Cmd| cmd.arg("--").arg("-D").arg("warnings");
    let all = Cmd::new("cargo", &["clippy", "--workspace", "--all-targets"]);
    let named = SLOW.iter().map(|slow| slow.name).chain(softroce::test_targets()).chain([gpu::TARGET]);
    let workspace = Cmd::new("cargo", &["clippy", "--workspace"]);
    let named = named.fold(workspace, |cmd, target| cmd.arg("--test").arg(target));
    let library = Cmd::new("cargo", &["clippy", "--package", "slackline", "--no-default-features"]);
    let features = FEATURES.iter().map(|feature| library.clone().arg("--features").arg(feature));
    [all, named, library.clone()].into_iter().chain(features).map(deny).collect()
}

/// Builds the slow suites that run on each machine, all in one call.
fn build_slow_suites() -> Cmd {
    let build = Cmd::new("cargo", &[&["test", "--release", "--no-run"], &TESTED[..]].concat());
    let everywhere = SLOW.iter().filter(|slow| slow.feature.is_none());
    everywhere.fold(build, |cmd, slow| cmd.arg("--test").arg(slow.name))
}

/// The steps of [`LAST`] in the order in which they run: it begins with another one at another commit.
fn last(site: &Site) -> Vec<&'static str> {
    let commit = Cmd::new("git", &["rev-parse", "HEAD"]).output(site).unwrap_or_default();
    let number = commit.get(..8).and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(0);
    let mut steps = LAST.to_vec();
    steps.rotate_left(number % LAST.len());
    steps
}

/// Every step, for this machine.
pub(crate) fn all(site: &Site) -> Vec<Step> {
    let mut steps = vec![
        Step {
            name: "fmt",
            about: "the code is formatted",
            needs: vec![Need::Component("rustfmt")],
            feature: None,
            commands: vec![Cmd::new("cargo", &["fmt", "--all", "--", "--check"])],
        },
        Step {
            name: "clippy",
            about: "no lint warns",
            needs: vec![Need::Component("clippy")],
            feature: None,
            commands: clippy(),
        },
        Step {
            name: "slow-suites",
            about: "the slow suites build",
            needs: Vec::new(),
            feature: None,
            commands: vec![build_slow_suites()],
        },
        Step {
            name: "test",
            about: "unit tests, integration tests, doctests",
            needs: vec![Need::Cc],
            feature: None,
            // A failure of the first test program does not hide those of the others.
            commands: vec![
                many_at_once(Cmd::new("cargo", &[&["test", "--no-fail-fast"], &TESTED[..]].concat())).retry(),
            ],
        },
    ];
    steps.push(Step {
        name: "doc",
        about: "the documentation builds, and no link in it is dead",
        needs: Vec::new(),
        feature: None,
        commands: vec![
            Cmd::new("cargo", &["doc", "--workspace", "--no-deps"]).flags("RUSTDOCFLAGS", "-D warnings"),
        ],
    });
    steps.push(book::step());
    steps.push(deny::step());
    steps.push(public_api::step());
    steps.push(bindgen::step());
    steps.push(ptx::step());
    steps.extend(gpu::steps());
    steps.push(install::step());
    steps.push(wheel::step());
    // The longest of the slow ones comes first.
    steps.extend(softroce::steps());
    steps.extend(SLOW.iter().map(|slow| Step {
        name: slow.name,
        about: slow.about,
        needs: slow.needs.to_vec(),
        feature: slow.feature,
        commands: vec![slow.command()],
    }));
    steps.push(loom::step());
    steps.push(fuzz::step(site));
    steps.extend(mutants::steps());
    steps.push(aarch64::step(site));
    steps.push(asan::step(site));
    let index = |names: &[&str], step: &Step| names.iter().position(|name| *name == step.name);
    let last = [&last(site)[..], BESIDE, LONG].concat();
    // The sort is stable: the others keep the order in which they stand here.
    steps.sort_by_key(|step| match (index(FIRST, step), index(&last, step)) {
        (Some(index), _) => (0, index),
        (None, None) => (1, 0),
        (None, Some(index)) => (2, index),
    });
    steps
}

#[cfg(test)]
mod tests {
    use super::{Cmd, FEATURES};
    use crate::site::Site;

    #[test]
    fn every_long_step_is_a_step() {
        let site = Site { root: "/".into(), target: "/target".into(), host: String::new(), nightly: false };
        let names: Vec<&str> = super::all(&site).iter().map(|step| step.name).collect();
        let listed = [super::ALONE, super::FIRST, super::LAST, super::BESIDE, super::LONG].concat();
        assert!(listed.iter().all(|name| names.contains(name)), "{names:?}");
        assert!(names.starts_with(super::FIRST) && names.ends_with(&[super::BESIDE, super::LONG].concat()));
    }

    #[test]
    fn the_last_steps_begin_with_another_one_at_another_commit() {
        let root = std::env::temp_dir().join(format!("xtask-last-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let site = Site { root: root.clone(), target: root.clone(), host: String::new(), nightly: false };
        let git = |arguments: &[&str]| {
            let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
            assert!(Cmd::new("git", &[&identity, arguments].concat()).output(&site).is_some());
        };
        assert_eq!(super::last(&site), super::LAST, "without a commit");
        git(&["init", "--quiet"]);
        let mut begun = std::collections::BTreeSet::new();
        for commit in 0..20 {
            git(&["commit", "--quiet", "--allow-empty", "--message", &commit.to_string()]);
            let mut steps = super::last(&site);
            assert_eq!(steps, super::last(&site));
            begun.insert(steps[0]);
            steps.sort();
            let mut all = super::LAST.to_vec();
            all.sort();
            assert_eq!(steps, all);
        }
        assert!(begun.len() > 1, "{begun:?}");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn every_feature_of_the_library_is_checked_alone() {
        let manifest = include_str!("../../Cargo.toml");
        let lines = manifest.lines().skip_while(|line| *line != "[features]").skip(1);
        let lines = lines.take_while(|line| !line.starts_with('['));
        let names = lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
        let ours: Vec<&str> = names.filter(|name| !["default", "oracle"].contains(name)).collect();
        assert_eq!(ours, FEATURES);
    }
}
