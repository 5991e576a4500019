//! `cargo xtask miri`: the tests of the pure modules in Miri, which sees what a mere run hides.
//!
//! Not a step of `cargo xtask test`: Miri comes with some nightlies only, and takes minutes.

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;

pub(crate) const COMMAND: Command =
    Command { name: "miri", arguments: "", about: "the tests of the pure modules, in Miri", run };

/// The modules whose tests Miri can run: no mapped memory, sockets or processes. One without tests fails.
const MODULES: &[&str] = &["clock", "time"];

/// Property tests draw this many cases: Miri is some hundred times slower than the machine.
const PROPTEST_CASES: &str = "16";

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    if let Some(argument) = arguments.first() {
        return Err(Failure::Usage(format!("`miri` takes no arguments, but was given `{argument}`")));
    }
    require(site)?;
    let modules: Vec<String> = MODULES.iter().map(|module| format!("{module}::")).collect();
    let list = modules.iter().fold(miri(), |cmd, module| cmd.arg(module)).arg("--list");
    println!("== {list}");
    // Built first, with its output shown, so that a failure here is not a silent one.
    list.run(site)?;
    let found = list.output(site).unwrap_or_default();
    if let Some(module) = without_tests(&found, &modules) {
        return Err(Failure::Check {
            what: format!("Miri finds no test in `{module}`; correct MODULES in xtask/src/miri.rs"),
            status: "nothing to check".into(),
        });
    }
    let tests = modules.iter().fold(miri(), |cmd, module| cmd.arg(module));
    println!("== {tests}");
    tests.run(site)
}

fn require(site: &Site) -> Result<(), Failure> {
    let (what, remedy) = if !site.nightly {
        let remedy = "rustup toolchain install nightly --component miri --component rust-src";
        ("there is no nightly toolchain, which Miri comes with", remedy)
    } else if Cmd::nightly("cargo", &["miri", "--version"]).output(site).is_none() {
        ("the nightly toolchain has no Miri", "rustup component add --toolchain nightly miri rust-src")
    } else {
        return Ok(());
    };
    Err(Failure::Missing { what: what.into(), remedy: remedy.into() })
}

fn miri() -> Cmd {
    // proptest asks for the current directory, which Miri's isolation refuses.
    Cmd::nightly("cargo", &["miri", "test", "-p", "slackline", "--lib", "--"])
        .flags("MIRIFLAGS", "-Zmiri-strict-provenance -Zmiri-disable-isolation")
        .env("PROPTEST_CASES", PROPTEST_CASES)
        .target("miri")
}

/// The first of the modules that the output of `--list` has no test of.
fn without_tests<'a>(list: &str, modules: &'a [String]) -> Option<&'a str> {
    let has_test = |module: &str| {
        list.lines().any(|line| line.starts_with(module) && line.trim_end().ends_with(": test"))
    };
    modules.iter().map(String::as_str).find(|module| !has_test(module))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_without_tests_is_noticed() {
        let modules = ["clock::".to_string(), "time::".to_string()];
        assert_eq!(without_tests("clock::tests::a: test\ntime::tests::b: test\n", &modules), None);
        assert_eq!(without_tests("clock::tests::time::a: test\n1 test\n", &modules), Some("time::"));
    }
}
