use serde::Deserialize;
use serde_json::{Map, Value, json};
use vcr_core::latency::StepShape;
use vcr_latency::tables::{Priced, Source};

/// A step, as in a line of the input.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StepLine {
    prefill_requests: u64,
    prefill_tokens: u64,
    prefill_context_tokens: u64,
    prefill_attention_pairs: Option<u64>,
    decode_requests: u64,
    decode_tokens: Option<u64>,
    decode_context_tokens: u64,
    sampled_requests: Option<u64>,
}

impl StepLine {
    pub(super) fn new(prompts: u64, prompt_tokens: u64, decodes: u64, context_tokens: u64) -> Self {
        Self {
            prefill_requests: prompts,
            prefill_tokens: prompt_tokens,
            decode_requests: decodes,
            decode_context_tokens: context_tokens,
            ..Self::default()
        }
    }
}

impl From<StepLine> for StepShape {
    fn from(line: StepLine) -> Self {
        let requests = line.prefill_requests.max(1);
        let (length, before) = (line.prefill_tokens / requests, line.prefill_context_tokens / requests);
        let pairs = requests.saturating_mul(length.saturating_mul(before) + length.saturating_mul(length + 1) / 2);
        Self {
            prefill_requests: line.prefill_requests,
            prefill_tokens: line.prefill_tokens,
            prefill_context_tokens: line.prefill_context_tokens,
            prefill_attention_pairs: line.prefill_attention_pairs.unwrap_or(pairs),
            decode_requests: line.decode_requests,
            decode_tokens: line.decode_tokens.unwrap_or(line.decode_requests),
            decode_context_tokens: line.decode_context_tokens,
            sampled_requests: line.sampled_requests.unwrap_or(line.prefill_requests + line.decode_requests),
            ..Self::default()
        }
    }
}

/// A price in nanoseconds: the total, and by source.
pub(super) fn priced_json(priced: &Priced) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("ns".to_owned(), json!(priced.ns()));
    for source in Source::ALL {
        line.insert(format!("{}_ns", source.name()), json!(priced.of(source)));
    }
    line
}
