//! Counts of whole numbers.

use serde::Serialize;
use serde::ser::Serializer;

/// The number of times that each whole number occurred. Written out as a list of `[value, count]`, in order, without
/// zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountHistogram {
    first: i64,
    counts: Vec<u64>,
}

impl CountHistogram {
    /// Counts one.
    pub(super) fn add(&mut self, value: i64) {
        if self.counts.is_empty() {
            self.first = value;
        }
        if value < self.first {
            let room = usize::try_from(self.first - value).unwrap_or(0);
            self.counts.splice(0..0, std::iter::repeat_n(0, room));
            self.first = value;
        }
        let at = usize::try_from(value - self.first).unwrap_or(0);
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
    }

    /// Values that occurred, in order, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (i64, u64)> + '_ {
        (self.first..)
            .zip(&self.counts)
            .filter(|(_, count)| **count > 0)
            .map(|(value, count)| (value, *count))
    }

    /// Returns the number of values that were counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Mean; `None` if nothing was counted.
    pub fn mean(&self) -> Option<f64> {
        let sum: f64 = self.iter().map(|(value, count)| value as f64 * count as f64).sum();
        (self.total() > 0).then(|| sum / self.total() as f64)
    }

    /// The smallest value that occurred.
    pub fn min(&self) -> Option<i64> {
        self.iter().next().map(|(value, _)| value)
    }

    /// The largest value that occurred.
    pub fn max(&self) -> Option<i64> {
        self.iter().last().map(|(value, _)| value)
    }

    /// Returns the share of all values that lie in a range; 0 if nothing was counted.
    pub fn part(&self, range: std::ops::RangeInclusive<i64>) -> f64 {
        let inside: u64 =
            self.iter().filter(|(value, _)| range.contains(value)).map(|(_, count)| count).sum();
        inside as f64 / self.total().max(1) as f64
    }
}

impl Serialize for CountHistogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_to_both_sides() {
        let mut histogram = CountHistogram::default();
        [-1, -4, 2, -1].into_iter().for_each(|value| histogram.add(value));
        assert_eq!(histogram.iter().collect::<Vec<_>>(), [(-4, 1), (-1, 2), (2, 1)]);
        assert_eq!((histogram.min(), histogram.max(), histogram.mean()), (Some(-4), Some(2), Some(-1.0)));
        assert_eq!(histogram.part(-1..=5), 0.75);
        assert_eq!(serde_json::to_string(&histogram).unwrap(), "[[-4,1],[-1,2],[2,1]]");
    }
}
