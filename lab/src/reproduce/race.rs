//! All schemes on real processes: the time to an accuracy, each at its own best step size.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Error;
use super::settings::from_toml;
use crate::statistics::{Interval, mean};
use crate::table::Table;

const FILE: &str = include_str!("settings/race.toml");

/// The settings of the race.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Race {
    workers: usize,
    target: f64,
    seeds: u64,
    /// The scheme that the others are set against; it is the first.
    base: String,
    schemes: Vec<Scheme>,
    conditions: Vec<Condition>,
    check: Vec<RaceCheck>,
}

/// A statement about the time of a scheme over that of the base.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RaceCheck {
    name: String,
    scheme: String,
    condition: String,
    /// The whole interval lies above this.
    #[serde(default)]
    above: Option<f64>,
    /// The whole interval lies below this.
    #[serde(default)]
    below: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Scheme {
    name: String,
    step_sizes: Vec<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Condition {
    name: String,
    words: Vec<String>,
}

/// A run of the race.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    condition: usize,
    scheme: usize,
    step_size: usize,
    seed: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    seconds: f64,
    is_there: bool,
}

impl Arrival {
    /// Of the JSON of `slackline train`: one that is not there counts as the whole run.
    pub fn of(run: &Value) -> Arrival {
        let reached = run["time_to_target_s"].as_f64();
        let whole = run["wall_s"].as_f64().unwrap_or(f64::NAN);
        Arrival { seconds: reached.unwrap_or(whole), is_there: reached.is_some() }
    }
}

impl Race {
    /// Reads the settings.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn read() -> Result<Race, Error> {
        Ok(from_toml(FILE)?)
    }

    /// All runs. Those of one seed follow each other, so that a machine that is busy for a while is so for all schemes.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        for condition in 0..self.conditions.len() {
            for seed in 1..=self.seeds {
                for (scheme, Scheme { step_sizes, .. }) in self.schemes.iter().enumerate() {
                    let own =
                        (0..step_sizes.len()).map(|step_size| Run { condition, scheme, step_size, seed });
                    runs.extend(own);
                }
            }
        }
        runs
    }

    /// The words for `slackline train`.
    pub fn words(&self, run: Run) -> Vec<String> {
        let scheme = &self.schemes[run.scheme];
        let own = [
            ("--scheme", scheme.name.clone()),
            ("--learning-rate", scheme.step_sizes[run.step_size].to_string()),
            ("--seed", run.seed.to_string()),
            ("--workers", self.workers.to_string()),
            ("--target-accuracy", self.target.to_string()),
        ];
        let own = own.into_iter().flat_map(|(option, value)| [option.to_owned(), value]);
        own.chain(self.conditions[run.condition].words.iter().cloned()).collect()
    }

    /// The table, and a record of all runs.
    pub fn report(&self, ended: &[(Run, Arrival)]) -> (Table, Value) {
        let names = self.conditions.iter().map(|condition| condition.name.clone());
        let mut table = Table::new(std::iter::once("scheme".to_owned()).chain(names));
        for (scheme, Scheme { name, .. }) in self.schemes.iter().enumerate() {
            let cells = (0..self.conditions.len()).map(|condition| self.cell(ended, condition, scheme));
            table.row(std::iter::once(name.clone()).chain(cells));
        }
        let runs = ended.iter().map(|(run, arrival)| {
            json!({ "words": self.words(*run).join(" "), "seconds": arrival.seconds, "is_there": arrival.is_there })
        });
        (table, runs.collect())
    }

    /// The runs of a record that has them all, in the order in which they are made.
    fn read_runs(&self, record: &Value) -> Option<Vec<(Run, Arrival)>> {
        let (runs, recorded) = (self.runs(), record["runs"].as_array()?);
        let arrival = |(run, recorded): (Run, &Value)| {
            let is_own = recorded["words"] == self.words(run).join(" ");
            let is_there = recorded["is_there"].as_bool()?;
            is_own.then_some((run, Arrival { seconds: recorded["seconds"].as_f64()?, is_there }))
        };
        if runs.len() != recorded.len() {
            return None;
        }
        runs.into_iter().zip(recorded).map(arrival).collect()
    }

    /// The names of the statements that a record bears out.
    pub fn borne_out(&self, record: &Value) -> Vec<String> {
        let Some(ended) = self.read_runs(record) else { return Vec::new() };
        let holds = |check: &&RaceCheck| {
            let condition = self.conditions.iter().position(|own| own.name == check.condition)?;
            let scheme = self.schemes.iter().position(|own| own.name == check.scheme)?;
            let Interval { low, high, .. } = self.over_base(&ended, condition, scheme);
            Some(check.above.is_none_or(|above| low > above) && check.below.is_none_or(|below| high < below))
        };
        let held = self.check.iter().filter(|check| holds(check).unwrap_or(false));
        held.map(|check| check.name.clone()).collect()
    }

    /// The time of a scheme over that of the base, each at its best step size.
    fn over_base(&self, ended: &[(Run, Arrival)], condition: usize, scheme: usize) -> Interval {
        let seconds = |scheme: usize| -> Vec<f64> {
            let own = self.of(ended, condition, scheme, self.best(ended, condition, scheme));
            own.iter().map(|arrival| arrival.seconds).collect()
        };
        let base = self.schemes.iter().position(|scheme| scheme.name == self.base).unwrap_or(0);
        Interval::of_ratio(&seconds(scheme), &seconds(base))
    }

    fn cell(&self, ended: &[(Run, Arrival)], condition: usize, scheme: usize) -> String {
        let best = self.best(ended, condition, scheme);
        let own = self.of(ended, condition, scheme, best);
        let missed = match own.iter().filter(|arrival| !arrival.is_there).count() {
            0 => String::new(),
            missed => format!(", {missed} of {} not there", own.len()),
        };
        let step_sizes = &self.schemes[scheme].step_sizes;
        let end = if [0, step_sizes.len() - 1].contains(&best) { ", an end" } else { "" };
        let step = format!(" at {}{end}{missed}", step_sizes[best]);
        if self.schemes[scheme].name == self.base {
            let seconds: Vec<f64> = own.iter().map(|arrival| arrival.seconds).collect();
            return format!("{} s{step}", Interval::of_mean(&seconds));
        }
        self.over_base(ended, condition, scheme).to_string() + &step
    }

    /// The runs of a scheme with a step size, in order of their seeds.
    fn of(
        &self,
        ended: &[(Run, Arrival)],
        condition: usize,
        scheme: usize,
        step_size: usize,
    ) -> Vec<Arrival> {
        let is_own = |run: &Run| (run.condition, run.scheme, run.step_size) == (condition, scheme, step_size);
        ended.iter().filter(|(run, _)| is_own(run)).map(|(_, arrival)| *arrival).collect()
    }

    fn best(&self, ended: &[(Run, Arrival)], condition: usize, scheme: usize) -> usize {
        let score = |at: &usize| {
            let own = self.of(ended, condition, scheme, *at);
            let missed = own.iter().filter(|arrival| !arrival.is_there).count();
            (missed, mean(own.iter().map(|arrival| arrival.seconds)))
        };
        let sooner = |a: &usize, b: &usize| {
            let (a, b) = (score(a), score(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        };
        (0..self.schemes[scheme].step_sizes.len()).min_by(sooner).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a record, whose runs stand in the order in which they are made.
    #[test]
    fn the_page_has_the_table_that_follows_from_the_record_of_its_runs() {
        let record = include_str!("../../../docs/records/all-schemes.json");
        let record: Value = serde_json::from_str(record).unwrap();
        let race = Race::read().unwrap();
        let ended = race.read_runs(&record).expect("the record has each run, in the order of the settings");
        let table = race.report(&ended).0.markdown();
        let page = include_str!("../../../docs/reproductions-real.md");
        assert!(page.contains(&table), "the page has another table than\n{table}");
    }

    #[test]
    fn each_scheme_is_told_at_its_own_best_step_size() {
        let race = Race::read().unwrap();
        // The first scheme is the quicker the larger its steps, the others the smaller; both by the same factor.
        let sizes = |scheme: usize| &race.schemes[scheme].step_sizes;
        let last = sizes(0).len() - 1;
        let seconds =
            |run: Run| 2f64.powi(if run.scheme == 0 { last - run.step_size } else { run.step_size } as i32);
        let ended: Vec<(Run, Arrival)> = race
            .runs()
            .into_iter()
            .map(|run| (run, Arrival { seconds: seconds(run), is_there: run.step_size + run.scheme > 0 }))
            .collect();
        assert_eq!(race.cell(&ended, 0, 0), format!("1.00 s at {}, an end", sizes(0)[last]));
        assert_eq!(race.cell(&ended, 0, 1), format!("1.00 at {}, an end", sizes(1)[0]));
    }
}
