//! `slackline man`: the manual pages, made from the definition of the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::Failure;

/// Write the manual pages, one for each command.
///
/// The pages are written to a folder and replace older ones. `man` finds them in the folder `man1` of each folder
/// of its path.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  slackline man ~/.local/share/man/man1 && man slackline-train

Exit codes: 0 done, 1 a page cannot be written, 2 wrong usage.")]
pub(crate) struct ManArgs {
    /// Folder for the pages; it is made if it is not there
    folder: PathBuf,
}

/// Runs `slackline man` for the commands of `program`.
pub(crate) fn run(args: &ManArgs, program: clap::Command) -> ExitCode {
    let folder = &args.folder;
    let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(program, folder));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let what = format!("cannot write the manual pages to {}: {error}", folder.display());
            Failure::failed(what).help("name a folder that can be written to").report()
        }
    }
}
