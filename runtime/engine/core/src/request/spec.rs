//! A request as its driver submits it.

use vcr_policy::scheduling::Slo;

use super::StopRules;
use super::prompt::Prompt;

/// Source and destination of a request's prompt KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvRole {
    /// Computed here and dropped at the end.
    #[default]
    Local,
    /// Computed here and held after the end until the driver releases it: the
    /// prefill side of a disaggregated pair.
    Source,
    /// Computed elsewhere and moved into blocks reserved here: the decode side.
    Destination,
}

/// Outputs that follow from a seed, without asking a token source: token
/// `i` is [`crate::seed::output_token`]`(seed, i)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnOutputs {
    /// The seed.
    pub seed: u64,
    /// A small number that groups the tokens of steady decode
    /// ([`crate::plan::StepOutputs::steady_decode_groups`]).
    pub group: u32,
}

/// A request as a client submits it.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// The driver's own number for the request, given back with every output.
    pub tag: u64,
    /// The prompt.
    pub prompt: Prompt,
    /// The most output tokens. 0 means prefill only: the request completes without output (vLLM's API refuses
    /// this; replayed traces contain it).
    pub max_tokens: u32,
    /// Rules that end the request earlier, if any.
    pub stops: Option<Box<StopRules>>,
    /// Smaller is served first under the priority policy; policies that rank receive it.
    pub priority: i32,
    /// Its tenant, for policies; 0 if unknown.
    pub tenant: u64,
    /// Its latency objectives, for policies.
    pub slo: Slo,
    /// Arrival time; breaks ties of priority, before order of submission.
    pub arrival_ns: u64,
    /// Adapter id, if any.
    pub lora: Option<u32>,
    /// Source and destination of the prompt's KV.
    pub kv_role: KvRole,
    /// Compute the whole prompt even if the cache holds it, as vLLM does for requests with prompt logprobs.
    /// The cache is filled anyway.
    pub skip_reading_prefix_cache: bool,
    /// Lets the request decode steadily: its tokens are then not listed in the outputs of steps, except for
    /// the first and the last. The engine's token source must return the same tokens.
    pub drawn: Option<DrawnOutputs>,
    /// Whether the driver knows that it can never run. It waits like any other, and is refused when
    /// the queue has reached it ([`crate::plan::StepPlan::refused`]): Dynamo 1.6's mocker. Engines
    /// other than vLLM's do not look at it.
    pub is_refused: bool,
    /// Whether further parts of the prompt follow ([`crate::Engine::extend`]): a streaming input. Its tokens
    /// are kept.
    pub resumable: bool,
    /// Whether its outputs follow a grammar, which is compiled while the request waits ([`crate::Engine::end_compilation`]):
    /// structured outputs.
    pub structured: bool,
}

impl RequestSpec {
    /// A request of default priority that ends by length alone.
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
