//! Results as JSON, and as a table.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use super::pin;
use super::timing::{Latency, Timing};
use crate::failure::Failure;
use crate::output;

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) op: &'static str,
    pub(super) transport: &'static str,
    pub(super) bytes: u64,
    pub(super) iterations: u64,
    /// Operations in one sample.
    pub(super) batch: u64,
    /// Bytes that one operation moves, which bandwidth counts.
    pub(super) bytes_moved: u64,
    pub(super) bandwidth_bytes_per_s: f64,
    /// Requests of one side a second where their bandwidth is measured, if requests are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) messages_per_s: Option<f64>,
    pub(super) latency_ns: Latency,
    /// The processor time of one operation in this process, user and system; of the requests whose bandwidth is
    /// measured, if there are such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_ns_per_operation: Option<f64>,
    /// Values that only this operation has.
    #[serde(flatten)]
    pub(super) more: Map<String, Value>,
    pub(super) machine: Machine,
    /// The same for people.
    #[serde(skip)]
    pub(super) notes: Vec<String>,
}

impl Measured {
    /// Bandwidth is by the median.
    pub(super) fn new(op: &'static str, bytes: u64, bytes_moved: u64, timing: Timing) -> Measured {
        Measured::over("shm", op, bytes, bytes_moved, timing)
    }

    /// The same over any transport.
    pub(super) fn over(
        transport: &'static str,
        op: &'static str,
        bytes: u64,
        bytes_moved: u64,
        timing: Timing,
    ) -> Measured {
        Measured {
            op,
            transport,
            bytes,
            iterations: timing.iterations,
            batch: timing.batch,
            bytes_moved,
            bandwidth_bytes_per_s: rate(bytes_moved, timing.latency.p50),
            messages_per_s: None,
            latency_ns: timing.latency,
            cpu_ns_per_operation: timing.cpu_ns,
            more: Map::new(),
            machine: Machine::look(),
            notes: Vec::new(),
        }
    }

    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Measured {
        self.more.insert(key.into(), value.into());
        self
    }

    /// Adds where the payloads of both sides were, if one was on a GPU.
    pub(super) fn in_memory(self, names: Option<[String; 2]>) -> Measured {
        let Some([own, peer]) = names else { return self };
        let note = format!("memory here {own}, of the other side {peer}");
        self.with("memory", own).with("peer_memory", peer).note(note)
    }

    /// Adds the counters of this host that have moved meanwhile.
    pub(super) fn counted(self, moved: &BTreeMap<String, u64>) -> Measured {
        if moved.is_empty() {
            return self;
        }
        let text: Vec<String> = moved.iter().map(|(name, more)| format!("{name} {more}")).collect();
        let measured = self.with("counters", serde_json::to_value(moved).unwrap_or_default());
        measured.note(format!("counters of this host, added meanwhile: {}", text.join(", ")))
    }

    /// Says that it was validated, if it was.
    pub(super) fn validated(self, is_validated: bool) -> Measured {
        if is_validated {
            self.with("validated", true).note("what arrived is what was sent".into())
        } else {
            self
        }
    }

    pub(super) fn note(mut self, note: String) -> Measured {
        self.notes.push(note);
        self
    }
}

/// Bytes per second.
pub(crate) fn rate(bytes: u64, nanos: f64) -> f64 {
    // A clock that did not move has measured nothing: the shortest time that it can show.
    bytes as f64 / nanos.max(1e-3) * 1e9
}

/// The machine on which it was measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
}

impl Machine {
    fn look() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let cpu =
            model.and_then(|rest| rest.split_once(':')).map_or(std::env::consts::ARCH, |(_, name)| name);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine { cpu: cpu.trim().into(), cores: pin::cores().len(), kernel: kernel.trim().into() }
    }
}

/// Where results go: a row of the table as soon as it is measured, and in the end the notes and JSON.
pub(super) struct Results<'a> {
    /// The file for JSON, or `-` for standard output, which then holds nothing else.
    json: Option<&'a Path>,
    /// Several are to come, so that JSON is a list, even if it has one at the end.
    are_many: bool,
    all: Vec<Measured>,
    /// The first row that could not be printed: what comes after it is measured and kept all the same.
    unprinted: Option<Failure>,
}

impl Results<'_> {
    /// Results of so many measurements. Nothing is measured that cannot be kept.
    pub(super) fn new(json: Option<&Path>, count: usize) -> Result<Results<'_>, Failure> {
        if let Some(file) = json.filter(|path| !is_stdout(path)) {
            output::check("--json", file)?;
        }
        Ok(Results { json, are_many: count > 1, all: Vec::new(), unprinted: None })
    }

    pub(super) fn add(&mut self, measured: Measured) {
        if self.unprinted.is_none() && !self.json.is_some_and(is_stdout) {
            let heading = if self.all.is_empty() { line(&HEADING) } else { String::new() };
            self.unprinted = output::print(&(heading + &row(&measured))).err();
        }
        self.all.push(measured);
    }

    /// Writes all that comes behind the rows. Where nothing was measured, that is nothing. The error is that of the
    /// first text that could not be written.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Results { json, are_many, all, unprinted } = self;
        if all.is_empty() {
            return Ok(());
        }
        let noted = match unprinted {
            Some(failure) => Err(failure),
            None if json.is_some_and(is_stdout) => Ok(()),
            None => output::print(&notes(&all)),
        };
        let Some(target) = json else { return noted };
        let text = match &all[..] {
            [one] if !are_many => serde_json::to_string_pretty(one),
            many => serde_json::to_string_pretty(many),
        };
        let text = text.map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))? + "\n";
        if is_stdout(target) {
            return output::print(&text);
        }
        let kept = output::keep("--json", target, &text);
        noted.and(kept)
    }
}

/// Whether this is the name of standard output.
fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

const COLUMNS: usize = 11;
const HEADING: [&str; COLUMNS] =
    ["op", "bytes", "iterations", "min", "p50", "p99", "p99.9", "max", "bandwidth", "messages/s", "CPU each"];
/// Wide enough for nearly all, so that a row can be printed before the next one is known.
const WIDTHS: [usize; COLUMNS] = [11, 9, 10, 9, 9, 9, 9, 9, 11, 10, 9];

fn row(one: &Measured) -> String {
    let Latency { min, p50, p99, p999, max } = one.latency_ns;
    let [min, p50, p99, p999, max] = [min, p50, p99, p999, max].map(duration);
    let bandwidth = bandwidth(one.bandwidth_bytes_per_s);
    let (bytes, iterations) = (size(one.bytes), one.iterations.to_string());
    let messages = one.messages_per_s.map_or_else(|| "-".into(), |count| scaled(count, "").trim_end().into());
    let cpu = one.cpu_ns_per_operation.map_or_else(|| "-".into(), duration);
    line(&[one.op.into(), bytes, iterations, min, p50, p99, p999, max, bandwidth, messages, cpu])
}

fn line<S: AsRef<str>>(cells: &[S; COLUMNS]) -> String {
    let cells: Vec<String> = (0..)
        .zip(cells)
        .zip(WIDTHS)
        .map(|((column, cell), width)| match (column, cell.as_ref()) {
            (0, cell) => format!("{cell:<width$}"),
            (_, cell) => format!("{cell:>width$}"),
        })
        .collect();
    cells.join("  ").trim_end().to_owned() + "\n"
}

/// What there is to tell of each, and of the machine.
fn notes(all: &[Measured]) -> String {
    let mut text = String::new();
    for one in all {
        if one.batch > 1 {
            text.push_str(&format!(
                "{}: percentiles of means of {} operations\n",
                size(one.bytes),
                one.batch
            ));
        }
        for note in &one.notes {
            text.push_str(&format!("{}: {note}\n", size(one.bytes)));
        }
    }
    if let Some(Machine { cpu, cores, kernel }) = all.first().map(|one| &one.machine) {
        text.push_str(&format!("on {cpu}, {cores} cores, Linux {kernel}\n"));
    }
    text
}

/// Bytes per second as people read them, in powers of 1000.
pub(super) fn bandwidth(bytes_per_s: f64) -> String {
    scaled(bytes_per_s, "B/s")
}

/// A number with the prefix that leaves three digits or fewer before the point.
fn scaled(number: f64, unit: &str) -> String {
    match number {
        _ if number < 1e3 => format!("{number:.1} {unit}"),
        _ if number < 1e6 => format!("{:.2} k{unit}", number / 1e3),
        _ if number < 1e9 => format!("{:.2} M{unit}", number / 1e6),
        _ => format!("{:.2} G{unit}", number / 1e9),
    }
}

/// Nanoseconds as people read them.
pub(crate) fn duration(nanos: f64) -> String {
    match nanos {
        _ if nanos < 1e3 => format!("{nanos:.1} ns"),
        _ if nanos < 1e6 => format!("{:.2} us", nanos / 1e3),
        _ if nanos < 1e9 => format!("{:.2} ms", nanos / 1e6),
        _ => format!("{:.2} s", nanos / 1e9),
    }
}

/// Bytes as people write them, in powers of 1024.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    let unit = units.iter().find(|(unit, _)| bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_moved_are_in_both_forms_of_a_result() {
        let timing =
            Timing { iterations: 1, batch: 1, latency: Latency::of(vec![1.0]), cpu_ns: Some(2500.0) };
        let measured = Measured::new("write", 8, 8, timing);
        let still = measured.clone().counted(&BTreeMap::new());
        assert!(!still.more.contains_key("counters") && still.notes.is_empty());
        let moved = measured.counted(&BTreeMap::from([("Tcp.RetransSegs".to_owned(), 3)]));
        assert_eq!(moved.more["counters"]["Tcp.RetransSegs"], 3);
        let text = notes(std::slice::from_ref(&moved));
        assert!(text.contains("Tcp.RetransSegs 3"), "{text}");
        assert!(row(&moved).ends_with("2.50 us\n"), "{}", row(&moved));
    }

    #[test]
    fn slow_rates_have_digits_and_requests_are_counted_in_the_table() {
        let rates = [12.0, 1234.0, 8.5e6, 1.5e11].map(bandwidth);
        assert_eq!(rates, ["12.0 B/s", "1.23 kB/s", "8.50 MB/s", "150.00 GB/s"]);
        let timing = Timing { iterations: 1, batch: 1, latency: Latency::of(vec![1e4]), cpu_ns: None };
        let mut measured = Measured::new("write", 8, 8, timing);
        assert!(row(&measured).ends_with("  800.00 kB/s           -          -\n"), "{}", row(&measured));
        measured.messages_per_s = Some(1e5);
        assert!(row(&measured).contains("  100.00 k  "), "{}", row(&measured));
        assert_eq!(serde_json::to_value(&measured).unwrap()["messages_per_s"], 1e5);
        let ends = |text: &str| {
            text.find("bandwidth").or(text.find("kB/s")).map(|at| at + text[at..].find("  ").unwrap())
        };
        assert_eq!(ends(&line(&HEADING)), ends(&row(&measured)), "a column is as wide as its heading");
    }
}
