//! The names of the operations, as the command line spells them.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum Op {
    Write,
    Read,
    FetchAdd,
    Publish,
    Pull,
    PinnedRead,
    Round,
    Memcpy,
    Apply,
    Triad,
}

impl Op {
    pub(super) fn name(self) -> &'static str {
        match self {
            Op::Write => "write",
            Op::Read => "read",
            Op::FetchAdd => "fetch-add",
            Op::Publish => "publish",
            Op::Pull => "pull",
            Op::PinnedRead => "pinned-read",
            Op::Round => "round",
            Op::Memcpy => "memcpy",
            Op::Apply => "apply",
            Op::Triad => "triad",
        }
    }

    pub(super) fn default_sizes(self) -> &'static [u64] {
        match self {
            Op::Write | Op::Read => &[8, 64 << 10, 1 << 20],
            Op::FetchAdd => &[8],
            Op::Publish | Op::Pull | Op::PinnedRead | Op::Memcpy => &[64 << 10, 1 << 20, 64 << 20],
            Op::Round => &[100_000_000],
            Op::Apply | Op::Triad => &[400_000_000],
        }
    }

    /// Whether the bytes are an array of f32.
    pub(super) fn is_of_floats(self) -> bool {
        matches!(self, Op::Publish | Op::Pull | Op::PinnedRead | Op::Round | Op::Apply | Op::Triad)
    }
}
