//! Inputs and outputs of policies, and the scheduling policies that ship with vcr.
//!
//! The modules declare types that the engine core, the guest host, the guest SDK and the
//! policies share: shapes of steps ([`latency`]), events of requests and preferences
//! ([`scheduling`]), requests and workers ([`routing`]), pools ([`scaling`]), faults ([`faults`])
//! and requests for tokens ([`tokens`]).
//!
//! The scheduling policies decide the admission order, the preemption victims, and the chunk sizes:
//!
//! * [`ShortestPromptFirst`]: the request with the fewest prompt tokens goes first. The longer a request waits, the
//!   shorter its prompt counts.
//! * [`FairShare`]: tenants get tokens in proportion to their weights.
//!
//! Each is an [`Algorithm`]: it receives the events of one engine's requests and returns
//! preferences. [`decide`] passes it the events of a step. Decisions are integers, so the engine
//! core and a guest decide identically.
//!
//! The crate needs no std, and without features no other crate.

#![warn(missing_docs)]
#![no_std]

extern crate alloc;

mod error;
mod fair_share;
pub mod faults;
pub mod kubernetes;
pub mod latency;
pub mod prefix_affinity;
pub mod routing;
pub mod saturation;
pub mod scaling;
pub mod scheduling;
mod shortest_prompt;
pub mod target_load;
pub mod tokens;

use alloc::vec::Vec;

use crate::scheduling::{EngineView, PolicyEvent, Preference};

pub use error::InvalidConfig;
pub use fair_share::{FairShare, FairShareConfig};
pub use shortest_prompt::{ShortestPromptFirst, ShortestPromptFirstConfig};

/// A request that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Slot of the request. Slots are dense numbers, which are reused after a request has ended.
    pub slot: u32,
    /// Arrival time in nanoseconds.
    pub arrival_ns: u64,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// The tenant; 0 if unknown.
    pub tenant: u64,
}

/// Receives a policy's preferences. In a call, each kind may be given once per slot.
pub trait PreferenceSink {
    /// Sets an admission rank. The lowest rank is admitted first; among equal ranks, the request that arrived first.
    fn admission_rank(&mut self, slot: u32, rank: i64);

    /// Sets an eviction rank. The highest rank is preempted first; among equal ranks, the request that arrived last.
    fn eviction_rank(&mut self, slot: u32, rank: i64);

    /// Sets the maximum number of tokens that the request computes in a step, at least 1.
    fn chunk_cap(&mut self, slot: u32, tokens: u32);
}

/// A policy of one engine.
///
/// Each call passes the events since the last one, oldest first, then the progress of running
/// requests, and then calls `decide`.
pub trait Algorithm {
    /// The name that users write.
    const NAME: &'static str;

    /// Records a request that arrived and waits.
    fn arrived(&mut self, request: &Arrival);

    /// Records that a waiting request was admitted, with `cached_tokens` cached tokens.
    fn admitted(&mut self, slot: u32, cached_tokens: u32);

    /// Records that a running request was preempted and waits again.
    fn preempted(&mut self, slot: u32);

    /// Records that a request has ended, with `output_tokens` output tokens.
    fn ended(&mut self, slot: u32, output_tokens: u32);

    /// Records the number of a request's output tokens so far.
    fn progressed(&mut self, slot: u32, output_tokens: u32);

    /// Passes new preferences to `say`.
    fn decide(&mut self, say: &mut impl PreferenceSink);
}

/// Lets an [`Algorithm`] decide on the events of a step, and appends its preferences.
pub fn decide(algorithm: &mut impl Algorithm, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) {
    for event in batch.events {
        match *event {
            PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, tenant, .. } => {
                algorithm.arrived(&Arrival { slot, arrival_ns, prompt_tokens, tenant });
            }
            PolicyEvent::Admitted { slot, cached_tokens } => algorithm.admitted(slot, cached_tokens),
            PolicyEvent::Preempted { slot } => algorithm.preempted(slot),
            PolicyEvent::Ended { slot, output_tokens, .. } => algorithm.ended(slot, output_tokens),
        }
    }
    for progress in batch.progress {
        algorithm.progressed(progress.slot, progress.output_tokens);
    }
    algorithm.decide(&mut List(preferences));
}

struct List<'a>(&'a mut Vec<Preference>);

impl PreferenceSink for List<'_> {
    fn admission_rank(&mut self, slot: u32, rank: i64) {
        self.0.push(Preference::AdmissionRank { slot, rank });
    }

    fn eviction_rank(&mut self, slot: u32, rank: i64) {
        self.0.push(Preference::EvictionRank { slot, rank });
    }

    fn chunk_cap(&mut self, slot: u32, tokens: u32) {
        self.0.push(Preference::ChunkCap { slot, tokens: Some(tokens) });
    }
}
