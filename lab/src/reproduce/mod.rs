//! The results of the literature, and ours beside them.
//!
//! Each is a recipe: what was claimed, how it is tried here, and a function that tries it. A claim that does not
//! come out is told with its figures like one that does; no recipe knows what it should find when it looks.

mod abs;
mod bap;
mod dai;
mod dbw;
mod dbw_argmax;
mod ds_sync;
mod essp;
mod k_async;
mod page;

use serde_json::{Value, json};
use slackline::scheme::{SchemeConfig, SchemeConfigError};
use slackline::sim::{self, Cluster, ClusterReport};

pub use page::{PAGE, PLOTS, page};

use crate::parallel;
use crate::plot::Figure;
use crate::problem::DigitsError;
use crate::table::Table;

/// A result of the literature and how to try it.
#[derive(Debug)]
pub struct Recipe {
    /// The name by which `--reproduce` calls it.
    pub name: &'static str,
    /// The subject in a few words.
    pub title: &'static str,
    /// The result that was found, and the paper that it is from.
    claim: &'static str,
    source: &'static str,
    /// The set-up with which it is tried here.
    setup: &'static str,
    /// The points where our result differs, and the reasons; the limits of the result.
    remarks: &'static str,
    run: fn(u64) -> Result<Findings, Error>,
}

/// The findings of a recipe.
#[derive(Debug)]
pub struct Findings {
    /// The tables that are looked at first, each with a caption.
    tables: Vec<(String, Table)>,
    /// The same, and more, for programs.
    rows: Vec<Value>,
    checks: Vec<Check>,
    /// A plot of them.
    pub figure: Figure,
}

/// One figure of the literature and ours.
#[derive(Debug)]
struct Check {
    what: String,
    expected: String,
    ours: String,
    holds: bool,
}

/// Error of a recipe.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum Error {
    /// The scheme was refused.
    Scheme(#[from] SchemeConfigError),
    /// The simulator refused the cluster, or the run failed.
    Simulation(#[from] sim::SimError),
    /// The digits do not make a problem for these workers.
    Problem(#[from] DigitsError),
}

/// In the order of the page.
pub const RECIPES: &[Recipe] = &[
    bap::RECIPE,
    bap::STRAGGLER,
    dbw_argmax::RECIPE,
    dbw::RECIPE,
    k_async::RECIPE,
    abs::RECIPE,
    essp::RECIPE,
    ds_sync::MEAN,
    ds_sync::RECIPE,
    dai::RECIPE,
];

impl Recipe {
    /// Tries it; the seed decides everything that is random.
    ///
    /// # Errors
    ///
    /// If the simulator or a scheme refuses what the recipe asks for.
    pub fn run(&self, seed: u64) -> Result<Findings, Error> {
        (self.run)(seed)
    }

    /// For people.
    pub fn text(&self, findings: &Findings) -> String {
        let mut text =
            format!("{}\n{}\n  ({})\n\nhere: {}\n", self.title, self.claim, self.source, self.setup);
        for (caption, table) in &findings.tables {
            text += &format!("\n{caption}\n{}", table.text());
        }
        text + "\n" + &checks(findings).text()
    }

    /// For programs.
    pub fn json(&self, findings: &Findings, seed: u64) -> Value {
        let checks = findings.checks.iter().map(|Check { what, expected, ours, holds }| {
            json!({ "claim": what, "expected": expected, "ours": ours, "holds": holds })
        });
        json!({
            "name": self.name,
            "claim": self.claim,
            "source": self.source,
            "setup": self.setup,
            "seed": seed,
            "rows": findings.rows,
            "checks": checks.collect::<Vec<_>>(),
        })
    }
}

/// The checks as a table.
fn checks(findings: &Findings) -> Table {
    let mut table = Table::new(["claim", "expected", "ours", ""]);
    for Check { what, expected, ours, holds } in &findings.checks {
        table.row([what.as_str(), expected, ours, if *holds { "yes" } else { "differs" }]);
    }
    table
}

impl Check {
    /// A value that should be `expected`, give or take a part of it.
    fn near(what: impl Into<String>, expected: f64, ours: f64, part: f64) -> Check {
        let holds = (ours - expected).abs() <= part * expected.abs();
        let expected = format!("{expected:.3} within {} %", 100.0 * part);
        Check { what: what.into(), expected, ours: format!("{ours:.3}"), holds }
    }

    fn new(
        what: impl Into<String>,
        expected: impl Into<String>,
        ours: impl Into<String>,
        holds: bool,
    ) -> Check {
        Check { what: what.into(), expected: expected.into(), ours: ours.into(), holds }
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

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}
