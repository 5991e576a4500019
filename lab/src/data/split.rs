//! From a table to two data sets: labels mapped to classes, examples parted.

use std::path::Path;

use super::random::{Purpose, Random};
use super::{DataError, Dataset, RawExamples, Split};

/// Decides which examples are the test part. Constant, so that the same file always splits the same.
pub(super) const SPLIT_SEED: u64 = 1_797;

/// Splits off one fifth of the examples, rounded up, as the test part: 360 of the 1,797 digits.
pub(super) fn one_fifth(file: &Path, table: RawExamples) -> Result<Split, DataError> {
    let class_labels = class_labels(file, &table.labels)?;
    let mut order: Vec<usize> = (0..table.labels.len()).collect();
    Random::new(SPLIT_SEED, Purpose::Split, 0).shuffle(&mut order);
    // Two classes need two examples, so neither part is empty.
    let (test, train) = order.split_at(table.labels.len().div_ceil(5));
    let part = |rows: &[usize]| Dataset {
        features: rows
            .iter()
            .flat_map(|row| &table.features[row * table.columns..][..table.columns])
            .copied()
            .collect(),
        labels: rows.iter().map(|row| class(&class_labels, table.labels[*row])).collect(),
        columns: table.columns,
        classes: class_labels.len(),
    };
    Ok(Split { train: part(train), test: part(test), class_labels })
}

/// Keeps the two parts as they came, with one mapping of labels for both.
pub(super) fn given(file: &Path, train: RawExamples, test: RawExamples) -> Result<Split, DataError> {
    let labels: Vec<u64> = train.labels.iter().chain(&test.labels).copied().collect();
    let class_labels = class_labels(file, &labels)?;
    let part = |table: RawExamples| Dataset {
        features: table.features,
        labels: table.labels.iter().map(|label| class(&class_labels, *label)).collect(),
        columns: table.columns,
        classes: class_labels.len(),
    };
    Ok(Split { train: part(train), test: part(test), class_labels })
}

/// The distinct labels, ascending.
fn class_labels(file: &Path, labels: &[u64]) -> Result<Vec<u64>, DataError> {
    let mut distinct = labels.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    match distinct[..] {
        [] => Err(DataError::Empty { file: file.to_owned() }),
        [label] => Err(DataError::OneClass { file: file.to_owned(), label }),
        _ => Ok(distinct),
    }
}

/// The class of a label: its index among the distinct ones.
fn class(class_labels: &[u64], label: u64) -> u32 {
    let index = class_labels.partition_point(|smaller| *smaller < label);
    u32::try_from(index).expect("files are too small for 2^32 distinct labels")
}
