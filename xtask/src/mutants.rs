//! The step that shows what the simulated fabric is worth: variants of the library that lack one check of the memory
//! protocol, each of which must break a promise in one of the ten thousand seeds.

use crate::cmd::Cmd;
use crate::steps::Step;

/// What is left out (`mutant!("...")` in the library).
pub(crate) const MUTANTS: &[&str] = &["credit", "epoch", "second_header"];

/// The step. The library as it is passes the same seeds in the step `seeds`.
pub(crate) fn step() -> Step {
    let command = |mutant: &&str| {
        let cmd = Cmd::new("cargo", &["test", "--release", "-p", "slackline", "--test", "seeds"]);
        let cmd = cmd.flags("RUSTFLAGS", "--cfg slackline_mutants").target("mutants");
        cmd.env("SLACKLINE_MUTANT", mutant).must_fail(&["ten_thousand_seeds_keep_every_promise"])
    };
    Step {
        name: "mutants",
        about: "the seeds find the epoch check, the second header read and the credit check missing",
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
        for (mutant, command) in MUTANTS.iter().zip(&step.commands) {
            let text = command.to_string();
            assert!(text.contains(&format!("SLACKLINE_MUTANT={mutant}")), "{text}");
            assert!(text.contains("--cfg slackline_mutants"), "{text}");
        }
    }
}
