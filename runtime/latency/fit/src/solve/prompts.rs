//! Fits prices of prompts to the prompts with the shortest waits.

use vcr_compare::Metric;
use vcr_fitted::{StepWork, TERMS, amounts};

use crate::solve::parameters::Row;
use crate::solve::regress::Prior;
use crate::source::Source;

/// The measured time of the prompts with the shortest waits, as a multiple of the price from `prior`. A tenth of the
/// prompts were faster.
pub(crate) fn prompt_scale(sources: &[Source], prior: &Prior, step_ns: f64) -> f64 {
    let assumed_ns = |prompt_tokens: f64| {
        let tokens = prompt_tokens.max(1.0) as u64;
        let work = StepWork {
            prefill_requests: 1,
            prefill_tokens: tokens,
            prefill_attention_pairs: tokens * (tokens + 1) / 2,
            ..StepWork::default()
        };
        let price = amounts(&work).into_iter().zip(&prior.mean).enumerate();
        price.filter(|(index, _)| is_of_prompts(*index)).map(|(_, (amount, value))| amount * value).sum::<f64>()
    };
    let scale = |ttft_ns: f64, prompt_tokens: f64| (ttft_ns - step_ns) / assumed_ns(prompt_tokens).max(1.0);
    let requests = sources.iter().flat_map(|source| source.measurements.requests()).filter(|each| each.is_whole);
    let points = sources.iter().filter_map(|source| source.measurements.point());
    let mut scales: Vec<f64> = requests
        .filter_map(|request| Some(scale(request.ttft_ns? as f64, f64::from(request.prompt_tokens))))
        .chain(points.filter_map(|point| Some(scale(point.mean_ns(Metric::Ttft)?, point.prompt_tokens.0))))
        .collect();
    scales.sort_by(f64::total_cmp);
    scales.get(scales.len() / 10).copied().unwrap_or(1.0)
}

/// Whether only steps with prompts have the work of this parameter.
fn is_of_prompts(index: usize) -> bool {
    let names = ["prefill_step", "prefill_chunk", "token_above_128", "token_above_512", "prefill_context_token"];
    TERMS.get(index).is_some_and(|term| names.contains(&term.name) || term.name == "attention_pair")
}

/// `others` with the prices of prompts replaced: each is `scale` times its value in `prices`.
pub(crate) fn with_prompts(prices: &Row, others: &Row, scale: f64) -> Row {
    let mut values = *others;
    for (index, value) in values.iter_mut().enumerate().filter(|(index, _)| is_of_prompts(*index)) {
        *value = prices[index] * scale;
    }
    values
}
