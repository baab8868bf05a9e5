#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated code follows the rules of its generator"
)]

use alloc::string::String;
use alloc::vec::Vec;
use core::marker::PhantomData;

use super::Exported;
use crate::{LatencyGuest, Pricing, parse_config};
use exports::vcr::guest::latency::Guest;

wit_bindgen::generate!({
    path: "../wit/v0_2",
    world: "latency-model",
    with: { "vcr:guest/observe@0.2.0": crate::bindings::observe::vcr::guest::observe },
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::latency",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: LatencyGuest + Exported<Kept = Pricing<G>>> Guest for Component<G> {
    fn configure(config: String, seed: u64) -> Result<(), String> {
        G::slot().configure(|| Ok(Pricing::new(G::configure(parse_config(&config)?, seed)?)))
    }

    fn price(start_ns: u64, horizon_ns: u64, shapes: Vec<u64>) -> Result<Vec<f64>, String> {
        G::slot().with(|pricing| pricing.price(start_ns, horizon_ns, &shapes))
    }

    #[inline]
    fn price_step(
        start_ns: u64,
        prefill_requests: u64,
        prefill_tokens: u64,
        prefill_context_tokens: u64,
        prefill_attention_pairs: u64,
        prefill_completions: u64,
        prefill_completion_context_tokens: u64,
        decode_requests: u64,
        decode_tokens: u64,
        decode_context_tokens: u64,
        sampled_requests: u64,
        kv_active_blocks: u64,
        kv_total_blocks: u64,
        block_size_tokens: u64,
        waiting_requests: u64,
    ) -> f64 {
        let words = [
            prefill_requests,
            prefill_tokens,
            prefill_context_tokens,
            prefill_attention_pairs,
            prefill_completions,
            prefill_completion_context_tokens,
            decode_requests,
            decode_tokens,
            decode_context_tokens,
            sampled_requests,
            kv_active_blocks,
            kv_total_blocks,
            block_size_tokens,
            waiting_requests,
        ];
        // A host that has not configured the guest learns why from `trouble`.
        G::slot().with(|pricing| Ok(pricing.price_step(start_ns, &words))).unwrap_or(f64::NAN)
    }

    fn trouble() -> String {
        G::slot().with(|pricing| Ok(pricing.trouble())).unwrap_or_else(|words| words)
    }
}
