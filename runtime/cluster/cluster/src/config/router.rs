//! The router of a pool, and its settings.

use std::fmt;

use vcr_policy::prefix_affinity::AffinityConfig;

use super::kv_router::KvRouterConfig;

pub use vcr_core::factory::RouterFactory;

/// The router of a pool.
#[derive(Clone, Default)]
pub enum RouterConfig {
    /// Workers in turn, in order of arrival. Where an engine that does all of the work
    /// has several ranks, its turns go to them in turn; engines with half of the work
    /// are gone through rank by rank. Both as in Dynamo.
    #[default]
    RoundRobin,
    /// Fewest requests, then fewest outstanding prefill tokens.
    LeastLoaded,
    /// Cheapest by uncached prefill plus KV blocks in use.
    KvAware(KvAwareConfig),
    /// Dynamo's KV router.
    Kv(KvRouterConfig),
    /// By prefix, with bounded loads and shedding.
    PrefixAffinity(AffinityConfig),
    /// Made by the caller: a guest, for example.
    Made(RouterFactory),
}

impl fmt::Debug for RouterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoundRobin => f.write_str("RoundRobin"),
            Self::LeastLoaded => f.write_str("LeastLoaded"),
            Self::KvAware(config) => f.debug_tuple("KvAware").field(config).finish(),
            Self::Kv(config) => f.debug_tuple("Kv").field(config).finish(),
            Self::PrefixAffinity(config) => f.debug_tuple("PrefixAffinity").field(config).finish(),
            Self::Made(_) => f.write_str("Made"),
        }
    }
}

/// Weights of the KV-aware router's cost. Names follow Dynamo's router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvAwareConfig {
    /// Worth of a cached block in prefill blocks.
    pub overlap_score_credit: f64,
    /// Weight of prefill blocks against blocks in use.
    pub prefill_load_scale: f64,
    /// Blocks that one active request counts for.
    pub decode_active_request_weight: f64,
}

impl Default for KvAwareConfig {
    fn default() -> Self {
        Self { overlap_score_credit: 1.0, prefill_load_scale: 1.0, decode_active_request_weight: 0.0 }
    }
}

impl RouterConfig {
    /// Whether requests may wait in the router.
    pub(crate) fn has_queue(&self) -> bool {
        matches!(self, Self::Kv(config) if config.queue.is_some())
    }

    /// Whether it wants the engines' KV events; in pools whose
    /// [role needs them](super::PoolRole::needs_kv_events).
    pub(super) fn needs_kv_events(&self) -> bool {
        matches!(self, Self::Kv(config) if config.knowledge.is_late())
    }
}
