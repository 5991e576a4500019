//! The layers of the library: the page has the table that is checked, and each of its arrows is used.

use std::collections::BTreeSet;

use super::{files, module_path, page, paths, shipped, words};

/// The rights of one module directly under `src/`, or of one of `transport` that has rights of its own.
pub(super) struct Row {
    pub(super) module: &'static str,
    /// The other modules that it may name.
    pub(super) may_use: &'static [&'static str],
    /// Whether its file begins with `#![forbid(unsafe_code)]`.
    pub(super) forbids_unsafe: bool,
}

const fn row(module: &'static str, may_use: &'static [&'static str], forbids_unsafe: bool) -> Row {
    Row { module, may_use, forbids_unsafe }
}

/// The import table. A module that has no row here fails; `lib.rs` may name anything.
pub(super) const MODULES: &[Row] = &[
    row("time", &[], false),
    row("clock", &[], false),
    row("diagnostic", &[], true),
    row("log", &[], true),
    row("table", &[], true),
    row("mem", &[], false),
    row("kernel", &["mem", "table"], false),
    row("cuda", &["kernel", "mem", "table"], false),
    row("channel", &["mem", "time"], false),
    row("transport", &["cuda", "mem", "time"], false),
    row("transport::error", &["channel", "mem", "time"], false),
    row("transport::wireup", &["channel", "mem", "time"], false),
    row("transport::shm", &["cuda", "mem", "time"], false),
    row("transport::tcp", &["channel", "cuda", "mem", "time"], false),
    row("transport::verbs", &["channel", "cuda", "mem", "time"], false),
    row("scheme", &["clock", "time"], true),
    row("trace", &["clock"], true),
    row("param", &["transport", "scheme", "cuda", "mem", "kernel", "table", "clock", "time"], true),
    row(
        "node",
        &["param", "transport", "scheme", "mem", "cuda", "kernel", "table", "clock", "time", "trace"],
        true,
    ),
    row(
        "job",
        &["node", "cuda", "channel", "transport", "scheme", "mem", "kernel", "table", "clock", "time"],
        true,
    ),
    row(
        "sim",
        &["node", "param", "transport", "scheme", "mem", "kernel", "table", "clock", "time", "trace"],
        false,
    ),
    row("fuzzing", &["job", "node", "param", "channel", "trace", "transport"], true),
];

/// The row of a module: the one of the longest path.
pub(super) fn row_of(module: &[String]) -> Option<&'static Row> {
    (1..=module.len()).rev().find_map(|parts| {
        let path = module[..parts].join("::");
        MODULES.iter().find(|row| row.module == path)
    })
}

/// The module that all others may name.
pub(super) const FOR_ALL: &str = "diagnostic";

type Arrows = BTreeSet<(String, String)>;

fn is_module(name: &str) -> bool {
    MODULES.iter().any(|row| row.module == name)
}

/// The arrows of the table that is checked: a module, and one that it may name.
fn allowed() -> Arrows {
    let of = |row: &'static Row| row.may_use.iter().map(|used| (row.module.to_owned(), (*used).to_owned()));
    MODULES.iter().flat_map(of).collect()
}

/// The arrows of the table on the page.
fn told(page: &str) -> Arrows {
    let mut arrows = Arrows::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [modules, used] = cells[..] else { continue };
        let names = |cell: &str| -> Vec<String> {
            let quoted = cell.split('`').skip(1).step_by(2);
            quoted.filter(|name| is_module(name)).map(str::to_owned).collect()
        };
        for module in names(modules) {
            arrows.extend(names(used).into_iter().map(|used| (module.clone(), used)));
        }
    }
    arrows
}

/// The arrows that shipped code uses.
fn used() -> Arrows {
    let mut arrows = Arrows::new();
    for (file, text) in files(".rs") {
        let Some(module) = module_path(&file).filter(|module| !module.is_empty()) else { continue };
        for (_, path) in paths(&shipped(&words(&text)), &module) {
            let Some(first) = path.first().filter(|first| **first != module[0]) else { continue };
            let row = row_of(&module).map_or(&*module[0], |row| row.module);
            arrows.insert((row.to_owned(), first.clone()));
        }
    }
    arrows
}

#[test]
fn the_page_has_the_layers_that_are_checked() {
    let page = page("docs/architecture.md").expect("the page of the architecture");
    assert_eq!(told(&page), allowed());
}

#[test]
fn each_arrow_between_layers_is_used_by_shipped_code() {
    let (allowed, used) = (allowed(), used());
    let unused: Vec<_> = allowed.difference(&used).collect();
    assert!(unused.is_empty(), "allowed and not used: {unused:?}");
}
