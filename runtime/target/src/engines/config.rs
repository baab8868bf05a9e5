//! From a pool of a scenario to live engines.

use std::sync::Arc;

use vcr_cluster::{
    LatencyFactory, LinkConfig, LinkSharing, Overheads, PoolConfig, PoolRole, RouterConfig, RunConfig, SourceOutput,
    TargetError, Topology, TransferScope,
};
use vcr_core::{EngineKind, PluginContext};
use vcr_live::{
    Identity, Limits, LiveConfig, RouterFactory, StatsSettings, TokenChoice, TokenSettings, TransferSettings,
};
use vcr_wire::{Dtype, VllmMinor};

/// Engines that one process runs.
const MOST_ENGINES: u32 = 256;
/// Blocks of a prompt that no decode engine fetches are held for as long as vLLM holds them.
const LEASE_NS: u64 = 480_000_000_000;

/// Refuses a run whose pools cannot be live.
///
/// # Errors
/// When it has a part that live engines lack; all of them are named.
pub(crate) fn check_live(run: &RunConfig) -> Result<(), TargetError> {
    let mut lacking = vcr_cluster::virtual_only(run);
    lacking.extend(run.topology.pools().into_iter().flat_map(pool_lacks));
    if let Topology::Disaggregated { prefill, decode, link, conditional } = &run.topology {
        let parts = [
            (conditional.is_some(), "decode engines that compute prompts (`conditional`)"),
            (link.scope == TransferScope::FullPrompt, "transfers of whole prompts"),
            (link.source_output == SourceOutput::Whole, "prefill engines that generate whole outputs"),
            (decode.engine.reserves_before_prefill(), "blocks that are reserved before prefill"),
            (prefill.engine.block_size() != decode.engine.block_size(), "pools of different block sizes"),
        ];
        lacking.extend(parts.into_iter().filter(|(is_there, _)| *is_there).map(|(_, part)| part.to_owned()));
    }
    refuse("live", run, &lacking, "run it in virtual time: `--target virtual`")
}

/// The one pool of a run whose engines can stand behind a server.
///
/// # Errors
/// When the run has a part that such engines lack; all of them are named.
pub(crate) fn served_pool<'a>(target: &str, run: &'a RunConfig) -> Result<&'a PoolConfig, TargetError> {
    let pools = run.topology.pools();
    let mut lacking = vcr_cluster::virtual_only(run);
    let is_disaggregated = pools.len() > 1;
    if is_disaggregated {
        lacking.push("prefill and decode pools with a link between them".to_owned());
    }
    lacking.extend(pool_lacks(pools[0]));
    let hint = match is_disaggregated {
        true => "run it without a server, or in virtual time: `--target live`, `--target virtual`",
        false => "run it in virtual time: `--target virtual`",
    };
    refuse(target, run, &lacking, hint)?;
    Ok(pools[0])
}

fn refuse(target: &str, run: &RunConfig, lacking: &[String], hint: &str) -> Result<(), TargetError> {
    if lacking.is_empty() {
        return Ok(());
    }
    let lacking = lacking.join(", no ");
    Err(TargetError::with_hint(format!("the target `{target}` cannot run `{}`: it has no {lacking}", run.name), hint))
}

/// How engines of two pools hand over KV. Each transfer has the whole bandwidth of the link.
pub(crate) fn transfer_settings(role: PoolRole, link: Option<&LinkConfig>, port: u16) -> TransferSettings {
    let per_token_ns = link.and_then(|link| {
        let bytes_per_s = u128::from(link.bandwidth_bytes_per_s?.max(1));
        let ns = (u128::from(link.kv_bytes_per_token) * 1_000_000_000 + bytes_per_s / 2) / bytes_per_s;
        u64::try_from(ns).ok()
    });
    TransferSettings {
        engine_id: role.name().to_owned(),
        side_channel_host: "127.0.0.1".to_owned(),
        side_channel_port: port,
        allowed_peers: Vec::new(),
        latency_ns: link.map_or(0, |link| link.latency_ns),
        per_token_ns: per_token_ns.unwrap_or(0),
        std_dev_ns: 0,
        lease_ns: LEASE_NS,
    }
}

/// Whether transfers of a run share a link, which live ones do not.
pub(crate) fn shares_link(run: &RunConfig) -> bool {
    let link = run.topology.link();
    link.is_some_and(|link| link.bandwidth_bytes_per_s.is_some() && link.sharing != LinkSharing::Unshared)
}

/// The time of requests outside of the steps of a pool's engines.
fn overheads(run: &RunConfig, role: PoolRole) -> Overheads {
    let all = run.topology.overheads();
    match role {
        PoolRole::Aggregated => all,
        PoolRole::Prefill => Overheads {
            arrival_ns: all.arrival_ns,
            arrival_per_prompt_token_ps: all.arrival_per_prompt_token_ps,
            ..Overheads::default()
        },
        PoolRole::Decode => Overheads { arrival_ns: 0, arrival_per_prompt_token_ps: 0, ..all },
    }
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
    lacks(matches!(pool.engine, EngineKind::Ticks(_)), "engines of ticks");
    lacks(matches!(pool.engine, EngineKind::Ticks(_)), "engines that schedule by ticks");
    lacks(pool.scaling.is_some(), "autoscaling");
    lacks(pool.engine.kv_tiers().is_some(), "KV tiers below the device");
    lacks(pool.data_parallel.size > 1, "engines with several data-parallel ranks");
    lacks(matches!(pool.router, RouterConfig::Kv(_)), "KV router, which keeps books of whole clusters");
    lacks(pool.engines > MOST_ENGINES, "room for more than 256 engines");
    lacking
}

/// The settings of live engines that are those of the pool in `role`, the first pool's.
/// `side_channel_port` is for a prefill pool: ports from there on are its engines'.
pub(crate) fn live_config(
    run: &RunConfig,
    role: PoolRole,
    vocab_size: u32,
    side_channel_port: u16,
) -> Result<LiveConfig, TargetError> {
    let Some(pool) = run.topology.pool(role) else {
        return Err(TargetError::Failed(format!("the run has no {} pool (this is a bug)", role.name())));
    };
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
        overheads: overheads(run, role),
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
        transfer: transfer_settings(role, run.topology.link(), side_channel_port),
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
