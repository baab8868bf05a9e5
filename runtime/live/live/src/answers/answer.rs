//! Contents of an output message other than its tokens: stop reasons, statistics and logprobs.

use vcr_core::EngineConfig;
use vcr_wire::{EngineCoreOutput, FinishReason, LogprobRows, PrefillStats, StopReason};

use crate::answers::logprobs::{self, Position};
use crate::requests::LiveRequest;

/// The stop reason of a request, if its finish reason does not imply it.
pub(crate) fn stop_reason(finish: FinishReason, tokens: &[u32], eos_token: Option<u32>) -> Option<StopReason> {
    match finish {
        FinishReason::Stop => {
            tokens.last().filter(|token| Some(**token) != eos_token).map(|token| StopReason::Token(*token))
        }
        FinishReason::Repetition => Some(StopReason::Text("repetition_detected".to_owned())),
        _ => None,
    }
}

fn recorded_or_own_stop(request: &LiveRequest, finish: FinishReason, tokens: &[u32]) -> Option<StopReason> {
    let recorded = request.extras.as_ref().and_then(|extras| extras.recorded_end.as_ref());
    match recorded.filter(|end| end.after_tokens == request.output_tokens) {
        Some(end) => end.stop_reason.clone(),
        None => stop_reason(finish, tokens, request.eos_token),
    }
}

fn prefill_stats(request: &LiveRequest, config: &EngineConfig) -> PrefillStats {
    let prompt = request.prompt_tokens;
    let cached = request.local_cached_tokens + request.external_tokens;
    let block_size = config.block_size();
    let (full_blocks, is_caching) = (prompt / block_size * block_size, config.enable_prefix_caching());
    PrefillStats {
        num_prompt_tokens: prompt.into(),
        num_computed_tokens: prompt.saturating_sub(cached).into(),
        num_cached_tokens: cached.into(),
        num_local_cached_tokens: request.local_cached_tokens.into(),
        num_external_cached_tokens: request.external_tokens.into(),
        num_cache_creation_tokens: if is_caching { full_blocks.saturating_sub(cached).into() } else { 0 },
    }
}

/// The message with the new `tokens` of a request; it ends the request if there is a `reason`.
pub(crate) fn message(
    request: &mut LiveRequest,
    tokens: &[u32],
    reason: Option<FinishReason>,
    config: &EngineConfig,
    sends_stats: bool,
    vocab_size: u32,
) -> EngineCoreOutput {
    let mut message = EngineCoreOutput {
        request_id: String::from(&*request.id),
        new_token_ids: tokens.to_vec(),
        finish_reason: reason,
        stop_reason: reason.and_then(|reason| recorded_or_own_stop(request, reason, tokens)),
        events: (!request.events.is_empty()).then(|| std::mem::take(&mut request.events)),
        ..EngineCoreOutput::default()
    };
    if std::mem::take(&mut request.is_first_output) && sends_stats {
        message.prefill_stats = Some(prefill_stats(request, config));
    }
    add_logprobs(request, tokens, vocab_size, &mut message);
    message
}

fn add_logprobs(request: &mut LiveRequest, tokens: &[u32], vocab_size: u32, message: &mut EngineCoreOutput) {
    let Some(extras) = request.extras.as_deref_mut() else { return };
    let (seed, is_greedy) = (extras.seed, extras.is_greedy);
    let row = |index, token| Position { seed, index, token, is_greedy };
    if let Some(k) = extras.logprobs.filter(|_| !tokens.is_empty()) {
        let first = request.output_tokens - tokens.len() as u32;
        let positions = tokens.iter().zip(first..).map(|(token, index)| row(index, *token));
        message.new_logprobs = Some(logprobs::rows(positions, k, vocab_size).sampled());
    }
    // Prompt logprobs are sent once, with the first output.
    if let Some((k, prompt)) = extras.prompt_logprobs.take() {
        // The first token has no context to be predicted from.
        let positions = prompt.iter().zip(0..).skip(1).map(|(token, index)| Position {
            // Use another seed than for the output tokens, because their indices overlap.
            seed: !seed,
            index,
            token: *token,
            is_greedy: false,
        });
        let rows: LogprobRows = logprobs::rows(positions, k, vocab_size);
        message.new_prompt_logprobs_tensors = Some(rows.prompt());
    }
}
