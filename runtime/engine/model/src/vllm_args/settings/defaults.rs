//! vLLM's defaults for missing arguments.

use super::Late;
use crate::Model;
use vcr_core::{Drafter, option};

use crate::vllm_args::ArgumentError;
use crate::vllm_args::{BatchDefaults, Gpu};
use crate::vllm_args::{Effect, Row, VllmArgs};

pub(super) const GPU_MEMORY_UTILIZATION: f64 = 0.92;

pub(super) const BLOCK_SIZE_TOKENS: u32 = 16;

/// Sets values that depend on other arguments, and the defaults of missing arguments.
pub(super) fn set(
    mut args: VllmArgs,
    late: &Late,
    model: Option<&Model>,
    minor: u8,
    gpu: Gpu,
    errors: &mut Vec<ArgumentError>,
) -> VllmArgs {
    let input = &mut args.input;
    let mut defaults = Vec::new();
    let mut default = |argument: &str, value: String, result: String| {
        defaults.push(Row { argument: argument.to_owned(), value, effect: Effect::Default, result });
    };
    if let (None, Some(model)) = (input.max_model_len, model) {
        let longest = u32::try_from(model.max_model_len).unwrap_or(u32::MAX);
        input.max_model_len = Some(longest);
        default("--max-model-len", longest.to_string(), format!("of {}", model.name));
    }
    let batch = BatchDefaults::of(gpu, minor);
    let times = if late.is_throughput { 2 } else { 1 };
    let on_gpu = format!("`vllm serve` on {} in 0.{minor}", gpu.name);
    let mut seqs = if late.has(&option::MAX_NUM_SEQS) { input.max_num_seqs } else { batch.max_num_seqs * times };
    let default_tokens = || {
        let tokens = batch.max_num_batched_tokens * times;
        let model_len = input.max_model_len.unwrap_or(u32::MAX);
        // A prompt that is not split must fit into one step.
        let tokens = if input.enable_chunked_prefill || model_len == u32::MAX { tokens } else { tokens.max(model_len) };
        tokens.min(seqs.saturating_mul(model_len))
    };
    let has_tokens = late.has(&option::MAX_NUM_BATCHED_TOKENS);
    let tokens = if has_tokens { input.max_num_batched_tokens } else { default_tokens() };
    if !late.has(&option::MAX_NUM_SEQS) {
        seqs = seqs.min(tokens);
        default("--max-num-seqs", seqs.to_string(), on_gpu.clone());
    }
    if !has_tokens {
        default("--max-num-batched-tokens", tokens.to_string(), on_gpu);
    }
    input.max_num_seqs = seqs;
    input.max_num_batched_tokens = tokens;
    let has_drafter = input.drafter.has_kv();
    let has_ngrams = input.num_speculative_tokens > 0 && !input.drafter.has_kv();
    if !late.has(&option::ASYNC_SCHEDULING) {
        let (on, why) = match input.drafter {
            _ if late.is_pooling => (false, "off for models that only pool"),
            _ if has_ngrams => (false, "off with n-gram speculation"),
            Drafter::DraftModel if minor <= 27 => (false, "off with draft models up to 0.27"),
            _ if input.pipeline_parallel_size > 1 && minor <= 28 => {
                (false, "off with several stages up to 0.28, but for the models of its second model runner")
            }
            _ => (true, "on where nothing excludes it"),
        };
        default("--async-scheduling", on.to_string(), why.to_owned());
        input.async_scheduling = on;
    } else if input.async_scheduling && has_ngrams {
        errors.push(ArgumentError::Value {
            name: "--async-scheduling".to_owned(),
            value: "with n-gram speculation".to_owned(),
            expected: "`--no-async-scheduling`, or another method: vLLM does not start".to_owned(),
        });
    }
    input.max_loras = match late.has_lora {
        true if late.has(&option::MAX_LORAS) => input.max_loras,
        has_lora => has_lora.into(),
    };
    if minor >= 29 && input.prefix_cache_retention_interval.is_none() {
        input.prefix_cache_retention_interval = Some(0);
    }
    let missing = |name: &str| args.rows.iter().all(|row| row.argument != name);
    if input.max_model_len.is_none() {
        default(
            "--max-model-len",
            "of the model".to_owned(),
            "no limit but the pool, unless `max_model_len` is given".to_owned(),
        );
    }
    if args.num_gpu_blocks.is_none() {
        let beside = if has_drafter { ", which counts neither the drafter's layers nor its weights" } else { "" };
        default("--num-gpu-blocks-override", "of the memory".to_owned(), format!("num_gpu_blocks: \"auto\"{beside}"));
    }
    if missing("--block-size") && model.is_none() {
        default(
            "--block-size",
            BLOCK_SIZE_TOKENS.to_string(),
            "tokens of a KV block; some attention backends take others".to_owned(),
        );
    }
    if missing("--gpu-memory-utilization") && args.num_gpu_blocks.is_none() && args.kv_cache_memory_bytes.is_none() {
        default("--gpu-memory-utilization", GPU_MEMORY_UTILIZATION.to_string(), "share of the GPU's memory".to_owned());
    }
    args.rows.extend(defaults);
    args
}
