//! The options that `-h` shows. A command with more than a screen of options shows those of every day; `--help` shows
//! all of them.

use clap::Command;

/// The options of every day, for each command that has more of them than a screen holds.
const EVERYDAY: &[(&str, &[&str])] = &[
    (
        "train",
        &[
            "scheme",
            "staleness",
            "workers",
            "transport",
            "checkpoint",
            "rendezvous",
            "metrics",
            "json",
            "data",
            "epochs",
        ],
    ),
    (
        "sim",
        &[
            "compare",
            "reproduce",
            "scheme",
            "staleness",
            "workers",
            "compute",
            "factor",
            "problem",
            "seed",
            "clocks",
            "target_loss",
            "json",
            "plot",
        ],
    ),
    (
        "bench",
        &[
            "transport",
            "op",
            "bytes",
            "iterations",
            "workers",
            "json",
            "listen",
            "peer",
            "secret_file",
            "device",
        ],
    ),
];

/// Hides all other options of these commands from `-h`.
pub(crate) fn shorten(program: Command) -> Command {
    EVERYDAY.iter().fold(program, |program, (name, everyday)| {
        program.mut_subcommand(name, |command| {
            command.mut_args(|option| {
                let is_everyday = everyday.contains(&option.get_id().as_str());
                option.hide_short_help(!is_everyday)
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{EVERYDAY, shorten};
    use crate::cli::Cli;

    /// The lines of a terminal window of the usual size, less the prompt.
    const SCREEN: usize = 40;

    #[test]
    fn short_help_of_every_command_fits_one_screen() {
        for command in shorten(Cli::command()).get_subcommands_mut().filter(|command| !command.is_hide_set())
        {
            let help = command.clone().term_width(100).render_help().to_string();
            let lines = help.lines().count();
            assert!(lines <= SCREEN, "{}: {lines} lines of {SCREEN}\n{help}", command.get_name());
        }
    }

    #[test]
    fn every_everyday_option_is_an_option() {
        let program = Cli::command();
        for (name, everyday) in EVERYDAY {
            let command = program.find_subcommand(name).unwrap();
            let has = |id: &&&str| command.get_arguments().any(|option| option.get_id() == **id);
            let missing: Vec<_> = everyday.iter().filter(|id| !has(id)).collect();
            assert!(missing.is_empty(), "{name}: {missing:?}");
        }
    }
}
