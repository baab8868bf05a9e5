//! Tests of data-parallel ranks with and without a barrier: calculated cases, random loads, and engines that fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::{MS, assert_conserved, config, constant, link, mix, pool, recorded, run, synthetic};
use proptest::prelude::*;
use vcr_cluster::metrics::Counter;
use vcr_cluster::observe::{Incident, Observer, StepRecord};
use vcr_cluster::record::{FailReason, Outcome};
use vcr_cluster::{
    Arrivals, DataParallel, EngineReport, FaultConfig, FaultKind, InjectorFactory, LinkSharing, PoolConfig, PoolRole,
    Report, RouterConfig, RunConfig, Topology, simulate,
};
use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultError};
use vcr_core::{EngineConfig, EngineConfigInput};

fn ranked(engines: u32, size: u32, barrier: bool, router: RouterConfig) -> PoolConfig {
    PoolConfig { data_parallel: DataParallel { size, barrier }, ..pool("engines", engines, 2000, router) }
}

/// A run of a trace. Each row has an arrival in milliseconds, prompt tokens and output tokens.
fn of_rows(pool: PoolConfig, rows: &[(u64, u32, u32)]) -> RunConfig {
    let line = |(number, (at_ms, prompt, output)): (usize, &(u64, u32, u32))| {
        format!(
            r#"{{"timestamp": {at_ms}, "input_length": {prompt}, "output_length": {output}, "hash_ids": [{number}]}}"#
        )
    };
    let text = rows.iter().enumerate().map(line).collect::<Vec<_>>().join("\n");
    config(Topology::Aggregated(pool), vec![recorded("rows", &text)])
}

/// Rank, first token time and last token time of each request, times in microseconds.
fn served(report: &Report) -> Vec<(u32, u64, u64)> {
    let of = |ns: Option<u64>| ns.expect("it was served") / 1_000;
    let requests = report.requests.iter();
    requests.map(|r| (r.prefill_worker.expect("it was served"), of(r.first_token_ns), of(r.last_token_ns))).collect()
}

/// The first step takes as long as the longer prompt. During it, the third request arrives at a rank with work and
/// the fourth at a rank without work. Both wait for the next step.
const ROWS: [(u64, u32, u32); 4] = [(0, 100, 3), (0, 300, 2), (4, 200, 2), (10, 50, 1)];

#[test]
fn ranks_behind_a_barrier_end_at_the_slowest() {
    let report = run(&of_rows(ranked(1, 2, true, RouterConfig::RoundRobin), &ROWS));
    // Steps take 2 ms and 10 us per prompt token. They end at 5, 9, 11 and 13.5 ms.
    assert_eq!(served(&report), [(0, 5_000, 11_000), (1, 5_000, 9_000), (0, 9_000, 11_000), (1, 13_500, 13_500)]);
    let shares = |engine: &EngineReport| {
        [engine.utilisation, engine.waiting.expect("it has a barrier")].map(|share| (share * 13_500.0).round())
    };
    assert_eq!(report.engines.iter().map(shares).collect::<Vec<_>>(), [[9_000.0, 4_500.0], [9_500.0, 4_000.0]]);
    assert_eq!(report.engines.iter().map(|e| (e.engine, e.rank)).collect::<Vec<_>>(), [(0, Some(0)), (0, Some(1))]);
    assert_eq!(report.engine_names, ["engines 0.0", "engines 0.1"]);
}

#[test]
fn ranks_without_a_barrier_do_not_know_each_other() {
    let report = run(&of_rows(ranked(1, 2, false, RouterConfig::RoundRobin), &ROWS));
    assert_eq!(served(&report), [(0, 3_000, 9_000), (1, 5_000, 7_000), (0, 9_000, 11_000), (1, 12_500, 12_500)]);
    assert!(report.engines.iter().all(|engine| engine.waiting.is_none()));
    // The results equal those of independent engines, except for names.
    let engines = run(&of_rows(ranked(2, 1, true, RouterConfig::RoundRobin), &ROWS));
    assert_eq!(served(&engines), served(&report));
    assert_eq!((engines.pools[0].worker_ns, report.pools[0].worker_ns), (25_000_000, 12_500_000));
}

#[test]
fn engines_take_turns_before_their_ranks_do() {
    let workers = |topology, rows: &[(u64, u32, u32)]| -> Vec<(Option<u32>, Option<u32>)> {
        let mut config = of_rows(ranked(2, 2, true, RouterConfig::RoundRobin), rows);
        config.topology = topology;
        run(&config).requests.iter().map(|r| (r.prefill_worker, r.decode_worker)).collect()
    };
    let first = |worker| (Some(worker), None);
    let whole = Topology::Aggregated(ranked(2, 2, true, RouterConfig::RoundRobin));
    assert_eq!(workers(whole, &[(0, 100, 1); 5]), [0, 2, 1, 3, 0].map(first));
    // Prefill and decode engines are traversed rank by rank.
    let split = Topology::Disaggregated {
        prefill: ranked(2, 2, true, RouterConfig::RoundRobin),
        decode: PoolConfig { name: "decode".to_owned(), ..ranked(1, 2, false, RouterConfig::RoundRobin) },
        link: link(None, LinkSharing::Shared),
        conditional: None,
    };
    let both = |(prefill, decode)| (Some(prefill), Some(decode));
    assert_eq!(workers(split, &[(0, 100, 1); 4]), [(0, 4), (1, 5), (2, 4), (3, 5)].map(both));
}

#[test]
fn an_engine_breaks_with_all_of_its_ranks() {
    let mut config = of_rows(ranked(2, 2, true, RouterConfig::RoundRobin), &[(0, 100, 50); 8]);
    let kind = FaultKind::Crash { restart_after_ns: Some(20 * MS) };
    config.faults = vec![FaultConfig { at_ns: 30 * MS, pool: PoolRole::Aggregated, engine: 1, kind }];
    let report = run(&config);
    assert_conserved(&report);
    let lost = |r: &&vcr_cluster::record::RequestRecord| r.outcome == Outcome::Failed(FailReason::EngineCrash);
    let lost: Vec<Option<u32>> = report.requests.iter().filter(lost).map(|r| r.prefill_worker).collect();
    assert_eq!(lost, [Some(2), Some(3), Some(2), Some(3)]);
    assert_eq!(report.engines.iter().map(|engine| engine.crashes).collect::<Vec<_>>(), [0, 0, 1, 1]);
    // The first two steps took 22 ms. The crash came 8 ms into the third.
    let busy = |engine: &EngineReport| (engine.utilisation * report.duration_ms).round() as u64;
    assert_eq!(report.engines[2..].iter().map(busy).collect::<Vec<_>>(), [30, 30]);
}

/// An injector that stalls its engine for 10 ms after the first step, and crashes it after the third.
struct Failing;

impl FailureInjector for Failing {
    fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), FaultError> {
        match batch.step {
            1 => actions.push(FaultAction::Stall { duration_ns: 10 * MS }),
            3 => actions.push(FaultAction::Crash { restart_after_ns: None }),
            _ => {}
        }
        Ok(())
    }
}

struct Idle;

impl FailureInjector for Idle {
    fn decide(&mut self, _batch: &FaultBatch<'_>, _actions: &mut Vec<FaultAction>) -> Result<(), FaultError> {
        Ok(())
    }
}

#[test]
fn what_befalls_a_rank_befalls_its_engine() {
    // Only the injector of the second rank does something.
    let injector: InjectorFactory = Arc::new(|plugin_context| match plugin_context.engine {
        Some(1) => Ok(Box::new(Failing)),
        _ => Ok(Box::new(Idle)),
    });
    let lost = |barrier| {
        let pool = ranked(1, 2, barrier, RouterConfig::RoundRobin);
        let pool = PoolConfig { failures: Some(Arc::clone(&injector)), ..pool };
        let report = run(&of_rows(pool, &[(0, 100, 9), (0, 100, 9)]));
        assert_conserved(&report);
        assert!(report.requests.iter().all(|request| request.end_ns == Some(17 * MS)), "{:?}", report.requests);
        report.metrics.count(Counter::WastedTokens)
    };
    // Steps end at 3 ms, 15 ms (after a stall of 10 ms) and 17 ms, when the engine crashes.
    assert_eq!(lost(true), 3 + 3);
    // Without a barrier, the first rank continues while the second is stalled.
    assert_eq!(lost(false), 8 + 3);
}

/// An observer that checks that the ranks of an engine step together.
#[derive(Default)]
struct Lockstep {
    size: u32,
    /// Start and end of each engine's latest step.
    latest: BTreeMap<u32, (u64, u64)>,
    together: u64,
}

impl Observer for Lockstep {
    fn wants_steps(&self) -> bool {
        true
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        let times = (step.start_ns, step.end_ns);
        if let Some(latest) = self.latest.insert(step.worker / self.size, times) {
            assert!(latest == times || latest.1 <= step.start_ns, "{latest:?} and {times:?}");
            self.together += u64::from(latest == times);
        }
    }

    fn incident(&mut self, worker: u32, _at_ns: u64, incident: Incident) {
        if incident == Incident::Crash {
            self.latest.remove(&(worker / self.size));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// No token comes in the middle of another rank's step, and the busy and waiting times of all ranks of an
    /// engine have the same sum.
    #[test]
    fn all_ranks_end_at_the_slowest_and_idle_ones_wait_too(
        size in 2..5u32,
        engines in 1..3u32,
        count in 1..60u64,
        over_ms in 0..200u64,
        async_scheduling in any::<bool>(),
        least_loaded in any::<bool>(),
        crash_at_ms in proptest::option::of(0..200u64),
        seed in any::<u64>(),
    ) {
        let router = if least_loaded { RouterConfig::LeastLoaded } else { RouterConfig::RoundRobin };
        let ranked = ranked(engines, size, true, router);
        let input = ranked.engine.as_vllm().expect("it is vLLM's").stated();
        let engine = EngineConfig::new(EngineConfigInput { async_scheduling, ..input }).expect("a valid engine");
        let topology = Topology::Aggregated(PoolConfig { engine: engine.into(), ..ranked });
        let arrivals = Arrivals::Burst { count, over_ns: over_ms * MS };
        let mut config = config(topology, vec![synthetic("burst", arrivals, mix(200.0, 20.0))]);
        config.seed = seed;
        config.max_retries = 3;
        config.faults.extend(crash_at_ms.map(|at_ms| FaultConfig {
            at_ns: at_ms * MS,
            pool: PoolRole::Aggregated,
            engine: 0,
            kind: FaultKind::Crash { restart_after_ns: Some(5 * MS) },
        }));
        let mut lockstep = Lockstep { size, ..Lockstep::default() };
        let report = simulate(config, &mut lockstep).expect("it reaches its end");
        assert_conserved(&report);
        prop_assert!(count < 20 || lockstep.together > 0);
        let in_steps = |rank: &EngineReport| rank.utilisation + rank.waiting.unwrap_or(0.0);
        for ranks in report.engines.chunks(size as usize) {
            for rank in ranks {
                prop_assert!((in_steps(rank) - in_steps(&ranks[0])).abs() < 1e-9, "{rank:?}");
                prop_assert!(in_steps(rank) <= 1.0 + 1e-9, "{rank:?}");
            }
        }
    }

    /// Ranks without a barrier behave like independent engines.
    #[test]
    fn independent_ranks_are_engines(count in 1..60u64, size in 2..5u32, seed in any::<u64>()) {
        let serve = |engines, size| {
            let topology = Topology::Aggregated(ranked(engines, size, false, RouterConfig::LeastLoaded));
            let arrivals = Arrivals::Burst { count, over_ns: 100 * MS };
            let requests = vcr_cluster::RequestMix { turns: constant(2.0), ..mix(150.0, 30.0) };
            let workloads = vec![synthetic("burst", arrivals, requests)];
            let report = run(&RunConfig { seed, ..config(topology, workloads) });
            let row = |r: &vcr_cluster::record::RequestRecord| (r.prefill_worker, r.first_token_ns, r.end_ns);
            report.requests.iter().map(row).collect::<Vec<_>>()
        };
        prop_assert_eq!(serve(1, size), serve(size, 1));
    }
}
