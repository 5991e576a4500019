//! Records of versions and of reads, and their judgement: see [`slackline::weights::Certificate`].

use std::ffi::{c_char, c_void};
use std::time::Duration;

use slackline::internals::trace::{TraceLines, Violation};

use crate::error::{Failure, slackline_status};
use crate::handle::{Out, c_text, call, lend_text, slice, slice_mut, volatile, with};
use crate::publisher::{Publishing, slackline_publisher};
use crate::reader::{Reading, slackline_reader};
use crate::sized::{Measured, SizedOut};
use crate::weights::slackline_snapshot;

/// As `slackline_publisher_publish`, and lends the record of the version in `publication`: one line of JSON without
/// its end, of which a trace is made. It takes the SHA-256 of all tensors. Valid until the next recorded version or
/// destroy of this publisher.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_publish_recorded(
    publisher: *mut slackline_publisher,
    bytes: *const c_void,
    len: usize,
    timeout_ms: u64,
    version: *mut u64,
    publication: *mut *const c_char,
) -> slackline_status {
    // SAFETY: the contract.
    call(|| unsafe {
        let bytes = slice(bytes.cast::<u8>(), len, "bytes")?;
        let timeout = Duration::from_millis(timeout_ms);
        record(publisher, version, publication, |publishing| publishing.publish_recorded(bytes, timeout))
    })
}

/// As `slackline_publisher_commit`, and lends the record of the version as `slackline_publisher_publish_recorded` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_commit_recorded(
    publisher: *mut slackline_publisher,
    version: *mut u64,
    publication: *mut *const c_char,
) -> slackline_status {
    // SAFETY: the contract.
    call(|| unsafe { record(publisher, version, publication, Publishing::commit_recorded) })
}

/// # Safety
///
/// The contract.
unsafe fn record(
    publisher: *mut slackline_publisher,
    version: *mut u64,
    publication: *mut *const c_char,
    publish: impl FnOnce(&mut Publishing) -> Result<(u64, *const c_char), Failure>,
) -> Result<(), Failure> {
    // SAFETY: the contract.
    let (number, line) = unsafe { (Out::wanted(version, "version")?, Out::new(publication, "publication")?) };
    // SAFETY: the contract.
    let (version, publication) = unsafe { with(publisher, publish)? };
    if let Some(number) = number {
        number.set(version);
    }
    line.set(publication);
    Ok(())
}

/// Lends the record of the read: one line of JSON without its end, with the request, the result and the time.
/// The first call computes the SHA-256 of each tensor that was read whole. Valid until the snapshot is destroyed.
/// `slackline_reader_certificate` has the records of other reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_snapshot_certificate(
    snapshot: *const slackline_snapshot,
    certificate: *mut *const c_char,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { lend_text(snapshot, certificate, "certificate", |held| held.certificate()) }
}

/// Lends the record of the reader's last read that is no snapshot, a refresh, pull or pin which has succeeded, as
/// `slackline_snapshot_certificate` does. `bytes` and `len` are the result of that read: the memory that
/// `slackline_reader_bytes` or `slackline_reader_pin` lends, or that `slackline_reader_pull` has filled. Of a pinned
/// version ask `slackline_reader_is_intact` afterwards. Refreshes are on record as the reads of a reader of their own,
/// since they keep a copy that is fresh enough. Valid until the next call of this function or destroy of this reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_certificate(
    reader: *mut slackline_reader,
    bytes: *const c_void,
    len: usize,
    certificate: *mut *const c_char,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (bytes, out) =
            unsafe { (volatile(bytes.cast::<u8>(), len, "bytes")?, Out::new(certificate, "certificate")?) };
        let certify = |reading: &mut Reading| reading.certify(bytes);
        // SAFETY: the contract.
        out.set(unsafe { with(reader, certify)? });
        Ok(())
    })
}

/// The judgement of a trace. Each read is verified, unverified, or has a violation. Set `size` before the call that
/// fills it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_verdict {
    /// `sizeof(struct slackline_verdict)`.
    pub size: usize,
    /// The number of versions with a record of their publication.
    pub publications: u64,
    /// The number of reads with a record.
    pub reads: u64,
    /// The number of reads without a violation whose bytes were compared with the published bytes.
    pub verified: u64,
    /// The number of reads without a violation whose bytes could not be compared: their version has no record of its
    /// publication, or no tensor was read whole.
    pub unverified: u64,
    /// The number of violations.
    pub violations: u64,
    /// The bytes that the text of all violations takes, with its zero.
    pub text_bytes: u64,
    /// The number of the last line, from 1, if it is not finished: it was left out. 0 if all lines are whole.
    pub unfinished: u64,
}

impl Measured for slackline_verdict {
    const FIRST: usize = 56;
}

/// Judges records from their content alone, as the program `slackline check` does: whether each read was whole, as
/// fresh as requested, and in order. `trace` is text of lines, the records of any number of publishers and readers in
/// any order; blank lines count for nothing. `clock_error_ms` is the most by which the clocks of two hosts differ: 0
/// for processes of one host. `verdict->size` must be set.
///
/// `violations`, unless NULL, becomes text of a line for each violation, as many whole lines as fit `room` with a zero
/// behind them: `verdict->text_bytes` is the room for all.
///
/// A last line without its end that is the beginning of a record, or comes behind records, comes from a process that
/// was killed while it wrote the line: it is left out, and `verdict->unfinished` says so. A violation is no failure
/// of the call. `SLACKLINE_STATUS_BAD_ARGUMENT`: another line is no record, or there is no record at all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_check(
    trace: *const c_char,
    clock_error_ms: u64,
    verdict: *mut slackline_verdict,
    violations: *mut c_char,
    room: usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (trace, out) =
            unsafe { (c_text(trace, "trace")?.to_bytes(), SizedOut::new(verdict, "verdict")?) };
        // SAFETY: the contract.
        let to = unsafe { slice_mut(violations.cast::<u8>(), room, "violations")? };
        let mut checked = TraceLines::new(Duration::from_millis(clock_error_ms));
        for line in trace.split_inclusive(|byte| *byte == b'\n') {
            checked.add(line).map_err(|(number, error)| {
                Failure::bad_argument(format!("cannot check the trace: line {number}: {error}"))
            })?;
        }
        let (judged, unfinished) = checked.finish().ok_or_else(|| {
            let remedy = "give the lines that publishers and readers write as their records";
            Failure::bad_argument(format!("cannot check the trace: there is no record; {remedy}"))
        })?;
        let lines: Vec<String> = judged.violations.iter().map(line_of).collect();
        write_lines(&lines, to);
        out.set(slackline_verdict {
            size: size_of::<slackline_verdict>(),
            publications: judged.publications,
            reads: judged.reads,
            verified: judged.verified,
            unverified: judged.unverified,
            violations: lines.len() as u64,
            text_bytes: lines.iter().map(String::len).sum::<usize>() as u64 + 1,
            unfinished: unfinished.unwrap_or(0),
        });
        Ok(())
    })
}

fn line_of(violation: &Violation<u64>) -> String {
    let Violation { property, at, against, found } = violation;
    let against = against.map_or(String::new(), |other| format!(" (line {other})"));
    // A tensor's name may hold anything, and each violation has one line, before the only zero.
    let found = found.replace(char::is_control, " ");
    format!("line {at}: not {property}: {found}{against}\n")
}

/// Writes as many whole lines as fit, and a zero.
fn write_lines(lines: &[String], mut to: &mut [u8]) {
    for line in lines {
        if line.len() >= to.len() {
            break;
        }
        let (head, rest) = to.split_at_mut(line.len());
        head.copy_from_slice(line.as_bytes());
        to = rest;
    }
    if let Some(zero) = to.first_mut() {
        *zero = 0;
    }
}
