//! Several incarnations of one server, and one file.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use tempfile::TempDir;

    use super::super::CheckpointError;
    use super::super::file::{claim, read, write};
    use super::super::header::Header;
    use super::super::owner::{lock, lock_within};
    use super::super::tests::{header, tensors};
    use crate::clock::Version;
    use crate::diagnostic::Diagnostic;
    use crate::mem::true_in_a_forked_child;

    const FIRST: u64 = 1;
    const SECOND: u64 = 2;

    fn folder() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("shard");
        (folder, file)
    }

    /// Writes this version as this incarnation does.
    fn write_as(epoch: u64, file: &Path, version: u64) -> Result<(), CheckpointError> {
        let header = Header { epoch, version: Version::new(version), ..header() };
        write(file, &header, &tensors(&header))
    }

    /// The incarnation and the version of the newest checkpoint.
    fn newest(file: &Path) -> (u64, u64) {
        let checkpoint = read(file).unwrap();
        (checkpoint.epoch(), checkpoint.version().get())
    }

    fn names(folder: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_superseded_incarnation_leaves_its_successors_files_alone() {
        let (folder, file) = folder();
        claim(&file, FIRST, false).unwrap();
        write_as(FIRST, &file, 1).unwrap();
        write_as(FIRST, &file, 2).unwrap();
        claim(&file, SECOND, false).unwrap();
        // Also before the successor has written any.
        let error = write_as(FIRST, &file, 3).unwrap_err();
        assert!(matches!(error, CheckpointError::Superseded { epoch: FIRST, owner: SECOND, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(file.to_str().unwrap()) && text.ends_with(&*error.remedy().unwrap()), "{text}");
        assert_eq!(error.operation(), "writing a checkpoint");
        assert_eq!(newest(&file), (FIRST, 2));
        write_as(SECOND, &file, 3).unwrap();
        assert!(write_as(FIRST, &file, 99).is_err());
        assert_eq!(newest(&file), (SECOND, 3));
        fs::remove_file(&file).unwrap();
        assert_eq!(
            newest(&file),
            (FIRST, 2),
            "the one before is still the one that the successor went on from"
        );
        assert_eq!(names(&folder), ["shard.owner", "shard.previous"]);
    }

    #[test]
    fn of_incarnations_that_write_at_once_the_last_to_begin_alone_goes_on() {
        let (_folder, file) = folder();
        let goes_on = |epoch: u64, version: u64| match write_as(epoch, &file, version) {
            Ok(()) => true,
            Err(CheckpointError::Superseded { .. }) => false,
            Err(error) => panic!("{error}"),
        };
        let (begin, incarnations) = (|epoch: u64| claim(&file, epoch, false).unwrap(), 0..4);
        std::thread::scope(|scope| {
            for epoch in incarnations.clone() {
                scope.spawn(move || {
                    begin(epoch);
                    let _others_begin_meanwhile = (0..20).all(|version| goes_on(epoch, version));
                });
            }
        });
        let owners: Vec<u64> = incarnations.filter(|epoch| goes_on(*epoch, 20)).collect();
        assert_eq!(owners.len(), 1, "{owners:?}");
        assert_eq!(newest(&file), (owners[0], 20));
    }

    #[test]
    fn what_dead_incarnations_had_not_finished_goes_when_the_next_begins() {
        let (folder, file) = folder();
        for name in ["shard.partial", "shard.00000000000000ab.partial"] {
            fs::write(folder.path().join(name), "half").unwrap();
        }
        // These files do not belong to this checkpoint.
        let others = ["other.00000000000000ab.partial", "shard-2.partial", "shard.new.partial"];
        for name in others {
            fs::write(folder.path().join(name), "half").unwrap();
        }
        claim(&file, FIRST, false).unwrap();
        let mut expected = others.to_vec();
        expected.push("shard.owner");
        expected.sort();
        assert_eq!(names(&folder), expected);
    }

    #[test]
    fn an_incarnation_begins_before_or_after_the_renames_of_another() {
        let (_folder, file) = folder();
        claim(&file, FIRST, false).unwrap();
        let held = lock(&file).unwrap();
        let error = lock_within(&file, Duration::ZERO).unwrap_err();
        assert!(matches!(error, CheckpointError::Locked { .. }), "{error}");
        assert!(error.to_string().ends_with(&*error.remedy().unwrap()), "{error}");
        std::thread::scope(|scope| {
            let claiming = scope.spawn(|| claim(&file, SECOND, false));
            drop(held);
            claiming.join().unwrap().unwrap();
        });
        assert!(matches!(write_as(FIRST, &file, 1), Err(CheckpointError::Superseded { .. })));
    }

    #[test]
    fn a_lock_that_was_given_back_is_free_though_a_forked_child_has_its_file() {
        let (_folder, file) = folder();
        let held = lock(&file).unwrap();
        // A child that is forked now has another descriptor of the same open file.
        let childs = held.open_file();
        drop(held);
        lock_within(&file, Duration::ZERO).expect("the lock is free");
        drop(childs);
    }

    #[test]
    fn a_forked_child_gives_no_lock_of_its_parent_back() {
        let (_folder, file) = folder();
        let mut held = Some(lock(&file).unwrap());
        assert!(true_in_a_forked_child(|| held.take().map(drop).is_some()));
        assert!(matches!(lock_within(&file, Duration::ZERO), Err(CheckpointError::Locked { .. })));
        drop(held);
        lock_within(&file, Duration::ZERO).expect("the lock is free");
    }

    #[test]
    fn only_a_file_that_is_still_damaged_is_set_aside_by_the_next_owner() {
        let (folder, file) = folder();
        claim(&file, FIRST, false).unwrap();
        write_as(FIRST, &file, 1).unwrap();
        write_as(FIRST, &file, 2).unwrap();
        fs::write(&file, "damaged").unwrap();
        claim(&file, SECOND, true).unwrap();
        assert_eq!(fs::read(folder.path().join("shard.damaged")).unwrap(), b"damaged");
        assert_eq!(newest(&file), (FIRST, 1));

        // Between the look at the file and the claim its owner has written it again.
        write_as(SECOND, &file, 3).unwrap();
        claim(&file, FIRST, true).unwrap();
        assert_eq!(newest(&file), (SECOND, 3));
        assert!(file.exists(), "the good file stands where it stood");
    }

    #[test]
    fn a_record_that_is_gone_or_cut_short_is_made_again_by_the_next_that_writes() {
        let (folder, file) = folder();
        let record = folder.path().join("shard.owner");
        for damage in [None, Some(""), Some("0000"), Some("no number at all")] {
            claim(&file, SECOND, false).unwrap();
            match damage {
                None => fs::remove_file(&record).unwrap(),
                Some(text) => fs::write(&record, text).unwrap(),
            }
            write_as(FIRST, &file, 1).unwrap();
            assert!(matches!(write_as(SECOND, &file, 2), Err(CheckpointError::Superseded { .. })));
            assert_eq!(fs::read_to_string(&record).unwrap(), "0000000000000001");
        }
    }

    #[test]
    fn no_record_is_written_through_a_link() {
        let (folder, file) = folder();
        let other = folder.path().join("other");
        fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join("shard.owner")).unwrap();
        let error = claim(&file, FIRST, false).unwrap_err();
        assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
        assert_eq!(fs::read(&other).unwrap(), b"precious");
    }
}
