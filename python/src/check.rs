//! `slackline.check`: the judgement of traces.

use pyo3::prelude::*;

use slackline::internals::trace::{TraceChecker, TraceRecord};

use crate::errors::{Class, Failure};
use crate::wait::timeout as seconds;

/// Judges traces by what they say alone: whether each read was whole, as fresh as was asked for and in order. The
/// program `slackline check` does the same with files.
///
/// `lines` is an iterable of records, each the text of a `Snapshot.certificate`, a `Frame.publication` or a
/// `Publisher.publish_recorded`, in any order and of any number of processes: an open file is one. Blank lines count
/// for nothing. `clock_error` is the most, in seconds, by which the clocks of two hosts differ; processes of one host
/// have one clock.
///
/// Raises BadOption if a line is no record.
#[pyfunction]
#[pyo3(signature = (lines, *, clock_error=0.0))]
pub(crate) fn check(py: Python<'_>, lines: &Bound<'_, PyAny>, clock_error: f64) -> PyResult<Verdict> {
    let mut checker = TraceChecker::new(seconds(clock_error)?);
    for (line, number) in lines.try_iter()?.zip(1_u64..) {
        let line = line?.extract::<String>()?;
        if line.trim().is_empty() {
            continue;
        }
        let record = line.trim().parse::<TraceRecord>();
        let record = record
            .map_err(|error| Failure::of(Class::BadOption, &error).at(format_args!("line {number}")))?;
        checker.add(record, number);
    }
    let verdict = py.detach(|| checker.finish());
    let violations = verdict.violations.into_iter().map(|violation| Violation {
        property: violation.property.to_string(),
        line: violation.at,
        against: violation.against,
        found: violation.found,
    });
    Ok(Verdict {
        publications: verdict.publications,
        reads: verdict.reads,
        verified: verdict.verified,
        unverified: verdict.unverified,
        violations: violations.collect(),
    })
}

/// The judgement of a trace. Each read is verified, unverified, or has a violation.
#[pyclass(frozen, get_all, module = "slackline")]
pub(crate) struct Verdict {
    /// The number of versions with a record of their publication.
    publications: u64,
    /// The number of reads with a record.
    reads: u64,
    /// The number of reads without a violation whose bytes were compared with those that were published.
    verified: u64,
    /// The number of reads without a violation whose bytes could not be compared: their version has no record of its
    /// publication, or no tensor was read whole.
    unverified: u64,
    /// All that was found.
    violations: Vec<Violation>,
}

#[pymethods]
impl Verdict {
    fn __repr__(&self) -> String {
        let Verdict { publications, reads, verified, unverified, violations } = self;
        format!(
            "<Verdict: {publications} publications, {reads} reads, {verified} verified, {unverified} unverified, {} \
             violations>",
            violations.len()
        )
    }
}

/// A record that cannot be true if the library keeps its promises.
#[pyclass(frozen, get_all, module = "slackline")]
#[derive(Clone)]
pub(crate) struct Violation {
    /// "whole", "unique", "monotone", "bounded", "tagged" or "timely": what the record is not.
    property: String,
    /// The number of its line, from 1.
    line: u64,
    /// The line of the record that it contradicts, if there is one.
    against: Option<u64>,
    /// What was found, in a sentence.
    found: String,
}

#[pymethods]
impl Violation {
    fn __repr__(&self) -> String {
        format!("<Violation: line {} is not {}: {}>", self.line, self.property, self.found)
    }
}
