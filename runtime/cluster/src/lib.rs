//! Clusters of simulated engines in virtual time.
//!
//! One call, [`simulate`], takes plain values (pools, links, workloads, faults
//! and a seed) and gives a [`Report`]. The same values give the same bytes,
//! always: time is integer nanoseconds, ties have a fixed order, and every
//! random stream is named by its purpose.

mod affinity;
mod arrivals;
mod autoscale;
mod bulk;
mod conditional;
mod config;
mod error;
mod event;
mod fault;
mod graph;
mod hand_over;
mod injector;
mod kv_router;
mod lifecycle;
mod link;
pub mod metrics;
pub mod observe;
mod outputs;
mod play;
mod ranks;
pub mod record;
mod report;
mod router;
mod routing;
mod samples;
mod scaling;
mod setup;
mod sim;
mod steps;
mod synthetic;
mod tiers;
mod tokens;
mod validate;
mod watchdog;
mod worker;
mod workload;

pub use autoscale::target_autoscaler;
pub use conditional::{ConditionalConfig, ConditionalPolicy};
pub use config::{
    Answers, Arrivals, DataParallel, FaultConfig, FaultKind, InjectorFactory, LatencyFactory, Limit, LinkConfig,
    LinkSharing, PolicyFactory, PoolConfig, RequestMix, RunConfig, ScalerFactory, ScalingConfig, SourceOutput,
    TokenConfig, TokenFactory, Topology, TracePacing, TransferScope, WorkloadConfig, WorkloadSource,
};
pub use error::SimError;
pub use kv_router::{
    IslBucket, KvKnowledge, KvRouterConfig, QueueClass, QueueConfig, QueueOrder, QueueProfile, ReplicaConfig,
};
pub use report::{
    EngineReport, KvTierReport, LinkReport, MetricsReport, PoolReport, Report, ScalingEvent, TrendReport, report_name,
};
pub use router::{
    Choice, EndedRequest, KvAwareConfig, RouteError, RoutePhase, RouteQuery, Router, RouterConfig, RouterFactory,
    WorkerLoad,
};
pub use sim::simulate;
pub use synthetic::{SyntheticInput, SyntheticProblem};
pub use validate::RunConfigError;
pub use vcr_scaling::{TargetMetric, TargetPolicy};
