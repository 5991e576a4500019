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

use std::process::ExitCode;

use serde_json::{Value, json};
use slackline::scheme::Config;
use slackline::sim::{Cluster, Report};
use slackline_cli::plot::Figure;

use super::args::Args;
use super::{give, parallel, setup};
use crate::failure::Failure;
use crate::scheme_args;
use crate::table::Table;

/// A result of the literature and how to try it.
pub(super) struct Recipe {
    /// What `--reproduce` calls it.
    name: &'static str,
    title: &'static str,
    /// What was found, and by whom.
    claim: &'static str,
    source: &'static str,
    /// How it is tried here.
    setup: &'static str,
    /// Where ours differs, and why; what bounds it.
    remarks: &'static str,
    run: fn(u64) -> Result<Findings, Failure>,
}

/// What came of it.
pub(super) struct Findings {
    /// What is looked at first, each with a caption.
    tables: Vec<(String, Table)>,
    /// The same, and more, for programs.
    rows: Vec<Value>,
    checks: Vec<Check>,
    figure: Figure,
}

/// One figure of the literature and ours.
pub(super) struct Check {
    what: String,
    expected: String,
    ours: String,
    holds: bool,
}

/// In the order of the page.
const RECIPES: &[Recipe] = &[
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

/// Runs `slackline sim --reproduce`.
pub(super) fn run(args: &Args, name: &str) -> Result<ExitCode, Failure> {
    if let Some((setting, _)) = args.settings.given().first() {
        let option = scheme_args::option_of(setting);
        return Err(Failure::usage(format!("--{option}: each result has its own schemes; leave it out")));
    }
    if name == "list" {
        super::print(&list())?;
        return Ok(ExitCode::SUCCESS);
    }
    let recipes: Vec<&Recipe> =
        RECIPES.iter().filter(|recipe| name == "all" || recipe.name == name).collect();
    if recipes.is_empty() {
        let names: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
        return Err(Failure::usage(format!(
            "--reproduce knows no {name:?}; use one of {}, or all",
            names.join(", ")
        )));
    }
    if let (Some(docs), "all") = (&args.docs, name) {
        page::check(docs)?;
    } else if args.docs.is_some() {
        return Err(Failure::usage("--docs writes one page of all; use it with --reproduce all"));
    }
    if args.plot.is_some() && recipes.len() > 1 {
        return Err(Failure::usage(
            "--plot is one file; name one result, or use --docs FOLDER for all plots",
        ));
    }
    let mut done = Vec::with_capacity(recipes.len());
    for recipe in recipes {
        done.push((recipe, (recipe.run)(args.seed)?));
    }
    if let Some(docs) = &args.docs {
        page::write(docs, &done)?;
    }
    let text: Vec<_> = done.iter().map(|(recipe, findings)| text(recipe, findings)).collect();
    let json = || match &done[..] {
        [(recipe, findings)] => value(recipe, findings, args.seed),
        many => many.iter().map(|(recipe, findings)| value(recipe, findings, args.seed)).collect(),
    };
    give(args, &text.join("\n"), json, || done[0].1.figure.clone())?;
    Ok(ExitCode::SUCCESS)
}

fn list() -> String {
    let mut table = Table::new(["name", "what"]);
    RECIPES.iter().for_each(|recipe| table.row([recipe.name, recipe.title]));
    table.text()
}

/// For people.
fn text(recipe: &Recipe, findings: &Findings) -> String {
    let mut text =
        format!("{}\n{}\n  ({})\n\nhere: {}\n", recipe.title, recipe.claim, recipe.source, recipe.setup);
    for (caption, table) in &findings.tables {
        text += &format!("\n{caption}\n{}", table.text());
    }
    text + "\n" + &checks(findings).text()
}

/// The checks as a table.
fn checks(findings: &Findings) -> Table {
    let mut table = Table::new(["claim", "expected", "ours", ""]);
    for Check { what, expected, ours, holds } in &findings.checks {
        table.row([what.as_str(), expected, ours, if *holds { "yes" } else { "differs" }]);
    }
    table
}

/// For programs.
fn value(recipe: &Recipe, findings: &Findings, seed: u64) -> Value {
    let checks = findings.checks.iter().map(|Check { what, expected, ours, holds }| {
        json!({ "claim": what, "expected": expected, "ours": ours, "holds": holds })
    });
    json!({
        "name": recipe.name,
        "claim": recipe.claim,
        "source": recipe.source,
        "setup": recipe.setup,
        "seed": seed,
        "rows": findings.rows,
        "checks": checks.collect::<Vec<_>>(),
    })
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
    cluster: impl Fn(&T) -> Result<Cluster, Failure> + Sync,
) -> Result<Vec<Report>, Failure> {
    parallel::map(what, items, |item| cluster(item)?.run().map_err(|error| setup::failure(&error)))
}

/// A scheme as it is written on the command line.
fn scheme(text: &str) -> Result<Config, Failure> {
    text.parse().map_err(|error| scheme_args::refused(&error))
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}
