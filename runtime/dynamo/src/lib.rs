//! NVIDIA Dynamo's terms, for those who come from its mocker and its offline
//! replay: what they write is read, and results are told as they know them.
//!
//! * [`EngineArgs`]: engine arguments in both spellings, the flat object of 1.4
//!   and the nested one of 1.6, and the pool that they mean;
//! * [`RouterArgs`]: the router's configuration, and with [`read_queue_policies`] the
//!   classes of its queue;
//! * [`AutoscaleArgs`]: that of an autoscaler;
//! * [`report`]: the report, its rows for each request, and the table.
//!
//! Nothing here prints, draws or reads a clock; the only files that are read
//! are those that arguments name: planner profiles and queue policies. What means nothing in a
//! simulation is accepted and told as a [`Remark`]; what would mean something
//! and is not simulated is refused by name.

mod autoscale;
mod engine;
mod keys;
mod problem;
mod queue_policy;
pub mod report;
mod router;

pub use autoscale::{AutoscaleArgs, AutoscalePolicy};
pub use engine::{
    EngineArgs, EngineType, KvTransfer, Mtp, PoolOptions, PreemptionMode, Preset, SglangArgs, SglangPolicy, Timing,
    known_engine_key,
};
pub use problem::{DynamoError, Problem, Remark};
pub use queue_policy::{parse_queue_policies, read_queue_policies};
pub use router::{RouterArgs, known_router_key};
