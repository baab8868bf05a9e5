//! The settings of an engine, under the names of either schema.

use serde_json::{Map, Value, json};
use vcr_core::{
    Drivers, EngineConfig, EngineConfigInput, EngineKind, EngineOption, HostRules, KV_CACHE_GROUPS, KvTiersConfig,
    NamedValue, OPTIONS, OptionValue, SharedTier, derived_settings, option, sglang, ticks,
};

/// The settings that explanations need; None or 0 if unknown.
#[derive(Debug, Default)]
pub(crate) struct Settings<'a> {
    pub(crate) budget: Option<u64>,
    pub(crate) cap: Option<u64>,
    pub(crate) policy: Option<&'a str>,
    pub(crate) chunked_prefill: Option<bool>,
    pub(crate) long_prefill_threshold: u64,
    pub(crate) is_adaptive: bool,
    pub(crate) watermark: Option<f64>,
    pub(crate) max_loras: u64,
    pub(crate) num_drafts: u64,
    pub(crate) is_async: bool,
    /// Maximum number of requests that decode in a step, if running requests take turns.
    pub(crate) decode_width: Option<u64>,
}

impl<'a> Settings<'a> {
    pub(crate) fn of(map: &'a Map<String, Value>) -> Self {
        let number = |names: &[&str]| first(map, names).and_then(Value::as_u64);
        let flag = |name: &str| map.get(name).and_then(Value::as_bool);
        Self {
            budget: number(&["max_num_scheduled_tokens", "max_num_batched_tokens", "prefill_tokens_per_tick"]),
            cap: number(&["max_num_active_seqs", "max_num_active_reqs", "max_num_seqs", "max_active"]),
            policy: map.get("policy").and_then(Value::as_str),
            chunked_prefill: flag("chunked_prefill"),
            long_prefill_threshold: number(&["long_prefill_token_threshold"]).unwrap_or(0),
            is_adaptive: flag("adaptive").unwrap_or(false),
            watermark: map.get("watermark").and_then(Value::as_f64),
            max_loras: number(&["max_loras"]).unwrap_or(0),
            num_drafts: number(&["spec", "num_spec_tokens"]).unwrap_or(0),
            is_async: flag("async_scheduling").unwrap_or(false),
            decode_width: number(&["decode_width"]),
        }
    }
}

fn first<'a>(settings: &'a Map<String, Value>, names: &[&str]) -> Option<&'a Value> {
    names.iter().filter_map(|name| settings.get(*name)).find(|value| !value.is_null())
}

/// The settings of one of vcr's engines: under the names that recordings use, or under the engine's own names if
/// its scheduler is not vLLM's.
#[must_use]
pub fn settings_of(kind: &EngineKind) -> Map<String, Value> {
    match kind {
        EngineKind::Vllm(config) => vllm(config),
        EngineKind::Sglang(config) => {
            let mut settings = of_options(sglang::OPTIONS, config.stated(), &sglang::derived_settings(config.stated()));
            settings.insert("engine".to_owned(), "sglang".into());
            settings
        }
        EngineKind::Ticks(config) => {
            let mut settings = of_options(ticks::OPTIONS, config.stated(), &[]);
            settings.insert("engine".to_owned(), "ticks".into());
            settings
        }
    }
}

fn vllm(config: &EngineConfig) -> Map<String, Value> {
    // The recorded block size counts the tokens of all ranks.
    let input = EngineConfigInput { block_size: config.block_size(), ..config.stated() };
    let mut settings = of_options(OPTIONS, &input, &derived_settings(&input));
    let tiers = config.kv_tiers().map_or(Value::Null, tiers_of);
    settings.insert("kv_tiers".to_owned(), tiers);
    if !config.drafter().has_kv() {
        settings.remove(option::DRAFTER.log_key);
        settings.remove(option::DISABLE_LOOKAHEAD_BLOCK_HASHES.log_key);
    }
    if config.pipeline_parallel_size() == 1 {
        settings.remove(option::PIPELINE_PARALLEL_SIZE.log_key);
    }
    if !input.draft_ranges.is_empty() {
        let ranges = input.draft_ranges.iter().map(|range| json!([range.first, range.last, range.tokens]));
        settings.insert("spec_by_batch".to_owned(), ranges.collect());
    }
    settings.remove(option::DECODE_CONTEXT_PARALLEL_SIZE.log_key);
    if config.has_kv_cache_groups() {
        let groups: Vec<String> = config.kv_cache_groups().iter().map(ToString::to_string).collect();
        settings.insert(KV_CACHE_GROUPS.log_key.to_owned(), groups.into());
    }
    settings
}

fn of_options<C>(options: &[EngineOption<C>], config: &C, derived: &[(&str, &str)]) -> Map<String, Value> {
    let options = options.iter().map(|option| (option.log_key, json_of((option.get)(config))));
    let settings = options.chain(derived.iter().map(|&(key, name)| (key, name.into())));
    settings.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Takes the options of an engine out of the settings of a recording, where their keys are the log keys or these
/// `aliases`. Limits and `optional` options may be missing or null. `place` is the prefix of a key in errors.
///
/// # Errors
/// If an option is missing or invalid; the error names the first such option.
pub(crate) fn take_options(
    settings: &mut Map<String, Value>,
    place: &str,
    aliases: &[(&str, &str)],
    optional: &[&str],
) -> Result<EngineConfigInput, String> {
    let mut input = EngineConfigInput::default();
    for option in OPTIONS.iter().filter(|option| option.drivers != Drivers::Simulated) {
        let alias = aliases.iter().find(|(_, log_key)| *log_key == option.log_key);
        let key = alias.map_or(option.log_key, |(alias, _)| alias);
        let default = option.default_value();
        let is_limit = matches!(default, OptionValue::Limit(_)) && option.name != option::MAX_MODEL_LEN.name;
        let may_miss = is_limit || optional.contains(&option.log_key);
        let value = match settings.remove(key) {
            None | Some(Value::Null) if may_miss => default,
            None => return Err(format!("`{}`: missing field `{key}`", place.trim_end_matches('.'))),
            Some(value) => value_of(option, value).map_err(|problem| format!("`{place}{key}`{problem}"))?,
        };
        (option.set)(&mut input, value);
    }
    Ok(input)
}

/// Reads the value of an option from JSON. An error is the end of a sentence.
fn value_of(option: &EngineOption, value: Value) -> Result<OptionValue, String> {
    fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, String> {
        serde_json::from_value(value).map_err(|error| format!(": {error}"))
    }
    Ok(match option.default_value() {
        OptionValue::Count(_) => OptionValue::Count(read(value)?),
        OptionValue::Limit(_) => OptionValue::Limit(Some(read(value)?)),
        OptionValue::Share(_) => OptionValue::Share(read(value)?),
        OptionValue::Factor(_) => OptionValue::Factor(read(value)?),
        OptionValue::Switch(_) => OptionValue::Switch(read(value)?),
        OptionValue::Name(_) => {
            let name = read::<String>(value)?;
            let known = (option.names)().into_iter().find(|known| *known == name);
            OptionValue::Name(known.ok_or_else(|| format!(" is \"{name}\": not known here"))?)
        }
    })
}

fn json_of(value: OptionValue) -> Value {
    match value {
        OptionValue::Count(count) => count.into(),
        OptionValue::Limit(limit) => limit.into(),
        OptionValue::Share(number) | OptionValue::Factor(number) => number.into(),
        OptionValue::Switch(on) => on.into(),
        OptionValue::Name(name) => name.into(),
    }
}

fn tiers_of(tiers: &KvTiersConfig) -> Value {
    let mut settings = json!({
        "host_blocks": tiers.host_blocks,
        "disk_blocks": tiers.disk_blocks,
        "kv_bytes_per_token": tiers.kv_bytes_per_token,
        "offload_batch_size": tiers.offload_batch_size,
        "device_to_host_bytes_per_s": tiers.device_to_host_bytes_per_s,
        "host_to_device_bytes_per_s": tiers.host_to_device_bytes_per_s,
        "host_to_disk_bytes_per_s": tiers.host_to_disk_bytes_per_s,
        "disk_to_host_bytes_per_s": tiers.disk_to_host_bytes_per_s,
        "disk_latency_ns": tiers.disk_latency_ns,
    });
    if tiers.rules.is_connector() {
        settings["rules"] = tiers.rules.name().into();
    }
    if tiers.rules == HostRules::Vllm {
        settings["eviction_policy"] = tiers.eviction_policy.name().into();
        settings["store_threshold"] = tiers.store_threshold.into();
        settings["offload_prompt_only"] = tiers.offload_prompt_only.into();
    }
    // Older logs lack this setting.
    if tiers.host_latency_ns > 0 {
        settings["host_latency_ns"] = tiers.host_latency_ns.into();
    }
    for (key, shared) in [("shared_host", tiers.shared_host), ("shared_disk", tiers.shared_disk)] {
        if let Some(SharedTier { write_bytes_per_s, read_bytes_per_s }) = shared {
            settings[key] = json!({"write_bytes_per_s": write_bytes_per_s, "read_bytes_per_s": read_bytes_per_s});
        }
    }
    settings
}
