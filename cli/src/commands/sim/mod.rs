//! `slackline sim`: jobs in virtual time, one or many, and the results of the literature beside ours.

mod again;
mod args;
mod errors;
mod fabric;
mod give;
mod parse;
mod real;
mod records;
mod report;
mod reproduce;
mod setup;
mod sweep;

use std::process::ExitCode;

use serde_json::json;
use slackline::scheme::SchemeConfig;
use slackline_lab::parallel;

pub(crate) use args::SimArgs;

use crate::failure::Failure;
use crate::scheme_args;
use give::{check_outputs, give};
use setup::simulate;

/// Runs `slackline sim`.
pub(crate) fn run(args: &SimArgs) -> ExitCode {
    match try_run(args) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn try_run(args: &SimArgs) -> Result<ExitCode, Failure> {
    check_outputs(args)?;
    if let Some(name) = &args.reproduce {
        return reproduce::run(args, name);
    }
    if args.fabric {
        return fabric::run(args);
    }
    if !args.sweep.is_empty() {
        return sweep::run(args).map(|()| ExitCode::SUCCESS);
    }
    match &args.compare {
        Some(schemes) => compare(args, schemes)?,
        None => one(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn one(args: &SimArgs) -> Result<(), Failure> {
    let scheme = args.config()?;
    setup::check_server(args, &[scheme])?;
    let cluster = setup::cluster(args, scheme, setup::until(args, &[scheme]))?;
    let learning_rate = cluster.learning_rate;
    let report = simulate(cluster)?;
    let json = || report::json_one(args, &report, learning_rate);
    give(args, &report::one(args, &report), json, || report::figure(args, std::slice::from_ref(&report)))
}

fn compare(args: &SimArgs, schemes: &str) -> Result<(), Failure> {
    let schemes = parse::list(schemes);
    if let Some((setting, value)) = args.settings.given().first() {
        let option = scheme_args::option_of(setting);
        return Err(Failure::usage(format!(
            "--{option} {value}: of several schemes each has its own settings"
        ))
        .help(format!(
            "write them in parentheses{}",
            example(&schemes, setting, value)
                .map_or(String::new(), |list| format!(", such as --compare '{list}'"))
        )));
    }
    let schemes: Vec<SchemeConfig> =
        schemes.iter().map(|text| args.config_of(text)).collect::<Result<_, _>>()?;
    if schemes.is_empty() {
        return Err(Failure::usage("--compare names no scheme").help("write some, such as bsp,ssp(3)"));
    }
    setup::check_server(args, &schemes)?;
    let until = setup::until(args, &schemes);
    // Everything that is wrong is told before anything is run.
    let clusters = schemes.iter().map(|scheme| setup::cluster(args, *scheme, until));
    let rate = clusters.collect::<Result<Vec<_>, _>>()?.first().map_or(0.0, |cluster| cluster.learning_rate);
    let reports =
        parallel::map("schemes", &schemes, |scheme| simulate(setup::cluster(args, *scheme, until)?))?;
    let json = || {
        let runs: Vec<_> = reports.iter().map(|report| report::json_one(args, report, rate)).collect();
        json!({ "runs": runs })
    };
    give(args, &report::many(args, &reports), json, || report::figure(args, &reports))
}

/// The list with a setting in the brackets of those that take it; if none does, with a scheme that does.
fn example(schemes: &[String], setting: &str, value: &str) -> Option<String> {
    let takes = |text: &str| SchemeConfig::from_settings(text, &[(setting, value)]).is_ok();
    let with = |text: &str| match text.strip_suffix(')') {
        Some(open) => format!("{open}, {setting}={value})"),
        None => format!("{text}({setting}={value})"),
    };
    let mut list: Vec<_> =
        schemes.iter().map(|text| if takes(text) { with(text) } else { text.clone() }).collect();
    if list == schemes {
        list.push(with(SchemeConfig::NAMES.into_iter().find(|name| takes(name))?));
    }
    Some(list.join(","))
}
