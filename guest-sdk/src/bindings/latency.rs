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
use crate::{EncoderShape, KvGroup, KvGroupKind, LatencyGuest, Pricing, StepShape, parse_config};
use exports::vcr::guest::latency::{self as wit, DecodeRun, EngineInfo, Failure, Guest};

wit_bindgen::generate!({
    path: "../wit",
    world: "latency-model",
    with: {
        "vcr:guest/types@0.1.0": crate::bindings::shared::vcr::guest::types,
        "vcr:guest/observe@0.1.0": crate::bindings::shared::vcr::guest::observe,
        "vcr:guest/groups@0.1.0": crate::bindings::shared::vcr::guest::groups,
    },
    pub_export_macro: true,
    default_bindings_module: "vcr_guest_sdk::bindings::latency",
});

/// The exported component of a guest.
pub struct Component<G>(PhantomData<G>);

impl<G: LatencyGuest + Exported<Kept = Pricing<G>>> Guest for Component<G> {
    fn configure(config: String, seed: u64, engine: EngineInfo) -> Result<(), Failure> {
        let engine = served(&engine);
        Ok(G::slot().configure(|| Pricing::new(G::configure(parse_config(&config)?, seed)?, engine))?)
    }

    #[inline]
    fn price_step(start_ns: u64, step: wit::StepShape) -> Result<f64, Failure> {
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
            waiting_requests: step.waiting_requests,
            adapter_count: step.adapter_count,
            adapter_tokens: step.adapter_tokens,
            encoder: EncoderShape { embeds: step.encoder_tokens, ..EncoderShape::default() },
            ..StepShape::default()
        };
        Ok(G::slot().with(|pricing| pricing.price_step(start_ns, shape))?)
    }

    fn price_decodes(start_ns: u64, horizon_ns: u64, run: DecodeRun) -> Result<Vec<f64>, Failure> {
        let first = StepShape {
            decode_requests: run.decode_requests,
            decode_tokens: run.decode_tokens,
            decode_context_tokens: run.first_context_tokens,
            sampled_requests: run.sampled_requests,
            kv_active_blocks: run.kv_active_blocks.first().copied().unwrap_or(0),
            waiting_requests: run.waiting_requests,
            adapter_count: run.adapter_count,
            adapter_tokens: run.adapter_tokens,
            ..StepShape::default()
        };
        Ok(G::slot().with(|pricing| pricing.price_decodes(start_ns, horizon_ns, first, &run.kv_active_blocks))?)
    }
}

fn served(engine: &EngineInfo) -> crate::EngineInfo {
    crate::EngineInfo {
        tensor_parallel_size: engine.tensor_parallel_size,
        pipeline_parallel_size: engine.pipeline_parallel_size,
        kv_total_blocks: engine.kv_total_blocks,
        block_size_tokens: engine.block_size_tokens,
        kv_groups: engine.kv_groups.iter().map(group).collect(),
    }
}

fn group(group: &wit::KvGroup) -> KvGroup {
    KvGroup {
        kind: match group.kind {
            wit::KvGroupKind::FullAttention => KvGroupKind::FullAttention,
            wit::KvGroupKind::LatentAttention => KvGroupKind::LatentAttention,
            wit::KvGroupKind::SlidingWindow => KvGroupKind::SlidingWindow,
            wit::KvGroupKind::ChunkedLocal => KvGroupKind::ChunkedLocal,
            wit::KvGroupKind::CrossAttention => KvGroupKind::CrossAttention,
            wit::KvGroupKind::Mamba => KvGroupKind::Mamba,
        },
        block_size_tokens: group.block_size_tokens,
        window_tokens: group.window_tokens,
    }
}
