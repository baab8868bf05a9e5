//! Requests whose KV comes from another engine, skipped requests, and aborts.

use crate::plain::{Ones, start_load, step};
use vcr_core::plan::{RemoteLoad, ScheduledKind};
use vcr_core::{
    CapacityPolicy, Engine, EngineConfig, EngineConfigInput, KvRole, RequestId, RequestSpec, Reservations, Victim,
};

fn engine(input: EngineConfigInput) -> Engine {
    let config = EngineConfigInput { num_gpu_blocks: 41, ..input };
    let mut engine = Engine::new(EngineConfig::new(config).expect("valid"));
    engine.pool_mut().record_events(true);
    engine
}

/// A request of 40 prompt tokens, that is two full blocks of 16 tokens and a partial one.
fn request(tag: u64, content: u64, kv_role: KvRole) -> RequestSpec {
    RequestSpec { kv_role, ..crate::plain::request(tag, content, 40, 20) }
}

fn loading(engine: &mut Engine, tag: u64, content: u64) -> (RequestId, RemoteLoad) {
    let load = start_load(engine, request(tag, content, KvRole::Destination));
    (load.request, load)
}

#[test]
fn a_failed_transfer_leaves_nothing_and_the_prompt_is_computed_here() {
    let mut engine = engine(EngineConfigInput::default());
    let (id, load) = loading(&mut engine, 0, 7);
    assert_eq!((load.cached_tokens, load.missing_tokens, engine.pool().num_active()), (0, 40, 3));
    assert_eq!(engine.outstanding_prefill_tokens(), 0);
    engine.submit(request(1, 8, KvRole::Local)).expect("it fits");
    engine.remote_kv_failed(id);
    assert_eq!((engine.num_waiting(), engine.pool().num_active()), (2, 0));
    assert_eq!(engine.outstanding_prefill_tokens(), 80);
    assert!(engine.pool().events().expect("recording").iter().next().is_none(), "nothing is offered to the cache");
    // The request is still first, and no second load is started.
    assert_eq!(step(&mut engine), [(0, ScheduledKind::New, 0, 40), (1, ScheduledKind::New, 0, 40)]);
    assert!(engine.plan().remote_loads.is_empty());
    assert_eq!(engine.outstanding_prefill_tokens(), 0);
    assert_eq!(engine.stats().prefix.requests, 3, "as in vLLM it was looked up twice");
}

#[test]
fn reservations_between_steps_are_in_order_and_before_admissions() {
    let reservations = Reservations::BetweenSteps;
    let mut engine = engine(EngineConfigInput { max_num_seqs: 2, reservations, ..EngineConfigInput::default() });
    let first = engine.submit(request(0, 7, KvRole::Destination)).expect("it fits");
    let second = engine.submit(request(1, 8, KvRole::Destination)).expect("it fits");
    engine.submit(request(2, 9, KvRole::Local)).expect("it fits");
    assert!(step(&mut engine).is_empty(), "a request that waits for remote KV is served first");
    let load = engine.reserve_remote().expect("there is room");
    assert_eq!((load.request, load.missing_tokens, engine.pool().num_active()), (first, 40, 3));
    assert_eq!(engine.reserve_remote().expect("there is room").request, second);
    assert!(engine.reserve_remote().is_none(), "no other request waits for blocks");
    engine.remote_kv_arrived(first);
    assert_eq!(step(&mut engine), [(0, ScheduledKind::New, 39, 1), (2, ScheduledKind::New, 0, 40)]);
    let third = engine.submit(request(3, 6, KvRole::Destination)).expect("it fits");
    assert!(engine.reserve_remote().is_none(), "both running slots are taken");
    engine.abort(third);
    engine.abort(second);
    assert_eq!((engine.num_waiting(), engine.pool().num_active()), (0, 6));
}

#[test]
fn arrived_prompts_are_admitted_in_the_order_of_their_reservations() {
    let reservations = Reservations::BetweenSteps;
    let mut engine = engine(EngineConfigInput { reservations, ..EngineConfigInput::default() });
    let mut load = |content: u64| {
        engine.submit(request(content, content, KvRole::Destination)).expect("it fits");
        engine.reserve_remote().expect("there is room").request
    };
    let [first, second, third] = [0, 1, 2].map(&mut load);
    for id in [third, first, second] {
        engine.remote_kv_arrived(id);
    }
    let tags: Vec<u64> = step(&mut engine).iter().map(|row| row.0).collect();
    assert_eq!(tags, [0, 1, 2]);
}

#[test]
fn the_preemption_victim_is_configurable() {
    for (victim, scheduled, waits) in [(Victim::Newest, vec![0, 1], 2), (Victim::Oldest, vec![1], 0)] {
        let own = EngineConfigInput { num_gpu_blocks: 9, enable_prefix_caching: false, ..EngineConfigInput::default() };
        let mut engine = Engine::new(EngineConfig::new(EngineConfigInput { victim, ..own }).expect("valid"));
        // Requests 1 and 2 each need another block in the second step. If the oldest request is preempted, there
        // is one, but request 2 is skipped.
        for (tag, tokens) in [(0, 63), (1, 32), (2, 32)] {
            engine.submit(crate::plain::request(tag, tag, tokens, 20)).expect("it fits");
        }
        assert_eq!(step(&mut engine).len(), 3);
        let tags = step(&mut engine).iter().map(|row| row.0).collect::<Vec<_>>();
        assert_eq!(tags, scheduled, "{victim:?}");
        assert_eq!(engine.plan().preempted, [waits], "{victim:?}");
    }
}

#[test]
fn after_a_failed_transfer_the_cache_still_helps() {
    let mut engine = engine(EngineConfigInput::default());
    engine.submit(request(0, 7, KvRole::Local)).expect("it fits");
    step(&mut engine);
    let (id, load) = loading(&mut engine, 1, 7);
    assert_eq!((load.cached_tokens, load.missing_tokens), (32, 8));
    engine.remote_kv_failed(id);
    assert_eq!(step(&mut engine)[1], (1, ScheduledKind::New, 32, 8));
}

#[test]
fn loaded_blocks_are_hit_by_other_requests() {
    let mut engine = engine(EngineConfigInput::default());
    let (id, _) = loading(&mut engine, 0, 7);
    engine.remote_kv_arrived(id);
    engine.submit(request(1, 7, KvRole::Local)).expect("it fits");
    assert_eq!(step(&mut engine), [(0, ScheduledKind::New, 39, 1), (1, ScheduledKind::New, 32, 8)]);
}

#[test]
fn loads_have_turns_under_vllms_rules_alone() {
    let cases = [(CapacityPolicy::Preempt, [0, 1], false), (CapacityPolicy::GuaranteedNoEvict, [1, 0], true)];
    for (capacity, order, is_cached_at_once) in cases {
        let mut engine = engine(EngineConfigInput { capacity, ..EngineConfigInput::default() });
        let (first, _) = loading(&mut engine, 0, 7);
        let (second, _) = loading(&mut engine, 1, 8);
        engine.remote_kv_arrived(second);
        engine.remote_kv_arrived(first);
        let is_cached = engine.pool().events().expect("recording").iter().next().is_some();
        assert_eq!(is_cached, is_cached_at_once, "{capacity:?}");
        let tags: Vec<u64> = step(&mut engine).iter().map(|row| row.0).collect();
        assert_eq!(tags, order, "{capacity:?}");
    }
}

#[test]
fn an_abort_during_a_transfer_frees_its_blocks() {
    let mut engine = engine(EngineConfigInput::default());
    let (id, _) = loading(&mut engine, 0, 7);
    engine.abort(id);
    assert_eq!((engine.num_requests(), engine.num_waiting(), engine.num_skipped_waiting()), (0, 0, 0));
    assert_eq!(engine.pool().num_active(), 0);
    engine.pool().assert_consistent();
    // The cache holds nothing of the aborted request.
    engine.submit(request(1, 7, KvRole::Local)).expect("it fits");
    assert_eq!(step(&mut engine), [(1, ScheduledKind::New, 0, 40)]);
}

#[test]
fn requests_are_skipped_until_they_are_admitted() {
    let mut engine = engine(EngineConfigInput { max_loras: 1, ..EngineConfigInput::default() });
    let (id, _) = loading(&mut engine, 0, 7);
    let add = |engine: &mut Engine, tag, lora| {
        engine.submit(RequestSpec { lora: Some(lora), ..request(tag, tag, KvRole::Local) }).expect("it fits")
    };
    let first = add(&mut engine, 1, 1);
    add(&mut engine, 2, 2);
    assert_eq!((engine.num_waiting(), engine.num_skipped_waiting()), (3, 1));
    step(&mut engine);
    assert_eq!((engine.num_waiting(), engine.num_skipped_waiting()), (2, 2), "one loads, one has another adapter");
    engine.remote_kv_arrived(id);
    assert_eq!((engine.num_waiting(), engine.num_skipped_waiting()), (2, 2), "it is not admitted yet");
    step(&mut engine);
    assert_eq!((engine.num_waiting(), engine.num_skipped_waiting()), (1, 1));
    engine.abort(first);
    step(&mut engine);
    assert_eq!((engine.num_waiting(), engine.num_skipped_waiting()), (0, 0));
}

#[test]
fn all_are_aborted_in_order_and_held_kv_stays() {
    let mut engine = engine(EngineConfigInput { max_num_seqs: 2, ..EngineConfigInput::default() });
    engine.submit(RequestSpec { max_tokens: 1, ..request(9, 9, KvRole::Source) }).expect("it fits");
    step(&mut engine);
    loading(&mut engine, 4, 4);
    for tag in [8, 1, 5] {
        engine.submit(request(tag, tag, KvRole::Local)).expect("it fits");
    }
    engine.schedule();
    let mut aborted = Vec::new();
    engine.abort_all(|tag| aborted.push(tag));
    assert_eq!(aborted, [4, 8, 1, 5]);
    assert_eq!(engine.live_tags().collect::<Vec<_>>(), [9], "its KV is held");
    assert!(engine.update(&mut Ones).outputs.is_empty());
    engine.release_held_kv(engine.find(9).expect("it is held"));
    assert_eq!((engine.num_requests(), engine.pool().num_active()), (0, 0));
}
