//! Lines for a person on stderr.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes `text` and a line end to stderr, at once, so that lines of several processes do not mix. Unlike `eprintln!`,
/// it ends no run where stderr cannot be written: its reader may have gone away, or the disk of a log be full.
pub fn tell(text: impl Display) {
    let _unheard = io::stderr().write_all(format!("{text}\n").as_bytes());
}
