//! `slackline sim --reproduce`: the results of the literature, and ours beside them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;
use slackline_lab::reproduce::{
    self, AGAIN, Again, Error, Outcome, PAGE, PLOTS, Part, RECIPES, RECORDS, Race, Recipe,
};
use slackline_lab::table::Table;

use super::args::SimArgs;
use super::{again, give, keep, real, setup};
use crate::failure::Failure;
use crate::output;
use crate::scheme_args;

/// Runs `slackline sim --reproduce`.
pub(super) fn run(args: &SimArgs, name: &str) -> Result<ExitCode, Failure> {
    if let Some((setting, _)) = args.settings.given().first() {
        let option = scheme_args::option_of(setting);
        return Err(
            Failure::usage(format!("--{option}: each result has its own schemes")).help("leave it out")
        );
    }
    if name == "list" {
        super::print(&list())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.real && !args.quick && name == real::ALL_SCHEMES {
        args.docs.as_deref().map_or(Ok(()), check_docs)?;
        return real::run_all_schemes(args);
    }
    let recipes: Vec<&'static Recipe> =
        RECIPES.iter().filter(|recipe| name == "all" || recipe.name == name).collect();
    if recipes.is_empty() {
        let names: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
        let (names, also) = (names.join(", "), real::ALL_SCHEMES);
        return Err(Failure::usage(format!("--reproduce knows no {name:?}"))
            .help(format!("use one of {names}, or all; with --real also {also}")));
    }
    if args.real && args.docs.is_some() && name != "all" {
        let what = "--docs writes one page of the runs of all results on real processes";
        return Err(Failure::usage(what).help("use it with --reproduce all, or all-schemes"));
    }
    args.docs.as_deref().map_or(Ok(()), check_docs)?;
    if args.plot.is_some() && recipes.len() > 1 {
        return Err(
            Failure::usage("--plot is one file").help("name one result, or use --docs FOLDER for all plots")
        );
    }
    if args.real {
        return real::run(args, &recipes);
    }
    if let Some(times) = args.again {
        return again::run(args, &recipes, times);
    }
    let mut done = Vec::new();
    let ran = recipes.iter().try_for_each(|recipe| {
        done.push(recipe.run(args.seed, args.seeds)?);
        Ok(())
    });
    // One that fails loses nothing of those before it.
    if let Some(docs) = args.docs.as_deref().filter(|_| !done.is_empty()) {
        done = write_docs(docs, done)?;
    }
    ran.map_err(|error| failure(&error))?;
    let text: Vec<_> = done.iter().map(Outcome::text).collect();
    let json = || match &done[..] {
        [outcome] => outcome.json(),
        many => many.iter().map(Outcome::json).collect(),
    };
    give(args, &text.join("\n"), json, || done[0].figure().clone())?;
    Ok(ExitCode::SUCCESS)
}

fn list() -> String {
    let mut table = Table::new(["name", "what"]);
    RECIPES.iter().for_each(|recipe| table.row([recipe.name, recipe.title]));
    table.text()
}

/// Finds out whether the page can be written.
fn check_docs(docs: &Path) -> Result<(), Failure> {
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
fn read(file: &Path) -> Option<Value> {
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

/// Writes the page, and the plots and records of what was run; the page keeps what it tells of all others. Gives what
/// was run, judged by its runs with other seeds where there were any.
pub(super) fn write_docs(docs: &Path, mut done: Vec<Outcome>) -> Result<Vec<Outcome>, Failure> {
    for outcome in &mut done {
        read_again(docs, outcome.name()).into_iter().for_each(|again| outcome.held(again));
    }
    for outcome in &done {
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
            eprintln!(
                "warning: --docs {docs} has nothing of {name} yet, nor has the page; run --reproduce {name}"
            );
        }
        part
    };
    let parts: Vec<Part> = RECIPES.iter().filter_map(part).collect();
    let race = Race::read().map_err(|error| failure(&error))?;
    let all_schemes = read(&docs.join(RECORDS).join(format!("{}.json", real::ALL_SCHEMES)));
    let real = all_schemes.map_or_else(Vec::new, |record| race.borne_out(&record));
    let page = reproduce::page(&parts, &real).map_err(|error| failure(&error))?;
    keep("--docs", &docs.join(PAGE), &page)?;
    Ok(done)
}

/// The error of a recipe, in terms of options.
pub(super) fn failure(error: &Error) -> Failure {
    match error {
        Error::Scheme(error) => scheme_args::refused(error),
        Error::Simulation(error) => setup::failure(error),
        other => Failure::failed(other),
    }
}
