//! The capacity envelope in the form in which it is shown and written.

use serde::Serialize;
use serde_json::{Map, Value};

use super::saturation::Judgement;

const SCHEMA_VERSION: u32 = 1;

/// The capacity envelopes of several reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pressure {
    /// Version of the schema.
    pub schema_version: u32,
    /// The runs of all reports, in order.
    pub runs: Vec<RunPressure>,
}

impl Pressure {
    /// Makes the envelopes of these runs.
    #[must_use]
    pub fn new(runs: Vec<RunPressure>) -> Self {
        Self { schema_version: SCHEMA_VERSION, runs }
    }
}

/// The capacity envelope of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunPressure {
    /// Path of the report.
    pub report: String,
    /// Name of the run.
    pub run: String,
    /// Duration of the run, in `unit`.
    pub duration: f64,
    /// Unit of times: `ms` or `ticks`.
    pub unit: &'static str,
    /// The envelopes of the run's pools.
    pub pools: Vec<PoolPressure>,
    /// Shares of the limits before the pools and between them: the router's queue and the link.
    pub bounds: Vec<BoundShare>,
    /// Judgements of the requested detectors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub detectors: Vec<Judgement>,
}

/// The capacity envelope of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolPressure {
    /// Name of the pool.
    pub pool: String,
    /// Number of engines, or of ranks.
    pub engines: u64,
    /// Share of the engines' time in which requests waited for admission.
    pub queue_pressure: Share,
    /// Share of the engines' time in which the maximum number of requests was running.
    pub active_capacity: Share,
    /// Maximum number of waiting requests of an engine.
    pub peak_queued: Option<u64>,
    /// Maximum number of running requests of an engine.
    pub peak_active: Option<u64>,
    /// Mean share of KV blocks in use.
    pub kv_usage_mean: Share,
    /// Maximum share of an engine's KV blocks in use.
    pub kv_usage_peak: Share,
    /// Shares of the limits of the pool's engines.
    pub bounds: Vec<BoundShare>,
    /// The pool over time; empty if unknown.
    pub curve: Vec<Bucket>,
}

/// A limit that keeps requests waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Maximum number of running requests of an engine.
    Sequences,
    /// Maximum number of tokens of a step.
    Tokens,
    /// Number of KV blocks of an engine.
    Blocks,
    /// Maximum number of requests that get a token in a tick.
    DecodeWidth,
    /// A reason other than an engine's limits: a KV transfer, an adapter, a pause.
    Other,
    /// The link between prefill and decode engines.
    Link,
    /// The router's queue before the engines.
    RouterQueue,
}

impl Bound {
    /// The limit's name in JSON, with spaces instead of underscores.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequences => "sequences",
            Self::Tokens => "tokens",
            Self::Blocks => "blocks",
            Self::DecodeWidth => "decode width",
            Self::Other => "other",
            Self::Link => "link",
            Self::RouterQueue => "router queue",
        }
    }

    /// The limit behind the reason that a step log gives for the end of admission.
    pub(super) fn of_reason(why: &str) -> Self {
        match why {
            "cap" => Self::Sequences,
            "budget" | "no chunking" | "drafts" => Self::Tokens,
            "blocks" | "preemption" => Self::Blocks,
            _ => Self::Other,
        }
    }

    /// Possible keys of the setting in step logs and tick reports. If an engine has several, the first one applies.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Sequences => &["max_num_active_seqs", "max_num_seqs", "max_active"],
            Self::Tokens => {
                &["max_num_scheduled_tokens", "max_num_batched_tokens", "max_prefill_tokens", "prefill_tokens_per_tick"]
            }
            Self::Blocks => &["num_blocks", "num_pages", "total_kv_pages"],
            Self::DecodeWidth => &["decode_width"],
            Self::Other | Self::Link | Self::RouterQueue => &[],
        }
    }

    /// The key and the value of the setting that defines the limit.
    pub(super) fn setting(self, settings: &Map<String, Value>) -> Option<(&'static str, u64)> {
        self.settings().iter().find_map(|&name| Some((name, settings.get(name)?.as_u64()?)))
    }

    /// The change that lifts the limit, for people.
    pub(super) fn lift(self, settings: &Map<String, Value>) -> String {
        let raise = match self.setting(settings) {
            // vLLM's option has another name than the key of the step log.
            Some(("num_blocks", value)) => format!("raise `num_gpu_blocks` above {value}"),
            Some((name, value)) => format!("raise `{name}` above {value}"),
            None => "raise the engine's limit".to_owned(),
        };
        match self {
            Self::Sequences | Self::Tokens => format!("{raise}, or add engines"),
            Self::Blocks => format!("{raise}, shorten prompts and outputs, or add engines"),
            Self::DecodeWidth => raise,
            Self::Other => {
                "none of the engine's limits: KV on its way (see link), adapters, intervals, or a pause".to_owned()
            }
            Self::Link => "raise the link's `bandwidth`, or move fewer bytes of each token".to_owned(),
            Self::RouterQueue => "raise the router's queue threshold, or add engines".to_owned(),
        }
    }
}

/// A limit, and the share of time in which it was the first to keep a request waiting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundShare {
    /// The limit.
    pub bound: Bound,
    /// Share of the time.
    #[serde(flatten)]
    pub share: Share,
    /// The change that lifts the limit; None if it never kept a request waiting, or if no change is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lift: Option<String>,
}

impl BoundShare {
    pub(super) fn new(bound: Bound, share: Share, settings: &Map<String, Value>) -> Self {
        let binds = share.share.is_some_and(|share| share > 0.0);
        Self { bound, share, lift: binds.then(|| bound.lift(settings)) }
    }
}

const MAX_BUCKETS: usize = 12;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) queued: u64,
    pub(super) active: u64,
    pub(super) kv_usage: f64,
}

/// One interval of a curve: means and maxima over the pool's samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bucket {
    /// Start of the interval.
    pub from: f64,
    /// Mean number of waiting requests.
    pub queued_mean: f64,
    /// Maximum number of waiting requests.
    pub queued_max: u64,
    /// Mean number of running requests.
    pub active_mean: f64,
    /// Maximum number of running requests.
    pub active_max: u64,
    /// Mean share of KV blocks in use.
    pub kv_usage_mean: f64,
    /// Maximum share of KV blocks in use.
    pub kv_usage_max: f64,
}

/// Groups samples into intervals. The samples are `distance` apart and start at 0.
pub(super) fn curve(samples: &[Sample], distance: f64) -> Vec<Bucket> {
    let width = samples.len().div_ceil(MAX_BUCKETS).max(1);
    samples
        .chunks(width)
        .enumerate()
        .map(|(index, samples)| bucket(samples, (index * width) as f64 * distance))
        .collect()
}

fn bucket(samples: &[Sample], from: f64) -> Bucket {
    let mean = |of: fn(&Sample) -> f64| rounded(samples.iter().map(of).sum::<f64>() / samples.len() as f64);
    Bucket {
        from: rounded(from),
        queued_mean: mean(|sample| sample.queued as f64),
        queued_max: samples.iter().map(|sample| sample.queued).max().unwrap_or(0),
        active_mean: mean(|sample| sample.active as f64),
        active_max: samples.iter().map(|sample| sample.active).max().unwrap_or(0),
        kv_usage_mean: mean(|sample| sample.kv_usage),
        kv_usage_max: rounded(samples.iter().map(|sample| sample.kv_usage).fold(0.0, f64::max)),
    }
}

fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

/// A share of a whole, or the reason why it is unknown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The share, from 0 to 1 with six decimals; null if unknown.
    pub share: Option<f64>,
    /// The reason why the share is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

impl Share {
    pub(crate) fn of(part: f64, whole: f64) -> Self {
        if whole > 0.0 { Self::known(part / whole) } else { Self::known(0.0) }
    }

    pub(crate) fn known(share: f64) -> Self {
        Self { share: Some((share * 1e6).round() / 1e6), unknown: None }
    }

    pub(crate) fn unknown(reason: impl Into<String>) -> Self {
        Self { share: None, unknown: Some(reason.into()) }
    }
}
