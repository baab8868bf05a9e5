use super::{Instance, Module, impl_bindings};
use crate::error::CallFault;
use crate::latest::{Maker, TokenCall, TokenInstance};
use crate::limits::{Budget, Limits};
use crate::sandbox::HostState;

pub(super) use bindings::TokenSource as Bindings;

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
        world: "token-source",
    });
}

impl_bindings!(Bindings, bindings::TokenSourcePre<HostState>, vcr_guest_tokens);

impl Maker<dyn TokenInstance> for Module<Bindings> {
    fn configure(&self, limits: &Limits, config_json: &str, seed: u64) -> Result<Box<dyn TokenInstance>, CallFault> {
        Ok(Box::new(self.configured(limits, config_json, seed)?))
    }
}

impl TokenInstance for Instance<Bindings> {
    fn step(&mut self, call: &TokenCall, budget: Budget) -> Result<Vec<u32>, CallFault> {
        self.call_fallible(budget, |guest, store| {
            guest.vcr_guest_tokens().call_step(
                store,
                &call.started,
                &call.request_tokens,
                &call.structured_outputs,
                &call.ended,
                &call.wants,
            )
        })
    }
}
