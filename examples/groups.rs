//! Workers without a server: each trains its own parameters and averages them with another worker in each round.
//!
//! All are threads here; as processes they need nothing but each other's addresses.

use std::time::Duration;

use slackline::group::{GroupListener, GroupMember, GroupOptions};
use slackline::{Address, Error, Shm};

const WORKERS: usize = 4;
const ELEMENTS: usize = 1000;
const ROUNDS: u64 = 60;
const TIMEOUT: Duration = Duration::from_secs(20);

/// The group of a worker in a round: pairs that differ in one bit of the rank, another bit in each round. After two
/// rounds the parameters of all four workers are in each mean.
fn group(rank: usize, round: u64) -> [usize; 2] {
    let other = rank ^ (1 << (round % 2));
    [rank.min(other), rank.max(other)]
}

/// Trains towards `target`, a different one for each worker; the mean of all is 1.
fn train(rank: usize, listener: GroupListener<Shm>, addresses: &[Address]) -> Result<f32, Error> {
    let target = 1.0 + (rank as f32 - 1.5) / 10.0;
    let mut member = listener.connect(addresses, TIMEOUT)?;
    for round in 0..ROUNDS {
        for parameter in member.parameters_mut()? {
            *parameter += 0.1 * (target - *parameter);
        }
        let averaged = member.average(round, &group(rank, round), TIMEOUT)?;
        assert_eq!((averaged.members, averaged.skipped), (2, false));
    }
    let parameters = member.parameters()?;
    assert!(parameters.iter().all(|value| *value == parameters[0]), "a mixture");
    let value = parameters[0];
    member.leave(TIMEOUT)?;
    Ok(value)
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listen = |rank| {
        let (options, address) = (GroupOptions::default(), Address::random());
        GroupMember::listen(Shm::new(), &address, rank, WORKERS, ELEMENTS, options)
    };
    let listeners = (0..WORKERS).map(listen).collect::<Result<Vec<_>, _>>()?;
    let addresses: Vec<Address> = listeners.iter().map(GroupListener::address).collect();
    std::thread::scope(|scope| {
        let addresses = &addresses;
        let start = |(rank, listener)| scope.spawn(move || train(rank, listener, addresses));
        let workers: Vec<_> = listeners.into_iter().enumerate().map(start).collect();
        for (rank, worker) in workers.into_iter().enumerate() {
            let value = worker.join().expect("a worker does not panic")?;
            println!("worker {rank} ends at {value:.3}, near the mean of all targets");
            assert!((value - 1.0).abs() < 0.05, "{value}");
        }
        Ok(())
    })
}
