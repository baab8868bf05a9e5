//! Plays back a capture: decides which record answers which request.
//!
//! A [`CaptureIndex`] holds the positions of a capture's records and a tree of their prompts. A [`Matcher`] assigns
//! each record to one request by prompt content, so request ids invented by a frontend do not matter. Several
//! engines share a [`Playback`], which also counts mismatches.
//!
//! This module knows captures, but nothing about engines, sockets or time.

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

/// Numbers of requests by match result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests that got a record with the same prompt, or the one selected by index, id or session.
    pub exact: u64,
    /// Requests in `exact` whose record has other sampling parameters.
    #[serde(skip_serializing_if = "is_zero")]
    pub other_params: u64,
    /// Requests that got a record with the same full blocks and a different tail.
    pub same_blocks: u64,
    /// Requests that got the record with the longest common prefix.
    pub nearest: u64,
    /// Requests that got no record.
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

    /// The number of requests without a record of the same prompt.
    #[must_use]
    pub fn diverged(&self) -> u64 {
        self.same_blocks + self.nearest + self.unmatched
    }
}

/// A request without a record of the same prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Divergence {
    /// The request id in the engine protocol.
    pub id: String,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// The first block that differs from every record, from 0.
    pub first_divergent_block: u32,
    /// The first token of that block.
    pub first_divergent_token: u32,
    /// The id of the record that answered instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
}

/// The first divergences, and the number of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Divergences {
    /// The number of divergences.
    pub total: u64,
    /// The first divergences, at most [`Divergences::MOST`].
    pub first: Vec<Divergence>,
}

impl Divergences {
    /// The maximum number of divergences that are kept.
    pub const MOST: usize = 1000;

    /// Counts a divergence and keeps it if there is room.
    pub fn push(&mut self, divergence: impl FnOnce() -> Divergence) {
        self.total += 1;
        if self.first.len() < Self::MOST {
            self.first.push(divergence());
        }
    }
}
