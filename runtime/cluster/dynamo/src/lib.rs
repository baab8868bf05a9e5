//! Compatibility with NVIDIA Dynamo's mocker and offline replay: reads their configurations, and reports results
//! with Dynamo's names and definitions.
//!
//! * [`EngineArgs`]: engine arguments in both layouts (the flat object of 1.4 and the nested one of 1.6), and the
//!   pool that they describe;
//! * [`RouterArgs`]: the router's configuration; [`read_queue_policies`] reads the classes of its queue;
//! * [`AutoscaleArgs`]: the configuration of an autoscaler;
//! * [`report`]: the report, its rows per request, and the table.
//!
//! Nothing here prints, draws or reads a clock. The only files that are read are planner profiles and queue
//! policies named by arguments. Keys without meaning in a simulation are accepted with a [`Remark`]. Keys that are
//! not simulated are refused by name.

mod autoscale;
mod engine;
mod keys;
mod problem;
mod queue_policy;
pub mod report;
mod router;
pub mod ticks;

pub use autoscale::{AutoscaleArgs, AutoscalePolicy};
pub use engine::{
    EngineArgs, EngineType, KvTransfer, Mtp, PoolOptions, PreemptionMode, Preset, SglangArgs, Timing, known_engine_key,
};
pub use problem::{DynamoError, Problem, Remark};
pub use queue_policy::{parse_queue_policies, read_queue_policies};
pub use router::{RouterArgs, known_router_key};
