//! Passes of a drafter, which proposes tokens after each step of the model.
//!
//! Source: `propose` in vLLM's `vllm/v1/spec_decode/llm_base_proposer.py`. The first pass computes all tokens of the
//! step. Each later pass computes one token of each request. Passes run one after another, and the output head of each
//! covers one token of each request. A pass has its own launches and sampling, so it costs the constant time of a step.
//! Measured for Llama 3.1 8B on an H100 (vLLM issue 20780, one request, two to seven drafts): each further draft of
//! EAGLE-3 adds 1.0 ms to a step, each of EAGLE 0.7 ms. Here they add 0.8 and 1.1 ms with the default overhead.

use vcr_policy::latency::StepShape;

use super::{LayeredRoofline, LayeredSpec};
use crate::{Deployment, GpuSpec, RooflineError};

/// A drafter on one GPU. No number is negative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftingSpec {
    /// Maximum number of drafts of a request. Each takes a pass.
    pub drafts: u64,
    /// The layers and the output head of one pass.
    pub pass: LayeredSpec,
    /// 16-bit weights that only the first pass multiplies.
    pub first_weights: f64,
    /// Bytes of `first_weights`.
    pub first_bytes: f64,
}

/// Prices the passes of a drafter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Drafting {
    drafts: u64,
    pass: LayeredRoofline,
    first_weights: f64,
    first_bytes: f64,
}

impl Drafting {
    pub(crate) fn new(spec: DraftingSpec, gpu: &GpuSpec, deployment: &Deployment) -> Result<Self, RooflineError> {
        let DraftingSpec { drafts, pass, first_weights, first_bytes } = spec;
        Ok(Self { drafts, pass: LayeredRoofline::new(pass, gpu, deployment)?, first_weights, first_bytes })
    }

    /// The time of all passes after a step.
    pub(crate) fn ns(&self, work: &StepShape, prefill_requests: u64) -> f64 {
        let requests = prefill_requests.saturating_add(work.decode_requests);
        let passes = self.passes(work);
        if passes == 0 || work.tokens() == 0 {
            return 0.0;
        }
        let mut ns = self.pass.cost_of_pass(work, prefill_requests, requests).total_ns()
            + self.pass.matrix_ns(self.first_weights, self.first_bytes, work.tokens());
        for index in 1..passes {
            ns += self.pass.cost_of_pass(&later_pass(work, requests, index), 0, requests).total_ns();
        }
        ns
    }

    /// Number of passes. vLLM may propose fewer drafts in large batches. The step then verifies fewer drafts, too. A
    /// step that verifies none because it only has prompts is followed by the maximum.
    fn passes(&self, work: &StepShape) -> u64 {
        let verified = work.decode_tokens.saturating_sub(work.decode_requests);
        match work.decode_requests {
            0 => self.drafts,
            requests => verified.div_ceil(requests).min(self.drafts),
        }
    }
}

/// A pass after the first one: one token of each request, whose context has grown by `index` tokens.
fn later_pass(work: &StepShape, requests: u64, index: u64) -> StepShape {
    let contexts = [work.prefill_tokens, work.decode_context_tokens, requests.saturating_mul(index)];
    StepShape {
        decode_requests: requests,
        decode_tokens: requests,
        decode_context_tokens: contexts.into_iter().fold(work.prefill_context_tokens, u64::saturating_add),
        ..StepShape::default()
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;
    use alloc::vec;

    use super::*;
    use crate::{AttentionSpec, QuantisedPeaks, StepCost};

    /// Launches and sampling of a step or pass.
    const OVERHEAD_NS: f64 = 7.0;

    fn model() -> LayeredSpec {
        LayeredSpec {
            layers: 2,
            hidden_size: 8,
            shared_weights: 100.0,
            shared_bytes: 200.0,
            head_weights: 50.0,
            head_bytes: 100.0,
            ..LayeredSpec::default()
        }
    }

    /// A drafter that multiplies 10 weights in each pass, and 5 more in the first.
    fn drafter(drafts: u64) -> DraftingSpec {
        let attention = AttentionSpec { window_tokens: None, kv_bytes_per_token: 4.0, flops_per_pair: 0.0 };
        let pass = LayeredSpec {
            shared_weights: 10.0,
            head_weights: 3.0,
            attention: vec![attention],
            ..LayeredSpec::default()
        };
        DraftingSpec { drafts, pass, first_weights: 5.0, first_bytes: 0.0 }
    }

    /// One FLOP takes 1 ns, and one byte takes 1 ns.
    fn cost(drafting: Option<DraftingSpec>, work: &StepShape) -> StepCost {
        let quantised = QuantisedPeaks::default();
        let gpu = GpuSpec { peak_flops: 2e9, quantised, memory_bytes_per_s: 4e9, interconnect_bytes_per_s: 1e9 };
        let deployment = Deployment {
            tensor_parallel: 1,
            compute_efficiency: 0.5,
            bandwidth_efficiency: 0.25,
            step_overhead_ns: OVERHEAD_NS,
            all_reduce_latency_ns: 5.0,
        };
        let spec = LayeredSpec { drafting: drafting.map(Box::new), ..model() };
        LayeredRoofline::new(spec, &gpu, &deployment).expect("valid").step_cost(work, work.prefill_requests)
    }

    /// Requests with contexts of 100 tokens each, which verify this many drafts.
    fn decodes(requests: u64, drafts: u64) -> StepShape {
        StepShape {
            decode_requests: requests,
            decode_tokens: requests * (1 + drafts),
            decode_context_tokens: requests * 100,
            sampled_requests: requests,
            ..StepShape::default()
        }
    }

    #[test]
    fn each_draft_takes_a_pass() {
        let work = decodes(4, 3);
        // The layers' and the head's arithmetic, cached tokens, the overhead.
        let first = 2.0 * (10.0 + 5.0) * 16.0 + 2.0 * 3.0 * 4.0 + 4.0 * 400.0 + OVERHEAD_NS;
        let later = |context: f64| 2.0 * (10.0 + 3.0) * 4.0 + 4.0 * 4.0 * context + OVERHEAD_NS;
        let drafting_ns = cost(Some(drafter(3)), &work).drafting_ns;
        assert_eq!(drafting_ns, first + later(101.0) + later(102.0));
        assert_eq!(cost(Some(drafter(1)), &decodes(4, 1)).drafting_ns, first - 2.0 * 15.0 * 8.0);
    }

    #[test]
    fn the_other_parts_of_a_step_do_not_change() {
        let work = decodes(4, 3);
        let (without, with) = (cost(None, &work), cost(Some(drafter(3)), &work));
        assert_eq!(StepCost { drafting_ns: 0.0, ..with }, without);
        assert!(with.total_ns() > without.total_ns());
    }

    #[test]
    fn a_larger_drafter_takes_longer() {
        let larger = DraftingSpec { pass: model(), ..drafter(3) };
        let work = decodes(4, 3);
        assert!(cost(Some(larger), &work).drafting_ns > cost(Some(drafter(3)), &work).drafting_ns);
    }

    #[test]
    fn steps_that_verify_no_drafts_and_empty_steps_have_no_passes() {
        assert_eq!(cost(None, &decodes(4, 3)).drafting_ns, 0.0, "n-grams have no layers");
        assert_eq!(cost(Some(drafter(0)), &decodes(4, 0)).drafting_ns, 0.0);
        assert_eq!(cost(Some(drafter(3)), &decodes(4, 0)).drafting_ns, 0.0, "vLLM proposes none in a large batch");
        assert_eq!(cost(Some(drafter(3)), &StepShape::default()).drafting_ns, 0.0);
    }

    #[test]
    fn batches_with_fewer_drafts_have_fewer_passes() {
        let passes = |drafts| cost(Some(drafter(3)), &decodes(4, drafts)).drafting_ns;
        assert_eq!(passes(2), cost(Some(drafter(2)), &decodes(4, 2)).drafting_ns);
        assert!(passes(1) < passes(2) && passes(2) < passes(3));
    }

    #[test]
    fn drafts_follow_a_prompt() {
        let chunk = StepShape { prefill_requests: 1, prefill_tokens: 50, ..StepShape::default() };
        let first = 2.0 * (10.0 + 5.0) * 50.0 + 2.0 * 3.0 + 4.0 * 50.0 + OVERHEAD_NS;
        let later = 2.0 * 13.0 + 4.0 * 51.0 + OVERHEAD_NS;
        assert_eq!(cost(Some(drafter(2)), &chunk).drafting_ns, first + later);
    }
}
