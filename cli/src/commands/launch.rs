//! `slackline launch`: the processes of a job on this host, for programs that no other launcher starts.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, kill_process_group, set_parent_process_death_signal};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use slackline::{RendezvousEndpoint, Secret};

use crate::failure::Failure;
use crate::secret_args;

/// Time between two looks at the processes.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Signals that go on to the processes, but for those that this command was started to ignore.
const PASSED_ON: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT];

/// Start the processes of a job on this host.
///
/// Starts PROGRAM N times with the variables SLACKLINE_RANK, _WORLD_SIZE, _LOCAL_RANK, _RENDEZVOUS, _SECRET and
/// _TCP_ENCRYPT, which `slackline::Job::from_env` reads, and waits for all of them. If one fails, the others go on:
/// the job itself decides whether it can. None outlives this command, and none reads its input: theirs is empty.
///
/// SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all of them, and a second one kills them. SIGUSR1 and SIGUSR2
/// are passed on, too, and end nothing by themselves. So are SIGTSTP (Ctrl-Z), which stops this command as well, and
/// SIGCONT. A signal that this command is started to ignore, as SIGHUP by `nohup`, is ignored by all of them.
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
    let ignored = ignored_signals();
    let heard = PASSED_ON.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(heard)
        .map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))?;
    let secret = secret_args::random(args.encrypt)?;
    let rendezvous = RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into())
        .map_err(|error| Failure::failed(format!("cannot find a free port of 127.0.0.1: {error}")))?
        .to_string();
    let failed = |error: io::Error| {
        Failure::failed(format!("cannot start a process: {error}"))
            .help("look at the limits on processes and open files (ulimit -u, ulimit -n)")
    };
    let own = std::env::current_exe().map_err(failed)?;
    let (mut line, other) = io::pipe().map_err(failed)?;
    let mut processes = Processes(Vec::new());
    for rank in 0..args.processes {
        let mut command = Command::new(&own);
        command.args(["launch-rank", &std::process::id().to_string(), "--"]).args(&args.program);
        command.env("SLACKLINE_RANK", rank.to_string()).env("SLACKLINE_LOCAL_RANK", rank.to_string());
        command.env("SLACKLINE_WORLD_SIZE", args.processes.to_string());
        command.env("SLACKLINE_RENDEZVOUS", &rendezvous).envs(secret.iter().flat_map(Secret::variables));
        // A group of its own: a signal from the terminal reaches this process alone, which passes it on once.
        command.env_remove("SLACKLINE_SECRET_FILE").process_group(0);
        command.stdin(other.try_clone().map_err(failed)?);
        processes.0.push((command.spawn().map_err(failed)?, None));
    }
    drop(other);
    let mut errors = String::new();
    line.read_to_string(&mut errors).map_err(failed)?;
    if let Some(error) = errors.lines().next() {
        let program = args.program[0].to_string_lossy();
        return Err(Failure::usage(format!("cannot start `{program}`: {error}"))
            .help("check the path and its permissions"));
    }
    let mut asked = None;
    while !processes.look()? {
        for signal in signals.pending() {
            let ends = matches!(signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM);
            if ends && asked.replace(signal).is_some() {
                // A second signal ends the wait: dropping the processes kills them.
                return Err(
                    Failure::stopped(signal, "asked to end a second time").help("the processes were killed")
                );
            }
            processes.signal(signal);
            if signal == SIGTSTP {
                // Stops here until SIGCONT. An error leaves it running, which harms nothing.
                let _running = emulate_default_handler(signal);
            }
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

/// The signals that this process ignores, a bit for each. `nohup` starts programs so, and the `&` of a script; programs
/// that this one starts ignore them, too.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Without the file none is known to be ignored.
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or_default()
}

/// One process of the job, before it is PROGRAM; started by `launch`.
///
/// Its input is a line to the parent, the same for all of them. It ends here once PROGRAM runs, or carries the reason
/// that it does not.
#[derive(clap::Args, Debug)]
pub(crate) struct LaunchRankArgs {
    /// The process that started this one.
    parent: i32,

    /// Program and its arguments
    #[arg(required = true, last = true)]
    program: Vec<OsString>,
}

/// Runs `slackline launch-rank`: becomes PROGRAM, which dies with the parent.
pub(crate) fn run_rank(args: &LaunchRankArgs) -> ExitCode {
    let Ok(line) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let error = become_program(args);
    // A parent that is gone does not need to know.
    let _unheard = say(&mut File::from(line), &error);
    ExitCode::FAILURE
}

/// Writes the error in one piece: all processes have the same line, and their errors are not to mix.
fn say(line: &mut impl Write, error: &io::Error) -> io::Result<()> {
    line.write_all(format!("{error}\n").as_bytes())
}

/// Returns only if it cannot.
fn become_program(args: &LaunchRankArgs) -> io::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    if Pid::as_raw(getppid()) != args.parent {
        return io::Error::other("the process that started it is gone");
    }
    Command::new(&args.program[0]).args(&args.program[1..]).stdin(Stdio::null()).exec()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errors_of_several_processes_do_not_mix_in_their_line() {
        /// Keeps what each write brings.
        struct Writes(Vec<String>);
        impl Write for Writes {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(String::from_utf8_lossy(bytes).into());
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writes = Writes(Vec::new());
        say(&mut writes, &io::Error::from_raw_os_error(2)).unwrap();
        assert_eq!(writes.0, ["No such file or directory (os error 2)\n"]);
    }
}
