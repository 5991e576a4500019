//! The gradients in transit, as the value-bounded scheme counts them: the judge's own book.

use std::collections::VecDeque;
use std::rc::Rc;

use super::updates::largest;
use crate::clock::{Clock, ClockTable, WorkerId};
use crate::scheme::Strength;

/// Magnitudes of gradients, times their weights.
#[derive(Debug)]
pub(super) struct Transit {
    bound: f64,
    strength: Strength,
    /// For each worker, the clock and magnitude of each gradient that it does not know consumed.
    own: Vec<VecDeque<(u64, f64)>>,
    /// The magnitude of each worker's last gradient.
    last: Vec<f64>,
    /// Version and magnitude of the folded updates that not all workers have seen, as far as the server knows.
    unseen: VecDeque<(u64, f64)>,
    seen: ClockTable,
    /// For each worker, version and update of each of its gradients that was folded in and not seen by all.
    made: Vec<VecDeque<(u64, Rc<[f64]>)>>,
}

/// Sums of the same numbers in another order differ by rounding.
const SLACK: f64 = 1e-6;

impl Transit {
    pub(super) fn new(bound: f32, strength: Strength, workers: usize) -> Transit {
        Transit {
            bound: f64::from(bound),
            strength,
            own: vec![VecDeque::new(); workers],
            last: vec![0.0; workers],
            unseen: VecDeque::new(),
            seen: ClockTable::default(),
            made: vec![VecDeque::new(); workers],
        }
    }

    pub(super) fn joined(&mut self, worker: usize, version: u64) {
        self.own[worker].clear();
        self.last[worker] = 0.0;
        self.seen.join_at(WorkerId(worker as u32), Clock::new(version));
    }

    pub(super) fn left(&mut self, worker: usize) {
        self.seen.leave(WorkerId(worker as u32));
    }

    pub(super) fn saw(&mut self, worker: usize, version: u64) {
        self.seen.advance(WorkerId(worker as u32), Clock::new(version));
    }

    pub(super) fn published(&mut self, worker: usize, clock: u64, magnitude: Option<f32>, weight: f64) {
        let magnitude = magnitude.map_or(f64::INFINITY, |magnitude| f64::from(magnitude) * weight);
        self.own[worker].push_back((clock, magnitude));
        self.last[worker] = magnitude;
    }

    /// A worker begins a clock, and knows its gradients of clocks before `credited` consumed: one more that is as large
    /// as its last must have room, unless there is none.
    pub(super) fn computes(&mut self, worker: usize, clock: u64, credited: u64) -> Result<(), String> {
        if self.strength == Strength::Published {
            return Ok(());
        }
        let own = &mut self.own[worker];
        own.retain(|(published, _)| *published >= credited);
        let sum: f64 = own.iter().map(|(_, magnitude)| magnitude).sum();
        let bound = self.bound / (clock as f64 + 1.0).sqrt();
        if !own.is_empty() && sum + self.last[worker] > bound * (1.0 + SLACK) {
            return Err(format!(
                "worker {worker} computes clock {clock} with {sum} in transit and {} to come, and the bound is {bound}",
                self.last[worker]
            ));
        }
        Ok(())
    }

    /// The server folds a gradient of some clock into version `version`.
    pub(super) fn folds(&mut self, clock: u64, version: u64, magnitude: f64) -> Result<(), String> {
        if self.strength != Strength::Strong {
            return Ok(());
        }
        let (seen, nobody) = (self.seen.smallest().get(), self.seen.is_empty());
        self.unseen.retain(|(folded, _)| !nobody && *folded > seen);
        let sum: f64 = self.unseen.iter().map(|(_, magnitude)| magnitude).sum();
        let bound = self.bound / (clock as f64 + 1.0).sqrt();
        if !self.unseen.is_empty() && sum + magnitude > bound * (1.0 + SLACK) {
            return Err(format!(
                "version {version} adds {magnitude} of clock {clock} to {sum} that not all have seen, and the bound \
                 is {bound}"
            ));
        }
        self.unseen.push_back((version, magnitude));
        Ok(())
    }

    /// As published: a gradient of `worker` made a version. The updates of this worker that not all have seen have a
    /// sum within the bound, or are this one update alone.
    pub(super) fn moves(&mut self, version: u64, worker: WorkerId, update: &Rc<[f64]>) -> Result<(), String> {
        if self.strength != Strength::Published {
            return Ok(());
        }
        let seen = self.seen.smallest().get();
        let Some(made) = self.made.get_mut(worker.index()) else { return Ok(()) };
        made.retain(|(version, _)| *version > seen);
        made.push_back((version, Rc::clone(update)));
        let sum = largest(made.iter().map(|(_, update)| &**update));
        let bound = self.bound / (version as f64).sqrt();
        if made.len() > 1 && sum > bound * (1.0 + SLACK) {
            return Err(format!(
                "version {version} makes the {} updates of worker {} that not all have seen {sum} in sum, and the \
                 bound is {bound}",
                made.len(),
                worker.0
            ));
        }
        Ok(())
    }
}
