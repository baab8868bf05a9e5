//! KV of several groups of layers that is transferred from or to another engine, allocated as in vLLM 0.32 and 0.33
//! (`allocate_new_computed_blocks` of `single_type_kv_cache_manager.py`, `_connector_finished` of the scheduler).

use crate::plain::{Ones, request, start_load, step};
use vcr_core::plan::ScheduledKind;
use vcr_core::{Engine, EngineConfig, EngineConfigInput, KvRole, RequestId, RequestSpec};

/// Two groups with blocks of 16 tokens: full attention, and a window of 33 tokens.
fn engine(num_gpu_blocks: u32) -> Engine {
    engine_of(num_gpu_blocks, ["full", "sliding_window:33"])
}

fn engine_of(num_gpu_blocks: u32, groups: [&str; 2]) -> Engine {
    let kv_cache_groups = groups.map(|group| group.parse().expect("a group")).to_vec();
    let input = EngineConfigInput { num_gpu_blocks, kv_cache_groups, ..EngineConfigInput::default() };
    Engine::new(EngineConfig::new(input).expect("valid"))
}

/// Table length and number of null blocks at the start, by group.
fn tables(engine: &Engine, id: RequestId) -> Vec<(usize, usize)> {
    let table = |blocks: &[u32]| {
        let nulls = blocks.iter().take_while(|block| **block == 0).count();
        assert!(blocks[nulls..].iter().all(|block| *block != 0), "null blocks are at the start");
        (blocks.len(), nulls)
    };
    engine.group_block_tables(id).map(table).collect()
}

#[test]
fn a_window_gets_only_the_blocks_that_the_next_token_needs() {
    let mut engine = engine(200);
    let load = start_load(&mut engine, request(0, 7, 200, 20));
    assert_eq!((load.cached_tokens, load.missing_tokens), (0, 200));
    // Each group has half of the bytes of a token. The window transfers only 40 tokens.
    assert_eq!(load.moved_tokens, (200 + 40) / 2);
    // The first 168 of 200 tokens are outside the window: ten whole blocks.
    assert_eq!(tables(&engine, load.request), [(13, 0), (13, 10)]);
    assert_eq!(engine.pool().num_active(), 13 + 3);
    engine.remote_kv_arrived(load.request);
    assert_eq!(step(&mut engine), [(0, ScheduledKind::New, 199, 1)]);
    assert_eq!(tables(&engine, load.request), [(13, 0), (13, 10)]);
    for computed in 200..219 {
        assert_eq!(step(&mut engine), [(0, ScheduledKind::Running, computed, 1)]);
    }
    assert_eq!((engine.num_requests(), engine.pool().num_active()), (0, 0));
    engine.pool().assert_consistent();
}

/// Blocks of all groups have the same size in bytes, so a token in a block of 32 tokens has half the bytes.
#[test]
fn tokens_of_larger_blocks_are_fewer_bytes() {
    let mut engine = engine_of(200, ["full", "sliding_window:64@32"]);
    let load = start_load(&mut engine, request(0, 7, 200, 20));
    assert_eq!(tables(&engine, load.request), [(13, 0), (7, 4)]);
    assert_eq!((load.missing_tokens, load.moved_tokens), (200, (2 * 200 + 72_u32).div_ceil(3)));
}

#[test]
fn what_has_arrived_is_hit_by_other_requests() {
    let mut engine = engine(200);
    let load = start_load(&mut engine, request(0, 7, 200, 20));
    engine.remote_kv_arrived(load.request);
    engine.submit(request(1, 7, 200, 20)).expect("it fits");
    assert_eq!(step(&mut engine), [(0, ScheduledKind::New, 199, 1), (1, ScheduledKind::New, 192, 8)]);
    let next = start_load(&mut engine, request(2, 7, 200, 20));
    assert_eq!((next.cached_tokens, next.missing_tokens, next.moved_tokens), (192, 8, 8));
    assert_eq!(tables(&engine, next.request), [(13, 0), (13, 10)]);
}

#[test]
fn a_finished_prompt_holds_the_blocks_of_its_windows_alone() {
    let mut engine = engine(200);
    let spec = RequestSpec { kv_role: KvRole::Source, ..request(0, 7, 200, 1) };
    let id = engine.submit(spec).expect("it fits");
    assert_eq!(step(&mut engine), [(0, ScheduledKind::New, 0, 200)]);
    assert_eq!(tables(&engine, id), [(13, 0), (13, 10)]);
    assert_eq!(engine.pool().num_active(), 16);
    engine.release_held_kv(id);
    assert_eq!(engine.pool().num_active(), 0);
    engine.pool().assert_consistent();
}

#[test]
fn failed_and_aborted_transfers_leave_nothing() {
    let mut engine = engine(200);
    let failed = start_load(&mut engine, request(0, 7, 200, 20)).request;
    let aborted = start_load(&mut engine, request(1, 8, 200, 20)).request;
    assert_eq!(engine.pool().num_active(), 32);
    engine.abort(aborted);
    engine.remote_kv_failed(failed);
    assert_eq!(engine.pool().num_active(), 0);
    assert_eq!(step(&mut engine), [(0, ScheduledKind::New, 0, 200)]);
    engine.pool().assert_consistent();
}

#[test]
fn a_transfer_waits_for_the_blocks_of_all_groups() {
    let mut engine = engine(32);
    let first = start_load(&mut engine, request(0, 7, 200, 2));
    engine.submit(RequestSpec { kv_role: KvRole::Destination, ..request(1, 8, 200, 2) }).expect("it fits");
    assert!(engine.schedule().remote_loads.is_empty(), "15 blocks are free, and 16 are needed");
    if engine.step_in_flight() {
        engine.update(&mut Ones);
    }
    engine.remote_kv_arrived(first.request);
    step(&mut engine);
    step(&mut engine);
    assert_eq!(engine.schedule().remote_loads.len(), 1);
}
