//! Tests of structured outputs, whose requests wait in their engine for a grammar.

use vcr_cluster::metrics::Counter;
use vcr_cluster::record::Outcome;
use vcr_cluster::{
    Arrivals, PoolConfig, PoolRole, RouterConfig, RunConfig, StructuredOutputs, Topology, WorkloadConfig,
};
use vcr_core::RejectReason;
use vcr_core::sglang::{SglangConfig, SglangConfigInput};

use crate::runs::random::watched;
use crate::runs::{burst, crash, disaggregated};
use crate::support::{MS, assert_conserved, config, constant, mix, pool, run, synthetic};

/// Requests of which `share` have a grammar that compiles in 50 ms. `failing_share` of the grammars fail.
fn with_grammars(arrivals: Arrivals, share: f64, failing_share: f64) -> WorkloadConfig {
    let structured = StructuredOutputs { share, compile_ms: constant(50.0), failing_share };
    WorkloadConfig { structured: Some(structured), ..synthetic("structured", arrivals, mix(100.0, 8.0)) }
}

fn one_pool(engines: u32, workload: WorkloadConfig) -> RunConfig {
    config(Topology::Aggregated(pool("engines", engines, 2_000, RouterConfig::RoundRobin)), vec![workload])
}

#[test]
fn requests_are_scheduled_once_their_grammar_is_compiled() {
    let single = |share| run(&one_pool(1, with_grammars(Arrivals::Burst { count: 1, over_ns: 0 }, share, 0.0)));
    let scheduled_ns = |share| single(share).requests[0].scheduled_ns;
    assert_eq!((scheduled_ns(0.0), scheduled_ns(1.0)), (Some(0), Some(50 * MS)));
    // A waiting request does not delay others.
    let report = run(&one_pool(1, with_grammars(burst(40), 0.5, 0.0)));
    assert_conserved(&report);
    let waits_ns = report.requests.iter().map(|one| one.scheduled_ns.expect("it was scheduled") - one.queued_ns);
    let (long, short): (Vec<u64>, Vec<u64>) = waits_ns.partition(|wait_ns| *wait_ns >= 50 * MS);
    assert!(long.len() > 10 && short.iter().filter(|wait_ns| **wait_ns < 40 * MS).count() > 10, "{long:?} {short:?}");
}

#[test]
fn requests_without_a_grammar_are_rejected() {
    let rejected = Outcome::Rejected(RejectReason::GrammarFailed);
    // The engine has no other work.
    let report = run(&one_pool(1, with_grammars(Arrivals::Burst { count: 1, over_ns: 0 }, 1.0, 1.0)));
    assert_eq!((report.requests[0].outcome, report.requests[0].end_ns), (rejected, Some(50 * MS)));
    for topology in [one_pool(2, with_grammars(burst(1), 0.0, 0.0)).topology, disaggregated(2_000, None)] {
        let report = run(&config(topology, vec![with_grammars(burst(100), 0.8, 0.3)]));
        assert_conserved(&report);
        let count = report.requests.iter().filter(|one| one.outcome == rejected).count();
        assert!((10..45).contains(&count), "{count}");
        assert_eq!(report.metrics.count(Counter::Completed) as usize, 100 - count);
    }
}

/// A crash loses requests. Their grammars are compiled again on another engine.
#[test]
fn grammars_are_compiled_again_after_a_crash() {
    let mut config = one_pool(2, with_grammars(burst(20), 1.0, 0.0));
    config.faults = vec![crash(PoolRole::Aggregated, 0, 30, Some(5))];
    config.max_retries = 3;
    let report = run(&config);
    assert_conserved(&report);
    assert_eq!(report.metrics.count(Counter::Completed), 20);
    let late = report.requests.iter().filter(|one| one.scheduled_ns.is_some_and(|at_ns| at_ns >= 80 * MS));
    assert!(late.count() >= 5, "those of the first engine have waited twice");
}

#[test]
fn observers_change_nothing() {
    for (failing_share, is_async) in [(0.0, false), (0.3, true)] {
        let mut config = one_pool(3, with_grammars(burst(120), 0.6, failing_share));
        if let Topology::Aggregated(PoolConfig { engine, .. }) = &mut config.topology {
            let vllm = engine.as_vllm().expect("it is vLLM's").stated();
            let input = vcr_core::EngineConfigInput { async_scheduling: is_async, ..vllm };
            *engine = vcr_core::EngineConfig::new(input).expect("valid").into();
        }
        let alone = run(&config);
        assert_conserved(&alone);
        assert_eq!(alone.fingerprint, watched(&config).fingerprint);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let mut config = one_pool(1, with_grammars(burst(1), 1.5, 0.0));
    let problems = |config: &RunConfig| config.check().expect_err("it is refused")[0].problem.clone();
    assert_eq!(problems(&config), "invalid `share` of `structured_outputs`: expected 0 to 1");
    config.workloads = vec![with_grammars(burst(1), 1.0, 0.0)];
    config.check().expect("it is possible");
    if let Topology::Aggregated(PoolConfig { engine, .. }) = &mut config.topology {
        *engine = SglangConfig::new(SglangConfigInput::default()).expect("valid").into();
    }
    assert!(problems(&config).contains("only by vLLM's engine"), "{}", problems(&config));
}
