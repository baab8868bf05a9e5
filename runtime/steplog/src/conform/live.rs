//! Captures of a live engine.
//!
//! Given what was added before each step, every step must be the same. Times
//! are not compared, but their order tells which steps were in flight together.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use vcr_core::plan::{ScheduledKind, StepPlan};
use vcr_core::{
    Engine, EngineConfig, EngineConfigInput, FinishReason, Policy, Prompt, RequestId, RequestSpec, SchedulerRules,
    TokenSource,
};

use super::live_events::EventCheck;
use super::report::{CaseReport, Difference, Mismatch};
use super::scheduler::{read_all, rules_of};
use crate::engine_log::stop_word;
use crate::error::LogError;
use crate::line::{Id, Scheduled};
use crate::live::{LiveAdded, LiveEngine, LiveLog, LiveStep, sorted};

/// Tokens from here on stand for such as the capture does not tell.
pub(super) const FIRST_UNKNOWN_TOKEN: u32 = 0xf000_0000;

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

/// What happened to the scheduler, in order.
#[derive(Clone, Copy)]
enum Act {
    Schedule(usize),
    Update(usize),
}

/// The model's answers.
#[derive(Default)]
struct RecordedTokens {
    /// By tag; what is missing is unknown.
    outputs: Vec<Vec<u32>>,
    /// Tokens that the step being applied emitted, by tag.
    emitted: HashMap<u64, u32>,
    /// Drafts that its requests carried into their next step, by tag.
    drafts: HashMap<u64, u32>,
}

impl TokenSource for RecordedTokens {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        let known = self.outputs[tag as usize].get(output_index as usize).copied();
        known.unwrap_or(FIRST_UNKNOWN_TOKEN + output_index)
    }

    fn accepted_drafts(&mut self, tag: u64, _num_drafts: u32) -> u32 {
        self.emitted.get(&tag).map_or(0, |tokens| tokens.saturating_sub(1))
    }

    fn proposed_drafts(&mut self, tag: u64, _most: u32) -> u32 {
        self.drafts.get(&tag).copied().unwrap_or(0)
    }
}

struct Replay {
    engine: Engine,
    tags: HashMap<String, u64>,
    names: Vec<String>,
    prompts: HashMap<String, Vec<u32>>,
    outputs: HashMap<String, Vec<u32>>,
    stops: HashMap<String, String>,
    live: HashMap<u64, RequestId>,
    /// Ended since the latest schedule.
    ended: Vec<u64>,
    answers: RecordedTokens,
    events: EventCheck,
}

pub(super) fn replay(folder: &Path) -> Result<CaseReport, LogError> {
    let path = folder.join("steps.jsonl");
    let log = LiveLog::read(&path)?;
    let mut report = CaseReport::new(folder);
    let mut replay = Replay::new(folder, &log, &mut report)?;
    let steps: Vec<&LiveStep> = log.steps.iter().map(|(_, step)| step).collect();
    for act in acts(&steps) {
        let (index, outcome) = match act {
            Act::Schedule(index) => (index, replay.schedule(&steps, index, &mut report)),
            Act::Update(index) => (index, replay.update(&steps, index, &mut report)),
        };
        let (line, step) = (log.steps[index].0, steps[index].step);
        match outcome {
            Ok(()) => {}
            Err(Failure::Differs(Difference { field, ours, theirs })) => {
                let plan = replay.engine.plan();
                let why = (replay.engine.num_waiting() > 0).then(|| stop_word(plan.admission_stop).to_owned());
                report.mismatch = Some(Mismatch { line, step: Some(step), field, ours, theirs, why });
                return Ok(report);
            }
            Err(Failure::Input(problem)) => return Err(LogError::line(&path, line, problem)),
        }
    }
    replay.events.note(&mut report);
    Ok(report)
}

/// Schedules and updates in the order of their times, or one after the other
/// where there are no times.
fn acts(steps: &[&LiveStep]) -> Vec<Act> {
    let mut acts: Vec<(f64, Act)> = Vec::new();
    let mut latest = f64::NEG_INFINITY;
    for (index, step) in steps.iter().enumerate() {
        let begin = step.t.first().copied().unwrap_or(latest).max(latest);
        latest = step.t.get(2).copied().unwrap_or(begin).max(begin);
        acts.push((step.t.first().copied().unwrap_or(begin), Act::Schedule(index)));
        acts.push((step.t.get(2).copied().unwrap_or(latest), Act::Update(index)));
    }
    // Stable: what has the same time stays in the order of the log.
    acts.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    acts.into_iter().map(|(_, act)| act).collect()
}

enum Failure {
    Differs(Difference),
    Input(String),
}

impl From<Difference> for Failure {
    fn from(difference: Difference) -> Self {
        Self::Differs(difference)
    }
}

impl From<String> for Failure {
    fn from(problem: String) -> Self {
        Self::Input(problem)
    }
}

impl Replay {
    fn new(folder: &Path, log: &LiveLog, report: &mut CaseReport) -> Result<Self, LogError> {
        let path = folder.join("engine.json");
        let text = std::fs::read_to_string(&path).map_err(LogError::io(&path))?;
        let file: EngineFile = serde_json::from_str(&text).map_err(|error| LogError::file(&path, error))?;
        let rules = file.vllm.as_deref().map_or(Ok(SchedulerRules::V0_32), rules_of);
        let rules = rules.map_err(|problem| LogError::file(&path, problem))?;
        let config = engine_config(&log.engine, &file.engine_args, rules)
            .map_err(|problem| LogError::line(folder.join("steps.jsonl"), 1, problem))?;
        let mut engine = Engine::new(config);
        engine.pool_mut().record_events(true);
        let prompts = read_all::<LiveRequest>(&folder.join("requests.jsonl"))?;
        let outputs = folder.join("tokens.jsonl");
        let outputs = if outputs.is_file() { read_all::<LiveTokens>(&outputs)? } else { Vec::new() };
        let stopped = log.steps.iter().flat_map(|(_, step)| step.stopped.iter().cloned());
        Ok(Self {
            engine,
            tags: HashMap::new(),
            names: Vec::new(),
            prompts: prompts.into_iter().map(|request| (request.id, request.prompt)).collect(),
            outputs: outputs.into_iter().map(|request| (request.id, request.tokens)).collect(),
            stops: stopped.collect(),
            live: HashMap::new(),
            ended: Vec::new(),
            answers: RecordedTokens::default(),
            events: EventCheck::new(folder, &file.engine_args, log.engine.block_size, report)?,
        })
    }

    fn schedule(&mut self, steps: &[&LiveStep], index: usize, report: &mut CaseReport) -> Result<(), Failure> {
        let step = steps[index];
        for added in &step.added {
            self.add(added)?;
        }
        for name in &step.aborted {
            self.abort(name);
        }
        if !self.engine.may_schedule() {
            return Err("scheduled while as many steps were in flight as may be".to_owned().into());
        }
        self.engine.schedule();
        let plan = self.engine.plan();
        report.steps += 1;
        report.compare("sched", &rows(plan, &self.names), &step.sched)?;
        report.compare("total", &plan.total_num_scheduled_tokens, &step.total)?;
        report.compare("preempted", &self.sorted_names(&plan.preempted), &sorted(&step.preempted))?;
        let ended = std::mem::take(&mut self.ended);
        let finished = self.sorted_names(&ended);
        report.compare("finished", &finished, &sorted(&step.finished))?;
        report.compare("running", &(self.engine.num_running() as u64), &step.running)?;
        report.compare("waiting", &(self.engine.num_waiting() as u64), &step.waiting)?;
        let pool = self.engine.pool();
        report.compare("free_blocks", &pool.num_free(), &step.free_blocks)?;
        let usage = f64::from(pool.num_active()) / f64::from(pool.num_usable());
        // Recorded with six decimals.
        if (usage - step.usage).abs() > 1e-6 {
            report.compare("usage", &usage, &step.usage)?;
        }
        Ok(())
    }

    fn update(&mut self, steps: &[&LiveStep], index: usize, report: &mut CaseReport) -> Result<(), Failure> {
        let step = steps[index];
        // An abort that arrives while a step runs is logged with the next one,
        // but handled before the outputs of this one.
        for name in steps.get(index + 1).into_iter().flat_map(|next| &next.aborted) {
            let is = |other: &String| other == name;
            let scheduled = step.sched.iter().any(|entry| matches!(&entry.request, Id::Name(other) if is(other)));
            if scheduled && !step.emitted.iter().any(|(other, _)| is(other)) {
                self.abort(name);
            }
        }
        self.answers.emitted = self.by_tag(&step.emitted);
        self.answers.drafts = self.next_drafts(steps, index);
        let mut emitted = Vec::new();
        let mut stopped = Vec::new();
        if !step.sched.is_empty() {
            let outputs = self.engine.update(&mut self.answers);
            for output in &outputs.outputs {
                let name = &self.names[output.tag as usize];
                emitted.push((name.clone(), output.num_tokens));
                if let Some(reason) = output.finish {
                    let reason = if reason == FinishReason::Stop { "stop" } else { "length" };
                    stopped.push((name.clone(), reason.to_owned()));
                    self.live.remove(&output.tag);
                    self.ended.push(output.tag);
                }
            }
        }
        report.compare("emitted", &emitted, &step.emitted)?;
        report.compare("stopped", &stopped, &step.stopped)?;
        report.compare("free_blocks_after", &self.engine.pool().num_free(), &step.free_blocks_after)?;
        let log = self.engine.pool().events().expect("events are recorded");
        let outcome = self.events.batch(log, report);
        self.engine.pool_mut().clear_events();
        Ok(outcome?)
    }

    fn add(&mut self, added: &LiveAdded) -> Result<(), String> {
        let tag = self.names.len() as u64;
        if self.tags.get(&added.id).is_some_and(|tag| self.live.contains_key(tag)) {
            return Err(format!("request {} is added a second time while it runs", added.id));
        }
        self.tags.insert(added.id.clone(), tag);
        self.names.push(added.id.clone());
        let caller = caller_id(&added.id, &self.prompts);
        let outputs = self.outputs.get(caller).filter(|_| caller == added.id).cloned().unwrap_or_default();
        let block_size = self.engine.config().block_size;
        let salt = added.lora.map_or(0, |lora| u64::from(lora) + 1);
        let prompt = match self.prompts.get(caller) {
            Some(tokens) if tokens.len() == added.prompt as usize => {
                Prompt::of_tokens(tokens.clone(), block_size, salt)
            }
            Some(tokens) => {
                return Err(format!(
                    "request {} reached the scheduler with {} prompt tokens, but `requests.jsonl` has {}",
                    added.id,
                    added.prompt,
                    tokens.len()
                ));
            }
            None => {
                let mut prompt = Prompt::new(block_size, salt);
                prompt.push_run(tag, 0, added.prompt);
                prompt
            }
        };
        let stopped = self.stops.get(&added.id).is_some_and(|reason| reason == "stop");
        let spec = RequestSpec {
            stop_token: outputs.last().copied().filter(|_| stopped),
            priority: added.prio,
            // Of positive numbers, larger ones have larger bits.
            arrival_ns: added.arrival.to_bits(),
            lora: added.lora,
            ..RequestSpec::new(tag, prompt, added.max_tokens)
        };
        self.answers.outputs.push(outputs);
        let id = self.engine.submit(spec).map_err(|reason| format!("request {} cannot run: {reason}", added.id))?;
        self.live.insert(tag, id);
        Ok(())
    }

    fn abort(&mut self, name: &str) {
        let Some(&tag) = self.tags.get(name) else { return };
        if let Some(id) = self.live.remove(&tag) {
            self.engine.abort(id);
            self.ended.push(tag);
        }
    }

    fn by_tag(&self, named: &[(String, u32)]) -> HashMap<u64, u32> {
        named.iter().filter_map(|(name, tokens)| Some((*self.tags.get(name)?, *tokens))).collect()
    }

    /// The drafts that each request of this step carries into its next one.
    fn next_drafts(&self, steps: &[&LiveStep], index: usize) -> HashMap<u64, u32> {
        if self.engine.config().num_speculative_tokens == 0 || self.engine.config().async_scheduling {
            return HashMap::new();
        }
        let mut drafts = BTreeMap::new();
        for step in &steps[index + 1..] {
            for entry in step.sched.iter().filter(|entry| entry.kind == 'r') {
                if let Id::Name(name) = &entry.request
                    && let Some(&tag) = self.tags.get(name)
                {
                    drafts.entry(tag).or_insert(entry.drafts);
                }
            }
            if drafts.len() >= self.live.len() {
                break;
            }
        }
        drafts.into_iter().collect()
    }

    fn sorted_names(&self, tags: &[u64]) -> Vec<String> {
        let names: Vec<String> = tags.iter().map(|&tag| self.names[tag as usize].clone()).collect();
        sorted(&names)
    }
}

/// The request that the caller knows: of `n` samples each has its index before
/// the caller's id.
fn caller_id<'a>(id: &'a str, prompts: &HashMap<String, Vec<u32>>) -> &'a str {
    if prompts.contains_key(id) {
        return id;
    }
    match id.split_once('_') {
        Some((index, rest)) if !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => id,
    }
}

fn rows(plan: &StepPlan, names: &[String]) -> Vec<Scheduled> {
    let rows = plan.scheduled.iter().map(|entry| Scheduled {
        request: Id::Name(names[entry.tag as usize].clone()),
        tokens: entry.num_scheduled_tokens,
        computed: entry.num_computed_tokens,
        kind: match entry.kind {
            ScheduledKind::New => 'n',
            ScheduledKind::Resumed => 'p',
            ScheduledKind::Running => 'r',
        },
        blocks: plan.blocks_of(entry).to_vec(),
        drafts: u32::from(entry.num_draft_tokens),
    });
    rows.collect()
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
    let input = EngineConfigInput {
        block_size: engine.block_size,
        num_gpu_blocks: engine.num_gpu_blocks,
        max_num_seqs: engine.max_num_seqs,
        max_num_batched_tokens: engine.max_num_batched_tokens,
        max_model_len: Some(engine.max_model_len),
        policy,
        enable_prefix_caching: engine.prefix_caching,
        enable_chunked_prefill: engine.chunked_prefill,
        long_prefill_token_threshold: engine.long_prefill_token_threshold,
        adaptive_long_prefill: adaptive.unwrap_or(false),
        watermark: engine.watermark,
        scheduler_reserve_full_isl: engine.reserve_full_isl,
        max_num_active_seqs: engine.max_num_active_reqs,
        max_loras: engine.max_loras.unwrap_or(0),
        max_extra_tokens_per_step: 0,
        num_speculative_tokens: engine.num_spec_tokens,
        async_scheduling: engine.async_scheduling,
        rules,
    };
    EngineConfig::new(input).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        errors.join("; ")
    })
}
