//! Pools, links and clusters.

pub(crate) mod autoscale;
pub(super) mod drawn;
pub(super) mod fault;
pub(super) mod pool_guest;
pub(crate) mod router;

use std::sync::Arc;

use rhai::{Engine, ImmutableString, NativeCallContext};
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_cluster::{
    ConditionalConfig, ConditionalPolicy, DataParallel, KvPlane, KvPlaneTime, LinkConfig, LinkSharing, PoolConfig,
    PrefillCancellation, ScalingConfig, SourceOutput, Topology, TransferScope,
};
use vcr_core::EngineKind;

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::options::Options;
use crate::script::register::with_options;
use crate::vocabulary::cluster::drawn::DrawnPool;
use crate::vocabulary::deployment::DeploymentSpec;
use crate::vocabulary::engine::EngineSpec;
use crate::vocabulary::placement::Placement;
use crate::vocabulary::{engine, latency, model};

/// A pool. Without a name, its role in the cluster becomes its name.
#[derive(Clone)]
pub(crate) struct PoolSpec {
    name: Option<String>,
    pub(crate) config: PoolConfig,
    drawn: Option<DrawnPool>,
}

#[derive(Clone)]
pub(crate) struct LinkSpec(LinkConfig);

#[derive(Clone)]
pub(crate) struct ClusterSpec {
    pub(crate) topology: Topology,
    pub(crate) drawn: Vec<Option<DrawnPool>>,
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "engine", |_, options| engine::make(options));
    engine::served::register(engine, context);
    model::register(engine, context);
    with_options(engine, context, "pool", |_, options| make_pool(options));
    with_options(engine, context, "link", |_, options| make_link(options));
    with_options(engine, context, "conditional", |_, options| make_conditional(options));
    with_options(engine, context, "cluster", |_, options| make_cluster(options));
    engine.register_fn("kv_bytes_per_token", |call: NativeCallContext<'_>, model: ImmutableString| -> Scripted<i64> {
        if let Some(preset) = vcr_roofline::presets::model(&model) {
            return Ok(preset.kv_bytes_per_token() as i64);
        }
        if !vcr_model::names_of(&model).is_empty() {
            let found = model::ModelSpec::of_table(&model, 1);
            let of_model = |problem| Thrown::input(problem).at(call.call_position());
            return Ok(found.map_err(of_model)?.kv_bytes_per_token() as i64);
        }
        let presets = vcr_roofline::presets::MODELS.iter().map(|(name, _)| *name);
        let known: Vec<&str> = presets.chain(vcr_model::names()).collect();
        let hint = match nearest(&model, known.iter().copied()) {
            Some(close) => did_you_mean(close),
            None => format!("known models are {}", known.join(", ")),
        };
        Err(Thrown::input(format!("unknown model `{model}`")).hint(hint).at(call.call_position()))
    });
}

fn make_pool(mut options: Options<'_>) -> Scripted<PoolSpec> {
    let name = options.name("name");
    let engines = options.u32("engines").unwrap_or(1);
    let is_deployed = options.has("deployment");
    let deployment = options.made::<DeploymentSpec>("deployment", "deployment(\"vllm serve ...\", #{ gpu: ... })");
    if deployment.is_some() {
        for name in ["engine", "latency", "data_parallel_size"] {
            options.refuse(name, &format!("`{name}` follows from `deployment`: leave one of them out"));
        }
    }
    let engine = options.made::<EngineSpec>("engine", "engine(#{ ... }) or vllm_args(\"vllm serve ...\")");
    let engine = engine.or_else(|| deployment.as_ref().map(|deployment| deployment.engine.clone()));
    let ranks = engine.as_ref().and_then(|engine| engine.served.as_ref()).map_or(1, |args| args.data_parallel_size);
    let has_barrier = deployment.as_ref().is_some_and(|deployment| deployment.has_barrier);
    let data_parallel = data_parallel(&mut options, ranks, has_barrier);
    let latency = latency::option(&mut options);
    let latency = latency.or_else(|| deployment.as_ref().map(|deployment| deployment.latency.clone()));
    let mut router = router::option(&mut options).unwrap_or_default();
    let failures = pool_guest::failures(&mut options);
    let tokens = pool_guest::tokens(&mut options);
    let scaling = options.made::<ScalingConfig>("autoscale", "autoscale(#{ ... })");
    if engines == 0 {
        options.problem("engines", "invalid `engines`: expected at least 1");
    }
    if latency.is_none() && !is_deployed {
        options.required::<()>("latency", None);
    }
    let memory = latency.as_ref().and_then(|latency| latency.memory.as_ref());
    let engine = engine.unwrap_or_default().beside(memory);
    if let (Err(what), Some(_)) = (&engine, &latency) {
        options.problem("engine", what.clone());
    }
    if let (Ok(engine), Some(latency)) = (&engine, &latency)
        && let (Some(of_engine), Some(of_latency)) = (engine.placement(), &latency.placement)
    {
        for contradiction in Placement::contradictions(&of_engine, of_latency) {
            options.problem("latency", contradiction);
        }
    }
    if let Ok(engine) = &engine
        && engine.kind.as_vllm().is_some_and(|config| config.drafts_depend_on_batch() && data_parallel.size > 1)
    {
        let text = "with several ranks vLLM has the same number of drafts in all batches: leave \
                    `num_speculative_tokens_per_batch_size` of the engine out";
        options.problem("data_parallel_size", text);
    }
    if let (Ok(engine), Some(latency)) = (&engine, &latency)
        && engine.kind.as_vllm().is_some_and(|config| config.pipeline_parallel_size() > 1)
    {
        let overheads = engine.overheads.or(latency.overheads).unwrap_or_default();
        if overheads.has_launches() {
            let text = "with `pipeline_parallel_size` above 1 launches are not simulated, but the latency model or \
                        `overheads` states some: give the engine `overheads` without them";
            options.problem("engine", text);
        }
        if data_parallel.barrier {
            let text =
                "ranks with several stages (`pipeline_parallel_size`) that wait for each other are not simulated";
            options.problem("data_parallel_barrier", text);
        }
    }
    let (engine, prefill_schedule_interval) = shared_interval(&mut options, engine, data_parallel);
    options.finish()?;
    let latency = latency.expect("a missing latency model is a problem of the options");
    let engine = engine.expect("what does not fit is a problem of the options");
    let tensor_parallel_size = engine.served.as_ref().map_or(1, |args| args.tensor_parallel_size);
    let drawn = DrawnPool::of(&latency, engine.overheads.is_some());
    if let Some(config) = engine.kind.as_vllm() {
        router.set_max_loras(config.max_loras());
    }
    let config = PoolConfig {
        name: String::new(),
        engines,
        scaling,
        data_parallel,
        engine: engine.kind,
        latency: latency.factory,
        policy: engine.policy,
        router,
        acceptance_rates: engine.acceptance_rates,
        failures,
        tokens,
        overheads: engine.overheads.or(latency.overheads).unwrap_or_default(),
        rejects_in_queue: false,
        prefill_schedule_interval,
        kv_eviction: engine.kv_eviction,
        peak: latency.peak,
        deployment: deployment.map(|deployment| deployment.gpus),
        tensor_parallel_size,
    };
    Ok(PoolSpec { name, config, drawn })
}

/// Reads the number of steps between prefills. Ranks that step together share the count, so the pool gets the
/// number. Other ranks count for themselves, so the engine keeps it.
fn shared_interval(
    options: &mut Options<'_>,
    mut engine: Result<EngineSpec, String>,
    ranks: DataParallel,
) -> (Result<EngineSpec, String>, u32) {
    let Ok(EngineSpec { kind: EngineKind::Vllm(config), .. }) = &mut engine else { return (engine, 1) };
    let is_shared = ranks.barrier && ranks.size > 1 && config.prefill_schedule_interval() > 1;
    if is_shared && config.async_scheduling() {
        let text = "ranks that wait for each other with `prefill_schedule_interval` above 1 are simulated without \
                    `async_scheduling`: give the engine `async_scheduling: false`";
        options.problem("data_parallel_barrier", text);
    }
    let interval = if is_shared { config.take_prefill_schedule_interval() } else { 1 };
    (engine, interval)
}

/// Reads the ranks of each engine. The default is the number in the engine's command line.
fn data_parallel(options: &mut Options<'_>, ranks: u32, has_barrier: bool) -> DataParallel {
    let size = options.u32("data_parallel_size").unwrap_or(ranks);
    let barrier = options.boolean("data_parallel_barrier").unwrap_or(has_barrier);
    if size == 0 {
        options.problem("data_parallel_size", "invalid `data_parallel_size`: expected at least 1");
    }
    if barrier && size == 1 {
        let text =
            "`data_parallel_barrier` needs a `data_parallel_size` above 1: a single rank has no others to wait for";
        options.problem("data_parallel_barrier", text);
    }
    DataParallel { size, barrier }
}

fn make_link(mut options: Options<'_>) -> Scripted<LinkSpec> {
    let sharing = [
        ("shared", LinkSharing::Shared),
        ("per-prefill-engine", LinkSharing::PerPrefillEngine),
        ("none", LinkSharing::Unshared),
    ];
    let scopes = [("missing", TransferScope::Missing), ("full-prompt", TransferScope::FullPrompt)];
    let bandwidth_bytes_per_s = options.bandwidth("bandwidth");
    if bandwidth_bytes_per_s == Some(0) {
        options.problem("bandwidth", "invalid `bandwidth`: expected above 0; leave it out for instant transfers");
    }
    let kv_bytes_per_token = options.bytes("kv_bytes_per_token");
    let plane = live_plane(&mut options);
    let needs_bytes = bandwidth_bytes_per_s.is_some() || plane.is_some();
    let config = LinkConfig {
        bandwidth_bytes_per_s,
        latency_ns: options.duration_ns("latency").unwrap_or(0),
        kv_bytes_per_token: if needs_bytes {
            options.required("kv_bytes_per_token", kv_bytes_per_token)
        } else {
            kv_bytes_per_token.unwrap_or(0)
        },
        scope: options.choice("transfer", &scopes).unwrap_or_default(),
        sharing: options.choice("sharing", &sharing).unwrap_or_default(),
        source_output: SourceOutput::FirstToken,
        cancellation: cancellation(&mut options),
        plane,
    };
    options.finish()?;
    Ok(LinkSpec(config))
}

/// Reads what happens to prompts of clients that cancel.
fn cancellation(options: &mut Options<'_>) -> PrefillCancellation {
    let times = ["anytime", "handoff", "never"].map(|name| (name, name));
    let until = options.choice("prefill_cancel_until", &times).unwrap_or("anytime");
    let hold_ns = options.duration_ns("abort_timeout");
    if until == "anytime" && hold_ns.is_some() {
        let text =
            "`abort_timeout` needs `prefill_cancel_until` \"handoff\" or \"never\": otherwise KV is freed at once";
        options.problem("abort_timeout", text);
    }
    let hold_ns = hold_ns.unwrap_or(PrefillCancellation::ABORT_TIMEOUT_NS);
    match until {
        "handoff" => PrefillCancellation::Handoff { hold_ns },
        "never" => PrefillCancellation::Never { hold_ns },
        _ => PrefillCancellation::Anytime,
    }
}

/// Reads the data plane between live engines.
fn live_plane(options: &mut Options<'_>) -> Option<KvPlane> {
    let times =
        [("real", KvPlaneTime::Real), ("modelled", KvPlaneTime::Modelled), ("slower-of", KvPlaneTime::SlowerOf)];
    let moves = options.choice("kv_transfer", &[("none", false), ("tcp", true)]).unwrap_or_default();
    let (time, layers) = (options.choice("kv_transfer_time", &times), options.u32("kv_layers"));
    if !moves && (time.is_some() || layers.is_some()) {
        let given = if time.is_some() { "kv_transfer_time" } else { "kv_layers" };
        options.problem(given, format!("`{given}` needs `kv_transfer: \"tcp\"`: without it no bytes move"));
    }
    if layers == Some(0) {
        options.problem("kv_layers", "invalid `kv_layers`: expected at least 1");
    }
    moves.then(|| KvPlane { time: time.unwrap_or_default(), layers: layers.unwrap_or(32) })
}

fn make_cluster(mut options: Options<'_>) -> Scripted<ClusterSpec> {
    let by_pool = "pool(#{ ... })";
    let engines = options.made::<PoolSpec>("engines", by_pool);
    let prefill = options.made::<PoolSpec>("prefill", by_pool);
    let decode = options.made::<PoolSpec>("decode", by_pool);
    let link = options.made::<LinkSpec>("link", "link(#{ ... })");
    let conditional = options.made::<ConditionalConfig>("conditional", "conditional(#{ ... })");
    let named =
        |pool: PoolSpec, role: &str| PoolConfig { name: pool.name.unwrap_or_else(|| role.to_owned()), ..pool.config };
    let cluster = match (engines, prefill, decode) {
        (Some(pool), None, None) => {
            if link.is_some() {
                options.problem("link", "`link` joins prefill and decode engines; this cluster has neither");
            }
            if conditional.is_some() {
                options.problem(
                    "conditional",
                    "`conditional` chooses between prefill and decode engines; this cluster has neither",
                );
            }
            let drawn = vec![pool.drawn.clone()];
            Some(ClusterSpec { topology: Topology::Aggregated(named(pool, "engines")), drawn })
        }
        (None, Some(prefill), Some(decode)) => {
            if prefill.config.engine.block_size() != decode.config.engine.block_size() {
                options.problem("decode", "prefill and decode engines must have the same `block_size`");
            }
            let drawn = vec![prefill.drawn.clone(), decode.drawn.clone()];
            let topology = Topology::Disaggregated {
                prefill: named(prefill, "prefill"),
                decode: named(decode, "decode"),
                link: link.map_or_else(instant_link, |link| link.0),
                conditional,
            };
            Some(ClusterSpec { topology, drawn })
        }
        _ => {
            options.problem("", "`cluster` needs either `engines`, or both `prefill` and `decode`");
            None
        }
    };
    options.finish()?;
    Ok(cluster.expect("a cluster without pools is a problem of the options"))
}

fn make_conditional(mut options: Options<'_>) -> Scripted<ConditionalConfig> {
    let policies = [
        ("isl-bounding", ConditionalPolicy::IslBounding),
        ("prefill-load", ConditionalPolicy::PrefillLoad),
        ("isl-or-load", ConditionalPolicy::IslOrLoad),
    ];
    let default = ConditionalConfig::default();
    let is_default = !options.has("policy");
    let named = options.choice("policy", &policies);
    let policy = named.unwrap_or_default();
    if is_default || named.is_some() {
        refuse_unused_thresholds(policy, &mut options);
    }
    let config = ConditionalConfig {
        policy,
        eff_isl_threshold_tokens: options.u32("eff_isl_threshold").unwrap_or(default.eff_isl_threshold_tokens),
        eff_isl_ratio_threshold: options.f64("eff_isl_ratio_threshold").unwrap_or(default.eff_isl_ratio_threshold),
        prefill_busy_threshold: options.f64("prefill_busy_threshold"),
        decode_busy_threshold: options.f64("decode_busy_threshold"),
    };
    if let Err(what) = config.check() {
        options.problem("policy", what);
    }
    options.finish()?;
    Ok(config)
}

/// Refuses thresholds that the policy does not use, and a policy without the threshold that it needs.
fn refuse_unused_thresholds(policy: ConditionalPolicy, options: &mut Options<'_>) {
    let busy = "prefill_busy_threshold";
    match policy {
        ConditionalPolicy::IslBounding => {
            options.refuse(busy, &format!("`{busy}` has no effect with the policy \"isl-bounding\""));
        }
        ConditionalPolicy::PrefillLoad => {
            for name in ["eff_isl_threshold", "eff_isl_ratio_threshold"] {
                options.refuse(name, &format!("`{name}` has no effect with the policy \"prefill-load\""));
            }
        }
        ConditionalPolicy::IslOrLoad if !options.has(busy) => {
            let text = format!("\"isl-or-load\" needs a `{busy}`: without one prefill is never busy");
            options.problem("policy", text);
        }
        ConditionalPolicy::IslOrLoad => {}
    }
}

fn instant_link() -> LinkConfig {
    LinkConfig {
        bandwidth_bytes_per_s: None,
        latency_ns: 0,
        kv_bytes_per_token: 0,
        scope: TransferScope::Missing,
        sharing: LinkSharing::Shared,
        source_output: SourceOutput::FirstToken,
        cancellation: PrefillCancellation::default(),
        plane: None,
    }
}
