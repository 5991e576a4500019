//! The table of what is promised.

use super::probe::Probe;
use crate::harness::{Outcome, Target};
use serde_json::{Value, json};

/// One promise: a number of ours over one of a limit or a peer.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) ours: Probe,
    /// The name of the measurement with which ours is compared.
    pub(super) against: &'static str,
    pub(super) peer: Probe,
    pub(super) unit: Unit,
    pub(super) target: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    BytesPerSecond,
    Nanoseconds,
    Seconds,
}

impl Unit {
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Unit::BytesPerSecond => format!("{:.2} GB/s", value / 1e9),
            Unit::Nanoseconds if value < 1e4 => format!("{value:.1} ns"),
            Unit::Nanoseconds => format!("{:.2} ms", value / 1e6),
            Unit::Seconds => format!("{value:.2} s"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Unit::BytesPerSecond => "bytes_per_s",
            Unit::Nanoseconds => "ns",
            Unit::Seconds => "s",
        }
    }
}

impl Row {
    /// Returns the row with what was measured of it.
    pub(super) fn json(&self, outcome: &Outcome) -> Value {
        let medians = outcome.medians();
        let (at_least, at_most) = match self.target {
            Target::AtLeast(least) => (Some(least), None),
            Target::AtMost(most) => (None, Some(most)),
            Target::None => (None, None),
        };
        json!({
            "name": self.name,
            "against": self.against,
            "unit": self.unit.name(),
            "ours": medians.map(|(ours, ..)| ours),
            "peer": medians.map(|(_, peer, _)| peer),
            "ratio": medians.map(|(.., ratio)| ratio),
            "at_least": at_least,
            "at_most": at_most,
            "met": medians.map(|(.., ratio)| self.target.is_met_by(ratio)),
            "verdict": outcome.verdict(self.target),
            "pairs": outcome.pairs,
        })
    }
}

/// Bytes of parameters in a round.
const ROUND: &str = "100000000";

/// Every row. `quick` ones take fewer samples, and folds fewer parameters.
pub(super) fn all(quick: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for (size, few) in [("64K", "20000"), ("1M", "2000"), ("64M", "15")] {
        let bench = |words: &str| {
            let more = if quick { format!(" --iterations {few}") } else { String::new() };
            Probe::bench(&format!("{words} --bytes {size} --pin{more}"), "/bandwidth_bytes_per_s")
        };
        for (op, memcpy) in [("write", "--op memcpy"), ("pull", "--op memcpy --from-shared")] {
            rows.push(Row {
                name: format!("{op} {size}"),
                ours: bench(&format!("--op {op}")),
                against: "memcpy",
                peer: bench(memcpy),
                unit: Unit::BytesPerSecond,
                target: Target::AtLeast(0.9),
            });
        }
    }
    for (op, memcpy) in [("write", "--op memcpy"), ("pull", "--op memcpy --from-shared")] {
        let bench = |words: &str| {
            let more = if quick { " --iterations 15" } else { "" };
            Probe::bench(&format!("{words} --bytes 64M --threads 2{more}"), "/bandwidth_bytes_per_s")
        };
        rows.push(Row {
            name: format!("{op} 64M, threads: 2"),
            ours: bench(&format!("--op {op}")),
            against: "memcpy by 2 threads",
            peer: bench(memcpy),
            unit: Unit::BytesPerSecond,
            target: Target::AtLeast(0.9),
        });
    }
    rows.push(Row {
        name: "pinned read of 64M: copies nothing".into(),
        ours: Probe::bench("--op pinned-read --bytes 64M --pin", "/latency_ns/p50"),
        against: "the same of 64K",
        peer: Probe::bench("--op pinned-read --bytes 64K --pin", "/latency_ns/p50"),
        unit: Unit::Nanoseconds,
        target: Target::AtMost(1.5),
    });
    rows.extend(rounds(quick));
    rows.extend(folds(quick));
    rows.extend(words(quick));
    rows.extend(over_tcp(quick));
    rows.extend(super::schemes::rows(quick));
    rows
}

fn over_tcp(quick: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for (op, ucx) in [("write", "ucp_put_bw"), ("read", "ucp_get")] {
        for (size, bytes, copies, requests) in [("1M", 1 << 20, 8000, 2000), ("64M", 64 << 20, 60, 20)] {
            let against = [
                ("iperf3", Probe::Iperf, 0.9),
                (
                    "a bare copy of as much",
                    Probe::Tcp { words: format!("copy {bytes} {copies}"), pointer: "/bytes_per_s" },
                    0.9,
                ),
                (ucx, Probe::UcxTcp { test: ucx, bytes, iterations: requests }, 1.0),
            ];
            for (against, peer, least) in against {
                rows.push(Row {
                    name: format!("{op} {size} over tcp, against {against}"),
                    ours: Probe::bench(
                        &format!("--transport tcp --op {op} --bytes {size}"),
                        "/bandwidth_bytes_per_s",
                    ),
                    against,
                    peer,
                    unit: Unit::BytesPerSecond,
                    target: Target::AtLeast(least),
                });
            }
        }
    }
    let iterations = if quick { 20_000 } else { 100_000 };
    for (against, pointer) in [("a bare ping-pong", "/p50_ns"), ("one that blocks", "/blocking_ns")] {
        rows.push(Row {
            name: format!("write of 8 bytes over tcp, against {against}"),
            ours: Probe::bench(
                &format!("--transport tcp --op write --bytes 8 --iterations {iterations}"),
                "/latency_ns/p50",
            ),
            against,
            peer: Probe::Tcp { words: format!("ping {iterations}"), pointer },
            unit: Unit::Nanoseconds,
            target: Target::AtMost(1.3),
        });
    }
    rows
}

fn rounds(quick: bool) -> impl Iterator<Item = Row> {
    let count = if quick { "15" } else { "40" };
    let bare = [(1, "1M", 1 << 20), (2, "256K", 256 << 10)].map(|(workers, chunk, bytes)| Row {
        name: format!("round of 100 MB, workers: {workers}"),
        ours: Probe::bench(
            &format!("--op round --bytes {ROUND} --workers {workers} --chunk {chunk} --iterations {count}"),
            "/latency_ns/p50",
        ),
        against: "bare C",
        peer: Probe::Round { workers, chunk: bytes, bytes: ROUND, rounds: count },
        unit: Unit::Nanoseconds,
        target: Target::AtMost(1.1),
    });
    let borrowed = format!("--op round --bytes {ROUND} --borrow --iterations {count}");
    let in_place = Row {
        name: "round of 100 MB, slot borrowed, read in place".into(),
        ours: Probe::bench(&borrowed, "/latency_ns/p50"),
        against: "apply alone",
        peer: Probe::bench(&borrowed, "/apply_ns/p50"),
        unit: Unit::Nanoseconds,
        target: Target::AtMost(1.2),
    };
    bare.into_iter().chain([in_place])
}

fn folds(quick: bool) -> impl Iterator<Item = Row> {
    let (parameters, bytes) = if quick { ("25 M", "100000000") } else { ("100 M", "400000000") };
    let cases = [("sgd", "SGD", 1), ("sgd", "SGD", 2), ("adamw", "AdamW", 1), ("adamw", "AdamW", 2)];
    cases.into_iter().map(move |(optimizer, name, threads)| {
        let bench = |words: &str| {
            let words = format!("{words} --bytes {bytes} --threads {threads} --pin --iterations 7");
            Probe::bench(&words, "/bandwidth_bytes_per_s")
        };
        Row {
            name: format!("apply {name}, k = 4, {parameters}, threads: {threads}"),
            ours: bench(&format!("--op apply --k 4 --optimizer {optimizer}")),
            against: "triad",
            peer: bench("--op triad"),
            unit: Unit::BytesPerSecond,
            target: Target::AtLeast(0.85),
        }
    })
}

fn words(quick: bool) -> impl Iterator<Item = Row> {
    let iterations = if quick { 200_000 } else { 1_000_000 };
    let cases = [("write", "ucp_put_lat"), ("fetch-add", "ucp_fadd")];
    cases.into_iter().map(move |(op, test)| Row {
        name: format!("{op} of 8 bytes"),
        ours: Probe::bench(
            &format!("--op {op} --bytes 8 --pin --iterations {iterations}"),
            "/latency_ns/p50",
        ),
        against: test,
        peer: Probe::Ucx { test, iterations },
        unit: Unit::Nanoseconds,
        target: Target::AtMost(1.0),
    })
}

/// The same measurements of ours as the rows', each against that of an earlier commit.
pub(super) fn against_before(rows: Vec<Row>) -> Vec<Row> {
    let mut seen = Vec::new();
    let before = |row: Row| {
        let Probe::Bench { arguments, pointer } = row.ours else { return None };
        if seen.contains(&arguments) {
            return None;
        }
        seen.push(arguments.clone());
        let name =
            row.name.strip_suffix(&format!(", against {}", row.against)).unwrap_or(&row.name).to_owned();
        let peer = Probe::Before { arguments: arguments.clone(), pointer };
        let ours = Probe::Bench { arguments, pointer };
        Some(Row { name, ours, against: "before", peer, unit: row.unit, target: Target::None })
    };
    rows.into_iter().filter_map(before).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_was_not_measured_is_neither_met_nor_missed() {
        let row = &all(true)[0];
        let missing = Outcome { missing: Some("a tool".into()), ..Outcome::default() };
        assert_eq!(row.json(&missing)["met"], Value::Null);
        assert_eq!(row.json(&missing)["verdict"], "not measured: a tool");
        let measured = Outcome { pairs: vec![(10.0, 10.0)], ..Outcome::default() };
        assert_eq!(row.json(&measured)["met"], true);
    }

    #[test]
    fn what_was_before_is_measured_once_for_all_peers_of_a_measurement() {
        let rows = against_before(all(true));
        assert!(rows.iter().all(|row| matches!(row.peer, Probe::Before { .. })));
        assert_eq!(rows.iter().filter(|row| row.name == "write 1M over tcp").count(), 1);
    }
}
