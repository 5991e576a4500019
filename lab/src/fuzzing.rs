//! The decoders of this package, for `fuzz/` to feed; see `internals::fuzzing` of the library, which exists in the same
//! builds.

use slackline::internals::fuzzing::Target;

use crate::{data, model};

/// Every decoder of files that a user names.
pub const TARGETS: &[Target] = &[
    Target { name: "data", check: data::fuzz::fuzz_text, samples: data::fuzz::text_samples },
    Target { name: "idx", check: data::fuzz::fuzz_idx, samples: data::fuzz::idx_samples },
    Target { name: "model", check: model::fuzz::fuzz_file, samples: model::fuzz::file_samples },
];
