//! Tests of random clusters: no request is lost, and observation changes nothing.

mod case;
mod routers;
mod schedulers;

use std::cell::Cell;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use vcr_cluster::observe::{Observer, StepRecord, Unobserved};
use vcr_cluster::{
    Arrivals, KvRouterConfig, Limit, Overheads, PackedRows, PoolConfig, Report, RouterConfig, RouterFactory, RunConfig,
    SimError, Topology, simulate,
};
use vcr_core::Drafter;
use vcr_core::route::{Choice, RouteError, RouteRequest, Router, WorkerLoad};
use vcr_core::sglang::PassOrder;

use crate::support::{MS, assert_conserved, config, linear_in_batches, mix, pool, run, synthetic};
pub(crate) use case::{Case, arb_case};
pub(crate) use schedulers::{arb_connected_tiers, with_pools};

pub(crate) fn priced_in_batches(config: RunConfig) -> RunConfig {
    with_pools(config, |pool| PoolConfig { latency: linear_in_batches(), ..pool })
}

/// An observer that sees every step, until it has seen `enough` steps.
struct Watching {
    steps: u64,
    enough: u64,
}

impl Observer for Watching {
    fn wants_steps(&self) -> bool {
        self.steps < self.enough
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        assert!(step.start_ns <= step.end_ns);
        self.steps += 1;
    }
}

/// An observer that wants time series, and optionally steps.
struct Sampling {
    steps: bool,
}

impl Observer for Sampling {
    fn wants_steps(&self) -> bool {
        self.steps
    }

    fn wants_series(&self) -> bool {
        true
    }
}

fn sampled(config: &RunConfig, steps: bool) -> Report {
    simulate(config.clone(), &mut Sampling { steps }).expect("it runs unwatched")
}

pub(crate) fn watched(config: &RunConfig) -> Report {
    watched_until(config, u64::MAX)
}

pub(crate) fn watched_until(config: &RunConfig, enough: u64) -> Report {
    let mut watching = Watching { steps: 0, enough };
    let report = simulate(config.clone(), &mut watching).expect("it runs unwatched");
    let steps: u64 = report.engines.iter().map(|engine| engine.steps).sum();
    assert!(watching.steps <= steps, "{} steps were seen of {steps}", watching.steps);
    report
}

/// Minimum share of the cases that must run. The others are refused because no request fits.
const FEWEST_RUNS_PERCENT: usize = 90;

/// Whatever fails, every request ends once or is rejected, and the run ends.
#[test]
fn any_run_with_faults_is_conserved() {
    assert_runs_conserved(96, arb_case());
}

#[test]
fn any_run_of_ticks_is_conserved() {
    assert_runs_conserved(32, arb_case().prop_map(Case::in_ticks));
}

#[test]
fn any_run_with_a_drafter_is_conserved() {
    let drafters = vec![Drafter::Eagle, Drafter::MultiModuleMtp, Drafter::DraftModel];
    let drawn = (arb_case(), proptest::sample::select(drafters), any::<bool>());
    assert_runs_conserved(24, drawn.prop_map(|(case, drafter, is_async)| case.with_drafter(drafter, is_async)));
}

#[test]
fn any_run_with_groups_of_layers_is_conserved() {
    let drawn = (arb_case(), 1..200u32, any::<bool>());
    assert_runs_conserved(32, drawn.prop_map(|(case, window, is_async)| case.with_groups(window, is_async)));
}

#[test]
fn any_run_with_shared_tiers_is_conserved() {
    let drawn = (arb_case(), schedulers::arb_shared_tiers());
    assert_runs_conserved(24, drawn.prop_map(|(case, tiers)| case.with_tiers(tiers)));
}

#[test]
fn any_run_with_tiers_of_the_connector_is_conserved() {
    let drawn = (arb_case(), schedulers::arb_connected_tiers(), any::<bool>());
    assert_runs_conserved(48, drawn.prop_map(|(case, tiers, is_async)| case.with_connected(tiers, is_async)));
}

#[test]
fn any_run_with_tiers_of_dynamos_mocker_is_conserved() {
    let drawn = (arb_case(), schedulers::arb_mocked_tiers());
    assert_runs_conserved(24, drawn.prop_map(|(case, tiers)| case.with_connected(tiers, false)));
}

#[test]
fn any_run_of_ranks_that_reserve_between_steps_is_conserved() {
    let orders = proptest::sample::select(vec![PassOrder::PrefillFirst, PassOrder::Mixed]);
    assert_runs_conserved(64, (arb_case(), orders).prop_map(|(case, order)| case.with_barrier(order)));
}

fn assert_runs_conserved(cases: u32, drawn: impl Strategy<Value = Case>) {
    let mut runner = TestRunner::new(ProptestConfig { cases, source_file: Some(file!()), ..ProptestConfig::default() });
    let (runs, refusals) = (Cell::new(0), Cell::new(0));
    let result = runner.run(&drawn, |case| {
        let run_config = case.config();
        match simulate(run_config.clone(), &mut Unobserved) {
            Ok(report) => {
                assert_conserved(&report);
                prop_assert_eq!(report.unfinished_requests, 0);
                prop_assert_eq!(&report.fingerprint, &run(&run_config).fingerprint);
                // Packing records does not change them.
                let packed = RunConfig { packed_records: PackedRows::Always, ..run_config.clone() };
                prop_assert_eq!(&report.fingerprint, &run(&packed).fingerprint);
                // Results do not depend on whether steps are simulated or priced together.
                prop_assert_eq!(&report.fingerprint, &watched(&run_config).fingerprint);
                // Results do not depend on an observer that stops watching.
                prop_assert_eq!(&report.fingerprint, &watched_until(&run_config, 20).fingerprint);
                // Results do not depend on time series, and time series do not depend on skipped steps.
                let series = sampled(&run_config, false);
                prop_assert_eq!(&report.fingerprint, &series.fingerprint);
                prop_assert_eq!(series.series, sampled(&run_config, true).series);
                prop_assert_eq!(report.fingerprint, watched(&priced_in_batches(run_config)).fingerprint);
                runs.set(runs.get() + 1);
            }
            Err(SimError::NothingFits { .. }) => refusals.set(refusals.get() + 1),
            Err(error) => prop_assert!(false, "{}", error),
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let all = runs.get() + refusals.get();
    assert!(runs.get() * 100 >= all * FEWEST_RUNS_PERCENT, "only {} of {all} cases ran", runs.get());
}

/// Fingerprints of 200 random clusters, which are the same on every machine.
///
/// To accept new fingerprints, replace the file by the list that the failure prints.
#[test]
fn random_clusters_keep_their_fingerprints() {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let mut fingerprints = String::new();
    for _ in 0..200 {
        let case = arb_case().new_tree(&mut runner).expect("nothing is filtered").current();
        match simulate(case.config(), &mut Unobserved) {
            Ok(report) => fingerprints.push_str(&report.fingerprint),
            Err(error) => fingerprints.push_str(&error.to_string()),
        }
        fingerprints.push('\n');
    }
    let golden = include_str!("random.fingerprints");
    let differing = fingerprints.lines().zip(golden.lines()).filter(|(one, other)| one != other).count();
    assert!(fingerprints == golden, "{differing} of 200 differ; now they are\n{fingerprints}");
}

/// Runs a case. A case in which no request fits into the engines is drawn again.
fn run_that_fits(run_config: &RunConfig) -> Result<Report, TestCaseError> {
    match simulate(run_config.clone(), &mut Unobserved) {
        Ok(report) => Ok(report),
        Err(SimError::NothingFits { .. }) => Err(TestCaseError::reject("no request fits")),
        Err(error) => Err(TestCaseError::fail(error.to_string())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// With one engine, routers have no choice.
    #[test]
    fn a_lone_engine_does_the_same_behind_every_router(seed in any::<u64>(), count in 1..40u64, blocks in 60..400u32) {
        let report = |router: RouterConfig| {
            let engines = pool("gpu", 1, blocks, router);
            let workloads = vec![synthetic("load", Arrivals::Burst { count, over_ns: 500 * MS }, mix(200.0, 20.0))];
            run_that_fits(&RunConfig { seed, ..config(Topology::Aggregated(engines), workloads) })
        };
        let expected = report(RouterConfig::RoundRobin)?;
        for router in [RouterConfig::LeastLoaded, RouterConfig::Kv(KvRouterConfig::default())] {
            let other = report(router)?;
            for (one, other) in expected.requests.iter().zip(&other.requests) {
                prop_assert_eq!(one.last_token_ns, other.last_token_ns);
                prop_assert_eq!(one.cached_tokens, other.cached_tokens);
            }
        }
    }

    /// Engines that know their next arrival run further ahead, with the same results.
    #[test]
    fn whoever_knows_its_turn_does_the_same(
        seed in any::<u64>(),
        count in 1..60u64,
        engines in 1..5u32,
        blocks in 60..400u32,
        over_ms in prop_oneof![Just(0u64), 100..4_000u64],
        is_constant: bool,
        arrival_ns in prop_oneof![Just(0), 0..30 * MS],
        arrival_per_prompt_token_ps in prop_oneof![Just(0), 0..20_000_000u64],
    ) {
        let arrivals = match is_constant {
            true => {
                let limit = Limit { count: Some(count), duration_ns: None };
                Arrivals::Constant { rate_per_s: 1e3 * count as f64 / (1 + over_ms) as f64, limit }
            }
            false => Arrivals::Burst { count, over_ns: over_ms * MS },
        };
        let report = |router: RouterConfig| {
            let overheads = Overheads { arrival_ns, arrival_per_prompt_token_ps, ..Overheads::default() };
            let engines = PoolConfig { overheads, ..pool("gpu", engines, blocks, router) };
            let workloads = vec![synthetic("load", arrivals.clone(), mix(200.0, 60.0))];
            run_that_fits(&RunConfig { seed, ..config(Topology::Aggregated(engines), workloads) })
        };
        let unaware: RouterFactory = Arc::new(|_| Ok(Box::new(InTurn::default())));
        prop_assert_eq!(
            report(RouterConfig::RoundRobin)?.fingerprint,
            report(RouterConfig::Made(unaware))?.fingerprint
        );
    }
}

/// A router that chooses engines in turn without announcing its order.
#[derive(Default)]
struct InTurn {
    asked: usize,
}

impl Router for InTurn {
    fn route(&mut self, _query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        self.asked += 1;
        Ok(Choice::Worker(workers[(self.asked - 1) % workers.len()].worker))
    }
}
