//! Causes of lost workers, as a user is told of them: the same cause once, with the number of workers that it took.

use std::fmt;

use super::super::error_report::ErrorReport;

/// Most different causes in one message; the rest is counted.
const CAUSES_MAX: usize = 3;

/// Workers that are named by number; more of them are counted.
const NAMED_MAX: usize = 4;

/// The cause for which a worker is lost.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Loss {
    /// The way in which its process or its connection ended, as a predicate: "was killed by signal 9".
    Ended(String),
    /// The error that it told.
    Said(ErrorReport),
}

impl Loss {
    pub(super) fn ended(how: impl Into<String>) -> Loss {
        Loss::Ended(how.into())
    }

    /// The cause, and the remedy where there is one.
    pub(super) fn text(&self) -> String {
        match self {
            Loss::Ended(how) => how.clone(),
            Loss::Said(told) => told.to_string(),
        }
    }

    /// The cause, in one line, even if a file name or a process has put line breaks into it.
    fn cause(&self) -> String {
        let (Loss::Ended(cause) | Loss::Said(ErrorReport { cause, .. })) = self;
        one_line(cause)
    }

    fn remedy(&self) -> Option<String> {
        match self {
            Loss::Ended(_) => None,
            Loss::Said(told) => told.remedy.as_deref().map(one_line),
        }
    }

    /// Two losses have the same cause if they differ in numbers alone: of processes, ports, clocks and times.
    fn key(&self) -> String {
        let mut key = String::new();
        for c in self.cause().chars() {
            match c {
                c if !c.is_ascii_digit() => key.push(c),
                _ if key.ends_with('#') => {}
                _ => key.push('#'),
            }
        }
        key
    }
}

/// Workers that were lost for the same cause; the text is the first one's.
#[derive(Debug, PartialEq)]
pub(super) struct Cause {
    pub(super) workers: Vec<usize>,
    message: String,
    /// The remedy, if there is one.
    pub(super) remedy: Option<String>,
    is_predicate: bool,
}

/// Groups losses by their cause, the most frequent cause first.
pub(super) fn causes<'a>(losses: impl Iterator<Item = (usize, &'a Loss)>) -> Vec<Cause> {
    let mut causes: Vec<(String, Cause)> = Vec::new();
    for (worker, loss) in losses {
        let key = loss.key();
        match causes.iter_mut().find(|(known, _)| *known == key) {
            Some((_, cause)) => cause.workers.push(worker),
            None => {
                // A semicolon stands between a cause and its remedy, and nowhere else.
                let message = loss.cause().replace("; ", ", ");
                let (remedy, is_predicate) = (loss.remedy(), matches!(loss, Loss::Ended(_)));
                causes.push((key, Cause { workers: vec![worker], message, remedy, is_predicate }));
            }
        }
    }
    causes.sort_by_key(|(_, cause)| std::cmp::Reverse(cause.workers.len()));
    causes.into_iter().map(|(_, cause)| cause).collect()
}

impl Cause {
    fn who(&self) -> String {
        let (last, others) = self.workers.split_last().unwrap_or((&0, &[]));
        match others {
            [] => format!("worker {last}"),
            _ if self.workers.len() > NAMED_MAX => format!("{} workers", self.workers.len()),
            _ => {
                let others: Vec<_> = others.iter().map(usize::to_string).collect();
                format!("workers {} and {last}", others.join(", "))
            }
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_predicate {
            return write!(f, "{}: {}", self.who(), self.message);
        }
        match self.message.strip_prefix("was ") {
            Some(rest) if self.workers.len() > 1 => write!(f, "{} were {rest}", self.who()),
            _ => write!(f, "{} {}", self.who(), self.message),
        }
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// One sentence on all these losses, with the remedy for the most frequent one.
pub(super) fn sentence<'a>(losses: impl Iterator<Item = (usize, &'a Loss)>) -> ErrorReport {
    tell(&causes(losses), Cause::to_string)
}

/// The same of workers that never joined.
pub(super) fn could_not_join<'a>(losses: impl Iterator<Item = (usize, &'a Loss)>) -> ErrorReport {
    tell(&causes(losses), |cause| format!("{} could not join: {}", cause.who(), cause.message))
}

fn tell(causes: &[Cause], one: impl Fn(&Cause) -> String) -> ErrorReport {
    let most = if causes.len() == CAUSES_MAX + 1 { causes.len() } else { CAUSES_MAX };
    let mut parts: Vec<_> = causes.iter().take(most).map(one).collect();
    let more = causes.get(most..).unwrap_or_default();
    if !more.is_empty() {
        let workers: usize = more.iter().map(|cause| cause.workers.len()).sum();
        parts.push(format!("{workers} workers for {} other causes", more.len()));
    }
    let remedy = causes.iter().find_map(|cause| cause.remedy.clone());
    ErrorReport { remedy, ..ErrorReport::of_cause(parts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cause_is_told_once_and_counted_however_many_workers_it_took() {
        let said = |worker| {
            let cause = format!(
                "publishing did not end within 60s: needed version {worker}, the server has 7; is it slow"
            );
            let remedy = Some("use a longer\n--timeout".into());
            (worker, Loss::Said(ErrorReport { remedy, ..ErrorReport::of_cause(cause) }))
        };
        let mut losses: Vec<_> = (0..98).map(said).collect();
        losses.push((98, Loss::ended("was killed by signal 9")));
        let text = sentence(losses.iter().map(|(worker, loss)| (*worker, loss))).to_string();
        assert_eq!(
            text,
            "98 workers: publishing did not end within 60s: needed version 0, the server has 7, is it slow, \
             worker 98 was killed by signal 9; use a longer --timeout"
        );
    }

    #[test]
    fn many_causes_are_cut_short_and_counted() {
        let losses: Vec<_> =
            ["a", "b", "c", "d", "e", "a", "a"].map(|text| Loss::Said(ErrorReport::of_cause(text))).into();
        let text = sentence(losses.iter().enumerate()).to_string();
        assert_eq!(text, "workers 0, 5 and 6: a, worker 1: b, worker 2: c, 2 workers for 2 other causes");
        let ended = [Loss::ended("was killed by signal 9"), Loss::ended("was killed by signal 9")];
        assert_eq!(sentence(ended.iter().enumerate()).to_string(), "workers 0 and 1 were killed by signal 9");
        let never = could_not_join(losses[1..2].iter().enumerate()).to_string();
        assert_eq!(never, "worker 0 could not join: b");
        let four = sentence(losses[..4].iter().enumerate()).to_string();
        assert_eq!(four, "worker 0: a, worker 1: b, worker 2: c, worker 3: d");
    }
}
