//! The results of the literature, and ours beside them.
//!
//! Each is a recipe: a file of settings and claims that is written before the run, and a function that measures. It
//! does not see the claims: they are judged afterwards, by one rule, and one that does not come out is told with its
//! figures like one that does.

mod abs;
mod again;
mod bap;
mod bap_network;
mod claims;
mod contest;
mod dai;
mod dbw;
mod dbw_argmax;
mod dbw_oracle;
mod dbw_published;
mod ds_sync;
mod ds_sync_network;
mod essp;
mod k_async;
mod losing;
mod oracle;
mod page;
mod race;
mod real;
mod regret;
mod settings;
mod shards;
mod tuned;
mod twin;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use slackline::optim::ScheduleError;
use slackline::scheme::{SchemeConfig, SchemeConfigError};
use slackline::sim::{self, Cluster, ClusterReport};

pub use again::Again;
pub use page::{AGAIN, PAGE, PLOTS, Part, RECORDS, page};
pub use race::{Arrival, Race, Run};
pub use real::{Occasion, REAL_PAGE, all_schemes, compared, real_page};
pub use twin::{Comparison, Twin};

use crate::data::DataError;
use crate::parallel;
use crate::plot::Figure;
use crate::problem::DigitsError;
use crate::statistics::Interval;
use crate::table::Table;
use claims::{Check, Measured};
use settings::Settings;

/// A result of the literature and how to try it.
#[derive(Debug)]
pub struct Recipe {
    /// The name by which `--reproduce` calls it.
    pub name: &'static str,
    /// The subject in a few words.
    pub title: &'static str,
    /// The text of its file.
    file: &'static str,
    /// The points where our result differs, and the reasons; the limits of the result.
    remarks: &'static str,
    run: fn(&Trial) -> Result<Findings, Error>,
}

/// What a recipe is run with.
#[derive(Clone, Copy, Debug)]
struct Trial {
    file: &'static str,
    seed: u64,
    /// Fewer seeds, or more, than its file says.
    seeds: Option<u64>,
}

/// The findings of a recipe.
#[derive(Debug)]
struct Findings {
    /// The tables that are looked at first, each with a caption.
    tables: Vec<(String, Table)>,
    /// The same, and more, for programs.
    rows: Vec<Value>,
    /// The values of each claim, by its name.
    measured: Vec<(String, Vec<Measured>)>,
    /// A plot of them.
    figure: Figure,
}

/// A recipe that was run.
#[derive(Debug)]
pub struct Outcome {
    recipe: &'static Recipe,
    settings: Settings,
    findings: Findings,
    checks: Vec<Check>,
    seed: u64,
    /// How often they held with other seeds, if that was tried.
    again: Option<Again>,
}

/// Error of a recipe.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum Error {
    /// The file of a recipe cannot be read.
    Settings(#[from] toml::de::Error),
    /// A recipe measured something that its file does not claim.
    #[error("the file of {recipe} has no check {name:?}, which was measured")]
    Unclaimed {
        /// The recipe.
        recipe: &'static str,
        /// The name of what was measured.
        name: String,
    },
    /// The scheme was refused.
    Scheme(#[from] SchemeConfigError),
    /// The simulator refused the cluster, or the run failed.
    Simulation(#[from] sim::SimError),
    /// A schedule cannot be read.
    Schedule(#[from] ScheduleError),
    /// A distribution of times cannot be read.
    Distribution(#[from] sim::DistributionError),
    /// The data of the recipe are not there.
    Data(#[from] DataError),
    /// The digits do not make a problem for these workers.
    Problem(#[from] DigitsError),
}

/// In the order of the page.
pub const RECIPES: &[Recipe] = &[
    bap::RECIPE,
    bap_network::RECIPE,
    bap::STRAGGLER,
    dbw_argmax::RECIPE,
    dbw::RECIPE,
    dbw_oracle::RECIPE,
    dbw_published::RECIPE,
    k_async::RECIPE,
    abs::RECIPE,
    abs::SORTED,
    essp::RECIPE,
    contest::ESSP,
    contest::VAP,
    regret::RECIPE,
    ds_sync::MEAN,
    ds_sync::RECIPE,
    ds_sync_network::RECIPE,
    dai::RECIPE,
    losing::RECIPE,
    shards::DIGITS,
    shards::FASHION,
];

impl Trial {
    fn settings<Grid: DeserializeOwned>(&self) -> Result<Settings<Grid>, Error> {
        let mut settings: Settings<Grid> = Settings::read(self.file)?;
        settings.seeds = self.seeds.unwrap_or(settings.seeds).max(1);
        Ok(settings)
    }
}

impl<Grid> Settings<Grid> {
    /// The seeds of runs; each changes the order of the data and the times.
    fn seeds(&self, trial: &Trial) -> Vec<u64> {
        (0..self.seeds).map(|more| trial.seed + more).collect()
    }
}

impl Recipe {
    /// Tries it; the seed decides everything that is random. `seeds` overrules the number of them in its file.
    ///
    /// # Errors
    ///
    /// If the simulator or a scheme refuses what the recipe asks for.
    pub fn run(&'static self, seed: u64, seeds: Option<u64>) -> Result<Outcome, Error> {
        let trial = Trial { file: self.file, seed, seeds };
        let settings: Settings = trial.settings()?;
        let findings = (self.run)(&trial)?;
        let is_claimed = |name: &String| settings.claims.iter().any(|claim| claim.name == *name);
        if let Some((name, _)) = findings.measured.iter().find(|(name, _)| !is_claimed(name)) {
            return Err(Error::Unclaimed { recipe: self.name, name: name.clone() });
        }
        let measured = |name: &str| {
            let own = findings.measured.iter().find(|(own, _)| own == name);
            own.map_or(&[][..], |(_, measured)| measured)
        };
        let checks = settings.claims.iter().map(|claim| claim.judge(measured(&claim.name))).collect();
        Ok(Outcome { recipe: self, settings, findings, checks, seed, again: None })
    }

    /// Its runs on real processes.
    ///
    /// # Errors
    ///
    /// If its file cannot be read.
    pub fn twins(&self) -> Result<Vec<Twin>, Error> {
        Ok(Settings::<serde::de::IgnoredAny>::read(self.file)?.real)
    }
}

impl Outcome {
    /// The name of its recipe.
    pub fn name(&self) -> &'static str {
        self.recipe.name
    }

    /// A plot of what was found.
    pub fn figure(&self) -> &Figure {
        &self.findings.figure
    }

    /// For people.
    pub fn text(&self) -> String {
        let Settings { claim, source, setup, .. } = &self.settings;
        let mut text = format!("{}\n{claim}\n  ({source})\n\nhere: {setup}\n", self.recipe.title);
        for (caption, table) in &self.findings.tables {
            text += &format!("\n{caption}\n{}", table.text());
        }
        text + "\n" + &claims::table(&self.checks).text()
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let Settings { claim, source, setup, seeds, .. } = &self.settings;
        json!({
            "name": self.recipe.name,
            "claim": claim,
            "source": source,
            "setup": setup,
            "seed": self.seed,
            "seeds": seeds,
            "rows": self.findings.rows,
            "checks": self.checks.iter().map(Check::json).collect::<Vec<_>>(),
        })
    }
}

/// A record as text: JSON with a line for each item of its lists, so that a change shows where it is.
pub fn record(value: &Value) -> String {
    let told = |value: &Value| match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(Value::to_string).collect();
            format!("[\n{}\n]", items.join(",\n"))
        }
        other => other.to_string(),
    };
    let entries = value.as_object().into_iter().flatten();
    let entries: Vec<String> =
        entries.map(|(key, value)| format!("{}: {}", json!(key), told(value))).collect();
    format!("{{\n{}\n}}\n", entries.join(",\n"))
}

impl Findings {
    fn new(figure: Figure) -> Findings {
        Findings { tables: Vec::new(), rows: Vec::new(), measured: Vec::new(), figure }
    }

    /// Notes a value of a claim; a claim may have several, each with a label.
    fn measure(&mut self, name: impl Into<String>, label: impl Into<String>, value: Interval) {
        let (name, measured) = (name.into(), (label.into(), value));
        match self.measured.iter_mut().find(|(own, _)| *own == name) {
            Some((_, all)) => all.push(measured),
            None => self.measured.push((name, vec![measured])),
        }
    }
}

/// Simulates a cluster for each item, on all cores.
fn simulate<T: Sync>(
    what: &str,
    items: &[T],
    cluster: impl Fn(&T) -> Result<Cluster, Error> + Sync,
) -> Result<Vec<ClusterReport>, Error> {
    parallel::map(what, items, |item| Ok(cluster(item)?.run()?))
}

/// A scheme as it is written on the command line.
fn scheme(text: &str) -> Result<SchemeConfig, Error> {
    Ok(text.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_what_it_was_made_of() {
        let value = json!({ "name": "a \"b\"", "rows": [{ "x": 1.5 }, { "x": [2, 3] }], "none": null });
        let text = record(&value);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert_eq!(text.lines().count(), 8, "{text}");
    }

    /// The numbers of a text, without the marks that part thousands; a point at the end is that of the sentence.
    fn numbers(text: &str) -> Vec<String> {
        let text = text.replace(['_', ','], "");
        let tokens =
            text.split(|c: char| !c.is_ascii_digit() && c != '.').map(|token| token.trim_matches('.'));
        tokens.filter(|token| !token.is_empty()).map(str::to_owned).collect()
    }

    /// What was measured stands in tables, which are written with the record.
    #[test]
    fn remarks_have_numbers_of_settings_and_digits_only() {
        let mut found = 0;
        for recipe in RECIPES {
            // Earlier forms tell of what was measured.
            let (before, behind) = recipe.file.split_once("earlier = \"\"\"").unwrap_or((recipe.file, ""));
            let behind = behind.split_once("\"\"\"").map_or(behind, |(_, behind)| behind);
            let settings = numbers(&format!("{before}{behind}"));
            for number in numbers(recipe.remarks) {
                assert!(number.len() == 1 || settings.contains(&number), "{}: {number}", recipe.name);
                found += 1;
            }
        }
        assert!(found > 40, "{found}");
    }

    #[test]
    fn every_file_of_settings_reads_and_names_its_checks_once() {
        for recipe in RECIPES {
            let settings: Settings =
                Settings::read(recipe.file).unwrap_or_else(|e| panic!("{}: {e}", recipe.name));
            let mut names: Vec<_> = settings.claims.iter().map(|claim| &claim.name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!((names.len(), count > 0), (count, true), "{}", recipe.name);
        }
    }
}
