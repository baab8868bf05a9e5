use vcr_core::latency::StepShape;

use super::{Instance, Module, impl_bindings};
use crate::error::CallFault;
use crate::latest::{LatencyInstance, Maker};
use crate::limits::{Budget, Limits};
use crate::sandbox::HostState;

pub(super) use bindings::LatencyModel as Bindings;

#[allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated code follows the rules of its generator"
)]
mod bindings {
    wasmtime::component::bindgen!({
        path: "../../wit/v0_1",
        world: "latency-model",
    });
}

impl_bindings!(Bindings, bindings::LatencyModelPre<HostState>, vcr_guest_latency);

impl Maker<dyn LatencyInstance> for Module<Bindings> {
    fn configure(&self, limits: &Limits, config_json: &str, seed: u64) -> Result<Box<dyn LatencyInstance>, CallFault> {
        Ok(Box::new(self.configured(limits, config_json, seed)?))
    }
}

impl LatencyInstance for Instance<Bindings> {
    fn price(&mut self, start_ns: u64, horizon_ns: u64, shapes: &[u64], budget: Budget) -> Result<Vec<f64>, CallFault> {
        self.call_fallible(budget, |guest, store| {
            guest.vcr_guest_latency().call_price(store, start_ns, horizon_ns, shapes)
        })
    }

    fn price_step(&mut self, start_ns: u64, shape: &StepShape, budget: Budget) -> Result<f64, CallFault> {
        self.call(budget, |guest, store| {
            guest.vcr_guest_latency().call_price_step(
                store,
                start_ns,
                shape.prefill_requests,
                shape.prefill_tokens,
                shape.prefill_context_tokens,
                shape.prefill_attention_pairs,
                shape.prefill_completions,
                shape.prefill_completion_context_tokens,
                shape.decode_requests,
                shape.decode_tokens,
                shape.decode_context_tokens,
                shape.sampled_requests,
                shape.kv_active_blocks,
                shape.kv_total_blocks,
                shape.block_size_tokens,
                shape.waiting_requests,
            )
        })
    }

    fn trouble(&mut self, budget: Budget) -> Result<String, CallFault> {
        self.call(budget, |guest, store| guest.vcr_guest_latency().call_trouble(store))
    }
}
