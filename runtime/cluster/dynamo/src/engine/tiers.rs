//! Host and disk tiers in both layouts.
//!
//! The flat layout uses 1.4's names (`num_g2_blocks`, ...), the nested layout 1.6's (`native_host_offload`,
//! `g3_offload`). Each has the defaults of its version.

use vcr_core::{HostRules, KvTiersConfig, SharedTier};

use super::{ABOUT_MEMORY, Kind, Raw};
use crate::keys::Keys;

/// Default bandwidth between device and host in 1.6.
const HOST_GB_PER_S: f64 = 32.0;

/// Default bandwidth between host and disk in 1.6.
const DISK_GB_PER_S: f64 = 10.0;

/// Default bandwidth of a shared tier for all workers together.
const SHARED_GB_PER_S: f64 = 80.0;

const DISK_LATENCY_MS: f64 = 0.1;

const ABOUT_OBJECTS: &str = "is not simulated: there is a host and a disk, and no object store; remove it";

/// Reads the tiers of 1.4, which lack the bytes per token.
pub(super) fn flat(keys: &mut Keys<'_>) -> Option<KvTiersConfig> {
    let own = KvTiersConfig::default();
    let host_blocks = blocks(keys, "num_g2_blocks");
    let disk_blocks = blocks(keys, "num_g3_blocks");
    if keys.boolean("enable_g4_storage").unwrap_or(false) {
        keys.problem("enable_g4_storage", ABOUT_OBJECTS);
    }
    let bandwidths = [
        ("bandwidth_g1_to_g2_gbps", own.device_to_host_bytes_per_s),
        ("bandwidth_g2_to_g1_gbps", own.host_to_device_bytes_per_s),
        ("bandwidth_g2_to_g3_gbps", own.host_to_disk_bytes_per_s),
        ("bandwidth_g3_to_g2_gbps", own.disk_to_host_bytes_per_s),
    ];
    if host_blocks == 0 {
        if disk_blocks > 0 {
            keys.problem("num_g3_blocks", "needs `num_g2_blocks`: KV reaches the disk by way of the host");
        }
        let without = "it is read together with `num_g2_blocks` only";
        keys.pass_over(&["offload_batch_size"], without);
        bandwidths.iter().for_each(|(key, _)| keys.pass_over(&[key], without));
        keys.pass_over(&["bandwidth_g2_to_g4_gbps", "bandwidth_g4_to_g2_gbps"], without);
        return None;
    }
    keys.pass_over(&["bandwidth_g2_to_g4_gbps", "bandwidth_g4_to_g2_gbps"], "object stores are not simulated");
    if disk_blocks == 0 {
        let without = "it is read together with `num_g3_blocks` only";
        keys.pass_over(&["bandwidth_g2_to_g3_gbps", "bandwidth_g3_to_g2_gbps"], without);
    }
    keys.drop_zero("offload_batch_size");
    let [device_to_host, host_to_device, host_to_disk, disk_to_host] =
        bandwidths.map(|(key, default)| keys.at_least(key, 0.0).map_or(default, bytes_per_s));
    Some(KvTiersConfig {
        host_blocks,
        disk_blocks,
        offload_batch_size: keys.count("offload_batch_size").unwrap_or(own.offload_batch_size),
        device_to_host_bytes_per_s: device_to_host,
        host_to_device_bytes_per_s: host_to_device,
        host_to_disk_bytes_per_s: host_to_disk,
        disk_to_host_bytes_per_s: disk_to_host,
        ..own
    })
}

/// Reads the tiers of 1.6, with the bytes per token if stated.
pub(super) fn nested(keys: &mut Keys<'_>) -> Option<KvTiersConfig> {
    let host = keys.object("native_host_offload");
    let disk = keys.object("g3_offload");
    let Some(host) = host else {
        keys.pass_over(&["kv_cache_bytes_per_token"], ABOUT_MEMORY);
        if disk.is_some() {
            keys.problem("g3_offload", "needs `native_host_offload`: KV reaches the disk by way of the host");
        }
        return None;
    };
    let mut tiers =
        KvTiersConfig { kv_bytes_per_token: keys.whole("kv_cache_bytes_per_token").unwrap_or(0), ..<_>::default() };
    {
        let mut keys = keys.inner("native_host_offload", host);
        let is_shared = keys.choice("scope", &[("dp_rank_local", false), ("cluster_shared", true)]);
        tiers.host_blocks = required_blocks(&mut keys, "num_host_blocks");
        tiers.device_to_host_bytes_per_s = bandwidth(&mut keys, "d2h_bandwidth_gbps", HOST_GB_PER_S);
        tiers.host_to_device_bytes_per_s = bandwidth(&mut keys, "h2d_bandwidth_gbps", HOST_GB_PER_S);
        let latency_ms = keys.between("latency_to_first_byte_ms", 0.0, 1e9).unwrap_or(0.0);
        tiers.host_latency_ns = (latency_ms * 1e6).round() as u64;
        let bandwidths = ["shared_d2h_bandwidth_gbps", "shared_h2d_bandwidth_gbps"];
        tiers.shared_host = shared_tier(&mut keys, is_shared == Some(true), bandwidths);
        keys.pass_over(&["kv_layout_id"], "all workers of a pool have one layout");
        keys.finish(|_| None);
    }
    if let Some(disk) = disk {
        let mut keys = keys.inner("g3_offload", disk);
        let is_shared = keys.choice("scope", &[("worker_local", false), ("cluster_shared", true)]);
        if is_shared.is_none() && !keys.has_problem("scope") {
            keys.problem("scope", "is missing; expected \"worker_local\" or \"cluster_shared\"");
        }
        if is_shared == Some(false) && tiers.shared_host.is_some() {
            let text = "expected \"cluster_shared\" with a host that is: what leaves its memory belongs to no worker";
            keys.problem("scope", text);
        }
        tiers.disk_blocks = required_blocks(&mut keys, "num_g3_blocks");
        let latency_ms = keys.between("latency_to_first_byte_ms", 0.0, 1e9).unwrap_or(DISK_LATENCY_MS);
        tiers.disk_latency_ns = (latency_ms * 1e6).round() as u64;
        tiers.disk_to_host_bytes_per_s = bandwidth(&mut keys, "read_bandwidth_gbps", DISK_GB_PER_S);
        tiers.host_to_disk_bytes_per_s = bandwidth(&mut keys, "write_bandwidth_gbps", DISK_GB_PER_S);
        let bandwidths = ["shared_write_bandwidth_gbps", "shared_read_bandwidth_gbps"];
        tiers.shared_disk = shared_tier(&mut keys, is_shared == Some(true), bandwidths);
        keys.finish(|_| None);
    } else {
        tiers.rules = HostRules::Dynamo16;
    }
    Some(tiers)
}

/// Adds a problem if the engine cannot have tiers.
pub(super) fn check(raw: &Raw, problem: &mut dyn FnMut(&str, String)) {
    let Some(tiers) = &raw.kv_tiers else { return };
    let (key, bytes) = match raw.is_nested {
        true => ("native_host_offload", "kv_cache_bytes_per_token"),
        false => ("num_g2_blocks", "kv_bytes_per_token"),
    };
    if tiers.kv_bytes_per_token == 0 {
        problem(key, format!("needs `{bytes}`: the size of transfers follows from it"));
    }
    if raw.engine_type.is_some_and(|kind| kind != Kind::Vllm) {
        problem(key, "is simulated for engines of type \"vllm\" only; remove it".to_owned());
    }
    if raw.enable_prefix_caching == Some(false) {
        problem(key, "needs `enable_prefix_caching`: blocks below the device are found by their hashes".to_owned());
    }
    if raw.nextn.is_some() {
        problem(key, "is not simulated together with `aic_nextn`; keep one".to_owned());
    }
}

/// Reads a capacity; 0 counts as absent.
fn blocks(keys: &mut Keys<'_>, key: &'static str) -> u32 {
    keys.drop_zero(key);
    keys.count(key).unwrap_or(0)
}

fn required_blocks(keys: &mut Keys<'_>, key: &'static str) -> u32 {
    let blocks = keys.count(key);
    if blocks.is_none() && !keys.has_problem(key) {
        keys.problem(key, "is missing: expected a number of blocks");
    }
    // A problem was already added for a missing value.
    blocks.unwrap_or(1)
}

fn bandwidth(keys: &mut Keys<'_>, key: &'static str, default_gb_per_s: f64) -> Option<u64> {
    bytes_per_s(keys.at_least(key, 0.0).unwrap_or(default_gb_per_s))
}

/// Reads the bandwidths that all workers have together for a shared tier. None if the tier is not shared.
fn shared_tier(keys: &mut Keys<'_>, is_shared: bool, [write, read]: [&'static str; 2]) -> Option<SharedTier> {
    if !is_shared {
        keys.pass_over(&[write, read], "it is about a tier that workers share");
        return None;
    }
    let mut of_all = |key| bandwidth(keys, key, SHARED_GB_PER_S);
    Some(SharedTier { write_bytes_per_s: of_all(write), read_bytes_per_s: of_all(read) })
}

/// Converts decimal gigabytes per second; 0 means instant transfers.
fn bytes_per_s(gb_per_s: f64) -> Option<u64> {
    Some((gb_per_s * 1e9).round() as u64).filter(|&bytes| bytes > 0)
}
