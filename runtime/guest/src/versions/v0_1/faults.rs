use super::{Instance, Module, impl_bindings};
use crate::error::CallFault;
use crate::latest::{FaultInstance, Maker};
use crate::limits::{Budget, Limits};
use crate::sandbox::HostState;

pub(super) use bindings::FailureInjector as Bindings;

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
        world: "failure-injector",
    });
}

impl_bindings!(Bindings, bindings::FailureInjectorPre<HostState>, vcr_guest_faults);

impl Maker<dyn FaultInstance> for Module<Bindings> {
    fn configure(&self, limits: &Limits, config_json: &str, seed: u64) -> Result<Box<dyn FaultInstance>, CallFault> {
        Ok(Box::new(self.configured(limits, config_json, seed)?))
    }
}

impl FaultInstance for Instance<Bindings> {
    fn decide(
        &mut self,
        now_ns: u64,
        step: u64,
        events: &[u64],
        texts: &[String],
        budget: Budget,
    ) -> Result<Vec<u64>, CallFault> {
        self.call_fallible(budget, |guest, store| {
            guest.vcr_guest_faults().call_decide(store, now_ns, step, events, texts)
        })
    }
}
