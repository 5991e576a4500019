//! The real nodes over the hostile fabric, seed by seed.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use slackline::sim::fabric::{self, FabricOptions};
use slackline_lab::parallel::Progress;

use super::args::SimArgs;
use super::give::give_text;
use crate::failure::Failure;
use crate::scheme_args;

/// Runs `slackline sim --fabric`.
pub(super) fn run(args: &SimArgs) -> Result<ExitCode, Failure> {
    let scheme = match (&args.scheme, args.settings.given().first()) {
        (None, Some((setting, _))) => {
            let what = "the scheme is drawn from the seed";
            let option = scheme_args::option_of(setting);
            return Err(Failure::usage(format!("--{option}: {what}")).help("add --scheme, or leave it out"));
        }
        (None, None) => None,
        (Some(text), _) => Some(args.settings.config_for(text, fabric::WORKERS_MAX)?),
    };
    if let Some(scheme) = scheme.filter(|scheme| !scheme.has_server()) {
        return Err(Failure::usage(format!(
            "--scheme {scheme}: the fabric runs servers and workers, and this scheme has no server"
        ))
        .help("choose another"));
    }
    scheme.as_ref().map_or(Ok(()), scheme_args::check_real)?;
    let scheme = scheme.map(Into::into);
    let options = FabricOptions { scheme, spare_nodes: args.spare_nodes, only: args.only };
    let Some(count) = args.seeds else {
        let report = fabric::run(args.seed, &options).map_err(|failure| Failure::of(&failure))?;
        let mut text = format!("seed {}, {}: every promise was kept\n\n", report.seed, report.scheme);
        let mut line = |name: &str, what: String| {
            let _ = writeln!(text, "{name:<12}{what}");
        };
        line("time", format!("{:.3} s of its own", report.virtual_time.as_secs_f64()));
        line("versions", report.versions.to_string());
        line("views", format!("{}, each compared with what was published", report.views));
        line("errors", format!("{}, as they may be", report.errors));
        line("trace", format!("{:016x}, {} events", report.trace_hash, report.events));
        let json = json!({
            "seed": report.seed, "scheme": report.scheme.to_string(), "events": report.events,
            "virtual_time": report.virtual_time.as_secs_f64(), "versions": report.versions,
            "views": report.views, "errors": report.errors,
            "trace_hash": format!("{:016x}", report.trace_hash),
        });
        return give_text(args, &text, &json).map(|()| ExitCode::SUCCESS);
    };
    let end = args.seed.checked_add(count).filter(|_| count > 0).ok_or_else(|| {
        Failure::usage(format!("--seeds {count}: there are not so many from {}", args.seed))
            .help("use 1 or more")
    })?;
    let progress = Progress::new("seeds", count as usize);
    let done = AtomicU64::new(0);
    let summary = fabric::run_all(args.seed..end, &options, 0, &|_| {
        progress.show(done.fetch_add(1, Ordering::Relaxed) as usize + 1);
    });
    drop(progress);
    let summary = summary.map_err(|failure| Failure::of(&failure))?;
    let text = format!(
        "{} seeds from {}: every promise was kept\n\n{} events, {} versions, {} views compared, {} errors as \
         they may be\ntrace {:016x}\n",
        summary.runs,
        args.seed,
        summary.events,
        summary.versions,
        summary.views,
        summary.errors,
        summary.trace_hash
    );
    let json: Value = json!({
        "first_seed": args.seed, "seeds": summary.runs, "events": summary.events, "versions": summary.versions,
        "views": summary.views, "errors": summary.errors, "trace_hash": format!("{:016x}", summary.trace_hash),
    });
    give_text(args, &text, &json).map(|()| ExitCode::SUCCESS)
}
