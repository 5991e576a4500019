//! perftest and `slackline bench` by turns on one RDMA device (`cargo xtask softroce --bench`): how close the library
//! comes to what the device can do. It runs in a guest, where nothing can be built.
//!
//! ```text
//! turns SLACKLINE PAIRS [ROW...]
//! ```
//!
//! Says `RATIO` and the JSON of each row as it is done, and whether it is good as the rig wants to hear it.

#[path = "../softroce/perftest.rs"]
mod perftest;

use perftest::Perftest;
use serde_json::{Value, json};
use std::fs;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// One comparison.
struct Row {
    name: &'static str,
    /// perftest's program and how it is called.
    theirs: &'static [&'static str],
    /// `slackline bench`'s options.
    ours: &'static [&'static str],
    wanted: Wanted,
}

/// The bound that the ratio of ours to theirs is to keep.
#[derive(Clone, Copy)]
enum Wanted {
    /// Bandwidth.
    AtLeast(f64),
    /// Latency.
    AtMost(f64),
}

/// In the figures of perftest: one way for a write, there and back for the rest; 2^20 bytes to a MiB.
const ROWS: [Row; 7] = [
    Row {
        name: "write_bandwidth_64KiB",
        theirs: &["ib_write_bw", "-s", "65536", "-n", "400"],
        ours: &["--op", "write", "--bytes", "64K", "--iterations", "400"],
        wanted: Wanted::AtLeast(0.95),
    },
    Row {
        name: "write_bandwidth_1MiB",
        theirs: &["ib_write_bw", "-s", "1048576", "-n", "48"],
        ours: &["--op", "write", "--bytes", "1M", "--iterations", "48"],
        wanted: Wanted::AtLeast(0.95),
    },
    Row {
        name: "read_bandwidth_64KiB",
        theirs: &["ib_read_bw", "-s", "65536", "-n", "400"],
        ours: &["--op", "read", "--bytes", "64K", "--iterations", "400"],
        wanted: Wanted::AtLeast(0.95),
    },
    Row {
        name: "read_bandwidth_1MiB",
        theirs: &["ib_read_bw", "-s", "1048576", "-n", "48"],
        ours: &["--op", "read", "--bytes", "1M", "--iterations", "48"],
        wanted: Wanted::AtLeast(0.95),
    },
    Row {
        name: "write_latency_8B",
        theirs: &["ib_write_lat", "-s", "8", "-n", "2000"],
        ours: &["--op", "write", "--bytes", "8", "--iterations", "2000"],
        wanted: Wanted::AtMost(1.1),
    },
    Row {
        name: "read_latency_8B",
        theirs: &["ib_read_lat", "-s", "8", "-n", "2000"],
        ours: &["--op", "read", "--bytes", "8", "--iterations", "2000"],
        wanted: Wanted::AtMost(1.1),
    },
    Row {
        name: "fetch_add_latency",
        theirs: &["ib_atomic_lat", "-A", "FETCH_AND_ADD", "-n", "2000"],
        ours: &["--op", "fetch-add", "--iterations", "2000"],
        wanted: Wanted::AtMost(1.1),
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(slackline), Some(Ok(pairs)), Ok(device)) =
        (arguments.first(), arguments.get(1).map(|text| text.parse()), std::env::var("SLACKLINE_RIG_DEVICE"))
    else {
        eprintln!("usage: SLACKLINE_RIG_DEVICE=DEVICE turns SLACKLINE PAIRS [ROW...]");
        return ExitCode::from(2);
    };
    let names = &arguments[2..];
    for row in ROWS.iter().filter(|row| names.is_empty() || names.iter().any(|name| name == row.name)) {
        match compare(row, slackline, &device, pairs) {
            Ok(measured) => {
                println!("RATIO {measured}");
                match measured["ok"].as_bool() {
                    Some(true) => println!("RESULT {} ok", row.name),
                    _ => println!(
                        "RESULT {} FAILED {} is not {}",
                        row.name, measured["ratio"], measured["wanted"]
                    ),
                }
            }
            Err(error) => println!("RESULT {} FAILED {error}", row.name),
        }
    }
    ExitCode::SUCCESS
}

/// Measures both by turns, and takes the median of the pairs' ratios.
fn compare(row: &Row, slackline: &str, device: &str, pairs: usize) -> Result<Value, String> {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        theirs.push(perftest(row, device)?);
        ours.push(bench(row, slackline, device)?);
    }
    let mut ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
    let ratio = median(&mut ratios);
    let (unit, wanted, is_good) = match row.wanted {
        Wanted::AtLeast(least) => ("MiB/s", format!(">= {least}"), ratio >= least),
        Wanted::AtMost(most) => ("us", format!("<= {most}"), ratio <= most),
    };
    let rounded = |ratio: &f64| (ratio * 1000.0).round() / 1000.0;
    Ok(json!({
        "name": row.name,
        "unit": unit,
        "perftest": rounded(&median(&mut theirs.clone())),
        "slackline": rounded(&median(&mut ours.clone())),
        "ratio": rounded(&ratio),
        "ratios": ratios.iter().map(rounded).collect::<Vec<_>>(),
        "wanted": wanted,
        "ok": is_good,
    }))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.get(values.len() / 2), values.len() % 2) {
        (Some(upper), 0) => (values[values.len() / 2 - 1] + upper) / 2.0,
        (Some(middle), _) => *middle,
        (None, _) => f64::NAN,
    }
}

/// Ended when it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _over_already = self.0.kill();
        let _reaped_already = self.0.wait();
    }
}

/// perftest's figure.
fn perftest(row: &Row, device: &str) -> Result<f64, String> {
    let call = |core: usize| {
        let mut command = Command::new("taskset");
        command
            .args(["-c", &core.to_string()])
            .args(row.theirs)
            .args(["-d", device, "-F"])
            .stdin(Stdio::null());
        command
    };
    let failed = |error| format!("cannot run {}: {error}", row.theirs[0]);
    // As slackline's `--pin` does. Both sides spin, and left alone they may share a core for a while.
    let last = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
    let server = call(last).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _server = Server(server.map_err(failed)?);
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
fn bench(row: &Row, slackline: &str, device: &str) -> Result<f64, String> {
    let mut command = Command::new(slackline);
    command
        .args(["bench", "--transport", "verbs", "--device", device, "--pin", "--json", "-"])
        .args(row.ours);
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("cannot run {slackline}: {error}"))?;
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let figure = match row.wanted {
        Wanted::AtLeast(_) => value["bandwidth_bytes_per_s"].as_f64().map(|rate| rate / f64::from(1 << 20)),
        Wanted::AtMost(_) => value["latency_ns"]["p50"].as_f64().map(|nanos| nanos / 1e3),
    };
    let failed = || format!("slackline gave no figure: {}", String::from_utf8_lossy(&output.stderr).trim());
    figure.filter(|_| output.status.success()).ok_or_else(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
