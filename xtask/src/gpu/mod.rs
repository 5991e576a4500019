//! `cargo xtask gpu`: the tests of GPU memory by name and then the measurements, on this machine's GPU, with a record
//! for `docs/gpu/`. A machine without a GPU has NOT RUN it, which is a failure.
//!
//! Both programs are first put into a folder, a pack, with this one; the pack also runs where there are neither the
//! sources nor a compiler.

mod check;
mod record;

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;
use crate::steps::{Feature, Step};
use record::{GpuRecord, GpuTest, LeftOut};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) const COMMAND: Command = Command {
    name: "gpu",
    arguments: "[--out DIR] [--pack DIR] [--check]",
    about: "tests and measures on this machine's GPU, into docs/gpu or DIR; --pack: puts what runs into DIR, for a \
            machine without a compiler; --check: says which records are stale",
    run,
};

/// Time of all tests and rows together, of one test, and of one with something left out of the library.
const TOTAL: Duration = Duration::from_secs(8 * 60);
const TEST: Duration = Duration::from_secs(150);
const MUTANT: Duration = Duration::from_secs(20);

/// What is left out of the library (its mutants), and the test that may notice it on a GPU.
const LEFT_OUT: [(&str, &str); 5] = [
    ("gpu_does_not_wait_for_caller", "what_a_busy_stream_writes_is_published_and_no_call_waits"),
    ("publish_before_copied", "no_version_is_torn_from_gpu_to_gpu"),
    ("gpu_copy_completes_at_once", "what_is_pulled_behind_a_busy_stream_is_one_version"),
    ("staging_block_before_ticket", "over_tcp_no_block_is_used_again_before_its_copy"),
    ("gpu_memory_let_go_at_once", "memory_that_is_dropped_while_it_is_copied_is_copied_whole"),
];

/// Tests that compute-sanitizer watches, too, where there is one.
const SANITIZER: &str = "compute-sanitizer";
const WATCHED: [&str; 2] =
    ["folds_have_the_bits_that_processors_make", "parts_at_odd_offsets_come_and_go_as_they_are"];

/// Most bytes of a pack.
const PACK_MAX: u64 = 60_000_000;

/// The files of a pack: the tests, also as a build of mutants, the measurements, this program, and the tree that they
/// are of.
const TESTS: &str = "tests";
const MUTANTS: &str = "mutants";
const ROWS: &str = "rows";
const XTASK: &str = "xtask";
const ABOUT: &str = "about.json";

/// The name by which this program is called in a pack.
pub(crate) const PACKED: &str = "gpu-packed";

/// The test target, and that of the measurements.
pub(crate) const TARGET: &str = "gpu";

const RECORDS: &str = "docs/gpu";

/// The steps of `cargo xtask test`.
pub(crate) fn steps() -> [Step; 2] {
    let gpu = |arguments: &[&str]| vec![Cmd::new("cargo", &[&["xtask", "gpu"], arguments].concat())];
    [
        Step {
            name: "gpu",
            about: "the claims about GPU memory hold on this machine's GPU, and its costs are measured",
            needs: Vec::new(),
            feature: Some(Feature::Gpu),
            commands: gpu(&["--out", "target/gpu/record"]),
        },
        Step {
            name: "gpu-records",
            about: "the records of runs on GPUs can be read, and it is known which are stale",
            needs: Vec::new(),
            feature: None,
            commands: gpu(&["--check"]),
        },
    ]
}

/// Returns why there is no GPU to run on, if there is none: what `/dev` has is what the driver has made.
pub(crate) fn missing(devices: &Path) -> Option<String> {
    let is_gpu = |name: &str| {
        let number = name.strip_prefix("nvidia").unwrap_or_default();
        name == "dxg" || (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut names = fs::read_dir(devices).into_iter().flatten().flatten();
    let is_there = names.any(|entry| is_gpu(&entry.file_name().to_string_lossy()));
    (!is_there).then(|| "this machine has no NVIDIA GPU (no /dev/nvidia0)".into())
}

#[derive(Debug, Default, PartialEq, Eq)]
struct GpuOptions {
    check: bool,
    pack: Option<PathBuf>,
    out: Option<PathBuf>,
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let options = parse(arguments)?;
    if options.check {
        print!("{}", check::check(&site.root.join(RECORDS), &check::sources(&site.root)?)?);
        return Ok(());
    }
    if let Some(pack) = &options.pack {
        make_pack(site, pack)?;
        println!("where the GPU is: {}/{XTASK} {PACKED} [--out DIR]", pack.display());
        return Ok(());
    }
    expect_gpu()?;
    let pack = site.target.join("gpu/pack");
    make_pack(site, &pack)?;
    run_pack(&pack, &options.out.unwrap_or_else(|| site.root.join(RECORDS)))
}

/// Runs the pack in whose folder this program is.
pub(crate) fn packed(arguments: &[String]) -> Result<(), Failure> {
    let options = parse(arguments)?;
    if options.check || options.pack.is_some() {
        return Err(Failure::Usage(format!("`{PACKED}` takes --out DIR and nothing else")));
    }
    expect_gpu()?;
    let program = std::env::current_exe().map_err(|error| unusable("this program's folder", &error))?;
    let pack = program.parent().unwrap_or(Path::new("."));
    run_pack(pack, &options.out.unwrap_or_else(|| pack.join("record")))
}

fn parse(arguments: &[String]) -> Result<GpuOptions, Failure> {
    let mut options = GpuOptions::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut folder = || {
            let folder = arguments.next().filter(|folder| !folder.starts_with('-'));
            let folder = folder.ok_or_else(|| Failure::Usage(format!("`{argument}` needs a folder")))?;
            // The programs run in the folder of the pack.
            Ok(Some(std::path::absolute(folder).unwrap_or_else(|_| folder.into())))
        };
        match argument.as_str() {
            "--check" => options.check = true,
            "--pack" => options.pack = folder()?,
            "--out" => options.out = folder()?,
            other => {
                let known = "--out DIR, --pack DIR and --check";
                return Err(Failure::Usage(format!("`gpu` has no option `{other}`; it has {known}")));
            }
        }
    }
    Ok(options)
}

fn expect_gpu() -> Result<(), Failure> {
    missing(Path::new("/dev")).map_or(Ok(()), |reason| {
        Err(Failure::Missing {
            what: format!("NOT RUN: {reason}"),
            remedy: "run this on a machine with an NVIDIA GPU and driver R525 or later".into(),
        })
    })
}

/// The programs of a pack besides this one, and what builds each.
fn programs() -> [(&'static str, Cmd); 3] {
    let tests = ["test", "--release", "--package", "slackline", "--test", TARGET];
    let rows = ["bench", "--package", "slackline-benches", "--bench", TARGET];
    let tests = Cmd::new("cargo", &[&tests[..], &AS_JSON].concat());
    let rows = Cmd::new("cargo", &[&rows[..], &AS_JSON].concat());
    let mutants = tests.clone().flags("RUSTFLAGS", "--cfg slackline_mutants").target("mutants");
    [(TESTS, tests), (MUTANTS, mutants), (ROWS, rows)]
}

/// Builds the programs, and puts them into a folder.
fn make_pack(site: &Site, pack: &Path) -> Result<(), Failure> {
    let this = std::env::current_exe().map_err(|error| unusable("this program", &error))?;
    let mut files = vec![(XTASK, this)];
    for (name, cargo) in programs() {
        files.push((name, built(site, &cargo)?));
    }
    fs::create_dir_all(pack).map_err(|error| unusable(&pack.display().to_string(), &error))?;
    let mut bytes = 0;
    for (name, from) in files {
        // Lines of the sources are most of a program; the names of its functions stay.
        let to = pack.join(name);
        let strip = Cmd::new("strip", &["--strip-debug", "-o"]);
        strip.arg(&to.to_string_lossy()).arg(&from.to_string_lossy()).run(site)?;
        let copied = fs::metadata(&to);
        bytes += copied.map_err(|error| unusable(&to.display().to_string(), &error))?.len();
    }
    let commit = Cmd::new("git", &["describe", "--always", "--dirty", "--exclude", "*"]).output(site);
    let commit = commit.map_or_else(|| "unknown".into(), |commit| commit.trim().to_owned());
    let about = json!({ "commit": commit, "sources": check::sources(&site.root)? }).to_string();
    fs::write(pack.join(ABOUT), about).map_err(|error| unusable(ABOUT, &error))?;
    println!("{} has {} MB", pack.display(), bytes.div_ceil(1_000_000));
    expect_size(bytes)
}

/// Fails if a pack has more bytes than it may have.
fn expect_size(bytes: u64) -> Result<(), Failure> {
    let status = format!("{bytes} bytes, over {} MB", PACK_MAX / 1_000_000);
    match bytes <= PACK_MAX {
        true => Ok(()),
        false => Err(Failure::Check { what: "the pack of cargo xtask gpu".into(), status }),
    }
}

/// Has cargo build, run nothing, and name what it has built.
const AS_JSON: [&str; 3] = ["--no-run", "--message-format", "json-render-diagnostics"];

/// Builds the target of this name; the program.
fn built(site: &Site, cargo: &Cmd) -> Result<PathBuf, Failure> {
    let said = cargo.answer(site)?;
    let mut program = said.lines().rev().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == TARGET;
        is_it.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    });
    program.next().ok_or_else(|| Failure::Check { what: cargo.to_string(), status: "no program".into() })
}

/// Runs the tests and then the rows of a pack, and writes the record into `out`.
fn run_pack(pack: &Path, out: &Path) -> Result<(), Failure> {
    let begun = Instant::now();
    let left = |most: Duration| most.min(TOTAL.saturating_sub(begun.elapsed()));
    let site = Site { root: pack.into(), target: pack.into(), host: String::new(), nightly: false };
    let about = fs::read_to_string(pack.join(ABOUT)).map_err(|error| unusable(ABOUT, &error))?;
    let about: Value = serde_json::from_str(&about).unwrap_or_default();
    let program = |name: &str, arguments: &[&str]| {
        Cmd::new(&pack.join(name).to_string_lossy(), arguments).env("RUST_BACKTRACE", "1")
    };
    let mut tests = Vec::new();
    for name in names(
        &program(TESTS, &["--list"]).answer(&site)?,
        &program(TESTS, &["--list", "--ignored"]).answer(&site)?,
    ) {
        let test = program(TESTS, &["--exact", &name, "--show-output"]);
        let (output, is_late) = test.outcome_for(&site, left(TEST))?;
        let test = GpuTest::of(&name, &output, is_late);
        println!("{name}: {}", test.result);
        tests.push(test);
    }
    let said = |program: &str, arguments: &[&str]| record::said(&site, program, arguments);
    let is_watching = said(SANITIZER, &["--version"]).is_some();
    for name in WATCHED.iter().filter(|_| is_watching) {
        let program = pack.join(TESTS).to_string_lossy().into_owned();
        let arguments = ["--error-exitcode", "9", &program, "--exact", name, "--show-output"];
        let (output, is_late) = Cmd::new(SANITIZER, &arguments).outcome_for(&site, left(TEST))?;
        let test = GpuTest::of(name, &output, is_late).watched();
        println!("{}: {}", test.name, test.result);
        tests.push(test);
    }
    let (rows, _) = program(ROWS, &[]).outcome_for(&site, left(TOTAL))?;
    let machine = record::machine(&said, &rows);
    let mut left_out = Vec::new();
    for (mutant, test) in LEFT_OUT {
        let run = program(MUTANTS, &["--exact", test]).env("SLACKLINE_MUTANT", mutant);
        let (output, is_late) = run.outcome_for(&site, left(MUTANT))?;
        let entry = LeftOut::of(mutant, test, &output, is_late);
        println!("without {mutant}: {}", entry.result);
        left_out.push(entry);
    }
    let record = GpuRecord::new(&about, machine, tests, left_out, &rows);
    print!("{}", record.rows());
    let (file, failed) = (record.write(out)?, record.failed());
    println!("the record is {}", file.display());
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(Failure::Check { what: "cargo xtask gpu".into(), status: failed.join(", ") }),
    }
}

/// The names in a test program's list, without those that it ignores.
fn names(all: &str, ignored: &str) -> Vec<String> {
    let of = |list: &str| -> Vec<String> {
        list.lines().filter_map(|line| line.strip_suffix(": test")).map(String::from).collect()
    };
    let ignored = of(ignored);
    of(all).into_iter().filter(|name| !ignored.contains(name)).collect()
}

fn unusable(path: &str, error: &std::io::Error) -> Failure {
    Failure::Missing {
        what: format!("cannot use {path}: {error}"),
        remedy: "make it readable and writable, or name another folder".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_a_numbered_device_of_the_driver() {
        let root = std::env::temp_dir().join(format!("slackline-gpu-{}", std::process::id()));
        for (names, is_there) in [
            (&["nvidiactl", "nvidia-uvm", "null"][..], false),
            (&["nvidiactl", "nvidia3"], true),
            (&["dxg"], true),
        ] {
            fs::create_dir_all(&root).unwrap();
            names.iter().for_each(|name| fs::write(root.join(name), "").unwrap());
            assert_eq!(missing(&root).is_none(), is_there, "{names:?}");
            fs::remove_dir_all(&root).unwrap();
        }
        assert!(missing(&root).unwrap().contains("no NVIDIA GPU"));
    }

    #[test]
    fn options_are_read_and_unknown_ones_refused() {
        let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        let options = parse(&words("--pack /a --out /b")).unwrap();
        let (pack, out) = (Some("/a".into()), Some("/b".into()));
        assert_eq!(options, GpuOptions { check: false, pack, out });
        for wrong in ["--out", "--out --check", "--chek", "rows"] {
            assert_eq!(parse(&words(wrong)).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn tests_that_are_processes_of_others_are_not_run_by_name() {
        let all = "a: test\nother: test\n\n2 tests, 0 benchmarks\n";
        assert_eq!(names(all, "other: test\n\n1 test, 0 benchmarks\n"), ["a"]);
    }

    #[test]
    fn a_pack_has_the_tests_with_and_without_mutants_and_the_rows() {
        let programs = programs().map(|(name, cargo)| (name, cargo.to_string()));
        assert_eq!(programs.each_ref().map(|(name, _)| *name), [TESTS, MUTANTS, ROWS]);
        let [tests, mutants, rows] = programs.map(|(_, cargo)| cargo);
        assert!(mutants.contains("--cfg slackline_mutants") && !tests.contains("slackline_mutants"));
        for tests in [&tests, &mutants] {
            assert!(
                tests.contains("cargo test --release --package slackline --test gpu --no-run"),
                "{tests}"
            );
        }
        assert!(rows.contains("cargo bench --package slackline-benches --bench gpu --no-run"), "{rows}");
    }

    #[test]
    fn a_pack_of_more_than_sixty_megabytes_is_refused() {
        assert!(expect_size(60_000_000).is_ok());
        let refused = expect_size(60_000_001).unwrap_err().to_string();
        assert!(refused.contains("60000001 bytes, over 60 MB"), "{refused}");
    }

    /// A pack whose programs are scripts.
    #[test]
    fn a_pack_is_run_by_name_and_its_record_says_what_failed() {
        let root = std::env::temp_dir().join(format!("slackline-gpu-pack-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let script = |name: &str, text: &str| {
            use std::os::unix::fs::PermissionsExt;
            fs::write(root.join(name), format!("#!/bin/sh\n{text}")).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        script(
            TESTS,
            "case \"$*\" in\n\
             --list) echo 'good: test'; echo 'bad: test'; echo 'other: test';;\n\
             *--ignored) echo 'other: test';;\n\
             *good*) echo 'test good ... ok'; echo 'note: 5 reads';;\n\
             *) echo 'test bad ... FAILED'; echo 'torn' >&2; exit 101;;\n\
             esac\n",
        );
        let row = |name: &str, ours: f64| {
            let pairs = vec![(ours, 1.0); 7];
            json!({ "name": name, "against": "copy", "unit": "ns", "at_most": 2.0, "pairs": pairs })
        };
        let device = json!({ "device": { "name": "A GPU (40 GB)" }, "names": ["slow", "fast", "late"] });
        script(MUTANTS, "echo \"test $2 ... FAILED\"; exit 101\n");
        script(ROWS, &format!("cat <<'END'\n{device}\n{}\n{}\nEND\n", row("slow", 3.0), row("fast", 1.5)));
        fs::write(root.join(ABOUT), json!({ "commit": "abc", "sources": "123" }).to_string()).unwrap();
        let out = root.join("out");
        let failure = run_pack(&root, &out).unwrap_err().to_string();
        assert!(failure.contains("bad, late"), "{failure}");
        let page = fs::read_to_string(out.join("a-gpu-40-gb-abc.md")).unwrap();
        for expected in [
            "| good | ok | 5 reads |",
            "| bad | FAILED",
            "torn",
            "| noticed |",
            "| missed |",
            "| met |",
            "no time",
        ] {
            assert!(page.contains(expected), "{expected}: {page}");
        }
        let said = check::check(&out, "123").unwrap();
        assert!(said.contains("a-gpu-40-gb-abc.json: current"), "{said}");
        assert!(check::check(&out, "other").unwrap().contains("stale"));
        fs::write(out.join("a-gpu-40-gb-abc.md"), page + "better").unwrap();
        assert_eq!(check::check(&out, "123").unwrap_err().exit_code(), 1);
        fs::remove_dir_all(root).unwrap();
    }
}
