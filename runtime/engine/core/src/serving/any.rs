//! An engine of any kind, with one dispatch per call.

use crate::engine::{Engine, RejectReason};
use crate::kv::event::KvEventLog;
use crate::kv::hash::BlockHash;
use crate::plan::{RemoteLoad, StepOutputs, StepPlan};
use crate::plugins::TokenSource;
use crate::plugins::latency::DecodeSteps;
use crate::request::{RequestId, RequestSpec};
use crate::serving::forward::common_methods;
use crate::serving::{EngineKind, EngineLoad, ServingEngine};
use crate::sglang::SglangEngine;
use crate::stats::EngineStats;
use crate::ticks::TickEngine;

/// Calls a method of the engine in any variant.
macro_rules! each {
    ($any:ident, $engine:ident => $call:expr) => {
        match $any {
            AnyEngine::Vllm($engine) => $call,
            AnyEngine::Sglang($engine) => $call,
            AnyEngine::Ticks($engine) => $call,
        }
    };
}

/// An engine of any kind.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each worker, and a box would be in the way of every step"
)]
pub enum AnyEngine {
    /// An engine with vLLM's scheduler.
    Vllm(Engine),
    /// An engine with SGLang's scheduler.
    Sglang(SglangEngine),
    /// An engine that schedules by ticks.
    Ticks(TickEngine),
}

impl AnyEngine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(kind: &EngineKind) -> Self {
        match kind {
            EngineKind::Vllm(config) => Self::Vllm(Engine::new(config.clone())),
            EngineKind::Sglang(config) => Self::Sglang(SglangEngine::new(config.clone())),
            EngineKind::Ticks(config) => Self::Ticks(TickEngine::new(config.clone())),
        }
    }

    /// The engine, if it has vLLM's scheduler.
    #[must_use]
    pub fn as_vllm(&self) -> Option<&Engine> {
        if let Self::Vllm(engine) = self { Some(engine) } else { None }
    }

    /// Like [`as_vllm`](Self::as_vllm), mutable.
    pub fn as_vllm_mut(&mut self) -> Option<&mut Engine> {
        if let Self::Vllm(engine) = self { Some(engine) } else { None }
    }

    /// The engine, if it has SGLang's scheduler.
    #[must_use]
    pub fn as_sglang(&self) -> Option<&SglangEngine> {
        if let Self::Sglang(engine) = self { Some(engine) } else { None }
    }

    /// Like [`as_sglang`](Self::as_sglang), mutable.
    pub fn as_sglang_mut(&mut self) -> Option<&mut SglangEngine> {
        if let Self::Sglang(engine) = self { Some(engine) } else { None }
    }

    /// The engine's settings.
    #[must_use]
    pub fn kind(&self) -> EngineKind {
        each!(self, engine => engine.config().clone().into())
    }

    /// Tokens per KV block, or page.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        match self {
            Self::Vllm(engine) => engine.config().block_size(),
            Self::Sglang(engine) => engine.config().page_size(),
            Self::Ticks(engine) => engine.config().page_size_tokens(),
        }
    }

    /// Maximum number of running requests.
    #[must_use]
    pub fn max_num_seqs(&self) -> u32 {
        match self {
            Self::Vllm(engine) => engine.config().max_num_seqs(),
            Self::Sglang(engine) => engine.config().max_num_seqs(),
            Self::Ticks(engine) => engine.config().max_active(),
        }
    }

    /// Maximum number of tokens computed in one step.
    #[must_use]
    pub fn max_num_batched_tokens(&self) -> u32 {
        match self {
            Self::Vllm(engine) => engine.config().max_num_batched_tokens(),
            Self::Sglang(engine) => engine.config().max_prefill_tokens(),
            Self::Ticks(engine) => engine.config().prefill_tokens_per_tick(),
        }
    }

    /// Maximum number of extra tokens that a sampling request may emit in a step.
    #[must_use]
    pub fn max_extra_tokens_per_step(&self) -> u32 {
        match self {
            Self::Vllm(engine) => engine.config().max_extra_tokens_per_step(),
            Self::Sglang(engine) => engine.config().max_extra_tokens_per_step(),
            Self::Ticks(_) => 0,
        }
    }
}

/// Forwards methods to the engine in each variant.
macro_rules! forward {
    (ref $(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $out {
            each!(self, engine => ServingEngine::$name(engine, $($arg),*))
        })*
    };
    (mut $(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(&mut self, $($arg: $type),*) -> $out {
            each!(self, engine => ServingEngine::$name(engine, $($arg),*))
        })*
    };
}

impl ServingEngine for AnyEngine {
    common_methods!(forward);

    forward! { ref
        fn live_tags() -> Vec<u64>;
        fn running_tags() -> Vec<u64>;
        fn load() -> EngineLoad;
        fn proposes_drafts() -> bool;
        fn cached_prefix_blocks(hashes: &[BlockHash]) -> u32;
        fn kv_events() -> Option<&KvEventLog>;
    }

    forward! { mut
        fn record_kv_events(on: bool) -> ();
        fn clear_kv_events() -> ();
    }

    fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs {
        each!(self, engine => ServingEngine::update(engine, source))
    }

    fn decode_ahead<S: TokenSource + ?Sized>(&mut self, steps: u32, source: &mut S) {
        each!(self, engine => ServingEngine::decode_ahead(engine, steps, source));
    }
}
