//! Option values that have a form of their own.

use std::ops::Range;
use std::str::FromStr;

use slackline::sim::{Change, Crash, Direction, Distribution, NetworkPartition};

/// Some workers: `3`, or `0-7`, both ends included.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workers(pub(super) Range<usize>);

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Workers, String> {
        let wrong = || format!("{text:?} names no workers; write one, such as 3, or several, such as 0-7");
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|worker| *worker < usize::MAX);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = number(first).zip(number(last)).ok_or_else(wrong)?;
        if first > last { Err(wrong()) } else { Ok(Workers(first..last + 1)) }
    }
}

/// Workers as they are written.
pub(super) fn written(workers: &Range<usize>) -> String {
    match workers.len() {
        1 => workers.start.to_string(),
        _ => format!("{}-{}", workers.start, workers.end.saturating_sub(1)),
    }
}

/// `WORKERS=FACTOR`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Factor {
    pub(super) workers: Range<usize>,
    pub(super) factor: f64,
}

impl FromStr for Factor {
    type Err = String;

    fn from_str(text: &str) -> Result<Factor, String> {
        let form = "write WORKERS=FACTOR, such as 0=4 or 0-7=1.5";
        let (workers, factor) = text.split_once('=').ok_or(form)?;
        let factor = factor.trim().parse().map_err(|_| format!("{factor:?} is no number; {form}"))?;
        Ok(Factor { workers: workers.parse::<Workers>()?.0, factor })
    }
}

/// `TIME:WORKERS=FACTOR`.
pub(super) fn change(text: &str) -> Result<Change, String> {
    let form = "write TIME:WORKERS=FACTOR, such as 60:0-7=5 for half of 16 workers slowed after a minute";
    let (at, rest) = text.split_once(':').ok_or(form)?;
    let at = at.trim().parse().map_err(|_| format!("{at:?} is no time in seconds; {form}"))?;
    let Factor { workers, factor } = rest.parse()?;
    Ok(Change { at, workers, factor })
}

/// `WORKER@TIME`, or `WORKER@TIME-TIME`.
pub(super) fn crash(text: &str) -> Result<Crash, String> {
    let form =
        "write WORKER@TIME, such as 2@30, or WORKER@TIME-TIME, such as 2@30-45 for a worker that comes back";
    let (worker, times) = text.split_once('@').ok_or(form)?;
    let seconds = |text: &str| text.trim().parse::<f64>().map_err(|_| format!("{text:?} is no time; {form}"));
    let worker = worker.trim().parse().map_err(|_| format!("{worker:?} is no worker; {form}"))?;
    match times.split_once('-') {
        Some((at, back)) => Ok(Crash { worker, at: seconds(at)?, back: Some(seconds(back)?) }),
        None => Ok(Crash { worker, at: seconds(times)?, back: None }),
    }
}

/// `WORKERS:up@TIME-TIME`, or `down`.
pub(super) fn cut(text: &str) -> Result<NetworkPartition, String> {
    let form = "write WORKERS:up@TIME-TIME or WORKERS:down@TIME-TIME, such as 0-3:up@10-20";
    let (workers, rest) = text.split_once(':').ok_or(form)?;
    let (direction, times) = rest.split_once('@').ok_or(form)?;
    let (from, until) = times.split_once('-').ok_or(form)?;
    let direction = match direction.trim() {
        "up" => Direction::Up,
        "down" => Direction::Down,
        other => return Err(format!("{other:?} is no direction; {form}")),
    };
    let seconds = |text: &str| text.trim().parse::<f64>().map_err(|_| format!("{text:?} is no time; {form}"));
    let workers = workers.parse::<Workers>()?.0;
    Ok(NetworkPartition { workers, direction, from: seconds(from)?, until: seconds(until)? })
}

/// A distribution, or a bare number of seconds.
pub(super) fn random_time(text: &str) -> Result<Distribution, String> {
    text.parse::<Distribution>().map_err(|error| error.to_string())
}

/// A number with K, M or G behind it: powers of 1000.
pub(super) fn scaled(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (number, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        Some((at, 'g' | 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let number = number.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number
        .map(|number| number * factor)
        .ok_or_else(|| format!("{text:?} is no number above 0; write one, such as 125M"))
}

/// Cuts a list at the commas that stand in no brackets.
pub(crate) fn list(text: &str) -> Vec<String> {
    let (mut depth, mut parts) = (0usize, vec![String::new()]);
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_one_or_a_range() {
        assert_eq!("3".parse(), Ok(Workers(3..4)));
        assert_eq!("0-7".parse(), Ok(Workers(0..8)));
        for text in ["", "a", "7-0", "-3", "1-", "18446744073709551615"] {
            assert!(text.parse::<Workers>().unwrap_err().contains("such as 3"), "{text}");
        }
    }

    #[test]
    fn what_has_a_form_says_it_when_it_is_missed() {
        assert_eq!(change("60:0-7=5"), Ok(Change { at: 60.0, workers: 0..8, factor: 5.0 }));
        assert_eq!(crash("2@30-45"), Ok(Crash { worker: 2, at: 30.0, back: Some(45.0) }));
        assert!(cut("0-3:up@10-20").is_ok());
        for error in [change("0-7=5").unwrap_err(), crash("2").unwrap_err(), cut("0:left@1-2").unwrap_err()] {
            assert!(error.contains("such as"), "{error}");
        }
        assert!("0:4".parse::<Factor>().unwrap_err().contains("WORKERS=FACTOR"));
    }

    #[test]
    fn sizes_and_times_read_as_people_write_them() {
        assert_eq!((scaled("125M"), scaled("2.5k"), scaled("7")), (Ok(125e6), Ok(2500.0), Ok(7.0)));
        assert!(scaled("-1").is_err() && scaled("M").is_err() && scaled("").is_err() && scaled("é").is_err());
        assert_eq!(random_time("0.5"), Ok(Distribution::Constant { seconds: 0.5 }));
        assert_eq!(random_time("exp(2)"), Ok(Distribution::Exponential { mean: 2.0 }));
        assert!(random_time("-1").is_err());
    }

    #[test]
    fn commas_in_brackets_do_not_part() {
        assert_eq!(list("bsp, dbw(delivery=wait, k=3),ssp(2)"), ["bsp", "dbw(delivery=wait, k=3)", "ssp(2)"]);
        assert!(list(" , ").is_empty());
    }
}
