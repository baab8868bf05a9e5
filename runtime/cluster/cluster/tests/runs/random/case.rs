//! Random clusters with their traffic and faults.

use proptest::prelude::*;
use vcr_base::random::Distribution;
use vcr_cluster::{
    Arrivals, ConditionalConfig, ConditionalPolicy, DataParallel, FaultConfig, FaultKind, Limit, LinkConfig,
    PoolConfig, PoolRole, RequestMix, RouterConfig, RunConfig, ScalingConfig, TargetMetric, TargetPolicy, Topology,
    target_autoscaler,
};
use vcr_core::sglang::{PassOrder, SchedulePolicy};
use vcr_core::{Drafter, KvTiersConfig, Reservations};

use super::routers::arb_router;
use super::schedulers::{Scheduler, arb_scheduler, with_scheduler};
use crate::runs::{burst, disaggregated};
use crate::support::{MS, config, constant, mix, pool, synthetic};

pub(crate) fn arb_conditional() -> impl Strategy<Value = Option<ConditionalConfig>> {
    let some = (0..600u32, proptest::option::of(0.0..1.0f64), proptest::option::of(0.0..1.0f64));
    proptest::option::of(some.prop_map(|(tokens, prefill, decode)| ConditionalConfig {
        policy: if prefill.is_some() { ConditionalPolicy::IslOrLoad } else { ConditionalPolicy::IslBounding },
        eff_isl_threshold_tokens: tokens,
        eff_isl_ratio_threshold: 0.2,
        prefill_busy_threshold: prefill,
        decode_busy_threshold: decode,
    }))
}

pub(crate) fn arb_fault() -> impl Strategy<Value = FaultConfig> {
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

#[derive(Clone, Debug)]
pub(crate) struct Scaling {
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

pub(crate) fn arb_scaling() -> impl Strategy<Value = Option<Scaling>> {
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

pub(crate) fn arb_ranks() -> impl Strategy<Value = DataParallel> {
    (prop_oneof![2 => Just(1), 1 => 2..4u32], any::<bool>()).prop_map(|(size, barrier)| DataParallel { size, barrier })
}

/// A random cluster with its traffic, from which a run is built.
#[derive(Clone, Debug)]
pub(crate) struct Case {
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

pub(crate) fn arb_case() -> impl Strategy<Value = Case> {
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

    /// The same case in one pool, with engines that have tick schedulers.
    pub(crate) fn in_ticks(self) -> Self {
        Self { is_split: false, conditional: None, scheduler: Scheduler::Ticks, ..self }
    }

    /// The same case with decode ranks that wait for each other and reserve blocks for prompts between steps.
    pub(crate) fn with_barrier(self, pass_order: PassOrder) -> Self {
        let (prefill_ranks, _) = self.ranks;
        let (schedule_policy, reservations) = (SchedulePolicy::Fifo, Reservations::BetweenSteps);
        let scheduler = Scheduler::Sglang { pass_order, schedule_policy, reservations };
        Self { is_split: true, ranks: (prefill_ranks, DataParallel { size: 3, barrier: true }), scheduler, ..self }
    }

    /// The same case with drafters that have their own KV.
    pub(crate) fn with_drafter(self, drafter: Drafter, async_scheduling: bool) -> Self {
        Self { scheduler: Scheduler::Drafter { drafter, async_scheduling }, ..self }
    }

    /// The same case with tiers that engines share.
    pub(crate) fn with_tiers(self, tiers: KvTiersConfig) -> Self {
        Self { scheduler: Scheduler::SharedTiers(tiers), ..self }
    }

    /// The same case with tiers of vLLM's connector.
    pub(crate) fn with_connected(self, tiers: KvTiersConfig, async_scheduling: bool) -> Self {
        Self { scheduler: Scheduler::Vllm { async_scheduling, drafts: 0, tiers: Some(tiers) }, ..self }
    }

    /// The same case with layers in two KV cache groups, one of them with a sliding window.
    pub(crate) fn with_groups(self, window_tokens: u32, async_scheduling: bool) -> Self {
        Self { scheduler: Scheduler::Groups { window_tokens, async_scheduling }, ..self }
    }

    pub(crate) fn config(&self) -> RunConfig {
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
