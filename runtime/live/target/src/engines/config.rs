//! Converts a pool of a scenario to the settings of live engines.

use std::sync::Arc;

use vcr_cluster::{
    LatencyFactory, LinkSharing, Overheads, PoolConfig, PoolRole, PrefillCancellation, RunConfig, SourceOutput,
    TargetError, Topology, TransferScope,
};
use vcr_core::{EngineKind, PluginContext};
use vcr_live::{
    Identity, Limits, LiveConfig, PlacementObserver, RouterFactory, StatsSettings, TokenChoice, TokenSettings,
    TransferSettings,
};
use vcr_wire::{Dtype, VllmMinor};

use super::book::Book;
use super::link::shared_link;
use super::plane::plane;
use super::steps::RunSteps;

/// Hint for a run with parts that engines behind vLLM's frontend do not support.
const WITHOUT_FRONTEND: &str = "run it behind vcr's own server, without one, or in virtual time: `--target serve`, `--target live`, `--target virtual`";
/// Reasons why a part is not supported behind a frontend.
const OTHER_ENGINES: &str = "it supports only vLLM's engines";
const ALONE: &str = "single engines do not see the others";
const UNKNOWN_GRAMMARS: &str = "requests over HTTP cannot set how long their grammars take to compile";
const PAIRS: &str = "NIXL's parameters have no such transfers";
/// The maximum number of engines in one process.
const MAX_ENGINES: u32 = 256;

/// The parts of a run that the engines of `vcr play` do not support, as errors and reports name them. A cluster of
/// virtual time can run them with the system's clock.
pub(crate) fn cluster_parts(run: &RunConfig) -> Vec<String> {
    let mut parts = beyond_servers(run);
    for pool in run.topology.pools() {
        let of_pool = [
            (pool.engine.kv_tiers().is_some(), "KV tiers below the device"),
            (pool.data_parallel.size > 1, "engines with several data-parallel ranks"),
        ];
        let of_pool = of_pool.into_iter().filter(|(is_there, _)| *is_there);
        parts.extend(of_pool.map(|(_, part)| format!("{part} (pool `{}`)", pool.name)));
    }
    parts
}

/// The parts of a run that servers of single engines do not support. They support KV tiers, and ranks without a
/// barrier, but report less about them. The server of a whole cluster supports all parts.
pub(crate) fn beyond_servers(run: &RunConfig) -> Vec<String> {
    parts_beyond_servers(run).into_iter().map(|(part, _)| part).collect()
}

/// The parts of a run that servers of single engines do not support, each with the reason.
fn parts_beyond_servers(run: &RunConfig) -> Vec<(String, &'static str)> {
    let recorded = vcr_cluster::recorded_answers(run).into_iter();
    let mut parts: Vec<_> = recorded.map(|part| (part, "no request would reach an engine")).collect();
    parts.extend(vcr_cluster::structured_outputs(run).into_iter().map(|part| (part, UNKNOWN_GRAMMARS)));
    parts.extend(run.topology.pools().into_iter().flat_map(pool_lacks));
    if let Topology::Disaggregated { prefill, decode, link, conditional } = &run.topology {
        let has_many_links = link.bandwidth_bytes_per_s.is_some() && link.sharing == LinkSharing::PerPrefillEngine;
        let of_pools = [
            (has_many_links, "links of single prefill engines", PAIRS),
            (conditional.is_some(), "decode engines that compute prompts (`conditional`)", ALONE),
            (link.scope == TransferScope::FullPrompt, "transfers of whole prompts", PAIRS),
            (link.source_output == SourceOutput::Whole, "prefill engines that generate whole outputs", PAIRS),
            (decode.engine.reserves_before_prefill(), "blocks that are reserved before prefill", ALONE),
            (prefill.engine.block_size() != decode.engine.block_size(), "pools of different block sizes", PAIRS),
        ];
        let there = of_pools.into_iter().filter(|(is_there, ..)| *is_there);
        parts.extend(there.map(|(_, part, reason)| (part.to_owned(), reason)));
    }
    parts
}

/// Refuses a run whose engines cannot serve vLLM's own frontend.
///
/// # Errors
/// When the run has unsupported parts. The error names all of them, with the reasons.
pub(crate) fn check_frontend(run: &RunConfig) -> Result<(), TargetError> {
    let unsupported = parts_beyond_servers(run);
    if unsupported.is_empty() {
        return Ok(());
    }
    let unsupported: Vec<String> =
        unsupported.into_iter().map(|(part, reason)| format!("no {part}: {reason}")).collect();
    let message = format!("the target `frontend` cannot run `{}`: it has {}", run.name, unsupported.join("; "));
    Err(TargetError::with_hint(message, WITHOUT_FRONTEND))
}

/// Settings of KV transfers between the engines of two pools.
fn transfer_settings(run: &RunConfig, role: PoolRole, port: u16, book: &Book) -> Result<TransferSettings, TargetError> {
    let link = run.topology.link();
    let plane = plane(run, role, port, book)?;
    let shared_link = shared_link(link).filter(|_| role == PoolRole::Decode);
    let per_token_ns = link.and_then(|link| {
        let bytes_per_s = u128::from(link.bandwidth_bytes_per_s?.max(1));
        let ns = (u128::from(link.kv_bytes_per_token) * 1_000_000_000 + bytes_per_s / 2) / bytes_per_s;
        u64::try_from(ns).ok()
    });
    Ok(TransferSettings {
        side_channel_port: port,
        latency_ns: link.map_or(0, |link| link.latency_ns),
        per_token_ns: per_token_ns.unwrap_or(0),
        shared_link,
        lease_ns: link.and_then(|link| link.cancellation.hold_ns()).unwrap_or(PrefillCancellation::ABORT_TIMEOUT_NS),
        plane,
        ..TransferSettings::new(role.name())
    })
}

/// The part of a request's overheads that applies to the pool in `role`.
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

/// The features of a pool that live engines do not support, with the reasons.
fn pool_lacks(pool: &PoolConfig) -> Vec<(String, &'static str)> {
    let has_barrier = pool.data_parallel.barrier && pool.data_parallel.size > 1;
    let parts = [
        (matches!(pool.engine, EngineKind::Sglang(_)), "engines of SGLang", OTHER_ENGINES),
        (matches!(pool.engine, EngineKind::Ticks(_)), "engines that schedule by ticks", OTHER_ENGINES),
        (pool.scaling.is_some(), "autoscaling", "it waits for a number of engines that is fixed"),
        (has_barrier, "data-parallel ranks that wait for each other", "each engine steps by itself"),
        (pool.router.kv().is_some(), "KV router, which keeps books of whole clusters", ALONE),
        (pool.most_ranks() > MAX_ENGINES, "pool of more than 256 engines", "one process runs no more"),
    ];
    let there = parts.into_iter().filter(|(is_there, ..)| *is_there);
    there.map(|(_, part, reason)| (format!("{part} (pool `{}`)", pool.name), reason)).collect()
}

/// The settings of live engines for the pool in `role`. `side_channel_port` is the first of consecutive ports for
/// the engines of a prefill pool. Reports go to `book`, and steps to `steps`.
pub(crate) fn live_config(
    run: &RunConfig,
    role: PoolRole,
    vocab_size: u32,
    side_channel_port: u16,
    book: &Book,
    steps: &RunSteps,
) -> Result<LiveConfig, TargetError> {
    let Some(pool) = run.topology.pool(role) else {
        return Err(TargetError::Failed(format!("the run has no {} pool (this is a bug)", role.name())));
    };
    let Some(engine) = pool.engine.as_vllm() else {
        return Err(TargetError::unusable("only engines of vLLM are live"));
    };
    let transfer = transfer_settings(run, role, side_channel_port, book)?;
    let (first_engine, book) = (book.first_engine(), book.clone());
    let placements: PlacementObserver = Arc::new(move |name, place| book.place(name, place));
    Ok(LiveConfig {
        sglang: None,
        identity: identity(pool.most_ranks() as u16, pool.tensor_parallel_size),
        engine: engine.clone(),
        policy: pool.policy.clone(),
        router: router(run, pool),
        latency: named(run, pool, &pool.latency),
        latency_name: "scenario".to_owned(),
        overheads: overheads(run, role),
        grammar_compile_ns: 0,
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
        playback: None,
        seed: run.seed,
        stats: StatsSettings { log_stats: true, iteration_details: false, connector: false, log_requests: false },
        kv_events: None,
        transfer,
        faults: Vec::new(),
        injector: pool.failures.clone(),
        placements: Some(placements),
        steps: Some(steps.of_pool(first_engine)),
        // The scheduler, not this limit, decides which adapters run together.
        limits: Limits { max_cpu_loras: Some(run.adapters().len() as u32), ..Limits::default() },
        shutdown_timeout_ns: 0,
    })
}

fn identity(num_ranks: u16, tensor_parallel_size: u32) -> Identity {
    Identity {
        handshake_address: String::new(),
        connect_timeout: None,
        first_rank: 0,
        num_ranks,
        version: Some(VllmMinor::V0_33),
        vllm_version: None,
        instance_id: "vcr".to_owned(),
        dtype: Dtype::Bfloat16,
        tensor_parallel_size,
        is_local: false,
        is_headless: true,
        parallel_config_hash: None,
        is_moe: None,
    }
}

/// Adds the names of the run and the pool to the context of a latency model, for guests.
fn named(run: &RunConfig, pool: &PoolConfig, make: &LatencyFactory) -> LatencyFactory {
    let (run, pool, make) = (run.name.clone(), pool.name.clone(), Arc::clone(make));
    Arc::new(move |context| make(&PluginContext { run: &run, pool: &pool, ..*context }))
}

/// Builds the pool's router. None if the pool has only one engine.
fn router(run: &RunConfig, pool: &PoolConfig) -> Option<RouterFactory> {
    let (run, name, router) = (run.name.clone(), pool.name.clone(), pool.router.clone());
    let make: RouterFactory =
        Arc::new(move |context| router.build(&PluginContext { run: &run, pool: &name, ..*context }));
    (pool.most_ranks() > 1).then_some(make)
}
