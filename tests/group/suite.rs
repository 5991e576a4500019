//! The list of claims, instantiated per transport.

/// One module with all claims over one fixture.
macro_rules! group {
    ($module:ident, $fixture:ty) => {
        mod $module {
            group!(@claims $fixture, rounds:
                as_many_rounds_as_there_are_digits_give_the_plain_mean_to_all,
                members_of_a_group_hold_the_same_bits,
                uneven_groups_average_by_their_own_size,
                parts_with_checksums_give_the_same_bits_as_without,
                a_group_of_one_keeps_its_parameters,
                fewer_cache_lines_than_members_are_averaged,
                a_driver_with_a_loop_of_its_own_never_waits,
                a_late_member_is_waited_for_until_the_deadline_and_may_still_come,
                a_round_that_was_given_up_is_skipped_by_all_and_the_next_one_is_whole,
                calls_that_make_no_sense_are_errors,
                members_that_were_told_different_groups_hear_of_it,
            );
            group!(@claims $fixture, deaths:
                the_others_go_on_without_a_member_that_died_before_the_round,
                the_others_go_on_without_a_member_that_died_after_it_sent_its_summands,
                the_others_go_on_without_a_member_that_sent_a_summand_to_only_one,
                the_others_go_on_without_a_member_that_sent_its_mean_to_one_of_them_only,
                what_a_member_had_written_whole_counts_though_it_left_before_it_was_read,
                two_deaths_in_one_round_leave_two_members_that_go_on,
                the_last_one_goes_on_alone,
                a_member_that_leaves_is_no_accident,
                whoever_is_said_to_be_gone_is_left_out_by_all_and_told_so,
                parts_that_break_the_protocol_cost_their_author_its_membership,
            );
            group!(@claims $fixture, meeting:
                members_start_in_any_order,
                who_does_not_come_is_named_at_the_deadline,
                unauthenticated_peers_are_told_why_and_others_meet,
                a_group_that_has_begun_takes_nobody_in,
                a_member_that_is_started_again_before_all_are_there_is_dialled_again,
                who_claims_a_rank_that_is_taken_gets_it_as_soon_as_its_holder_is_gone,
                who_claims_a_rank_whose_holder_lives_is_told_so_after_a_lease,
            );
            group!(@claims $fixture, process:
                a_killed_process_is_left_out_whenever_it_dies,
                a_frozen_process_is_left_out_within_the_lease_and_cut_off_when_it_wakes,
                who_leaves_is_told_whom_that_has_not_reached,
            );
            group!(@claims $fixture, litmus:
                nobody_ever_takes_a_mixture_though_rounds_are_given_up_at_any_moment,
            );
        }
    };
    (@claims $fixture:ty, $of:ident: $($claim:ident),* $(,)?) => {
        $(
            #[test]
            fn $claim() {
                crate::group::$of::$claim::<$fixture>();
            }
        )*
    };
}
