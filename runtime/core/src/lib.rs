//! The engine state machine of vcr: a vLLM engine's decisions, without a GPU.
//!
//! Owns requests, the KV pool, the scheduler and the shape of a step. Does no
//! I/O, spawns nothing, reads no clock and draws no random numbers; it depends
//! on no other crate of the workspace. Time comes from a [`latency`] model,
//! tokens from a [`TokenSource`], and the driver decides when a step ends.

mod compat;
mod config;
mod engine;
pub mod host;
mod kv;
pub mod plan;
mod plugins;
mod request;
pub mod seed;
mod serving;
pub mod sglang;
mod stats;
pub mod ticks;

pub use compat::{CapacityPolicy, Reservations, Victim};
pub use config::{
    ACCEPTANCE_RATES, ConfigError, Drivers, EngineConfig, EngineConfigInput, EngineOption, GroupsOption,
    KV_CACHE_GROUPS, NamedValue, OPTIONS, OptionValue, Policy, RatesOption, SchedulerRules, derived_settings, option,
};
pub use engine::fast_forward;
pub use engine::{Engine, PauseState, RejectReason, TokenSource};
pub use kv::groups::{KvCacheGroup, KvCacheKind};
pub use kv::tiers::{KvTier, KvTierChange, KvTierStats, KvTiers, KvTiersConfig, TierRun};
pub use kv::{event as kv_event, hash, pool as kv_pool};
pub use plugins::{PluginContext, factory, fault, latency, policy, request_times, route, scale, tokens};
pub use request::{
    DrawnOutputs, FinishReason, KvRole, Prompt, Repetition, RequestId, RequestSpec, RequestStatus, StopRules,
};
pub use serving::{AnyEngine, EngineKind, ServingEngine};
pub use stats::{EngineStats, PrefixCacheStats, SpecDecodeStats};
