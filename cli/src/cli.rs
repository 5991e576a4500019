//! The commands, and the log that they share.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::commands::{bench, check, completions, doctor, launch, man, schemes, sim, top, train};
use crate::everyday;

/// Parameter memory with bounded staleness for distributed training.
#[derive(Parser)]
#[command(name = "slackline", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(Box<train::TrainArgs>),
    Sim(Box<sim::SimArgs>),
    Schemes(schemes::SchemesArgs),
    Bench(bench::BenchArgs),
    Check(check::CheckArgs),
    Doctor(doctor::DoctorArgs),
    Launch(launch::LaunchArgs),
    Top(top::TopArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
    /// The other process of a measurement; started by `bench`.
    #[command(hide = true)]
    BenchPeer(bench::PeerArgs),
    /// One process of a job; started by `launch`.
    #[command(hide = true)]
    LaunchRank(launch::LaunchRankArgs),
    Serve(train::ServeArgs),
    Work(train::WorkArgs),
}

/// Does what the command line asks for. Exit status: 0 done, 1 it failed, 2 called wrongly.
pub fn run() -> ExitCode {
    let filter = log_filter(&std::env::var("RUST_LOG").unwrap_or_default());
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(lines).with(filter).init();
    let matches = everyday::shorten(Cli::command()).get_matches();
    let called = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match called.command {
        Command::Train(args) => train::run(*args),
        Command::Sim(args) => sim::run(&args),
        Command::Schemes(_) => schemes::run(),
        Command::Bench(args) => bench::run(args),
        Command::Check(args) => check::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Launch(args) => launch::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::BenchPeer(args) => bench::run_peer(args),
        Command::LaunchRank(args) => launch::run_rank(&args),
        Command::Serve(args) => train::serve(args),
        Command::Work(args) => train::work(args),
    }
}

/// The log that `RUST_LOG` asks for: levels, for all or for single modules. There is none without it, or if it cannot
/// be read. The environment filter of tracing-subscriber would read more, such as names of spans, but takes a compiler
/// of regular expressions, which costs a tenth of the build.
fn log_filter(directives: &str) -> Targets {
    let silent = Targets::new().with_default(LevelFilter::OFF);
    if directives.is_empty() { silent } else { directives.parse().unwrap_or(silent) }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::log_filter;

    #[test]
    fn the_log_has_the_levels_that_are_asked_for_all_or_for_modules() {
        let filter = log_filter("warn,slackline::node=debug,slackline::transport=off");
        assert!(filter.would_enable("other", &Level::WARN) && !filter.would_enable("other", &Level::INFO));
        assert!(filter.would_enable("slackline::node::server", &Level::DEBUG));
        assert!(!filter.would_enable("slackline::transport::tcp", &Level::ERROR));
    }

    #[test]
    fn there_is_no_log_unless_it_is_asked_for_in_words_that_can_be_read() {
        for directives in ["", "slackline=loud", "slackline[span]=debug"] {
            assert!(!log_filter(directives).would_enable("slackline", &Level::ERROR), "{directives:?}");
        }
    }
}
