//! `cargo xtask test`: everything that CI checks, in order, up to the first failure.

use crate::Command;
use crate::failure::Failure;
use crate::needs::{self, Need};
use crate::site::Site;
use crate::steps::{self, Step};
use crate::table;
use std::io::Write;
use std::time::{Duration, Instant};

pub(crate) const COMMAND: Command = Command {
    name: "test",
    arguments: "[--list] [STEP...]",
    about: "everything that CI checks, or only the steps named; --list shows them",
    run,
};

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let steps = steps::all(site);
    let (options, names): (Vec<_>, Vec<_>) = arguments.iter().partition(|argument| argument.starts_with('-'));
    if let Some(option) = options.iter().find(|option| **option != "--list") {
        return Err(Failure::Usage(format!("`test` has no option `{option}`; it has --list")));
    }
    let chosen = choose(&steps, &names)?;
    if !options.is_empty() {
        print!("{}", list(&chosen));
        return Ok(());
    }
    let needs: Vec<Need> = chosen.iter().flat_map(|step| step.needs.iter().copied()).collect();
    needs::ensure(site, &needs)?;
    if !names.is_empty() {
        // Who asks for a step is not told that all is well without it.
        if let Some(what) = chosen.iter().find_map(|step| step.feature?.missing(site)) {
            return Err(Failure::Missing { what: what.into(), remedy: "run this on another machine".into() });
        }
    }
    run_all(site, &chosen)
}

/// The steps of these names, in the order of the table; all of them if there are no names.
fn choose<'a>(steps: &'a [Step], names: &[&String]) -> Result<Vec<&'a Step>, Failure> {
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
const NOT_RUN: &str = "NOT RUN";

/// Runs the steps up to the first failure, then says how each of them went.
fn run_all(site: &Site, steps: &[&Step]) -> Result<(), Failure> {
    let start = Instant::now();
    let mut done = Vec::new();
    let mut outcome = Ok(());
    for step in steps {
        let before = Instant::now();
        if let Some(why) = step.feature.and_then(|feature| feature.missing(site)) {
            println!("== {}: {NOT_RUN}: {why}\n", step.name);
            done.push((NOT_RUN, before.elapsed()));
            continue;
        }
        outcome = run_one(site, step);
        let took = before.elapsed();
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("== {}: {verdict} after {}\n", step.name, seconds(took));
        done.push((verdict, took));
        if outcome.is_err() {
            break;
        }
    }
    print!("{}", summary(steps, &done, start.elapsed()));
    // The failure itself goes to standard error, after all of this.
    let _ = std::io::stdout().flush();
    outcome
}

fn run_one(site: &Site, step: &Step) -> Result<(), Failure> {
    println!("== {}: {}", step.name, step.about);
    for command in &step.commands {
        println!("   {command}");
        // Before the command writes to the same stream.
        let _ = std::io::stdout().flush();
        command.run(site)?;
    }
    Ok(())
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
    let all = match count(NOT_RUN) {
        0 if count("ok") == steps.len() => "ok".into(),
        left if count("ok") + left == steps.len() => format!("ok but for {left}"),
        _ => "FAILED".into(),
    };
    rows.push(["all".into(), all, seconds(total)]);
    table::layout(&rows)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::Cmd;

    fn step(name: &'static str, program: &str) -> Step {
        Step { name, about: "", needs: Vec::new(), feature: None, commands: vec![Cmd::new(program, &[])] }
    }

    fn site() -> Site {
        Site { root: "/".into(), target: "/".into(), host: String::new(), nightly: false }
    }

    #[test]
    fn the_first_failure_stops_the_run_and_is_reported() {
        let (good, bad, last) = (step("good", "true"), step("bad", "false"), step("last", "no-such-program"));
        let failure = run_all(&site(), &[&good, &bad, &last]).unwrap_err();
        assert!(matches!(&failure, Failure::Check { what, .. } if what == "false"), "{failure}");
        assert_eq!(failure.exit_code(), 1);
        assert!(run_all(&site(), &[&good]).is_ok());
    }

    #[test]
    fn a_program_that_is_not_there_is_a_failure() {
        let absent = step("absent", "no-such-program");
        assert_eq!(run_all(&site(), &[&absent]).unwrap_err().exit_code(), 1);
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
