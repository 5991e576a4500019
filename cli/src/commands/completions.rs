//! `slackline completions`: scripts by which a shell completes the words of a command line.

use std::process::ExitCode;

use clap_complete::Shell;

use crate::output;

/// Print a script that completes commands and options in a shell.
///
/// Load the script in the start-up file of the shell, or put it where the shell looks for such scripts.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  slackline completions bash > ~/.local/share/bash-completion/completions/slackline
  slackline completions zsh > \"${fpath[1]}/_slackline\"
  slackline completions fish > ~/.config/fish/completions/slackline.fish

Exit codes: 0 done, 1 standard output cannot be written to, 2 wrong usage.")]
pub(crate) struct CompletionsArgs {
    /// Shell that is to complete
    shell: Shell,
}

/// Runs `slackline completions` for the commands of `program`.
pub(crate) fn run(args: &CompletionsArgs, mut program: clap::Command) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "slackline", &mut script);
    match output::print(&String::from_utf8_lossy(&script)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
