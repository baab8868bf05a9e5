//! The part of a prompt that vLLM's scheduler takes from its cache.

use vcr_core::{Engine, EngineConfig, EngineConfigInput, Prompt, RequestSpec, TokenSource};

struct Ones;

impl TokenSource for Ones {
    fn token(&mut self, _tag: u64, _output_index: u32) -> u32 {
        1
    }
}

/// Number of tokens that the second of two requests takes from the cache. The prompt of the first request has ten
/// blocks of 16 tokens, and begins like the prompt of the second.
fn cached_tokens(max_extra_tokens_per_step: u32, prompt_tokens: u32) -> u32 {
    let input = EngineConfigInput {
        num_gpu_blocks: 100,
        max_num_batched_tokens: 512,
        max_num_seqs: 8,
        max_model_len: Some(400),
        max_extra_tokens_per_step,
        ..EngineConfigInput::default()
    };
    let mut engine = Engine::new(EngineConfig::new(input).expect("valid"));
    let mut cached = 0;
    for (tag, prompt_tokens) in [(0, 160), (1, prompt_tokens)] {
        let mut prompt = Prompt::new(16, 0);
        prompt.push_run(7, 0, prompt_tokens);
        engine.submit(RequestSpec::new(tag, prompt, 1)).expect("it fits");
        cached = engine.schedule().scheduled[0].num_computed_tokens;
        engine.update(&mut Ones);
        assert_eq!(engine.num_running(), 0, "one step is all it takes");
    }
    cached
}

#[test]
fn one_token_at_least_is_computed() {
    let cached = [1, 16, 17, 64, 65, 160].map(|prompt_tokens| cached_tokens(0, prompt_tokens));
    assert_eq!(cached, [0, 0, 16, 48, 64, 144]);
}

/// With multi-token prediction, the last cached block is recomputed, however many tokens a step may
/// emit.
#[test]
fn multi_token_prediction_computes_one_more_block() {
    for extra_tokens in [1, 3] {
        let cached = [1, 16, 17, 64, 65, 160].map(|prompt_tokens| cached_tokens(extra_tokens, prompt_tokens));
        assert_eq!(cached, [0, 0, 0, 32, 48, 128]);
    }
}
