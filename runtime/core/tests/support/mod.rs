//! Random engines and requests for the property tests.

use proptest::prelude::*;
use vcr_core::{EngineConfig, EngineConfigInput, Policy, Prompt, RequestSpec, SchedulerRules, TokenSource};

/// Answers that depend on request and position alone; every 37th token is a stop token.
pub(crate) struct Tokens;

impl TokenSource for Tokens {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        (tag as u32).wrapping_mul(31).wrapping_add(output_index * 7) % 37
    }

    fn extra_tokens(&mut self, tag: u64, max_extra: u32) -> u32 {
        tag as u32 % (max_extra + 1)
    }

    fn accepted_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        (tag as u32 * 5 + 1) % (num_drafts + 1)
    }

    fn proposed_drafts(&mut self, tag: u64, most: u32) -> u32 {
        (tag as u32 * 3 + 2) % (most + 1)
    }
}

/// Settings that pass all checks.
pub(crate) fn arb_config() -> impl Strategy<Value = EngineConfig> {
    let sizes = (1..20u32, 4..80u32, 1..12u32, 12..300u32);
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let caps = (prop_oneof![Just(0), 5..50u32], 0.0..0.2f64, proptest::option::of(50..400u32), 0..3u32);
    let modes = prop_oneof![
        // Dynamo's bursts exclude drafts and async scheduling.
        1 => (0..3u32, Just(0), Just(false)),
        2 => (Just(0), 0..5u32, any::<bool>()),
    ];
    (sizes, switches, caps, modes, any::<bool>()).prop_map(|(sizes, switches, caps, modes, older)| {
        let (block_size, num_gpu_blocks, max_num_seqs, budget) = sizes;
        let (caching, chunking, priority, adaptive, reserve) = switches;
        let (threshold, watermark, max_model_len, max_loras) = caps;
        let (max_extra_tokens_per_step, num_speculative_tokens, async_scheduling) = modes;
        // Without room for the longest request a padded admission may never fit.
        let max_model_len = max_model_len.or((num_speculative_tokens > 0).then_some(300));
        let longest_blocks = max_model_len.unwrap_or(0).div_ceil(block_size) + 1;
        let input = EngineConfigInput {
            block_size,
            num_gpu_blocks: if num_speculative_tokens > 0 {
                num_gpu_blocks.max(longest_blocks)
            } else {
                num_gpu_blocks
            },
            max_num_seqs,
            max_num_batched_tokens: if chunking { budget } else { budget.max(max_model_len.unwrap_or(0)) },
            max_model_len,
            policy: if priority { Policy::Priority } else { Policy::Fcfs },
            enable_prefix_caching: caching,
            enable_chunked_prefill: chunking,
            long_prefill_token_threshold: threshold,
            adaptive_long_prefill: adaptive,
            watermark,
            scheduler_reserve_full_isl: reserve,
            max_num_active_seqs: None,
            max_loras,
            max_extra_tokens_per_step,
            num_speculative_tokens,
            async_scheduling,
            rules: if older { SchedulerRules::V0_32 } else { SchedulerRules::V0_33 },
        };
        EngineConfig::new(input).expect("drawn to be valid")
    })
}

/// A request by its tag: two in three have an adapter if the engine has any,
/// every other prompt keeps its tokens, some are computed whatever is cached.
pub(crate) fn request(
    config: &EngineConfig,
    tag: u64,
    prompt_tokens: u32,
    shared: bool,
    max_tokens: u32,
) -> RequestSpec {
    let adapters = config.max_loras > 0 && !tag.is_multiple_of(3);
    let lora = adapters.then_some((tag % 4) as u32);
    let salt = lora.map_or(0, |lora| u64::from(lora) + 1);
    let content = if shared { 1 } else { 1000 + tag as u32 };
    let prompt = if tag.is_multiple_of(2) {
        let tokens = (0..prompt_tokens).map(|index| content * 512 + index);
        Prompt::of_tokens(tokens.collect(), config.block_size, salt)
    } else {
        let mut prompt = Prompt::new(config.block_size, salt);
        prompt.push_run(u64::from(content), 0, prompt_tokens);
        prompt
    };
    let skip_reading_prefix_cache = tag.is_multiple_of(7);
    RequestSpec { lora, skip_reading_prefix_cache, ..RequestSpec::new(tag, prompt, max_tokens) }
}
