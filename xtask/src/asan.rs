//! The step that looks for memory errors in the tests that touch shared memory.
//!
//! With a nightly toolchain: AddressSanitizer. Without: the same tests under valgrind, which is slower and
//! sees less (no overflow inside a stack frame or between neighbours in one mapping). With neither, valgrind
//! is installed, or the run fails and says how to.

use crate::cmd::Cmd;
use crate::needs::Need;
use crate::site::Site;
use crate::steps::{Step, many_at_once};

/// The tests that run under AddressSanitizer: a package, and those of its test targets that run.
///
/// To add one, name its target: `("slackline", &["--lib", "--test", "transport"])`. One that is listed but
/// does not exist fails the step.
const TARGETS: &[(&str, &[&str])] = &[(
    "slackline",
    &["--lib", "--test", "transport", "--test", "shm", "--test", "node", "--test", "failure"],
)];

/// Valgrind's command line; cargo puts the test binary and its arguments after it. It exits with 99 when it
/// found something, since test binaries use small numbers.
const VALGRIND: &str = concat!(
    "valgrind --quiet --error-exitcode=99",
    " --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite"
);

/// The step, with whichever of the two tools this machine has.
pub(crate) fn step(site: &Site) -> Step {
    let commands = TARGETS.iter().map(|(package, targets)| command(site, package, targets)).collect();
    let (about, needs) = match site.nightly {
        true => ("AddressSanitizer over the tests that touch shared memory", Vec::new()),
        false => ("valgrind over the tests that touch shared memory (no nightly)", vec![Need::Valgrind]),
    };
    Step { name: "asan", about, needs, feature: None, commands }
}

fn command(site: &Site, package: &str, targets: &[&str]) -> Cmd {
    let arguments = [&["test", "-p", package], targets].concat();
    if site.nightly {
        // `--target` keeps the sanitizer out of build scripts and procedural macros.
        many_at_once(Cmd::nightly("cargo", &arguments))
            .arg("--target")
            .arg(&site.host)
            .flags("RUSTFLAGS", "-Zsanitizer=address")
            .target("asan")
            .suite()
    } else {
        let host = site.host.to_uppercase().replace(['-', '.'], "_");
        Cmd::new("cargo", &arguments).env(&format!("CARGO_TARGET_{host}_RUNNER"), VALGRIND).suite()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(nightly: bool) -> Site {
        Site { root: "/".into(), target: "/target".into(), host: "x86_64-unknown-linux-gnu".into(), nightly }
    }

    #[test]
    fn the_step_runs_a_checker_with_nightly_and_without() {
        let with = step(&site(true));
        assert!(with.needs.is_empty());
        assert!(with.commands[0].to_string().contains("-Zsanitizer=address"));
        let without = step(&site(false));
        assert_eq!(without.needs, [Need::Valgrind]);
        assert!(
            without.commands[0]
                .to_string()
                .starts_with("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='valgrind ")
        );
    }
}
