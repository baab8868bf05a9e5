//! Names of engine arguments, by the object that contains them.

use serde_json::{Map, Value};
use vcr_core::option;

pub(super) const ENGINE: &[&str] = &[
    "backend",
    option::NUM_GPU_BLOCKS.name,
    option::BLOCK_SIZE.name,
    option::MAX_MODEL_LEN.name,
    option::MAX_NUM_SEQS.name,
    option::MAX_NUM_BATCHED_TOKENS.name,
    "prefill_schedule_interval",
    "prefill_decode_interval",
    option::ENABLE_PREFIX_CACHING.name,
    option::ENABLE_CHUNKED_PREFILL.name,
    option::ASYNC_SCHEDULING.name,
    "speedup_ratio",
    "decode_speedup_ratio",
    "aic_nextn",
    "aic_nextn_accept_rates",
    "aic_mtp_seed",
    "worker_type",
    "preemption_mode",
    "emit_kv_events",
    "emit_kv_token_ids",
    "kv_transfer_bytes_per_token",
    "kv_cache_bytes_per_token",
    "kv_cache_groups",
    "kv_cache_capacity_bytes",
    "kv_eviction_policy",
    "native_host_offload",
    "g3_offload",
    "state_cache",
    "prefix_match_unit",
    "kv_transfer_bandwidth",
    "kv_transfer_timing_mode",
    "timing_model",
    "sglang",
    "trtllm",
];

/// Top-level keys of the nested layout.
pub(super) const BESIDE: &[&str] = &[
    "engine",
    "dynamo",
    "dp_size",
    "tensor_parallel_size",
    "startup_time",
    "gpu_memory_utilization",
    "mem_fraction_static",
    "free_gpu_memory_fraction",
    "cuda_graph_reserved_bytes",
];

pub(super) const DYNAMO: &[&str] = &[
    "enable_local_indexer",
    "bootstrap_port",
    "handoff_session_timeout_ms",
    "reasoning",
    "response_replay_trace_path",
    "zmq_kv_events_port",
    "zmq_replay_port",
    "router_queue_policy",
];

pub(super) const FLAT_ONLY: &[&str] = &[
    "engine_type",
    "g1_backend",
    "is_prefill",
    "is_decode",
    "planner_profile_data",
    "aic_backend",
    "aic_system",
    "aic_backend_version",
    "aic_tp_size",
    "aic_model_path",
    "aic_moe_tp_size",
    "aic_moe_ep_size",
    "aic_attention_dp_size",
    "kv_bytes_per_token",
    "num_g2_blocks",
    "num_g3_blocks",
    "enable_g4_storage",
    "offload_batch_size",
    "bandwidth_g1_to_g2_gbps",
    "bandwidth_g2_to_g1_gbps",
    "bandwidth_g2_to_g3_gbps",
    "bandwidth_g3_to_g2_gbps",
    "bandwidth_g2_to_g4_gbps",
    "bandwidth_g4_to_g2_gbps",
];

/// Keys of the tier objects inside `engine`.
const TIERS: &[(&str, &[&str])] = &[
    (
        "native_host_offload",
        &[
            "num_host_blocks",
            "d2h_bandwidth_gbps",
            "h2d_bandwidth_gbps",
            "shared_d2h_bandwidth_gbps",
            "shared_h2d_bandwidth_gbps",
        ],
    ),
    (
        "g3_offload",
        &[
            "latency_to_first_byte_ms",
            "read_bandwidth_gbps",
            "write_bandwidth_gbps",
            "shared_read_bandwidth_gbps",
            "shared_write_bandwidth_gbps",
        ],
    ),
];

const NESTED_ONLY: &[&str] = &[
    "backend",
    "prefill_schedule_interval",
    "prefill_decode_interval",
    "kv_eviction_policy",
    "timing_model",
    "tensor_parallel_size",
];

pub(super) fn is_nested(map: &Map<String, Value>) -> bool {
    ["engine", "dynamo", "tensor_parallel_size", "cuda_graph_reserved_bytes"].iter().any(|key| map.contains_key(*key))
}

/// The right place of a key of the nested layout that is not known where it stands.
pub(super) fn nested_place(key: &str) -> Option<String> {
    let renamed = match key {
        "engine_type" => Some("engine.backend"),
        "kv_bytes_per_token" => Some("engine.kv_transfer_bytes_per_token"),
        "aic_tp_size" => Some("tensor_parallel_size"),
        "planner_profile_data" => Some("engine.timing_model"),
        "num_g2_blocks" => Some("engine.native_host_offload.num_host_blocks"),
        "num_g3_blocks" => Some("engine.g3_offload.num_g3_blocks"),
        "bandwidth_g1_to_g2_gbps" => Some("engine.native_host_offload.d2h_bandwidth_gbps"),
        "bandwidth_g2_to_g1_gbps" => Some("engine.native_host_offload.h2d_bandwidth_gbps"),
        "bandwidth_g2_to_g3_gbps" => Some("engine.g3_offload.write_bandwidth_gbps"),
        "bandwidth_g3_to_g2_gbps" => Some("engine.g3_offload.read_bandwidth_gbps"),
        _ => None,
    };
    if let Some(renamed) = renamed {
        return Some(format!("it is a name of the flat layout; in the nested one it is `{renamed}`"));
    }
    let place = [("engine", ENGINE), ("dynamo", DYNAMO)].into_iter().find(|(_, keys)| keys.contains(&key));
    if let Some((object, _)) = place {
        return Some(format!("in the nested layout it belongs into `{object}`"));
    }
    BESIDE.contains(&key).then(|| "in the nested layout it belongs at the top level".to_owned())
}

/// The right place of a key of the flat layout that is not known there.
pub(super) fn flat_place(key: &str) -> Option<String> {
    let tier = TIERS.iter().find(|(_, keys)| keys.contains(&key));
    match tier {
        Some((object, _)) => Some(format!("in the nested layout it belongs into `engine.{object}`")),
        None => ENGINE.contains(&key).then(|| "in the nested layout it belongs into `engine`".to_owned()),
    }
}

/// Whether an engine argument has this name, in either layout.
#[must_use]
pub fn known_engine_key(key: &str) -> bool {
    let objects = ["engine", "dynamo"];
    let inside = TIERS.iter().map(|(_, keys)| *keys);
    let mut lists = [ENGINE, BESIDE, DYNAMO, FLAT_ONLY].into_iter().chain(inside);
    !objects.contains(&key) && lists.any(|keys| keys.contains(&key))
}

impl super::EngineArgs {
    /// Returns the JSON text `text` with another engine type, under the key of its layout.
    #[must_use]
    pub fn with_engine_type(text: &str, engine_type: &str) -> String {
        let nested = serde_json::from_str::<Map<String, Value>>(text).is_ok_and(|map| is_nested(&map));
        Self::with_key(Some(text), if nested { "backend" } else { "engine_type" }, Value::from(engine_type))
    }

    /// Returns the JSON text `text` with another value for one engine argument, at its place in the layout. No text
    /// means all defaults. Text that is not a JSON object is returned unchanged, because
    /// [`EngineArgs::read`](super::EngineArgs::read) refuses it.
    #[must_use]
    pub fn with_key(text: Option<&str>, key: &str, value: Value) -> String {
        let text = text.unwrap_or("{}");
        let Ok(Value::Object(mut map)) = serde_json::from_str(text) else { return text.to_owned() };
        // Both layouts know `backend`.
        let is_known = key == "backend" && !map.is_empty();
        if !is_nested(&map) && NESTED_ONLY.contains(&key) && !is_known {
            nest(&mut map);
        }
        let nested = is_nested(&map);
        // In the nested layout, the key belongs in its own object, although both layouts use the same name.
        let tier = TIERS.iter().find(|(_, keys)| keys.contains(&key)).map(|(object, _)| *object);
        if let Some(object) = tier.or((nested && key == "num_g3_blocks").then_some("g3_offload")) {
            set_inside(&mut map, &["engine", object], key, value);
            return Value::Object(map).to_string();
        }
        let inner = [("engine", ENGINE), ("dynamo", DYNAMO)].into_iter().find(|(_, keys)| keys.contains(&key));
        match inner {
            Some((object, _)) if nested => set_inside(&mut map, &[object], key, value),
            _ => {
                map.insert(key.to_owned(), value);
            }
        }
        Value::Object(map).to_string()
    }
}

/// Moves the keys of an object in the flat layout to their places in the nested one, if all of them have one.
fn nest(map: &mut Map<String, Value>) {
    if map.keys().any(|key| FLAT_ONLY.contains(&key.as_str())) {
        return;
    }
    map.entry("engine").or_insert_with(|| Value::Object(Map::new()));
    for (object, keys) in [("engine", ENGINE), ("dynamo", DYNAMO)] {
        for key in keys {
            if let Some(value) = map.remove(*key) {
                set_inside(map, &[object], key, value);
            }
        }
    }
}

/// Sets a key of a nested object, and adds missing objects. Values that are not objects stay unchanged, because the
/// reader refuses them.
fn set_inside(map: &mut Map<String, Value>, objects: &[&str], key: &str, value: Value) {
    let Some((object, deeper)) = objects.split_first() else {
        map.insert(key.to_owned(), value);
        return;
    };
    if let Value::Object(inside) = map.entry(*object).or_insert_with(|| Value::Object(Map::new())) {
        set_inside(inside, deeper, key, value);
    }
}
