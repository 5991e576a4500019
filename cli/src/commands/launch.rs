//! `slackline launch`: the processes of a job on this host, for programs that no other launcher starts.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use slackline::{MeetingPoint, Secret};

use crate::failure::Failure;
use crate::secret_args;

/// Time between two looks at the processes.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Start the processes of a job on this host.
///
/// Starts PROGRAM N times with the variables SLACKLINE_RANK, _WORLD_SIZE, _LOCAL_RANK, _RENDEZVOUS, _SECRET and
/// _TCP_ENCRYPT, which `slackline::Job::from_env` reads, and waits for all of them. If one fails, the others go on:
/// the job itself decides whether it can. SIGINT, SIGTERM and SIGHUP are passed on to all of them, and a second one
/// kills them. SIGUSR1 and SIGUSR2 are passed on, too, and end nothing by themselves.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  slackline launch -n 3 -- target/release/examples/parameter_server

Exit codes: 0 all processes succeeded, 1 one failed, 2 wrong usage.")]
pub(crate) struct LaunchArgs {
    /// Number of processes
    #[arg(short = 'n', long = "processes", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    processes: u32,

    /// Encrypt data over TCP, too [default: SLACKLINE_TCP_ENCRYPT]
    #[arg(long)]
    encrypt: bool,

    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs `slackline launch`.
pub(crate) fn run(args: &LaunchArgs) -> ExitCode {
    match launch(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn launch(args: &LaunchArgs) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2])
        .map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))?;
    let secret = secret_args::random(args.encrypt)?;
    let rendezvous = MeetingPoint::free(Ipv4Addr::LOCALHOST.into())
        .map_err(|error| Failure::failed(format!("cannot find a free port of 127.0.0.1: {error}")))?
        .to_string();
    let mut processes = Processes(Vec::new());
    for rank in 0..args.processes {
        let mut command = Command::new(&args.program[0]);
        command.args(&args.program[1..]);
        command.env("SLACKLINE_RANK", rank.to_string()).env("SLACKLINE_LOCAL_RANK", rank.to_string());
        command.env("SLACKLINE_WORLD_SIZE", args.processes.to_string());
        command.env("SLACKLINE_RENDEZVOUS", &rendezvous).envs(secret.iter().flat_map(Secret::variables));
        // A group of its own: a signal from the terminal reaches this process alone, which passes it on once.
        command.env_remove("SLACKLINE_SECRET_FILE").process_group(0);
        let child = command.spawn().map_err(|error| {
            let program = args.program[0].to_string_lossy();
            Failure::usage(format!("cannot start `{program}`: {error}"))
                .help("check the path and its permissions")
        })?;
        processes.0.push((child, None));
    }
    let mut asked = None;
    while !processes.look()? {
        for signal in signals.pending() {
            let ends = !matches!(signal, SIGUSR1 | SIGUSR2);
            if ends && asked.replace(signal).is_some() {
                // A second signal ends the wait: dropping the processes kills them.
                return Err(
                    Failure::stopped(signal, "asked to end a second time").help("the processes were killed")
                );
            }
            processes.signal(signal);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let failed: Vec<_> = processes.failures().collect();
    match (failed.is_empty(), asked) {
        (true, _) => Ok(()),
        (false, None) => Err(Failure::failed(failed.join(", ")).help("see the output above")),
        (false, Some(signal)) => Err(Failure::stopped(signal, failed.join(", "))),
    }
}

/// The processes in the order of their ranks, and the end of each that has ended. Dropping kills the others.
struct Processes(Vec<(Child, Option<ExitStatus>)>);

impl Processes {
    /// True once all have ended.
    fn look(&mut self) -> Result<bool, Failure> {
        for (child, status) in &mut self.0 {
            if status.is_none() {
                *status =
                    child.try_wait().map_err(|error| Failure::failed(format!("cannot wait: {error}")))?;
            }
        }
        Ok(self.0.iter().all(|(_, status)| status.is_some()))
    }

    fn signal(&self, signal: i32) {
        let running = self.0.iter().filter(|(_, status)| status.is_none());
        for (child, _) in running {
            let process = Pid::from_raw(child.id() as i32);
            if let Some((process, signal)) = process.zip(Signal::from_named_raw(signal)) {
                // An error means that the process is gone already.
                let _gone = kill_process_group(process, signal);
            }
        }
    }

    fn failures(&self) -> impl Iterator<Item = String> {
        let failed = |status: &ExitStatus| !status.success();
        let ranks = (0..).zip(&self.0);
        ranks.filter_map(move |(rank, (_, status))| {
            status.filter(failed).map(|status| format!("rank {rank} ended with {status}"))
        })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // What a process has started itself, as a shell does, is in its group, and would go on without it. The group of
        // one that has ended has no name that is still sure.
        self.signal(Signal::KILL.as_raw());
        for (child, status) in &mut self.0 {
            if status.is_none() {
                let _status = child.wait();
            }
        }
    }
}
