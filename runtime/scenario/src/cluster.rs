//! Engines, pools, links and clusters.

use std::sync::Arc;

use rhai::{Engine, ImmutableString, NativeCallContext};
use vcr_cluster::{LinkConfig, LinkSharing, PolicyFactory, PoolConfig, Topology, TransferScope};
use vcr_core::{CapacityPolicy, EngineConfig, EngineConfigInput};

use crate::context::Context;
use crate::error::{Scripted, Thrown, did_you_mean, nearest};
use crate::options::Options;
use crate::vocabulary::with_options;
use crate::{compat, latency, policy, pool_guest, router};

/// Checked engine settings.
#[derive(Clone)]
pub(crate) struct EngineSpec {
    config: EngineConfig,
    policy: Option<PolicyFactory>,
    acceptance_rates: Vec<f64>,
}

/// A pool whose name may still be given by its place in the cluster.
#[derive(Clone)]
pub(crate) struct PoolSpec {
    name: Option<String>,
    config: PoolConfig,
}

/// A link.
#[derive(Clone)]
pub(crate) struct LinkSpec(LinkConfig);

/// A cluster.
#[derive(Clone)]
pub(crate) struct ClusterSpec(pub(crate) Topology);

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "engine", |_, options| make_engine(options));
    with_options(engine, context, "pool", |_, options| make_pool(options));
    with_options(engine, context, "link", |_, options| make_link(options));
    with_options(engine, context, "cluster", |_, options| make_cluster(options));
    engine.register_fn("kv_bytes_per_token", |call: NativeCallContext<'_>, model: ImmutableString| -> Scripted<i64> {
        let found = vcr_roofline::presets::model(&model);
        found.map(|spec| spec.kv_bytes_per_token() as i64).ok_or_else(|| {
            let known: Vec<&str> = vcr_roofline::presets::MODELS.iter().map(|(name, _)| *name).collect();
            let hint = match nearest(&model, known.iter().copied()) {
                Some(close) => did_you_mean(close),
                None => format!("known models are {}", known.join(", ")),
            };
            Thrown::input(format!("there is no model `{model}`")).hint(hint).at(call.call_position())
        })
    });
}

fn make_engine(mut options: Options<'_>) -> Scripted<EngineSpec> {
    let default = EngineConfigInput::default();
    compat::refuse_unsupported(&mut options);
    let line = options.string("vllm_line");
    let rules = line.map(|line| compat::check_line(&line, &mut options)).unwrap_or_default();
    let policy = policy::option(&mut options);
    let input = EngineConfigInput {
        block_size: options.u32("block_size").unwrap_or(default.block_size),
        num_gpu_blocks: options.u32("num_gpu_blocks").unwrap_or(default.num_gpu_blocks),
        max_num_seqs: options.u32("max_num_seqs").unwrap_or(default.max_num_seqs),
        max_num_batched_tokens: options.u32("max_num_batched_tokens").unwrap_or(default.max_num_batched_tokens),
        max_model_len: options.u32("max_model_len"),
        policy: policy.as_ref().map(|spec| spec.policy).unwrap_or_default(),
        enable_prefix_caching: options.boolean("enable_prefix_caching").unwrap_or(true),
        enable_chunked_prefill: options.boolean("enable_chunked_prefill").unwrap_or(true),
        long_prefill_token_threshold: options.u32("long_prefill_token_threshold").unwrap_or(0),
        adaptive_long_prefill: options.boolean("adaptive_long_prefill").unwrap_or(false),
        watermark: options.f64("watermark").unwrap_or(0.0),
        scheduler_reserve_full_isl: options.boolean("scheduler_reserve_full_isl").unwrap_or(true),
        capacity: CapacityPolicy::Preempt,
        max_num_active_seqs: options.u32("max_num_active_seqs"),
        max_loras: 0,
        max_extra_tokens_per_step: options.u32("max_extra_tokens_per_step").unwrap_or(0),
        num_speculative_tokens: options.u32("num_speculative_tokens").unwrap_or(0),
        async_scheduling: options.boolean("async_scheduling").unwrap_or(false),
        rules,
    };
    let rates = options.array("acceptance_rates").unwrap_or_default();
    let acceptance_rates: Vec<f64> = rates.iter().filter_map(crate::options::as_number).collect();
    if acceptance_rates.len() < rates.len() {
        options.problem("acceptance_rates", "`acceptance_rates` must be numbers between 0 and 1");
    }
    let checked = EngineConfig::new(input).and_then(|config| config.check_start_up().map(|()| config));
    let config = match checked {
        Ok(config) => Some(config),
        Err(errors) => {
            for error in errors {
                let text = error.to_string();
                // The first setting an error names is where it belongs.
                let field = text.split('`').nth(1).unwrap_or_default().to_owned();
                options.problem(&field, text);
            }
            None
        }
    };
    options.finish()?;
    let config = config.expect("an invalid configuration is a problem of the options");
    Ok(EngineSpec { config, policy: policy.and_then(|spec| spec.factory), acceptance_rates })
}

fn make_pool(mut options: Options<'_>) -> Scripted<PoolSpec> {
    let name = options.string("name");
    let engines = options.u32("engines").unwrap_or(1);
    let engine = options.made::<EngineSpec>("engine", "made by engine(#{ ... })");
    let latency = latency::option(&mut options);
    let router = router::option(&mut options).unwrap_or_default();
    let failures = pool_guest::failures(&mut options);
    let tokens = pool_guest::tokens(&mut options);
    if engines == 0 {
        options.problem("engines", "`engines` must be at least 1");
    }
    if latency.is_none() {
        options.required::<()>("latency", None);
    }
    options.finish()?;
    let latency = latency.expect("a missing latency model is a problem of the options");
    let engine = match engine {
        Some(engine) => engine,
        None => EngineSpec {
            config: EngineConfig::new(EngineConfigInput::default()).expect("the defaults are valid"),
            policy: None,
            acceptance_rates: Vec::new(),
        },
    };
    let config = PoolConfig {
        name: String::new(),
        engines,
        engine: engine.config,
        latency: latency.factory,
        policy: engine.policy,
        router,
        acceptance_rates: engine.acceptance_rates,
        failures,
        tokens,
    };
    Ok(PoolSpec { name, config })
}

fn make_link(mut options: Options<'_>) -> Scripted<LinkSpec> {
    let sharing = [("shared", LinkSharing::Shared), ("per-prefill-engine", LinkSharing::PerPrefillEngine)];
    let scopes = [("missing", TransferScope::Missing), ("full-prompt", TransferScope::FullPrompt)];
    let bandwidth_bytes_per_s = options.bandwidth("bandwidth");
    if bandwidth_bytes_per_s == Some(0) {
        options.problem("bandwidth", "`bandwidth` must be positive; leave it out for instant transfers");
    }
    let kv_bytes_per_token = options.bytes("kv_bytes_per_token");
    let config = LinkConfig {
        bandwidth_bytes_per_s,
        latency_ns: options.duration_ns("latency").unwrap_or(0),
        kv_bytes_per_token: match bandwidth_bytes_per_s {
            Some(_) => options.required("kv_bytes_per_token", kv_bytes_per_token),
            None => kv_bytes_per_token.unwrap_or(0),
        },
        scope: options.choice("transfer", &scopes).unwrap_or_default(),
        sharing: options.choice("sharing", &sharing).unwrap_or_default(),
    };
    options.finish()?;
    Ok(LinkSpec(config))
}

fn make_cluster(mut options: Options<'_>) -> Scripted<ClusterSpec> {
    let by_pool = "made by pool(#{ ... })";
    let engines = options.made::<PoolSpec>("engines", by_pool);
    let prefill = options.made::<PoolSpec>("prefill", by_pool);
    let decode = options.made::<PoolSpec>("decode", by_pool);
    let link = options.made::<LinkSpec>("link", "made by link(#{ ... })");
    let named =
        |pool: PoolSpec, role: &str| PoolConfig { name: pool.name.unwrap_or_else(|| role.to_owned()), ..pool.config };
    let topology = match (engines, prefill, decode) {
        (Some(pool), None, None) => {
            if link.is_some() {
                options.problem("link", "`link` joins prefill and decode engines; this cluster has neither");
            }
            Some(Topology::Aggregated(named(pool, "engines")))
        }
        (None, Some(prefill), Some(decode)) => {
            if prefill.config.engine.block_size != decode.config.engine.block_size {
                options.problem("decode", "prefill and decode engines must have the same `block_size`");
            }
            Some(Topology::Disaggregated {
                prefill: named(prefill, "prefill"),
                decode: named(decode, "decode"),
                link: link.map_or_else(instant_link, |link| link.0),
            })
        }
        _ => {
            options.problem("", "`cluster` needs either `engines`, or both `prefill` and `decode`");
            None
        }
    };
    options.finish()?;
    Ok(ClusterSpec(topology.expect("a cluster without pools is a problem of the options")))
}

fn instant_link() -> LinkConfig {
    LinkConfig {
        bandwidth_bytes_per_s: None,
        latency_ns: 0,
        kv_bytes_per_token: 0,
        scope: TransferScope::Missing,
        sharing: LinkSharing::Shared,
    }
}
