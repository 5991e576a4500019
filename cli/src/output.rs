//! Files that a command will write: whether it can is found out before it begins, and each is replaced whole. And its
//! results on stdout.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use slackline_lab::stderr;

use crate::failure::Failure;

/// Finds out whether `path`, given by `option`, can be written, leaving everything as it was.
pub(crate) fn check(option: &str, path: &Path) -> Result<(), Failure> {
    let wrong = |what: &str| Failure::usage(format!("{option} {}: {what}", path.display()));
    let name = path.file_name().ok_or_else(|| wrong("names no file").help("add a file name"))?;
    if let Ok(metadata) = fs::metadata(path) {
        if metadata.is_dir() {
            return Err(wrong("is a folder").help("add a file name"));
        }
        // It would be replaced, not written to.
        if !metadata.is_file() {
            return Err(wrong("is not a regular file").help("name a file, or one that does not exist yet"));
        }
    }
    if !folder(path).is_dir() {
        let folder = folder(path).display();
        let help = format!("create it: mkdir -p {folder}");
        return Err(wrong(&format!("there is no folder {folder}")).help(help));
    }
    let probe = beside(path, name, "check");
    let tried = OpenOptions::new().write(true).create_new(true).open(&probe);
    tried.and_then(|_| fs::remove_file(&probe)).map_err(|error| {
        wrong(&format!("its folder cannot be written to: {error}"))
            .help("choose another folder, or change its rights")
    })
}

/// The same for a file that may be given, and that is to be none of the `others`: it would be written over one of them.
pub(crate) fn check_apart(
    (option, path): (&str, Option<&Path>),
    others: &[(&str, Option<&Path>)],
) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    check(option, path)?;
    match others.iter().find(|(_, other)| other.is_some_and(|other| same_file(path, other))) {
        None => Ok(()),
        Some((other, _)) => {
            Err(Failure::usage(format!("{option} {}: {other} names the same file", path.display()))
                .help("choose another name"))
        }
    }
}

/// Prints results. A caller need not read all of them.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| Failure::failed(format!("stdout: {error}"))),
    }
}

/// Prints results as a text, and writes them as JSON to the file that `--json` names; where that is `-` the JSON goes
/// to stdout, and the text to stderr. One that cannot be written does not keep the other back; the error is the first.
pub(crate) fn give(text: &str, json: &str, json_path: Option<&Path>) -> Result<(), Failure> {
    match json_path {
        None => print(text),
        Some(path) if path == Path::new("-") => {
            stderr::tell(text.trim_end());
            print(json)
        }
        Some(path) => keep("--json", path, json).and(print(text)),
    }
}

/// Writes results to the file that `option` names, whole or not at all.
pub(crate) fn keep(option: &str, path: &Path, text: &str) -> Result<(), Failure> {
    replace(path, text.as_bytes()).map_err(|error| {
        Failure::failed(format!("{option} {}: cannot be written: {error}", path.display()))
            .help("check the folder, its permissions and the space left")
    })
}

/// Writes a file whole or not at all.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let partial = beside(path, name, "partial");
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().inspect_err(|_| {
        // The first error is the one to report.
        let _ = fs::remove_file(&partial);
    })
}

/// Whether both name one file, as far as can be told before they exist.
fn same_file(one: &Path, other: &Path) -> bool {
    let parent_and_name =
        |path: &Path| Some((fs::canonicalize(folder(path)).ok()?, path.file_name()?.to_owned()));
    let resolved = |path: &Path| fs::canonicalize(path).ok();
    parent_and_name(one).is_some_and(|one| Some(one) == parent_and_name(other))
        || resolved(one).is_some_and(|one| Some(one) == resolved(other))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn beside(path: &Path, name: &std::ffi::OsStr, suffix: &str) -> PathBuf {
    let mut own = OsString::from(name);
    own.push(format!(".{}.{suffix}", std::process::id()));
    path.with_file_name(own)
}
