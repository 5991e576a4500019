//! How often each claim of a result holds with other seeds.

use serde_json::{Value, json};

use super::claims::{Check, Verdict};
use super::{Error, Outcome, Recipe};
use crate::table::Table;

/// The distance of the first seeds of two runs: more than any result has seeds.
const APART: u64 = 1000;

/// A claim that held at first holds in so many of ten runs, or it was chance.
const LEAST: f64 = 0.9;

/// How often each claim of a result held again; those that were not tried are left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Again {
    /// The name of the result.
    pub result: String,
    /// The first seed of the first run, and the number of its seeds; older records do not say.
    seeds: Option<(u64, u64)>,
    times: u64,
    claims: Vec<Repeated>,
}

/// A claim: its name, what it is held against, what was measured (older records do not say) and what came of it at
/// first, and in how many runs it held again.
#[derive(Clone, Debug, PartialEq)]
struct Repeated {
    name: String,
    against: String,
    ours: Option<String>,
    first: Verdict,
    holds: u64,
}

impl Again {
    /// No run yet of a result beside its first one.
    pub fn none_yet(first: &Outcome) -> Again {
        let tried = first.checks.iter().filter(|check| check.verdict != Verdict::Untried);
        let claims = tried.map(|check| Repeated {
            name: check.claim.name.clone(),
            against: check.claim.against.name().to_owned(),
            ours: Some(check.ours.clone()),
            first: check.verdict,
            holds: 0,
        });
        let (claims, seeds) = (claims.collect(), Some((first.seed, first.settings.seeds)));
        Again { result: first.recipe.name.to_owned(), seeds, times: 0, claims }
    }

    /// How many runs it tells of.
    pub fn times(&self) -> u64 {
        self.times
    }

    /// Whether these runs belong to this first run: that it has the same seeds, and each claim came out the same, to
    /// all digits that are told.
    pub fn is_of(&self, first: &Outcome) -> bool {
        let other = Again::none_yet(first);
        let same = |(own, other): (&Repeated, &Repeated)| {
            own.name == other.name
                && own.first == other.first
                && (own.ours.is_none() || own.ours == other.ours)
        };
        (self.seeds.is_none() || self.seeds == other.seeds)
            && self.claims.len() == other.claims.len()
            && self.claims.iter().zip(&other.claims).all(same)
    }

    /// One more run of the result whose first run this is, with seeds that no other of its runs has; `seeds` overrules
    /// the number of them in its file.
    ///
    /// # Errors
    ///
    /// As [`Recipe::run`].
    pub fn once_more(&mut self, first: &Outcome, seeds: Option<u64>) -> Result<(), Error> {
        let recipe: &'static Recipe = first.recipe;
        let run = recipe.run(first.seed + APART * (self.times + 1), seeds)?;
        for claim in &mut self.claims {
            let held = |check: &&Check| check.claim.name == claim.name && check.verdict == Verdict::Holds;
            claim.holds += u64::from(run.checks.iter().any(|check| held(&check)));
        }
        self.times += 1;
        Ok(())
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let claims = self.claims.iter().map(|claim| {
            json!({
                "name": claim.name, "against": claim.against, "ours": claim.ours, "verdict": claim.first.word(),
                "holds": claim.holds,
            })
        });
        let (seed, seeds) = self.seeds.unzip();
        json!({
            "result": self.result, "seed": seed, "seeds": seeds, "again": self.times,
            "claims": claims.collect::<Vec<_>>(),
        })
    }

    /// Of its record; none if that does not tell of such runs.
    pub fn read(record: &Value) -> Option<Again> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let claim = |claim: &Value| {
            Some(Repeated {
                name: text(&claim["name"])?,
                against: text(&claim["against"])?,
                ours: text(&claim["ours"]),
                first: Verdict::read(&claim["verdict"])?,
                holds: claim["holds"].as_u64()?,
            })
        };
        let claims = record["claims"].as_array()?.iter().map(claim).collect::<Option<_>>()?;
        let seeds = record["seed"].as_u64().zip(record["seeds"].as_u64());
        Some(Again { result: text(&record["result"])?, seeds, times: record["again"].as_u64()?, claims })
    }

    /// Whether each claim that held at first holds in nine of ten of the other runs.
    pub fn is_kept(&self) -> bool {
        self.claims.iter().all(|claim| !self.was_chance(claim))
    }

    fn was_chance(&self, claim: &Repeated) -> bool {
        claim.first == Verdict::Holds && (claim.holds as f64) < LEAST * self.times as f64
    }

    /// The table of several results.
    pub fn table<'a>(all: impl IntoIterator<Item = &'a Again>) -> Table {
        let mut table = Table::new(["result", "claim", "against", "at first", "holds again"]);
        for again in all {
            for Repeated { name, against, first, holds, .. } in &again.claims {
                let of = format!("{holds} of {}", again.times);
                table.row([&again.result, name, against, first.word(), &of]);
            }
        }
        table
    }

    /// The cells of the page: how many claims held at first and were kept, which were not, and which held only later.
    pub(super) fn cells(&self) -> [String; 4] {
        let held = |claim: &&Repeated| claim.first == Verdict::Holds;
        let told = |claims: Vec<&Repeated>| match claims.is_empty() {
            true => "-".to_owned(),
            false => claims
                .iter()
                .map(|claim| format!("`{}` {}", claim.name, claim.holds))
                .collect::<Vec<_>>()
                .join(", "),
        };
        let first = self.claims.iter().filter(held).count();
        let lost: Vec<_> = self.claims.iter().filter(|claim| self.was_chance(claim)).collect();
        let later = self.claims.iter().filter(|claim| !held(claim) && claim.holds > 0).collect();
        [self.times.to_string(), format!("{} of {first}", first - lost.len()), told(lost), told(later)]
    }
}

impl Outcome {
    /// Takes note of how often its claims held again: one that held by chance is told as that. Runs of another form
    /// of the result say nothing of this one.
    pub fn held(&mut self, again: Again) {
        if !again.is_of(self) {
            return;
        }
        for claim in again.claims.iter().filter(|claim| again.was_chance(claim)) {
            let own = self.checks.iter_mut().filter(|check| check.claim.name == claim.name);
            own.for_each(|check| check.verdict = Verdict::Chance);
        }
        self.again = Some(again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again() -> Again {
        let claim = |name: &str, first, holds| Repeated {
            name: name.to_owned(),
            against: "theory".to_owned(),
            ours: Some("1.50".to_owned()),
            first,
            holds,
        };
        let claims = vec![
            claim("kept", Verdict::Holds, 9),
            claim("lost", Verdict::Holds, 8),
            claim("late", Verdict::Differs, 10),
            claim("never", Verdict::Differs, 0),
        ];
        Again { result: "bap".to_owned(), seeds: Some((1, 10)), times: 10, claims }
    }

    #[test]
    fn a_yes_that_does_not_hold_in_nine_of_ten_is_chance() {
        assert!(!again().is_kept());
        assert_eq!(again().cells(), ["10", "1 of 2", "`lost` 8", "`late` 10"]);
    }

    #[test]
    fn runs_with_other_seeds_are_read_as_their_record_tells_them() {
        assert_eq!(Again::read(&again().json()), Some(again()));
        assert_eq!(Again::read(&json!({ "result": "bap" })), None);
    }
}
