//! Routers: built-in ones by name or with settings, and guests.

use std::sync::Arc;

use rhai::serde::from_dynamic;
use rhai::{Dynamic, Engine};
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_cluster::{
    KvAwareConfig, KvKnowledge, KvRouterConfig, LoraAffinityConfig, QueueConfig, QueueOrder, QueueProfile,
    ReplicaConfig, Router, RouterConfig, RouterFactory, SessionHashConfig, StickyConfig,
};
use vcr_guest::{WithFallback, World};
use vcr_policy::prefix_affinity::AffinityConfig;

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::{Options, as_text, describe};
use crate::script::register::with_options;
use crate::vocabulary::guest::GuestSpec;

const NAMES: [&str; 7] =
    ["round-robin", "least-loaded", "kv-aware", "kv-router", "prefix-affinity", "lora-affinity", "session-hash"];

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "kv_aware", |_, options| make_kv_aware(options));
    with_options(engine, context, "kv_router", |_, options| make_kv_router(options));
    with_options(engine, context, "prefix_affinity", |_, options| make_prefix_affinity(options));
    with_options(engine, context, "lora_affinity", |_, options| make_lora_affinity(options));
    with_options(engine, context, "session_hash", |_, options| make_session_hash(options));
    with_options(engine, context, "sticky", |_, options| make_sticky(options));
}

pub(crate) fn option(options: &mut Options<'_>) -> Option<RouterConfig> {
    let value = options.take("router")?;
    of(&value).map_err(|what| options.problem("router", format!("invalid `router`: expected {what}"))).ok()
}

/// Reads a router: a name, a router with settings, or a guest.
pub(crate) fn of(value: &Dynamic) -> Result<RouterConfig, String> {
    if let Some(config) = value.clone().try_cast::<RouterConfig>() {
        return Ok(config);
    }
    if let Some(guest) = value.clone().try_cast::<GuestSpec>() {
        guest.must_be(World::Router)?;
        let fallback = guest.fallback.as_ref().map(of).transpose();
        let fallback = fallback.map_err(|what| format!("a guest whose `fallback` is {what}"))?;
        return Ok(RouterConfig::Made(factory(guest, fallback)));
    }
    let text = as_text(value);
    match text.as_deref() {
        Some("round-robin") => Ok(RouterConfig::RoundRobin),
        Some("least-loaded") => Ok(RouterConfig::LeastLoaded),
        Some("kv-aware") => Ok(RouterConfig::KvAware(KvAwareConfig::default())),
        Some("kv-router") => Ok(RouterConfig::Kv(KvRouterConfig::default())),
        Some("prefix-affinity") => Ok(RouterConfig::PrefixAffinity(AffinityConfig::default())),
        Some("lora-affinity") => Ok(RouterConfig::LoraAffinity(LORA_AFFINITY)),
        Some("session-hash") => Ok(RouterConfig::SessionHash(SessionHashConfig::default())),
        _ => {
            let close = text.as_deref().and_then(|text| nearest(text, NAMES));
            let hint = close.map(|close| format!("; {}", did_you_mean(close))).unwrap_or_default();
            let names = NAMES.map(|name| format!("\"{name}\"")).join(", ");
            let made = "kv_aware(#{ ... }), kv_router(#{ ... }), prefix_affinity(#{ ... }), lora_affinity(#{ ... }), \
                        session_hash(#{ ... }), \
                        sticky(#{ ... }) or a guest";
            Err(format!("{names}, {made}, got {}{hint}", describe(value)))
        }
    }
}

fn factory(guest: GuestSpec, fallback: Option<RouterConfig>) -> RouterFactory {
    Arc::new(move |plugin_context| {
        let made = guest.at(plugin_context).plug_in(&guest.config_json, plugin_context.seed);
        let Some(fallback) = &fallback else { return made };
        let fallback = fallback.build(plugin_context)?;
        Ok(Box::new(WithFallback::<dyn Router>::new(made, fallback, guest.failure_sink(plugin_context))))
    })
}

/// The default router by adapter. The pool later sets how many adapters an engine can hold.
const LORA_AFFINITY: LoraAffinityConfig = LoraAffinityConfig { weight: 1.0, max_loras: u32::MAX };

fn make_lora_affinity(mut options: Options<'_>) -> Scripted<RouterConfig> {
    let weight = options.f64("weight").unwrap_or(LORA_AFFINITY.weight);
    if !(weight.is_finite() && weight >= 0.0) {
        options.problem("weight", format!("invalid `weight`: expected a finite number of at least 0, got {weight}"));
    }
    options.finish()?;
    Ok(RouterConfig::LoraAffinity(LoraAffinityConfig { weight, ..LORA_AFFINITY }))
}

fn make_kv_aware(mut options: Options<'_>) -> Scripted<RouterConfig> {
    let default = KvAwareConfig::default();
    let mut weight = |name: &'static str, default: f64| {
        let value = options.f64(name).unwrap_or(default);
        if !(value.is_finite() && value >= 0.0) {
            options.problem(name, format!("invalid `{name}`: expected a finite number of at least 0, got {value}"));
        }
        value
    };
    let config = KvAwareConfig {
        overlap_score_credit: weight("overlap_score_credit", default.overlap_score_credit),
        prefill_load_scale: weight("prefill_load_scale", default.prefill_load_scale),
        decode_active_request_weight: weight("decode_active_request_weight", default.decode_active_request_weight),
    };
    options.finish()?;
    Ok(RouterConfig::KvAware(config))
}

fn make_kv_router(mut options: Options<'_>) -> Scripted<RouterConfig> {
    let default = KvRouterConfig::default();
    let mut number = |name: &'static str, default: f64| options.f64(name).unwrap_or(default);
    let mut config = KvRouterConfig {
        overlap_score_credit: number("overlap_score_credit", default.overlap_score_credit),
        overlap_score_credit_decay: number("overlap_score_credit_decay", default.overlap_score_credit_decay),
        host_cache_hit_weight: number("host_cache_hit_weight", default.host_cache_hit_weight),
        disk_cache_hit_weight: number("disk_cache_hit_weight", default.disk_cache_hit_weight),
        prefill_load_scale: number("prefill_load_scale", default.prefill_load_scale),
        decode_active_request_weight: number("decode_active_request_weight", default.decode_active_request_weight),
        temperature: number("temperature", default.temperature),
        ..default
    };
    let mut flag = |name: &'static str, default: bool| options.boolean(name).unwrap_or(default);
    config.track_active_blocks = flag("track_active_blocks", default.track_active_blocks);
    config.track_output_blocks = flag("track_output_blocks", default.track_output_blocks);
    config.track_prefill_tokens = flag("track_prefill_tokens", default.track_prefill_tokens);
    config.assume_kv_reuse = flag("assume_kv_reuse", default.assume_kv_reuse);
    let lag_ns = options.duration_ns("event_lag");
    config.knowledge = match options.duration_ns("predicted_ttl") {
        None => KvKnowledge::Events { lag_ns: lag_ns.unwrap_or(0), at_step_end: false },
        Some(ttl_ns) => {
            if lag_ns.is_some() {
                options.problem("event_lag", "`event_lag` belongs to KV events, which `predicted_ttl` does without");
            }
            KvKnowledge::Predicted { ttl_ns }
        }
    };
    let order = options.choice("queue_order", &QUEUE_ORDERS);
    config.queue =
        options.f64("queue_threshold").map(|threshold| QueueConfig::single(threshold, order.unwrap_or_default()));
    if let Some(value) = options.take("queue_policies") {
        match queue_policies(&value) {
            Ok(queue) if config.queue.is_none() => config.queue = Some(queue),
            Ok(_) => {
                options.problem("queue_threshold", "`queue_policies` have thresholds of their own; give one of them")
            }
            Err(problems) => problems.into_iter().for_each(|what| options.problem("queue_policies", what)),
        }
    }
    if config.queue.is_none() && order.is_some() {
        options.problem("queue_order", "`queue_order` needs a `queue_threshold`: without one nothing waits");
    }
    config.replicas = ReplicaConfig {
        count: options.u32("replicas").unwrap_or(default.replicas.count),
        sync_ns: options.duration_ns("replica_sync"),
    };
    if let Err(what) = config.check() {
        options.problem("kv_router", what);
    }
    options.finish()?;
    Ok(RouterConfig::Kv(config))
}

/// Reads the classes of requests in the router's queue.
fn queue_policies(value: &Dynamic) -> Result<QueueConfig, Vec<String>> {
    let profile = from_dynamic::<QueueProfile>(value).map_err(|error| vec![format!("`queue_policies`: {error}")])?;
    let named = |problems: Vec<String>| problems.iter().map(|what| format!("`queue_policies`: {what}")).collect();
    QueueConfig::with_classes(profile).map_err(|problems: Vec<String>| -> Vec<String> { named(problems) })
}

const QUEUE_ORDERS: [(&str, QueueOrder); 3] =
    [("fcfs", QueueOrder::Fcfs), ("lcfs", QueueOrder::Lcfs), ("wspt", QueueOrder::Wspt)];

fn make_session_hash(mut options: Options<'_>) -> Scripted<RouterConfig> {
    let load_factor = options.f64("load_factor");
    if load_factor.is_some_and(|factor| !(factor.is_finite() && factor >= 1.0)) {
        options.problem("load_factor", "invalid `load_factor`: expected a finite number of at least 1");
    }
    options.finish()?;
    Ok(RouterConfig::SessionHash(SessionHashConfig { load_factor }))
}

fn make_sticky(mut options: Options<'_>) -> Scripted<RouterConfig> {
    let router = option(&mut options).unwrap_or(RouterConfig::LeastLoaded);
    if matches!(router, RouterConfig::Sticky(_) | RouterConfig::SessionHash(_)) {
        options.problem("router", "invalid `router` of `sticky`: it keeps sessions with their engines already");
    }
    let ttl_ns = options.duration_ns("ttl");
    if ttl_ns == Some(0) {
        options.problem("ttl", "invalid `ttl`: expected above 0; leave it out to keep sessions forever");
    }
    options.finish()?;
    Ok(RouterConfig::Sticky(Box::new(StickyConfig { router, ttl_ns })))
}

fn make_prefix_affinity(mut options: Options<'_>) -> Scripted<RouterConfig> {
    let default = AffinityConfig::default();
    let config = AffinityConfig {
        overlap_weight: options.f64("overlap_weight").unwrap_or(default.overlap_weight),
        request_tokens: options.f64("request_tokens").unwrap_or(default.request_tokens),
        load_factor: options.f64("load_factor").unwrap_or(default.load_factor),
        prefix_blocks: options.u32("prefix_blocks").unwrap_or(default.prefix_blocks),
        max_waiting: options.u32("max_waiting"),
        max_queue_ms: options.duration_ns("max_queue").map(|limit_ns| limit_ns as f64 / 1e6),
        prefill_tokens_per_s: options.f64("prefill_tokens_per_s"),
        priority_factor: options.f64("priority_factor").unwrap_or(default.priority_factor),
    };
    if let Err(error) = config.check() {
        options.problem(error.field(), error.to_string());
    }
    options.finish()?;
    Ok(RouterConfig::PrefixAffinity(config))
}
