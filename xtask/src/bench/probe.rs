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
    round: PathBuf,
    tcp: PathBuf,
}

impl<'a> Tools<'a> {
    /// Builds the command line, and the C programs with which it is compared.
    pub(super) fn build(site: &'a Site) -> Result<Tools<'a>, Failure> {
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
        Ok(Tools { site, slackline: site.target.join("release/slackline"), round, tcp })
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
            Probe::Bench { .. } | Probe::Round { .. } | Probe::Tcp { .. } | Probe::Train { .. } => None,
        }
    }

    /// Measures, for the `time`th time.
    pub(super) fn run(&self, tools: &Tools<'_>, time: usize) -> Result<f64, Failure> {
        match self {
            Probe::Bench { arguments, pointer } => {
                let cmd = Cmd::new(&tools.slackline.to_string_lossy(), &["bench", "--json", "-"]);
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
