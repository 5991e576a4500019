//! The decoders that bytes of unauthenticated peers, of connected peers and of the disk reach, for `fuzz/` to feed.
//!
//! Only in builds with `--cfg fuzzing`, as cargo-fuzz makes them, and in tests. Each decoder has beside it a function
//! that gives it bytes and checks what it makes of them (it panics where a promise is broken), and samples of what it
//! takes, to begin from.
#![forbid(unsafe_code)]

use crate::job::{self, coordinated, rendezvous};
use crate::transport::{shm, tcp, verbs};
use crate::{channel, node, param, trace, transport};

/// One decoder.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// The name of the format that it decodes; the target of cargo-fuzz has the same name.
    pub name: &'static str,
    /// Gives it bytes, and panics if it breaks a promise.
    pub check: fn(&[u8]),
    /// Bytes that it takes.
    pub samples: fn() -> Vec<Vec<u8>>,
}

const fn target(name: &'static str, check: fn(&[u8]), samples: fn() -> Vec<Vec<u8>>) -> FuzzTarget {
    FuzzTarget { name, check, samples }
}

/// Every decoder of the library.
pub const TARGETS: &[FuzzTarget] = &[
    target("address", transport::fuzz_address, transport::address_samples),
    target("checkpoint", node::checkpoint_fuzz::fuzz_file, node::checkpoint_fuzz::file_samples),
    target("checkpoint_forged", node::checkpoint_fuzz::fuzz_forged, node::checkpoint_fuzz::forged_samples),
    target("greeting", channel::fuzz::fuzz_greeting, channel::fuzz::greeting_samples),
    target("job_message", job::fuzz_message, job::message_samples),
    target("order", coordinated::fuzz_message, coordinated::message_samples),
    target("param_delta", param::fuzz_delta, param::delta_samples),
    target("param_group_hello", param::fuzz_group_hello, param::group_hello_samples),
    target("param_hello", param::fuzz_hello, param::hello_samples),
    target("param_position", param::fuzz_position, param::position_samples),
    target("param_welcome", param::fuzz_welcome, param::welcome_samples),
    target("param_words", param::fuzz::fuzz_words, param::fuzz::word_samples),
    target("rendezvous", rendezvous::fuzz_messages, rendezvous::message_samples),
    target("sealed", channel::fuzz::fuzz_sealed, channel::fuzz::sealed_samples),
    target("table_name", transport::fuzz_name, transport::name_samples),
    target("tcp_headers", tcp::fuzz_headers, tcp::header_samples),
    target("trace", trace::fuzz::fuzz_trace, trace::fuzz::trace_samples),
    target("wireup", fuzz_wireup, wireup_samples),
];

/// Decodes the bytes as a message of each transport.
fn fuzz_wireup(bytes: &[u8]) {
    shm::fuzz_handshake(bytes);
    tcp::fuzz_hello(bytes);
    verbs::fuzz_hello(bytes);
}

fn wireup_samples() -> Vec<Vec<u8>> {
    [shm::handshake_samples(), tcp::hello_samples(), verbs::hello_samples()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_sample_is_taken_as_it_is() {
        for target in TARGETS {
            let samples = (target.samples)();
            assert!(!samples.is_empty(), "{} has no samples", target.name);
            samples.iter().for_each(|sample| (target.check)(sample));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_a_promise_of_a_decoder(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for target in TARGETS {
                (target.check)(&bytes);
            }
        }

        #[test]
        fn no_damage_breaks_a_promise_of_a_decoder(
            which: prop::sample::Index,
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..9, any::<[u8; 4]>(), 0..5usize), 1..4),
        ) {
            for target in TARGETS {
                let samples = (target.samples)();
                let mut bytes = samples[which.index(samples.len())].clone();
                for (at, len, with, kept) in &cuts {
                    let at = at.index(bytes.len() + 1);
                    let end = (at + len).min(bytes.len());
                    bytes.splice(at..end, with[..*kept].iter().copied());
                }
                (target.check)(&bytes);
            }
        }
    }
}
