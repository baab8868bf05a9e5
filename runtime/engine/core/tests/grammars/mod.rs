//! Requests with structured outputs, which wait for their grammar.

use proptest::prelude::*;
use vcr_core::{
    Compilation, Engine, EngineConfig, EngineConfigInput, FinishReason, PauseState, Policy, Prompt, RejectReason,
    RequestSpec, SchedulerRules, TokenSource,
};

/// Accepts and proposes all drafts. Only the first draft fits a grammar.
struct Firsts;

impl TokenSource for Firsts {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        tag as u32 + output_index
    }

    fn accepted_drafts(&mut self, _tag: u64, num_drafts: u32) -> u32 {
        num_drafts
    }

    fn valid_drafts(&mut self, _tag: u64, num_drafts: u32) -> u32 {
        num_drafts.min(1)
    }
}

fn engine(input: EngineConfigInput) -> Engine {
    Engine::new(EngineConfig::new(input).expect("valid"))
}

fn plain(tag: u64, prompt_tokens: u32, max_tokens: u32) -> RequestSpec {
    let mut prompt = Prompt::new(16, 0);
    prompt.push_run(tag, 0, prompt_tokens);
    RequestSpec { arrival_ns: tag, ..RequestSpec::new(tag, prompt, max_tokens) }
}

fn structured(tag: u64, prompt_tokens: u32, max_tokens: u32) -> RequestSpec {
    RequestSpec { structured: true, ..plain(tag, prompt_tokens, max_tokens) }
}

/// Schedules and applies a step. Returns the tags of its requests.
fn step(engine: &mut Engine) -> Vec<u64> {
    let tags: Vec<u64> = engine.schedule().scheduled.iter().map(|entry| entry.tag).collect();
    if engine.step_in_flight() {
        engine.update(&mut Firsts);
    }
    tags
}

#[test]
fn a_request_is_stepped_over_until_its_grammar_is_ready() {
    let mut engine = engine(EngineConfigInput { max_num_seqs: 4, ..Default::default() });
    engine.submit(structured(0, 20, 2)).expect("it fits");
    assert_eq!((engine.num_waiting(), engine.num_skipped_waiting(), engine.num_compiling()), (1, 1, 1));
    assert!(!engine.has_schedulable_requests(), "nothing but time helps");
    engine.submit(plain(1, 20, 3)).expect("it fits");
    assert_eq!(step(&mut engine), [1]);
    assert_eq!((engine.num_waiting(), engine.num_skipped_waiting()), (1, 1));
    assert!(engine.end_compilation(0, Compilation::Succeeded));
    assert!(!engine.end_compilation(0, Compilation::Succeeded), "once");
    assert!(!engine.end_compilation(1, Compilation::Succeeded), "it has none");
    assert_eq!(step(&mut engine), [1, 0]);
    assert_eq!((engine.num_waiting(), engine.num_skipped_waiting(), engine.num_compiling()), (0, 0, 0));
}

/// Up to 0.30, requests that cannot run yet wait in a separate queue, which is tried first.
#[test]
fn releases_differ_in_the_place_of_a_request_that_waits() {
    for (rules, first) in [(SchedulerRules::V0_30, 1), (SchedulerRules::V0_33, 0)] {
        let mut engine = engine(EngineConfigInput { max_num_seqs: 1, rules, ..Default::default() });
        engine.submit(plain(0, 20, 1)).expect("it fits");
        engine.submit(structured(1, 20, 1)).expect("it fits");
        engine.end_compilation(1, Compilation::Succeeded);
        assert_eq!(step(&mut engine), [first], "{rules:?}");
    }
}

#[test]
fn a_request_without_a_grammar_ends_with_the_next_result() {
    let mut engine = engine(EngineConfigInput { async_scheduling: true, ..Default::default() });
    engine.submit(plain(0, 20, 4)).expect("it fits");
    engine.schedule();
    engine.submit(structured(1, 20, 4)).expect("it fits");
    engine.end_compilation(1, Compilation::Failed);
    assert!(engine.has_schedulable_requests() && !engine.has_failed_grammars(), "no step has come to it");
    engine.schedule();
    assert!(engine.has_failed_grammars());
    let ends: Vec<_> =
        engine.update(&mut Firsts).outputs.iter().map(|one| (one.tag, one.num_tokens, one.finish)).collect();
    assert_eq!(ends, [(0, 1, None), (1, 0, Some(FinishReason::Error))]);
    assert_eq!((engine.num_waiting(), engine.num_skipped_waiting(), engine.has_failed_grammars()), (0, 0, false));
}

#[test]
fn an_idle_engine_ends_a_request_without_a_grammar_at_once() {
    let mut engine = engine(EngineConfigInput::default());
    engine.submit(structured(0, 20, 4)).expect("it fits");
    engine.end_compilation(0, Compilation::Failed);
    assert!(engine.schedule().is_empty());
    let outputs = engine.apply_transfers();
    assert_eq!((outputs.outputs.len(), outputs.outputs[0].finish), (1, Some(FinishReason::Error)));
    assert_eq!((engine.num_requests(), engine.outstanding_prefill_tokens()), (0, 0));
}

#[test]
fn requests_that_wait_for_their_grammar_can_be_aborted_and_paused() {
    for rules in [SchedulerRules::V0_30, SchedulerRules::V0_33] {
        let mut engine = engine(EngineConfigInput { rules, policy: Policy::Priority, ..Default::default() });
        let first = engine.submit(structured(0, 20, 4)).expect("it fits");
        engine.submit(structured(1, 20, 1)).expect("it fits");
        engine.abort(first);
        assert_eq!((engine.num_waiting(), engine.num_skipped_waiting(), engine.num_compiling()), (1, 1, 1));
        assert!(!engine.end_compilation(0, Compilation::Succeeded), "it is gone");
        engine.end_compilation(1, Compilation::Succeeded);
        engine.set_pause_state(PauseState::PausedNew);
        assert!(!engine.has_schedulable_requests());
        engine.set_pause_state(PauseState::Unpaused);
        assert_eq!(step(&mut engine), [1]);
        assert_eq!(engine.num_requests(), 0);
    }
}

/// The number of drafts of each request in the next step.
fn drafts(engine: &mut Engine) -> Vec<(u64, u16)> {
    engine.schedule().scheduled.iter().map(|entry| (entry.tag, entry.num_draft_tokens)).collect()
}

#[test]
fn drafts_that_do_not_fit_are_not_scheduled() {
    let mut engine = engine(EngineConfigInput { num_speculative_tokens: 3, ..Default::default() });
    engine.submit(structured(0, 20, 40)).expect("it fits");
    engine.submit(plain(1, 20, 40)).expect("it fits");
    engine.end_compilation(0, Compilation::Succeeded);
    drafts(&mut engine);
    let outputs = engine.update(&mut Firsts);
    assert!(outputs.outputs.iter().all(|one| one.num_draft_tokens == 3));
    assert_eq!(outputs.invalid_drafts, [(0, 2)]);
    assert_eq!(drafts(&mut engine), [(0, 1), (1, 3)]);
}

/// Under async scheduling, invalid drafts are known only after the step is decided. They keep their slots and do not
/// count.
#[test]
fn drafts_of_async_scheduling_keep_their_slots() {
    let input = EngineConfigInput { num_speculative_tokens: 3, async_scheduling: true, ..Default::default() };
    let mut engine = engine(input);
    engine.submit(structured(0, 20, 40)).expect("it fits");
    engine.end_compilation(0, Compilation::Succeeded);
    drafts(&mut engine);
    assert_eq!(drafts(&mut engine), [(0, 3)]);
    engine.update(&mut Firsts);
    let outputs = engine.update(&mut Firsts);
    assert_eq!((outputs.outputs[0].num_tokens, &outputs.invalid_drafts[..]), (2, &[(0, 2)][..]));
    let stats = engine.stats().spec_decode;
    assert_eq!((stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens), (1, 1, 1));
}

#[test]
fn what_is_not_simulated_is_refused() {
    let mut engine = engine(EngineConfigInput::default());
    let prompt = Prompt::of_tokens((0..20).collect(), engine.config().hashed_blocks(), 0);
    let session = RequestSpec { resumable: true, structured: true, ..RequestSpec::new(0, prompt, 3) };
    assert_eq!(engine.submit(session), Err(RejectReason::StructuredNotSimulated));
    assert_eq!(engine.num_requests(), 0);
}

proptest! {
    #[test]
    fn each_request_ends_as_its_grammar_says(
        requests in proptest::collection::vec((1..60u32, 1..12u32, 0..20usize, any::<bool>(), 0..4i32), 1..30),
        rules in prop_oneof![Just(SchedulerRules::V0_27), Just(SchedulerRules::V0_31), Just(SchedulerRules::V0_33)],
        is_priority in any::<bool>(),
        async_scheduling in any::<bool>(),
    ) {
        let policy = if is_priority { Policy::Priority } else { Policy::Fcfs };
        let mut engine = engine(EngineConfigInput {
            rules, policy, async_scheduling, num_gpu_blocks: 12, max_num_seqs: 3, max_num_batched_tokens: 32,
            ..Default::default()
        });
        let mut ends = vec![None; requests.len()];
        for turn in 0..4_000 {
            if let Some(&(prompt, output, wait, _, priority)) = requests.get(turn) {
                let spec = RequestSpec { priority, structured: wait > 0, ..plain(turn as u64, prompt, output) };
                engine.submit(spec).expect("it fits");
            }
            for (tag, &(.., wait, succeeds, _)) in requests.iter().enumerate() {
                if wait > 0 && tag + wait == turn + 1 {
                    let end = if succeeds { Compilation::Succeeded } else { Compilation::Failed };
                    prop_assert!(engine.end_compilation(tag as u64, end));
                }
            }
            if engine.may_schedule() {
                engine.schedule();
            }
            let outputs = if engine.step_in_flight() { engine.update(&mut Firsts) } else { engine.apply_transfers() };
            for one in &outputs.outputs {
                if let Some(finish) = one.finish {
                    prop_assert_eq!(ends[one.tag as usize].replace(finish), None);
                }
            }
        }
        for (end, &(.., wait, succeeds, _)) in ends.iter().zip(&requests) {
            let fails = wait > 0 && !succeeds;
            prop_assert_eq!(*end, Some(if fails { FinishReason::Error } else { FinishReason::Length }));
        }
        prop_assert_eq!((engine.num_requests(), engine.num_skipped_waiting(), engine.num_compiling()), (0, 0, 0));
        prop_assert_eq!(engine.pool().num_active(), 0);
    }
}
