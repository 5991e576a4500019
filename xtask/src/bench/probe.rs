//! One number, measured by running a program.

use super::{iperf, ucx};
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::needs::{self, Need};
use crate::site::Site;
use serde_json::Value;
use std::path::PathBuf;

/// The source of one number.
#[derive(Clone, Debug)]
pub(super) enum Probe {
    /// Out of the JSON of `slackline bench`.
    Bench { arguments: Vec<String>, pointer: &'static str },
    /// The same, of the command line of an earlier commit.
    Before { arguments: Vec<String>, pointer: &'static str },
    /// The slowest worker's median of `bench/round.c`.
    Round { workers: u32, chunk: u32, bytes: &'static str, rounds: &'static str },
    /// UCX's median latency of 8 bytes over shared memory.
    Ucx { test: &'static str, iterations: u32 },
    /// UCX's bandwidth over TCP.
    UcxTcp { test: &'static str, bytes: u64, iterations: u32 },
    /// `bench/tcp.c` with these words; the number stands at `pointer`.
    Tcp { words: String, pointer: &'static str },
    /// iperf3's one stream over the loopback interface.
    Iperf,
    /// Seconds that `slackline train` with these words takes to an accuracy, each time with another seed.
    Train { words: String },
}

/// The programs that measure.
pub(super) struct Tools<'a> {
    pub(super) site: &'a Site,
    slackline: PathBuf,
    /// The command line of the commit with which this tree is compared.
    before: Option<PathBuf>,
    round: PathBuf,
    tcp: PathBuf,
}

impl<'a> Tools<'a> {
    /// Builds the command line, that of the commit `before`, and the C programs with which it is compared.
    pub(super) fn build(site: &'a Site, before: Option<&str>) -> Result<Tools<'a>, Failure> {
        needs::ensure(site, &[Need::Cc])?;
        Cmd::new("cargo", &["build", "--release", "-p", "slackline-cli"]).answer(site)?;
        let folder = site.target.join("bench");
        std::fs::create_dir_all(&folder).map_err(|error| Failure::Missing {
            what: format!("cannot make {}: {error}", folder.display()),
            remedy: "make cargo's target directory writable".into(),
        })?;
        let compile = |name: &str| {
            let program = folder.join(name);
            let flags = ["-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-o"];
            let source = format!("xtask/bench/{name}.c");
            Cmd::new("cc", &flags).arg(&program.to_string_lossy()).arg(&source).answer(site)?;
            Ok::<_, Failure>(program)
        };
        let (round, tcp) = (compile("round")?, compile("tcp")?);
        let before = before.map(|commit| build_commit(site, commit)).transpose()?;
        Ok(Tools { site, slackline: site.target.join("release/slackline"), before, round, tcp })
    }
}

impl Probe {
    /// `slackline bench` with these words; the number stands at `pointer`.
    pub(super) fn bench(words: &str, pointer: &'static str) -> Probe {
        Probe::Bench { arguments: words.split_whitespace().map(String::from).collect(), pointer }
    }

    /// Returns the program that it needs beside those that are built here, if it needs one.
    pub(super) fn need(&self) -> Option<Need> {
        match self {
            Probe::Ucx { .. } | Probe::UcxTcp { .. } => Some(Need::UcxPerftest),
            Probe::Iperf => Some(Need::Iperf3),
            Probe::Bench { .. }
            | Probe::Before { .. }
            | Probe::Round { .. }
            | Probe::Tcp { .. }
            | Probe::Train { .. } => None,
        }
    }

    /// Measures, for the `time`th time.
    pub(super) fn run(&self, tools: &Tools<'_>, time: usize) -> Result<f64, Failure> {
        match self {
            Probe::Bench { arguments, pointer } | Probe::Before { arguments, pointer } => {
                let before = tools.before.as_ref().filter(|_| matches!(self, Probe::Before { .. }));
                let slackline = before.unwrap_or(&tools.slackline);
                let cmd = Cmd::new(&slackline.to_string_lossy(), &["bench", "--json", "-"]);
                let cmd = arguments.iter().fold(cmd, |cmd, argument| cmd.arg(argument));
                let json = cmd.answer(tools.site)?;
                number(&json, |value| value.pointer(pointer)?.as_f64()).ok_or_else(|| unclear(&cmd, &json))
            }
            Probe::Round { workers, chunk, bytes, rounds } => {
                let cmd = Cmd::new(&tools.round.to_string_lossy(), &[])
                    .arg(&workers.to_string())
                    .arg(bytes)
                    .arg(&chunk.to_string())
                    .arg(rounds);
                let json = cmd.answer(tools.site)?;
                number(&json, slowest).ok_or_else(|| unclear(&cmd, &json))
            }
            Probe::Ucx { test, iterations } => ucx::latency(tools.site, test, *iterations),
            Probe::UcxTcp { test, bytes, iterations } => {
                ucx::bandwidth(tools.site, test, *bytes, *iterations)
            }
            Probe::Tcp { words, pointer } => {
                let cmd = Cmd::new(&tools.tcp.to_string_lossy(), &[]);
                let cmd = words.split_whitespace().fold(cmd, |cmd, word| cmd.arg(word));
                let json = cmd.answer(tools.site)?;
                number(&json, |value| value.pointer(pointer)?.as_f64()).ok_or_else(|| unclear(&cmd, &json))
            }
            Probe::Iperf => iperf::bandwidth(tools.site),
            Probe::Train { words } => {
                let cmd = Cmd::new(&tools.slackline.to_string_lossy(), &["train", "--json", "-"]);
                let cmd = words.split_whitespace().fold(cmd, |cmd, word| cmd.arg(word));
                let cmd = cmd.arg("--seed").arg(&(time + 1).to_string());
                let json = cmd.answer(tools.site)?;
                number(&json, |value| value.get("time_to_target_s")?.as_f64())
                    .ok_or_else(|| unclear(&cmd, &json))
            }
        }
    }
}

/// Builds the command line of a commit, in a folder of its own, and returns its path.
fn build_commit(site: &Site, commit: &str) -> Result<PathBuf, Failure> {
    let commit = Cmd::new("git", &["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")])
        .output(site)
        .map(|commit| commit.trim().to_owned())
        .ok_or_else(|| Failure::Usage(format!("`{commit}` names no commit of this repository")))?;
    let folder = site.target.join("bench").join(&commit);
    let source = folder.to_string_lossy();
    let unpack = r#"rm -rf "$1/src" && mkdir -p "$1/src" && git archive "$0" | tar -x -C "$1/src""#;
    Cmd::new("sh", &["-c", unpack, &commit, &source]).answer(site)?;
    let (manifest, target) = (format!("{source}/src/Cargo.toml"), format!("{source}/target"));
    let build =
        ["build", "--release", "-p", "slackline-cli", "--manifest-path", &manifest, "--target-dir", &target];
    Cmd::new("cargo", &build).answer(site)?;
    Ok(folder.join("target/release/slackline"))
}

fn number(json: &str, find: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
    let value: Value = serde_json::from_str(json).ok()?;
    find(&value).filter(|number| number.is_finite() && *number > 0.0)
}

fn slowest(value: &Value) -> Option<f64> {
    let medians = value.get("median_ns")?.as_array()?;
    medians.iter().filter_map(Value::as_f64).max_by(f64::total_cmp)
}

pub(super) fn unclear(cmd: &Cmd, said: &str) -> Failure {
    Failure::Check { what: cmd.to_string(), status: format!("no number in what it said: {}", said.trim()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_and_nonsense_is_none() {
        let at = |json: &str| number(json, |value| value.pointer("/a/b")?.as_f64());
        assert_eq!(at(r#"{"a": {"b": 2.5}}"#), Some(2.5));
        for json in [r#"{"a": {}}"#, r#"{"a": {"b": 0}}"#, "", "{"] {
            assert_eq!(at(json), None, "{json}");
        }
        assert_eq!(number(r#"{"median_ns": [3, 7, 5]}"#, slowest), Some(7.0));
    }
}
