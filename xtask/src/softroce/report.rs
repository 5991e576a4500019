//! The table and the JSON of what came of the runs.

use super::console::{Check, Verdict};
use super::defects::Defect;
use super::judge::{Judgement, RunOutcome, judge};
use super::ratio::Ratio;
use crate::table;
use serde_json::{Value, json};

/// The outcomes, with their judgements under one kernel's defects.
pub(super) struct RigReport {
    kernel: String,
    rows: Vec<(RunOutcome, Judgement)>,
}

impl RigReport {
    pub(super) fn new(kernel: &str, outcomes: Vec<RunOutcome>, defects: &[Defect]) -> RigReport {
        let judged = |outcome: RunOutcome| {
            let judgement = judge(&outcome, defects);
            (outcome, judgement)
        };
        RigReport { kernel: kernel.into(), rows: outcomes.into_iter().map(judged).collect() }
    }

    /// The names of the runs that are not good.
    pub(super) fn failed(&self) -> Vec<&'static str> {
        let failed = self.rows.iter().filter(|(_, judgement)| !judgement.complaints.is_empty());
        failed.map(|(outcome, _)| outcome.run.name).collect()
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut rows = vec![["run", "result", "checks", "time"].map(String::from)];
        let mut figures = vec![["figure", "bytes", "perftest", ""].map(String::from)];
        let mut remarks = String::new();
        for (outcome, judgement) in &self.rows {
            let verdict = if judgement.complaints.is_empty() { "ok" } else { "FAILED" };
            let took = format!("{:.1} s", outcome.took.as_secs_f64());
            rows.push([outcome.run.name.into(), verdict.into(), outcome.checks.len().to_string(), took]);
            figures.extend(outcome.figures.iter().map(|figure| {
                let name = format!("{}: {}", outcome.run.name, figure.name);
                [name, figure.bytes.to_string(), figure.value.to_string(), figure.unit.into()]
            }));
            for (word, texts) in [
                ("measured", &outcome.measured),
                ("FAILED", &judgement.complaints),
                ("note", &judgement.notes),
            ] {
                texts.iter().for_each(|text| remarks += &format!("{word}: {}: {text}\n", outcome.run.name));
            }
        }
        let mut ratios = vec![Ratio::HEADING.map(String::from)];
        ratios.extend(self.rows.iter().flat_map(|(outcome, _)| &outcome.ratios).map(Ratio::row));
        let laid = |has_rows: bool, text: String| if has_rows { text + "\n" } else { String::new() };
        let figures = laid(figures.len() > 1, table::layout(&figures));
        let ratios = laid(ratios.len() > 1, table::layout(&ratios));
        format!("{figures}{ratios}{}{remarks}", table::layout(&rows))
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let runs: Vec<Value> = self.rows.iter().map(|(outcome, judgement)| row(outcome, judgement)).collect();
        json!({ "kernel": self.kernel, "runs": runs })
    }
}

fn row(outcome: &RunOutcome, judgement: &Judgement) -> Value {
    let checks: Vec<Value> = outcome.checks.iter().map(check).collect();
    let figures: Vec<Value> = outcome
        .figures
        .iter()
        .map(|figure| {
            json!({ "name": figure.name, "bytes": figure.bytes, "value": figure.value, "unit": figure.unit })
        })
        .collect();
    json!({
        "name": outcome.run.name,
        "guests": outcome.run.guests.count(),
        "ok": judgement.complaints.is_empty(),
        "seconds": outcome.took.as_secs_f64(),
        "checks": checks,
        "figures": figures,
        "ratios": outcome.ratios.iter().map(|ratio| ratio.0.clone()).collect::<Vec<_>>(),
        "measured": outcome.measured,
        "complaints": judgement.complaints,
        "notes": judgement.notes,
    })
}

fn check(check: &Check) -> Value {
    let (verdict, reason) = match &check.verdict {
        Verdict::Ok => ("ok", ""),
        Verdict::Failed(reason) => ("failed", reason.as_str()),
        Verdict::Skipped(reason) => ("skipped", reason.as_str()),
    };
    json!({ "name": check.name, "verdict": verdict, "reason": reason })
}

#[cfg(test)]
mod tests {
    use super::super::perftest::Figure;
    use super::super::runs::RUNS;
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_report_names_what_failed_and_why() {
        let outcome = |name: &str, verdict| RunOutcome {
            run: RUNS.iter().find(|run| run.name == name).unwrap(),
            checks: vec![Check { name: "a".into(), verdict }],
            figures: vec![Figure { name: "a".into(), bytes: 8, value: 13.6, unit: "us" }],
            ratios: Vec::new(),
            measured: vec!["1 s".into()],
            end: Ok(0),
            is_counted: true,
            took: Duration::from_millis(1250),
        };
        let outcomes = vec![outcome("perftest", Verdict::Ok), outcome("peer", Verdict::Failed("why".into()))];
        let report = RigReport::new("6.1.0", outcomes, &[]);
        assert_eq!(report.failed(), ["peer"]);
        let text = report.text();
        assert!(text.contains("perftest: a  8      13.6      us\n"), "{text}");
        assert!(text.contains("perftest  ok      1       1.2 s\n"), "{text}");
        assert!(text.contains("measured: perftest: 1 s\n"), "{text}");
        assert!(text.ends_with("FAILED: peer: a failed: why\n"), "{text}");
        let json = report.json();
        assert_eq!(json["runs"][0]["figures"][0]["value"], 13.6);
        assert_eq!(json["runs"][1]["ok"], false);
        assert_eq!(json["runs"][1]["checks"][0]["reason"], "why");
    }
}
