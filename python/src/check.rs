//! `slackline.check`: the judgement of traces.

use pyo3::prelude::*;
use pyo3::types::PyString;

use slackline::internals::trace::{RecordError, TraceLines};

use crate::arguments::wrong_type;
use crate::errors::{Class, Failure};
use crate::wait::time;

/// Judges traces from their content alone: whether each read was whole, as fresh as requested and in order. The
/// program `slackline check` does the same with files.
///
/// `lines` is an iterable of records, each the text of a `Snapshot.certificate`, a `Frame.publication` or a
/// `Publisher.publish_recorded`, in any order and of any number of processes: an open file is one (`open(FILE,
/// encoding="utf-8", errors="replace")`, as its last line may have been cut inside a character). Blank lines count for
/// nothing. `clock_error` is the most, in seconds, by which the clocks of two hosts differ; processes of one host have
/// one clock.
///
/// A last line without its end that is the beginning of a record, or comes behind records that have their ends, is that
/// of a process that was killed while it wrote it: it is left out, and `Verdict.unfinished` says so.
///
/// Raises BadOption if another line is no record, or if there is no record at all.
#[pyfunction]
#[pyo3(signature = (lines, *, clock_error=0.0))]
pub(crate) fn check(py: Python<'_>, lines: &Bound<'_, PyAny>, clock_error: f64) -> PyResult<Verdict> {
    // It is an iterable of texts, too.
    if lines.is_instance_of::<PyString>() {
        return Err(wrong_type(lines, "give its lines: text.splitlines(keepends=True)"));
    }
    let mut trace = TraceLines::new(time("clock_error", clock_error)?);
    for line in lines.try_iter()? {
        trace.add(line?.extract::<String>()?.as_bytes()).map_err(no_record)?;
    }
    let (verdict, unfinished) = py.detach(|| trace.finish()).ok_or_else(|| {
        let remedy = "give the lines that publishers and readers write as their records";
        Failure::new(Class::BadOption, "judging a trace", "there is no record", remedy)
    })?;
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
        unfinished,
    })
}

fn no_record((number, error): (u64, RecordError)) -> Failure {
    Failure::of(Class::BadOption, &error).at(format_args!("line {number}"))
}

/// The judgement of a trace. Each read is verified, unverified, or has a violation.
#[pyclass(frozen, get_all, module = "slackline")]
pub(crate) struct Verdict {
    /// The number of versions with a record of their publication.
    publications: u64,
    /// The number of reads with a record.
    reads: u64,
    /// The number of reads without a violation whose bytes were compared with the published bytes.
    verified: u64,
    /// The number of reads without a violation whose bytes could not be compared: their version has no record of its
    /// publication, or no tensor was read whole.
    unverified: u64,
    /// All violations.
    violations: Vec<Violation>,
    /// The number of the last line, from 1, if it is not finished: it was left out.
    unfinished: Option<u64>,
}

#[pymethods]
impl Verdict {
    fn __repr__(&self) -> String {
        let Verdict { publications, reads, verified, unverified, violations, .. } = self;
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
    /// "whole", "unique", "monotone", "bounded", "tagged" or "timely": the property that the record lacks.
    property: String,
    /// The number of its line, from 1.
    line: u64,
    /// The line of the record that it contradicts, if there is one.
    against: Option<u64>,
    /// The violation, in a sentence.
    found: String,
}

#[pymethods]
impl Violation {
    fn __repr__(&self) -> String {
        format!("<Violation: line {} is not {}: {}>", self.line, self.property, self.found)
    }
}
