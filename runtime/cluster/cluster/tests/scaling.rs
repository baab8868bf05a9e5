//! Tests of pools whose engines start and stop: the inputs of autoscalers and the effects of their decisions.

use std::sync::{Arc, Mutex};

use crate::support::{MS, assert_conserved, config, constant, link, mix, pool, run, synthetic};
use vcr_cluster::metrics::{Counter, Trend};
use vcr_cluster::record::{FailReason, Outcome};
use vcr_cluster::{
    Arrivals, DataParallel, FaultConfig, FaultKind, GpuDeployment, KvKnowledge, KvRouterConfig, LinkSharing,
    PoolConfig, PoolRole, Report, RequestMix, RouterConfig, RunConfig, ScalerFactory, ScalingConfig, ScalingEvent, Slo,
    TargetMetric, TargetPolicy, Topology, target_autoscaler,
};
use vcr_core::scale::{Autoscaler, PoolView, ScaleError};

/// An autoscaler with one planned number of engines per tick. The last one is repeated.
struct Planned {
    plan: Vec<u32>,
    views: Arc<Mutex<Vec<PoolView>>>,
}

impl Autoscaler for Planned {
    fn desired(&mut self, view: &PoolView) -> Result<u32, ScaleError> {
        let mut views = self.views.lock().expect("no holder panicked");
        let wanted = self.plan[views.len().min(self.plan.len() - 1)];
        views.push(*view);
        Ok(wanted)
    }
}

/// An autoscaler with a plan, and the views that it receives.
fn planned(plan: &[u32]) -> (ScalerFactory, Arc<Mutex<Vec<PoolView>>>) {
    let views = Arc::new(Mutex::new(Vec::new()));
    let (plan, seen) = (plan.to_vec(), Arc::clone(&views));
    (Arc::new(move |_context| Ok(Box::new(Planned { plan: plan.clone(), views: Arc::clone(&views) }))), seen)
}

/// A pool that starts with one engine and whose autoscaler runs every 100 ms.
fn scaled(max_engines: u32, startup_ms: u64, policy: ScalerFactory) -> PoolConfig {
    let scaling =
        ScalingConfig { interval_ns: 100 * MS, min_engines: 1, max_engines, startup_ns: startup_ms * MS, policy };
    PoolConfig { scaling: Some(scaling), ..pool("engines", 1, 2000, RouterConfig::RoundRobin) }
}

/// `count` requests that arrive over `over_ms`. Each takes one step for the prompt and 100 for the output, about
/// 202 ms.
fn work(count: u64, over_ms: u64, pool: PoolConfig) -> RunConfig {
    let requests =
        RequestMix { prompt_tokens: constant(10.0).into(), output_tokens: constant(101.0).into(), ..mix(1.0, 1.0) };
    let arrivals = Arrivals::Burst { count, over_ns: over_ms * MS };
    config(Topology::Aggregated(pool), vec![synthetic("b", arrivals, requests)])
}

fn crash(engine: u32, at_ms: u64, restart_after_ms: Option<u64>) -> FaultConfig {
    let restart_after_ns = restart_after_ms.map(|ms| ms * MS);
    FaultConfig { at_ns: at_ms * MS, pool: PoolRole::Aggregated, engine, kind: FaultKind::Crash { restart_after_ns } }
}

fn changes(report: &Report) -> Vec<(u64, u32, u32)> {
    report.scaling.iter().map(|&ScalingEvent { at_ms, from, to, .. }| (at_ms as u64, from, to)).collect()
}

#[test]
fn a_started_engine_takes_requests_after_its_start_up_and_a_drained_one_finishes_what_it_has() {
    let (policy, views) = planned(&[2, 2, 2, 2, 1]);
    let report = run(&work(100, 1000, scaled(2, 150, policy)));
    assert_conserved(&report);
    assert_eq!(report.metrics.count(Counter::Completed), 100);
    assert_eq!(changes(&report), [(100, 1, 2), (500, 2, 1)]);
    let of_second = || report.requests.iter().filter(|request| request.prefill_worker == Some(1));
    // A tick comes after all other events of its instant. Then the engine drains.
    assert!(of_second().all(|request| (250 * MS..=500 * MS).contains(&request.arrival_ns)));
    assert!(of_second().any(|request| request.end_ns > Some(600 * MS)));
    let last_end_ns = of_second().filter_map(|request| request.end_ns).max().expect("it had some");
    // The first engine is provisioned for the whole run, the second until it is empty.
    let duration_ns = report.requests.iter().filter_map(|request| request.end_ns).max().expect("it has requests");
    assert_eq!(report.pools[0].worker_ns, u128::from(duration_ns + last_end_ns - 100 * MS));
    let busy_ns = report.engines[1].utilisation * (last_end_ns - 100 * MS) as f64;
    assert!((busy_ns - (last_end_ns - 250 * MS) as f64).abs() < 20.0 * MS as f64, "{busy_ns}");
    let views = views.lock().expect("no holder panicked");
    let states: Vec<_> = views[..6].iter().map(|v| (v.up_engines, v.starting_engines, v.draining_engines)).collect();
    assert_eq!(states, [(1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 0, 0), (2, 0, 0), (1, 0, 1)]);
}

#[test]
fn a_tick_sees_the_load_when_it_is_offered_and_all_else_of_its_instant() {
    let (policy, views) = planned(&[1]);
    // Requests arrive at 0, 50, 100, ... ms. Each takes 202 ms and 100 us.
    let mut config = work(20, 1000, scaled(1, 0, policy));
    // The SLO is half of a request's 202 ms, so no request meets it.
    let slo = |e2e_ns| Some(Slo { class: "chat".to_owned(), ttft_ns: None, tpot_ns: None, e2e_ns: Some(e2e_ns) });
    config.workloads[0].slo = slo(101 * MS);
    let report = run(&config);
    let views = views.lock().expect("no holder panicked");
    let first = views[0];
    assert_eq!((first.now_ns, first.arrived_requests, first.completed_requests), (100 * MS, 3, 0));
    assert_eq!((first.arrived_prompt_tokens, first.arrived_output_tokens), (30, 303));
    assert_eq!((views[1].arrived_requests, views[1].running_requests + views[1].waiting_requests), (2, 5));
    let total = |of: fn(&PoolView) -> u64| views.iter().map(of).sum::<u64>();
    let itl = report.metrics.trend(Trend::Itl).expect("it has samples");
    assert_eq!((total(|v| v.arrived_requests), total(|v| v.ttft_count)), (20, 20));
    // Autoscalers do not see events after the last tick.
    let last_ns = views.last().expect("there are ticks").now_ns;
    let ended = report.requests.iter().filter(|request| request.end_ns <= Some(last_ns)).count();
    assert_eq!(total(|v| v.completed_requests), ended as u64);
    assert_eq!((total(|v| v.slo_requests), total(|v| v.slo_met_requests)), (ended as u64, 0));
    assert_eq!(total(|v| v.queue_count), ended as u64);
    let queue_ns = report.requests.iter().filter(|request| request.end_ns <= Some(last_ns));
    let queue_ns: u64 = queue_ns.map(|r| r.scheduled_ns.expect("it was") - r.queued_ns).sum();
    assert_eq!(views.iter().map(|v| v.queue_sum_ns).sum::<u128>(), u128::from(queue_ns));
    let ttft_ns: u64 = report.requests.iter().map(|r| r.first_token_ns.expect("it has one") - r.arrival_ns).sum();
    assert_eq!(views.iter().map(|v| v.ttft_sum_ns).sum::<u128>(), u128::from(ttft_ns));
    assert!(total(|v| v.token_gap_count) > itl.count * 9 / 10 && total(|v| v.token_gap_count) <= itl.count);
    let mean_ms =
        views.iter().map(|v| v.token_gap_sum_ns).sum::<u128>() as f64 / total(|v| v.token_gap_count) as f64 / MS as f64;
    assert!((mean_ms - itl.mean).abs() < 0.1, "{mean_ms} and {}", itl.mean);
    assert!(report.scaling.is_empty(), "nothing has changed");
    // The SLO is twice a request's time, so all requests meet it.
    let (policy, seen) = planned(&[1]);
    let mut config = work(20, 1000, scaled(1, 0, policy));
    config.workloads[0].slo = slo(404 * MS);
    let _ = run(&config);
    let seen = seen.lock().expect("no holder panicked");
    let total = |of: fn(&PoolView) -> u64| seen.iter().map(of).sum::<u64>();
    assert_eq!((total(|v| v.slo_requests), total(|v| v.slo_met_requests)), (ended as u64, ended as u64));
}

#[test]
fn a_tick_sees_the_price_of_an_engine_if_its_deployment_has_one() {
    for price in [None, Some(2.5)] {
        let (policy, views) = planned(&[1]);
        let deployment = GpuDeployment {
            gpu: "h100-sxm".to_owned(),
            gpus_per_engine: 4,
            latency: "given".to_owned(),
            latency_reason: None,
            price_per_gpu_hour_usd: price,
            price_source: None,
        };
        run(&work(2, 1, PoolConfig { deployment: Some(deployment), ..scaled(1, 0, policy) }));
        let views = views.lock().expect("no holder panicked");
        assert_eq!(views[0].engine_usd_per_hour, price.map(|_| 10.0));
    }
}

#[test]
fn start_ups_are_called_off_before_engines_drain() {
    let (policy, views) = planned(&[4, 2, 1, 3]);
    let report = run(&work(100, 1000, scaled(4, 1_000_000, policy)));
    assert_conserved(&report);
    assert_eq!(changes(&report)[..4], [(100, 1, 4), (200, 4, 2), (300, 2, 1), (400, 1, 3)]);
    let views = views.lock().expect("no holder panicked");
    let starting: Vec<_> = views[..5].iter().map(|v| (v.up_engines, v.starting_engines)).collect();
    assert_eq!(starting, [(1, 0), (1, 3), (1, 1), (1, 0), (1, 2)]);
    // The newest start-ups were cancelled first, and their slots were used again.
    let end_ms = report.duration_ms as u128;
    let expected = [end_ms, (300 - 100) + (end_ms - 400), (200 - 100) + (end_ms - 400), 200 - 100];
    let worker_ms = report.pools[0].worker_ns / u128::from(MS);
    assert!(worker_ms.abs_diff(expected.iter().sum()) < 4, "{worker_ms}");
    assert!(report.engines[1..].iter().all(|engine| engine.steps == 0 && engine.utilisation == 0.0));
}

/// Autoscalers count engines, whatever their number of ranks. Engines start and stop with all their ranks.
#[test]
fn engines_come_and_go_with_all_of_their_ranks() {
    for barrier in [false, true] {
        let (policy, views) = planned(&[2, 2, 2, 1]);
        let data_parallel = DataParallel { size: 2, barrier };
        let report = run(&work(100, 1000, PoolConfig { data_parallel, ..scaled(2, 150, policy) }));
        assert_conserved(&report);
        assert_eq!(report.metrics.count(Counter::Completed), 100);
        assert_eq!(changes(&report), [(100, 1, 2), (400, 2, 1)]);
        let of_second = || report.requests.iter().filter(|request| request.prefill_worker >= Some(2));
        assert!(of_second().all(|request| (250 * MS..=400 * MS).contains(&request.arrival_ns)));
        assert!([2, 3].iter().all(|&rank| of_second().any(|request| request.prefill_worker == Some(rank))));
        // The second engine is provisioned until both of its ranks are empty.
        let last_end_ns = of_second().filter_map(|request| request.end_ns).max().expect("it had some");
        let duration_ns = report.requests.iter().filter_map(|request| request.end_ns).max().expect("it has requests");
        assert_eq!(report.pools[0].worker_ns, u128::from(duration_ns + last_end_ns - 100 * MS));
        assert_eq!(
            report.engines.iter().map(|e| (e.engine, e.rank)).collect::<Vec<_>>(),
            [(0, Some(0)), (0, Some(1)), (1, Some(0)), (1, Some(1))]
        );
        let views = views.lock().expect("no holder panicked");
        let states: Vec<_> =
            views[..5].iter().map(|v| (v.up_engines, v.starting_engines, v.draining_engines)).collect();
        assert_eq!(states, [(1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 0, 0), (1, 0, 1)]);
        assert_eq!(views[2].total_blocks, 2 * views[0].total_blocks);
    }
}

#[test]
fn only_engines_that_were_started_are_reported() {
    let (policy, _) = planned(&[2]);
    let report = run(&work(20, 1000, scaled(5, 10, policy)));
    assert_eq!(report.engines.iter().map(|engine| engine.engine).collect::<Vec<_>>(), [0, 1]);
    let fixed = run(&work(20, 1000, pool("engines", 3, 2000, RouterConfig::RoundRobin)));
    assert_eq!(fixed.engines.len(), 3);
    let duration_ns = fixed.requests.iter().filter_map(|request| request.end_ns).max().expect("it has requests");
    assert_eq!(fixed.pools[0].worker_ns, 3 * u128::from(duration_ns));
}

#[test]
fn an_engine_that_died_for_good_is_replaced_and_requests_wait_for_that() {
    let (policy, _) = planned(&[1]);
    let mut config = work(10, 400, scaled(1, 30, policy));
    config.faults = vec![crash(0, 150, None)];
    config.max_retries = 1;
    let report = run(&config);
    assert_eq!(report.metrics.count(Counter::Completed), 10);
    assert_eq!(changes(&report), [(200, 0, 1)]);
    let retried = || report.requests.iter().filter(|request| request.retries > 0);
    assert!(retried().count() > 0 && retried().all(|request| request.first_token_ns > Some(230 * MS)));
    // The slot of the crashed engine was free from 150 to 200 ms.
    let duration_ns = report.requests.iter().filter_map(|request| request.end_ns).max().expect("it has requests");
    assert_eq!(report.pools[0].worker_ns, u128::from(duration_ns - 50 * MS));
}

#[test]
fn crashes_of_what_drains_or_starts_or_is_off_come_to_their_own_ends() {
    let (policy, _) = planned(&[2, 2, 1, 1, 2]);
    let mut config = work(40, 800, scaled(3, 50, policy));
    // The crashes hit an engine that is off, one that is starting, one that drains and so does not restart, and one
    // that is off again.
    config.faults = vec![crash(2, 50, Some(10)), crash(1, 120, None), crash(1, 310, Some(10)), crash(1, 350, None)];
    let report = run(&config);
    assert_conserved(&report);
    let lost = report.requests.iter().filter(|r| r.outcome == Outcome::Failed(FailReason::EngineCrash));
    assert!(lost.clone().count() > 0 && lost.clone().all(|r| r.prefill_worker == Some(1)));
    assert!(lost.clone().all(|request| request.end_ns == Some(310 * MS)));
    assert_eq!(report.engines.iter().map(|engine| engine.crashes).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(changes(&report), [(100, 1, 2), (300, 2, 1), (500, 1, 2)]);
}

#[test]
fn a_prefill_engine_keeps_its_place_until_its_kv_is_fetched() {
    let (policy, _) = planned(&[2, 1]);
    let scaling = ScalingConfig { interval_ns: 50 * MS, min_engines: 1, max_engines: 2, startup_ns: 0, policy };
    let prefill = PoolConfig { scaling: Some(scaling), ..pool("prefill", 2, 4000, RouterConfig::RoundRobin) };
    let decode = pool("decode", 1, 4000, RouterConfig::RoundRobin);
    // Each transfer of 50 MB takes half a second at 100 MB/s.
    let link = link(Some(100_000_000), LinkSharing::PerPrefillEngine);
    let requests =
        RequestMix { prompt_tokens: constant(500.0).into(), output_tokens: constant(5.0).into(), ..mix(1.0, 1.0) };
    let topology = Topology::Disaggregated { prefill, decode, link, conditional: None };
    let arrivals = Arrivals::Burst { count: 4, over_ns: 0 };
    let report = run(&config(topology, vec![synthetic("b", arrivals, requests)]));
    assert_eq!(report.metrics.count(Counter::Completed), 4);
    let of_second = report.requests.iter().filter(|request| request.prefill_worker == Some(1));
    let last_ns = of_second.filter_map(|request| request.transfer_end_ns).max().expect("it had some");
    assert!(last_ns > 1000 * MS, "{last_ns}");
    let duration_ns = report.requests.iter().filter_map(|request| request.end_ns).max().expect("it has requests");
    let decode_ns = report.pools[1].worker_ns;
    assert_eq!((report.pools[0].worker_ns, decode_ns), (u128::from(duration_ns + last_ns), u128::from(duration_ns)));
}

#[test]
fn a_cache_is_gone_with_its_engine() {
    let (policy, _) = planned(&[1, 1, 2]);
    let router = RouterConfig::Kv(KvRouterConfig {
        knowledge: KvKnowledge::Predicted { ttl_ns: 1_000_000 * MS },
        ..KvRouterConfig::default()
    });
    let scaling = ScalingConfig { interval_ns: 100 * MS, min_engines: 1, max_engines: 2, startup_ns: 0, policy };
    let pool = PoolConfig { scaling: Some(scaling), ..pool("engines", 2, 4000, router) };
    let requests = RequestMix {
        prompt_tokens: constant(16.0).into(),
        output_tokens: constant(1.0).into(),
        shared_prefix_tokens: 480,
        prefix_groups: 1,
        ..mix(1.0, 1.0)
    };
    let burst = |name, start_ns, count| vcr_cluster::WorkloadConfig {
        start_ns,
        ..synthetic(name, Arrivals::Burst { count, over_ns: 0 }, requests.clone())
    };
    let report = run(&config(Topology::Aggregated(pool), vec![burst("before", 0, 8), burst("after", 350 * MS, 8)]));
    assert_eq!(changes(&report), [(100, 2, 1), (300, 1, 2)]);
    // The router may have predicted blocks at the removed engine. It must not expect any at the new engine.
    let mut on_second = report.requests.iter().filter(|r| r.arrival_ns >= 350 * MS && r.prefill_worker == Some(1));
    assert!(on_second.next().is_none_or(|first| first.detail.prefill_overlap_tokens == Some(0)));
    assert!(report.requests.iter().any(|r| r.arrival_ns == 0 && r.prefill_worker == Some(1)));
}

#[test]
fn a_target_follows_the_load_up_and_down() {
    let target = TargetPolicy { metric: TargetMetric::Requests, target: 4.0, scale_down_delay_ticks: 1 };
    let mut config = work(100, 500, scaled(8, 20, target_autoscaler(target)));
    let tail =
        vcr_cluster::WorkloadConfig { name: "tail".to_owned(), start_ns: 600 * MS, ..config.workloads[0].clone() };
    let few = work(10, 2000, scaled(1, 0, target_autoscaler(target))).workloads.remove(0).source;
    config.workloads.push(vcr_cluster::WorkloadConfig { source: few, ..tail });
    let report = run(&config);
    assert_conserved(&report);
    let most = report.scaling.iter().map(|event| event.to).max();
    assert!(most > Some(4), "{:?}", report.scaling);
    assert!(report.scaling.windows(2).all(|pair| pair[0].to == pair[1].from));
    assert!(report.scaling.iter().any(|event| event.to < event.from), "{:?}", report.scaling);
}

#[test]
fn a_scaling_that_makes_no_sense_is_refused() {
    let sensible =
        ScalingConfig { interval_ns: 100 * MS, min_engines: 1, max_engines: 4, startup_ns: 0, policy: planned(&[1]).0 };
    for (engines, scaling, text) in [
        (5, sensible.clone(), "starts with 5 engines, but `min` is 1 and `max` 4"),
        (1, ScalingConfig { interval_ns: 0, ..sensible.clone() }, "invalid `interval`: expected at least 1 ms"),
        (1, ScalingConfig { min_engines: 5, ..sensible.clone() }, "`min` is 5, but must not exceed `max`, which is 4"),
    ] {
        let pool = PoolConfig { scaling: Some(scaling), ..pool("engines", engines, 2000, RouterConfig::RoundRobin) };
        let errors = work(1, 0, pool).check().expect_err("it makes no sense");
        assert!(errors.iter().any(|error| error.to_string().contains(text)), "{errors:?}");
    }
    let mut beyond = work(1, 0, scaled(4, 0, planned(&[1]).0));
    beyond.faults = vec![crash(4, 0, None)];
    let errors = beyond.check().expect_err("there is no such engine");
    assert!(errors[0].to_string().contains("which has engines 0 to 3"), "{errors:?}");
    beyond.faults = vec![FaultConfig { pool: PoolRole::Decode, ..crash(0, 0, None) }];
    let errors = beyond.check().expect_err("there is no such pool");
    assert!(errors[0].to_string().contains("names the decode pool, which does not exist"), "{errors:?}");
}
