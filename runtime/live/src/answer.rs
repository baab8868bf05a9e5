//! What an output carries besides its tokens.

use vcr_core::EngineConfig;
use vcr_wire::{EngineCoreOutput, FinishReason, LogprobRows, PrefillStats, StopReason, Tensor};

use crate::logprobs::{self, Position};
use crate::requests::LiveRequest;

/// What stopped a request, where its reason does not say it.
pub(crate) fn stop_reason(finish: FinishReason, tokens: &[u32], eos_token: Option<u32>) -> Option<StopReason> {
    match finish {
        FinishReason::Stop => {
            tokens.last().filter(|token| Some(**token) != eos_token).map(|token| StopReason::Token(*token))
        }
        FinishReason::Repetition => Some(StopReason::Text("repetition_detected".to_owned())),
        _ => None,
    }
}

/// What stopped this request: as recorded, if its answer is.
pub(crate) fn reason_of_stop(request: &LiveRequest, finish: FinishReason, tokens: &[u32]) -> Option<StopReason> {
    let recorded = request.extras.as_ref().and_then(|extras| extras.recorded_end.as_ref());
    match recorded.filter(|end| end.after_tokens == request.output_tokens) {
        Some(end) => end.stop_reason.clone(),
        None => stop_reason(finish, tokens, request.eos_token),
    }
}

pub(crate) fn prefill_stats(request: &LiveRequest, config: &EngineConfig) -> PrefillStats {
    let prompt = request.prompt_tokens;
    let cached = request.local_cached_tokens + request.external_tokens;
    let block_size = config.block_size;
    let (full_blocks, is_caching) = (prompt / block_size * block_size, config.enable_prefix_caching);
    PrefillStats {
        num_prompt_tokens: prompt.into(),
        num_computed_tokens: prompt.saturating_sub(cached).into(),
        num_cached_tokens: cached.into(),
        num_local_cached_tokens: request.local_cached_tokens.into(),
        num_external_cached_tokens: request.external_tokens.into(),
        num_cache_creation_tokens: if is_caching { full_blocks.saturating_sub(cached).into() } else { 0 },
    }
}

/// Logprobs, as far as the request wants them.
pub(crate) fn add_extras(request: &mut LiveRequest, tokens: &[u32], vocab_size: u32, message: &mut EngineCoreOutput) {
    let Some(extras) = request.extras.as_deref_mut() else { return };
    let (seed, is_greedy) = (extras.seed, extras.is_greedy);
    let row = |index, token| Position { seed, index, token, is_greedy };
    if let Some(k) = extras.logprobs.filter(|_| !tokens.is_empty()) {
        let first = request.output_tokens - tokens.len() as u32;
        let positions = tokens.iter().zip(first..).map(|(token, index)| row(index, *token));
        message.new_logprobs = Some(logprobs::rows(positions, k, vocab_size).sampled());
    }
    // Told once, with the first output.
    if let Some((k, prompt)) = extras.prompt_logprobs.take() {
        // The first token has no context to be predicted from.
        let positions = prompt.iter().zip(0..).skip(1).map(|(token, index)| Position {
            // Apart from those of outputs, and not chosen by the model.
            seed: !seed,
            index,
            token: *token,
            is_greedy: false,
        });
        let rows: LogprobRows = logprobs::rows(positions, k, vocab_size);
        message.new_prompt_logprobs_tensors = Some(rows.prompt());
    }
}

/// A vector of length 1 in a direction drawn from the seed.
pub(crate) fn embedding(seed: u64, dimensions: u32) -> Tensor {
    let mut stream = vcr_random::Stream::new(seed, "live.embedding");
    let drawn: Vec<f64> = (0..dimensions).map(|_| stream.normal()).collect();
    let length = drawn.iter().map(|number| number * number).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
    Tensor::of_f32(&[dimensions as usize], drawn.iter().map(|number| (number / length) as f32))
}
