//! Shared by all answers of text: collecting them, and their ends.

pub(super) mod logprobs;
pub(super) mod sse;

use serde_json::Value;
use vcr_base::finish_reason::FinishReason;

use crate::generate::{Finish, Merged, Position, Span, StopCause};
use crate::server::error::ApiError;

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) spans: Vec<Span>,
    pub(super) tokens: Vec<u32>,
    pub(super) logprobs: Vec<Position>,
    pub(super) prompt_logprobs: Option<Vec<Position>>,
    pub(super) cached_tokens: u64,
    pub(super) finish: Option<Finish>,
}

impl Answer {
    /// The name of its finish reason.
    pub(super) fn reason(&self) -> Option<&'static str> {
        self.finish.as_ref().map(Finish::name)
    }

    pub(super) fn stop_reason(&self) -> Option<StopCause> {
        self.finish.as_ref()?.stop.clone()
    }

    pub(super) fn kv_transfer_params(&self) -> Option<Value> {
        let params = self.finish.as_ref().and_then(|finish| finish.kv_transfer_params.as_ref())?;
        Some(crate::generate::json_of(params))
    }
}

/// The error of an answer that failed.
pub(super) fn failure(finish: &Finish) -> Option<ApiError> {
    (finish.reason == FinishReason::Error).then(|| ApiError::of_engine(finish.error.as_ref()))
}

/// Waits for all answers.
///
/// # Errors
/// When one of them fails; the others are aborted.
pub(super) async fn gather(mut merged: Merged, count: usize) -> Result<Vec<Answer>, ApiError> {
    let mut answers = vec![Answer::default(); count];
    while let Some((index, piece)) = merged.next().await? {
        let answer = &mut answers[index];
        answer.text.push_str(&piece.text);
        answer.spans.extend(piece.spans);
        answer.tokens.extend_from_slice(&piece.tokens);
        answer.logprobs.extend(piece.logprobs);
        if piece.prompt_logprobs.is_some() {
            answer.prompt_logprobs = piece.prompt_logprobs;
        }
        answer.cached_tokens = piece.cached_tokens.unwrap_or(answer.cached_tokens);
        if let Some(error) = piece.finish.as_ref().and_then(failure) {
            return Err(error);
        }
        if piece.finish.is_some() {
            answer.finish = piece.finish;
        }
    }
    Ok(answers)
}
