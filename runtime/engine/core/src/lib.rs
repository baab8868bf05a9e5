//! The engine state machine of vcr: the decisions of a vLLM engine, without a GPU.
//!
//! Owns requests, the KV pool, the scheduler and the shapes of steps. Performs no I/O, spawns nothing, reads no clock
//! and draws no random numbers. The only other crate of the workspace that it depends on is `vcr-policy`, with the
//! types that it shares with guests. Step times come from a [`latency`] model and tokens from a [`TokenSource`]. The
//! driver decides when a step ends.
//!
//! A driver submits requests, schedules a step, lets the step's duration pass, and applies the step's outputs:
//!
//! ```
//! use vcr_core::{Engine, EngineConfig, EngineConfigInput, Prompt, RequestSpec, TokenSource};
//!
//! struct Ones;
//!
//! impl TokenSource for Ones {
//!     fn token(&mut self, _tag: u64, _output_index: u32) -> u32 {
//!         1
//!     }
//! }
//!
//! let settings = EngineConfigInput { max_num_batched_tokens: 512, ..EngineConfigInput::default() };
//! let mut engine = Engine::new(EngineConfig::new(settings).expect("the settings are valid"));
//! // 700 prompt tokens whose content is number 7, and three output tokens.
//! let mut prompt = Prompt::new(16, 0);
//! prompt.push_run(7, 0, 700);
//! engine.submit(RequestSpec::new(0, prompt, 3)).expect("it fits");
//!
//! let mut scheduled_tokens = Vec::new();
//! while engine.num_requests() > 0 {
//!     scheduled_tokens.push(engine.schedule().total_num_scheduled_tokens);
//!     engine.update(&mut Ones);
//! }
//! // The prompt is computed in two chunks, the second of which samples the first token. Then each step has one token.
//! assert_eq!(scheduled_tokens, [512, 188, 1, 1]);
//! ```

#![warn(missing_docs)]

mod compat;
mod config;
mod encoder;
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
mod version;

pub use compat::{CapacityPolicy, Reservations, Victim};
pub use config::{
    ACCEPTANCE_RATES, AdapterCosts, ConfigError, DraftRange, Drafter, Drafting, Drivers, EngineConfig,
    EngineConfigInput, EngineOption, GroupsOption, KV_CACHE_GROUPS, KvConnector, LoadFailures, NamedValue, OPTIONS,
    OptionValue, Policy, RatesOption, SchedulerRules, derived_settings, option,
};
pub use encoder::{EncoderCacheUse, PromptItem};
pub use engine::fast_forward;
pub use engine::{Compilation, Engine, KvTransferReport, PauseState, RejectReason, SessionInput};
pub use kv::forecast::Forecast;
pub use kv::groups::{KvCacheGroup, KvCacheKind, MambaCacheMode};
pub use kv::tiers::offloading::{EvictionPolicy, OffloadingJob, OffloadingMoves, OffloadingOptions};
pub use kv::tiers::{HostRules, KvTier, KvTierChange, KvTierStats, KvTiers, KvTiersConfig, SharedTier, TierRun};
pub use kv::{event as kv_event, hash, pool as kv_pool};
pub use plan::ExternalHit;
pub use plugins::{PluginContext, TokenSource, factory, fault, latency, policy, request_times, route, scale, tokens};
pub use request::{
    DrawnOutputs, FinishReason, KvRole, Prompt, Repetition, RequestId, RequestSpec, RequestStatus, StopRules,
};
pub use serving::{AnyEngine, EngineKind, EngineLoad, ServingEngine};
pub use stats::{EncoderCacheStats, EngineStats, PrefixCacheStats, SpecDecodeStats};
pub use version::{UnknownVersion, VllmMinor};
