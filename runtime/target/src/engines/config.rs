//! From a pool of a scenario to live engines.

use std::sync::Arc;

use vcr_cluster::{FaultConfig, LatencyFactory, PoolConfig, RouterConfig, RunConfig, TargetError, Topology};
use vcr_core::{EngineKind, PluginContext};
use vcr_live::{
    Identity, Limits, LiveConfig, RouterFactory, StatsSettings, TokenChoice, TokenSettings, TransferSettings,
};
use vcr_wire::{Dtype, VllmMinor};

/// Engines that one process runs.
const MOST_ENGINES: u32 = 256;
/// Blocks of another engine's prompt are held so long; nobody fetches them here.
const LEASE_NS: u64 = 30_000_000_000;

/// The one pool of a run whose engines can be live.
///
/// # Errors
/// When the run has a part that live engines lack; all of them are named.
pub(crate) fn live_pool<'a>(target: &str, run: &'a RunConfig) -> Result<&'a PoolConfig, TargetError> {
    let mut lacking = vcr_cluster::virtual_only(run);
    let pool = match &run.topology {
        Topology::Aggregated(pool) => pool,
        Topology::Disaggregated { prefill, .. } => {
            lacking.push("prefill and decode pools with a link between them".to_owned());
            prefill
        }
    };
    lacking.extend(pool_lacks(pool));
    if lacking.is_empty() {
        return Ok(pool);
    }
    let hint = "run it in virtual time: `--target virtual`";
    Err(TargetError::with_hint(
        format!("the target `{target}` cannot run `{}`: it has no {}", run.name, lacking.join(", no ")),
        hint,
    ))
}

/// What a pool has that live engines lack.
fn pool_lacks(pool: &PoolConfig) -> Vec<String> {
    let mut lacking = Vec::new();
    let mut lacks = |is_there: bool, part: &str| {
        if is_there {
            lacking.push(format!("{part} (pool `{}`)", pool.name));
        }
    };
    lacks(matches!(pool.engine, EngineKind::Sglang(_)), "engines of SGLang");
    lacks(pool.scaling.is_some(), "autoscaling");
    lacks(pool.engine.kv_tiers().is_some(), "KV tiers below the device");
    lacks(pool.data_parallel.size > 1, "engines with several data-parallel ranks");
    lacks(matches!(pool.router, RouterConfig::Kv(_)), "KV router, which keeps books of whole clusters");
    lacks(pool.engines > MOST_ENGINES, "room for more than 256 engines");
    lacking
}

/// The settings of live engines that are those of `pool`.
pub(crate) fn live_config(run: &RunConfig, pool: &PoolConfig, vocab_size: u32) -> Result<LiveConfig, TargetError> {
    let Some(engine) = pool.engine.as_vllm() else {
        return Err(TargetError::unusable("only engines of vLLM are live"));
    };
    Ok(LiveConfig {
        identity: identity(pool.engines as u16),
        engine: engine.clone(),
        policy: pool.policy.clone(),
        router: router(run, pool),
        latency: named(run, pool, &pool.latency),
        latency_name: "scenario".to_owned(),
        overheads: pool.overheads,
        time_scale: 1.0,
        tokens: TokenSettings {
            choice: pool
                .tokens
                .as_ref()
                .map_or(TokenChoice::Random, |tokens| TokenChoice::Guest(tokens.source.clone())),
            vocab_size,
            output_tokens: None,
            acceptance_rates: pool.acceptance_rates.clone(),
            embedding_dimensions: None,
        },
        replay: None,
        seed: run.seed,
        stats: StatsSettings { log_stats: true, iteration_details: false, log_requests: false },
        kv_events: None,
        transfer: TransferSettings {
            engine_id: "vcr".to_owned(),
            side_channel_host: "localhost".to_owned(),
            side_channel_port: 0,
            allowed_peers: Vec::new(),
            latency_ns: 0,
            per_token_ns: 0,
            std_dev_ns: 0,
            lease_ns: LEASE_NS,
        },
        faults: Vec::new(),
        injector: pool.failures.clone(),
        // Which of them run together is the scheduler's business.
        limits: Limits { max_cpu_loras: Some(run.adapters().len() as u32), ..Limits::default() },
        shutdown_timeout_ns: 0,
    })
}

fn identity(num_ranks: u16) -> Identity {
    Identity {
        handshake_address: String::new(),
        connect_timeout: None,
        first_rank: 0,
        num_ranks,
        version: Some(VllmMinor::V0_33),
        vllm_version: None,
        instance_id: "vcr".to_owned(),
        dtype: Dtype::Bfloat16,
        tensor_parallel_size: 1,
        is_local: false,
        is_headless: true,
        parallel_config_hash: None,
        is_moe: None,
    }
}

/// The model with the names of the run and the pool, by which guests report.
fn named(run: &RunConfig, pool: &PoolConfig, make: &LatencyFactory) -> LatencyFactory {
    let (run, pool, make) = (run.name.clone(), pool.name.clone(), Arc::clone(make));
    Arc::new(move |context| make(&PluginContext { run: &run, pool: &pool, ..*context }))
}

/// One engine needs no router.
fn router(run: &RunConfig, pool: &PoolConfig) -> Option<RouterFactory> {
    let (run, name, router) = (run.name.clone(), pool.name.clone(), pool.router.clone());
    let make: RouterFactory =
        Arc::new(move |context| router.build(&PluginContext { run: &run, pool: &name, ..*context }));
    (pool.engines > 1).then_some(make)
}

/// The planned faults of a run, in order of time.
pub(crate) fn faults(run: &RunConfig) -> Vec<FaultConfig> {
    let mut faults = run.faults.clone();
    faults.sort_by_key(|fault| fault.at_ns);
    faults
}
