use vcr_core::scale::PoolView;

use crate::error::CallFault;
use crate::latest::{Maker, ScalerInstance, Setup};
use crate::limits::Budget;
use crate::sandbox::HostState;
use crate::versions::instance::{Instance, Module, impl_bindings};
use crate::versions::v0_1::generated;

pub(super) use bindings::Autoscaler as Bindings;

generated!("autoscaler");

impl_bindings!(Bindings, bindings::AutoscalerPre<HostState>, (), vcr_guest_scaling);

impl Maker<dyn ScalerInstance> for Module<Bindings> {
    fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn ScalerInstance>, CallFault> {
        Ok(Box::new(self.configured(setup)?))
    }
}

impl ScalerInstance for Instance<Bindings> {
    fn decide(&mut self, view: &PoolView, budget: Budget) -> Result<u32, CallFault> {
        let narrow = |sum_ns: u128| u64::try_from(sum_ns).unwrap_or(u64::MAX);
        let pool = bindings::exports::vcr::guest::scaling::PoolView {
            now_ns: view.now_ns,
            up_engines: view.up_engines,
            starting_engines: view.starting_engines,
            draining_engines: view.draining_engines,
            arrived_requests: view.arrived_requests,
            arrived_prompt_tokens: view.arrived_prompt_tokens,
            arrived_output_tokens: view.arrived_output_tokens,
            completed_requests: view.completed_requests,
            ttft_count: view.ttft_count,
            ttft_sum_ns: narrow(view.ttft_sum_ns),
            queue_count: view.queue_count,
            queue_sum_ns: narrow(view.queue_sum_ns),
            slo_requests: view.slo_requests,
            slo_met_requests: view.slo_met_requests,
            token_gap_count: view.token_gap_count,
            token_gap_sum_ns: narrow(view.token_gap_sum_ns),
            running_requests: view.running_requests,
            waiting_requests: view.waiting_requests,
            active_blocks: view.active_blocks,
            total_blocks: view.total_blocks,
            outstanding_prefill_tokens: view.outstanding_prefill_tokens,
            preemption_count: view.preemption_count,
            engine_usd_per_hour: view.engine_usd_per_hour,
        };
        self.at(view.now_ns).call(budget, |guest, store, ()| guest.vcr_guest_scaling().call_decide(store, pool))
    }
}
