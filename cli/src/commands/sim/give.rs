//! Where results go: text to stdout, JSON and plots to files that are checked before anything is run.

use std::path::Path;

use serde_json::Value;
use slackline_lab::plot::Figure;

use super::args::SimArgs;
use crate::failure::Failure;
use crate::output::{self, print};

/// Nothing is computed whose result could not be kept.
pub(super) fn check_outputs(args: &SimArgs) -> Result<(), Failure> {
    let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
    output::check_apart(("--json", json), &[])?;
    output::check_apart(("--plot", args.plot.as_deref()), &[("--json", json)])
}

/// Brings results where they are wanted.
pub(super) fn give(
    args: &SimArgs,
    text: &str,
    json: impl FnOnce() -> Value,
    figure: impl FnOnce() -> Figure,
) -> Result<(), Failure> {
    if let Some(path) = &args.plot {
        keep("--plot", path, &figure().svg())?;
    }
    give_text(args, text, &json())
}

/// Brings results without a plot where they are wanted.
pub(super) fn give_text(args: &SimArgs, text: &str, json: &Value) -> Result<(), Failure> {
    let Some(path) = &args.json else { return print(text) };
    let json = format!("{json}\n");
    if path == Path::new("-") {
        eprint!("{text}");
        return print(&json);
    }
    keep("--json", path, &json)?;
    print(text)
}

pub(super) fn keep(option: &str, path: &Path, text: &str) -> Result<(), Failure> {
    output::replace(path, text.as_bytes()).map_err(|error| {
        let remedy = "check the folder, its permissions and the space left";
        Failure::failed(format!("{option} {}: cannot be written: {error}", path.display())).help(remedy)
    })
}
