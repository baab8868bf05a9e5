//! Pools of engines of one kind, and the factories of their plugins.

use vcr_core::{EngineKind, KvTiersConfig, NamedValue};

use super::router::RouterConfig;
use crate::report::{ComputePeak, GpuDeployment};
use vcr_core::host::Overheads;

pub use vcr_core::factory::{InjectorFactory, LatencyFactory, PolicyFactory, ScalerFactory, TokenFactory};

/// Autoscaling of a pool's engines.
#[derive(Clone)]
pub struct ScalingConfig {
    /// Virtual time between two decisions; the first is made after one interval.
    pub interval_ns: u64,
    /// Minimum number of engines that are up or starting after a decision.
    pub min_engines: u32,
    /// Maximum number of engines at a time, in any state.
    pub max_engines: u32,
    /// Time from the decision to start an engine until it accepts requests.
    pub startup_ns: u64,
    /// Makes the autoscaler.
    pub policy: ScalerFactory,
}

/// The eviction order of a pool's cached blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvEviction {
    /// The block that was released first, as in vLLM.
    #[default]
    Lru,
    /// The block whose next use in the run is furthest away ([`vcr_core::Forecast`]): an upper bound on cache hits.
    Belady,
}

impl NamedValue for KvEviction {
    const NAMES: &'static [(&'static str, Self)] = &[("lru", Self::Lru), ("belady", Self::Belady)];
}

/// The token source of a pool's engines.
#[derive(Clone)]
pub struct TokenConfig {
    /// Makes the source of each engine.
    pub source: TokenFactory,
    /// The token that ends an output early, if one does.
    pub eos_token: Option<u32>,
}

/// The data-parallel ranks of an engine. Each rank has its own scheduler and KV blocks. Requests are routed to
/// ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataParallel {
    /// Number of ranks of an engine.
    pub size: u32,
    /// Whether the ranks of an engine start their steps together and wait for the slowest rank, as in a mixture of
    /// experts with data-parallel attention. Ranks without work wait, too.
    pub barrier: bool,
}

impl Default for DataParallel {
    fn default() -> Self {
        Self { size: 1, barrier: false }
    }
}

/// Engines of one kind, with the router in front of them.
#[derive(Clone)]
pub struct PoolConfig {
    /// Name of the pool in reports.
    pub name: String,
    /// Number of engines; with an autoscaler, the number that is up at the start.
    pub engines: u32,
    /// Autoscaling of the engines; None for a constant number.
    pub scaling: Option<ScalingConfig>,
    /// The ranks of each engine.
    pub data_parallel: DataParallel,
    /// Settings of each rank, which select its scheduler.
    pub engine: EngineKind,
    /// Makes the latency model of each rank.
    pub latency: LatencyFactory,
    /// Makes the scheduling policy of each engine. Required with [`vcr_core::Policy::Ranked`], and only allowed
    /// with it.
    pub policy: Option<PolicyFactory>,
    /// Chooses an engine for each request.
    pub router: RouterConfig,
    /// With `max_extra_tokens_per_step`: the probability that the first, second, ... extra token is accepted if the
    /// previous ones were accepted. Missing values are 0.
    pub acceptance_rates: Vec<f64>,
    /// Makes the failure injector of each engine.
    pub failures: Option<InjectorFactory>,
    /// Chooses the output tokens of each engine; None if they are drawn.
    pub tokens: Option<TokenConfig>,
    /// Time that requests of the pool spend outside of steps.
    pub overheads: Overheads,
    /// Whether requests that can never run are routed and wait in a vLLM engine's queue before they are rejected,
    /// as in Dynamo 1.6. Otherwise they are rejected on arrival.
    pub rejects_in_queue: bool,
    /// Number of steps between two steps that start prefills while any request decodes. Only for vLLM ranks that
    /// step together.
    pub prefill_schedule_interval: u32,
    /// The eviction order of cached blocks.
    pub kv_eviction: KvEviction,
    /// The peak compute that the latency model assumes for the GPUs, if it knows one.
    pub peak: Option<ComputePeak>,
    /// The GPUs of the engines, if stated.
    pub deployment: Option<GpuDeployment>,
    /// Number of GPUs that share each layer, according to the latency model.
    pub tensor_parallel_size: u32,
}

impl PoolConfig {
    /// Engines with one rank behind a round-robin router, without plugins.
    #[must_use]
    pub fn new(name: impl Into<String>, engines: u32, engine: impl Into<EngineKind>, latency: LatencyFactory) -> Self {
        Self {
            name: name.into(),
            engines,
            scaling: None,
            data_parallel: DataParallel::default(),
            engine: engine.into(),
            latency,
            policy: None,
            router: RouterConfig::RoundRobin,
            acceptance_rates: Vec::new(),
            failures: None,
            tokens: None,
            overheads: Overheads::default(),
            rejects_in_queue: false,
            prefill_schedule_interval: 1,
            kv_eviction: KvEviction::default(),
            peak: None,
            deployment: None,
            tensor_parallel_size: 1,
        }
    }

    /// The maximum number of engines at a time, which is the number of engine slots.
    #[must_use]
    pub fn most_engines(&self) -> u32 {
        self.scaling.as_ref().map_or(self.engines, |scaling| scaling.max_engines.max(self.engines))
    }

    /// The maximum number of ranks in the pool.
    #[must_use]
    pub fn most_ranks(&self) -> u32 {
        self.most_engines().saturating_mul(self.data_parallel.size)
    }

    /// Name of the rank with this index in the pool: the number of its engine, followed by a dot and the rank's
    /// number if engines have several ranks.
    #[must_use]
    pub fn rank_name(&self, index: u32) -> String {
        match self.data_parallel.size {
            0 | 1 => index.to_string(),
            size => format!("{}.{}", index / size, index % size),
        }
    }

    pub(crate) fn rejects_in_queue(&self) -> bool {
        self.rejects_in_queue && self.engine.as_vllm().is_some()
    }

    /// Whether the pool's ranks share a KV tier.
    pub(crate) fn shares_tiers(&self) -> bool {
        self.engine.kv_tiers().is_some_and(KvTiersConfig::is_shared)
    }

    pub(crate) fn has_barrier(&self) -> bool {
        self.data_parallel.barrier && self.data_parallel.size > 1
    }
}
