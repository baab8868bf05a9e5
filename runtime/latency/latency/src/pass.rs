//! Parts of a Dynamo pass that are charged as prefill and as decode.
//!
//! Dynamo executes a pass as a prefill followed by a decode, not as one fused
//! batch. Which requests the decode part covers, and how it measures occupancy,
//! changed between its versions (`dynamo-mocker` 1.4 and `aisimulate-core` of
//! 1.6).

use vcr_core::latency::StepShape;

/// Whose rules decide what the decode part of a pass covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PassSemantics {
    /// Every request that emits a token takes part in the decode, also one whose
    /// prompt just finished, so a first token costs a prefill and a decode.
    /// Occupancy counts distinct resident blocks, each in full, unless the
    /// engine is SGLang's.
    Dynamo1_4,
    /// Only requests past their prompt take part in the decode, those that were
    /// preempted included; a first token comes out of the prefill itself. Occupancy is the sum of the context
    /// lengths of the decodes.
    #[default]
    Dynamo1_6,
}

/// The prefill part of a pass: prompts alone. What is computed again of outputs
/// after a preemption costs Dynamo nothing but its request's decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct PrefillLoad {
    /// Requests with prompt tokens to compute.
    pub(crate) requests: u64,
    /// Prompt tokens to compute.
    pub(crate) tokens: u64,
    /// Tokens before them, summed.
    pub(crate) context_tokens: u64,
}

impl PrefillLoad {
    /// The prefill part of the pass.
    pub(crate) fn of(shape: &StepShape) -> PrefillLoad {
        let recompute = &shape.recompute;
        PrefillLoad {
            requests: shape.prefill_requests.saturating_sub(recompute.promptless_chunks),
            tokens: shape.prefill_tokens.saturating_sub(recompute.output_tokens),
            context_tokens: shape.prefill_context_tokens.saturating_sub(recompute.promptless_context_tokens),
        }
    }
}

/// The decode part of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DecodeLoad {
    /// Occupied KV tokens, as the version counts them.
    pub(crate) active_kv_tokens: u64,
    /// Mean context length of the requests that take part.
    pub(crate) mean_context_tokens: f64,
}

/// Phases that an engine is charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WorkerPhases {
    /// All that it does.
    #[default]
    Both,
    /// Prompts alone, as Dynamo's prefill workers: their one token comes with the prompt.
    Prefill,
    /// Decodes alone, as Dynamo's decode workers: what they compute again of a request
    /// that was preempted costs nothing but the decode that it ends in.
    Decode,
}

/// Requests that take part in the decode of a pass, and their KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct PassRules {
    pub(crate) semantics: PassSemantics,
    pub(crate) phases: WorkerPhases,
    /// With speculation 1.6 verifies drafts right after the prompt, so that a
    /// finishing prompt takes part in the decode as in 1.4.
    pub(crate) speculative: bool,
    /// Whether occupancy is the sum of the contexts whatever the version.
    pub(crate) sums_contexts: bool,
}

impl PassRules {
    /// Whether a shared prefix counts once for each request, so that there may
    /// be more of it than the cache holds.
    pub(crate) fn counts_shared_prefixes(&self) -> bool {
        self.sums_contexts || self.semantics == PassSemantics::Dynamo1_6
    }

    /// The prefill part of the pass.
    #[inline]
    pub(crate) fn prefill_load(&self, shape: &StepShape) -> PrefillLoad {
        if self.phases == WorkerPhases::Decode { PrefillLoad::default() } else { PrefillLoad::of(shape) }
    }

    /// Whether under 1.6 the first token of a prompt comes of a decode in the same pass:
    /// in decode workers, but for SGLang's, where passes prefill or decode.
    fn prompts_end_in_decodes(&self) -> bool {
        self.phases == WorkerPhases::Decode && !self.sums_contexts
    }

    /// The decode part of the pass, or `None` if nothing is charged for it.
    #[inline]
    pub(crate) fn decode_load(&self, shape: &StepShape) -> Option<DecodeLoad> {
        if self.phases == WorkerPhases::Prefill {
            return None;
        }
        // Dynamo counts the tokens a sequence has when the pass starts, while
        // the shape also counts the drafts computed in it.
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
