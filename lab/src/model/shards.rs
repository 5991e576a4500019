//! The part of the examples that each worker has.

use slackline::Diagnostic;
use slackline::sim::Random;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::data::random::{self, Purpose};

/// The purpose of the random stream of the lengths of shards.
const LENGTHS: u64 = 0x7368_6172_6473;

/// How examples are dealt out to the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Shards {
    /// All workers draw from all examples, none twice in an epoch.
    #[default]
    Iid,
    /// Sorted by label and cut into parts of one length: few workers see a label, and each sees few.
    Sorted,
    /// Of each label a worker gets a part that is drawn from a symmetric Dirichlet distribution with this
    /// concentration (Yurochkin et al., 2019): the smaller it is, the more uneven are labels and lengths.
    Dirichlet(f64),
}

/// Shards that cannot be.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // each message says what its fields hold
pub enum ShardsError {
    /// No such way is known.
    #[error("`{text}` says not how to deal out examples; {}", self.remedy().unwrap_or_default())]
    Unknown { text: String },

    /// A worker gets no example.
    #[error("{shards} among {workers} workers leaves none for worker {worker}; {}", self.remedy().unwrap_or_default())]
    Empty { shards: Shards, worker: usize, workers: usize },
}

impl Diagnostic for ShardsError {
    fn operation(&self) -> &'static str {
        "dealing out examples"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            ShardsError::Unknown { .. } => {
                "write iid, sorted or dirichlet(A) with a number A from 0.01 to 1000".into()
            }
            ShardsError::Empty { shards: Shards::Dirichlet(_), .. } => {
                "use another seed, a larger number in the brackets, or fewer workers".into()
            }
            ShardsError::Empty { .. } => "use fewer workers".into(),
        })
    }
}

impl Shards {
    /// The examples of each worker, whose `labels` (of entries of a matrix: rows) are below `classes`; each example
    /// belongs to one worker. `None` if all workers draw from all.
    ///
    /// Draws depend on the seed alone, and are the same on every platform up to the rounding of logarithms.
    ///
    /// # Errors
    ///
    /// If a worker would have none.
    pub fn deal(
        self,
        labels: &[u32],
        workers: usize,
        seed: u64,
    ) -> Result<Option<Vec<Vec<usize>>>, ShardsError> {
        let shards = match self {
            Shards::Iid => return Ok(None),
            Shards::Sorted => sorted(labels, workers),
            Shards::Dirichlet(concentration) => dirichlet(labels, workers, concentration, seed),
        };
        match shards.iter().position(Vec::is_empty) {
            Some(worker) => Err(ShardsError::Empty { shards: self, worker, workers }),
            None => Ok(Some(shards)),
        }
    }
}

/// Parts whose lengths differ by one at most; examples of one label keep their order.
fn sorted(labels: &[u32], workers: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..labels.len()).collect();
    order.sort_by_key(|row| labels[*row]);
    let end = |worker: usize| (worker as u128 * labels.len() as u128 / workers.max(1) as u128) as usize;
    (0..workers).map(|worker| order[end(worker)..end(worker + 1)].to_vec()).collect()
}

fn dirichlet(labels: &[u32], workers: usize, concentration: f64, seed: u64) -> Vec<Vec<usize>> {
    let mut shards = vec![Vec::new(); workers];
    let mut order: Vec<usize> = (0..labels.len()).collect();
    order.sort_by_key(|row| labels[*row]);
    for rows in order.chunk_by_mut(|one, next| labels[*one] == labels[*next]) {
        let class = u64::from(labels[rows[0]]);
        random::Random::new(seed, Purpose::Shards, class).shuffle(rows);
        let (mut dealt, mut sum) = (0, 0.0);
        let shares = shares(&mut Random::stream(seed, LENGTHS, class), workers, concentration);
        for (shard, share) in shards.iter_mut().zip(shares) {
            sum += share;
            // The shares add up to one but for rounding, so that the last worker's part ends with the examples.
            let end = (sum * rows.len() as f64).round() as usize;
            shard.extend_from_slice(&rows[dealt..end.min(rows.len())]);
            dealt = end.min(rows.len());
        }
    }
    shards
}

/// A draw from a symmetric Dirichlet distribution: gamma variates over their sum.
///
/// They are kept as logarithms, for with a small concentration all of them may be too small for an `f64`.
fn shares(random: &mut Random, count: usize, concentration: f64) -> Vec<f64> {
    let logs: Vec<f64> = (0..count).map(|_| ln_gamma_variate(random, concentration)).collect();
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shares: Vec<f64> = logs.iter().map(|log| (log - largest).exp()).collect();
    let sum: f64 = shares.iter().sum();
    shares.iter().map(|share| share / sum).collect()
}

/// The logarithm of a gamma variate, by the method of Marsaglia and Tsang (2000). One of shape a is one of shape a + 1
/// times the a-th root of a uniform number.
fn ln_gamma_variate(random: &mut Random, shape: f64) -> f64 {
    let d = shape + 1.0 - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    let of_next = loop {
        let normal = random.normal();
        let v = (1.0 + c * normal).powi(3);
        if v > 0.0 && -random.exponential() < 0.5 * normal * normal + d - d * v + d * v.ln() {
            break (d * v).ln();
        }
    };
    of_next - random.exponential() / shape
}

impl fmt::Display for Shards {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shards::Iid => formatter.write_str("iid"),
            Shards::Sorted => formatter.write_str("sorted"),
            Shards::Dirichlet(concentration) => write!(formatter, "dirichlet({concentration})"),
        }
    }
}

impl FromStr for Shards {
    type Err = ShardsError;

    fn from_str(text: &str) -> Result<Shards, ShardsError> {
        let unknown = || ShardsError::Unknown { text: text.to_owned() };
        match text.trim() {
            "iid" => Ok(Shards::Iid),
            "sorted" => Ok(Shards::Sorted),
            other => {
                let inner = other.strip_prefix("dirichlet(").and_then(|rest| rest.strip_suffix(')'));
                let concentration: Option<f64> = inner.and_then(|inner| inner.trim().parse().ok());
                let usable = concentration.filter(|concentration| (0.01..=1000.0).contains(concentration));
                usable.map(Shards::Dirichlet).ok_or_else(unknown)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_shards() -> impl Strategy<Value = Shards> {
        prop_oneof![Just(Shards::Sorted), (0.01..1000.0).prop_map(Shards::Dirichlet)]
    }

    proptest! {
        #[test]
        fn every_example_belongs_to_one_worker(
            labels in prop::collection::vec(0u32..7, 1..300), workers in 1usize..20, seed: u64, shards in any_shards(),
        ) {
            match shards.deal(&labels, workers, seed) {
                Ok(Some(dealt)) => {
                    prop_assert_eq!(dealt.len(), workers);
                    let mut all = dealt.concat();
                    all.sort_unstable();
                    prop_assert_eq!(all, (0..labels.len()).collect::<Vec<_>>());
                    prop_assert_eq!(Ok(Some(dealt)), shards.deal(&labels, workers, seed));
                }
                Ok(None) => prop_assert!(false, "these are not iid"),
                Err(error) => prop_assert!(matches!(error, ShardsError::Empty { .. }), "{error}"),
            }
        }

        #[test]
        fn sorted_parts_are_of_one_length_and_their_labels_ascend(
            labels in prop::collection::vec(0u32..7, 20..300), workers in 1usize..20,
        ) {
            let dealt = Shards::Sorted.deal(&labels, workers, 0).unwrap().unwrap();
            let lengths = dealt.iter().map(Vec::len);
            prop_assert!(lengths.clone().max() <= lengths.min().map(|least| least + 1));
            prop_assert!(dealt.concat().is_sorted_by_key(|row| labels[*row]));
        }

        #[test]
        fn shards_are_read_as_they_are_written(shards in any_shards()) {
            prop_assert_eq!(shards.to_string().parse(), Ok(shards));
        }
    }

    /// The share of one of N workers has the mean 1 / N and the variance (N - 1) / (N^2 (N a + 1)).
    #[test]
    fn shares_have_the_mean_and_the_variance_of_dirichlet() {
        let (workers, classes, each) = (5usize, 2000u32, 400);
        let labels: Vec<u32> = (0..classes * each).map(|row| row / each).collect();
        for concentration in [0.1, 0.5, 1.0, 10.0] {
            let dealt = Shards::Dirichlet(concentration).deal(&labels, workers, 3).unwrap().unwrap();
            let n = workers as f64;
            let variance = (n - 1.0) / (n * n * (n * concentration + 1.0));
            for rows in dealt {
                let mut shares = vec![0.0; classes as usize];
                rows.iter().for_each(|row| shares[labels[*row] as usize] += 1.0 / f64::from(each));
                let count = f64::from(classes);
                let mean = shares.iter().sum::<f64>() / count;
                let spread = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / (count - 1.0);
                // Five standard errors of the mean; the variance's is a few per cent with two thousand draws.
                assert!(
                    (mean - 1.0 / n).abs() < 5.0 * (variance / count).sqrt(),
                    "{concentration}: mean {mean}"
                );
                assert!(
                    (spread / variance - 1.0).abs() < 0.15,
                    "{concentration}: variance {spread}, not {variance}"
                );
            }
        }
    }

    #[test]
    fn what_says_not_how_to_deal_is_refused_and_so_is_a_worker_without_examples() {
        for text in
            ["", "even", "dirichlet", "dirichlet()", "dirichlet(0)", "dirichlet(nan)", "dirichlet(1e9)"]
        {
            assert!(matches!(text.parse::<Shards>(), Err(ShardsError::Unknown { .. })), "{text}");
        }
        let message = Shards::Sorted.deal(&[0, 1], 3, 0).unwrap_err().to_string();
        assert_eq!(message, "sorted among 3 workers leaves none for worker 0; use fewer workers");
    }
}
