//! The settings of a live engine, from the first line of its capture.

use serde_json::{Map, Value};
use vcr_core::{
    CapacityPolicy, DraftRange, EngineConfig, EngineConfigInput, KvCacheGroup, MambaCacheMode, Policy, Reservations,
    SchedulerRules, Victim,
};

use super::case::{checked, greatest_common_divisor, scheduler_block_size};
use super::case_group::CaseGroup;
use super::scope::{drafter_of, prefill_schedule_interval};
use crate::error::LogError;
use crate::live::{LiveEngine, LiveLog};

/// The checked settings.
pub(super) fn engine_config(
    log: &LiveLog,
    args: &Map<String, Value>,
    rules: SchedulerRules,
) -> Result<EngineConfig, LogError> {
    let engine = &log.engine;
    let refuse = |what: String| LogError::out_of_scope(&log.path, Some(1), what);
    let groups = groups_of(engine).map_err(refuse)?;
    let block_size = hashed_block_size(engine, &groups);
    let groups = groups.iter().map(|group| KvCacheGroup {
        // Without prefix caching a state is one of a whole sequence, and has no length of its own here.
        block_size: group.block_size.filter(|_| engine.prefix_caching || !group.kind.is_mamba()),
        ..*group
    });
    let input = input_of(engine, args, rules, (block_size, groups.collect()));
    let config = input.and_then(checked).map_err(|problem| LogError::line(&log.path, 1, problem))?;
    check_derived(engine, &config).map_err(refuse)?;
    Ok(config)
}

fn groups_of(engine: &LiveEngine) -> Result<Vec<KvCacheGroup>, String> {
    let group_of = |group: &Value| {
        let read: Result<CaseGroup, _> = serde_json::from_value(group.clone());
        read.map(|group| KvCacheGroup::from(&group)).map_err(|error| format!("`groups` has {group}: {error}"))
    };
    engine.groups.iter().map(group_of).collect()
}

/// The length that is hashed: without prefix caching vLLM has none, and the one that divides all blocks stands for it.
fn hashed_block_size(engine: &LiveEngine, groups: &[KvCacheGroup]) -> u32 {
    let hashed = engine.hash_block_size.unwrap_or(engine.block_size);
    if engine.prefix_caching || groups.is_empty() {
        return hashed;
    }
    let sizes = groups.iter().filter(|group| !group.kind.is_mamba()).filter_map(|group| group.block_size);
    let common = sizes.map(u64::from).reduce(greatest_common_divisor);
    common.and_then(|common| u32::try_from(common).ok()).unwrap_or(hashed)
}

fn input_of(
    engine: &LiveEngine,
    args: &Map<String, Value>,
    rules: SchedulerRules,
    (block_size, kv_cache_groups): (u32, Vec<KvCacheGroup>),
) -> Result<EngineConfigInput, String> {
    let policy = match engine.policy.as_str() {
        "fcfs" => Policy::Fcfs,
        "priority" => Policy::Priority,
        other => return Err(format!("invalid `policy`: expected fcfs or priority, got \"{other}\"")),
    };
    let adaptive = args.get("long_prefill_token_threshold_adaptive").and_then(Value::as_bool);
    Ok(EngineConfigInput {
        block_size,
        num_gpu_blocks: engine.num_gpu_blocks,
        max_num_seqs: engine.max_num_seqs,
        max_num_batched_tokens: engine.max_num_batched_tokens,
        max_num_scheduled_tokens: engine.max_num_scheduled_tokens,
        prefill_schedule_interval: prefill_schedule_interval(args),
        max_model_len: Some(engine.max_model_len),
        policy,
        enable_prefix_caching: engine.prefix_caching,
        enable_chunked_prefill: engine.chunked_prefill,
        long_prefill_token_threshold: engine.long_prefill_token_threshold,
        adaptive_long_prefill: adaptive.unwrap_or(false),
        watermark: engine.watermark,
        scheduler_reserve_full_isl: engine.reserve_full_isl,
        capacity: CapacityPolicy::Preempt,
        victim: Victim::Newest,
        reservations: Reservations::InSteps,
        max_num_active_seqs: engine.max_num_active_reqs,
        max_loras: engine.max_loras.unwrap_or(0),
        max_extra_tokens_per_step: 0,
        num_speculative_tokens: engine.num_spec_tokens,
        drafter: drafter_of(engine.drafter.as_deref()).unwrap_or_default(),
        disable_lookahead_block_hashes: engine.disable_lookahead_block_hashes,
        async_scheduling: engine.async_scheduling,
        pipeline_parallel_size: 1,
        decode_context_parallel_size: 1,
        draft_ranges: DraftRange::read(&engine.spec_by_batch)?,
        rules,
        kv_tiers: None,
        kv_connector: None,
        kv_cache_groups,
        mamba_cache_mode: MambaCacheMode::default(),
        prefix_cache_retention_interval: engine.retention,
        max_num_encoder_input_tokens: engine.max_num_encoder_input_tokens,
        encoder_cache_size: engine.encoder_cache_size,
        disable_chunked_mm_input: engine.disable_chunked_mm_input,
    })
}

/// Settings that the scheduler derives must be those that follow here.
fn check_derived(engine: &LiveEngine, config: &EngineConfig) -> Result<(), String> {
    let drafting = config.drafting();
    let scheduled = scheduler_block_size(config);
    let (drafter, sizes) = ("it follows from the drafter", "it follows from the blocks of the groups");
    let derived = [
        ("num_lookahead_tokens", engine.num_lookahead_tokens.map(u64::from), drafting.lookahead_tokens.into(), drafter),
        (
            "num_hash_lookahead_tokens",
            engine.num_hash_lookahead_tokens.map(u64::from),
            drafting.hash_lookahead_tokens.into(),
            drafter,
        ),
        ("block_size", Some(u64::from(engine.block_size)), scheduled, sizes),
    ];
    for (key, theirs, ours, why) in derived {
        if let Some(theirs) = theirs.filter(|theirs| *theirs != ours) {
            return Err(format!("`{key}` is {theirs}, where {ours} is expected: {why}"));
        }
    }
    Ok(())
}
