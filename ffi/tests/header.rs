//! The header is what `src/` says, and both languages take it.

use std::path::{Path, PathBuf};
use std::process::Command;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> PathBuf {
    package().join("include/slackline.h")
}

#[test]
fn the_header_is_current() {
    let config = cbindgen::Config::from_file(package().join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(package()).with_config(config).generate().unwrap();
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(header(), &generated).unwrap();
        return;
    }
    let checked_in = std::fs::read(header()).unwrap_or_default();
    assert!(
        generated == checked_in,
        "include/slackline.h is not what src/ says; run: UPDATE_HEADER=1 cargo test -p slackline-ffi --test header"
    );
}

/// Compiles nothing but the header, every warning an error.
fn compile(arguments: &[&str]) {
    let mut compiler = Command::new("cc");
    compiler.args(arguments).args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]);
    let output = compiler.arg(header()).output().expect("a C compiler called `cc`");
    assert!(output.status.success(), "{compiler:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_header_is_c99() {
    compile(&["-std=c99", "-x", "c"]);
}

#[test]
fn the_header_is_cpp_where_there_is_a_cpp_compiler() {
    // `cc` takes C++ only with its C++ half installed.
    let mut probe = Command::new("cc");
    probe.args(["-x", "c++", "-fsyntax-only", "/dev/null"]);
    if probe.output().is_ok_and(|output| output.status.success()) {
        compile(&["-std=c++11", "-x", "c++"]);
    } else {
        eprintln!("no C++ compiler: not checked");
    }
}
