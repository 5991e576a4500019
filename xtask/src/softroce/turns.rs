//! perftest and `slackline bench` by turns on one RDMA device (`cargo xtask softroce --bench`): how close the library
//! comes to what the device can do. It runs in a guest, where nothing can be built.
//!
//! ```text
//! xtask turns SLACKLINE PAIRS [ROW...]
//! ```
//!
//! Says `RATIO` and the JSON of each row as it is done, and whether it is good as the rig wants to hear it.

use super::perftest::Perftest;
use crate::failure::Failure;
use crate::harness::{self, Budget, Outcome, Side, Target};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One comparison.
struct TurnsRow {
    name: &'static str,
    /// perftest's program and how it is called.
    theirs: &'static [&'static str],
    /// `slackline bench`'s options.
    ours: &'static [&'static str],
    /// Operations of one measurement on a device in software, whose processor is emulated: a fraction of a second.
    emulated: u64,
    /// The same on an adapter: a quarter of a second at 400 Gbit/s, and a few at 25.
    adapter: u64,
    wanted: Target,
}

/// In the figures of perftest: one way for a write, there and back for the rest; 2^20 bytes to a MiB.
const ROWS: [TurnsRow; 7] = [
    TurnsRow {
        name: "write_bandwidth_64KiB",
        theirs: &["ib_write_bw", "-s", "65536"],
        ours: &["--op", "write", "--bytes", "64K"],
        emulated: 400,
        adapter: 200_000,
        wanted: Target::AtLeast(0.95),
    },
    TurnsRow {
        name: "write_bandwidth_1MiB",
        theirs: &["ib_write_bw", "-s", "1048576"],
        ours: &["--op", "write", "--bytes", "1M"],
        emulated: 48,
        adapter: 12_500,
        wanted: Target::AtLeast(0.95),
    },
    TurnsRow {
        name: "read_bandwidth_64KiB",
        theirs: &["ib_read_bw", "-s", "65536"],
        ours: &["--op", "read", "--bytes", "64K"],
        emulated: 400,
        adapter: 200_000,
        wanted: Target::AtLeast(0.95),
    },
    TurnsRow {
        name: "read_bandwidth_1MiB",
        theirs: &["ib_read_bw", "-s", "1048576"],
        ours: &["--op", "read", "--bytes", "1M"],
        emulated: 48,
        adapter: 12_500,
        wanted: Target::AtLeast(0.95),
    },
    TurnsRow {
        name: "write_latency_8B",
        theirs: &["ib_write_lat", "-s", "8"],
        ours: &["--op", "write", "--bytes", "8"],
        emulated: 2000,
        adapter: 100_000,
        wanted: Target::AtMost(1.1),
    },
    TurnsRow {
        name: "read_latency_8B",
        theirs: &["ib_read_lat", "-s", "8"],
        ours: &["--op", "read", "--bytes", "8"],
        emulated: 2000,
        adapter: 100_000,
        wanted: Target::AtMost(1.05),
    },
    TurnsRow {
        name: "fetch_add_latency",
        theirs: &["ib_atomic_lat", "-A", "FETCH_AND_ADD"],
        ours: &["--op", "fetch-add"],
        emulated: 2000,
        adapter: 100_000,
        wanted: Target::AtMost(1.05),
    },
];

/// Latencies are compared so many times as often: those of one process are up to twice those of the next, on either
/// side, by which processor the guest's kernel gives to the device.
const LATENCY_PAIRS: usize = 3;

impl TurnsRow {
    fn count(&self, is_adapter: bool) -> String {
        if is_adapter { self.adapter } else { self.emulated }.to_string()
    }
}

/// Whether there is hardware behind a device, by its folder: one in software has no driver.
pub(crate) fn is_adapter(device: &Path) -> bool {
    device.join("device/driver").exists()
}

/// The text of `slackline bench` on a device without atomics, which is no failure.
const NO_ATOMICS: &str = "the atomics of this RDMA device do not work";

/// The line about a row that was not measured.
fn without_figures(name: &str, verdict: &str) -> String {
    if verdict.contains(NO_ATOMICS) {
        return format!("MEASURED {name} NOT RUN, since the device has no atomics that work");
    }
    format!("RESULT {name} FAILED {verdict}")
}

/// Runs `xtask turns`.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let (Some(slackline), Some(Ok(pairs)), Ok(device)) =
        (arguments.first(), arguments.get(1).map(|text| text.parse()), std::env::var("SLACKLINE_RIG_DEVICE"))
    else {
        let usage = "usage: SLACKLINE_RIG_DEVICE=DEVICE xtask turns SLACKLINE PAIRS [ROW...]";
        return Err(Failure::Usage(usage.into()));
    };
    let names = &arguments[2..];
    let is_adapter = is_adapter(&Path::new("/sys/class/infiniband").join(&device));
    for row in ROWS.iter().filter(|row| names.is_empty() || names.iter().any(|name| name == row.name)) {
        let side = |_, _, side| match side {
            Side::Ours => bench(row, slackline, &device, row.count(is_adapter)),
            Side::Peer => perftest(row, &device, row.count(is_adapter)),
        };
        let pairs = if let Target::AtMost(_) = row.wanted { LATENCY_PAIRS * pairs } else { pairs };
        let mut outcome = [Outcome::default()];
        harness::measure(pairs, &mut outcome, Budget::new(Instant::now(), Duration::MAX), side, |_, _| true);
        let [outcome] = outcome;
        let Some(measured) = json(row, &outcome) else {
            println!("{}", without_figures(row.name, &outcome.verdict(row.wanted)));
            continue;
        };
        println!("RATIO {measured}");
        match measured["ok"].as_bool() {
            Some(true) => println!("RESULT {} ok", row.name),
            _ => println!("RESULT {} FAILED {} is not {}", row.name, measured["ratio"], measured["wanted"]),
        }
    }
    Ok(())
}

/// Returns the row as the rig reads it, if it was measured.
fn json(row: &TurnsRow, outcome: &Outcome) -> Option<Value> {
    let (ours, theirs, ratio) = outcome.medians()?;
    let rounded = |ratio: f64| (ratio * 1000.0).round() / 1000.0;
    Some(json!({
        "name": row.name,
        "unit": if matches!(row.wanted, Target::AtLeast(_)) { "MiB/s" } else { "us" },
        "perftest": rounded(theirs),
        "slackline": rounded(ours),
        "ratio": rounded(ratio),
        "ratios": outcome.pairs.iter().map(|(ours, theirs)| rounded(ours / theirs)).collect::<Vec<_>>(),
        "wanted": row.wanted.to_string(),
        "ok": row.wanted.is_met_by(ratio),
    }))
}

/// Ended when it is dropped.
struct PerftestServer(Child);

impl Drop for PerftestServer {
    fn drop(&mut self) {
        let _over_already = self.0.kill();
        let _reaped_already = self.0.wait();
    }
}

/// perftest's figure.
fn perftest(row: &TurnsRow, device: &str, count: String) -> Result<f64, String> {
    let call = |core: usize| {
        let mut command = Command::new("taskset");
        command
            .args(["-c", &core.to_string()])
            .args(row.theirs)
            .args(["-n", &count, "-d", device, "-F"])
            .stdin(Stdio::null());
        command
    };
    let failed = |error| format!("cannot run {}: {error}", row.theirs[0]);
    // As slackline's `--pin` does. Both sides spin, and left alone they may share a core for a while.
    let last = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
    let server = call(last).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _server = PerftestServer(server.map_err(failed)?);
    await_listener()?;
    let output = call(0).arg("127.0.0.1").output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut reader = Perftest::new(row.name);
    let figure = said.lines().find_map(|line| reader.hear(line));
    figure.map(|figure| figure.value).ok_or_else(|| {
        format!("{} gave no figure: {}", row.theirs[0], String::from_utf8_lossy(&output.stderr).trim())
    })
}

/// Waits until a process listens on perftest's port: the client tries only once.
fn await_listener() -> Result<(), String> {
    let begun = Instant::now();
    // Port 18515, in the state LISTEN.
    let listens = |line: &str| line.contains(":4853 ") && line.split_whitespace().nth(3) == Some("0A");
    loop {
        let tables =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| fs::read_to_string(file).unwrap_or_default());
        if tables.iter().flat_map(|table| table.lines()).any(listens) {
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(20) {
            return Err("perftest's server does not listen".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The same figure of `slackline bench`.
fn bench(row: &TurnsRow, slackline: &str, device: &str, count: String) -> Result<f64, String> {
    let mut command = Command::new(slackline);
    command
        .args(["bench", "--transport", "verbs", "--device", device, "--pin", "--json", "-"])
        .args(["--iterations", &count])
        .args(row.ours);
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("cannot run {slackline}: {error}"))?;
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let figure = match row.wanted {
        Target::AtLeast(_) => value["bandwidth_bytes_per_s"].as_f64().map(|rate| rate / f64::from(1 << 20)),
        Target::AtMost(_) | Target::None => value["latency_ns"]["p50"].as_f64().map(|nanos| nanos / 1e3),
    };
    let failed = || format!("slackline gave no figure: {}", String::from_utf8_lossy(&output.stderr).trim());
    figure.filter(|_| output.status.success()).ok_or_else(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_the_rig_reads() {
        let outcome = Outcome { pairs: vec![(11.0, 10.0), (12.0, 10.0)], ..Outcome::default() };
        let latency = ROWS.iter().find(|row| row.name == "write_latency_8B").unwrap();
        let said = json(latency, &outcome).unwrap();
        assert_eq!((&said["slackline"], &said["ratio"]), (&json!(11.5), &json!(1.15)));
        assert_eq!((&said["wanted"], &said["ok"]), (&json!("<= 1.10"), &json!(false)));
        assert_eq!(json(latency, &Outcome::default()), None);
    }

    #[test]
    fn an_adapter_is_given_work_for_a_fifth_of_a_second_at_400_gbit() {
        for row in ROWS.iter().filter(|row| matches!(row.wanted, Target::AtLeast(_))) {
            let bytes: u64 = row.theirs[2].parse().unwrap();
            assert!(bytes * row.adapter * 8 > 400_000_000_000 / 5, "{}", row.name);
            assert!(bytes * row.emulated < 100 << 20, "{}", row.name);
        }
        assert!(ROWS.iter().all(|row| !row.theirs.contains(&"-n") && row.count(true) != row.count(false)));
    }

    #[test]
    fn a_device_without_atomics_has_no_row_of_them_and_no_failure() {
        let said = "failed: slackline gave no figure: error: the atomics of this RDMA device do not work";
        assert!(without_figures("a", said).starts_with("MEASURED a NOT RUN"));
        let other = "failed: perftest's server does not listen";
        assert_eq!(without_figures("a", other), format!("RESULT a FAILED {other}"));
    }

    #[test]
    fn a_call_without_a_device_is_wrong() {
        assert_eq!(run(&[]).unwrap_err().exit_code(), 2);
    }
}
