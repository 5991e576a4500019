//! Labelled examples, embedded or from a file, split into a train and a test part.
//!
//! [`digits`] needs no file. [`load`] reads four formats and tells them apart by their bytes, never
//! by their names; each may be packed with gzip:
//!
//! | Format | Recognised by | Features become |
//! |--------|---------------|-----------------|
//! | IDX    | its magic number; the labels lie in a second file beside it | value / 255 |
//! | CIFAR-10's binary files | records of 3,073 bytes that begin with a label below 10 | value / 255 |
//! | CSV    | a comma in its first line; the label is last | value / the file's largest absolute value |
//! | LIBSVM | an `index:value` in its first line; the label is first | likewise |
//!
//! So features lie in \[0, 1\], or in \[-1, 1\] where a text file holds negative values. One scale per
//! file, not one per column: pixels keep their meaning, and a zero stays a zero.
//!
//! [`Task::load`] reads the same two text formats as known entries of a matrix, or takes the matrix that needs no file.
//!
//! Labels are whole numbers, not negative, and are mapped to 0, 1, 2, ... in ascending order;
//! [`Split::class_labels`] keeps the mapping.

mod cifar;
mod csv;
mod entries;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod idx;
mod libsvm;
pub(crate) mod random;
mod split;
mod task;
mod text;

#[cfg(test)]
mod tests;

use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

pub use entries::Entries;
pub use error::DataError;
pub use task::{Examples, Task, TaskKind, TaskPart};

/// No file above this size is read, packed or unpacked: a training set this large does not fit the program's plan of
/// holding every example in memory as `f32`.
const FILE_BYTES_MAX: u64 = if cfg!(fuzzing) { 1 << 20 } else { 4 << 30 };

/// Most feature values one data set may hold: 1 GiB of `f32`, six times the MNIST training set. It
/// is there for LIBSVM, where a short line can claim a very wide table. (A fuzzer would find only that.)
const VALUES_MAX: usize = if cfg!(fuzzing) { 1 << 18 } else { 1 << 28 };

/// The name by which [`load`] finds Fashion-MNIST.
const FASHION: &str = "fashion-mnist";

/// The images of Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017; MIT licence) where Debian's package puts them.
const FASHION_FILE: &str = "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz";

/// Labelled examples, all of the same width.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// The feature values, one example after the other, `rows() * columns` in all; never NaN or infinite.
    pub features: Vec<f32>,
    /// The class of each example, below `classes`.
    pub labels: Vec<u32>,
    /// Feature values per example.
    pub columns: usize,
    /// Number of classes, whether or not this part of the data has an example of each.
    pub classes: usize,
}

impl Dataset {
    /// The number of examples.
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// The feature values of one example.
    ///
    /// # Panics
    ///
    /// If `row` is not below [`rows`](Self::rows).
    pub fn row(&self, row: usize) -> &[f32] {
        &self.features[row * self.columns..][..self.columns]
    }
}

/// A data set in two parts that share no example.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// The examples to train on.
    pub train: Dataset,
    /// The examples to judge the model by.
    pub test: Dataset,
    /// The label in the file for each class, ascending: class `c` was written `class_labels[c]`.
    pub class_labels: Vec<u64>,
}

/// The digits that come with the program: 8 x 8 images of 10 classes, 1,437 to train and 360 to test.
///
/// The split is always the same, so figures from two machines can be compared. For where the data
/// come from, see `lab/data/README.md`.
pub fn digits() -> Split {
    // Loading the same file by its path gives the same split: it has no path of its own here.
    parse_text(Path::new("digits.csv"), include_bytes!("../../data/digits.csv"))
        .expect("the embedded digits are a well-formed CSV file")
}

/// Reads a data set from a CSV, LIBSVM, IDX or CIFAR-10 file, packed with gzip or not, and splits it.
///
/// For IDX, name the images file; the labels file is found beside it by the usual naming
/// (`train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, or with a dot before `idx`, each with or
/// without `.gz`). Where the matching `t10k` (or `test`) pair lies there too, it is the test part.
/// Likewise a `data_batch_1.bin` of CIFAR-10 stands for all five, with `test_batch.bin`. In every other
/// case one fifth of the examples, drawn by a constant seed, is the test part.
///
/// `fashion-mnist`, where that is no file, stands for the files of Debian's package `dataset-fashion-mnist`.
///
/// # Errors
///
/// [`DataError`] says which file, which line, what is wrong and what to do. Nothing that a file can
/// hold makes this panic.
pub fn load(path: impl AsRef<Path>) -> Result<Split, DataError> {
    let path = match path.as_ref() {
        path if path == Path::new(FASHION) && !path.exists() => Path::new(FASHION_FILE),
        path => path,
    };
    let bytes = read(path)?;
    if idx::recognise(&bytes) {
        idx::load(path, &bytes)
    } else if cifar::recognise(&bytes) {
        cifar::load(path, &bytes)
    } else {
        parse_text(path, &bytes)
    }
}

/// Parses a CSV or LIBSVM file that is already in memory; `file` is its name in errors.
fn parse_text(file: &Path, bytes: &[u8]) -> Result<Split, DataError> {
    let text = text::check(file, bytes)?;
    let mut table = match text::recognise(file, text)? {
        text::Format::Csv => csv::parse(file, text)?,
        text::Format::Libsvm => libsvm::parse(file, text)?,
    };
    text::scale(&mut table.features);
    split::one_fifth(file, table)
}

/// Examples as their file has them: labels not mapped yet, and features scaled only where the format
/// itself says how.
#[derive(Debug)]
struct RawExamples {
    features: Vec<f32>,
    labels: Vec<u64>,
    columns: usize,
}

/// Reads a whole regular file, whose size is checked first, and unpacks it if it is packed.
fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let file = || path.to_owned();
    let unreadable = |source: std::io::Error| match source.kind() {
        ErrorKind::NotFound => DataError::Missing { file: file() },
        _ => DataError::Unreadable { file: file(), source },
    };
    // Asked before opening: to open a named pipe would wait for its other end.
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(DataError::NotAFile { file: file() });
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(DataError::FileTooLarge { file: file(), bytes: metadata.len(), limit: FILE_BYTES_MAX });
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    // A file that grows while it is read must not grow past the limit.
    File::open(path)
        .and_then(|opened| opened.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        bytes = unpacked(path, &bytes)?;
    }
    if bytes.is_empty() {
        return Err(DataError::Empty { file: file() });
    }
    Ok(bytes)
}

/// The content of a gzip file, of at most the size that a file may have.
fn unpacked(file: &Path, packed: &[u8]) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    // One byte more than is allowed tells that there are too many.
    let read = MultiGzDecoder::new(packed).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|source| DataError::Packed { file: file.to_owned(), source })?;
    let (found, limit) = (bytes.len() as u64, FILE_BYTES_MAX);
    if found > limit {
        return Err(DataError::FileTooLarge { file: file.to_owned(), bytes: found, limit });
    }
    Ok(bytes)
}
