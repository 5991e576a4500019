//! The faults of a simulation.

use std::ops::Range;

use super::distribution::Distribution;

/// Faults of workers and of the network. By default there are none.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Workers that crash at given times.
    pub crashes: Vec<Crash>,
    /// The time that each worker lives before it crashes; `None`: for ever.
    pub lifetime: Option<Distribution>,
    /// The time from such a crash until the worker is back; `None`: it never comes back.
    pub downtime: Option<Distribution>,
    /// Seconds from a crash until the others know.
    pub detection: f64,
    /// Probability that a message is lost on its way, each time it is sent.
    pub loss: f64,
    /// Seconds after which a lost message is sent again.
    pub retransmission: f64,
    /// Probability that a message comes a second time.
    pub replay: f64,
    /// Times in which a worker can be reached, or can reach others, no more.
    pub partitions: Vec<NetworkPartition>,
}

/// A worker that crashes.
#[derive(Clone, Debug, PartialEq)]
pub struct Crash {
    /// The worker.
    pub worker: usize,
    /// The time of the crash, in seconds.
    pub at: f64,
    /// The time at which it is back, in seconds; `None`: it never comes back.
    pub back: Option<f64>,
}

/// Messages of some workers, in one direction, that come no further while this lasts. They come at its end.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkPartition {
    /// The workers.
    pub workers: Range<usize>,
    /// The direction.
    pub direction: Direction,
    /// The time at which it begins, in seconds.
    pub from: f64,
    /// The time at which it ends, in seconds.
    pub until: f64,
}

/// The direction of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Messages from a worker.
    Up,
    /// Messages to a worker.
    Down,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            crashes: Vec::new(),
            lifetime: None,
            downtime: None,
            detection: 0.0,
            loss: 0.0,
            retransmission: 0.2, // The smallest timeout of Linux's TCP.
            replay: 0.0,
            partitions: Vec::new(),
        }
    }
}
