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
    /// Drafts verified and accepted.
    pub spec_decode: SpecDecodeStats,
}
