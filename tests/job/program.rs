//! The programs of the processes of a job.

use std::time::Duration;

use slackline::checkpoint::{CheckpointOptions, Resume};
use slackline::group::GroupOptions;
use slackline::{
    ElementType, Job, JobPlan, Role, ServerOptions, Table, TransportKind, WorkerOptions, scheme::SchemeConfig,
};

use super::parameter_server;
use super::processes::PROGRAM;

const ELEMENTS: usize = 1000;
const SCHEME: SchemeConfig = SchemeConfig::Bsp;

/// Runs the program of this process, if it is one of a job, and ends with it if it fails.
pub(crate) fn run() {
    let Ok(program) = std::env::var(PROGRAM) else {
        // The processes that the other tests start are the ones that assert.
        return;
    };
    let result = match program.as_str() {
        "parameter_server" => parameter_server::main(),
        "pull_to_one" => pull_to_one(),
        "average" => average(),
        program => panic!("`{program}` is no program"),
    };
    if let Err(error) = result {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

/// Pulls all parameters to one. The variables `TRANSPORT`, `SERVERS`, `CLOCKS`, `CHECKPOINT`, `EVERY`, `DIE_AT` (a
/// worker and a clock), `DIE_JOINED`, `PAUSE_MS` (in each step), `HOLD` (a file), `TIMEOUT` (seconds), `RESUME` and
/// `PER_HOST` change how.
fn pull_to_one() -> Result<(), Box<dyn std::error::Error>> {
    let variable = |name: &str| std::env::var(name).ok();
    let number = |name: &str| variable(name).map(|text| text.parse::<u64>().unwrap());
    let mut plan = JobPlan::servers(number("SERVERS").unwrap_or(1) as u32);
    plan = plan.timeout(Duration::from_secs(number("TIMEOUT").unwrap_or(20)));
    plan = plan.clocks(number("CLOCKS").unwrap_or(50)).reconnect(variable("CHECKPOINT").is_some());
    if let Some(kind) = variable("TRANSPORT") {
        plan = plan.transport(kind.parse::<TransportKind>()?);
    }
    plan = plan.per_host(variable("PER_HOST").is_some());
    if variable("RESUME").is_some() {
        plan = plan.resume(Resume::Required);
    }
    let job = Job::from_env(plan)?;
    if variable("DIE_JOINED").is_some() {
        std::process::abort();
    }
    match job.role() {
        Role::Server(shard) => {
            let table = Table::builder().tensor("weight", &[ELEMENTS as u64], ElementType::F32).build()?;
            let mut options = ServerOptions::new(SCHEME, job.workers(), 0.1);
            options.checkpoint = variable("CHECKPOINT").map(|folder| CheckpointOptions {
                path: std::path::Path::new(&folder).join(format!("shard-{shard}.safetensors")),
                every: Some(number("EVERY").unwrap_or(1)),
            });
            let served = job.serve(table, &[0.0; ELEMENTS], options)?;
            let resumed = served.resumed_from.map_or("none".into(), |version| version.get().to_string());
            let (first, last) = (served.parameters[0], served.parameters[served.parameters.len() - 1]);
            assert!(served.parameters.iter().all(|value| *value == first), "{first} to {last}");
            let versions = served.status.version.get();
            let bits = first.to_bits();
            let (joined, folded) = (served.status.joined, served.status.folded);
            print!("shard {shard}: {versions} versions to {first:.6}, bits {bits:x}, ");
            println!("resumed from {resumed}, {joined} joined, {folded} folded");
        }
        Role::Worker(number_of_worker) => {
            let dies = variable("DIE_AT").and_then(|text| {
                let (worker, clock) = text.split_once(':')?;
                (worker.parse() == Ok(number_of_worker)).then(|| clock.parse::<u64>().unwrap())
            });
            let pause = Duration::from_millis(number("PAUSE_MS").unwrap_or(0));
            let hold = variable("HOLD").map(std::path::PathBuf::from);
            let mut worker = job.worker(WorkerOptions::default())?;
            while let Some(mut step) = worker.next_step()? {
                // Two clocks are published, and no third while the file is there.
                while step.view().clock.get() == 2 && hold.as_ref().is_some_and(|file| file.exists()) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                if dies == Some(step.view().clock.get()) {
                    std::process::abort();
                }
                std::thread::sleep(pause);
                let (parameters, gradient) = step.borrow()?;
                for (gradient, parameter) in gradient.iter_mut().zip(parameters) {
                    *gradient = parameter - 1.0;
                }
                step.publish(None)?;
            }
            println!("worker {number_of_worker}: {} clocks", worker.clock().get());
        }
    }
    Ok(())
}

/// Averages the rank of each worker, in groups of two whose means are those of all after two rounds. The variables
/// `TRANSPORT`, `TIMEOUT` (seconds) and `STOP` (the rank of a worker that is stopped before it leaves) change how.
fn average() -> Result<(), Box<dyn std::error::Error>> {
    let variable = |name: &str| std::env::var(name).ok();
    let timeout = variable("TIMEOUT").map_or(20, |seconds| seconds.parse().unwrap());
    let mut plan = JobPlan::servers(0).timeout(Duration::from_secs(timeout));
    if let Some(kind) = variable("TRANSPORT") {
        plan = plan.transport(kind.parse::<TransportKind>()?);
    }
    let job = Job::from_env(plan)?;
    let rank = job.rank() as usize;
    let mut member = job.group(ELEMENTS, GroupOptions::default())?;
    member.parameters_mut()?.fill(rank as f32);
    for round in 0..2u64 {
        let other = rank ^ (1 << round);
        let averaged = member.average(round, &[rank.min(other), rank.max(other)], Duration::from_secs(20))?;
        assert_eq!((averaged.members, averaged.skipped), (2, false));
    }
    let parameters = member.parameters()?;
    assert!(parameters.iter().all(|value| *value == parameters[0]), "a mixture");
    println!("rank {rank}: {}", parameters[0]);
    if variable("STOP") == Some(rank.to_string()) {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)?;
    }
    let left = member.leave(Duration::from_secs(20));
    // A worker that is stopped may not hear of it.
    if variable("STOP").is_none() {
        left?;
    }
    while !job.end(Duration::from_secs(20))? {}
    Ok(())
}
