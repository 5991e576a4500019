//! What is claimed, what it is held against, and what came of it.

use std::cmp::Ordering;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::statistics::Interval;
use crate::table::{Table, number};

/// What a claim is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Against {
    /// A result that a paper puts forward, with its figure where it has one.
    Headline,
    /// What else a paper says, without a figure.
    Direction,
    /// A formula, a bound or arithmetic that is no paper's measurement.
    Theory,
    /// A threshold or an expectation of our own.
    Ours,
}

impl Against {
    pub(super) const ALL: [Against; 4] =
        [Against::Headline, Against::Direction, Against::Theory, Against::Ours];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Against::Headline => "headline",
            Against::Direction => "direction",
            Against::Theory => "theory",
            Against::Ours => "ours",
        }
    }
}

/// A claim as its recipe's file has it, from before the run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claim {
    /// The name by which the recipe says what it measured.
    pub(super) name: String,
    /// What is measured.
    what: String,
    pub(super) against: Against,
    /// The range that the whole interval of each measured value must lie in, the ends included.
    #[serde(default)]
    least: Option<f64>,
    #[serde(default)]
    most: Option<f64>,
    /// The same, the ends left out: an effect is there if the interval excludes the end.
    #[serde(default)]
    above: Option<f64>,
    #[serde(default)]
    below: Option<f64>,
    /// What the paper says, where the range does not say it.
    #[serde(default)]
    said: Option<String>,
    /// The reason that it was not tried; then nothing is measured.
    #[serde(default)]
    untried: Option<String>,
}

/// What came of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Holds,
    Differs,
    Untried,
    /// It held, and does not in nine of ten runs with other seeds.
    Chance,
}

impl Verdict {
    const ALL: [Verdict; 4] = [Verdict::Holds, Verdict::Differs, Verdict::Untried, Verdict::Chance];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Verdict::Chance => "chance",
            Verdict::Holds => "yes",
            Verdict::Differs => "differs",
            Verdict::Untried => "not tried",
        }
    }

    pub(super) fn read(word: &Value) -> Option<Verdict> {
        Verdict::ALL.into_iter().find(|verdict| *word == verdict.word())
    }
}

/// A measured value; the label tells it from others of the same claim.
pub(super) type Measured = (String, Interval);

/// A claim with what came of it.
#[derive(Clone, Debug)]
pub(super) struct Check {
    pub(super) claim: Claim,
    pub(super) ours: String,
    pub(super) verdict: Verdict,
}

impl Claim {
    /// Judges it: it holds if the whole 95 % interval of each value lies in its range.
    pub(super) fn judge(&self, measured: &[Measured]) -> Check {
        if let Some(reason) = &self.untried {
            return Check { claim: self.clone(), ours: reason.clone(), verdict: Verdict::Untried };
        }
        let holds = !measured.is_empty() && measured.iter().all(|(_, interval)| self.has(*interval));
        let tell = |(label, interval): &Measured| match label.is_empty() {
            true => interval.to_string(),
            false => format!("{label}: {interval}"),
        };
        let ours = measured.iter().map(tell).collect::<Vec<_>>().join("; ");
        Check { claim: self.clone(), ours, verdict: if holds { Verdict::Holds } else { Verdict::Differs } }
    }

    fn has(&self, Interval { middle, low, high }: Interval) -> bool {
        !middle.is_nan()
            && self.least.is_none_or(|least| low >= least)
            && self.above.is_none_or(|above| low > above)
            && self.most.is_none_or(|most| high <= most)
            && self.below.is_none_or(|below| high < below)
    }

    fn expected(&self) -> String {
        let ends =
            [("at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below)];
        let ends = ends.into_iter().filter_map(|(word, end)| Some(format!("{word} {}", number(end?))));
        let range = ends.collect::<Vec<_>>().join(", ");
        match (&self.said, range.is_empty()) {
            (None, _) => range,
            (Some(said), true) => said.clone(),
            (Some(said), false) => format!("{said}: {range}"),
        }
    }
}

impl Check {
    pub(super) fn json(&self) -> Value {
        json!({
            "name": self.claim.name, "claim": self.claim.what, "against": self.claim.against.name(),
            "expected": self.claim.expected(), "ours": self.ours, "verdict": self.verdict.word(),
        })
    }

    /// As a record has it: what it expected is told in words.
    pub(super) fn read(record: &Value) -> Option<Check> {
        let text = |key: &str| record[key].as_str().map(str::to_owned);
        let claim = Claim {
            name: text("name")?,
            what: text("claim")?,
            against: Against::ALL.into_iter().find(|against| record["against"] == against.name())?,
            least: None,
            most: None,
            above: None,
            below: None,
            said: text("expected"),
            untried: None,
        };
        Some(Check { claim, ours: text("ours")?, verdict: Verdict::read(&record["verdict"])? })
    }

    /// The side of 1 on which the whole interval of the value with this label lies; `Equal` if it holds 1. None if it
    /// was chance, or if there is no such value.
    pub(super) fn side(&self, label: &str) -> Option<Ordering> {
        let has_label = |value: &&str| value.rsplit_once(": ").map_or("", |(own, _)| own) == label;
        let value = self.ours.split("; ").find(has_label).filter(|_| self.verdict != Verdict::Chance)?;
        let Interval { low, high, .. } = Interval::read(value.rsplit(": ").next()?)?;
        // Of what is no number, neither.
        match (low > 1.0, high < 1.0) {
            (true, _) => Some(Ordering::Greater),
            (_, true) => Some(Ordering::Less),
            _ => (low <= 1.0 && high >= 1.0).then_some(Ordering::Equal),
        }
    }

    /// What, expected, ours and the verdict.
    pub(super) fn cells(&self) -> [String; 4] {
        [self.claim.what.clone(), self.claim.expected(), self.ours.clone(), self.verdict.word().into()]
    }
}

/// The checks as a table.
pub(super) fn table(checks: &[Check]) -> Table {
    let mut table = Table::new(["claim", "held against", "expected", "ours", ""]);
    for check in checks {
        let [what, expected, ours, word] = check.cells();
        table.row([what, check.claim.against.name().into(), expected, ours, word]);
    }
    table
}

/// How the checks of one kind came out, in a few words.
pub(super) fn count<'a>(checks: impl Iterator<Item = &'a Check>, against: Against) -> String {
    let of_kind: Vec<Verdict> =
        checks.filter(|check| check.claim.against == against).map(|check| check.verdict).collect();
    let count = |verdict| of_kind.iter().filter(|own| **own == verdict).count();
    let (holds, untried) = (count(Verdict::Holds), count(Verdict::Untried));
    match (of_kind.len() - untried, untried) {
        (0, 0) => "-".into(),
        (tried, 0) => format!("{holds} of {tried}"),
        (0, _) => format!("{untried} not tried"),
        (tried, _) => format!("{holds} of {tried}, {untried} not tried"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(range: &str) -> Claim {
        toml::from_str(&format!("name = 'n'\nwhat = 'w'\nagainst = 'headline'\n{range}")).unwrap()
    }

    fn verdict(range: &str, low: f64, high: f64) -> Verdict {
        let interval = Interval { middle: f64::midpoint(low, high), low, high };
        claim(range).judge(&[(String::new(), interval)]).verdict
    }

    #[test]
    fn faster_means_that_the_interval_excludes_1() {
        assert_eq!(verdict("above = 1.0", 1.01, 1.5), Verdict::Holds);
        assert_eq!(verdict("above = 1.0", 1.0, 1.5), Verdict::Differs);
        assert_eq!(verdict("above = 1.0", 0.99, 1.5), Verdict::Differs);
        assert_eq!(verdict("least = 1.2\nmost = 2.0", 1.2, 2.0), Verdict::Holds);
        assert_eq!(verdict("least = 1.2\nmost = 2.0", 1.3, 2.1), Verdict::Differs);
    }

    #[test]
    fn a_claim_of_which_nothing_was_measured_does_not_hold() {
        assert_eq!(claim("least = 0.0").judge(&[]).verdict, Verdict::Differs);
        assert_eq!(
            claim("least = 0.0").judge(&[("".into(), Interval::exact(f64::NAN))]).verdict,
            Verdict::Differs
        );
        assert_eq!(claim("untried = 'no data'").judge(&[]).verdict, Verdict::Untried);
    }

    #[test]
    fn a_check_is_read_as_its_record_tells_it() {
        for range in ["least = 1.2\nmost = 2.0\nsaid = 'faster'", "untried = 'no data'", "above = 1.0"] {
            let check = claim(range).judge(&[(String::new(), Interval::exact(1.5))]);
            assert_eq!(Check::read(&check.json()).unwrap().json(), check.json());
        }
    }

    #[test]
    fn kinds_are_counted_apart() {
        let checks = [claim("least = 0.0").judge(&[]), claim("untried = 'no data'").judge(&[])];
        assert_eq!(count(checks.iter(), Against::Headline), "0 of 1, 1 not tried");
        assert_eq!(count(checks.iter(), Against::Ours), "-");
    }
}
