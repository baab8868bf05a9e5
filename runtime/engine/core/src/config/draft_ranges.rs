//! Numbers of drafts that depend on the size of the batch (vLLM's `num_speculative_tokens_per_batch_size`).
//!
//! Source: vLLM's `vllm/v1/spec_decode/dynamic/utils.py`.

use super::{ConfigError, EngineConfigInput};

pub(crate) const NAME: &str = "num_speculative_tokens_per_batch_size";

/// Number of drafts for a range of batch sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftRange {
    /// The smallest batch size, in requests.
    pub first: u32,
    /// The largest batch size. Sizes between this one and the next range have the same number of drafts.
    pub last: u32,
    /// Drafts of each request, at most `num_speculative_tokens`.
    pub tokens: u32,
}

impl DraftRange {
    /// The ranges of vLLM's list, each `[first, last, tokens]`.
    pub fn read(entries: &[Vec<u32>]) -> Result<Vec<Self>, String> {
        let one = |entry: &Vec<u32>| match entry[..] {
            [first, last, tokens] => Ok(Self { first, last, tokens }),
            _ => Err(format!("expected `[first, last, tokens]` in `{NAME}`, got {entry:?}")),
        };
        entries.iter().map(one).collect()
    }
}

/// Number of drafts that each request of a batch of this size proposes for its next step.
pub(super) fn drafts_of(ranges: &[DraftRange], most: u32, batch_requests: u32) -> u32 {
    let place = ranges.partition_point(|range| range.first <= batch_requests);
    ranges[..place].last().map_or(most, |range| range.tokens.min(most))
}

/// Sorts the ranges, as vLLM does, and checks them.
pub(super) fn check(input: &mut EngineConfigInput, errors: &mut Vec<ConfigError>) {
    input.draft_ranges.sort_by_key(|range| range.first);
    let ranges = &input.draft_ranges;
    let Some(start) = ranges.first() else { return };
    let mut invalid = |reason: String| errors.push(ConfigError::DraftRanges { reason });
    if let Some(range) = ranges.iter().find(|range| range.first == 0 || range.first > range.last) {
        invalid(format!("expected a range of sizes from 1 on, got {} to {}", range.first, range.last));
    }
    if start.first > 1 {
        invalid(format!("expected that the first range starts at 1, got {}", start.first));
    }
    if let Some(pair) = ranges.windows(2).find(|pair| pair[1].first <= pair[0].last) {
        invalid(format!(
            "expected ranges without overlap, got one up to {} and one from {}",
            pair[0].last, pair[1].first
        ));
    }
    if input.num_speculative_tokens == 0 {
        let reason = "it says how many of them a batch has";
        errors.push(ConfigError::Needs { field: NAME, needed: "num_speculative_tokens", reason });
    }
}
