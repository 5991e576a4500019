//! The cost of unauthenticated connections: rounds a second of a running job while they reach one of its listeners as
//! fast as one thread can make them, against the same job left alone and against the same job beside one busy thread,
//! which takes as much of the machine as the flood does. And how long an honest worker takes to join meanwhile.
//!
//! `cargo bench --bench flood -- --seconds 30`; the seconds are those of each flood at each listener.

mod arguments;
#[path = "../tests/network/besieged.rs"]
mod besieged;
#[path = "../tests/network/flood.rs"]
mod flood;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use besieged::{Besieged, Job};
use flood::{Flood, FloodKind};

/// The three cases take turns of this length, so that a machine that slows down does so for all of them.
const TURN: Duration = Duration::from_secs(3);

/// Time between two joins of an honest worker within a turn.
const JOIN_EVERY: Duration = Duration::from_millis(500);

const USAGE: &str = "usage: cargo bench --bench flood -- [--seconds N]";

fn main() {
    let arguments = arguments::given(USAGE);
    let seconds = match arguments.as_slice() {
        [] => 30,
        [option, seconds] if option == "--seconds" => seconds.parse().expect("a number of seconds"),
        _ => arguments::misused(USAGE),
    };
    println!(
        "listener flood    alone/s  busy/s  flood/s  flood:alone  flood:busy  connections/s  joins: median, most (ms)"
    );
    let listeners = [Besieged::Hub, Besieged::Shm, Besieged::Tcp];
    let kinds = [FloodKind::Silent, FloodKind::Talking];
    for (besieged, kind) in listeners.into_iter().flat_map(|listener| kinds.map(|kind| (listener, kind))) {
        let job = Job::start(besieged);
        let mut cases = [Measured::default(), Measured::default(), Measured::default()];
        let [alone, busy, flooded] = &mut cases;
        let mut connections = 0;
        while flooded.time < Duration::from_secs(seconds) {
            alone.turn(&job);
            beside_a_busy_thread(|| busy.turn(&job));
            let flood = Flood::at(&job.address, kind);
            flooded.turn(&job);
            connections += flood.connections();
        }
        flooded.joins.sort();
        let (a, b, f) = (alone.rate(), busy.rate(), flooded.rate());
        let joins = &flooded.joins;
        println!(
            "{:<8} {:<7} {a:>8.0} {b:>7.0} {f:>8.0} {:>12.2} {:>11.2} {:>14.0}  {}, {}",
            format!("{besieged:?}"),
            format!("{kind:?}"),
            f / a,
            f / b,
            connections as f64 / flooded.time.as_secs_f64(),
            joins[joins.len() / 2].as_millis(),
            joins[joins.len() - 1].as_millis(),
        );
    }
}

/// The rounds of a job in all turns of one case.
#[derive(Default)]
struct Measured {
    rounds: u64,
    time: Duration,
    joins: Vec<Duration>,
}

impl Measured {
    fn turn(&mut self, job: &Job) {
        let (rounds, begun) = (job.rounds(), Instant::now());
        while begun.elapsed() < TURN {
            let joining = job.join();
            self.joins.push(joining);
            std::thread::sleep(JOIN_EVERY.saturating_sub(joining));
        }
        self.rounds += job.rounds() - rounds;
        self.time += begun.elapsed();
    }

    fn rate(&self) -> f64 {
        self.rounds as f64 / self.time.as_secs_f64()
    }
}

fn beside_a_busy_thread(measure: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                std::hint::spin_loop();
            }
        });
        measure();
        stop.store(true, SeqCst);
    });
}
