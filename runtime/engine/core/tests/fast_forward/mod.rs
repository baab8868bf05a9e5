//! Predicted steps equal the actual steps.

mod steady_decode;
use crate::support::{Tokens, Whims, arb_config, request};
use proptest::prelude::*;
use vcr_core::kv_pool::BlockId;
use vcr_core::latency::DecodeSteps;
use vcr_core::plan::{AdmissionStop, ScheduledKind};
use vcr_core::{Engine, EngineConfig, EngineConfigInput, KvTiers, PauseState};

type Requests = Vec<(u32, bool, u32)>;

/// Requests, each with a prompt length, whether the prompt is shared, and a number of output tokens.
fn arb_requests() -> impl Strategy<Value = Requests> {
    proptest::collection::vec((1..120u32, any::<bool>(), 1..60u32), 1..12)
}

fn with_requests(config: EngineConfig, requests: &Requests) -> Engine {
    let mut engine = Engine::new(config);
    engine.pool_mut().record_events(true);
    for (tag, &(prompt_tokens, shared, max_tokens)) in requests.iter().enumerate() {
        if engine.check(prompt_tokens, max_tokens).is_ok() {
            let spec = request(engine.config(), tag as u64, prompt_tokens, shared, max_tokens);
            engine.submit(spec).expect("it has been checked");
        }
    }
    engine
}

/// What a step log would show: for a scheduled step, its requests with tokens, depth, kind and new
/// blocks, and the number of KV events so far; for an applied step, the emitted tokens.
#[derive(Debug, PartialEq)]
enum Happened {
    Scheduled {
        requests: Vec<(u64, u32, u32, ScheduledKind, Vec<BlockId>)>,
        num_events: usize,
        waiting: u64,
        stop: AdmissionStop,
    },
    Given(Vec<(u64, u32)>),
    Events(Vec<String>),
}

/// Runs all requests to their ends and skips up to `most` steps at a time. With
/// `pauses`, no request is admitted before all running requests have ended.
fn history(config: EngineConfig, requests: &Requests, most: Option<usize>, pauses: bool) -> Vec<Happened> {
    let mut engine = with_requests(config, requests);
    // Only called if a policy ranks the engine's requests.
    let mut policy = Whims::new(7);
    let mut history = Vec::new();
    let mut steps = DecodeSteps::default();
    loop {
        if engine.may_schedule() {
            engine.apply_policy(&mut policy, 0).expect("it says what it may");
            engine.schedule();
            history.push(scheduled(&engine));
            let empty = engine.plan().scheduled.is_empty();
            if empty && !engine.step_in_flight() && engine.plan().preempted.is_empty() {
                if engine.pause_state() != PauseState::Unpaused {
                    engine.set_pause_state(PauseState::Unpaused);
                } else if !end_transfer(&mut engine) {
                    break;
                }
            } else if pauses {
                engine.set_pause_state(PauseState::PausedNew);
            }
        }
        engine.predict_decode_steps(most.unwrap_or(0), &mut steps);
        if !steps.is_empty() {
            skip(&mut engine, steps.len() as u32, &mut history);
        }
        while most.is_some() && engine.decodes_bursts_on() {
            engine.decode_bursts(&mut Tokens);
            given(&engine, &mut history);
            history.push(scheduled(&engine));
        }
        if engine.step_in_flight() {
            update(&mut engine);
            given(&engine, &mut history);
        }
    }
    let events = engine.pool().events().expect("recording").iter().map(|event| format!("{event:?}"));
    history.push(Happened::Events(events.collect()));
    history
}

fn update(engine: &mut Engine) {
    engine.offload_prompts(0);
    engine.update(&mut Tokens);
}

/// Ends the next transfer of the tiers for which a request waits. Returns whether there was one. Otherwise, time does
/// not advance, because the end of a transfer may change later steps.
fn end_transfer(engine: &mut Engine) -> bool {
    let next_ns = engine.kv_tiers().and_then(KvTiers::next_load_ns);
    let mut loaded = Vec::new();
    engine.advance_tiers(next_ns.unwrap_or(0), &mut loaded);
    next_ns.is_some() || !loaded.is_empty()
}

fn scheduled(engine: &Engine) -> Happened {
    let plan = engine.plan();
    let rows = plan.scheduled.iter().map(|entry| {
        let blocks = plan.blocks_of(entry).to_vec();
        (entry.tag, entry.num_scheduled_tokens, entry.num_computed_tokens, entry.kind, blocks)
    });
    Happened::Scheduled {
        requests: rows.collect(),
        num_events: engine.pool().events().expect("recording").len(),
        waiting: engine.num_waiting() as u64,
        stop: plan.admission_stop,
    }
}

fn given(engine: &Engine, history: &mut Vec<Happened>) {
    let mut tokens = engine.outputs().tokens.iter();
    let outputs = engine.outputs().outputs.iter();
    let given = outputs.flat_map(|output| {
        let own = tokens.by_ref().take(output.num_tokens as usize);
        own.map(|&token| (output.tag, token)).collect::<Vec<_>>()
    });
    history.push(Happened::Given(given.collect()));
}

fn skip(engine: &mut Engine, steps: u32, history: &mut Vec<Happened>) {
    let before: Vec<(u64, u32)> =
        engine.plan().scheduled.iter().map(|entry| (entry.tag, entry.num_computed_tokens)).collect();
    let waiting = engine.num_waiting() as u64;
    let fast_forward = engine.decode_ahead(steps, &mut Tokens);
    assert_eq!(fast_forward.steps, steps);
    let (grants, events_by_step) = (fast_forward.grants.clone(), fast_forward.events_by_step.clone());
    for step in 1..=steps {
        let outputs = engine.outputs();
        let row = outputs.tokens.chunks_exact(steps as usize).zip(&before);
        history.push(Happened::Given(row.map(|(tokens, &(tag, _))| (tag, tokens[step as usize - 1])).collect()));
        let requests = before.iter().enumerate().map(|(index, &(tag, computed))| {
            let own = grants.iter().filter(|grant| grant.step == step && grant.entry == index as u32);
            (tag, 1, computed + step, ScheduledKind::Running, own.map(|grant| grant.block).collect())
        });
        history.push(Happened::Scheduled {
            requests: requests.collect(),
            num_events: events_by_step[step as usize - 1] as usize,
            waiting,
            stop: engine.plan().admission_stop,
        });
    }
    // The plan left in flight is the plan of the last step.
    assert_eq!(history.last(), Some(&scheduled(engine)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn predicted_steps_happen(config in arb_config(), requests in arb_requests()) {
        let mut engine = with_requests(config, &requests);
        let mut policy = Whims::new(9);
        let mut predicted = Vec::new();
        let mut steps_left = 100_000;
        while engine.has_schedulable_requests() || engine.step_in_flight() {
            steps_left -= 1;
            prop_assert!(steps_left > 0, "the requests never end");
            if engine.may_schedule() {
                engine.apply_policy(&mut policy, 0).expect("it says what it may");
                let shape = engine.schedule().shape;
                if shape.batch_requests() > 0 && predicted.is_empty() {
                    let mut steps = DecodeSteps::default();
                    engine.predict_decode_steps(7, &mut steps);
                    predicted.extend(steps.shapes());
                    predicted.reverse();
                } else if let Some(expected) = predicted.pop() {
                    prop_assert_eq!(expected, shape);
                }
            }
            if engine.step_in_flight() {
                update(&mut engine);
            } else if engine.plan().scheduled.is_empty() {
                end_transfer(&mut engine);
            }
        }
        prop_assert_eq!(predicted.len(), 0, "steps were predicted that did not come");
    }

    #[test]
    fn a_fast_forward_is_its_steps(
        config in arb_config(),
        requests in arb_requests(),
        most in 1..Engine::MAX_PREDICTED_STEPS,
        pauses in any::<bool>(),
    ) {
        let skipped = history(config.clone(), &requests, Some(most), pauses);
        prop_assert_eq!(skipped, history(config, &requests, None, pauses));
    }
}

#[test]
fn bursts_go_on_until_a_request_may_end_in_one() {
    let input = EngineConfigInput { max_extra_tokens_per_step: 3, ..EngineConfigInput::default() };
    let mut engine = with_requests(EngineConfig::new(input).expect("valid"), &vec![(30, false, 40)]);
    engine.schedule();
    engine.update(&mut Tokens);
    engine.schedule();
    let mut bursts = 0;
    while engine.decodes_bursts_on() {
        engine.decode_bursts(&mut Tokens);
        bursts += 1;
    }
    // The prefill gave one token, and each burst of request 0 has only one token. The last four tokens
    // may come in one step.
    assert_eq!(bursts, 40 - 1 - 4);
    engine.update(&mut Tokens);
    assert_eq!(engine.outputs().outputs[0].finish, None);
}

#[test]
fn a_fast_forward_of_decode_is_predicted_to_its_end() {
    let mut engine =
        with_requests(EngineConfig::new(EngineConfigInput::default()).expect("valid"), &vec![(30, false, 20)]);
    engine.schedule();
    engine.update(&mut Tokens);
    engine.schedule();
    let mut steps = DecodeSteps::default();
    engine.predict_decode_steps(Engine::MAX_PREDICTED_STEPS, &mut steps);
    // The prefill produced one token, and the step in flight produces the second.
    assert_eq!(steps.len(), 18);
    let contexts: Vec<u64> = steps.shapes().map(|shape| shape.decode_context_tokens).collect();
    assert_eq!(contexts, (32..50).collect::<Vec<u64>>());
    let blocks = steps.kv_active_blocks();
    assert_eq!((blocks[0], blocks[1], blocks[17]), (2, 3, 4));
}

#[test]
fn a_prompt_that_is_put_off_goes_on_when_the_one_that_decodes_is_aborted() {
    let input = EngineConfigInput {
        max_num_seqs: 2,
        max_num_batched_tokens: 17,
        prefill_schedule_interval: 4,
        ..EngineConfigInput::default()
    };
    let config = EngineConfig::new(input).expect("valid");
    let mut engine = with_requests(config, &vec![(1, false, 13), (200, false, 1)]);
    engine.schedule();
    engine.update(&mut Tokens);
    assert_eq!(engine.schedule().scheduled.len(), 1, "the prompt of the other one is put off");
    assert_eq!(engine.num_running(), 2);
    let decoding = engine.find(0).expect("it runs");
    engine.abort(decoding);
    let mut steps = DecodeSteps::default();
    engine.predict_decode_steps(7, &mut steps);
    assert!(steps.is_empty(), "the next step computes a part of the prompt");
    engine.update(&mut Tokens);
    assert_eq!(engine.schedule().shape.prefill_requests, 1);
}
