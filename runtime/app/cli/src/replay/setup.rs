//! Makes a run from the options of `vcr replay`.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use vcr_cluster::{
    Answers, KvKnowledge, LatencyFactory, LinkConfig, LinkSharing, MemoryEstimate, PackedRows, PoolRole, QueueConfig,
    ReplicaConfig, RouterConfig, RunConfig, ScalerFactory, SyntheticInput, Topology, TracePacing, WorkloadConfig,
    WorkloadSource, target_autoscaler,
};
use vcr_dynamo::report::{ReportSettings, Sla};
use vcr_dynamo::{AutoscaleArgs, AutoscalePolicy, EngineArgs, PoolOptions, Remark, RouterArgs, read_queue_policies};
use vcr_scenario::expression;
use vcr_trace::import::ImportError;
use vcr_trace::{FormatOption, HashIdScope, SharedPrefix, Strictness, Trace, TraceOptions};

use super::Refusal;
use super::args::{Contention, IdScope, ReplayArgs, RouterMode};

/// Name of the run and of its workload.
const NAME: &str = "replay";

/// A complete configuration of a run.
pub(crate) struct Setup {
    pub(crate) config: RunConfig,
    pub(crate) settings: ReportSettings,
    /// The source of the times of steps.
    pub(crate) times: &'static str,
    /// Warnings about accepted options without effect.
    pub(crate) warnings: Vec<String>,
}

/// Returns `value`, or the contents of the file if it is `@FILE`.
pub(crate) fn text_of(place: &str, value: &str) -> Result<String, Refusal> {
    let Some(path) = value.strip_prefix('@') else { return Ok(value.to_owned()) };
    let read = vcr_base::input::read_text(Path::new(path), vcr_base::input::MAX_CONFIG_BYTES);
    read.map_err(|error| Refusal::input(format!("{place}: cannot read `{path}`: {error}")))
}

pub(crate) fn read_trace(args: &ReplayArgs) -> Result<Option<Arc<Trace>>, Refusal> {
    if args.trace_files.is_empty() {
        return Ok(None);
    }
    let options = TraceOptions {
        format: args.trace.trace_format,
        format_option: Some(FormatOption { format: "--trace-format", timestamp_unit: Some("--trace-timestamp-unit") }),
        timestamp_unit: args.trace.trace_timestamp_unit,
        block_size_tokens: args.trace.trace_block_size,
        strictness: if args.run.strict { Strictness::Strict } else { Strictness::Lenient },
        first_timestamp_required: args.trace.replay_concurrency.is_none() && args.profile.lanes.is_none(),
        sessions: args.trace.sessions,
        hash_id_scope: args.trace.hash_id_scope.map(|scope| match scope {
            IdScope::Trace => HashIdScope::Trace,
            IdScope::Play => HashIdScope::Play,
            IdScope::Session => HashIdScope::Session,
        }),
        nested_timestamps: args.trace.nested_timestamp_basis,
        shared_prefix: SharedPrefix {
            ratio: args.trace.trace_shared_prefix_ratio,
            groups: args.trace.trace_num_prefix_groups,
            seed: args.run.seed,
        },
        ..TraceOptions::default()
    };
    let trace = vcr_trace::import::read_trace(&args.trace_files, &options).map_err(|error| {
        let refusal = Refusal::input(error.to_string());
        if matches!(&error, ImportError::Trace(error) if error.is_without_arrivals()) {
            refusal.hint("--replay-concurrency N keeps N requests in flight and needs no arrivals")
        } else if args.run.strict {
            refusal.hint("without --strict, repairable lines are repaired and counted")
        } else {
            refusal
        }
    })?;
    Ok(Some(Arc::new(trace)))
}

/// Makes the run that the options describe.
pub(crate) fn setup(args: &ReplayArgs, trace: Option<&Arc<Trace>>) -> Result<Setup, Refusal> {
    let mut warnings: Vec<String> = trace.iter().flat_map(|trace| &trace.warnings).map(ToString::to_string).collect();
    let router = router(args, trace, &mut warnings)?;
    let (topology, settings, timing) = topology(args, &router, &mut warnings)?;
    let times = if args.cluster.latency.is_some() { "set by --latency" } else { timing };
    let workload = match trace {
        Some(trace) => from_trace(args, trace),
        None => synthetic(args, topology.pools()[0].engine.block_size())?,
    };
    let config = RunConfig {
        seed: args.run.seed,
        workloads: vec![workload],
        max_time_ns: args.run.max_time_ns(),
        packed_records: PackedRows::OfMany,
        ..RunConfig::new(NAME, topology)
    };
    check_room(config.memory_estimate())?;
    config
        .check()
        .map_err(|errors| Refusal::input(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))?;
    warnings.extend(config.media_warning());
    Ok(Setup { config, settings, times, warnings })
}

/// Routers for whole requests, prefills and decodes.
struct Routers {
    whole: RouterConfig,
    prefill: RouterConfig,
    decode: RouterConfig,
    args: RouterArgs,
}

fn router(args: &ReplayArgs, trace: Option<&Arc<Trace>>, warnings: &mut Vec<String>) -> Result<Routers, Refusal> {
    let place = "--router-config";
    let mut read = RouterArgs::default();
    if let Some(text) = &args.router.router_config {
        let (config, remarks) = RouterArgs::read(place, &text_of(place, text)?, args.run.strict)?;
        warnings.extend(remarks.iter().map(Remark::to_string));
        read = config;
    }
    let (found, remarks) = queue_policies(args, &read, trace)?;
    read.config.queue = found.or(read.config.queue);
    if args.run.strict && !remarks.is_empty() {
        return Err(Refusal::input(remarks.join("\n")));
    }
    warnings.extend(remarks);
    if let (Some(lag_ms), KvKnowledge::Events { lag_ns, .. }) =
        (args.router.kv_event_lag_ms, &mut read.config.knowledge)
    {
        *lag_ns = (lag_ms * 1e6).round() as u64;
    }
    read.config.replicas = ReplicaConfig {
        count: args.router.router_replicas,
        sync_ns: args.router.router_sync_ms.map(|ms| (ms * 1e6).round() as u64),
    };
    let same = |config: RouterConfig| (config.clone(), config.clone(), config);
    let (whole, prefill, decode) = match &args.router.router_mode {
        RouterMode::RoundRobin => same(RouterConfig::RoundRobin),
        RouterMode::LeastLoaded => same(RouterConfig::LeastLoaded),
        RouterMode::KvRouter => same(RouterConfig::Kv(read.config.clone())),
        RouterMode::Guest(reference) => same(expression::guest_router("--router-mode", reference)?),
    };
    Ok(Routers { whole, prefill, decode, args: read })
}

/// Request classes of the router's queue, if a file defines them. Warns about parts without effect.
fn queue_policies(
    args: &ReplayArgs,
    read: &RouterArgs,
    trace: Option<&Arc<Trace>>,
) -> Result<(Option<QueueConfig>, Vec<String>), Refusal> {
    let model = args.router.model_name.as_deref();
    let (place, path) = match (&args.router.router_policy_config, &read.policy_config) {
        (Some(path), _) => ("--router-policy-config", path),
        (None, Some(path)) => ("--router-config, `router_policy_config`", path),
        (None, None) => {
            let remarks = model.map(|_| "--model-name is ignored: it needs --router-policy-config".to_owned());
            return Ok((None, remarks.into_iter().collect()));
        }
    };
    let Some(queue) = read_queue_policies(place, path, model)? else {
        let who = model.map_or("all models".to_owned(), |model| format!("model `{model}`"));
        return Ok((None, vec![format!("{path} is ignored: it has no profile for {who}")]));
    };
    let classes = trace.map_or(&[][..], |trace| &trace.policy_classes);
    let unknown = classes.iter().filter(|class| !queue.knows(class)).map(|class| format!("`{class}`"));
    let unknown = unknown.collect::<Vec<_>>().join(", ");
    let remarks = match unknown.is_empty() {
        true => Vec::new(),
        false => vec![format!(
            "{path}: neither a family nor a class for `policy_class` {unknown} of the trace; such requests are of the \
             default family"
        )],
    };
    Ok((Some(queue), remarks))
}

fn latency(args: &ReplayArgs) -> Result<Option<LatencyFactory>, Refusal> {
    let Some(model) = &args.cluster.latency else { return Ok(None) };
    let place = "--latency";
    Ok(Some(match crate::values::is_guest(model) {
        true => expression::guest_latency(place, model)?,
        false => expression::latency(place, model, Path::new(""), None)?,
    }))
}

fn autoscale(args: &ReplayArgs) -> Result<Option<(AutoscaleArgs, ScalerFactory)>, Refusal> {
    let Some(text) = &args.cluster.autoscale else { return Ok(None) };
    let place = "--autoscale";
    let read = AutoscaleArgs::read(place, &text_of(place, text)?, crate::values::is_guest)?;
    let policy = match &read.policy {
        AutoscalePolicy::Target(policy) => target_autoscaler(*policy),
        AutoscalePolicy::Guest { reference, config } => {
            let config_json = Value::Object(config.clone()).to_string();
            expression::guest_autoscaler(place, reference, &config_json)?
        }
    };
    Ok(Some((read, policy)))
}

fn engine_args(
    args: &ReplayArgs,
    place: &str,
    given: Option<&String>,
    warnings: &mut Vec<String>,
) -> Result<EngineArgs, Refusal> {
    let mut text = given.map_or_else(|| Ok("{}".to_owned()), |given| text_of(place, given))?;
    if let Some(engine_type) = &args.cluster.engine_type {
        text = EngineArgs::with_engine_type(&text, engine_type);
    }
    let (read, remarks) = EngineArgs::read(place, &text, args.run.strict)?;
    warnings.extend(remarks.iter().map(Remark::to_string));
    Ok(read)
}

/// Makes the cluster. Also returns the source of the times of decode engines.
fn topology(
    args: &ReplayArgs,
    routers: &Routers,
    warnings: &mut Vec<String>,
) -> Result<(Topology, ReportSettings, &'static str), Refusal> {
    let cluster = &args.cluster;
    let latency = latency(args)?;
    let autoscale = autoscale(args)?;
    let pool = |engine: &EngineArgs, place, name, engines, role, router: &RouterConfig| {
        let router = with_queue_order(router.clone(), &routers.args, engine);
        let is_step_end = args.router.exact_kv_events && engine.reports_kv_at_step_end(cluster.preset);
        let router = with_event_time(router, is_step_end);
        let latency = latency.clone();
        let autoscale = autoscale.as_ref().map(|(args, policy)| (args, Arc::clone(policy)));
        engine.pool(PoolOptions {
            place,
            name,
            engines,
            autoscale,
            preset: cluster.preset,
            role,
            computes_prompts: routers.args.conditional.is_some(),
            latency,
            router,
        })
    };
    let sla = Sla { ttft_ms: args.run.sla_ttft_ms, itl_ms: args.run.sla_itl_ms, e2e_ms: args.run.sla_e2e_ms };
    let settings = ReportSettings { sla, ..ReportSettings::default() };
    let (Some(prefill), Some(decode)) = (&cluster.prefill_engine_args, &cluster.decode_engine_args) else {
        let place = "--extra-engine-args";
        let engine = engine_args(args, place, cluster.extra_engine_args.as_ref(), warnings)?;
        let pool = pool(&engine, place, "workers", cluster.num_workers, PoolRole::Aggregated, &routers.whole)?;
        if routers.args.conditional.is_some() {
            let text = "--router-config, `conditional_disagg_enabled`: is for prefill and decode workers, not for aggregated \
                        ones";
            if args.run.strict {
                return Err(Refusal::input(text));
            }
            warnings.push(text.to_owned());
        }
        return Ok((
            Topology::Aggregated(pool),
            ReportSettings {
                decode_gpus_per_worker: engine.gpus_per_worker(),
                kv_eviction: engine.kv_eviction,
                ..settings
            },
            engine.timing.source(),
        ));
    };
    let prefill_place = "--prefill-engine-args";
    let decode_place = "--decode-engine-args";
    let prefill = engine_args(args, prefill_place, Some(prefill), warnings)?;
    let decode = engine_args(args, decode_place, Some(decode), warnings)?;
    check_pair(&prefill, &decode)?;
    let first =
        pool(&prefill, prefill_place, "prefill", cluster.num_prefill_workers, PoolRole::Prefill, &routers.prefill)?;
    let second = pool(&decode, decode_place, "decode", cluster.num_decode_workers, PoolRole::Decode, &routers.decode)?;
    let link = link(args, &prefill);
    let settings = ReportSettings {
        prefill_gpus_per_worker: prefill.gpus_per_worker(),
        decode_gpus_per_worker: decode.gpus_per_worker(),
        kv_eviction: prefill.kv_eviction,
        ..settings
    };
    Ok((
        Topology::Disaggregated { prefill: first, decode: second, link, conditional: routers.args.conditional },
        settings,
        decode.timing.source(),
    ))
}

/// Checks that the arguments of prefill and decode engines are compatible.
fn check_pair(prefill: &EngineArgs, decode: &EngineArgs) -> Result<(), Refusal> {
    let mut lines = Vec::new();
    for (args, place, role) in
        [(prefill, "--prefill-engine-args", PoolRole::Prefill), (decode, "--decode-engine-args", PoolRole::Decode)]
    {
        if args.worker_type != Some(role) {
            lines.push(format!("{place}, `worker_type`: expected \"{}\"", role.name()));
        }
    }
    if prefill.block_size != decode.block_size {
        let (one, other) = (prefill.block_size, decode.block_size);
        lines.push(format!(
            "--decode-engine-args, `block_size`: is {other}, but that of prefill engines is {one}; they must be equal"
        ));
    }
    if prefill.engine_type.name() != decode.engine_type.name() {
        let (one, other) = (prefill.engine_type.name(), decode.engine_type.name());
        lines.push(format!(
            "--decode-engine-args, `engine_type`: is \"{other}\", but that of prefill engines is \"{one}\"; they must \
             be equal"
        ));
    }
    if lines.is_empty() { Ok(()) } else { Err(Refusal::input(lines.join("\n"))) }
}

/// The link for KV transfers. As in Dynamo, its cost comes from the prefill engines' arguments, and transfers take no
/// time unless both bandwidth and size are given.
fn link(args: &ReplayArgs, prefill: &EngineArgs) -> LinkConfig {
    let transfer = &prefill.kv_transfer;
    let bytes_per_s = transfer.bandwidth_gb_per_s.map(|gb_per_s| (gb_per_s * 1e9).round() as u64);
    LinkConfig {
        bandwidth_bytes_per_s: bytes_per_s.filter(|&bytes| bytes > 0 && transfer.bytes_per_token.is_some()),
        latency_ns: 0,
        kv_bytes_per_token: transfer.bytes_per_token.unwrap_or(0),
        scope: transfer.scope.unwrap_or(vcr_cluster::TransferScope::FullPrompt),
        sharing: match args.cluster.kv_transfer_contention {
            Contention::None => LinkSharing::Unshared,
            Contention::PerPrefillWorker => LinkSharing::PerPrefillEngine,
            Contention::Shared => LinkSharing::Shared,
        },
        source_output: args.cluster.preset.source_output(),
        cancellation: vcr_cluster::PrefillCancellation::default(),
        plane: None,
    }
}

/// Applies the queue order of the engine arguments to the router, unless it has its own order.
fn with_queue_order(router: RouterConfig, routers: &RouterArgs, engine: &EngineArgs) -> RouterConfig {
    match (router, engine.router_queue_policy) {
        (RouterConfig::Kv(mut config), Some(order)) if routers.queue_policy.is_none() => {
            config.queue = config.queue.map(|queue| queue.in_order(order));
            RouterConfig::Kv(config)
        }
        (router, _) => router,
    }
}

/// Sets whether the router receives KV events at the start or end of a step.
fn with_event_time(mut router: RouterConfig, is_step_end: bool) -> RouterConfig {
    if let RouterConfig::Kv(config) = &mut router
        && let KvKnowledge::Events { at_step_end, .. } = &mut config.knowledge
    {
        *at_step_end = is_step_end;
    }
    router
}

/// Checks that the run fits into memory.
fn check_room(estimate: MemoryEstimate) -> Result<(), Refusal> {
    vcr_scenario::check_room(estimate).map_err(|problem| Refusal::input(problem).hint(vcr_scenario::MEMORY_HINT))
}

fn from_trace(args: &ReplayArgs, trace: &Arc<Trace>) -> WorkloadConfig {
    let speedup = args.trace.arrival_speedup_ratio;
    let pacing = match (args.profile.config(speedup), args.trace.replay_concurrency) {
        (Some(profile), _) => TracePacing::Profile(profile),
        (None, Some(concurrency)) => TracePacing::ClosedLoop { concurrency, speedup },
        (None, None) => TracePacing::Recorded { speedup },
    };
    let trace = Arc::clone(trace);
    let source = WorkloadSource::Trace { trace, pacing, copies: 1, stagger_ns: 0, answers: Answers::Simulated };
    WorkloadConfig::new(NAME, source)
}

fn synthetic(args: &ReplayArgs, block_size_tokens: u32) -> Result<WorkloadConfig, Refusal> {
    let given = &args.synthetic;
    let input = SyntheticInput {
        input_tokens: given.input_tokens.unwrap_or(0),
        output_tokens: given.output_tokens.unwrap_or(0),
        request_count: given.request_count.unwrap_or(0),
        turns_per_session: given.turns_per_session,
        replay_concurrency: args.trace.replay_concurrency,
        request_rate: given.request_rate,
        arrival_interval_ms: given.arrival_interval_ms,
        arrival_seed: given.arrival_seed,
        shared_prefix_ratio: given.shared_prefix_ratio,
        num_prefix_groups: given.num_prefix_groups,
        inter_turn_delay_ms: given.inter_turn_delay_ms,
        arrival_speedup_ratio: args.trace.arrival_speedup_ratio,
        block_size_tokens,
        seed: args.run.seed,
    };
    input
        .workload(NAME)
        .map_err(|problems| Refusal::input(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))
}
