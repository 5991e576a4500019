//! Reasons that a data file was refused.

use slackline::Diagnostic;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A data file that cannot be used: which one, which line, what is wrong and what to do about it.
///
/// Lines are counted from 1. `value` is at most a few dozen characters of the offending text.
#[derive(Debug, Error)]
#[allow(missing_docs)] // each message says what its fields hold
pub enum DataError {
    /// There is no such file.
    #[error("{}: no such file; {}", file.display(), self.remedy().unwrap_or_default())]
    Missing { file: PathBuf },

    /// A directory, a pipe or a device was named.
    #[error("{}: not a regular file; {}", file.display(), self.remedy().unwrap_or_default())]
    NotAFile { file: PathBuf },

    /// The operating system would not open or read it.
    #[error("{}: cannot be read: {source}; {}", file.display(), self.remedy().unwrap_or_default())]
    Unreadable { file: PathBuf, source: std::io::Error },

    /// There is no example in it.
    #[error("{}: holds no examples; {}", file.display(), self.remedy().unwrap_or_default())]
    Empty { file: PathBuf },

    /// The file is larger than the loader reads.
    #[error(
        "{}: {bytes} bytes, and at most {limit} can be read; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    FileTooLarge { file: PathBuf, bytes: u64, limit: u64 },

    /// The table, written out in full, is larger than the loader holds.
    #[error(
        "{}: {rows} examples of {columns} values are more than the {limit} values that can be held; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    TooManyValues { file: PathBuf, rows: usize, columns: usize, limit: usize },

    /// It begins as gzip does, and does not go on so.
    #[error("{}: cannot be unpacked: {source}; {}", file.display(), self.remedy().unwrap_or_default())]
    Packed { file: PathBuf, source: std::io::Error },

    /// It lies where CIFAR-10's files lie and is none of them.
    #[error(
        "{}: not whole records of CIFAR-10, 3073 bytes of which the first is below 10; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    NotCifar { file: PathBuf },

    /// The bytes are of no known kind.
    #[error(
        "{}:{line}: not text, and not an IDX images file either; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    NotText { file: PathBuf, line: usize },

    /// It is text of another kind.
    #[error(
        "{}: neither CSV nor LIBSVM: no line has a comma or an index:value pair; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    UnknownText { file: PathBuf },

    /// Something that should be a number is not.
    #[error("{}:{line}: `{value}` is not a number; {}", file.display(), self.remedy().unwrap_or_default())]
    BadNumber { file: PathBuf, line: usize, value: String },

    /// A number that no feature can have.
    #[error(
        "{}:{line}: `{value}` is not a finite number in single precision; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    NotFinite { file: PathBuf, line: usize, value: String },

    /// A line of another width.
    #[error(
        "{}:{line}: {found} values where line {first_line} has {expected}; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    WrongColumns { file: PathBuf, line: usize, found: usize, first_line: usize, expected: usize },

    /// There is a label and nothing to tell it from.
    #[error("{}:{line}: no features; {}", file.display(), self.remedy().unwrap_or_default())]
    NoFeatures { file: PathBuf, line: usize },

    /// A label that is negative, has a fraction or is too large to be exact.
    #[error(
        "{}:{line}: label `{value}` is not a whole number from 0 up; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    BadLabel { file: PathBuf, line: usize, value: String },

    /// A row or column of a matrix that is negative, has a fraction or is too large to be exact.
    #[error(
        "{}:{line}: `{value}` is not the number of a row or column, a whole number from 0 up; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    BadPosition { file: PathBuf, line: usize, value: String },

    /// A line that is no entry of a matrix.
    #[error(
        "{}:{line}: {found} values are no entry of a matrix; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    NoEntry { file: PathBuf, line: usize, found: usize },

    /// There are too few entries for two parts.
    #[error("{}: entries of a matrix: {entries}; {}", file.display(), self.remedy().unwrap_or_default())]
    FewEntries { file: PathBuf, entries: usize },

    /// Not `index:value`.
    #[error(
        "{}:{line}: `{value}` is not of the form index:value; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    BadPair { file: PathBuf, line: usize, value: String },

    /// A LIBSVM index that is 0, or not above the one before it.
    #[error("{}:{line}: index {index} after {previous}; {}", file.display(), self.remedy().unwrap_or_default())]
    BadIndex { file: PathBuf, line: usize, index: u32, previous: u32 },

    /// There is nothing to learn.
    #[error("{}: every label is {label}; {}", file.display(), self.remedy().unwrap_or_default())]
    OneClass { file: PathBuf, label: u64 },

    /// An IDX file, but not one of images.
    #[error(
        "{}: an IDX file of type 0x{kind:02x} with {dimensions} dimensions, where images have unsigned bytes \
         (0x08) and 2 to 4 dimensions; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    NotImages { file: PathBuf, kind: u8, dimensions: u8 },

    /// The file that should hold the labels is not an IDX labels file.
    #[error(
        "{}: not an IDX labels file (unsigned bytes in one dimension); {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    NotLabels { file: PathBuf },

    /// An IDX header that does not agree with the file's size, mostly from a download cut short.
    #[error(
        "{}: {found} bytes where its header promises {promised}; {}",
        file.display(), self.remedy().unwrap_or_default()
    )]
    WrongSize { file: PathBuf, promised: u128, found: usize },

    /// No labels file beside the images file.
    #[error(
        "{}: no labels file beside it (looked for {}); {}",
        file.display(), tried.join(", "), self.remedy().unwrap_or_default()
    )]
    LabelsMissing { file: PathBuf, tried: Vec<String> },

    /// The images file is named so that nothing follows for the labels file.
    #[error("{}: cannot tell the name of its labels file; {}", file.display(), self.remedy().unwrap_or_default())]
    ImagesName { file: PathBuf },

    /// As many labels as images are needed.
    #[error(
        "{}: {labels} labels for the {images} images of {}; {}",
        file.display(), images_file.display(), self.remedy().unwrap_or_default()
    )]
    LabelCount { file: PathBuf, labels: usize, images_file: PathBuf, images: usize },

    /// The test part does not fit the training part.
    #[error(
        "{}: {found} values an image where {} has {expected}; {}",
        file.display(), train_file.display(), self.remedy().unwrap_or_default()
    )]
    TestColumns { file: PathBuf, found: usize, train_file: PathBuf, expected: usize },
}

impl Diagnostic for DataError {
    fn operation(&self) -> &'static str {
        "reading data"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            DataError::Missing { file } if file == Path::new(super::FASHION_FILE) => {
                "install Debian's package dataset-fashion-mnist, or name the images file".into()
            }
            DataError::Missing { .. } => "check the path".into(),
            DataError::NotAFile { .. } => "name a CSV, LIBSVM, IDX or CIFAR-10 file".into(),
            DataError::Unreadable { .. } => "check its permissions and the disk it is on".into(),
            DataError::Empty { .. } => "expected one example a line, or an IDX images file".into(),
            DataError::FileTooLarge { .. } => "use a part of it".into(),
            DataError::TooManyValues { .. } => "use fewer examples or columns".into(),
            DataError::NotText { .. } => "expected CSV, LIBSVM, IDX or CIFAR-10".into(),
            DataError::UnknownText { .. } => {
                "separate the values by commas, with the label (or the value of an entry) last".into()
            }
            DataError::BadNumber { .. } => "every value must be one".into(),
            DataError::NotFinite { .. } => "remove the line or replace the value".into(),
            DataError::WrongColumns { .. } => {
                "every line needs the same number of values with the label last".into()
            }
            DataError::NoFeatures { .. } => "an example needs at least one value besides its label".into(),
            DataError::BadLabel { .. } => {
                "number the classes, for example 0 and 1 instead of -1 and +1".into()
            }
            DataError::BadPosition { .. } => "number the rows and the columns".into(),
            DataError::NoEntry { .. } => {
                "write row, column and value, which one more value (a time) may follow".into()
            }
            DataError::FewEntries { .. } => "at least two are needed, to train on and to test on".into(),
            DataError::BadPair { .. } => "write for example 3:0.5".into(),
            DataError::BadIndex { .. } => "indices start at 1 and ascend along the line".into(),
            DataError::OneClass { .. } => {
                "at least two classes are needed, so check that the label is where the \
                 format has it (last in CSV, first in LIBSVM)"
                    .into()
            }
            DataError::NotImages { .. } => "name the images file, as in train-images-idx3-ubyte".into(),
            DataError::NotLabels { .. } => "fetch it again".into(),
            DataError::WrongSize { .. } => "fetch it again".into(),
            DataError::LabelsMissing { .. } => "put it there under one of these names".into(),
            DataError::ImagesName { .. } => "name the pair like train-images-idx3-ubyte and \
                 train-labels-idx1-ubyte"
                .into(),
            DataError::LabelCount { .. } => "use the two files of one pair".into(),
            DataError::TestColumns { .. } => "use the test files of the same data set".into(),
            DataError::Packed { .. } | DataError::NotCifar { .. } => "fetch it again".into(),
        })
    }
}
