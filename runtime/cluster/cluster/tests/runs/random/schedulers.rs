//! Random schedulers and modes of engines.

use proptest::prelude::*;
use vcr_cluster::{PoolConfig, RunConfig, Topology};
use vcr_core::sglang::{PassOrder, SchedulePolicy, SglangConfig, SglangConfigInput};
use vcr_core::ticks::{TickConfig, TickConfigInput};
use vcr_core::{
    CapacityPolicy, Drafter, EngineConfig, EngineConfigInput, EvictionPolicy, HostRules, KvCacheGroup, KvCacheKind,
    KvTiersConfig, Reservations, SharedTier,
};

use crate::support::MS;

/// The same run with every pool changed.
pub(crate) fn with_pools(config: RunConfig, change: impl Fn(PoolConfig) -> PoolConfig) -> RunConfig {
    let topology = match config.topology {
        Topology::Aggregated(pool) => Topology::Aggregated(change(pool)),
        Topology::Disaggregated { prefill, decode, link, conditional } => {
            Topology::Disaggregated { prefill: change(prefill), decode: change(decode), link, conditional }
        }
    };
    RunConfig { topology, ..config }
}

/// Engines with asynchronous scheduling, drafts or KV tiers.
pub(crate) fn in_mode(
    config: RunConfig,
    async_scheduling: bool,
    num_speculative_tokens: u32,
    kv_tiers: Option<KvTiersConfig>,
) -> RunConfig {
    with_pools(config, |pool| {
        let input = pool.engine.as_vllm().expect("an engine with modes").stated();
        let input = EngineConfigInput { async_scheduling, num_speculative_tokens, kv_tiers, ..input };
        let engine = EngineConfig::new(input).expect("a valid engine").into();
        PoolConfig { engine, acceptance_rates: vec![0.7, 0.4], ..pool }
    })
}

/// Engines with a drafter that has its own KV.
fn drafting(config: RunConfig, drafter: Drafter, async_scheduling: bool) -> RunConfig {
    // vLLM's connectors also require this.
    let disable_lookahead_block_hashes = matches!(config.topology, Topology::Disaggregated { .. });
    with_pools(config, |pool| {
        let own = pool.engine.as_vllm().expect("an engine with modes").stated();
        let input = EngineConfigInput {
            reservations: Reservations::InSteps,
            num_speculative_tokens: 2,
            drafter,
            disable_lookahead_block_hashes,
            async_scheduling,
            ..own
        };
        let engine = EngineConfig::new(input).expect("a valid engine").into();
        PoolConfig { engine, acceptance_rates: vec![0.7, 0.4], ..pool }
    })
}

/// Engines with layers in two KV cache groups, one of them with a sliding window.
fn grouped(config: RunConfig, window_tokens: u32, async_scheduling: bool) -> RunConfig {
    let groups = [KvCacheKind::FullAttention, KvCacheKind::SlidingWindow { window_tokens }];
    with_pools(config, |pool| {
        let own = pool.engine.as_vllm().expect("an engine with groups").stated();
        let group = |kind| KvCacheGroup { kind, block_size: None, has_drafter: false };
        let kv_cache_groups = groups.map(group).to_vec();
        let reservations = Reservations::InSteps;
        let input = EngineConfigInput { kv_cache_groups, reservations, async_scheduling, ..own };
        PoolConfig { engine: EngineConfig::new(input).expect("a valid engine").into(), ..pool }
    })
}

/// The scheduler of a case's engines.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scheduler {
    Vllm {
        async_scheduling: bool,
        drafts: u32,
        tiers: Option<KvTiersConfig>,
    },
    Trtllm,
    Sglang {
        pass_order: PassOrder,
        schedule_policy: SchedulePolicy,
        reservations: Reservations,
    },
    /// Never drawn, because it does not support clusters with two pools.
    Ticks,
    /// vLLM with a drafter that has its own KV. Never drawn, so that drawn cases keep their fingerprints.
    Drafter {
        drafter: Drafter,
        async_scheduling: bool,
    },
    /// vLLM with tiers that engines share. Never drawn.
    SharedTiers(KvTiersConfig),
    /// vLLM with layers in two KV cache groups, one with a sliding window of this many tokens. Never drawn.
    Groups {
        window_tokens: u32,
        async_scheduling: bool,
    },
}

pub(crate) fn arb_scheduler() -> impl Strategy<Value = Scheduler> {
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

/// Small tiers with transfers that take up to 3 ms per block.
pub(crate) fn arb_tiers() -> impl Strategy<Value = KvTiersConfig> {
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
            host_latency_ns: 0,
            disk_latency_ns,
            ..KvTiersConfig::default()
        },
    )
}

/// Small tiers without a disk, by the rules of Dynamo 1.6's mocker.
pub(crate) fn arb_mocked_tiers() -> impl Strategy<Value = KvTiersConfig> {
    arb_tiers().prop_map(|tiers| KvTiersConfig { rules: HostRules::Dynamo16, disk_blocks: 0, ..tiers })
}

/// Small tiers by the rules of vLLM's offloading connector.
pub(crate) fn arb_connected_tiers() -> impl Strategy<Value = KvTiersConfig> {
    (arb_tiers(), any::<bool>(), 0..3u32, any::<bool>()).prop_map(
        |(tiers, is_adaptive, store_threshold, offload_prompt_only)| KvTiersConfig {
            rules: HostRules::Vllm,
            eviction_policy: if is_adaptive { EvictionPolicy::Arc } else { EvictionPolicy::Lru },
            store_threshold,
            offload_prompt_only,
            ..tiers
        },
    )
}

/// Small tiers with a disk, and possibly a host, that engines share.
pub(crate) fn arb_shared_tiers() -> impl Strategy<Value = KvTiersConfig> {
    let speed = || proptest::option::of(300_000_000..5_000_000_000u64);
    let shared = || {
        (speed(), speed())
            .prop_map(|(write_bytes_per_s, read_bytes_per_s)| SharedTier { write_bytes_per_s, read_bytes_per_s })
    };
    let mocked = (arb_mocked_tiers(), shared(), 0..2 * MS).prop_map(|(tiers, shared_host, host_latency_ns)| {
        KvTiersConfig { shared_host: Some(shared_host), host_latency_ns, ..tiers }
    });
    let blocks = (arb_tiers(), proptest::option::of(shared()), shared(), 0..2 * MS).prop_map(
        |(tiers, shared_host, shared_disk, host_latency_ns)| KvTiersConfig {
            disk_blocks: if shared_host.is_some() { tiers.disk_blocks } else { tiers.disk_blocks.max(1) },
            shared_disk: (shared_host.is_none() || tiers.disk_blocks > 0).then_some(shared_disk),
            shared_host,
            host_latency_ns,
            ..tiers
        },
    );
    prop_oneof![blocks, mocked]
}

pub(crate) fn with_scheduler(config: RunConfig, scheduler: Scheduler) -> RunConfig {
    let (pass_order, schedule_policy, reservations) = match scheduler {
        Scheduler::Vllm { async_scheduling, drafts, tiers } => {
            return in_mode(config, async_scheduling, drafts, tiers);
        }
        Scheduler::SharedTiers(tiers) => return in_mode(config, false, 0, Some(tiers)),
        Scheduler::Trtllm => {
            return with_pools(config, |pool| {
                let own = pool.engine.as_vllm().expect("pools are vLLM's at first").stated();
                let input = EngineConfigInput { capacity: CapacityPolicy::GuaranteedNoEvict, ..own };
                PoolConfig { engine: EngineConfig::new(input).expect("a valid engine").into(), ..pool }
            });
        }
        Scheduler::Ticks => {
            return with_pools(config, |pool| {
                let input = TickConfigInput {
                    total_kv_pages: pool.engine.num_blocks(),
                    page_size_tokens: pool.engine.block_size(),
                    max_active: 6,
                    prefill_tokens_per_tick: 1_024,
                    decode_width: 4,
                };
                PoolConfig { engine: TickConfig::new(input).expect("a valid engine").into(), ..pool }
            });
        }
        Scheduler::Drafter { drafter, async_scheduling } => return drafting(config, drafter, async_scheduling),
        Scheduler::Groups { window_tokens, async_scheduling } => {
            return grouped(config, window_tokens, async_scheduling);
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
