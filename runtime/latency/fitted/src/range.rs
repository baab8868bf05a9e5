//! The range of steps that a model was fitted on.

use serde::{Deserialize, Serialize};

use crate::terms::StepWork;

/// The largest steps among the observations, for each quantity, and the smallest batch of decodes. A step that exceeds
/// a maximum by more than a tenth is extrapolated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedRange {
    /// Smallest number of decode tokens in a step without prefill.
    pub min_decode_tokens: u64,
    /// Maximum decode tokens.
    pub max_decode_tokens: u64,
    /// Maximum summed context of decodes.
    pub max_decode_context_tokens: u64,
    /// Maximum new tokens of prefill chunks.
    pub max_prefill_tokens: u64,
    /// Maximum requests with a prefill chunk.
    pub max_prefill_requests: u64,
    /// Maximum summed context before prefill chunks.
    pub max_prefill_context_tokens: u64,
}

/// Whether `value` is at most a tenth above `max`. Small counts may differ by one.
fn within(value: u64, max: u64) -> bool {
    value <= max.saturating_add((max / 10).max(1))
}

impl FittedRange {
    /// Widens the range by a step.
    pub fn include(&mut self, work: &StepWork) {
        if work.prefill_requests == 0 && work.decode_tokens > 0 {
            let is_first = self.min_decode_tokens == 0;
            let least = if is_first { work.decode_tokens } else { self.min_decode_tokens.min(work.decode_tokens) };
            self.min_decode_tokens = least;
        }
        let pairs = [
            (&mut self.max_decode_tokens, work.decode_tokens),
            (&mut self.max_decode_context_tokens, work.decode_context_tokens),
            (&mut self.max_prefill_tokens, work.prefill_tokens),
            (&mut self.max_prefill_requests, work.prefill_requests),
            (&mut self.max_prefill_context_tokens, work.prefill_context_tokens),
        ];
        for (max, value) in pairs {
            *max = (*max).max(value);
        }
    }

    /// Whether a step is within the fitted range.
    #[must_use]
    #[inline]
    pub fn contains(&self, work: &StepWork) -> bool {
        let is_small_batch = work.prefill_requests == 0
            && work.decode_tokens > 0
            && work.decode_tokens.saturating_add((self.min_decode_tokens / 10).max(1)) < self.min_decode_tokens;
        !is_small_batch
            && within(work.decode_tokens, self.max_decode_tokens)
            && within(work.decode_context_tokens, self.max_decode_context_tokens)
            && within(work.prefill_tokens, self.max_prefill_tokens)
            && within(work.prefill_requests, self.max_prefill_requests)
            && within(work.prefill_context_tokens, self.max_prefill_context_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decodes(decode_tokens: u64) -> StepWork {
        StepWork { decode_tokens, decode_context_tokens: decode_tokens * 100, ..StepWork::default() }
    }

    #[test]
    fn steps_like_the_observed_ones_are_inside() {
        let mut range = FittedRange::default();
        range.include(&decodes(20));
        range.include(&decodes(40));
        assert_eq!((range.min_decode_tokens, range.max_decode_tokens), (20, 40));
        for (batch, is_inside) in [(17, false), (18, true), (30, true), (44, true), (45, false)] {
            assert_eq!(range.contains(&decodes(batch)), is_inside, "{batch} decodes");
        }
        let prefill = StepWork { prefill_requests: 1, prefill_tokens: 64, ..decodes(3) };
        assert!(!range.contains(&prefill), "no prefill was observed");
        range.include(&prefill);
        assert!(range.contains(&prefill), "few decodes beside a prefill are not a small batch");
    }
}
