//! Prior knowledge of the prices.
//!
//! One load cannot separate the effect of the batch from that of its context, or the price of a token from the time
//! outside the engine. Physics provides ratios: reading a token's KV costs as much, relative to reading the weights, as
//! the ratio of their bytes; the cost of computing a token follows from its operations. All values are in units of the
//! shortest measured time between tokens, which is about the time of reading the weights.

use vcr_fitted::{TERM_COUNT, TERMS};
use vcr_roofline::Arithmetic;

use crate::solve::parameters::{ARRIVAL, ARRIVAL_TOKEN, LARGE_LAUNCH, LAUNCH_REQUEST, PARAMETERS, PREFILL_LAUNCH};
use crate::solve::regress::Prior;
use crate::solve::shape::Shape;

/// Operations that a GPU computes in the time in which it reads a byte, for weights of two bytes: 989 TFLOP/s over
/// 3.35 TB/s on an H100. In practice, kernels reach about three quarters of both rates.
const OPERATIONS_PER_BYTE: f64 = 290.0;

/// In a decode, context that another request of the step also reads comes from the GPU's cache. This is its price
/// relative to other context: 0.36 to 0.48 in the H100 recordings of three models.
const SHARED_CONTEXT: f64 = 0.42;

const SAMPLE: usize = 6;

/// A term and the mean and standard deviation of its coefficient, in units of a step.
struct Assumed(&'static str, f64, f64);

/// Cost ratios of a model with a known shape, or typical ratios.
struct Ratios {
    /// Cost of reading a token's KV relative to reading the weights.
    kv_token: f64,
    kv_spread: f64,
    /// Cost of computing a token relative to reading the weights.
    token: f64,
    /// Cost of computing a query-key pair relative to reading the weights.
    pair: f64,
}

impl Ratios {
    fn of(shape: Option<&Shape>) -> Self {
        // A value between a dense model with 8 billion weights (8e-6) and one with 70 billion (2e-6).
        let usual = Self { kv_token: 5e-6, kv_spread: 1.0, token: 3.5e-3, pair: 1e-7 };
        let Some(shape) = shape else { return usual };
        let operations_per_byte = OPERATIONS_PER_BYTE * speed(shape.arithmetic);
        Self {
            kv_token: shape.kv_bytes_per_token / shape.weight_bytes,
            // Recorded deployments had between half and twice this value.
            kv_spread: 0.8,
            token: 2.0 * shape.weights_per_token / operations_per_byte / shape.weight_bytes,
            pair: shape.flops_per_pair / OPERATIONS_PER_BYTE / shape.weight_bytes,
        }
    }
}

/// The speed of this arithmetic relative to 16-bit numbers. Assumes that the GPU supports it.
fn speed(arithmetic: Arithmetic) -> f64 {
    match arithmetic {
        Arithmetic::Bfloat16 => 1.0,
        Arithmetic::Fp8 | Arithmetic::Int8 => 2.0,
        Arithmetic::Fp4 => 4.0,
    }
}

/// The prior of a deployment whose steps take about `step_ns`. With `is_async`, the host works during steps.
pub(crate) fn prior(step_ns: f64, shape: Option<&Shape>, is_async: bool) -> Prior {
    let Ratios { kv_token, kv_spread, token, pair } = Ratios::of(shape);
    // The uncertainty of both prices together is `kv_spread`. Without sharing, their ratio is fixed.
    let whole_spread = kv_spread / SHARED_CONTEXT.hypot(1.0 - SHARED_CONTEXT);
    let context = |name, part: f64| Assumed(name, part * kv_token, whole_spread * part * kv_token);
    let assumed = [
        Assumed("step", 0.85, 0.5),
        Assumed("prefill_step", 0.05, 0.5),
        Assumed("prefill_chunk", 0.01, 0.05),
        Assumed("token", 0.05 * token, 0.2 * token),
        Assumed("token_above_128", 0.55 * token, 0.5 * token),
        Assumed("token_above_512", 0.2 * token, 0.4 * token),
        Assumed("sample", 5e-4, 1e-3),
        Assumed("decode_up_to_8", 2e-3, 2e-2),
        Assumed("decode_up_to_32", 1e-3, 1e-2),
        Assumed("decode_up_to_128", 3e-4, 3e-3),
        context("decode_context_token", SHARED_CONTEXT),
        context("decode_distinct_token", 1.0 - SHARED_CONTEXT),
        Assumed("prefill_context_token", kv_token, 2.0 * kv_token),
        Assumed("attention_pair", pair, 2.0 * pair),
        Assumed("mixed_decode", 2e-4, 5e-4),
    ];
    let mut prior = Prior { mean: [0.0; PARAMETERS], spread: [0.0; PARAMETERS] };
    for (index, term) in TERMS.iter().enumerate().take(TERM_COUNT) {
        let Assumed(name, mean, spread) = assumed[index];
        debug_assert_eq!(name, term.name);
        debug_assert_eq!(index == SAMPLE, name == "sample");
        prior.mean[index] = mean * step_ns;
        prior.spread[index] = spread * step_ns;
    }
    if !is_async {
        // The GPU waits while the host processes tokens and schedules: 37 us for each request on a slow host.
        prior.mean[SAMPLE] += 25e3;
        prior.spread[SAMPLE] += 20e3;
    }
    // On an H100, the two launches took 13 and 30 ms for a dense model with steps of 7 ms, and 16 and 86 ms for a model
    // with experts and steps of 30 ms. They take no time if a faster host or executor hides them.
    (prior.mean[PREFILL_LAUNCH], prior.spread[PREFILL_LAUNCH]) = (0.5 * step_ns, step_ns);
    (prior.mean[LARGE_LAUNCH], prior.spread[LARGE_LAUNCH]) = (step_ns, 2.0 * step_ns);
    // vLLM schedules a request and processes its token in Python, while no launch is in progress. In steps of 8 to 500
    // decodes, this takes 12 to 15 us for each request on a fast host and 30 to 40 us on a slow one.
    (prior.mean[LAUNCH_REQUEST], prior.spread[LAUNCH_REQUEST]) = (22e3, 10e3);
    // Measured servers took 2 to 70 ms. A tokenizer takes 1 to 4 us per token. Loads with a measured engine queue
    // showed no longer times.
    (prior.mean[ARRIVAL], prior.spread[ARRIVAL]) = (8e6, 30e6);
    (prior.mean[ARRIVAL_TOKEN], prior.spread[ARRIVAL_TOKEN]) = (2e3, 2e3);
    prior
}
