//! `slackline sim --reproduce NAME --again N`: how often each claim holds with other seeds.

use std::process::ExitCode;

use serde_json::{Value, json};
use slackline_lab::reproduce::Recipe;
use slackline_lab::table::Table;

use super::args::SimArgs;
use super::give_text;
use super::reproduce::failure;
use crate::failure::Failure;

/// The distance of the first seeds of two runs: more than any result has seeds.
const APART: u64 = 1000;

/// A claim that held at first holds in so many of ten runs, or it was chance.
const LEAST: f64 = 0.9;

/// Runs each result with the given seed, and then so many `times` with others.
pub(super) fn run(args: &SimArgs, recipes: &[&'static Recipe], times: u64) -> Result<ExitCode, Failure> {
    let mut table = Table::new(["result", "claim", "against", "at first", "holds again"]);
    let (mut rows, mut is_kept) = (Vec::new(), true);
    for recipe in recipes {
        let verdicts = |run: u64| -> Result<Vec<Value>, Failure> {
            let outcome = recipe.run(args.seed + APART * run, args.seeds).map_err(|error| failure(&error))?;
            Ok(outcome.json()["checks"].as_array().cloned().unwrap_or_default())
        };
        let first = verdicts(0)?;
        let again = (1..=times).map(verdicts).collect::<Result<Vec<_>, _>>()?;
        for (index, check) in first.iter().enumerate().filter(|(_, check)| check["verdict"] != "not tried") {
            let holds = again.iter().filter(|checks| checks[index]["verdict"] == "yes").count();
            let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
            is_kept &= check["verdict"] != "yes" || holds as f64 >= LEAST * times as f64;
            let of = format!("{holds} of {times}");
            table.row([recipe.name.to_owned(), text("name"), text("against"), text("verdict"), of]);
            rows.push(json!({
                "result": recipe.name, "claim": check["name"], "against": check["against"],
                "verdict": check["verdict"], "again": times, "holds": holds,
            }));
        }
    }
    give_text(args, &table.text(), &Value::Array(rows))?;
    match is_kept {
        true => Ok(ExitCode::SUCCESS),
        false => {
            let what = "a claim that held does not hold in nine of ten runs with other seeds";
            Err(Failure::failed(what).help("more seeds tell chance from effect: see the table"))
        }
    }
}
