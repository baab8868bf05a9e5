//! The router of a pool, and its settings.

use std::fmt;

use vcr_policy::prefix_affinity::AffinityConfig;

use super::kv_router::KvRouterConfig;

pub use vcr_core::factory::RouterFactory;

/// The router of a pool.
#[derive(Clone, Default)]
pub enum RouterConfig {
    /// Workers in turn. If an aggregated engine has several ranks, turns go to engines, and each engine rotates
    /// among its ranks. Prefill and decode engines are traversed rank by rank. Both as in Dynamo.
    #[default]
    RoundRobin,
    /// Fewest requests, then fewest outstanding prefill tokens.
    LeastLoaded,
    /// Lowest cost of uncached prefill plus KV blocks in use.
    KvAware(KvAwareConfig),
    /// Dynamo's KV router.
    Kv(KvRouterConfig),
    /// By prefix, with bounded loads and load shedding.
    PrefixAffinity(AffinityConfig),
    /// By adapter and number of waiting requests, like the scorers of the Gateway API Inference Extension.
    LoraAffinity(LoraAffinityConfig),
    /// By session: rendezvous hashing assigns each session to an engine.
    SessionHash(SessionHashConfig),
    /// Another router for the first request of a session; its later requests go to the same engine.
    Sticky(Box<StickyConfig>),
    /// A router that the caller makes, such as a guest.
    Made(RouterFactory),
}

/// Settings of the router that scores adapters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraAffinityConfig {
    /// Weight of the adapter score relative to the queue score.
    pub weight: f64,
    /// Number of adapters that an engine can hold.
    pub max_loras: u32,
}

/// Settings of consistent hashing by session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SessionHashConfig {
    /// Maximum number of requests of an engine, as a multiple of the mean; None for no limit.
    pub load_factor: Option<f64>,
}

/// Settings of sticky sessions.
#[derive(Clone, Debug)]
pub struct StickyConfig {
    /// Chooses the engine of the first request, and again when that engine is removed.
    pub router: RouterConfig,
    /// Time after which an unused session is forgotten.
    pub ttl_ns: Option<u64>,
}

impl RouterConfig {
    /// Sets how many adapters an engine of the pool can hold.
    pub fn set_max_loras(&mut self, max_loras: u32) {
        match self {
            Self::LoraAffinity(config) => config.max_loras = max_loras,
            Self::Sticky(config) => config.router.set_max_loras(max_loras),
            _ => {}
        }
    }
}

impl fmt::Debug for RouterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoundRobin => f.write_str("RoundRobin"),
            Self::LeastLoaded => f.write_str("LeastLoaded"),
            Self::KvAware(config) => f.debug_tuple("KvAware").field(config).finish(),
            Self::Kv(config) => f.debug_tuple("Kv").field(config).finish(),
            Self::PrefixAffinity(config) => f.debug_tuple("PrefixAffinity").field(config).finish(),
            Self::LoraAffinity(config) => f.debug_tuple("LoraAffinity").field(config).finish(),
            Self::SessionHash(config) => f.debug_tuple("SessionHash").field(config).finish(),
            Self::Sticky(config) => f.debug_tuple("Sticky").field(config).finish(),
            Self::Made(_) => f.write_str("Made"),
        }
    }
}

/// Weights of the KV-aware router's cost, named as in Dynamo's router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvAwareConfig {
    /// Value of a cached block, in prefill blocks.
    pub overlap_score_credit: f64,
    /// Weight of prefill blocks relative to blocks in use.
    pub prefill_load_scale: f64,
    /// Number of blocks that each active request adds to an engine's cost.
    pub decode_active_request_weight: f64,
}

impl Default for KvAwareConfig {
    fn default() -> Self {
        Self { overlap_score_credit: 1.0, prefill_load_scale: 1.0, decode_active_request_weight: 0.0 }
    }
}

impl RouterConfig {
    /// The settings of Dynamo's KV router, even if it is behind sticky sessions.
    #[must_use]
    pub fn kv(&self) -> Option<&KvRouterConfig> {
        match self {
            Self::Kv(config) => Some(config),
            Self::Sticky(sticky) => sticky.router.kv(),
            _ => None,
        }
    }

    pub(crate) fn has_queue(&self) -> bool {
        self.kv().is_some_and(|config| config.queue.is_some())
    }

    /// Whether the router needs the engines' KV events, in pools whose [role needs
    /// them](super::PoolRole::needs_kv_events).
    pub(super) fn needs_kv_events(&self) -> bool {
        self.kv().is_some_and(|config| config.knowledge.is_late())
    }
}
