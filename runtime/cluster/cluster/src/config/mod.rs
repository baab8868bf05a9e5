//! Configuration of a run: pools, links, workloads, faults.

mod curve;
mod kv_router;
mod mix;
mod pool;
mod queue_classes;
mod router;
mod synthetic;
mod topology;
mod validate;
mod workload;

use std::collections::BTreeSet;

pub(crate) use curve::CurveWalk;
pub use curve::{Curve, MAX_PIECES, Piece};
pub use kv_router::{KvKnowledge, KvRouterConfig, ReplicaConfig};
pub(crate) use mix::whole;
pub use mix::{Adapters, Conversations, Documents, Histogram, Lengths, Media, RequestClass, RequestMix, Slo};
pub use pool::{
    DataParallel, InjectorFactory, KvEviction, LatencyFactory, PolicyFactory, PoolConfig, ScalerFactory, ScalingConfig,
    TokenConfig, TokenFactory,
};
pub use queue_classes::{IslBucket, QueueClass, QueueConfig, QueueOrder, QueueProfile};
pub use router::{KvAwareConfig, LoraAffinityConfig, RouterConfig, RouterFactory, SessionHashConfig, StickyConfig};
pub use synthetic::{SyntheticInput, SyntheticProblem};
pub use topology::{
    KvPlane, KvPlaneTime, LinkConfig, LinkSharing, PoolRole, PrefillCancellation, SourceOutput, Topology, TransferScope,
};
pub use validate::RunConfigError;
pub use vcr_core::host::{GRAPH_TOKENS_MAX, Overheads, PERMILLE};
pub use workload::{Answers, TracePacing, WorkloadConfig, WorkloadSource};

use vcr_base::random::Distribution;

/// A fault at a virtual time.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultConfig {
    /// Virtual time of the fault.
    pub at_ns: u64,
    /// The pool of the engine.
    pub pool: PoolRole,
    /// Index of the engine in the pool.
    pub engine: u32,
    /// The kind of fault.
    pub kind: FaultKind,
}

/// The effect of a fault on an engine.
#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// The process exits; its requests and cache are lost.
    Crash {
        /// Time until the process is up again, with a cold cache; None for never.
        restart_after_ns: Option<u64>,
    },
    /// Steps that start during the fault take `factor` times as long.
    SlowDown {
        /// Values above 1 are slower.
        factor: f64,
        /// Duration of the fault; None for the rest of the run.
        duration_ns: Option<u64>,
    },
}

impl FaultKind {
    /// The name in scripts.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Crash { .. } => "crash",
            Self::SlowDown { .. } => "slow_down",
        }
    }
}

/// Minimum number of requests for which [`PackedRows::OfMany`] packs records.
const MANY_REQUESTS: u64 = 1 << 14;

/// Configuration of a whole run.
#[derive(Clone)]
pub struct RunConfig {
    /// Name of the run in the report.
    pub name: String,
    /// Seed of the run; every random stream derives from it.
    pub seed: u64,
    /// The engines.
    pub topology: Topology,
    /// The requests.
    pub workloads: Vec<WorkloadConfig>,
    /// Faults of engines.
    pub faults: Vec<FaultConfig>,
    /// Maximum number of retries of a request lost to a fault; each retry starts from the beginning.
    pub max_retries: u32,
    /// Virtual time at which the run is cut off. Requests that are still in progress count as unfinished, and only
    /// the statistics of gaps between tokens include them.
    pub max_time_ns: Option<u64>,
    /// Whether the report has the durations and batch sizes of steps.
    pub samples_steps: bool,
    /// Whether the report keeps the request data that a capture needs beyond the records
    /// ([`Report::kept`](crate::Report::kept)). Steps are then simulated one by one, with the same results.
    pub keeps_requests: bool,
    /// Whether request records are stored in [`Report::packed_requests`](crate::Report::packed_requests) instead of
    /// [`Report::requests`](crate::Report::requests).
    pub packed_records: PackedRows,
}

/// Selects the runs whose reports have packed request records. The results are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PackedRows {
    /// No run.
    #[default]
    Never,
    /// Runs with many requests. Packed records take a twelfth of the memory, but time to read.
    OfMany,
    /// Every run whose records can be packed.
    Always,
}

impl RunConfig {
    /// A run without workloads and faults.
    #[must_use]
    pub fn new(name: impl Into<String>, topology: Topology) -> Self {
        Self {
            name: name.into(),
            seed: 0,
            topology,
            workloads: Vec::new(),
            faults: Vec::new(),
            max_retries: 0,
            max_time_ns: None,
            samples_steps: false,
            keeps_requests: false,
            packed_records: PackedRows::Never,
        }
    }

    /// A warning if requests have multimodal items and a pool's engines have no encoder for them.
    #[must_use]
    pub fn media_warning(&self) -> Option<String> {
        let pool = self.topology.pools().into_iter().find(|pool| pool.engine.as_vllm().is_none())?;
        self.workloads.iter().any(WorkloadConfig::has_media).then(|| {
            let name = &pool.name;
            format!("engines of `{name}` take images and other media as tokens: only vLLM's engine has an encoder")
        })
    }

    /// Whether records are packed once their requests have ended. Not with token sources, which read the records
    /// again in later steps.
    pub(crate) fn packs_records(&self) -> bool {
        self.packs_records_of(self.memory_estimate().requests)
    }

    pub(crate) fn packs_records_of(&self, requests: u64) -> bool {
        let is_wanted = match self.packed_records {
            PackedRows::Never => false,
            PackedRows::OfMany => requests >= MANY_REQUESTS,
            PackedRows::Always => true,
        };
        is_wanted && !self.keeps_requests && self.topology.pools().iter().all(|pool| pool.tokens.is_none())
    }

    /// The numbers of the LoRA adapters that requests of the workloads may name.
    #[must_use]
    pub fn adapters(&self) -> BTreeSet<u32> {
        let classes = self.workloads.iter().flat_map(|workload| match &workload.source {
            WorkloadSource::Synthetic { classes, .. } => &classes[..],
            _ => &[],
        });
        let adapters = classes.filter_map(|class| class.adapters.as_ref());
        adapters.flat_map(|Adapters { first, popularity }| (*first..).take(popularity.count())).collect()
    }
}

/// Replay of a trace's sessions in lanes. A play is a session, or several sessions that wait for each other. A lane
/// runs one play at a time and takes the next play of the trace when that one ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfileConfig {
    /// Number of lanes.
    pub lanes: u32,
    /// Waits are divided by this factor; above 1 is faster.
    pub speedup: f64,
    /// Seed for starting the first play of each lane in the middle, between a quarter and three quarters of its
    /// recorded time. None if plays start at their beginning.
    pub snapshot_seed: Option<u64>,
    /// Warm-up requests of each lane before the profile begins, in addition to the requests that replay the history
    /// of plays started in the middle. Warm-up requests are not measured.
    pub warmup_requests: u32,
    /// Duration of the profile. Lanes take plays until then, and the trace repeats after its last play. None if
    /// each play runs once.
    pub duration_ns: Option<u64>,
    /// Time after the end of the profile until requests in progress are cancelled.
    pub grace_ns: u64,
    /// Maximum idle time of a play. A longer gap is shortened to it, which advances all later requests of the play.
    pub play_idle_cap_ns: Option<u64>,
    /// Maximum time for which no lane has a request in flight.
    pub idle_cap_ns: Option<u64>,
}

impl ProfileConfig {
    /// Lanes that run each play once from its beginning, without warm-up.
    #[must_use]
    pub fn new(lanes: u32) -> Self {
        Self {
            lanes,
            speedup: 1.0,
            snapshot_seed: None,
            warmup_requests: 0,
            duration_ns: None,
            grace_ns: 0,
            play_idle_cap_ns: None,
            idle_cap_ns: None,
        }
    }
}

/// The policy of Dynamo's conditional disaggregation: which prompts the decode engine computes itself. A KV
/// transfer is not worthwhile for short computations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConditionalPolicy {
    /// Prompts with few uncached tokens.
    #[default]
    IslBounding,
    /// Prompts that arrive while the prefill engines are busy.
    PrefillLoad,
    /// Prompts for which either of the two holds.
    IslOrLoad,
}

/// Conditional disaggregation, with Dynamo's names and defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConditionalConfig {
    /// The policy.
    pub policy: ConditionalPolicy,
    /// A prompt counts as short with at most this many tokens that no decode engine has cached.
    pub eff_isl_threshold_tokens: u32,
    /// A prompt also counts as short if no decode engine has cached at most this share of its tokens.
    pub eff_isl_ratio_threshold: f64,
    /// The prefill pool is busy while each of its engines has outstanding prompt tokens for more than this many
    /// full token budgets; None for never.
    pub prefill_busy_threshold: Option<f64>,
    /// The decode pool is busy while each of its engines uses more than this share of its KV blocks. All prompts
    /// then go to prefill engines. None for never.
    pub decode_busy_threshold: Option<f64>,
}

impl Default for ConditionalConfig {
    fn default() -> Self {
        Self {
            policy: ConditionalPolicy::default(),
            eff_isl_threshold_tokens: 2048,
            eff_isl_ratio_threshold: 0.7,
            prefill_busy_threshold: None,
            decode_busy_threshold: None,
        }
    }
}

impl ConditionalConfig {
    /// Checks every number.
    ///
    /// # Errors
    /// The first invalid field, with its valid range.
    pub fn check(&self) -> Result<(), String> {
        let numbers = [
            ("eff_isl_ratio_threshold", Some(self.eff_isl_ratio_threshold)),
            ("prefill_busy_threshold", self.prefill_busy_threshold),
            ("decode_busy_threshold", self.decode_busy_threshold),
        ];
        for (name, value) in numbers {
            if let Some(value) = value
                && !(value.is_finite() && value >= 0.0)
            {
                return Err(format!("invalid `{name}`: expected a finite number of at least 0, got {value}"));
            }
        }
        if self.policy == ConditionalPolicy::PrefillLoad && self.prefill_busy_threshold.is_none() {
            return Err("the policy needs a `prefill_busy_threshold`: without one prefill is never busy".to_owned());
        }
        Ok(())
    }
}

/// When the requests (or sessions) of a synthetic workload start.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// `count` starts, spread evenly over `over_ns` (0: all at once).
    Burst {
        /// Number of starts.
        count: u64,
        /// Duration of the burst.
        over_ns: u64,
    },
    /// Starts at a constant rate.
    Constant {
        /// Starts per second.
        rate_per_s: f64,
        /// End of the workload.
        limit: Limit,
    },
    /// Starts with exponentially distributed gaps.
    Poisson {
        /// Mean starts per second.
        rate_per_s: f64,
        /// End of the workload.
        limit: Limit,
    },
    /// Starts at a rate that changes over time.
    Varying {
        /// Starts per second.
        rate: Curve,
        /// The regularity of the starts.
        gaps: Gaps,
        /// Limits that end the workload before the end of the curve.
        limit: Limit,
    },
    /// A closed loop: a new request starts whenever one ends, so that `concurrency` are in flight.
    ClosedLoop {
        /// Number in flight.
        concurrency: u64,
        /// End of the workload.
        limit: Limit,
    },
    /// Users whose number changes; each starts a new session when the previous one has ended.
    Users {
        /// Number of users. Excess users leave when their last request has ended.
        users: Curve,
        /// Limits that end the workload before the end of the curve.
        limit: Limit,
    },
}

/// The distribution of the gaps between starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gaps {
    /// Equal gaps.
    Even,
    /// Exponential gaps.
    Exponential,
    /// Gamma-distributed gaps; vLLM's benchmark calls the shape burstiness.
    Gamma {
        /// 1 is exponential, below 1 is burstier, above 1 is more even.
        shape: f64,
    },
    /// Weibull-distributed gaps.
    Weibull {
        /// 1 is exponential, below 1 is burstier, above 1 is more even.
        shape: f64,
    },
}

/// End of a workload: the first of these limits to be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Maximum number of starts.
    pub count: Option<u64>,
    /// Time after the workload's start from which on nothing starts.
    pub duration_ns: Option<u64>,
}

impl Limit {
    /// Whether start number `index` may happen `elapsed_ns` after the workload's start.
    pub(crate) fn allows(self, index: u64, elapsed_ns: u64) -> bool {
        self.count.is_none_or(|count| index < count) && self.duration_ns.is_none_or(|duration| elapsed_ns < duration)
    }
}

/// The behaviour of a workload's clients. By default they wait forever.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientConfig {
    /// Time after sending at which a client without a first token cancels the request.
    pub first_token_timeout_ns: Option<u64>,
    /// Time after sending at which a client without the complete answer cancels the request.
    pub timeout_ns: Option<u64>,
    /// Time after the first attempt at which a client cancels the request without a retry.
    pub deadline_ns: Option<u64>,
    /// Clients that cancel requests for no reason of the server's.
    pub cancel: Option<CancelConfig>,
    /// Retries of clients; None for no retries.
    pub retry: Option<RetryConfig>,
    /// Number of sessions in flight at which an open loop starts no further session.
    pub max_in_flight: Option<u64>,
    /// Handling of sessions that may not start.
    pub when_full: WhenFull,
}

/// Handling of a session that is due while the maximum number of sessions is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is dropped.
    #[default]
    Drop,
    /// It starts when another session ends.
    Delay,
}

/// Cancellations by clients that lose interest in an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct CancelConfig {
    /// The share of requests whose clients cancel, from 0 to 1.
    pub share: f64,
    /// Milliseconds from sending to the cancellation.
    pub after_ms: Option<Distribution>,
    /// Output tokens received before the cancellation (rounded, at least 1).
    pub after_tokens: Option<Distribution>,
}

/// Retries of requests that timed out, failed or were refused by a router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryConfig {
    /// Maximum number of attempts, including the first.
    pub max_attempts: u32,
    /// Wait before the second attempt.
    pub backoff_ns: u64,
    /// Factor by which each further wait grows.
    pub factor: f64,
    /// The longest wait.
    pub max_backoff_ns: u64,
    /// The random share of a wait, from 0 to 1.
    pub jitter: f64,
}

impl ClientConfig {
    /// Whether clients neither cancel nor retry requests.
    #[must_use]
    pub fn is_patient(&self) -> bool {
        *self == Self { max_in_flight: self.max_in_flight, when_full: self.when_full, ..Self::default() }
    }

    fn check(&self, problem: &mut dyn FnMut(&str)) {
        let times = [
            ("timeout", self.timeout_ns),
            ("first_token_timeout", self.first_token_timeout_ns),
            ("deadline", self.deadline_ns),
            ("max_in_flight", self.max_in_flight),
        ];
        for (name, _) in times.iter().filter(|(_, value)| *value == Some(0)) {
            problem(&format!("invalid `{name}`: expected above 0; leave it out for none"));
        }
        if let Some(cancel) = &self.cancel {
            if !(0.0..=1.0).contains(&cancel.share) {
                problem("invalid `share` of `cancel`: expected 0 to 1");
            }
            if cancel.after_ms.is_none() && cancel.after_tokens.is_none() {
                problem("`cancel` needs `after`, `after_tokens`, or both");
            }
        }
        if let Some(retry) = &self.retry {
            if retry.max_attempts == 0 {
                problem("invalid `max_attempts` of `retry`: expected at least 1");
            }
            if !(retry.factor.is_finite() && retry.factor >= 1.0) {
                problem("invalid `factor` of `retry`: expected a finite number of at least 1");
            }
            if !(0.0..=1.0).contains(&retry.jitter) {
                problem("invalid `jitter` of `retry`: expected 0 to 1");
            }
        }
    }
}
