//! `slackline sim --reproduce NAME --again N`: how often each claim holds with other seeds.

use std::process::ExitCode;

use serde_json::Value;
use slackline_lab::reproduce::{Again, Outcome, Recipe};

use super::args::SimArgs;
use super::give_text;
use super::reproduce::{failure, write_again, write_docs};
use crate::failure::Failure;

/// Runs each result with the given seed, and then so many `times` with others; with --docs each is written as soon as
/// it is there.
pub(super) fn run(args: &SimArgs, recipes: &[&'static Recipe], times: u64) -> Result<ExitCode, Failure> {
    let mut all = Vec::new();
    for recipe in recipes {
        let first: Outcome = recipe.run(args.seed, args.seeds).map_err(|error| failure(&error))?;
        let again = Again::run(&first, times, args.seeds).map_err(|error| failure(&error))?;
        if let Some(docs) = args.docs.as_deref() {
            write_again(docs, &again)?;
            write_docs(docs, vec![first])?;
        }
        all.push(again);
    }
    give_text(args, &Again::table(&all).text(), &all.iter().map(Again::json).collect::<Value>())?;
    if all.iter().all(Again::is_kept) {
        return Ok(ExitCode::SUCCESS);
    }
    let what = "a claim that held does not hold in nine of ten runs with other seeds";
    Err(Failure::failed(what).help("more seeds tell chance from effect: see the table"))
}
