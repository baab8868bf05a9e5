//! Events of requests, as scheduler policies see them, and the preferences that they answer.

use core::fmt;

/// Latency objectives of a request. All are unknown without an SLO and on live targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// Maximum time from arrival to first token.
    pub ttft_ns: Option<u64>,
    /// Maximum mean gap between tokens.
    pub tpot_ns: Option<u64>,
    /// Maximum time from arrival to last token.
    pub e2e_ns: Option<u64>,
}

/// An event of a request of an engine. Requests are identified by slot: the index of the engine's request, a
/// dense number that is reused after the request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyEvent {
    /// It arrived and waits.
    Arrived {
        /// The request.
        slot: u32,
        /// When it arrived, in nanoseconds.
        arrival_ns: u64,
        /// Tokens of its prompt.
        prompt_tokens: u32,
        /// Output tokens it may have.
        max_tokens: u32,
        /// Its priority; lower is sooner.
        priority: i32,
        /// Its adapter, if it has one.
        adapter: Option<u32>,
        /// Its tenant; 0 if unknown.
        tenant: u64,
        /// Its latency objectives.
        slo: Slo,
    },
    /// It was admitted and runs.
    Admitted {
        /// The request.
        slot: u32,
        /// Tokens that the prefix cache or a transfer provides.
        cached_tokens: u32,
    },
    /// It was preempted and waits again; it lost all computed tokens.
    Preempted {
        /// The request.
        slot: u32,
    },
    /// It ended, completed or not.
    Ended {
        /// The request; its slot is free again, or soon will be.
        slot: u32,
        /// Its computed tokens at the end.
        computed_tokens: u32,
        /// Its output tokens.
        output_tokens: u32,
    },
}

/// Progress of a running request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The request.
    pub slot: u32,
    /// Its computed tokens, including cached tokens and those of steps in flight.
    pub computed_tokens: u32,
    /// Its output tokens.
    pub output_tokens: u32,
}

/// The input of one call of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineView<'a> {
    /// The time; never less than in the call before.
    pub now_ns: u64,
    /// Token budget of the step.
    pub budget_tokens: u32,
    /// Number of further requests that may run.
    pub running_slots: u32,
    /// KV blocks without references.
    pub free_blocks: u32,
    /// KV blocks there are for requests.
    pub total_blocks: u32,
    /// Tokens in a KV block.
    pub block_size_tokens: u32,
    /// Events since the last call, oldest first.
    pub events: &'a [PolicyEvent],
    /// The running requests whose computed or output tokens have changed since
    /// they were last reported, in the order of the running list.
    pub progress: &'a [Progress],
}

/// A policy's preference for one request from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Its order of admission. The lowest rank is admitted first, and while that does not fit, no request
    /// behind it is admitted; among equal ranks, the request that arrived first. 0 until it is set.
    AdmissionRank {
        /// The request.
        slot: u32,
        /// The rank.
        rank: i64,
    },
    /// Its order of preemption. The highest rank is preempted first; among equal ranks, the request that
    /// arrived last. 0 until it is set.
    EvictionRank {
        /// The request.
        slot: u32,
        /// The rank.
        rank: i64,
    },
    /// The most tokens that it computes in one step.
    ChunkCap {
        /// The request.
        slot: u32,
        /// At least 1; None for no limit, which is the default.
        tokens: Option<u32>,
    },
}

impl Preference {
    /// The request.
    #[must_use]
    pub fn slot(&self) -> u32 {
        match *self {
            Self::AdmissionRank { slot, .. } | Self::EvictionRank { slot, .. } | Self::ChunkCap { slot, .. } => slot,
        }
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AdmissionRank { slot, rank } => write!(f, "admission rank {rank} of slot {slot}"),
            Self::EvictionRank { slot, rank } => write!(f, "eviction rank {rank} of slot {slot}"),
            Self::ChunkCap { slot, tokens: Some(tokens) } => write!(f, "chunk cap {tokens} of slot {slot}"),
            Self::ChunkCap { slot, tokens: None } => write!(f, "no chunk cap of slot {slot}"),
        }
    }
}
