//! The checks.

mod aborts;
mod answers;
mod death;
mod logprobs;
mod setups;
mod statistics;
mod stops;
mod transfers;
mod utilities;

use anyhow::Result;
use futures::FutureExt;
use futures::future::LocalBoxFuture;

use crate::engine::EngineCommand;
use crate::expect::Verdict;
use crate::session::Session;

pub type Outcome<'a> = LocalBoxFuture<'a, Result<Verdict>>;

/// Place of a check.
#[derive(Clone, Copy)]
pub enum Room {
    /// On an engine that other checks use, too.
    Shared(fn(&Session) -> Outcome<'_>),
    /// With engines of its own.
    Alone(fn(&EngineCommand) -> Outcome<'_>),
}

/// Something that must hold.
pub struct Check {
    pub name: &'static str,
    pub room: Room,
}

macro_rules! checks {
    ($($room:ident $module:ident::$name:ident,)*) => {
        &[$(Check {
            name: concat!(stringify!($module), "::", stringify!($name)),
            room: Room::$room(|with| $module::$name(with).boxed_local()),
        },)*]
    };
}

/// In an order in which most of them need only one start of a slow engine.
pub const CHECKS: &[Check] = checks![
    Shared setups::the_ready_response_tells_of_the_engine,
    Shared answers::many_at_once_stream_to_their_ends,
    Shared answers::the_likeliest_tokens_are_the_same_again,
    Shared answers::what_was_asked_before_is_cached,
    Shared answers::a_salt_or_a_wish_keeps_from_the_cache,
    Shared answers::the_models_length_ends_an_answer,
    Shared stops::a_stop_token_ends_an_answer,
    Shared stops::the_end_of_sequence_ends_an_answer,
    Shared stops::other_tokens_end_nothing,
    Shared stops::min_tokens_come_before_a_stop,
    Shared aborts::a_dropped_stream_is_forgotten,
    Shared aborts::an_aborted_id_is_free_again,
    Shared logprobs::sampled_tokens_have_logprobs,
    Shared logprobs::prompts_have_logprobs,
    Shared statistics::prefix_cache_counters_add_up,
    Shared statistics::an_idle_engine_runs_nothing,
    Shared statistics::drafts_are_counted,
    Shared utilities::an_unknown_method_is_answered,
    Shared utilities::generating_is_a_supported_task,
    Shared utilities::caches_are_reset,
    Shared utilities::a_kept_pause_freezes_requests,
    Shared utilities::a_waiting_pause_lets_requests_end,
    Shared utilities::an_aborting_pause_ends_requests,
    Shared utilities::an_engine_sleeps_and_wakes,
    Shared utilities::adapters_come_and_go,
    Shared utilities::workers_are_called,
    Shared utilities::a_profile_starts_and_stops,
    Shared utilities::weights_have_a_version,
    Shared utilities::memory_of_the_cache_is_released,
    Alone setups::unix_sockets_will_do,
    Alone setups::engines_are_chosen_by_rank,
    Alone setups::a_coordinator_opens_its_gate,
    Alone transfers::a_prompt_is_computed_elsewhere,
    Alone death::a_dead_engine_says_so,
];
