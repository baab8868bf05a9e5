//! The roofline of a model whose layers may differ: routed experts, latent attention, windows, states.

mod drafting;

use alloc::boxed::Box;
use alloc::vec::Vec;

use vcr_policy::latency::StepShape;

use crate::check::check_hardware;
use crate::cost::{ACTIVATION_BYTES, ALL_REDUCES_PER_LAYER, NS_PER_S, count, decode_pairs, head_rows, larger};
use crate::{Arithmetic, Deployment, GpuSpec, RooflineError, StepCost};

use drafting::Drafting;
pub use drafting::DraftingSpec;

/// The part of a model on one GPU, summed over all layers. No number is negative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayeredSpec {
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Weights that are multiplied for every token: all except routed experts and the output head.
    pub shared_weights: f64,
    /// Bytes of the shared weights.
    pub shared_bytes: f64,
    /// Number of shared weights that are quantised and multiplied in `arithmetic`. The others have 16 bits.
    pub quantised_shared_weights: f64,
    /// The arithmetic of quantised weights on a GPU that supports it.
    pub arithmetic: Arithmetic,
    /// Routed experts, if any.
    pub experts: Option<ExpertsSpec>,
    /// Weights of the output head.
    pub head_weights: f64,
    /// Bytes of the output head.
    pub head_bytes: f64,
    /// Attention, with one part for each window size.
    pub attention: Vec<AttentionSpec>,
    /// Bytes of a request's states. Each of its steps reads and writes them.
    pub state_bytes: f64,
    /// The drafter that proposes tokens after each step. It is not part of the other numbers.
    pub drafting: Option<Box<DraftingSpec>>,
}

/// Routed experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Number of experts in a layer.
    pub count: u64,
    /// Number of experts that a token uses.
    pub per_token: u64,
    /// Number of weights of one expert in all layers, as far as they are on this GPU.
    pub weights: f64,
    /// Bytes of `weights`.
    pub bytes: f64,
    /// Number of an expert's weights that are multiplied in the model's `arithmetic`.
    pub quantised_weights: f64,
    /// Number of ranks whose tokens use these experts. All have steps of the same size.
    pub ranks: u64,
}

/// Attention of the layers with one window size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Maximum number of tokens that a query attends to. None means the whole context.
    pub window_tokens: Option<u64>,
    /// Bytes of KV cache of one token.
    pub kv_bytes_per_token: f64,
    /// Floating-point operations of one query-key pair.
    pub flops_per_pair: f64,
}

impl LayeredSpec {
    /// Number of weights in all matrices, including experts and output head.
    #[must_use]
    pub fn weights(&self) -> f64 {
        let experts = self.experts.map_or(0.0, |experts| experts.count as f64 * experts.weights);
        self.shared_weights + experts + self.head_weights
    }

    /// Bytes of all matrices.
    #[must_use]
    pub fn weight_bytes(&self) -> f64 {
        let experts = self.experts.map_or(0.0, |experts| experts.count as f64 * experts.bytes);
        self.shared_bytes + experts + self.head_bytes
    }

    /// Number of weights in the layers that one token is multiplied with.
    #[must_use]
    pub fn weights_per_token(&self) -> f64 {
        let experts = self.experts.map_or(0.0, |experts| experts.per_token as f64 * experts.weights);
        self.shared_weights + experts
    }
}

/// Prices the steps of a model whose layers may differ.
///
/// Uses the formulas of [`Roofline`](crate::Roofline). A step reads the routed experts that at least one of its tokens
/// uses. If each token uses `k` of `n` experts at random, their mean number is `n (1 - (1 - k / n)^tokens)`. A window
/// limits the average context and pairs of the step's requests, because only the sums of a step are known.
#[derive(Clone, Debug, PartialEq)]
pub struct LayeredRoofline {
    spec: LayeredSpec,
    ns_per_flop: f64,
    ns_per_byte: f64,
    /// Number of weights that a token is multiplied with, each scaled by its time relative to a 16-bit weight.
    weights_per_token: f64,
    all_reduce_ns_per_token: f64,
    all_reduce_fixed_ns: f64,
    step_overhead_ns: f64,
    drafting: Option<Box<Drafting>>,
}

impl LayeredRoofline {
    /// Checks the numbers of the hardware and derives the coefficients.
    ///
    /// # Errors
    /// If a quantity is out of range.
    pub fn new(mut spec: LayeredSpec, gpu: &GpuSpec, deployment: &Deployment) -> Result<Self, RooflineError> {
        check_hardware(gpu, deployment)?;
        let drafting = spec.drafting.take().map(|drafting| Drafting::new(*drafting, gpu, deployment)).transpose()?;
        let gpus = deployment.tensor_parallel as f64;
        let layers = spec.layers as f64;
        let all_reduces = if deployment.tensor_parallel > 1 { ALL_REDUCES_PER_LAYER * layers } else { 0.0 };
        let ring_bytes_per_token = 2.0 * (gpus - 1.0) / gpus * spec.hidden_size as f64 * ACTIVATION_BYTES;
        // Each weight is scaled by its time relative to a 16-bit weight.
        let saved = 1.0 - gpu.relative_time(spec.arithmetic);
        let in_time = |weights: f64, quantised: f64| weights - quantised * saved;
        let shared = in_time(spec.shared_weights, spec.quantised_shared_weights);
        let routed = spec
            .experts
            .map_or(0.0, |experts| experts.per_token as f64 * in_time(experts.weights, experts.quantised_weights));
        Ok(Self {
            ns_per_flop: NS_PER_S / (gpu.peak_flops * deployment.compute_efficiency),
            ns_per_byte: NS_PER_S / (gpu.memory_bytes_per_s * deployment.bandwidth_efficiency),
            weights_per_token: shared + routed,
            all_reduce_ns_per_token: all_reduces * ring_bytes_per_token * NS_PER_S / gpu.interconnect_bytes_per_s,
            all_reduce_fixed_ns: all_reduces * deployment.all_reduce_latency_ns,
            step_overhead_ns: deployment.step_overhead_ns,
            drafting: drafting.map(Box::new),
            spec,
        })
    }

    /// The time of one step in nanoseconds, finite and not negative. `prefill_requests` is the number of prefill
    /// chunks.
    #[must_use]
    pub fn step_ns(&self, work: &StepShape, prefill_requests: u64) -> f64 {
        self.step_cost(work, prefill_requests).total_ns()
    }

    /// The time of one step, split into its parts.
    #[must_use]
    pub fn step_cost(&self, work: &StepShape, prefill_requests: u64) -> StepCost {
        let mut cost = self.cost_of_pass(work, prefill_requests, head_rows(work));
        if let Some(drafting) = &self.drafting {
            cost.drafting_ns = drafting.ns(work, prefill_requests);
        }
        cost
    }

    /// The time of one pass through the layers, with the output head over `head_rows` tokens.
    pub(crate) fn cost_of_pass(&self, work: &StepShape, prefill_requests: u64, head_rows: u64) -> StepCost {
        let mut cost = StepCost { overhead_ns: self.step_overhead_ns, ..StepCost::default() };
        let step_tokens = work.prefill_tokens.saturating_add(work.decode_tokens);
        if step_tokens > 0 {
            let tokens = count(step_tokens);
            let experts = self.spec.experts.map_or(0.0, |experts| {
                experts.bytes * used_experts(&experts, step_tokens.saturating_mul(experts.ranks))
            });
            let states = 2.0 * self.spec.state_bytes * count(prefill_requests.saturating_add(work.decode_requests));
            let bytes = self.spec.shared_bytes + experts + states;
            cost.gemm_ns = larger(2.0 * self.weights_per_token * tokens * self.ns_per_flop, bytes * self.ns_per_byte);
            cost.all_reduce_ns = self.all_reduce_ns_per_token * tokens + self.all_reduce_fixed_ns;
            for part in &self.spec.attention {
                let (pairs, kv_tokens) = reached(work, prefill_requests, part.window_tokens);
                cost.attention_ns += larger(
                    part.flops_per_pair * pairs * self.ns_per_flop,
                    part.kv_bytes_per_token * kv_tokens * self.ns_per_byte,
                );
            }
        }
        if head_rows > 0 {
            cost.head_ns = self.matrix_ns(self.spec.head_weights, self.spec.head_bytes, head_rows);
        }
        cost
    }

    /// The time of multiplying `tokens` tokens with 16-bit weights that have this many bytes.
    pub(crate) fn matrix_ns(&self, weights: f64, bytes: f64, tokens: u64) -> f64 {
        larger(2.0 * weights * count(tokens) * self.ns_per_flop, bytes * self.ns_per_byte)
    }
}

/// Query-key pairs and cached tokens of a step in layers with this window.
fn reached(work: &StepShape, prefill_requests: u64, window: Option<u64>) -> (f64, f64) {
    let decoded = decode_pairs(work);
    let prefilled = count(work.prefill_attention_pairs);
    let contexts = count(work.prefill_context_tokens);
    let read = count(work.decode_context_tokens);
    let new = count(work.prefill_tokens);
    let Some(window) = window else { return (prefilled + decoded, contexts + new + read) };
    let window = count(window);
    let decoded = smaller(decoded, window * count(work.decode_tokens));
    let prefilled = smaller(prefilled, window * new);
    let contexts = smaller(contexts, window * count(prefill_requests));
    let read = smaller(read, window * count(work.decode_requests));
    (prefilled + decoded, contexts + new + read)
}

/// The mean number of experts that at least one of `tokens` tokens uses.
fn used_experts(experts: &ExpertsSpec, tokens: u64) -> f64 {
    let all = experts.count as f64;
    if experts.per_token >= experts.count {
        return all;
    }
    all * (1.0 - power(1.0 - experts.per_token as f64 / all, tokens))
}

/// Computes a power by squaring, which gives the same bits on every machine without a mathematics library.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent % 2 == 1 {
            result *= square;
        }
        square *= square;
        exponent /= 2;
    }
    result
}

fn smaller(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::QuantisedPeaks;

    /// One FLOP takes 1 ns, and one byte takes 1 ns.
    fn layered(spec: LayeredSpec) -> LayeredRoofline {
        let quantised = QuantisedPeaks { fp8_flops: Some(4e9), ..QuantisedPeaks::default() };
        let gpu = GpuSpec { peak_flops: 2e9, quantised, memory_bytes_per_s: 4e9, interconnect_bytes_per_s: 1e9 };
        let deployment = Deployment {
            tensor_parallel: 1,
            compute_efficiency: 0.5,
            bandwidth_efficiency: 0.25,
            step_overhead_ns: 7.0,
            all_reduce_latency_ns: 5.0,
        };
        LayeredRoofline::new(spec, &gpu, &deployment).expect("the numbers are valid")
    }

    fn decodes(requests: u64, context: u64) -> StepShape {
        StepShape {
            decode_requests: requests,
            decode_tokens: requests,
            decode_context_tokens: requests * context,
            ..StepShape::default()
        }
    }

    #[test]
    fn a_step_reads_the_experts_that_its_tokens_use() {
        let experts =
            ExpertsSpec { count: 8, per_token: 2, weights: 10.0, bytes: 1_000.0, quantised_weights: 0.0, ranks: 1 };
        let spec = LayeredSpec { experts: Some(experts), shared_bytes: 100.0, ..LayeredSpec::default() };
        let cost = |tokens| layered(spec.clone()).step_cost(&decodes(tokens, 0), 0).gemm_ns;
        assert_eq!(cost(1), 100.0 + 2_000.0);
        // 8 (1 - 0.75^2) = 3.5 experts.
        assert_eq!(cost(2), 100.0 + 3_500.0);
        assert!((cost(100) - 8_100.0).abs() < 1e-6, "all of them: {}", cost(100));
        let of_two_ranks = LayeredSpec { experts: Some(ExpertsSpec { ranks: 2, ..experts }), ..spec.clone() };
        assert_eq!(layered(of_two_ranks).step_cost(&decodes(1, 0), 0).gemm_ns, cost(2));
    }

    #[test]
    fn windows_limit_contexts() {
        let part = AttentionSpec { window_tokens: Some(100), kv_bytes_per_token: 8.0, flops_per_pair: 4.0 };
        let cost = |attention: AttentionSpec, work: &StepShape, chunks| {
            let spec = LayeredSpec { attention: vec![attention], ..LayeredSpec::default() };
            layered(spec).step_cost(work, chunks).attention_ns
        };
        let whole = AttentionSpec { window_tokens: None, ..part };
        assert_eq!(cost(part, &decodes(3, 40), 0), cost(whole, &decodes(3, 40), 0));
        assert_eq!(cost(part, &decodes(3, 4_000), 0), 3.0 * 100.0 * 8.0);
        let chunk = StepShape {
            prefill_tokens: 1_000,
            prefill_context_tokens: 5_000,
            prefill_attention_pairs: 5_500_500,
            ..StepShape::default()
        };
        assert_eq!(cost(part, &chunk, 1), 100.0 * 1_000.0 * 4.0);
        assert_eq!(cost(whole, &chunk, 1), 5_500_500.0 * 4.0);
    }

    #[test]
    fn states_are_read_and_written_by_each_request() {
        let spec = LayeredSpec { state_bytes: 50.0, ..LayeredSpec::default() };
        assert_eq!(layered(spec).step_cost(&decodes(4, 1_000), 0).gemm_ns, 4.0 * 2.0 * 50.0);
    }

    #[test]
    fn quantised_weights_are_multiplied_at_their_peak() {
        let experts =
            ExpertsSpec { count: 4, per_token: 1, weights: 6.0, bytes: 0.0, quantised_weights: 6.0, ranks: 1 };
        let spec = LayeredSpec {
            shared_weights: 10.0,
            quantised_shared_weights: 8.0,
            arithmetic: Arithmetic::Fp8,
            experts: Some(experts),
            head_weights: 3.0,
            attention: vec![AttentionSpec { window_tokens: None, kv_bytes_per_token: 0.0, flops_per_pair: 4.0 }],
            ..LayeredSpec::default()
        };
        let work = StepShape { sampled_requests: 1, ..decodes(1, 7) };
        let cost = |spec: &LayeredSpec| layered(spec.clone()).step_cost(&work, 0);
        // Two FLOPs for each of 2 plain weights, and for each of 14 weights at twice the peak.
        assert_eq!(cost(&spec).gemm_ns, 2.0 * (2.0 + 14.0 / 2.0));
        let plain = LayeredSpec { arithmetic: Arithmetic::Bfloat16, ..spec.clone() };
        assert_eq!(cost(&plain).gemm_ns, 2.0 * 16.0);
        assert_eq!(cost(&LayeredSpec { arithmetic: Arithmetic::Int8, ..spec.clone() }), cost(&plain), "no such peak");
        assert_eq!((cost(&spec).head_ns, cost(&spec).attention_ns), (6.0, 4.0 * 7.0), "computed with 16 bits");
    }
}
