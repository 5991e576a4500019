//! The step that model-checks the memory protocol: the code that ships must pass, and each mutant of it must fail.
//!
//! A mutant leaves out one fence, check or order (`mutant!("...")` in the library), or makes the ordering of one load
//! or store `Relaxed` (`ordering!("...")`); the models named with it must notice. A fence that can go without a model
//! noticing is either not needed or not tested.

use crate::cmd::Cmd;
use crate::steps::Step;

/// The texts with which models fail when they find what they look for. A mutant that makes one fail in another way, by
/// accepting nothing or by too many branches, has not been noticed.
mod says {
    pub(super) const MIXTURE: &str = "a mixture of versions was accepted";
    pub(super) const TORN_PART: &str = "a mixture of rounds was taken";
    pub(super) const NO_PART: &str = "the header of a part that is not there yet";
    pub(super) const INCLUDED: &str = "a frame and its included clock are not of one version";
    pub(super) const NOT_WHOLE: &str = "a frame was taken for whole before it was";
    pub(super) const ABANDONED: &str = "chunks of an abandoned attempt were taken";
    pub(super) const NOT_LANDED: &str = "a chunk was read before it had landed";
    pub(super) const NOT_ANNOUNCED: &str = "the gradient is not the one that was announced";
    pub(super) const OTHER_HEADER: &str = "the header is not that of the gradient that was announced";
    pub(super) const SLOT_IN_USE: &str = "a slot was written before the owner had read it";
    pub(super) const PINNED: &str = "a pinned frame was written";
    pub(super) const STILL_READ: &str = "a frame was written before its reader had read it";
    pub(super) const LOST: &str = "a frame that was written is taken for intact";
    pub(super) const WENT_BACK: &str = "went back: ";
    pub(super) const TOO_EARLY: &str = "the latest version was announced before its frame was whole";
    pub(super) const NOT_DECIDED: &str = "a decision was counted before it was whole";
    pub(super) const NOT_TAKEN: &str = "a decision was overwritten before its follower had read it";
    pub(super) const NOT_COPIED: &str = "a copy by several threads is not whole";
    pub(super) const ASLEEP: &str = "a peer sleeps past a version";
    pub(super) const PARKED: &str = "a thread sleeps past a notification";
    pub(super) const OLD_HEADER: &str = "a frame is followed under the header of an earlier version";
}

const PULLED: &str = "frames::a_pull_is_whole_or_nothing";
const AGREES: &str = "frames::a_frame_and_what_it_says_of_a_peers_gradients_agree";
const LOADED: &str = "frames::a_pull_of_mapped_memory_is_whole_or_nothing";
const LOADS_AGREE: &str = "frames::a_mapped_frame_and_what_it_says_of_a_peers_gradients_agree";
const ANNOUNCED: &str = "slots::the_owner_reads_what_was_announced";
const LANDED: &str = "slots::a_chunk_that_has_landed_is_whole";
const FOLLOWED: &str = "follow::a_followed_frame_is_whole";
const DECIDED: &str = "decisions::a_follower_reads_every_decision_whole_and_in_order";
const PUSHED: &str = "push::a_pushed_version_is_pulled_whole_or_not_at_all";
const PART: &str = "group::a_part_is_taken_whole_or_not_at_all";
const UNPINNED: &str = "pins::a_frame_is_written_after_the_last_read_of_its_reader";
const PINNED: &str = "pins::a_pinned_frame_is_never_written";
const SHARED: &str = "copies::a_copy_by_several_threads_is_whole_once_its_gate_is_closed";
const WOKEN: &str = "sleep::a_peer_that_sleeps_has_seen_the_version_or_is_woken";
const PARKS: &str = "sleep::a_thread_that_parks_has_seen_what_was_stored_or_is_woken";
const BEGUN_AGAIN: &str = "follow::a_frame_that_is_begun_again_is_copied_again";

/// A model, and what it says when it finds its claim broken.
type Notices = (&'static str, &'static str);

/// Each mutant, and the models that must fail under it: all of them, by assertion, not for want of building.
///
/// To add one, put `mutant!` or `ordering!` where the protocol would break, and its row here.
const MUTANTS: &[(&str, &[Notices])] = &[
    ("announce", &[(ANNOUNCED, says::OTHER_HEADER)]),
    (
        "begin_fence",
        &[
            (AGREES, says::INCLUDED),
            (LOADS_AGREE, says::INCLUDED),
            (PULLED, says::MIXTURE),
            (LOADED, says::MIXTURE),
            (PINNED, says::PINNED),
        ],
    ),
    ("commit_fence", &[(FOLLOWED, says::NOT_WHOLE)]),
    ("consumed_release", &[(ANNOUNCED, says::SLOT_IN_USE)]),
    ("credit", &[(ANNOUNCED, says::SLOT_IN_USE)]),
    ("decided_release", &[(DECIDED, says::NOT_DECIDED)]),
    ("even_release", &[(FOLLOWED, says::NOT_WHOLE)]),
    ("followed_acquire", &[(DECIDED, says::NOT_TAKEN)]),
    ("gate_close", &[(SHARED, says::NOT_COPIED)]),
    ("gate_enter", &[(SHARED, says::NOT_COPIED)]),
    ("gate_leave", &[(SHARED, says::NOT_COPIED)]),
    ("gate_open", &[(SHARED, says::NOT_COPIED)]),
    ("group_header", &[(PART, says::TORN_PART)]),
    ("intact_fence", &[("pins::a_frame_that_was_lost_is_not_taken_for_intact", says::LOST)]),
    ("landed_acquire", &[(LANDED, says::NOT_LANDED)]),
    ("landed_attempt", &[(BEGUN_AGAIN, says::ABANDONED)]),
    ("landed_early", &[(LANDED, says::NOT_LANDED)]),
    ("latest_release", &[("frames::a_version_that_is_announced_is_whole", says::TOO_EARLY)]),
    ("mapped_acquire", &[(LOADS_AGREE, says::INCLUDED), (LOADED, says::MIXTURE)]),
    ("mapped_fence", &[(LOADS_AGREE, says::INCLUDED), (LOADED, says::MIXTURE)]),
    ("monotone", &[("follow::a_follower_never_goes_back", says::WENT_BACK)]),
    ("notify_fence", &[(PARKS, says::PARKED)]),
    ("pin_fence", &[(PINNED, says::PINNED)]),
    ("pins_acquire", &[(UNPINNED, says::STILL_READ)]),
    ("published_acquire", &[(ANNOUNCED, says::NOT_ANNOUNCED)]),
    ("push_mark", &[(PUSHED, says::INCLUDED)]),
    ("read_fence", &[(AGREES, says::INCLUDED), (PULLED, says::MIXTURE)]),
    ("repin_release", &[(UNPINNED, says::STILL_READ)]),
    ("restart", &[(BEGUN_AGAIN, says::ABANDONED)]),
    (
        "second_header",
        &[
            (AGREES, says::INCLUDED),
            (LOADS_AGREE, says::INCLUDED),
            (PULLED, says::MIXTURE),
            (LOADED, says::MIXTURE),
        ],
    ),
    ("sleep_fence", &[(WOKEN, says::ASLEEP)]),
    ("take_fence", &[(PARKS, says::PARKED)]),
    ("unpin_release", &[(UNPINNED, says::STILL_READ)]),
    ("wake_fence", &[(WOKEN, says::ASLEEP)]),
    (
        "write_fence",
        &[
            (PART, says::NO_PART),
            (PUSHED, says::MIXTURE),
            (LANDED, says::NOT_ANNOUNCED),
            (ANNOUNCED, says::NOT_ANNOUNCED),
        ],
    ),
    ("writing_release", &[("follow::a_frame_that_is_said_to_be_written_has_its_header", says::OLD_HEADER)]),
];

/// The step: the models over the library as it is, then over each mutant.
pub(crate) fn step() -> Step {
    let mutants = MUTANTS.iter().map(|(mutant, models)| {
        let only = models.iter().fold(models_of(&["--", "--exact"]), |cmd, (model, _)| cmd.arg(model));
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
        read_all(&root.join("src"), &mut text);
        let switches = ["mutant!(\"", "ordering!(\""].into_iter().flat_map(|begin| text.split(begin).skip(1));
        let mut found: Vec<_> = switches.filter_map(|rest| rest.split('"').next()).collect();
        found.sort_unstable();
        found.dedup();
        let models = MUTANTS.iter().map(|(mutant, _)| *mutant);
        let mut rows: Vec<_> =
            models.chain(crate::mutants::MUTANTS.iter().map(|(mutant, _)| *mutant)).collect();
        let units = crate::mutants::GPU_MUTANTS.iter().chain(crate::mutants::RELAY_MUTANTS);
        let units = units.chain(crate::mutants::RDMA_MUTANTS);
        rows.extend(units.map(|(mutant, ..)| *mutant));
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(found, rows);
    }

    fn read_all(folder: &std::path::Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read_all(&path, text);
            } else {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
}
