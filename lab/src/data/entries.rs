//! Known entries of a matrix, from a CSV or LIBSVM file, or of the matrix that comes with the program.

use std::f64::consts::PI;
use std::path::Path;

use super::random::{Purpose, Random};
use super::split::SPLIT_SEED;
use super::{DataError, csv, libsvm, text};

/// Rows, columns and rank of the matrix that comes with the program.
const MATRIX: (usize, usize, usize) = (60, 40, 4);

/// Known entries of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Entries {
    /// Rows of the matrix, whether or not this part of the data has an entry in each.
    pub rows: usize,
    /// Columns of the matrix, likewise.
    pub columns: usize,
    /// The row of each entry, below `rows`.
    pub row_numbers: Vec<u32>,
    /// The column of each entry, below `columns`.
    pub column_numbers: Vec<u32>,
    /// The value of each entry; never NaN or infinite.
    pub values: Vec<f32>,
}

/// An entry with the numbers of its row and its column.
type Entry<N> = (N, N, f32);

impl Entries {
    fn new(rows: usize, columns: usize, entries: &[Entry<u32>]) -> Entries {
        Entries {
            rows,
            columns,
            row_numbers: entries.iter().map(|entry| entry.0).collect(),
            column_numbers: entries.iter().map(|entry| entry.1).collect(),
            values: entries.iter().map(|entry| entry.2).collect(),
        }
    }
}

/// A matrix of 60 x 40 and rank 4 without noise: one half of its entries to train on, the other half to test on.
///
/// It is the sum over k = 1 to 4 of products of two cosines, k half waves along the rows and k along the columns. These
/// are orthogonal, so that the mean square of all entries is 1 and all four singular values are equal: the best matrix
/// of rank r < 4 has a mean squared error of 1 - r/4 (Eckart and Young, 1936).
pub(super) fn matrix() -> (Entries, Entries) {
    let (rows, columns, rank) = MATRIX;
    let wave = |waves: usize, at: usize, length: usize| {
        (PI * waves as f64 * (at as f64 + 0.5) / length as f64).cos()
    };
    let value = |row, column| {
        let products = (1..=rank).map(|waves| wave(waves, row, rows) * wave(waves, column, columns));
        products.sum::<f64>() as f32
    };
    let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let mut entries: Vec<Entry<u32>> =
        all.map(|(row, column)| (row as u32, column as u32, value(row, column))).collect();
    Random::new(SPLIT_SEED, Purpose::Split, 0).shuffle(&mut entries);
    let (test, train) = entries.split_at(entries.len() / 2);
    (Entries::new(rows, columns, train), Entries::new(rows, columns, test))
}

/// Parses a file that is already in memory, and splits off one fifth of its entries, rounded up, as the test part;
/// `file` is its name in errors.
pub(super) fn parse(file: &Path, bytes: &[u8]) -> Result<(Entries, Entries), DataError> {
    let content = text::check(file, bytes)?;
    let entries = match text::recognise(file, content)? {
        text::Format::Csv => of_csv(file, content),
        text::Format::Libsvm => of_libsvm(file, content),
    };
    let entries = entries.map_err(|error| match error {
        DataError::BadLabel { file, line, value } => DataError::BadPosition { file, line, value },
        error => error,
    })?;
    if entries.len() < 2 {
        return Err(DataError::FewEntries { file: file.to_owned(), entries: entries.len() });
    }
    let rows = distinct(entries.iter().map(|entry| entry.0));
    let columns = distinct(entries.iter().map(|entry| entry.1));
    let number = |known: &[u64], own: u64| known.partition_point(|smaller| *smaller < own) as u32;
    let mut entries: Vec<Entry<u32>> = entries
        .into_iter()
        .map(|(row, column, value)| (number(&rows, row), number(&columns, column), value))
        .collect();
    Random::new(SPLIT_SEED, Purpose::Split, 0).shuffle(&mut entries);
    let (test, train) = entries.split_at(entries.len().div_ceil(5));
    let part = |entries| Entries::new(rows.len(), columns.len(), entries);
    Ok((part(train), part(test)))
}

/// An entry a line: row, column and value, which a time may follow, as MovieLens has it. A first line of column names
/// is skipped.
fn of_csv(file: &Path, text: &str) -> Result<Vec<Entry<u64>>, DataError> {
    let mut lines = text::lines(text).peekable();
    lines.next_if(|(_, line)| csv::is_header(line));
    let mut entries = Vec::new();
    for (line, content) in lines {
        let values: Vec<_> = content.split(',').map(str::trim).collect();
        let ([row, column, value] | [row, column, value, _]) = values[..] else {
            return Err(DataError::NoEntry { file: file.to_owned(), line, found: values.len() });
        };
        let position = |value| text::label(file, line, value);
        entries.push((position(row)?, position(column)?, text::feature(file, line, value)?));
    }
    Ok(entries)
}

/// A row a line: its number, and `column:value` for each entry of it.
fn of_libsvm(file: &Path, text: &str) -> Result<Vec<Entry<u64>>, DataError> {
    let mut entries = Vec::new();
    libsvm::lines(file, text, |_, row, pairs| {
        entries.extend(pairs.iter().map(|(column, value)| (row, u64::from(*column), *value)));
        Ok(())
    })?;
    Ok(entries)
}

/// The numbers that occur, ascending.
fn distinct(numbers: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}
