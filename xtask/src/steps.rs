//! The table of what CI checks. The order here is the order in which the steps run.

use crate::asan;
use crate::cmd::Cmd;
use crate::fuzz;
use crate::loom;
use crate::needs::Need;
use crate::site::Site;

/// One step of `cargo xtask test`.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// What must be installed before it can run.
    pub(crate) needs: Vec<Need>,
    /// Run one after the other; the first that fails fails the step.
    pub(crate) commands: Vec<Cmd>,
}

/// An integration test that is too slow for the test profile, and so runs by name, in release.
struct Slow {
    /// Name of the step, and of the test target: `tests/<name>.rs` of the package.
    name: &'static str,
    package: &'static str,
    about: &'static str,
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
/// Slow { name: "litmus", package: "slackline", about: "the memory protocol under every order it may meet" },
/// ```
///
/// A suite that is listed but does not exist, or has no test in it, fails its step.
const SLOW: &[Slow] = &[
    Slow { name: "litmus", package: "slackline", about: "no torn read is accepted, between two processes" },
    Slow {
        name: "kill",
        package: "slackline-cli",
        about: "workers and servers killed in the middle of training leave nothing behind",
    },
];

/// Every step, for this machine.
pub(crate) fn all(site: &Site) -> Vec<Step> {
    let mut steps = vec![
        Step {
            name: "fmt",
            about: "the code is formatted",
            needs: vec![Need::Component("rustfmt")],
            commands: vec![Cmd::new("cargo", &["fmt", "--all", "--", "--check"])],
        },
        Step {
            name: "clippy",
            about: "no lint warns",
            needs: vec![Need::Component("clippy")],
            commands: vec![Cmd::new(
                "cargo",
                &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
            )],
        },
        Step {
            name: "test",
            about: "unit tests, integration tests, doctests",
            needs: vec![Need::Cc],
            commands: vec![Cmd::new("cargo", &["test", "--workspace"])],
        },
    ];
    steps.extend(SLOW.iter().map(|slow| Step {
        name: slow.name,
        about: slow.about,
        needs: Vec::new(),
        commands: vec![
            Cmd::new("cargo", &["test", "--release", "-p", slow.package, "--test", slow.name]).suite(),
        ],
    }));
    steps.push(loom::step());
    steps.push(Step {
        name: "doc",
        about: "the documentation builds, and no link in it is dead",
        needs: Vec::new(),
        commands: vec![
            Cmd::new("cargo", &["doc", "--workspace", "--no-deps"]).flags("RUSTDOCFLAGS", "-D warnings"),
        ],
    });
    steps.push(asan::step(site));
    steps.push(fuzz::step(site));
    steps
}
