//! The house rules that a machine can hold: which module may import which, where unsafe may stand, how wide a line is.
//!
//! Sources are read as text: comments, strings and characters are taken out, what is left is cut into
//! words. That is enough here, and sees code under every `cfg`. Paths are written with `/`, relative to the
//! workspace root.

use std::fmt::Write as _;
use std::path::Path;

use layers::{FOR_ALL, MODULES, Row, row_of};
use paths::{closing, module_path, paths, shipped, starts};
use words::{Word, words};

#[path = "tidy/badges.rs"]
mod badges;
#[path = "tidy/clocks.rs"]
mod clocks;
#[path = "tidy/documented.rs"]
mod documented;
#[path = "tidy/earlier.rs"]
mod earlier;
#[path = "tidy/errors.rs"]
mod errors;
#[path = "tidy/fences.rs"]
mod fences;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/openings.rs"]
mod openings;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/types.rs"]
mod types;
#[path = "tidy/words.rs"]
mod words;

// ---------------------------------------------------------------------- the rules

/// The files that may name a backend, besides `lib.rs`. All other code that uses a transport is generic over the trait.
const NAMES_BACKENDS: &[&str] = &[
    "src/transport/mod.rs",
    "src/transport/mixed.rs",
    "src/job/transports.rs",
    "src/job/transports/rdma.rs",
    "src/fuzzing.rs",
];

/// The backends of `transport`, besides every folder under `src/transport/` but those that they share.
const BACKENDS: &[&str] = &["shm", "tcp", "verbs"];

/// The folder of the command that trains, a caller of `slackline::job`: it names nothing that is below that.
const CALLER_OF_JOBS: &str = "cli/src/commands/train/";

/// The module of the rendezvous, whose word variables and fields have as well: a path alone names the module.
const RENDEZVOUS: &str = "rendezvous";

/// The names below `slackline::job`, besides those of the backends.
const BELOW_JOBS: &[&str] = &[RENDEZVOUS, "channel", "mixed", "Hub", "Mixed"];

/// The transports, which it may name as values of `TransportKind` alone.
const TRANSPORTS: &[&str] = &["Shm", "Tcp", "Verbs"];

/// Most lines of that folder.
const CALLER_LINES_MAX: usize = 2600;

/// The files and folders where the word `unsafe` may stand in code.
const UNSAFE_FILES: &[&str] = &[
    "src/mem/",
    "src/kernel/",
    "src/channel/socket.rs",
    "src/transport/shm/",
    "src/transport/tcp/socket.rs",
    "src/transport/tcp/tests/fork.rs",
    "src/transport/verbs/",
    "src/cuda/",
    "ffi/src/",
    "python/src/buffer.rs",
    "python/src/device.rs",
    "python/src/dlpack.rs",
    "python/src/into.rs",
    "python/src/memory.rs",
    "python/src/publisher.rs",
    "python/src/server.rs",
    "python/src/source.rs",
    "python/src/view.rs",
    "python/src/working.rs",
    "tests/node/fork.rs",
    "tests/node/memory.rs",
    "tests/rdma/fork.rs",
];

/// rustfmt keeps code to 110; comments may use a little more.
const COLUMNS_MAX: usize = 120;
const LINES_MAX: usize = 800;

/// Users read an example whole.
const EXAMPLE_LINES_MAX: usize = 119;

/// Generated files keep the width, the length and the unexplained `unsafe` that their generator gave them.
const GENERATED: &str = "/bindings.rs";

// ---------------------------------------------------------------------- the claims

#[test]
fn every_module_has_a_row_and_names_only_what_its_row_allows() {
    let backends = backends();
    hold(&[".rs"], |file, text| imports(file, text, &backends));
}

#[test]
fn the_command_that_trains_names_nothing_below_jobs_and_stays_small() {
    let backends = backends();
    hold(&[".rs"], |file, text| below_jobs(file, text, &backends));
    let own = |(file, _): &(String, String)| file.starts_with(CALLER_OF_JOBS);
    let lines: usize =
        files(".rs").iter().filter(|file| own(file)).map(|(_, text)| text.lines().count()).sum();
    assert!((1..CALLER_LINES_MAX).contains(&lines), "{lines} lines in {CALLER_OF_JOBS}");
}

#[test]
fn unsafe_stands_only_in_the_listed_files() {
    hold(&[".rs"], misplaced_unsafe);
}

#[test]
fn the_modules_above_the_pointers_forbid_unsafe_code() {
    hold(&[".rs"], missing_forbid);
}

#[test]
fn every_unsafe_block_and_impl_states_its_argument() {
    hold(&[".rs"], unargued_unsafe);
}

#[test]
fn memory_that_devices_may_use_is_ordered_by_fences_of_mem_alone() {
    hold(&[".rs"], fences::of_the_language);
}

#[test]
fn nodes_read_the_clock_of_the_process_in_the_listed_files_alone() {
    hold(&[".rs"], clocks::of_the_process);
}

#[test]
fn no_line_is_too_wide_and_no_file_too_long() {
    hold(&[".rs"], too_big);
}

#[test]
fn no_function_has_a_name_of_more_than_seventy_two_characters() {
    hold(&[".rs"], names::too_long);
}

#[test]
fn nothing_is_left_to_do_and_nothing_is_printed_by_macros() {
    hold(&[".rs"], left_behind);
}

#[test]
fn examples_use_public_names_only() {
    hold(&[".rs"], hidden_in_examples);
}

#[test]
fn every_example_has_fewer_than_120_lines() {
    hold(&[".rs", ".c"], long_example);
    let examples = |extension| files(extension).iter().filter(|(file, _)| is_example(file)).count();
    assert!(examples(".rs") > 0 && examples(".c") > 0, "found no example: the walk is broken");
}

#[test]
fn no_line_holds_a_tab_or_ends_in_a_blank() {
    hold(&[".rs", ".md", ".toml"], blanks);
}

#[test]
fn a_name_stands_for_one_type_of_its_crate() {
    let shared = types::shared(&files(".rs"));
    assert!(shared.is_empty(), "names of several types:\n  {}", shared.join("\n  "));
}

#[test]
fn words_of_earlier_versions_do_not_come_back() {
    hold(&[".rs", ".md", ".toml", ".c"], earlier::offences);
}

#[test]
fn few_doc_comments_open_with_a_question_word() {
    if let Some(complaint) = openings::complaint(&files(".rs")) {
        panic!("\n{complaint}");
    }
}

#[test]
fn each_operation_of_the_protocol_has_a_drawing() {
    let protocol = page("docs/protocol.md").expect("the page of the protocol");
    assert!(pages::operations(&protocol) > 0, "found no operation: the check is broken");
    assert_eq!(pages::undrawn(&protocol), [""; 0], "operations without a drawing");
}

#[test]
fn the_defaults_name_constants_and_fields_that_their_files_have() {
    let unfounded = pages::unfounded(&page("docs/operations.md").expect("the page of operations"), page);
    assert!(unfounded.is_empty(), "in docs/operations.md:\n  {}", unfounded.join("\n  "));
}

#[test]
fn every_error_of_the_library_has_a_row_in_the_tables_of_errors() {
    let pages =
        ["docs/operations.md", "docs/gpu.md"].map(|path| page(path).expect("a page with a table of errors"));
    let cells: Vec<&str> = pages.iter().flat_map(|page| errors::cells(page)).collect();
    assert!(!cells.is_empty(), "found no table of errors: the check is broken");
    hold(&[".rs"], |file, text| match file.starts_with("src/") {
        true => errors::without_row(file, text, &cells),
        false => Vec::new(),
    });
}

#[test]
fn the_docs_of_every_public_function_that_may_fail_name_its_errors() {
    let list = page("docs/public-api.txt").expect("the list of public items");
    let (fallible, mut seen) = (documented::fallible(&list), 0);
    hold(&[".rs"], |file, text| match file.starts_with("src/") {
        true => {
            let (found, missing) = documented::undocumented(file, text, &fallible);
            seen += found;
            missing
        }
        false => Vec::new(),
    });
    assert!(seen * 10 > fallible.len() * 9, "found {seen} of {}: the check is broken", fallible.len());
}

#[test]
fn every_variable_of_the_tests_is_listed() {
    let testing = page("docs/testing.md").expect("the page of testing");
    hold(&[".rs", ".py"], |file, text| match is_of_tests(file) {
        true => pages::unlisted(&testing, file, text),
        false => Vec::new(),
    });
}

#[test]
fn badges_state_facts_of_the_manifest_and_of_the_sources() {
    let manifest = page("Cargo.toml").expect("the manifest");
    for badge in badges::badges(&manifest, UNSAFE_FILES, &files(".rs")) {
        let path = format!("{}/{}.svg", badges::FOLDER, badge.name);
        if std::env::var_os("UPDATE_BADGES").is_some() {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            std::fs::write(root.join(&path), badge.svg()).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        let drawn = page(&path).unwrap_or_default();
        assert!(badge.is_stated_by(&drawn), "{path} states another fact: UPDATE_BADGES=1 writes it again");
    }
}

/// The text of a file of the workspace.
fn page(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

/// Panics with all that `check` finds in the files whose names end so.
fn hold(extensions: &[&str], mut check: impl FnMut(&str, &str) -> Vec<String>) {
    let files: Vec<_> = extensions.iter().flat_map(|extension| files(extension)).collect();
    assert!(!files.is_empty(), "found no {extensions:?} file: the walk is broken");
    let mut offences = String::new();
    for (file, text) in &files {
        for offence in check(file, text) {
            writeln!(offences, "  {offence}").unwrap();
        }
    }
    assert!(offences.is_empty(), "\n{offences}");
}

// ---------------------------------------------------------------------- the checks

/// Offences against the import table: `file:line: what`.
fn imports(file: &str, text: &str, backends: &[String]) -> Vec<String> {
    let Some(module) = module_path(file) else { return Vec::new() };
    let Some(top) = module.first().cloned() else { return Vec::new() };
    let Some(row) = row_of(&module) else {
        return vec![format!("{file}:1: module `{top}` has no row in tests/tidy/layers.rs; give it one")];
    };
    let is_backend =
        |path: &[String]| path.len() > 1 && path[0] == "transport" && backends.contains(&path[1]);
    let mut offences = Vec::new();
    for (line, path) in paths(&shipped(&words(text)), &module) {
        let name = path.join("::");
        let Some(first) = path.first() else { continue };
        let own_backend = is_backend(&module) && module[..2] == path[..path.len().min(2)];
        if *first != top && !MODULES.iter().any(|row| row.module == first) {
            offences
                .push(format!("{file}:{line}: `crate::{name}` does not begin with a module of the table"));
        } else if *first != top && first != FOR_ALL && !row.may_use.contains(&first.as_str()) {
            let allowed = if row.may_use.is_empty() { "nothing".into() } else { row.may_use.join(", ") };
            offences.push(format!("{file}:{line}: `{}` names `{name}`; it may use: {allowed}", row.module));
        } else if is_backend(&path) && !own_backend && !NAMES_BACKENDS.contains(&file) {
            offences.push(format!("{file}:{line}: names the backend `{name}`; be generic over the trait"));
        }
    }
    offences.dedup();
    offences
}

fn below_jobs(file: &str, text: &str, backends: &[String]) -> Vec<String> {
    if !file.starts_with(CALLER_OF_JOBS) {
        return Vec::new();
    }
    let words = words(text);
    let is_below = |(index, word): &(usize, &Word)| {
        let name = word.text.as_str();
        let is_kind = starts(&words[index.saturating_sub(2)..], &["TransportKind", "::"]);
        let is_path =
            [index.saturating_sub(1), index + 1].iter().any(|beside| starts(&words[*beside..], &["::"]));
        let is_value = name == RENDEZVOUS && !is_path;
        BELOW_JOBS.contains(&name) && !is_value
            || backends.contains(&word.text)
            || TRANSPORTS.contains(&name) && !is_kind
    };
    let found = words.iter().enumerate().filter(is_below);
    found
        .map(|(_, word)| format!("{file}:{}: names `{}`, which is below `job`", word.line, word.text))
        .collect()
}

fn misplaced_unsafe(file: &str, text: &str) -> Vec<String> {
    if UNSAFE_FILES.iter().any(|listed| file.starts_with(listed)) {
        return Vec::new();
    }
    let found = words(text).into_iter().filter(|word| word.text == "unsafe");
    found.map(|word| format!("{file}:{}: `unsafe` may not stand here", word.line)).collect()
}

fn missing_forbid(file: &str, text: &str) -> Vec<String> {
    let is_top = |row: &&Row| {
        let module = row.module.replace("::", "/");
        file == format!("src/{module}.rs") || file == format!("src/{module}/mod.rs")
    };
    let Some(row) = MODULES.iter().find(is_top).filter(|row| row.forbids_unsafe) else { return Vec::new() };
    let words = words(text);
    let mut rest = words.as_slice();
    // The inner attributes at the top of the file; nothing else can come before them.
    while starts(rest, &["#", "!", "["]) {
        if starts(&rest[3..], &["forbid", "(", "unsafe_code", ")", "]"]) {
            return Vec::new();
        }
        rest = &rest[closing(rest, 2)..];
    }
    vec![format!("{file}:1: `{}` must begin with #![forbid(unsafe_code)]", row.module)]
}

/// Every `unsafe {` and `unsafe impl` has `// SAFETY:` directly above: above its line, or above the
/// statement that its line continues. Clippy checks the same where it sees the code; this also sees what is
/// under another `cfg`.
fn unargued_unsafe(file: &str, text: &str) -> Vec<String> {
    if file.ends_with(GENERATED) {
        return Vec::new();
    }
    let words = words(text);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_argued = |line: usize| {
        let mut comment_seen = false;
        for above in lines[..line - 1].iter().rev() {
            if let Some(comment) = above.strip_prefix("//") {
                comment_seen = true;
                if comment.trim_start().starts_with("SAFETY:") {
                    return true;
                }
            } else if !above.starts_with("#[") && (comment_seen || ends_a_statement(above)) {
                return false;
            }
        }
        false
    };
    let mut offences = Vec::new();
    for pair in words.windows(2) {
        let opens = pair[1].text == "{" || pair[1].text == "impl";
        if pair[0].text == "unsafe" && opens && !is_argued(pair[0].line) {
            offences.push(format!("{file}:{}: no `// SAFETY:` directly above", pair[0].line));
        }
    }
    offences
}

/// True unless the next line continues this one.
fn ends_a_statement(line: &str) -> bool {
    line.is_empty() || line.ends_with([';', '{', '}', ','])
}

fn too_big(file: &str, text: &str) -> Vec<String> {
    if file.ends_with(GENERATED) {
        return Vec::new();
    }
    let mut offences = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            offences.push(format!("{file}:{}: {columns} columns; the most is {COLUMNS_MAX}", index + 1));
        }
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        offences.push(format!("{file}:{lines}: {lines} lines; the most is {LINES_MAX}: split it by noun"));
    }
    offences
}

fn left_behind(file: &str, text: &str) -> Vec<String> {
    let unfinished = ["todo", "unimplemented", "dbg"];
    let printing = ["println", "eprintln", "print", "eprint"];
    let instead = if file.starts_with("src/") {
        Some("but the library prints nothing; use tracing")
    } else if ["cli/src/", "lab/src/"].iter().any(|folder| file.starts_with(folder)) {
        Some("which panics where nothing can be written; use output::print or stderr::tell")
    } else {
        None
    };
    let mut offences = Vec::new();
    for pair in words(text).windows(2).filter(|pair| pair[1].text == "!") {
        let (name, line) = (pair[0].text.as_str(), pair[0].line);
        if unfinished.contains(&name) {
            offences.push(format!("{file}:{line}: `{name}!` is left behind"));
        } else if let Some(instead) = instead.filter(|_| printing.contains(&name)) {
            offences.push(format!("{file}:{line}: `{name}!`, {instead}"));
        }
    }
    offences
}

/// Users copy the examples: none of them uses the hidden module.
fn hidden_in_examples(file: &str, text: &str) -> Vec<String> {
    if !file.starts_with("examples/") {
        return Vec::new();
    }
    let hidden = |word: &&Word| word.text == "internals";
    let line = |word: &Word| format!("{file}:{}: `internals` is no interface", word.line);
    words(text).iter().filter(hidden).map(line).collect()
}

/// The checks on variables have names of variables in their texts, and read none.
fn is_of_tests(file: &str) -> bool {
    format!("/{file}").contains("/tests/") && !file.starts_with("tests/tidy/")
}

fn is_example(file: &str) -> bool {
    file.starts_with("examples/") || file.starts_with("ffi/examples/")
}

fn long_example(file: &str, text: &str) -> Vec<String> {
    let lines = text.lines().count();
    let is_long = is_example(file) && lines > EXAMPLE_LINES_MAX;
    let offence = || format!("{file}:{lines}: {lines} lines; an example has at most {EXAMPLE_LINES_MAX}");
    is_long.then(offence).into_iter().collect()
}

fn blanks(file: &str, text: &str) -> Vec<String> {
    let mut offences = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        if line.contains('\t') {
            offences.push(format!("{file}:{}: a tab", index + 1));
        }
        if line.ends_with(char::is_whitespace) {
            offences.push(format!("{file}:{}: a blank at the end of the line", index + 1));
        }
    }
    offences
}

// ---------------------------------------------------------------------- files

/// The backends of `transport`: those listed, and every folder beside them but the wire-up and the staging of payloads,
/// which several of them use.
fn backends() -> Vec<String> {
    let mut backends: Vec<String> = BACKENDS.iter().map(|name| name.to_string()).collect();
    for (file, _) in files(".rs") {
        if let Some((folder, _)) = file.strip_prefix("src/transport/").and_then(|rest| rest.split_once('/')) {
            backends.push(folder.into());
        }
    }
    backends.retain(|name| name != "wireup" && name != "staging");
    backends
}

/// Every file of the workspace whose name ends so, with its text, in order; not what is built or hidden.
fn files(extension: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(root, "", extension, &mut found);
    found.sort();
    found
}

fn walk(folder: &Path, prefix: &str, extension: &str, found: &mut Vec<(String, String)>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let entry = entry.expect("an entry of a folder that we can read");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().unwrap_or_else(|error| panic!("{path}: {error}"));
        let is_hidden = name.starts_with('.') && ![".cargo", ".ci", ".rustfmt.toml"].contains(&name.as_str());
        if kind.is_dir() && !is_hidden && name != "target" {
            walk(&entry.path(), &format!("{path}/"), extension, found);
        } else if kind.is_file() && !is_hidden && name.ends_with(extension) {
            let text = std::fs::read(entry.path()).unwrap_or_else(|error| panic!("{path}: {error}"));
            found.push((path, String::from_utf8_lossy(&text).into_owned()));
        }
    }
}

// ---------------------------------------------------------------------- the checks, checked

mod the_checks {
    use super::*;

    fn import(file: &str, text: &str) -> Vec<String> {
        imports(file, text, &["shm".into(), "tcp".into()])
    }

    fn texts(text: &str) -> Vec<String> {
        words(text).into_iter().map(|word| word.text).collect()
    }

    #[test]
    fn catch_every_way_to_name_a_module_past_the_table() {
        for text in [
            "use crate::mem::Region;",
            "use crate::mem;",
            "use crate::{clock::Clock, mem::{Region as R}};",
            "use crate::{clock::Clock, mem as m};",
            "fn f() { crate::mem::map(4) }",
            "fn f(x: &crate::mem::Region) {}",
            "use super::super::mem::Region;",
            "mod inner { use super::super::super::mem::Region; }",
            "mod inner {} use super::super::mem::Region;",
            "macro_rules! m { () => { $crate::mem::map() } }",
            "#[cfg(not(test))] mod real { use crate::mem::Region; }",
            "pub(in crate::mem) fn f() {}",
        ] {
            assert_eq!(import("src/scheme/ssp.rs", text).len(), 1, "{text}");
        }
        assert_eq!(import("src/clock.rs", "use super::mem::Region;").len(), 1);
        assert_eq!(
            import("src/mem/mod.rs", "\nuse crate::sim::Cluster;"),
            ["src/mem/mod.rs:2: `mem` names `sim::Cluster`; it may use: nothing"]
        );
    }

    #[test]
    fn catch_names_of_the_crate_root_and_modules_without_a_row() {
        assert_eq!(import("src/node/mod.rs", "use crate::Error;").len(), 1);
        assert_eq!(import("src/node/mod.rs", "use crate::*;").len(), 1);
        assert_eq!(import("src/node/mod.rs", "use super::*;").len(), 1);
        assert_eq!(import("src/surprise.rs", "").len(), 1);
        assert_eq!(import("src/surprise/part.rs", "").len(), 1);
    }

    #[test]
    fn catch_a_part_of_transport_that_names_what_only_others_may() {
        for file in ["src/transport/shm/mod.rs", "src/transport/mixed.rs", "src/transport/mod.rs"] {
            assert_eq!(import(file, "use crate::channel::Secret;").len(), 1, "{file}");
        }
        for file in ["src/transport/tcp/mod.rs", "src/transport/wireup/wire.rs", "src/transport/error.rs"] {
            assert_eq!(import(file, "use crate::channel::Secret;"), [""; 0], "{file}");
        }
    }

    #[test]
    fn catch_whoever_names_a_backend() {
        for (file, text) in [
            ("src/param/frames.rs", "use crate::transport::shm::Shm;"),
            ("src/param/frames.rs", "use crate::transport::{Transport, shm};"),
            ("src/param/frames.rs", "use crate::transport; fn f() { transport::shm::open() }"),
            ("src/node/mod.rs", "use crate::transport::tcp;"),
            ("src/transport/tcp/mod.rs", "use super::shm::Shm;"),
            ("src/transport/tcp/wire.rs", "use super::super::shm::Shm;"),
            ("src/transport/tcp.rs", "use crate::transport::shm::Shm;"),
            ("src/transport/work.rs", "use super::shm::Shm;"),
        ] {
            assert_eq!(import(file, text).len(), 1, "{file}: {text}");
        }
    }

    #[test]
    fn catch_a_command_that_goes_past_the_job_layer() {
        let below = |file, text| below_jobs(file, text, &["shm".into(), "tcp".into()]).len();
        for text in [
            "use slackline::job::rendezvous::Host;",
            "use slackline::job::rendezvous;",
            "use slackline::channel::Secret;",
            "use slackline::transport::{Address, tcp::connect};",
            "use slackline::Verbs;",
            "fn f() { let own = slackline::Shm::new(); }",
            "fn f(server: &Server<Mixed>) {}",
        ] {
            assert_eq!(below("cli/src/commands/train/x.rs", text), 1, "{text}");
            assert_eq!(below("cli/src/commands/bench/x.rs", text), 0, "{text}");
        }
        let allowed = "use slackline::job::Secret; fn f() { g(TransportKind::Shm) } // channel";
        assert_eq!(below("cli/src/commands/train/x.rs", allowed), 0);
        let allowed = "const S: &str = \"--rendezvous\"; fn f(at: &Placement) { g(at.rendezvous) }";
        assert_eq!(below("cli/src/commands/train/x.rs", allowed), 0);
    }

    #[test]
    fn let_pass_what_the_table_allows() {
        for (file, text) in [
            ("src/lib.rs", "pub use crate::transport::shm::Shm; pub use crate::node::Worker;"),
            ("src/scheme/ssp.rs", "use super::{Action, Event}; use crate::{clock::Clock, time::Instant};"),
            ("src/scheme/ssp.rs", "use std::mem; use core::time::Duration; fn f() { mem::swap() }"),
            (
                "src/scheme/ssp.rs",
                "// use crate::mem;\n/* crate::mem::x */ const S: &str = \"crate::mem::x\";",
            ),
            ("src/scheme/ssp.rs", "fn f() {}\n#[cfg(test)]\nmod tests { use crate::{sim::Cluster, mem}; }"),
            ("src/scheme/ssp.rs", "#[cfg(all(test, unix))] #[allow(x)] mod tests { use crate::mem; }"),
            ("src/scheme/ssp.rs", "mod inner { use super::super::Event; use self::x; }"),
            ("src/scheme/ssp.rs", "pub(crate) fn f(self: &Self) -> Self { self.x() }"),
            ("src/param/frames.rs", "use crate::transport::{self, Transport, work::WorkRequest};"),
            ("src/transport/tcp/wire.rs", "use super::Frame; use crate::transport::{tcp::x, Transport};"),
            ("src/transport/mod.rs", "pub mod shm; pub use self::shm::Shm;"),
            ("cli/src/main.rs", "use crate::surprise::x;"),
            ("tests/transport.rs", "use crate::surprise::x;"),
        ] {
            assert_eq!(import(file, text), [""; 0], "{file}: {text}");
        }
    }

    #[test]
    fn catch_unsafe_outside_the_listed_files_and_only_there() {
        for file in ["src/node/mod.rs", "src/transport/tcp/mod.rs", "src/lib.rs", "cli/src/main.rs"] {
            assert_eq!(
                misplaced_unsafe(file, "fn f() {\n    unsafe { g() }\n}"),
                [format!("{file}:2: `unsafe` may not stand here")]
            );
        }
        assert_eq!(misplaced_unsafe("tests/loom.rs", "unsafe impl Send for X {}").len(), 1);
        assert_eq!(misplaced_unsafe("ffi/tests/smoke.rs", "#[unsafe(no_mangle)]").len(), 1);
        assert!(misplaced_unsafe("src/mem/word.rs", "unsafe { g() }").is_empty());
        assert!(
            misplaced_unsafe("src/lib.rs", "#![forbid(unsafe_code)] // unsafe\nf(\"unsafe\")").is_empty()
        );
    }

    #[test]
    fn catch_a_module_that_does_not_forbid_unsafe_code_at_its_top() {
        for text in
            ["", "//! #![forbid(unsafe_code)]", "#![deny(unsafe_code)]", "mod x { #![forbid(unsafe_code)] }"]
        {
            assert_eq!(missing_forbid("src/scheme/mod.rs", text).len(), 1, "{text}");
        }
        assert_eq!(missing_forbid("src/table.rs", "").len(), 1);
        let good = "//! Doc.\n#![deny(clippy::disallowed_methods)]\n#![forbid(unsafe_code)]\nuse x;";
        assert!(missing_forbid("src/scheme/mod.rs", good).is_empty());
        assert!(missing_forbid("src/mem/mod.rs", "").is_empty());
        assert!(missing_forbid("src/scheme/ssp.rs", "").is_empty());
    }

    #[test]
    fn catch_unsafe_without_an_argument_directly_above() {
        for text in [
            "fn f() {\n    unsafe { g() }\n}",
            "unsafe impl Send for X {}",
            "// SAFETY: one.\nlet x = unsafe { g() };\nlet y = unsafe { h() };",
            "// SAFETY: far.\n\nunsafe { g() }",
            "// SAFETY: above another statement.\nlet x = 1;\n// And a remark.\nunsafe { g() }",
            "// safe, trust me\nunsafe { g() }",
            "// SAFETY: the arm before.\n0 => unsafe { g() },\n1 => unsafe { h() },",
        ] {
            assert_eq!(unargued_unsafe("x.rs", text).len(), 1, "{text}");
        }
        for text in [
            "// SAFETY: because\n// of this.\nunsafe { g() }",
            "// SAFETY: because.\n#[allow(x)]\nunsafe impl Send for X {}",
            "// SAFETY: because.\nlet x =\n    unsafe { g() };",
            "unsafe fn f();\nunsafe extern \"C\" {}\n// unsafe { }",
        ] {
            assert_eq!(unargued_unsafe("x.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn catch_what_is_too_wide_or_too_long_or_left_behind() {
        assert_eq!(too_big("src/x.rs", &"é".repeat(COLUMNS_MAX + 1)).len(), 1);
        assert!(too_big("src/x.rs", &"é".repeat(COLUMNS_MAX)).is_empty());
        assert_eq!(too_big("src/x.rs", &"\n".repeat(LINES_MAX + 1)).len(), 1);
        assert!(too_big("src/x.rs", &"\n".repeat(LINES_MAX)).is_empty());
        assert!(too_big("src/transport/verbs/sys/bindings.rs", &"x\n".repeat(LINES_MAX + 1)).is_empty());

        let long = "\n".repeat(EXAMPLE_LINES_MAX + 1);
        for file in ["examples/x.rs", "ffi/examples/x.c"] {
            assert_eq!(long_example(file, &long).len(), 1, "{file}");
            assert!(long_example(file, &long[1..]).is_empty(), "{file}");
        }
        assert!(long_example("src/x.rs", &long).is_empty());

        assert_eq!(left_behind("cli/src/main.rs", "fn f() { todo!() }").len(), 1);
        assert_eq!(left_behind("tests/x.rs", "unimplemented!(); dbg!(x)").len(), 2);
        for file in ["src/x.rs", "cli/src/main.rs", "lab/src/x.rs"] {
            assert_eq!(left_behind(file, "println!(); eprintln!(); print!(); eprint!()").len(), 4, "{file}");
        }
        assert!(left_behind("cli/tests/x.rs", "println!(); eprintln!()").is_empty());
        assert_eq!(hidden_in_examples("examples/x.rs", "use slackline::internals::mem;").len(), 1);
        assert!(hidden_in_examples("tests/x.rs", "use slackline::internals::mem;").is_empty());
        assert!(left_behind("src/x.rs", "/// println!()\nfn f() { writeln!(x) }").is_empty());
    }

    #[test]
    fn catch_tabs_and_trailing_blanks() {
        assert_eq!(
            blanks("x.md", "a\tb\nc \nd"),
            ["x.md:1: a tab", "x.md:2: a blank at the end of the line"]
        );
        assert_eq!(blanks("x.md", "a\r\n").len(), 1);
        assert!(blanks("x.md", "a b\n\nc\n").is_empty());
    }

    #[test]
    fn see_code_only() {
        assert_eq!(texts("a /* b /* c */ d */ e // f\ng"), ["a", "e", "g"]);
        assert_eq!(
            texts(r#"a("b \" c", 'd', '"', '\'', '\u{1F600}', b"e", b'f', 'g')"#).concat(),
            "a(,,,,,,b,)"
        );
        assert_eq!(texts(r##"r#"a " b"# c r"d\" e"##), ["c", "e"]);
        assert_eq!(
            texts("fn f<'a>(x: &'a str) -> &'static str"),
            ["fn", "f", "<", ">", "(", "x", ":", "&", "str", ")", "-", ">", "&", "str"]
        );
        assert_eq!(words("\"a\nb\"\nc")[0].line, 3);
        assert_eq!(texts("r#type b c"), ["type", "b", "c"]);
    }

    #[test]
    fn walk_the_whole_workspace() {
        let files = files(".rs");
        for file in ["src/lib.rs", "build.rs", "tests/tidy.rs", "xtask/src/main.rs", "cli/src/main.rs"] {
            assert!(files.iter().any(|(path, _)| path == file), "{file} was not visited");
        }
        assert!(super::files(".toml").iter().any(|(path, _)| path == ".cargo/config.toml"));
        assert!(!files.iter().any(|(path, _)| path.starts_with("target/")));
    }
}
