//! The output of a run: the lines of the rig's own scripts, of libtest and of perftest.

use super::perftest::{Figure, Perftest};
use super::ratio::Ratio;
use std::fmt;

/// The verdict on a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Ok,
    Failed(String),
    Skipped(String),
}

/// One test, or one thing that a script looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) verdict: Verdict,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Check { name, verdict } = self;
        match verdict {
            Verdict::Ok => write!(f, "{name}: ok"),
            Verdict::Failed(reason) => write!(f, "{name}: FAILED {reason}"),
            Verdict::Skipped(reason) => write!(f, "{name}: skipped {reason}"),
        }
    }
}

/// A line of `guest/*.sh`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sign<'a> {
    /// The first guest runs this kernel.
    Up(&'a str),
    Begin(&'a str),
    End(&'a str, i32),
    /// All runs are done.
    Done,
    /// It cannot go on, and why.
    Broken(&'a str),
}

impl Sign<'_> {
    pub(super) fn parse(line: &str) -> Option<Sign<'_>> {
        let line = line.strip_prefix("@rig ")?;
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, rest.rsplit_once(' ')) {
            ("up", _) => Some(Sign::Up(rest)),
            ("begin", _) => Some(Sign::Begin(rest)),
            ("end", Some((name, code))) => Some(Sign::End(name, code.parse().ok()?)),
            ("done", _) => Some(Sign::Done),
            ("broken", _) => Some(Sign::Broken(rest)),
            _ => None,
        }
    }
}

/// Reads along with one run.
#[derive(Debug, Default)]
pub(super) struct Listener {
    pub(super) checks: Vec<Check>,
    pub(super) figures: Vec<Figure>,
    pub(super) ratios: Vec<Ratio>,
    /// What tests have measured, in their own words.
    pub(super) measured: Vec<String>,
    /// A test that has begun.
    test: Option<String>,
    perftest: Option<Perftest>,
    /// Verdicts of libtest that were seen, and those that it counted itself.
    seen: usize,
    counted: Option<usize>,
}

impl Listener {
    /// Takes one line; the check that it ends, if it does.
    pub(super) fn hear(&mut self, line: &str) -> Option<&Check> {
        let before = self.checks.len();
        if let Some(name) = line.strip_prefix("PERFTEST ") {
            self.end_perftest();
            self.perftest = Some(Perftest::new(name));
        } else if let Some(check) = result(line) {
            self.checks.push(check);
        } else if let Some(ratio) = Ratio::parse(line) {
            self.ratios.push(ratio);
        } else if let Some(text) = line.strip_prefix("MEASURED ") {
            self.measured.push(text.into());
        } else if let Some(count) = counted(line) {
            self.counted = Some(self.counted.unwrap_or(0) + count);
        } else if let Some(figure) = self.perftest.as_mut().and_then(|perftest| perftest.hear(line)) {
            self.perftest = None;
            self.checks.push(Check { name: figure.name.clone(), verdict: Verdict::Ok });
            self.figures.push(figure);
        } else {
            self.hear_libtest(line);
        }
        (self.checks.len() > before).then(|| self.checks.last()).flatten()
    }

    /// Reads one line of libtest. The output of a test may stand between its name and its verdict.
    fn hear_libtest(&mut self, line: &str) {
        let mut said = line;
        if let Some((name, rest)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            self.test = Some(name.strip_suffix(" - should panic").unwrap_or(name).into());
            said = rest;
        }
        let Some(verdict) = self.test.as_ref().and_then(|_| libtest_verdict(said)) else { return };
        self.checks.extend(self.test.take().map(|name| Check { name, verdict }));
        self.seen += 1;
    }

    fn end_perftest(&mut self) {
        if let Some(Perftest { name, .. }) = self.perftest.take() {
            self.checks.push(Check { name, verdict: Verdict::Failed("perftest gave no figure".into()) });
        }
    }

    /// The run has ended.
    ///
    /// # Errors
    /// Says so if a test's verdict was not found.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.end_perftest();
        if let Some(test) = &self.test {
            return Err(format!("the test {test} has no verdict"));
        }
        match self.counted {
            Some(counted) if counted != self.seen => {
                Err(format!("{} verdicts were found of {counted} tests", self.seen))
            }
            _ => Ok(()),
        }
    }

    /// Whether libtest has said what it counted.
    pub(super) fn is_counted(&self) -> bool {
        self.counted.is_some()
    }
}

fn libtest_verdict(said: &str) -> Option<Verdict> {
    match said {
        "ok" => Some(Verdict::Ok),
        "FAILED" => Some(Verdict::Failed(String::new())),
        "ignored" => Some(Verdict::Skipped(String::new())),
        _ => Some(Verdict::Skipped(said.strip_prefix("ignored, ")?.into())),
    }
}

fn result(line: &str) -> Option<Check> {
    let (name, rest) = line.strip_prefix("RESULT ")?.split_once(' ')?;
    let (word, reason) = rest.split_once(' ').unwrap_or((rest, ""));
    let verdict = match word {
        "ok" => Verdict::Ok,
        "FAILED" => Verdict::Failed(reason.into()),
        "SKIPPED" => Verdict::Skipped(reason.into()),
        _ => return None,
    };
    Some(Check { name: name.into(), verdict })
}

/// Counts the tests of a line of totals: `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; ...`.
fn counted(line: &str) -> Option<usize> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count =
        |part: &str, what: &str| -> Option<usize> { part.trim().strip_suffix(what)?.trim_end().parse().ok() };
    let mut parts = counts.split(';');
    let mut next = |what| parts.next().and_then(|part| count(part, what));
    Some(next("passed")? + next("failed")? + next("ignored")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Listener {
        let mut listener = Listener::default();
        for line in text.lines() {
            listener.hear(line);
        }
        listener
    }

    fn check(name: &str, verdict: Verdict) -> Check {
        Check { name: name.into(), verdict }
    }

    #[test]
    fn the_signs_of_the_scripts_are_read() {
        assert_eq!(Sign::parse("@rig up 6.1.0-56-amd64"), Some(Sign::Up("6.1.0-56-amd64")));
        assert_eq!(Sign::parse("@rig begin loss"), Some(Sign::Begin("loss")));
        assert_eq!(Sign::parse("@rig end loss 124"), Some(Sign::End("loss", 124)));
        assert_eq!(Sign::parse("@rig done"), Some(Sign::Done));
        assert_eq!(Sign::parse("@rig broken no device"), Some(Sign::Broken("no device")));
        for other in ["@rig end loss", "@rig end loss x", "a @rig done", "rig done", "@rig"] {
            assert_eq!(Sign::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_results_of_a_script_are_read() {
        let mut listener =
            listen("RESULT a ok\nRESULT b FAILED 3 of 4\nRESULT c SKIPPED why not\nRESULT d perhaps\n");
        let failed = Verdict::Failed("3 of 4".into());
        let skipped = Verdict::Skipped("why not".into());
        assert_eq!(listener.checks, [check("a", Verdict::Ok), check("b", failed), check("c", skipped)]);
        assert_eq!(listener.end(), Ok(()));
    }

    #[test]
    fn verdicts_of_tests_are_found_behind_what_they_print() {
        let text = "running 4 tests\ntest a::b ... ok\ntest c - should panic ... ok\ntest d ... a word\nFAILED\n\
                    test e ... ignored, needs a device\n\ntest result: FAILED. 2 passed; 1 failed; 1 ignored; \
                    0 measured; 3 filtered out; finished in 0.10s\n";
        let mut listener = listen(text);
        let names: Vec<_> = listener.checks.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(names, ["a::b", "c", "d", "e"]);
        assert_eq!(listener.checks[2].verdict, Verdict::Failed(String::new()));
        assert_eq!(listener.checks[3].verdict, Verdict::Skipped("needs a device".into()));
        assert!(listener.is_counted());
        assert_eq!(listener.end(), Ok(()));
    }

    #[test]
    fn a_test_without_a_verdict_is_noticed() {
        assert!(listen("test a ... ").end().unwrap_err().contains("test a has no verdict"));
        let text =
            "test a ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert!(listen(text).end().unwrap_err().contains("1 verdicts were found of 2"));
    }

    #[test]
    fn a_program_of_perftest_without_a_figure_has_failed() {
        let table =
            "#bytes #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n65536 5 1 2.5 3";
        let mut listener = listen(&format!("PERFTEST a\nPERFTEST b\n{table}\n{table}\nPERFTEST c\n"));
        assert_eq!(listener.end(), Ok(()));
        let none = Verdict::Failed("perftest gave no figure".into());
        assert_eq!(listener.checks, [check("a", none.clone()), check("b", Verdict::Ok), check("c", none)]);
        assert_eq!(listener.figures.len(), 1);
    }
}
