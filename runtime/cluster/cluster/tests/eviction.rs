//! Tests of eviction in the order of the next use, with known future prompts.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::support::{MS, assert_conserved, config, mix, pool, run, synthetic};
use proptest::prelude::*;
use vcr_cluster::observe::{Observer, StepRecord};
use vcr_cluster::{
    Answers, Arrivals, FaultConfig, FaultKind, KvEviction, Limit, PoolConfig, PoolRole, RouterConfig, RunConfig,
    Topology, TracePacing, WorkloadConfig, WorkloadSource, simulate,
};
use vcr_core::{CapacityPolicy, EngineConfig, EngineConfigInput};
use vcr_trace::{Format, Trace, TraceOptions};

fn evicting(pool: PoolConfig, kv_eviction: KvEviction) -> Topology {
    Topology::Aggregated(PoolConfig { kv_eviction, ..pool })
}

/// Requests with prompts of four blocks of 16 tokens and one output token, 100 ms apart.
fn prompts(contents: &[u32]) -> WorkloadConfig {
    let mut rows = String::new();
    for (number, content) in contents.iter().enumerate() {
        let ids: Vec<String> = (0..4).map(|block| (content * 100 + block).to_string()).collect();
        let (at_ms, ids) = (number * 100, ids.join(","));
        rows += &format!(r#"{{"timestamp":{at_ms},"input_length":64,"output_length":1,"hash_ids":[{ids}]}}"#);
        rows.push('\n');
    }
    let options = TraceOptions { block_size_tokens: NonZeroU32::new(16), ..TraceOptions::default() };
    let trace = Trace::read(rows.as_bytes(), "rows", Format::Mooncake, &options).expect("a trace");
    let source = WorkloadSource::Trace {
        trace: Arc::new(trace),
        pacing: TracePacing::Recorded { speedup: 1.0 },
        copies: 1,
        stagger_ns: 0,
        answers: Answers::Simulated,
    };
    WorkloadConfig::new("rows", source)
}

fn cached(kv_eviction: KvEviction, capacity: CapacityPolicy) -> Vec<u32> {
    // The eight blocks hold two of the three prompts.
    let pool = pool("gpu", 1, 9, RouterConfig::RoundRobin);
    let own = pool.engine.as_vllm().expect("pools are vLLM's").stated();
    let engine = EngineConfig::new(EngineConfigInput { capacity, ..own }).expect("a valid engine").into();
    let topology = evicting(PoolConfig { engine, ..pool }, kv_eviction);
    let report = run(&config(topology, vec![prompts(&[1, 2, 3, 1, 2, 3, 1, 2, 3])]));
    assert_conserved(&report);
    report.requests.iter().map(|record| record.cached_tokens).collect()
}

#[test]
fn a_prompt_that_comes_back_finds_what_the_least_recently_used_order_has_lost() {
    assert_eq!(cached(KvEviction::Lru, CapacityPolicy::Preempt), [0; 9]);
    // Blocks with the furthest next use are evicted, the last block of a prompt first. The third request evicts
    // all of prompt 2, the fourth one block of prompt 3, the fifth all but one block of prompt 1, and so on.
    assert_eq!(cached(KvEviction::Belady, CapacityPolicy::Preempt), [0, 0, 0, 48, 0, 48, 16, 48, 16]);
    assert!(cached(KvEviction::Belady, CapacityPolicy::GuaranteedNoEvict).iter().sum::<u32>() > 0);
}

#[test]
fn an_unknown_future_is_refused() {
    let topology = || evicting(pool("gpu", 2, 40, RouterConfig::RoundRobin), KvEviction::Belady);
    let refused = |config: RunConfig, expected: &str| {
        let errors = config.check().expect_err("it is refused");
        assert!(errors.iter().any(|error| error.problem.contains(expected)), "{errors:?}");
    };
    let limit = Limit { count: Some(5), duration_ns: None };
    let arrivals = Arrivals::ClosedLoop { concurrency: 2, limit };
    refused(config(topology(), vec![synthetic("loop", arrivals, mix(50.0, 5.0))]), "start at times of their own");
    let kind = FaultKind::Crash { restart_after_ns: None };
    let faults = vec![FaultConfig { at_ns: MS, pool: PoolRole::Aggregated, engine: 0, kind }];
    refused(RunConfig { faults, ..config(topology(), vec![prompts(&[1])]) }, "without faults");
}

/// An observer that wants every step, so that none is skipped.
struct Watching;

impl Observer for Watching {
    fn wants_steps(&self) -> bool {
        true
    }

    fn started(&mut self, _step: &StepRecord<'_>) {}
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// No request is lost in small pools, and observation changes no results.
    #[test]
    fn runs_that_know_the_future_are_conserved(
        seed in any::<u64>(),
        count in 1..60u64,
        engines in 1..4u32,
        blocks in 40..200u32,
        is_loaded in any::<bool>(),
    ) {
        let router = if is_loaded { RouterConfig::LeastLoaded } else { RouterConfig::RoundRobin };
        let requests = vcr_cluster::RequestMix { shared_prefix_tokens: 64, prefix_groups: 6, ..mix(120.0, 20.0) };
        let workloads = vec![synthetic("load", Arrivals::Burst { count, over_ns: 800 * MS }, requests)];
        let run_config = RunConfig { seed, ..config(evicting(pool("gpu", engines, blocks, router), KvEviction::Belady), workloads) };
        let report = run(&run_config);
        assert_conserved(&report);
        let watched = simulate(run_config, &mut Watching).expect("it runs unwatched");
        prop_assert_eq!(report.fingerprint, watched.fingerprint);
    }
}
