//! Collects answers and reports failures, for all endpoints that generate text.

pub(super) mod logprobs;
pub(super) mod sse;

use vcr_base::finish_reason::FinishReason;

use crate::generate::{Finish, Merged, Piece};
use crate::server::error::ApiError;

pub(super) fn failure(finish: &Finish) -> Option<ApiError> {
    (finish.reason == FinishReason::Error).then(|| ApiError::of_engine(finish.error.as_ref()))
}

/// Waits for all answers.
///
/// # Errors
/// When an answer fails. The others are then aborted.
pub(super) async fn gather(mut merged: Merged, count: usize) -> Result<Vec<Piece>, ApiError> {
    let mut answers = vec![Piece::default(); count];
    while let Some((index, piece)) = merged.next().await? {
        if let Some(error) = piece.finish.as_ref().and_then(failure) {
            return Err(error);
        }
        answers[index].append(piece);
    }
    Ok(answers)
}
