//! The records in a folder: whether each can be read, and whether it is of the sources as they are.

use super::record::{FORM, GpuRecord};
use super::unusable;
use crate::failure::Failure;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Fewest pairs of a row that was measured.
const PAIRS_MIN: usize = 7;

/// The folders of which a record is: one is stale once they have changed.
const SOURCES: [&str; 2] = ["cuda", "src/cuda"];

/// The hash of the sources that a record is of.
pub(super) fn sources(root: &Path) -> Result<String, Failure> {
    let mut files = Vec::new();
    for folder in SOURCES {
        walk(&root.join(folder), &mut files).map_err(|error| unusable(folder, &error))?;
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let bytes = fs::read(&file).map_err(|error| unusable(&file.display().to_string(), &error))?;
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        hash.update(format!("{name}\n{}\n", bytes.len()));
        hash.update(&bytes);
    }
    Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { walk(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

/// Says of each record in a folder whether it is stale; fails if one cannot be read, or its page is another.
pub(super) fn check(folder: &Path, sources: &str) -> Result<String, Failure> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    if files.is_empty() {
        return Ok(format!("no record yet: {} has none\n", folder.display()));
    }
    let mut said = String::new();
    for file in files {
        let malformed = |status: String| Failure::Check { what: file.display().to_string(), status };
        let text = fs::read_to_string(&file).map_err(|error| malformed(error.to_string()))?;
        let record = GpuRecord(serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?);
        expect_whole(&record.0).map_err(|lack| malformed(format!("malformed: {lack}")))?;
        if fs::read_to_string(file.with_extension("md")).ok() != Some(record.page()) {
            return Err(malformed("its page is not the one that is made of it".into()));
        }
        let state = match record.0["sources"] == sources {
            true => "current",
            false => "stale: cuda/ or src/cuda/ have changed since",
        };
        let _ = writeln!(said, "{}: {state}", file.display());
    }
    Ok(said)
}

/// Returns what a record lacks, if it lacks something.
fn expect_whole(record: &Value) -> Result<(), String> {
    if record["form"] != FORM {
        return Err(format!("its form is {}, not {FORM}", record["form"]));
    }
    let texts = [("commit", &record["commit"]), ("sources", &record["sources"])];
    if let Some((name, _)) = texts.into_iter().find(|(_, value)| value.as_str().is_none_or(str::is_empty)) {
        return Err(format!("it names no {name}"));
    }
    for (list, result) in [("tests", "result"), ("rows", "verdict")] {
        let entries = record[list].as_array().filter(|entries| !entries.is_empty());
        for entry in entries.ok_or_else(|| format!("it has no {list}"))? {
            if let Some(field) = ["name", result].into_iter().find(|field| !entry[*field].is_string()) {
                return Err(format!("one of its {list} has no {field}"));
            }
        }
    }
    for row in record["rows"].as_array().into_iter().flatten() {
        let pairs = row["pairs"].as_array().map_or(0, Vec::len);
        if row["ratio"].is_number() && pairs < PAIRS_MIN {
            return Err(format!("{} has {pairs} pairs, and {PAIRS_MIN} are the fewest", row["name"]));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::record::row_of;
    use super::*;
    use serde_json::json;

    #[test]
    fn a_folder_without_records_passes_and_a_malformed_record_does_not() {
        let folder = std::env::temp_dir().join(format!("slackline-gpu-records-{}", std::process::id()));
        assert!(check(&folder, "1").unwrap().starts_with("no record yet"));
        fs::create_dir_all(&folder).unwrap();
        let whole = json!({
            "form": 1, "commit": "c", "sources": "1", "device": { "name": "g" }, "machine": {},
            "tests": [{ "name": "t", "result": "ok", "notes": [] }],
            "rows": [row_of(&json!({ "name": "r", "pairs": vec![(1.0, 2.0); 7] }))],
        });
        let put = |record: &Value| {
            fs::write(folder.join("g-c.json"), record.to_string()).unwrap();
            fs::write(folder.join("g-c.md"), GpuRecord(record.clone()).page()).unwrap();
            check(&folder, "1")
        };
        assert!(put(&whole).unwrap().contains("g-c.json: current"));
        for (pointer, value, lack) in [
            ("/form", json!(2), "form"),
            ("/sources", Value::Null, "sources"),
            ("/tests", json!([]), "tests"),
            ("/tests/0/result", Value::Null, "result"),
            ("/rows/0/verdict", Value::Null, "verdict"),
            ("/rows/0/pairs", json!([[1.0, 2.0]]), "pairs"),
        ] {
            let mut record = whole.clone();
            *record.pointer_mut(pointer).unwrap() = value;
            let failure = put(&record).unwrap_err().to_string();
            assert!(failure.contains(lack), "{failure}");
        }
        fs::write(folder.join("g-c.json"), "{").unwrap();
        assert!(check(&folder, "1").is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_record_is_stale_once_a_source_has_changed() {
        let root = std::env::temp_dir().join(format!("slackline-gpu-sources-{}", std::process::id()));
        SOURCES.iter().for_each(|folder| fs::create_dir_all(root.join(folder)).unwrap());
        fs::write(root.join("cuda/a.cu"), "1").unwrap();
        let before = sources(&root).unwrap();
        fs::write(root.join("src/cuda/b.rs"), "").unwrap();
        let after = sources(&root).unwrap();
        assert_ne!(before, after);
        fs::write(root.join("other"), "1").unwrap();
        assert_eq!(sources(&root).unwrap(), after);
        fs::remove_dir_all(root).unwrap();
    }
}
