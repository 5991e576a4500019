//! Follows the runs on a stage from what is said there.

use super::console::{Listener, Sign};
use super::judge::RunOutcome;
use super::runs::Run;
use super::stage::{Said, Stage};
use std::time::{Duration, Instant};

/// The times that `play` allows.
#[derive(Debug)]
pub(super) struct Patience {
    /// For the first run to begin. Seen: 5 s on two cores that are otherwise idle.
    start: Duration,
    /// For a run beyond its own time, to make the device again before it and to end it after it.
    grace: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { start: Duration::from_secs(180), grace: Duration::from_secs(60) }
    }
}

/// The outcomes of some runs.
#[derive(Debug, Default)]
pub(super) struct Played {
    /// In the order in which they were run; not those that were not begun.
    pub(super) outcomes: Vec<RunOutcome>,
    /// The reason for which no more of them were run.
    pub(super) trouble: Option<String>,
    /// All that was said.
    pub(super) transcript: Vec<String>,
}

struct Current {
    run: &'static Run,
    listener: Listener,
    since: Instant,
}

impl Current {
    fn end(mut self, end: Result<i32, String>) -> RunOutcome {
        let end = match (end, self.listener.end()) {
            (Ok(0), Err(why)) => Err(why),
            (end, _) => end,
        };
        RunOutcome {
            run: self.run,
            is_counted: self.listener.is_counted(),
            checks: self.listener.checks,
            figures: self.listener.figures,
            ratios: self.listener.ratios,
            measured: self.listener.measured,
            end,
            took: self.since.elapsed(),
        }
    }
}

/// Listens until all runs are done, or something is wrong with the stage. Hands each line of progress to `show`.
pub(super) fn play(stage: &Stage, runs: &[&'static Run], patience: &Patience, show: &dyn Fn(&str)) -> Played {
    let (start, mut played) = (Instant::now(), Played::default());
    let mut current = None::<Current>;
    let mut deadline = start + patience.start;
    let trouble = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let (index, line) = match stage.said.recv_timeout(left) {
            Ok(Said::Line(index, line)) => (index, line),
            Ok(Said::Gone(index)) => break format!("guest {} has died", index + 1),
            Err(_) => break "guest 1 hangs".into(),
        };
        played.transcript.push(format!("{}| {line}", index + 1));
        let sign = Sign::parse(&line);
        if let Some(Sign::Broken(why)) = sign {
            break format!("guest {}: {why}", index + 1);
        }
        if index != 0 {
            continue;
        }
        match (sign, current.take()) {
            (None, Some(mut at)) => {
                if let Some(check) = at.listener.hear(&line) {
                    show(&format!("   {check}"));
                }
                current = Some(at);
            }
            (None, None) => {}
            (Some(Sign::Up(release)), None) => {
                show(&format!("   up after {:.1} s: Linux {release}", start.elapsed().as_secs_f64()));
            }
            (Some(Sign::Begin(name)), None) if let Some(run) = find(runs, name) => {
                show(&format!("== {}: {}", run.name, run.about));
                let since = Instant::now();
                deadline = since + run.timeout + patience.grace;
                current = Some(Current { run, listener: Listener::default(), since });
            }
            (Some(Sign::End(name, code)), Some(at)) if at.run.name == name => {
                played.outcomes.push(at.end(Ok(code)));
                deadline = Instant::now() + patience.grace;
            }
            (Some(Sign::Done), None) => return played,
            (Some(sign), at) => {
                current = at;
                break format!("guest 1 said {sign:?} out of turn");
            }
        }
    };
    played.outcomes.extend(current.map(|at| at.end(Err(trouble.clone()))));
    played.trouble = Some(trouble);
    played
}

fn find(runs: &[&'static Run], name: &str) -> Option<&'static Run> {
    runs.iter().copied().find(|run| run.name == name)
}

#[cfg(test)]
mod tests {
    use super::super::runs::RUNS;
    use super::super::stage::mortal;
    use super::*;

    fn played(script: &str) -> Played {
        let mut command = mortal("sh");
        command.args(["-c", script]);
        let runs: Vec<_> = RUNS.iter().collect();
        play(&Stage::host(command).unwrap(), &runs, &Patience::default(), &|_| {})
    }

    #[test]
    fn a_guest_that_hangs_is_not_waited_for() {
        let mut command = mortal("sh");
        command.args(["-c", "echo '@rig up 6.1'; exec sleep 1000"]);
        let patience = Patience { start: Duration::from_millis(10), grace: Duration::ZERO };
        let played = play(&Stage::host(command).unwrap(), &[], &patience, &|_| {});
        assert_eq!(played.trouble.as_deref(), Some("guest 1 hangs"));
    }

    #[test]
    fn runs_are_followed_to_their_ends() {
        let played = played(
            "echo '@rig up 6.1'; echo '@rig begin perftest'; echo 'RESULT a ok'; echo '@rig end perftest 0'
             echo '@rig begin loss'; echo 'RESULT b FAILED why'; echo '@rig end loss 3'; echo '@rig done'
             exec sleep 100",
        );
        assert_eq!(played.trouble, None);
        let ends: Vec<_> = played.outcomes.iter().map(|outcome| (outcome.run.name, &outcome.end)).collect();
        assert_eq!(ends, [("perftest", &Ok(0)), ("loss", &Ok(3))]);
        assert_eq!(played.transcript.len(), 8);
    }

    #[test]
    fn a_guest_that_dies_or_breaks_ends_the_run_that_it_was_at() {
        for (script, why) in [("", "guest 1 has died"), ("echo '@rig broken no x'; sleep 9", "guest 1: no x")]
        {
            let played = played(&format!("echo '@rig begin perftest'; echo 'RESULT a ok'; {script}"));
            assert_eq!(played.trouble.as_deref(), Some(why));
            assert_eq!(played.outcomes[0].end, Err(why.to_string()));
        }
        let nothing = played("exit 0");
        assert!(nothing.outcomes.is_empty() && nothing.trouble.is_some());
    }

    #[test]
    fn a_sign_out_of_turn_is_trouble() {
        for script in ["@rig begin no-such-run", "@rig end perftest 0"] {
            let played = played(&format!("echo '{script}'; sleep 9"));
            assert!(played.trouble.unwrap().contains("out of turn"), "{script}");
        }
    }
}
