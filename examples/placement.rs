//! Prints the rank of each process in its job: `mpirun -n 3 target/debug/examples/placement`.

use std::process::ExitCode;

use slackline::Placement;

fn main() -> ExitCode {
    match Placement::from_env() {
        Ok(Some(placement)) => {
            let meet = placement.rendezvous.map_or("nowhere".into(), |point| point.to_string());
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
