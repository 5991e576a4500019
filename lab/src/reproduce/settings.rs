//! The settings of a recipe, from its file, which is written before the run.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use slackline::sim::{Logistic, Shape};

use super::claims::Claim;

/// A recipe's file. Only the recipe knows what its `grid` holds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings<Grid = IgnoredAny> {
    /// The result that was found, and the paper that it is from.
    pub(super) claim: String,
    pub(super) source: String,
    /// The set-up with which it is tried here.
    pub(super) setup: String,
    /// Settings that an earlier form had, what came of them, and the reason for the change.
    #[serde(default)]
    pub(super) earlier: Option<String>,
    /// The number of seeds.
    #[serde(default = "one")]
    pub(super) seeds: u64,
    pub(super) grid: Grid,
    #[serde(rename = "check")]
    pub(super) claims: Vec<Claim>,
    /// The runs on real processes.
    #[serde(default)]
    pub(super) real: Vec<super::twin::Twin>,
}

/// Logistic regression on synthetic examples, as the files of recipes have it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct LogisticSettings {
    examples: usize,
    features: usize,
    pub(super) penalty: f32,
    /// The seed from which the examples are drawn; the seeds of runs change their order.
    data_seed: u64,
}

impl LogisticSettings {
    pub(super) fn with_batches_of(&self, batch: usize) -> Logistic {
        Logistic::new(self.examples, self.features, batch, self.penalty, self.data_seed)
    }
}

/// Matrix factorisation, as the files of recipes have it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, remote = "Shape")]
pub(super) struct FactorisationSettings {
    rows: usize,
    columns: usize,
    rank: usize,
    known: usize,
    noise: f64,
    batch: usize,
    penalty: f32,
}

fn one() -> u64 {
    1
}

impl<Grid: DeserializeOwned> Settings<Grid> {
    /// Reads a file.
    pub(super) fn read(text: &str) -> Result<Settings<Grid>, toml::de::Error> {
        from_toml(text)
    }
}

/// Reads a value out of TOML. It goes through a JSON value, so that the reader of TOML is compiled for one type: for
/// all types of all recipes, it was two fifths of this crate's code.
pub(super) fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, toml::de::Error> {
    let value: serde_json::Value = toml::from_str(text)?;
    serde_json::from_value(value).map_err(serde::de::Error::custom)
}
