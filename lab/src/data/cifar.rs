//! CIFAR-10's binary files: records of a label and of the 3,072 pixels of an image, 32 x 32 in three planes of colour.
//!
//! There is no magic number: a file is one of these if it is whole records whose labels are all below 10, which no text
//! and no IDX file is.

use std::path::Path;

use super::{DataError, RawExamples, Split, VALUES_MAX, read, split};

/// Pixels of an image.
const PIXELS: usize = 3 * 32 * 32;

const CLASSES: u8 = 10;

/// Whether the bytes are whole records.
pub(super) fn recognise(bytes: &[u8]) -> bool {
    let records = bytes.chunks_exact(1 + PIXELS);
    !bytes.is_empty() && records.remainder().is_empty() && { records }.all(|record| record[0] < CLASSES)
}

/// Loads a file. Beside a `data_batch_N.bin` lie the others of the five, and `test_batch.bin`: those that are there are
/// the rest of the training part, in their order, and the test part.
pub(super) fn load(path: &Path, bytes: &[u8]) -> Result<Split, DataError> {
    let mut train = RawExamples { features: Vec::new(), labels: Vec::new(), columns: PIXELS };
    let is_batch = path.file_name().is_some_and(|name| batches().any(|batch| *name == *batch));
    if !is_batch {
        add(&mut train, path, bytes)?;
        return split::one_fifth(path, train);
    }
    for batch in batches().map(|batch| path.with_file_name(batch)) {
        if batch == path {
            add(&mut train, path, bytes)?;
        } else if batch.exists() {
            add_file(&mut train, &batch)?;
        }
    }
    let test_path = path.with_file_name("test_batch.bin");
    if !test_path.exists() {
        return split::one_fifth(path, train);
    }
    let mut test = RawExamples { features: Vec::new(), labels: Vec::new(), columns: PIXELS };
    add_file(&mut test, &test_path)?;
    split::given(path, train, test)
}

fn batches() -> impl Iterator<Item = String> {
    (1..=5).map(|number| format!("data_batch_{number}.bin"))
}

fn add_file(examples: &mut RawExamples, path: &Path) -> Result<(), DataError> {
    let bytes = read(path)?;
    if !recognise(&bytes) {
        return Err(DataError::NotCifar { file: path.to_owned() });
    }
    add(examples, path, &bytes)
}

fn add(examples: &mut RawExamples, path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let rows = examples.labels.len() + bytes.len() / (1 + PIXELS);
    if rows > VALUES_MAX / PIXELS {
        let (file, limit) = (path.to_owned(), VALUES_MAX);
        return Err(DataError::TooManyValues { file, rows, columns: PIXELS, limit });
    }
    for record in bytes.chunks_exact(1 + PIXELS) {
        examples.labels.push(u64::from(record[0]));
        examples.features.extend(record[1..].iter().map(|pixel| f32::from(*pixel) / 255.0));
    }
    Ok(())
}
