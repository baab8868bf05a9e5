//! Host and disk tiers of engines.

use std::sync::Arc;

use rhai::Engine;
use vcr_core::{KvTiersConfig, SharedTier};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;
use crate::script::register::with_options;

/// Tiers; the engine checks their settings.
#[derive(Clone)]
pub(crate) struct TiersSpec(pub(crate) KvTiersConfig);

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "kv_tiers", |_, options| make(options));
}

fn make(mut options: Options<'_>) -> Scripted<TiersSpec> {
    let own = KvTiersConfig::default();
    let host_blocks = options.u32("host_blocks");
    let kv_bytes_per_token = options.bytes("kv_bytes_per_token");
    let shared_host = shared_tier(&mut options, "host_scope", ["shared_device_to_host", "shared_host_to_device"]);
    let shared_disk = shared_tier(&mut options, "disk_scope", ["shared_host_to_disk", "shared_disk_to_host"]);
    let mut bandwidth = |name, default: Option<u64>| options.bandwidth(name).or(default);
    let config = KvTiersConfig {
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
    Ok(TiersSpec(config))
}

/// The bandwidths of all engines together, for writes and reads, if the pool shares a tier.
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
