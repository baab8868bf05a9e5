//! Tests of requests with per-request times: alone, and with crashes, stalls, slow-downs, transfers and several
//! engines.

use std::sync::Arc;

use vcr_cluster::metrics::{Counter, Trend};
use vcr_cluster::observe::{Observer, StepRecord};
use vcr_cluster::{
    Arrivals, FaultConfig, FaultKind, LatencyFactory, PoolConfig, PoolRole, RequestMix, RouterConfig, RunConfig,
    Topology, simulate,
};
use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultError};
use vcr_core::latency::{LatencyError, LatencyModel, StepBatch};
use vcr_core::request_times::{NextToken, RequestTimes};

use crate::runs::random::with_pools;
use crate::runs::{burst, crash, disaggregated};
use crate::support::{MS, assert_conserved, config, constant, mix, pool, run, synthetic};

/// A latency model with 50 ms until the first token and 10 ms between tokens.
#[derive(Clone, Debug)]
struct Times;

impl RequestTimes for Times {
    fn until_next_ns(&self, token: &NextToken) -> u64 {
        if token.prefill_tokens.is_some() { 50 * MS } else { 10 * MS }
    }
}

impl LatencyModel for Times {
    fn price(&mut self, _batch: &StepBatch<'_>, _durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        panic!("steps have no price");
    }

    fn request_times(&self) -> Option<Box<dyn RequestTimes>> {
        Some(Box::new(self.clone()))
    }
}

fn times() -> LatencyFactory {
    Arc::new(|_context| Ok(Box::new(Times)))
}

fn paced(config: RunConfig) -> RunConfig {
    with_pools(config, |pool| PoolConfig { latency: times(), ..pool })
}

fn engines(engines: u32, blocks: u32, requests: u64) -> RunConfig {
    let topology = Topology::Aggregated(pool("engines", engines, blocks, RouterConfig::RoundRobin));
    paced(config(topology, vec![synthetic("burst", burst(requests), mix(300.0, 40.0))]))
}

#[test]
fn each_request_sees_its_times_whatever_the_others_do() {
    let report = run(&engines(1, 20_000, 16));
    assert_conserved(&report);
    let trend = |trend| report.metrics.trend(trend).expect("it has samples");
    let (ttft, itl) = (trend(Trend::Ttft), trend(Trend::Itl));
    assert_eq!((ttft.min, ttft.max), (50.0, 50.0));
    assert_eq!((itl.min, itl.max), (10.0, 10.0));
    assert!(report.engines.iter().all(|engine| engine.utilisation == 0.0), "steps take no time");
}

#[test]
fn running_slots_queue_what_is_too_much() {
    let report = run(&engines(1, 20_000, 40));
    assert_conserved(&report);
    let trend = |trend| report.metrics.trend(trend).expect("it has samples");
    // 16 requests run at a time.
    assert!(trend(Trend::Queue).max > 50.0);
    assert!(report.requests.iter().all(|record| {
        record.first_token_ns.zip(record.scheduled_ns).is_none_or(|(first, scheduled)| first == scheduled + 50 * MS)
    }));
}

#[test]
fn few_blocks_preempt_and_all_requests_end() {
    let report = run(&engines(1, 150, 60));
    assert_conserved(&report);
    assert!(report.metrics.count(Counter::Preemptions) > 0);
}

#[test]
fn faults_and_transfers_are_conserved() {
    let mut faulty = engines(2, 2000, 60);
    faulty.max_retries = 3;
    faulty.faults = vec![crash(PoolRole::Aggregated, 1, 60, Some(40))];
    let report = run(&faulty);
    assert_conserved(&report);
    let moved = paced(config(disaggregated(2000, None), vec![synthetic("b", burst(50), mix(300.0, 20.0))]));
    let report = run(&moved);
    assert_conserved(&report);
    assert!(report.metrics.count(Counter::Completed) > 40);
}

/// A run with one request of 100 prompt tokens.
fn single(output_tokens: f64) -> RunConfig {
    let arrivals = Arrivals::Burst { count: 1, over_ns: 0 };
    let (prompt_tokens, output_tokens) = (constant(100.0), constant(output_tokens));
    let requests = RequestMix::new(prompt_tokens, output_tokens);
    let topology = Topology::Aggregated(pool("engines", 1, 2000, RouterConfig::RoundRobin));
    paced(config(topology, vec![synthetic("one", arrivals, requests)]))
}

/// An injector that stalls once, after the third step, which has the second token.
struct Stalls;

impl FailureInjector for Stalls {
    fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), FaultError> {
        actions.extend((batch.step == 3).then_some(FaultAction::Stall { duration_ns: 500 * MS }));
        Ok(())
    }
}

#[test]
fn a_stall_delays_what_is_due() {
    let stalled = with_pools(single(5.0), |pool| PoolConfig {
        failures: Some(Arc::new(|_context| Ok(Box::new(Stalls)))),
        ..pool
    });
    let report = run(&stalled);
    assert_eq!(report.metrics.count(Counter::Stalls), 1);
    let record = &report.requests[0];
    assert_eq!((record.first_token_ns, record.end_ns), (Some(50 * MS), Some(590 * MS)));
    assert_eq!(run(&single(5.0)).requests[0].end_ns, Some(90 * MS));
}

#[test]
fn a_slow_engine_stretches_times() {
    let mut slow = single(3.0);
    slow.faults = vec![FaultConfig {
        at_ns: 55 * MS,
        pool: PoolRole::Aggregated,
        engine: 0,
        kind: FaultKind::SlowDown { factor: 3.0, duration_ns: None },
    }];
    let report = run(&slow);
    // The gap after the first token was drawn before the slow-down.
    let record = &report.requests[0];
    assert_eq!((record.first_token_ns, record.end_ns), (Some(50 * MS), Some(90 * MS)));
}

/// An observer that checks that steps are in order and take no time.
#[derive(Default)]
struct Steps {
    last_ns: u64,
    steps: u64,
    tokens: u64,
}

impl Observer for Steps {
    fn wants_steps(&self) -> bool {
        true
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        assert!(step.start_ns >= self.last_ns, "steps come in order");
        assert_eq!(step.start_ns, step.end_ns);
        assert!(!step.plan.is_empty());
        self.last_ns = step.start_ns;
        self.steps += 1;
        self.tokens += u64::from(step.plan.total_num_scheduled_tokens);
    }
}

/// Steps are observed in order, and observation changes nothing.
#[test]
fn an_observer_sees_steps_in_order() {
    let mut steps = Steps::default();
    let watched = simulate(engines(2, 2000, 60), &mut steps).expect("the run reaches its end");
    let unwatched = run(&engines(2, 2000, 60));
    assert_eq!(watched.fingerprint, unwatched.fingerprint);
    assert!(steps.steps > 60 && steps.tokens > 60 * 100);
}
