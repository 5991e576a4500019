//! A job whose processes run a C program.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

use slackline::MeetingPoint;

/// An example as a program, compiled once.
fn example(name: &'static str) -> PathBuf {
    static PROGRAMS: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    PROGRAMS.lock().unwrap().entry(name).or_insert_with(|| compile(name)).clone()
}

/// Compiles an example against the static library.
fn compile(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let places = [deps.join("libslackline_ffi.a"), deps.parent().unwrap().join("libslackline_ffi.a")];
    let library = places.iter().find(|path| path.exists()).expect("cargo builds the static library first");
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1", "-I"]);
    compiler.arg(package.join("include")).arg(package.join(format!("examples/{name}.c"))).arg(library);
    compiler.args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"]).arg(&program);
    let compiled = compiler.output().expect("a C compiler called `cc`");
    assert!(compiled.status.success(), "{compiler:?}\n{}", String::from_utf8_lossy(&compiled.stderr));
    program
}

/// Starts one process of a job of `world`.
fn start(program: &Path, rank: usize, world: usize, meet: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("SLACKLINE_RANK", rank.to_string())
        .env("SLACKLINE_WORLD_SIZE", world.to_string());
    command.env("SLACKLINE_RENDEZVOUS", meet).env("SLACKLINE_SECRET", "a secret that the processes share");
    // No host has this device.
    command.env("SLACKLINE_RDMA_DEVICE", "none").env_remove("SLACKLINE_SECRET_FILE");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("start the program")
}

fn run(program: &Path, world: usize, arguments: &[&str]) -> Vec<Output> {
    let meet = MeetingPoint::free(Ipv4Addr::LOCALHOST.into()).unwrap().to_string();
    let children: Vec<_> = (0..world).map(|rank| start(program, rank, world, &meet, arguments)).collect();
    // Each wait of the program has a timeout, and so each process ends.
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

#[test]
fn a_job_of_c_programs_trains_over_each_transport() {
    let program = example("parameter_server");
    for transport in ["shm", "tcp"] {
        let outputs = run(&program, 3, &[transport]);
        assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
        let text = String::from_utf8(outputs[0].stdout.clone()).unwrap();
        let error: f32 = text.trim().strip_prefix("largest error ").unwrap().parse().unwrap();
        assert!(error < 0.05, "{text}");
        for (worker, output) in outputs[1..].iter().enumerate() {
            let text = String::from_utf8(output.stdout.clone()).unwrap();
            assert_eq!(text, format!("worker {worker}: 300 clocks\n"));
        }
    }
}

#[test]
fn a_job_of_c_programs_that_fails_tells_each_of_them_why() {
    let program = example("parameter_server");
    // The server cannot listen.
    let outputs = run(&program, 3, &["verbs"]);
    let told = |output: &Output| {
        output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("RDMA")
    };
    assert!(outputs.iter().all(told), "{outputs:?}");
    let outputs = run(&program, 3, &["pigeon"]);
    for output in outputs {
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text, "error: `pigeon` is no transport; use shm, verbs or tcp\n");
    }
    let alone = Command::new(program).env_remove("SLACKLINE_RANK").output().unwrap();
    assert!(String::from_utf8_lossy(&alone.stderr).contains("no launcher has started this process"));
}

#[test]
fn c_programs_without_a_server_average_over_each_transport() {
    let program = example("groups");
    for transport in ["shm", "tcp"] {
        let outputs = run(&program, 4, &[transport]);
        assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
        for (rank, output) in outputs.iter().enumerate() {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.starts_with(&format!("worker {rank} ends at ")), "{text}");
        }
    }
}

#[test]
fn a_c_program_publishes_weights_to_others() {
    let output = Command::new(example("publish_weights")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("a reader copied ")).count(), 2, "{text}");
}
