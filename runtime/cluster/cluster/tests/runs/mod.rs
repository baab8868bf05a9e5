//! Tests of whole runs: conservation, determinism, faults, contention.

mod clients;
mod grammars;
mod loads;
mod overheads;
mod per_request;
mod random;
mod real_time;
use std::sync::Arc;

use crate::support::{MS, assert_conserved, config, constant, link, mix, pool, run, synthetic};
use vcr_base::random::Distribution;
use vcr_cluster::metrics::{Counter, Trend};
use vcr_cluster::observe::{Observer, Unobserved};
use vcr_cluster::record::{FailReason, Outcome};
use vcr_cluster::{
    Arrivals, ConditionalConfig, FaultConfig, FaultKind, KvAwareConfig, LatencyFactory, Limit, LinkSharing, PoolConfig,
    PoolRole, RequestMix, RouterConfig, RunConfig, SimError, Topology, simulate,
};
use vcr_core::latency::{LatencyError, LatencyModel, RangeUse, StepBatch, TableUse, price_until_horizon};

fn burst(count: u64) -> Arrivals {
    Arrivals::Burst { count, over_ns: 20 * MS }
}

fn disaggregated(blocks: u32, bandwidth: Option<u64>) -> Topology {
    Topology::Disaggregated {
        prefill: pool("prefill", 2, blocks, RouterConfig::RoundRobin),
        decode: pool("decode", 2, blocks, RouterConfig::LeastLoaded),
        link: link(bandwidth, LinkSharing::Shared),
        conditional: None,
    }
}

fn crash(pool: PoolRole, engine: u32, at_ms: u64, restart_after_ms: Option<u64>) -> FaultConfig {
    let restart_after_ns = restart_after_ms.map(|ms| ms * MS);
    FaultConfig { at_ns: at_ms * MS, pool, engine, kind: FaultKind::Crash { restart_after_ns } }
}

#[test]
fn an_aggregated_burst_is_conserved() {
    let topology = Topology::Aggregated(pool("engines", 2, 400, RouterConfig::LeastLoaded));
    let report = run(&config(topology, vec![synthetic("burst", burst(200), mix(300.0, 40.0))]));
    assert_conserved(&report);
    assert!(report.metrics.count(Counter::Completed) > 190);
    assert!(report.metrics.count(Counter::Preemptions) > 0, "the pool is small enough to preempt");
}

/// An observer that ends the run at its third call.
#[derive(Default)]
struct Impatient {
    looks: std::cell::Cell<u32>,
}

impl Observer for Impatient {
    fn wants_stop(&self) -> bool {
        self.looks.set(self.looks.get() + 1);
        self.looks.get() > 2
    }
}

#[test]
fn a_run_that_is_stopped_reports_what_there_is() {
    for topology in
        [disaggregated(2000, None), Topology::Aggregated(pool("engines", 2, 400, RouterConfig::LeastLoaded))]
    {
        let config = config(topology, vec![synthetic("burst", burst(200), mix(300.0, 40.0))]);
        let whole = run(&config);
        let part = simulate(config, &mut Impatient::default()).expect("it is stopped, not failed");
        assert!(part.partial && !whole.partial);
        assert!(part.duration_ms > 0.0 && part.duration_ms < whole.duration_ms, "{}", part.duration_ms);
        assert!(part.unfinished_requests > 0);
        assert!(part.engines.iter().all(|engine| engine.utilisation <= 1.0));
        let ends = part.requests.iter().filter_map(|request| request.end_ns);
        assert!(ends.max().is_none_or(|end_ns| end_ns as f64 / 1e6 <= part.duration_ms));
    }
}

#[test]
fn a_disaggregated_burst_is_conserved_and_moves_its_prompts() {
    let report =
        run(&config(disaggregated(2000, Some(1_000_000_000)), vec![synthetic("b", burst(100), mix(300.0, 40.0))]));
    assert_conserved(&report);
    let moved: u64 = report.requests.iter().map(|r| u64::from(r.prompt_tokens)).sum();
    assert_eq!(report.links[0].bytes, moved * 100_000);
    assert!(report.metrics.trend(Trend::Transfer).expect("it has samples").min > 0.0);
    assert!(report.requests.iter().all(|r| r.transfer_end_ns > r.prefill_end_ns));
}

#[test]
fn contention_slows_transfers_and_separate_links_relieve_it() {
    let transfer = |sharing, count| {
        let Topology::Disaggregated { prefill, decode, .. } = disaggregated(4000, None) else { unreachable!() };
        let link = link(Some(1_000_000_000), sharing);
        let requests = RequestMix { prompt_tokens: constant(500.0).into(), ..mix(1.0, 2.0) };
        let arrivals = Arrivals::Burst { count, over_ns: 0 };
        let topology = Topology::Disaggregated { prefill, decode, link, conditional: None };
        run(&config(topology, vec![synthetic("b", arrivals, requests)]))
            .metrics
            .trend(Trend::Transfer)
            .expect("it has samples")
            .max
    };
    let alone = transfer(LinkSharing::Shared, 1);
    let shared = transfer(LinkSharing::Shared, 2);
    let separate = transfer(LinkSharing::PerPrefillEngine, 2);
    assert!((alone - 50.001).abs() < 1e-6, "500 tokens of 100 kB at 1 GB/s, and 1 us: {alone}");
    assert!(shared > 1.9 * alone, "{shared} vs {alone}");
    assert!((separate - alone).abs() < 1e-6, "{separate} vs {alone}");
}

#[test]
fn the_same_seed_gives_the_same_fingerprint_and_another_does_not() {
    let base = config(disaggregated(800, Some(1 << 30)), vec![synthetic("b", burst(80), mix(200.0, 30.0))]);
    let first = run(&base);
    assert_eq!(first.fingerprint, run(&base).fingerprint);
    assert_ne!(first.fingerprint, run(&RunConfig { seed: 2, ..base }).fingerprint);
}

#[test]
fn a_crash_without_retries_loses_exactly_what_the_engine_held() {
    let topology = Topology::Aggregated(pool("engines", 2, 2000, RouterConfig::RoundRobin));
    let mut run_config = config(topology, vec![synthetic("b", burst(40), mix(300.0, 40.0))]);
    run_config.faults = vec![crash(PoolRole::Aggregated, 1, 30, Some(100))];
    let report = run(&run_config);
    assert_conserved(&report);
    let failed = report.requests.iter().filter(|r| r.outcome == Outcome::Failed(FailReason::EngineCrash));
    assert!(failed.clone().count() > 0);
    assert!(failed.clone().all(|r| r.prefill_worker == Some(1) && r.end_ns == Some(30 * MS)));
    assert_eq!(report.engines[1].crashes, 1);
}

#[test]
fn retries_save_the_requests_of_a_crashed_engine() {
    let mut run_config = config(disaggregated(2000, Some(1 << 30)), vec![synthetic("b", burst(60), mix(300.0, 40.0))]);
    run_config.faults = vec![
        crash(PoolRole::Decode, 0, 60, Some(50)),
        crash(PoolRole::Prefill, 1, 40, None),
        crash(PoolRole::Decode, 1, 90, Some(10)),
    ];
    run_config.max_retries = 5;
    let report = run(&run_config);
    assert_conserved(&report);
    assert_eq!(report.metrics.count(Counter::Failed), 0);
    assert!(report.metrics.count(Counter::Retries) > 0);
}

#[test]
fn requests_wait_for_a_pool_to_come_back_and_fail_when_it_never_does() {
    let topology = || Topology::Aggregated(pool("engines", 1, 2000, RouterConfig::RoundRobin));
    let work = || vec![synthetic("b", Arrivals::Burst { count: 10, over_ns: 100 * MS }, mix(100.0, 5.0))];
    let mut coming_back = config(topology(), work());
    coming_back.faults = vec![crash(PoolRole::Aggregated, 0, 0, Some(500))];
    let report = run(&coming_back);
    assert_eq!(report.metrics.count(Counter::Completed), 10);
    assert!(report.requests.iter().all(|r| r.first_token_ns > Some(500 * MS)));

    let mut gone = config(topology(), work());
    gone.faults = vec![crash(PoolRole::Aggregated, 0, 0, None)];
    let report = run(&gone);
    assert_conserved(&report);
    assert_eq!(report.metrics.failures["no engine of the pool is up or will be"], 10);
}

#[test]
fn a_slow_down_stretches_steps_while_it_lasts() {
    let topology = Topology::Aggregated(pool("engines", 1, 2000, RouterConfig::RoundRobin));
    let requests =
        RequestMix { prompt_tokens: constant(1.0).into(), output_tokens: constant(100.0).into(), ..mix(1.0, 1.0) };
    let mut slow = config(topology, vec![synthetic("b", Arrivals::Burst { count: 1, over_ns: 0 }, requests)]);
    slow.faults = vec![FaultConfig {
        at_ns: 20 * MS,
        pool: PoolRole::Aggregated,
        engine: 0,
        kind: FaultKind::SlowDown { factor: 3.0, duration_ns: Some(60 * MS) },
    }];
    let itl = run(&slow).metrics.trend(Trend::Itl).expect("it has samples");
    assert_eq!((itl.min, itl.p50, itl.max), (2.0, 2.0, 6.0));
}

#[test]
fn a_closed_loop_keeps_its_concurrency() {
    let topology = Topology::Aggregated(pool("engines", 1, 4000, RouterConfig::RoundRobin));
    let limit = Limit { count: Some(50), duration_ns: None };
    let arrivals = Arrivals::ClosedLoop { concurrency: 4, limit };
    let report = run(&config(topology, vec![synthetic("loop", arrivals, mix(100.0, 20.0))]));
    assert_eq!(report.metrics.count(Counter::Completed), 50);
    let mut edges: Vec<(u64, i64)> = Vec::new();
    for r in &report.requests {
        edges.push((r.arrival_ns, 1));
        edges.push((r.end_ns.unwrap(), -1));
    }
    edges.sort_unstable();
    let most = edges
        .iter()
        .scan(0, |sum, edge| {
            *sum += edge.1;
            Some(*sum)
        })
        .max();
    assert_eq!(most, Some(4));
}

#[test]
fn sessions_grow_their_prompts_and_hit_their_own_cache() {
    let topology = Topology::Aggregated(pool("engines", 1, 4000, RouterConfig::RoundRobin));
    let requests = RequestMix {
        prompt_tokens: constant(64.0).into(),
        output_tokens: constant(32.0).into(),
        shared_prefix_tokens: 160,
        prefix_groups: 1,
        turns: constant(4.0),
        think_time_ms: constant(250.0),
        ..mix(1.0, 1.0)
    };
    let report = run(&config(topology, vec![synthetic("chat", Arrivals::Burst { count: 1, over_ns: 0 }, requests)]));
    let lengths: Vec<_> = report.requests.iter().map(|r| (r.prompt_tokens, r.cached_tokens)).collect();
    // Each turn finds the conversation so far in the cache, except its last partial block.
    assert_eq!(lengths, [(224, 0), (320, 240), (416, 336), (512, 432)]);
    let ends: Vec<_> = report.requests.iter().map(|r| r.end_ns.unwrap()).collect();
    assert!(report.requests[1..].iter().zip(&ends).all(|(turn, end)| turn.arrival_ns == end + 250 * MS));
}

#[test]
fn kv_aware_routing_reuses_more_than_round_robin() {
    let cached = |router| {
        let topology = Topology::Aggregated(pool("engines", 4, 4000, router));
        let requests = RequestMix { shared_prefix_tokens: 512, prefix_groups: 8, ..mix(60.0, 10.0) };
        let limit = Limit { count: Some(200), duration_ns: None };
        let arrivals = Arrivals::Poisson { rate_per_s: 40.0, limit };
        run(&config(topology, vec![synthetic("w", arrivals, requests)])).metrics.count(Counter::CachedTokens)
    };
    let (aware, blind) = (cached(RouterConfig::KvAware(KvAwareConfig::default())), cached(RouterConfig::RoundRobin));
    assert!(aware > blind + blind / 20, "{aware} vs {blind}");
}

#[test]
fn requests_that_can_never_run_are_rejected_with_their_reason() {
    let topology = Topology::Aggregated(pool("engines", 1, 11, RouterConfig::RoundRobin));
    let requests = RequestMix {
        prompt_tokens: Distribution::Uniform { min: 1.0, max: 320.0 }.into(),
        output_tokens: constant(1.0).into(),
        ..mix(1.0, 1.0)
    };
    let report = run(&config(topology, vec![synthetic("w", burst(100), requests)]));
    assert_conserved(&report);
    let rejected = report.metrics.rejections["prompt and output together need more KV blocks than the engine has"];
    let too_long = report.requests.iter().filter(|r| r.prompt_tokens > 160).count() as u64;
    assert_eq!(rejected, too_long);
}

#[test]
fn a_run_in_which_nothing_fits_is_an_error() {
    let topology = Topology::Aggregated(pool("engines", 1, 2, RouterConfig::RoundRobin));
    let requests = RequestMix { prompt_tokens: constant(100.0).into(), ..mix(1.0, 1.0) };
    let error = simulate(config(topology, vec![synthetic("w", burst(3), requests)]), &mut Unobserved).unwrap_err();
    assert!(matches!(error, SimError::NothingFits { requests: 3, .. }), "{error}");
}

#[test]
fn a_cut_off_run_counts_what_is_unfinished() {
    let topology = Topology::Aggregated(pool("engines", 1, 2000, RouterConfig::RoundRobin));
    let mut cut = config(topology, vec![synthetic("b", burst(100), mix(300.0, 40.0))]);
    cut.max_time_ns = Some(100 * MS);
    let report = run(&cut);
    assert_conserved(&report);
    assert!(report.unfinished_requests > 0);
}

/// Prices steps like [`support::linear`]. Only decodes are within the fitted range.
#[derive(Default)]
struct Ranged(RangeUse);

impl LatencyModel for Ranged {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| {
            let duration_ns = 2 * MS + 10_000 * shape.prefill_tokens;
            self.0.count(duration_ns, shape.prefill_requests == 0);
            Ok(duration_ns)
        })
    }

    fn range_use(&self) -> Option<RangeUse> {
        Some(self.0)
    }
}

/// Prices every step at 2 ms, of which a quarter is extrapolated beyond table rows.
#[derive(Default)]
struct Tabulated(TableUse);

impl LatencyModel for Tabulated {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |_| {
            self.0.measured_ns += 3 * MS / 2;
            self.0.extrapolated_ns += MS / 2;
            Ok(2 * MS)
        })
    }

    fn range_use(&self) -> Option<RangeUse> {
        Some(RangeUse { tables: self.0, ..RangeUse::default() })
    }
}

#[test]
fn the_coverage_of_tables_is_told() {
    let latency: LatencyFactory = Arc::new(|_seed| Ok(Box::new(Tabulated::default())));
    let pool = PoolConfig { latency, ..pool("engines", 1, 2000, RouterConfig::RoundRobin) };
    let work = synthetic("one", Arrivals::Burst { count: 3, over_ns: 0 }, mix(100.0, 4.0));
    let report = run(&config(Topology::Aggregated(pool), vec![work]));
    let coverage = report.table_coverage.expect("tables were used");
    assert_eq!((coverage.measured, coverage.extrapolated, coverage.formula), (0.75, 0.25, 0.0));
    assert_eq!(report.outside_fitted_range, None, "nothing was fitted");
    let text = "step time priced by tables: 75.0 % measured points, 0.0 % interpolation, 25.0 % extrapolation, 0.0 % \
                formulas";
    assert_eq!(coverage.to_string(), text);
}

/// A prompt of 100 tokens and four outputs take steps of 3, 2, 2 and 2 ms. The crash loses the first attempt and
/// the latency model, but not the model's counts.
#[test]
fn steps_outside_of_a_fitted_range_are_reported() {
    let ranged = |faults| {
        let latency: LatencyFactory = Arc::new(|_seed| Ok(Box::new(Ranged::default())));
        let pool = PoolConfig { latency, ..pool("engines", 1, 2000, RouterConfig::RoundRobin) };
        let requests =
            RequestMix { prompt_tokens: constant(100.0).into(), output_tokens: constant(4.0).into(), ..mix(1.0, 1.0) };
        let work = synthetic("one", Arrivals::Burst { count: 1, over_ns: 0 }, requests);
        run(&RunConfig { faults, max_retries: 1, ..config(Topology::Aggregated(pool), vec![work]) })
    };
    let whole = ranged(Vec::new());
    assert_eq!(whole.outside_fitted_range, Some(3.0 / 9.0));
    let text = "33.3 % of the simulated step time is outside the range that the latency model was fitted on";
    assert_eq!(whole.outside_fitted_range_text().as_deref(), Some(text));
    assert_eq!(ranged(vec![crash(PoolRole::Aggregated, 0, 4, Some(1))]).outside_fitted_range, Some(6.0 / 14.0));
    // The fingerprint does not cover this value.
    let topology = Topology::Aggregated(pool("engines", 1, 2000, RouterConfig::RoundRobin));
    let requests =
        RequestMix { prompt_tokens: constant(100.0).into(), output_tokens: constant(4.0).into(), ..mix(1.0, 1.0) };
    let plain = run(&RunConfig {
        max_retries: 1,
        ..config(topology, vec![synthetic("one", Arrivals::Burst { count: 1, over_ns: 0 }, requests)])
    });
    assert_eq!((plain.outside_fitted_range, plain.fingerprint), (None, whole.fingerprint));
}

/// A third of the prompts are short. Decode engines compute these, and prefill engines the others. All requests are
/// answered.
#[test]
fn short_prompts_may_stay_with_the_decode_engines() {
    let staying = |conditional| {
        let Topology::Disaggregated { prefill, decode, link, .. } = disaggregated(4000, Some(1 << 30)) else {
            unreachable!("it is disaggregated")
        };
        let topology = Topology::Disaggregated { prefill, decode, link, conditional };
        let workloads =
            vec![synthetic("long", burst(40), mix(900.0, 10.0)), synthetic("short", burst(20), mix(60.0, 10.0))];
        let mut config = config(topology, workloads);
        config.faults = vec![crash(PoolRole::Decode, 0, 10, Some(5))];
        config.max_retries = 2;
        let report = run(&config);
        assert_conserved(&report);
        report
    };
    let limit = |tokens| ConditionalConfig {
        eff_isl_threshold_tokens: tokens,
        eff_isl_ratio_threshold: 0.0,
        ..ConditionalConfig::default()
    };
    let text = serde_json::to_string(&staying(None).metrics).expect("a report is JSON");
    assert!(!text.contains(Counter::StayedWithDecode.info().name), "{text}");
    let report = staying(Some(limit(200)));
    assert!(report.metrics.count(Counter::StayedWithDecode) >= 20);
    for record in &report.requests {
        let stayed = record.prefill_worker.is_some_and(|worker| worker >= 2);
        assert_eq!(stayed, record.prompt_tokens <= 200, "{record:?}");
        assert_eq!(stayed, record.decode_worker.is_none(), "{record:?}");
    }
    // All prompts are short enough, but none may go to decode engines that are busy.
    let busy = ConditionalConfig { decode_busy_threshold: Some(0.0), ..limit(u32::MAX) };
    let some = staying(Some(busy)).metrics.count(Counter::StayedWithDecode);
    assert!((1..60).contains(&some), "{some}");
}
