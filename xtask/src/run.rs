//! One run of the steps of `cargo xtask test`. Those that only compute run beside those that mostly wait.

use crate::cmd::{Cmd, say};
use crate::failure::Failure;
use crate::needs;
use crate::passed::Passed;
use crate::site::Site;
use crate::steps::{ALONE, BESIDE, Step};
use crate::test::{BEFORE, FAILED, FLAKY, NOT_RUN, TestBudget, TestOptions, seconds, summary};
use std::fs::File;
use std::io::Write;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Runs all steps, whether or not those before them failed, then says how each of them went. Those that have passed
/// before, those that take long, and those for which there is no time, are skipped where the options say so.
pub(crate) fn run_all(
    site: &Site,
    steps: &[&Step],
    passed: Passed,
    options: TestOptions,
) -> Result<(), Failure> {
    let start = Instant::now();
    let budget = TestBudget { begun: start, hurry: !options.long };
    let mut run = StepRun { site, options, budget, passed, done: vec![None; steps.len()] };
    let is_beside = |index: &usize| options.beside && BESIDE.contains(&steps[*index].name);
    let (beside, before): (Vec<usize>, Vec<usize>) = (0..steps.len()).partition(is_beside);
    std::thread::scope(|scope| {
        let mut others = None;
        for (position, index) in before.iter().copied().enumerate() {
            let left = &before[position..];
            if others.is_none() && !left.iter().any(|index| ALONE.contains(&steps[*index].name)) {
                others = Some(run.start_beside(scope, steps, &beside));
            }
            run.step(index, steps[index]);
            others.iter().flat_map(Receiver::try_iter).for_each(|ended| run.end_beside(steps, ended));
        }
        let others = others.unwrap_or_else(|| run.start_beside(scope, steps, &beside));
        others.iter().for_each(|ended| run.end_beside(steps, ended));
    });
    let done: Vec<(&str, Duration)> = run.done.into_iter().flatten().collect();
    print!("{}", summary(steps, &done, start.elapsed()));
    // The failure itself goes to standard error, after all of this.
    let _ = std::io::stdout().flush();
    let has_failed = |(step, (verdict, _)): (&&Step, &(&str, _))| (*verdict == FAILED).then_some(step.name);
    let failed: Vec<&str> = steps.iter().zip(&done).filter_map(has_failed).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Check {
        what: format!("to run what failed again: cargo xtask test {}", failed.join(" ")),
        status: format!("{} of {} steps", failed.len(), steps.len()),
    })
}

/// A step that ran beside the others: its number in the table, its verdict and how long it took, and its output.
type Ended = (usize, Result<&'static str, Failure>, Duration, String);

/// One run of the steps, and the verdict on each so far, with the time that it took.
struct StepRun<'a> {
    site: &'a Site,
    options: TestOptions,
    budget: TestBudget,
    passed: Passed,
    done: Vec<Option<(&'static str, Duration)>>,
}

impl<'a> StepRun<'a> {
    /// Returns true, and says why, if a step is not to run.
    fn skips(&mut self, index: usize, step: &Step) -> bool {
        let not_run = |why: &str| format!("{NOT_RUN}: {why}\n   to run it: cargo xtask test {}", step.name);
        let (verdict, text) = if self.options.leaves_out(step) {
            (NOT_RUN, not_run("it takes long"))
        } else if let Some(why) = step.feature.and_then(|feature| feature.missing(self.site)) {
            (NOT_RUN, format!("{NOT_RUN}: {why}"))
        } else if self.options.again && self.passed.has(step.name) {
            (BEFORE, BEFORE.into())
        } else if !self.budget.is_open() {
            (NOT_RUN, not_run(&TestBudget::over()))
        } else {
            return false;
        };
        println!("== {}: {text}\n", step.name);
        self.done[index] = Some((verdict, Duration::ZERO));
        true
    }

    /// Runs one step and shows its output as it comes.
    fn step(&mut self, index: usize, step: &Step) {
        if self.skips(index, step) {
            return;
        }
        let begun = Instant::now();
        println!("== {}: {}", step.name, step.about);
        // In a hurry, nothing is installed for steps that may never begin.
        let outcome = needs::ensure(self.site, &step.needs);
        let outcome = outcome.and_then(|()| run_one(self.site, step, self.budget, None));
        self.end(index, step, outcome, begun.elapsed());
    }

    fn end(&mut self, index: usize, step: &Step, outcome: Result<&'static str, Failure>, took: Duration) {
        let verdict = outcome.as_ref().map_or(FAILED, |verdict| verdict);
        if verdict == "ok" {
            self.passed.add(self.site, step.name);
        }
        println!("== {}: {verdict} after {}", step.name, seconds(took));
        if let Err(failure) = outcome {
            println!("   {failure}\n   to run it again: cargo xtask test {}", step.name);
        }
        println!();
        self.done[index] = Some((verdict, took));
    }

    /// Starts the steps that run beside the others, one after the other, each once what it needs is installed.
    fn start_beside<'scope>(
        &mut self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        steps: &[&'a Step],
        beside: &[usize],
    ) -> Receiver<Ended>
    where
        'a: 'scope,
    {
        let mut ready = Vec::new();
        for index in beside.iter().copied() {
            let step = steps[index];
            if self.skips(index, step) {
                continue;
            }
            println!("== {}: it runs beside the others; its output follows at its end\n", step.name);
            ready.push((index, step));
        }
        let (site, budget) = (self.site, self.budget);
        let (sender, others) = std::sync::mpsc::channel();
        scope.spawn(move || {
            for (index, step) in ready {
                let begun = Instant::now();
                let (outcome, output) = run_beside(site, step, budget);
                // The receiver is there for as long as this thread is.
                let _ = sender.send((index, outcome, begun.elapsed(), output));
            }
        });
        others
    }

    fn end_beside(&mut self, steps: &[&Step], (index, outcome, took, output): Ended) {
        let step = steps[index];
        println!("== {}: {} (it ran beside the others)\n{}", step.name, step.about, output.trim_end());
        self.end(index, step, outcome, took);
    }
}

/// Runs a step at the lowest priority; its verdict and its output.
fn run_beside(site: &Site, step: &Step, budget: TestBudget) -> (Result<&'static str, Failure>, String) {
    let path = site.target.join("tmp").join(format!("beside-{}.log", step.name));
    let file = std::fs::create_dir_all(site.target.join("tmp")).and_then(|()| File::create(&path));
    let file = file.map_err(|error| Failure::Missing {
        what: format!("cannot write {}: {error}", path.display()),
        remedy: "make the target directory writable".into(),
    });
    let outcome = file.and_then(|log| match budget.is_open() {
        true => needs::ensure_to(site, &step.needs, Some(&log))
            .and_then(|()| run_one(site, step, budget, Some(&log))),
        false => {
            let _ = writeln!(&log, "   {}", TestBudget::over());
            Ok(NOT_RUN)
        }
    });
    (outcome, std::fs::read_to_string(&path).unwrap_or_default())
}

/// Returns the verdict on a step that has not failed. The output goes to a file, at the lowest priority, or is shown.
fn run_one(
    site: &Site,
    step: &Step,
    budget: TestBudget,
    log: Option<&File>,
) -> Result<&'static str, Failure> {
    let mut verdict = "ok";
    for command in &step.commands {
        let Err(failure) = run_command(site, command, budget, log) else { continue };
        let second = command.second().filter(|_| budget.is_open());
        let (Failure::Check { .. }, Some(second)) = (&failure, second) else { return Err(failure) };
        say(log, &format!("   {failure}\n   once more, since a machine that is too busy may be the cause:"));
        run_command(site, second, budget, log)?;
        verdict = FLAKY;
    }
    Ok(verdict)
}

fn run_command(site: &Site, command: &Cmd, budget: TestBudget, log: Option<&File>) -> Result<(), Failure> {
    say(log, &format!("   {command}"));
    command.run_beside(site, log, budget.command())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::LONG;

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
    fn a_step_that_computes_runs_beside_the_next_and_its_failure_is_told() {
        let root = std::env::temp_dir().join(format!("xtask-beside-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let site = Site { target: root.clone(), root: root.clone(), ..site() };
        // Each waits for the mark of the other: one after the other, neither would end.
        let meet = |mine: &str, other: &str, end: &str| {
            let wait = format!(
                "touch {mine}; for i in $(seq 600); do test -e {other} && {end}; sleep 0.1; done; false"
            );
            vec![Cmd::new("sh", &["-c", &wait])]
        };
        let first = Step { commands: meet("a", "b", "exit 0"), ..step("first", "") };
        let beside = |end: &str| Step { commands: meet("b", "a", end), ..step(BESIDE[0], "") };
        let options = TestOptions { beside: true, ..TestOptions::default() };
        let run = |beside: &Step| run_all(&site, &[&first, beside], Passed::read(&site), options);
        assert!(run(&beside("exit 0")).is_ok());
        let failure = run(&beside("exit 1")).unwrap_err().to_string();
        assert!(failure.contains("1 of 2 steps") && failure.ends_with(BESIDE[0]), "{failure}");
        std::fs::remove_dir_all(root).unwrap();
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
        let run =
            |command: Cmd| run_one(&site(), &Step { commands: vec![command], ..step("a", "") }, budget, None);
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
    fn a_program_that_is_not_there_is_a_failure() {
        let absent = step("absent", "no-such-program");
        assert_eq!(run(&site(), &[&absent]).unwrap_err().exit_code(), 1);
    }
}
