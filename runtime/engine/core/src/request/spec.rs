//! A request as its driver submits it.

use vcr_policy::scheduling::Slo;

use super::StopRules;
use super::prompt::Prompt;

/// The source and the destination of a request's prompt KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvRole {
    /// The KV is computed here and dropped at the end.
    #[default]
    Local,
    /// The KV is computed here and held after the end until the driver releases it. This is the
    /// prefill side of disaggregated serving.
    Source,
    /// The KV is computed elsewhere and transferred into blocks reserved here. This is the decode side.
    Destination,
}

/// Outputs that are derived from a seed, without a token source: token
/// `i` is [`crate::seed::output_token`]`(seed, i)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnOutputs {
    /// The seed.
    pub seed: u64,
    /// A small number by which the tokens of a steady decode are counted
    /// ([`crate::plan::StepOutputs::steady_decode_groups`]).
    pub group: u32,
}

/// A request as a client submits it.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// The driver's own number for the request, which every output repeats.
    pub tag: u64,
    /// The prompt.
    pub prompt: Prompt,
    /// Maximum number of output tokens. 0 means prefill only: the request completes without output. (vLLM's API refuses
    /// this, but replayed traces contain it.)
    pub max_tokens: u32,
    /// Rules that end the request earlier, if any.
    pub stops: Option<Box<StopRules>>,
    /// Smaller is served first under the priority policy. Ranking policies receive the value.
    pub priority: i32,
    /// The tenant, for policies; 0 if unknown.
    pub tenant: u64,
    /// Latency objectives, for policies.
    pub slo: Slo,
    /// Arrival time. It breaks ties of priority, before the order of submission.
    pub arrival_ns: u64,
    /// Adapter id, if any.
    pub lora: Option<u32>,
    /// The source and the destination of the prompt's KV.
    pub kv_role: KvRole,
    /// Compute the whole prompt even if it is cached, as vLLM does for requests with prompt logprobs.
    /// The prompt is stored in the cache even so.
    pub skip_reading_prefix_cache: bool,
    /// Allows the request to join the steady decode. Step outputs then do not list its tokens, except
    /// the first and the last. The engine's token source must return the same tokens.
    pub drawn: Option<DrawnOutputs>,
    /// Whether the driver knows that the request can never run. It waits like any other request, and is refused when
    /// the scheduler reaches it ([`crate::plan::StepPlan::refused`]), as in Dynamo 1.6's mocker. Only vLLM's engine
    /// uses this.
    pub is_refused: bool,
    /// Whether further parts of the prompt will follow ([`crate::Engine::extend`]), as for a streaming input. The
    /// tokens are kept.
    pub resumable: bool,
    /// Whether the request has structured outputs. Its grammar is compiled while the request waits
    /// ([`crate::Engine::end_compilation`]).
    pub structured: bool,
}

impl RequestSpec {
    /// A request of default priority that ends only by length.
    #[must_use]
    pub fn new(tag: u64, prompt: Prompt, max_tokens: u32) -> Self {
        Self {
            tag,
            prompt,
            max_tokens,
            stops: None,
            priority: 0,
            tenant: 0,
            slo: Slo::default(),
            arrival_ns: 0,
            lora: None,
            kv_role: KvRole::Local,
            skip_reading_prefix_cache: false,
            drawn: None,
            is_refused: false,
            resumable: false,
            structured: false,
        }
    }
}
