//! Claims about the loaders. Files are written to a folder of their own for each test.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::{DataError, Dataset, Entries, Task, TaskKind, TaskPart, digits, fuzz, load};

/// A folder with the given files; the first one is the one to load.
fn folder(files: &[(&str, &[u8])]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let first = folder.path().join(files[0].0);
    (folder, first)
}

/// The message for a file, without the folder it is in.
fn refusal(files: &[(&str, &[u8])]) -> String {
    let (folder, path) = folder(files);
    let message = load(path).unwrap_err().to_string();
    message.replace(&format!("{}/", folder.path().display()), "")
}

fn idx(dimensions: &[u32], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    dimensions.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
    bytes.extend(body);
    bytes
}

/// Every example with its class, sorted: what a data set holds, whatever its order.
fn content(parts: &[&Dataset]) -> Vec<(Vec<u32>, u32)> {
    let mut rows: Vec<_> = parts
        .iter()
        .flat_map(|part| (0..part.rows()).map(|row| (part.row(row), part.labels[row])))
        .map(|(row, label)| (row.iter().map(|value| value.to_bits()).collect(), label))
        .collect();
    rows.sort();
    rows
}

#[test]
fn digits_split_into_1437_and_360_of_ten_classes() {
    let split = digits();
    assert_eq!((split.train.rows(), split.test.rows()), (1_437, 360));
    assert_eq!((split.train.columns, split.train.classes), (64, 10));
    assert_eq!(split.class_labels, (0..10).collect::<Vec<u64>>());
    let largest = split.train.features.iter().copied().fold(0.0, f32::max);
    assert_eq!(largest, 1.0);
    assert!(split.train.features.iter().all(|value| (value * 16.0).fract() == 0.0));
    for class in 0..10 {
        assert!(split.train.labels.contains(&class) && split.test.labels.contains(&class));
    }
}

/// A change of the shuffle would change every figure that was ever reported for the digits.
#[test]
fn digits_split_never_changes() {
    assert_eq!(digits().test.labels[..12], [4, 8, 4, 3, 7, 2, 5, 4, 2, 7, 5, 3]);
}

#[test]
fn digits_from_their_file_are_the_embedded_digits() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv");
    assert_eq!(load(path).unwrap(), digits());
}

#[test]
fn csv_and_libsvm_of_the_same_table_are_equal() {
    let csv = b"x,y,class\n0,2,3\r\n-4, 0 ,7.0\n\n1,1,7e0\n";
    let libsvm = b"3 2:2 # a comment\n7 1:-4\n7 1:1 2:1\n";
    let (_folder, csv) = folder(&[("a.csv", csv)]);
    let (_folder, libsvm) = folder(&[("a.svm", libsvm)]);
    let split = load(csv).unwrap();
    assert_eq!(split, load(libsvm).unwrap());
    assert_eq!(split.class_labels, [3, 7]);
    let expected = [([0.0, 0.5], 0), ([-1.0, 0.0], 1), ([0.25, 0.25], 1)];
    let mut expected = expected.map(|(row, label)| (row.map(f32::to_bits).to_vec(), label));
    expected.sort();
    assert_eq!(content(&[&split.train, &split.test]), expected);
}

#[test]
fn a_header_is_skipped_and_a_bad_first_value_is_not() {
    let (_folder, path) = folder(&[("a.csv", b"0,1,target\n1,2,0\n3,4,1\n")]);
    assert_eq!(load(path).unwrap().train.columns, 2);
    assert_eq!(
        refusal(&[("a.csv", b"1,oops,0\n3,4,1\n")]),
        "a.csv:1: `oops` is not a number; every value must be one"
    );
}

#[test]
fn idx_pairs_are_found_under_both_names_and_t10k_is_the_test_part() {
    let images = idx(&[2, 1, 2], &[0, 255, 51, 0]);
    let labels = idx(&[2], &[4, 9]);
    let test_images = idx(&[1, 1, 2], &[255, 255]);
    let test_labels = idx(&[1], &[9]);
    for separator in ["-", "."] {
        let name = |part, of, dimensions| format!("{part}-{of}{separator}idx{dimensions}-ubyte");
        let names = [
            name("train", "images", 3),
            name("train", "labels", 1),
            name("t10k", "images", 3),
            name("t10k", "labels", 1),
        ];
        let (_folder, path) = folder(&[
            (&names[0], &images),
            (&names[1], &labels),
            (&names[2], &test_images),
            (&names[3], &test_labels),
        ]);
        let split = load(path).unwrap();
        assert_eq!(split.train.features, [0.0, 1.0, 0.2, 0.0]);
        assert_eq!((split.train.labels, split.test.labels), (vec![0, 1], vec![1]));
        assert_eq!((split.test.features, split.class_labels), (vec![1.0, 1.0], vec![4, 9]));
    }
    let (_folder, path) =
        folder(&[("train-images-idx3-ubyte", &images), ("train-labels.idx1-ubyte", &labels)]);
    let split = load(path).unwrap();
    assert_eq!((split.train.rows(), split.test.rows()), (1, 1));
}

/// `printf '' | gzip -n`.
const GZIP_OF_NOTHING: &[u8] =
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00";

/// `printf '1,2,0\n3,4,1\n' | gzip -n`.
const GZIP_OF_CSV: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x33\xd4\x31\xd2\x31\
    \xe0\x32\xd6\x31\xd1\x31\xe4\x02\x00\x4d\x07\xe8\xbf\x0c\x00\x00\x00";

/// The bytes of `gzip`, and of two of them one after the other, which count as one.
#[test]
fn what_gzip_has_packed_is_read_as_it_is() {
    let (_folder, packed) = folder(&[("f", GZIP_OF_CSV)]);
    let (_other, plain) = folder(&[("f", b"1,2,0\n3,4,1\n")]);
    assert_eq!(load(packed).unwrap(), load(plain).unwrap());
    let (_folder, packed) = folder(&[("f", &[GZIP_OF_CSV, GZIP_OF_CSV].concat())]);
    let (_other, plain) = folder(&[("f", b"1,2,0\n3,4,1\n1,2,0\n3,4,1\n")]);
    assert_eq!(load(packed).unwrap(), load(plain).unwrap());
    let cut = refusal(&[("f", &GZIP_OF_CSV[..GZIP_OF_CSV.len() - 3])]);
    assert!(cut.starts_with("f: cannot be unpacked: "), "{cut}");
}

/// As Debian has Fashion-MNIST: all four files packed. One that is unpacked beside it comes first.
#[test]
fn packed_idx_files_are_found_beside_each_other() {
    let pack = |bytes: &[u8]| {
        let mut packed = flate2::read::GzEncoder::new(bytes, flate2::Compression::fast());
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut packed, &mut all).unwrap();
        all
    };
    let images = pack(&idx(&[2, 1, 2], &[0, 255, 51, 0]));
    let (labels, wrong) = (idx(&[2], &[4, 9]), pack(&idx(&[2], &[4, 4])));
    let (test_images, test_labels) = (pack(&idx(&[1, 1, 2], &[255, 255])), pack(&idx(&[1], &[9])));
    let (_folder, path) = folder(&[
        ("train-images-idx3-ubyte.gz", &images),
        ("train-labels-idx1-ubyte", &labels),
        ("train-labels-idx1-ubyte.gz", &wrong),
        ("t10k-images-idx3-ubyte.gz", &test_images),
        ("t10k-labels-idx1-ubyte.gz", &test_labels),
    ]);
    let split = load(path).unwrap();
    assert_eq!(split.train.features, [0.0, 1.0, 0.2, 0.0]);
    assert_eq!((split.train.labels, split.test.labels), (vec![0, 1], vec![1]));
}

/// Records of CIFAR-10: a label, and 3,072 pixels that are all `pixel`.
fn records(examples: &[(u8, u8)]) -> Vec<u8> {
    let record = |(label, pixel): &(u8, u8)| [vec![*label], vec![*pixel; 3072]].concat();
    examples.iter().flat_map(record).collect()
}

#[test]
fn the_batches_of_cifar_are_one_set_in_their_order() {
    let (first, second) = (records(&[(3, 0), (7, 255)]), records(&[(0, 51)]));
    let (third, test) = (records(&[(9, 255)]), records(&[(7, 51), (3, 0)]));
    let (_folder, path) = folder(&[
        ("data_batch_2.bin", &second),
        ("data_batch_1.bin", &first),
        ("data_batch_5.bin", &third),
        ("test_batch.bin", &test),
    ]);
    let split = load(path).unwrap();
    assert_eq!((split.train.columns, split.class_labels.clone()), (3072, vec![0, 3, 7, 9]));
    assert_eq!((split.train.labels.clone(), split.test.labels.clone()), (vec![1, 2, 0, 3], vec![2, 1]));
    let of = |data: &super::Dataset, row| (data.row(row)[0], data.row(row)[3071]);
    assert_eq!(
        [0, 1, 2, 3].map(|row| of(&split.train, row)),
        [(0.0, 0.0), (1.0, 1.0), (0.2, 0.2), (1.0, 1.0)]
    );
    assert_eq!(of(&split.test, 0), (0.2, 0.2));
    // A file of another name is a set of its own.
    let (_folder, path) = folder(&[("some.bin", &records(&[(1, 0), (2, 9), (1, 3), (2, 1), (1, 1)]))]);
    let split = load(path).unwrap();
    assert_eq!((split.train.rows(), split.test.rows()), (4, 1));
}

#[test]
fn what_is_no_batch_of_cifar_is_refused_beside_one() {
    let (first, other) = (records(&[(3, 0), (7, 255)]), records(&[(10, 0)]));
    let message = refusal(&[("data_batch_1.bin", &first), ("data_batch_2.bin", &other)]);
    assert!(message.starts_with("data_batch_2.bin: not whole records of CIFAR-10"), "{message}");
    let message = refusal(&[("data_batch_1.bin", &first[..3000])]);
    assert!(message.starts_with("data_batch_1.bin:1: not text"), "{message}");
}

#[test]
fn idx_refusals_name_the_file_and_the_cause() {
    let images = idx(&[2, 1, 2], &[0, 255, 51, 0]);
    let images = ("train-images-idx3-ubyte", &images[..]);
    let labels = "train-labels-idx1-ubyte";
    assert_eq!(
        refusal(&[images]),
        "train-images-idx3-ubyte: no labels file beside it (looked for train-labels-idx1-ubyte, \
         train-labels.idx1-ubyte); put it there under one of these names"
    );
    let packed = refusal(&[images, ("train-labels-idx1-ubyte.gz", &[0x1f, 0x8b])]);
    assert!(packed.starts_with("train-labels-idx1-ubyte.gz: cannot be unpacked: "), "{packed}");
    assert!(packed.ends_with("; fetch it again"), "{packed}");
    assert_eq!(
        refusal(&[images, (labels, &idx(&[3], &[1, 2, 3]))]),
        "train-labels-idx1-ubyte: 3 labels for the 2 images of train-images-idx3-ubyte; \
         use the two files of one pair"
    );
    assert!(refusal(&[images, (labels, &idx(&[2, 1], &[1, 2]))]).contains("not an IDX labels file"));
    assert!(refusal(&[(labels, &idx(&[2], &[1, 2]))]).contains("name the images file"));
    assert!(refusal(&[("pictures", images.1)]).contains("cannot tell the name of its labels file"));
    assert_eq!(
        refusal(&[("a-images-idx3-ubyte", &idx(&[2, 1, 2], &[0, 255, 51]))]),
        "a-images-idx3-ubyte: 19 bytes where its header promises 20; fetch it again"
    );
    assert_eq!(
        refusal(&[("a-images-idx3-ubyte", &idx(&[u32::MAX; 4], &[]))]),
        "a-images-idx3-ubyte: 20 bytes where its header promises 340282366604025813516997721482669850645; \
         fetch it again"
    );
    let other = idx(&[1, 1, 1], &[7]);
    assert!(
        refusal(&[
            images,
            (labels, &idx(&[2], &[0, 1])),
            ("t10k-images-idx3-ubyte", &other),
            ("t10k-labels-idx1-ubyte", &idx(&[1], &[0])),
        ])
        .starts_with("t10k-images-idx3-ubyte: 1 values an image where train-images-idx3-ubyte has 2;")
    );
}

#[test]
fn text_refusals_name_the_line_the_cause_and_the_remedy() {
    let cases: &[(&[u8], &str)] = &[
        (
            b"1,2,0\n\n1,1\n",
            "f:3: 2 values where line 1 has 3; every line needs the same number of values with the label",
        ),
        (
            b"1,2,0\n1,nan,1\n",
            "f:2: `nan` is not a finite number in single precision; remove the line or replace the value",
        ),
        (b"1,2,0\n1,1e39,1\n", "f:2: `1e39` is not a finite number"),
        (b"1,2,0\n1,,1\n", "f:2: `` is not a number"),
        (b"1,2,0\n1,2,-1\n", "f:2: label `-1` is not a whole number from 0 up"),
        (b"1,2,0\n1,2,0.5\n", "f:2: label `0.5` is not a whole number from 0 up"),
        (b"1,2,0\n1,2,inf\n", "f:2: label `inf` is not a whole number from 0 up"),
        (b"1,2,0\n1,2,cat\n", "f:2: `cat` is not a number"),
        (b"1,2,4\n1,2,4\n", "f: every label is 4; at least two classes are needed"),
        (b"a,b,c\n", "f: holds no examples"),
        (b"\n \n", "f: holds no examples"),
        (b"", "f: holds no examples"),
        (b"1;2;0\n1;2;1\n", "f: neither CSV nor LIBSVM"),
        (b"0 1:1\n1 0:1\n", "f:2: index 0 after 0; indices start at 1 and ascend"),
        (b"0 1:1\n1 3:1 2:1\n", "f:2: index 2 after 3; indices start at 1 and ascend"),
        (b"0 1:1\n1 3=1\n", "f:2: `3=1` is not of the form index:value"),
        (b"0 1:1\n1 qid:1\n", "f:2: `qid:1` is not of the form index:value"),
        (
            b"-1 1:1\n+1 1:1\n",
            "f:1: label `-1` is not a whole number from 0 up; number the classes, for example 0 and 1",
        ),
        (b"0 1:1\n1 4294967295:1\n", "f: 2 examples of 4294967295 values are more than"),
        (b"0 # 1:1\n1\n", "f:1: no features"),
        (b"1,2,0\n\x89PNG", "f:2: not text, and not an IDX images file either"),
        (b"\xff\xfe1\0,\0", "f:1: not text"),
        (b"\x1f\x8b\x08\0", "f: cannot be unpacked: "),
        (GZIP_OF_NOTHING, "f: holds no examples"),
    ];
    for (bytes, expected) in cases {
        let message = refusal(&[("f", bytes)]);
        assert!(message.starts_with(expected), "{message}\nwhere this was expected:\n{expected}");
    }
}

#[test]
fn a_missing_file_and_a_folder_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(load(folder.path().join("none.csv")), Err(DataError::Missing { .. })));
    assert!(matches!(load(folder.path()), Err(DataError::NotAFile { .. })));
}

fn entries(path: &std::path::Path) -> Result<[Entries; 2], DataError> {
    let Task { train, test } = Task::load(TaskKind::Values, Some(path))?;
    Ok([train, test].map(|part| match part {
        TaskPart::Values(entries) => entries,
        TaskPart::Classes(_) => panic!("entries of a matrix"),
    }))
}

#[test]
fn entries_of_a_matrix_are_read_from_both_text_formats_and_split() {
    let csv = b"user,film,rating,time\n9,7,3.5,1\n2,7,-1e1,2\n\n9, 30 ,0.5,3\n4,30,2,4\n9,8,5,5\n4,8,1,6\n";
    let libsvm = b"9 7:3.5 8:5 30:0.5 # a comment\n4 8:1 30:2\n2 7:-10\n";
    // Rows 2, 4, 9 and columns 7, 8, 30, in ascending order.
    let expected = [(0, 0, -10.0), (1, 1, 1.0), (1, 2, 2.0), (2, 0, 3.5), (2, 1, 5.0), (2, 2, 0.5)];
    for content in [&csv[..], libsvm] {
        let (_folder, path) = folder(&[("a", content)]);
        let [train, test] = entries(&path).unwrap();
        assert_eq!((train.values.len(), test.values.len()), (4, 2));
        let mut all = Vec::new();
        for part in [train, test] {
            assert_eq!((part.rows, part.columns), (3, 3));
            let positions = part.row_numbers.into_iter().zip(part.column_numbers);
            all.extend(positions.zip(part.values).map(|((row, column), value)| (row, column, value)));
        }
        all.sort_by_key(|(row, column, _)| (*row, *column));
        assert_eq!(all, expected);
    }
}

#[test]
fn what_is_no_entry_of_a_matrix_is_refused_with_its_line() {
    for (bytes, expected) in [
        (&b"1,2,3\n1,2\n"[..], "f:2: 2 values are no entry of a matrix; write row, column and value"),
        (b"1,2,3\n1,2,3,4,5\n", "f:2: 5 values are no entry"),
        (b"1,2,3\n-1,2,3\n", "f:2: `-1` is not the number of a row or column, a whole number from 0 up"),
        (b"1,2,3\n1,2.5,3\n", "f:2: `2.5` is not the number of a row or column"),
        (b"-1 2:3\n1 2:3\n", "f:1: `-1` is not the number of a row or column"),
        (b"1,2,3\n1,2,inf\n", "f:2: `inf` is not a finite number"),
        (b"1,2,3\n1,2,\n", "f:2: `` is not a number"),
        (b"1 2:3 2:4\n", "f:1: index 2 after 2"),
        (b"row,column,value\n", "f: entries of a matrix: 0; at least two"),
        (b"1,2,3\n", "f: entries of a matrix: 1; at least two"),
        (b"1;2;3\n", "f: neither CSV nor LIBSVM"),
        (b"", "f: holds no examples"),
    ] {
        let (folder, path) = folder(&[("f", bytes)]);
        let message = entries(&path).unwrap_err().to_string();
        let message = message.replace(&format!("{}/", folder.path().display()), "");
        assert!(message.starts_with(expected), "{message}\nwhere this was expected:\n{expected}");
    }
}

/// Asserts what must hold of every split, however strange its file.
fn check(split: &super::Split) {
    let (train, test) = (&split.train, &split.test);
    assert_eq!((train.columns, train.classes), (test.columns, test.classes));
    assert!(train.classes >= 2 && train.classes == split.class_labels.len());
    for part in [train, test] {
        assert!(part.rows() > 0 && part.columns > 0);
        assert_eq!(part.features.len(), part.rows() * part.columns);
        assert!(part.features.iter().all(|value| value.abs() <= 1.0));
        assert!(part.labels.iter().all(|label| (*label as usize) < part.classes));
    }
}

/// A valid file of each format, to be damaged.
fn valid_files() -> [Vec<u8>; 3] {
    [
        b"a,b,label\n1,2.5,0\n-3,4e2,1\n5,6,2\n".to_vec(),
        b"0 1:1 3:0.5\n1 2:2e1\n2 1:4\n".to_vec(),
        idx(&[3, 2, 2], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    ]
}

/// Loads the bytes both as the file named and as the labels file of a good pair.
fn load_anywhere(bytes: &[u8]) {
    let images = &valid_files()[2];
    let labels = idx(&[3], &[5, 6, 5]);
    for files in [
        [("x-images-idx3-ubyte", bytes), ("x-labels-idx1-ubyte", &labels[..])],
        [("x-images-idx3-ubyte", images), ("x-labels-idx1-ubyte", bytes)],
    ] {
        let (_folder, path) = folder(&files);
        if let Ok(split) = load(path) {
            check(&split);
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        load_anywhere(&bytes);
        fuzz::fuzz_text(&bytes);
        fuzz::fuzz_idx(&bytes);
    }

    #[test]
    fn damaged_samples_never_panic(at: prop::sample::Index, with in any::<[u8; 2]>()) {
        for (samples, fuzz) in
            [(fuzz::text_samples(), fuzz::fuzz_text as fn(&[u8])), (fuzz::idx_samples(), fuzz::fuzz_idx)]
        {
            for mut bytes in samples {
                fuzz(&bytes);
                let at = at.index(bytes.len());
                bytes.splice(at..=at, with);
                fuzz(&bytes);
            }
        }
    }

    #[test]
    fn random_text_never_panics(text in "[-+0-9.,:e #\nnaif]{0,80}") {
        load_anywhere(text.as_bytes());
    }

    #[test]
    fn damaged_files_never_panic(
        kind in 0usize..3,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = valid_files()[kind].clone();
        for (index, byte) in damage {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        load_anywhere(&bytes);
    }
}
