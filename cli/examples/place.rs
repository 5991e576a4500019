//! Says where each process of a job stands: `mpirun -n 3 target/debug/examples/place`.

use std::process::ExitCode;

use clap::Parser;
use slackline_cli::launch::{Flags, environment, place};

/// Say where this process stands in its job.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    flags: Flags,
}

fn main() -> ExitCode {
    match place(&Cli::parse().flags, environment()) {
        Ok(Some(placement)) => {
            let meet = placement.meeting_point.map_or("nowhere".into(), |point| point.to_string());
            let (rank, world, source) = (placement.rank, placement.world, placement.source);
            println!("{source}: rank {rank} of {world}, meets at {meet}");
            ExitCode::SUCCESS
        }
        Ok(None) => {
            println!("under no launcher");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
