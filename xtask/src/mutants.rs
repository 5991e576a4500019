//! The step that shows what the simulated fabric is worth: variants of the library that lack one check of the memory
//! protocol, each of which must break a promise in one of the ten thousand seeds.
//!
//! `bound`: a fold that counts asks again what was announced. `decider_last`: a gradient is announced to the server
//! that decides for all before all others have it. `prepare`: memory for a newcomer is registered while
//! the owner serves no peer. `silence`: time in which an owner did not listen counts. `taken`: a worker may begin at
//! a clock that was taken of it. `withheld`: the peer index of a worker is given away while its gradient is being
//! folded, and its credit is believed by the worker that had the index.
//!
//! A gradient that names a version later than the latest has no mutant here: schemes are told the version that an
//! incarnation begins with, so none of the seeds is harmed by one. `tests/failure/words.rs` holds that such a worker is
//! evicted.

use crate::cmd::Cmd;
use crate::steps::Step;

/// The checks that are left out (`mutant!("...")` in the library), and the broken promise that a seed must report.
pub(crate) const MUTANTS: &[(&str, &str)] = &[
    ("bound", "it does not converge"),
    ("credit", "was evicted though it lives"),
    ("decider_last", "which shard 0 has in it"),
    ("epoch", "was given version"),
    ("prepare", "an owner served no peer"),
    ("delta_verify", "was given a mixture"),
    ("second_header", "does not match its checksum"),
    ("silence", "was evicted though it lives"),
    ("taken", "is in it as clock"),
    ("withheld", "is in transit under"),
];

/// The step. The library as it is passes the same seeds in the step `seeds`.
pub(crate) fn step() -> Step {
    let command = |(mutant, broken): &(&str, &str)| {
        let cmd = Cmd::new("cargo", &["test", "--release", "-p", "slackline", "--test", "seeds"]);
        let cmd = cmd.flags("RUSTFLAGS", "--cfg slackline_mutants").target("mutants");
        cmd.env("SLACKLINE_MUTANT", mutant).must_fail(&[("ten_thousand_seeds_keep_every_promise", broken)])
    };
    Step {
        name: "mutants",
        about: "the seeds find each check missing that only a hostile network, a fault or a lie calls for",
        needs: Vec::new(),
        feature: None,
        commands: MUTANTS.iter().map(command).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mutant_has_its_run_of_one_build() {
        let step = step();
        for ((mutant, _), command) in MUTANTS.iter().zip(&step.commands) {
            let text = command.to_string();
            assert!(text.contains(&format!("SLACKLINE_MUTANT={mutant}")), "{text}");
            assert!(text.contains("--cfg slackline_mutants"), "{text}");
        }
    }
}
