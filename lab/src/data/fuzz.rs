//! Files that are not what their user thinks.

use std::path::Path;

use super::{Dataset, RawExamples, entries, idx, parse_text, split};

/// Reads whatever `bytes` are as CSV or LIBSVM, and checks what came out.
pub(crate) fn fuzz_text(bytes: &[u8]) {
    fuzz_entries(bytes);
    let Ok(split) = parse_text(Path::new("x"), bytes) else { return };
    assert!(split.class_labels.is_sorted_by(|a, b| a < b) && split.class_labels.len() > 1);
    for part in [&split.train, &split.test] {
        assert_whole(part);
        assert_eq!((part.classes, part.columns), (split.class_labels.len(), split.train.columns));
        assert!(part.features.iter().all(|value| (-1.0..=1.0).contains(value)));
    }
}

/// Reads the same as entries of a matrix.
fn fuzz_entries(bytes: &[u8]) {
    let Ok((train, test)) = entries::parse(Path::new("x"), bytes) else { return };
    for part in [&train, &test] {
        let count = part.values.len();
        assert!(count > 0 && (part.rows, part.columns) == (train.rows, train.columns));
        assert_eq!((part.row_numbers.len(), part.column_numbers.len()), (count, count));
        assert!(part.row_numbers.iter().all(|row| (*row as usize) < part.rows));
        assert!(part.column_numbers.iter().all(|column| (*column as usize) < part.columns));
        assert!(part.values.iter().all(|value| value.is_finite()));
    }
}

fn assert_whole(part: &Dataset) {
    assert!(part.rows() > 0 && part.columns > 0);
    assert_eq!(part.features.len(), part.rows() * part.columns);
    assert!(part.labels.iter().all(|label| (*label as usize) < part.classes));
    assert!(part.features.iter().all(|value| value.is_finite()));
}

/// Takes `bytes` for an images file and for a labels file, and checks what came out.
pub(crate) fn fuzz_idx(bytes: &[u8]) {
    let labels = idx::labels(Path::new("x"), bytes);
    assert!(labels.is_err() || idx::recognise(bytes));
    let Ok((rows, columns, pixels)) = idx::images(Path::new("x"), bytes) else { return };
    assert!(idx::recognise(bytes) && rows > 0);
    assert_eq!(rows * columns, pixels.len());
    let features = pixels.iter().map(|pixel| f32::from(*pixel) / 255.0).collect();
    // Any labels: as many as there are images.
    let labels =
        pixels.iter().take(rows).chain(std::iter::repeat(&0)).take(rows).map(|label| u64::from(*label));
    let table = RawExamples { features, labels: labels.collect(), columns };
    if let Ok(split) = split::one_fifth(Path::new("x"), table) {
        assert_whole(&split.train);
        assert_whole(&split.test);
    }
}

/// Texts of both formats.
pub(crate) fn text_samples() -> Vec<Vec<u8>> {
    [
        "a,b,label\n1,2.5,3\n-4e-1,5,0\n0,0,3\n",
        "3 1:1 4:-2.5 # first\n0 2:7e1\n3\n",
        "\u{feff}1, 2, 3.0\r\n4,5,6\r\n",
        "user,film,rating,time\n7,1,3.5,964982703\n9,4,-2e-1,0\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// Images of two and three dimensions, and labels.
pub(crate) fn idx_samples() -> Vec<Vec<u8>> {
    let images = b"\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02\x01\x02\x03\x04\x05\x06\x07\x08";
    let flat = b"\0\0\x08\x02\0\0\0\x02\0\0\0\x02\xff\x02\x03\x04";
    vec![images.to_vec(), flat.to_vec(), b"\0\0\x08\x01\0\0\0\x02\x00\x01".to_vec()]
}
