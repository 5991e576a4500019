//! The decoders of this package, for `fuzz/` to feed; see `slackline::internals::fuzzing`, which exists in the same
//! builds.

use slackline::internals::fuzzing::FuzzTarget;

use crate::{commands, metrics};

/// Every decoder of the command line that bytes of unauthenticated connections reach.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "metrics", check: metrics::fuzz::fuzz_text, samples: metrics::fuzz::text_samples },
    FuzzTarget {
        name: "metrics_request",
        check: metrics::fuzz::fuzz_request,
        samples: metrics::fuzz::request_samples,
    },
    FuzzTarget { name: "scrape", check: commands::top::fuzz_answer, samples: commands::top::answer_samples },
];
