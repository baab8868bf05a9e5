//! Another latency model as the base of a fit. Its step costs are the prior, instead of physical
//! ratios. With few measurements, the fit is the base with corrections.

use vcr_compare::Statistic;
use vcr_core::PluginContext;
use vcr_core::factory::LatencyFactory;
use vcr_core::latency::{StepBatch, StepShape};
use vcr_fitted::{StepWork, TERM_COUNT, amounts};

use crate::error::FitError;
use crate::solve::parameters::{Observation, PARAMETERS, Row};
use crate::solve::prior::prior;
use crate::solve::regress::{Prior, solve};
use crate::source::Source;

/// Relative standard deviation of the base's coefficients. Tables of operators differ from
/// whole servers by 10 % in the median, and by 30 % in one of ten cases.
const BASE_ERROR: f64 = 0.2;
/// Fraction of its physical cost that a term may have if the base lacks the term.
const MISSING_TERM: f64 = 0.1;
/// Factor by which the physical prior is widened while the base is fitted.
const WEAK: f64 = 10.0;

/// The prices of a latency model, as coefficients of a fit.
#[derive(Clone, Debug)]
pub struct Base {
    model: String,
    terms: [f64; TERM_COUNT],
    missing: [f64; TERM_COUNT],
    deviations: Vec<f64>,
}

impl Base {
    /// Determines the coefficients from the model's prices for steps of the sizes that the engines of `sources`
    /// schedule. `model` is the user's name of the model.
    ///
    /// # Errors
    /// If the model cannot price these steps.
    pub fn new(model: &str, factory: &LatencyFactory, sources: &[Source]) -> Result<Self, FitError> {
        let failed = |what: String| FitError::Base { model: model.to_owned(), what };
        let mut latency = factory(&PluginContext::of_seed(1)).map_err(|error| failed(error.to_string()))?;
        let mut priced = Vec::new();
        for shape in sources.iter().flat_map(steps) {
            let mut duration_ns = Vec::new();
            let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &[shape] };
            latency.price(&batch, &mut duration_ns).map_err(|error| failed(error.to_string()))?;
            priced.push((shape, duration_ns.first().copied().unwrap_or(0) as f64));
        }
        let shortest_ns = priced.iter().map(|(_, ns)| *ns).fold(f64::INFINITY, f64::min);
        if !shortest_ns.is_finite() || shortest_ns <= 0.0 {
            return Err(failed("a step costs nothing: expected a model such as roofline or tables".to_owned()));
        }
        let mut weak = prior(shortest_ns, None, true);
        weak.spread = weak.spread.map(|spread| spread * WEAK);
        let observations: Vec<Observation> = priced.iter().map(|(shape, ns)| observation(shape, *ns)).collect();
        let estimate = solve(&observations, &weak, &weak.mean)
            .ok_or_else(|| failed("its prices are not a sum of the terms of a fit".to_owned()))?;
        let deviations = observations.iter().map(|each| {
            let sum: f64 = each.row.iter().zip(&estimate).map(|(amount, value)| amount * value).sum();
            (sum / each.measured_ns - 1.0).abs()
        });
        let (mut terms, mut missing) = ([0.0; TERM_COUNT], [0.0; TERM_COUNT]);
        terms.copy_from_slice(&estimate[..TERM_COUNT]);
        missing.copy_from_slice(&weak.spread[..TERM_COUNT]);
        let missing = missing.map(|spread| MISSING_TERM / WEAK * spread);
        Ok(Self { model: model.to_owned(), terms, missing, deviations: deviations.collect() })
    }

    /// The user's name of the latency model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// A statistic of the relative deviations between the base's prices and their reproduction by the terms of a fit.
    #[must_use]
    pub fn deviation(&self, statistic: Statistic) -> f64 {
        statistic.of(self.deviations.clone())
    }

    pub(crate) fn prior(&self, physical: &Prior) -> Prior {
        let mut prior = *physical;
        for index in 0..TERM_COUNT {
            prior.mean[index] = self.terms[index];
            prior.spread[index] = self.terms[index] * BASE_ERROR + self.missing[index];
        }
        prior
    }
}

fn observation(shape: &StepShape, measured_ns: f64) -> Observation {
    let mut row: Row = [0.0; PARAMETERS];
    row[..TERM_COUNT].copy_from_slice(&amounts(&StepWork::from(shape)));
    Observation { row, measured_ns, scale_ns: measured_ns, weight: 1.0 }
}

/// The powers of two times `least` that are below `most`, followed by `most`.
fn powers(least: u64, most: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(least), |count| Some(count * 2)).take_while(move |count| *count < most).chain([most])
}

/// Steps of all sizes that an engine schedules for the measured lengths: decodes, prompts, and both together.
fn steps(source: &Source) -> Vec<StepShape> {
    let (budget_tokens, seqs, block_size_tokens) = match source.pool.engine.as_vllm() {
        Some(vllm) => {
            (u64::from(vllm.max_num_batched_tokens()), u64::from(vllm.max_num_seqs()), u64::from(vllm.block_size()))
        }
        None => (8192, 256, 16),
    };
    let requests = source.measurements.requests();
    let prompts = |statistic: Statistic| {
        let prompts = requests.iter().map(|request| f64::from(request.prompt_tokens)).collect();
        (statistic.of(prompts) as u64).max(1)
    };
    let outputs = requests.iter().map(|request| f64::from(request.output_tokens)).collect();
    let output_tokens = (Statistic::P50.of(outputs) as u64).max(1);
    let usual_prompt = prompts(Statistic::P50);
    let contexts = [usual_prompt.div_ceil(2), usual_prompt, prompts(Statistic::P90)];
    let decodes = |count: u64, context_tokens: u64| StepShape {
        decode_requests: count,
        decode_tokens: count,
        decode_context_tokens: count * (context_tokens + output_tokens / 2 + 1),
        sampled_requests: count,
        ..StepShape::default()
    };
    let with_prompts = |step: StepShape, tokens: u64, depth_tokens: u64| {
        let chunks = tokens.div_ceil(usual_prompt);
        let chunk_tokens = tokens / chunks;
        StepShape {
            prefill_requests: chunks,
            prefill_tokens: chunks * chunk_tokens,
            prefill_context_tokens: chunks * depth_tokens,
            prefill_attention_pairs: chunks * (chunk_tokens * depth_tokens + chunk_tokens * (chunk_tokens + 1) / 2),
            prefill_completions: chunks,
            prefill_completion_context_tokens: chunks * (chunk_tokens + depth_tokens),
            sampled_requests: step.sampled_requests + chunks,
            ..step
        }
    };
    let mut steps = Vec::new();
    for context_tokens in contexts {
        steps.extend(powers(1, seqs).map(|count| decodes(count, context_tokens)));
        for tokens in powers(16, budget_tokens) {
            for count in [0, 1, 8, seqs / 4, seqs] {
                let mixed = decodes(count, context_tokens);
                steps.push(with_prompts(mixed, tokens.min(budget_tokens.saturating_sub(count).max(1)), 0));
                steps.push(with_prompts(mixed, tokens.min(budget_tokens.saturating_sub(count).max(1)), context_tokens));
            }
        }
    }
    for step in &mut steps {
        let tokens = step.decode_context_tokens + step.prefill_context_tokens + step.prefill_tokens;
        step.block_size_tokens = block_size_tokens;
        step.kv_active_blocks = tokens.div_ceil(block_size_tokens);
        step.kv_total_blocks = step.kv_active_blocks.max(1);
    }
    steps
}
