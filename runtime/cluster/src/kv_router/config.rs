//! Settings of the KV router, with Dynamo's names, meanings and defaults.

/// What the KV router knows of the engines' caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvKnowledge {
    /// What the engines have cached at this instant: more than a real router can
    /// know.
    Exact,
    /// What the engines' KV events have told, each seen `lag_ns` after the step
    /// that it belongs to has started.
    Events {
        /// How late an event is seen.
        lag_ns: u64,
    },
    /// What the router itself has sent where, for `ttl_ns`: it is told nothing.
    Predicted {
        /// For how long a prompt is taken to be cached.
        ttl_ns: u64,
    },
}

/// In which order requests leave the router's queue, within a strict priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// Longest wait first; a unit of priority is worth a second.
    #[default]
    Fcfs,
    /// Shortest wait first; a unit of priority is worth a second.
    Lcfs,
    /// Weighted shortest processing time: 1 plus priority for each token that no
    /// cache holds, largest first.
    Wspt,
}

/// When requests wait in the router instead of in an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueConfig {
    /// A request waits while every engine has more prompt tokens to compute than
    /// this many times `max_num_batched_tokens`.
    pub threshold: f64,
    /// Who leaves first.
    pub order: QueueOrder,
}

/// Several routers in front of the same engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// How many there are; requests go to them in turn.
    pub count: u32,
    /// After how long a router sees what another has decided; none for never.
    pub sync_ns: Option<u64>,
}

impl Default for ReplicaConfig {
    fn default() -> Self {
        Self { count: 1, sync_ns: None }
    }
}

/// Settings of the KV router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvRouterConfig {
    /// Worth of a cached block in prefill blocks.
    pub overlap_score_credit: f64,
    /// How much less that is for an engine with more prefill blocks under way
    /// than the least busy one; 0 for no less.
    pub overlap_score_credit_decay: f64,
    /// Weight of prefill blocks against blocks in use.
    pub prefill_load_scale: f64,
    /// Blocks that one active request counts for.
    pub decode_active_request_weight: f64,
    /// Worth of a block in the host's memory, in prefill blocks.
    pub host_cache_hit_weight: f64,
    /// Worth of a block on disk, in prefill blocks.
    pub disk_cache_hit_weight: f64,
    /// 0 takes the cheapest engine; above, engines are drawn by a softmax of
    /// their cost over its spread times this.
    pub temperature: f64,
    /// Whether blocks in use count.
    pub track_active_blocks: bool,
    /// Whether blocks of outputs count among those in use.
    pub track_output_blocks: bool,
    /// Whether equal blocks of two requests on one engine count once.
    pub assume_kv_reuse: bool,
    /// Whether prompt tokens under way count.
    pub track_prefill_tokens: bool,
    /// What is known of the caches.
    pub knowledge: KvKnowledge,
    /// Whether and how requests wait in the router.
    pub queue: Option<QueueConfig>,
    /// How many routers there are.
    pub replicas: ReplicaConfig,
}

impl Default for KvRouterConfig {
    fn default() -> Self {
        Self {
            overlap_score_credit: 1.0,
            overlap_score_credit_decay: 0.0,
            prefill_load_scale: 1.0,
            decode_active_request_weight: 0.0,
            host_cache_hit_weight: 0.75,
            disk_cache_hit_weight: 0.25,
            temperature: 0.0,
            track_active_blocks: true,
            track_output_blocks: false,
            assume_kv_reuse: true,
            track_prefill_tokens: true,
            knowledge: KvKnowledge::Events { lag_ns: 0 },
            queue: None,
            replicas: ReplicaConfig::default(),
        }
    }
}
