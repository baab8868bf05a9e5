//! The latency model with constant times.

use crate::duration::STEP_NS_MAX;
use crate::pass::{PassRules, PassSemantics, WorkerPhases};
use crate::problem::{ConfigProblem, InvalidConfig, Problems};
use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, price_until_horizon};

/// The constants of a [`Fixed`] model, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedInput {
    /// Every step takes the same time.
    Step {
        /// Duration of a step.
        step_ns: u64,
    },
    /// A step takes one time if it prefills, another if it decodes, and the sum of both if it does both.
    Phases {
        /// Duration of the prefill part.
        prefill_ns: u64,
        /// Duration of the decode part.
        decode_ns: u64,
    },
    /// Like `Phases`, for passes as Dynamo counts them: recomputed outputs cost nothing, and the Dynamo version decides
    /// which requests decode.
    Passes {
        /// Duration of the prefill part.
        prefill_ns: u64,
        /// Duration of the decode part.
        decode_ns: u64,
        /// Dynamo version whose rules decide the decode part of a pass.
        semantics: PassSemantics,
        /// Phases that an engine of a disaggregated cluster is charged for.
        phases: WorkerPhases,
        /// Whether the engine drafts tokens (see
        /// [`PolynomialInput::speculative`](crate::PolynomialInput::speculative)).
        speculative: bool,
        /// Whether the engine is SGLang's (see
        /// [`PolynomialInput::sums_contexts`](crate::PolynomialInput::sums_contexts)).
        sums_contexts: bool,
    },
}

/// A latency model of constants, whose results can be checked by hand. Constants of 0 are allowed: virtual time then
/// stands still while tokens are generated.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    input: FixedInput,
}

impl Fixed {
    /// Checks the constants.
    ///
    /// # Errors
    /// Every constant above [`STEP_NS_MAX`].
    pub fn new(input: FixedInput) -> Result<Fixed, InvalidConfig> {
        let constants: &[(&str, u64)] = match &input {
            FixedInput::Step { step_ns } => &[("step_ns", *step_ns)],
            FixedInput::Phases { prefill_ns, decode_ns } | FixedInput::Passes { prefill_ns, decode_ns, .. } => {
                &[("prefill_ns", *prefill_ns), ("decode_ns", *decode_ns)]
            }
        };
        let mut problems = Problems::default();
        for (field, ns) in constants {
            if *ns > STEP_NS_MAX {
                problems.0.push(ConfigProblem::TooLong {
                    field: (*field).to_owned(),
                    value_ms: *ns as f64 / 1e6,
                    limit_ms: STEP_NS_MAX as f64 / 1e6,
                });
            }
        }
        problems.none_or("fixed", Fixed { input })
    }
}

impl LatencyModel for Fixed {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| {
            Ok(match self.input {
                FixedInput::Step { step_ns } => step_ns,
                FixedInput::Phases { prefill_ns, decode_ns } => {
                    let prefill_ns = if shape.prefill_requests > 0 { prefill_ns } else { 0 };
                    let decode_ns = if shape.decode_requests > 0 { decode_ns } else { 0 };
                    prefill_ns + decode_ns
                }
                FixedInput::Passes { prefill_ns, decode_ns, semantics, phases, speculative, sums_contexts } => {
                    let rules = PassRules { semantics, phases, speculative, sums_contexts };
                    let prefill_ns = if rules.prefill_load(shape).requests > 0 { prefill_ns } else { 0 };
                    let decode_ns = if rules.decode_load(shape).is_some() { decode_ns } else { 0 };
                    prefill_ns + decode_ns
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcr_core::latency::{RecomputeShape, StepShape};

    fn price(input: FixedInput, shapes: &[StepShape], horizon_ns: u64) -> Vec<u64> {
        let mut durations_ns = Vec::new();
        let batch = StepBatch { start_ns: 0, horizon_ns, shapes };
        let mut model = Fixed::new(input).expect("valid");
        model.price(&batch, &mut durations_ns).expect("priced");
        durations_ns
    }

    #[test]
    fn phases_add_up_and_the_horizon_ends_a_batch() {
        let shape =
            |prefill_requests, decode_requests| StepShape { prefill_requests, decode_requests, ..StepShape::default() };
        let phases = FixedInput::Phases { prefill_ns: 10, decode_ns: 3 };
        let shapes = [shape(1, 0), shape(0, 2), shape(1, 1), shape(0, 0)];
        assert_eq!(price(phases, &shapes, u64::MAX), [10, 3, 13, 0]);
        assert_eq!(price(phases, &shapes, 13), [10, 3]);
        assert_eq!(price(phases, &shapes, 0), [10]);
        let step = FixedInput::Step { step_ns: 5 };
        assert_eq!(price(step, &shapes, u64::MAX), [5; 4]);
    }

    #[test]
    fn a_pass_costs_what_its_worker_is_charged_for() {
        let passes = |phases| FixedInput::Passes {
            prefill_ns: 10,
            decode_ns: 3,
            semantics: PassSemantics::Dynamo1_6,
            phases,
            speculative: false,
            sums_contexts: false,
        };
        let prompt = StepShape { prefill_requests: 1, prefill_tokens: 8, ..StepShape::default() };
        let decode = StepShape { decode_requests: 2, decode_tokens: 2, sampled_requests: 2, ..StepShape::default() };
        // The step that ends the recomputation of an output.
        let again = StepShape {
            recompute: RecomputeShape { output_tokens: 8, promptless_chunks: 1, completions: 1, ..Default::default() },
            sampled_requests: 1,
            ..prompt
        };
        let shapes = [prompt, decode, again];
        assert_eq!(price(passes(WorkerPhases::Both), &shapes, u64::MAX), [10, 3, 3]);
        assert_eq!(price(passes(WorkerPhases::Prefill), &shapes, u64::MAX), [10, 0, 0]);
        assert_eq!(price(passes(WorkerPhases::Decode), &shapes, u64::MAX), [0, 3, 3]);
    }

    #[test]
    fn all_problems_are_reported() {
        let error =
            Fixed::new(FixedInput::Phases { prefill_ns: u64::MAX, decode_ns: STEP_NS_MAX + 1 }).expect_err("too long");
        assert_eq!(error.problems.len(), 2);
        assert!(error.to_string().contains("`prefill_ns` is "), "{error}");
    }
}
