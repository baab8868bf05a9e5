//! Draws the times of steps from recorded times, as vllm-vcr's sampled model does.
//!
//! A step of decodes takes a recorded gap between two tokens at a similar concurrency and prompt length. A prefill adds
//! the recorded time to the first token at the lowest concurrency, minus a gap. The model reproduces the scatter of a
//! recording, which no regression does. A step unlike all recorded steps takes the times of the nearest one.

use vcr_base::random::Stream;
use vcr_core::latency::{LatencyError, LatencyModel, RangeUse, StepBatch, StepShape, price_until_horizon};

use crate::duration::rounded_ns;
use crate::problem::{InvalidConfig, Problems};

const MODEL: &str = "sampled";

/// Shortest prompt of each bucket, except for the first bucket.
const PROMPT_EDGES: [u64; 10] = [65, 129, 257, 513, 1025, 2049, 4097, 8193, 16_385, 32_769];
/// Lowest concurrency of each bucket, except for the first bucket.
const CONCURRENCY_EDGES: [u64; 7] = [2, 5, 7, 9, 17, 33, 65];
const PROMPTS: usize = PROMPT_EDGES.len() + 1;
const CONCURRENCIES: usize = CONCURRENCY_EDGES.len() + 1;
/// First-token times of other prompt lengths are scaled by at most this factor.
const MAX_SCALE: f64 = 8.0;

/// One recorded answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledAnswer {
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens that were not in the cache.
    pub uncached_tokens: u64,
    /// Requests in progress when this request arrived, itself included.
    pub concurrency: u64,
    /// Time to the first token.
    pub ttft_ns: Option<u64>,
    /// Gaps between the tokens.
    pub gaps_ns: Vec<u64>,
}

/// Recorded answers, ready to draw from.
#[derive(Clone, Debug)]
pub struct SampledGrid {
    /// Gaps by bucket of prompt length and of concurrency, each in ascending order.
    gaps: Vec<Vec<u64>>,
    /// For each bucket of prompt lengths: uncached tokens and time to the first token, at the lowest concurrency.
    firsts: Vec<Vec<(u64, u64)>>,
}

fn bucket(edges: &[u64], value: u64) -> usize {
    edges.partition_point(|edge| *edge <= value)
}

fn cell(prompt: usize, concurrency: usize) -> usize {
    prompt * CONCURRENCIES + concurrency
}

impl SampledGrid {
    /// Sorts recorded answers into buckets.
    ///
    /// # Errors
    /// If there are no gaps or no first tokens.
    pub fn new(answers: &[SampledAnswer]) -> Result<Self, InvalidConfig> {
        let mut gaps = vec![Vec::new(); PROMPTS * CONCURRENCIES];
        // For each bucket of prompt lengths, the lowest bucket of concurrency and its recorded times.
        let mut firsts: Vec<(usize, Vec<(u64, u64)>)> = vec![(usize::MAX, Vec::new()); PROMPTS];
        for answer in answers {
            let concurrency = bucket(&CONCURRENCY_EDGES, answer.concurrency.max(1));
            gaps[cell(bucket(&PROMPT_EDGES, answer.prompt_tokens), concurrency)].extend(&answer.gaps_ns);
            if let Some(ttft_ns) = answer.ttft_ns {
                let (lowest, times) = &mut firsts[bucket(&PROMPT_EDGES, answer.uncached_tokens)];
                if concurrency < *lowest {
                    (*lowest, *times) = (concurrency, Vec::new());
                }
                if concurrency == *lowest {
                    times.push((answer.uncached_tokens.max(1), ttft_ns));
                }
            }
        }
        gaps.iter_mut().for_each(|cell| cell.sort_unstable());
        let mut firsts: Vec<Vec<(u64, u64)>> = firsts.into_iter().map(|(_, times)| times).collect();
        firsts.iter_mut().for_each(|times| times.sort_unstable_by_key(|(tokens, ns)| (*ns, *tokens)));
        let mut problems = Problems::default();
        problems.at_least("gaps between tokens", gaps.iter().map(Vec::len).sum::<usize>() as f64, 1.0);
        problems.at_least("first-token times", firsts.iter().map(Vec::len).sum::<usize>() as f64, 1.0);
        problems.none_or(MODEL, Self { gaps, firsts })
    }

    /// The gaps of the nearest cell that has any. Cells of the same prompt length come first, then shorter prompts.
    fn gaps(&self, prompt: usize, concurrency: usize) -> &[u64] {
        let distance = |at: usize| {
            let (prompts, concurrencies) = (at / CONCURRENCIES, at % CONCURRENCIES);
            (prompts.abs_diff(prompt) + concurrencies.abs_diff(concurrency), prompts.abs_diff(prompt), at)
        };
        let filled = (0..self.gaps.len()).filter(|at| !self.gaps[*at].is_empty());
        filled.min_by_key(|at| distance(*at)).map_or(&[], |at| &self.gaps[at])
    }

    /// The time to a first token after `tokens` computed tokens.
    fn first_ns(&self, tokens: u64, share: f64) -> f64 {
        let own = bucket(&PROMPT_EDGES, tokens);
        let filled = (0..PROMPTS).filter(|at| !self.firsts[*at].is_empty());
        let Some(at) = filled.min_by_key(|at| (at.abs_diff(own), *at)) else { return 0.0 };
        let times = &self.firsts[at];
        let ns = inverse(times.len(), share, |index| times[index].1 as f64);
        // Times of another prompt length are scaled by the ratio of the lengths.
        let mean = times.iter().map(|(tokens, _)| *tokens as f64).sum::<f64>() / times.len() as f64;
        let scale = if at == own { 1.0 } else { (tokens as f64 / mean).clamp(0.25, MAX_SCALE) };
        ns * scale
    }
}

/// The value at a fraction `share` of ascending values, interpolated between two of them.
fn inverse(count: usize, share: f64, at: impl Fn(usize) -> f64) -> f64 {
    let place = share * (count - 1) as f64;
    let (below, part) = (place as usize, place - place.floor());
    let above = (below + 1).min(count - 1);
    at(below) + (at(above) - at(below)) * part
}

/// A latency model that draws steps from a grid.
#[derive(Clone, Debug)]
pub struct Sampled {
    grid: std::sync::Arc<SampledGrid>,
    stream: Stream,
    range_use: RangeUse,
}

impl Sampled {
    /// Creates a model that draws from `grid`.
    #[must_use]
    pub fn new(grid: std::sync::Arc<SampledGrid>, seed: u64) -> Self {
        Self { grid, stream: Stream::new(seed, "timing.sampled"), range_use: RangeUse::default() }
    }

    fn gap_ns(&mut self, prompt: usize, concurrency: usize, share: f64) -> f64 {
        let gaps = self.grid.gaps(prompt, concurrency);
        if gaps.is_empty() { 0.0 } else { inverse(gaps.len(), share, |index| gaps[index] as f64) }
    }

    fn price_one(&mut self, shape: &StepShape) -> Result<u64, LatencyError> {
        let concurrency = bucket(&CONCURRENCY_EDGES, shape.batch_requests().max(1));
        let (mut ns, mut is_known) = (0.0, true);
        if let Some(context) = shape.decode_context_tokens.checked_div(shape.decode_requests) {
            let prompt = bucket(&PROMPT_EDGES, context);
            let share = self.stream.unit();
            ns += self.gap_ns(prompt, concurrency, share);
            is_known &= !self.grid.gaps[cell(prompt, concurrency)].is_empty();
        }
        if shape.prefill_tokens > 0 {
            let share = self.stream.unit();
            let first_ns = self.grid.first_ns(shape.prefill_tokens, share);
            // If the step has decodes, the prompt only adds its time beyond a gap.
            let gap_ns = if shape.decode_requests > 0 { self.gap_ns(0, 0, 0.5) } else { 0.0 };
            ns += (first_ns - gap_ns).max(0.0);
            is_known &= !self.grid.firsts[bucket(&PROMPT_EDGES, shape.prefill_tokens)].is_empty();
        }
        let duration_ns = rounded_ns(MODEL, ns)?;
        self.range_use.count(duration_ns, is_known);
        Ok(duration_ns)
    }
}

impl LatencyModel for Sampled {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| self.price_one(shape))
    }

    fn range_use(&self) -> Option<RangeUse> {
        Some(self.range_use)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn answer(tokens: u64, concurrency: u64, ttft_ns: u64, gaps_ns: &[u64]) -> SampledAnswer {
        SampledAnswer {
            prompt_tokens: tokens,
            uncached_tokens: tokens,
            concurrency,
            ttft_ns: Some(ttft_ns),
            gaps_ns: gaps_ns.to_vec(),
        }
    }

    fn model() -> Sampled {
        let answers = [
            answer(100, 1, 50_000, &[10_000, 11_000, 12_000]),
            answer(100, 40, 900_000, &[30_000, 31_000]),
            answer(600, 1, 200_000, &[20_000]),
        ];
        Sampled::new(Arc::new(SampledGrid::new(&answers).expect("it has both")), 3)
    }

    fn priced(model: &mut Sampled, shape: StepShape) -> u64 {
        let mut durations_ns = Vec::new();
        let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &[shape] };
        model.price(&batch, &mut durations_ns).expect("it is priced");
        durations_ns[0]
    }

    fn decodes(requests: u64, context: u64) -> StepShape {
        StepShape {
            decode_requests: requests,
            decode_tokens: requests,
            decode_context_tokens: requests * context,
            ..StepShape::default()
        }
    }

    fn prefill(tokens: u64) -> StepShape {
        StepShape { prefill_requests: 1, prefill_tokens: tokens, prefill_completions: 1, ..StepShape::default() }
    }

    #[test]
    fn steps_are_drawn_from_what_is_nearest() {
        let mut model = model();
        for _ in 0..50 {
            assert!((10_000..=12_000).contains(&priced(&mut model, decodes(1, 100))));
            assert!((30_000..=31_000).contains(&priced(&mut model, decodes(40, 100))));
            assert_eq!(priced(&mut model, decodes(1, 5_000)), 20_000, "the longest that was recorded");
            assert_eq!(priced(&mut model, prefill(100)), 50_000, "not those of the crowd");
        }
        assert_eq!(priced(&mut model, prefill(200)), 100_000, "a prompt twice as long as the nearest");
        assert_eq!(priced(&mut model, prefill(300)), 100_000, "half as long as the nearest");
        let mixed = StepShape { prefill_requests: 1, prefill_tokens: 600, ..decodes(1, 100) };
        assert!((199_000..=201_000).contains(&priced(&mut model, mixed)), "a gap, and what the prompt adds");
        assert!(model.range_use().is_some());
    }

    #[test]
    fn equal_seeds_draw_equal_steps() {
        let draw = |mut model: Sampled| [(); 9].map(|()| priced(&mut model, decodes(1, 100)));
        assert_eq!(draw(model()), draw(model()));
    }

    #[test]
    fn nothing_recorded_is_nothing_to_draw_from() {
        let error = SampledGrid::new(&[]).expect_err("it is empty").to_string();
        assert!(error.contains("gaps between tokens") && error.contains("first-token times"), "{error}");
    }
}
