//! Random clusters: whatever they are, nothing is lost, and watching them changes nothing.

use std::cell::Cell;
use std::sync::Arc;

use vcr_cluster::observe::{Observer, StepRecord, Unobserved};
use vcr_cluster::{
    Arrivals, ConditionalConfig, ConditionalPolicy, DataParallel, FaultConfig, FaultKind, IslBucket, KvAwareConfig,
    KvKnowledge, KvRouterConfig, Limit, LinkConfig, PoolConfig, PoolRole, QueueClass, QueueConfig, QueueOrder,
    QueueProfile, ReplicaConfig, Report, RequestMix, RouterConfig, RouterFactory, RunConfig, ScalingConfig, SimError,
    TargetMetric, TargetPolicy, Topology, simulate, target_autoscaler,
};
use vcr_core::route::{Choice, RouteError, RouteQuery, Router, WorkerLoad};
use vcr_core::sglang::{PassOrder, SchedulePolicy, SglangConfig, SglangConfigInput};
use vcr_core::{CapacityPolicy, EngineConfig, EngineConfigInput, KvTiersConfig, Reservations};
use vcr_random::Distribution;
use vcr_routing::AffinityConfig;

use crate::support::{MS, assert_conserved, config, constant, linear_in_batches, mix, pool, run, synthetic};
use crate::{burst, disaggregated};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// The same run with every pool changed.
fn with_pools(config: RunConfig, change: impl Fn(PoolConfig) -> PoolConfig) -> RunConfig {
    let topology = match config.topology {
        Topology::Aggregated(pool) => Topology::Aggregated(change(pool)),
        Topology::Disaggregated { prefill, decode, link, conditional } => {
            Topology::Disaggregated { prefill: change(prefill), decode: change(decode), link, conditional }
        }
    };
    RunConfig { topology, ..config }
}

fn priced_in_batches(config: RunConfig) -> RunConfig {
    with_pools(config, |pool| PoolConfig { latency: linear_in_batches(), ..pool })
}

/// Engines that run ahead of their outputs, verify drafts or keep KV below the device.
fn in_mode(
    config: RunConfig,
    async_scheduling: bool,
    num_speculative_tokens: u32,
    kv_tiers: Option<KvTiersConfig>,
) -> RunConfig {
    with_pools(config, |pool| {
        let input = EngineConfigInput::clone(pool.engine.as_vllm().expect("an engine with modes"));
        let input = EngineConfigInput { async_scheduling, num_speculative_tokens, kv_tiers, ..input };
        let engine = EngineConfig::new(input).expect("a valid engine").into();
        PoolConfig { engine, acceptance_rates: vec![0.7, 0.4], ..pool }
    })
}

/// The same pools with another scheduler in their engines.
#[derive(Clone, Copy, Debug)]
enum Scheduler {
    Vllm { async_scheduling: bool, drafts: u32, tiers: Option<KvTiersConfig> },
    Trtllm,
    Sglang { pass_order: PassOrder, schedule_policy: SchedulePolicy, reservations: Reservations },
}

fn arb_scheduler() -> impl Strategy<Value = Scheduler> {
    let drafts = prop_oneof![3 => Just(0), 1 => 1..3u32];
    let orders = (any::<bool>(), any::<bool>(), any::<bool>());
    prop_oneof![
        3 => (any::<bool>(), drafts, proptest::option::of(arb_tiers()))
            .prop_map(|(async_scheduling, drafts, tiers)| Scheduler::Vllm { async_scheduling, drafts, tiers }),
        1 => Just(Scheduler::Trtllm),
        2 => orders.prop_map(|(mixed, lpm, between_steps)| Scheduler::Sglang {
            pass_order: if mixed { PassOrder::Mixed } else { PassOrder::PrefillFirst },
            schedule_policy: if lpm { SchedulePolicy::Lpm } else { SchedulePolicy::Fifo },
            reservations: if between_steps { Reservations::BetweenSteps } else { Reservations::InSteps },
        }),
    ]
}

/// Tiers that hold little, with ways on which a block takes up to 3 ms.
fn arb_tiers() -> impl Strategy<Value = KvTiersConfig> {
    let speed = || proptest::option::of(500_000_000..5_000_000_000u64);
    (1..120u32, 0..120u32, 1..9u32, (speed(), speed(), speed(), speed()), 0..2 * MS).prop_map(
        |(host_blocks, disk_blocks, offload_batch_size, speeds, disk_latency_ns)| KvTiersConfig {
            host_blocks,
            disk_blocks,
            kv_bytes_per_token: 100_000,
            offload_batch_size,
            device_to_host_bytes_per_s: speeds.0,
            host_to_device_bytes_per_s: speeds.1,
            host_to_disk_bytes_per_s: speeds.2,
            disk_to_host_bytes_per_s: speeds.3,
            disk_latency_ns,
        },
    )
}

fn with_scheduler(config: RunConfig, scheduler: Scheduler) -> RunConfig {
    let (pass_order, schedule_policy, reservations) = match scheduler {
        Scheduler::Vllm { async_scheduling, drafts, tiers } => {
            return in_mode(config, async_scheduling, drafts, tiers);
        }
        Scheduler::Trtllm => {
            return with_pools(config, |pool| {
                let own = EngineConfigInput::clone(pool.engine.as_vllm().expect("pools are vLLM's at first"));
                let input = EngineConfigInput { capacity: CapacityPolicy::GuaranteedNoEvict, ..own };
                PoolConfig { engine: EngineConfig::new(input).expect("a valid engine").into(), ..pool }
            });
        }
        Scheduler::Sglang { pass_order, schedule_policy, reservations } => (pass_order, schedule_policy, reservations),
    };
    with_pools(config, |pool| {
        let input = SglangConfigInput {
            page_size: pool.engine.block_size(),
            num_pages: pool.engine.num_blocks(),
            max_num_seqs: 16,
            chunked_prefill_size: 128,
            schedule_conservativeness: 0.3,
            pass_order,
            schedule_policy,
            reservations,
            ..SglangConfigInput::default()
        };
        PoolConfig { engine: SglangConfig::new(input).expect("a valid engine").into(), ..pool }
    })
}

/// Sees every step, so that none is skipped, until it has seen enough.
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

fn watched(config: &RunConfig) -> Report {
    watched_until(config, u64::MAX)
}

fn watched_until(config: &RunConfig, enough: u64) -> Report {
    let mut watching = Watching { steps: 0, enough };
    let report = simulate(config.clone(), &mut watching).expect("it runs unwatched");
    let steps: u64 = report.engines.iter().map(|engine| engine.steps).sum();
    assert!(watching.steps <= steps, "{} steps were seen of {steps}", watching.steps);
    report
}

fn arb_router() -> impl Strategy<Value = RouterConfig> {
    prop_oneof![
        Just(RouterConfig::RoundRobin),
        Just(RouterConfig::LeastLoaded),
        Just(RouterConfig::KvAware(KvAwareConfig::default())),
        Just(RouterConfig::PrefixAffinity(AffinityConfig { max_waiting: Some(1), ..AffinityConfig::default() })),
        arb_kv_router().prop_map(RouterConfig::Kv),
    ]
}

/// A class, but for whose it is.
fn arb_queue_class() -> impl Strategy<Value = QueueClass> {
    let order = prop_oneof![Just(QueueOrder::Fcfs), Just(QueueOrder::Wspt)];
    (order, 1..5_000u64, proptest::option::of(0..2_000u64)).prop_map(|(queue_policy, quantum, threshold)| QueueClass {
        name: String::new(),
        policy_family: Some("any".to_owned()),
        cache_bucket: None,
        queue_policy,
        admission: None,
        quantum,
        prefill_busy_threshold: threshold,
        prefill_busy_threshold_frac: None,
        request_queue_limit_per_worker: None,
        raw_isl_token_queue_limit_per_worker: None,
        cached_token_queue_limit_per_worker: None,
    })
}

/// Classes of short and of long prompts.
fn two_classes(classes: [QueueClass; 2]) -> QueueConfig {
    let buckets = [("short", 0), ("long", 150)];
    let named = |(class, (name, _)): (QueueClass, (&str, u64))| QueueClass {
        name: name.to_owned(),
        cache_bucket: Some(name.to_owned()),
        ..class
    };
    QueueConfig::with_classes(QueueProfile {
        default_policy_family: "any".to_owned(),
        uncached_isl_buckets: buckets
            .map(|(bucket, min_tokens)| IslBucket { min_tokens, bucket: bucket.to_owned() })
            .to_vec(),
        policy_classes: classes.into_iter().zip(buckets).map(named).collect(),
    })
    .expect("valid classes")
}

fn arb_kv_router() -> impl Strategy<Value = KvRouterConfig> {
    let knowledge = prop_oneof![
        (prop_oneof![Just(0), 1..40 * MS], any::<bool>())
            .prop_map(|(lag_ns, at_step_end)| KvKnowledge::Events { lag_ns, at_step_end }),
        (1..400u64).prop_map(|ms| KvKnowledge::Predicted { ttl_ns: ms * MS }),
    ];
    let order = prop_oneof![Just(QueueOrder::Fcfs), Just(QueueOrder::Lcfs), Just(QueueOrder::Wspt)];
    let queue = prop_oneof![
        Just(None),
        (0.0..2.0f64, order).prop_map(|(threshold, order)| Some(QueueConfig::single(threshold, order))),
        proptest::array::uniform2(arb_queue_class()).prop_map(|classes| Some(two_classes(classes))),
    ];
    let replicas = (1..4u32, proptest::option::of(0..50 * MS));
    (knowledge, queue, replicas, any::<(bool, bool)>(), prop_oneof![Just(0.0), 0.1..2.0f64]).prop_map(
        |(knowledge, queue, (count, sync_ns), (track_output_blocks, assume_kv_reuse), temperature)| KvRouterConfig {
            knowledge,
            queue,
            replicas: ReplicaConfig { count, sync_ns },
            track_output_blocks,
            assume_kv_reuse,
            temperature,
            ..KvRouterConfig::default()
        },
    )
}

fn arb_conditional() -> impl Strategy<Value = Option<ConditionalConfig>> {
    let some = (0..600u32, proptest::option::of(0.0..1.0f64), proptest::option::of(0.0..1.0f64));
    proptest::option::of(some.prop_map(|(tokens, prefill, decode)| ConditionalConfig {
        policy: if prefill.is_some() { ConditionalPolicy::IslOrLoad } else { ConditionalPolicy::IslBounding },
        eff_isl_threshold_tokens: tokens,
        eff_isl_ratio_threshold: 0.2,
        prefill_busy_threshold: prefill,
        decode_busy_threshold: decode,
    }))
}

/// A fault of a disaggregated cluster.
fn arb_fault() -> impl Strategy<Value = FaultConfig> {
    let kind = prop_oneof![
        proptest::option::of(1..200u64).prop_map(|ms| FaultKind::Crash { restart_after_ns: ms.map(|ms| ms * MS) }),
        (1.0..5.0f64).prop_map(|factor| FaultKind::SlowDown { factor, duration_ns: Some(50 * MS) }),
    ];
    (0..400u64, 0..2u32, 0..2u32, kind).prop_map(|(at_ms, pool, engine, kind)| FaultConfig {
        at_ns: at_ms * MS,
        pool: if pool == 0 { PoolRole::Prefill } else { PoolRole::Decode },
        engine,
        kind,
    })
}

/// An autoscaler, as a case shows it.
#[derive(Clone, Debug)]
struct Scaling {
    interval_ms: u64,
    startup_ms: u64,
    min_engines: u32,
    max_engines: u32,
    policy: TargetPolicy,
}

impl Scaling {
    fn config(self) -> ScalingConfig {
        ScalingConfig {
            interval_ns: self.interval_ms * MS,
            min_engines: self.min_engines,
            max_engines: self.max_engines,
            startup_ns: self.startup_ms * MS,
            policy: target_autoscaler(self.policy),
        }
    }
}

fn arb_scaling() -> impl Strategy<Value = Option<Scaling>> {
    let policy = (any::<bool>(), 0.5..8.0f64, 0..4u32).prop_map(|(requests, target, scale_down_delay_ticks)| {
        let (metric, target) =
            if requests { (TargetMetric::Requests, target) } else { (TargetMetric::PrefillTokens, target * 100.0) };
        TargetPolicy { metric, target, scale_down_delay_ticks }
    });
    let startup_ms = prop_oneof![Just(0), 1..150u64];
    proptest::option::of((1..60u64, startup_ms, 1..3u32, 2..6u32, policy).prop_map(
        |(interval_ms, startup_ms, min_engines, max_engines, policy)| Scaling {
            interval_ms,
            startup_ms,
            min_engines,
            max_engines,
            policy,
        },
    ))
}

fn arb_ranks() -> impl Strategy<Value = DataParallel> {
    (prop_oneof![2 => Just(1), 1 => 2..4u32], any::<bool>()).prop_map(|(size, barrier)| DataParallel { size, barrier })
}

/// A random cluster with its traffic, before it is put together.
#[derive(Clone, Debug)]
struct Case {
    is_split: bool,
    blocks: u32,
    routers: (RouterConfig, RouterConfig),
    conditional: Option<ConditionalConfig>,
    scaling: (Option<Scaling>, Option<Scaling>),
    ranks: (DataParallel, DataParallel),
    has_instant_link: bool,
    faults: Vec<FaultConfig>,
    max_retries: u32,
    turns: f64,
    scheduler: Scheduler,
    seed: u64,
}

fn arb_case() -> impl Strategy<Value = Case> {
    let cluster = (any::<bool>(), 40..600u32, (arb_router(), arb_router()), arb_conditional());
    let pools = ((arb_scaling(), arb_scaling()), (arb_ranks(), arb_ranks()), any::<bool>(), arb_scheduler());
    let trouble = (proptest::collection::vec(arb_fault(), 0..6), 0..3u32);
    (cluster, pools, trouble, 1.0..4.0f64, any::<u64>()).prop_map(|(cluster, pools, trouble, turns, seed)| {
        let (is_split, blocks, routers, conditional) = cluster;
        let (scaling, ranks, has_instant_link, scheduler) = pools;
        let (faults, max_retries) = trouble;
        Case {
            is_split,
            blocks,
            routers,
            conditional,
            scaling,
            ranks,
            has_instant_link,
            faults,
            max_retries,
            turns,
            scheduler,
            seed,
        }
    })
}

impl Case {
    fn topology(&self) -> Topology {
        let (router, decode_router) = self.routers.clone();
        let (scaling, decode_scaling) = self.scaling.clone();
        let (scaling, decode_scaling) = (scaling.map(Scaling::config), decode_scaling.map(Scaling::config));
        let (data_parallel, decode_ranks) = self.ranks;
        if !self.is_split {
            return Topology::Aggregated(PoolConfig {
                scaling,
                data_parallel,
                ..pool("engines", 2, self.blocks, router)
            });
        }
        let Topology::Disaggregated { prefill, decode, link, .. } = disaggregated(self.blocks, Some(1 << 30)) else {
            unreachable!()
        };
        let instant = LinkConfig { bandwidth_bytes_per_s: None, latency_ns: 0, ..link.clone() };
        Topology::Disaggregated {
            prefill: PoolConfig { router, scaling, data_parallel, ..prefill },
            decode: PoolConfig {
                router: decode_router,
                scaling: decode_scaling,
                data_parallel: decode_ranks,
                ..decode
            },
            link: if self.has_instant_link { instant } else { link },
            conditional: self.conditional,
        }
    }

    fn config(&self) -> RunConfig {
        let role = |role| if self.is_split { role } else { PoolRole::Aggregated };
        let requests = RequestMix {
            shared_prefix_tokens: 48,
            prefix_groups: 3,
            turns: constant(self.turns.round()),
            think_time_ms: Distribution::Exponential { mean: 20.0 },
            ..mix(120.0, 25.0)
        };
        let closed_loop =
            Arrivals::ClosedLoop { concurrency: 3, limit: Limit { count: Some(20), duration_ns: Some(300 * MS) } };
        let workloads = vec![synthetic("burst", burst(40), requests.clone()), synthetic("loop", closed_loop, requests)];
        let run_config = RunConfig {
            faults: self.faults.iter().map(|f| FaultConfig { pool: role(f.pool), ..f.clone() }).collect(),
            max_retries: self.max_retries,
            seed: self.seed,
            ..config(self.topology(), workloads)
        };
        with_scheduler(run_config, self.scheduler)
    }
}

/// Share of the cases that must run, rather than be refused for want of room.
const FEWEST_RUNS_PERCENT: usize = 90;

/// Whatever breaks, every request ends once or is rejected, and the run ends.
#[test]
fn any_run_with_faults_is_conserved() {
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 96, source_file: Some(file!()), ..ProptestConfig::default() });
    let (runs, refusals) = (Cell::new(0), Cell::new(0));
    let result = runner.run(&arb_case(), |case| {
        let run_config = case.config();
        match simulate(run_config.clone(), &mut Unobserved) {
            Ok(report) => {
                assert_conserved(&report);
                prop_assert_eq!(report.unfinished_requests, 0);
                prop_assert_eq!(&report.fingerprint, &run(&run_config).fingerprint);
                // Going through steps at once, or pricing them so, changes nothing.
                prop_assert_eq!(&report.fingerprint, &watched(&run_config).fingerprint);
                // Nor does watching that ends on the way.
                prop_assert_eq!(&report.fingerprint, &watched_until(&run_config, 20).fingerprint);
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

/// Fingerprints of 200 random clusters, drawn alike on every machine.
///
/// To accept new ones, replace the file by the list that the failure prints.
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// With one engine there is nothing to choose, whoever asks.
    #[test]
    fn a_lone_engine_does_the_same_behind_every_router(seed in any::<u64>(), count in 1..40u64, blocks in 60..400u32) {
        let report = |router: RouterConfig| {
            let engines = pool("gpu", 1, blocks, router);
            let workloads = vec![synthetic("load", Arrivals::Burst { count, over_ns: 500 * MS }, mix(200.0, 20.0))];
            run(&RunConfig { seed, ..config(Topology::Aggregated(engines), workloads) })
        };
        let expected = report(RouterConfig::RoundRobin);
        for router in [RouterConfig::LeastLoaded, RouterConfig::Kv(KvRouterConfig::default())] {
            let other = report(router);
            for (one, other) in expected.requests.iter().zip(&other.requests) {
                prop_assert_eq!(one.last_token_ns, other.last_token_ns);
                prop_assert_eq!(one.cached_tokens, other.cached_tokens);
            }
        }
    }

    /// Engines that know when their turn comes look further ahead than those that
    /// do not. What they do is the same.
    #[test]
    fn whoever_knows_its_turn_does_the_same(
        seed in any::<u64>(),
        count in 1..60u64,
        engines in 1..5u32,
        blocks in 60..400u32,
        over_ms in prop_oneof![Just(0u64), 100..4_000u64],
        is_constant: bool,
    ) {
        let arrivals = match is_constant {
            true => {
                let limit = Limit { count: Some(count), duration_ns: None };
                Arrivals::Constant { rate_per_s: 1e3 * count as f64 / (1 + over_ms) as f64, limit }
            }
            false => Arrivals::Burst { count, over_ns: over_ms * MS },
        };
        let report = |router: RouterConfig| {
            let engines = pool("gpu", engines, blocks, router);
            let workloads = vec![synthetic("load", arrivals.clone(), mix(200.0, 60.0))];
            run(&RunConfig { seed, ..config(Topology::Aggregated(engines), workloads) })
        };
        let unaware: RouterFactory = Arc::new(|_| Ok(Box::new(InTurn::default())));
        prop_assert_eq!(
            report(RouterConfig::RoundRobin).fingerprint,
            report(RouterConfig::Made(unaware)).fingerprint
        );
    }
}

/// Engines in turn, without saying so in advance.
#[derive(Default)]
struct InTurn {
    asked: usize,
}

impl Router for InTurn {
    fn route(&mut self, _query: &RouteQuery<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        self.asked += 1;
        Ok(Choice::Worker((self.asked - 1) % workers.len()))
    }
}
