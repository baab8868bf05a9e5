#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated code follows the rules of its generator"
)]

use alloc::string::String;
use core::marker::PhantomData;

use super::Exported;
use crate::{PoolView, ScalerGuest, parse_config};
use exports::vcr::guest::scaling::{self as wit, Failure, Guest};

wit_bindgen::generate!({
    path: "../wit",
    world: "autoscaler",
    with: {
        "vcr:guest/types@0.1.0": crate::bindings::shared::vcr::guest::types,
        "vcr:guest/observe@0.1.0": crate::bindings::shared::vcr::guest::observe,
    },
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::scaling",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: ScalerGuest + Exported<Kept = G>> Guest for Component<G> {
    fn configure(config: String, seed: u64) -> Result<(), Failure> {
        Ok(G::slot().configure(|| G::configure(parse_config(&config)?, seed))?)
    }

    fn decide(pool: wit::PoolView) -> Result<u32, Failure> {
        Ok(G::slot().with(|guest| guest.desired(&seen(&pool)))?)
    }
}

fn seen(pool: &wit::PoolView) -> PoolView {
    PoolView {
        now_ns: pool.now_ns,
        up_engines: pool.up_engines,
        starting_engines: pool.starting_engines,
        draining_engines: pool.draining_engines,
        arrived_requests: pool.arrived_requests,
        arrived_prompt_tokens: pool.arrived_prompt_tokens,
        arrived_output_tokens: pool.arrived_output_tokens,
        completed_requests: pool.completed_requests,
        ttft_count: pool.ttft_count,
        ttft_sum_ns: pool.ttft_sum_ns.into(),
        queue_count: pool.queue_count,
        queue_sum_ns: pool.queue_sum_ns.into(),
        slo_requests: pool.slo_requests,
        slo_met_requests: pool.slo_met_requests,
        token_gap_count: pool.token_gap_count,
        token_gap_sum_ns: pool.token_gap_sum_ns.into(),
        running_requests: pool.running_requests,
        waiting_requests: pool.waiting_requests,
        active_blocks: pool.active_blocks,
        total_blocks: pool.total_blocks,
        outstanding_prefill_tokens: pool.outstanding_prefill_tokens,
        preemption_count: pool.preemption_count,
        engine_usd_per_hour: pool.engine_usd_per_hour,
    }
}
