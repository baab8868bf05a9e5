//! Checks for settings that vLLM refuses with groups of layers, or that are undefined with groups here.

use super::{ConfigError, Drafting, EngineConfigInput, NamedValue};
use crate::compat::{CapacityPolicy, Reservations};
use crate::kv::groups::kind::{self, KvCacheGroup, KvCacheKind, MAX_GROUPS, MambaCacheMode};

/// Checks settings against the groups. Groups exist only under vLLM's rules, not under other engines' rules.
pub(super) fn check(input: &EngineConfigInput, errors: &mut Vec<ConfigError>) {
    let field = "kv_cache_groups";
    let aligned = kind::aligned_tokens(&input.kv_cache_groups, input.block_size);
    check_retention(input, aligned.unwrap_or(u32::MAX), errors);
    let mode = input.mamba_cache_mode;
    if mode == MambaCacheMode::All && !input.rules.keeps_all_states() {
        errors.push(ConfigError::MambaCacheMode { name: mode.name(), release: input.rules.name() });
    }
    if input.kv_cache_groups.is_empty() {
        return;
    }
    let mut invalid = |reason: String| errors.push(ConfigError::Groups { reason });
    if input.kv_cache_groups.len() > MAX_GROUPS {
        let count = input.kv_cache_groups.len();
        invalid(format!("expected up to {} groups, but there are {count}", MAX_GROUPS));
    }
    if aligned.is_none() {
        invalid("the least common multiple of their block sizes is too large".to_owned());
    }
    let own_sizes = input.kv_cache_groups.iter().filter_map(|group| group.block_size);
    for size in own_sizes.filter(|size| !size.is_multiple_of(input.block_size)) {
        invalid(format!(
            "expected block sizes that are multiples of `block_size` ({}), but one is {size}",
            input.block_size
        ));
    }
    let is_local = |group: &KvCacheGroup| matches!(group.kind, KvCacheKind::ChunkedLocal { .. });
    let is_one_size = aligned == input.kv_cache_groups[0].block_size.or(Some(input.block_size))
        && input
            .kv_cache_groups
            .iter()
            .all(|group| group.block_size.unwrap_or(input.block_size) == aligned.unwrap_or(0));
    if input.enable_prefix_caching && !is_one_size && input.kv_cache_groups.iter().any(is_local) {
        invalid("vLLM looks up chunked local attention only where all blocks have the same size".to_owned());
    }
    if input.kv_cache_groups.len() == 1 && aligned != Some(input.block_size) {
        invalid("the blocks of a single group have `block_size` tokens".to_owned());
    }
    let keeps_states = input.kv_cache_groups.iter().any(|group| group.kind.is_mamba());
    let is_larger = |group: &KvCacheGroup| group.block_size.is_some_and(|size| size != input.block_size);
    if keeps_states && input.enable_prefix_caching && aligned != Some(input.block_size) {
        invalid(
            "with prefix caching the blocks of Mamba, and of groups beside it, have `block_size` tokens".to_owned(),
        );
    } else if input.kv_cache_groups.iter().any(|group| group.kind.is_mamba() && is_larger(group)) {
        invalid("without prefix caching a block of Mamba is as long as a sequence".to_owned());
    }
    let ends_chunks = keeps_states && mode.with_prefix_caching(input.enable_prefix_caching) == MambaCacheMode::Align;
    if ends_chunks && !input.enable_chunked_prefill {
        let reason = "with prefix caching chunks of Mamba end where states are kept";
        errors.push(ConfigError::Needs { field, needed: "enable_chunked_prefill", reason });
    }
    let mut exclude = |other_field, reason| errors.push(ConfigError::Exclusive { field, other_field, reason });
    if input.kv_tiers.is_some() {
        exclude("kv_tiers", "only blocks of full attention are offloaded");
    }
    if input.capacity == CapacityPolicy::GuaranteedNoEvict {
        exclude("capacity", "a guarantee counts the blocks of full attention");
    }
    if input.max_extra_tokens_per_step > 0 {
        exclude("max_extra_tokens_per_step", "Dynamo's mocker has one group of full attention");
    }
    if input.reservations == Reservations::BetweenSteps {
        exclude("reservations", "Dynamo's mocker has one group of full attention");
    }
    check_cross_attention(input, errors);
    let mut exclude = |other_field, reason| errors.push(ConfigError::Exclusive { field, other_field, reason });
    let drafting = Drafting::of(input);
    // A chunk that must end where a state is kept and leave tokens for the modules may have no tokens at all, now and
    // in every later step. Then vLLM's scheduler stalls.
    if ends_chunks && drafting.prefill_lookahead_tokens > 1 {
        exclude("drafter", "a chunk that ends where a state is kept may not leave enough tokens for all modules");
    }
    let leaves_states = |group: &KvCacheGroup| matches!(group.kind, KvCacheKind::Mamba { checkpoint_tokens: Some(_) });
    if ends_chunks && drafting.drops_block && input.kv_cache_groups.iter().any(leaves_states) {
        exclude("drafter", "a state that Mamba 2 leaves within a chunk would be one of less than its block");
    }
}

/// Refuses settings that vLLM turns off for encoder-decoder models, and connectors, which vLLM asserts are absent.
fn check_cross_attention(input: &EngineConfigInput, errors: &mut Vec<ConfigError>) {
    if !input.kv_cache_groups.iter().any(|group| group.kind == KvCacheKind::CrossAttention) {
        return;
    }
    let mut exclude = |is_set: bool, other_field, reason| {
        if is_set {
            errors.push(ConfigError::Exclusive { field: "kv_cache_groups", other_field, reason });
        }
    };
    let one_step = "with cross attention the prompt of the decoder is computed in one step";
    exclude(
        input.enable_prefix_caching,
        "enable_prefix_caching",
        "with cross attention the KV of a token depends on what the encoder has read",
    );
    exclude(input.enable_chunked_prefill, "enable_chunked_prefill", one_step);
    exclude(input.long_prefill_token_threshold > 0, "long_prefill_token_threshold", one_step);
    exclude(input.kv_connector.is_some(), "kv_connector", "vLLM has none with cross attention");
    exclude(input.drafter.has_kv(), "drafter", "one with KV has no cross attention");
}

fn check_retention(input: &EngineConfigInput, aligned: u32, errors: &mut Vec<ConfigError>) {
    let Some(tokens) = input.prefix_cache_retention_interval else { return };
    let is_sparse = |kind: KvCacheKind| kind.is_mamba() || matches!(kind, KvCacheKind::SlidingWindow { .. });
    if tokens > 0 && !input.kv_cache_groups.iter().any(|group| is_sparse(group.kind)) {
        errors.push(ConfigError::Needs {
            field: "prefix_cache_retention_interval",
            needed: "kv_cache_groups",
            reason: "it only applies to sliding windows and Mamba",
        });
    } else if tokens > 0 && !tokens.is_multiple_of(aligned) {
        errors.push(ConfigError::Retention { tokens, aligned });
    }
}
