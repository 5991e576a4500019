//! IDX, the format of MNIST: unsigned bytes in one file, their labels in another.
//!
//! ```text
//! offset  size
//! 0       2     zero
//! 2       1     0x08, the type: unsigned bytes
//! 3       1     d, the number of dimensions: 3 for images, 1 for labels
//! 4       4 d   the dimensions, big-endian; the first is the number of items
//! 4 + 4 d ...   the bytes, their number the product of the dimensions
//! ```

use std::path::{Path, PathBuf};

use super::{DataError, RawExamples, Split, VALUES_MAX, read, split};

/// The type code of unsigned bytes, the only one that image sets use.
const UNSIGNED_BYTES: u8 = 0x08;

/// The type codes of the format, from unsigned bytes to double precision.
const TYPES: std::ops::RangeInclusive<u8> = 0x08..=0x0e;

/// Characters that may stand between the name and the `idx`: both are in use for the same files.
const SEPARATORS: [char; 2] = ['-', '.'];

/// Names of the test part where the training part is named `train`.
const TEST_NAMES: [&str; 2] = ["t10k", "test"];

/// Whether the file begins as an IDX file of any kind does.
pub(super) fn recognise(bytes: &[u8]) -> bool {
    matches!(bytes, [0, 0, kind, 1..=255, ..] if TYPES.contains(kind))
}

/// Loads the pair whose images file is `path`, and the test pair where there is one.
pub(super) fn load(path: &Path, bytes: &[u8]) -> Result<Split, DataError> {
    let train = pair(path, bytes)?;
    match test_images(path) {
        None => split::one_fifth(path, train),
        Some(test_path) => {
            let test = pair(&test_path, &read(&test_path)?)?;
            if test.columns != train.columns {
                return Err(DataError::TestColumns {
                    file: test_path,
                    found: test.columns,
                    train_file: path.to_owned(),
                    expected: train.columns,
                });
            }
            split::given(path, train, test)
        }
    }
}

/// Images and their labels.
fn pair(path: &Path, bytes: &[u8]) -> Result<RawExamples, DataError> {
    // The images are checked first: a labels file named by mistake should be told as that.
    let (rows, columns, pixels) = images(path, bytes)?;
    let labels_path = labels_file(path)?;
    let labels_bytes = read(&labels_path)?;
    let labels = labels(&labels_path, &labels_bytes)?;
    if labels.len() != rows {
        return Err(DataError::LabelCount {
            file: labels_path,
            labels: labels.len(),
            images_file: path.to_owned(),
            images: rows,
        });
    }
    Ok(RawExamples {
        features: pixels.iter().map(|pixel| f32::from(*pixel) / 255.0).collect(),
        labels: labels.iter().map(|label| u64::from(*label)).collect(),
        columns,
    })
}

/// The number of images, the pixels of each and all pixels.
pub(super) fn images<'a>(file: &Path, bytes: &'a [u8]) -> Result<(usize, usize, &'a [u8]), DataError> {
    let (kind, dimensions) = match *bytes {
        [0, 0, kind, dimensions, ..] => (kind, dimensions),
        _ => return Err(DataError::NotText { file: file.to_owned(), line: 1 }),
    };
    if kind != UNSIGNED_BYTES || !(2..=4).contains(&dimensions) {
        return Err(DataError::NotImages { file: file.to_owned(), kind, dimensions });
    }
    let (rows, pixels) = body(file, bytes, usize::from(dimensions))?;
    if pixels.is_empty() {
        return Err(DataError::Empty { file: file.to_owned() });
    }
    let columns = pixels.len() / rows;
    if pixels.len() > VALUES_MAX {
        return Err(DataError::TooManyValues { file: file.to_owned(), rows, columns, limit: VALUES_MAX });
    }
    Ok((rows, columns, pixels))
}

/// The labels of a labels file.
pub(super) fn labels<'a>(file: &Path, bytes: &'a [u8]) -> Result<&'a [u8], DataError> {
    if !bytes.starts_with(&[0, 0, UNSIGNED_BYTES, 1]) {
        return Err(DataError::NotLabels { file: file.to_owned() });
    }
    Ok(body(file, bytes, 1)?.1)
}

/// The number of items and what follows the header, once the header is found to agree with the size.
fn body<'a>(file: &Path, bytes: &'a [u8], dimensions: usize) -> Result<(usize, &'a [u8]), DataError> {
    let wrong = |promised| DataError::WrongSize { file: file.to_owned(), promised, found: bytes.len() };
    let start = 4 + 4 * dimensions;
    let header = bytes.get(4..start).ok_or_else(|| wrong(start as u128))?;
    let sizes: Vec<u32> = header
        .chunks_exact(4)
        .map(|size| size.iter().fold(0, |size, byte| size << 8 | u32::from(*byte)))
        .collect();
    // Compared before anything of that size is allocated. With at most four dimensions of 32 bits the
    // product stays below 2^128 even for rubbish, with room for the header.
    let product: u128 = sizes.iter().map(|size| u128::from(*size)).product();
    let promised = product + start as u128;
    if promised != bytes.len() as u128 {
        return Err(wrong(promised));
    }
    Ok((sizes[0] as usize, &bytes[start..]))
}

/// The labels file beside an images file.
fn labels_file(path: &Path) -> Result<PathBuf, DataError> {
    let stem = stem(path)
        .filter(|stem| stem.contains("images"))
        .ok_or_else(|| DataError::ImagesName { file: path.to_owned() })?;
    let tried =
        SEPARATORS.map(|separator| format!("{}{separator}idx1-ubyte", stem.replace("images", "labels")));
    let found = beside(path, &tried);
    found.ok_or_else(|| DataError::LabelsMissing { file: path.to_owned(), tried: tried.to_vec() })
}

/// The first of these files beside `path` that there is; of each the unpacked one before the packed one.
fn beside(path: &Path, names: &[String]) -> Option<PathBuf> {
    let both = names.iter().flat_map(|name| [name.clone(), format!("{name}.gz")]);
    both.map(|name| path.with_file_name(name)).find(|candidate| candidate.exists())
}

/// The images file of the test part beside that of the training part, if there is one.
fn test_images(path: &Path) -> Option<PathBuf> {
    let stem = stem(path).filter(|stem| stem.contains("train"))?;
    let names = TEST_NAMES.iter().flat_map(|name| {
        SEPARATORS.map(|separator| format!("{}{separator}idx3-ubyte", stem.replace("train", name)))
    });
    beside(path, &names.collect::<Vec<_>>())
}

/// The file's name before its `-idx3-ubyte`, packed or not.
fn stem(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    name.strip_suffix(".gz").unwrap_or(name).strip_suffix("idx3-ubyte")?.strip_suffix(SEPARATORS)
}
