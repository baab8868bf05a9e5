//! The engine state machine of vcr: what a vLLM engine decides, without a GPU.
//!
//! Owns requests, the KV pool, the scheduler and the shape of a step. Does no
//! I/O, spawns nothing, reads no clock and draws no random numbers; it depends
//! on no other crate of the workspace. Time comes from a [`latency`] model,
//! tokens from a [`TokenSource`], and the driver decides when a step ends.

mod admit;
mod bulk;
mod config;
mod consult;
mod depart;
mod engine;
pub mod fault;
pub mod hash;
pub mod kv_event;
pub mod kv_pool;
mod kv_tiers;
pub mod latency;
mod lookahead;
mod pause;
pub mod plan;
pub mod policy;
mod queue;
mod remote_kv;
mod request;
pub mod route;
pub mod scale;
mod schedule;
mod seat;
pub mod seed;
mod serving;
pub mod sglang;
mod stats;
mod stop;
pub mod stretch;
mod table;
pub mod tokens;
mod update;

pub use config::{
    CapacityPolicy, ConfigError, EngineConfig, EngineConfigInput, Policy, Reservations, SchedulerRules, Victim,
};
pub use engine::{Engine, RejectReason, TokenSource};
pub use kv_tiers::{KvTier, KvTierChange, KvTierStats, KvTiers, KvTiersConfig, TierRun};
pub use pause::PauseState;
pub use request::{DrawnOutputs, FinishReason, KvRole, Prompt, RequestId, RequestSpec, RequestStatus};
pub use seat::Seat;
pub use serving::{AnyEngine, EngineKind, ServingEngine};
pub use stats::{EngineStats, PrefixCacheStats, SpecDecodeStats};
pub use stop::{Repetition, StopRules};
