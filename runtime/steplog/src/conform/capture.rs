//! The files of a live capture, but for its KV events.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use vcr_block_hash::HashRules;
use vcr_core::{EngineConfig, SchedulerRules};

use super::capture_settings::engine_config;
use super::report::CaseReport;
use super::scope::{check_engine_args, check_live_engine, check_live_request, hash_rules_of, rules_of};
use crate::error::LogError;
use crate::jsonl::{is_there, read_all, read_whole, resolved};
use crate::live::LiveLog;

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
    pub(super) hash_rules: HashRules,
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
