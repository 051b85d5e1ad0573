//! The conformance suite of the store: test cases over a [`World`]. Each store runs all of them
//! with `crate::conformance::suite!(its_world().await)`.

mod appends;
mod baselines;
pub mod events;
mod inboxes;
mod leases;
mod members;
mod messages;
mod parity;
mod previews;
mod questions;
pub mod races;
mod rewinds;
mod sessions;
pub mod team;
mod wait_lists;
pub mod waits;
mod work;

use std::sync::Arc;

use async_trait::async_trait;
use planck_common::NodeId;

pub use events::all as whole_log;
pub use races::assert_log_is_sound;
pub use team::{Team, message, save};

use super::SessionStore;

/// A private, empty store that several nodes can open.
#[async_trait]
pub trait World: Send + Sync {
    /// Opens a new handle, as the process of another node would.
    async fn open(&self, node: &NodeId) -> Arc<dyn SessionStore>;
}

macro_rules! cases {
    ($($theme:ident: $($case:ident)+;)+) => {
        $($(pub async fn $case<W: $crate::conformance::World>(world: W) { $theme::$case(&world).await })+)+

        macro_rules! each_case {
            ($make_world:expr) => {
                $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    $crate::conformance::$case($make_world).await;
                })+)+
            };
        }
    };
}

cases! {
    sessions:
        a_session_is_created_once
        names_are_unique_and_made_up
        names_in_a_team_are_unique
        a_team_has_its_limit_from_the_start
        sessions_are_listed_in_pages
        a_list_shows_the_activity_of_sessions
        a_session_gets_a_title_and_loses_it
        closing_needs_the_leads_lease
        deleting_returns_what_it_removed
        old_closed_sessions_expire;
    previews:
        a_list_says_what_sessions_are_about
        a_list_reads_the_ends_of_logs_only
        a_page_of_sessions_is_bounded_in_bytes;
    leases:
        claiming_fences
        a_claim_with_a_lost_answer_is_found
        members_follow_the_leads_incarnation
        releasing_ends_a_lease
        releasing_leaves_a_stopped_agent_stopped
        leases_released_together_have_a_result_each
        leases_are_swept;
    members:
        creating_an_agent_is_idempotent_and_bounded
        agents_of_a_batch_are_created_together
        agents_are_found_by_id_name_or_type
        names_of_created_agents_are_unique
        a_closed_session_gets_no_agents
        an_exit_is_found_until_it_is_reported
        a_stopped_agent_takes_no_input
        a_spec_is_replaced_under_its_lease;
    baselines:
        baselines_of_changes_and_of_lost_calls_are_undecided;
    appends:
        the_log_is_dense_and_chained
        a_batch_sent_again_is_not_doubled
        a_resend_is_found_after_the_lease_moved
        each_batch_stands_alone
        a_gone_input_stops_its_batch_only
        consuming_and_ending_are_marked
        a_batch_without_rows_can_be_sent_again
        puts_go_with_their_batch
        usage_is_added_once
        the_state_is_that_of_the_batch
        bad_data_is_refused_alone
        two_batches_of_one_agent_are_refused;
    inboxes:
        a_put_is_idempotent
        a_prompt_keeps_its_author
        an_inbox_is_bounded_by_bytes
        inputs_put_at_once_fit_the_bounds_together
        inputs_keep_their_fields_and_order
        an_input_may_wait_for_an_agent_without_holder
        a_sweep_finds_what_the_holder_put_itself
        an_unread_input_is_found_until_it_is_read
        tasks_are_known_until_answered
        an_unread_question_is_withdrawn;
    questions:
        a_cycle_is_refused
        depth_is_bounded
        asking_again_finds_the_question
        only_the_holder_asks
        an_answer_ends_the_wait;
    events:
        events_come_in_pages
        a_page_is_bounded_in_bytes
        an_agents_events_keep_their_seqs
        an_envelope_is_that_of_its_writer;
    messages:
        a_page_begins_at_the_latest_checkpoint
        every_summary_is_on_a_page
        long_segments_come_in_parts
        all_agents_messages_come_once
        an_agent_loads_what_it_needs;
    rewinds:
        a_rewind_hides_and_fences
        a_rewind_ends_inputs_of_what_it_hides
        a_rewind_ends_what_is_open
        a_rewind_leaves_one_end_to_a_turn_that_is_over
        a_rewind_names_the_agents_that_it_stops
        a_rewind_leaves_no_call_of_a_stopped_agent_without_its_result
        a_rewind_needs_a_visible_message
        a_rewind_sent_again_is_the_same;
    races:
        one_of_many_claims_wins
        racing_writers_with_lost_answers
        crossing_questions_never_make_a_cycle
        no_input_slips_in_beside_a_stop
        no_member_is_created_beside_a_claim_of_the_lead
        a_session_that_many_create_is_created_once
        a_call_beside_a_removal_finds_the_session_or_nothing;
    waits:
        the_log_opens_a_wait
        a_wait_is_answered_once
        one_of_racing_answers_wins
        an_answer_is_for_one_digest
        a_late_answer_is_refused
        late_waits_expire
        the_log_ends_a_wait
        a_rewind_withdraws_waits
        answers_add_rules_to_a_session
        waits_of_a_stopped_agent_are_over;
    wait_lists:
        waits_of_all_sessions_come_in_pages
        a_page_of_waits_is_bounded_in_bytes
        a_sweep_finds_answered_waits
        releasing_leaves_a_waiting_agent_waiting
        waits_are_deleted_with_their_session;
    work:
        an_input_is_found_with_the_turn_that_sent_it
        a_reader_is_found_with_what_it_waits_for
        a_closed_session_without_holders_is_shut
        the_end_of_a_turn_is_found;
    parity:
        errors_have_one_text
        only_the_orchestrator_leads
        a_claim_of_an_unknown_agent_finds_none
        a_released_agent_is_idle
        an_agent_is_found_by_the_type_of_its_new_spec
        withdrawing_again_gives_the_same_answer
        a_rewound_response_answers_no_task
        the_last_page_of_a_list_names_no_next
        asking_again_closes_no_cycle
        the_id_of_a_question_belongs_to_its_asker
        a_batch_of_too_many_rows_is_refused
        a_member_with_bad_data_is_refused_alone;
}

pub(crate) use each_case as suite;
