//! Manual pages and completions are made from the commands and options that there are.

use std::process::{Command, Output, Stdio};

fn slackline(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slackline")).args(arguments).output().expect("start slackline")
}

/// The commands that `slackline --help` lists, but for `help`.
fn commands() -> Vec<String> {
    let help = String::from_utf8(slackline(&["--help"]).stdout).unwrap();
    let lines =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<_> = names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    assert!(names.len() >= 9, "{help}");
    names.into_iter().filter(|name| name != "help").collect()
}

#[test]
fn there_is_a_manual_page_of_each_command_with_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man1");
    let output = slackline(&["man", pages.to_str().unwrap()]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    for command in commands() {
        let page = std::fs::read_to_string(pages.join(format!("slackline-{command}.1"))).expect(&command);
        assert!(page.contains(&format!(".TH slackline-{command} 1")), "{page}");
        assert!(page.contains("\\-\\-help"), "{page}");
    }
    let train = std::fs::read_to_string(pages.join("slackline-train.1")).unwrap();
    assert!(train.contains("\\-\\-staleness"), "{train}");
    assert!(!pages.join("slackline-bench-peer.1").exists(), "a command that is hidden");
}

#[test]
fn a_manual_that_cannot_be_written_fails_and_says_where() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = slackline(&["man", file.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("cannot write the manual pages to") && text.contains("name a folder"), "{text}");
}

#[test]
fn completions_for_each_shell_have_each_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = slackline(&["completions", shell]);
        assert!(output.status.success(), "{output:?}");
        let script = String::from_utf8(output.stdout).unwrap();
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
        assert!(script.contains("staleness"), "{shell}");
    }
    assert_eq!(slackline(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn the_help_of_each_command_says_what_its_exit_codes_mean() {
    for command in commands() {
        let help = String::from_utf8(slackline(&[&command, "--help"]).stdout).unwrap();
        assert!(help.contains("Exit codes: 0 "), "{command}: {help}");
    }
}

#[test]
fn bash_can_read_its_completions() {
    let script = slackline(&["completions", "bash"]).stdout;
    let ask = "source /dev/stdin; COMP_WORDS=(slackline tr); COMP_CWORD=1; \
               _slackline slackline tr slackline; echo ${COMPREPLY[@]}";
    let mut bash = Command::new("bash");
    bash.args(["-c", ask]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bash = bash.spawn().expect("start bash");
    std::io::Write::write_all(&mut bash.stdin.take().unwrap(), &script).unwrap();
    let output = bash.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "train", "{:?}", output.status);
}

#[test]
fn a_reader_that_has_read_enough_is_no_failure() {
    let sim = ["sim", "--scheme", "bsp", "--clocks", "5"];
    let bench = ["bench", "--op", "memcpy", "--bytes", "64", "--iterations", "12"];
    for arguments in [&["completions", "bash"][..], &["schemes"], &sim, &bench] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
        let output = command.args(arguments).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("error"), "{arguments:?}: {said}");
    }
}
