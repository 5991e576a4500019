//! The page of the results of the literature, and the plots and records beside it: what `--docs` reads and writes.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use slackline_lab::reproduce::{
    self, AGAIN, Again, Outcome, PAGE, PLOTS, Part, RECIPES, RECORDS, Race, Recipe,
};
use slackline_lab::stderr;

use super::errors;
use crate::failure::Failure;
use crate::output::{self, keep};

/// The name by which the table of all schemes is asked for, as a result is, and that of its record.
pub(super) const ALL_SCHEMES: &str = "all-schemes";

/// Finds out whether the page can be written.
pub(super) fn check_docs(docs: &Path) -> Result<(), Failure> {
    output::check("--docs", &docs.join(PAGE))?;
    for folder in [docs.join(PLOTS), docs.join(RECORDS), docs.join(RECORDS).join(AGAIN)] {
        fs::create_dir_all(&folder).map_err(|error| {
            Failure::usage(format!("--docs {}: {error}", folder.display()))
                .help("name a folder that can be written to")
        })?;
    }
    Ok(())
}

/// A record.
pub(super) fn read(file: &Path) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(file).ok()?).ok()
}

/// Where the runs of a result with other seeds are recorded.
fn record_again(docs: &Path, name: &str) -> PathBuf {
    docs.join(RECORDS).join(AGAIN).join(format!("{name}.json"))
}

/// The record of runs with other seeds, if there is one.
pub(super) fn read_again(docs: &Path, name: &str) -> Option<Again> {
    Again::read(&read(&record_again(docs, name))?)
}

/// Writes the record of runs with other seeds.
pub(super) fn write_again(docs: &Path, again: &Again) -> Result<(), Failure> {
    keep("--docs", &record_again(docs, &again.result), &reproduce::record(&again.json()))
}

/// Writes the page, and the plots and records of what was run; the page keeps what it tells of all others. What was
/// run is judged by its runs with other seeds where there were any.
pub(super) fn write_docs(docs: &Path, done: &mut [Outcome]) -> Result<(), Failure> {
    for outcome in &mut *done {
        read_again(docs, outcome.name()).into_iter().for_each(|again| outcome.held(again));
    }
    for outcome in &*done {
        let name = outcome.name();
        keep("--docs", &docs.join(PLOTS).join(format!("{name}.svg")), &outcome.figure().svg())?;
        keep(
            "--docs",
            &docs.join(RECORDS).join(format!("{name}.json")),
            &reproduce::record(&outcome.json()),
        )?;
    }
    let before = fs::read_to_string(docs.join(PAGE)).unwrap_or_default();
    let part = |recipe: &'static Recipe| {
        let outcome = done.iter().find(|outcome| outcome.name() == recipe.name);
        let kept = || {
            let record = read(&docs.join(RECORDS).join(format!("{}.json", recipe.name)))?;
            Part::kept(recipe, &record, read_again(docs, recipe.name), &before)
        };
        let part = outcome.map(Part::of).or_else(kept);
        if part.is_none() {
            let (name, docs) = (recipe.name, docs.display());
            stderr::tell(format_args!(
                "warning: --docs {docs} has nothing of {name} yet, nor has the page; run --reproduce {name}"
            ));
        }
        part
    };
    let parts: Vec<Part> = RECIPES.iter().filter_map(part).collect();
    let race = Race::read().map_err(|error| errors::of_recipe(&error))?;
    let all_schemes = read(&docs.join(RECORDS).join(format!("{}.json", ALL_SCHEMES)));
    let real = all_schemes.map_or_else(Vec::new, |record| race.borne_out(&record));
    let page = reproduce::page(&parts, &real).map_err(|error| errors::of_recipe(&error))?;
    keep("--docs", &docs.join(PAGE), &page)
}
