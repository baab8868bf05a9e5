//! Notifications about requests and engines, for metrics.

use vcr_base::finish_reason::FinishReason;
use vcr_wire::{SchedulerStats, StepOutput};

/// A request about to be sent to an engine.
#[derive(Clone, Debug)]
pub struct RequestStart {
    /// The engine's rank.
    pub rank: u16,
    /// The request id that users see.
    pub id: String,
    /// Arrival in seconds on the monotonic clock.
    pub arrival_s: f64,
    pub prompt_tokens: u64,
    /// Limit of output tokens.
    pub max_tokens: Option<u64>,
    /// The sampling temperature. None for pooling requests.
    pub temperature: Option<f64>,
    /// The `top_p` of the request. None for pooling requests.
    pub top_p: Option<f64>,
    /// The number of answers. None for pooling requests.
    pub n: Option<u32>,
    /// The LoRA adapter's name, if there is one.
    pub adapter: Option<String>,
    /// Hashes of images, audios and videos.
    pub media: Vec<String>,
}

/// An answer that was searched for tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolParsing {
    /// The API's name in vLLM's metrics.
    pub request_type: &'static str,
    /// Whether the answer is part of a stream.
    pub is_streamed: bool,
    /// Whether it contains a call, or a part of one.
    pub has_calls: bool,
}

/// Gets all messages from engines. It must not block.
pub trait EngineObserver: Send + Sync {
    /// Reports the scheduler's statistics of a step.
    fn scheduler(&self, rank: u16, stats: &SchedulerStats);

    /// Reports a new request. Returns an observer for it.
    fn request(&self, start: RequestStart) -> Box<dyn RequestObserver>;

    /// Reports that all engines sleep at this level, or are awake.
    fn sleep_level(&self, _level: Option<u32>) {}

    /// Reports that a call was refused for this reason.
    fn rejected(&self, _reason: &'static str) {}

    /// Reports that an answer was searched for tool calls.
    fn tools_parsed(&self, _parsed: ToolParsing) {}

    /// Reports that all outputs of a message have been reported.
    fn message_ended(&self, rank: u16);
}

/// Gets the outputs of one request.
pub trait RequestObserver: Send {
    /// Reports an output. `engine_s` is when the engine sent it, and `now_s` when this thread got it, on the same
    /// monotonic clock.
    fn output(&mut self, now_s: f64, engine_s: f64, output: &StepOutput<'_>);

    /// Reports the end of the request.
    fn finish(self: Box<Self>, now_s: f64, reason: FinishReason);
}
