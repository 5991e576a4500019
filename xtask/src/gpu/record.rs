//! The record of a run on a GPU: a file for programs, and the page that is made of it.

use super::unusable;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::harness::{Outcome, Target};
use crate::site::Site;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

/// The version of the file's form.
pub(super) const FORM: u64 = 1;

/// Lines of a failed test that are kept.
const LINES: usize = 30;

/// One test, by name.
#[derive(Debug)]
pub(super) struct GpuTest {
    pub(super) name: String,
    pub(super) result: String,
    /// What a test that is ok has noted, or the end of what a failed one has printed.
    notes: Vec<String>,
}

impl GpuTest {
    pub(super) fn of(name: &str, output: &Output, is_late: bool) -> GpuTest {
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let is_ok = output.status.success() && text.contains(&format!("test {name} ... ok"));
        if is_ok {
            let notes = text.lines().filter_map(|line| line.strip_prefix("note: ")).map(String::from);
            return GpuTest { name: name.into(), result: "ok".into(), notes: notes.collect() };
        }
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let end = lines[lines.len().saturating_sub(LINES)..].iter().map(|line| line.to_string());
        let why = if is_late { "its time was up".into() } else { output.status.to_string() };
        GpuTest { name: name.into(), result: format!("FAILED ({why})"), notes: end.collect() }
    }

    /// The same test, as compute-sanitizer has watched it.
    pub(super) fn watched(mut self) -> GpuTest {
        self.name += ", watched by compute-sanitizer";
        self
    }
}

/// A test with something left out of the library.
#[derive(Debug)]
pub(super) struct LeftOut {
    mutant: &'static str,
    test: &'static str,
    pub(super) result: &'static str,
}

impl LeftOut {
    pub(super) fn of(mutant: &'static str, test: &'static str, output: &Output, is_late: bool) -> LeftOut {
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let result = match output.status.success() {
            _ if is_late => "not noticed in its time",
            true => "not noticed",
            false if text.contains(&format!("test {test} ... FAILED")) => "noticed",
            false => "noticed: the program has ended",
        };
        LeftOut { mutant, test, result }
    }
}

/// What a tool of this machine says, if it is there.
pub(super) fn said(site: &Site, program: &str, arguments: &[&str]) -> Option<String> {
    Cmd::new(program, arguments).output(site).map(|text| text.trim().to_owned())
}

/// What was found out about this machine and the GPU that the rows are of, as far as its tools say.
pub(super) fn machine(said: &dyn Fn(&str, &[&str]) -> Option<String>, rows: &Output) -> Map<String, Value> {
    let mut facts = Map::new();
    let mut add = |name: &str, fact: Option<String>| {
        facts.insert(name.into(), fact.unwrap_or_else(|| "not known".into()).into());
    };
    add("made", said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]));
    add("kernel", said("uname", &["-r"]));
    let module = fs::read_to_string("/proc/driver/nvidia/version").ok();
    add("kernel module", module.and_then(|text| text.lines().next().map(String::from)));
    let fields = [
        "driver_version",
        "memory.total",
        "pcie.link.gen.current",
        "pcie.link.width.current",
        "clocks.sm",
        "clocks.mem",
        "mig.mode.current",
        "compute_mode",
    ];
    // By its address: nvidia-smi counts all GPUs, and CUDA those of CUDA_VISIBLE_DEVICES.
    let heading = lines_of(rows).next().unwrap_or_default();
    let address = heading["device"]["PCI address"].as_str();
    let of_gpu = |arguments: &[&str]| said("nvidia-smi", &[&["-i", address?][..], arguments].concat());
    for field in fields {
        add(field, of_gpu(&[&format!("--query-gpu={field}"), "--format=csv,noheader"]));
    }
    let memory = of_gpu(&["-q", "-d", "MEMORY"]);
    add("BAR1", memory.as_deref().and_then(bar1));
    let mps = Path::new("/tmp/nvidia-mps").exists() || std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").is_some();
    if let Some(version) = said(super::SANITIZER, &["--version"]) {
        add(super::SANITIZER, version.lines().last().map(String::from));
    }
    add("MPS", Some(if mps { "its pipes are there" } else { "no" }.into()));
    facts
}

/// What the program of the rows has said: the device with the names of the rows, and then the rows.
fn lines_of(rows: &Output) -> impl Iterator<Item = Value> {
    let text = String::from_utf8_lossy(&rows.stdout);
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    lines.into_iter()
}

/// Total, used and free BAR1 out of what `nvidia-smi -q -d MEMORY` says.
fn bar1(text: &str) -> Option<String> {
    let (_, section) = text.split_once("BAR1 Memory Usage")?;
    let facts = section.lines().skip(1).take(3).filter_map(|line| line.split_once(':'));
    let facts: Vec<String> =
        facts.map(|(name, value)| format!("{} {}", name.trim().to_lowercase(), value.trim())).collect();
    (!facts.is_empty()).then(|| facts.join(", "))
}

/// A record, as its file has it.
pub(super) struct GpuRecord(pub(super) Value);

impl GpuRecord {
    pub(super) fn new(
        about: &Value,
        machine: Map<String, Value>,
        tests: Vec<GpuTest>,
        left_out: Vec<LeftOut>,
        rows: &Output,
    ) -> GpuRecord {
        let mut lines = lines_of(rows);
        let heading = lines.next().unwrap_or_default();
        let measured: Vec<Value> = lines.collect();
        let named = heading["names"].as_array().cloned().unwrap_or_default();
        let rows_of = |name: &Value| match measured.iter().find(|row| row["name"] == *name) {
            Some(row) => row_of(row),
            None => row_of(&json!({ "name": name, "failure": "no time was left, or the program has ended" })),
        };
        let mut recorded: Vec<Value> = named.iter().map(rows_of).collect();
        if recorded.is_empty() {
            let said = String::from_utf8_lossy(&rows.stderr);
            recorded.push(row_of(&json!({ "name": "all rows", "failure": said.trim() })));
        }
        let tests = tests.into_iter();
        let tests: Vec<Value> = tests
            .map(|test| json!({ "name": test.name, "result": test.result, "notes": test.notes }))
            .collect();
        let left_out = left_out.into_iter();
        let left_out: Vec<Value> = left_out
            .map(|entry| json!({ "left_out": entry.mutant, "test": entry.test, "result": entry.result }))
            .collect();
        let device = heading["device"].as_object().cloned().unwrap_or_default();
        GpuRecord(json!({
            "form": FORM, "commit": about["commit"], "sources": about["sources"],
            "device": device, "machine": machine, "tests": tests,
            "left_out": left_out, "rows": recorded,
        }))
    }

    /// The names of the tests and rows that have failed. A goal that is missed is none, and neither is something left
    /// out that a test has not noticed: whether one can depends on the device.
    pub(super) fn failed(&self) -> Vec<String> {
        let of = |list: &str, field: &str, good: fn(&str) -> bool| -> Vec<String> {
            let entries = self.0[list].as_array().into_iter().flatten();
            let bad = entries.filter(|entry| !entry[field].as_str().is_some_and(good));
            bad.map(|entry| text_of(&entry["name"])).collect()
        };
        let tests = of("tests", "result", |result| result == "ok");
        [tests, of("rows", "verdict", |verdict| !verdict.starts_with("failed"))].concat()
    }

    /// Writes the file and its page into a folder; the path of the file.
    pub(super) fn write(&self, folder: &Path) -> Result<PathBuf, Failure> {
        let device = self.0["device"]["name"].as_str().unwrap_or("gpu");
        let words = device.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let words: Vec<String> = words.map(str::to_lowercase).collect();
        let name = format!("{}-{}", words.join("-"), text_of(&self.0["commit"]));
        let (file, page) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.md")));
        let written = fs::create_dir_all(folder)
            .and_then(|()| fs::write(&file, format!("{:#}\n", self.0)))
            .and_then(|()| fs::write(&page, self.page()));
        written.map_err(|error| unusable(&file.display().to_string(), &error))?;
        Ok(file)
    }

    /// The rows, a line each.
    pub(super) fn rows(&self) -> String {
        let mut text = String::new();
        for row in self.0["rows"].as_array().into_iter().flatten() {
            let ratio = row["ratio"].as_f64().map_or(String::new(), |ratio| format!("ratio {ratio:.3}, "));
            let _ = writeln!(text, "{}: {ratio}{}", text_of(&row["name"]), text_of(&row["verdict"]));
        }
        text
    }

    /// The record for people.
    pub(super) fn page(&self) -> String {
        let record = &self.0;
        let list = |name: &str| record[name].as_array().into_iter().flatten();
        let mut page = format!(
            "# {}\n\nCommit {}; `cuda/` and `src/cuda/` have the hash {}. Made by `cargo xtask gpu`.\n\n",
            text_of(&record["device"]["name"]),
            text_of(&record["commit"]),
            text_of(&record["sources"]),
        );
        page += "| device and machine | |\n| --- | --- |\n";
        for (name, fact) in ["device", "machine"].iter().filter_map(|part| record[part].as_object()).flatten()
        {
            let _ = writeln!(page, "| {name} | {} |", cell(&text_of(fact)));
        }
        page += "\n| test | result | |\n| --- | --- | --- |\n";
        for test in list("tests") {
            let notes = test["notes"].as_array().into_iter().flatten().map(text_of);
            let notes: Vec<String> = match test["result"] == "ok" {
                true => notes.map(|note| cell(&note)).collect(),
                false => why(&notes.collect::<Vec<_>>()).map(|line| cell(&line)).into_iter().collect(),
            };
            let (name, result) = (text_of(&test["name"]), cell(&text_of(&test["result"])));
            let _ = writeln!(page, "| {name} | {result} | {} |", notes.join("<br>"));
        }
        page += "\nWith something left out of the library (a mutant of its tests), a test should fail:\n\n\
                 | left out | test | |\n| --- | --- | --- |\n";
        for entry in list("left_out") {
            let [left_out, test, result] = ["left_out", "test", "result"].map(|field| text_of(&entry[field]));
            let _ = writeln!(page, "| {left_out} | {test} | {result} |");
        }
        page += "\nOurs and the limit are medians, the ratio is the median of the ratios of pairs measured by turns, \
                 and the spread\nhas the smallest and the largest of them.\n\n\
                 | row | ours | limit | its | ratio | spread | goal | |\n\
                 | --- | --- | --- | --- | --- | --- | --- | --- |\n";
        for row in list("rows") {
            let number = |value: &Value| value.as_f64().map_or(String::new(), |value| format!("{value:.3}"));
            let figure =
                |value: &Value| value.as_f64().map_or(String::new(), |value| shown(value, &row["unit"]));
            let spread = [&row["spread"][0], &row["spread"][1]].map(number).join(" to ");
            let spread = if row["spread"].is_array() { spread } else { String::new() };
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} | {} | {spread} | {} | {} |",
                text_of(&row["name"]),
                figure(&row["ours"]),
                text_of(&row["against"]),
                figure(&row["limit"]),
                number(&row["ratio"]),
                text_of(&row["goal"]),
                cell(&text_of(&row["verdict"])),
            );
        }
        page
    }
}

/// The line by which a failed test says why, out of what is kept of its output: the message of its panic, or else the
/// last line.
fn why(lines: &[String]) -> Option<String> {
    let panic = lines.iter().position(|line| line.contains("panicked at"));
    panic.and_then(|panic| lines.get(panic + 1)).or(lines.last()).cloned()
}

/// A row with its medians, spread and verdict, out of what was measured.
pub(super) fn row_of(measured: &Value) -> Value {
    let bound = |name: &str| measured[name].as_f64();
    let target = match (bound("at_least"), bound("at_most")) {
        (Some(least), _) => Target::AtLeast(least),
        (_, Some(most)) => Target::AtMost(most),
        _ => Target::None,
    };
    let pairs = measured["pairs"].as_array().into_iter().flatten();
    let pairs: Vec<(f64, f64)> =
        pairs.filter_map(|pair| Some((pair[0].as_f64()?, pair[1].as_f64()?))).collect();
    let reason = |name: &str| measured[name].as_str().map(String::from);
    let outcome = Outcome { pairs, missing: reason("missing"), failure: reason("failure") };
    let medians = outcome.medians();
    let ratios = || outcome.pairs.iter().map(|(ours, limit)| ours / limit);
    let spread = medians.map(|_| [ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max)]);
    json!({
        "name": measured["name"], "against": measured["against"], "unit": measured["unit"],
        "goal": target.to_string(), "ours": medians.map(|(ours, ..)| ours),
        "limit": medians.map(|(_, limit, _)| limit), "ratio": medians.map(|(.., ratio)| ratio),
        "spread": spread, "verdict": outcome.verdict(target), "pairs": outcome.pairs,
    })
}

fn shown(value: f64, unit: &Value) -> String {
    match unit.as_str() {
        Some("bytes_per_s") => format!("{:.1} GB/s", value / 1e9),
        Some("ns") => format!("{:.1} us", value / 1e3),
        _ => format!("{:.2} ms", value * 1e3),
    }
}

/// A value without quotation marks.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A text that stands in a cell of a table.
fn cell(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join("<br>").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_medians_spread_and_goal_and_missed_is_said() {
        let pairs = [(1.0, 2.0), (3.0, 2.0), (2.0, 2.0)];
        let row = row_of(&json!({ "name": "r", "at_least": 1.1, "pairs": pairs }));
        assert_eq!((&row["ratio"], &row["spread"]), (&json!(1.0), &json!([0.5, 1.5])));
        assert_eq!((&row["goal"], &row["verdict"]), (&json!(">= 1.10"), &json!("missed")));
        let absent = row_of(&json!({ "name": "r", "missing": "no RDMA" }));
        assert_eq!((&absent["ratio"], &absent["verdict"]), (&Value::Null, &json!("not measured: no RDMA")));
    }

    fn output(text: &str) -> Output {
        Output { status: std::process::ExitStatus::default(), stdout: text.into(), stderr: Vec::new() }
    }

    #[test]
    fn the_machines_tools_are_asked_for_the_gpu_that_the_rows_are_of() {
        let asked = std::cell::RefCell::new(Vec::new());
        let said = |program: &str, arguments: &[&str]| {
            asked.borrow_mut().push((program.to_owned(), arguments.join(" ")));
            Some("an answer".into())
        };
        let heading = json!({ "device": { "PCI address": "0000:9a:00.0" }, "names": [] });
        let facts = machine(&said, &output(&heading.to_string()));
        assert_eq!(facts["clocks.sm"], "an answer");
        let asked = asked.take();
        let mut queries = asked.iter().filter(|(program, _)| program == "nvidia-smi").map(|(_, query)| query);
        assert!(queries.clone().count() > 5 && queries.all(|query| query.starts_with("-i 0000:9a:00.0 -")));
        // Of no known GPU nothing is said.
        let facts = machine(&said, &output("no heading"));
        assert_eq!((&facts["clocks.sm"], &facts["BAR1"]), (&json!("not known"), &json!("not known")));
    }

    #[test]
    fn a_test_that_is_not_named_in_the_output_has_not_passed() {
        let of = |text: &str, is_late| GpuTest::of("a", &output(text), is_late).result;
        assert_eq!(of("test a ... ok", false), "ok");
        assert!(of("running 0 tests", false).starts_with("FAILED"));
        assert_eq!(of("running 1 test", true), "FAILED (its time was up)");
    }

    #[test]
    fn a_failed_test_stands_on_the_page_with_the_message_of_its_panic() {
        let page = |notes: &[&str], result: &str| {
            let test = json!({ "name": "t", "result": result, "notes": notes });
            GpuRecord(json!({ "tests": [test] })).page()
        };
        let output =
            ["running 1 test", "thread 't' (7) panicked at t.rs:6:5:", "3 are | fewer", "stack backtrace:"];
        assert!(page(&output, "FAILED (1)").contains("| t | FAILED (1) | 3 are \\| fewer |\n"));
        assert!(page(&output[..1], "FAILED (1)").contains("| t | FAILED (1) | running 1 test |\n"));
        assert!(page(&["a", "b"], "ok").contains("| t | ok | a<br>b |\n"));
        assert!(page(&[], "FAILED (1)").contains("| t | FAILED (1) |  |\n"));
    }

    #[test]
    fn bar1_is_read_out_of_its_section() {
        let text = "FB Memory Usage\n  Total : 80 MiB\nBAR1 Memory Usage\n  Total    : 131072 MiB\n  Used : 1 MiB\n  \
                    Free : 131071 MiB\nConf\n";
        assert_eq!(bar1(text).unwrap(), "total 131072 MiB, used 1 MiB, free 131071 MiB");
        assert_eq!(bar1("nothing"), None);
    }
}
