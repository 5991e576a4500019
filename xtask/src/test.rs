//! `cargo xtask test`: everything that CI checks, in order; a step that fails does not keep the others from running.

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::limit::COMMAND_MAX;
use crate::needs::{self, Need};
use crate::passed::Passed;
use crate::site::Site;
use crate::steps::{self, LONG, Step};
use crate::table;
use std::io::Write;
use std::time::{Duration, Instant};

pub(crate) const COMMAND: Command = Command {
    name: "test",
    arguments: "[--list] [--again] [--all] [STEP...]",
    about: "everything that CI checks, or only the steps named; --list shows them; --again skips those that have \
            passed on this very tree; --all runs the long ones, too, however long it takes",
    run,
};

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let steps = steps::all(site);
    let (options, names): (Vec<_>, Vec<_>) = arguments.iter().partition(|argument| argument.starts_with('-'));
    if let Some(option) =
        options.iter().find(|option| !["--list", "--again", "--all"].contains(&option.as_str()))
    {
        return Err(Failure::Usage(format!(
            "`test` has no option `{option}`; it has --list, --again and --all"
        )));
    }
    let has = |wanted: &str| options.iter().any(|option| *option == wanted);
    let chosen = choose(&steps, &names)?;
    if has("--list") {
        print!("{}", list(&chosen));
        return Ok(());
    }
    let options = TestOptions { again: has("--again"), long: has("--all") || !names.is_empty() };
    let running = chosen.iter().filter(|step| !options.leaves_out(step));
    if options.long {
        let needs: Vec<Need> = running.flat_map(|step| step.needs.iter().copied()).collect();
        needs::ensure(site, &needs)?;
    }
    if !names.is_empty() {
        // A caller that asks for a step by name is not told that all is well without it.
        if let Some(what) = chosen.iter().find_map(|step| step.feature?.missing(site)) {
            return Err(Failure::Missing { what, remedy: "run this on another machine".into() });
        }
    }
    let passed = Passed::read(site);
    if options.again && !passed.knows_the_tree() {
        return Err(Failure::Missing {
            what: "git cannot say what this tree is, so it is not known what has passed on it".into(),
            remedy: "install git and work in a clone, or leave out --again".into(),
        });
    }
    run_all(site, &chosen, passed, options)
}

/// The options of a call that say which steps run.
#[derive(Clone, Copy, Debug, Default)]
struct TestOptions {
    /// Skips the steps that have passed on this very tree.
    again: bool,
    /// Runs the long steps, too, however long it takes. Without it a run keeps within the time that CI has, on a slow
    /// machine at the price of the last steps.
    long: bool,
}

impl TestOptions {
    fn leaves_out(self, step: &Step) -> bool {
        !self.long && LONG.contains(&step.name)
    }
}

/// What is left of the time that CI has, which is 90 minutes with what it does before.
#[derive(Clone, Copy, Debug)]
struct TestBudget {
    begun: Instant,
    hurry: bool,
}

impl TestBudget {
    /// No step, and no second try, begins later than this after the first.
    const LAST_BEGIN: Duration = Duration::from_secs(55 * 60);
    /// No command goes on for longer than this after the first has begun.
    const END: Duration = Duration::from_secs(83 * 60);

    fn is_open(self) -> bool {
        !self.hurry || self.begun.elapsed() < TestBudget::LAST_BEGIN
    }

    /// The time that a command has which begins now.
    fn command(self) -> Duration {
        let left = TestBudget::END.saturating_sub(self.begun.elapsed());
        if self.hurry { left.min(COMMAND_MAX) } else { COMMAND_MAX }
    }
}

/// The steps of these names, in the order of the table; all of them if there are no names.
pub(crate) fn choose<'a>(steps: &'a [Step], names: &[&String]) -> Result<Vec<&'a Step>, Failure> {
    if let Some(name) = names.iter().find(|name| !steps.iter().any(|step| step.name == name.as_str())) {
        let known: Vec<&str> = steps.iter().map(|step| step.name).collect();
        return Err(Failure::Usage(format!("there is no step `{name}`; there are: {}", known.join(", "))));
    }
    let wanted = |step: &&Step| names.is_empty() || names.iter().any(|name| step.name == name.as_str());
    Ok(steps.iter().filter(wanted).collect())
}

fn list(steps: &[&Step]) -> String {
    let mut text = String::new();
    for step in steps {
        text.push_str(&format!("{}: {}\n", step.name, step.about));
        for command in &step.commands {
            text.push_str(&format!("    {command}\n"));
        }
    }
    text
}

/// The verdict on a step that this machine cannot run.
pub(crate) const NOT_RUN: &str = "NOT RUN";

/// The verdict on a step of which a command failed, and passed when it was run once more.
const FLAKY: &str = "FLAKY";

/// The verdict on a step that passed on this very tree in an earlier call.
const BEFORE: &str = "ok before";

/// Runs all steps, whether or not those before them failed, then says how each of them went. Those that have passed
/// before, those that take long, and those for which there is no time, are skipped where the options say so.
fn run_all(site: &Site, steps: &[&Step], mut passed: Passed, options: TestOptions) -> Result<(), Failure> {
    let start = Instant::now();
    let budget = TestBudget { begun: start, hurry: !options.long };
    let mut done = Vec::new();
    let mut failed = Vec::new();
    for step in steps {
        let before = Instant::now();
        if options.leaves_out(step) {
            println!("== {}: {NOT_RUN}: it takes long; to run it: cargo xtask test {0}\n", step.name);
            done.push((NOT_RUN, before.elapsed()));
            continue;
        }
        if let Some(why) = step.feature.and_then(|feature| feature.missing(site)) {
            println!("== {}: {NOT_RUN}: {why}\n", step.name);
            done.push((NOT_RUN, before.elapsed()));
            continue;
        }
        if options.again && passed.has(step.name) {
            println!("== {}: {BEFORE}\n", step.name);
            done.push((BEFORE, before.elapsed()));
            continue;
        }
        if !budget.is_open() {
            let minutes = TestBudget::LAST_BEGIN.as_secs() / 60;
            println!("== {}: {NOT_RUN}: this machine is slow, {minutes} minutes are over", step.name);
            println!("   to run it: cargo xtask test {}\n", step.name);
            done.push((NOT_RUN, before.elapsed()));
            continue;
        }
        let outcome = run_one(site, step, budget);
        let took = before.elapsed();
        let verdict = outcome.as_ref().map_or("FAILED", |verdict| verdict);
        if verdict == "ok" {
            passed.add(site, step.name);
        }
        println!("== {}: {verdict} after {}", step.name, seconds(took));
        if let Err(failure) = outcome {
            println!("   {failure}\n   to run it again: cargo xtask test {}", step.name);
            failed.push(step.name);
        }
        println!();
        done.push((verdict, took));
    }
    print!("{}", summary(steps, &done, start.elapsed()));
    // The failure itself goes to standard error, after all of this.
    let _ = std::io::stdout().flush();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Check {
        what: format!("to run what failed again: cargo xtask test {}", failed.join(" ")),
        status: format!("{} of {} steps", failed.len(), steps.len()),
    })
}

/// Returns the verdict on a step that has not failed.
fn run_one(site: &Site, step: &Step, budget: TestBudget) -> Result<&'static str, Failure> {
    println!("== {}: {}", step.name, step.about);
    // In a hurry, nothing is installed for steps that may never begin.
    needs::ensure(site, &step.needs)?;
    let mut verdict = "ok";
    for command in &step.commands {
        let Err(failure) = run_command(site, command, budget) else { continue };
        let second = command.second().filter(|_| budget.is_open());
        let (Failure::Check { .. }, Some(second)) = (&failure, second) else { return Err(failure) };
        println!("   {failure}\n   once more, since a machine that is too busy may be the cause:");
        run_command(site, second, budget)?;
        verdict = FLAKY;
    }
    Ok(verdict)
}

fn run_command(site: &Site, command: &Cmd, budget: TestBudget) -> Result<(), Failure> {
    println!("   {command}");
    // Before the command writes to the same stream.
    let _ = std::io::stdout().flush();
    command.run_for(site, budget.command())
}

fn summary(steps: &[&Step], done: &[(&str, Duration)], total: Duration) -> String {
    let mut rows = vec![["step".to_string(), "result".to_string(), "time".to_string()]];
    for (index, step) in steps.iter().enumerate() {
        rows.push(match done.get(index) {
            Some((verdict, took)) => [step.name.into(), verdict.to_string(), seconds(*took)],
            None => [step.name.into(), "not run".into(), String::new()],
        });
    }
    let count = |wanted: &str| done.iter().filter(|(verdict, _)| *verdict == wanted).count();
    let good = count("ok") + count(BEFORE);
    let all = match count(NOT_RUN) + count(FLAKY) {
        0 if good == steps.len() => "ok".into(),
        other if good + other == steps.len() => format!("ok but for {other}"),
        _ => "FAILED".into(),
    };
    rows.push(["all".into(), all, seconds(total)]);
    table::layout(&rows)
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, program: &str) -> Step {
        Step { name, about: "", needs: Vec::new(), feature: None, commands: vec![Cmd::new(program, &[])] }
    }

    /// A site that keeps nothing.
    fn site() -> Site {
        Site { root: "/".into(), target: "/dev/null".into(), host: String::new(), nightly: false }
    }

    fn run(site: &Site, steps: &[&Step]) -> Result<(), Failure> {
        run_all(site, steps, Passed::read(site), TestOptions::default())
    }

    #[test]
    fn again_skips_what_has_passed_and_runs_what_has_failed() {
        let root = std::env::temp_dir().join(format!("xtask-again-{}", std::process::id()));
        std::fs::create_dir_all(root.join("target")).unwrap();
        let site = Site { target: root.join("target"), root: root.clone(), ..site() };
        assert!(Cmd::new("git", &["init", "--quiet"]).output(&site).is_some());
        std::fs::write(root.join(".gitignore"), "target\n").unwrap();
        // Each run of a step makes its mark longer.
        let marks = |name: &str| std::fs::read_to_string(root.join("target").join(name)).unwrap().len();
        let script =
            |name: &str, end: &str| Cmd::new("sh", &["-c", &format!("printf x >> target/{name}; {end}")]);
        let good = Step { commands: vec![script("good", "true")], ..step("good", "") };
        let bad = Step { commands: vec![script("bad", "false")], ..step("bad", "") };
        let both = [&good, &bad];
        let again = TestOptions { again: true, ..TestOptions::default() };
        assert!(run_all(&site, &both, Passed::read(&site), again).is_err());
        assert!(run_all(&site, &both, Passed::read(&site), again).is_err());
        assert_eq!((marks("good"), marks("bad")), (1, 2));
        // Without the option every step runs.
        assert!(run(&site, &both).is_err());
        assert_eq!((marks("good"), marks("bad")), (2, 3));
        std::fs::remove_dir_all(root).unwrap();
    }

    /// One flaky suite must not hide what the suites after it would have found.
    #[test]
    fn steps_after_a_failure_run_too_and_the_end_says_how_to_run_it_again() {
        let mark = std::env::temp_dir().join(format!("xtask-test-{}", std::process::id()));
        let (good, bad, absent) =
            (step("good", "true"), step("bad", "false"), step("absent", "no-such-program"));
        let last = Step { commands: vec![Cmd::new("touch", &[&mark.to_string_lossy()])], ..step("last", "") };
        let failure = run(&site(), &[&good, &bad, &absent, &last]).unwrap_err();
        assert!(mark.exists(), "the last step ran");
        std::fs::remove_file(mark).unwrap();
        let told = "failed (2 of 4 steps): to run what failed again: cargo xtask test bad absent";
        assert_eq!(failure.to_string(), told);
        assert_eq!(failure.exit_code(), 1);
        assert!(run(&site(), &[&good]).is_ok());
    }

    #[test]
    fn a_step_that_takes_long_runs_only_where_it_is_asked_for() {
        let broken = step(LONG[0], "false");
        assert!(run(&site(), &[&broken]).is_ok());
        let all = TestOptions { long: true, ..TestOptions::default() };
        assert!(run_all(&site(), &[&broken], Passed::read(&site()), all).is_err());
    }

    #[test]
    fn what_passes_only_when_it_is_run_again_is_flaky_and_not_ok() {
        let mark = std::env::temp_dir().join(format!("xtask-flaky-{}", std::process::id()));
        let script = format!("test -e {0} || {{ touch {0}; false; }}", mark.display());
        let flaky = Cmd::new("sh", &["-c", &script]);
        let budget = TestBudget { begun: Instant::now(), hurry: true };
        let run = |command: Cmd| run_one(&site(), &Step { commands: vec![command], ..step("a", "") }, budget);
        assert_eq!(run(flaky.clone().retry()).unwrap(), FLAKY);
        assert_eq!(run(flaky.clone().retry()).unwrap(), "ok");
        std::fs::remove_file(&mark).unwrap();
        assert!(run(flaky).is_err(), "where no second run is asked for, there is none");
        std::fs::remove_file(mark).unwrap();
        assert!(run(Cmd::new("false", &[]).retry()).is_err());
        assert!(run(Cmd::new("false", &[]).retry_with(Cmd::new("true", &[]))).is_ok());
        let text = summary(&[&step("a", "")], &[(FLAKY, Duration::ZERO)], Duration::ZERO);
        assert!(text.ends_with("all   ok but for 1  0.0 s\n"), "{text}");
    }

    #[test]
    fn no_step_begins_once_the_time_of_ci_is_nearly_over() {
        let begun = Instant::now().checked_sub(Duration::from_secs(70 * 60)).unwrap();
        let late = TestBudget { begun, hurry: true };
        assert!(!late.is_open());
        assert!(late.command() <= Duration::from_secs(13 * 60));
        let patient = TestBudget { begun, hurry: false };
        assert!(patient.is_open());
        assert_eq!(patient.command(), COMMAND_MAX);
    }

    #[test]
    fn a_program_that_is_not_there_is_a_failure() {
        let absent = step("absent", "no-such-program");
        assert_eq!(run(&site(), &[&absent]).unwrap_err().exit_code(), 1);
    }

    #[test]
    fn steps_run_in_the_order_of_the_table_however_they_are_named() {
        let steps = [step("a", "true"), step("b", "true"), step("c", "true")];
        let (a, c, d) = ("a".to_string(), "c".to_string(), "d".to_string());
        let names = |names: &[&String]| -> Vec<_> {
            choose(&steps, names).unwrap().iter().map(|step| step.name).collect()
        };
        assert_eq!(names(&[&c, &a, &c]), ["a", "c"]);
        assert_eq!(names(&[]), ["a", "b", "c"]);
        assert_eq!(choose(&steps, &[&a, &d]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn the_table_says_what_was_not_run_and_never_calls_that_ok() {
        let (a, b) = (step("a", "true"), step("b", "true"));
        let text = summary(&[&a, &b], &[("FAILED", Duration::from_millis(1250))], Duration::from_secs(2));
        assert_eq!(text, "step  result   time\na     FAILED   1.2 s\nb     not run\nall   FAILED   2.0 s\n");
    }

    #[test]
    fn what_this_machine_cannot_run_is_not_called_ok() {
        let (a, b) = (step("a", "true"), step("b", "true"));
        let done = [("ok", Duration::from_millis(1250)), (NOT_RUN, Duration::ZERO)];
        let text = summary(&[&a, &b], &done, Duration::from_secs(2));
        let rows = [
            "step  result        time",
            "a     ok            1.2 s",
            "b     NOT RUN       0.0 s",
            "all   ok but for 1  2.0 s",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), rows);
    }
}
