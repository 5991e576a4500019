//! What goes wrong.

use std::ops::Range;

use super::law::Law;

/// Faults of workers and of the network. By default there are none.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Workers that crash at given times.
    pub crashes: Vec<Crash>,
    /// How long each worker lives before it crashes; `None`: for ever.
    pub lifetime: Option<Law>,
    /// How long after such a crash it is back; `None`: never.
    pub downtime: Option<Law>,
    /// Seconds from a crash until the others know.
    pub detection: f64,
    /// Probability that a message is lost on its way, each time it is sent.
    pub loss: f64,
    /// Seconds after which a lost message is sent again.
    pub retransmission: f64,
    /// Probability that a message comes a second time.
    pub replay: f64,
    /// Times in which a worker can be reached, or can reach others, no more.
    pub partitions: Vec<Partition>,
}

/// A worker that crashes.
#[derive(Clone, Debug, PartialEq)]
pub struct Crash {
    /// Who.
    pub worker: usize,
    /// When, in seconds.
    pub at: f64,
    /// When it is back, in seconds; `None`: never.
    pub back: Option<f64>,
}

/// Messages of some workers, in one direction, that come no further while this lasts. They come at its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// Whose.
    pub workers: Range<usize>,
    /// Which.
    pub direction: Direction,
    /// From when, in seconds.
    pub from: f64,
    /// Until when, in seconds.
    pub until: f64,
}

/// Which way messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From a worker.
    Up,
    /// To a worker.
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
