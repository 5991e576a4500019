//! The claims that every transport must keep, as one suite of tests.

/// Makes a module of tests of a fixture. A transport `within one process` is spared the claims that take two; one whose
/// servers are `apart` is spared the claims that start a second process by themselves.
macro_rules! conformance {
    ($name:ident, $fixture:ty) => {
        conformance! { @more $name, $fixture, {} processes }
    };
    ($name:ident, $fixture:ty, within one process) => {
        conformance! { @more $name, $fixture, {} }
    };
    ($name:ident, $fixture:ty, apart) => {
        conformance! { @more $name, $fixture, {} apart }
    };
    (@more $name:ident, $fixture:ty, { $($more:tt)* } processes $($rest:ident)*) => {
        conformance! {
            @more $name, $fixture, {
                $($more)*
                ordering {
                    a_word_never_announces_a_payload_that_is_not_there_across_processes
                    concurrent_adds_from_two_processes_sum_up
                    a_killed_process_is_noticed
                }
            }
            $($rest)*
        }
    };
    (@more $name:ident, $fixture:ty, { $($more:tt)* } apart $($rest:ident)*) => {
        conformance! {
            @more $name, $fixture, {
                $($more)*
                apart { the_server_is_another_process }
            }
            $($rest)*
        }
    };
    (@more $name:ident, $fixture:ty, { $($more:tt)* }) => {
        conformance! {
            $name, $fixture,
            handshake {
                messages_of_every_size_arrive_intact_both_ways
                the_longest_message_arrives_and_one_byte_more_is_refused
                grants_arrive_in_order_and_reach_the_memory_they_name
                a_refused_peer_reads_the_reason
                nothing_listens_at_an_address_that_nobody_took
                an_address_can_be_listened_at_only_once_at_a_time
                a_peer_that_leaves_before_the_answer_is_an_error_and_no_more
                memory_without_rights_cannot_be_granted
                registered_memory_has_the_rights_asked_for_and_is_zero
                each_side_notices_that_the_other_is_gone
                many_peers_are_connected_at_once
            }
            requests {
                writes_of_every_size_arrive_at_odd_offsets
                reads_of_every_size_arrive_at_odd_offsets
                inline_words_arrive_as_little_endian_words
                atomics_do_what_they_say
                unsignalled_requests_stay_silent
                a_fenced_write_sends_what_the_request_before_it_has_brought
                posting_and_polling_allocate_nothing
                signalled_requests_complete_in_order
                a_full_queue_posts_nothing_and_recovers_by_polling
                a_batch_longer_than_the_queue_is_refused_for_good
                malformed_requests_are_named_and_nothing_is_posted
                an_endpoint_may_be_dropped_with_completions_not_polled
                memory_outlives_its_region_while_a_request_holds_it
                mapped_memory_is_the_peers_own_where_it_is_in_place
                a_read_into_memory_mapped_read_only_is_malformed
                a_heartbeat_word_sets_its_word_from_another_thread
                a_heartbeat_word_is_one_aligned_writable_word
                a_write_that_is_to_be_noticed_is_a_write_like_any_other
                a_write_that_is_to_be_noticed_ends_a_wait
            }
            rights {
                a_write_to_a_read_only_grant_is_refused_and_only_the_offender_suffers
                a_read_of_a_write_only_grant_is_refused_and_only_the_offender_suffers
                an_atomic_without_the_right_is_refused_and_only_the_offender_suffers
                an_atomic_on_a_gpu_is_refused_and_only_the_offender_suffers
                a_word_on_a_gpu_arrives_as_a_payload_does
                an_unknown_key_is_refused_and_only_the_offender_suffers
                a_part_that_is_granted_opens_nothing_beside_it
                a_range_past_the_end_is_refused_and_only_the_offender_suffers
                an_offset_that_overflows_is_refused_and_only_the_offender_suffers
                requests_behind_a_refused_one_are_flushed_in_order
                keys_of_one_connection_do_not_open_another
            }
            ordering {
                a_word_never_announces_a_payload_that_is_not_there
                concurrent_adds_from_two_endpoints_sum_up
            }
            $($more)*
        }
    };
    ($name:ident, $fixture:ty, $($module:ident { $($claim:ident)* })*) => {
        mod $name {
            $($(
                #[test]
                fn $claim() {
                    super::transport::$module::$claim::<$fixture>();
                }
            )*)*
        }
    };
}
