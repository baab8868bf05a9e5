//! Features that the core lacks, and how a recording shows that it uses them.

use serde_json::{Map, Value};
use vcr_base::block_hash::HashRules;
use vcr_core::{Drafter, EngineConfig, KvCacheKind, NamedValue, SchedulerRules};

use crate::live::{LiveAdded, LiveEngine};

/// The problem for which vLLM itself reports "duplicate request id".
pub(super) const ADDED_TWICE: &str =
    "is added a second time while it is in the engine; vLLM's engine core stops with an assertion there";

pub(super) fn rules_of(version: &str) -> Result<SchedulerRules, String> {
    let minor: Vec<&str> = version.split(['.', '+']).take(2).collect();
    SchedulerRules::of_name(&minor.join(".")).ok_or_else(|| {
        let [first, .., last] = SchedulerRules::NAMES else { return String::new() };
        format!("recorded with vLLM \"{version}\"; the rules known here are those of {} to {}", first.0, last.0)
    })
}

pub(super) fn hash_rules_of(version: &str) -> HashRules {
    let mut parts = version.split(['.', '+']).map_while(|part| part.parse().ok());
    let release = parts.next().zip(parts.next());
    release.and_then(|(major, minor)| HashRules::of_release(major, minor)).unwrap_or(HashRules::V0_31)
}

/// Engine arguments that must be absent, null or off, with the missing feature that each needs.
const MUST_BE_OFF: &[(&str, &str)] = &[
    ("kv_transfer_config", "a KV connector"),
    ("kv_connector", "a KV connector"),
    ("kv_offloading_size", "a KV connector that offloads"),
    ("ec_transfer_config", "an encoder-cache connector"),
    ("diffusion_config", "a diffusion model"),
    ("spec_model", "a draft model"),
];

/// Engine arguments that must be absent or at most 1, with the missing feature that each needs.
const MUST_BE_ONE: &[(&str, &str)] = &[
    ("pipeline_parallel_size", "pipeline parallelism"),
    ("decode_context_parallel_size", "context parallelism of decodes"),
    ("prefill_context_parallel_size", "context parallelism of prefills"),
];

/// Drafters without their own KV. They differ only in the number of drafts; the scheduler treats them the same.
const DRAFTERS: &[&str] = &["ngram", "suffix"];

/// Checks the arguments of a live engine. The first line of the capture may name the drafter.
pub(super) fn check_engine_args(args: &Map<String, Value>, engine: &LiveEngine) -> Result<(), String> {
    for (key, value) in args {
        let name = key.trim_start_matches('-').replace('-', "_");
        let is = |(known, _): &&(&str, &str)| *known == name;
        let is_named = name == "spec_model" && engine.drafter.is_some();
        if let Some((_, what)) = MUST_BE_OFF.iter().find(is).filter(|_| !is_off(value) && !is_named) {
            return Err(format!("`engine_args.{key}` is {value}: {what}"));
        }
        if let Some((_, what)) = MUST_BE_ONE.iter().find(is).filter(|_| !is_at_most_one(value)) {
            return Err(format!("`engine_args.{key}` is {value}: {what}"));
        }
    }
    if prefill_schedule_interval(args) > 1 && !argument(args, "data_parallel_size").is_none_or(is_at_most_one) {
        return Err("`engine_args.prefill_schedule_interval`: steps that ranks count together".to_owned());
    }
    if engine.drafter.is_some() { Ok(()) } else { drafter(args).map(drop) }
}

fn argument<'a>(args: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    args.get(name).or_else(|| args.get(&name.replace('_', "-")))
}

/// The interval of a live engine's steps that compute prompts; 1 if every step may.
pub(super) fn prefill_schedule_interval(args: &Map<String, Value>) -> u32 {
    let given = argument(args, "prefill_schedule_interval").and_then(Value::as_u64);
    given.map_or(1, |steps| u32::try_from(steps).unwrap_or(u32::MAX)).max(1)
}

fn drafter(args: &Map<String, Value>) -> Result<Option<String>, String> {
    let argument = |name: &str| argument(args, name);
    let mut config = argument("speculative_config").cloned().unwrap_or_default();
    // On a command line, the value is a JSON text.
    if let Some(text) = config.as_str() {
        config = serde_json::from_str(text)
            .map_err(|error| format!("`engine_args.speculative_config` is not JSON: {error}"))?;
    }
    let method = match (config.get("method"), argument("spec_method")) {
        (Some(method), _) | (None, Some(method)) if !method.is_null() => Some(method.clone()),
        // Without a method, vLLM derives the method from the model. `ngram` is a method that may be given as a
        // model.
        _ => config.get("model").filter(|model| *model == "ngram" || *model == "[ngram]").map(|_| "ngram".into()),
    };
    match method {
        None if is_off(&config) => Ok(None),
        None => Err("`engine_args.speculative_config` names no `method`".to_owned()),
        Some(method) => match method.as_str().filter(|name| DRAFTERS.contains(name)) {
            None => Err(format!(
                "`engine_args.speculative_config.method` is {method}: drafters with KV of their own look ahead, and \
                 the first line of `steps.jsonl` has no `drafter`; without it those known are {}",
                DRAFTERS.join(" and ")
            )),
            Some(_) if !is_off(config.get("num_speculative_tokens_per_batch_size").unwrap_or(&Value::Null)) => {
                Err("`engine_args.speculative_config.num_speculative_tokens_per_batch_size`: drafts that depend on \
                     the batch"
                    .to_owned())
            }
            Some(name) => Ok(Some(name.to_owned())),
        },
    }
}

/// The drafter that vLLM calls `name`; None if it is not simulated. No name, or `suffix`, means a drafter without
/// its own KV.
pub(super) fn drafter_of(name: Option<&str>) -> Option<Drafter> {
    match name {
        None | Some("suffix") => Some(Drafter::Ngram),
        Some(name) => Drafter::of_name(name),
    }
}

pub(super) fn check_live_engine(engine: &LiveEngine, args: &Map<String, Value>) -> Result<(), String> {
    if let Some((key, value)) = engine.rest.iter().find(|(_, value)| !is_off(value)) {
        return Err(format!("`{key}` is {value}: a setting not known here"));
    }
    let block_size = engine.options.block_size;
    let has_groups = !engine.groups.is_empty();
    if let Some(hashed) = engine.hash_block_size.filter(|hashed| *hashed != block_size && !has_groups) {
        return Err(format!("`hash_block_size` is {hashed} and `block_size` {block_size}: hashes of parts of blocks"));
    }
    if let Some(name) = engine.drafter.as_deref().filter(|name| drafter_of(Some(name)).is_none()) {
        return Err(format!("`drafter` is \"{name}\": not known here"));
    }
    if engine.options.num_speculative_tokens > 0 && engine.drafter.is_none() && drafter(args)?.is_none() {
        return Err(format!(
            "`num_spec_tokens` is {}, but `engine_args` of `engine.json` does not say whose drafts these are \
             (`speculative_config`)",
            engine.options.num_speculative_tokens
        ));
    }
    let usable = engine.options.num_gpu_blocks.saturating_sub(1);
    if let Some(free) = engine.free_blocks_at_start.filter(|free| *free != usable) {
        return Err(format!(
            "`free_blocks_at_start` is {free}, where all {usable} but the null block are free: \
             blocks that someone else holds"
        ));
    }
    Ok(())
}

pub(super) fn check_live_request(added: &LiveAdded) -> Result<(), String> {
    if added.resumable {
        return Err(format!("`resumable` of request {}: streaming inputs of a live engine", added.id));
    }
    Ok(())
}

/// The layers that a live engine's event is about.
pub(super) struct EventScope<'a> {
    pub(super) kind: Option<&'a str>,
    pub(super) group: Option<u32>,
    pub(super) medium: Option<&'a str>,
    pub(super) block_size: Option<u32>,
    pub(super) looks_ahead: bool,
}

impl EventScope<'_> {
    /// Checks that the engine has these layers, on the GPU.
    pub(super) fn check(&self, config: &EngineConfig) -> Result<(), String> {
        let groups = &config.kv_cache_groups();
        let index = self.group.unwrap_or(0);
        if index as usize >= groups.len().max(1) {
            let number = groups.len().max(1);
            return Err(format!("`group_idx` is {index}, where the engine has {number} of the groups of layers"));
        }
        let group = groups.get(index as usize);
        let names = kind_names(group.map(|group| group.kind));
        if let Some(kind) = self.kind.filter(|kind| !names.contains(kind)) {
            return Err(format!("`kv_cache_spec_kind` is \"{kind}\": layers other than {}", names.join(" or ")));
        }
        if let Some(medium) = self.medium.filter(|medium| *medium != "GPU") {
            return Err(format!("`medium` is \"{medium}\": blocks elsewhere than on the GPU"));
        }
        // Block sizes of groups are compared elsewhere.
        let block_size = config.block_size();
        if let Some(size) = self.block_size.filter(|size| group.is_none() && *size != block_size) {
            return Err(format!("`block_size` is {size} and the engine's {block_size}: blocks of several sizes"));
        }
        if self.looks_ahead && config.drafting().hash_lookahead_tokens == 0 {
            return Err("`lookahead_token_ids`: hashes that cover tokens after the block".to_owned());
        }
        Ok(())
    }
}

/// vLLM's names for layers of this kind. None means an engine without groups, which has full attention.
fn kind_names(kind: Option<KvCacheKind>) -> &'static [&'static str] {
    match kind {
        // Captures of engines with MLA may call it full attention.
        None | Some(KvCacheKind::FullAttention) => &["full_attention", "mla_attention"],
        Some(KvCacheKind::LatentAttention) => &["mla_attention"],
        Some(KvCacheKind::SlidingWindow { .. }) => &["sliding_window", "sliding_window_mla"],
        Some(KvCacheKind::ChunkedLocal { .. }) => &["chunked_local_attention"],
        Some(KvCacheKind::CrossAttention) => &["cross_attention"],
        Some(KvCacheKind::Mamba { .. }) => &["mamba"],
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::Bool(true) => false,
    }
}

fn is_at_most_one(value: &Value) -> bool {
    is_off(value) || value.as_u64() == Some(1)
}
