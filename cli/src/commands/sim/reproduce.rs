//! `slackline sim --reproduce`: the results of the literature, and ours beside them.

use std::process::ExitCode;

use slackline_lab::reproduce::{Outcome, RECIPES, Recipe};
use slackline_lab::table::Table;

use super::args::SimArgs;
use super::give::give;
use super::records::{ALL_SCHEMES, check_docs, write_docs};
use super::{again, errors, real};
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
        output::print(&list())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.real && !args.quick && name == ALL_SCHEMES {
        args.docs.as_deref().map_or(Ok(()), check_docs)?;
        return real::run_all_schemes(args);
    }
    let recipes: Vec<&'static Recipe> =
        RECIPES.iter().filter(|recipe| name == "all" || recipe.name == name).collect();
    if recipes.is_empty() {
        let names: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
        let (names, also) = (names.join(", "), ALL_SCHEMES);
        return Err(Failure::usage(format!("--reproduce knows no {name:?}"))
            .help(format!("use one of {names}, or all; with --real also {also}")));
    }
    if args.quick && args.docs.is_some() {
        let what = "--docs writes all runs of a result on real processes";
        return Err(Failure::usage(what).help("leave --quick out"));
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
    let docs = args.docs.as_deref().filter(|_| !done.is_empty());
    let recorded = docs.map_or(Ok(()), |docs| write_docs(docs, &mut done));
    ran.map_err(|error| errors::of_recipe(&error))?;
    let text: Vec<_> = done.iter().map(Outcome::text).collect();
    let json = || match &done[..] {
        [outcome] => outcome.json(),
        many => many.iter().map(Outcome::json).collect(),
    };
    let given = give(args, &text.join("\n"), json, || done[0].figure().clone());
    recorded.and(given).map(|()| ExitCode::SUCCESS)
}

fn list() -> String {
    let mut table = Table::new(["name", "what"]);
    RECIPES.iter().for_each(|recipe| table.row([recipe.name, recipe.title]));
    table.text()
}
