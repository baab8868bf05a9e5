//! [`ServingEngine`] for the vLLM engine.

use crate::engine::{Engine, RejectReason};
use crate::kv::event::KvEventLog;
use crate::kv::hash::BlockHash;
use crate::plan::{RemoteLoad, StepOutputs, StepPlan};
use crate::plugins::TokenSource;
use crate::plugins::latency::DecodeSteps;
use crate::request::{RequestId, RequestSpec};
use crate::serving::forward::common_methods;
use crate::serving::{EngineLoad, ServingEngine};
use crate::stats::EngineStats;

/// Implements the trait's methods with the engine's own methods.
macro_rules! forward {
    (ref $(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $out {
            self.$name($($arg),*)
        })*
    };
    (mut $(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(&mut self, $($arg: $type),*) -> $out {
            self.$name($($arg),*)
        })*
    };
}

impl ServingEngine for Engine {
    common_methods!(forward);

    fn live_tags(&self) -> Vec<u64> {
        self.live_tags().collect()
    }

    fn running_tags(&self) -> Vec<u64> {
        self.running_tags().collect()
    }

    fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs {
        self.update(source)
    }

    fn decode_ahead<S: TokenSource + ?Sized>(&mut self, steps: u32, source: &mut S) {
        self.decode_ahead(steps, source);
    }

    fn load(&self) -> EngineLoad {
        EngineLoad {
            num_running: self.num_running(),
            num_waiting: self.num_waiting(),
            num_loading: self.num_loading(),
            outstanding_prefill_tokens: self.outstanding_prefill_tokens(),
            num_active_blocks: self.pool().num_active(),
            num_usable_blocks: self.pool().num_usable(),
        }
    }

    fn proposes_drafts(&self) -> bool {
        self.config().num_speculative_tokens() > 0 && !self.config().async_scheduling()
    }

    fn cached_prefix_blocks(&self, hashes: &[BlockHash]) -> u32 {
        self.cached_prefix_blocks(hashes)
    }

    fn record_kv_events(&mut self, on: bool) {
        self.pool_mut().record_events(on);
    }

    fn kv_events(&self) -> Option<&KvEventLog> {
        self.pool().events()
    }

    fn clear_kv_events(&mut self) {
        self.pool_mut().clear_events();
    }
}
