//! Configuration of a run: pools, links, workloads, faults. All plain values.

mod arrivals;
mod client;
mod conditional;
mod curve;
mod kv_router;
mod mix;
mod pool;
mod profile;
mod queue_classes;
mod router;
mod synthetic;
mod topology;
mod validate;
mod workload;

use std::collections::BTreeSet;

pub use arrivals::{Arrivals, Gaps, Limit};
pub use client::{CancelConfig, ClientConfig, RetryConfig, WhenFull};
pub use conditional::{ConditionalConfig, ConditionalPolicy};
pub(crate) use curve::CurveWalk;
pub use curve::{Curve, MAX_PIECES, Piece};
pub use kv_router::{KvKnowledge, KvRouterConfig, ReplicaConfig};
pub(crate) use mix::whole;
pub use mix::{Adapters, Conversations, Documents, Histogram, Lengths, Media, RequestClass, RequestMix, Slo};
pub use pool::{
    DataParallel, InjectorFactory, KvEviction, LatencyFactory, PolicyFactory, PoolConfig, ScalerFactory, ScalingConfig,
    TokenConfig, TokenFactory,
};
pub use profile::ProfileConfig;
pub use queue_classes::{IslBucket, QueueClass, QueueConfig, QueueOrder, QueueProfile};
pub use router::{KvAwareConfig, RouterConfig, RouterFactory};
pub use synthetic::{SyntheticInput, SyntheticProblem};
pub use topology::{KvPlane, KvPlaneTime, LinkConfig, LinkSharing, PoolRole, SourceOutput, Topology, TransferScope};
pub use validate::RunConfigError;
pub use vcr_core::host::{GRAPH_TOKENS_MAX, Overheads, PERMILLE};
pub use workload::{Answers, TracePacing, WorkloadConfig, WorkloadSource};

/// A fault at a virtual time.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultConfig {
    /// When it takes effect.
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
        /// Time until it is up again, with a cold cache; none for never.
        restart_after_ns: Option<u64>,
    },
    /// Steps that start meanwhile take `factor` times as long.
    SlowDown {
        /// Above 1 is slower.
        factor: f64,
        /// Duration; none for the rest of the run.
        duration_ns: Option<u64>,
    },
}

/// Requests of a run from which on [`PackedRows::OfMany`] packs their records.
const MANY_REQUESTS: u64 = 1 << 14;

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
    /// Faults.
    pub faults: Vec<FaultConfig>,
    /// Maximum retries of a request lost to a fault, each from the start.
    pub max_retries: u32,
    /// Virtual time at which the run is cut off. Unfinished requests are counted
    /// as such; of the statistics only gaps between tokens include them.
    pub max_time_ns: Option<u64>,
    /// Whether the report has the durations and batch sizes of steps.
    pub samples_steps: bool,
    /// Whether the report has what a capture has of requests besides their records,
    /// [`Report::kept`](crate::Report::kept). Steps are then made one by one, with the same results.
    pub keeps_requests: bool,
    /// Records of requests in [`Report::packed_requests`](crate::Report::packed_requests) instead
    /// of [`Report::requests`](crate::Report::requests).
    pub packed_records: PackedRows,
}

/// Runs whose report has the records of their requests packed, with the same results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PackedRows {
    /// None.
    #[default]
    Never,
    /// Those of many requests: they take a twelfth of the memory, and some time to be read.
    OfMany,
    /// All that can be.
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

    /// A warning where requests have images or other media, and engines have no encoder that computes them.
    #[must_use]
    pub fn media_warning(&self) -> Option<String> {
        let pool = self.topology.pools().into_iter().find(|pool| pool.engine.as_vllm().is_none())?;
        self.workloads.iter().any(WorkloadConfig::has_media).then(|| {
            let name = &pool.name;
            format!("engines of `{name}` take images and other media as tokens: vLLM's engine alone has an encoder")
        })
    }

    /// Whether records are packed once their requests have ended. They are looked at again where
    /// something chooses tokens of requests, in steps that end after them.
    pub(crate) fn packs_records(&self) -> bool {
        self.packs_records_of(self.memory_estimate().requests)
    }

    /// The same where a run has this many requests, or more.
    pub(crate) fn packs_records_of(&self, requests: u64) -> bool {
        let is_wanted = match self.packed_records {
            PackedRows::Never => false,
            PackedRows::OfMany => requests >= MANY_REQUESTS,
            PackedRows::Always => true,
        };
        is_wanted && !self.keeps_requests && self.topology.pools().iter().all(|pool| pool.tokens.is_none())
    }

    /// The numbers of the LoRA adapters that requests of its workloads may name.
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
