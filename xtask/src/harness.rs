//! Two measurements side by side, one of ours and one of a limit or a peer: what `bench` and the rig's comparison with
//! perftest have in common.
//!
//! Machines are noisy. Each pair is measured several times, the two sides next to each other and each of them first
//! every other time, and the ratio is the median of the pairs' ratios.

use std::fmt;
use std::time::{Duration, Instant};

/// The bound that our number, divided by the peer's, must keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Nothing is promised: it is shown beside what is.
    None,
}

impl Target {
    pub(crate) fn is_met_by(self, ratio: f64) -> bool {
        match self {
            Target::AtLeast(least) => ratio >= least,
            Target::AtMost(most) => ratio <= most,
            Target::None => true,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::AtLeast(least) => write!(f, ">= {least:.2}"),
            Target::AtMost(most) => write!(f, "<= {most:.2}"),
            Target::None => f.write_str("none"),
        }
    }
}

/// The result of one row.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Our number and the peer's, as often as they were measured.
    pub(crate) pairs: Vec<(f64, f64)>,
    /// The program that the peer needs and this machine lacks.
    pub(crate) missing: Option<String>,
    pub(crate) failure: Option<String>,
}

impl Outcome {
    /// Medians of ours, of the peer's, and of the ratios; `None` unless all was measured.
    pub(crate) fn medians(&self) -> Option<(f64, f64, f64)> {
        if self.failure.is_some() || self.missing.is_some() {
            return None;
        }
        let of = |what: fn(&(f64, f64)) -> f64| median(self.pairs.iter().map(what).collect());
        Some((of(|pair| pair.0)?, of(|pair| pair.1)?, of(|pair| pair.0 / pair.1)?))
    }

    pub(crate) fn verdict(&self, target: Target) -> String {
        if let Some(failure) = &self.failure {
            return format!("failed: {}", failure.lines().collect::<Vec<_>>().join("; "));
        }
        if let Some(missing) = &self.missing {
            return format!("not measured: {}", missing.lines().collect::<Vec<_>>().join("; "));
        }
        match self.medians() {
            None => "not measured: no time was left; --minutes N gives more".into(),
            Some(_) if target == Target::None => "shown".into(),
            Some((.., ratio)) if target.is_met_by(ratio) => "met".into(),
            Some(_) => "missed".into(),
        }
    }
}

/// Returns the middle value, or the mean of the two in the middle; `None` of no values.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    match values.len() % 2 {
        0 => Some(f64::midpoint(values[values.len() / 2 - 1], upper)),
        _ => Some(upper),
    }
}

/// The time that all measurements may take together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    begin: Instant,
    limit: Duration,
    /// The longest pair so far.
    longest: Duration,
}

impl Budget {
    pub(crate) fn new(begin: Instant, limit: Duration) -> Budget {
        Budget { begin, limit, longest: Duration::ZERO }
    }

    /// Returns true if a pair that takes as long as the longest one, or as long as this one took before, still fits.
    fn allows(&self, before: Option<Duration>) -> bool {
        self.begin.elapsed() + before.unwrap_or(self.longest) <= self.limit
    }
}

/// The side of a pair that is to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Peer,
}

/// Measures every row so many times, by turns, as long as there is time; after each pair it tells the index of its row.
/// `side` measures one side of a row, for the `time`th time. The end is also where `tell` returns false.
pub(crate) fn measure<E: fmt::Display>(
    times: usize,
    outcomes: &mut [Outcome],
    mut budget: Budget,
    mut side: impl FnMut(usize, usize, Side) -> Result<f64, E>,
    mut tell: impl FnMut(usize, &[Outcome]) -> bool,
) {
    let mut took = vec![None; outcomes.len()];
    for time in 0..times {
        for at in 0..outcomes.len() {
            let closed = outcomes[at].failure.is_some() || outcomes[at].missing.is_some();
            if closed || !budget.allows(took[at]) {
                continue;
            }
            let begin = Instant::now();
            match pair(time, |which| side(at, time, which)) {
                Ok(pair) => outcomes[at].pairs.push(pair),
                Err(failure) => outcomes[at].failure = Some(failure.to_string()),
            }
            took[at] = Some(begin.elapsed());
            budget.longest = budget.longest.max(begin.elapsed());
            if !tell(at, outcomes) {
                return;
            }
        }
    }
}

/// Returns our number and the peer's; every other time the peer's is measured first.
fn pair<E>(time: usize, mut side: impl FnMut(Side) -> Result<f64, E>) -> Result<(f64, f64), E> {
    if time % 2 == 1 {
        let peer = side(Side::Peer)?;
        return Ok((side(Side::Ours)?, peer));
    }
    Ok((side(Side::Ours)?, side(Side::Peer)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(pairs: &[(f64, f64)]) -> Outcome {
        Outcome { pairs: pairs.to_vec(), ..Outcome::default() }
    }

    fn budget(limit: Duration) -> Budget {
        Budget::new(Instant::now(), limit)
    }

    #[test]
    fn a_row_is_met_only_by_a_measured_ratio() {
        let target = Target::AtLeast(0.9);
        assert_eq!(outcome(&[(9.1, 10.0), (1.0, 10.0), (10.0, 10.0)]).verdict(target), "met");
        assert_eq!(outcome(&[(8.9, 10.0)]).verdict(target), "missed");
        assert_eq!(outcome(&[(8.9, 10.0)]).verdict(Target::AtMost(0.9)), "met");
        assert_eq!(outcome(&[(8.9, 10.0)]).verdict(Target::None), "shown");
        assert!(outcome(&[]).verdict(target).starts_with("not measured"));
        let missing = Outcome { missing: Some("a tool".into()), ..outcome(&[(10.0, 10.0)]) };
        assert_eq!(missing.verdict(target), "not measured: a tool");
        let failed = Outcome { failure: Some("a\nb".into()), ..outcome(&[(10.0, 10.0)]) };
        assert_eq!(failed.verdict(target), "failed: a; b");
    }

    #[test]
    fn ratios_are_taken_within_pairs() {
        let (ours, peer, ratio) = outcome(&[(1.0, 1.0), (8.0, 10.0), (30.0, 20.0)]).medians().unwrap();
        assert_eq!((ours, peer, ratio), (8.0, 10.0, 1.0));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }

    #[test]
    fn each_side_is_first_every_other_time_and_each_pair_is_told_at_once() {
        let mut outcomes = [Outcome::default(), Outcome::default()];
        let log = std::cell::RefCell::new(Vec::new());
        let side = |row: usize, time: usize, side: Side| {
            log.borrow_mut().push(format!("{side:?} {row} {time}"));
            if row == 1 { Err("no") } else { Ok(1.0) }
        };
        measure(2, &mut outcomes, budget(Duration::MAX), side, |at, outcomes| {
            let Outcome { pairs, failure, .. } = &outcomes[at];
            log.borrow_mut().push(format!("tell {at}: {} {}", pairs.len(), failure.is_some()));
            true
        });
        let expected = [
            "Ours 0 0",
            "Peer 0 0",
            "tell 0: 1 false",
            "Ours 1 0",
            "tell 1: 0 true",
            "Peer 0 1",
            "Ours 0 1",
            "tell 0: 2 false",
        ];
        assert_eq!(log.into_inner(), expected);
    }

    #[test]
    fn nothing_is_begun_that_would_end_after_the_time_that_was_given() {
        let pause = Duration::from_secs(2);
        let side = |_, _, _| {
            std::thread::sleep(pause);
            Ok::<_, String>(1.0)
        };
        let mut outcomes = [Outcome::default(), Outcome::default()];
        // The first pair is tried, since how long one takes is not known; a second one would take too long.
        measure(5, &mut outcomes, budget(pause * 3), side, |_, _| true);
        assert_eq!(outcomes.each_ref().map(|outcome| outcome.pairs.len()), [1, 0]);
        assert_eq!(
            outcomes[1].verdict(Target::None),
            "not measured: no time was left; --minutes N gives more"
        );
    }
}
