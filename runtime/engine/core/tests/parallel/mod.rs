//! Pipeline and context parallelism, in cases that no recording of a scheduler can show: refused settings, steps
//! that are not predicted, and comparisons with engines without parallelism.

use crate::support::{Tokens, arb_config, request};
use proptest::prelude::*;
use vcr_core::latency::DecodeSteps;
use vcr_core::plan::StepPlan;
use vcr_core::{
    CapacityPolicy, Drafter, Engine, EngineConfig, EngineConfigInput, KvCacheGroup, KvTiersConfig, PauseState, Prompt,
    RequestSpec, Reservations,
};

fn split(pipeline_parallel_size: u32, async_scheduling: bool) -> EngineConfigInput {
    EngineConfigInput { pipeline_parallel_size, async_scheduling, ..EngineConfigInput::default() }
}

fn shared(decode_context_parallel_size: u32, block_size: u32) -> EngineConfigInput {
    EngineConfigInput { decode_context_parallel_size, block_size, ..EngineConfigInput::default() }
}

fn groups(texts: &[&str]) -> Vec<KvCacheGroup> {
    texts.iter().map(|text| text.parse().expect("a group")).collect()
}

fn tiers() -> Option<KvTiersConfig> {
    Some(KvTiersConfig { host_blocks: 8, kv_bytes_per_token: 1, offload_batch_size: 1, ..KvTiersConfig::default() })
}

#[track_caller]
fn refused(input: EngineConfigInput, words: &str) {
    let errors = EngineConfig::new(input).expect_err("it is to be refused");
    let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(text.iter().any(|text| text.contains(words)), "{text:?} do not say: {words}");
}

fn submit(engine: &mut Engine, tag: u64, prompt_tokens: u32, max_tokens: u32) {
    let mut prompt = Prompt::new(engine.config().hashed_blocks(), 0);
    prompt.push_run(tag, 0, prompt_tokens);
    engine.submit(RequestSpec::new(tag, prompt, max_tokens)).expect("it fits");
}

fn tags(plan: &StepPlan) -> Vec<u64> {
    plan.scheduled.iter().map(|entry| entry.tag).collect()
}

#[test]
fn settings_that_vllm_refuses_or_that_are_undefined() {
    refused(split(0, false), "invalid `pipeline_parallel_size`: expected at least 1");
    refused(split(65, false), "`pipeline_parallel_size`");
    refused(shared(0, 16), "invalid `decode_context_parallel_size`: expected at least 1");
    refused(shared(1025, 16), "`decode_context_parallel_size`");
    let drafts = |async_scheduling| EngineConfigInput { num_speculative_tokens: 2, ..split(2, async_scheduling) };
    refused(drafts(false), "`pipeline_parallel_size` cannot be combined with `num_speculative_tokens`");
    assert!(EngineConfig::new(drafts(true)).is_ok());
    let windows = EngineConfigInput { kv_cache_groups: groups(&["full", "sliding_window:64"]), ..shared(2, 16) };
    refused(windows, "vLLM shares no windows");
    refused(EngineConfigInput { kv_cache_groups: groups(&["full", "mamba"]), ..shared(2, 16) }, "only full attention");
    for input in [split(2, false), shared(2, 16)] {
        refused(EngineConfigInput { kv_tiers: tiers(), ..input }, "cannot be combined with `kv_tiers`");
    }
    let evicts_none = EngineConfigInput { capacity: CapacityPolicy::GuaranteedNoEvict, ..split(2, false) };
    refused(evicts_none, "cannot be combined with `capacity`");
    let between = EngineConfigInput { reservations: Reservations::BetweenSteps, ..split(2, false) };
    refused(between, "cannot be combined with `reservations`");
    refused(EngineConfigInput { max_extra_tokens_per_step: 1, ..split(2, false) }, "`max_extra_tokens_per_step`");
}

#[test]
fn settings_are_given_back_as_they_were_stated() {
    let input = EngineConfigInput { kv_cache_groups: groups(&["full", "full@48"]), ..shared(4, 16) };
    let config = EngineConfig::new(input.clone()).expect("valid");
    assert_eq!((config.block_size(), config.context_ranks(), config.aligned_tokens()), (64, 4, 192));
    assert_eq!(config.stated(), input);
    assert_eq!(EngineConfig::new(config.stated()), Ok(config));
}

#[test]
fn requests_in_flight_are_not_scheduled_again() {
    let input = EngineConfigInput { max_num_batched_tokens: 8, max_num_seqs: 8, ..split(3, false) };
    let mut engine = Engine::new(EngineConfig::new(input).expect("valid"));
    submit(&mut engine, 0, 20, 4);
    submit(&mut engine, 1, 8, 4);
    // A prompt continues while its first chunk is in flight.
    assert_eq!(tags(engine.schedule()), [0]);
    assert_eq!(tags(engine.schedule()), [0]);
    assert_eq!(tags(engine.schedule()), [0, 1]);
    assert!(!engine.may_schedule());
    engine.update(&mut Tokens);
    // The rest of the second prompt runs while the first request waits for its token.
    assert_eq!(tags(engine.schedule()), [1]);
    engine.update(&mut Tokens);
    assert_eq!(tags(engine.schedule()), [] as [u64; 0]);
    engine.update(&mut Tokens);
    assert_eq!(tags(engine.schedule()), [0]);
    let mut steps = DecodeSteps::default();
    engine.predict_decode_steps(8, &mut steps);
    assert!(steps.is_empty(), "steps of a pipeline are not predicted");
}

#[test]
fn under_async_scheduling_a_request_decodes_once_for_each_stage() {
    let mut engine = Engine::new(EngineConfig::new(split(3, true)).expect("valid"));
    assert_eq!(engine.config().max_steps_in_flight(), 4);
    submit(&mut engine, 0, 5, 9);
    let mut found = vec![tags(engine.schedule()).len()];
    submit(&mut engine, 1, 5, 9);
    for _ in 0..9 {
        found.push(tags(engine.schedule()).len());
        if engine.steps_in_flight() > 2 {
            engine.update(&mut Tokens);
        }
    }
    // The second request starts one schedule later. Each request decodes in every third schedule.
    assert_eq!(found, [1, 1, 0, 1, 1, 0, 1, 1, 0, 1]);
}

#[test]
fn requests_keep_their_turns_through_a_pause() {
    for stages in 2..5 {
        let mut engine = Engine::new(EngineConfig::new(split(stages, true)).expect("valid"));
        submit(&mut engine, 0, 5, 9);
        assert_eq!(tags(engine.schedule()), [0]);
        submit(&mut engine, 1, 5, 9);
        assert_eq!(tags(engine.schedule()), [1]);
        engine.set_pause_state(PauseState::PausedAll);
        while engine.step_in_flight() {
            engine.update(&mut Tokens);
        }
        engine.set_pause_state(PauseState::Unpaused);
        // No step is in flight, but each request still waits for its turn.
        for _ in 2..stages {
            assert_eq!(tags(engine.schedule()), [] as [u64; 0]);
        }
        assert_eq!(tags(engine.schedule()), [0]);
        assert_eq!(tags(engine.schedule()), [1]);
    }
}

#[test]
fn an_ended_request_asks_for_a_schedule_where_requests_take_turns() {
    for (input, is_asked) in [(split(2, true), true), (split(2, false), false), (split(1, true), false)] {
        let mut engine = Engine::new(EngineConfig::new(input).expect("valid"));
        submit(&mut engine, 0, 5, 1);
        engine.schedule();
        assert!(!engine.has_finished_requests());
        engine.update(&mut Tokens);
        assert_eq!(engine.has_finished_requests(), is_asked);
        engine.schedule();
        assert!(!engine.has_finished_requests());
    }
}

proptest! {
    #[test]
    fn shared_blocks_are_longer_blocks(config in arb_config(), ranks in 1..5u32, prompts in proptest::collection::vec((1..150u32, any::<bool>(), 1..20u32), 1..12)) {
        prop_assume!(config.kv_tiers().is_none() && config.block_size().is_multiple_of(ranks));
        let block_size = config.block_size() / ranks;
        let input = EngineConfigInput { block_size, decode_context_parallel_size: ranks, ..config.stated() };
        let ranked = EngineConfig::new(input).expect("as valid as the other");
        prop_assert_eq!(ranked.context_ranks(), ranks);
        let mut engines = [Engine::new(config.clone()), Engine::new(ranked)];
        for (tag, &(prompt_tokens, is_shared, max_tokens)) in (0..).zip(&prompts) {
            for engine in &mut engines {
                _ = engine.submit(request(&config, tag, prompt_tokens, is_shared, max_tokens));
            }
        }
        for _ in 0..400 {
            let plans = engines.each_mut().map(|engine| format!("{:?}", engine.schedule()));
            prop_assert_eq!(&plans[0], &plans[1]);
            if engines[0].step_in_flight() {
                engines.iter_mut().for_each(|engine| _ = engine.update(&mut Tokens));
            }
        }
    }

    /// With the maximum number of steps in flight, every request gets its tokens, and all blocks are free at the
    /// end.
    #[test]
    fn a_pipeline_loses_no_request_and_no_block(config in arb_config(), stages in 2..6u32, prompts in proptest::collection::vec((1..100u32, any::<bool>(), 1..12u32), 1..12)) {
        let input = EngineConfigInput {
            pipeline_parallel_size: stages,
            num_speculative_tokens: if config.async_scheduling() { config.num_speculative_tokens() } else { 0 },
            draft_ranges: if config.async_scheduling() { config.stated().draft_ranges } else { Vec::new() },
            drafter: if config.async_scheduling() { config.drafter() } else { Drafter::Ngram },
            capacity: CapacityPolicy::Preempt,
            reservations: Reservations::InSteps,
            max_extra_tokens_per_step: 0,
            kv_tiers: None,
            ..config.stated()
        };
        let config = EngineConfig::new(input).expect("drawn to be valid");
        let mut engine = Engine::new(config.clone());
        let mut wanted = 0;
        for (tag, &(prompt_tokens, is_shared, max_tokens)) in (0..).zip(&prompts) {
            if engine.check(prompt_tokens, max_tokens).is_ok()
                && engine.submit(request(&config, tag, prompt_tokens, is_shared, max_tokens)).is_ok()
            {
                wanted += u64::from(max_tokens.min(config.max_model_len() - prompt_tokens));
            }
        }
        let (mut emitted, mut turns) = (0, 0);
        while engine.num_requests() > 0 || engine.step_in_flight() {
            turns += 1;
            prop_assert!(turns < 20_000, "no end: {} run, {} wait", engine.num_running(), engine.num_waiting());
            prop_assert!(engine.steps_in_flight() <= config.max_steps_in_flight());
            let any = engine.may_schedule() && !engine.schedule().is_empty();
            if engine.step_in_flight() && !(any && engine.may_schedule()) {
                let outputs = engine.update(&mut Tokens);
                emitted += outputs.outputs.iter().map(|output| u64::from(output.num_tokens)).sum::<u64>();
            }
            engine.pool().assert_consistent();
        }
        prop_assert_eq!(emitted, wanted);
        prop_assert_eq!(engine.pool().num_active(), 0);
    }
}
