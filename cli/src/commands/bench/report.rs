//! Results as JSON, and as a table.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;
use serde_json::{Map, Value};

use super::error::BenchError;
use super::pin;
use super::timing::{Latency, Timing};

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

/// Writes JSON where it is wanted (`-`: standard output), and the table unless JSON goes to standard output.
pub(super) fn write(all: &[Measured], json: Option<&str>) -> Result<(), BenchError> {
    if json != Some("-") {
        print(&table(all))?;
    }
    let Some(target) = json else { return Ok(()) };
    let text = match all {
        [one] => serde_json::to_string_pretty(one),
        many => serde_json::to_string_pretty(many),
    };
    let text = text.map_err(std::io::Error::from).map_err(BenchError::system("write JSON"))? + "\n";
    if target == "-" {
        return print(&text);
    }
    std::fs::write(target, text).map_err(BenchError::system("write the file of --json"))
}

fn print(text: &str) -> Result<(), BenchError> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(BenchError::system("write to standard output"))
}

fn table(all: &[Measured]) -> String {
    let heading = ["op", "bytes", "iterations", "min", "p50", "p99", "p99.9", "max", "bandwidth", "CPU each"];
    let mut rows = vec![heading.map(String::from)];
    for one in all {
        let Latency { min, p50, p99, p999, max } = one.latency_ns;
        let [min, p50, p99, p999, max] = [min, p50, p99, p999, max].map(duration);
        let bandwidth = format!("{:.2} GB/s", one.bandwidth_bytes_per_s / 1e9);
        let (bytes, iterations) = (size(one.bytes), one.iterations.to_string());
        let cpu = one.cpu_ns_per_operation.map_or_else(|| "-".into(), duration);
        rows.push([one.op.into(), bytes, iterations, min, p50, p99, p999, max, bandwidth, cpu]);
    }
    let widths: [usize; 10] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .enumerate()
            .map(
                |(at, (cell, width))| {
                    if at == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
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
        let text = table(&[moved]);
        assert!(
            text.contains("Tcp.RetransSegs 3") && text.contains("CPU each") && text.contains("2.50 us"),
            "{text}"
        );
    }
}
