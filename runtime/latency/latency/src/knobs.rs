//! Prices steps from first-token and inter-token times that the user states.
//!
//! # From the times of a request to the price of a step
//!
//! A user knows times of *requests*: the time to the first token of a lone request (TTFT) and the gap between its later
//! tokens (ITL). An engine is priced by *step*:
//!
//! * A step in which at least one prefill completes costs **one** draw of the TTFT. A lone prompt that fits one step
//!   then has exactly the given TTFT. If several prompts complete together, they share the draw, so each still sees
//!   the given distribution; the maximum of several draws would not keep it. Decodes in such a step wait for it.
//! * Any other step with decodes costs one draw of the ITL.
//! * A step of prefill chunks that complete nothing costs no draw. Otherwise a prompt cut into chunks would be charged
//!   its TTFT once per chunk.
//! * Every step adds `prefill_ms_per_token` for each new prefill token in it, so that longer or less cached prompts
//!   take longer, however they are chunked. With 0, chunks that complete nothing are free.
//! * Every step adds `encoder_ms_per_token` for each embedding of an item that the encoder computes in it.
//! * The sum is multiplied by the load `1 + (full_load_factor - 1) * (running - 1) / (max_num_seqs - 1)`, where
//!   `running` is the number of requests in the step. This is vllm-vcr's formula, except that products are not rounded
//!   to whole milliseconds and draws are not clamped to 0.3 to 1.7 of the mean.
//!
//! TTFT and ITL have separate random streams, so that more prompts do not shift the inter-token times.

use crate::duration::whole_ns;
use crate::problem::{InvalidConfig, Problems};
use vcr_base::random::{Distribution, Stream};
use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, StepShape, price_until_horizon};

const MODEL: &str = "knobs";

/// The input of a [`Knobs`] model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnobsInput {
    /// Milliseconds of a step that completes a prefill.
    pub ttft: Distribution,
    /// Milliseconds of a step that only decodes.
    pub itl: Distribution,
    /// Additional milliseconds per new prefill token.
    pub prefill_ms_per_token: f64,
    /// Additional milliseconds per embedding that the encoder computes.
    pub encoder_ms_per_token: f64,
    /// The slowdown of a full engine relative to one with a single request. 1 means no slowdown.
    pub full_load_factor: f64,
    /// The number of requests at which the engine is full; at least 1.
    pub max_num_seqs: u64,
    /// Seed of this engine's draws.
    pub seed: u64,
}

impl KnobsInput {
    /// Lists all values that are out of range.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        problems.distribution_ms("ttft", &self.ttft);
        problems.distribution_ms("itl", &self.itl);
        problems.step_ms("prefill_ms_per_token", self.prefill_ms_per_token);
        problems.step_ms("encoder_ms_per_token", self.encoder_ms_per_token);
        problems.at_least("full_load_factor", self.full_load_factor, 1.0);
        problems.at_least("max_num_seqs", self.max_num_seqs as f64, 1.0);
        problems
    }
}

/// A model with given first-token and inter-token times (see [`KnobsInput`]).
#[derive(Clone, Debug)]
pub struct Knobs {
    input: KnobsInput,
    ttft_stream: Stream,
    itl_stream: Stream,
}

impl Knobs {
    /// Checks the input.
    ///
    /// # Errors
    /// Every value that is out of range.
    pub fn new(input: KnobsInput) -> Result<Knobs, InvalidConfig> {
        input.problems().none_or(
            MODEL,
            Knobs {
                input,
                ttft_stream: Stream::new(input.seed, "timing.knobs.ttft"),
                itl_stream: Stream::new(input.seed, "timing.knobs.itl"),
            },
        )
    }

    fn price_one(&mut self, shape: &StepShape) -> Result<u64, LatencyError> {
        let drawn_ms = if shape.prefill_completions > 0 {
            self.input.ttft.draw(&mut self.ttft_stream)
        } else if shape.decode_requests > 0 {
            self.input.itl.draw(&mut self.itl_stream)
        } else {
            0.0
        };
        let tokens_ms = self.input.prefill_ms_per_token * shape.prefill_tokens as f64;
        let encoder_ms = self.input.encoder_ms_per_token * shape.encoder.embeds as f64;
        whole_ns(MODEL, "price", (drawn_ms + tokens_ms + encoder_ms) * load(&self.input, shape.batch_requests()))
    }
}

/// The slowdown of an engine with this number of requests, relative to one request.
pub(crate) fn load(input: &KnobsInput, requests: u64) -> f64 {
    // A lone request is the reference. With a capacity of one, there is no load above it.
    let others = requests.saturating_sub(1) as f64;
    let room = (input.max_num_seqs - 1) as f64;
    if room == 0.0 {
        return 1.0;
    }
    1.0 + (input.full_load_factor - 1.0) * others / room
}

impl LatencyModel for Knobs {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| self.price_one(shape))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vcr_core::latency::EncoderShape;

    fn input() -> KnobsInput {
        KnobsInput {
            ttft: Distribution::Constant { value: 50.0 },
            itl: Distribution::Constant { value: 0.4 },
            prefill_ms_per_token: 0.01,
            encoder_ms_per_token: 0.002,
            full_load_factor: 3.0,
            max_num_seqs: 101,
            seed: 1,
        }
    }

    fn price(input: KnobsInput, shape: StepShape) -> u64 {
        let mut model = Knobs::new(input).expect("valid");
        model.price_one(&shape).expect("priced")
    }

    fn prefill(tokens: u64, completions: u64) -> StepShape {
        StepShape {
            prefill_requests: 1,
            prefill_tokens: tokens,
            prefill_completions: completions,
            ..StepShape::default()
        }
    }

    fn decode(requests: u64) -> StepShape {
        StepShape { decode_requests: requests, ..StepShape::default() }
    }

    #[test]
    fn a_chunked_prompt_costs_what_a_whole_one_does() {
        let whole = price(input(), prefill(3000, 1));
        let chunks = price(input(), prefill(2000, 0)) + price(input(), prefill(1000, 1));
        assert_eq!(whole, 80_000_000);
        assert_eq!(chunks, whole);
    }

    #[test]
    fn embeddings_are_added_to_their_step_alone() {
        let shape = StepShape { encoder: EncoderShape { items: 2, embeds: 1_000 }, ..prefill(1_000, 0) };
        assert_eq!(price(input(), shape) - price(input(), prefill(1_000, 0)), 2_000_000);
    }

    #[test]
    fn load_grows_linearly_to_its_factor() {
        assert_eq!(price(input(), decode(1)), 400_000);
        assert_eq!(price(input(), decode(51)), 800_000);
        assert_eq!(price(input(), decode(101)), 1_200_000);
        let lone = KnobsInput { max_num_seqs: 1, ..input() };
        assert_eq!(price(lone, decode(1)), 400_000);
    }

    #[test]
    fn all_problems_are_reported() {
        let error = Knobs::new(KnobsInput {
            ttft: Distribution::Normal { mean: -1.0, std: f64::NAN },
            itl: Distribution::Uniform { min: 2.0, max: 1.0 },
            prefill_ms_per_token: 1e30,
            encoder_ms_per_token: -1.0,
            full_load_factor: 0.5,
            max_num_seqs: 0,
            seed: 0,
        })
        .expect_err("nothing is right");
        let text = error.to_string();
        for part in [
            "`ttft`: invalid `mean`: expected a finite number of at least 0, got -1",
            "`ttft`: invalid `std`: expected a finite number of at least 0, got NaN",
            "`itl`: `min` (2) must not exceed `max` (1)",
            "`prefill_ms_per_token` is ",
            "invalid `encoder_ms_per_token`: expected",
            "invalid `full_load_factor`: expected at least 1, got 0.5",
            "invalid `max_num_seqs`: expected at least 1, got 0",
        ] {
            assert!(text.contains(part), "{text}\nlacks {part}");
        }
        assert_eq!(error.problems.len(), 7, "{text}");
    }

    proptest! {
        /// The first decode gap must not depend on how many prompts came before.
        #[test]
        fn streams_are_independent(prompts in 0usize..20, seed: u64) {
            let spread = KnobsInput {
                ttft: Distribution::Exponential { mean: 9.0 },
                itl: Distribution::LogNormal { mean: 5.0, std: 2.0 },
                seed,
                ..input()
            };
            let mut model = Knobs::new(spread).unwrap();
            for _ in 0..prompts {
                model.price_one(&prefill(10, 1)).unwrap();
            }
            prop_assert_eq!(model.price_one(&decode(1)).unwrap(), price(spread, decode(1)));
        }

        /// The division of a run into batches does not change the cost of its steps.
        #[test]
        fn the_horizon_never_costs_a_draw(seed: u64, horizon_ns in 0u64..40_000_000) {
            let spread = KnobsInput {
                itl: Distribution::Gamma { mean: 5.0, std: 2.0 },
                seed,
                ..input()
            };
            let shapes = [decode(3); 12];
            let at_once = {
                let mut durations_ns = Vec::new();
                let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes };
                Knobs::new(spread).unwrap().price(&batch, &mut durations_ns).unwrap();
                durations_ns
            };
            let mut model = Knobs::new(spread).unwrap();
            let mut durations_ns = Vec::new();
            let first = StepBatch { start_ns: 0, horizon_ns, shapes: &shapes };
            model.price(&first, &mut durations_ns).unwrap();
            prop_assert!(!durations_ns.is_empty());
            let started_ns: u64 = durations_ns[..durations_ns.len() - 1].iter().sum();
            prop_assert!(durations_ns.len() == 1 || started_ns < horizon_ns);
            if let rest @ [_, ..] = &shapes[durations_ns.len()..] {
                let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: rest };
                model.price(&batch, &mut durations_ns).unwrap();
            }
            prop_assert_eq!(durations_ns, at_once);
        }
    }
}
