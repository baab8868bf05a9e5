//! Reads [`EngineArgs`] from JSON.

use std::path::PathBuf;

use serde_json::Value;
use vcr_cluster::{KvEviction, PoolRole, TransferScope};
use vcr_core::sglang::{self, SchedulePolicy, SglangConfigInput};
use vcr_core::{EngineConfigInput, NamedValue, option};

use super::names::{flat_place, is_nested, nested_place};
use super::{ABOUT_MEMORY, Kind, MAX_EXTRA_TOKENS, Raw, SglangRaw};
use super::{EngineArgs, EngineType, KvTransfer, Mtp, PreemptionMode, SglangArgs, Timing};
use super::{rules, state, tables, tiers};
use crate::keys::{Keys, parse};
use crate::problem::Findings;

const ACCEPTANCE_RATES: [f64; 5] = [0.85, 0.3, 0.0, 0.0, 0.0];

const ABOUT_AIC: &str = "give the flat arguments `aic_backend`, `aic_system` and `aic_model_path`, a planner profile, \
                         or a latency model with --latency";
const ABOUT_LIVE: &str = "it is about live engines";

/// Reads and checks all arguments. The result is only valid if there are no problems.
pub(super) fn engine_args(place: &str, text: &str, findings: &mut Findings) -> EngineArgs {
    let map = parse(place, text, findings);
    let mut raw = Raw { is_nested: is_nested(&map), ..Raw::default() };
    let mut keys = Keys::new(place, "", map, findings);
    if raw.is_nested {
        nested(&mut raw, &mut keys)
    } else {
        flat(&mut raw, &mut keys)
    }
    rules::check(&raw, &mut keys);
    keys.finish(if raw.is_nested { nested_place } else { flat_place });
    checked(raw)
}

fn checked(raw: Raw) -> EngineArgs {
    let sglang = raw.sglang.unwrap_or_default();
    // Most of Dynamo's defaults equal the simulator's.
    let (own, own_sglang) = (EngineConfigInput::default(), SglangConfigInput::default());
    let kind = raw.engine_type.unwrap_or(Kind::Vllm);
    let engine_type = match kind {
        Kind::Vllm => EngineType::Vllm,
        Kind::Trtllm => EngineType::Trtllm,
        Kind::Sglang => EngineType::Sglang(SglangArgs {
            schedule_policy: sglang.schedule_policy.unwrap_or_default(),
            max_prefill_tokens: sglang.max_prefill_tokens.unwrap_or(own_sglang.max_prefill_tokens),
            chunked_prefill_size: sglang.chunked_prefill_size.unwrap_or(own_sglang.chunked_prefill_size),
            clip_max_new_tokens: sglang.clip_max_new_tokens.unwrap_or(own_sglang.clip_max_new_tokens),
            schedule_conservativeness: sglang.schedule_conservativeness.unwrap_or(own_sglang.schedule_conservativeness),
            prefill_decode_interval: raw.prefill_decode_interval.unwrap_or(0),
        }),
    };
    let page_size = sglang.page_size.filter(|_| kind == Kind::Sglang);
    let default_block_size = match kind {
        Kind::Vllm => 64,
        Kind::Sglang => own_sglang.page_size,
        Kind::Trtllm => 32,
    };
    // The rules refuse more extra tokens.
    let mtp = raw.nextn.map(|nextn| nextn.min(MAX_EXTRA_TOKENS)).map(|nextn| {
        let mut acceptance_rates = raw.rates.clone().unwrap_or_else(|| ACCEPTANCE_RATES.to_vec());
        acceptance_rates.resize(nextn as usize, 0.0);
        Mtp { extra_tokens: nextn as u32, acceptance_rates }
    });
    let block_size = raw.block_size.or(page_size).unwrap_or(default_block_size);
    // The rules refuse more state blocks.
    let state_blocks = raw.state_cache.and_then(|state| state.blocks(block_size)).unwrap_or(0);
    EngineArgs {
        engine_type,
        num_gpu_blocks: raw.num_gpu_blocks.unwrap_or(16_384),
        block_size,
        state_blocks: state_blocks.try_into().unwrap_or(u32::MAX),
        max_model_len: raw.max_model_len,
        max_num_seqs: raw.max_num_seqs.unwrap_or(Some(own.max_num_seqs)),
        max_num_batched_tokens: raw.max_num_batched_tokens.unwrap_or(Some(own.max_num_batched_tokens)),
        enable_prefix_caching: raw.enable_prefix_caching.unwrap_or(own.enable_prefix_caching),
        enable_chunked_prefill: raw.enable_chunked_prefill.unwrap_or(own.enable_chunked_prefill),
        prefill_schedule_interval: raw.prefill_schedule_interval.unwrap_or(1),
        async_scheduling: raw.async_scheduling.unwrap_or(own.async_scheduling),
        speedup_ratio: raw.speedup_ratio.filter(|&ratio| ratio > 0.0).unwrap_or(1.0),
        decode_speedup_ratio: raw.decode_speedup_ratio.filter(|&ratio| ratio > 0.0).unwrap_or(1.0),
        dp_size: raw.attention_dp_size.filter(|&size| size > 1).or(raw.dp_size).unwrap_or(1),
        tensor_parallel_size: raw.tensor_parallel_size.unwrap_or(1),
        startup_time_ns: (raw.startup_time_s.unwrap_or(0.0) * 1e9).round() as u64,
        worker_type: raw.worker_type,
        timing: raw.timing.unwrap_or(Timing::Polynomial),
        mtp,
        kv_transfer: raw.kv_transfer,
        kv_tiers: raw.kv_tiers,
        kv_eviction: raw.kv_eviction,
        preemption_mode: raw.preemption_mode,
        router_queue_policy: raw.router_queue_policy,
    }
}

/// Reads the flat object of 1.4, with all keys on one level.
fn flat(raw: &mut Raw, keys: &mut Keys<'_>) {
    keys.alias("engine_type", "backend");
    keys.alias("kv_bytes_per_token", "kv_transfer_bytes_per_token");
    keys.drop_zero("block_size");
    engine_level(raw, keys, "engine_type", "kv_bytes_per_token");
    worker_level(raw, keys);
    dynamo_level(raw, keys);
    raw.tensor_parallel_size = keys.count("aic_tp_size");
    raw.attention_dp_size = keys.count("aic_attention_dp_size");
    raw.moe_tp_size = keys.count("aic_moe_tp_size");
    raw.moe_ep_size = keys.count("aic_moe_ep_size");
    let is_prefill = keys.boolean("is_prefill").unwrap_or(false);
    let is_decode = keys.boolean("is_decode").unwrap_or(false);
    match (is_prefill, is_decode, raw.worker_type) {
        (true, true, _) => keys.problem("is_prefill", "contradicts `is_decode`; use `worker_type` instead"),
        (true, false, None | Some(PoolRole::Prefill)) => raw.worker_type = Some(PoolRole::Prefill),
        (false, true, None | Some(PoolRole::Decode)) => raw.worker_type = Some(PoolRole::Decode),
        (false, false, _) => {}
        _ => keys.problem("worker_type", "contradicts `is_prefill` or `is_decode`; keep one"),
    }
    if let Some(path) = keys.text("planner_profile_data") {
        raw.timing = Some(Timing::Profile(PathBuf::from(path)));
    }
    if let Some(input) = tables::flat(raw, keys) {
        if raw.timing.is_some() {
            keys.problem("aic_backend", "contradicts `planner_profile_data`; keep one");
        }
        raw.timing = Some(Timing::Tables(Box::new(input)));
    }
    if keys.choice("g1_backend", &[("native", true), ("kvbm", false)]) == Some(false) {
        keys.problem("g1_backend", "\"kvbm\" is not simulated; use \"native\" or remove it");
    }
    raw.kv_tiers = tiers::flat(keys);
    if let (Some(tiers), Some(bytes)) = (&mut raw.kv_tiers, raw.kv_transfer.bytes_per_token) {
        tiers.kv_bytes_per_token = bytes;
    }
    keys.pass_over(&["has_perf_model"], ABOUT_LIVE);
}

/// Reads the nested object of 1.6.
fn nested(raw: &mut Raw, keys: &mut Keys<'_>) {
    let engine = keys.object("engine").unwrap_or_default();
    let dynamo = keys.object("dynamo").unwrap_or_default();
    worker_level(raw, keys);
    raw.tensor_parallel_size = keys.count("tensor_parallel_size");
    keys.pass_over(&["cuda_graph_reserved_bytes", "num_gpu_blocks_is_explicit"], ABOUT_MEMORY);
    {
        let mut keys = keys.inner("engine", engine);
        keys.alias("backend", "engine_type");
        keys.alias("kv_transfer_bytes_per_token", "kv_bytes_per_token");
        engine_level(raw, &mut keys, "backend", "kv_transfer_bytes_per_token");
        nested_engine_level(raw, &mut keys);
        keys.finish(nested_place);
    }
    let mut keys = keys.inner("dynamo", dynamo);
    dynamo_level(raw, &mut keys);
    keys.finish(nested_place);
}

/// Reads the keys of the engine itself. Two of them have different names in each layout.
fn engine_level(raw: &mut Raw, keys: &mut Keys<'_>, engine_type: &'static str, bytes_per_token: &'static str) {
    raw.engine_type =
        keys.choice(engine_type, &[("vllm", Kind::Vllm), ("sglang", Kind::Sglang), ("trtllm", Kind::Trtllm)]);
    raw.num_gpu_blocks = keys.count("num_gpu_blocks");
    raw.block_size = keys.count_option(&option::BLOCK_SIZE);
    raw.max_model_len = keys.count_option(&option::MAX_MODEL_LEN);
    raw.max_num_seqs = keys.bound_option(&option::MAX_NUM_SEQS);
    raw.max_num_batched_tokens = keys.bound_option(&option::MAX_NUM_BATCHED_TOKENS);
    raw.enable_prefix_caching = keys.switch_option(&option::ENABLE_PREFIX_CACHING);
    raw.enable_chunked_prefill = keys.switch_option(&option::ENABLE_CHUNKED_PREFILL);
    raw.async_scheduling = keys.switch_option(&option::ASYNC_SCHEDULING);
    raw.speedup_ratio = ratio(keys, "speedup_ratio");
    raw.decode_speedup_ratio = ratio(keys, "decode_speedup_ratio");
    raw.nextn = keys.whole("aic_nextn").filter(|&nextn| nextn > 0);
    raw.rates = rates(keys, "aic_nextn_accept_rates");
    keys.pass_over(&["aic_mtp_seed"], "bursts are drawn from the run's own seed");
    raw.worker_type = keys.choice(
        "worker_type",
        &[PoolRole::Aggregated, PoolRole::Prefill, PoolRole::Decode].map(|role| (role.name(), role)),
    );
    let modes = [("lifo", PreemptionMode::Lifo), ("fifo", PreemptionMode::Fifo)];
    raw.preemption_mode = keys.choice("preemption_mode", &modes).unwrap_or_default();
    raw.kv_transfer = KvTransfer {
        bytes_per_token: keys.whole(bytes_per_token),
        bandwidth_gb_per_s: keys.at_least("kv_transfer_bandwidth", 0.0),
        scope: keys.choice(
            "kv_transfer_timing_mode",
            &[("full_prompt", TransferScope::FullPrompt), ("destination_missing", TransferScope::Missing)],
        ),
    };
    if let Some(map) = keys.object("sglang") {
        let mut keys = keys.inner("sglang", map);
        raw.sglang = Some(sglang(&mut keys));
        keys.finish(|_| None);
    }
    if let Some(map) = keys.object("trtllm") {
        let mut keys = keys.inner("trtllm", map);
        keys.choice("capacity_scheduler_policy", &[("guaranteed_no_evict", ())]);
        keys.finish(|_| None);
    }
}

fn sglang(keys: &mut Keys<'_>) -> SglangRaw {
    SglangRaw {
        schedule_policy: keys.choice(sglang::option::SCHEDULE_POLICY.name, SchedulePolicy::NAMES),
        page_size: keys.count_option(&sglang::option::PAGE_SIZE),
        max_prefill_tokens: keys.count_option(&sglang::option::MAX_PREFILL_TOKENS),
        chunked_prefill_size: keys.count_option(&sglang::option::CHUNKED_PREFILL_SIZE),
        clip_max_new_tokens: keys.count(sglang::option::CLIP_MAX_NEW_TOKENS.name),
        schedule_conservativeness: keys.at_least(sglang::option::SCHEDULE_CONSERVATIVENESS.name, 0.0),
    }
}

/// Reads the keys of `engine` that only 1.6 has.
fn nested_engine_level(raw: &mut Raw, keys: &mut Keys<'_>) {
    if let Some(map) = keys.object("timing_model") {
        let mut keys = keys.inner("timing_model", map);
        raw.timing = timing_model(&mut keys);
        keys.finish(|_| None);
    }
    keys.pass_over(&["emit_kv_events", "emit_kv_token_ids"], "the router's configuration decides what it receives");
    keys.pass_over(&["kv_cache_capacity_bytes"], ABOUT_MEMORY);
    raw.state_cache = state::nested(keys);
    raw.kv_tiers = tiers::nested(keys);
    raw.kv_eviction = keys.choice("kv_eviction_policy", KvEviction::NAMES).unwrap_or_default();
    raw.prefill_schedule_interval = keys.count("prefill_schedule_interval");
    raw.prefill_decode_interval = keys.count_option(&sglang::option::PREFILL_DECODE_INTERVAL);
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    keys.refuse(&["kv_cache_groups"], is_empty, "remove it");
}

fn timing_model(keys: &mut Keys<'_>) -> Option<Timing> {
    match keys.text("type").as_deref() {
        Some("polynomial") => Some(Timing::Polynomial),
        Some("fixed") => {
            let (prefill_ms, decode_ms) = (keys.at_least("prefill_ms", 0.0), keys.at_least("decode_ms", 0.0));
            if prefill_ms.is_none() || decode_ms.is_none() {
                keys.problem("type", "\"fixed\" needs `prefill_ms` and `decode_ms`");
            }
            Some(Timing::Fixed { prefill_ms: prefill_ms?, decode_ms: decode_ms? })
        }
        Some("external") => external(keys),
        _ => {
            keys.problem("type", "expected \"polynomial\", \"fixed\" or \"external\"");
            None
        }
    }
}

fn external(keys: &mut Keys<'_>) -> Option<Timing> {
    let provider = keys.text("provider");
    // Dynamo puts the provider's own settings into `config`.
    let mut config = keys.object("config").unwrap_or_default();
    if let Some(path) = keys.text("path") {
        config.insert("path".to_owned(), Value::String(path));
    }
    match provider.as_deref() {
        Some("dynamo_profile") => match config.get("path").and_then(Value::as_str) {
            Some(path) => return Some(Timing::Profile(PathBuf::from(path))),
            None => keys.problem("path", "is missing; expected the file or folder of the \"dynamo_profile\""),
        },
        Some("ais" | "aic") => keys.problem("provider", format!("is not read; {ABOUT_AIC}")),
        _ => keys.problem("provider", "expected \"dynamo_profile\""),
    }
    None
}

/// Reads the keys of a worker outside of its engine.
fn worker_level(raw: &mut Raw, keys: &mut Keys<'_>) {
    raw.dp_size = keys.count("dp_size");
    raw.startup_time_s = keys.between("startup_time", 0.0, 1e9);
    let estimates = ["gpu_memory_utilization", "mem_fraction_static", "free_gpu_memory_fraction"];
    keys.pass_over(&estimates, ABOUT_MEMORY);
}

/// Reads the keys of Dynamo's runtime around a worker.
fn dynamo_level(raw: &mut Raw, keys: &mut Keys<'_>) {
    let live = [
        "enable_local_indexer",
        "bootstrap_port",
        "handoff_session_timeout_ms",
        "response_replay_trace_path",
        "zmq_kv_events_port",
        "zmq_replay_port",
    ];
    keys.pass_over(&live, ABOUT_LIVE);
    keys.pass_over(&["reasoning"], "the text of outputs does not affect times");
    raw.router_queue_policy = keys.choice("router_queue_policy", crate::router::QUEUE_ORDERS);
}

/// Reads a speed-up. 0 means 1, as in Dynamo's code (its help differs).
fn ratio(keys: &mut Keys<'_>, key: &'static str) -> Option<f64> {
    let ratio = keys.at_least(key, 0.0)?;
    if ratio == 0.0 {
        keys.remark(key, "is 0, which means 1 as in Dynamo; expected the divisor of all times, above 0");
    }
    Some(ratio)
}

/// Reads rates in Dynamo's form `"0.85,0.3"`, or as a list.
fn rates(keys: &mut Keys<'_>, key: &'static str) -> Option<Vec<f64>> {
    let value = keys.value(key)?;
    let rates: Option<Vec<f64>> = match &value {
        Value::String(text) => text.split(',').map(|rate| rate.trim().parse().ok()).collect(),
        Value::Array(list) => list.iter().map(Value::as_f64).collect(),
        _ => None,
    };
    let rates = rates.filter(|rates| rates.iter().all(|rate| (0.0..=1.0).contains(rate)));
    if rates.is_none() {
        keys.problem(key, format!("expected probabilities from 0 to 1 such as \"0.85,0.3\", got {value}"));
    }
    rates
}
