//! Computes the parts of a Dynamo pass that are charged as prefill and as decode.
//!
//! Dynamo executes a pass as a prefill followed by a decode, not as one fused batch. The versions (`dynamo-mocker` 1.4
//! and `aisimulate-core` of 1.6) differ in the requests that the decode part covers, and in how they count occupancy.

use vcr_core::latency::StepShape;

/// The Dynamo version whose rules define the decode part of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PassSemantics {
    /// Every request that emits a token takes part in the decode, even if its prompt just finished, so a first token
    /// costs a prefill and a decode. Occupancy counts distinct resident blocks, each as full, unless the engine is
    /// SGLang's.
    Dynamo1_4,
    /// Only requests past their prompt take part in the decode, including preempted ones. A first token comes from the
    /// prefill itself. Occupancy is the sum of the context lengths of the decodes.
    #[default]
    Dynamo1_6,
}

/// The prefill part of a pass: prompts only. In Dynamo, recomputing outputs after a preemption only costs the request's
/// decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct PrefillLoad {
    pub(crate) requests: u64,
    pub(crate) tokens: u64,
    /// Tokens before the prompt tokens to compute, summed over the requests.
    pub(crate) context_tokens: u64,
}

impl PrefillLoad {
    pub(crate) fn of(shape: &StepShape) -> PrefillLoad {
        let recompute = &shape.recompute;
        PrefillLoad {
            requests: shape.prefill_requests.saturating_sub(recompute.promptless_chunks),
            tokens: shape.prefill_tokens.saturating_sub(recompute.output_tokens),
            context_tokens: shape.prefill_context_tokens.saturating_sub(recompute.promptless_context_tokens),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DecodeLoad {
    /// Occupied KV tokens, as the Dynamo version counts them.
    pub(crate) active_kv_tokens: u64,
    /// Mean context length of the requests in the decode.
    pub(crate) mean_context_tokens: f64,
}

/// The phases that an engine is charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WorkerPhases {
    /// Prefill and decode.
    #[default]
    Both,
    /// Only prompts, as for Dynamo's prefill workers, whose single token comes with the prompt.
    Prefill,
    /// Only decodes, as for Dynamo's decode workers. Recomputing a preempted request costs only its final decode.
    Decode,
}

/// Rules that decide which requests take part in the decode of a pass, and how their KV is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct PassRules {
    pub(crate) semantics: PassSemantics,
    pub(crate) phases: WorkerPhases,
    /// With speculation, 1.6 verifies drafts right after the prompt, so a request that finishes its prompt takes part
    /// in the decode, as in 1.4.
    pub(crate) speculative: bool,
    /// Whether occupancy is the sum of the contexts, whatever the version.
    pub(crate) sums_contexts: bool,
}

impl PassRules {
    /// Whether a shared prefix counts once for each request. The total may then exceed the cache.
    pub(crate) fn counts_shared_prefixes(&self) -> bool {
        self.sums_contexts || self.semantics == PassSemantics::Dynamo1_6
    }

    #[inline]
    pub(crate) fn prefill_load(&self, shape: &StepShape) -> PrefillLoad {
        if self.phases == WorkerPhases::Decode { PrefillLoad::default() } else { PrefillLoad::of(shape) }
    }

    /// Whether, under 1.6, the first token of a prompt comes from a decode in the same pass. This is so in decode
    /// workers, except for SGLang's, because an SGLang pass has either prefills or decodes.
    fn prompts_end_in_decodes(&self) -> bool {
        self.phases == WorkerPhases::Decode && !self.sums_contexts
    }

    /// The decode part of the pass. None if it is not charged.
    #[inline]
    pub(crate) fn decode_load(&self, shape: &StepShape) -> Option<DecodeLoad> {
        if self.phases == WorkerPhases::Prefill {
            return None;
        }
        // Dynamo counts a sequence's tokens at the start of the pass. The shape also counts the drafts computed in it.
        let draft_tokens = shape.decode_tokens.saturating_sub(shape.decode_requests);
        let decode_context_tokens = shape.decode_context_tokens.saturating_sub(draft_tokens);
        let emitting_requests = shape.decode_requests + shape.prefill_completions;
        let emitting_context_tokens = decode_context_tokens + shape.prefill_completion_context_tokens;
        let mean = |tokens: u64, requests: u64| tokens as f64 / requests.max(1) as f64;
        match self.semantics {
            PassSemantics::Dynamo1_4 => (shape.sampled_requests > 0).then(|| DecodeLoad {
                active_kv_tokens: if self.sums_contexts {
                    emitting_context_tokens
                } else {
                    shape.kv_active_blocks * shape.block_size_tokens
                },
                mean_context_tokens: mean(emitting_context_tokens, emitting_requests),
            }),
            PassSemantics::Dynamo1_6 if self.speculative || self.prompts_end_in_decodes() => {
                (shape.sampled_requests > 0).then(|| DecodeLoad {
                    active_kv_tokens: emitting_context_tokens,
                    mean_context_tokens: mean(emitting_context_tokens, emitting_requests),
                })
            }
            PassSemantics::Dynamo1_6 => {
                let requests = shape.decode_requests + shape.recompute.completions;
                let context_tokens = decode_context_tokens + shape.recompute.completion_context_tokens;
                (requests > 0).then(|| DecodeLoad {
                    active_kv_tokens: context_tokens,
                    mean_context_tokens: mean(context_tokens, requests),
                })
            }
        }
    }
}
