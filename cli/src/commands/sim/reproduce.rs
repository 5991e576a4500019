//! `slackline sim --reproduce`: the results of the literature, and ours beside them.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use slackline_lab::reproduce::{self, Error, Findings, PAGE, PLOTS, RECIPES, Recipe};
use slackline_lab::table::Table;

use super::args::SimArgs;
use super::{give, keep, setup};
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
    let recipes: Vec<&Recipe> =
        RECIPES.iter().filter(|recipe| name == "all" || recipe.name == name).collect();
    if recipes.is_empty() {
        let names: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
        return Err(Failure::usage(format!("--reproduce knows no {name:?}"))
            .help(format!("use one of {}, or all", names.join(", "))));
    }
    if let (Some(docs), "all") = (&args.docs, name) {
        check_docs(docs)?;
    } else if args.docs.is_some() {
        return Err(Failure::usage("--docs writes one page of all").help("use it with --reproduce all"));
    }
    if args.plot.is_some() && recipes.len() > 1 {
        return Err(
            Failure::usage("--plot is one file").help("name one result, or use --docs FOLDER for all plots")
        );
    }
    let mut done = Vec::with_capacity(recipes.len());
    for recipe in recipes {
        done.push((recipe, recipe.run(args.seed).map_err(|error| failure(&error))?));
    }
    if let Some(docs) = &args.docs {
        write_docs(docs, &done)?;
    }
    let text: Vec<_> = done.iter().map(|(recipe, findings)| recipe.text(findings)).collect();
    let json = || match &done[..] {
        [(recipe, findings)] => recipe.json(findings, args.seed),
        many => many.iter().map(|(recipe, findings)| recipe.json(findings, args.seed)).collect(),
    };
    give(args, &text.join("\n"), json, || done[0].1.figure.clone())?;
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
    let plots = docs.join(PLOTS);
    fs::create_dir_all(&plots).map_err(|error| {
        Failure::usage(format!("--docs {}: {error}", plots.display()))
            .help("name a folder that can be written to")
    })
}

/// Writes the page and its plots.
fn write_docs(docs: &Path, done: &[(&Recipe, Findings)]) -> Result<(), Failure> {
    for (recipe, findings) in done {
        keep("--docs", &docs.join(PLOTS).join(format!("{}.svg", recipe.name)), &findings.figure.svg())?;
    }
    keep("--docs", &docs.join(PAGE), &reproduce::page(done))
}

/// The error of a recipe, in terms of options.
fn failure(error: &Error) -> Failure {
    match error {
        Error::Scheme(error) => scheme_args::refused(error),
        Error::Simulation(error) => setup::failure(error),
        other => Failure::failed(other),
    }
}
