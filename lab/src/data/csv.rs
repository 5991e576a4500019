//! CSV: one example a line, values separated by commas, the label last.

use std::path::Path;

use super::{DataError, RawExamples, VALUES_MAX, text};

/// Parses the whole file. A first line of column names is skipped.
pub(super) fn parse(file: &Path, text: &str) -> Result<RawExamples, DataError> {
    let mut lines = text::lines(text).peekable();
    lines.next_if(|(_, line)| is_header(line));
    let Some(&(first_line, first)) = lines.peek() else {
        return Err(DataError::Empty { file: file.to_owned() });
    };
    let expected = first.split(',').count();
    if expected < 2 {
        return Err(DataError::NoFeatures { file: file.to_owned(), line: first_line });
    }

    let columns = expected - 1;
    let mut table = RawExamples { features: Vec::new(), labels: Vec::new(), columns };
    for (line, content) in lines {
        let found = content.split(',').count();
        if found != expected {
            return Err(DataError::WrongColumns { file: file.to_owned(), line, found, first_line, expected });
        }
        if table.features.len() + columns > VALUES_MAX {
            let rows = table.labels.len() + 1;
            return Err(DataError::TooManyValues { file: file.to_owned(), rows, columns, limit: VALUES_MAX });
        }
        let mut values = content.split(',').map(str::trim);
        for value in values.by_ref().take(columns) {
            table.features.push(text::feature(file, line, value)?);
        }
        let label = values.next().unwrap_or_default();
        table.labels.push(text::label(file, line, label)?);
    }
    Ok(table)
}

/// Whether the first line names the columns: it does when its last value, where a label or a value would be, is a
/// word.
///
/// One bad value before a good label is a mistake to report, not a header to skip; and numbers before
/// a word are a header that numbers its columns.
pub(super) fn is_header(line: &str) -> bool {
    let last = line.rsplit(',').next().unwrap_or_default().trim();
    !last.is_empty() && last.parse::<f64>().is_err()
}
