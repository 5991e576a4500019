//! The time that the library spends in posting a request and in polling its completion, over a verbs provider that
//! carries out each request at once (`provider/provider.c`), and beside it the time of a bare C loop over the same
//! (`provider/bare.c`). What is left between the two is the library's own.
//!
//! `cargo bench --bench verbs`. It takes a C compiler and libibverbs' header, and no RDMA device.

mod pair;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant as Clock;

use slackline::internals::mem::Streaming;
use slackline::internals::transport::{Endpoint, Inline, Operation, WorkRequest};
use slackline::{Address, Verbs, VerbsOptions};

use pair::Pair;

/// Set for the process that has the provider in place of libibverbs.
const PROVIDED: &str = "SLACKLINE_BENCH_PROVIDER";

/// Requests of one measurement.
const REQUESTS: usize = 2_000_000;

/// Pairs of measurements, one after the other, of which the median is told.
const PAIRS: usize = 9;

const WORDS: usize = 1024;

fn main() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("provider");
    if std::env::var_os(PROVIDED).is_none() {
        build(&folder);
        let program = std::env::current_exe().expect("the program's own path");
        // The loader looks into the folder when the library asks for libibverbs.
        panic!("{}", Command::new(program).env("LD_LIBRARY_PATH", &folder).env(PROVIDED, "1").exec());
    }
    let verbs = Verbs::open(VerbsOptions::default()).expect("the provider's device");
    let address: Address = "verbs:127.0.0.1:0".parse().expect("an address");
    let mut pair = Pair::connect(&verbs, &address, 8 * WORDS);
    println!("nanoseconds a request, median of {PAIRS} (and least to most)\n");
    println!("{:<12} {:>6} {:>24} {:>24} {:>12}", "request", "batch", "bare C", "slackline", "difference");
    for operation in ["write", "read", "fetch-add"] {
        for batch in [1, 16] {
            let measure =
                |pair: &mut Pair<Verbs>| (bare(&folder, operation, batch), ours(pair, operation, batch));
            let (bare, ours): (Vec<f64>, Vec<f64>) = (0..PAIRS).map(|_| measure(&mut pair)).unzip();
            let difference = median(&ours) - median(&bare);
            println!("{operation:<12} {batch:>6} {:>24} {:>24} {difference:>12.1}", told(&bare), told(&ours));
        }
    }
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn told(times: &[f64]) -> String {
    let [least, most] = [f64::min, f64::max].map(|pick| times.iter().copied().reduce(pick).expect("a time"));
    format!("{:.1} ({least:.1} to {most:.1})", median(times))
}

/// Compiles the provider and the C loop.
fn build(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder under the target directory");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("provider");
    let cc = |output: &str, arguments: &[&str]| {
        let mut command = Command::new("cc");
        command
            .current_dir(&sources)
            .args(["-O2", "-o"])
            .arg(folder.join(output))
            .args(arguments)
            .arg("-L")
            .arg(folder);
        let status = command.status().expect("a C compiler, named cc");
        assert!(status.success(), "{command:?}: install libibverbs-dev (Debian) or rdma-core-devel (Fedora)");
    };
    let shared = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-Wl,--version-script=versions.map"];
    cc("libibverbs.so.1", &[&shared[..], &["provider.c"]].concat());
    cc("bare", &["bare.c", &folder.join("libibverbs.so.1").to_string_lossy()]);
}

/// Nanoseconds of a request in the C loop, which finds the same provider by the variable that this process has.
fn bare(folder: &Path, operation: &str, batch: usize) -> f64 {
    let rounds = (REQUESTS / batch).to_string();
    let output = Command::new(folder.join("bare")).args([operation, &batch.to_string(), &rounds]).output();
    let output = output.expect("the C loop starts");
    assert!(output.status.success(), "the C loop: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

/// Nanoseconds of a request that the library posts and polls.
fn ours(pair: &mut Pair<Verbs>, operation: &str, batch: usize) -> f64 {
    let word = |index: usize| 8 * index as u64;
    let mut requests = Vec::with_capacity(batch);
    let rounds = REQUESTS / batch;
    let begun = Clock::now();
    for round in 0..rounds as u64 {
        requests.clear();
        for index in 0..batch {
            let remote = pair.remote.slice(word(index), 8).expect("inside");
            let local = || pair.local.slice(8 * index, 8).expect("inside");
            let operation = match operation {
                "write" => Operation::WriteInline { data: Inline::word(round), remote },
                "read" => Operation::Read { local: local(), remote, streaming: Streaming::ByLength },
                _ => Operation::FetchAdd { local: local(), remote, add: 1 },
            };
            requests.push(match index + 1 == batch {
                true => WorkRequest::signalled(round, operation),
                false => WorkRequest::unsignalled(round, operation),
            });
        }
        pair.client.post(&requests).expect("a post");
        let completion = loop {
            if let Some(completion) = pair.client.poll() {
                break completion;
            }
        };
        completion.result.expect("a success");
    }
    begun.elapsed().as_secs_f64() * 1e9 / (rounds * batch) as f64
}
