//! Notifications about requests and engines, for metrics.

use vcr_base::finish_reason::FinishReason;
use vcr_wire::{SchedulerStats, StepOutput};

/// A request about to be sent to an engine.
#[derive(Clone, Debug)]
pub struct RequestStart {
    /// The engine's number.
    pub rank: u16,
    /// The name that users see.
    pub id: String,
    /// Seconds on the monotonic clock.
    pub arrival_s: f64,
    pub prompt_tokens: u64,
    /// Most tokens of the output.
    pub max_tokens: Option<u64>,
    /// The sampling temperature, if the request is for text.
    pub temperature: Option<f64>,
    /// The limit of nucleus sampling, if the request is for text.
    pub top_p: Option<f64>,
    /// The number of answers, if the request is for text.
    pub n: Option<u32>,
    /// Name of the adapter, if it uses one.
    pub adapter: Option<String>,
    /// Hashes of its images, audios and videos.
    pub media: Vec<String>,
}

/// A text that was searched for calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolParsing {
    /// The API, as vLLM's metrics name it.
    pub request_type: &'static str,
    /// Whether it is a part of a stream.
    pub is_streamed: bool,
    /// Whether it has a call, or a part of one.
    pub has_calls: bool,
}

/// Hears of everything that engines send. It must not wait.
pub trait EngineObserver: Send + Sync {
    /// The scheduler's statistics of a step.
    fn scheduler(&self, rank: u16, stats: &SchedulerStats);

    /// A request begins; returns its observer.
    fn request(&self, start: RequestStart) -> Box<dyn RequestObserver>;

    /// All engines sleep at this level, or are awake.
    fn sleep_level(&self, _level: Option<u32>) {}

    /// A call was refused for this reason.
    fn rejected(&self, _reason: &'static str) {}

    /// A text was searched for calls of tools.
    fn tools_parsed(&self, _parsed: ToolParsing) {}

    /// All outputs of a message have been reported.
    fn message_ended(&self, rank: u16);
}

/// Hears of one request.
pub trait RequestObserver: Send {
    /// New output. `engine_s` is the engine's and `now_s` this thread's reading of
    /// the same monotonic clock.
    fn output(&mut self, now_s: f64, engine_s: f64, output: &StepOutput<'_>);

    /// It has ended.
    fn finish(self: Box<Self>, now_s: f64, reason: FinishReason);
}
