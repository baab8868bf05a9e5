//! Drafters with their own KV, in cases that no recording of a scheduler can show: refused settings, KV from other
//! engines, steps that are not predicted.

use crate::plain::{Ones, start_load, step};
use vcr_core::latency::DecodeSteps;
use vcr_core::plan::ScheduledKind;
use vcr_core::{
    Drafter, Engine, EngineConfig, EngineConfigInput, KvCacheGroup, Prompt, RequestSpec, Reservations, SchedulerRules,
};

fn input(drafter: Drafter, num_speculative_tokens: u32) -> EngineConfigInput {
    EngineConfigInput { num_gpu_blocks: 41, drafter, num_speculative_tokens, ..EngineConfigInput::default() }
}

fn engine(input: EngineConfigInput) -> Engine {
    Engine::new(EngineConfig::new(input).expect("valid"))
}

fn request(engine: &Engine, tag: u64, prompt_tokens: u32, max_tokens: u32) -> RequestSpec {
    let mut prompt = Prompt::new(engine.config().hashed_blocks(), 0);
    prompt.push_run(7, 0, prompt_tokens);
    RequestSpec::new(tag, prompt, max_tokens)
}

#[track_caller]
fn refused(input: EngineConfigInput, words: &str) {
    let errors = EngineConfig::new(input).and_then(|config| config.check_start_up()).expect_err("it is to be refused");
    let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(text.iter().any(|text| text.contains(words)), "{text:?} do not say: {words}");
}

#[test]
fn settings_with_which_vllm_does_not_start_or_that_are_undefined() {
    let groups =
        |texts: &[&str]| -> Vec<KvCacheGroup> { texts.iter().map(|text| text.parse().expect("a group")).collect() };
    let with_groups =
        |drafter, texts: &[&str]| EngineConfigInput { kv_cache_groups: groups(texts), ..input(drafter, 2) };
    refused(input(Drafter::Eagle, 0), "`drafter` needs `num_speculative_tokens`");
    refused(
        with_groups(Drafter::DraftModel, &["full+drafter", "sliding_window:8"]),
        "groups with layers of EAGLE or MTP",
    );
    let local = &["chunked_local:32", "full"][..];
    let before = EngineConfigInput { rules: SchedulerRules::V0_32, ..with_groups(Drafter::Eagle, local) };
    refused(before, "vLLM drops no block of chunked local attention");
    assert!(EngineConfig::new(with_groups(Drafter::Eagle, local)).is_ok(), "0.33 drops none");
    assert!(EngineConfig::new(with_groups(Drafter::Eagle, &["chunked_local:32", "full+drafter"])).is_ok());
    let between = EngineConfigInput { reservations: Reservations::BetweenSteps, ..input(Drafter::Mtp, 2) };
    refused(between, "`drafter` cannot be combined with `reservations`");
    let short = |drafter| EngineConfigInput { rules: SchedulerRules::V0_32, block_size: 4, ..input(drafter, 5) };
    refused(short(Drafter::MultiModuleMtp), "invalid `block_size`: expected at least 5, got 4");
    assert!(EngineConfig::new(short(Drafter::Mtp)).is_ok());
    let budget = |drafter| EngineConfigInput { max_num_seqs: 1, max_num_batched_tokens: 4, ..input(drafter, 3) };
    assert!(EngineConfig::new(budget(Drafter::Eagle)).and_then(|config| config.check_start_up()).is_ok());
    refused(budget(Drafter::DraftModel), "`max_num_batched_tokens` (4) must exceed");
    let cap = EngineConfigInput { long_prefill_token_threshold: 3, ..input(Drafter::MultiModuleMtp, 4) };
    refused(cap, "invalid `long_prefill_token_threshold`: expected at least 4, got 3");
}

/// A prompt that another engine computes gets blocks for its tokens only. Slots for drafts and for the drafter are
/// allocated in the first step.
#[test]
fn kv_from_elsewhere_has_no_slots_for_drafts() {
    for (drafter, slots) in [(Drafter::Ngram, 0), (Drafter::Eagle, 20), (Drafter::DraftModel, 20)] {
        let mut engine = engine(EngineConfigInput { disable_lookahead_block_hashes: true, ..input(drafter, 20) });
        let id = start_load(&mut engine, crate::plain::request(0, 7, 40, 9)).request;
        assert_eq!(engine.pool().num_active(), 3, "{drafter:?}: 40 tokens");
        engine.remote_kv_arrived(id);
        assert_eq!(step(&mut engine), [(0, ScheduledKind::New, 39, 1 + 20)]);
        assert_eq!(engine.pool().num_active(), (40u32 + 20 + slots).div_ceil(16), "{drafter:?}");
    }
}

/// The last full block is hit only if the token after it is known to be the same, or if the block is dropped.
#[test]
fn a_hit_ends_before_what_the_drafter_may_have_read() {
    let hit_of = |input: EngineConfigInput, tail: u64| {
        let mut engine = engine(input);
        let id = engine.submit(request(&engine, 0, 65, 1)).expect("it fits");
        step(&mut engine);
        assert!(engine.find(0).is_none(), "{id:?} has ended");
        let mut prompt = Prompt::new(engine.config().hashed_blocks(), 0);
        prompt.push_run(7, 0, 64);
        prompt.push_run(tail, 0, 10);
        engine.submit(RequestSpec::new(1, prompt, 1)).expect("it fits");
        step(&mut engine)[0].2
    };
    let before = |drafter| EngineConfigInput { rules: SchedulerRules::V0_32, ..input(drafter, 1) };
    assert_eq!(hit_of(before(Drafter::DraftModel), 9), 64);
    assert_eq!(hit_of(before(Drafter::Eagle), 9), 48);
    // The token after the fourth block differs.
    assert_eq!(hit_of(input(Drafter::Eagle, 1), 9), 48);
    let mut engine = engine(input(Drafter::Eagle, 1));
    for tag in 0..2 {
        engine.submit(request(&engine, tag, 65, 1)).expect("it fits");
    }
    assert_eq!(step(&mut engine)[1].2, 64, "here it is the same");
}

/// The number of drafts changes, so no step is known before the previous step has ended.
#[test]
fn steps_with_a_drafter_are_not_predicted() {
    for drafter in [Drafter::Eagle, Drafter::MultiModuleMtp, Drafter::DraftModel] {
        let mut engine = engine(input(drafter, 2));
        engine.submit(request(&engine, 0, 30, 200)).expect("it fits");
        for _ in 0..5 {
            engine.schedule();
            let mut steps = DecodeSteps::default();
            engine.predict_decode_steps(Engine::MAX_PREDICTED_STEPS, &mut steps);
            assert!(steps.is_empty());
            engine.update(&mut Ones);
        }
        assert!(engine.stats().spec_decode.num_drafts > 0, "{drafter:?}");
    }
}
