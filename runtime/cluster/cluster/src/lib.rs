//! Clusters of simulated engines in virtual time.
//!
//! One call, [`simulate`], takes plain values (pools, links, workloads, faults and a seed) and returns a
//! [`Report`]. Equal inputs give byte-identical reports: time is integer nanoseconds, ties have a fixed order, and
//! each purpose has its own random stream.
//!
//! A program with its own loop can step a [`Cluster`]: it submits requests, advances time, and reads outputs and
//! engine states.
//!
//! Callers can replace decisions by implementing traits:
//!
//! * routing: [`Router`], by [`RouterConfig::Made`];
//! * scaling: [`vcr_core::scale::Autoscaler`], by [`ScalingConfig`];
//! * timing: [`vcr_core::latency::LatencyModel`], by [`PoolConfig::latency`];
//! * order within an engine: [`vcr_core::policy::SchedulingPolicy`], by [`PoolConfig::policy`];
//! * telemetry: [`observe::Observer`], which sees and does not decide.

#![warn(missing_docs)]

mod config;
mod disaggregation;
mod error;
mod estimate;
mod event;
mod fleet;
mod in_flight;
mod ledger;
mod measured;
pub mod observe;
mod report;
mod routing;
mod simulation;
mod target;
mod traffic;
mod window;

pub use config::{
    Adapters, Answers, Arrivals, CancelConfig, ClientConfig, ConditionalConfig, ConditionalPolicy, Conversations,
    Curve, DataParallel, Documents, FaultConfig, FaultKind, GRAPH_TOKENS_MAX, Gaps, Histogram, InjectorFactory,
    IslBucket, KvAwareConfig, KvEviction, KvKnowledge, KvPlane, KvPlaneTime, KvRouterConfig, LatencyFactory, Lengths,
    Limit, LinkConfig, LinkSharing, LoraAffinityConfig, MAX_PIECES, Media, Overheads, PERMILLE, PackedRows, Piece,
    PolicyFactory, PoolConfig, PoolRole, PrefillCancellation, ProfileConfig, QueueClass, QueueConfig, QueueOrder,
    QueueProfile, ReplicaConfig, RequestClass, RequestMix, RetryConfig, RouterConfig, RouterFactory, RunConfig,
    RunConfigError, ScalerFactory, ScalingConfig, SessionHashConfig, Slo, SourceOutput, StickyConfig, SyntheticInput,
    SyntheticProblem, TokenConfig, TokenFactory, Topology, TracePacing, TransferScope, WhenFull, WorkloadConfig,
    WorkloadSource,
};
pub use disaggregation::{Link, TransferKey};
pub use error::SimError;
pub use estimate::MemoryEstimate;
pub use fleet::{TokenRange, kubernetes_autoscaler, target_autoscaler};
pub use ledger::gap_course::GapCourse;
pub use ledger::packed::PackedRecords;
pub use ledger::{KeptRequest, StepFacts, metrics, record};
pub use measured::{DRAWN_TOKENS, Due, Ending, IssuedRequest, MeasuredRun, recorded_answers, structured_outputs};
pub use observe::Overload;
pub use report::{
    ComputePeak, EngineReport, Goodput, GpuDeployment, Interval, KvMoved, KvPeerReport, KvTierReport, KvTransfer,
    LinkReport, MeasuredFacts, MetricsReport, PoolDeployment, PoolPeak, PoolReport, ProfileReport, Report,
    RequestNames, ScalingEvent, Selection, SloClassReport, SloCounts, SloMetric, TableCoverage, TargetReport,
    TrendReport, Uncertainty, WorkloadSlos, quantile,
};
pub use simulation::{
    Cluster, ClusterError, ClusterOutput, ClusterRequest, EngineState, RequestOrigin, RunClock, ServedRequest,
    simulate, simulate_in_real_time,
};
pub use target::{
    AdapterNames, FrontendTarget, HttpTarget, Prompts, ServeTarget, SessionNames, SessionToken, Target, TargetDriver,
    TargetError,
};
pub use traffic::{AgentsInput, Attempt, Branch, BranchedInput, Patience, StructuredOutputs};
pub use vcr_core::route::{Choice, EndedRequest, RouteError, RoutePhase, RouteRequest, Router, WorkerLoad};
pub use vcr_policy::target_load::{TargetMetric, TargetPolicy};
