//! The decoders of this package, for `fuzz/` to feed; see `internals::fuzzing` of the library, which exists in the same
//! builds.

use slackline::internals::fuzzing::FuzzTarget;

use crate::{data, model, program};

/// Every decoder of files that a user names, and of the programs of other processes.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "data", check: data::fuzz::fuzz_text, samples: data::fuzz::text_samples },
    FuzzTarget { name: "idx", check: data::fuzz::fuzz_idx, samples: data::fuzz::idx_samples },
    FuzzTarget { name: "model", check: model::fuzz::fuzz_file, samples: model::fuzz::file_samples },
    FuzzTarget { name: "program", check: program::fuzz_program, samples: program::program_samples },
];
