//! Where requests come from, and when.

use std::sync::Arc;

use vcr_random::Distribution;
use vcr_trace::Trace;

/// When the requests (or sessions) of a synthetic workload start.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// `count` of them, spread evenly over `over_ns` (0: all at once).
    Burst {
        /// How many.
        count: u64,
        /// Over how long.
        over_ns: u64,
    },
    /// At a fixed rate.
    Constant {
        /// Starts per second.
        rate_per_s: f64,
        /// When to stop.
        limit: Limit,
    },
    /// With exponential gaps.
    Poisson {
        /// Mean starts per second.
        rate_per_s: f64,
        /// When to stop.
        limit: Limit,
    },
    /// A new one whenever one ends, so that `concurrency` are in flight.
    ClosedLoop {
        /// How many are in flight.
        concurrency: u64,
        /// When to stop.
        limit: Limit,
    },
}

/// Where a workload ends: at whichever comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// After this many starts.
    pub count: Option<u64>,
    /// No starts at or after this long from the workload's start.
    pub duration_ns: Option<u64>,
}

/// The requests of a synthetic workload.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestMix {
    /// New prompt tokens of each turn (rounded, at least 1).
    pub prompt_tokens: Distribution,
    /// Output tokens of each turn (rounded, at least 1).
    pub output_tokens: Distribution,
    /// Leading tokens that requests share, 0 for none; part of the first turn's
    /// prompt on top of `prompt_tokens`.
    pub shared_prefix_tokens: u32,
    /// How many different shared prefixes there are.
    pub prefix_groups: u32,
    /// Turns of a session (rounded, at least 1). Each turn's prompt is the whole
    /// conversation so far and `prompt_tokens` new ones.
    pub turns: Distribution,
    /// Milliseconds between a turn's last token and the next turn.
    pub think_time_ms: Distribution,
}

/// When the answers to a trace's requests come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// When the cluster's engines give them.
    #[default]
    Simulated,
    /// As recorded, where the trace says it; such requests reach no engine.
    Recorded,
}

/// How a trace's timestamps are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TracePacing {
    /// As recorded, arrivals and delays divided by `speedup`.
    Recorded {
        /// Above 1 is faster.
        speedup: f64,
    },
    /// Arrivals are ignored: `concurrency` sessions are kept in flight, in file
    /// order. A session keeps its place between two turns. Where sessions wait
    /// for each other, all those that are linked count as one.
    ClosedLoop {
        /// How many are in flight.
        concurrency: u64,
        /// Delays are divided by it; above 1 is faster.
        speedup: f64,
    },
}

/// Where a workload's requests come from.
#[derive(Clone)]
pub enum WorkloadSource {
    /// Drawn at random.
    Synthetic {
        /// When they start.
        arrivals: Arrivals,
        /// Their lengths and sessions.
        mix: RequestMix,
    },
    /// Read from a trace.
    Trace {
        /// The trace, parsed once.
        trace: Arc<Trace>,
        /// How its timestamps are used.
        pacing: TracePacing,
        /// How often it is played at the same time, each copy with content of
        /// its own; 1 for as recorded.
        copies: u32,
        /// By how much later each copy starts than the one before it.
        stagger_ns: u64,
        /// When its answers come.
        answers: Answers,
    },
}

/// A named stream of requests.
#[derive(Clone)]
pub struct WorkloadConfig {
    /// Name in reports and assertions.
    pub name: String,
    /// Virtual time of its start.
    pub start_ns: u64,
    /// Scheduling priority of its requests (a trace's own are added to it).
    pub priority: i32,
    /// Tenant of its requests, for policies that ask; 0 for none.
    pub tenant: u64,
    /// Where the requests come from.
    pub source: WorkloadSource,
}

impl WorkloadConfig {
    /// Whether the end of a request can bring about another's arrival.
    pub(crate) fn is_chained(&self) -> bool {
        match &self.source {
            WorkloadSource::Synthetic { arrivals: Arrivals::ClosedLoop { .. }, .. } => true,
            WorkloadSource::Synthetic { mix, .. } => mix.turns != Distribution::Constant { value: 1.0 },
            WorkloadSource::Trace { pacing: TracePacing::ClosedLoop { .. }, .. } => true,
            WorkloadSource::Trace { trace, .. } if trace.has_free_turns => true,
            WorkloadSource::Trace { trace, .. } => trace.requests.iter().any(|request| request.next_turn.is_some()),
        }
    }
}
