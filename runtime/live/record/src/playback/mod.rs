//! Playing back a capture: which record answers which request.
//!
//! A [`CaptureIndex`] holds the records of a capture: their places in the file, and a tree of their
//! prompts. A [`Matcher`] assigns them to requests, each once, by the content of their prompts, so
//! the names invented by a frontend do not matter. A [`Playback`] is shared by several engines and
//! counts mismatches.
//!
//! This crate knows captures. It knows nothing of engines, sockets or time.

mod capture_index;
pub mod http;
mod index;
mod matcher;
mod params;
mod session;

pub use capture_index::{CaptureIndex, CaptureIndexOptions, Expectation, PlaybackError};
pub use index::Row;
pub use matcher::{Lookup, Match, MatchBy, Matcher, Unmatched};
pub use session::{Answer, Playback, PlaybackReport};

use serde::Serialize;

/// Numbers of requests by the way they were matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests that got the record of their very prompt, or the one they named.
    pub exact: u64,
    /// The number of these whose record has other sampling parameters.
    #[serde(skip_serializing_if = "is_zero")]
    pub other_params: u64,
    /// Requests that got a record with the same full blocks and another tail.
    pub same_blocks: u64,
    /// Requests that got the record that shares most of their prompt.
    pub nearest: u64,
    /// Requests that got none.
    pub unmatched: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Counts {
    /// Counts a request.
    pub fn add(&mut self, found: Match) {
        self.other_params += u64::from(matches!(found, Match::OtherParams(_)));
        *match found {
            Match::Exact(_) | Match::OtherParams(_) => &mut self.exact,
            Match::SameBlocks(_) => &mut self.same_blocks,
            Match::Nearest { .. } => &mut self.nearest,
            Match::None { .. } => &mut self.unmatched,
        } += 1;
    }

    /// Requests without a record of the same prompt.
    #[must_use]
    pub fn diverged(&self) -> u64 {
        self.same_blocks + self.nearest + self.unmatched
    }
}

/// A request without a record of the same prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Divergence {
    /// Its name on the wire.
    pub id: String,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// The first block that differs from every record, from 0.
    pub first_divergent_block: u32,
    /// The first token of that block.
    pub first_divergent_token: u32,
    /// The record it got instead, by its name in the capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
}

/// The first of them; all are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Divergences {
    /// Their number.
    pub total: u64,
    /// The first of them, at most [`Divergences::MOST`].
    pub first: Vec<Divergence>,
}

impl Divergences {
    /// As many are kept.
    pub const MOST: usize = 1000;

    /// Keeps one, if there is room for it.
    pub fn push(&mut self, divergence: impl FnOnce() -> Divergence) {
        self.total += 1;
        if self.first.len() < Self::MOST {
            self.first.push(divergence());
        }
    }
}
