//! Tests of pipeline-parallel engines in virtual time: calculated cases and random loads.

use crate::support::{MS, assert_conserved, config, engine, linear, mix, recorded, run, synthetic};
use proptest::prelude::*;
use vcr_cluster::metrics::Counter;
use vcr_cluster::{Arrivals, FaultConfig, FaultKind, PoolConfig, PoolRole, Report, RouterConfig, RunConfig, Topology};
use vcr_core::{EngineConfig, EngineConfigInput};

fn pool(engines: u32, pipeline_parallel_size: u32, async_scheduling: bool) -> PoolConfig {
    let input = EngineConfigInput { pipeline_parallel_size, async_scheduling, ..engine(2000).stated() };
    let engine = EngineConfig::new(input).expect("a valid engine");
    PoolConfig { router: RouterConfig::RoundRobin, ..PoolConfig::new("engines", engines, engine, linear()) }
}

/// A run of a trace. Each row has an arrival in milliseconds, prompt tokens and output tokens.
fn of_rows(pool: PoolConfig, rows: &[(u64, u32, u32)]) -> RunConfig {
    let line = |(number, (at_ms, prompt, output)): (usize, &(u64, u32, u32))| {
        // Every prompt has its own blocks of 512 tokens.
        let ids = (0..prompt.div_ceil(512)).map(|block| format!("{}", number * 100 + block as usize));
        format!(
            r#"{{"timestamp": {at_ms}, "input_length": {prompt}, "output_length": {output}, "hash_ids": [{}]}}"#,
            ids.collect::<Vec<_>>().join(", ")
        )
    };
    let text = rows.iter().enumerate().map(line).collect::<Vec<_>>().join("\n");
    config(Topology::Aggregated(pool), vec![recorded("rows", &text)])
}

/// First and last token time of each request, in microseconds.
fn tokens(report: &Report) -> Vec<(u64, u64)> {
    let of = |ns: Option<u64>| ns.expect("it was served") / 1_000;
    report.requests.iter().map(|record| (of(record.first_token_ns), of(record.last_token_ns))).collect()
}

/// Steps take 2 ms and 10 us per prompt token. A step has at most 512 prompt tokens.
#[test]
fn a_request_alone_is_as_fast_as_on_one_stage() {
    for (stages, is_async) in [(1, false), (2, false), (4, false), (1, true), (2, true), (4, true)] {
        let report = run(&of_rows(pool(1, stages, is_async), &[(0, 100, 3)]));
        assert_eq!(tokens(&report), [(3_000, 7_000)], "{stages} stages, async: {is_async}");
    }
}

#[test]
fn chunks_of_a_prompt_follow_each_other_through_the_stages() {
    // Two chunks take 7.12 ms each. The second starts when the first has passed half of the stages.
    let report = run(&of_rows(pool(1, 2, false), &[(0, 1024, 2)]));
    assert_eq!(tokens(&report), [(10_680, 12_680)]);
    let report = run(&of_rows(pool(1, 1, false), &[(0, 1024, 2)]));
    assert_eq!(tokens(&report), [(14_240, 16_240)]);
}

#[test]
fn requests_of_different_steps_take_turns() {
    // Each prompt fills a step. The requests then alternate, and decodes of 2 ms end every millisecond.
    let report = run(&of_rows(pool(1, 2, false), &[(0, 512, 3), (0, 512, 3)]));
    assert_eq!(tokens(&report), [(7_120, 13_680), (10_680, 14_680)]);
}

#[test]
fn a_request_that_comes_while_the_engine_waits_is_scheduled_with_the_next_step() {
    let report = run(&of_rows(pool(1, 2, false), &[(0, 100, 3), (1, 100, 1)]));
    // The first stage is free from 1.5 ms on, but the engine core waits for its step until 3 ms.
    assert_eq!(tokens(&report), [(3_000, 8_000), (6_000, 6_000)]);
}

#[test]
fn stages_raise_the_rate_of_prompts() {
    let rows: Vec<(u64, u32, u32)> = (0..40).map(|_| (0, 512, 1)).collect();
    let end = |stages| tokens(&run(&of_rows(pool(1, stages, false), &rows))).into_iter().map(|(_, last)| last).max();
    assert_eq!([end(1), end(4)], [Some(40 * 7_120), Some(7_120 + 39 * 1_780)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// For any number of stages, requests end once, crashed engines restart, and runs are repeatable.
    #[test]
    fn every_request_ends_once(
        stages in 2..6u32, is_async in any::<bool>(), engines in 1..4u32, seed in any::<u64>(), crash_ms in 1..400u64,
    ) {
        let arrivals = Arrivals::Burst { count: 60, over_ns: 300_000_000 };
        let crash = FaultConfig {
            at_ns: crash_ms * MS,
            pool: PoolRole::Aggregated,
            engine: 0,
            kind: FaultKind::Crash { restart_after_ns: Some(50 * MS) },
        };
        let topology = Topology::Aggregated(pool(engines, stages, is_async));
        let run_of = || {
            let base = config(topology.clone(), vec![synthetic("work", arrivals.clone(), mix(300.0, 20.0))]);
            run(&RunConfig { seed, faults: vec![crash.clone()], ..base })
        };
        let report = run_of();
        assert_conserved(&report);
        prop_assert_eq!(report.metrics.count(Counter::Requests), 60);
        prop_assert_eq!(report.unfinished_requests, 0);
        prop_assert_eq!(tokens_of(&report), tokens_of(&run_of()));
    }
}

fn tokens_of(report: &Report) -> Vec<(Option<u64>, Option<u64>)> {
    report.requests.iter().map(|record| (record.first_token_ns, record.end_ns)).collect()
}
