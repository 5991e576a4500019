//! Work goes on, and honest workers join, while unauthenticated connections come without end.
//! `cargo bench --bench flood` measures what they cost.

#[path = "network/besieged.rs"]
mod besieged;
#[path = "network/flood.rs"]
mod flood;

use std::time::{Duration, Instant};

use besieged::{Besieged, Job};
use flood::{Flood, FloodKind};

/// Generous: what is asked for takes a second or two.
const PATIENCE: Duration = Duration::from_secs(180);

fn work_goes_on(besieged: Besieged) {
    for kind in [FloodKind::Silent, FloodKind::Talking] {
        work_goes_on_beside(besieged, kind);
    }
}

fn work_goes_on_beside(besieged: Besieged, kind: FloodKind) {
    let job = Job::start(besieged);
    let flood = Flood::at(&job.address, kind);
    let deadline = Instant::now() + PATIENCE;
    let wait_for = |what: &str, is_there: &dyn Fn() -> bool| {
        while !is_there() {
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for("the flood", &|| flood.connections() > 1000);
    for _ in 0..3 {
        let (rounds, connections) = (job.rounds(), flood.connections());
        job.join();
        wait_for("rounds", &|| job.rounds() > rounds + 100);
        wait_for("more of the flood", &|| flood.connections() > connections + 1000);
    }
}

#[test]
fn work_goes_on_and_workers_join_while_a_flood_reaches_the_rendezvous() {
    work_goes_on(Besieged::Hub);
}

#[test]
fn work_goes_on_and_workers_join_while_a_flood_reaches_an_owner_over_shm() {
    work_goes_on(Besieged::Shm);
}

#[test]
fn work_goes_on_and_workers_join_while_a_flood_reaches_an_owner_over_tcp() {
    work_goes_on(Besieged::Tcp);
}
