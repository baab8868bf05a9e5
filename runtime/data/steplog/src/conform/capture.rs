//! Reads the files of a live capture, except the KV events.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use vcr_base::block_hash::HashRules;
use vcr_core::{DraftRange, EngineConfig, EngineConfigInput, KvCacheGroup, Policy, SchedulerRules};

use super::case::{CaseGroup, checked, greatest_common_divisor, scheduler_block_size};
use super::report::CaseReport;
use super::scope::{
    check_engine_args, check_live_engine, check_live_request, drafter_of, hash_rules_of, prefill_schedule_interval,
    rules_of,
};
use crate::error::LogError;
use crate::jsonl::{is_there, read_all, read_whole, resolved};
use crate::live::{LiveEngine, LiveLog};

#[derive(Deserialize)]
struct EngineFile {
    vllm: Option<String>,
    #[serde(default)]
    engine_args: Map<String, Value>,
}

#[derive(Deserialize)]
struct LiveRequest {
    id: String,
    prompt: Vec<u32>,
}

#[derive(Deserialize)]
struct LiveTokens {
    id: String,
    tokens: Vec<u32>,
}

pub(super) struct Capture {
    pub(super) config: EngineConfig,
    pub(super) args: Map<String, Value>,
    pub(super) hash_rules: HashRules,
    pub(super) log: LiveLog,
    /// Prompts and outputs by request id. A missing entry is unknown.
    pub(super) prompts: HashMap<String, Vec<u32>>,
    pub(super) outputs: HashMap<String, Vec<u32>>,
}

impl Capture {
    pub(super) fn read(folder: &Path, report: &mut CaseReport) -> Result<Self, LogError> {
        let path = folder.join("engine.json");
        let refuse = |what: String| LogError::out_of_scope(&path, None, what);
        let file: EngineFile = read_whole(&path)?;
        let rules = match &file.vllm {
            Some(version) => rules_of(version).map_err(refuse)?,
            None => {
                report.notes.push("`engine.json` has no version of `vllm`: 0.32 is assumed".to_owned());
                SchedulerRules::V0_32
            }
        };
        let log = LiveLog::read(&folder.join("steps.jsonl"))?;
        check_engine_args(&file.engine_args, &log.engine).map_err(refuse)?;
        check_live_engine(&log.engine, &file.engine_args)
            .map_err(|what| LogError::out_of_scope(&log.path, Some(1), what))?;
        for (line, step) in &log.steps {
            let checked = step.added.iter().try_for_each(check_live_request);
            checked.map_err(|what| LogError::out_of_scope(&log.path, Some(*line), what))?;
        }
        let config = engine_config(&log, &file.engine_args, rules)?;
        let hash_rules = file.vllm.as_deref().map_or(HashRules::V0_31, hash_rules_of);
        let path = resolved(&folder.join("requests.jsonl"));
        let prompts = read_all::<LiveRequest>(&path)?;
        let prompts = by_id(&path, prompts.into_iter().map(|(line, request)| (line, request.id, request.prompt)))?;
        let path = resolved(&folder.join("tokens.jsonl"));
        let outputs = if is_there(&path) { read_all::<LiveTokens>(&path)? } else { Vec::new() };
        let outputs = by_id(&path, outputs.into_iter().map(|(line, request)| (line, request.id, request.tokens)))?;
        Ok(Self { config, args: file.engine_args, hash_rules, log, prompts, outputs })
    }

    /// The caller's id of a request. If `n` is above 1, vLLM puts the index of the sample before it.
    pub(super) fn caller_id<'a>(&self, id: &'a str) -> &'a str {
        if self.prompts.contains_key(id) {
            return id;
        }
        match id.split_once('_') {
            Some((index, rest)) if !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()) => rest,
            _ => id,
        }
    }
}

fn by_id(
    path: &Path,
    entries: impl Iterator<Item = (u64, String, Vec<u32>)>,
) -> Result<HashMap<String, Vec<u32>>, LogError> {
    let mut known = HashMap::new();
    for (line, id, tokens) in entries {
        if known.contains_key(&id) {
            return Err(LogError::line(path, line, format_args!("`id`: request {id} occurs twice")));
        }
        known.insert(id, tokens);
    }
    Ok(known)
}

pub(super) fn engine_config(
    log: &LiveLog,
    args: &Map<String, Value>,
    rules: SchedulerRules,
) -> Result<EngineConfig, LogError> {
    let engine = &log.engine;
    let refuse = |what: String| LogError::out_of_scope(&log.path, Some(1), what);
    let groups = groups_of(engine).map_err(refuse)?;
    let block_size = hashed_block_size(engine, &groups);
    let groups = groups.iter().map(|group| KvCacheGroup {
        // Without prefix caching, one Mamba state belongs to a whole sequence, so the group has no block size here.
        block_size: group.block_size.filter(|_| engine.options.enable_prefix_caching || !group.kind.is_mamba()),
        ..*group
    });
    let input = input_of(engine, args, rules, (block_size, groups.collect()));
    let config = input.and_then(checked).map_err(|problem| LogError::line(&log.path, 1, problem))?;
    check_derived(engine, &config).map_err(refuse)?;
    Ok(config)
}

fn groups_of(engine: &LiveEngine) -> Result<Vec<KvCacheGroup>, String> {
    let group_of = |group: &Value| {
        let read: Result<CaseGroup, _> = serde_json::from_value(group.clone());
        read.map(|group| KvCacheGroup::from(&group)).map_err(|error| format!("`groups` has {group}: {error}"))
    };
    engine.groups.iter().map(group_of).collect()
}

/// The block size of hashes. vLLM has none without prefix caching, so the greatest common divisor of the block
/// sizes is used then.
fn hashed_block_size(engine: &LiveEngine, groups: &[KvCacheGroup]) -> u32 {
    let hashed = engine.hash_block_size.unwrap_or(engine.options.block_size);
    if engine.options.enable_prefix_caching || groups.is_empty() {
        return hashed;
    }
    let sizes = groups.iter().filter(|group| !group.kind.is_mamba()).filter_map(|group| group.block_size);
    let common = sizes.map(u64::from).reduce(greatest_common_divisor);
    common.and_then(|common| u32::try_from(common).ok()).unwrap_or(hashed)
}

fn input_of(
    engine: &LiveEngine,
    args: &Map<String, Value>,
    rules: SchedulerRules,
    (block_size, kv_cache_groups): (u32, Vec<KvCacheGroup>),
) -> Result<EngineConfigInput, String> {
    let policy = match engine.policy.as_str() {
        "fcfs" => Policy::Fcfs,
        "priority" => Policy::Priority,
        other => return Err(format!("invalid `policy`: expected fcfs or priority, got \"{other}\"")),
    };
    let adaptive = args.get("long_prefill_token_threshold_adaptive").and_then(Value::as_bool);
    Ok(EngineConfigInput {
        block_size,
        prefill_schedule_interval: prefill_schedule_interval(args),
        policy,
        adaptive_long_prefill: adaptive.unwrap_or(false),
        drafter: drafter_of(engine.drafter.as_deref()).unwrap_or_default(),
        draft_ranges: DraftRange::read(&engine.spec_by_batch)?,
        rules,
        kv_cache_groups,
        ..engine.options.clone()
    })
}

/// Checks that the settings derived by vLLM's scheduler equal those that are derived here.
fn check_derived(engine: &LiveEngine, config: &EngineConfig) -> Result<(), String> {
    let drafting = config.drafting();
    let scheduled = scheduler_block_size(config);
    let (drafter, sizes) = ("it follows from the drafter", "it follows from the blocks of the groups");
    let derived = [
        ("num_lookahead_tokens", engine.num_lookahead_tokens.map(u64::from), drafting.lookahead_tokens.into(), drafter),
        (
            "num_hash_lookahead_tokens",
            engine.num_hash_lookahead_tokens.map(u64::from),
            drafting.hash_lookahead_tokens.into(),
            drafter,
        ),
        ("block_size", Some(u64::from(engine.options.block_size)), scheduled, sizes),
    ];
    for (key, theirs, ours, why) in derived {
        if let Some(theirs) = theirs.filter(|theirs| *theirs != ours) {
            return Err(format!("`{key}` is {theirs}, where {ours} is expected: {why}"));
        }
    }
    Ok(())
}
