//! The effects of pipeline and context parallelism on the scheduler.
//!
//! Sources: vLLM's `vllm/config/{parallel,vllm}.py` and `resolve_dcp_kv_block_size` in
//! `vllm/v1/core/kv_cache_utils.py`. Prefill context parallelism changes no scheduling decision.

use super::{ConfigError, EngineConfigInput, option};
use crate::compat::{CapacityPolicy, Reservations};

/// Multiplies the block sizes by the number of decode-context-parallel ranks, because vLLM's scheduler
/// counts the tokens of all ranks. Returns the number of ranks.
pub(super) fn share_blocks(input: &mut EngineConfigInput) -> u32 {
    let ranks = input.decode_context_parallel_size;
    // The option's range check reports other values.
    if (2..=option::DECODE_CONTEXT_PARALLEL_SIZE.max).contains(&ranks) {
        input.block_size = input.block_size.saturating_mul(ranks);
        for size in input.kv_cache_groups.iter_mut().filter_map(|group| group.block_size.as_mut()) {
            *size = size.saturating_mul(ranks);
        }
        input.decode_context_parallel_size = 1;
    }
    ranks
}

pub(super) fn unshare_blocks(input: &mut EngineConfigInput, ranks: u32) {
    input.block_size /= ranks;
    for size in input.kv_cache_groups.iter_mut().filter_map(|group| group.block_size.as_mut()) {
        *size /= ranks;
    }
    input.decode_context_parallel_size = ranks;
}

/// Checks for settings that vLLM refuses with context parallelism, or that are undefined with it here.
pub(super) fn check(input: &EngineConfigInput, context_ranks: u32, errors: &mut Vec<ConfigError>) {
    if context_ranks > 1 && !input.kv_cache_groups.iter().all(|group| group.kind.is_full()) {
        let reason = "with `decode_context_parallel_size` only full attention: vLLM shares no windows among ranks, and \
                      with states its prefix hits end within blocks";
        errors.push(ConfigError::Groups { reason: reason.to_owned() });
    }
    let mut exclude = |field, other_field, reason| errors.push(ConfigError::Exclusive { field, other_field, reason });
    if context_ranks > 1 && input.kv_tiers.is_some() {
        exclude("decode_context_parallel_size", "kv_tiers", "a rank's part of a block is not offloaded");
    }
    if input.pipeline_parallel_size == 1 {
        return;
    }
    let field = "pipeline_parallel_size";
    if input.num_speculative_tokens > 0 && !input.async_scheduling {
        let reason = "without `async_scheduling` vLLM waits for the drafts of the step that it has just begun, and \
                      gives them to the requests of another";
        exclude(field, "num_speculative_tokens", reason);
    }
    if input.max_extra_tokens_per_step > 0 {
        exclude(field, "max_extra_tokens_per_step", "Dynamo's mocker has one step in flight");
    }
    if input.capacity == CapacityPolicy::GuaranteedNoEvict {
        exclude(field, "capacity", "other schedulers than vLLM's have one step in flight here");
    }
    if input.reservations == Reservations::BetweenSteps {
        exclude(field, "reservations", "Dynamo's mocker has one step in flight");
    }
    if input.kv_tiers.is_some() {
        exclude(field, "kv_tiers", "offloads are known with one step in flight");
    }
}
