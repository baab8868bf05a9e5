//! Scheduler policies for engines: who is admitted first, who is preempted, and in
//! what chunks.
//!
//! * [`ShortestPromptFirst`]: the request with the fewest prompt tokens first,
//!   and those that wait grow shorter with their age.
//! * [`FairShare`]: tenants get tokens in proportion to their weights.
//!
//! A policy is an [`Algorithm`]: it is notified of what happens to the requests of one
//! engine and says preferences. The features `native` and `guest` make of it a
//! policy of the engine core, and what a guest component answers. Decisions
//! are made in integers, so that both are the same to the last bit.
//!
//! Without features the crate has no dependency and needs no std.

#![no_std]

extern crate alloc;

mod error;
mod fair_share;
#[cfg(feature = "guest")]
pub mod guest;
#[cfg(feature = "native")]
mod native;
mod shortest_prompt;

pub use error::InvalidConfig;
pub use fair_share::{FairShare, FairShareConfig};
#[cfg(feature = "native")]
pub use native::Native;
pub use shortest_prompt::{ShortestPromptFirst, ShortestPromptFirstConfig};

/// A request that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Names the request: a dense number that goes to another one after it has
    /// ended.
    pub slot: u32,
    /// When it arrived, in nanoseconds.
    pub arrival_ns: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Its tenant; 0 where unknown.
    pub tenant: u64,
}

/// Takes what a policy prefers; a kind may be said of a slot once in a call.
pub trait PreferenceSink {
    /// The lowest rank is admitted first; of equal ones the one that arrived
    /// first.
    fn admission_rank(&mut self, slot: u32, rank: i64);

    /// The greatest rank is preempted first; of equal ones the one that arrived
    /// last.
    fn eviction_rank(&mut self, slot: u32, rank: i64);

    /// The most tokens that it computes in a step; at least 1.
    fn chunk_cap(&mut self, slot: u32, tokens: u32);
}

/// A policy of one engine.
///
/// Each call passes what happened since the last one, oldest first, then
/// how far running requests have come, and then asked to decide.
pub trait Algorithm {
    /// Its name, as users write it.
    const NAME: &'static str;

    /// A request came in and waits.
    fn arrived(&mut self, request: &Arrival);

    /// It runs; this number of tokens need not be computed.
    fn admitted(&mut self, slot: u32, cached_tokens: u32);

    /// It waits again.
    fn preempted(&mut self, slot: u32);

    /// It is over, with this number of output tokens.
    fn ended(&mut self, slot: u32, output_tokens: u32);

    /// Its output tokens so far.
    fn progressed(&mut self, slot: u32, output_tokens: u32);

    /// Says what it prefers from now on.
    fn decide(&mut self, say: &mut impl PreferenceSink);
}
