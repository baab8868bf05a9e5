//! The lines of a capture.
//!
//! Times are whole nanoseconds: `*_at_ns` and `arrival_ns` count from the start of the capture, all other
//! times of a request from its arrival.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::hash::{BlockHash, HashScheme};
use super::http::HttpRecord;
use super::unknown::unknown_fields;
use crate::MediaItem;

/// The format's name, in the first line.
pub const CAPTURE_FORMAT: &str = "vcr.capture";
/// The version of the schema that is written.
pub const CAPTURE_VERSION: u32 = 1;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CaptureLine {
    /// The first line of every file.
    Meta(Box<CaptureMeta>),
    /// An engine has connected.
    Engine(Box<EngineRecord>),
    /// A request has arrived.
    Arrival(Arrival),
    /// A request has ended.
    Request(Box<RequestRecord>),
    /// A step has ended.
    Step(Box<StepRecord>),
    /// An exchange over HTTP has ended.
    Http(Box<HttpRecord>),
    /// An engine's cache has changed.
    Kv(KvRecord),
    /// The connection was lost.
    Break(Break),
    /// The last line of a capture that ended normally.
    End(CaptureEnd),
}

/// The meta line of a capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureMeta {
    /// [`CAPTURE_FORMAT`].
    pub format: String,
    /// Version of the schema: [`CAPTURE_VERSION`].
    pub version: u32,
    /// Index of this file in a rotated capture, from 0.
    #[serde(default)]
    pub part: u32,
    /// Its producer: `record`, `guidellm`, `vllm-vcr`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its start, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_unix_ns: Option<u64>,
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The accelerator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Version of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vllm_version: Option<String>,
    /// Prompt tokens that one hash covers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size_tokens: Option<u32>,
    /// The scheme of the hashes.
    #[serde(default)]
    pub hash: HashScheme,
    /// The contents of the lines beyond shapes and times.
    #[serde(default)]
    pub holds: Holds,
    /// Model, engine and hardware as one hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Paths in JSON bodies whose values were replaced in `http` lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted_json: Vec<String>,
    /// Names of headers with replaced values, in addition to those of secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted_headers: Vec<String>,
    /// Names in queries with replaced values, in addition to those of secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted_query: Vec<String>,
    /// Other fields of its producer.
    #[serde(flatten, deserialize_with = "unknown_fields")]
    pub other: Map<String, Value>,
}

/// The contents of a capture beyond shapes and times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holds {
    /// The tokens of answers.
    pub output_tokens: bool,
    /// The tokens of prompts.
    pub prompt_tokens: bool,
    /// Steps.
    pub steps: bool,
    /// KV events: blocks stored in and removed from caches.
    pub kv_events: bool,
    /// Multimodal items with their places, which hashes then include; see
    /// [`PromptHasher::places_media`](super::PromptHasher::places_media).
    pub mm_items: bool,
    /// Exchanges over HTTP, with their texts.
    #[serde(skip_serializing_if = "is_false")]
    pub http: bool,
}

/// An engine with the settings that it sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineRecord {
    /// Its number in the deployment.
    pub rank: u32,
    /// Time at which it connected, in nanoseconds.
    pub at_ns: u64,
    /// Version of vLLM it reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vllm_version: Option<String>,
    /// Its other settings.
    pub settings: Map<String, Value>,
    /// SHA-256 over the model's name and the settings that affect results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// A request that has arrived; its `request` line follows when it ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    /// Its id on the wire.
    pub id: String,
    /// Time of its arrival, in nanoseconds.
    pub arrival_ns: u64,
    /// Length of its prompt.
    pub prompt_tokens: u32,
}

/// A request that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// Its id on the wire, chosen by the frontend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The id that its sender gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// The API server it came from.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub client: u32,
    /// The engine it ran on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rank: u32,
    /// Its arrival since the start of the capture; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrival_ns: Option<u64>,
    /// Time from the end of the previous turn in its session to its arrival, if the source has this instead
    /// of the arrival itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub think_ns: Option<u64>,
    /// Requests in progress at its arrival, itself included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Length of the prompt; always given.
    pub prompt_tokens: u32,
    /// Prompt tokens that were in the engine's cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u32,
    /// Prompt tokens whose KV came from another engine or a KV connector.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub external_cached_tokens: u32,
    /// Chained hashes of the prompt's full blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block_hashes: Vec<BlockHash>,
    /// Hash of the whole prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_hash: Option<BlockHash>,
    /// The prompt; only if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Length of the answer; always given.
    pub output_tokens: u32,
    /// The answer; only if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_token_ids: Option<Vec<u32>>,
    /// Time from its arrival to its first output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ns: Option<u64>,
    /// Tokens of the first output, if not 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_tokens: Option<u32>,
    /// Time from each output with tokens to the next one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gap_ns: Vec<u64>,
    /// Tokens of the outputs after the first; absent if each has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_tokens: Option<Vec<u32>>,
    /// The mean of the gaps, if single gaps are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_summary: Option<GapSummary>,
    /// The load of the steps of its outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepContext>,
    /// The name of a [`FinishReason`](super::FinishReason); `None` if it is unknown, or if the request had
    /// not ended when the capture ended: see [`is_over`](RequestRecord::is_over).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// The token or text that stopped it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Value>,
    /// Time from its arrival to its end, also if it has no tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ns: Option<u64>,
    /// Time from its arrival to its admission, as the engine reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_ns: Option<u64>,
    /// Number of its preemptions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub preemptions: u32,
    /// Its sampling or pooling parameters, without those at their defaults.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// Its priority; smaller is more urgent.
    #[serde(default, skip_serializing_if = "is_zero_i64")]
    pub priority: i64,
    /// The adapter it used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<String>,
    /// The session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Hashes of its images, audio and video, if their places are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mm_hashes: Vec<String>,
    /// Its images, audio and video, in the order of their places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mm_items: Vec<MediaItem>,
    /// Its role in a KV transfer: `prefill` or `decode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_role: Option<String>,
    /// The message of its failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Fields that this version does not know, kept as they are.
    #[serde(flatten, deserialize_with = "unknown_fields")]
    pub other: Map<String, Value>,
}

/// Gaps known only by their mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapSummary {
    /// Their mean.
    pub mean_ns: u64,
    /// Their number.
    pub count: u32,
}

/// The load of the steps of a request's outputs: one item for each output
/// with tokens, the first included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepContext {
    /// Requests that were running.
    pub running: Vec<u32>,
    /// Requests that were waiting.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<u32>,
    /// Prompt tokens that were computed in the same step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefill_tokens: Vec<u32>,
}

/// A step, as a message of the engine shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord<S = Value> {
    /// The engine.
    pub rank: u32,
    /// Index of the step on that engine, from 0.
    pub step: u64,
    /// Time of its message.
    pub at_ns: u64,
    /// The message's timestamp on the engine's own monotonic clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_ns: Option<u64>,
    /// Requests with output.
    pub outputs: u32,
    /// Output tokens.
    pub tokens: u32,
    /// Requests that ended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub finished: u32,
    /// The scheduler's statistics as the engine sent them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<S>,
}

/// A batch of KV events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KvRecord {
    /// The engine.
    pub rank: u32,
    /// Time of the batch.
    pub at_ns: u64,
    /// The publisher's number of the batch.
    pub sequence: u64,
    /// The events as the engine sent them.
    pub events: Value,
}

/// A loss of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Break {
    /// Time of the break, in nanoseconds.
    pub at_ns: u64,
    /// The message.
    pub reason: String,
    /// The engine concerned, if only one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// A capture that ended normally.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureEnd {
    /// Time of the end, in nanoseconds.
    pub at_ns: u64,
    /// Requests that have ended, in this file.
    pub requests: u64,
    /// Requests still in progress, in this file.
    pub unfinished: u64,
    /// Whether the capture continues in the next file.
    #[serde(default)]
    pub continues: bool,
}

impl RequestRecord {
    /// Whether it ended while the capture ran.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.finish_reason.is_some() || self.end_ns.is_some()
    }

    /// Hashes of the images, audio and video in its prompt, whether their places are known or not.
    pub fn media_hashes(&self) -> impl Iterator<Item = &str> {
        self.mm_items.iter().map(|item| item.hash.as_str()).chain(self.mm_hashes.iter().map(String::as_str))
    }

    /// Time of each output in nanoseconds since the arrival, with its tokens; empty if there is no output. If
    /// only the mean of the gaps is known, every gap has this length. `None` if no times are known.
    #[must_use]
    pub fn output_times(&self) -> Option<Vec<(u64, u32)>> {
        let mut after_ns = self.ttft_ns.or(self.end_ns)?;
        let mut times = Vec::with_capacity(self.gap_ns.len() + 1);
        if self.output_tokens == 0 {
            return Some(times);
        }
        times.push((after_ns, self.first_tokens.unwrap_or(1)));
        for (index, gap_ns) in self.gap_ns.iter().enumerate() {
            after_ns = after_ns.saturating_add(*gap_ns);
            let tokens = self.gap_tokens.as_ref().and_then(|tokens| tokens.get(index));
            times.push((after_ns, tokens.copied().unwrap_or(1)));
        }
        if let Some(summary) = self.gap_summary.filter(|_| self.gap_ns.is_empty()) {
            times.extend((0..summary.count).map(|_| {
                after_ns = after_ns.saturating_add(summary.mean_ns);
                (after_ns, 1)
            }));
        }
        Some(times)
    }

    /// Nanoseconds from its arrival to its end: as recorded, or else to the last output if gaps are known.
    #[must_use]
    pub fn duration_ns(&self) -> Option<u64> {
        self.end_ns.or_else(|| {
            let gaps_ns: u64 = self.gap_ns.iter().fold(0, |sum, gap_ns| sum.saturating_add(*gap_ns));
            let summary = self.gap_summary.unwrap_or_default();
            let known_ns = gaps_ns.saturating_add(summary.mean_ns.saturating_mul(u64::from(summary.count)));
            Some(self.ttft_ns?.saturating_add(known_ns))
        })
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_i64(number: &i64) -> bool {
    *number == 0
}
