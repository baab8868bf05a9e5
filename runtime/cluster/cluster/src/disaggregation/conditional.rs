//! Decision whether a prompt of a disaggregated cluster needs a prefill engine.
//!
//! Moving KV pays where there is much to compute. A short prompt, or one that a
//! decode engine has cached, may as well be computed where its output is
//! generated, as Dynamo's conditional disaggregation does.

use vcr_core::{Prompt, ServingEngine};

use crate::config::{ConditionalConfig, ConditionalPolicy};
use crate::fleet::Worker;

/// Whether a request stays with the decode engines.
pub(crate) fn stays_with_decode(
    config: &ConditionalConfig,
    prompt: &Prompt,
    prefill: &[Worker],
    decode: &[Worker],
) -> bool {
    let up = || decode.iter().filter(|worker| worker.lifecycle().is_up());
    let Some(first) = up().next() else { return false };
    if decode_is_busy(config, up()) {
        return false;
    }
    let prefill_is_busy = || prefill_is_busy(config, prefill.iter().filter(|worker| worker.lifecycle().is_up()));
    let is_short = || {
        let cached = up().map(|worker| worker.engine().cached_prefix_blocks(prompt.block_hashes()));
        let cached_tokens = cached.max().unwrap_or(0) * first.block_size_tokens();
        let prompt_tokens = prompt.len_tokens();
        let uncached_tokens = prompt_tokens.saturating_sub(cached_tokens);
        uncached_tokens <= config.eff_isl_threshold_tokens
            || f64::from(uncached_tokens) <= config.eff_isl_ratio_threshold * f64::from(prompt_tokens)
    };
    match config.policy {
        ConditionalPolicy::IslBounding => is_short(),
        ConditionalPolicy::PrefillLoad => prefill_is_busy(),
        ConditionalPolicy::IslOrLoad => is_short() || prefill_is_busy(),
    }
}

fn prefill_is_busy<'a>(config: &ConditionalConfig, mut workers: impl Iterator<Item = &'a Worker>) -> bool {
    let Some(threshold) = config.prefill_busy_threshold else { return false };
    workers.all(|worker| {
        let budget = f64::from(worker.engine().max_num_batched_tokens());
        worker.engine().load().outstanding_prefill_tokens as f64 > threshold * budget
    })
}

fn decode_is_busy<'a>(config: &ConditionalConfig, mut workers: impl Iterator<Item = &'a Worker>) -> bool {
    let Some(threshold) = config.decode_busy_threshold else { return false };
    workers.all(|worker| {
        let load = worker.engine().load();
        f64::from(load.num_active_blocks) > threshold * f64::from(load.num_usable_blocks)
    })
}
