//! Programs of the workspace, built here to run in a guest.

use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;
use crate::steps::{TESTED, build_command_line};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A program, and the folder of its package, where cargo runs tests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) executable: PathBuf,
    pub(super) folder: PathBuf,
}

/// The test binary that these arguments of `cargo test` name.
pub(super) fn test(site: &Site, arguments: &[&str]) -> Result<Program, Failure> {
    built(site, tests(arguments), true)
}

/// The binary of the library's unit tests.
pub(super) fn unit_tests(site: &Site) -> Result<Program, Failure> {
    let cmd = tests(&[&TESTED[..], &["--lib"]].concat());
    let programs = programs(&cmd.answer(site)?, true);
    let of_library = programs.into_iter().find(|program| program.folder == site.root);
    of_library.ok_or_else(|| Failure::Check {
        what: cmd.to_string(),
        status: format!("no program of {}", site.root.display()),
    })
}

fn tests(arguments: &[&str]) -> Cmd {
    let cmd = Cmd::new("cargo", &["test", "--no-run", "--message-format=json-render-diagnostics"]);
    arguments.iter().fold(cmd, |cmd, argument| cmd.arg(argument))
}

/// Builds the program that runs others in the other guest.
pub(super) fn elsewhere(site: &Site) -> Result<Program, Failure> {
    program(site, Cmd::new("cargo", &["build", "-p", "xtask", "--bin", "elsewhere"]))
}

/// Builds `xtask`, which measures by turns with perftest, and the command line that it measures.
pub(super) fn turns(site: &Site) -> Result<(Program, Program), Failure> {
    let xtask = program(site, Cmd::new("cargo", &["build", "-p", "xtask", "--bin", "xtask"]))?;
    Ok((xtask, program(site, build_command_line())?))
}

/// The one program that this build makes.
fn program(site: &Site, build: Cmd) -> Result<Program, Failure> {
    built(site, build.arg("--message-format=json-render-diagnostics"), false)
}

fn built(site: &Site, cmd: Cmd, is_test: bool) -> Result<Program, Failure> {
    let mut programs = programs(&cmd.answer(site)?, is_test);
    match (programs.pop(), programs.len()) {
        (Some(program), 0) => Ok(program),
        (last, others) => {
            let count = others + usize::from(last.is_some());
            Err(Failure::Check { what: cmd.to_string(), status: format!("{count} programs, not one") })
        }
    }
}

/// The programs among cargo's messages: test binaries, or others.
fn programs(messages: &str, is_test: bool) -> Vec<Program> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["profile"]["test"] == is_test)
        .filter_map(|message| {
            let executable = message["executable"].as_str()?.into();
            let folder = Path::new(message["manifest_path"].as_str()?).parent()?.into();
            Some(Program { executable, folder })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_binary_is_told_from_the_program_that_it_tests() {
        let message = |folder: &str, test: bool, executable: &str| {
            format!(
                r#"{{"manifest_path":"{folder}/Cargo.toml","profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let messages = [
            message("/w/cli", false, r#""/t/slackline""#),
            message("/w", false, "null"),
            message("/w/cli", true, r#""/t/deps/kill-1""#),
            r#"{"reason":"build-finished","success":true}"#.into(),
        ];
        let messages = messages.join("\n");
        let program = |executable: &str| Program { executable: executable.into(), folder: "/w/cli".into() };
        assert_eq!(programs(&messages, true), [program("/t/deps/kill-1")]);
        assert_eq!(programs(&messages, false), [program("/t/slackline")]);
    }
}
