//! The step that model-checks the memory protocol: the code that ships must pass, and each mutant of it must fail.
//!
//! A mutant leaves out one fence, check or order (`mutant!("...")` in the library); the models named with it must
//! notice. A fence that can go without a model noticing is either not needed or not tested.

use crate::cmd::Cmd;
use crate::steps::Step;

/// Each mutant, and the models that must fail under it: all of them, by assertion, not for want of building.
///
/// To add one, put `mutant!` where the protocol would break, and its row here.
const MUTANTS: &[(&str, &[&str])] = &[
    ("announce", &["slots::the_owner_reads_what_was_announced"]),
    (
        "begin_fence",
        &[
            "frames::a_frame_and_what_it_says_of_a_peers_gradients_agree",
            "frames::a_pull_is_whole_or_nothing",
            "pins::a_pinned_frame_is_never_written",
        ],
    ),
    ("commit_fence", &["follow::a_followed_frame_is_whole"]),
    ("credit", &["slots::the_owner_reads_what_was_announced"]),
    ("group_header", &["group::a_part_is_taken_whole_or_not_at_all"]),
    ("landed_attempt", &["follow::a_frame_that_is_begun_again_is_copied_again"]),
    ("landed_early", &["slots::a_chunk_that_has_landed_is_whole"]),
    ("monotone", &["follow::a_follower_never_goes_back"]),
    ("pin_fence", &["pins::a_pinned_frame_is_never_written"]),
    ("push_mark", &["push::a_pushed_version_is_pulled_whole_or_not_at_all"]),
    (
        "read_fence",
        &[
            "frames::a_frame_and_what_it_says_of_a_peers_gradients_agree",
            "frames::a_pull_is_whole_or_nothing",
        ],
    ),
    ("restart", &["follow::a_frame_that_is_begun_again_is_copied_again"]),
    (
        "second_header",
        &[
            "frames::a_frame_and_what_it_says_of_a_peers_gradients_agree",
            "frames::a_pull_is_whole_or_nothing",
        ],
    ),
    (
        "write_fence",
        &[
            "group::a_part_is_taken_whole_or_not_at_all",
            "push::a_pushed_version_is_pulled_whole_or_not_at_all",
            "slots::a_chunk_that_has_landed_is_whole",
            "slots::the_owner_reads_what_was_announced",
        ],
    ),
];

/// The step: the models over the library as it is, then over each mutant.
pub(crate) fn step() -> Step {
    let mutants = MUTANTS.iter().map(|(mutant, models)| {
        let only = models.iter().fold(models_of(&["--", "--exact"]), |cmd, model| cmd.arg(model));
        only.env("SLACKLINE_MUTANT", mutant).must_fail(models)
    });
    Step {
        name: "loom",
        about: "the memory protocol under every interleaving (tests/loom.rs), and its mutants, which must fail",
        needs: Vec::new(),
        feature: None,
        commands: [models_of(&[]).suite()].into_iter().chain(mutants).collect(),
    }
}

fn models_of(arguments: &[&str]) -> Cmd {
    let arguments = [&["test", "--release", "-p", "slackline", "--test", "loom"], arguments].concat();
    Cmd::new("cargo", &arguments).flags("RUSTFLAGS", "--cfg loom").target("loom")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_checked_before_its_mutants() {
        let step = step();
        assert_eq!(step.commands.len(), 1 + MUTANTS.len());
        assert!(!step.commands[0].to_string().contains("SLACKLINE_MUTANT"));
        assert!(step.commands[1].to_string().contains("SLACKLINE_MUTANT=announce"));
    }

    #[test]
    fn every_mutant_in_the_library_has_a_row_and_every_row_a_mutant() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut text = String::new();
        for folder in ["src/param", "src/transport"] {
            for entry in std::fs::read_dir(root.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    text.push_str(&std::fs::read_to_string(path).unwrap());
                }
            }
        }
        let switches = text.split("mutant!(\"").skip(1);
        let mut found: Vec<_> = switches.filter_map(|rest| rest.split('"').next()).collect();
        found.sort_unstable();
        found.dedup();
        let models = MUTANTS.iter().map(|(mutant, _)| mutant);
        let mut rows: Vec<_> = models.chain(crate::mutants::MUTANTS).copied().collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(found, rows);
    }
}
