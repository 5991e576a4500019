//! The times that operations took, and their percentiles.

use serde::{Deserialize, Serialize};

/// Times that operations took, in nanoseconds: the least, percentiles and the most.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Latency {
    pub(super) min: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

impl Latency {
    /// Of at least one sample.
    pub(super) fn of(mut samples: Vec<f64>) -> Latency {
        samples.sort_by(f64::total_cmp);
        let at = |quantile: f64| {
            let rank = (quantile * samples.len() as f64).ceil() as usize;
            samples[rank.clamp(1, samples.len()) - 1]
        };
        Latency { min: at(0.0), p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }

    pub(super) fn halved(self) -> Latency {
        let Latency { min, p50, p99, p999, max } = self;
        Latency { min: min / 2.0, p50: p50 / 2.0, p99: p99 / 2.0, p999: p999 / 2.0, max: max / 2.0 }
    }
}

/// A timed run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    pub(super) iterations: u64,
    /// Operations in one sample.
    pub(super) batch: u64,
    pub(super) latency: Latency,
    /// The processor time of one operation in this process, if it was taken.
    pub(super) cpu_ns: Option<f64>,
}

/// One operation of many that were timed as a whole: its time, and its processor time in this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mean {
    pub(super) nanos: f64,
    pub(super) cpu_ns: f64,
}

impl Timing {
    /// One operation, by the median.
    pub(super) fn whole(&self) -> Mean {
        Mean { nanos: self.latency.p50, cpu_ns: self.cpu_ns.unwrap_or(f64::NAN) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_at_their_rank() {
        let latency = Latency::of((1..=1000).rev().map(f64::from).collect());
        let Latency { min, p50, p99, p999, max } = latency;
        assert_eq!([min, p50, p99, p999, max], [1.0, 500.0, 990.0, 999.0, 1000.0]);
        assert_eq!(Latency::of(vec![7.0]).p999, 7.0);
    }
}
