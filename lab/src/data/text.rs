//! The common part of CSV and LIBSVM: lines, numbers, labels.

use std::path::Path;

use super::DataError;

/// The largest whole number below which every whole number is exact in `f64`: 2^53.
const LABEL_MAX: f64 = 9_007_199_254_740_992.0;

/// Characters of an offending value that an error quotes.
const QUOTE_MAX: usize = 40;

/// The two formats of text.
pub(super) enum Format {
    Csv,
    Libsvm,
}

/// The bytes as text, without a byte order mark.
pub(super) fn check<'a>(file: &Path, bytes: &'a [u8]) -> Result<&'a str, DataError> {
    // A zero byte is valid UTF-8 but never in a table: UTF-16, archives and images all have them early.
    let valid = match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) => error.valid_up_to(),
    };
    let good = bytes[..valid].iter().position(|byte| *byte == 0).unwrap_or(valid);
    match std::str::from_utf8(&bytes[..good]) {
        Ok(text) if good == bytes.len() => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        _ => {
            let line = 1 + bytes[..good].iter().filter(|byte| **byte == b'\n').count();
            Err(DataError::NotText { file: file.to_owned(), line })
        }
    }
}

/// The lines that are not blank, trimmed and with their numbers, counted from 1.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty())
}

/// Tells CSV from LIBSVM by the first line that shows it: a LIBSVM line may have a label alone, which
/// shows neither.
pub(super) fn recognise(file: &Path, text: &str) -> Result<Format, DataError> {
    if lines(text).next().is_none() {
        return Err(DataError::Empty { file: file.to_owned() });
    }
    lines(text)
        .find_map(|(_, line)| match (line.contains(','), line.contains(':')) {
            (true, _) => Some(Format::Csv),
            (false, true) => Some(Format::Libsvm),
            (false, false) => None,
        })
        .ok_or_else(|| DataError::UnknownText { file: file.to_owned() })
}

/// A feature value.
pub(super) fn feature(file: &Path, line: usize, value: &str) -> Result<f32, DataError> {
    // Parsed as f32 directly: by way of f64 it would be rounded twice.
    match value.parse::<f32>() {
        Ok(number) if number.is_finite() => Ok(number),
        Ok(_) => Err(DataError::NotFinite { file: file.to_owned(), line, value: quote(value) }),
        Err(_) => Err(DataError::BadNumber { file: file.to_owned(), line, value: quote(value) }),
    }
}

/// A label: a whole number, which may be written `3`, `3.0` or `3e0`, as array libraries do.
pub(super) fn label(file: &Path, line: usize, value: &str) -> Result<u64, DataError> {
    let Ok(number) = value.parse::<f64>() else {
        return Err(DataError::BadNumber { file: file.to_owned(), line, value: quote(value) });
    };
    // The range has neither NaN nor infinity in it.
    if (0.0..LABEL_MAX).contains(&number) && number.fract() == 0.0 {
        Ok(number as u64)
    } else {
        Err(DataError::BadLabel { file: file.to_owned(), line, value: quote(value) })
    }
}

/// The value as an error shows it: short, and with nothing in it that a terminal would act on.
pub(super) fn quote(value: &str) -> String {
    let mut quoted: String = value.chars().take(QUOTE_MAX).flat_map(char::escape_debug).collect();
    if value.chars().nth(QUOTE_MAX).is_some() {
        quoted.push_str("...");
    }
    quoted
}

/// Divides all features by the largest absolute value among them.
pub(super) fn scale(features: &mut [f32]) {
    let largest = features.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    if largest > 0.0 {
        // A division each: the reciprocal of a very small number would be infinite.
        features.iter_mut().for_each(|value| *value /= largest);
    }
}
