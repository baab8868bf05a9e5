//! Terms of the price of a step.

use vcr_policy::latency::StepShape;

/// Inputs of the terms, summed over the requests of a step. [`StepShape`] documents the fields of the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Requests with a prefill chunk.
    pub prefill_requests: u64,
    /// New tokens of all prefill chunks.
    pub prefill_tokens: u64,
    /// Tokens computed or cached before each prefill chunk, summed.
    pub prefill_context_tokens: u64,
    /// Query-key pairs of all prefill chunks under causal attention.
    pub prefill_attention_pairs: u64,
    /// Tokens of all decodes.
    pub decode_tokens: u64,
    /// Context length of each decode, summed.
    pub decode_context_tokens: u64,
    /// Capacity of the KV blocks that requests refer to, in tokens. Shared blocks count once. [`UNKNOWN_TOKENS`] if
    /// unknown.
    pub kv_distinct_tokens: u64,
    /// Requests that emit a token at the end of the step.
    pub sampled_requests: u64,
}

impl From<&StepShape> for StepWork {
    fn from(shape: &StepShape) -> Self {
        Self {
            prefill_requests: shape.prefill_requests,
            prefill_tokens: shape.prefill_tokens,
            prefill_context_tokens: shape.prefill_context_tokens,
            prefill_attention_pairs: shape.prefill_attention_pairs,
            decode_tokens: shape.decode_tokens,
            decode_context_tokens: shape.decode_context_tokens,
            kv_distinct_tokens: distinct_tokens(shape.kv_active_blocks, shape.block_size_tokens),
            sampled_requests: shape.sampled_requests,
        }
    }
}

/// [`StepWork::kv_distinct_tokens`] if the KV blocks are unknown. No context then counts as shared.
pub const UNKNOWN_TOKENS: u64 = u64::MAX;

/// [`StepWork::kv_distinct_tokens`] of an engine in which requests refer to `active_blocks` KV blocks.
#[must_use]
pub fn distinct_tokens(active_blocks: u64, block_size_tokens: u64) -> u64 {
    match active_blocks.saturating_mul(block_size_tokens) {
        // Every decode has a block, so 0 means that the blocks are unknown.
        0 => UNKNOWN_TOKENS,
        tokens => tokens,
    }
}

/// One term of a step's price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Name of the term in a model file. The coefficient is in nanoseconds for each `unit`.
    pub name: &'static str,
    /// Unit of the amount.
    pub unit: &'static str,
    /// Meaning of the term.
    pub meaning: &'static str,
}

const fn term(name: &'static str, unit: &'static str, meaning: &'static str) -> Term {
    Term { name, unit, meaning }
}

/// Number of terms.
pub const TERM_COUNT: usize = 15;

/// Batch sizes up to which a decode contributes to the terms `decode_up_to_*`.
pub const DECODE_KNOTS: [u64; 3] = [8, 32, 128];

/// The terms `token_above_*` grow from these numbers of tokens in a step.
pub const TOKEN_KNOTS: [u64; 2] = [128, 512];

/// The terms, in the order of [`amounts`].
pub const TERMS: [Term; TERM_COUNT] = [
    term("step", "step", "weights read once, kernel launches, scheduling, the gap between two steps"),
    term("prefill_step", "step with prefill", "no CUDA graph of the whole step, longer scheduling"),
    term("prefill_chunk", "chunk", "a prompt's share of scheduling, block tables, attention metadata"),
    term("token", "token", "a token in a memory-bound step, padded to the sizes of CUDA graphs"),
    term("token_above_128", "token above 128", "compute of a token where weights are reused"),
    term("token_above_512", "token above 512", "compute of a token in a step bound by compute"),
    term("sample", "sampled request", "output head, sampling, output processing"),
    term("decode_up_to_8", "decode, at most 8", "decodes of small batches"),
    term("decode_up_to_32", "decode, at most 32", "decodes of batches up to 32, which use more experts"),
    term("decode_up_to_128", "decode, at most 128", "decodes of batches up to 128, which use more experts"),
    term("decode_context_token", "context token", "KV cache read by a decode, even if it is in the GPU's own cache"),
    term("decode_distinct_token", "context token, a shared one counted once", "KV cache read from memory by decodes"),
    term("prefill_context_token", "context token", "KV cache read by a prefill chunk"),
    term("attention_pair", "query-key pair", "attention of prefill chunks"),
    term("mixed_decode", "decode in a step with prefill", "interaction of decodes with prefill chunks"),
];

/// The amount of each of the [`TERMS`] in a step.
pub type Amounts = [f64; TERM_COUNT];

/// The largest step, in tokens, that vLLM captures as a CUDA graph by default.
const GRAPH_TOKENS_MAX: u64 = 512;

/// Tokens after padding to the sizes that vLLM 0.33 captures by default: 1, 2, 4, then
/// multiples of 8 up to 256 and of 16 up to 512.
fn padded(tokens: u64) -> u64 {
    match tokens {
        0..=2 => tokens,
        3..=4 => 4,
        5..=256 => tokens.next_multiple_of(8),
        257..=GRAPH_TOKENS_MAX => tokens.next_multiple_of(16),
        _ => tokens,
    }
}

/// The amount of each of the [`TERMS`] in `work`.
#[must_use]
#[inline]
pub fn amounts(work: &StepWork) -> Amounts {
    let has_prefill = work.prefill_requests > 0;
    let tokens = work.prefill_tokens.saturating_add(work.decode_tokens);
    let decodes = work.decode_tokens;
    let if_prefill = |amount: u64| if has_prefill { amount as f64 } else { 0.0 };
    let [small, medium, large] = DECODE_KNOTS;
    let [shared, bound] = TOKEN_KNOTS;
    [
        1.0,
        if_prefill(1),
        work.prefill_requests as f64,
        padded(tokens) as f64,
        tokens.saturating_sub(shared) as f64,
        tokens.saturating_sub(bound) as f64,
        work.sampled_requests as f64,
        decodes.min(small) as f64,
        decodes.min(medium) as f64,
        decodes.min(large) as f64,
        work.decode_context_tokens as f64,
        work.decode_context_tokens.min(work.kv_distinct_tokens) as f64,
        work.prefill_context_tokens as f64,
        work.prefill_attention_pairs as f64,
        if_prefill(decodes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steps_are_padded_as_cuda_graphs_are() {
        let sizes = [0, 1, 2, 3, 5, 9, 250, 257, 512, 513, 4096].map(padded);
        assert_eq!(sizes, [0, 1, 2, 4, 8, 16, 256, 272, 512, 513, 4096]);
    }

    #[test]
    fn knots_are_in_the_names() {
        for (knot, term) in DECODE_KNOTS.iter().zip(&TERMS[7..10]) {
            assert!(term.name.ends_with(&alloc::format!("_{knot}")), "{}", term.name);
        }
        for (knot, term) in TOKEN_KNOTS.iter().zip(&TERMS[4..6]) {
            assert!(term.name.ends_with(&alloc::format!("_{knot}")), "{}", term.name);
        }
    }

    #[test]
    fn context_that_requests_share_is_read_once() {
        let of = |active_blocks: u64| {
            let work = StepWork {
                decode_tokens: 4,
                decode_context_tokens: 4 * 100,
                kv_distinct_tokens: distinct_tokens(active_blocks, 16),
                ..StepWork::default()
            };
            let amounts = amounts(&work);
            let of = |name: &str| amounts[TERMS.iter().position(|term| term.name == name).expect("a term")];
            (of("decode_context_token"), of("decode_distinct_token"))
        };
        // Each request has 7 blocks. In the first case no block is shared; in the second, all requests share 6.
        assert_eq!([of(28), of(10), of(0)], [(400.0, 400.0), (400.0, 160.0), (400.0, 400.0)]);
    }

    fn some_work() -> impl Strategy<Value = StepWork> {
        (0..64u64, 0..8192u64, 0..100_000u64, 0..1_000_000u64, 0..512u64, [0..500_000u64, 0..500_000], 0..512u64)
            .prop_map(|(requests, tokens, context, pairs, decodes, [decode_context, distinct], sampled)| StepWork {
                prefill_requests: requests,
                prefill_tokens: if requests > 0 { tokens } else { 0 },
                prefill_context_tokens: context,
                prefill_attention_pairs: pairs,
                decode_tokens: decodes,
                decode_context_tokens: decode_context,
                kv_distinct_tokens: distinct,
                sampled_requests: sampled,
            })
    }

    proptest! {
        #[test]
        fn a_larger_step_has_no_less_of_anything(work in some_work(), more in some_work()) {
            let larger = StepWork {
                prefill_requests: work.prefill_requests + more.prefill_requests,
                prefill_tokens: work.prefill_tokens + more.prefill_tokens,
                prefill_context_tokens: work.prefill_context_tokens + more.prefill_context_tokens,
                prefill_attention_pairs: work.prefill_attention_pairs + more.prefill_attention_pairs,
                decode_tokens: work.decode_tokens + more.decode_tokens,
                decode_context_tokens: work.decode_context_tokens + more.decode_context_tokens,
                kv_distinct_tokens: work.kv_distinct_tokens + more.kv_distinct_tokens,
                sampled_requests: work.sampled_requests + more.sampled_requests,
            };
            for (term, (less, more)) in TERMS.iter().zip(amounts(&work).iter().zip(amounts(&larger))) {
                prop_assert!(*less <= more, "{}", term.name);
            }
        }
    }
}
