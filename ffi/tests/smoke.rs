//! The C programs beside this file, against the static and the shared library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A library that cargo built beside this test: it builds all kinds of the package's library first.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let candidates = [deps.join(name), deps.parent().unwrap().join(name)];
    let found = candidates.iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not in {}", deps.display())).clone()
}

/// The programs; `check.h` is what they share.
const PROGRAMS: [&str; 12] = [
    "smoke", "ages", "settings", "nodes", "weights", "traces", "steps", "jobs", "groups", "schemes",
    "weighing", "gpus",
];

/// Compiles all programs with `link`, runs them, and shows all that one says if it fails.
fn build_and_run(kind: &str, link: &[&str], library_path: Option<&Path>) {
    for source in PROGRAMS {
        build_and_run_one(source, kind, link, library_path);
    }
}

fn build_and_run_one(source: &str, kind: &str, link: &[&str], library_path: Option<&Path>) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{source}-{kind}"));
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-I"])
        .arg(package.join("include"))
        .arg(package.join(format!("tests/{source}.c")))
        .args(link)
        .arg("-o")
        .arg(&program);
    let compiled = compiler.output().expect("a C compiler called `cc`");
    assert!(compiled.status.success(), "{compiler:?}\n{}", String::from_utf8_lossy(&compiled.stderr));

    let mut command = Command::new(&program);
    if let Some(path) = library_path {
        command.env("LD_LIBRARY_PATH", path);
    }
    let output = command.output().unwrap();
    assert!(
        output.status.success() && output.stdout == b"all checks passed\n",
        "{}: {}\n{}{}",
        program.display(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_c_program_runs_against_the_static_library() {
    let library = library("libslackline_ffi.a");
    // What `rustc --print native-static-libs` names, beside libc.
    let link = [library.to_str().unwrap(), "-lpthread", "-ldl", "-lm", "-lgcc_s"];
    build_and_run("static", &link, None);
}

#[test]
fn a_c_program_runs_against_the_shared_library() {
    let library = library("libslackline_ffi.so");
    // The loader asks for the name that the library is installed under.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lib");
    std::fs::create_dir_all(&folder).unwrap();
    let installed = folder.join(env!("SLACKLINE_SONAME"));
    let _ = std::fs::remove_file(&installed);
    std::os::unix::fs::symlink(&library, &installed).unwrap();
    build_and_run("shared", &[installed.to_str().unwrap(), "-lpthread", "-lm"], Some(&folder));
}
