//! What a run consists of: pools, links, workloads, faults. All plain values.

use std::sync::Arc;

use vcr_core::fault::{FailureInjector, FaultError};
use vcr_core::latency::{LatencyError, LatencyModel};
use vcr_core::policy::{PolicyError, SchedulingPolicy};
use vcr_core::scale::{Autoscaler, ScaleError};
use vcr_core::tokens::{BatchTokenSource, TokenError};
use vcr_core::{EngineKind, Seat};
use vcr_random::Distribution;
use vcr_trace::Trace;

use crate::conditional::ConditionalConfig;
use crate::router::RouterConfig;

/// Makes the latency model of one engine from its seat.
pub type LatencyFactory = Arc<dyn Fn(&Seat<'_>) -> Result<Box<dyn LatencyModel>, LatencyError> + Send + Sync>;

/// Makes the scheduling policy of one engine from its seat.
pub type PolicyFactory = Arc<dyn Fn(&Seat<'_>) -> Result<Box<dyn SchedulingPolicy>, PolicyError> + Send + Sync>;

/// Makes the failure injector of one engine from its seat.
pub type InjectorFactory = Arc<dyn Fn(&Seat<'_>) -> Result<Box<dyn FailureInjector>, FaultError> + Send + Sync>;

/// Makes the token source of one engine from its seat.
pub type TokenFactory = Arc<dyn Fn(&Seat<'_>) -> Result<Box<dyn BatchTokenSource>, TokenError> + Send + Sync>;

/// Makes the autoscaler of one pool from its seat.
pub type ScalerFactory = Arc<dyn Fn(&Seat<'_>) -> Result<Box<dyn Autoscaler>, ScaleError> + Send + Sync>;

/// How the number of a pool's engines changes.
#[derive(Clone)]
pub struct ScalingConfig {
    /// Virtual time between two decisions; the first comes after so long.
    pub interval_ns: u64,
    /// The fewest engines that are up or coming up after a decision.
    pub min_engines: u32,
    /// The most engines that there are at a time, in whatever state.
    pub max_engines: u32,
    /// From the decision for an engine until it takes requests.
    pub startup_ns: u64,
    /// Makes who decides.
    pub policy: ScalerFactory,
}

/// Who chooses the output tokens of a pool's engines.
#[derive(Clone)]
pub struct TokenConfig {
    /// Makes the source of each engine.
    pub source: TokenFactory,
    /// The token that ends an output before its length, if one does.
    pub eos_token: Option<u32>,
}

/// The data-parallel ranks of an engine. Each has a scheduler and KV blocks of its
/// own, and requests are routed to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataParallel {
    /// How many ranks an engine has.
    pub size: u32,
    /// Whether the ranks of an engine start their steps together and end them at
    /// the slowest, as a mixture of experts with data-parallel attention does. A
    /// rank without work waits as long. Without it ranks do not know each other.
    pub barrier: bool,
}

impl Default for DataParallel {
    fn default() -> Self {
        Self { size: 1, barrier: false }
    }
}

/// Engines of one kind, with the router in front of them.
#[derive(Clone)]
pub struct PoolConfig {
    /// Name in reports.
    pub name: String,
    /// Number of engines; where it changes, of those that are up at the start.
    pub engines: u32,
    /// How that number changes; none for not at all.
    pub scaling: Option<ScalingConfig>,
    /// The ranks of each engine.
    pub data_parallel: DataParallel,
    /// Settings of each rank, and with them whose scheduler it has.
    pub engine: EngineKind,
    /// Prices the steps of each rank.
    pub latency: LatencyFactory,
    /// Ranks the requests of each engine; with [`vcr_core::Policy::Ranked`] and
    /// only then.
    pub policy: Option<PolicyFactory>,
    /// Chooses an engine for each request.
    pub router: RouterConfig,
    /// With `max_extra_tokens_per_step`: the chance that the first, second, ...
    /// extra token is accepted given that those before it were. Missing ones are 0.
    pub acceptance_rates: Vec<f64>,
    /// Makes things go wrong in each engine.
    pub failures: Option<InjectorFactory>,
    /// Chooses the output tokens of each engine; without it they are drawn.
    pub tokens: Option<TokenConfig>,
}

impl PoolConfig {
    /// The most engines that there can be at a time, which is how many there are
    /// places for.
    #[must_use]
    pub fn most_engines(&self) -> u32 {
        self.scaling.as_ref().map_or(self.engines, |scaling| scaling.max_engines.max(self.engines))
    }

    /// The ranks of all of those.
    #[must_use]
    pub fn most_ranks(&self) -> u32 {
        self.most_engines().saturating_mul(self.data_parallel.size)
    }

    /// What the rank with this index in the pool is called there: the number of its
    /// engine, and where engines have several ranks, its own after a dot.
    #[must_use]
    pub fn rank_name(&self, index: u32) -> String {
        match self.data_parallel.size {
            0 | 1 => index.to_string(),
            size => format!("{}.{}", index / size, index % size),
        }
    }

    /// Whether the ranks of an engine wait for each other.
    pub(crate) fn has_barrier(&self) -> bool {
        self.data_parallel.barrier && self.data_parallel.size > 1
    }
}

/// Which tokens' KV a transfer moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferScope {
    /// Those that the destination has not cached, as vLLM's NIXL connector does.
    #[default]
    Missing,
    /// The whole prompt.
    FullPrompt,
}

/// Which transfers contend with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkSharing {
    /// All of them: one fabric between the pools.
    #[default]
    Shared,
    /// Those from the same prefill engine: one link each.
    PerPrefillEngine,
    /// None: each has the whole bandwidth to itself, as Dynamo models it.
    Unshared,
}

/// How much of the output a prefill engine generates before its KV moves on. Nobody
/// sees those tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceOutput {
    /// The first token, with the prompt.
    #[default]
    FirstToken,
    /// All of it, as in Dynamo 1.4: the prompt stays for as many steps.
    Whole,
}

/// The way of KV from prefill to decode engines.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bandwidth that concurrent transfers share; none for instant transfers.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Added to every transfer.
    pub latency_ns: u64,
    /// KV bytes of one token over all layers.
    pub kv_bytes_per_token: u64,
    /// Which tokens are moved.
    pub scope: TransferScope,
    /// Which transfers contend.
    pub sharing: LinkSharing,
    /// What must have been generated before.
    pub source_output: SourceOutput,
}

impl LinkConfig {
    /// How long a transfer takes that has the whole bandwidth to itself, in
    /// nanoseconds, rounded to the nearest.
    pub(crate) fn alone_ns(&self, bytes: u64) -> u64 {
        let Some(bytes_per_s) = self.bandwidth_bytes_per_s else { return 0 };
        let bytes_per_s = u128::from(bytes_per_s.max(1));
        let ns = (u128::from(bytes) * 1_000_000_000 + bytes_per_s / 2) / bytes_per_s;
        u64::try_from(ns).unwrap_or(u64::MAX / 2)
    }
}

/// How engines are put together.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "a run has one of them")]
pub enum Topology {
    /// Every engine prefills and decodes.
    Aggregated(PoolConfig),
    /// Prompts are computed in one pool, outputs in another.
    Disaggregated {
        /// Computes prompts.
        prefill: PoolConfig,
        /// Generates outputs.
        decode: PoolConfig,
        /// Moves KV from the first to the second.
        link: LinkConfig,
        /// Which requests the first pool has nothing to do with, if any.
        conditional: Option<ConditionalConfig>,
    },
}

impl Topology {
    /// Which requests need no prefill engine, if any.
    #[must_use]
    pub fn conditional(&self) -> Option<&ConditionalConfig> {
        match self {
            Self::Aggregated(_) => None,
            Self::Disaggregated { conditional, .. } => conditional.as_ref(),
        }
    }

    /// The pools, prefill before decode.
    #[must_use]
    pub fn pools(&self) -> Vec<&PoolConfig> {
        match self {
            Self::Aggregated(pool) => vec![pool],
            Self::Disaggregated { prefill, decode, .. } => vec![prefill, decode],
        }
    }
}

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

/// What the requests of a synthetic workload look like.
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
        /// What they look like.
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
    /// Whose its requests are, for policies that ask; 0 for nobody's.
    pub tenant: u64,
    /// Where the requests come from.
    pub source: WorkloadSource,
}

/// Something that goes wrong, or right again, at a virtual time.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultConfig {
    /// When it strikes.
    pub at_ns: u64,
    /// Index of the pool in [`Topology::pools`].
    pub pool: u32,
    /// Index of the engine in the pool.
    pub engine: u32,
    /// What happens.
    pub kind: FaultKind,
}

/// What a fault does to an engine.
#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// The process dies; its requests and cache are lost.
    Crash {
        /// It is up again, with a cold cache, after this long; none for never.
        restart_after_ns: Option<u64>,
    },
    /// Steps that start meanwhile take `factor` times as long.
    SlowDown {
        /// Above 1 is slower.
        factor: f64,
        /// For how long; none for the rest of the run.
        duration_ns: Option<u64>,
    },
}

/// A whole run.
#[derive(Clone)]
pub struct RunConfig {
    /// Name in the report.
    pub name: String,
    /// Every random stream derives from it.
    pub seed: u64,
    /// The engines.
    pub topology: Topology,
    /// The requests.
    pub workloads: Vec<WorkloadConfig>,
    /// What goes wrong.
    pub faults: Vec<FaultConfig>,
    /// How often a request lost to a fault is tried again from the start.
    pub max_retries: u32,
    /// Virtual time at which the run is cut off. Unfinished requests are counted
    /// as such; of the statistics only gaps between tokens include them.
    pub max_time_ns: Option<u64>,
    /// Whether the report tells how long steps took and how many requests they had.
    pub samples_steps: bool,
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
