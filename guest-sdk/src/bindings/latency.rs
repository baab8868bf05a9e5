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
use crate::{EncoderShape, LatencyGuest, Pricing, StepShape, parse_config};
use exports::vcr::guest::latency::{DecodeRun, Failure, Guest, Step};

wit_bindgen::generate!({
    path: "../wit",
    world: "latency-model",
    with: {
        "vcr:guest/types@0.1.0": crate::bindings::shared::vcr::guest::types,
        "vcr:guest/observe@0.1.0": crate::bindings::shared::vcr::guest::observe,
    },
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::latency",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: LatencyGuest + Exported<Kept = Pricing<G>>> Guest for Component<G> {
    fn configure(config: String, seed: u64) -> Result<(), Failure> {
        Ok(G::slot().configure(|| Ok(Pricing::new(G::configure(parse_config(&config)?, seed)?)))?)
    }

    #[inline]
    fn price_step(start_ns: u64, step: Step) -> Result<f64, Failure> {
        let shape = StepShape {
            prefill_requests: step.prefill_requests,
            prefill_tokens: step.prefill_tokens,
            prefill_context_tokens: step.prefill_context_tokens,
            prefill_attention_pairs: step.prefill_attention_pairs,
            prefill_completions: step.prefill_completions,
            prefill_completion_context_tokens: step.prefill_completion_context_tokens,
            decode_requests: step.decode_requests,
            decode_tokens: step.decode_tokens,
            decode_context_tokens: step.decode_context_tokens,
            sampled_requests: step.sampled_requests,
            kv_active_blocks: step.kv_active_blocks,
            kv_total_blocks: step.kv_total_blocks,
            block_size_tokens: step.block_size_tokens,
            waiting_requests: step.waiting_requests,
            encoder: EncoderShape { embeds: step.encoder_tokens, ..EncoderShape::default() },
            ..StepShape::default()
        };
        Ok(G::slot().with(|pricing| pricing.price_step(start_ns, &shape))?)
    }

    fn price_decodes(start_ns: u64, horizon_ns: u64, run: DecodeRun) -> Result<Vec<f64>, Failure> {
        let first = StepShape {
            decode_requests: run.decode_requests,
            decode_tokens: run.decode_tokens,
            decode_context_tokens: run.first_context_tokens,
            sampled_requests: run.sampled_requests,
            kv_active_blocks: run.kv_active_blocks.first().copied().unwrap_or(0),
            kv_total_blocks: run.kv_total_blocks,
            block_size_tokens: run.block_size_tokens,
            waiting_requests: run.waiting_requests,
            ..StepShape::default()
        };
        Ok(G::slot().with(|pricing| pricing.price_decodes(start_ns, horizon_ns, &first, &run.kv_active_blocks))?)
    }
}
