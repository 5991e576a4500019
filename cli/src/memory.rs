//! The memory of this host, asked before a run begins that may not fit.

use std::fmt::Display;
use std::fs;

use crate::failure::Failure;

/// Refuses a run that needs more bytes than the system has available. It may change its mind later, but most runs that
/// are far too large end here and not with a process killed in the middle.
pub(crate) fn check(needed: u128, what: impl Display, remedy: &str) -> Result<(), Failure> {
    match available().map(u128::from).filter(|available| needed > *available) {
        None => Ok(()),
        Some(available) => {
            let (needed, available) = (gigabytes(needed), gigabytes(available));
            Err(Failure::failed(format!(
                "{what} needs about {needed}, and {available} of memory are available"
            ))
            .help(remedy.to_owned()))
        }
    }
}

/// Refuses so many numbers as the limit of this process (`ulimit -v`) does not leave room for, before an allocation
/// that cannot fail politely.
pub(crate) fn probe(numbers: usize, what: impl Display) -> Result<(), Failure> {
    let mut probe: Vec<f32> = Vec::new();
    probe.try_reserve_exact(numbers).map_err(|_| {
        let bytes = gigabytes(4 * numbers as u128);
        Failure::failed(format!("the system refuses {bytes} of memory for {what}"))
            .help("raise the limit (ulimit -v) or use a smaller model")
    })
}

fn gigabytes(bytes: u128) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}
