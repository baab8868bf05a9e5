//! Guests made for `vcr:guest@0.1`.

use vcr_core::latency::StepShape;
use wasmtime::component::{Component, Linker};
use wasmtime::{Store, Trap};

use crate::error::CallFault;
use crate::latest::{LatencyInstance, LatencyModule};
use crate::limits::Limits;
use crate::sandbox::{self, HostState};
use crate::versions::OpenError;

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

/// A compiled guest, type-checked against the world.
pub(crate) struct Module {
    prepared: bindings::LatencyModelPre<HostState>,
}

impl Module {
    pub(crate) fn new(component: &Component, limits: &Limits) -> Result<Self, OpenError> {
        // Nothing is added to the linker: guests get no imports.
        let prepared = Linker::new(component.engine())
            .instantiate_pre(component)
            .and_then(bindings::LatencyModelPre::new)
            .map_err(|error| OpenError::Unfit(format!("{error:#}")))?;
        let module = Self { prepared };
        // The types of functions are only checked in an instance.
        module.instantiate(limits).map_err(|error| {
            match sandbox::fault(&error, limits.fuel_per_configure, limits) {
                CallFault::Trapped { reason } if !error.is::<Trap>() => OpenError::Unfit(reason),
                fault => OpenError::Fault(fault),
            }
        })?;
        Ok(module)
    }

    fn instantiate(&self, limits: &Limits) -> wasmtime::Result<(Store<HostState>, bindings::LatencyModel)> {
        let mut store = sandbox::store(self.prepared.engine(), limits);
        store.set_fuel(limits.fuel_per_configure)?;
        let guest = self.prepared.instantiate(&mut store)?;
        Ok((store, guest))
    }
}

impl LatencyModule for Module {
    fn configure(&self, limits: &Limits, config_json: &str, seed: u64) -> Result<Box<dyn LatencyInstance>, CallFault> {
        let fuel = limits.fuel_per_configure;
        let fault = |error: wasmtime::Error| sandbox::fault(&error, fuel, limits);

        let (mut store, guest) = self.instantiate(limits).map_err(fault)?;
        guest
            .vcr_guest_latency()
            .call_configure(&mut store, config_json, seed)
            .map_err(fault)?
            .map_err(|reason| CallFault::Rejected { reason })?;
        Ok(Box::new(Instance { store, guest, limits: *limits }))
    }
}

struct Instance {
    store: Store<HostState>,
    guest: bindings::LatencyModel,
    limits: Limits,
}

impl LatencyInstance for Instance {
    fn price(&mut self, start_ns: u64, horizon_ns: u64, shapes: &[u64], fuel: u64) -> Result<Vec<f64>, CallFault> {
        let fault = |error: wasmtime::Error| sandbox::fault(&error, fuel, &self.limits);
        self.store.set_fuel(fuel).map_err(fault)?;
        self.guest
            .vcr_guest_latency()
            .call_price(&mut self.store, start_ns, horizon_ns, shapes)
            .map_err(fault)?
            .map_err(|reason| CallFault::Rejected { reason })
    }

    fn price_step(&mut self, start_ns: u64, shape: &StepShape, fuel: u64) -> Result<f64, CallFault> {
        let fault = |error: wasmtime::Error| sandbox::fault(&error, fuel, &self.limits);
        self.store.set_fuel(fuel).map_err(fault)?;
        self.guest
            .vcr_guest_latency()
            .call_price_step(
                &mut self.store,
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
            .map_err(fault)
    }

    fn trouble(&mut self, fuel: u64) -> Result<String, CallFault> {
        let fault = |error: wasmtime::Error| sandbox::fault(&error, fuel, &self.limits);
        self.store.set_fuel(fuel).map_err(fault)?;
        self.guest.vcr_guest_latency().call_trouble(&mut self.store).map_err(fault)
    }
}
