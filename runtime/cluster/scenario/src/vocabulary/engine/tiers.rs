//! Host and disk tiers of engines.

use std::sync::Arc;

use rhai::Engine;
use vcr_core::{EngineConfigInput, EvictionPolicy, HostRules, KvTiersConfig, NamedValue, SharedTier};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;
use crate::script::register::with_options;

/// Settings of tiers; the engine checks them.
#[derive(Clone)]
pub(crate) struct TiersSpec {
    config: KvTiersConfig,
    /// The rules of the tiers. None uses those of the engine, or of the pool's shared tier.
    rules: Option<HostRules>,
}

impl TiersSpec {
    /// The tiers of an engine with these settings.
    pub(crate) fn beside(self, input: &EngineConfigInput) -> KvTiersConfig {
        // Tiers that a pool shares follow Dynamo's rules.
        let own = if self.config.is_shared() { HostRules::Dynamo } else { HostRules::of(input) };
        KvTiersConfig { rules: self.rules.unwrap_or(own), ..self.config }
    }
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "kv_tiers", |_, options| make(options));
}

/// Settings of vLLM's connector that are not simulated, with reasons.
const UNKNOWN: &[(&str, &str)] = &[
    ("sync_load_budget_bytes", "is not simulated: requests wait for their loads"),
    ("blocks_per_chunk", "is not simulated: a chunk is a block"),
    ("block_size", "is not simulated: a chunk is a block"),
    ("max_tracker_size", "is not simulated: the offers of 64,000 blocks are counted"),
    ("spec_name", "is not simulated: blocks are kept in the host's memory, and by `disk_blocks` on a disk below it"),
    ("secondary_tiers", "is not simulated: use `disk_blocks` for a disk below the host"),
    ("cache_policy_module_path", "is not simulated: `eviction_policy` is \"lru\" or \"arc\""),
];

fn make(mut options: Options<'_>) -> Scripted<TiersSpec> {
    let own = KvTiersConfig::default();
    let host_blocks = options.u32("host_blocks");
    let kv_bytes_per_token = options.bytes("kv_bytes_per_token");
    let shared_host = shared_tier(&mut options, "host_scope", ["shared_device_to_host", "shared_host_to_device"]);
    let shared_disk = shared_tier(&mut options, "disk_scope", ["shared_host_to_disk", "shared_disk_to_host"]);
    for (name, reason) in UNKNOWN {
        options.refuse(name, &format!("`{name}` {reason}"));
    }
    let rules = options.choice("rules", HostRules::NAMES);
    let eviction_policy = options.choice("eviction_policy", EvictionPolicy::NAMES).unwrap_or(own.eviction_policy);
    let store_threshold = options.u32("store_threshold").unwrap_or(own.store_threshold);
    let offload_prompt_only = options.boolean("offload_prompt_only").unwrap_or(own.offload_prompt_only);
    let mut bandwidth = |name, default: Option<u64>| options.bandwidth(name).or(default);
    let config = KvTiersConfig {
        rules: own.rules,
        eviction_policy,
        store_threshold,
        offload_prompt_only,
        device_to_host_bytes_per_s: bandwidth("device_to_host", own.device_to_host_bytes_per_s),
        host_to_device_bytes_per_s: bandwidth("host_to_device", own.host_to_device_bytes_per_s),
        host_to_disk_bytes_per_s: bandwidth("host_to_disk", own.host_to_disk_bytes_per_s),
        disk_to_host_bytes_per_s: bandwidth("disk_to_host", own.disk_to_host_bytes_per_s),
        host_blocks: options.required("host_blocks", host_blocks),
        kv_bytes_per_token: options.required("kv_bytes_per_token", kv_bytes_per_token),
        disk_blocks: options.u32("disk_blocks").unwrap_or(own.disk_blocks),
        offload_batch_size: options.u32("offload_batch_size").unwrap_or(own.offload_batch_size),
        host_latency_ns: options.duration_ns("host_latency").unwrap_or(own.host_latency_ns),
        disk_latency_ns: options.duration_ns("disk_latency").unwrap_or(own.disk_latency_ns),
        shared_host,
        shared_disk,
    };
    options.finish()?;
    Ok(TiersSpec { config, rules })
}

/// Reads the bandwidths that all engines have together for a shared tier. None if the tier is not shared.
fn shared_tier(options: &mut Options<'_>, scope: &'static str, [write, read]: [&'static str; 2]) -> Option<SharedTier> {
    let is_shared = options.choice(scope, &[("engine", false), ("pool", true)]).unwrap_or(false);
    let [write_bytes_per_s, read_bytes_per_s] = [write, read].map(|name| {
        let bandwidth = options.bandwidth(name);
        if bandwidth.is_some() && !is_shared {
            options.problem(name, format!("`{name}` needs `{scope}: \"pool\"`"));
        }
        bandwidth
    });
    is_shared.then_some(SharedTier { write_bytes_per_s, read_bytes_per_s })
}
