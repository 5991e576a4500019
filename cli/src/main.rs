//! The slackline command line. Exit status: 0 done, 1 it failed, 2 called wrongly.

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Bounded-stale parameter memory.
#[derive(Parser)]
#[command(name = "slackline", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(commands::bench::Args),
    #[command(hide = true)]
    BenchPeer(commands::bench::PeerArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Bench(args) => commands::bench::run(args),
        Command::BenchPeer(args) => commands::bench::run_peer(args),
    }
}
