use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::file::{partial, read, write};
use super::header::Header;
use super::{Checkpoint, CheckpointError, CheckpointOptions};
use crate::clock::{Clock, Version};
use crate::kernel::{AdamParameters, Optimizer};
use crate::node::taken::Applied;
use crate::param::WorkerProgress;
use crate::table::{ElementType, Table};

pub(super) fn header() -> Header {
    let table = Table::builder()
        .tensor("weight", &[5, 7], ElementType::F32)
        .tensor("a \"quoted\" bias", &[5], ElementType::F32)
        .build()
        .unwrap();
    let range = table.shards(3).unwrap()[1].clone();
    Header {
        format: Header::FORMAT,
        shard: 1,
        shards: 3,
        range: [range.start, range.end],
        version: Version::new(77),
        smallest_clock: Clock::new(70),
        clocks: vec![Clock::new(70), Clock::new(72)],
        epoch: u64::MAX - 5,
        scheme: "ssp(3)".into(),
        learned: Some(r#"{"k":3}"#.into()),
        optimizer: Optimizer::AdamW(AdamParameters { weight_decay: 0.1, ..AdamParameters::default() }),
        folded: 150,
        applied: Applied {
            workers: BTreeMap::from([(3, Clock::new(73)), (u64::MAX, Clock::new(72))]),
            others: Clock::new(71),
        },
        table,
    }
}

/// Values of every kind, also NaNs: each is kept to the bit.
pub(super) fn tensors(header: &Header) -> Vec<Vec<u8>> {
    let elements = (header.range[1] - header.range[0]) / 4;
    let tensor = |which: u32| {
        (0..elements as u32).flat_map(move |i| (i.wrapping_mul(0x1357_9BDF) + which).to_le_bytes())
    };
    (0..=header.optimizer.states() as u32).map(|which| tensor(which).collect()).collect()
}

fn written() -> (TempDir, std::path::PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shard-1.safetensors");
    let header = header();
    write(&file, &header, &tensors(&header)).unwrap();
    let bytes = fs::read(&file).unwrap();
    (folder, file, bytes)
}

fn bits(checkpoint: &Checkpoint) -> Vec<Vec<u8>> {
    let all = std::iter::once(checkpoint.parameters()).chain(checkpoint.states().iter().map(Vec::as_slice));
    all.map(|values| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect()
}

/// Everything that a checkpoint says.
fn essence(checkpoint: &Checkpoint) -> (String, Vec<Vec<u8>>) {
    (serde_json::to_string(&checkpoint.header).unwrap(), bits(checkpoint))
}

#[test]
fn a_checkpoint_is_read_as_it_was_written() {
    let (folder, file, _) = written();
    let checkpoint = Checkpoint::read(&file).unwrap();
    let header = header();
    assert_eq!(bits(&checkpoint), tensors(&header));
    assert_eq!((checkpoint.table(), checkpoint.shard()), (&header.table, (1, 3)));
    assert_eq!((checkpoint.version(), checkpoint.smallest_clock()), (Version::new(77), Clock::new(70)));
    assert_eq!((checkpoint.clocks(), checkpoint.epoch()), (&header.clocks[..], u64::MAX - 5));
    assert_eq!((checkpoint.scheme(), checkpoint.optimizer()), (&*header.scheme, header.optimizer));
    assert_eq!(checkpoint.folded(), 150);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "only the record of its owner is beside it");
}

#[test]
fn a_header_from_before_schemes_were_text_is_read() {
    for (stored, text) in [(serde_json::json!({"ssp": {"staleness": 3}}), "ssp(3)"), ("bsp".into(), "bsp")] {
        let mut value = serde_json::to_value(header()).unwrap();
        value["scheme"] = stored;
        let older: Header = serde_json::from_value(value).unwrap();
        assert_eq!(older.scheme, text);
    }
}

#[test]
fn a_header_from_before_gradients_were_counted_counts_none() {
    let mut value = serde_json::to_value(header()).unwrap();
    assert!(value.as_object_mut().unwrap().remove("folded").is_some());
    let older: Header = serde_json::from_value(value).unwrap();
    assert_eq!((older.folded, older.version), (0, Version::new(77)));
}

#[test]
fn a_header_from_before_schemes_told_what_they_learn_says_nothing_of_it() {
    let mut value = serde_json::to_value(header()).unwrap();
    assert!(value.as_object_mut().unwrap().remove("learned").is_some());
    let older: Header = serde_json::from_value(value).unwrap();
    assert_eq!((older.learned, older.version), (None, Version::new(77)));
}

#[test]
fn a_header_from_before_workers_had_names_says_nothing_of_them() {
    let mut value = serde_json::to_value(header()).unwrap();
    let applied = value.as_object_mut().unwrap().remove("applied").unwrap();
    assert_eq!(applied["workers"]["18446744073709551615"], 72, "a key is a string, which every reader keeps");
    let older: Header = serde_json::from_value(value).unwrap();
    assert_eq!((older.applied, older.version), (Applied::default(), Version::new(77)));
}

#[test]
fn a_file_whose_clocks_or_version_do_not_fit_their_words_is_refused() {
    let last = WorkerProgress::CLOCK_MAX;
    type Spoil = fn(&mut Header, Clock);
    let spoil: [(bool, Spoil); 4] = [
        (true, |header, last| header.applied.others = last),
        (false, |header, last| header.applied.others = last.next()),
        (false, |header, last| header.smallest_clock = last.next()),
        (false, |header, last| _ = header.applied.workers.insert(4, last.next())),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (index, (is_good, spoil)) in spoil.into_iter().enumerate() {
        let file = folder.path().join(index.to_string());
        let mut header = header();
        spoil(&mut header, last);
        write(&file, &header, &tensors(&header)).unwrap();
        assert_eq!(read(&file).is_ok(), is_good, "{index}");
    }
}

#[test]
fn every_reader_of_safetensors_finds_the_parameters() {
    let (_folder, _, bytes) = written();
    let header = header();
    let tensors_of_file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (name, expected) in ["parameters", "optimizer.0", "optimizer.1"].iter().zip(tensors(&header)) {
        let tensor = tensors_of_file.tensor(name).unwrap();
        assert_eq!((tensor.shape(), tensor.data()), (&[expected.len() / 4][..], &expected[..]));
    }
    assert_eq!(tensors_of_file.len(), 3);
}

#[test]
fn a_changed_byte_anywhere_is_noticed_or_changes_nothing() {
    let (_folder, file, bytes) = written();
    let expected = essence(&read(&file).unwrap());
    // In the existing file: a file that is truncated and written again is on the disk before it is closed.
    let opened = fs::OpenOptions::new().write(true).open(&file).unwrap();
    let mut unnoticed = 0;
    for (at, byte) in (0..).zip(bytes) {
        for flip in [0x01, 0x20, 0x80] {
            opened.write_all_at(&[byte ^ flip], at).unwrap();
            if let Ok(checkpoint) = read(&file) {
                assert_eq!(essence(&checkpoint), expected, "byte {at} ^ {flip:#x}");
                unnoticed += 1;
            }
        }
        opened.write_all_at(&[byte], at).unwrap();
    }
    assert_eq!(essence(&read(&file).unwrap()), expected, "it is whole again");
    // Upper and lower case of the checksum's digits, and little else.
    assert!(unnoticed <= 32, "{unnoticed}");
}

#[test]
fn a_file_cut_short_or_long_is_damaged() {
    let (_folder, file, bytes) = written();
    for len in (0..bytes.len()).step_by(7) {
        fs::write(&file, &bytes[..len]).unwrap();
        assert!(matches!(read(&file), Err(CheckpointError::Damaged { .. })), "{len} bytes");
    }
    fs::write(&file, [&bytes[..], b"x"].concat()).unwrap();
    assert!(matches!(read(&file), Err(CheckpointError::Damaged { .. })));
}

#[test]
fn what_is_no_checkpoint_is_told_from_a_damaged_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x");
    assert!(matches!(read(&file), Err(CheckpointError::Missing { .. })));
    assert!(matches!(read(folder.path()), Err(CheckpointError::Foreign { .. })));
    fs::write(&file, "just some text, of no format").unwrap();
    assert!(matches!(read(&file), Err(CheckpointError::Foreign { .. })));
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], &[0; 4]).unwrap();
    safetensors::serialize_to_file([("weight", view)], None, &file).unwrap();
    let error = read(&file).unwrap_err();
    assert!(matches!(error, CheckpointError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains(file.to_str().unwrap()));
}

#[test]
fn a_named_pipe_at_the_path_of_a_checkpoint_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("shard-0");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (said, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || said.send(read(&pipe).map(drop)));
    let read = answer.recv_timeout(Duration::from_secs(20)).expect("it waits for a writer");
    assert!(matches!(read, Err(CheckpointError::Foreign { .. })), "{read:?}");
}

#[test]
fn a_checkpoint_of_another_format_names_both() {
    let (_folder, file, _) = written();
    let later = Header { format: 9, ..header() };
    write(&file, &later, &tensors(&later)).unwrap();
    let error = read(&file).unwrap_err();
    assert!(matches!(error, CheckpointError::Format { found: 9, supported: 1, .. }), "{error}");
}

#[test]
fn a_header_that_cannot_be_true_is_damaged_though_its_checksum_is_right() {
    let (_folder, file, _) = written();
    let good = header();
    let huge = Table::flat(1 << 50, ElementType::F32).unwrap();
    let half = Table::flat(1 << 10, ElementType::Bf16).unwrap();
    for bad in [
        Header { shard: 3, ..good.clone() },
        Header { shards: 0, ..good.clone() },
        Header { range: [0, good.range[1]], ..good.clone() },
        Header { range: [0, huge.bytes()], table: huge, shard: 0, shards: 1, ..good.clone() },
        Header { range: [0, half.bytes()], table: half, shard: 0, shards: 1, ..good.clone() },
        Header { version: Version::new(u64::MAX), ..good.clone() },
        Header { smallest_clock: Clock::new(u64::MAX), ..good.clone() },
        Header { optimizer: Optimizer::Sgd { weight_decay: 0.0 }, ..good.clone() },
    ] {
        // So that there is no earlier one to fall back to.
        fs::remove_file(&file).unwrap();
        write(&file, &bad, &tensors(&good)).unwrap();
        assert!(matches!(read(&file), Err(CheckpointError::Damaged { .. })), "{bad:?}");
    }
}

#[test]
fn what_was_not_finished_is_replaced_and_nothing_is_written_through_it() {
    let (folder, file, _) = written();
    let header = header();
    let partial = partial(&file, header.epoch).unwrap();
    let other = folder.path().join("other");
    fs::write(&other, "precious").unwrap();
    std::os::unix::fs::symlink(&other, &partial).unwrap();
    write(&file, &header, &tensors(&header)).unwrap();
    assert_eq!(fs::read(&other).unwrap(), b"precious");
    fs::write(&partial, "half a checkpoint").unwrap();
    read(&file).unwrap();
    write(&file, &Header { version: Version::new(78), ..header.clone() }, &tensors(&header)).unwrap();
    assert_eq!(read(&file).unwrap().version(), Version::new(78));
    assert!(!partial.exists());
}

#[test]
fn a_write_that_fails_leaves_the_last_checkpoint_as_it_was() {
    let (folder, file, bytes) = written();
    // A folder at the path of the new file: nothing else that a user could create by accident stops the write.
    let header = header();
    fs::create_dir(partial(&file, header.epoch).unwrap()).unwrap();
    let error = write(&file, &header, &tensors(&header)).unwrap_err();
    assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
    assert_eq!(fs::read(&file).unwrap(), bytes);
    let error = write(&folder.path().join("nowhere/x"), &header, &tensors(&header)).unwrap_err();
    assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
    let error = write(std::path::Path::new("/"), &header, &tensors(&header)).unwrap_err();
    assert!(matches!(error, CheckpointError::NoName { .. }), "{error}");
}

#[test]
fn the_checkpoint_before_is_kept_and_read_when_the_newest_is_unusable() {
    let (folder, file, first) = written();
    let header = header();
    let newest = || Header { version: Version::new(78), ..header.clone() };
    write(&file, &newest(), &tensors(&header)).unwrap();
    let previous = folder.path().join("shard-1.safetensors.previous");
    assert_eq!(fs::read(&previous).unwrap(), first);
    let whole = read(&file).unwrap();
    assert_eq!((whole.version(), whole.instead_of().is_none()), (Version::new(78), true));
    let good = fs::read(&file).unwrap();
    for damage in [&good[..good.len() / 2], b"", &[0; 99]] {
        fs::write(&file, damage).unwrap();
        let earlier = read(&file).unwrap();
        assert_eq!((earlier.version(), earlier.file()), (Version::new(77), &*previous));
        let why = earlier.instead_of().unwrap().to_string();
        assert!(why.contains(file.to_str().unwrap()), "{why}");
        assert!(!why.contains("no earlier one"), "there is one: {why}");
    }
    // As a process leaves it that ends between the two renames.
    fs::remove_file(&file).unwrap();
    assert_eq!(read(&file).unwrap().version(), Version::new(77));
    assert!(Checkpoint::exists(&file));
    // A file that cannot be used is not missing.
    fs::write(&previous, "").unwrap();
    assert!(matches!(read(&file), Err(CheckpointError::Damaged { .. })));
    fs::remove_file(&previous).unwrap();
    assert!(matches!(read(&file), Err(CheckpointError::Missing { .. })));
    assert!(!Checkpoint::exists(&file));
    // Of two damaged files the newest is told of.
    fs::write(&file, "").unwrap();
    fs::write(&previous, "").unwrap();
    let error = read(&file).unwrap_err();
    assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("no earlier one beside it can be read"), "{error}");
    // Files of another format are not damaged: the previous file is not used instead.
    write(&file, &newest(), &tensors(&header)).unwrap();
    write(&file, &Header { format: 9, ..header.clone() }, &tensors(&header)).unwrap();
    assert!(matches!(read(&file), Err(CheckpointError::Format { .. })));
}

#[test]
fn a_file_that_the_system_does_not_read_is_neither_missing_nor_damaged() {
    let (folder, file, _) = written();
    fs::rename(&file, folder.path().join("shard-1.safetensors.previous")).unwrap();
    // The system gives up on a link to itself.
    std::os::unix::fs::symlink(&file, &file).unwrap();
    assert!(matches!(read(&file), Err(CheckpointError::Unreadable { .. })));
    assert!(matches!(Checkpoint::try_exists(&file), Err(CheckpointError::Unreadable { .. })));
}

#[test]
fn a_folder_that_cannot_be_written_to_is_found_before_the_first_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let options = CheckpointOptions::new(folder.path().join("shard"));
    options.try_folder().unwrap();
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing is left but the record of its owner"
    );
    for path in ["/proc/shard", "/nowhere/at/all/shard"] {
        let error = CheckpointOptions::new(path).try_folder().unwrap_err();
        assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
    }
    fs::create_dir(folder.path().join("shard.trial")).unwrap();
    let error = options.try_folder().unwrap_err();
    assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), begins_well in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x");
        let mut bytes = bytes;
        if begins_well {
            let head = br#"{"__metadata__":{"slackline.checkpoint":"{\"format\":1}"}}"#;
            bytes.splice(0..0, [&(head.len() as u64).to_le_bytes()[..], head].concat());
        }
        fs::write(&file, bytes).unwrap();
        prop_assert!(read(&file).is_err());
    }

    #[test]
    fn a_damaged_checkpoint_is_refused_or_the_same(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, any::<[u8; 4]>()), 1..4),
    ) {
        let (_folder, file, mut bytes) = written();
        let expected = essence(&read(&file).unwrap());
        for (at, len, with) in cuts {
            let at = at.index(bytes.len());
            let end = (at + len).min(bytes.len());
            bytes.splice(at..end, with);
        }
        fs::write(&file, bytes).unwrap();
        if let Ok(checkpoint) = read(&file) {
            prop_assert_eq!(essence(&checkpoint), expected);
        }
    }
}
