//! The table of what is promised.

use super::probe::Probe;
use serde_json::{Value, json};
use std::fmt;

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

/// The bound that our number, divided by the peer's, must keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Nothing is promised: it is shown beside what is.
    None,
}

impl Target {
    fn is_met_by(self, ratio: f64) -> bool {
        match self {
            Target::AtLeast(least) => ratio >= least,
            Target::AtMost(most) => ratio <= most,
            Target::None => true,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::AtLeast(least) => write!(f, ">= {least:.2}"),
            Target::AtMost(most) => write!(f, "<= {most:.2}"),
            Target::None => f.write_str("none"),
        }
    }
}

/// The result of one row.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Our number and the peer's, as often as they were measured.
    pub(super) pairs: Vec<(f64, f64)>,
    /// The program that the peer needs and this machine lacks.
    pub(super) missing: Option<String>,
    pub(super) failure: Option<String>,
}

impl Outcome {
    /// Medians of ours, of the peer's, and of the ratios; `None` unless all was measured.
    pub(super) fn medians(&self) -> Option<(f64, f64, f64)> {
        if self.failure.is_some() || self.missing.is_some() {
            return None;
        }
        let of = |what: fn(&(f64, f64)) -> f64| median(self.pairs.iter().map(what).collect());
        Some((of(|pair| pair.0)?, of(|pair| pair.1)?, of(|pair| pair.0 / pair.1)?))
    }

    pub(super) fn verdict(&self, row: &Row) -> String {
        if let Some(failure) = &self.failure {
            return format!("failed: {}", failure.lines().collect::<Vec<_>>().join("; "));
        }
        if let Some(missing) = &self.missing {
            return format!("not measured: {}", missing.lines().collect::<Vec<_>>().join("; "));
        }
        match self.medians() {
            None => "not measured: no time was left; --minutes N gives more".into(),
            Some(_) if row.target == Target::None => "shown".into(),
            Some((.., ratio)) if row.target.is_met_by(ratio) => "met".into(),
            Some(_) => "missed".into(),
        }
    }

    pub(super) fn json(&self, row: &Row) -> Value {
        let medians = self.medians();
        let (at_least, at_most) = match row.target {
            Target::AtLeast(least) => (Some(least), None),
            Target::AtMost(most) => (None, Some(most)),
            Target::None => (None, None),
        };
        json!({
            "name": row.name,
            "against": row.against,
            "unit": row.unit.name(),
            "ours": medians.map(|(ours, ..)| ours),
            "peer": medians.map(|(_, peer, _)| peer),
            "ratio": medians.map(|(.., ratio)| ratio),
            "at_least": at_least,
            "at_most": at_most,
            "met": medians.map(|(.., ratio)| row.target.is_met_by(ratio)),
            "verdict": self.verdict(row),
            "pairs": self.pairs,
        })
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(pairs: &[(f64, f64)]) -> Outcome {
        Outcome { pairs: pairs.to_vec(), ..Outcome::default() }
    }

    #[test]
    fn a_row_is_met_only_by_a_measured_ratio() {
        let rows = all(true);
        let row = &rows[0];
        assert_eq!(outcome(&[(9.1, 10.0), (1.0, 10.0), (10.0, 10.0)]).verdict(row), "met");
        assert_eq!(outcome(&[(8.9, 10.0)]).verdict(row), "missed");
        assert!(outcome(&[]).verdict(row).starts_with("not measured"));
        let missing = Outcome { missing: Some("a tool".into()), ..outcome(&[(10.0, 10.0)]) };
        assert_eq!(missing.verdict(row), "not measured: a tool");
        assert_eq!(missing.json(row)["met"], Value::Null);
        let failed = Outcome { failure: Some("a\nb".into()), ..outcome(&[(10.0, 10.0)]) };
        assert_eq!(failed.verdict(row), "failed: a; b");
    }

    #[test]
    fn ratios_are_taken_within_pairs() {
        let (ours, peer, ratio) = outcome(&[(1.0, 1.0), (8.0, 10.0), (30.0, 20.0)]).medians().unwrap();
        assert_eq!((ours, peer, ratio), (8.0, 10.0, 1.0));
    }
}
