//! Guests made for `vcr:guest@0.1`.

use wasmtime::Store;
use wasmtime::component::{Component, Linker, ResourceAny};

use crate::error::CallFault;
use crate::latest::{LatencyInstance, LatencyModule};
use crate::limits::Limits;
use crate::sandbox::{self, HostState};

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
    pub(crate) fn new(component: &Component) -> Result<Self, String> {
        // Nothing is added to the linker: guests get no imports.
        Linker::new(component.engine())
            .instantiate_pre(component)
            .and_then(bindings::LatencyModelPre::new)
            .map(|prepared| Self { prepared })
            .map_err(|error| format!("{error:#}"))
    }
}

impl LatencyModule for Module {
    fn configure(
        &self,
        limits: &Limits,
        config_json: &str,
        seed: u64,
    ) -> Result<Box<dyn LatencyInstance>, CallFault> {
        let mut store = sandbox::store(self.prepared.engine(), limits);
        let fuel = limits.fuel_per_configure;
        let fault = |error: wasmtime::Error| sandbox::fault(&error, fuel, limits);

        store.set_fuel(fuel).map_err(fault)?;
        let guest = self.prepared.instantiate(&mut store).map_err(fault)?;
        let model = guest
            .vcr_guest_latency()
            .model()
            .call_configure(&mut store, config_json, seed)
            .map_err(fault)?
            .map_err(|reason| CallFault::Rejected { reason })?;
        Ok(Box::new(Instance { store, guest, model, limits: *limits }))
    }
}

struct Instance {
    store: Store<HostState>,
    guest: bindings::LatencyModel,
    /// Never dropped by hand: it ends with the store.
    model: ResourceAny,
    limits: Limits,
}

impl LatencyInstance for Instance {
    fn price(
        &mut self,
        start_ns: u64,
        horizon_ns: u64,
        shapes: &[u64],
        fuel: u64,
    ) -> Result<Vec<f64>, CallFault> {
        let fault = |error: wasmtime::Error| sandbox::fault(&error, fuel, &self.limits);
        self.store.set_fuel(fuel).map_err(fault)?;
        self.guest
            .vcr_guest_latency()
            .model()
            .call_price(&mut self.store, self.model, start_ns, horizon_ns, shapes)
            .map_err(fault)?
            .map_err(|reason| CallFault::Rejected { reason })
    }
}
