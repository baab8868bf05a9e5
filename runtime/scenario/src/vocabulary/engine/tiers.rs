//! Host and disk tiers of engines.

use std::sync::Arc;

use rhai::Engine;
use vcr_core::KvTiersConfig;

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
    };
    options.finish()?;
    Ok(TiersSpec(config))
}
