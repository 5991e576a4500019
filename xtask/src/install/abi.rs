//! The ABI of the installed library, compared with the one that is recorded in the repository.
//!
//! libabigail reads no types out of what the Rust compiler says of them, and the types that count are the header's: a
//! small C++ library is made that points at every function which the installed library exports, by the type that the
//! installed header gives it, and has a variable of every enumeration. What `abidw` says of that one is the dump.

use super::{cannot_read, cannot_write, scratch};
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::needs::Need;
use crate::site::Site;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(super) const NEEDS: &[Need] = &[Need::Cxx, Need::Abigail];

const RECORDED: &str = "ffi/abi/slackline.abi";

pub(super) fn record(site: &Site, prefix: &Path) -> Result<(), Failure> {
    let (dump, to) = (dump(site, prefix)?, site.root.join(RECORDED));
    std::fs::copy(dump, &to).map_err(|error| cannot_write(&to, &error))?;
    println!("{RECORDED} is the ABI of this tree now");
    Ok(())
}

pub(super) fn compare(site: &Site, prefix: &Path) -> Result<(), Failure> {
    let dump = dump(site, prefix)?;
    let compare = Cmd::new("abidiff", &["--no-show-locs", RECORDED]).arg(&dump.to_string_lossy());
    compare.run(site).map_err(|failure| match failure {
        Failure::Check { what, status } => Failure::Check {
            what: format!(
                "{what}\n  if programs that were built against the recorded ABI still run, or the minor version has \
                 moved on, record it: cargo xtask install --record-abi"
            ),
            status,
        },
        other => other,
    })?;
    println!("   the ABI is the recorded one");
    Ok(())
}

/// Writes the dump of what is installed.
fn dump(site: &Site, prefix: &Path) -> Result<PathBuf, Failure> {
    let folder = scratch(site, "abi")?;
    let (lib, header) = (prefix.join("lib"), prefix.join("include/slackline.h"));
    let text = std::fs::read_to_string(&header).map_err(|error| cannot_read(&header, &error))?;
    let nm =
        Cmd::new("nm", &["--dynamic", "--defined-only"]).arg(&lib.join("libslackline.so").to_string_lossy());
    let (probe, library) = (folder.join("probe.cpp"), folder.join("libprobe.so"));
    std::fs::write(&probe, source(&functions(&nm.answer(site)?), &enumerations(&text)))
        .map_err(|error| cannot_write(&probe, &error))?;
    let include = format!("-I{}", prefix.join("include").display());
    // The dump is committed, and names no folder of the machine that made it.
    let here = format!("-ffile-prefix-map={}=.", folder.display());
    Cmd::new("c++", &["-std=c++11", "-g", "-fPIC", "-shared", "-Wl,-z,defs", &here, &include])
        .arg(&probe.to_string_lossy())
        .arg(&format!("-L{}", lib.display()))
        .arg("-lslackline")
        .arg("-o")
        .arg(&library.to_string_lossy())
        .run(site)?;
    let dump = folder.join("slackline.abi");
    let plain = ["--no-show-locs", "--no-corpus-path", "--no-comp-dir-path", "--no-architecture"];
    Cmd::new("abidw", &plain)
        .arg("--out-file")
        .arg(&dump.to_string_lossy())
        .arg(&library.to_string_lossy())
        .run(site)?;
    Ok(dump)
}

/// The functions of this library among the symbols that `nm` lists.
fn functions(symbols: &str) -> BTreeSet<&str> {
    let names = symbols.lines().filter_map(|line| line.split_whitespace().last());
    names.filter(|name| name.starts_with("slackline_")).collect()
}

/// The enumerations that the header defines.
fn enumerations(header: &str) -> BTreeSet<&str> {
    let names = header.lines().filter_map(|line| line.strip_prefix("enum "));
    names.filter(|name| name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')).collect()
}

fn source(functions: &BTreeSet<&str>, enumerations: &BTreeSet<&str>) -> String {
    let mut source = String::from("#include <slackline.h>\n");
    for name in functions {
        source += &format!("decltype(&{name}) function_{name} = &{name};\n");
    }
    for name in enumerations {
        source += &format!("{name} enumeration_{name};\n");
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_points_at_every_function_and_has_every_enumeration() {
        let symbols = "0000000000001000 T slackline_version\n0000000000002000 T rust_eh_personality\n";
        let header =
            "enum slackline_status\n#if X\n  : uint32_t\n#endif\n {\n};\ntypedef enum slackline_status y;\n";
        assert_eq!(
            source(&functions(symbols), &enumerations(header)),
            "#include <slackline.h>\n\
             decltype(&slackline_version) function_slackline_version = &slackline_version;\n\
             slackline_status enumeration_slackline_status;\n"
        );
    }
}
