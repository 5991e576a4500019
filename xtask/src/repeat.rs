//! `cargo xtask repeat`: runs steps of `cargo xtask test` many times in a row, to find out how far they can be trusted.

use crate::Command;
use crate::failure::Failure;
use crate::needs::{self, Need};
use crate::site::Site;
use crate::steps::{self, Step};
use crate::table;
use crate::test::{NOT_RUN, choose, seconds};
use std::fs::{self, File};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

pub(crate) const COMMAND: Command = Command {
    name: "repeat",
    arguments: "[--times N] [--jobs N] [--load] [STEP...]",
    about: "steps of `test` N times in a row (20), several runs of a step at once with --jobs, \
            beside a load that takes all processors with --load; a table of failures and times",
    run,
};

/// Runs of each step if `--times` does not say.
const TIMES: usize = 20;

/// A shell script that keeps one processor busy. It looks now and then for the process whose number is its first word,
/// so that it also ends with one that is killed.
const BUSY: &str =
    "while kill -0 $0 2>/dev/null; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; done";

#[derive(Debug, PartialEq)]
struct RepeatOptions<'a> {
    times: usize,
    /// Runs of a step at the same time.
    jobs: usize,
    load: bool,
    names: Vec<&'a String>,
}

fn parse(arguments: &[String]) -> Result<RepeatOptions<'_>, Failure> {
    let mut options = RepeatOptions { times: TIMES, jobs: 1, load: false, names: Vec::new() };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--load" => options.load = true,
            "--times" | "--jobs" => {
                let count = words.next().and_then(|count| count.parse().ok()).filter(|count| *count > 0);
                let count = count.ok_or_else(|| Failure::Usage(format!("{word} takes a number from 1")))?;
                if word == "--times" { options.times = count } else { options.jobs = count }
            }
            option if option.starts_with('-') => {
                let known = "it has --times N, --jobs N and --load";
                return Err(Failure::Usage(format!("`repeat` has no option `{option}`; {known}")));
            }
            _ => options.names.push(word),
        }
    }
    Ok(options)
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let options = parse(arguments)?;
    let steps = steps::all(site);
    let chosen = choose(&steps, &options.names)?;
    let needs: Vec<Need> = chosen.iter().flat_map(|step| step.needs.iter().copied()).collect();
    needs::ensure(site, &needs)?;
    let folder = site.target.join("repeat");
    fs::create_dir_all(&folder).map_err(|error| Failure::Missing {
        what: format!("cannot make the folder {}: {error}", folder.display()),
        remedy: "look at its permissions and the space left".into(),
    })?;
    let _load = if options.load { Some(Load::start()?) } else { None };
    let mut records = Vec::new();
    for step in &chosen {
        records.push(repeat(site, step, &options, &folder)?);
    }
    print!("{}", summary(&records));
    verdict(&records, &options)
}

/// Busy loops, one for each processor, which end when this is dropped.
struct Load(Vec<Child>);

impl Load {
    fn start() -> Result<Load, Failure> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut load = Load(Vec::new());
        for _ in 0..processors {
            let child = busy(std::process::id()).map_err(|error| Failure::Missing {
                what: format!("cannot run `sh`: {error}"),
                remedy: "put a shell in the PATH".into(),
            })?;
            load.0.push(child);
        }
        Ok(load)
    }
}

/// Keeps one processor busy for as long as there is a process of this number.
fn busy(parent: u32) -> std::io::Result<Child> {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", BUSY, &parent.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // An error means that it has ended.
            let _ended = child.kill();
            let _status = child.wait();
        }
    }
}

/// The outcome of all runs of one step.
struct Record {
    step: &'static str,
    /// None if this machine cannot run it.
    times: Option<Vec<Duration>>,
    /// Output of the runs that failed.
    failures: Vec<PathBuf>,
}

fn repeat(site: &Site, step: &Step, options: &RepeatOptions, folder: &Path) -> Result<Record, Failure> {
    let mut record = Record { step: step.name, times: None, failures: Vec::new() };
    if let Some(why) = step.feature.and_then(|feature| feature.missing(site)) {
        println!("== {}: {NOT_RUN}: {why}", step.name);
        return Ok(record);
    }
    let numbers = Mutex::new(1..=options.times);
    // One after the other, until no number is left.
    let row = || {
        let next = || numbers.lock().unwrap_or_else(PoisonError::into_inner).next();
        std::iter::from_fn(next).map(|number| once(site, step, number, options.times, folder)).collect()
    };
    let mut runs: Vec<RepeatRun> = std::thread::scope(|scope| {
        let rows: Vec<_> = (0..options.jobs).map(|_| scope.spawn(row)).collect();
        let join = |row: ScopedJoinHandle<'_, Result<Vec<RepeatRun>, Failure>>| {
            row.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        rows.into_iter().map(join).collect::<Result<Vec<_>, _>>()
    })?
    .concat();
    runs.sort_by_key(|run| run.number);
    record.times = Some(runs.iter().map(|run| run.took).collect());
    record.failures = runs.into_iter().filter_map(|run| run.failure).collect();
    Ok(record)
}

/// The outcome of one run.
#[derive(Clone)]
struct RepeatRun {
    number: usize,
    took: Duration,
    /// Its output, if it failed.
    failure: Option<PathBuf>,
}

fn once(site: &Site, step: &Step, number: usize, times: usize, folder: &Path) -> Result<RepeatRun, Failure> {
    let path = folder.join(format!("{}-{number}.log", step.name));
    let log = File::create(&path).map_err(|error| Failure::Missing {
        what: format!("cannot write {}: {error}", path.display()),
        remedy: "look at its permissions and the space left".into(),
    })?;
    let before = Instant::now();
    let outcome = step.commands.iter().try_for_each(|command| command.record(site, &log));
    let took = before.elapsed();
    let time = seconds(took);
    let failure = match outcome {
        Ok(()) => {
            println!("== {}: run {number} of {times}: ok after {time}", step.name);
            // Only what a failure said is kept.
            let _removed = fs::remove_file(&path);
            None
        }
        Err(failure) => {
            println!("== {}: run {number} of {times}: FAILED after {time}: {failure}", step.name);
            println!("   its output: {}", path.display());
            Some(path)
        }
    };
    Ok(RepeatRun { number, took, failure })
}

fn summary(records: &[Record]) -> String {
    let mut rows = vec![["step", "runs", "failures", "shortest", "longest"].map(String::from)];
    for record in records {
        let times = record.times.as_deref().unwrap_or_default();
        let edge = |time: Option<&Duration>| time.map_or(NOT_RUN.into(), |time| seconds(*time));
        rows.push([
            record.step.into(),
            times.len().to_string(),
            record.failures.len().to_string(),
            edge(times.iter().min()),
            edge(times.iter().max()),
        ]);
    }
    table::layout(&rows)
}

fn verdict(records: &[Record], options: &RepeatOptions) -> Result<(), Failure> {
    let failed: Vec<_> = records.iter().filter(|record| !record.failures.is_empty()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let runs: usize = failed.iter().map(|record| record.failures.len()).sum();
    let names: Vec<_> = failed.iter().map(|record| record.step).collect();
    let mut again = String::from("cargo xtask repeat ");
    if options.jobs > 1 {
        again += &format!("--jobs {} ", options.jobs);
    }
    if options.load {
        again += "--load ";
    }
    Err(Failure::Check { what: format!("again: {again}{}", names.join(" ")), status: format!("{runs} runs") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::Cmd;

    fn site() -> Site {
        Site { root: "/".into(), target: "/".into(), host: String::new(), nightly: false }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-repeat-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn options(times: usize, jobs: usize, load: bool) -> RepeatOptions<'static> {
        RepeatOptions { times, jobs, load, names: Vec::new() }
    }

    #[test]
    fn every_run_is_counted_and_only_what_a_failure_said_is_kept() {
        let folder = folder("counted");
        // Fails in every second run.
        let script =
            format!("cd {}; echo a word; [ -e odd ] && rm odd || {{ touch odd; exit 3; }}", folder.display());
        let commands = vec![Cmd::new("sh", &["-c", &script])];
        let step = Step { name: "shaky", about: "", needs: Vec::new(), feature: None, commands };
        let record = repeat(&site(), &step, &options(5, 1, false), &folder).unwrap();
        let failures = [1, 3, 5].map(|run| folder.join(format!("shaky-{run}.log")));
        assert_eq!(record.failures, failures);
        assert_eq!(fs::read_to_string(&failures[0]).unwrap(), "a word\n");
        assert!(!folder.join("shaky-2.log").exists());
        let text = summary(std::slice::from_ref(&record));
        assert!(text.starts_with("step   runs  failures  shortest  longest\nshaky  5     3 "), "{text}");
        let failure = verdict(&[record], &options(5, 1, true)).unwrap_err();
        assert_eq!(failure.to_string(), "failed (3 runs): again: cargo xtask repeat --load shaky");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn as_many_runs_as_there_are_jobs_go_on_at_the_same_time() {
        let folder = folder("at-once");
        // Ends only when three runs have begun.
        let script = format!(
            "cd {}; touch $$; until [ $(ls | grep -vc log) = 3 ]; do sleep 0.01; done",
            folder.display()
        );
        let commands = vec![Cmd::new("sh", &["-c", &script])];
        let step = Step { name: "together", about: "", needs: Vec::new(), feature: None, commands };
        let record = repeat(&site(), &step, &options(3, 3, false), &folder).unwrap();
        assert_eq!((record.times.map(|times| times.len()), record.failures.len()), (Some(3), 0));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_load_is_gone_when_it_is_dropped() {
        let load = Load::start().unwrap();
        let processes: Vec<_> = load.0.iter().map(|child| format!("/proc/{}", child.id())).collect();
        assert!(!processes.is_empty() && processes.iter().all(|process| Path::new(process).exists()));
        drop(load);
        assert!(!processes.iter().any(|process| Path::new(process).exists()));
    }

    #[test]
    fn a_load_ends_with_the_process_that_started_it() {
        let mut parent = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut load = busy(parent.id()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let ended_alone = load.try_wait().unwrap();
        parent.kill().unwrap();
        parent.wait().unwrap();
        wait_until("the end of the load", || load.try_wait().unwrap().is_some());
        assert_eq!(ended_alone, None);
    }

    #[test]
    fn options_are_read_wherever_they_stand_and_unknown_ones_refused() {
        let words = |line: &str| line.split(' ').map(String::from).collect::<Vec<_>>();
        let arguments = words("hosts --times 3 kill --load --jobs 2");
        let options = parse(&arguments).unwrap();
        assert_eq!((options.times, options.jobs, options.load), (3, 2, true));
        assert_eq!(options.names, ["hosts", "kill"]);
        for wrong in ["--times", "--times 0", "--times x", "--tmies 3", "--jobs 0"] {
            assert_eq!(parse(&words(wrong)).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }
}
