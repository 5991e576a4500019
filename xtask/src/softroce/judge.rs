//! Whether a run is good, and if not, why.

use super::console::{Check, Verdict};
use super::defects::Defect;
use super::perftest::Figure;
use super::ratio::Ratio;
use super::runs::{Job, Run};
use std::time::Duration;

/// The outcome of one run.
#[derive(Debug)]
pub(super) struct RunOutcome {
    pub(super) run: &'static Run,
    pub(super) checks: Vec<Check>,
    pub(super) figures: Vec<Figure>,
    pub(super) ratios: Vec<Ratio>,
    pub(super) measured: Vec<String>,
    /// The exit code, or why there is none.
    pub(super) end: Result<i32, String>,
    /// Whether libtest counted its tests.
    pub(super) is_counted: bool,
    pub(super) took: Duration,
}

/// The judgement on an outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    /// The reasons for which the outcome is not good. Empty: it is good.
    pub(super) complaints: Vec<String>,
    /// Remarks at which a person should look.
    pub(super) notes: Vec<String>,
}

/// The exit codes of `timeout` when it has ended a program, by one signal or two.
const TIMED_OUT: [i32; 2] = [124, 137];
/// The exit code of libtest where a test failed.
const TEST_FAILED: i32 = 101;

/// Judges by the list of this kernel's defects: a check that is listed may fail or be skipped, and no other.
pub(super) fn judge(outcome: &RunOutcome, defects: &[Defect]) -> Judgement {
    let Judgement { mut complaints, mut notes } = Judgement::default();
    let defects: Vec<_> = defects.iter().filter(|defect| defect.run == outcome.run.name).collect();
    let mut known_failures = 0;
    for Check { name, verdict } in &outcome.checks {
        let defect = defects.iter().find(|defect| defect.check == *name);
        match (verdict, defect) {
            (Verdict::Ok, None) => {}
            (Verdict::Ok, Some(defect)) => {
                notes.push(format!("{name} passes, and stands in defects.txt: {}", defect.reason));
            }
            (Verdict::Failed(reason), None) => complaints.push(joined(&format!("{name} failed"), reason)),
            (Verdict::Skipped(reason), None) => {
                complaints
                    .push(joined(&format!("{name} was skipped, without a line in defects.txt"), reason));
            }
            (Verdict::Failed(_), Some(defect)) => {
                known_failures += 1;
                notes.push(format!("{name} fails, as it is known to: {}", defect.reason));
            }
            (Verdict::Skipped(_), Some(defect)) => {
                notes.push(format!("{name} is skipped, as it is known to fail: {}", defect.reason));
            }
        }
    }
    let is_too_late =
        matches!(outcome.end, Ok(code) if TIMED_OUT.contains(&code)) && outcome.took >= outcome.run.timeout;
    match &outcome.end {
        Err(why) => complaints.push(why.clone()),
        Ok(0) => {}
        Ok(_) if is_too_late => {
            complaints.push(format!("it did not end within {} s", outcome.run.timeout.as_secs()));
        }
        Ok(TEST_FAILED) if known_failures > 0 => {}
        Ok(code) if complaints.is_empty() => complaints.push(format!("it ended with exit code {code}")),
        Ok(_) => {}
    }
    if outcome.end.is_ok() && !is_too_late {
        complaints.extend(missing(outcome));
        let unseen = |defect: &&&Defect| outcome.checks.iter().all(|check| check.name != defect.check);
        let unseen = defects.iter().filter(unseen);
        complaints.extend(unseen.map(|defect| format!("{} of defects.txt is no check of it", defect.check)));
    }
    Judgement { complaints, notes }
}

/// Returns complaints about checks that a run should have made before it came to its end, and did not.
fn missing(outcome: &RunOutcome) -> Vec<String> {
    match outcome.run.job {
        Job::Script | Job::Turns if outcome.checks.is_empty() => vec!["it checked nothing".into()],
        Job::Script | Job::Turns => Vec::new(),
        Job::Tests { .. } | Job::UnitTests { .. } if !outcome.is_counted => {
            vec!["the tests did not come to their end".into()]
        }
        Job::Tests { filters, .. } | Job::UnitTests { filters } => {
            let is_unmatched =
                |filter: &&&str| !outcome.checks.iter().any(|check| check.name.contains(**filter));
            let unmatched = filters.iter().filter(is_unmatched);
            unmatched.map(|filter| format!("no test has `{filter}` in its name")).collect()
        }
    }
}

fn joined(what: &str, reason: &str) -> String {
    if reason.is_empty() { what.into() } else { format!("{what}: {reason}") }
}

#[cfg(test)]
mod tests {
    use super::super::defects;
    use super::super::runs::Guests;
    use super::*;

    static TESTS: Run = run(Job::Tests { target: "", release: false, filters: &["tcp::", "both"] });
    static SCRIPT: Run = run(Job::Script);

    const fn run(job: Job) -> Run {
        Run {
            name: "perftest",
            about: "",
            guests: Guests::One,
            devices: 1,
            parts_links: false,
            job,
            timeout: Duration::from_secs(9),
        }
    }

    fn outcome(run: &'static Run, checks: &[(&str, Verdict)], end: Result<i32, String>) -> RunOutcome {
        let check =
            |(name, verdict): &(&str, Verdict)| Check { name: name.to_string(), verdict: verdict.clone() };
        RunOutcome {
            run,
            checks: checks.iter().map(check).collect(),
            figures: Vec::new(),
            ratios: Vec::new(),
            measured: Vec::new(),
            end,
            is_counted: true,
            took: Duration::ZERO,
        }
    }

    fn failed() -> Verdict {
        Verdict::Failed("why".into())
    }

    fn skipped() -> Verdict {
        Verdict::Skipped("why".into())
    }

    fn complaints(outcome: &RunOutcome, list: &str) -> String {
        judge(outcome, &defects::of("6.1.0", list).unwrap()).complaints.join("; ")
    }

    #[test]
    fn a_failure_and_a_skip_need_a_line_in_the_list() {
        let of = |verdict, list| complaints(&outcome(&SCRIPT, &[("a", verdict)], Ok(0)), list);
        assert_eq!(of(Verdict::Ok, ""), "");
        assert_eq!(of(failed(), ""), "a failed: why");
        assert_eq!(of(skipped(), ""), "a was skipped, without a line in defects.txt: why");
        assert_eq!(of(skipped(), "perftest a 6.2.. why"), of(skipped(), ""), "another kernel");
        assert_eq!(of(skipped(), "loss a 6.1.. why"), of(skipped(), ""), "another run");
        assert_eq!(of(failed(), "perftest a 6.1.. why"), "");
        assert_eq!(of(skipped(), "perftest a 6.1.. why"), "");
    }

    #[test]
    fn a_listed_check_that_passes_is_reported_and_one_that_is_not_there_fails() {
        let outcome = outcome(&SCRIPT, &[("a", Verdict::Ok)], Ok(0));
        let list = defects::of("6.1.0", "perftest a 6.1.. why").unwrap();
        let judgement = judge(&outcome, &list);
        assert!(judgement.complaints.is_empty() && judgement.notes[0].contains("a passes"), "{judgement:?}");
        assert_eq!(complaints(&outcome, "perftest b 6.1.. why"), "b of defects.txt is no check of it");
    }

    #[test]
    fn a_filter_that_matches_no_test_fails_the_run() {
        let both = [("tcp::a", Verdict::Ok), ("verbs::both", Verdict::Ok)];
        assert_eq!(complaints(&outcome(&TESTS, &both, Ok(0)), ""), "");
        assert_eq!(complaints(&outcome(&TESTS, &both[..1], Ok(0)), ""), "no test has `both` in its name");
        assert_eq!(complaints(&outcome(&SCRIPT, &[], Ok(0)), ""), "it checked nothing");
        let uncounted = RunOutcome { is_counted: false, ..outcome(&TESTS, &both, Ok(0)) };
        assert_eq!(complaints(&uncounted, ""), "the tests did not come to their end");
    }

    #[test]
    fn how_a_run_ends_counts() {
        let ended = |checks: &[_], end, list| complaints(&outcome(&SCRIPT, checks, end), list);
        let good = [("a", Verdict::Ok)];
        assert_eq!(ended(&good, Ok(1), ""), "it ended with exit code 1");
        let late = RunOutcome { took: SCRIPT.timeout, ..outcome(&SCRIPT, &good, Ok(124)) };
        assert_eq!(complaints(&late, ""), "it did not end within 9 s");
        assert_eq!(ended(&good, Ok(137), ""), "it ended with exit code 137", "another process killed it");
        assert_eq!(ended(&good, Err("guest 1 is gone".into()), ""), "guest 1 is gone");
        let known = "perftest a 6.1.. why";
        assert_eq!(ended(&[("a", failed())], Ok(101), known), "", "libtest says so of a known failure");
        assert_eq!(ended(&good, Ok(101), known), "it ended with exit code 101");
    }
}
