//! Traces: the records of publishers and readers of versions, and their judgement by a third party.
//!
//! A [`Publication`] says which bytes a version has, a [`Certificate`] says which bytes a reader got on which
//! request. Each is one line of JSON; a trace is a file of such lines, of one process or of many, in any order.
//! [`TraceChecker`] compares them.
//!
//! Pure: records come in and violations go out; no file, no memory of a peer, no clock of its own.
#![forbid(unsafe_code)]

mod check;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod hex;
mod lines;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::clock::{Version, VersionTag};
use crate::diagnostic::{Diagnostic, remedy_of};

pub use check::{Property, TraceChecker, Verdict, Violation};
pub use lines::TraceLines;

/// The record of a version by the publisher that made it. Its text is one line of a trace.
///
/// Times are in nanoseconds since 1970 by the clock of the publisher's host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    /// The publisher's incarnation.
    #[serde(with = "hex::word")]
    pub origin: u64,
    /// The number of the version.
    pub version: Version,
    /// The publisher's own words about it.
    #[serde(with = "hex::Tag")]
    pub tag: VersionTag,
    /// The time that readers get with the version: just before any of them could read it.
    pub published_ns: u64,
    /// The time from which every reader that asked found this version or a newer one.
    pub complete_ns: u64,
    /// The SHA-256 of the bytes of each tensor.
    #[serde(with = "hex::map")]
    pub digests: BTreeMap<String, [u8; 32]>,
}

/// The record of a read by the reader that made it. Its text is one line of a trace.
///
/// Times are in nanoseconds since 1970 by the clock of the reader's host, except the time of the publication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// The reader: a random number.
    #[serde(with = "hex::word")]
    pub reader: u64,
    /// The number of the read among the reads of this reader, in order of time.
    pub sequence: u64,
    /// The most versions that the copy was to be behind the newest, if that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_staleness: Option<u64>,
    /// The oldest version that would do, if that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Version>,
    /// The one version that would do, if that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exactly: Option<Version>,
    /// The time at which the read began.
    pub began_ns: u64,
    /// The time at which the copy was complete.
    pub ended_ns: u64,
    /// The incarnation of the owner that the copy is from.
    #[serde(with = "hex::word")]
    pub epoch: u64,
    /// The incarnation of the publisher that made the version; zero from a server.
    #[serde(with = "hex::word")]
    pub origin: u64,
    /// The number of the version.
    pub version: Version,
    /// The newest version that the owner had at the last look at it, by which the copy was proved: where there was a
    /// bound, not before the copy was complete.
    pub newest: Version,
    /// The publisher's own words about the version.
    #[serde(with = "hex::Tag")]
    pub tag: VersionTag,
    /// The time of its publication, by the clock of the publisher's host; zero from a server.
    pub published_ns: u64,
    /// The SHA-256 of the bytes of each tensor that was read whole.
    #[serde(with = "hex::map")]
    pub digests: BTreeMap<String, [u8; 32]>,
}

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TraceRecord {
    /// A version was published.
    Publication(Publication),
    /// A version was read.
    Certificate(Certificate),
}

/// A record by reference, so that each is written as it lies.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum RecordLine<'a> {
    Publication(&'a Publication),
    Certificate(&'a Certificate),
}

impl fmt::Display for RecordLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Display for Publication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RecordLine::Publication(self).fmt(f)
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RecordLine::Certificate(self).fmt(f)
    }
}

impl fmt::Display for TraceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceRecord::Publication(publication) => publication.fmt(f),
            TraceRecord::Certificate(certificate) => certificate.fmt(f),
        }
    }
}

impl FromStr for TraceRecord {
    type Err = RecordError;

    fn from_str(line: &str) -> Result<TraceRecord, RecordError> {
        TraceRecord::from_bytes(line.as_bytes())
    }
}

impl TraceRecord {
    /// The record of a line, whose bytes may be no text.
    fn from_bytes(line: &[u8]) -> Result<TraceRecord, RecordError> {
        serde_json::from_slice(line).map_err(|source| {
            let is_beginning = source.is_eof() && line.trim_ascii_start().starts_with(b"{");
            RecordError { reason: source.to_string(), is_beginning }
        })
    }
}

/// A line of a trace is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the line is no record ({reason}): {}", remedy_of(self))]
pub struct RecordError {
    reason: String,
    is_beginning: bool,
}

impl RecordError {
    /// True if more text could make a record of the line, as of one whose process was killed while it wrote it.
    pub fn is_beginning(&self) -> bool {
        self.is_beginning
    }
}

impl Diagnostic for RecordError {
    fn operation(&self) -> &'static str {
        "reading a trace"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some("give lines as publications and certificates write themselves, each whole".into())
    }
}
