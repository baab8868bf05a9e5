//! Requests with prompts in parts, and outputs in between.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vcr_core::{
    Engine, EngineConfig, EngineConfigInput, FinishReason, KvCacheGroup, Policy, Prompt, RejectReason, RequestId,
    RequestSpec, SchedulerRules, SessionInput, StopRules, TokenSource,
};

/// Every third token stops a request that has token 0 as a stop token.
struct Thirds;

impl TokenSource for Thirds {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        (tag as u32 + output_index + 1) % 3
    }

    fn accepted_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        (tag as u32 + 1) % (num_drafts + 1)
    }

    fn proposed_drafts(&mut self, _tag: u64, most: u32) -> u32 {
        most
    }
}

fn input() -> EngineConfigInput {
    EngineConfigInput {
        block_size: 4,
        num_gpu_blocks: 100,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        ..Default::default()
    }
}

fn engine(input: EngineConfigInput) -> Engine {
    Engine::new(EngineConfig::new(input).expect("valid"))
}

fn session(engine: &Engine, tag: u64, prompt_tokens: u32, max_tokens: u32) -> RequestSpec {
    let prompt = Prompt::of_tokens((0..prompt_tokens).collect(), engine.config().hashed_blocks(), 0);
    RequestSpec { resumable: true, ..RequestSpec::new(tag, prompt, max_tokens) }
}

fn part(tokens: u32, max_tokens: u32) -> Option<SessionInput> {
    Some(SessionInput { tokens: (100..100 + tokens).collect(), max_tokens, stops: None, arrival_ns: 0 })
}

/// Tokens before the step, tokens in the step, and whether the outputs of the request have ended.
fn step(engine: &mut Engine) -> Vec<(u32, u32, bool)> {
    let plan = engine.schedule();
    let rows: Vec<_> =
        plan.scheduled.iter().map(|entry| (entry.tag, entry.num_computed_tokens, entry.num_scheduled_tokens)).collect();
    let mut ended = Vec::new();
    if engine.step_in_flight() {
        let outputs = engine.update(&mut Thirds);
        ended.extend(outputs.outputs.iter().filter(|output| output.finish.is_some()).map(|output| output.tag));
    }
    rows.into_iter().map(|(tag, computed, tokens)| (computed, tokens, ended.contains(&tag))).collect()
}

#[test]
fn the_next_part_follows_all_outputs_but_the_last() {
    let mut engine = engine(input());
    let id = engine.submit(session(&engine, 0, 10, 3)).expect("it fits");
    assert_eq!(step(&mut engine), [(0, 10, false)]);
    assert_eq!(step(&mut engine), [(10, 1, false)]);
    assert_eq!(step(&mut engine), [(11, 1, true)]);
    assert_eq!(engine.outputs().continuing, [0]);
    // The request waits with its blocks, so there is nothing to schedule.
    assert_eq!((engine.num_running(), engine.num_waiting(), engine.num_unfinished()), (0, 1, 0));
    assert!(!engine.has_schedulable_requests() && engine.pool().num_active() == 3);
    assert_eq!(step(&mut engine), []);
    engine.extend(id, part(6, 2)).expect("it fits");
    assert_eq!((engine.num_unfinished(), engine.has_schedulable_requests()), (1, true));
    // The 10 prompt tokens and 2 of 3 output tokens are computed.
    assert_eq!(step(&mut engine), [(12, 6, false)]);
    assert_eq!(step(&mut engine), [(18, 1, true)]);
    engine.extend(id, None).expect("its end");
    assert_eq!((engine.num_requests(), engine.num_waiting(), engine.pool().num_active()), (0, 0, 0));
}

#[test]
fn parts_that_come_early_wait_for_the_end_of_the_outputs() {
    let mut engine = engine(input());
    let id = engine.submit(session(&engine, 0, 10, 2)).expect("it fits");
    engine.extend(id, part(5, 2)).expect("it is kept");
    engine.extend(id, None).expect("it is kept");
    assert_eq!(step(&mut engine), [(0, 10, false)]);
    assert_eq!(step(&mut engine), [(10, 1, true)]);
    assert_eq!(engine.outputs().continuing, [0]);
    assert_eq!(step(&mut engine), [(11, 5, false)]);
    assert_eq!(step(&mut engine), [(16, 1, true)]);
    // The end of the request is reported with its outputs.
    assert_eq!(engine.outputs().outputs[0].finish, Some(FinishReason::Length));
    assert_eq!((engine.outputs().continuing.len(), engine.num_requests()), (0, 0));
}

#[test]
fn a_request_that_waits_for_input_keeps_its_slot() {
    let mut engine = engine(EngineConfigInput { max_num_seqs: 1, ..input() });
    let id = engine.submit(session(&engine, 0, 10, 1)).expect("it fits");
    assert_eq!(step(&mut engine), [(0, 10, true)]);
    let prompt = Prompt::of_tokens(vec![7; 4], engine.config().hashed_blocks(), 0);
    engine.submit(RequestSpec::new(1, prompt, 1)).expect("it fits");
    assert_eq!(step(&mut engine), []);
    engine.abort(id);
    assert_eq!(step(&mut engine), [(0, 4, true)]);
}

fn groups(texts: &[&str]) -> Vec<KvCacheGroup> {
    texts.iter().map(|text| text.parse().expect("valid")).collect()
}

#[test]
fn what_is_not_simulated_is_refused() {
    let refused = |input: EngineConfigInput| {
        let mut engine = engine(input);
        engine.submit(session(&engine, 0, 10, 3)).expect_err("it is refused")
    };
    for input in [
        EngineConfigInput { rules: SchedulerRules::V0_31, ..input() },
        EngineConfigInput { kv_cache_groups: groups(&["full", "mamba"]), ..input() },
        EngineConfigInput { policy: Policy::Priority, ..input() },
    ] {
        assert_eq!(refused(input), RejectReason::SessionNotSimulated);
    }
    let mut engine = engine(EngineConfigInput { max_model_len: Some(20), ..input() });
    let prompt = Prompt::of_tokens(vec![7; 4], engine.config().hashed_blocks(), 0);
    let plain = engine.submit(RequestSpec::new(1, prompt, 9)).expect("it fits");
    assert_eq!(engine.extend(plain, part(1, 1)), Err(RejectReason::DuplicateRequest));
    let id = engine.submit(session(&engine, 0, 10, 1)).expect("it fits");
    step(&mut engine);
    assert_eq!(engine.extend(id, part(10, 1)), Err(RejectReason::PromptTooLong));
    assert_eq!(engine.extend(id, part(0, 1)), Err(RejectReason::EmptyPrompt));
    engine.extend(id, part(9, 1)).expect("it leaves room for a token");
}

#[derive(Clone, Debug)]
enum Action {
    Submit(u32, u32, bool),
    Extend(usize, u32, u32),
    End(usize),
    Abort(usize),
    Step,
}

fn arb_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (1..30u32, 1..9u32, any::<bool>()).prop_map(|(prompt, tokens, stops)| Action::Submit(prompt, tokens, stops)),
        4 => (0..9usize, 1..20u32, 1..9u32).prop_map(|(which, prompt, tokens)| Action::Extend(which, prompt, tokens)),
        1 => (0..9usize).prop_map(Action::End),
        1 => (0..9usize).prop_map(Action::Abort),
        12 => Just(Action::Step),
    ]
}

fn stops(stops: bool) -> Option<Box<StopRules>> {
    stops.then(|| Box::new(StopRules::of_token(0)))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// In any order of events, no block and no request is lost, and each part ends with the
    /// requested number of tokens or a stop.
    #[test]
    fn sessions_lose_nothing(
        async_scheduling in any::<bool>(),
        num_speculative_tokens in 0..3u32,
        enable_prefix_caching in any::<bool>(),
        is_new in any::<bool>(),
        has_groups in any::<bool>(),
        actions in proptest::collection::vec(arb_action(), 1..200),
    ) {
        let mut engine = engine(EngineConfigInput {
            async_scheduling,
            num_speculative_tokens,
            enable_prefix_caching,
            num_gpu_blocks: if has_groups { 120 } else { 60 },
            kv_cache_groups: if has_groups { groups(&["sliding_window:20", "full"]) } else { Vec::new() },
            max_num_seqs: 4,
            max_model_len: Some(200),
            rules: if is_new { SchedulerRules::V0_33 } else { SchedulerRules::V0_32 },
            ..input()
        });
        let mut live: BTreeMap<u64, RequestId> = BTreeMap::new();
        let mut next_tag = 0;
        let nth = |live: &BTreeMap<u64, RequestId>, which: usize| live.iter().nth(which).map(|(&tag, &id)| (tag, id));
        for action in actions {
            match action {
                Action::Submit(prompt, tokens, stop) => {
                    let spec = RequestSpec { stops: stops(stop), ..session(&engine, next_tag, prompt, tokens) };
                    live.insert(next_tag, engine.submit(spec).expect("it fits"));
                    next_tag += 1;
                }
                Action::Extend(which, prompt, tokens) => {
                    if let Some((_, id)) = nth(&live, which) {
                        _ = engine.extend(id, part(prompt, tokens));
                    }
                }
                Action::End(which) => {
                    if let Some((tag, id)) = nth(&live, which) {
                        engine.extend(id, None).expect("it is resumable");
                        if engine.find(tag).is_none() {
                            live.remove(&tag);
                        }
                    }
                }
                Action::Abort(which) => {
                    if let Some((tag, id)) = nth(&live, which) {
                        engine.abort(id);
                        live.remove(&tag);
                    }
                }
                Action::Step => {
                    let is_idle = engine.may_schedule() && engine.schedule().is_empty();
                    // Under async scheduling, steps overlap.
                    if engine.step_in_flight() && (is_idle || !engine.may_schedule()) {
                        let outputs = engine.update(&mut Thirds);
                        for output in outputs.outputs.iter().filter(|output| output.finish.is_some()) {
                            if !outputs.continuing.contains(&output.tag) {
                                live.remove(&output.tag);
                            }
                        }
                    }
                }
            }
            engine.pool().assert_consistent();
            prop_assert!(engine.num_requests() >= live.len());
            prop_assert!(live.keys().all(|&tag| engine.find(tag).is_some()));
        }
        for id in live.into_values() {
            engine.abort(id);
        }
        while engine.step_in_flight() {
            engine.update(&mut Thirds);
        }
        prop_assert_eq!((engine.num_requests(), engine.num_waiting(), engine.pool().num_active()), (0, 0, 0));
        prop_assert_eq!((engine.num_unfinished(), engine.outstanding_prefill_tokens()), (0, 0));
    }
}
