//! Running totals of an engine.

/// Prefix-cache counters: of first admissions, or of admissions after preemption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCacheStats {
    /// Requests looked up.
    pub requests: u64,
    /// Tokens they had.
    pub queried_tokens: u64,
    /// Tokens found in the cache.
    pub hit_tokens: u64,
}

/// Counters of speculative decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecDecodeStats {
    /// Requests that had drafts verified, counted once a step.
    pub num_drafts: u64,
    /// Drafts verified.
    pub num_draft_tokens: u64,
    /// Drafts accepted.
    pub num_accepted_tokens: u64,
}

/// Counters of the encoder and its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncoderCacheStats {
    /// Number of items that requests looked up for the first time.
    pub queries: u64,
    /// The part of these that found the item in the cache, or in the same step of the same request.
    pub hits: u64,
    /// Items computed.
    pub computed_items: u64,
    /// Embeddings computed for them.
    pub computed_embeds: u64,
}

/// Running totals of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Steps with at least one scheduled request.
    pub steps: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Lookups of first admissions.
    pub prefix: PrefixCacheStats,
    /// Lookups of admissions after a preemption.
    pub preempted_prefix: PrefixCacheStats,
    /// Lookups of a KV connector for first admissions: tokens beyond the local cache.
    pub external: PrefixCacheStats,
    /// The same for admissions after a preemption.
    pub preempted_external: PrefixCacheStats,
    /// Drafts verified and accepted.
    pub spec_decode: SpecDecodeStats,
    /// Multimodal items looked up in the encoder cache, and computed.
    pub encoder: EncoderCacheStats,
    /// Adapters loaded into the host; 0 if loads cost nothing.
    pub adapter_loads: u64,
}
