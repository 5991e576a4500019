//! Counts of times, for more operations than there is memory for their times.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::timing::Latency;

/// Buckets for each power of two: a percentile is off by less than 1 %.
const PER_POWER: u64 = 64;

/// Times in nanoseconds, by buckets whose width is a 64th of a power of two or less; the shortest and the longest are
/// exact.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct TimeHistogram {
    counts: BTreeMap<u64, u64>,
    limits: Option<(u64, u64)>,
}

impl TimeHistogram {
    pub(super) fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        *self.counts.entry(bucket(nanos)).or_default() += 1;
        self.widen(nanos, nanos);
    }

    pub(super) fn merge(&mut self, other: &TimeHistogram) {
        for (bucket, count) in &other.counts {
            *self.counts.entry(*bucket).or_default() += count;
        }
        if let Some((min, max)) = other.limits {
            self.widen(min, max);
        }
    }

    fn widen(&mut self, min: u64, max: u64) {
        let (least, most) = self.limits.unwrap_or((min, max));
        self.limits = Some((least.min(min), most.max(max)));
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns the percentiles; none without a time.
    pub(super) fn latency(&self) -> Option<Latency> {
        let (min, max) = self.limits?;
        let count = self.count();
        let at = |quantile: f64| {
            let rank = ((quantile * count as f64).ceil() as u64).max(1);
            let mut passed = 0;
            let found = self.counts.iter().find(|(_, count)| {
                passed += **count;
                passed >= rank
            });
            found.map_or(max, |(bucket, _)| middle(*bucket)).clamp(min, max) as f64
        };
        Some(Latency { min: min as f64, p50: at(0.5), p99: at(0.99), p999: at(0.999), max: max as f64 })
    }
}

fn bucket(nanos: u64) -> u64 {
    let shift = u64::from(nanos.max(PER_POWER).ilog2() - PER_POWER.ilog2());
    shift * PER_POWER + (nanos >> shift)
}

/// The time in the middle of a bucket.
fn middle(bucket: u64) -> u64 {
    let shift = (bucket / PER_POWER).saturating_sub(1);
    ((bucket - shift * PER_POWER) << shift) + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_off_by_less_than_a_hundredth() {
        let mut all = TimeHistogram::default();
        // In two parts that are merged, as those of two processes are.
        for remainder in 0..2 {
            let mut part = TimeHistogram::default();
            for sample in (1..=100_000_u64).filter(|sample| sample % 2 == remainder) {
                part.add(Duration::from_nanos(sample * 17));
            }
            all.merge(&part);
        }
        let Latency { min, p50, p99, p999, max } = all.latency().unwrap();
        assert_eq!((all.count(), min, max), (100_000, 17.0, 1_700_000.0));
        for (found, wanted) in [(p50, 850_000.0), (p99, 1_683_000.0), (p999, 1_698_300.0)] {
            assert!((found / wanted - 1.0_f64).abs() < 0.01, "{found} for {wanted}");
        }
    }

    #[test]
    fn every_time_lies_in_a_bucket_around_it() {
        for nanos in
            (0..64).map(|power| 1 << power).flat_map(|power: u64| [power - 1, power, power + power / 3])
        {
            let middle = middle(bucket(nanos));
            assert!(middle.abs_diff(nanos) <= nanos / PER_POWER, "{nanos} and {middle}");
        }
        assert!(TimeHistogram::default().latency().is_none());
    }
}
