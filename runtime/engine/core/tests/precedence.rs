//! The order of vLLM's scheduler: running requests first, then waiting requests in the order of their
//! queue; and the choice of preemption victims.

use crate::plain::{Ones, start_load, step};
use vcr_core::plan::ScheduledKind::{New, Resumed, Running};
use vcr_core::{Engine, EngineConfig, EngineConfigInput, KvRole, RequestId, RequestSpec, Reservations};

/// An engine with this number of usable blocks of 16 tokens, and a budget of 64 tokens per step.
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

fn request(tag: u64, prompt_tokens: u32, max_tokens: u32) -> RequestSpec {
    crate::plain::request(tag, tag, prompt_tokens, max_tokens)
}

/// A request with a partly computed prompt is in the running list, which is served
/// before the waiting queue.
#[test]
fn running_requests_have_the_budget_first() {
    let mut engine = engine(40);
    engine.submit(request(0, 20, 9)).expect("it fits");
    engine.submit(request(1, 100, 9)).expect("it fits");
    engine.submit(request(2, 60, 9)).expect("it fits");
    assert_eq!(step(&mut engine), [(0, New, 0, 20), (1, New, 0, 44)]);
    assert_eq!((engine.num_running(), engine.num_waiting()), (2, 1));
    assert_eq!(step(&mut engine), [(0, Running, 20, 1), (1, Running, 44, 56), (2, New, 0, 7)]);
    assert_eq!(step(&mut engine), [(0, Running, 21, 1), (1, Running, 100, 1), (2, Running, 7, 53)]);
}

/// The newest running request is preempted. It goes to the head of the waiting queue
/// and keeps its output tokens, but none of its KV.
#[test]
fn the_newest_is_preempted_and_readmitted_first() {
    // Two prompts of two full blocks each, in five blocks: only one of the requests gets another
    // block for its output.
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
    // First the newest of three requests, then the newer of two.
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
    assert_eq!(resumed[0].0, 1, "the latest victim goes first: {resumed:?}");
    assert!(said[1] < 30, "output from before the preemption is not repeated: {said:?}");
}

/// A smaller request does not overtake the head of the waiting queue, and no running
/// request is preempted for it.
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

/// Only the last token of the prompt is computed, and the request never decodes.
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

/// A cancelled reservation does not change the eviction order of the request's blocks: the end of the prompt is evicted
/// before its beginning.
#[test]
fn a_cancelled_reservation_keeps_the_order_of_eviction() {
    let left_after = |cancels: bool| {
        let mut engine = engine(6);
        engine.submit(request(0, 64, 1)).expect("it fits");
        step(&mut engine);
        if cancels {
            let load = start_load(&mut engine, RequestSpec { tag: 1, ..request(0, 64, 4) });
            engine.abort(load.request);
            engine.abort(load.request);
        }
        assert_eq!(engine.pool().num_active(), 0);
        // The request needs four blocks, and two are free.
        engine.submit(request(2, 64, 1)).expect("it fits");
        step(&mut engine);
        engine.cached_prefix_blocks(request(0, 64, 1).prompt.block_hashes())
    };
    assert_eq!([left_after(false), left_after(true)], [2, 2]);
}

/// An engine with this number of usable blocks of 16 tokens, and with reservations between steps.
fn taking_between_steps(usable_blocks: u32) -> Engine {
    let input = EngineConfigInput {
        num_gpu_blocks: usable_blocks + 1,
        reservations: Reservations::BetweenSteps,
        enable_prefix_caching: false,
        ..EngineConfigInput::default()
    };
    Engine::new(EngineConfig::new(input).expect("valid"))
}

/// Submits a request whose prompt another engine computes, and delivers its KV if there is room.
fn arrive(engine: &mut Engine, tag: u64, tokens: u32) -> RequestId {
    let spec = RequestSpec { kv_role: KvRole::Destination, ..request(tag, tokens, 20) };
    let id = engine.submit(spec).expect("it fits");
    if engine.reserve_remote().is_some() {
        engine.remote_kv_arrived(id);
    }
    id
}

/// With reservations between steps, a preempted request goes before requests whose KV has arrived,
/// unless another request waits for blocks for its KV.
#[test]
fn preempted_requests_go_before_arrived_kv() {
    let mut engine = taking_between_steps(7);
    let first = arrive(&mut engine, 0, 47);
    arrive(&mut engine, 1, 47);
    assert_eq!(step(&mut engine), [(0, New, 46, 1), (1, New, 46, 1)]);
    assert_eq!(step(&mut engine), [(0, Running, 47, 1), (1, Running, 47, 1)]);
    assert_eq!(step(&mut engine), [(0, Running, 48, 1)], "there is one block more");
    let third = arrive(&mut engine, 2, 40);
    assert_eq!(step(&mut engine), [(0, Running, 49, 1)], "the head does not fit, and arrived KV waits");
    let fourth = arrive(&mut engine, 3, 40);
    assert_eq!(step(&mut engine), [(0, Running, 50, 1), (2, New, 39, 1)], "no block is free for the fourth");
    engine.abort(fourth);
    engine.abort(third);
    arrive(&mut engine, 4, 40);
    engine.abort(first);
    assert_eq!(step(&mut engine), [(1, Resumed, 0, 49), (4, New, 39, 1)]);
}

/// Requests that hold the blocks that a blocked head needs go before it.
#[test]
fn a_head_without_room_does_not_stop_an_idle_engine() {
    let mut engine = taking_between_steps(5);
    let first = arrive(&mut engine, 0, 32);
    arrive(&mut engine, 1, 47);
    assert_eq!(step(&mut engine), [(0, New, 31, 1), (1, New, 46, 1)]);
    assert_eq!(step(&mut engine), [(0, Running, 32, 1)], "the second is preempted");
    assert_eq!(engine.plan().preempted, [1]);
    engine.abort(first);
    arrive(&mut engine, 2, 40);
    arrive(&mut engine, 3, 20);
    assert_eq!(step(&mut engine), [(2, New, 39, 1), (3, New, 19, 1)]);
}
