//! Problems of engine settings.

/// One problem of an [`EngineConfigInput`](crate::EngineConfigInput).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum ConfigError {
    #[error("invalid `{field}`: expected at least {least}, got {value}")]
    TooSmall { field: &'static str, value: u32, least: u32 },
    /// The pool has only the null block, which no request may use.
    #[error(
        "invalid `num_gpu_blocks`: expected at least 2, got {num_gpu_blocks}: one block is reserved as \
         the null block, so this engine cannot hold any request"
    )]
    NoUsableBlocks { num_gpu_blocks: u32 },
    /// A full decode batch exceeds the token budget.
    #[error(
        "`max_num_batched_tokens` ({tokens}) is smaller than `max_num_seqs` ({seqs}), so a full \
         decode step cannot fit in one batch"
    )]
    BudgetBelowSeqs { tokens: u32, seqs: u32 },
    /// Without chunking, a prompt must fit in one step.
    #[error(
        "`max_num_batched_tokens` ({tokens}) is smaller than `max_model_len` ({model_len}) while \
         `enable_chunked_prefill` is off, so a long prompt could never be scheduled"
    )]
    BudgetBelowModelLen { tokens: u32, model_len: u32 },
    /// A waiting request with one token left to compute would never be admitted:
    /// vLLM reserves tokens for its drafts, and the sum exceeds the budget.
    #[error(
        "`max_num_batched_tokens` ({tokens}) must exceed `num_speculative_tokens` ({drafts}), or a request \
         found in the cache could never be admitted with its drafts"
    )]
    BudgetBelowDrafts { tokens: u32, drafts: u32 },
    /// The longest allowed request exceeds the whole pool.
    #[error(
        "one request of `max_model_len` ({model_len}) tokens needs {needed} KV blocks, but only \
         {usable} are usable; raise `num_gpu_blocks` or lower `max_model_len`"
    )]
    PoolBelowModelLen {
        model_len: u32,
        /// Blocks that a request of `max_model_len` needs.
        needed: u32,
        /// Blocks that requests can use.
        usable: u32,
    },
    #[error("`{field}` ({value}) must not exceed `{limit_field}` ({limit})")]
    Exceeds {
        field: &'static str,
        value: u32,
        /// Name of the limiting setting.
        limit_field: &'static str,
        limit: u32,
    },
    #[error("invalid `{field}`: expected at most {most}, got {value}")]
    TooLarge { field: &'static str, value: u32, most: u32 },
    #[error("`{field}` cannot be combined with `{other_field}`: {reason}")]
    Exclusive {
        field: &'static str,
        /// Name of the conflicting setting.
        other_field: &'static str,
        reason: &'static str,
    },
    #[error("`{field}` needs `{needed}`: {reason}")]
    Needs {
        field: &'static str,
        /// Name of the required setting.
        needed: &'static str,
        reason: &'static str,
    },
    #[error("invalid `num_speculative_tokens_per_batch_size`: {reason}")]
    DraftRanges {
        /// The expected and the actual value.
        reason: String,
    },
    #[error("invalid `kv_cache_groups`: {reason}")]
    Groups {
        /// The expected and the actual value.
        reason: String,
    },
    /// The release does not keep states in this mode.
    #[error(
        "invalid `mamba_cache_mode`: expected none or align, got {name}: vLLM {release} keeps only the states at the ends of steps"
    )]
    MambaCacheMode { name: &'static str, release: &'static str },
    /// No prefix hit can end at a multiple of this interval.
    #[error(
        "invalid `prefix_cache_retention_interval` ({tokens}): expected a multiple of the length that prefix hits are multiples \
         of ({aligned})"
    )]
    Retention {
        tokens: u32,
        /// The least common multiple of all block sizes.
        aligned: u32,
    },
    #[error("invalid `{field}` ({tokens}): expected a multiple of `page_size` ({page_size})")]
    NotPages { field: &'static str, tokens: u32, page_size: u32 },
    #[error("invalid `{field}` ({tokens}): expected at least `page_size` ({page_size})")]
    BelowPage { field: &'static str, tokens: u32, page_size: u32 },
    #[error("invalid `{field}`: expected a finite number above 0, got {value}")]
    NotPositive { field: &'static str, value: f64 },
    #[error("invalid `{field}`: expected at least 0 and below 1, got {value}")]
    NoShare { field: &'static str, value: f64 },
}

impl ConfigError {
    /// The setting to change; the first one if several contradict each other.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::TooSmall { field, .. }
            | Self::TooLarge { field, .. }
            | Self::Exceeds { field, .. }
            | Self::Exclusive { field, .. }
            | Self::Needs { field, .. }
            | Self::NotPages { field, .. }
            | Self::BelowPage { field, .. }
            | Self::NotPositive { field, .. }
            | Self::NoShare { field, .. } => field,
            Self::BudgetBelowSeqs { .. } | Self::BudgetBelowModelLen { .. } | Self::BudgetBelowDrafts { .. } => {
                "max_num_batched_tokens"
            }
            Self::DraftRanges { .. } => "num_speculative_tokens_per_batch_size",
            Self::MambaCacheMode { .. } => "mamba_cache_mode",
            Self::Groups { .. } => "kv_cache_groups",
            Self::Retention { .. } => "prefix_cache_retention_interval",
            Self::NoUsableBlocks { .. } => "num_gpu_blocks",
            Self::PoolBelowModelLen { .. } => "max_model_len",
        }
    }
}
