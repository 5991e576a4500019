//! `cargo xtask test`: everything that CI checks, in order; a step that fails does not keep the others from running.

use crate::Command;
use crate::failure::Failure;
use crate::limit::COMMAND_MAX;
use crate::needs::{self, Need};
use crate::passed::Passed;
use crate::run;
use crate::site::Site;
use crate::steps::{self, LONG, Step};
use crate::table;
use std::time::{Duration, Instant};

pub(crate) const COMMAND: Command = Command {
    name: "test",
    arguments: "[--list] [--again] [--all] [--keep-going] [STEP...]",
    about: "everything that CI checks, or only the steps named; --list shows them; --again skips those that have \
            passed on this very tree; --all runs the long ones, too, however long it takes; a step that fails stops \
            no other, with --keep-going or without",
    run,
};

const OPTIONS: [&str; 4] = ["--list", "--again", "--all", "--keep-going"];

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let steps = steps::all(site);
    let (options, names): (Vec<_>, Vec<_>) = arguments.iter().partition(|argument| argument.starts_with('-'));
    if let Some(option) = options.iter().find(|option| !OPTIONS.contains(&option.as_str())) {
        let all = OPTIONS.join(", ");
        return Err(Failure::Usage(format!("`test` has no option `{option}`; it has {all}")));
    }
    let has = |wanted: &str| options.iter().any(|option| *option == wanted);
    let chosen = choose(&steps, &names)?;
    if has("--list") {
        print!("{}", list(&chosen));
        return Ok(());
    }
    let (long, beside) = (has("--all") || !names.is_empty(), names.is_empty());
    let options = TestOptions { again: has("--again"), long, beside };
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
    run::run_all(site, &chosen, passed, options)
}

/// The options of a call that say which steps run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TestOptions {
    /// Skips the steps that have passed on this very tree.
    pub(crate) again: bool,
    /// Runs the long steps, too, however long it takes. Without it a run keeps within the time that CI has, on a slow
    /// machine at the price of the last steps.
    pub(crate) long: bool,
    /// Runs the steps that only compute beside those that mostly wait.
    pub(crate) beside: bool,
}

impl TestOptions {
    pub(crate) fn leaves_out(self, step: &Step) -> bool {
        !self.long && LONG.contains(&step.name)
    }
}

/// What is left of the time that CI has, which is 90 minutes with what it does before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestBudget {
    pub(crate) begun: Instant,
    pub(crate) hurry: bool,
}

impl TestBudget {
    /// No step, and no second try, begins later than this after the first.
    const LAST_BEGIN: Duration = Duration::from_secs(55 * 60);
    /// No command goes on for longer than this after the first has begun.
    const END: Duration = Duration::from_secs(83 * 60);

    pub(crate) fn over() -> String {
        format!("this machine is slow, {} minutes are over", TestBudget::LAST_BEGIN.as_secs() / 60)
    }

    pub(crate) fn is_open(self) -> bool {
        !self.hurry || self.begun.elapsed() < TestBudget::LAST_BEGIN
    }

    /// The time that a command has which begins now.
    pub(crate) fn command(self) -> Duration {
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

pub(crate) const FAILED: &str = "FAILED";

/// The verdict on a step of which a command failed, and passed when it was run once more.
pub(crate) const FLAKY: &str = "FLAKY";

/// The verdict on a step that passed on this very tree in an earlier call.
pub(crate) const BEFORE: &str = "ok before";

pub(crate) fn summary(steps: &[&Step], done: &[(&str, Duration)], total: Duration) -> String {
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
    use crate::cmd::Cmd;

    fn step(name: &'static str, program: &str) -> Step {
        Step { name, about: "", needs: Vec::new(), feature: None, commands: vec![Cmd::new(program, &[])] }
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
