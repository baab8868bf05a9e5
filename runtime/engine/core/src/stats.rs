//! Running totals of an engine.

/// Prefix-cache counters, either of first admissions or of admissions after a preemption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCacheStats {
    /// Number of requests looked up.
    pub requests: u64,
    /// Number of tokens of the requests looked up.
    pub queried_tokens: u64,
    /// Number of tokens found in the cache.
    pub hit_tokens: u64,
}

/// Counters of speculative decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecDecodeStats {
    /// Number of times that a request had drafts verified in a step.
    pub num_drafts: u64,
    /// Number of drafts verified.
    pub num_draft_tokens: u64,
    /// Number of drafts accepted.
    pub num_accepted_tokens: u64,
}

/// Counters of the encoder and its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncoderCacheStats {
    /// Number of items that requests looked up for the first time.
    pub queries: u64,
    /// Number of first lookups that found the item in the cache, or earlier in the same step of the same request.
    pub hits: u64,
    /// Number of items computed.
    pub computed_items: u64,
    /// Number of embeddings computed.
    pub computed_embeds: u64,
}

/// Running totals of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Number of steps with at least one scheduled request.
    pub steps: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Prefix-cache lookups of first admissions.
    pub prefix: PrefixCacheStats,
    /// Prefix-cache lookups of admissions after a preemption.
    pub preempted_prefix: PrefixCacheStats,
    /// Lookups of a KV connector at first admissions; counts tokens after the local hit.
    pub external: PrefixCacheStats,
    /// Lookups of a KV connector at admissions after a preemption.
    pub preempted_external: PrefixCacheStats,
    /// Drafts verified and accepted.
    pub spec_decode: SpecDecodeStats,
    /// Multimodal items looked up in the encoder cache, and items computed.
    pub encoder: EncoderCacheStats,
    /// Number of adapter loads into the host; 0 if loads take no time.
    pub adapter_loads: u64,
}
