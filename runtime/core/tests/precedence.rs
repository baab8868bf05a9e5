//! Who goes before whom with vLLM's scheduler: what runs, then what waits in its
//! order; and who gives way.

mod plain;

use plain::{Ones, step};
use vcr_core::plan::ScheduledKind::{New, Resumed, Running};
use vcr_core::{
    Engine, EngineConfig, EngineConfigInput, KvRole, Prompt, RequestId, RequestSpec, Reservations, ServingEngine,
};

/// An engine with so many usable blocks of 16 tokens, and 64 tokens a step.
fn engine(usable_blocks: u32) -> Engine {
    let input = EngineConfigInput {
        num_gpu_blocks: usable_blocks + 1,
        max_num_batched_tokens: 64,
        max_num_seqs: 8,
        max_model_len: Some(usable_blocks * 16),
        ..EngineConfigInput::default()
    };
    Engine::new(EngineConfig::new(input).expect("valid"))
}

/// A request whose prompt is like that of no other number.
fn request(tag: u64, prompt_tokens: u32, max_tokens: u32) -> RequestSpec {
    let mut prompt = Prompt::new(16, 0);
    prompt.push_run(tag, 0, prompt_tokens);
    RequestSpec::new(tag, prompt, max_tokens)
}

/// A prompt that is computed in part runs, and what runs has the budget before
/// what waits.
#[test]
fn what_runs_has_the_budget_first() {
    let mut engine = engine(40);
    engine.submit(request(0, 20, 9)).expect("it fits");
    engine.submit(request(1, 100, 9)).expect("it fits");
    engine.submit(request(2, 60, 9)).expect("it fits");
    assert_eq!(step(&mut engine), [(0, New, 0, 20), (1, New, 0, 44)]);
    assert_eq!((engine.num_running(), engine.num_waiting()), (2, 1));
    assert_eq!(step(&mut engine), [(0, Running, 20, 1), (1, Running, 44, 56), (2, New, 0, 7)]);
    assert_eq!(step(&mut engine), [(0, Running, 21, 1), (1, Running, 100, 1), (2, Running, 7, 53)]);
}

/// The newest that runs gives way. It goes before all that waits, and keeps what it
/// has said, but none of its KV.
#[test]
fn the_newest_gives_way_and_comes_back_first() {
    // Two prompts of two full blocks each, in five blocks: the second of the two
    // answers finds none.
    let mut engine = engine(5);
    engine.submit(request(0, 31, 30)).expect("it fits");
    engine.submit(request(1, 31, 30)).expect("it fits");
    engine.submit(request(2, 10, 2)).expect("it fits");
    assert_eq!(step(&mut engine), [(0, New, 0, 31), (1, New, 0, 31), (2, New, 0, 2)]);
    let mut preempted = Vec::new();
    while preempted.is_empty() {
        preempted = engine.schedule().preempted.clone();
        engine.update(&mut Ones);
    }
    // Of three the newest, then of two the newer one, in the order in which they wait.
    assert_eq!(preempted.last(), Some(&1));
    assert!(preempted.iter().all(|&tag| tag != 0), "{preempted:?}");
    let mut resumed = Vec::new();
    let mut said = [0; 3];
    while engine.num_running() + engine.num_waiting() > 0 {
        let rows = engine.schedule().scheduled.iter();
        resumed.extend(rows.filter(|entry| entry.kind == Resumed).map(|entry| (entry.tag, entry.num_computed_tokens)));
        engine.update(&mut Ones);
        for output in &engine.outputs().outputs {
            said[output.tag as usize] += output.num_tokens;
        }
    }
    assert_eq!(resumed[0].0, 1, "who gave way last goes first: {resumed:?}");
    assert!(said[1] < 30, "what it said before is not said again: {said:?}");
}

/// The first that waits is not overtaken by one that would fit, and nobody who runs
/// gives way for it.
#[test]
fn the_head_that_does_not_fit_is_not_overtaken() {
    let mut engine = engine(6);
    engine.submit(request(0, 40, 8)).expect("it fits");
    assert_eq!(step(&mut engine), [(0, New, 0, 40)]);
    engine.submit(request(1, 64, 2)).expect("it fits");
    engine.submit(request(2, 16, 2)).expect("it fits");
    let mut depth = 40;
    while engine.num_running() == 1 {
        assert_eq!(step(&mut engine), [(0, Running, depth, 1)]);
        depth += 1;
    }
    assert_eq!(engine.stats().preemptions, 0);
    assert_eq!(step(&mut engine)[0], (1, New, 0, 64));
}

/// It has nothing to compute but the last token of its prompt, and never decodes.
#[test]
fn a_cached_request_for_no_token_is_over_with_its_prompt() {
    let mut engine = engine(20);
    engine.submit(request(0, 48, 1)).expect("it fits");
    step(&mut engine);
    engine.submit(RequestSpec { tag: 1, ..request(0, 48, 0) }).expect("it fits");
    assert_eq!(step(&mut engine), [(1, New, 32, 16)]);
    assert_eq!((engine.num_running(), engine.num_waiting(), engine.pool().num_active()), (0, 0, 0));
    assert!(engine.outputs().outputs.iter().all(|output| output.num_tokens == 0));
}

/// Blocks whose reservation is called off are evicted as if it had never been:
/// the end of a prompt before its beginning.
#[test]
fn a_cancelled_reservation_keeps_the_order_of_eviction() {
    let left_after = |cancels: bool| {
        let mut engine = engine(6);
        engine.submit(request(0, 64, 1)).expect("it fits");
        step(&mut engine);
        if cancels {
            let again = RequestSpec { tag: 1, kv_role: KvRole::Destination, ..request(0, 64, 4) };
            let id = engine.submit(again).expect("it fits");
            assert_eq!(engine.schedule().remote_loads.len(), 1);
            if engine.step_in_flight() {
                engine.update(&mut Ones);
            }
            engine.abort(id);
            engine.abort(id);
        }
        assert_eq!(engine.pool().num_active(), 0);
        // Four blocks are wanted, and two are free.
        engine.submit(request(2, 64, 1)).expect("it fits");
        step(&mut engine);
        engine.cached_prefix_blocks(request(0, 64, 1).prompt.block_hashes())
    };
    assert_eq!([left_after(false), left_after(true)], [2, 2]);
}

/// An engine with so many usable blocks of 16 tokens that are taken between steps.
fn taking_between_steps(usable_blocks: u32) -> Engine {
    let input = EngineConfigInput {
        num_gpu_blocks: usable_blocks + 1,
        reservations: Reservations::BetweenSteps,
        enable_prefix_caching: false,
        ..EngineConfigInput::default()
    };
    Engine::new(EngineConfig::new(input).expect("valid"))
}

/// Submits a request whose prompt comes from elsewhere. If there is room for it, it does.
fn arrive(engine: &mut Engine, tag: u64, tokens: u32) -> RequestId {
    let spec = RequestSpec { kv_role: KvRole::Destination, ..request(tag, tokens, 20) };
    let id = engine.submit(spec).expect("it fits");
    if engine.reserve_remote().is_some() {
        engine.remote_kv_arrived(id);
    }
    id
}

/// Where blocks are taken between steps, who was preempted goes before those whose KV has
/// arrived, unless somebody waits for blocks for more of it.
#[test]
fn who_was_preempted_goes_before_what_has_arrived() {
    let mut engine = taking_between_steps(7);
    let first = arrive(&mut engine, 0, 47);
    arrive(&mut engine, 1, 47);
    assert_eq!(step(&mut engine), [(0, New, 46, 1), (1, New, 46, 1)]);
    assert_eq!(step(&mut engine), [(0, Running, 47, 1), (1, Running, 47, 1)]);
    assert_eq!(step(&mut engine), [(0, Running, 48, 1)], "there is one block more");
    let third = arrive(&mut engine, 2, 40);
    assert_eq!(step(&mut engine), [(0, Running, 49, 1)], "the head has no room, and what has arrived waits");
    let fourth = arrive(&mut engine, 3, 40);
    assert_eq!(step(&mut engine), [(0, Running, 50, 1), (2, New, 39, 1)], "no block is free for the fourth");
    engine.abort(fourth);
    engine.abort(third);
    arrive(&mut engine, 4, 40);
    engine.abort(first);
    assert_eq!(step(&mut engine), [(1, Resumed, 0, 49), (4, New, 39, 1)]);
}

/// Such a head lets others pass where these hold the blocks that it lacks.
#[test]
fn a_head_without_room_does_not_stop_an_engine_that_does_nothing_else() {
    let mut engine = taking_between_steps(5);
    let first = arrive(&mut engine, 0, 32);
    arrive(&mut engine, 1, 47);
    assert_eq!(step(&mut engine), [(0, New, 31, 1), (1, New, 46, 1)]);
    assert_eq!(step(&mut engine), [(0, Running, 32, 1)], "the second gives way");
    assert_eq!(engine.plan().preempted, [1]);
    engine.abort(first);
    arrive(&mut engine, 2, 40);
    arrive(&mut engine, 3, 20);
    assert_eq!(step(&mut engine), [(2, New, 39, 1), (3, New, 19, 1)]);
}
