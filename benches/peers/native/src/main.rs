//! Replays a Mooncake trace with the crate that Dynamo 1.6.1's replay uses.
//!
//!     dynamo-replay TRACE.jsonl OUT.json '{"workers": 4}'
//!     dynamo-replay TRACE.jsonl OUT.json '{"prefill": 2, "decode": 2, "router": "kv_router"}'
//!
//! Prompts are hash IDs, the crate's most compact form. Dynamo's own replay makes tokens from them. The crate has
//! only round robin, so the KV router comes from Dynamo's mocker, through the mocker's own entry point.

#[cfg(feature = "kv-router")]
mod kv_router;

use std::path::Path;

use aisimulate_core::replay::loadgen::{Trace, WorkloadDriver};
use aisimulate_core::replay::{
    CURRENT_REPLAY_SPEC_VERSION, ReplayAdapters, ReplayEngineFactory, ReplayRuntimeInput, ReplaySpec, ReplayTopology,
    SlaThresholds, WorkerPoolSpec,
};
use aisimulate_core::{ReplayReport, Replayer};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    #[serde(default = "one")]
    workers: usize,
    /// Number of prefill workers in a disaggregated deployment, instead of `workers`.
    #[serde(default)]
    prefill: usize,
    #[serde(default)]
    decode: usize,
    #[serde(default)]
    router: Router,
    /// Settings of a rank, as in Dynamo's engine arguments.
    #[serde(default)]
    engine: serde_json::Map<String, Value>,
    #[serde(default = "one")]
    ranks: usize,
    #[serde(default = "lru")]
    kv_eviction_policy: String,
    #[serde(default = "published_block")]
    trace_block_size: usize,
    /// Write the times of each request next to the report, as OUT.requests.json.
    #[serde(default)]
    per_request: bool,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Router {
    #[default]
    RoundRobin,
    KvRouter,
}

fn one() -> usize {
    1
}

fn lru() -> String {
    "lru".to_owned()
}

fn published_block() -> usize {
    512
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [trace, out, options] = &arguments[..] else { bail!("usage: dynamo-replay TRACE.jsonl OUT.json OPTIONS") };
    let options: Options = serde_json::from_str(options).context("OPTIONS")?;
    let report = match options.router {
        Router::RoundRobin => {
            let report = replay(Path::new(trace), &options)?;
            if options.per_request {
                std::fs::write(format!("{out}.requests.json"), serde_json::to_vec(&report.per_request)?)?;
            }
            serde_json::to_vec(&report)?
        }
        #[cfg(feature = "kv-router")]
        Router::KvRouter => kv_router::replay(Path::new(trace), &options)?,
        #[cfg(not(feature = "kv-router"))]
        Router::KvRouter => bail!("built without the feature kv-router"),
    };
    std::fs::write(out, report).with_context(|| format!("cannot write {out}"))
}

fn replay(path: &Path, options: &Options) -> Result<ReplayReport> {
    let mut trace = Trace::from_mooncake(path, options.trace_block_size)?.normalize_session_starts()?;
    trace = trace.speed_up_timing(1.0)?;
    let block_size = engine_block_size(&options.engine);
    let driver = WorkloadDriver::new_trace_without_replay_hashes(trace, block_size, false)?.without_session_metadata();
    let pool = |initial_workers| WorkerPoolSpec { initial_workers, ..WorkerPoolSpec::default() };
    let topology = match options.prefill {
        0 => ReplayTopology::aggregated(options.workers),
        prefill => ReplayTopology::Disaggregated {
            prefill: pool(prefill),
            decode: pool(options.decode),
            handoff_latency_ms: 0.0,
        },
    };
    let spec = ReplaySpec {
        version: CURRENT_REPLAY_SPEC_VERSION,
        topology,
        engine: json!({
            "rank": options.engine,
            "dp_size": options.ranks,
            "kv_eviction_policy": options.kv_eviction_policy,
        }),
        adapters: ReplayAdapters::default(),
        max_sim_time_ms: None,
        max_in_flight: None,
        record_per_request: options.per_request,
        sla: SlaThresholds::default(),
        requests: Vec::new(),
    };
    let replayer = Replayer::new(spec, ReplayEngineFactory::new())?;
    Ok(replayer.with_runtime_input(ReplayRuntimeInput::Workload(driver)).run()?)
}

/// Block size of an engine, or its backend's default.
fn engine_block_size(engine: &serde_json::Map<String, Value>) -> usize {
    let given = engine.get("block_size").and_then(Value::as_u64);
    let default = match engine.get("backend").and_then(Value::as_str) {
        Some("sglang") => 1,
        Some("trtllm") => 32,
        _ => 64,
    };
    given.unwrap_or(default) as usize
}
