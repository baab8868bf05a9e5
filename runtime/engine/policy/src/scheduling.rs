//! Events of requests that scheduling policies receive, and the preferences that they answer with.

use core::fmt;

/// Latency objectives of a request. All are None without an SLO and on live targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// Maximum time from arrival to the first token.
    pub ttft_ns: Option<u64>,
    /// Maximum mean gap between tokens.
    pub tpot_ns: Option<u64>,
    /// Maximum time from arrival to the last token.
    pub e2e_ns: Option<u64>,
}

/// An event of a request in an engine. Requests are identified by slot, a dense number that is reused after the
/// request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyEvent {
    /// A request arrived and waits.
    Arrived {
        /// Slot of the request.
        slot: u32,
        /// Arrival time in nanoseconds.
        arrival_ns: u64,
        /// Number of prompt tokens.
        prompt_tokens: u32,
        /// Maximum number of output tokens.
        max_tokens: u32,
        /// The priority; lower is served sooner.
        priority: i32,
        /// The adapter, if any.
        adapter: Option<u32>,
        /// The tenant; 0 if unknown.
        tenant: u64,
        /// Latency objectives.
        slo: Slo,
    },
    /// A request was admitted and runs.
    Admitted {
        /// Slot of the request.
        slot: u32,
        /// Number of tokens that come from the prefix cache or from a transfer.
        cached_tokens: u32,
    },
    /// A request was preempted and waits again. All its computed tokens are lost.
    Preempted {
        /// Slot of the request.
        slot: u32,
    },
    /// A request ended, completely or not.
    Ended {
        /// Slot of the request. It is free again, or soon will be.
        slot: u32,
        /// Number of computed tokens at the end.
        computed_tokens: u32,
        /// Number of output tokens.
        output_tokens: u32,
    },
}

/// Progress of a running request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Slot of the request.
    pub slot: u32,
    /// Number of computed tokens, including cached tokens and tokens of steps in flight.
    pub computed_tokens: u32,
    /// Number of output tokens.
    pub output_tokens: u32,
}

/// The input of one call of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineView<'a> {
    /// The time. It never decreases from call to call.
    pub now_ns: u64,
    /// Token budget of the step.
    pub budget_tokens: u32,
    /// Number of further requests that may run.
    pub running_slots: u32,
    /// Number of free KV blocks.
    pub free_blocks: u32,
    /// Total number of KV blocks that requests can use.
    pub total_blocks: u32,
    /// Tokens per KV block.
    pub block_size_tokens: u32,
    /// Events since the last call, oldest first.
    pub events: &'a [PolicyEvent],
    /// Running requests whose computed or output tokens have changed since they
    /// were last reported, in the order of the running list.
    pub progress: &'a [Progress],
}

/// A policy's preference for one request from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// The request's admission rank. The lowest rank is admitted first; among equal ranks, the request that arrived
    /// first. While a request does not fit, no request after it is admitted. The default is 0.
    AdmissionRank {
        /// Slot of the request.
        slot: u32,
        /// The rank.
        rank: i64,
    },
    /// The request's eviction rank. The highest rank is preempted first; among equal ranks, the request that
    /// arrived last. The default is 0.
    EvictionRank {
        /// Slot of the request.
        slot: u32,
        /// The rank.
        rank: i64,
    },
    /// The maximum number of tokens that the request computes in one step.
    ChunkCap {
        /// Slot of the request.
        slot: u32,
        /// At least 1. None means no limit, which is the default.
        tokens: Option<u32>,
    },
}

impl Preference {
    /// Slot of the request.
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
