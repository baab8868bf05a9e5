//! Draws first-token and inter-token times for each request, independent of other requests.
//!
//! [`Knobs`](crate::Knobs) prices the steps that requests share. This model instead states when each request has its
//! next token. A request alone has the same times in both. The engine's queues and blocks still apply: a request that
//! waits for a running slot or for KV blocks has its first token one TTFT draw after its admission.
//!
//! * A token that ends a prefill (of a prompt, or after a preemption) comes one TTFT draw after the admission, plus
//!   `prefill_ms_per_token` for each computed token. Any other token comes one ITL draw after the previous one.
//! * Both are multiplied by the load, as in [`Knobs`](crate::Knobs).
//!
//! Each draw has its own stream, keyed by request number and token position, so that requests do not shift each other's
//! times.

use vcr_base::random::{Distribution, Stream};
use vcr_core::latency::{LatencyError, LatencyModel, StepBatch};
use vcr_core::request_times::{NextToken, RequestTimes};
use vcr_core::seed;

use crate::duration::STEP_NS_MAX;
use crate::knobs::{KnobsInput, load};
use crate::problem::InvalidConfig;

const MODEL: &str = "per_request";

/// A model of the times of single requests. Its input is that of [`Knobs`](crate::Knobs).
#[derive(Clone, Copy, Debug)]
pub struct PerRequest {
    input: KnobsInput,
}

impl PerRequest {
    /// Checks the input.
    ///
    /// # Errors
    /// Every value that is out of range.
    pub fn new(input: KnobsInput) -> Result<Self, InvalidConfig> {
        input.problems().none_or(MODEL, Self { input })
    }

    fn drawn_ms(&self, times: &Distribution, purpose: &str, token: &NextToken) -> f64 {
        if let Distribution::Constant { value } = times {
            return *value;
        }
        let seed = seed::derive(self.input.seed, purpose, token.request);
        times.draw(&mut Stream::new(seed.wrapping_add(u64::from(token.position)), MODEL))
    }
}

impl RequestTimes for PerRequest {
    fn until_next_ns(&self, token: &NextToken) -> u64 {
        let ms = match token.prefill_tokens {
            Some(tokens) => {
                self.drawn_ms(&self.input.ttft, "timing.per_request.ttft", token)
                    + self.input.prefill_ms_per_token * f64::from(tokens)
            }
            None => self.drawn_ms(&self.input.itl, "timing.per_request.itl", token),
        };
        let ns = ms * load(&self.input, u64::from(token.running_requests)) * 1e6;
        // Conversions of doubles saturate.
        (ns.round() as u64).min(STEP_NS_MAX)
    }
}

impl LatencyModel for PerRequest {
    fn price(&mut self, _batch: &StepBatch<'_>, _durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        Err(LatencyError {
            model: MODEL.to_owned(),
            reason: "it has times of requests and no prices of steps, which are needed here; use `knobs`".to_owned(),
        })
    }

    fn request_times(&self) -> Option<Box<dyn RequestTimes>> {
        Some(Box::new(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> KnobsInput {
        KnobsInput {
            ttft: Distribution::Constant { value: 50.0 },
            itl: Distribution::Constant { value: 0.4 },
            prefill_ms_per_token: 0.01,
            encoder_ms_per_token: 0.0,
            full_load_factor: 3.0,
            max_num_seqs: 101,
            seed: 1,
        }
    }

    fn first(prefill_tokens: u32) -> NextToken {
        NextToken { request: 0, position: prefill_tokens, prefill_tokens: Some(prefill_tokens), running_requests: 1 }
    }

    #[test]
    fn times_are_those_of_knobs_for_a_lone_request() {
        let model = PerRequest::new(input()).expect("valid");
        assert_eq!(model.until_next_ns(&first(3000)), 80_000_000);
        let later = NextToken { prefill_tokens: None, ..first(1) };
        assert_eq!(model.until_next_ns(&later), 400_000);
        assert_eq!(model.until_next_ns(&NextToken { running_requests: 51, ..later }), 800_000);
    }

    #[test]
    fn draws_depend_on_the_token_alone() {
        let itl = Distribution::Normal { mean: 10.0, std: 2.0 };
        let model = PerRequest::new(KnobsInput { itl, ..input() }).expect("valid");
        let token = |request, position| NextToken { request, position, prefill_tokens: None, running_requests: 1 };
        let drawn = |request, position| model.until_next_ns(&token(request, position));
        assert_eq!(drawn(3, 7), drawn(3, 7));
        let draws: std::collections::BTreeSet<u64> = (0..20)
            .flat_map(|request| (0..20).map(move |position| (request, position)))
            .map(|(r, p)| drawn(r, p))
            .collect();
        assert!(draws.len() > 390, "{} of 400 draws differ", draws.len());
        let mean = draws.iter().sum::<u64>() / draws.len() as u64;
        assert!((9_500_000..10_500_000).contains(&mean), "{mean}");
    }

    #[test]
    fn steps_have_no_prices() {
        let mut model = PerRequest::new(input()).expect("valid");
        let batch = StepBatch { start_ns: 0, horizon_ns: 0, shapes: &[Default::default()] };
        assert!(model.price(&batch, &mut Vec::new()).is_err());
        let wrong = PerRequest::new(KnobsInput { full_load_factor: 0.5, ..input() }).expect_err("it is below 1");
        assert!(wrong.to_string().starts_with("the `per_request` latency model"), "{wrong}");
    }
}
