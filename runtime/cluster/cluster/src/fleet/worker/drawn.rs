//! Drawn output tokens, and the number of accepted tokens per step.

use vcr_base::random::Stream;
use vcr_core::{TokenSource, seed};

use crate::window::Window;

/// A source of drawn tokens: a token depends on the request only, the number of tokens per step on the worker.
pub(super) struct DrawnTokens<'a> {
    pub(super) output_seeds: &'a Window<u64>,
    pub(super) acceptance: Acceptance<'a>,
}

impl TokenSource for DrawnTokens<'_> {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        // A step in flight may give tokens to a request that has ended; they are discarded.
        let output_seed = self.output_seeds.get(tag).copied().unwrap_or_default();
        seed::output_token(output_seed, output_index)
    }

    fn extra_tokens(&mut self, _tag: u64, max_extra: u32) -> u32 {
        self.acceptance.accepted(max_extra)
    }

    fn accepted_drafts(&mut self, _tag: u64, num_drafts: u32) -> u32 {
        self.acceptance.accepted(num_drafts)
    }
}

/// Draws the number of tokens in addition to a step's first one.
pub(crate) struct Acceptance<'a> {
    pub(super) rates: &'a [f64],
    pub(super) stream: &'a mut Stream,
}

impl Acceptance<'_> {
    /// Draws how many of `most` consecutive tokens are accepted.
    pub(crate) fn accepted(&mut self, most: u32) -> u32 {
        let mut accepted = 0;
        while accepted < most {
            let rate = self.rates.get(accepted as usize).copied().unwrap_or(0.0);
            if self.stream.unit() >= rate {
                break;
            }
            accepted += 1;
        }
        accepted
    }
}
