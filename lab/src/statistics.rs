//! Means of several seeds, and how far they may be off.

use std::fmt;

use crate::table::number;

/// The 97.5 % points of Student's t, by degrees of freedom from 1 (any statistical table).
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The 97.5 % point of Student's t. Beyond the table it is that of the normal distribution and the first term of its
/// expansion, which is off by 0.004 at most.
fn student(freedom: usize) -> f64 {
    STUDENT.get(freedom - 1).copied().unwrap_or_else(|| 1.96 + 2.4 / freedom as f64)
}

/// A value with the ends of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The value.
    pub middle: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// A value without chance in it.
    pub const fn exact(value: f64) -> Interval {
        Interval { middle: value, low: value, high: value }
    }

    /// The mean of independent values. One value alone may be off by anything.
    pub fn of_mean(values: &[f64]) -> Interval {
        let middle = mean(values.iter().copied());
        let freedom = values.len().saturating_sub(1);
        if freedom == 0 {
            return Interval { middle, low: f64::NEG_INFINITY, high: f64::INFINITY };
        }
        let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
        let error = (squares / freedom as f64 / values.len() as f64).sqrt();
        let half = error * student(freedom);
        Interval { middle, low: middle - half, high: middle + half }
    }

    /// The mean of `left - right`, pair by pair.
    pub fn of_difference(left: &[f64], right: &[f64]) -> Interval {
        let differences: Vec<f64> = left.iter().zip(right).map(|(left, right)| left - right).collect();
        Interval::of_mean(&differences)
    }

    /// The geometric mean of `left / right`, pair by pair: what is twice as large in one pair and half as large in
    /// another is as large.
    pub fn of_ratio(left: &[f64], right: &[f64]) -> Interval {
        let logs: Vec<f64> = left.iter().zip(right).map(|(left, right)| (left / right).ln()).collect();
        let Interval { middle, low, high } = Interval::of_mean(&logs);
        Interval { middle: middle.exp(), low: low.exp(), high: high.exp() }
    }

    /// Reads one as it is displayed.
    pub fn read(text: &str) -> Option<Interval> {
        let Some((middle, ends)) = text.split_once(" (") else {
            return text.parse().ok().map(Interval::exact);
        };
        let (low, high) = ends.strip_suffix(')')?.split_once(" to ")?;
        Some(Interval { middle: middle.parse().ok()?, low: low.parse().ok()?, high: high.parse().ok()? })
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&number(self.middle))?;
        if self.low == self.high {
            return Ok(());
        }
        write!(f, " ({} to {})", number(self.low), number(self.high))
    }
}

/// The arithmetic mean; NaN of nothing.
pub fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_mean_is_that_of_the_textbook() {
        // Mean 5, standard deviation sqrt(2.5), four degrees of freedom: 5 -+ 2.776 * sqrt(2.5 / 5).
        let Interval { middle, low, high } = Interval::of_mean(&[3.0, 4.0, 5.0, 6.0, 7.0]);
        let half = 2.776 * 0.5f64.sqrt();
        assert!((middle - 5.0).abs() < 1e-12 && (low - 5.0 + half).abs() < 1e-12, "{low}");
        assert!((high - 5.0 - half).abs() < 1e-12, "{high}");
    }

    #[test]
    fn an_interval_is_read_as_it_is_displayed() {
        let whole = Interval { middle: 1.5, low: 0.25, high: f64::INFINITY };
        for interval in [whole, Interval::exact(2.0), Interval::exact(1e-7)] {
            assert_eq!(Interval::read(&interval.to_string()), Some(interval));
        }
        for text in ["", "1 of 3", "1.5 (1 to)", "1.5 (1 to 2", "one (1 to 2)"] {
            assert_eq!(Interval::read(text), None, "{text}");
        }
    }

    #[test]
    fn beyond_the_table_the_points_are_those_of_longer_tables() {
        for (freedom, point) in [(30, 2.042), (31, 2.040), (40, 2.021), (60, 2.000), (120, 1.980)] {
            assert!((student(freedom) - point).abs() < 0.004, "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn what_all_pairs_share_is_not_in_the_interval_of_their_ratio() {
        let slow = [2.0, 20.0, 200.0].map(|time| 1.5 * time);
        let ratio = Interval::of_ratio(&slow, &[2.0, 20.0, 200.0]);
        assert!((ratio.middle - 1.5).abs() < 1e-12 && ratio.high - ratio.low < 1e-9, "{ratio:?}");
    }

    #[test]
    fn one_value_alone_decides_nothing() {
        let alone = Interval::of_ratio(&[2.0], &[1.0]);
        assert!(alone.low == 0.0 && alone.high == f64::INFINITY, "{alone:?}");
    }
}
