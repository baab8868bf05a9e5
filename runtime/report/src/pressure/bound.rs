//! Limits that keep requests waiting, and what lifts them.

use serde::Serialize;
use serde_json::{Map, Value};

use super::share::Share;

/// A limit that keeps requests waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Running requests of an engine.
    Sequences,
    /// Tokens of a step.
    Tokens,
    /// KV blocks of an engine.
    Blocks,
    /// Requests that get a token in a tick.
    DecodeWidth,
    /// No limit of the engine: KV on its way, adapters, pauses.
    Other,
    /// The link between prefill and decode engines.
    Link,
    /// The router's queue before the engines.
    RouterQueue,
}

impl Bound {
    /// Its name, as in JSON with blanks.
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

    /// The limit for which a step log says that admission stopped.
    pub(super) fn of_reason(why: &str) -> Self {
        match why {
            "cap" => Self::Sequences,
            "budget" | "no chunking" | "drafts" => Self::Tokens,
            "blocks" | "preemption" => Self::Blocks,
            _ => Self::Other,
        }
    }

    /// Settings that set it: keys of step logs and of reports of ticks, the first one that an
    /// engine has.
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

    /// The setting that sets it, with its value.
    pub(super) fn setting(self, settings: &Map<String, Value>) -> Option<(&'static str, u64)> {
        self.settings().iter().find_map(|&name| Some((name, settings.get(name)?.as_u64()?)))
    }

    /// Change that lifts it, in words.
    pub(super) fn lift(self, settings: &Map<String, Value>) -> String {
        let raise = match self.setting(settings) {
            // The option of vLLM's engines has another name than the key of their logs.
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

/// A limit with the share of the time in which it was the first that kept a request waiting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundShare {
    /// The limit.
    pub bound: Bound,
    /// Share of the time.
    #[serde(flatten)]
    pub share: Share,
    /// Change that lifts it; absent if it never bound, or if that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lift: Option<String>,
}

impl BoundShare {
    pub(super) fn new(bound: Bound, share: Share, settings: &Map<String, Value>) -> Self {
        let binds = share.share.is_some_and(|share| share > 0.0);
        Self { bound, share, lift: binds.then(|| bound.lift(settings)) }
    }
}
