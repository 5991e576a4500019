//! LIBSVM: `label index:value index:value ...`, where values not named are zero.

use std::path::Path;

use super::{DataError, RawExamples, VALUES_MAX, text};

/// Parses the whole file.
pub(super) fn parse(file: &Path, text: &str) -> Result<RawExamples, DataError> {
    let too_many =
        |rows, columns| DataError::TooManyValues { file: file.to_owned(), rows, columns, limit: VALUES_MAX };
    // Kept as written until the last line, for only then is the width known and its size checked.
    let mut all = Vec::new();
    let mut pairs_end = Vec::new();
    let mut labels = Vec::new();
    let mut columns = 0;
    let mut first_line = None;
    lines(file, text, |line, label, pairs| {
        labels.push(label);
        first_line.get_or_insert(line);
        columns = columns.max(pairs.last().map_or(0, |(index, _)| *index as usize));
        all.extend_from_slice(pairs);
        pairs_end.push(all.len());
        if all.len() > VALUES_MAX { Err(too_many(labels.len(), columns)) } else { Ok(()) }
    })?;

    let rows = labels.len();
    let Some(line) = first_line else {
        return Err(DataError::Empty { file: file.to_owned() });
    };
    if columns == 0 {
        return Err(DataError::NoFeatures { file: file.to_owned(), line });
    }
    let values = rows.checked_mul(columns).filter(|values| *values <= VALUES_MAX);
    let values = values.ok_or_else(|| too_many(rows, columns))?;
    let mut features = vec![0.0; values];
    let mut start = 0;
    for (row, end) in features.chunks_exact_mut(columns).zip(pairs_end) {
        for &(index, value) in &all[start..end] {
            row[index as usize - 1] = value;
        }
        start = end;
    }
    Ok(RawExamples { features, labels, columns })
}

/// Gives `each` the number of every line that is not empty, its label, and its pairs, whose indices ascend from 1.
pub(super) fn lines(
    file: &Path,
    text: &str,
    mut each: impl FnMut(usize, u64, &[(u32, f32)]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut pairs = Vec::new();
    for (line, content) in text::lines(text) {
        let content = content.split('#').next().unwrap_or_default();
        let mut words = content.split_ascii_whitespace();
        let Some(label) = words.next() else { continue };
        let label = text::label(file, line, label)?;
        pairs.clear();
        let mut previous = 0;
        for word in words {
            let (index, value) = pair(file, line, word)?;
            if index <= previous {
                return Err(DataError::BadIndex { file: file.to_owned(), line, index, previous });
            }
            pairs.push((index, value));
            previous = index;
        }
        each(line, label, &pairs)?;
    }
    Ok(())
}

/// Takes `index:value` apart.
fn pair(file: &Path, line: usize, word: &str) -> Result<(u32, f32), DataError> {
    let bad = || DataError::BadPair { file: file.to_owned(), line, value: text::quote(word) };
    let (index, value) = word.split_once(':').ok_or_else(bad)?;
    let index = index.parse().map_err(|_| bad())?;
    Ok((index, text::feature(file, line, value)?))
}
