//! The scheduler against recorded decisions of the real one.
//!
//! Each case of `../shared/data/vllm-scheduler` was recorded by driving vLLM's
//! own `Scheduler` class. Every schedule must come out the same: requests in
//! order, token counts, block ids, preemptions, queues, free blocks and
//! outputs. Cases with drafts or asynchronous scheduling need modes that the
//! engine does not have; they are counted and named, not silently passed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use vcr_core::plan::{ScheduledKind, StepPlan};
use vcr_core::{
    Engine, EngineConfig, EngineConfigInput, FinishReason, KvRole, Policy, Prompt, RequestId, RequestSpec, TokenSource,
};

const STOP_TOKEN: u32 = 7;

#[derive(Deserialize)]
struct CaseFile {
    config: CaseConfig,
}

#[derive(Deserialize)]
struct CaseConfig {
    block_size: u32,
    num_blocks: u32,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
    max_model_len: u32,
    policy: String,
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

#[derive(Deserialize)]
struct CaseRequest {
    id: u64,
    prompt: Vec<(u32, u32)>,
    max_tokens: u32,
    #[serde(default)]
    prio: i32,
    lora: Option<u32>,
    stop_at: Option<u32>,
}

/// The pretended model of the recordings.
struct RecordedTokens {
    stop_at: BTreeMap<u64, u32>,
}

impl TokenSource for RecordedTokens {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        if self.stop_at.get(&tag) == Some(&output_index) {
            return STOP_TOKEN;
        }
        (100_000 + tag as u32) * 4096 + output_index
    }
}

struct Replay {
    engine: Engine,
    block_size: u32,
    requests: BTreeMap<u64, CaseRequest>,
    live: BTreeMap<u64, RequestId>,
    tokens: RecordedTokens,
}

impl Replay {
    fn new(config: &CaseConfig, requests: Vec<CaseRequest>) -> Self {
        let checked = EngineConfig::new(EngineConfigInput {
            block_size: config.block_size,
            num_gpu_blocks: config.num_blocks,
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            max_model_len: Some(config.max_model_len),
            policy: if config.policy == "priority" { Policy::Priority } else { Policy::Fcfs },
            enable_prefix_caching: config.prefix_caching,
            enable_chunked_prefill: config.chunked_prefill,
            long_prefill_token_threshold: config.long_prefill_token_threshold,
            adaptive_long_prefill: config.adaptive,
            watermark: config.watermark,
            scheduler_reserve_full_isl: config.reserve_full_isl,
            max_num_active_seqs: config.max_num_active_seqs,
            max_loras: config.max_loras,
            max_extra_tokens_per_step: 0,
        });
        let stop_at = requests.iter().filter_map(|r| Some((r.id, r.stop_at?))).collect();
        Self {
            engine: Engine::new(checked.expect("a recorded configuration is valid")),
            block_size: config.block_size,
            requests: requests.into_iter().map(|r| (r.id, r)).collect(),
            live: BTreeMap::new(),
            tokens: RecordedTokens { stop_at },
        }
    }

    fn add(&mut self, tag: u64) {
        let request = &self.requests[&tag];
        let mut prompt = Prompt::new(self.block_size, request.lora.map_or(0, |lora| u64::from(lora) + 1));
        for &(segment, len) in &request.prompt {
            prompt.push_tokens((0..len).map(|i| segment * 4096 + i));
        }
        let spec = RequestSpec {
            tag,
            prompt,
            max_tokens: request.max_tokens,
            stop_token: Some(STOP_TOKEN),
            priority: request.prio,
            arrival_ns: 0,
            lora: request.lora,
            kv_role: KvRole::Local,
        };
        let id = self.engine.submit(spec).expect("a recorded request fits");
        self.live.insert(tag, id);
    }

    /// Plays one recorded line; gives the first differing field with both sides.
    fn line(&mut self, line: &Value) -> Result<(), (&'static str, Value, Value)> {
        for tag in tags(&line["add"]) {
            self.add(tag);
        }
        for tag in tags(&line["abort"]) {
            if let Some(id) = self.live.remove(&tag) {
                self.engine.abort(id);
            }
        }
        if !line["s"].is_null() {
            let free_before_update;
            {
                let plan = self.engine.schedule();
                let (sched, tot) = (sched_json(plan), plan.total_num_scheduled_tokens);
                // The recorder wrote a set, in ascending order.
                let mut pre = plan.preempted.clone();
                pre.sort_unstable();
                free_before_update = self.engine.pool().num_free();
                same("sched", json!(sched), &line["sched"])?;
                same("tot", json!(tot), &line["tot"])?;
                same("pre", json!(pre), or_empty(&line["pre"]))?;
            }
            same("run", json!(self.engine.running_tags().collect::<Vec<_>>()), &line["run"])?;
            same("wait", json!(self.engine.num_waiting()), &line["wait"])?;
            same("free", json!(free_before_update), &line["free"])?;
        }
        if !line["u"].is_null() && self.engine.step_in_flight() {
            let outputs = self.engine.update(&mut self.tokens);
            let out: Vec<_> = outputs.outputs.iter().map(|o| json!([o.tag, o.num_tokens])).collect();
            let fin: Vec<_> = outputs
                .outputs
                .iter()
                .filter_map(|o| Some(json!([o.tag, if o.finish? == FinishReason::Stop { "stop" } else { "length" }])))
                .collect();
            for output in outputs.outputs.iter().filter(|o| o.finish.is_some()) {
                self.live.remove(&output.tag);
            }
            same("out", json!(out), or_empty(&line["out"]))?;
            same("fin", json!(fin), or_empty(&line["fin"]))?;
        }
        self.engine.pool().assert_consistent();
        Ok(())
    }
}

fn same(field: &'static str, ours: Value, theirs: &Value) -> Result<(), (&'static str, Value, Value)> {
    if ours == *theirs { Ok(()) } else { Err((field, ours, theirs.clone())) }
}

fn or_empty(value: &Value) -> &Value {
    static EMPTY: Value = Value::Array(Vec::new());
    if value.is_null() { &EMPTY } else { value }
}

fn tags(value: &Value) -> Vec<u64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

fn sched_json(plan: &StepPlan) -> Vec<Value> {
    let entries = plan.scheduled.iter();
    entries
        .map(|entry| {
            let kind = match entry.kind {
                ScheduledKind::New => "n",
                ScheduledKind::Resumed => "p",
                ScheduledKind::Running => "r",
            };
            json!([entry.tag, entry.num_scheduled_tokens, entry.num_computed_tokens, kind, plan.blocks_of(entry)])
        })
        .collect()
}

fn recordings() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/vllm-scheduler");
    if path.is_dir() {
        return Some(path);
    }
    assert!(std::env::var_os("CI").is_none(), "{} is missing", path.display());
    println!("SKIPPED: no recordings of the real scheduler at {}", path.display());
    None
}

fn lines<T: for<'de> Deserialize<'de>>(path: &Path) -> Vec<T> {
    let text = std::fs::read_to_string(path).expect("a recording is readable");
    text.lines().map(|line| serde_json::from_str(line).expect("a recording is JSON lines")).collect()
}

/// Every recorded synchronous, draft-free case is decided as vLLM decided it.
#[test]
fn recorded_schedules_are_reproduced() {
    let Some(root) = recordings() else { return };
    let mut folders: Vec<_> = std::fs::read_dir(root)
        .expect("readable")
        .map(|e| e.expect("readable").path())
        .filter(|p| p.is_dir())
        .collect();
    folders.sort();
    let (mut schedules, mut cases, mut other_modes, mut failures) = (0, 0, Vec::new(), Vec::new());
    for folder in folders {
        let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(folder.join("config.json")).expect("readable");
        let config = serde_json::from_str::<CaseFile>(&text).expect("a case configuration").config;
        if config.async_scheduling || config.spec > 0 {
            other_modes.push(name);
            continue;
        }
        let mut replay = Replay::new(&config, lines(&folder.join("requests.jsonl")));
        cases += 1;
        for line in lines::<Value>(&folder.join("steps.jsonl")) {
            schedules += usize::from(!line["s"].is_null());
            if let Err((field, ours, theirs)) = replay.line(&line) {
                failures.push(format!("{name} iteration {}: `{field}`\n   ours {ours}\n  vLLM {theirs}", line["i"]));
                break;
            }
        }
    }
    println!("{cases} cases, {schedules} schedules reproduced; other modes: {}", other_modes.join(", "));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(cases > 0, "no case was compared");
}
