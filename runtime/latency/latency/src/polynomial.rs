//! Dynamo's default timing formula.

use crate::duration::plainly_rounded;
use crate::pass::{PassRules, PassSemantics, PrefillLoad, WorkerPhases};
use crate::problem::{InvalidConfig, Problems};
use crate::speed::SpeedInput;
use vcr_core::latency::{DecodeSteps, LatencyError, LatencyModel, StepBatch, StepShape, price_until_horizon};

const MODEL: &str = "polynomial";

/// Settings of a [`Polynomial`] model; the constants are Dynamo's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PolynomialInput {
    /// Dynamo version whose rules define the decode part of a step.
    pub semantics: PassSemantics,
    /// Phases that an engine of a disaggregated cluster is charged for.
    pub phases: WorkerPhases,
    /// Whether the engine drafts tokens. Under 1.6, the decode part then also covers requests that finish their
    /// prompts, as it always does under 1.4.
    pub speculative: bool,
    /// Whether occupancy is the sum of the contexts under 1.4 too, as for Dynamo's SGLang engines.
    pub sums_contexts: bool,
    /// Divisors of the times.
    pub speed: SpeedInput,
}

/// Dynamo's polynomial. The step is the sum of a prefill part by new tokens and a decode part by KV occupancy.
///
/// With `n` new prefill tokens, counted through integer means as Dynamo does, prefill takes
/// `4.209989e-07 n^2 + 1.518344e-02 n + 16.50142` ms, and exactly 0 if `n` is 0. With the occupied fraction `u` of the
/// KV cache, decode takes `max(1, -25.74 u^2 + 54.01 u + 5.74)` ms. Each part is rounded to whole nanoseconds, divided
/// by its speed and rounded again before they are added. The constants are the same in `dynamo-mocker` 1.4 and 1.6;
/// only [`PassSemantics`] changed.
///
/// The decode time does not depend on the batch size. Use a measured [`Profile`](crate::Profile) where that matters.
#[derive(Clone, Copy, Debug)]
pub struct Polynomial {
    rules: PassRules,
    speed: SpeedInput,
}

impl Polynomial {
    /// Checks the input.
    ///
    /// # Errors
    /// Every speed that is not above 0.
    pub fn new(input: PolynomialInput) -> Result<Polynomial, InvalidConfig> {
        let mut problems = Problems::default();
        input.speed.check(&mut problems);
        let rules = PassRules {
            semantics: input.semantics,
            phases: input.phases,
            speculative: input.speculative,
            sums_contexts: input.sums_contexts,
        };
        let speed = input.speed;
        problems.none_or(MODEL, Polynomial { rules, speed })
    }

    #[inline(never)]
    fn price_one(&self, shape: &StepShape) -> Result<u64, LatencyError> {
        let mut duration_ns = 0;
        if shape.prefill_requests > 0 {
            duration_ns = self.speed.prefill_ns(MODEL, prefill_ms(new_tokens(self.rules.prefill_load(shape))))?;
        }
        if let Some(load) = self.rules.decode_load(shape) {
            let total_kv_tokens = shape.kv_total_blocks * shape.block_size_tokens;
            if total_kv_tokens == 0 {
                return Err(no_cache());
            }
            let mut occupancy = load.active_kv_tokens as f64 / total_kv_tokens as f64;
            if self.rules.counts_shared_prefixes() {
                occupancy = occupancy.min(1.0);
            }
            duration_ns += self.speed.decode_ns(MODEL, decode_ms(occupancy))?;
        }
        Ok(duration_ns)
    }
}

impl LatencyModel for Polynomial {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| self.price_one(shape))
    }

    fn price_decodes(
        &mut self,
        mut start_ns: u64,
        horizon_ns: u64,
        steps: &DecodeSteps,
        durations_ns: &mut Vec<u64>,
    ) -> Result<(), LatencyError> {
        let before = steps.before();
        let charges_decodes = self.rules.phases != WorkerPhases::Prefill;
        let otherwise_plain = PassRules { phases: WorkerPhases::Both, ..self.rules } == PassRules::default();
        let is_plain = charges_decodes && otherwise_plain && self.speed == SpeedInput::default();
        let total_kv_tokens = plain_decode_kv_tokens(before).filter(|_| is_plain);
        let mut context_tokens = before.decode_context_tokens;
        durations_ns.reserve(steps.len());
        for index in 0..steps.len() {
            context_tokens += before.decode_requests;
            let duration_ns = match total_kv_tokens.and_then(|total| plain_decode_ns(context_tokens, total)) {
                Some(duration_ns) => duration_ns,
                None => self.price_one(&steps.shape(index))?,
            };
            durations_ns.push(duration_ns);
            start_ns = start_ns.saturating_add(duration_ns);
            if start_ns >= horizon_ns {
                break;
            }
        }
        Ok(())
    }
}

/// The KV tokens of a step that only decodes one token per request, as nearly all steps do.
fn plain_decode_kv_tokens(shape: &StepShape) -> Option<u64> {
    let total_kv_tokens = shape.kv_total_blocks * shape.block_size_tokens;
    let decodes = shape.decode_requests > 0 && shape.decode_requests == shape.decode_tokens;
    (shape.prefill_requests == 0 && decodes && total_kv_tokens > 0).then_some(total_kv_tokens)
}

/// The time of a plain decode step under 1.6's rules at speed 1. None if the fast computation does not apply.
#[inline]
fn plain_decode_ns(context_tokens: u64, total_kv_tokens: u64) -> Option<u64> {
    if context_tokens > total_kv_tokens {
        return None;
    }
    // Signed numbers become doubles in one instruction. Occupancy is at most 1, so the polynomial is between 5 and 35.
    let occupancy = context_tokens as i64 as f64 / total_kv_tokens as i64 as f64;
    plainly_rounded(decode_polynomial(occupancy))
}

#[cold]
fn no_cache() -> LatencyError {
    LatencyError {
        model: MODEL.to_owned(),
        reason: "the engine reports a KV cache of 0 tokens, so it has no occupancy; give it blocks".to_owned(),
    }
}

/// New prompt tokens as Dynamo counts them: the number of requests times the difference between the integer means of
/// their chunks' ends and starts.
fn new_tokens(load: PrefillLoad) -> u64 {
    let PrefillLoad { requests, tokens, context_tokens: begin_tokens } = load;
    if requests == 0 {
        return 0;
    }
    let end_tokens = begin_tokens + tokens;
    requests * (end_tokens / requests - begin_tokens / requests)
}

fn prefill_ms(new_tokens: u64) -> f64 {
    if new_tokens == 0 {
        return 0.0;
    }
    let n = new_tokens as f64;
    4.209989e-07 * n * n + 1.518344e-02 * n + 1.650142e+01
}

fn decode_ms(occupancy: f64) -> f64 {
    decode_polynomial(occupancy).max(1.0)
}

#[inline]
fn decode_polynomial(occupancy: f64) -> f64 {
    let u = occupancy;
    -25.74 * u * u + 54.01 * u + 5.74
}

#[cfg(test)]
mod tests;
