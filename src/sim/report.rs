//! The results of a simulation.

use serde::Serialize;

use super::histogram::CountHistogram;

/// The results of a simulation. Times are virtual, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterReport {
    /// The scheme, with its settings.
    pub scheme: String,
    /// The number of workers.
    pub workers: usize,
    /// The seed that replays it.
    pub seed: u64,
    /// The time at which it ended.
    pub end: f64,
    /// Updates applied; without a server, rounds that all workers have averaged.
    pub versions: u64,
    /// Gradients published by all workers; without a server, local steps.
    pub gradients: u64,
    /// The time of all workers over the clocks that they have completed.
    pub mean_time_per_clock: f64,
    /// The time at which the target loss was reached, if there was one and it was reached.
    pub reached: Option<f64>,
    /// The times of each worker.
    pub of_workers: Vec<OfWorker>,
    /// At each computation, the clock of the data minus the reader's clock, where data of clock `c` holds everything
    /// of clock `c` and before: -1 is as fresh as can be, and what Dai et al. (AAAI 2015) plot.
    pub staleness: CountHistogram,
    /// For each gradient that was folded in, how many versions lay between the one it was computed on and the one it
    /// was added to.
    pub lag: CountHistogram,
    /// Gradients in one update, whenever the number changed.
    pub waited_for: Vec<WaitedFor>,
    /// Loss against time; empty without a problem.
    pub curve: Vec<Point>,
    /// The numbers that were counted.
    pub counts: Counts,
    /// The newest parameters; without a server, the parameters of each worker; none on time alone.
    #[serde(skip)]
    pub parameters: Vec<Vec<f32>>,
    /// Hash over all events: two runs with the same hash were the same run.
    pub trace_hash: u64,
}

/// The ways in which one worker spent its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OfWorker {
    /// Clocks completed.
    pub clocks: u64,
    /// Seconds spent on computations that were published.
    pub computing: f64,
    /// Seconds spent on computations that were abandoned.
    pub wasted: f64,
    /// Seconds spent on anything else: waiting for copies, for messages, for a free slot.
    pub waiting: f64,
}

/// The number of gradients folded into each update, from one update on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WaitedFor {
    /// The time.
    pub time: f64,
    /// The first version that was made of so many.
    pub version: u64,
    /// The number of gradients.
    pub gradients: usize,
}

/// The parameters, measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The time.
    pub time: f64,
    /// Their version.
    pub version: u64,
    /// The clock that all workers have reached in them.
    pub clock: u64,
    /// Their loss.
    pub loss: f64,
    /// Their accuracy, where the problem has one.
    pub accuracy: Option<f64>,
    /// Without a server these are the mean of all workers' parameters; then this is the root of the mean of their
    /// squared distances from it.
    pub disagreement: Option<f64>,
}

/// The numbers that were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Gradients that arrived.
    pub uploads: u64,
    /// Copies of the parameters that arrived, pushed ones among them.
    pub downloads: u64,
    /// Copies that were pushed.
    pub pushed: u64,
    /// Bytes of all these; without a server, the bytes of averaging.
    pub bytes: u64,
    /// Computations that were abandoned because the server asked.
    pub interrupted: u64,
    /// Gradients that were consumed without being folded in.
    pub dropped: u64,
    /// Crashes of workers.
    pub crashes: u64,
    /// Messages that had to be sent again.
    pub lost: u64,
    /// Messages that came a second time and were ignored.
    pub replayed: u64,
    /// Averages of groups.
    pub averages: u64,
    /// Events in all: the work of the simulation itself.
    pub events: u64,
}

impl Counts {
    /// Counts the bytes of so many messages; more than can be counted stay the most that can.
    pub(super) fn carry(&mut self, messages: u64, bytes: u64) {
        self.bytes = self.bytes.saturating_add(messages.saturating_mul(bytes));
    }
}
