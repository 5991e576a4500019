//! The options that say where the servers of a job keep their shards, and what is found there.

use std::fs;
use std::path::{Path, PathBuf};

use slackline::checkpoint::{Checkpoint, CheckpointOptions, Resume};
use slackline::internals::job::coordinated::CheckpointOrder;

use crate::failure::Failure;

/// The remedy where there is nothing to go on from.
const NO_RESUME: &str = "leave --resume out to begin from the initial values";

/// The folder of checkpoints, and what is done with it.
#[derive(clap::Args, Debug)]
pub(crate) struct CheckpointArgs {
    /// Write checkpoints into this folder, from which a lost server goes on
    ///
    /// It keeps the last two of each server. SIGUSR1 writes one at once, SIGINT (Ctrl-C) and SIGTERM before the end.
    #[arg(long, help_heading = "Restarts", value_name = "FOLDER")]
    pub(crate) checkpoint: Option<PathBuf>,

    /// Versions between two checkpoints
    #[arg(
        long,
        help_heading = "Restarts",
        requires = "checkpoint",
        value_name = "VERSIONS",
        default_value_t = 500
    )]
    checkpoint_every: u64,

    /// Go on from the checkpoints in the folder; it is an error if there are none
    #[arg(long, help_heading = "Restarts", requires = "checkpoint")]
    resume: bool,

    /// End the run when a checkpoint cannot be written, instead of with a warning
    #[arg(long, help_heading = "Restarts", requires = "checkpoint")]
    pub(crate) strict_checkpoints: bool,
}

impl CheckpointArgs {
    /// Returns where checkpoints go, if any are written. Those of an earlier run are taken up or left alone, never
    /// written over. Only a `local` run, all of whose servers are on this host, looks for them here: elsewhere each
    /// server looks for itself.
    pub(crate) fn order(&self, servers: usize, local: bool) -> Result<Option<CheckpointOrder>, Failure> {
        let Some(folder) = &self.checkpoint else { return Ok(None) };
        let wrong = |what: String| Failure::usage(format!("--checkpoint {}: {what}", folder.display()));
        if self.checkpoint_every == 0 {
            return Err(Failure::usage("--checkpoint-every cannot be 0").help("use 1 or more versions"));
        }
        if self.resume && local && !folder.is_dir() {
            return Err(
                Failure::usage(format!("--resume: there is no folder {}", folder.display())).help(NO_RESUME)
            );
        }
        fs::create_dir_all(folder).map_err(|error| {
            wrong(error.to_string()).help("name a folder that can be made and written to")
        })?;
        let folder = folder.canonicalize().map_err(|error| wrong(error.to_string()))?;
        let resume = if self.resume { Resume::Required } else { Resume::Never };
        let order = CheckpointOrder::new(folder, self.checkpoint_every, resume);
        if local {
            self.look(&order, servers)?;
        }
        Ok(Some(order))
    }

    /// Finds out whether the folder has what the run goes on from, or nothing that it would write over.
    fn look(&self, order: &CheckpointOrder, servers: usize) -> Result<(), Failure> {
        let folder = order.folder();
        let files = (0..servers).map(|shard| order.file(shard as u16, servers as u16));
        let name = |file: &Path| file.file_name().unwrap_or_default().display().to_string();
        let (there, missing): (Vec<_>, Vec<_>) = files.partition(|file| Checkpoint::exists(file));
        if self.resume && !missing.is_empty() {
            let missing: Vec<_> = missing.iter().map(|file| name(file)).collect();
            let found = match found(folder) {
                found if found.is_empty() => "no checkpoint at all".to_owned(),
                found => found.join(", "),
            };
            return Err(Failure::usage(format!(
                "--resume: {} with --servers {servers} needs {}, and holds {found}",
                folder.display(),
                missing.join(", ")
            ))
            .help(format!(
                "use the number of servers that wrote the checkpoints (the number after `of`), or {NO_RESUME}"
            )));
        }
        if let Some(file) = there.first().filter(|_| !self.resume) {
            let (folder, name) = (folder.display(), name(file));
            let what = format!("--checkpoint {folder}: an earlier run left {name} there");
            return Err(Failure::usage(what).help("add --resume, or name another folder"));
        }
        CheckpointOptions::new(order.file(0, servers as u16))
            .try_folder()
            .map_err(|error| Failure::refused(&error).after("--checkpoint"))
    }
}

/// The names of all checkpoints in a folder.
fn found(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().display().to_string());
    let is_one = |name: &str| name.ends_with(".safetensors") || name.ends_with(".safetensors.previous");
    let mut names: Vec<_> = names.filter(|name| name.starts_with("shard-") && is_one(name)).collect();
    names.sort();
    names
}
