//! The claims on the weights plane that hold over every transport.

/// Makes a module of tests of the claims over a transport, with publishers that listen at an address.
macro_rules! weights {
    ($name:ident, $transport:expr, $at:expr) => {
        weights! {
            $name, $transport, $at,
            plane {
                each_version_comes_with_its_tag_its_time_and_its_origin
                snapshots_stay_as_they_are_while_newer_ones_are_read
                a_snapshot_that_is_polled_is_the_one_that_was_wanted
                a_version_is_read_by_its_number_until_no_frame_holds_it
                a_version_before_the_first_one_of_its_publisher_is_gone
                a_selection_has_the_bytes_of_its_slices
                a_publisher_knows_what_its_readers_hold
                a_publisher_that_sleeps_takes_readers_in_and_knows_what_they_hold
                readers_come_and_read_while_their_owner_computes_past_the_lease
                the_successor_of_a_publisher_goes_on_with_its_numbers
                a_publisher_that_hardly_pauses_does_not_lap_a_slow_reader
            }
            relay {
                a_version_is_the_same_behind_a_chain_of_relays
                a_version_that_a_relay_has_not_copied_is_gone
                what_a_relay_passes_on_is_whole_while_its_publisher_never_pauses
                a_relay_whose_owner_is_lost_goes_on_with_the_next
                a_relay_without_any_owner_goes_on_serving_what_it_has
                a_relay_ends_rather_than_pass_on_the_versions_of_another_publisher
            }
            deltas {
                a_reader_by_differences_has_the_bytes_of_the_whole
                differences_are_not_applied_to_the_version_of_another_publisher
                no_mixture_is_read_while_differences_are_overwritten
            }
            monotone {
                no_read_goes_back_behind_another_of_the_same_reader
            }
            admission {
                a_reader_too_many_waits_in_line_and_is_told_when_to_ask_again
                readers_that_wait_are_let_in_in_the_order_in_which_they_came
            }
            silence {
                a_reader_that_is_gone_or_silent_keeps_its_pin_for_a_lease_at_most
            }
            tables {
                each_of_many_tables_has_versions_and_readers_of_its_own
                a_relay_passes_one_of_many_tables_on
            }
            tree {
                relays_and_readers_go_where_the_publisher_says
                a_tree_mends_itself_while_a_relay_dies_and_others_join
                a_reader_goes_past_a_full_relay_to_the_next_owner
                a_tree_goes_on_with_the_successor_of_its_publisher
            }
        }
    };
    ($name:ident, $transport:expr, $at:expr, $($group:ident { $($claim:ident)* })*) => {
        mod $name {
            $($(#[test]
            fn $claim() {
                crate::weights::$group::$claim($transport, &$at);
            })*)*
        }
    };
}
