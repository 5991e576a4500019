//! `cargo xtask install`: the C library where other build systems look for it.
//!
//! Under the prefix: `include/slackline.h`, `lib/libslackline.so` with its SONAME, `lib/libslackline.a`, both stripped,
//! `lib/pkgconfig/slackline.pc` and `lib/cmake/slackline/`. The files that find the library name it relative to
//! themselves, so that the tree can be moved.

mod abi;
mod check;

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::needs::{self, Need};
use crate::site::Site;
use crate::steps::Step;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub(crate) const COMMAND: Command = Command {
    name: "install",
    arguments: "--prefix DIR | --check | --record-abi",
    about: "installs the C library; --check: programs build against it, and its ABI is the recorded one",
    run,
};

/// The libraries that a program needs beside the static library, as `rustc --print native-static-libs` says.
const PRIVATE: [&str; 4] = ["gcc_s", "pthread", "m", "dl"];

/// The step of `cargo xtask test`.
pub(crate) fn step() -> Step {
    Step {
        name: "install",
        about: "C and C++ programs that see only what is installed build and run, and the ABI is the recorded one",
        needs: [NEEDS, check::NEEDS, abi::NEEDS].concat(),
        feature: None,
        commands: vec![Cmd::new("cargo", &["xtask", "install", "--check"])],
    }
}

/// To build and to strip.
const NEEDS: &[Need] = &[Need::Cc];

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["--prefix", prefix] => {
            needs::ensure(site, NEEDS)?;
            let prefix = std::path::absolute(prefix).unwrap_or_else(|_| PathBuf::from(prefix));
            install(site, &prefix)?;
            println!("installed under {}", prefix.display());
            Ok(())
        }
        ["--check"] => {
            needs::ensure(site, &[NEEDS, check::NEEDS, abi::NEEDS].concat())?;
            let prefix = installed_afresh(site)?;
            check::run(site, &prefix)?;
            abi::compare(site, &prefix)
        }
        ["--record-abi"] => {
            needs::ensure(site, &[NEEDS, abi::NEEDS].concat())?;
            let prefix = installed_afresh(site)?;
            abi::record(site, &prefix)
        }
        _ => Err(Failure::Usage(format!(
            "`install` takes --prefix DIR, --check or --record-abi, but was given `{}`",
            arguments.join(" ")
        ))),
    }
}

/// Installs into an empty folder under the target directory.
fn installed_afresh(site: &Site) -> Result<PathBuf, Failure> {
    let prefix = scratch(site, "prefix")?;
    install(site, &prefix)?;
    Ok(prefix)
}

/// An empty folder of this name for this command.
fn scratch(site: &Site, name: &str) -> Result<PathBuf, Failure> {
    let folder = site.target.join("install").join(name);
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(cannot_write(&folder, &error));
        }
        _ => {}
    }
    std::fs::create_dir_all(&folder).map_err(|error| cannot_write(&folder, &error))?;
    Ok(folder)
}

fn install(site: &Site, prefix: &Path) -> Result<(), Failure> {
    Cmd::new("cargo", &["build", "--release", "--package", "slackline-ffi"]).run(site)?;
    let version = Version::read(site)?;
    let (built, source) = (site.target.join("release"), site.root.join("ffi"));
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    let (pkgconfig, cmake) = (lib.join("pkgconfig"), lib.join("cmake/slackline"));
    for folder in [&include, &pkgconfig, &cmake] {
        std::fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
    }
    copy(&source.join("include/slackline.h"), &include.join("slackline.h"))?;
    strip(site, "--strip-debug", &built.join("libslackline_ffi.a"), &lib.join("libslackline.a"))?;
    let shared = format!("libslackline.so.{}", version.whole);
    strip(site, "--strip-unneeded", &built.join("libslackline_ffi.so"), &lib.join(&shared))?;
    let soname = soname(site, &lib.join(&shared))?;
    link(&shared, &lib.join(&soname))?;
    link(&soname, &lib.join("libslackline.so"))?;
    let templates = source.join("install");
    let pkg = PRIVATE.map(|name| format!("-l{name}")).join(" ");
    let values = [
        ("@VERSION@", &version.whole),
        ("@MAJOR@", &version.major),
        ("@MINOR@", &version.minor),
        ("@SONAME@", &soname),
    ];
    fill(&values, &pkg, &templates.join("slackline.pc.in"), &pkgconfig.join("slackline.pc"))?;
    for name in ["slackline-config.cmake", "slackline-config-version.cmake"] {
        fill(&values, &PRIVATE.join(";"), &templates.join(format!("{name}.in")), &cmake.join(name))?;
    }
    Ok(())
}

/// The workspace's version.
struct Version {
    whole: String,
    major: String,
    minor: String,
}

impl Version {
    fn read(site: &Site) -> Result<Version, Failure> {
        let id = Cmd::new("cargo", &["pkgid", "--package", "slackline-ffi"]).answer(site)?;
        let whole = id.trim().rsplit(['#', '@', ':']).next().unwrap_or_default();
        let mut parts = whole.split('.').map(String::from);
        match (parts.next(), parts.next()) {
            (Some(major), Some(minor)) => Ok(Version { whole: whole.into(), major, minor }),
            _ => Err(Failure::Missing {
                what: format!("`cargo pkgid` names no version: {id}"),
                remedy: "give the workspace a version of three numbers".into(),
            }),
        }
    }
}

/// The name by which programs ask the loader for this shared library: `ffi/build.rs` gives it.
fn soname(site: &Site, library: &Path) -> Result<String, Failure> {
    let entries =
        Cmd::new("readelf", &["--dynamic", "--wide"]).arg(&library.to_string_lossy()).answer(site)?;
    let name = entries.lines().find(|line| line.contains("(SONAME)")).and_then(bracketed);
    name.map(String::from).ok_or_else(|| Failure::Missing {
        what: format!("{} has no SONAME", library.display()),
        remedy: "link it as ffi/build.rs says".into(),
    })
}

/// The text in the brackets at the end of the line.
fn bracketed(line: &str) -> Option<&str> {
    line.trim_end().strip_suffix(']')?.rsplit_once('[').map(|(_before, name)| name)
}

fn fill(values: &[(&str, &String)], private: &str, template: &Path, to: &Path) -> Result<(), Failure> {
    let text = std::fs::read_to_string(template).map_err(|error| cannot_read(template, &error))?;
    let text = values.iter().fold(text, |text, (name, value)| text.replace(name, value));
    let text = text.replace("@PRIVATE@", private);
    std::fs::write(to, text).map_err(|error| cannot_write(to, &error))
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    std::fs::copy(from, to).map(drop).map_err(|error| cannot_write(to, &error))
}

/// A copy without debug information. An installed library is replaced, not written over: programs may have it mapped.
fn strip(site: &Site, how: &str, from: &Path, to: &Path) -> Result<(), Failure> {
    remove(to)?;
    Cmd::new("strip", &[how, "-o"]).arg(&to.to_string_lossy()).arg(&from.to_string_lossy()).run(site)
}

fn link(target: &str, at: &Path) -> Result<(), Failure> {
    remove(at)?;
    symlink(target, at).map_err(|error| cannot_write(at, &error))
}

fn remove(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(cannot_write(path, &error)),
        _ => Ok(()),
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Missing {
        what: format!("cannot write {}: {error}", path.display()),
        remedy: "choose a folder that you may write to, and see that the disk has room".into(),
    }
}

fn cannot_read(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Missing {
        what: format!("cannot read {}: {error}", path.display()),
        remedy: "check out the file again".into(),
    }
}
