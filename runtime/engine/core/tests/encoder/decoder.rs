//! Engines of encoder-decoder models, whose cross-attention layers keep the encoder outputs of the
//! prompt's item.

use proptest::prelude::*;
use vcr_core::{
    ConfigError, Engine, EngineConfig, EngineConfigInput, PromptItem, RejectReason, RequestSpec, SchedulerRules,
};

use crate::support::{Tokens, request};

fn settings() -> EngineConfigInput {
    EngineConfigInput {
        block_size: 4,
        num_gpu_blocks: 60,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_model_len: Some(60),
        max_num_encoder_input_tokens: Some(40),
        encoder_cache_size: Some(40),
        enable_prefix_caching: false,
        enable_chunked_prefill: false,
        kv_cache_groups: ["full", "cross_attention"].map(|group| group.parse().expect("a group")).into(),
        ..EngineConfigInput::default()
    }
}

fn engine(change: impl FnOnce(&mut EngineConfigInput)) -> Engine {
    let mut input = settings();
    change(&mut input);
    Engine::new(EngineConfig::new(input).expect("a valid engine"))
}

/// A request whose encoder reads items, each given by its offset and length.
fn with_items(engine: &Engine, tag: u64, prompt_tokens: u32, items: &[(u32, u32)]) -> RequestSpec {
    let plain = request(engine.config(), tag, prompt_tokens, false, 6);
    let items = items.iter().map(|&(offset, len)| PromptItem::new(tag, offset, len).without_place()).collect();
    RequestSpec { prompt: plain.prompt.with_items(items), ..plain }
}

#[test]
fn cross_attention_takes_the_blocks_of_an_item_with_the_first_chunk_and_no_more() {
    let mut engine = engine(|_| ());
    let id = engine.submit(with_items(&engine, 1, 5, &[(0, 10)])).expect("it fits");
    let tables = |engine: &Engine| -> Vec<usize> { engine.group_block_tables(id).map(<[u32]>::len).collect() };
    for lengths in [[2, 3], [2, 3], [2, 3], [2, 3], [3, 3]] {
        engine.schedule();
        assert_eq!(tables(&engine), lengths);
        engine.update(&mut Tokens);
    }
    engine.schedule();
    engine.update(&mut Tokens);
    assert_eq!((engine.num_requests(), engine.pool().num_active()), (0, 0));
}

#[test]
fn an_item_waits_for_room() {
    let running = |rules: SchedulerRules| -> Vec<usize> {
        let mut engine = engine(|input| (input.rules, input.encoder_cache_size) = (rules, Some(15)));
        for (tag, items) in [(1, &[(0, 10)][..]), (2, &[(0, 10)]), (3, &[])] {
            engine.submit(with_items(&engine, tag, 5, items)).expect("it fits");
        }
        let step = |engine: &mut Engine| {
            engine.schedule();
            engine.update(&mut Tokens);
            engine.num_running()
        };
        (0..2).map(|_| step(&mut engine)).collect()
    };
    assert_eq!(running(SchedulerRules::V0_33), [2, 3], "the third steps past the second");
    assert_eq!(running(SchedulerRules::V0_32), [1, 3], "the second ends the admissions");
}

#[test]
fn inputs_of_the_encoder_that_it_cannot_read_are_refused() {
    let mut engine = engine(|_| ());
    let mut reason =
        |items: &[(u32, u32)]| engine.submit(with_items(&engine, 1, 30, items)).expect_err("it is refused");
    assert_eq!(reason(&[(0, 4), (0, 4)]), RejectReason::NotOneEncoderPrompt);
    assert_eq!(reason(&[(3, 4)]), RejectReason::NotOneEncoderPrompt);
    assert_eq!(reason(&[(0, 41)]), RejectReason::ItemExceedsEncoder);
    let plain = request(engine.config(), 1, 30, false, 6);
    let in_prompt = RequestSpec { prompt: plain.prompt.with_items(vec![PromptItem::new(1, 0, 4)]), ..plain };
    assert_eq!(engine.submit(in_prompt), Err(RejectReason::NotOneEncoderPrompt), "tokens of the prompt stand for it");
}

#[test]
fn settings_that_vllm_turns_off_are_refused() {
    let problems = |change: fn(&mut EngineConfigInput)| -> Vec<String> {
        let mut input = settings();
        change(&mut input);
        let errors = EngineConfig::new(input).expect_err("it is refused");
        errors.iter().for_each(|error| assert_eq!(error.field(), "kv_cache_groups"));
        let field = |error: &ConfigError| match error {
            ConfigError::Exclusive { other_field, .. } => (*other_field).to_owned(),
            other => other.to_string(),
        };
        errors.iter().map(field).collect()
    };
    assert_eq!(problems(|input| input.enable_prefix_caching = true), ["enable_prefix_caching"]);
    assert_eq!(problems(|input| input.enable_chunked_prefill = true), ["enable_chunked_prefill"]);
    assert_eq!(problems(|input| input.long_prefill_token_threshold = 8), ["long_prefill_token_threshold"]);
    let with_eagle = |input: &mut EngineConfigInput| {
        (input.drafter, input.num_speculative_tokens) = (vcr_core::Drafter::Eagle, 2);
    };
    assert_eq!(problems(with_eagle), ["drafter"]);
}

#[test]
fn a_pool_without_room_for_the_encoder_is_refused() {
    let start = |num_gpu_blocks| {
        let config = EngineConfig::new(EngineConfigInput { num_gpu_blocks, ..settings() }).expect("valid settings");
        config.check_start_up().is_ok()
    };
    assert!(start(26) && !start(25), "15 blocks of the sequence, 10 of the encoder, the null block");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_blocks_come_back(
        num_gpu_blocks in 26..60u32,
        asynchronous in any::<bool>(),
        requests in proptest::collection::vec((1..40u32, proptest::option::of(1..40u32), any::<bool>()), 1..30),
    ) {
        let mut engine = engine(|input| {
            (input.num_gpu_blocks, input.async_scheduling) = (num_gpu_blocks, asynchronous);
            input.scheduler_reserve_full_isl = asynchronous;
        });
        let mut live = Vec::new();
        for (tag, &(prompt_tokens, item, is_aborted)) in requests.iter().enumerate() {
            let items: Vec<_> = item.map(|len| (0, len)).into_iter().collect();
            let spec = with_items(&engine, tag as u64, prompt_tokens, &items);
            live.push((engine.submit(spec).expect("it fits"), is_aborted));
            engine.schedule();
            engine.update(&mut Tokens);
            if let Some(&(id, _)) = live.last().filter(|(_, is_aborted)| *is_aborted) {
                engine.abort(id);
            }
            engine.pool().assert_consistent();
        }
        for _ in 0..2_000 {
            if engine.num_requests() == 0 {
                break;
            }
            engine.schedule();
            engine.update(&mut Tokens);
        }
        prop_assert_eq!((engine.num_requests(), engine.pool().num_active()), (0, 0));
    }
}
