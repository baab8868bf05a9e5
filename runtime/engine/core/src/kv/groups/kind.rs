//! Kinds of KV-cache groups.

use std::fmt;
use std::str::FromStr;

use vcr_policy::latency::KvGroupKind;

/// A group of layers that share block tables (vLLM's `KVCacheGroupSpec`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvCacheGroup {
    /// The KV that the group's layers need.
    pub kind: KvCacheKind,
    /// Tokens per block, a multiple of the engine's `block_size`. None means `block_size`.
    pub block_size: Option<u32>,
    /// Whether the group has layers of the drafter. If no group is marked, any group may have them.
    pub has_drafter: bool,
}

/// The KV of a sequence that a layer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvCacheKind {
    /// KV of the whole sequence.
    FullAttention,
    /// Full attention over compressed KV (MLA). It follows the rules of full attention, but vLLM looks it up
    /// separately.
    LatentAttention,
    /// KV of the latest tokens, including the next token.
    SlidingWindow {
        /// Window size in tokens.
        window_tokens: u32,
    },
    /// KV of the chunk that contains the next token. Chunks begin at multiples of their length.
    ChunkedLocal {
        /// Chunk length in tokens.
        chunk_tokens: u32,
    },
    /// Encoder outputs for the item of a prompt, which the decoder reads. No KV of the prompt itself.
    CrossAttention,
    /// The state after the latest token, for Mamba or linear attention. [`MambaCacheMode`] defines which other
    /// states are kept.
    Mamba {
        /// A chunk can leave a state inside it, at a distance from the chunk's start that is a multiple of this number
        /// of tokens (vLLM's `prefill_checkpoint_alignment`). None if a chunk leaves
        /// only its last state.
        checkpoint_tokens: Option<u32>,
    },
}

/// The states of Mamba and linear attention that are kept (vLLM's `mamba_cache_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MambaCacheMode {
    /// One state per request, which no other request uses.
    #[default]
    None,
    /// The state at the end of each step that ends at a block boundary.
    Align,
    /// The states at the ends of all blocks.
    All,
}

impl MambaCacheMode {
    /// The mode that vLLM uses with prefix caching on or off. Without it, no states are kept for later requests.
    #[must_use]
    pub fn with_prefix_caching(self, is_enabled: bool) -> Self {
        match self {
            _ if !is_enabled => Self::None,
            Self::All => Self::All,
            Self::None | Self::Align => Self::Align,
        }
    }
}

impl KvCacheKind {
    /// The kind as latency models name it.
    #[must_use]
    pub fn of_models(self) -> KvGroupKind {
        match self {
            Self::FullAttention => KvGroupKind::FullAttention,
            Self::LatentAttention => KvGroupKind::LatentAttention,
            Self::SlidingWindow { .. } => KvGroupKind::SlidingWindow,
            Self::ChunkedLocal { .. } => KvGroupKind::ChunkedLocal,
            Self::CrossAttention => KvGroupKind::CrossAttention,
            Self::Mamba { .. } => KvGroupKind::Mamba,
        }
    }

    /// Number of tokens at the start of a sequence that no later token needs, once `computed` tokens are
    /// computed (vLLM's `get_num_skipped_tokens`).
    #[must_use]
    pub fn skipped_tokens(self, computed: u32) -> u32 {
        match self {
            Self::FullAttention | Self::LatentAttention | Self::CrossAttention => 0,
            Self::SlidingWindow { window_tokens } => computed.saturating_add(1).saturating_sub(window_tokens),
            Self::ChunkedLocal { chunk_tokens } => computed / chunk_tokens * chunk_tokens,
            Self::Mamba { .. } => computed.saturating_sub(1),
        }
    }

    /// Number of tokens that a chunk of `tokens` tokens after `computed` tokens reads, including itself; 0 for a state.
    pub(crate) fn read_tokens(self, computed: u32, tokens: u32) -> u32 {
        match self {
            Self::CrossAttention | Self::Mamba { .. } => 0,
            _ => computed + tokens - self.skipped_tokens(computed),
        }
    }

    pub(crate) fn attention_pairs(self, tokens: u32) -> u64 {
        let triangle = |tokens: u64| tokens * (tokens + 1) / 2;
        let tokens = u64::from(tokens);
        match self {
            Self::FullAttention | Self::LatentAttention => triangle(tokens),
            Self::SlidingWindow { window_tokens } => {
                let window_tokens = u64::from(window_tokens);
                triangle(tokens.min(window_tokens)) + tokens.saturating_sub(window_tokens) * window_tokens
            }
            Self::ChunkedLocal { chunk_tokens } => {
                let chunk_tokens = u64::from(chunk_tokens);
                tokens / chunk_tokens * triangle(chunk_tokens) + triangle(tokens % chunk_tokens)
            }
            Self::CrossAttention | Self::Mamba { .. } => 0,
        }
    }

    /// The smallest number of computed tokens at which at least `tokens` are skipped; `u32::MAX` if there is none.
    pub(super) fn computed_until_skipped(self, tokens: u32) -> u32 {
        match self {
            Self::FullAttention | Self::LatentAttention | Self::CrossAttention => u32::MAX,
            Self::SlidingWindow { window_tokens } => tokens.saturating_add(window_tokens - 1),
            Self::ChunkedLocal { chunk_tokens } => tokens.div_ceil(chunk_tokens).saturating_mul(chunk_tokens),
            Self::Mamba { .. } => tokens.saturating_add(1),
        }
    }

    /// Maximum number of blocks that an admission counts for a request whose steps in flight have up to
    /// `in_flight_tokens` tokens (vLLM's `max_admission_blocks_per_request`).
    pub(super) fn admission_cap(self, block_size: u32, in_flight_tokens: u32, max_model_len: u32) -> u32 {
        match self {
            Self::FullAttention | Self::LatentAttention | Self::CrossAttention | Self::Mamba { .. } => u32::MAX,
            Self::SlidingWindow { window_tokens } => {
                let held = (window_tokens - 1).saturating_add(in_flight_tokens).min(max_model_len);
                // A window may begin inside a block.
                held.div_ceil(block_size) + 1
            }
            Self::ChunkedLocal { chunk_tokens } => {
                chunk_tokens.saturating_add(in_flight_tokens).min(max_model_len).div_ceil(block_size)
            }
        }
    }

    /// Number of last prompt blocks that engines exchange for layers of this kind (vLLM's `blocks_per_sw`). None if
    /// they exchange all blocks. A window may begin inside a block, so it needs one more block than it fills.
    #[must_use]
    pub fn exchanged_blocks(self, block_size: u32) -> Option<u32> {
        match self {
            Self::FullAttention | Self::LatentAttention => None,
            Self::CrossAttention | Self::ChunkedLocal { .. } | Self::Mamba { .. } => None,
            Self::SlidingWindow { window_tokens } => Some(window_tokens.div_ceil(block_size) + 1),
        }
    }

    /// Window size or chunk length in tokens, if there is one.
    #[must_use]
    pub fn window_tokens(self) -> Option<u32> {
        match self {
            Self::FullAttention | Self::LatentAttention | Self::CrossAttention | Self::Mamba { .. } => None,
            Self::SlidingWindow { window_tokens: tokens } | Self::ChunkedLocal { chunk_tokens: tokens } => Some(tokens),
        }
    }

    /// Whether layers need the KV of the whole sequence.
    #[must_use]
    pub fn is_full(self) -> bool {
        matches!(self, Self::FullAttention | Self::LatentAttention)
    }

    /// Whether blocks hold states, each of which covers all tokens before it.
    #[must_use]
    pub fn is_mamba(self) -> bool {
        matches!(self, Self::Mamba { .. })
    }

    /// vLLM's name of the kind, as in `kv_cache_spec_kind` of KV events.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FullAttention => "full_attention",
            Self::LatentAttention => "mla_attention",
            Self::CrossAttention => "cross_attention",
            Self::SlidingWindow { .. } => "sliding_window",
            Self::ChunkedLocal { .. } => "chunked_local_attention",
            Self::Mamba { .. } => "mamba",
        }
    }
}

/// Formats `full`, `mla`, `sliding_window:TOKENS`, `chunked_local:TOKENS`, `cross_attention`, `mamba` or
/// `mamba:CHECKPOINT_TOKENS`. `@BLOCK_SIZE` follows if the block size is not the engine's, then `+drafter` if the
/// group has layers of the drafter.
impl fmt::Display for KvCacheGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            KvCacheKind::FullAttention => f.write_str("full")?,
            KvCacheKind::LatentAttention => f.write_str("mla")?,
            KvCacheKind::CrossAttention => f.write_str("cross_attention")?,
            KvCacheKind::SlidingWindow { window_tokens } => write!(f, "sliding_window:{window_tokens}")?,
            KvCacheKind::ChunkedLocal { chunk_tokens } => write!(f, "chunked_local:{chunk_tokens}")?,
            KvCacheKind::Mamba { checkpoint_tokens: None } => f.write_str("mamba")?,
            KvCacheKind::Mamba { checkpoint_tokens: Some(tokens) } => write!(f, "mamba:{tokens}")?,
        }
        if let Some(block_size) = self.block_size {
            write!(f, "@{block_size}")?;
        }
        f.write_str(if self.has_drafter { DRAFTER_SUFFIX } else { "" })
    }
}

impl FromStr for KvCacheGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "invalid KV-cache group \"{text}\": expected full, mla, sliding_window:TOKENS, chunked_local:TOKENS, \
                 cross_attention, mamba or mamba:CHECKPOINT_TOKENS, with @BLOCK_SIZE behind it where its blocks are larger than `block_size`, and \
                 +drafter where it has layers of the drafter"
            )
        };
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0).ok_or_else(invalid);
        let (rest, has_drafter) = text.strip_suffix(DRAFTER_SUFFIX).map_or((text, false), |rest| (rest, true));
        let (kind, block_size) = match rest.split_once('@') {
            Some((kind, block_size)) => (kind, Some(number(block_size)?)),
            None => (rest, None),
        };
        let kind = match kind.split_once(':') {
            None if kind == "full" => KvCacheKind::FullAttention,
            None if kind == "mla" => KvCacheKind::LatentAttention,
            None if kind == "cross_attention" => KvCacheKind::CrossAttention,
            None if kind == "mamba" => KvCacheKind::Mamba { checkpoint_tokens: None },
            Some(("mamba", tokens)) => KvCacheKind::Mamba { checkpoint_tokens: Some(number(tokens)?) },
            Some(("sliding_window", tokens)) => KvCacheKind::SlidingWindow { window_tokens: number(tokens)? },
            Some(("chunked_local", tokens)) => KvCacheKind::ChunkedLocal { chunk_tokens: number(tokens)? },
            _ => return Err(invalid()),
        };
        Ok(Self { kind, block_size, has_drafter })
    }
}

const DRAFTER_SUFFIX: &str = "+drafter";

pub(crate) const MAX_GROUPS: usize = 64;

/// The least common multiple of all block sizes. None if it is too large.
pub(crate) fn aligned_tokens(groups: &[KvCacheGroup], block_size: u32) -> Option<u32> {
    const MAX_ALIGNED_TOKENS: u32 = 1 << 24;
    let sizes = groups.iter().map(|group| group.block_size.unwrap_or(block_size));
    sizes.into_iter().try_fold(1u32, |multiple, size| {
        let multiple = u64::from(multiple / gcd(multiple, size)) * u64::from(size);
        u32::try_from(multiple).ok().filter(|multiple| *multiple <= MAX_ALIGNED_TOKENS)
    })
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The sizes that determine how many blocks a request needs, apart from the groups.
pub(crate) struct EngineSizes {
    pub(crate) block_size: u32,
    /// Maximum number of tokens in all steps in flight together.
    pub(crate) in_flight_tokens: u32,
    pub(crate) max_model_len: u32,
    pub(crate) num_speculative_tokens: u32,
    pub(crate) mamba_cache_mode: MambaCacheMode,
    /// Maximum number of encoder outputs of a request.
    pub(crate) encoder_tokens: u32,
}

/// Maximum number of blocks of all groups that a request of `tokens` tokens holds at once, as in vLLM's start-up check.
pub(crate) fn most_blocks(groups: impl Iterator<Item = KvCacheGroup>, sizes: &EngineSizes, tokens: u32) -> u64 {
    let of_group = |group: KvCacheGroup| {
        let size = group.block_size.unwrap_or(sizes.block_size);
        let blocks = match group.kind {
            KvCacheKind::CrossAttention => sizes.encoder_tokens.div_ceil(size),
            KvCacheKind::Mamba { checkpoint_tokens } => {
                let states = tokens.div_ceil(size).min(match sizes.mamba_cache_mode {
                    MambaCacheMode::None => 1,
                    // The state before a step, the state after it, and the state that the step leaves inside it.
                    MambaCacheMode::Align => 2 + u32::from(checkpoint_tokens.is_some()),
                    MambaCacheMode::All => u32::MAX,
                });
                states.saturating_add(sizes.num_speculative_tokens)
            }
            kind => tokens.div_ceil(size).min(kind.admission_cap(size, sizes.in_flight_tokens, sizes.max_model_len)),
        };
        u64::from(blocks)
    };
    groups.map(of_group).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_as_they_are_written() {
        for text in [
            "full",
            "full@32",
            "mla",
            "mla@64+drafter",
            "sliding_window:128",
            "sliding_window:1024@64",
            "chunked_local:8192",
            "mamba",
            "mamba:16",
            "cross_attention",
            "full+drafter",
            "sliding_window:8@32+drafter",
        ] {
            assert_eq!(text.parse::<KvCacheGroup>().unwrap().to_string(), text);
        }
        for text in [
            "full+",
            "full+drafter@8",
            "+drafter",
            "",
            "Full",
            "full:3",
            "sliding_window",
            "sliding_window:0",
            "chunked_local:8@0",
            "full@",
            "MLA",
            "mamba:0",
        ] {
            let error = text.parse::<KvCacheGroup>().unwrap_err();
            assert!(error.starts_with(&format!("invalid KV-cache group \"{text}\": expected full, ")), "{error}");
        }
    }

    /// A token reads all tokens that are neither skipped nor after it.
    #[test]
    fn pairs_are_those_of_each_token() {
        let window = KvCacheKind::SlidingWindow { window_tokens: 4 };
        for kind in [KvCacheKind::FullAttention, window, KvCacheKind::ChunkedLocal { chunk_tokens: 3 }] {
            for tokens in 0..20 {
                let read = (0..tokens).map(|computed| u64::from(kind.read_tokens(computed, 1)));
                assert_eq!(kind.attention_pairs(tokens), read.sum(), "{kind:?} {tokens}");
            }
        }
        assert_eq!(window.read_tokens(10, 3), 6, "the first of three reads three tokens before it");
        let mamba = KvCacheKind::Mamba { checkpoint_tokens: None };
        assert_eq!((mamba.attention_pairs(9), mamba.read_tokens(9, 1)), (0, 0));
    }

    /// The examples in vLLM's docstrings.
    #[test]
    fn windows_skip_what_no_coming_token_needs() {
        let window = KvCacheKind::SlidingWindow { window_tokens: 4 };
        assert_eq!([0, 3, 4, 7].map(|computed| window.skipped_tokens(computed)), [0, 0, 1, 4]);
        let local = KvCacheKind::ChunkedLocal { chunk_tokens: 8 };
        assert_eq!([13, 8, 7].map(|computed| local.skipped_tokens(computed)), [8, 8, 0]);
        for kind in [window, local] {
            for tokens in 1..40 {
                let first = kind.computed_until_skipped(tokens);
                assert!(kind.skipped_tokens(first) >= tokens && kind.skipped_tokens(first - 1) < tokens);
            }
        }
    }
}
