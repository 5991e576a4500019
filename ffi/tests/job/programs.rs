//! C programs as the processes of a job, with a server in C or in this process.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use slackline::scheme::SchemeConfig;
use slackline::{
    ElementType, Job, JobPlan, Placement, RendezvousEndpoint, Secret, ServerOptions, Table, TransportKind,
};

const SECRET: &str = "a secret that the processes share";

/// The columns of `examples/parameter_server.c`.
const COLUMNS: usize = 16;

/// Compiles an example into `folder`, with the shared library of this build.
pub(crate) fn compile(name: &str, folder: &Path) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let candidates = [deps.join("libslackline_ffi.so"), deps.parent().unwrap().join("libslackline_ffi.so")];
    let library = candidates.iter().find(|path| path.exists());
    let library = library.expect("cargo builds the shared library first");
    // The loader asks for the name that the library is installed under.
    let installed = folder.join(env!("SLACKLINE_SONAME"));
    // Another test may have put it there.
    let _exists = std::os::unix::fs::symlink(library, &installed);
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1", "-I"]);
    compiler.arg(package.join("include")).arg(package.join(format!("examples/{name}.c"))).arg(&installed);
    compiler.arg(format!("-Wl,-rpath,{}", folder.display())).args(["-lm", "-o"]).arg(&program);
    let compiled = compiler.output().expect("a C compiler called `cc`");
    assert!(compiled.status.success(), "{compiler:?}\n{}", String::from_utf8_lossy(&compiled.stderr));
    program
}

/// Starts the process `rank` of a job of `world`.
fn start(program: &Path, rank: usize, world: usize, meet: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).env("SLACKLINE_RANK", rank.to_string());
    command.env("SLACKLINE_WORLD_SIZE", world.to_string()).env("SLACKLINE_RENDEZVOUS", meet);
    command.env("SLACKLINE_SECRET", SECRET).env_remove("SLACKLINE_SECRET_FILE");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("start the program")
}

/// Runs a job of `world` processes that meet on `host`, all of which run `program`.
pub(crate) fn run(program: &Path, host: IpAddr, world: usize, arguments: &[&str]) -> Vec<Output> {
    let meet = RendezvousEndpoint::free(host).unwrap().to_string();
    let children: Vec<_> = (0..world).map(|rank| start(program, rank, world, &meet, arguments)).collect();
    // Each wait of the program has a timeout, and so each process ends.
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

/// Runs the workers of `examples/parameter_server.c` with a server of this process, and returns its parameters with
/// what the workers said.
pub(crate) fn run_with_a_server_here(
    program: &Path,
    host: IpAddr,
    transport: TransportKind,
) -> (Vec<f32>, Vec<Output>) {
    let (world, rendezvous) = (3, RendezvousEndpoint::free(host).unwrap());
    let name = transport.to_string();
    let children: Vec<_> =
        (1..world).map(|rank| start(program, rank, world, &rendezvous.to_string(), &[&name])).collect();
    let rendezvous = Some(rendezvous);
    let placement = Placement { world: world as u32, rendezvous, ..Placement::default() };
    let secret = Secret::from_text(SECRET, "this test").unwrap();
    // The example's own timeout: all processes of a job have one plan.
    let plan = JobPlan::servers(1).transport(transport).timeout(Duration::from_secs(60));
    let job = Job::join(plan, &placement, Some(secret)).unwrap();
    let table = Table::builder().tensor("weight", &[COLUMNS as u64], ElementType::F32).build().unwrap();
    let options = ServerOptions::new(SchemeConfig::Ssp { staleness: 2 }, job.workers(), 0.05);
    let served = job.serve(table, &[0.0; COLUMNS], options).unwrap();
    drop(job);
    let outputs = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    (served.parameters, outputs)
}

/// Asserts that these workers of `examples/parameter_server.c` have run all clocks.
pub(crate) fn all_trained(workers: &[Output]) {
    for (worker, output) in workers.iter().enumerate() {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text == format!("worker {worker}: 300 clocks\n"), "{output:?}");
    }
}

/// Asserts that a job of C programs has trained: the server's error, and the workers' clocks.
pub(crate) fn has_trained(outputs: &[Output]) {
    assert!(outputs[0].status.success(), "{outputs:?}");
    let text = String::from_utf8_lossy(&outputs[0].stdout);
    let error: f32 = text.trim().strip_prefix("largest error ").unwrap().parse().unwrap();
    assert!(error < 0.05, "{text}");
    all_trained(&outputs[1..]);
}

/// Asserts that these are the weights which the example looks for.
pub(crate) fn are_the_truth(weights: &[f32]) {
    for (column, weight) in weights.iter().enumerate() {
        let truth = column as f32 / COLUMNS as f32 - 0.5;
        assert!((weight - truth).abs() < 0.05, "column {column}: {weight}, not {truth}");
    }
}
