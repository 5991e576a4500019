//! A command line that can be shown before it is run.

use crate::failure::Failure;
use crate::limit::{COMMAND_MAX, Limit};
use crate::site::Site;
use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The words before a command that runs at the lowest priority.
const NICE: [&str; 3] = ["nice", "-n", "19"];

/// A program, its arguments, and the environment that it needs beyond ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cmd {
    program: String,
    arguments: Vec<String>,
    /// Shown, in shell notation, before the program.
    environment: Vec<(String, String)>,
    /// Folder under cargo's target directory to build in, instead of that directory itself.
    target: Option<&'static str>,
    nightly: bool,
    suite: bool,
    /// At the lowest priority.
    nice: bool,
    /// The tests that must fail for it to be right, each with a text that its output must have.
    must_fail: Vec<(String, String)>,
    /// Run if this one fails.
    retry: Option<Box<Cmd>>,
}

impl Cmd {
    /// A program with its arguments, in the default toolchain.
    pub(crate) fn new(program: &str, arguments: &[&str]) -> Cmd {
        Cmd {
            program: program.into(),
            arguments: arguments.iter().map(|argument| argument.to_string()).collect(),
            environment: Vec::new(),
            target: None,
            nightly: false,
            suite: false,
            nice: false,
            must_fail: Vec::new(),
            retry: None,
        }
    }

    /// A program of the nightly toolchain with its arguments.
    pub(crate) fn nightly(program: &str, arguments: &[&str]) -> Cmd {
        Cmd { nightly: true, ..Cmd::new(program, arguments) }
    }

    /// Appends one argument.
    pub(crate) fn arg(mut self, argument: &str) -> Cmd {
        self.arguments.push(argument.into());
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Cmd {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Adds to the compiler flags (`RUSTFLAGS`, `RUSTDOCFLAGS`) that the caller already has.
    pub(crate) fn flags(self, name: &str, more: &str) -> Cmd {
        let value = match std::env::var(name) {
            Ok(flags) if !flags.trim().is_empty() => format!("{flags} {more}"),
            _ => more.into(),
        };
        self.env(name, &value)
    }

    /// Builds in a folder of its own under cargo's target directory, since other flags rebuild all.
    pub(crate) fn target(mut self, folder: &'static str) -> Cmd {
        self.target = Some(folder);
        self
    }

    /// Says that this is `cargo test` on a suite that has tests: to find none is then a failure.
    pub(crate) fn suite(mut self) -> Cmd {
        self.suite = true;
        self
    }

    /// Runs it at the lowest priority, in the time that others leave.
    pub(crate) fn nice(mut self) -> Cmd {
        self.nice = true;
        self
    }

    /// Says that this is `cargo test` on something broken on purpose: right if it builds, and each of these tests fails
    /// with its text in what it says. A test that fails for another reason has not noticed what is broken.
    pub(crate) fn must_fail(mut self, tests: &[(&str, &str)]) -> Cmd {
        self.must_fail = tests.iter().map(|(test, text)| (test.to_string(), text.to_string())).collect();
        self
    }

    /// Says that it may fail on a machine that is too busy for it, and the command that is then run, once. A step that
    /// passes only so is called flaky, not ok.
    pub(crate) fn retry_with(mut self, second: Cmd) -> Cmd {
        self.retry = Some(Box::new(second));
        self
    }

    /// The same with itself.
    pub(crate) fn retry(self) -> Cmd {
        let second = self.clone();
        self.retry_with(second)
    }

    /// Returns what is to be run if it fails.
    pub(crate) fn second(&self) -> Option<&Cmd> {
        self.retry.as_deref()
    }

    fn command(&self, site: &Site) -> Command {
        let mut words: Vec<&str> = if self.nice { NICE.to_vec() } else { Vec::new() };
        if self.nightly {
            // Not `cargo +nightly`: the outer cargo may have put its own toolchain's cargo first in the path.
            words.extend(["rustup", "run", "nightly"]);
        }
        words.push(&self.program);
        let mut command = Command::new(words[0]);
        if self.nightly {
            command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
        }
        let target = self.target.map_or_else(|| site.target.clone(), |folder| site.target.join(folder));
        command
            .args(&words[1..])
            .args(&self.arguments)
            .current_dir(&site.root)
            .env("CARGO_TARGET_DIR", target);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs it with our own standard streams; fails if it does.
    pub(crate) fn run(&self, site: &Site) -> Result<(), Failure> {
        self.run_to(site, None, COMMAND_MAX)
    }

    /// The same, with its output in a file.
    pub(crate) fn record(&self, site: &Site, log: &File) -> Result<(), Failure> {
        self.run_to(site, Some(log), COMMAND_MAX)
    }

    /// Runs it for so long at most, with its output in a file if one is given.
    pub(crate) fn run_to(&self, site: &Site, log: Option<&File>, time: Duration) -> Result<(), Failure> {
        if !self.must_fail.is_empty() {
            return self.run_broken(site, log, time);
        }
        let mut command = self.command(site);
        if let Some(log) = log {
            let stream = || log.try_clone().map_err(|error| self.missing(&error));
            command.stdin(Stdio::null()).stdout(stream()?).stderr(stream()?);
        }
        let ended = command.spawn().and_then(|mut child| {
            let limit = Limit::start(&child, time);
            Ok((child.wait()?, limit.was_reached()))
        });
        match ended {
            Ok((_, true)) => Err(self.too_long(time)),
            Ok((status, _)) if status.success() && self.suite && self.tests(site) == 0 => {
                Err(Failure::Check { what: self.to_string(), status: "there is no test in it".into() })
            }
            Ok((status, _)) if status.success() => Ok(()),
            Ok((status, _)) => Err(Failure::Check { what: self.to_string(), status: status.to_string() }),
            Err(error) => Err(self.missing(&error)),
        }
    }

    /// Runs it for so long at most: with our own standard streams, or at the lowest priority with its output in a file.
    pub(crate) fn run_beside(&self, site: &Site, log: Option<&File>, time: Duration) -> Result<(), Failure> {
        match log {
            Some(_) => self.clone().nice().run_to(site, log, time),
            None => self.run_to(site, None, time),
        }
    }

    /// Runs it in silence; fails, and shows its output, unless every test that must fail does.
    fn run_broken(&self, site: &Site, log: Option<&File>, time: Duration) -> Result<(), Failure> {
        let mut command = self.command(site);
        let ended = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let ended = ended.and_then(|child| {
            let limit = Limit::start(&child, time);
            Ok((child.wait_with_output()?, limit.was_reached()))
        });
        let (output, late) = ended.map_err(|error| self.missing(&error))?;
        if late {
            return Err(self.too_long(time));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let failed = |(test, why): &&(String, String)| {
            text.lines().any(|line| line == format!("test {test} ... FAILED"))
                && said(&text, test).is_some_and(|said| said.contains(why))
        };
        let noticed = self.must_fail.iter().filter(failed).count();
        if !output.status.success() && noticed == self.must_fail.len() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        match log {
            // What cannot be written there is lost; that it failed is not.
            Some(mut log) => drop(write!(log, "{text}{errors}")),
            None => {
                print!("{text}");
                eprint!("{errors}");
            }
        }
        let status = format!("{noticed} of {} tests say what is broken", self.must_fail.len());
        Err(Failure::Check { what: self.to_string(), status })
    }

    fn too_long(&self, time: Duration) -> Failure {
        Failure::Late { what: self.to_string(), minutes: time.as_secs().div_ceil(60) }
    }

    fn missing(&self, error: &std::io::Error) -> Failure {
        Failure::Missing {
            what: format!("cannot run `{}`: {error}", self.program),
            remedy: format!("install `{}` and put it in the PATH", self.program),
        }
    }

    /// Counts the tests that it would run.
    fn tests(&self, site: &Site) -> usize {
        let mut list = self.clone();
        if !self.arguments.iter().any(|argument| argument == "--") {
            list = list.arg("--");
        }
        let list = list.arg("--list").output(site).unwrap_or_default();
        list.lines().filter(|line| line.ends_with(": test")).count()
    }

    /// Runs it with our own standard error; its standard output if it succeeded.
    pub(crate) fn answer(&self, site: &Site) -> Result<String, Failure> {
        let output = self.command(site).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        match output {
            Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Ok(output) => Err(Failure::Check { what: self.to_string(), status: output.status.to_string() }),
            Err(error) => Err(self.missing(&error)),
        }
    }

    /// Runs it in silence, whatever comes of it.
    pub(crate) fn outcome(&self, site: &Site) -> Result<std::process::Output, Failure> {
        self.command(site).stdin(Stdio::null()).output().map_err(|error| self.missing(&error))
    }

    /// The same for so long at most; true if it was ended then. What it has printed until then is there.
    pub(crate) fn outcome_for(
        &self,
        site: &Site,
        time: Duration,
    ) -> Result<(std::process::Output, bool), Failure> {
        let mut command = self.command(site);
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let ended = started.and_then(|child| {
            let limit = Limit::start(&child, time);
            Ok((child.wait_with_output()?, limit.was_reached()))
        });
        ended.map_err(|error| self.missing(&error))
    }

    /// Starts it in silence, with nothing to read.
    pub(crate) fn start(&self, site: &Site) -> Result<std::process::Child, Failure> {
        let mut command = self.command(site);
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        started.map_err(|error| self.missing(&error))
    }

    /// Runs it in silence; its standard output if it succeeded.
    pub(crate) fn output(&self, site: &Site) -> Option<String> {
        let output = self.command(site).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(folder) = self.target {
            write!(f, "CARGO_TARGET_DIR=target/{folder} ")?;
        }
        for (name, value) in &self.environment {
            write!(f, "{name}={} ", quoted(value))?;
        }
        if self.nice {
            write!(f, "{} ", NICE.join(" "))?;
        }
        match (self.nightly, self.program.as_str()) {
            (true, "cargo") => write!(f, "cargo +nightly")?,
            (true, program) => write!(f, "rustup run nightly {program}")?,
            (false, program) => write!(f, "{program}")?,
        }
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", quoted(argument)))?;
        if !self.must_fail.is_empty() {
            write!(f, " # must fail")?;
        }
        Ok(())
    }
}

/// Says a line before a command that writes to the same stream: a file, or our standard output.
pub(crate) fn say(log: Option<&File>, text: &str) {
    // What cannot be written there is lost; that a step failed is not.
    let _ = match log {
        Some(mut log) => writeln!(log, "{text}"),
        None => {
            println!("{text}");
            std::io::stdout().flush()
        }
    };
}

/// The output of one test that failed, of the output of all of them.
fn said<'a>(text: &'a str, test: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("---- {test} stdout ----\n"))?;
    // The next test's, or the list of those that failed.
    let end = ["\n---- ", "\nfailures:"].iter().filter_map(|next| rest.find(next)).min();
    Some(&rest[..end.unwrap_or(rest.len())])
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{word}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let cmd = Cmd::nightly("cargo", &["test", "--", "a b"]).env("X", "--cfg loom").target("loom");
        assert_eq!(
            cmd.to_string(),
            "CARGO_TARGET_DIR=target/loom X='--cfg loom' cargo +nightly test -- 'a b'"
        );
        assert_eq!(Cmd::new("cargo", &["doc"]).nice().to_string(), "nice -n 19 cargo doc");
    }

    #[test]
    fn a_nice_command_runs_at_the_lowest_priority() {
        let site = Site { root: "/".into(), target: "/".into(), host: String::new(), nightly: false };
        assert_eq!(Cmd::new("nice", &[]).nice().output(&site).unwrap(), "19\n");
    }

    #[test]
    fn a_suite_without_tests_fails() {
        let site = Site { root: "/".into(), target: "/".into(), host: String::new(), nightly: false };
        assert!(Cmd::new("true", &[]).run(&site).is_ok());
        assert!(Cmd::new("true", &[]).suite().run(&site).is_err());
        assert!(Cmd::new("sh", &["-c", "echo '0 tests'"]).suite().run(&site).is_err());
        assert!(Cmd::new("sh", &["-c", "echo 'a_claim: test'"]).suite().run(&site).is_ok());
    }

    #[test]
    fn what_must_fail_must_fail_in_its_tests_and_say_why() {
        let site = Site { root: "/".into(), target: "/".into(), host: String::new(), nightly: false };
        let run = |a: &str, b: &str, rest: &str| {
            let failures = "failures:\n\n---- a stdout ----\n\nthread 'a' panicked\ntorn";
            let script = format!(
                "echo 'test a ... {a}\ntest b ... FAILED\n{failures}\n\n---- b stdout ----\n{b}\n\nfailures:\n    \
                 late'{rest}"
            );
            Cmd::new("sh", &["-c", &script]).must_fail(&[("a", "torn"), ("b", "late")]).run(&site).is_ok()
        };
        assert!(run("FAILED", "too late", "; exit 101"));
        assert!(!run("FAILED", "too late", ""));
        assert!(!run("ok", "too late", "; exit 101"));
        assert!(!run("FAILED", "torn", "; exit 101"), "it has failed, and for another reason");
        assert!(Cmd::new("sh", &["-c", "exit 101"]).must_fail(&[("a", "")]).run(&site).is_err());
    }
}
