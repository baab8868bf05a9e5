//! State blocks of models with Mamba or linear attention (`state_cache` of 1.6).
//!
//! Dynamo counts a state in blocks of its single pool. Here, each of these blocks becomes a KV cache group that
//! keeps a state. vLLM's rules for states therefore apply: a request has one state in addition to its KV, prompt
//! chunks end where states are kept, and a prefix hit ends at a state.

use vcr_core::{KvCacheGroup, KvCacheKind};

use super::{Kind, Raw, StateCache};
use crate::keys::Keys;

/// Maximum number of blocks of a state: one for each of the 64 KV cache groups except the first.
const MAX_BLOCKS: u64 = 63;

/// Reads the keys inside `engine`.
pub(super) fn nested(keys: &mut Keys<'_>) -> Option<StateCache> {
    let block_size = keys.count("prefix_match_unit");
    let Some(map) = keys.object("state_cache") else {
        if block_size.is_some() {
            keys.problem("prefix_match_unit", "needs `state_cache`: other prefixes end with their blocks");
        }
        return None;
    };
    if block_size.is_some() {
        keys.problem("prefix_match_unit", "is not simulated: states are kept where blocks end; remove it");
    }
    let kv_bytes_per_token = keys.whole("kv_cache_bytes_per_token").unwrap_or(0);
    let mut keys = keys.inner("state_cache", map);
    let bytes_per_request = keys.whole("bytes_per_request").filter(|&bytes| bytes > 0);
    if bytes_per_request.is_none() && !keys.has_problem("bytes_per_request") {
        keys.problem("bytes_per_request", "is missing: expected the bytes of a state, at least 1");
    }
    keys.finish(|_| None);
    // A problem was already added for a missing value.
    Some(StateCache { bytes_per_request: bytes_per_request.unwrap_or(1), kv_bytes_per_token })
}

/// Adds a problem if the engine cannot have states.
pub(super) fn check(raw: &Raw, block_size: u32, problem: &mut dyn FnMut(&str, String)) {
    let Some(state) = raw.state_cache else { return };
    let key = "state_cache";
    match state.blocks(block_size) {
        None => problem(key, "needs `kv_cache_bytes_per_token`: blocks of KV are counted by their bytes".to_owned()),
        Some(blocks) if blocks > MAX_BLOCKS => problem(
            key,
            format!("takes {blocks} blocks; expected at most {MAX_BLOCKS}: vLLM's own blocks grow with the state"),
        ),
        Some(_) => {}
    }
    if raw.engine_type.is_some_and(|kind| kind != Kind::Vllm) {
        problem(key, "is simulated for engines of type \"vllm\" only; remove it".to_owned());
    }
    if raw.worker_type.is_some_and(|role| role != vcr_cluster::PoolRole::Aggregated) {
        problem(key, "is simulated for aggregated workers only: links have no states".to_owned());
    }
    if raw.nextn.is_some() {
        problem(key, "is not simulated together with `aic_nextn`; keep one".to_owned());
    }
    if raw.kv_tiers.is_some() {
        problem(key, "is not simulated together with `native_host_offload`; keep one".to_owned());
    }
}

/// The KV cache groups of an engine whose states take this number of blocks; empty without states.
pub(super) fn groups(blocks: u32) -> Vec<KvCacheGroup> {
    let group = |kind| KvCacheGroup { kind, block_size: None, has_drafter: false };
    let states = (0..blocks).map(|_| group(KvCacheKind::Mamba { checkpoint_tokens: None }));
    std::iter::once(group(KvCacheKind::FullAttention)).chain(states).filter(|_| blocks > 0).collect()
}
