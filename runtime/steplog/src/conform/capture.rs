//! The files of a live capture, but for its KV events.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use vcr_core::{
    CapacityPolicy, Drafter, EngineConfig, EngineConfigInput, Policy, Reservations, SchedulerRules, Victim,
};

use super::case::checked;
use super::report::CaseReport;
use super::scope::{check_engine_args, check_live_engine, prefill_schedule_interval, rules_of};
use crate::error::LogError;
use crate::jsonl::{is_there, read_all, read_whole, resolved};
use crate::live::{LiveEngine, LiveLog};

/// `engine.json`.
#[derive(Deserialize)]
struct EngineFile {
    vllm: Option<String>,
    #[serde(default)]
    engine_args: Map<String, Value>,
}

/// A line of `requests.jsonl`.
#[derive(Deserialize)]
struct LiveRequest {
    id: String,
    prompt: Vec<u32>,
}

/// A line of `tokens.jsonl`.
#[derive(Deserialize)]
struct LiveTokens {
    id: String,
    tokens: Vec<u32>,
}

/// A captured run.
pub(super) struct Capture {
    pub(super) config: EngineConfig,
    pub(super) args: Map<String, Value>,
    pub(super) log: LiveLog,
    /// Prompts and outputs, by id; those that are missing are not known.
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
        check_engine_args(&file.engine_args).map_err(refuse)?;
        let log = LiveLog::read(&folder.join("steps.jsonl"))?;
        check_live_engine(&log.engine, &file.engine_args)
            .map_err(|what| LogError::out_of_scope(&log.path, Some(1), what))?;
        let config = engine_config(&log.engine, &file.engine_args, rules)
            .map_err(|problem| LogError::line(&log.path, 1, problem))?;
        let path = resolved(&folder.join("requests.jsonl"));
        let prompts = read_all::<LiveRequest>(&path)?;
        let prompts = by_id(&path, prompts.into_iter().map(|(line, request)| (line, request.id, request.prompt)))?;
        let path = resolved(&folder.join("tokens.jsonl"));
        let outputs = if is_there(&path) { read_all::<LiveTokens>(&path)? } else { Vec::new() };
        let outputs = by_id(&path, outputs.into_iter().map(|(line, request)| (line, request.id, request.tokens)))?;
        Ok(Self { config, args: file.engine_args, log, prompts, outputs })
    }

    /// The request that the caller knows: of `n` samples each has its index
    /// before the caller's id.
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
            return Err(LogError::line(path, line, format_args!("`id`: request {id} is there twice")));
        }
        known.insert(id, tokens);
    }
    Ok(known)
}

fn engine_config(
    engine: &LiveEngine,
    args: &Map<String, Value>,
    rules: SchedulerRules,
) -> Result<EngineConfig, String> {
    let policy = match engine.policy.as_str() {
        "fcfs" => Policy::Fcfs,
        "priority" => Policy::Priority,
        other => return Err(format!("`policy` must be fcfs or priority, but is \"{other}\"")),
    };
    let adaptive = args.get("long_prefill_token_threshold_adaptive").and_then(Value::as_bool);
    checked(EngineConfigInput {
        block_size: engine.block_size,
        num_gpu_blocks: engine.num_gpu_blocks,
        max_num_seqs: engine.max_num_seqs,
        max_num_batched_tokens: engine.max_num_batched_tokens,
        max_num_scheduled_tokens: engine.max_num_scheduled_tokens,
        prefill_schedule_interval: prefill_schedule_interval(args),
        max_model_len: Some(engine.max_model_len),
        policy,
        enable_prefix_caching: engine.prefix_caching,
        enable_chunked_prefill: engine.chunked_prefill,
        long_prefill_token_threshold: engine.long_prefill_token_threshold,
        adaptive_long_prefill: adaptive.unwrap_or(false),
        watermark: engine.watermark,
        scheduler_reserve_full_isl: engine.reserve_full_isl,
        capacity: CapacityPolicy::Preempt,
        victim: Victim::Newest,
        reservations: Reservations::InSteps,
        max_num_active_seqs: engine.max_num_active_reqs,
        max_loras: engine.max_loras.unwrap_or(0),
        max_extra_tokens_per_step: 0,
        num_speculative_tokens: engine.num_spec_tokens,
        drafter: Drafter::Ngram,
        disable_lookahead_block_hashes: false,
        async_scheduling: engine.async_scheduling,
        pipeline_parallel_size: 1,
        decode_context_parallel_size: 1,
        draft_ranges: Vec::new(),
        rules,
        kv_tiers: None,
        kv_connector: None,
        kv_cache_groups: Vec::new(),
        prefix_cache_retention_interval: None,
        max_num_encoder_input_tokens: None,
        encoder_cache_size: None,
        disable_chunked_mm_input: false,
    })
}
