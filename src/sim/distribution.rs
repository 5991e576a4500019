//! Distributions of random times: of computing, of latency, of what comes between crashes.

use crate::diagnostic::Diagnostic;
use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;
use std::sync::Arc;

use super::random::Random;

/// A distribution of the time that something takes, in seconds.
///
/// Written and read as `constant(1)`, `exp(1)` (mean), `shifted-exp(0.5, 0.5)` (shift, and mean of the rest),
/// `pareto(2, 0.5)` (shape and scale), `uniform(0.5, 1.5)` (from, to) and `trace:FILE`.
///
/// ```
/// use slackline::sim::Distribution;
/// let distribution: Distribution = "shifted-exp(0.5, 0.25)".parse()?;
/// assert_eq!(distribution, Distribution::ShiftedExponential { shift: 0.5, mean: 0.25 });
/// assert_eq!(distribution.to_string(), "shifted-exp(0.5, 0.25)");
/// assert_eq!(distribution.mean(), 0.75);
/// # Ok::<(), slackline::sim::DistributionError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Distribution {
    /// Always the same.
    Constant {
        /// The time.
        seconds: f64,
    },
    /// Without memory.
    Exponential {
        /// Its mean.
        mean: f64,
    },
    /// A part that is always there, and an exponential one.
    ShiftedExponential {
        /// The part that is always there.
        shift: f64,
        /// Mean of the other.
        mean: f64,
    },
    /// With a heavy tail: `P(longer than t) = (scale / t)^shape`.
    Pareto {
        /// The smaller, the heavier the tail; the mean is infinite at 1 and below.
        shape: f64,
        /// The shortest time.
        scale: f64,
    },
    /// Anything between two times.
    Uniform {
        /// The shortest.
        from: f64,
        /// The longest.
        to: f64,
    },
    /// Times that were measured, one after the other.
    Trace(Trace),
}

/// Measured times. Worker `w` of `n` begins `w/n` of the way through and goes on line by line, round and round, so that
/// what was slow for a while stays slow for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    file: String,
    seconds: Arc<[f64]>,
}

/// A distribution that cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DistributionError {
    /// Not the form of any distribution.
    #[error("no distribution of times is written {text:?}: {}", self.help())]
    Unknown {
        /// The text that was given.
        text: String,
    },
    /// A parameter out of its range.
    #[error("{distribution} takes no such parameters as {text:?}: {remedy}")]
    Parameters {
        /// The distribution.
        distribution: &'static str,
        /// The text that was given.
        text: String,
        /// The parameters that the distribution takes.
        remedy: &'static str,
    },
    /// A trace that cannot be used.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl Diagnostic for DistributionError {
    fn operation(&self) -> &'static str {
        "reading a distribution"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        let remedy = match self {
            DistributionError::Parameters { remedy, .. } => remedy,
            DistributionError::Trace(error) => error.help(),
            error => error.help(),
        };
        Some(remedy).filter(|text| !text.is_empty()).map(Cow::from)
    }
}

impl DistributionError {
    /// The remedy, where it is the same for all errors of a kind.
    fn help(&self) -> &'static str {
        match self {
            DistributionError::Unknown { .. } => {
                "use constant(SECONDS), exp(MEAN), shifted-exp(SHIFT, MEAN), pareto(SHAPE, SCALE), uniform(FROM, TO) \
                 or trace:FILE"
            }
            _ => "",
        }
    }
}

/// A file of times that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// It cannot be read.
    #[error("cannot read the trace {file}: {source}; {}", self.help())]
    Unreadable {
        /// The file.
        file: String,
        /// The cause.
        source: std::io::Error,
    },
    /// No number in it.
    #[error("the trace {file} holds no time: {}", self.help())]
    Empty {
        /// The file.
        file: String,
    },
    /// A line that is no number.
    #[error("line {line} of the trace {file} is {text:?}: {}", self.help())]
    NotANumber {
        /// The file.
        file: String,
        /// The number of the line, from 1.
        line: usize,
        /// The text of the line.
        text: String,
    },
    /// A time that is negative, or endless.
    #[error("line {line} of the trace {file} is {seconds}: times are finite and at least 0")]
    OutOfRange {
        /// The file.
        file: String,
        /// The number of the line, from 1.
        line: usize,
        /// The time on the line.
        seconds: f64,
    },
    /// Nothing but zeros.
    #[error("all times of the trace {file} are 0, so nothing would ever take time: {}", self.help())]
    AllZero {
        /// The file.
        file: String,
    },
}

impl TraceError {
    /// The remedy, where it is the same for all errors of a kind.
    fn help(&self) -> &'static str {
        match self {
            TraceError::Unreadable { .. } => "give a text file with one number of seconds in each line",
            TraceError::Empty { .. } => "give one number of seconds in each line",
            TraceError::NotANumber { .. } => "give one number of seconds, such as 0.25, in each line",
            TraceError::AllZero { .. } => "give some that are not",
            _ => "",
        }
    }
}

impl Distribution {
    /// Mean, in seconds; infinite for a Pareto distribution of shape 1 or less.
    pub fn mean(&self) -> f64 {
        match self {
            Distribution::Constant { seconds } => *seconds,
            Distribution::Exponential { mean } => *mean,
            Distribution::ShiftedExponential { shift, mean } => shift + mean,
            Distribution::Pareto { shape, .. } if *shape <= 1.0 => f64::INFINITY,
            Distribution::Pareto { shape, scale } => shape * scale / (shape - 1.0),
            Distribution::Uniform { from, to } => (from + to) / 2.0,
            Distribution::Trace(trace) => trace.seconds.iter().sum::<f64>() / trace.seconds.len() as f64,
        }
    }

    /// Returns its mean, or where that is infinite its median, in seconds.
    pub fn typical(&self) -> f64 {
        match self {
            Distribution::Pareto { shape, scale } if *shape <= 1.0 => scale * (1.0 / shape).exp2(),
            distribution => distribution.mean(),
        }
    }

    /// A distribution with the times of a file: one number of seconds in each line; empty lines, and what follows a
    /// `#`, count for nothing.
    ///
    /// # Errors
    /// The file cannot be read or is no regular file; it has no time; a line is no number, or one that cannot be a
    /// time; all times are 0.
    pub fn trace(file: &str) -> Result<Distribution, TraceError> {
        // Asked before opening: to open a named pipe would wait for its other end, and a device may never end.
        let text = match fs::metadata(file) {
            Ok(metadata) if !metadata.is_file() => Err(io::Error::other("it is not a regular file")),
            metadata => metadata.and_then(|_| fs::read_to_string(file)),
        };
        let text = text.map_err(|source| TraceError::Unreadable { file: file.to_owned(), source })?;
        Trace::parse(file, &text).map(Distribution::Trace)
    }

    /// Says what is wrong with its parameters, if anything is.
    ///
    /// # Errors
    /// The first parameter that cannot be, with the values that can.
    pub fn check(&self) -> Result<(), DistributionError> {
        let not_negative = |value: f64| value.is_finite() && value >= 0.0;
        let (distribution, sound, remedy) = match *self {
            Distribution::Constant { seconds } => {
                ("constant", not_negative(seconds), "seconds are finite, at least 0")
            }
            Distribution::Exponential { mean } => {
                ("exp", not_negative(mean), "the mean is finite, at least 0")
            }
            Distribution::ShiftedExponential { shift, mean } => {
                ("shifted-exp", not_negative(shift) && not_negative(mean), "both are finite, at least 0")
            }
            Distribution::Pareto { shape, scale } => {
                let sound = shape.is_finite() && shape > 0.0 && scale.is_finite() && scale > 0.0;
                ("pareto", sound, "shape and scale are finite and greater than 0")
            }
            Distribution::Uniform { from, to } => {
                let sound = not_negative(from) && not_negative(to) && from <= to;
                ("uniform", sound, "both are finite, at least 0, and the first is not the greater one")
            }
            Distribution::Trace(_) => return Ok(()),
        };
        let error = || DistributionError::Parameters { distribution, text: self.to_string(), remedy };
        if sound { Ok(()) } else { Err(error()) }
    }
}

impl FromStr for Distribution {
    type Err = DistributionError;

    fn from_str(text: &str) -> Result<Distribution, DistributionError> {
        let text = text.trim();
        let unknown = || DistributionError::Unknown { text: text.to_owned() };
        if let Ok(seconds) = text.parse() {
            let distribution = Distribution::Constant { seconds };
            return distribution.check().map(|()| distribution);
        }
        if let Some(file) = text.strip_prefix("trace:") {
            return Ok(Distribution::trace(file.trim())?);
        }
        let (name, rest) = text.split_once('(').ok_or_else(unknown)?;
        let inner = rest.trim_end().strip_suffix(')').ok_or_else(unknown)?;
        let numbers: Vec<f64> = inner
            .split(',')
            .map(|part| part.trim().parse())
            .collect::<Result<_, _>>()
            .map_err(|_| unknown())?;
        let distribution = match (name.trim(), numbers.as_slice()) {
            ("constant", &[seconds]) => Distribution::Constant { seconds },
            ("exp", &[mean]) => Distribution::Exponential { mean },
            ("shifted-exp", &[shift, mean]) => Distribution::ShiftedExponential { shift, mean },
            ("pareto", &[shape, scale]) => Distribution::Pareto { shape, scale },
            ("uniform", &[from, to]) => Distribution::Uniform { from, to },
            _ => return Err(unknown()),
        };
        distribution.check().map(|()| distribution)
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Constant { seconds } => write!(f, "constant({seconds})"),
            Distribution::Exponential { mean } => write!(f, "exp({mean})"),
            Distribution::ShiftedExponential { shift, mean } => write!(f, "shifted-exp({shift}, {mean})"),
            Distribution::Pareto { shape, scale } => write!(f, "pareto({shape}, {scale})"),
            Distribution::Uniform { from, to } => write!(f, "uniform({from}, {to})"),
            Distribution::Trace(trace) => write!(f, "trace:{}", trace.file),
        }
    }
}

impl Trace {
    /// Reads the text of `file`.
    fn parse(file: &str, text: &str) -> Result<Trace, TraceError> {
        let mut seconds = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let file = || file.to_owned();
            let time: f64 = content.parse().map_err(|_| TraceError::NotANumber {
                file: file(),
                line,
                text: content.to_owned(),
            })?;
            if !time.is_finite() || time < 0.0 {
                return Err(TraceError::OutOfRange { file: file(), line, seconds: time });
            }
            seconds.push(time);
        }
        let file = file.to_owned();
        if seconds.is_empty() {
            return Err(TraceError::Empty { file });
        }
        if seconds.iter().all(|time| *time == 0.0) {
            return Err(TraceError::AllZero { file });
        }
        Ok(Trace { file, seconds: seconds.into() })
    }
}

/// Draws from a distribution: one of several, each with a stream of its own.
#[derive(Clone, Debug)]
pub struct Sampler {
    random: Random,
    /// Line of the trace that comes next.
    line: usize,
}

impl Sampler {
    /// Number `index` of `count` under one seed, for one purpose: each has a stream of its own.
    pub fn new(distribution: &Distribution, seed: u64, purpose: u64, index: usize, count: usize) -> Sampler {
        let line = match distribution {
            Distribution::Trace(trace) => {
                (trace.seconds.len() as u128 * index as u128 / count.max(1) as u128) as usize
            }
            _ => 0,
        };
        Sampler { random: Random::stream(seed, purpose, index as u64), line }
    }

    /// The next time, in seconds.
    pub fn draw(&mut self, distribution: &Distribution) -> f64 {
        match distribution {
            Distribution::Constant { seconds } => *seconds,
            Distribution::Exponential { mean } => mean * self.random.exponential(),
            Distribution::ShiftedExponential { shift, mean } => shift + mean * self.random.exponential(),
            Distribution::Pareto { shape, scale } => scale * (1.0 - self.random.unit()).powf(-1.0 / shape),
            Distribution::Uniform { from, to } => from + (to - from) * self.random.unit(),
            Distribution::Trace(trace) => {
                let seconds = trace.seconds[self.line % trace.seconds.len()];
                self.line = (self.line + 1) % trace.seconds.len();
                seconds
            }
        }
    }
}
