//! `cargo xtask fuzz`: feeds every decoder that the bytes of unauthenticated peers reach with input that no honest peer
//! sends.
//!
//! With a nightly toolchain: cargo-fuzz, that is libFuzzer, which sees which code an input reaches, under
//! AddressSanitizer where the toolchain has its runtime. Without: the same functions and the same inputs' meaning, but
//! the inputs are only random (`fuzz/examples/random.rs`). Targets run side by side, as many as there are cores.

mod sources;

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::needs::{self, Need};
use crate::site::Site;
use crate::steps::Step;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

pub(crate) const COMMAND: Command = Command {
    name: "fuzz",
    arguments: "[--seconds N] [TARGET...]",
    about: "fuzzes the decoders, each for N seconds (60), or only those named",
    run,
};

/// The time for which each target runs, where no option says it.
const SECONDS: u64 = 60;

/// The time for which each target runs in `cargo xtask test`, which is to end soon. A fault of a recent change shows
/// at once, or `cargo xtask fuzz` finds it.
const STEP_SECONDS: u64 = 20;

/// Each target runs again until it has been given so many inputs, for so many times its time at most: on a machine that
/// is busy the slowest has a few hundred in 20 seconds. One that was given fewer then has shown nothing.
const INPUTS_MIN: u64 = 100;
const ROUNDS_MAX: usize = 5;

/// One input may take so long, in seconds, and so much memory in one piece, in MiB: inputs have a few KiB.
const INPUT_SECONDS_MAX: u64 = 10;
const PIECE_MIB_MAX: u64 = 64;

/// In the manner of `cargo fuzz run`, whose commands these are.
const MANIFEST: &str = "fuzz/Cargo.toml";

/// The step of `cargo xtask test`.
pub(crate) fn step(site: &Site) -> Step {
    let (about, needs) = match site.nightly {
        true => ("each decoder is fuzzed for 20 seconds (cargo-fuzz)", vec![Need::Cxx, Need::CargoFuzz]),
        false => {
            ("each decoder is fed random inputs for 20 seconds (no nightly, so no libFuzzer)", Vec::new())
        }
    };
    let commands = vec![Cmd::new("cargo", &["xtask", "fuzz", "--seconds", &STEP_SECONDS.to_string()])];
    Step { name: "fuzz", about, needs, feature: None, commands }
}

/// The targets to run, and for how long, as the call asks.
#[derive(Debug, PartialEq)]
struct Plan {
    seconds: u64,
    targets: Vec<String>,
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let plan = plan(arguments, &targets(&site.root))?;
    if !site.nightly {
        println!(
            "there is no nightly toolchain, so no libFuzzer: inputs are random, not guided by the code they reach\n  \
             to fuzz in earnest: rustup toolchain install nightly"
        );
        random(site).run(site)?;
        return fuzz(site, &plan, &|target| random_target(site, target, plan.seconds));
    }
    needs::ensure(site, &[Need::Cxx, Need::CargoFuzz])?;
    let sanitizer = if has_asan(site) { "address" } else { "none" };
    let build = build(site, sanitizer);
    println!("== {build}");
    build.run(site)?;
    for target in &plan.targets {
        std::fs::create_dir_all(corpus(site, target)).map_err(|error| Failure::Missing {
            what: format!("cannot make {}: {error}", corpus(site, target).display()),
            remedy: "make the target directory writable".into(),
        })?;
    }
    println!(
        "sanitizer: {sanitizer}; what was learnt is kept in {}",
        site.target.join("fuzz/corpus").display()
    );
    fuzz(site, &plan, &|target| libfuzzer(site, target, plan.seconds))
}

/// The names of all targets: one file each.
fn targets(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("fuzz/fuzz_targets")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".rs").map(String::from));
    let mut targets: Vec<String> = names.collect();
    targets.sort();
    targets
}

fn plan(arguments: &[String], known: &[String]) -> Result<Plan, Failure> {
    let mut plan = Plan { seconds: SECONDS, targets: Vec::new() };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--seconds" {
            let seconds =
                arguments.next().and_then(|seconds| seconds.parse().ok()).filter(|seconds| *seconds > 0);
            plan.seconds =
                seconds.ok_or_else(|| Failure::Usage("--seconds takes a whole number from 1 on".into()))?;
        } else if argument.starts_with('-') {
            return Err(Failure::Usage(format!("`fuzz` has no option `{argument}`; it has --seconds")));
        } else if !known.contains(argument) {
            let known = known.join(", ");
            return Err(Failure::Usage(format!("there is no target `{argument}`; there are: {known}")));
        } else if !plan.targets.contains(argument) {
            plan.targets.push(argument.clone());
        }
    }
    if plan.targets.is_empty() {
        plan.targets = known.to_vec();
    }
    Ok(plan)
}

/// Builds all targets; RUSTFLAGS that the caller has are added by cargo-fuzz.
fn build(site: &Site, sanitizer: &str) -> Cmd {
    let program = needs::cargo_fuzz(site);
    let folder = site.target.join("fuzz");
    Cmd::nightly(
        &program.to_string_lossy(),
        &["fuzz", "build", "--fuzz-dir", "fuzz", "--sanitizer", sanitizer, "--target", &site.host],
    )
    .arg("--target-dir")
    .arg(&folder.to_string_lossy())
}

/// Whether the nightly toolchain brings the sanitizer's runtime: not all do.
fn has_asan(site: &Site) -> bool {
    let libraries = Cmd::nightly("rustc", &["--print", "target-libdir"]).output(site).unwrap_or_default();
    let entries = std::fs::read_dir(libraries.trim()).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().contains("rt.asan"))
}

fn corpus(site: &Site, target: &str) -> PathBuf {
    site.target.join("fuzz/corpus").join(target)
}

fn libfuzzer(site: &Site, target: &str, seconds: u64) -> Cmd {
    let program = site.target.join("fuzz").join(&site.host).join("release").join(target);
    // A crash is shown as text; the file is for a person who wants to run it again.
    let artifacts = format!("-artifact_prefix={}/", site.target.join("fuzz").display());
    Cmd::new(&program.to_string_lossy(), &[&format!("-max_total_time={seconds}"), &artifacts])
        .arg(&format!("-timeout={INPUT_SECONDS_MAX}"))
        .arg(&format!("-malloc_limit_mb={PIECE_MIB_MAX}"))
        .arg("-print_final_stats=1")
        .arg(&corpus(site, target).to_string_lossy())
}

/// Builds the driver that stable can build.
fn random(site: &Site) -> Cmd {
    let cmd =
        Cmd::new("cargo", &["build", "--release", "--manifest-path", MANIFEST, "--no-default-features"]);
    let host = ["--target", &site.host];
    let cmd = cmd.arg("--example").arg("random").arg(host[0]).arg(host[1]);
    cmd.flags("RUSTFLAGS", "--cfg fuzzing").target("fuzz-random")
}

fn random_target(site: &Site, target: &str, seconds: u64) -> Cmd {
    let folder = site.target.join("fuzz-random").join(&site.host).join("release/examples/random");
    Cmd::new(&folder.to_string_lossy(), &[target, &seconds.to_string()])
}

/// Runs the targets side by side and says one line of each, in the order in which they end.
fn fuzz(site: &Site, plan: &Plan, command: &(dyn Fn(&str) -> Cmd + Sync)) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let waiting = Mutex::new(plan.targets.iter());
    let failures = Mutex::new(Vec::new());
    let stop = AtomicBool::new(false);
    let width = plan.targets.iter().map(String::len).max().unwrap_or(0);
    std::thread::scope(|scope| {
        // A target's time is the clock's: more at once than there are processors keep the whole within CI's time.
        for _ in 0..(2 * cores).min(plan.targets.len()) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let next = waiting.lock().expect("no thread panics with the list").next();
                    let Some(target) = next else { return };
                    let failure = match fuzz_target(site, target, &command(target)) {
                        Ok(told) => {
                            println!("{target:<width$}  {told}");
                            continue;
                        }
                        Err(failure) => failure,
                    };
                    stop.store(true, Ordering::Relaxed);
                    failures.lock().expect("no thread panics with the failures").push(failure);
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no thread panics with the failures");
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// Runs one target until it has been given enough inputs; one line on it.
fn fuzz_target(site: &Site, target: &str, cmd: &Cmd) -> Result<String, Failure> {
    let (begun, mut inputs) = (Instant::now(), 0);
    for _ in 0..ROUNDS_MAX {
        let output = cmd.outcome(site)?;
        if !output.status.success() {
            println!("{target}  FAILED\n{}", finding(target, &output));
            let what = format!("the decoder `{target}` breaks a promise: {cmd}");
            return Err(Failure::Check { what, status: output.status.to_string() });
        }
        inputs += executed(&output);
        if inputs >= INPUTS_MIN {
            return Ok(told(&output, inputs, begun.elapsed().as_secs_f64()));
        }
    }
    let what = format!("the decoder `{target}` was given too few inputs to show anything: {cmd}");
    Err(Failure::Check { what, status: format!("{inputs} of {INPUTS_MIN} inputs") })
}

/// The number of inputs that libFuzzer, or the random driver, said at its end; 0 if it said none.
fn executed(output: &Output) -> u64 {
    let text = String::from_utf8_lossy(&output.stderr);
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok())
        .unwrap_or(0)
}

/// One line out of what it said at its end, with the number of inputs of all its rounds.
fn told(output: &Output, inputs: u64, seconds: f64) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let coverage = text.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "cov:");
        words.nth(1).map(String::from)
    });
    let coverage = coverage.map_or_else(String::new, |edges| format!("{edges:>6} edges reached  "));
    format!("{inputs:>11} inputs  {coverage}{seconds:>6.1} s")
}

/// Reports a crash for a person: how it went, the bytes, and what to do with them.
fn finding(target: &str, output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let mut shown = String::new();
    let quiet = |line: &&str| {
        let progress = ["#", "INFO:", "stat::", "NEW_FUNC", "\t"];
        !progress.iter().any(|begin| line.starts_with(begin))
    };
    for line in text.lines().filter(quiet).take(60) {
        shown.push_str(&format!("    {line}\n"));
    }
    let given = text.lines().rev().find_map(|line| line.strip_prefix("decoder was given: "));
    if let Some(bytes) = given {
        shown.push_str(&format!(
            "  to make it a test: give these bytes to the function of `{target}` in the list TARGETS of \
             src/fuzzing.rs, lab/src/fuzzing.rs or cli/src/fuzzing.rs, in a test beside the decoder:\n    {bytes}\n"
        ));
    }
    let file = text.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, file)| file);
    if let Some(file) = file {
        shown.push_str(&format!(
            "  to see it again: give the program this file as its only argument: {file}\n"
        ));
        // The sanitizer and the limits end the process without a panic, so that no message says the bytes.
        let input = std::fs::read(file).unwrap_or_default();
        let hexadecimal: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        shown.push_str(&format!("  its bytes: {hexadecimal}\n"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
    }

    fn site(nightly: bool) -> Site {
        Site { root: root(), target: "/target".into(), host: "x86_64-unknown-linux-gnu".into(), nightly }
    }

    fn said(text: &str) -> Output {
        Output { status: ExitStatus::from_raw(0), stdout: Vec::new(), stderr: text.into() }
    }

    #[test]
    fn every_decoder_has_a_target_and_every_target_a_decoder() {
        let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
        let mut decoders = Vec::new();
        let lists = [
            ("src/fuzzing.rs", "    target(\""),
            ("lab/src/fuzzing.rs", "name: \""),
            ("cli/src/fuzzing.rs", "name: \""),
        ];
        for (file, begin) in lists {
            let text = read(file);
            decoders
                .extend(text.split(begin).skip(1).map(|rest| rest.split('"').next().unwrap().to_string()));
        }
        decoders.sort();
        assert_eq!(targets(&root()), decoders);
        let manifest = read(MANIFEST);
        for target in decoders {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{target}.rs\"")), "{target}");
            assert!(read(&format!("fuzz/fuzz_targets/{target}.rs")).contains(&format!("run(\"{target}\", ")));
        }
    }

    #[test]
    fn the_call_is_understood_or_refused() {
        let known = ["a".to_string(), "b".to_string()];
        let plan = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            plan(&words, &known)
        };
        assert_eq!(plan(&[]).unwrap(), Plan { seconds: SECONDS, targets: known.to_vec() });
        let b = vec!["b".to_string()];
        assert_eq!(plan(&["b", "--seconds", "5", "b"]).unwrap(), Plan { seconds: 5, targets: b });
        for wrong in [&["--seconds"][..], &["--seconds", "0"], &["--fast"], &["c"]] {
            assert_eq!(plan(wrong).unwrap_err().exit_code(), 2, "{wrong:?}");
        }
    }

    #[test]
    fn the_step_feeds_the_decoders_with_nightly_and_without() {
        assert_eq!(step(&site(true)).needs, [Need::Cxx, Need::CargoFuzz]);
        let without = step(&site(false));
        assert!(without.needs.is_empty() && without.about.contains("no nightly"));
        assert!(random(&site(false)).to_string().contains("--cfg fuzzing"));
    }

    #[test]
    fn the_end_of_a_run_is_one_line() {
        let text = "#2\tINITED cov: 90 ft: 91\n#9\tDONE   cov: 312 ft: 700 corp: 3/9b\n\
                    stat::number_of_executed_units: 9\n";
        assert_eq!(executed(&said(text)), 9);
        assert_eq!(executed(&said("it was ended\n")), 0);
        assert_eq!(told(&said(text), 9, 1.25), "          9 inputs     312 edges reached     1.2 s");
        assert_eq!(told(&said("none\n"), 7, 2.0), "          7 inputs     2.0 s");
    }

    #[test]
    fn a_finding_says_its_bytes_and_what_to_do_with_them() {
        let text = finding("sealed", &said("#1\tx\ndecoder was given: 00ff\nthread panicked: broken\n"));
        assert!(text.contains("thread panicked: broken") && text.contains("    00ff\n"), "{text}");
        assert!(text.contains("beside the decoder") && !text.contains("#1"), "{text}");
    }

    #[test]
    fn a_target_that_fails_fails_the_run_and_is_named() {
        let plan = Plan { seconds: 1, targets: vec!["good".into(), "bad".into()] };
        let fed = format!("echo stat::number_of_executed_units: {INPUTS_MIN} >&2");
        let command = |target: &str| Cmd::new("sh", &["-c", if target == "good" { &fed } else { "false" }]);
        let site = Site { root: "/".into(), target: "/".into(), host: String::new(), nightly: false };
        let failure = fuzz(&site, &plan, &command).unwrap_err();
        assert!(failure.to_string().contains("`bad`"), "{failure}");
        let good = Plan { seconds: 1, targets: vec!["good".into()] };
        assert!(fuzz(&site, &good, &command).is_ok());
    }

    #[test]
    fn a_target_that_was_given_hardly_any_input_fails_after_some_rounds() {
        let site = Site { root: "/".into(), target: "/".into(), host: String::new(), nightly: false };
        let given = |inputs: u64| {
            let said = format!("echo stat::number_of_executed_units: {inputs} >&2");
            fuzz_target(&site, "a", &Cmd::new("sh", &["-c", &said]))
        };
        let enough = INPUTS_MIN.div_ceil(ROUNDS_MAX as u64);
        assert!(given(enough).unwrap().contains(&format!(" {} inputs", enough * ROUNDS_MAX as u64)));
        let failure = given(enough - 1).unwrap_err().to_string();
        assert!(failure.contains("too few inputs") && failure.contains("95 of 100 inputs"), "{failure}");
        assert!(fuzz_target(&site, "a", &Cmd::new("true", &[])).is_err());
    }
}
