//! `cargo xtask public-api`: writes the list of the library's public items, or checks that it is the one in the
//! repository and not too long.
//!
//! The list is that of `cargo public-api -sss` for the default features, made by that tool's library
//! (`xtask/public-api/`) out of the JSON that rustdoc writes. What the documentation hides is not in it.

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;
use crate::steps::{Feature, Step};

pub(crate) const COMMAND: Command = Command {
    name: "public-api",
    arguments: "[--check]",
    about: "lists the public items of the library; --check: fails unless the list is the recorded one",
    run,
};

const RECORDED: &str = "docs/public-api.txt";
const LISTER: &str = "xtask/public-api/Cargo.toml";

/// Most items that are declared: modules, types, traits, functions, constants. Fields, variants and implementations
/// are in the list and do not count.
const ITEMS_MAX: usize = 370;

/// The version of rustdoc's JSON that the lister reads.
const FORMAT: &str = "57";

/// The folder under the target directory for what is built with unstable options.
const TARGET: &str = "public-api";

/// The step of `cargo xtask test`.
pub(crate) fn step() -> Step {
    Step {
        name: "public-api",
        about: "the public items of the library are the recorded ones, and few",
        needs: Vec::new(),
        feature: Some(Feature::RustdocJson),
        commands: vec![Cmd::new("cargo", &["xtask", "public-api", "--check"])],
    }
}

/// Returns why the list cannot be made here, if it cannot. rustdoc's JSON is not stable, and the lister reads one
/// version of it.
pub(crate) fn missing(site: &Site) -> Option<String> {
    let folder = site.target.join(TARGET);
    let script = format!(
        "mkdir -p '{0}' && cd '{0}' && : > probe.rs && rustdoc --crate-name probe {1} -o . probe.rs && cat probe.json",
        folder.display(),
        JSON.join(" ")
    );
    let probe = unstable(Cmd::new("sh", &["-c", &script])).output(site).unwrap_or_default();
    match format(&probe) {
        Some(FORMAT) => None,
        found => Some(format!(
            "rustdoc writes JSON of format {}, and the lister reads {FORMAT}: use Rust 1.95, or another `public-api` \
             in {LISTER}",
            found.unwrap_or("unknown")
        )),
    }
}

/// The options that make rustdoc write JSON.
const JSON: &[&str] = &["-Zunstable-options", "--output-format", "json"];

/// The command with leave to use unstable options of the default toolchain.
fn unstable(cmd: Cmd) -> Cmd {
    cmd.env("RUSTC_BOOTSTRAP", "1")
}

fn format(json: &str) -> Option<&str> {
    let (_, rest) = json.split_once("\"format_version\":")?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let check = match arguments {
        [] => false,
        [argument] if argument == "--check" => true,
        _ => {
            let given = arguments.join(" ");
            return Err(Failure::Usage(format!(
                "`public-api` takes nothing or --check, but was given `{given}`"
            )));
        }
    };
    if let Some(what) = missing(site) {
        return Err(Failure::Missing {
            what,
            remedy: "install that toolchain, see https://rustup.rs".into(),
        });
    }
    let list = list(site)?;
    let file = site.root.join(RECORDED);
    if check {
        let recorded = std::fs::read_to_string(&file).map_err(|error| Failure::Missing {
            what: format!("cannot read {RECORDED}: {error}"),
            remedy: "write it: cargo xtask public-api".into(),
        })?;
        same(&recorded, &list)?;
    } else {
        std::fs::write(&file, &list).map_err(|error| Failure::Missing {
            what: format!("cannot write {RECORDED}: {error}"),
            remedy: "make it writable".into(),
        })?;
    }
    few(&list)?;
    println!("{RECORDED} has the {} public items of this tree", declared(&list));
    Ok(())
}

fn list(site: &Site) -> Result<String, Failure> {
    let rustdoc = Cmd::new("cargo", &[&["rustdoc", "--package", "slackline", "--lib", "--"], JSON].concat());
    unstable(rustdoc).target(TARGET).run(site)?;
    let json = site.target.join(TARGET).join("doc/slackline.json");
    let lister = Cmd::new("cargo", &["run", "--quiet", "--locked", "--manifest-path", LISTER, "--"]);
    lister.arg(&json.to_string_lossy()).target(TARGET).answer(site)
}

/// The number of items that the list declares.
fn declared(list: &str) -> usize {
    const KINDS: &[&str] =
        &["mod", "use", "struct", "enum", "union", "trait", "fn", "const", "static", "type", "macro"];
    let mut of_trait = false;
    let mut count = 0;
    for line in list.lines() {
        let line = line.trim_start_matches("#[non_exhaustive] ").trim_start_matches("#[repr(transparent)] ");
        if line.starts_with("impl") {
            of_trait = line.contains(" for ");
            continue;
        }
        let kind =
            line.strip_prefix("pub ").and_then(|rest| rest.split([' ', '!']).find(|word| *word != "unsafe"));
        let Some(kind) = kind.filter(|kind| KINDS.contains(kind)) else { continue };
        of_trait &= match kind {
            "fn" => !is_free(line),
            kind => matches!(kind, "const" | "type"),
        };
        count += usize::from(!of_trait);
    }
    count
}

/// True if no part of the function's path is a type: it stands in a module.
fn is_free(line: &str) -> bool {
    let path = line.split(['(', '<']).next().unwrap_or_default();
    let name = path.rsplit(' ').next().unwrap_or_default();
    name.split("::").all(|part| !part.starts_with(char::is_uppercase))
}

fn few(list: &str) -> Result<(), Failure> {
    let count = declared(list);
    if count <= ITEMS_MAX {
        return Ok(());
    }
    Err(Failure::Check {
        what: format!(
            "the library may have {ITEMS_MAX} public items\n  to fix it: hide what users do not need"
        ),
        status: format!("it has {count}"),
    })
}

fn same(recorded: &str, list: &str) -> Result<(), Failure> {
    if recorded == list {
        return Ok(());
    }
    let only = |in_this: &str, sign: char, in_that: &str| {
        let there: std::collections::BTreeSet<&str> = in_that.lines().collect();
        let lines = in_this.lines().filter(|line| !there.contains(line));
        lines.map(|line| format!("\n  {sign} {line}")).collect::<String>()
    };
    Err(Failure::Check {
        what: format!(
            "{RECORDED} is not the list of this tree{}{}\n  to record it: cargo xtask public-api",
            only(recorded, '-', list),
            only(list, '+', recorded)
        ),
        status: "public items have changed".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "pub mod x\n#[non_exhaustive] pub enum x::E\npub x::E::A\nimpl core::fmt::Display for x::E\n\
        pub fn x::E::fmt(&self)\nimpl x::E\npub const fn x::E::new() -> x::E\npub struct x::S\npub x::S::field: u8\n\
        impl x::S\npub fn x::S::get(&self) -> u8\npub trait x::T\npub fn x::T::call(&self)\n";

    #[test]
    fn types_traits_and_functions_count_and_parts_of_them_do_not() {
        assert_eq!(declared(LIST), 7);
    }

    #[test]
    fn a_function_of_a_module_counts_after_the_implementation_of_a_trait() {
        let list = "impl<T: x::Tr> x::Tr for x::Named<T>\npub type x::Named<T>::Err = &'static str\n\
            pub fn x::Named<T>::call(&self)\npub fn x::now() -> x::S\n";
        assert_eq!(declared(list), 1);
        assert_eq!(declared(&list.replace("x::now()", "x::now<T: x::Tr>()")), 1);
    }

    #[test]
    fn the_recorded_list_is_short_enough() {
        few(include_str!("../../docs/public-api.txt")).unwrap();
        let many = "pub fn x::f()\n".repeat(ITEMS_MAX + 1);
        let told = few(&many).unwrap_err().to_string();
        assert!(told.contains(&format!("it has {}", ITEMS_MAX + 1)), "{told}");
    }

    #[test]
    fn a_difference_is_shown_line_by_line_with_the_command_that_records_it() {
        assert!(same(LIST, LIST).is_ok());
        let text = same(LIST, &LIST.replace("x::S::get", "x::S::put")).unwrap_err().to_string();
        assert!(
            text.contains("- pub fn x::S::get(&self) -> u8\n  + pub fn x::S::put(&self) -> u8"),
            "{text}"
        );
        assert!(text.contains("cargo xtask public-api"), "{text}");
    }

    #[test]
    fn the_lister_reads_the_format_that_is_asked_for() {
        let lock = include_str!("../public-api/Cargo.lock");
        assert!(lock.contains(&format!("name = \"rustdoc-types\"\nversion = \"0.{FORMAT}.")));
        assert_eq!(format("{\"root\":1,\"format_version\":57,\"target\":{}}"), Some("57"));
    }
}
