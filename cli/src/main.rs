//! The slackline command line. Exit status: 0 done, 1 it failed, 2 called wrongly.
#![forbid(unsafe_code)]

mod commands;
mod failure;
mod optimizer_name;
mod output;
mod scheme_args;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use commands::{bench, doctor, sim, top, train};

/// Parameter memory with bounded staleness for distributed training.
#[derive(Parser)]
#[command(name = "slackline", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(Box<train::Args>),
    Sim(Box<sim::Args>),
    Bench(bench::Args),
    Doctor(doctor::Args),
    Top(top::Args),
    /// The other process of a measurement; started by `bench`.
    #[command(hide = true)]
    BenchPeer(bench::PeerArgs),
    Serve(train::ServeArgs),
    Work(train::WorkArgs),
}

fn main() -> ExitCode {
    // Silent unless RUST_LOG asks.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match Cli::parse().command {
        Command::Train(args) => train::run(*args),
        Command::Sim(args) => sim::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Top(args) => top::run(&args),
        Command::BenchPeer(args) => bench::run_peer(args),
        Command::Serve(args) => train::serve(args),
        Command::Work(args) => train::work(args),
    }
}
