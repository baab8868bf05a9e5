//! Drawn output tokens, and their number per step.

use vcr_base::random::Stream;
use vcr_core::{TokenSource, seed};

use crate::window::Window;

/// Tokens that depend on the request alone, bursts that depend on the worker.
pub(super) struct DrawnTokens<'a> {
    pub(super) output_seeds: &'a Window<u64>,
    pub(super) acceptance: Acceptance<'a>,
}

impl TokenSource for DrawnTokens<'_> {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        // Tokens that an ended request gets from a step in flight are discarded.
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

/// Number of tokens in addition to the first one of a step.
pub(crate) struct Acceptance<'a> {
    pub(super) rates: &'a [f64],
    pub(super) stream: &'a mut Stream,
}

impl Acceptance<'_> {
    /// Number of tokens in a row that are accepted, of `most`.
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
