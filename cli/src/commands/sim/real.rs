//! `slackline sim --reproduce NAME --real`: the same runs on real processes, and the simulator beside them.

use std::env;
use std::fs;
use std::process::{Command, ExitCode};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use slackline_lab::parallel::Progress;
use slackline_lab::reproduce::{
    self as lab, Arrival, Comparison, Occasion, REAL_PAGE, RECORDS, Race, Recipe, Twin, all_schemes,
    compared, real_page,
};

use super::args::SimArgs;
use super::errors;
use super::give::give_text;
use super::records::{ALL_SCHEMES, read};
use crate::failure::Failure;
use crate::output::keep;

/// File name of the record of the comparisons.
const RECORD: &str = "real.json";

/// Runs the twins of these recipes, one after the other, for they share the machine.
pub(super) fn run(args: &SimArgs, recipes: &[&'static Recipe]) -> Result<ExitCode, Failure> {
    let others = of_others(args, recipes)?;
    let mut twins: Vec<(&str, Twin)> = Vec::new();
    for recipe in recipes {
        let own = recipe.twins().map_err(|error| errors::of_recipe(&error))?;
        twins.extend(
            own.into_iter().filter(|twin| !args.quick || twin.is_quick()).map(|twin| (recipe.name, twin)),
        );
    }
    let made = format!("{}, {}", date(), machine());
    let progress = Progress::new("real runs", twins.len());
    let mut comparisons: Vec<Comparison> = Vec::new();
    // Several figures of one run stand one after the other.
    let mut last: Option<(Vec<String>, Value)> = None;
    for (recipe, twin) in &twins {
        let words = twin.words();
        let run = match last.take() {
            Some((of, run)) if of == words => run,
            _ => train(&words)?,
        };
        let calibration = twin.words_of_calibration().map(|words| train(&words)).transpose()?;
        let comparison = twin.compare(recipe, &run, calibration.as_ref(), &made);
        comparisons.push(comparison.map_err(|error| errors::of_recipe(&error))?);
        last = Some((words, run));
        progress.show(comparisons.len());
    }
    drop(progress);
    comparisons.extend(others);
    comparisons.sort_by_key(|own| lab::RECIPES.iter().position(|recipe| recipe.name == own.recipe));
    let record = json!({ "comparisons": comparisons });
    tell(args, RECORD, &compared(&comparisons), &record)
}

/// The comparisons of other recipes that the record beside the page has; it keeps them.
///
/// # Errors
///
/// The record cannot be read.
fn of_others(args: &SimArgs, recipes: &[&Recipe]) -> Result<Vec<Comparison>, Failure> {
    let file = args.docs.as_deref().map(|docs| docs.join(RECORDS).join(RECORD));
    let Some(file) = file.filter(|file| recipes.len() < lab::RECIPES.len() && file.exists()) else {
        return Ok(Vec::new());
    };
    let kept = read(&file).and_then(|record| serde_json::from_value(record["comparisons"].clone()).ok());
    let mut kept: Vec<Comparison> = kept.ok_or_else(|| {
        Failure::usage(format!("--docs {}: cannot be read", file.display()))
            .help("use --reproduce all, which writes it again")
    })?;
    kept.retain(|kept| recipes.iter().all(|recipe| recipe.name != kept.recipe));
    Ok(kept)
}

/// Runs all schemes.
pub(super) fn run_all_schemes(args: &SimArgs) -> Result<ExitCode, Failure> {
    let race = Race::read().map_err(|error| errors::of_recipe(&error))?;
    let (begun, runs) = (Instant::now(), race.runs());
    let progress = Progress::new("real runs of all schemes", runs.len());
    let mut ended = Vec::with_capacity(runs.len());
    for run in runs {
        ended.push((run, Arrival::of(&train(&race.words(run))?)));
        progress.show(ended.len());
    }
    drop(progress);
    let ((table, runs), occasion) = (race.report(&ended), occasion(begun));
    let record = json!({ "occasion": occasion, "runs": runs });
    tell(args, &format!("{ALL_SCHEMES}.json"), &all_schemes(&table, &occasion), &record)
}

/// Shows a part of the page, and writes it with its record where that is asked for. The error is the first.
fn tell(args: &SimArgs, file: &str, part: &str, record: &Value) -> Result<ExitCode, Failure> {
    let recorded = args.docs.as_ref().map_or(Ok(()), |docs| {
        keep("--docs", &docs.join(RECORDS).join(file), &lab::record(record))?;
        let page = docs.join(REAL_PAGE);
        let earlier = fs::read_to_string(&page).unwrap_or_default();
        keep("--docs", &page, &real_page(&earlier, part))
    });
    recorded.and(give_text(args, part, record)).map(|()| ExitCode::SUCCESS)
}

/// Where and when this was, if it began then.
fn occasion(begun: Instant) -> Occasion {
    Occasion { machine: machine(), date: date(), minutes: begun.elapsed().as_secs().div_ceil(60) }
}

/// Trains with these words, in processes of its own.
fn train(words: &[String]) -> Result<Value, Failure> {
    let told = words.join(" ");
    let failed = |why: String| Failure::failed(format!("slackline train {told}: {why}"));
    let program = env::current_exe().map_err(|error| failed(error.to_string()))?;
    let output = Command::new(program).arg("train").args(words).args(["--json", "-"]).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// The processors of this machine, and nothing by which it could be told from another of its kind.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{cores} processors, {}", model.map_or(env::consts::ARCH, |(_, model)| model))
}

/// The day, in UTC.
fn date() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut days = since / 86_400;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, days + 1)
}
