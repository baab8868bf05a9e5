//! Groups of layers, as the settings of recordings name them.

use serde::Deserialize;
use vcr_core::{KvCacheGroup, KvCacheKind};

/// A group of layers.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum CaseGroup {
    Full {
        block_size: u32,
        #[serde(default)]
        drafter: bool,
    },
    /// Multi-head latent attention.
    Mla {
        block_size: u32,
        #[serde(default)]
        drafter: bool,
    },
    SlidingWindow {
        block_size: u32,
        window: u32,
        #[serde(default)]
        drafter: bool,
    },
    ChunkedLocal {
        block_size: u32,
        window: u32,
    },
    CrossAttention {
        block_size: u32,
    },
    Mamba {
        block_size: u32,
        checkpoint: Option<u32>,
    },
}

impl From<&CaseGroup> for KvCacheGroup {
    fn from(group: &CaseGroup) -> Self {
        let (kind, block_size, has_drafter) = match *group {
            CaseGroup::Full { block_size, drafter } => (KvCacheKind::FullAttention, block_size, drafter),
            CaseGroup::Mla { block_size, drafter } => (KvCacheKind::LatentAttention, block_size, drafter),
            CaseGroup::SlidingWindow { block_size, window, drafter } => {
                (KvCacheKind::SlidingWindow { window_tokens: window }, block_size, drafter)
            }
            CaseGroup::ChunkedLocal { block_size, window } => {
                (KvCacheKind::ChunkedLocal { chunk_tokens: window }, block_size, false)
            }
            CaseGroup::CrossAttention { block_size } => (KvCacheKind::CrossAttention, block_size, false),
            CaseGroup::Mamba { block_size, checkpoint } => {
                (KvCacheKind::Mamba { checkpoint_tokens: checkpoint }, block_size, false)
            }
        };
        Self { kind, block_size: Some(block_size), has_drafter }
    }
}
