use vcr_policy::latency::StepShape;

use crate::check::check;
use crate::{Deployment, GpuSpec, RooflineError, TransformerSpec};

/// The parts of one step's time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// The weight GEMMs of all layers.
    pub gemm_ns: f64,
    /// Attention of all layers.
    pub attention_ns: f64,
    /// The output head.
    pub head_ns: f64,
    /// The all-reduces of all layers.
    pub all_reduce_ns: f64,
    /// The constant cost of every step.
    pub overhead_ns: f64,
    /// The passes of a drafter.
    pub drafting_ns: f64,
}

impl StepCost {
    /// The time of the step. The order of the additions affects the result's bits.
    #[must_use]
    #[inline]
    pub fn total_ns(&self) -> f64 {
        self.gemm_ns + self.attention_ns + self.head_ns + self.all_reduce_ns + self.overhead_ns + self.drafting_ns
    }
}

/// A model on its GPUs, reduced to the coefficients that price a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    gemm_compute_ns_per_token: f64,
    gemm_memory_ns: f64,
    attention_compute_ns_per_pair: f64,
    attention_memory_ns_per_token: f64,
    head_compute_ns_per_row: f64,
    head_memory_ns: f64,
    all_reduce_ns_per_token: f64,
    all_reduce_fixed_ns: f64,
    step_overhead_ns: f64,
}

pub(crate) const NS_PER_S: f64 = 1e9;

/// Bytes of an activation sent between GPUs: bf16, also with quantised weights.
pub(crate) const ACTIVATION_BYTES: f64 = 2.0;

/// One all-reduce after attention and one after the MLP.
pub(crate) const ALL_REDUCES_PER_LAYER: f64 = 2.0;

impl Roofline {
    /// Checks the numbers and derives the coefficients.
    ///
    /// # Errors
    /// If a quantity is out of range or the heads cannot be split evenly over the GPUs. As in vLLM, `tensor_parallel`
    /// may also be a multiple of `kv_heads`: KV heads are then repeated.
    pub fn new(model: &TransformerSpec, gpu: &GpuSpec, deployment: &Deployment) -> Result<Self, RooflineError> {
        check(model, gpu, deployment)?;

        let gpus = deployment.tensor_parallel as f64;
        let layers = model.layers as f64;
        let ns_per_flop = NS_PER_S / (gpu.peak_flops * deployment.compute_efficiency);
        let ns_per_byte = NS_PER_S / (gpu.memory_bytes_per_s * deployment.bandwidth_efficiency);

        let layer_weights_per_gpu = layers * model.layer_weights() / gpus;
        let head_weights_per_gpu = model.hidden_size as f64 * model.vocab_size as f64 / gpus;
        let query_width_per_gpu = (model.attention_heads as f64 * model.head_dim as f64) / gpus;
        // With more GPUs than key-value heads, each GPU keeps one whole head.
        let kv_heads_per_gpu = (model.kv_heads as f64 / gpus).max(1.0);
        let kv_bytes_per_token = 2.0 * layers * kv_heads_per_gpu * model.head_dim as f64 * model.kv_bytes;

        let all_reduces = if deployment.tensor_parallel > 1 { ALL_REDUCES_PER_LAYER * layers } else { 0.0 };
        let ring_bytes_per_token = 2.0 * (gpus - 1.0) / gpus * model.hidden_size as f64 * ACTIVATION_BYTES;

        Ok(Self {
            gemm_compute_ns_per_token: 2.0 * layer_weights_per_gpu * ns_per_flop * gpu.relative_time(model.arithmetic),
            gemm_memory_ns: layer_weights_per_gpu * model.weight_bytes * ns_per_byte,
            attention_compute_ns_per_pair: 4.0 * query_width_per_gpu * layers * ns_per_flop,
            attention_memory_ns_per_token: kv_bytes_per_token * ns_per_byte,
            head_compute_ns_per_row: 2.0 * head_weights_per_gpu * ns_per_flop,
            head_memory_ns: head_weights_per_gpu * model.head_weight_bytes() * ns_per_byte,
            all_reduce_ns_per_token: all_reduces * ring_bytes_per_token * NS_PER_S / gpu.interconnect_bytes_per_s,
            all_reduce_fixed_ns: all_reduces * deployment.all_reduce_latency_ns,
            step_overhead_ns: deployment.step_overhead_ns,
        })
    }

    /// The time of one step in nanoseconds, finite and not negative.
    #[must_use]
    #[inline]
    pub fn step_ns(&self, work: &StepShape) -> f64 {
        self.step_cost(work).total_ns()
    }

    /// The time of one step, split into its parts.
    #[must_use]
    #[inline]
    pub fn step_cost(&self, work: &StepShape) -> StepCost {
        let mut cost = StepCost { overhead_ns: self.step_overhead_ns, ..StepCost::default() };

        let tokens = count(work.prefill_tokens.saturating_add(work.decode_tokens));
        // A step without tokens launches no kernel, so it reads no weights.
        if tokens > 0.0 {
            cost.gemm_ns = larger(self.gemm_compute_ns_per_token * tokens, self.gemm_memory_ns);
            cost.all_reduce_ns = self.all_reduce_ns_per_token * tokens + self.all_reduce_fixed_ns;

            let pairs = count(work.prefill_attention_pairs) + decode_pairs(work);
            let kv_tokens = count(
                work.prefill_context_tokens
                    .saturating_add(work.prefill_tokens)
                    .saturating_add(work.decode_context_tokens),
            );
            cost.attention_ns =
                larger(self.attention_compute_ns_per_pair * pairs, self.attention_memory_ns_per_token * kv_tokens);
        }
        let rows = head_rows(work);
        if rows > 0 {
            cost.head_ns = larger(self.head_compute_ns_per_row * count(rows), self.head_memory_ns);
        }
        cost
    }
}

/// Number of tokens for which the output head is computed: the last one of each request that samples, and each verified
/// draft.
#[inline]
pub(crate) fn head_rows(work: &StepShape) -> u64 {
    work.sampled_requests.saturating_add(work.decode_tokens.saturating_sub(work.decode_requests))
}

/// Query-key pairs of the decodes. With speculation, each of a request's tokens attends to (nearly) the whole context.
/// The sums only give the mean number of tokens.
#[inline]
pub(crate) fn decode_pairs(work: &StepShape) -> f64 {
    let pairs_of_one_each = count(work.decode_context_tokens);
    if work.decode_tokens == work.decode_requests || work.decode_requests == 0 {
        return pairs_of_one_each;
    }
    pairs_of_one_each * (count(work.decode_tokens) / count(work.decode_requests))
}

/// Converts a count to a double. Processors convert signed integers in one instruction and unsigned integers in many,
/// and every step executes this function. Counts from 2^63 on, which no step has, become 2^63. The check is on the
/// double, because a compiler turns a check of the integer's sign back into an unsigned conversion.
#[inline]
pub(crate) fn count(value: u64) -> f64 {
    let number = value.cast_signed() as f64;
    if number < 0.0 { COUNT_MAX } else { number }
}

const COUNT_MAX: f64 = 9_223_372_036_854_775_808.0;

/// The larger of two numbers that are not NaN. `f64::max` handles NaN, for which WebAssembly has no instruction, so it
/// becomes a function call there.
pub(crate) fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::Gpu;
    use crate::{Arithmetic, QuantisedPeaks, presets};

    /// Round numbers, so that every expected value can be computed by hand.
    fn tiny() -> (TransformerSpec, GpuSpec, Deployment) {
        let model = TransformerSpec {
            layers: 2,
            hidden_size: 8,
            intermediate_size: 16,
            attention_heads: 4,
            kv_heads: 2,
            head_dim: 2,
            vocab_size: 100,
            weight_bytes: 2.0,
            kv_bytes: 2.0,
            arithmetic: Arithmetic::default(),
        };
        let gpu = GpuSpec {
            peak_flops: 2e9,
            quantised: QuantisedPeaks::default(),
            memory_bytes_per_s: 4e9,
            interconnect_bytes_per_s: 1e9,
        };
        let deployment = Deployment {
            tensor_parallel: 1,
            compute_efficiency: 0.5,
            bandwidth_efficiency: 0.25,
            step_overhead_ns: 7.0,
            all_reduce_latency_ns: 5.0,
        };
        // One FLOP takes 1 ns, and one byte takes 1 ns.
        (model, gpu, deployment)
    }

    fn roofline() -> Roofline {
        let (model, gpu, deployment) = tiny();
        Roofline::new(&model, &gpu, &deployment).expect("the numbers are valid")
    }

    #[test]
    fn weights_are_counted_as_published() {
        let (model, ..) = tiny();
        // q and o: 8 * 8 each; k and v: 8 * 4 each; MLP: 3 * 8 * 16.
        assert_eq!(model.layer_weights(), 64.0 + 64.0 + 32.0 + 32.0 + 384.0);

        // Llama 3.1 8B has 8.03e9 parameters, input embedding included.
        let llama = presets::model("llama-3.1-8b").expect("a preset");
        let embedding = llama.hidden_size as f64 * llama.vocab_size as f64;
        let total = llama.layers as f64 * llama.layer_weights() + 2.0 * embedding;
        assert!((total - 8.03e9).abs() < 0.005e9, "{total}");
        // 128 KiB of bf16 cache for each token.
        assert_eq!(llama.kv_bytes_per_token(), 131_072.0);
    }

    #[test]
    fn a_small_decode_step_reads_the_weights() {
        let work = StepShape {
            decode_requests: 1,
            decode_tokens: 1,
            decode_context_tokens: 10,
            sampled_requests: 1,
            ..StepShape::default()
        };
        let cost = roofline().step_cost(&work);
        // 2 layers * 576 weights: 2 FLOPs and 2 bytes each; both take the same time.
        assert_eq!(cost.gemm_ns, 2304.0);
        // Pairs: 4 * 8 * 2 layers * 10 = 640; bytes: 2 * 2 * 2 * 2 * 2 * 10 = 320.
        assert_eq!(cost.attention_ns, 640.0);
        // 800 weights, 2 FLOPs and 2 bytes each.
        assert_eq!(cost.head_ns, 1600.0);
        assert_eq!(cost.all_reduce_ns, 0.0);
        assert_eq!(cost.total_ns(), 2304.0 + 640.0 + 1600.0 + 7.0);
    }

    #[test]
    fn a_prefill_step_is_bound_by_arithmetic() {
        let work = StepShape {
            prefill_tokens: 4,
            prefill_context_tokens: 100,
            prefill_attention_pairs: 410,
            ..StepShape::default()
        };
        let cost = roofline().step_cost(&work);
        assert_eq!(cost.gemm_ns, 4.0 * 2304.0);
        assert_eq!(cost.attention_ns, 64.0 * 410.0);
        assert_eq!(cost.head_ns, 0.0);
    }

    #[test]
    fn a_long_context_is_bound_by_the_cache() {
        let (mut model, gpu, deployment) = tiny();
        model.kv_bytes = 8.0;
        let roofline = Roofline::new(&model, &gpu, &deployment).expect("valid");
        let work =
            StepShape { decode_requests: 1, decode_tokens: 1, decode_context_tokens: 1_000, ..StepShape::default() };
        // 2 layers * (key and value) * 2 heads * 2 channels * 8 bytes = 128 bytes a token.
        assert_eq!(roofline.step_cost(&work).attention_ns, 128_000.0);
    }

    #[test]
    fn speculation_multiplies_the_pairs() {
        let plain =
            StepShape { decode_requests: 2, decode_tokens: 2, decode_context_tokens: 50, ..StepShape::default() };
        let speculative = StepShape { decode_tokens: 8, ..plain };
        let (a, b) = (roofline().step_cost(&plain), roofline().step_cost(&speculative));
        assert_eq!(b.attention_ns, 4.0 * a.attention_ns);
    }

    #[test]
    fn verified_drafts_go_through_the_output_head() {
        let head_ns = |decode_tokens, sampled_requests| {
            let work = StepShape { decode_requests: 2, decode_tokens, sampled_requests, ..StepShape::default() };
            roofline().step_cost(&work).head_ns
        };
        // 800 weights, 2 FLOPs for each row.
        assert_eq!(head_ns(2, 2), 2.0 * 1600.0);
        assert_eq!(head_ns(8, 2), 8.0 * 1600.0);
        assert_eq!(head_ns(2, 0), 0.0, "no request samples");
    }

    #[test]
    fn tensor_parallelism_splits_work_and_adds_rings() {
        let (model, gpu, mut deployment) = tiny();
        deployment.tensor_parallel = 4;
        let split = Roofline::new(&model, &gpu, &deployment).expect("4 heads over 4 GPUs");
        let work =
            StepShape { prefill_tokens: 10, prefill_attention_pairs: 55, sampled_requests: 1, ..StepShape::default() };
        let cost = split.step_cost(&work);
        assert_eq!(cost.gemm_ns, 10.0 * 2304.0 / 4.0);
        assert_eq!(cost.attention_ns, 64.0 * 55.0 / 4.0);
        assert_eq!(cost.head_ns, 400.0);
        // 4 all-reduces; 2 * 3/4 * 8 * 2 = 24 bytes a token at 1 byte/ns, 5 ns each.
        assert_eq!(cost.all_reduce_ns, 4.0 * (24.0 * 10.0 + 5.0));
    }

    #[test]
    fn key_value_heads_are_repeated_beyond_their_number() {
        let (mut model, gpu, mut deployment) = tiny();
        deployment.tensor_parallel = 4;
        model.kv_bytes = 1e6;
        let split = Roofline::new(&model, &gpu, &deployment).expect("4 GPUs over 2 heads");
        let work = StepShape { prefill_tokens: 1, ..StepShape::default() };
        // One head of 2 channels, key and value, 2 layers: 8 elements.
        assert_eq!(split.step_cost(&work).attention_ns, 8e6);
    }

    #[test]
    fn an_empty_step_costs_its_overhead() {
        assert_eq!(roofline().step_ns(&StepShape::default()), 7.0);
    }

    #[test]
    fn llama_8b_on_h100_decodes_at_a_believable_rate() {
        let llama = presets::model("llama-3.1-8b").expect("a preset");
        let h100 = Gpu::named("h100-sxm").expect("a preset").spec;
        let roofline = Roofline::new(&llama, &h100, &Deployment::default()).expect("valid");
        let work = StepShape {
            decode_requests: 1,
            decode_tokens: 1,
            decode_context_tokens: 1_000,
            sampled_requests: 1,
            ..StepShape::default()
        };
        // 7.5e9 weights * 2 bytes / (0.8 * 3.35e12 bytes/s) = 5.6 ms, and 0.5 ms overhead.
        let step_ms = roofline.step_ns(&work) / 1e6;
        assert!((6.0..6.3).contains(&step_ms), "{step_ms}");
    }

    #[test]
    fn counts_beyond_signed_numbers_are_taken_for_the_first_of_them() {
        assert_eq!(count(0), 0.0);
        assert_eq!(count(3_000_000_000), 3e9);
        assert_eq!(count(1 << 62), 2f64.powi(62));
        for huge in [1 << 63, (1 << 63) + 1, u64::MAX] {
            assert_eq!(count(huge), 2f64.powi(63));
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let (model, gpu, deployment) = tiny();
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            let gpu = GpuSpec { peak_flops: bad, ..gpu };
            let error = Roofline::new(&model, &gpu, &deployment).expect_err("not a rate");
            assert!(matches!(error, RooflineError::OutOfRange { field: "peak_flops", .. }));
        }
        let zero = TransformerSpec { layers: 0, ..model };
        assert!(Roofline::new(&zero, &gpu, &deployment).is_err());
    }
}
