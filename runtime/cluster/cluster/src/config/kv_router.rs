//! Settings of the KV router, with Dynamo's names, meanings and defaults.

use super::queue_classes::QueueConfig;

/// The KV router's knowledge of the engines' caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvKnowledge {
    /// The KV router tracks the engines' KV events. Without delay, it knows the exact caches.
    Events {
        /// Delay after which an event becomes visible.
        lag_ns: u64,
        /// Whether the events of a step are published when the step ends, as in Dynamo 1.6. Otherwise they are
        /// published when the step starts.
        at_step_end: bool,
    },
    /// The KV router gets no events. It assumes that a prompt stays cached for `ttl_ns` on the engine that the
    /// router chose.
    Predicted {
        /// Time for which a prompt counts as cached.
        ttl_ns: u64,
    },
}

impl KvKnowledge {
    /// Whether the router gets KV events with a delay.
    pub(crate) fn is_late(self) -> bool {
        matches!(self, Self::Events { lag_ns, at_step_end } if lag_ns > 0 || at_step_end)
    }
}

/// Several router replicas in front of the same engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// Number of replicas; requests go to them in turn.
    pub count: u32,
    /// Delay after which a replica sees the decisions of another replica; None for never.
    pub sync_ns: Option<u64>,
}

impl Default for ReplicaConfig {
    fn default() -> Self {
        Self { count: 1, sync_ns: None }
    }
}

/// Settings of the KV router.
#[derive(Clone, Debug, PartialEq)]
pub struct KvRouterConfig {
    /// Value of a cached block, in prefill blocks.
    pub overlap_score_credit: f64,
    /// Decrease of the credit for an engine with more prefill blocks in progress than the least busy engine;
    /// 0 for no decrease.
    pub overlap_score_credit_decay: f64,
    /// Value of a block that is cached in the engine's host memory but not on the device.
    pub host_cache_hit_weight: f64,
    /// Value of a block that is cached on the engine's disk but not on the device.
    pub disk_cache_hit_weight: f64,
    /// Weight of prefill blocks relative to blocks in use.
    pub prefill_load_scale: f64,
    /// Number of blocks that each active request adds to an engine's cost.
    pub decode_active_request_weight: f64,
    /// With 0, the cheapest engine is chosen. Otherwise engines are drawn by a softmax of their costs, divided by
    /// the spread of the costs times this temperature.
    pub temperature: f64,
    /// Whether blocks in use count as load.
    pub track_active_blocks: bool,
    /// Whether output blocks count as blocks in use.
    pub track_output_blocks: bool,
    /// Whether equal blocks of two requests on one engine count once.
    pub assume_kv_reuse: bool,
    /// Whether prompt tokens in progress count as load.
    pub track_prefill_tokens: bool,
    /// The router's knowledge of the caches.
    pub knowledge: KvKnowledge,
    /// Whether and how requests wait in the router.
    pub queue: Option<QueueConfig>,
    /// Number of routers.
    pub replicas: ReplicaConfig,
}

impl Default for KvRouterConfig {
    fn default() -> Self {
        Self {
            overlap_score_credit: 1.0,
            overlap_score_credit_decay: 0.0,
            host_cache_hit_weight: 0.75,
            disk_cache_hit_weight: 0.25,
            prefill_load_scale: 1.0,
            decode_active_request_weight: 0.0,
            temperature: 0.0,
            track_active_blocks: true,
            track_output_blocks: false,
            assume_kv_reuse: true,
            track_prefill_tokens: true,
            knowledge: KvKnowledge::Events { lag_ns: 0, at_step_end: false },
            queue: None,
            replicas: ReplicaConfig::default(),
        }
    }
}

impl KvRouterConfig {
    /// Checks every number.
    ///
    /// # Errors
    /// The first invalid field, with its valid range.
    pub fn check(&self) -> Result<(), String> {
        let numbers = [
            ("overlap_score_credit", self.overlap_score_credit),
            ("overlap_score_credit_decay", self.overlap_score_credit_decay),
            ("host_cache_hit_weight", self.host_cache_hit_weight),
            ("disk_cache_hit_weight", self.disk_cache_hit_weight),
            ("prefill_load_scale", self.prefill_load_scale),
            ("decode_active_request_weight", self.decode_active_request_weight),
            ("temperature", self.temperature),
            ("queue_threshold", self.queue.as_ref().and_then(QueueConfig::threshold).unwrap_or(0.0)),
        ];
        for (name, value) in numbers {
            if !(value.is_finite() && value >= 0.0) {
                return Err(format!("invalid `{name}`: expected a finite number of at least 0, got {value}"));
            }
        }
        if !(1..=MAX_REPLICAS).contains(&self.replicas.count) {
            return Err(format!("invalid `replicas`: expected 1 to {MAX_REPLICAS}, got {}", self.replicas.count));
        }
        Ok(())
    }
}

/// Maximum number of replicas. Each has its own state.
const MAX_REPLICAS: u32 = 1_000;
