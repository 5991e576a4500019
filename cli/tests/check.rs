//! `slackline check` as a user meets it: traces in files, judged by exit code and output.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use slackline::weights::{Certificate, Publication};
use slackline::{Version, VersionTag};
use tempfile::TempDir;

/// A folder with traces.
struct Traces(TempDir);

impl Traces {
    fn new() -> Traces {
        Traces(TempDir::new().unwrap())
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs `slackline check` in the folder.
    fn check(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program starts")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
        command.arg("check").args(arguments).current_dir(self.0.path()).env_remove("RUST_LOG");
        command
    }
}

fn published(version: u64) -> Publication {
    Publication {
        origin: 1,
        version: Version::new(version),
        tag: VersionTag::step(version),
        published_ns: 1_000_000 * version,
        complete_ns: 1_000_000 * version + 1,
        digests: [("w".into(), [version as u8; 32])].into(),
    }
}

/// A read of a version half a millisecond after its publication.
fn read(version: u64) -> Certificate {
    let Publication { origin, version, tag, published_ns, digests, .. } = published(version);
    let (began_ns, ended_ns) = (published_ns + 500_000, published_ns + 500_001);
    let (max_staleness, at_least, exactly) = (None, None, None);
    Certificate {
        reader: 2,
        sequence: version.get(),
        max_staleness,
        at_least,
        exactly,
        began_ns,
        ended_ns,
        epoch: origin,
        origin,
        version,
        newest: version,
        tag,
        published_ns,
        digests,
    }
}

fn lines<R: ToString>(records: impl IntoIterator<Item = R>) -> String {
    records.into_iter().map(|record| record.to_string() + "\n").collect()
}

fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn traces_without_a_violation_give_a_table_and_success() {
    let traces = Traces::new();
    traces.write("publisher.jsonl", lines((1..=3).map(published)));
    traces.write("reader.jsonl", "\n".to_string() + &lines((1..=3).map(read)));
    let output = traces.check(&["reader.jsonl", "publisher.jsonl"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table: Vec<Vec<&str>> =
        stdout(&output).lines().map(|line| line.split_whitespace().collect()).collect();
    let heading = vec!["publications", "reads", "verified", "unverified", "violations"];
    assert_eq!(table, [heading, vec!["3", "3", "3", "0", "0"]]);
}

#[test]
fn each_violation_is_a_sentence_with_file_and_line() {
    let traces = Traces::new();
    let mut torn = read(2);
    torn.digests.insert("w".into(), [1; 32]);
    traces.write("publisher.jsonl", lines((1..=3).map(published)));
    traces.write("reader.jsonl", lines([read(1), torn, read(3)]));
    let output = traces.check(&["publisher.jsonl", "reader.jsonl"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = "reader.jsonl:2: not whole: the bytes of `w` are not those of version 2 of origin \
                0000000000000001 (publisher.jsonl:2)";
    assert!(stdout(&output).lines().any(|line| line == told), "{output:?}");

    let output = traces.check(&["publisher.jsonl", "reader.jsonl", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counts =
        ["publications", "reads", "verified", "unverified"].map(|name| verdict[name].as_u64().unwrap());
    assert_eq!(counts, [3, 3, 2, 0]);
    let violations = verdict["violations"].as_array().unwrap();
    assert_eq!((violations.len(), &violations[0]["property"]), (1, &"whole".into()));
    assert_eq!(
        (&violations[0]["at"]["file"], &violations[0]["at"]["line"]),
        (&"reader.jsonl".into(), &2.into())
    );
    assert_eq!(violations[0]["against"]["line"], 2);
}

#[test]
fn a_trace_comes_from_standard_input_and_clocks_may_differ() {
    let traces = Traces::new();
    // The reader's clock is three milliseconds ahead.
    let ahead = (1..=3).map(|version| Certificate {
        began_ns: read(version).began_ns + 3_000_000,
        ended_ns: read(version).ended_ns + 3_000_000,
        ..read(version)
    });
    let both = lines((1..=3).map(published)) + &lines(ahead);
    for (error, code) in [("0", 1), ("3", 0)] {
        let mut command = traces.command(&["-", "--clock-error", error]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(both.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
}

#[test]
fn what_is_no_trace_is_a_usage_error_that_names_file_and_line() {
    let traces = Traces::new();
    let good = lines((1..=2).map(published));
    traces.write("malformed.jsonl", good.clone() + "{\"publication\":{}}\n" + &good);
    traces.write("binary.jsonl", [good.as_bytes(), b"\xff\xfe\n"].concat());
    for (arguments, told) in [
        (&["malformed.jsonl"][..], "malformed.jsonl:3: the line is no record (missing field `origin`"),
        (&["binary.jsonl"], "binary.jsonl:3: the line is no text"),
        (&["missing.jsonl"], "missing.jsonl: "),
        (&["."], ".: "),
        (&[], "TRACE|-"),
        (&["malformed.jsonl", "--clock-error", "soon"], "--clock-error"),
    ] {
        let output = traces.check(arguments);
        let text = str::from_utf8(&output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty() && text.contains(told), "{arguments:?}: {text}");
    }
}

#[test]
fn the_last_line_of_a_process_that_was_killed_is_left_out_and_told() {
    let traces = Traces::new();
    let whole = lines((1..=3).map(published)) + &lines((1..=3).map(read));
    traces.write("cut.jsonl", &whole[..whole.len() - 20]);
    let output = traces.check(&["cut.jsonl"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout(&output).contains("cut.jsonl:6: the last line is not finished"), "{output:?}");
    let json = traces.check(&["cut.jsonl", "--json"]);
    let verdict: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&verdict["reads"], &verdict["unfinished"][0]["line"]), (&2.into(), &6.into()));
    traces.write("whole.jsonl", whole.trim_end());
    assert!(
        stdout(&traces.check(&["whole.jsonl"])).contains("3      3"),
        "a record without its newline is one"
    );
}

#[test]
fn files_without_a_record_are_no_traces_whatever_they_end_with() {
    let traces = Traces::new();
    let beginning = &published(1).to_string()[..40];
    traces.write("publisher.jsonl", lines((1..=3).map(published)));
    traces.write("empty.jsonl", "");
    traces.write("blank.jsonl", "\n \n");
    traces.write("begun.jsonl", beginning);
    traces.write("garbage.jsonl", "this is no trace");
    traces.write("other.jsonl", "[1, 2");
    for (arguments, told) in [
        (&["empty.jsonl"][..], "there is no record in empty.jsonl\nhelp: "),
        (&["empty.jsonl", "blank.jsonl"], "there is no record in empty.jsonl, blank.jsonl\nhelp: "),
        (&["begun.jsonl"], "there is no record in begun.jsonl\nhelp: "),
        (&["garbage.jsonl", "publisher.jsonl"], "garbage.jsonl:1: the line is no record"),
        (&["publisher.jsonl", "other.jsonl"], "other.jsonl:1: the line is no record"),
    ] {
        let output = traces.check(arguments);
        let text = str::from_utf8(&output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty() && text.contains(told), "{arguments:?}: {text}");
    }
    let output = traces.check(&["publisher.jsonl", "empty.jsonl", "begun.jsonl"]);
    assert_eq!(output.status.code(), Some(0), "a process may be killed before its first record: {output:?}");
    assert!(stdout(&output).contains("begun.jsonl:1: the last line is not finished"), "{output:?}");
}
