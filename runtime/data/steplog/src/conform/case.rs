//! Reads the files of a scheduler recording, except its steps.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use vcr_core::{
    DraftRange, EngineConfig, EngineConfigInput, EvictionPolicy, KvCacheGroup, KvCacheKind, KvConnector, KvRole,
    LoadFailures, OffloadingOptions, Policy, PromptItem, SchedulerRules,
};

use super::scope::rules_of;
use crate::error::LogError;
use crate::jsonl::{JsonLines, from_text, read_whole, unknown_key};
use crate::settings::take_options;

#[derive(Deserialize)]
struct CaseFile {
    /// The recorded vLLM release; None means 0.32.0.
    vllm: Option<String>,
    config: CaseConfig,
    batch_queue: Option<u32>,
    stats: Option<CaseStats>,
}

#[derive(Deserialize)]
struct CaseStats {
    schedules: Option<u64>,
}

#[derive(Deserialize)]
struct CaseConfig {
    policy: PolicyName,
    /// Groups of layers; empty if there is one group of full attention.
    #[serde(default)]
    groups: Vec<CaseGroup>,
    /// Number of drafts by batch size: `[first, last, tokens]`.
    #[serde(default)]
    spec_by_batch: Vec<Vec<u32>>,
    /// The KV connector, whose answers are in the lines.
    connector: Option<CaseConnector>,
    effective: Option<Map<String, Value>>,
    /// Options of the engine, and unknown keys.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Options that some recordings lack, by their log keys.
const OPTIONAL: &[&str] = &[
    "pp",
    "dcp",
    "prefill_schedule_interval",
    "mamba_cache_mode",
    "drafter",
    "disable_lookahead_block_hashes",
    "disable_chunked_mm_input",
];

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
pub(super) struct CaseRequest {
    pub(super) id: u64,
    /// Segments of the prompt: (number of the segment, number of tokens).
    pub(super) prompt: Vec<(u32, u32)>,
    pub(super) max_tokens: u32,
    pub(super) prio: i32,
    pub(super) lora: Option<u32>,
    /// Index of the output token that is the stop token.
    pub(super) stop_at: Option<u32>,
    /// Multimodal items, in the order of their positions.
    #[serde(default)]
    pub(super) media: Vec<CaseItem>,
    /// Whether the request's KV is kept for another engine after the request ended.
    #[serde(default)]
    pub(super) hold: bool,
    /// The part of the request that another engine computes.
    pub(super) remote: Option<Remote>,
    /// Further parts of a resumable request's prompt.
    #[serde(default)]
    pub(super) parts: Vec<CasePart>,
    /// Present if the request has structured outputs. The steps contain the time at which its grammar is compiled.
    pub(super) grammar: Option<IgnoredAny>,
    /// The request shares blocks only with requests that have the same text.
    pub(super) cache_salt: Option<String>,
    /// Whether the request reuses no cached blocks.
    #[serde(default)]
    pub(super) skip_reading_prefix_cache: bool,
}

/// A further part of a prompt; without `prompt`, the end of the request's input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CasePart {
    #[serde(default)]
    pub(super) prompt: Vec<(u32, u32)>,
    #[serde(default)]
    pub(super) max_tokens: u32,
    pub(super) stop_at: Option<u32>,
    /// When the part is sent. Ignored, because the steps contain this time.
    #[serde(rename = "at")]
    _at: Option<IgnoredAny>,
    #[serde(rename = "after")]
    _after: Option<IgnoredAny>,
    #[serde(rename = "gap")]
    _gap: Option<IgnoredAny>,
}

/// The part of a request that another engine computes.
#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Remote {
    /// The other engine computes the prompt (vLLM's `do_remote_prefill`).
    Prefill,
    /// The other engine continues after the end of this request (vLLM's `do_remote_decode`).
    Decode,
}

impl CaseRequest {
    pub(super) fn kv_role(&self) -> KvRole {
        match self.remote {
            Some(Remote::Prefill) => KvRole::Destination,
            Some(Remote::Decode) => KvRole::Source,
            None if self.hold => KvRole::Source,
            None => KvRole::Local,
        }
    }
}

/// A multimodal item: `[identity, offset, length]`. If embeddings replace only some of the item's placeholders,
/// runs follow, each `[start, end]` within the item.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum CaseItem {
    Whole(u64, u32, u32),
    Runs(u64, u32, u32, Vec<(u32, u32)>),
}

impl CaseItem {
    pub(super) fn item(&self) -> PromptItem {
        match self {
            Self::Whole(identity, offset, len) => PromptItem::new(*identity, *offset, *len),
            Self::Runs(identity, offset, len, runs) => {
                PromptItem::new(*identity, *offset, *len).with_embed_runs(runs.iter().map(|&(start, end)| start..end))
            }
        }
    }
}

/// The keys of a request. The keys that tell when it is added and aborted are ignored, because the steps contain
/// these times.
const REQUEST_KEYS: &[&str] = &[
    "id",
    "at",
    "prompt",
    "max_tokens",
    "prio",
    "lora",
    "stop_at",
    "abort_at",
    "after",
    "gap",
    "media",
    "hold",
    "remote",
    "parts",
    "grammar",
    "cache_salt",
    "skip_reading_prefix_cache",
];

pub(super) struct Case {
    pub(super) config: EngineConfig,
    /// Whether vLLM's second model runner was recorded. It is not told that a request was resumed.
    pub(super) hides_resumed: bool,
    /// Whether the recording lists blocks by group although there is only one group, of full attention. The core's
    /// lines have no groups then.
    pub(super) has_plain_group: bool,
    pub(super) requests: HashMap<u64, CaseRequest>,
    /// Number of schedules that the recorder counted, if known.
    pub(super) schedules: Option<u64>,
}

impl Case {
    /// Reads a recording. `change` maps the rules of the recorded release to the rules for the replay.
    pub(super) fn read(folder: &Path, change: impl FnOnce(SchedulerRules) -> SchedulerRules) -> Result<Self, LogError> {
        let path = folder.join("config.json");
        let refuse = |what: String| LogError::out_of_scope(&path, None, what);
        let mut file: CaseFile = read_whole(&path)?;
        let options = take_options(&mut file.config.rest, "config.", &[], OPTIONAL);
        let options = options.map_err(|problem| LogError::file(&path, problem))?;
        if let Some(key) = file.config.rest.keys().next() {
            return Err(refuse(format!("`config.{key}` is a setting not known here")));
        }
        let rules = file.vllm.as_deref().map_or(Ok(SchedulerRules::V0_32), rules_of).map_err(&refuse)?;
        let config = file.config.checked(options, change(rules)).map_err(|problem| LogError::file(&path, problem))?;
        let in_flight = config.max_steps_in_flight() as u32;
        if let Some(most) = file.batch_queue.filter(|most| *most != in_flight) {
            let what = format!("`batch_queue` is {most}: up to {most} steps in flight, where {in_flight} may be");
            return Err(refuse(what));
        }
        let mut hides_resumed = false;
        if let Some(effective) = &file.config.effective {
            check_effective(effective, &config).map_err(&refuse)?;
            hides_resumed = effective.get("use_v2_model_runner") == Some(&Value::Bool(true));
        }
        Ok(Self {
            has_plain_group: !file.config.groups.is_empty() && !config.has_kv_cache_groups(),
            config,
            hides_resumed,
            requests: read_requests(&folder.join("requests.jsonl"))?,
            schedules: file.stats.and_then(|stats| stats.schedules),
        })
    }
}

impl CaseConfig {
    fn checked(&self, options: EngineConfigInput, rules: SchedulerRules) -> Result<EngineConfig, String> {
        checked(EngineConfigInput {
            policy: self.policy.into(),
            draft_ranges: DraftRange::read(&self.spec_by_batch)?,
            rules,
            kv_connector: self.connector.map(KvConnector::from),
            kv_cache_groups: self.groups.iter().map(KvCacheGroup::from).collect(),
            ..options
        })
    }
}

/// Checks the settings. All problems are joined in one line.
pub(super) fn checked(input: EngineConfigInput) -> Result<EngineConfig, String> {
    EngineConfig::new(input).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        errors.join("; ")
    })
}

/// Compares the settings that the recorded scheduler derived with those derived here.
fn check_effective(effective: &Map<String, Value>, config: &EngineConfig) -> Result<(), String> {
    let drafting = config.drafting();
    let of_drafter = "it follows from the drafter";
    let as_asked = "the scheduler held another value than requested";
    let policy = match config.policy() {
        Policy::Fcfs => "fcfs",
        Policy::Priority => "priority",
        Policy::Ranked => return Err("`policy`: vLLM's scheduler has no ranks from outside".to_owned()),
    };
    let class = if config.async_scheduling() { "AsyncScheduler" } else { "Scheduler" };
    let expected = [
        ("scheduler", json!(class), "the rules known here are those of vLLM's two classes"),
        ("draft_slots", json!(drafting.draft_slots), of_drafter),
        ("num_lookahead_tokens", json!(drafting.lookahead_tokens), of_drafter),
        ("max_num_scheduled_tokens", json!(config.step_tokens()), as_asked),
        ("max_num_batched_tokens", json!(config.max_num_batched_tokens()), as_asked),
        ("max_num_running_reqs", json!(config.max_num_seqs()), as_asked),
        ("max_num_active_reqs", json!(config.max_running()), as_asked),
        ("chunked_prefill", json!(config.enable_chunked_prefill()), as_asked),
        ("policy", json!(policy), as_asked),
        ("long_prefill_token_threshold", json!(config.long_prefill_token_threshold()), as_asked),
        ("adaptive", json!(config.adaptive_long_prefill()), as_asked),
        ("watermark_blocks", json!(config.watermark_blocks()), as_asked),
        ("reserve_full_isl", json!(config.scheduler_reserve_full_isl()), as_asked),
        ("prefix_caching", json!(config.enable_prefix_caching()), as_asked),
        ("num_spec_tokens", json!(config.num_speculative_tokens()), as_asked),
        ("max_model_len", json!(config.max_model_len()), as_asked),
        ("free_blocks", json!(config.num_gpu_blocks() - 1), "all blocks but the null block are free at the start"),
    ];
    let mut expected = expected.to_vec();
    let own_interval = "it follows from the interval and the release";
    expected.push(("local_prefill_interval", json!(config.own_prefill_interval()), own_interval));
    // Only recordings with multimodal items have these settings.
    expected.extend([
        ("encoder_budget", json!(config.encoder_budget_embeds()), as_asked),
        ("encoder_cache_size", json!(config.encoder_cache_embeds()), as_asked),
        ("disable_chunked_mm_input", json!(config.disable_chunked_mm_input()), as_asked),
    ]);
    expected.push(("decode_stagger", json!(config.decode_stagger()), "it follows from the stages of the pipeline"));
    // Settings of engines with groups, several ranks or several steps in flight.
    expected.extend(expected_of_blocks(config));
    expected.push(expected_coordinator(config));
    if config.drafter().has_kv() {
        expected.extend(expected_of_drafter(config));
    }
    if let Some(connector) = config.kv_connector() {
        let recomputes = connector.load_failures == LoadFailures::Recompute;
        expected.extend([
            ("defer_block_free", json!(config.defers_frees()), "it follows from the role and the steps in flight"),
            ("requires_kv_delivery", json!(connector.requires_delivery), as_asked),
            ("recompute_kv_load_failures", json!(recomputes), as_asked),
        ]);
    }
    for (key, ours, why) in &expected {
        if let Some(theirs) = effective.get(*key).filter(|theirs| *theirs != ours) {
            return Err(format!("`effective.{key}` is {theirs}, where {ours} is expected: {why}"));
        }
    }
    let is_known = |key: &str| key == "use_v2_model_runner" || expected.iter().any(|(known, ..)| *known == key);
    match effective.keys().find(|key| !is_known(key)) {
        Some(key) => Err(format!("`effective.{key}` is a setting not known here")),
        None => Ok(()),
    }
}

/// The name of vLLM's class that looks up prefixes in groups of layers.
fn expected_coordinator(config: &EngineConfig) -> (&'static str, Value, &'static str) {
    let coordinator = match (config.enable_prefix_caching(), config.kv_cache_groups().len()) {
        (false, _) => "KVCacheCoordinatorNoPrefixCache",
        (true, 0 | 1) => "UnitaryKVCacheCoordinator",
        (true, _) => "HybridKVCacheCoordinator",
    };
    ("coordinator", json!(coordinator), "it follows from the groups")
}

/// Settings that a scheduler derives from the block sizes and the number of steps in flight.
fn expected_of_blocks(config: &EngineConfig) -> [(&'static str, Value, &'static str); 3] {
    let in_flight = u64::from(config.max_num_batched_tokens()) * config.max_steps_in_flight() as u64;
    let scheduled = scheduler_block_size(config);
    [
        ("scheduler_block_size", json!(scheduled), "the least common multiple of all block sizes"),
        ("hash_block_size", json!(config.block_size()), "`block_size` is the length that is hashed"),
        ("max_in_flight_tokens", json!(in_flight), "the budget of as many steps as may be in flight"),
    ]
}

/// Settings that a scheduler derives from a drafter that has its own KV.
fn expected_of_drafter(config: &EngineConfig) -> [(&'static str, Value, &'static str); 3] {
    let drafting = config.drafting();
    let why = "it follows from the drafter";
    [
        ("num_prefill_lookahead", json!(drafting.prefill_lookahead_tokens), why),
        ("num_hash_lookahead_tokens", json!(drafting.hash_lookahead_tokens), why),
        ("dropping_groups", json!(config.groups_that_drop_a_block()), why),
    ]
}

/// The number of tokens to which a scheduler rounds: the least common multiple of all block sizes.
pub(super) fn scheduler_block_size(config: &EngineConfig) -> u64 {
    // Without prefix caching, one state belongs to a whole sequence.
    let has_long_blocks = config.keeps_states() && !config.enable_prefix_caching();
    let (aligned, longest) = (config.aligned_tokens().into(), config.max_model_len().into());
    if has_long_blocks { aligned / greatest_common_divisor(aligned, longest) * longest } else { aligned }
}

pub(super) fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    divisor
}

fn read_requests(path: &Path) -> Result<HashMap<u64, CaseRequest>, LogError> {
    let lines = JsonLines::open(path)?;
    let path = lines.path().to_owned();
    let mut requests: HashMap<u64, CaseRequest> = HashMap::new();
    for line in lines {
        let (number, text) = line?;
        let wrong = |problem: String| LogError::line(&path, number, problem);
        let request: CaseRequest = from_text(&text).map_err(wrong)?;
        if let Some(key) = unknown_key(&text, REQUEST_KEYS).map_err(wrong)? {
            let what = format!("`{key}` of request {} is not known here", request.id);
            return Err(LogError::out_of_scope(&path, Some(number), what));
        }
        if let Some(twice) = requests.insert(request.id, request) {
            return Err(wrong(format!("`id`: request {} occurs twice", twice.id)));
        }
    }
    Ok(requests)
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum CaseGroup {
    Full {
        block_size: u32,
        #[serde(default)]
        drafter: bool,
    },
    Mla {
        block_size: u32,
        #[serde(default)]
        drafter: bool,
    },
    SlidingWindow {
        block_size: u32,
        window: u32,
        #[serde(default)]
        drafter: bool,
    },
    ChunkedLocal {
        block_size: u32,
        window: u32,
    },
    CrossAttention {
        block_size: u32,
    },
    Mamba {
        block_size: u32,
        checkpoint: Option<u32>,
    },
}

impl From<&CaseGroup> for KvCacheGroup {
    fn from(group: &CaseGroup) -> Self {
        let (kind, block_size, has_drafter) = match *group {
            CaseGroup::Full { block_size, drafter } => (KvCacheKind::FullAttention, block_size, drafter),
            CaseGroup::Mla { block_size, drafter } => (KvCacheKind::LatentAttention, block_size, drafter),
            CaseGroup::SlidingWindow { block_size, window, drafter } => {
                (KvCacheKind::SlidingWindow { window_tokens: window }, block_size, drafter)
            }
            CaseGroup::ChunkedLocal { block_size, window } => {
                (KvCacheKind::ChunkedLocal { chunk_tokens: window }, block_size, false)
            }
            CaseGroup::CrossAttention { block_size } => (KvCacheKind::CrossAttention, block_size, false),
            CaseGroup::Mamba { block_size, checkpoint } => {
                (KvCacheKind::Mamba { checkpoint_tokens: checkpoint }, block_size, false)
            }
        };
        Self { kind, block_size: Some(block_size), has_drafter }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseConnector {
    /// The kind decides where the connector's answers come from: the lines, the requests, or the stored blocks
    /// (offloading).
    kind: ConnectorKind,
    role: ConnectorRole,
    load_failures: FailurePolicy,
    /// Whether KV may be handed over only for delivered tokens.
    delivery: bool,
    /// Maximum number of chunks that the offloading connector keeps.
    chunks: Option<u32>,
    eviction_policy: Option<CasePolicy>,
    store_threshold: Option<u32>,
    max_tracker_size: Option<u32>,
    offload_prompt_only: Option<bool>,
    blocks_per_chunk: Option<u32>,
}

/// vLLM's `eviction_policy`.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CasePolicy {
    Lru,
    Arc,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ConnectorKind {
    Scripted,
    Nixl,
    Offloading,
}

/// vLLM's `kv_role`.
#[derive(Clone, Copy, PartialEq, Deserialize)]
enum ConnectorRole {
    #[serde(rename = "kv_producer")]
    Producer,
    #[serde(rename = "kv_consumer")]
    Consumer,
    #[serde(rename = "kv_both")]
    Both,
}

/// vLLM's `kv_load_failure_policy`.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FailurePolicy {
    Recompute,
    Fail,
}

impl CaseConnector {
    fn offloading(self) -> OffloadingOptions {
        let own = OffloadingOptions::default();
        OffloadingOptions {
            chunks: self.chunks.unwrap_or(own.chunks),
            blocks_per_chunk: self.blocks_per_chunk.unwrap_or(own.blocks_per_chunk),
            eviction_policy: match self.eviction_policy {
                Some(CasePolicy::Arc) => EvictionPolicy::Arc,
                Some(CasePolicy::Lru) | None => EvictionPolicy::Lru,
            },
            store_threshold: self.store_threshold.unwrap_or(own.store_threshold),
            max_tracker_size: self.max_tracker_size.unwrap_or(own.max_tracker_size),
            offload_prompt_only: self.offload_prompt_only.unwrap_or(own.offload_prompt_only),
        }
    }
}

impl From<CaseConnector> for KvConnector {
    fn from(connector: CaseConnector) -> Self {
        Self {
            is_consumer: connector.role != ConnectorRole::Producer,
            requires_delivery: connector.delivery,
            load_failures: match connector.load_failures {
                FailurePolicy::Recompute => LoadFailures::Recompute,
                FailurePolicy::Fail => LoadFailures::Fail,
            },
            is_nixl: connector.kind == ConnectorKind::Nixl,
            offloading: (connector.kind == ConnectorKind::Offloading).then(|| connector.offloading()),
        }
    }
}
