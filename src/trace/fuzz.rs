//! Lines of any process, for the fuzz target of traces.

use std::time::Duration;

use super::{TraceChecker, TraceRecord};

/// Reads the lines of a trace and judges it: each record is written as it was read, and the counts add up.
pub(crate) fn fuzz_trace(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut checker = TraceChecker::new(Duration::from_nanos(1));
    for (at, line) in text.lines().enumerate() {
        if let Ok(record) = line.parse::<TraceRecord>() {
            assert_eq!(record.to_string().parse().as_ref(), Ok(&record));
            checker.add(record, at);
        }
    }
    let verdict = checker.finish();
    assert!(verdict.verified + verdict.unverified <= verdict.reads);
    assert!(verdict.verified == 0 || verdict.publications > 0);
}

/// A trace of a version and of a read of it, whole and line by line.
pub(crate) fn trace_samples() -> Vec<Vec<u8>> {
    let (digits, word) = ("a5".repeat(32), "0123456789abcdef");
    let tag = format!("\"tag\":{{\"step\":8,\"label\":\"{digits}\"}},\"published_ns\":9");
    let digests = format!("\"digests\":{{\"w\":\"{digits}\"}}");
    let publication = format!(
        "{{\"publication\":{{\"origin\":\"{word}\",\"version\":6,{tag},\"complete_ns\":10,{digests}}}}}"
    );
    let certificate = format!(
        "{{\"certificate\":{{\"reader\":\"{word}\",\"sequence\":1,\"at_least\":2,\"began_ns\":11,\"ended_ns\":12,\
         \"epoch\":\"{word}\",\"origin\":\"{word}\",\"version\":6,\"newest\":6,{tag},{digests}}}}}"
    );
    [format!("{publication}\n{certificate}\n"), publication, certificate].map(String::into_bytes).into()
}
