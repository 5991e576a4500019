//! A trace line by line, whose process may have been killed while it wrote the last one.

use std::time::Duration;

use super::{RecordError, TraceChecker, TraceRecord, Verdict};

/// Judges the lines of a trace, or of several one behind the other. Violations name lines by their numbers, from 1 on.
#[derive(Debug)]
pub struct TraceLines {
    checker: TraceChecker<u64>,
    /// The number of the last line.
    number: u64,
    records: u64,
    /// All lines so far have their ends, as the lines of a file do.
    is_file: bool,
    /// Why the last line is no record, which was not finished.
    unfinished: Option<RecordError>,
}

impl TraceLines {
    /// Has seen no line. `clock_error` is as for [`TraceChecker::new`].
    pub fn new(clock_error: Duration) -> TraceLines {
        let checker = TraceChecker::new(clock_error);
        TraceLines { checker, number: 0, records: 0, is_file: true, unfinished: None }
    }

    /// Takes the next line, with its end if it has one. A blank line counts for nothing. Its bytes need not be text: a
    /// last line may have been cut within a character.
    ///
    /// # Errors
    /// With its number, a line that is no record and no unfinished last one.
    pub fn add(&mut self, line: &[u8]) -> Result<(), (u64, RecordError)> {
        if let Some(error) = self.unfinished.take() {
            return Err((self.number, error));
        }
        self.number += 1;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let has_end = line.ends_with(b"\n");
        match TraceRecord::from_bytes(line.trim_ascii()) {
            Ok(record) => {
                self.checker.add(record, self.number);
                self.records += 1;
            }
            // A process that is killed leaves the beginning of a record, a host that crashes may leave anything.
            Err(error) if !has_end && (error.is_beginning() || self.is_file && self.records > 0) => {
                self.unfinished = Some(error);
            }
            Err(error) => return Err((self.number, error)),
        }
        self.is_file &= has_end;
        Ok(())
    }

    /// Judges the records, and tells the number of the last line if it is not finished and was left out; `None` if
    /// there is no record, of which every verdict would be good.
    pub fn finish(self) -> Option<(Verdict<u64>, Option<u64>)> {
        let unfinished = self.unfinished.map(|_| self.number);
        (self.records > 0).then(|| (self.checker.finish(), unfinished))
    }
}
