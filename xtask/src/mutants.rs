//! The step that shows what the simulated fabric is worth: variants of the library that lack one check of the memory
//! protocol, each of which must break a promise in one of the ten thousand seeds.
//!
//! `bound`: a fold that counts asks again what was announced. `decider_last`: a gradient is announced to the server
//! that decides for all before all others have it. `prepare`: memory for a newcomer is registered while
//! the owner serves no peer. `relay_early`: a relay announces a chunk before its payload. `relay_origin`: it passes on
//! whatever it finds upstream.
//! `resume`: a copy goes on with the same number of another publisher. `silence`: time in which an owner did not
//! listen counts. `taken`: a worker may begin at a clock that was taken of it. `withheld`: the peer index of a worker
//! is given away while its gradient is being folded, and its credit is believed by the worker that had the index.
//!
//! A gradient that names a version later than the latest has no mutant here: schemes are told the version that an
//! incarnation begins with, so none of the seeds is harmed by one. `tests/failure/words.rs` holds that such a worker is
//! evicted.

use crate::cmd::Cmd;
use crate::steps::{Step, TESTED};

/// The checks that are left out (`mutant!("...")` in the library), and the broken promise that a seed must report.
pub(crate) const MUTANTS: &[(&str, &str)] = &[
    ("bound", "it does not converge"),
    ("credit", "was evicted though it lives"),
    ("decider_last", "which shard 0 has in it"),
    ("epoch", "was given version"),
    ("relay_early", "was given a mixture"),
    ("relay_origin", "versions of two publishers under one epoch"),
    ("resume", "was given a mixture"),
    ("prepare", "an owner served no peer"),
    ("delta_verify", "was given a mixture"),
    ("second_header", "a relay was given version"),
    ("silence", "was evicted though it lives"),
    ("taken", "is in it as clock"),
    ("withheld", "was folded as of"),
];

/// The same for copies of GPUs, which unit tests over the scripted driver must find.
pub(crate) const GPU_MUTANTS: &[(&str, &str, &str)] = &[
    (
        "gpu_does_not_wait_for_caller",
        "cuda::tests::two_handles_of_one_gpu_have_tickets_of_their_own",
        "the first copy is not made",
    ),
    (
        "gpu_memory_let_go_at_once",
        "cuda::tests::memory_of_both_sides_is_kept_until_the_copy_is_done_and_no_longer",
        "assertion failed: !copies.are_done().unwrap() && !is_freed",
    ),
    (
        "lent_memory_let_go_at_once",
        "node::reader::gpu::lent::tests::memory_of_the_callers_is_kept_until_its_last_reader_has_closed_it",
        "memory is freed that other processes have open",
    ),
    (
        "publish_before_copied",
        "node::publisher::gpu::scripted::tests::the_frame_of_a_dropped_draft_is_free_once_the_gpu_writes_it_no_more",
        "called `Result::unwrap_err()` on an `Ok` value",
    ),
    (
        "gpu_copy_completes_at_once",
        "node::reader::gpu::scripted::tests::shm::\
         a_pull_that_no_gpu_copies_ends_at_its_deadline_and_the_next_is_right",
        "`Ok` value",
    ),
    (
        "gpu_copy_completes_at_once",
        "node::folder_gpu::scripted::tests::shm::\
         a_gradient_is_announced_once_the_workers_gpu_has_copied_it",
        "the worker's GPU has copied nothing",
    ),
    (
        "fold_counts_before_it_is_made",
        "node::folder_gpu::scripted::tests::\
         a_version_is_announced_once_the_gpu_has_folded_it_and_not_before",
        "the GPU has folded nothing",
    ),
    (
        "fold_counts_before_it_is_made",
        "node::folder_gpu::measured::tests::\
         what_a_gpu_measures_is_read_once_it_is_measured_and_not_before",
        "the GPU has measured nothing",
    ),
    (
        "publish_before_copied",
        "node::publisher::gpu::encoded::tests::a_gpu_publishes_f32_as_the_halves_that_processors_make",
        "it is not converted yet",
    ),
    (
        "gpu_does_not_wait_for_caller",
        "node::publisher::gpu::encoded::tests::a_gpu_publishes_f32_as_the_halves_that_processors_make",
        "other halves than processors make",
    ),
    (
        "slot_given_back_under_fold",
        "node::server::folding::tests::\
         a_slot_that_a_gpu_still_folds_is_not_given_back_when_it_is_dropped",
        "the GPU still reads the slot",
    ),
    (
        "staging_block_before_ticket",
        "transport::tcp::tests::scripted::\
         a_block_is_used_again_once_the_gpu_has_copied_it_and_not_before",
        "a block was used again too early",
    ),
    (
        "staging_block_before_ticket",
        "transport::verbs::unordered::gpu::a_block_fits_a_queue_of_one_short_request",
        "a block was used again too early",
    ),
    (
        "staging_block_before_written",
        "transport::verbs::unordered::gpu::payloads_of_a_gpu_are_there_before_the_words_that_announce_them",
        "announced before it was there",
    ),
    (
        "staged_copy_done_at_once",
        "transport::tcp::tests::scripted::what_is_behind_a_copy_is_held_on_both_sides_until_its_ticket",
        "its copy is not made",
    ),
    (
        "staged_copy_done_at_once",
        "transport::verbs::unordered::gpu::what_is_behind_a_copy_out_of_a_gpu_is_held_until_its_ticket",
        "its copy is not made",
    ),
    (
        "staged_copy_done_at_once",
        "transport::verbs::unordered::gpu::\
         a_read_to_a_gpu_is_complete_with_its_copy_and_those_behind_it_come_later",
        "its copy is not made",
    ),
    (
        "staged_fence",
        "transport::verbs::unordered::gpu::\
         no_piece_of_a_fenced_write_from_a_gpu_goes_ahead_of_a_read_before_it",
        "read what was written later",
    ),
    (
        "direct_before_its_ticket",
        "transport::verbs::unordered::gpudirect::by_dma_buf::\
         a_device_reads_and_writes_a_gpu_after_the_work_that_was_before",
        "the kernel has not run",
    ),
    (
        "offset_in_export",
        "transport::verbs::unordered::gpudirect::by_dma_buf::\
         a_tensor_inside_its_allocation_is_read_and_written_where_it_lies",
        "read elsewhere",
    ),
    (
        "registration_border",
        "transport::verbs::unordered::gpudirect::by_dma_buf::\
         a_tensor_over_pieces_of_memory_is_carried_without_blocks",
        "left: WorkCompletion",
    ),
    (
        "rdma_writes_not_flushed",
        "transport::verbs::unordered::gpudirect::by_dma_buf::\
         a_gradient_on_a_gpu_is_there_when_its_word_is_seen",
        "1 rails, seed",
    ),
    (
        "rdma_writes_not_flushed",
        "transport::verbs::unordered::gpudirect::by_dma_buf::\
         what_a_read_brings_to_a_gpu_is_seen_once_it_is_complete",
        "1 rails, seed",
    ),
    (
        "sentinel_in_host_memory",
        "transport::verbs::unordered::gpudirect::by_dma_buf::\
         what_further_rails_write_to_a_gpu_is_proved_on_the_gpu",
        "seed 0, round",
    ),
    (
        "group_mean_before_its_copies",
        "node::group::on_gpu::scripted::tests::parameters_are_sent_once_the_gpu_has_them_and_not_before",
        "the GPU has copied nothing",
    ),
    (
        "group_mean_before_its_copies",
        "node::group::on_gpu::scripted::tests::a_mean_is_sent_once_the_gpu_has_made_it_and_not_before",
        "the GPU has averaged nothing",
    ),
    (
        "pull_over_gpu_copy",
        "node::worker::gpu::tests::parameters_that_a_gpu_copies_are_not_replaced",
        "the GPU still copies",
    ),
];

/// The same for relays, which a unit test must find: bytes that were damaged on their way are read once more under the
/// same number, and no seed damages bytes. `relay_void`: followers of a relay keep what they have of the attempt
/// before.
pub(crate) const RELAY_MUTANTS: &[(&str, &str, &str)] = &[(
    "relay_void",
    "node::relay::passing::owners::tests::followers_keep_nothing_of_an_attempt_that_begins_again",
    "a mixture of two attempts",
)];

/// The same for RDMA, which unit tests over a scripted device must find. `unproved`: no READ proves what was written
/// before a word that announces. `landed_attempt`: a follower counts the chunks that have landed of an earlier attempt.
/// `announced_unseen`: the server that decides for all is told of a gradient before the others are known to have it.
/// `rail_down_offered`: a connection is made over ports that are down. `way_unanswered_again`: the next connection
/// takes the rail on which the peer did not answer.
pub(crate) const RDMA_MUTANTS: &[(&str, &str, &str)] = &[
    (
        "rail_repeats_at_once",
        "transport::verbs::unordered::lost_rails::rails_that_are_lost_at_any_moment_tear_and_lose_nothing",
        "bytes of another round are in the slot",
    ),
    (
        "rail_down_offered",
        "transport::verbs::unordered::rails_left_out::\
         a_connection_is_over_the_rails_that_are_up_on_both_sides",
        "left: Err(",
    ),
    (
        "way_unanswered_again",
        "transport::verbs::unordered::rails_left_out::\
         a_rail_on_which_the_peer_does_not_answer_is_left_out_next_time",
        "it goes over the rail on which the peer did not answer",
    ),
    (
        "unproved",
        "transport::verbs::unordered::tests::no_write_that_announces_is_seen_before_all_that_came_before_it",
        "seed 0, Connector",
    ),
    (
        "unproved",
        "node::unordered::tests::gradients_and_pulled_versions_are_whole_where_no_order_is_kept",
        "in round",
    ),
    ("unproved", "node::unordered::tests::pushed_versions_are_whole_where_no_order_is_kept", "in round"),
    ("unproved", "node::unordered::tests::the_means_of_a_group_are_whole_where_no_order_is_kept", "in round"),
    (
        "announced_unseen",
        "node::unordered::tests::what_one_shard_decides_on_has_come_to_all_where_no_order_is_kept",
        "in round",
    ),
    (
        "landed_attempt",
        "node::unordered::tests::a_reader_that_follows_takes_whole_versions_where_no_order_is_kept",
        "failed: version",
    ),
];

/// The steps: one of the seeds, which the library as it is passes in the step `seeds`, and one of unit tests, whose
/// target folder is that of all tests.
pub(crate) fn steps() -> [Step; 2] {
    let command = |(mutant, broken): &(&str, &str)| {
        let seeds = "ten_thousand_seeds_keep_every_promise";
        let cmd = Cmd::new("cargo", &["test", "--release", "-p", "slackline", "--test", "seeds"]);
        let cmd = cmd.arg("--").arg("--exact").arg(seeds);
        let cmd = cmd.flags("RUSTFLAGS", "--cfg slackline_mutants").target("mutants");
        cmd.env("SLACKLINE_MUTANT", mutant).must_fail(&[(seeds, broken)])
    };
    let unit_command = |(mutant, test, broken): &(&str, &str, &str)| {
        let cmd = Cmd::new("cargo", &[&["test"], &TESTED[..], &["--lib", "--", "--exact", test]].concat());
        cmd.env("SLACKLINE_MUTANT", mutant).must_fail(&[(test, broken)])
    };
    let step = |name, about, commands| Step { name, about, needs: Vec::new(), feature: None, commands };
    [
        step(
            "mutants",
            "the seeds find each check missing that only a fault calls for",
            MUTANTS.iter().map(command).collect(),
        ),
        step(
            "unit-mutants",
            "unit tests, and a scripted GPU and RDMA device, find each wait and check missing that no seed calls for",
            GPU_MUTANTS.iter().chain(RELAY_MUTANTS).chain(RDMA_MUTANTS).map(unit_command).collect(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mutant_has_its_run_of_one_build() {
        let [step, _] = steps();
        for ((mutant, _), command) in MUTANTS.iter().zip(&step.commands) {
            let text = command.to_string();
            assert!(text.contains(&format!("SLACKLINE_MUTANT={mutant}")), "{text}");
            assert!(text.contains("--cfg slackline_mutants"), "{text}");
        }
    }
}
