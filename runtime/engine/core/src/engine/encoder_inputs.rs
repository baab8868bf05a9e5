//! Multimodal items of requests, and the encoder work of a step.

use crate::config::EngineConfig;
use crate::encoder::{Encoder, EncoderCacheUse, PromptItem};
use crate::engine::Engine;
use crate::engine::schedule::Scan;
use crate::plan::StepPlan;
use crate::request::{Flags, RequestId};

#[derive(Debug, Default)]
pub(super) struct EncoderInputs {
    encoder: Option<Box<Encoder>>,
}

impl EncoderInputs {
    pub(super) fn enter(&mut self, id: RequestId, items: Vec<PromptItem>, config: &EngineConfig) {
        self.encoder.get_or_insert_with(|| Box::new(Encoder::new(config))).enter(id, items);
    }

    /// Whether a request with items has arrived.
    #[inline]
    pub(super) fn has_come(&self) -> bool {
        self.encoder.is_some()
    }

    #[inline]
    pub(super) fn budget_embeds(&self) -> u32 {
        self.encoder.as_ref().map_or(0, |encoder| encoder.budget_embeds())
    }

    #[inline]
    pub(super) fn list_evicted(&mut self, plan: &mut StepPlan) {
        if let Some(encoder) = &mut self.encoder {
            encoder.list_evicted(plan);
        }
    }

    /// Embeddings that the latest chunk computes and cross-attention layers keep.
    pub(super) fn decided_embeds(&self, id: RequestId) -> u32 {
        self.encoder.as_ref().map_or(0, |encoder| encoder.decided_embeds(id))
    }

    pub(super) fn release(&mut self, id: RequestId) {
        if let Some(encoder) = &mut self.encoder {
            encoder.release(id);
        }
    }

    pub(super) fn forget(&mut self, id: RequestId) {
        if let Some(encoder) = &mut self.encoder {
            encoder.forget(id);
        }
    }
}

impl Engine {
    /// Usage of the encoder cache; zero before a request with multimodal items has arrived.
    #[must_use]
    pub fn encoder_cache_use(&self) -> EncoderCacheUse {
        let encoder = self.encoder_inputs.encoder.as_ref();
        encoder.map_or_else(EncoderCacheUse::default, |encoder| encoder.cache_use())
    }

    /// Clears the encoder cache (vLLM's `reset_encoder_cache`). Running requests keep their encoder
    /// outputs.
    pub fn reset_encoder_cache(&mut self) {
        if let Some(encoder) = &mut self.encoder_inputs.encoder {
            encoder.reset();
        }
    }

    /// The part of a chunk that the encoder allows; see [`Encoder::cut_chunk`].
    #[cold]
    pub(super) fn cut_to_encoder(&mut self, id: RequestId, computed: u32, tokens: u32, scan: &Scan) -> u32 {
        let Some(encoder) = &mut self.encoder_inputs.encoder else { return tokens };
        encoder.cut_chunk(id, computed, tokens, scan.encoder_budget)
    }

    /// Schedules the encoder inputs of the chunk that was just added to the plan.
    #[cold]
    pub(super) fn commit_to_encoder(&mut self, id: RequestId, plan: &mut StepPlan, scan: &mut Scan) {
        let Some(encoder) = &mut self.encoder_inputs.encoder else { return };
        if let Some(left) = encoder.commit(id, self.requests[id].tag, plan, &mut self.stats.encoder) {
            scan.encoder_budget = left;
        }
    }

    /// Drops references to items that no later step needs, even if drafts are rejected.
    pub(super) fn pass_items(&mut self, id: RequestId) {
        let request = &mut self.requests[id];
        if !request.flags.has(Flags::NEEDS_ENCODER) {
            return;
        }
        let unknown = if self.config.is_encoder_decoder() { 0 } else { request.num_output_placeholders };
        let processed = request.num_computed_tokens.saturating_sub(u32::from(unknown));
        if let Some(encoder) = &mut self.encoder_inputs.encoder {
            request.flags.set(Flags::NEEDS_ENCODER, !encoder.pass(id, processed));
        }
    }

    /// Drops the references of a preempted request, which needs all of its items again.
    pub(super) fn preempt_items(&mut self, id: RequestId) {
        if let Some(encoder) = &mut self.encoder_inputs.encoder {
            let has_items = encoder.release(id);
            self.requests[id].flags.set(Flags::NEEDS_ENCODER, has_items);
        }
    }
}
