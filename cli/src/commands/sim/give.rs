//! Where results go: text to stdout, JSON and plots to files that are checked before anything is run.

use std::path::Path;

use serde_json::Value;
use slackline_lab::plot::Figure;

use super::args::SimArgs;
use crate::failure::Failure;
use crate::output;

/// Nothing is computed whose result could not be kept.
pub(super) fn check_outputs(args: &SimArgs) -> Result<(), Failure> {
    let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
    output::check_apart(("--json", json), &[])?;
    output::check_apart(("--plot", args.plot.as_deref()), &[("--json", json)])
}

/// Brings results where they are wanted. One that cannot be written keeps none of the others back; the error is the
/// first.
pub(super) fn give(
    args: &SimArgs,
    text: &str,
    json: impl FnOnce() -> Value,
    figure: impl FnOnce() -> Figure,
) -> Result<(), Failure> {
    let plot = args.plot.as_ref();
    let plotted = plot.map_or(Ok(()), |path| output::keep("--plot", path, &figure().svg()));
    plotted.and(give_text(args, text, &json()))
}

/// Brings results without a plot where they are wanted.
pub(super) fn give_text(args: &SimArgs, text: &str, json: &Value) -> Result<(), Failure> {
    output::give(text, &format!("{json}\n"), args.json.as_deref())
}
