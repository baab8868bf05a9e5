//! Configuration of Dynamo's KV router.

use vcr_cluster::{ConditionalConfig, ConditionalPolicy, KvKnowledge, KvRouterConfig, QueueConfig, QueueOrder};

use crate::keys::{Keys, parse};
use crate::problem::{DynamoError, Findings, Remark};

pub(crate) const QUEUE_ORDERS: &[(&str, QueueOrder)] =
    &[("fcfs", QueueOrder::Fcfs), ("lcfs", QueueOrder::Lcfs), ("wspt", QueueOrder::Wspt)];

const CONDITIONAL_POLICIES: &[(&str, ConditionalPolicy)] = &[
    ("isl_bounding", ConditionalPolicy::IslBounding),
    ("prefill_load", ConditionalPolicy::PrefillLoad),
    ("isl_or_load", ConditionalPolicy::IslOrLoad),
];

/// Names of the keys, without deprecated ones.
const KEYS: &[&str] = &[
    "overlap_score_credit",
    "overlap_score_credit_decay",
    "host_cache_hit_weight",
    "disk_cache_hit_weight",
    "prefill_load_scale",
    "decode_active_request_weight",
    "router_temperature",
    "use_kv_events",
    "router_track_active_blocks",
    "router_track_output_blocks",
    "router_assume_kv_reuse",
    "router_track_prefill_tokens",
    "router_ttl_secs",
    "router_queue_threshold",
    "router_queue_policy",
    "conditional_disagg_enabled",
    "conditional_disagg_policy",
    "conditional_disagg_eff_isl_threshold",
    "conditional_disagg_eff_isl_ratio_threshold",
    "conditional_disagg_prefill_busy_threshold",
    "conditional_disagg_decode_busy_threshold",
];

/// Whether a key of the router's configuration has this name.
#[must_use]
pub fn known_router_key(key: &str) -> bool {
    KEYS.contains(&key)
}

/// A checked router configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouterArgs {
    /// The router of an aggregated cluster.
    pub config: KvRouterConfig,
    /// Order of the queue, if given.
    pub queue_policy: Option<QueueOrder>,
    /// A file of queue policies, which override other settings of the queue; see
    /// [`read_queue_policies`](crate::read_queue_policies).
    pub policy_config: Option<String>,
    /// Conditional disaggregation, if it is enabled.
    pub conditional: Option<ConditionalConfig>,
}

impl RouterArgs {
    /// Reads the JSON text `text`; see [`EngineArgs::read`](crate::EngineArgs::read).
    ///
    /// # Errors
    /// Every key that is unknown, has an invalid value, or is not simulated.
    pub fn read(place: &str, text: &str, strict: bool) -> Result<(Self, Vec<Remark>), DynamoError> {
        let mut findings = Findings::default();
        let map = parse(place, text, &mut findings);
        let mut keys = Keys::new(place, "", map, &mut findings);
        let args = read(&mut keys);
        keys.finish(|_| None);
        findings.finish(strict, args)
    }

    /// Returns the JSON text `text` with another value for one key.
    #[must_use]
    pub fn with_key(text: Option<&str>, key: &str, value: serde_json::Value) -> String {
        let text = text.unwrap_or("{}");
        match serde_json::from_str(text) {
            Ok(serde_json::Value::Object(mut map)) => {
                map.insert(key.to_owned(), value);
                serde_json::Value::Object(map).to_string()
            }
            _ => text.to_owned(),
        }
    }
}

fn read(keys: &mut Keys<'_>) -> RouterArgs {
    let default = KvRouterConfig::default();
    let mut weight = |key, default: f64| keys.at_least(key, 0.0).unwrap_or(default);
    let mut config = KvRouterConfig {
        overlap_score_credit: weight("overlap_score_credit", default.overlap_score_credit),
        overlap_score_credit_decay: weight("overlap_score_credit_decay", default.overlap_score_credit_decay),
        host_cache_hit_weight: weight("host_cache_hit_weight", default.host_cache_hit_weight),
        disk_cache_hit_weight: weight("disk_cache_hit_weight", default.disk_cache_hit_weight),
        prefill_load_scale: weight("prefill_load_scale", default.prefill_load_scale),
        decode_active_request_weight: weight("decode_active_request_weight", default.decode_active_request_weight),
        temperature: weight("router_temperature", default.temperature),
        ..default
    };
    // The deprecated weight of Dynamo 1.3 and earlier.
    if let Some(weight) = keys.at_least("overlap_score_weight", 0.0) {
        keys.remark("overlap_score_weight", "is deprecated; it sets `prefill_load_scale`, and 0 also the credit to 0");
        config.prefill_load_scale = weight;
        if weight == 0.0 {
            config.overlap_score_credit = 0.0;
        }
    }
    let mut flag = |key, default: bool| keys.boolean(key).unwrap_or(default);
    config.track_active_blocks = flag("router_track_active_blocks", default.track_active_blocks);
    config.track_output_blocks = flag("router_track_output_blocks", default.track_output_blocks);
    config.assume_kv_reuse = flag("router_assume_kv_reuse", default.assume_kv_reuse);
    config.track_prefill_tokens = flag("router_track_prefill_tokens", default.track_prefill_tokens);
    let use_kv_events = flag("use_kv_events", true);
    let ttl_s = keys.between("router_ttl_secs", 1e-9, 1e9).unwrap_or(120.0);
    if !use_kv_events {
        config.knowledge = KvKnowledge::Predicted { ttl_ns: (ttl_s * 1e9).round() as u64 };
    }
    let queue_policy = keys.choice("router_queue_policy", QUEUE_ORDERS);
    if let Some(threshold) = keys.at_least("router_queue_threshold", 0.0) {
        config.queue = Some(QueueConfig::single(threshold, queue_policy.unwrap_or_default()));
    }
    let policy_config = keys.text("router_policy_config");
    let conditional = conditional(keys);
    without_effect(keys, use_kv_events);
    not_simulated(keys);
    RouterArgs { config, queue_policy, policy_config, conditional }
}

fn conditional(keys: &mut Keys<'_>) -> Option<ConditionalConfig> {
    let is_enabled = keys.boolean("conditional_disagg_enabled") == Some(true);
    let default = ConditionalConfig::default();
    let config = ConditionalConfig {
        policy: keys.choice("conditional_disagg_policy", CONDITIONAL_POLICIES).unwrap_or_default(),
        eff_isl_threshold_tokens: keys
            .between("conditional_disagg_eff_isl_threshold", 0.0, f64::from(u32::MAX))
            .map_or(default.eff_isl_threshold_tokens, |tokens| tokens as u32),
        eff_isl_ratio_threshold: keys
            .at_least("conditional_disagg_eff_isl_ratio_threshold", 0.0)
            .unwrap_or(default.eff_isl_ratio_threshold),
        prefill_busy_threshold: keys.at_least("conditional_disagg_prefill_busy_threshold", 0.0),
        decode_busy_threshold: keys.at_least("conditional_disagg_decode_busy_threshold", 0.0),
    };
    if is_enabled && let Err(text) = config.check() {
        keys.problem("conditional_disagg_policy", &text);
    }
    is_enabled.then_some(config)
}

/// Reads keys that Dynamo's replay checks and ignores. Its router has no shared cache and no sessions, and its
/// index contains only KV events.
fn without_effect(keys: &mut Keys<'_>, use_kv_events: bool) {
    let multiplier = keys.between("shared_cache_multiplier", 0.0, 1.0).is_some_and(|multiplier| multiplier > 0.0);
    let cache = keys.choice("shared_cache_type", &[("none", false), ("hicache", true)]) == Some(true);
    let predicted = keys.at_least("router_predicted_ttl_secs", 0.0).is_some();
    let sessions = keys.boolean("enable_session_prefix_index") == Some(true);
    for (key, is_given, needs_events) in [
        ("shared_cache_multiplier", multiplier, false),
        ("shared_cache_type", cache, false),
        ("router_predicted_ttl_secs", predicted, true),
        ("enable_session_prefix_index", sessions, true),
    ] {
        if is_given && needs_events && !use_kv_events {
            keys.problem(key, "needs `use_kv_events`");
        } else if is_given {
            keys.remark(key, "has no effect, as in Dynamo's replay: only live routers use it");
        }
    }
}

/// Reads keys without meaning in a simulation, and refuses keys that are not simulated.
fn not_simulated(keys: &mut Keys<'_>) {
    if keys.choice("router_prefill_load_model", &[("none", false), ("aic", true)]) == Some(true) {
        let text = "\"aic\" is not simulated: it estimates the load of prefills for the router; use \"none\"";
        keys.problem("router_prefill_load_model", text);
    }
    if keys.boolean("router_replica_sync") == Some(true) {
        keys.remark("router_replica_sync", "is ignored; use --router-replicas and --router-sync-ms");
    }
    keys.pass_over(
        &[
            "durable_kv_events",
            "router_event_threads",
            "router_tracking_hash",
            "router_tracking_key_file",
            "router_tracking_key_id",
            "router_snapshot_threshold",
            "router_reset_states",
            "skip_initial_worker_wait",
            "use_remote_indexer",
            "serve_indexer",
        ],
        "it is about live routers",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(RouterArgs, Vec<Remark>), DynamoError> {
        RouterArgs::read("--router-config", text, false)
    }

    #[test]
    fn nothing_is_all_defaults() {
        assert_eq!(read("{}"), Ok((RouterArgs::default(), Vec::new())));
    }

    #[test]
    fn every_key_has_its_effect() {
        for key in KEYS {
            let value = match *key {
                "use_kv_events"
                | "router_track_active_blocks"
                | "router_assume_kv_reuse"
                | "router_track_prefill_tokens" => "false",
                "router_track_output_blocks" => "true",
                "router_queue_policy" => "\"wspt\"",
                "conditional_disagg_enabled" => "true",
                "conditional_disagg_policy" => "\"isl_or_load\"",
                _ => "7.5",
            };
            // This key only has an effect without events.
            let with = match *key {
                "router_ttl_secs" => r#""use_kv_events": false, "#,
                "conditional_disagg_enabled" => "",
                key if key.starts_with("conditional_disagg") => r#""conditional_disagg_enabled": true, "#,
                _ => "",
            };
            let (args, remarks) = read(&format!("{{{with}\"{key}\": {value}}}")).expect("valid");
            let (base, _) = read(&format!("{{{}}}", with.trim_end_matches(", "))).expect("valid");
            assert_ne!(args, base, "{key}");
            assert_eq!(remarks, [], "{key}");
        }
    }

    #[test]
    fn the_deprecated_weight_is_the_scale() {
        let (args, remarks) = read(r#"{"overlap_score_weight": 0}"#).expect("valid");
        assert_eq!((args.config.prefill_load_scale, args.config.overlap_score_credit), (0.0, 0.0));
        assert_eq!(remarks.len(), 1);
        let (args, _) = read(r#"{"overlap_score_weight": 2}"#).expect("valid");
        assert_eq!((args.config.prefill_load_scale, args.config.overlap_score_credit), (2.0, 1.0));
    }

    #[test]
    fn everything_wrong_is_reported_at_once() {
        let text = r#"{"overlap_score_credt": 1, "router_temperature": -1, "router_queue_policy": "best"}"#;
        let error = read(text).expect_err("it is wrong").to_string();
        for needle in [
            "--router-config, `overlap_score_credt`: is unknown; did you mean `overlap_score_credit`?",
            "`router_temperature`: expected a number of at least 0, got -1",
            r#"`router_queue_policy`: expected one of "fcfs", "lcfs", "wspt", got "best""#,
        ] {
            assert!(error.contains(needle), "{needle} is not in:\n{error}");
        }
    }

    #[test]
    fn what_only_live_routers_use_is_checked_and_reported() {
        let plain = read("{}").expect("valid").0;
        for (text, remarks) in [
            (r#"{"shared_cache_multiplier": 0.5, "shared_cache_type": "hicache"}"#, 2),
            (r#"{"shared_cache_multiplier": 0, "shared_cache_type": "none", "enable_session_prefix_index": false}"#, 0),
            (r#"{"router_predicted_ttl_secs": 5, "enable_session_prefix_index": true}"#, 2),
        ] {
            let (args, found) = read(text).expect("valid");
            assert_eq!((&args, found.len()), (&plain, remarks), "{text}");
        }
        for (text, needle) in [
            (r#"{"shared_cache_multiplier": 2}"#, "`shared_cache_multiplier`: expected a number"),
            (r#"{"shared_cache_type": "disk"}"#, r#"expected one of "none", "hicache""#),
            (r#"{"router_predicted_ttl_secs": -1}"#, "expected a number of at least 0"),
            (
                r#"{"router_predicted_ttl_secs": 5, "use_kv_events": false}"#,
                "`router_predicted_ttl_secs`: needs `use_kv_events`",
            ),
        ] {
            let error = read(text).expect_err("it is wrong").to_string();
            assert!(error.contains(needle), "{needle} is not in:\n{error}");
        }
    }

    #[test]
    fn what_means_nothing_is_reported_or_refused() {
        for text in [r#"{"router_event_threads": 4}"#, r#"{"serve_indexer": true}"#] {
            assert_eq!(read(text).expect("valid").1.len(), 1, "{text}");
            assert!(RouterArgs::read("--router-config", text, true).is_err(), "{text}");
        }
    }
}
