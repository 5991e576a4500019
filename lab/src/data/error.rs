//! Reasons that a data file was refused.

use std::path::PathBuf;

use thiserror::Error;

/// A data file that cannot be used: which one, which line, what is wrong and what to do about it.
///
/// Lines are counted from 1. `value` is at most a few dozen characters of the offending text.
#[derive(Debug, Error)]
#[allow(missing_docs)] // each message says what its fields hold
pub enum DataError {
    /// There is no such file.
    #[error("{}: no such file; check the path", file.display())]
    Missing { file: PathBuf },

    /// A directory, a pipe or a device was named.
    #[error("{}: not a regular file; name a CSV, LIBSVM or IDX file", file.display())]
    NotAFile { file: PathBuf },

    /// The operating system would not open or read it.
    #[error("{}: cannot be read: {source}; check its permissions and the disk it is on", file.display())]
    Unreadable { file: PathBuf, source: std::io::Error },

    /// There is no example in it.
    #[error("{}: holds no examples; expected one example a line, or an IDX images file", file.display())]
    Empty { file: PathBuf },

    /// The file is larger than the loader reads.
    #[error("{}: {bytes} bytes, and at most {limit} can be read; use a part of it", file.display())]
    FileTooLarge { file: PathBuf, bytes: u64, limit: u64 },

    /// The table, written out in full, is larger than the loader holds.
    #[error(
        "{}: {rows} examples of {columns} values are more than the {limit} values that can be held; \
         use fewer examples or columns",
        file.display()
    )]
    TooManyValues { file: PathBuf, rows: usize, columns: usize, limit: usize },

    /// It is gzip-compressed, as MNIST is when downloaded.
    #[error("{0}: compressed with gzip; unpack it first: gunzip {0}", file.display())]
    Compressed { file: PathBuf },

    /// The bytes are of no known kind.
    #[error(
        "{}:{line}: not text, and not an IDX images file either; expected CSV, LIBSVM or IDX",
        file.display()
    )]
    NotText { file: PathBuf, line: usize },

    /// It is text of another kind.
    #[error(
        "{}: neither CSV nor LIBSVM: no line has a comma or an index:value pair; \
         separate the values by commas, with the label last",
        file.display()
    )]
    UnknownText { file: PathBuf },

    /// Something that should be a number is not.
    #[error("{}:{line}: `{value}` is not a number; every value must be one", file.display())]
    BadNumber { file: PathBuf, line: usize, value: String },

    /// A number that no feature can have.
    #[error(
        "{}:{line}: `{value}` is not a finite number in single precision; \
         remove the line or replace the value",
        file.display()
    )]
    NotFinite { file: PathBuf, line: usize, value: String },

    /// A line of another width.
    #[error(
        "{}:{line}: {found} values where line {first_line} has {expected}; \
         every line needs the same number of values with the label last",
        file.display()
    )]
    WrongColumns { file: PathBuf, line: usize, found: usize, first_line: usize, expected: usize },

    /// There is a label and nothing to tell it from.
    #[error("{}:{line}: no features; an example needs at least one value besides its label", file.display())]
    NoFeatures { file: PathBuf, line: usize },

    /// A label that is negative, has a fraction or is too large to be exact.
    #[error(
        "{}:{line}: label `{value}` is not a whole number from 0 up; number the classes, for example 0 and 1 \
         instead of -1 and +1",
        file.display()
    )]
    BadLabel { file: PathBuf, line: usize, value: String },

    /// Not `index:value`.
    #[error("{}:{line}: `{value}` is not of the form index:value; write for example 3:0.5", file.display())]
    BadPair { file: PathBuf, line: usize, value: String },

    /// A LIBSVM index that is 0, or not above the one before it.
    #[error(
        "{}:{line}: index {index} after {previous}; indices start at 1 and ascend along the line",
        file.display()
    )]
    BadIndex { file: PathBuf, line: usize, index: u32, previous: u32 },

    /// There is nothing to learn.
    #[error(
        "{}: every label is {label}; at least two classes are needed, so check that the label is where \
         the format has it (last in CSV, first in LIBSVM)",
        file.display()
    )]
    OneClass { file: PathBuf, label: u64 },

    /// An IDX file, but not one of images.
    #[error(
        "{}: an IDX file of type 0x{kind:02x} with {dimensions} dimensions, where images have unsigned bytes \
         (0x08) and 2 to 4 dimensions; name the images file, as in train-images-idx3-ubyte",
        file.display()
    )]
    NotImages { file: PathBuf, kind: u8, dimensions: u8 },

    /// The file that should hold the labels is not an IDX labels file.
    #[error("{}: not an IDX labels file (unsigned bytes in one dimension); fetch it again", file.display())]
    NotLabels { file: PathBuf },

    /// An IDX header that does not agree with the file's size, mostly from a download cut short.
    #[error("{}: {found} bytes where its header promises {promised}; fetch it again", file.display())]
    WrongSize { file: PathBuf, promised: u128, found: usize },

    /// No labels file beside the images file.
    #[error(
        "{}: no labels file beside it (looked for {}); put it there under one of these names",
        file.display(), tried.join(", ")
    )]
    LabelsMissing { file: PathBuf, tried: Vec<String> },

    /// The images file is named so that nothing follows for the labels file.
    #[error(
        "{}: cannot tell the name of its labels file; name the pair like train-images-idx3-ubyte and \
         train-labels-idx1-ubyte",
        file.display()
    )]
    ImagesName { file: PathBuf },

    /// As many labels as images are needed.
    #[error(
        "{}: {labels} labels for the {images} images of {}; use the two files of one pair",
        file.display(), images_file.display()
    )]
    LabelCount { file: PathBuf, labels: usize, images_file: PathBuf, images: usize },

    /// The test part does not fit the training part.
    #[error(
        "{}: {found} values an image where {} has {expected}; use the test files of the same data set",
        file.display(), train_file.display()
    )]
    TestColumns { file: PathBuf, found: usize, train_file: PathBuf, expected: usize },
}
