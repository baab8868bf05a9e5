//! Recordings of the scheduler alone.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use vcr_core::{
    Engine, EngineConfig, EngineConfigInput, Policy, Prompt, RequestId, RequestSpec, SchedulerRules, TokenSource,
};

use super::report::{CaseReport, Difference, Mismatch};
use crate::engine_log::EngineLog;
use crate::error::LogError;
use crate::line::{Id, StepLine};
use crate::read::{json_lines, step_line};

/// What the pretended model returns where a request is to stop.
const STOP_TOKEN: u32 = 7;
/// Tokens of one segment are numbered from its number times this.
const SEGMENT_TOKENS: u32 = 4096;
/// The segment of a request's outputs is its id plus this.
const FIRST_OUTPUT_SEGMENT: u32 = 100_000;

#[derive(Deserialize)]
struct CaseFile {
    /// The release that was recorded; 0.32.0 where nothing is said.
    vllm: Option<String>,
    config: CaseConfig,
}

#[derive(Deserialize)]
struct CaseConfig {
    block_size: u32,
    num_blocks: u32,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
    max_model_len: u32,
    policy: PolicyName,
    prefix_caching: bool,
    chunked_prefill: bool,
    long_prefill_token_threshold: u32,
    adaptive: bool,
    watermark: f64,
    reserve_full_isl: bool,
    max_num_active_seqs: Option<u32>,
    max_loras: u32,
    spec: u32,
    async_scheduling: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PolicyName {
    Fcfs,
    Priority,
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Fcfs => Self::Fcfs,
            PolicyName::Priority => Self::Priority,
        }
    }
}

#[derive(Deserialize)]
struct CaseRequest {
    id: u64,
    prompt: Vec<(u32, u32)>,
    max_tokens: u32,
    prio: i32,
    lora: Option<u32>,
    stop_at: Option<u32>,
}

/// The rules of a release named `0.32.0`, `0.33` and so on.
pub(super) fn rules_of(version: &str) -> Result<SchedulerRules, String> {
    let mut numbers = version.split(['.', '+']).map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(0), Some(33)) => Ok(SchedulerRules::V0_33),
        (Some(0), Some(32)) => Ok(SchedulerRules::V0_32),
        _ => Err(format!("recorded with vLLM \"{version}\"; the rules known here are those of 0.32 and 0.33")),
    }
}

/// The model's answers of the line being replayed.
#[derive(Default)]
struct RecordedAnswers {
    stop_at: HashMap<u64, u32>,
    sampled: BTreeMap<u64, u32>,
    drafts: HashMap<u64, u32>,
}

impl TokenSource for RecordedAnswers {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        if self.stop_at.get(&tag) == Some(&output_index) {
            return STOP_TOKEN;
        }
        (FIRST_OUTPUT_SEGMENT + tag as u32).wrapping_mul(SEGMENT_TOKENS).wrapping_add(output_index)
    }

    fn accepted_drafts(&mut self, tag: u64, _num_drafts: u32) -> u32 {
        self.sampled.get(&tag).map_or(0, |tokens| tokens.saturating_sub(1))
    }

    fn proposed_drafts(&mut self, tag: u64, _most: u32) -> u32 {
        self.drafts.get(&tag).copied().unwrap_or(0)
    }
}

struct Replay {
    engine: Engine,
    log: EngineLog,
    requests: HashMap<u64, CaseRequest>,
    live: HashMap<u64, RequestId>,
    answers: RecordedAnswers,
    num_added: u64,
}

pub(super) fn replay(folder: &Path) -> Result<CaseReport, LogError> {
    let mut replay = Replay::new(folder)?;
    let mut report = CaseReport::new(folder);
    let path = folder.join("steps.jsonl");
    for line in json_lines(&path)? {
        let (number, value) = line?;
        let theirs = step_line(&path, number, value)?;
        let step = theirs.s.or(theirs.u);
        let ours = replay.play(&theirs).map_err(|problem| LogError::line(&path, number, problem))?;
        report.steps += u64::from(theirs.s.is_some());
        report.events += theirs.ev.len() as u64;
        if let Err(Difference { field, ours: our_value, theirs }) = compare(&mut report, &ours, &theirs) {
            let mismatch = Mismatch { line: number, step, field, ours: our_value, theirs, why: ours.why };
            report.mismatch = Some(mismatch);
            break;
        }
    }
    Ok(report)
}

fn compare(report: &mut CaseReport, ours: &StepLine, theirs: &StepLine) -> Result<(), Difference> {
    report.compare("s", &ours.s, &theirs.s)?;
    report.compare("sched", &ours.sched, &theirs.sched)?;
    report.compare("tot", &ours.tot, &theirs.tot)?;
    report.compare("pre", &ours.pre, &theirs.pre)?;
    report.compare("flush", &ours.flush, &theirs.flush)?;
    report.compare("run", &ours.run, &theirs.run)?;
    report.compare("wait", &ours.wait, &theirs.wait)?;
    report.compare("free", &ours.free, &theirs.free)?;
    report.compare("u", &ours.u, &theirs.u)?;
    report.compare("out", &ours.out, &theirs.out)?;
    report.compare("fin", &ours.fin, &theirs.fin)?;
    report.compare("drafts", &ours.drafts, &theirs.drafts)?;
    report.compare("pc", &ours.pc, &theirs.pc)?;
    report.compare("ev", &ours.ev, &theirs.ev)
}

impl Replay {
    fn new(folder: &Path) -> Result<Self, LogError> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(LogError::io(&path))?;
        let case: CaseFile = serde_json::from_str(&text).map_err(|error| LogError::file(&path, error))?;
        let config = engine_config(&case).map_err(|problem| LogError::file(&path, problem))?;
        let requests: Vec<CaseRequest> = read_all(&folder.join("requests.jsonl"))?;
        let stop_at = requests.iter().filter_map(|request| Some((request.id, request.stop_at?))).collect();
        let mut engine = Engine::new(config);
        engine.pool_mut().record_events(true);
        Ok(Self {
            engine,
            log: EngineLog::new(),
            requests: requests.into_iter().map(|request| (request.id, request)).collect(),
            live: HashMap::new(),
            answers: RecordedAnswers { stop_at, ..RecordedAnswers::default() },
            num_added: 0,
        })
    }

    /// Does to the engine what the line says was done, and gives our line.
    fn play(&mut self, theirs: &StepLine) -> Result<StepLine, String> {
        for id in &theirs.add {
            self.add(number(id)?)?;
        }
        for id in &theirs.abort {
            self.abort(number(id)?);
        }
        if theirs.s.is_some() {
            if !self.engine.may_schedule() {
                return Err("a schedule was made while as many steps were in flight as may be".to_owned());
            }
            self.engine.schedule();
            self.log.scheduled(&self.engine);
        }
        if theirs.u.is_some() {
            self.answers.sampled.clone_from(&theirs.sampled);
            self.answers.drafts.clear();
            for (id, drafts) in &theirs.drafts {
                self.answers.drafts.insert(number(id)?, *drafts);
            }
            if self.log.next_needs_update() {
                self.engine.update(&mut self.answers);
            }
            self.log.applied(&self.engine);
            self.engine.pool_mut().clear_events();
            for output in self.engine.outputs().outputs.iter().filter(|output| output.finish.is_some()) {
                self.live.remove(&output.tag);
            }
        }
        Ok(self.log.take_line().unwrap_or_default())
    }

    fn add(&mut self, tag: u64) -> Result<(), String> {
        let request = self.requests.get(&tag).ok_or_else(|| format!("request {tag} is not in `requests.jsonl`"))?;
        // Adapters separate prompts that are otherwise equal.
        let salt = request.lora.map_or(0, |lora| u64::from(lora) + 1);
        let mut prompt = Prompt::new(self.engine.config().block_size, salt);
        for &(segment, len) in &request.prompt {
            prompt.push_tokens((0..len).map(|index| segment.wrapping_mul(SEGMENT_TOKENS).wrapping_add(index)));
        }
        let spec = RequestSpec {
            stop_token: Some(STOP_TOKEN),
            priority: request.prio,
            // The order of adding stands for the time of arrival.
            arrival_ns: self.num_added,
            lora: request.lora,
            ..RequestSpec::new(tag, prompt, request.max_tokens)
        };
        self.num_added += 1;
        let id = self.engine.submit(spec).map_err(|reason| format!("request {tag} cannot run here: {reason}"))?;
        if self.live.insert(tag, id).is_some() {
            return Err(format!("request {tag} is added a second time while it runs"));
        }
        self.log.added(tag);
        Ok(())
    }

    /// Aborts of requests that have ended do nothing, as in vLLM.
    fn abort(&mut self, tag: u64) {
        if let Some(id) = self.live.remove(&tag) {
            self.engine.abort(id);
            self.log.aborted(tag);
        }
    }
}

fn engine_config(case: &CaseFile) -> Result<EngineConfig, String> {
    let config = &case.config;
    let input = EngineConfigInput {
        block_size: config.block_size,
        num_gpu_blocks: config.num_blocks,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_model_len: Some(config.max_model_len),
        policy: config.policy.into(),
        enable_prefix_caching: config.prefix_caching,
        enable_chunked_prefill: config.chunked_prefill,
        long_prefill_token_threshold: config.long_prefill_token_threshold,
        adaptive_long_prefill: config.adaptive,
        watermark: config.watermark,
        scheduler_reserve_full_isl: config.reserve_full_isl,
        max_num_active_seqs: config.max_num_active_seqs,
        max_loras: config.max_loras,
        max_extra_tokens_per_step: 0,
        num_speculative_tokens: config.spec,
        async_scheduling: config.async_scheduling,
        rules: case.vllm.as_deref().map_or(Ok(SchedulerRules::V0_32), rules_of)?,
    };
    EngineConfig::new(input).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        errors.join("; ")
    })
}

/// The number of a request.
fn number(id: &Id) -> Result<u64, String> {
    match id {
        Id::Number(number) => Ok(*number),
        Id::Name(name) => Err(format!("request \"{name}\" has a name; recordings of the scheduler number them")),
    }
}

pub(super) fn read_all<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, LogError> {
    json_lines(path)?
        .map(|line| {
            let (number, value) = line?;
            serde_json::from_value(value).map_err(|error| LogError::line(path, number, error))
        })
        .collect()
}
