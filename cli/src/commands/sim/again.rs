//! `slackline sim --reproduce NAME --again N`: how often each claim holds with other seeds.

use std::process::ExitCode;
use std::slice;

use serde_json::Value;
use slackline_lab::reproduce::{Again, Outcome, Recipe};
use slackline_lab::stderr;

use super::args::SimArgs;
use super::errors;
use super::give::give_text;
use super::records::{read_again, write_again, write_docs};
use crate::failure::Failure;

/// Runs each result with the given seed, and then so many `times` with others. With --docs each run is recorded as soon
/// as it is there, and runs that are on record are not made again.
pub(super) fn run(args: &SimArgs, recipes: &[&'static Recipe], times: u64) -> Result<ExitCode, Failure> {
    let mut all = Vec::new();
    for recipe in recipes {
        let mut first: Outcome =
            recipe.run(args.seed, args.seeds).map_err(|error| errors::of_recipe(&error))?;
        let docs = args.docs.as_deref();
        let recorded = docs.and_then(|docs| read_again(docs, recipe.name));
        let own = recorded.filter(|again| again.is_of(&first));
        let mut again = own.unwrap_or_else(|| Again::none_yet(&first));
        if again.times() > 0 {
            let (name, recorded) = (recipe.name, again.times());
            stderr::tell(format_args!("{name}: {recorded} runs are on record, {times} are asked for"));
        }
        while again.times() < times {
            again.once_more(&first, args.seeds).map_err(|error| errors::of_recipe(&error))?;
            docs.map_or(Ok(()), |docs| write_again(docs, &again))?;
        }
        docs.map_or(Ok(()), |docs| write_docs(docs, slice::from_mut(&mut first)))?;
        all.push(again);
    }
    give_text(args, &Again::table(&all).text(), &all.iter().map(Again::json).collect::<Value>())?;
    if all.iter().all(Again::is_kept) {
        return Ok(ExitCode::SUCCESS);
    }
    let what = "a claim that held does not hold in nine of ten runs with other seeds";
    Err(Failure::failed(what).help("more seeds tell chance from effect: see the table"))
}
