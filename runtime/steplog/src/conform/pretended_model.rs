//! The model of a recording of the scheduler: its answers are those of the line being replayed.

use std::collections::{BTreeMap, HashMap};

use vcr_core::TokenSource;

/// The token that the pretended model returns where a request is to stop.
pub(super) const STOP_TOKEN: u32 = 7;
/// Tokens of one segment are numbered from its number times this.
pub(super) const SEGMENT_TOKENS: u32 = 4096;
/// The segment of a request's outputs is its id plus this.
const FIRST_OUTPUT_SEGMENT: u32 = 100_000;

/// The model's answers of the line being replayed.
#[derive(Default)]
pub(super) struct RecordedAnswers {
    pub(super) stop_at: HashMap<u64, u32>,
    pub(super) sampled: BTreeMap<u64, u32>,
    pub(super) drafts: HashMap<u64, u32>,
    /// Of these drafts, or of those that are verified, those that do not fit a grammar.
    pub(super) invalid: HashMap<u64, u32>,
}

impl TokenSource for RecordedAnswers {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        if self.stop_at.get(&tag) == Some(&output_index) {
            return STOP_TOKEN;
        }
        let segment = FIRST_OUTPUT_SEGMENT.wrapping_add(tag as u32);
        segment.wrapping_mul(SEGMENT_TOKENS).wrapping_add(output_index)
    }

    fn accepted_drafts(&mut self, tag: u64, _num_drafts: u32) -> u32 {
        self.sampled.get(&tag).map_or(0, |tokens| tokens.saturating_sub(1))
    }

    fn valid_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        num_drafts.saturating_sub(self.invalid.get(&tag).copied().unwrap_or(0))
    }

    fn proposed_drafts(&mut self, tag: u64, _most: u32) -> u32 {
        self.drafts.get(&tag).copied().unwrap_or(0)
    }
}
