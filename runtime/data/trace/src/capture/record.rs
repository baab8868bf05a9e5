//! The lines of a capture.
//!
//! Times are whole nanoseconds. `*_at_ns`, `at_ns` and `arrival_ns` count from the start of the capture, all other
//! times of a request from the request's arrival.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::hash::{BlockHash, HashScheme};
use super::http::HttpRecord;
use super::unknown::unknown_fields;
use crate::MediaItem;

/// The name of the format in the first line.
pub const CAPTURE_FORMAT: &str = "vcr.capture";
/// Version of the schema that is written.
pub const CAPTURE_VERSION: u32 = 1;

/// One line of a capture.
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
    /// The KV cache of an engine has changed.
    Kv(KvRecord),
    /// The connection to an engine was lost.
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
    /// The producer: `record`, `guidellm`, `vllm-vcr`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Time of the start, in nanoseconds since 1970.
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
    /// Number of prompt tokens of a block hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size_tokens: Option<u32>,
    /// The scheme that computes the hashes.
    #[serde(default)]
    pub hash: HashScheme,
    /// The contents of the lines in addition to lengths and times.
    #[serde(default)]
    pub holds: Holds,
    /// One hash of model, engine and hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Paths of values in JSON bodies that were replaced in `http` lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted_json: Vec<String>,
    /// Names of headers whose values were replaced, in addition to headers with secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted_headers: Vec<String>,
    /// Names of query parameters whose values were replaced, in addition to parameters with secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted_query: Vec<String>,
    /// Other fields of the producer.
    #[serde(flatten, deserialize_with = "unknown_fields")]
    pub other: Map<String, Value>,
}

/// The contents of a capture in addition to lengths and times.
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
    /// Multimodal items with their positions. Hashes then cover an item only from its position on; see
    /// [`PromptHasher::places_media`](super::PromptHasher::places_media).
    pub mm_items: bool,
    /// HTTP exchanges with their texts.
    #[serde(skip_serializing_if = "is_false")]
    pub http: bool,
}

/// An engine and the settings that it sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineRecord {
    /// Number of the engine in the deployment.
    pub rank: u32,
    /// Time at which the engine connected, in nanoseconds.
    pub at_ns: u64,
    /// Version of vLLM that the engine reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vllm_version: Option<String>,
    /// The engine's other settings.
    pub settings: Map<String, Value>,
    /// SHA-256 of the model's name and the settings that affect results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// A request that has arrived. Its `request` line follows when it ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    /// The request's id on the wire.
    pub id: String,
    /// Time of arrival, in nanoseconds.
    pub arrival_ns: u64,
    /// Length of the prompt.
    pub prompt_tokens: u32,
}

/// A request that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// The request's id on the wire, which the frontend chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The id that the client gave the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// The API server that sent the request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub client: u32,
    /// The engine that ran the request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rank: u32,
    /// Time of arrival since the start of the capture; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrival_ns: Option<u64>,
    /// Time from the end of the session's previous turn to the arrival, if the source has this time instead of the
    /// arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub think_ns: Option<u64>,
    /// Number of requests in progress at the arrival, including this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Length of the prompt; always present.
    pub prompt_tokens: u32,
    /// Number of prompt tokens that were in the engine's prefix cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u32,
    /// Number of prompt tokens whose KV came from another engine or a KV connector.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub external_cached_tokens: u32,
    /// Chained hashes of the prompt's full blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block_hashes: Vec<BlockHash>,
    /// Hash of the whole prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_hash: Option<BlockHash>,
    /// Token ids of the prompt; only if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Length of the answer; always present.
    pub output_tokens: u32,
    /// Token ids of the answer; only if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_token_ids: Option<Vec<u32>>,
    /// Time from the arrival to the first output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ns: Option<u64>,
    /// Number of tokens of the first output, if not 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_tokens: Option<u32>,
    /// Time from each output with tokens to the next.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gap_ns: Vec<u64>,
    /// Number of tokens of each output after the first; absent if all have one token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_tokens: Option<Vec<u32>>,
    /// The mean of the gaps, if the single gaps are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_summary: Option<GapSummary>,
    /// The load during the steps of the outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepContext>,
    /// The name of a [`FinishReason`](super::FinishReason). `None` if the reason is unknown, or if the request was
    /// still in progress at the end of the capture: see [`is_over`](RequestRecord::is_over).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// The token or text that stopped the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Value>,
    /// Time from the arrival to the end, even without output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ns: Option<u64>,
    /// Time from the arrival to the admission, as the engine reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_ns: Option<u64>,
    /// Number of preemptions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub preemptions: u32,
    /// Sampling or pooling parameters that differ from their defaults.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// Priority; a smaller number is more urgent.
    #[serde(default, skip_serializing_if = "is_zero_i64")]
    pub priority: i64,
    /// Name of the adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<String>,
    /// Name of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Hashes of images, audio and video whose positions are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mm_hashes: Vec<String>,
    /// Images, audio and video, in the order of their positions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mm_items: Vec<MediaItem>,
    /// Role in a KV transfer: `prefill` or `decode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_role: Option<String>,
    /// The message of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Fields that this version does not know, unchanged.
    #[serde(flatten, deserialize_with = "unknown_fields")]
    pub other: Map<String, Value>,
}

/// Gaps for which only the mean is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapSummary {
    /// Mean of the gaps.
    pub mean_ns: u64,
    /// Number of the gaps.
    pub count: u32,
}

/// The load during the steps of a request's outputs: one value for each output with tokens, including the first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepContext {
    /// Number of running requests.
    pub running: Vec<u32>,
    /// Number of waiting requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<u32>,
    /// Number of prompt tokens that the same step computed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefill_tokens: Vec<u32>,
}

/// A step as a message of the engine describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord<S = Value> {
    /// The engine.
    pub rank: u32,
    /// Index of the step on this engine, from 0.
    pub step: u64,
    /// Time of the message.
    pub at_ns: u64,
    /// The message's timestamp from the engine's monotonic clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_ns: Option<u64>,
    /// Number of requests with output.
    pub outputs: u32,
    /// Number of output tokens.
    pub tokens: u32,
    /// Number of requests that ended.
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
    /// The number that the publisher gave the batch.
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
    /// The engine whose connection was lost; None if the loss concerns all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// A capture that ended normally.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureEnd {
    /// Time of the end, in nanoseconds.
    pub at_ns: u64,
    /// Number of requests in this file that have ended.
    pub requests: u64,
    /// Number of requests in this file that are still in progress.
    pub unfinished: u64,
    /// Whether the capture continues in the next file.
    #[serde(default)]
    pub continues: bool,
}

impl RequestRecord {
    /// Whether the request ended before the end of the capture.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.finish_reason.is_some() || self.end_ns.is_some()
    }

    /// Hashes of the prompt's images, audio and video, whether their positions are known or not.
    pub fn media_hashes(&self) -> impl Iterator<Item = &str> {
        self.mm_items.iter().map(|item| item.hash.as_str()).chain(self.mm_hashes.iter().map(String::as_str))
    }

    /// Time of each output since the arrival, in nanoseconds, with its number of tokens. Empty without output. If
    /// only the mean gap is known, every gap has this length. `None` if no times are known.
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

    /// Time from the arrival to the end, in nanoseconds. If the end was not recorded, time to the last output, if
    /// gaps are known.
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
