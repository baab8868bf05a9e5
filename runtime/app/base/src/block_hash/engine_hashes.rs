//! Digests of an engine's cached blocks.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;

use crate::block_hash::{BlockHasher, Digest, ExtraKey};

/// The digests of an engine's cached blocks.
///
/// The engine names contents by 64-bit ids: equal ids mean the same tokens and extra keys after the same prefix.
/// Several blocks may have the same content, so the blocks of each id are counted. An id is forgotten when its last
/// block is removed.
#[derive(Debug)]
pub struct EngineHashes {
    hasher: BlockHasher,
    block_size_tokens: usize,
    cached: HashMap<u64, Cached>,
}

#[derive(Debug)]
struct Cached {
    digest: Digest,
    /// Number of blocks with this content, at least 1.
    blocks: u32,
    /// Position in its sequence, from 0.
    place: u32,
}

/// An impossible event of an engine's cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineHashesError {
    /// The parent of stored blocks is not cached.
    #[error("blocks were stored after block {parent:#x}, which is not cached")]
    UnknownParent {
        /// Id of the parent.
        parent: u64,
    },
    /// A removed block is not cached.
    #[error("block {block:#x} was removed, but is not cached")]
    UnknownBlock {
        /// Id of the block.
        block: u64,
    },
    /// The number of tokens does not match the number of blocks.
    #[error("{blocks} blocks of {block_size_tokens} tokens were stored with {tokens} tokens")]
    TokenCount {
        /// Number of blocks.
        blocks: usize,
        /// Tokens in a full block.
        block_size_tokens: usize,
        /// Number of tokens given.
        tokens: usize,
    },
}

impl EngineHashes {
    /// An empty cache of blocks of this size.
    #[must_use]
    pub fn new(hasher: BlockHasher, block_size_tokens: NonZeroU32) -> Self {
        Self { hasher, block_size_tokens: block_size_tokens.get() as usize, cached: HashMap::new() }
    }

    /// Records consecutive blocks that were stored. Appends their digests to `out` and returns the digest of their
    /// parent.
    ///
    /// `tokens` has the tokens of all blocks; `extra_of` returns a block's extra keys by its index in `blocks`.
    ///
    /// # Errors
    ///
    /// If `parent` is not cached, or the number of tokens does not match the blocks. Then nothing changes.
    pub fn stored<'a>(
        &mut self,
        parent: Option<u64>,
        blocks: &[u64],
        tokens: &[u32],
        mut extra_of: impl FnMut(usize) -> &'a [ExtraKey<'a>],
        out: &mut Vec<Digest>,
    ) -> Result<Option<Digest>, EngineHashesError> {
        self.check_token_count(blocks.len(), tokens.len())?;
        let first_place = self.place_after(parent)?;
        let parent = parent.map(|parent| self.parent_digest(parent)).transpose()?;
        let mut previous = parent;
        for (index, (&block, tokens)) in blocks.iter().zip(tokens.chunks_exact(self.block_size_tokens)).enumerate() {
            let digest = match self.cached.entry(block) {
                Entry::Occupied(mut entry) => {
                    entry.get_mut().blocks += 1;
                    entry.get().digest
                }
                Entry::Vacant(entry) => {
                    let digest = self.hasher.hash_block(previous.as_ref(), tokens, extra_of(index));
                    entry.insert(Cached { digest, blocks: 1, place: first_place + index as u32 }).digest
                }
            };
            out.push(digest);
            previous = Some(digest);
        }
        Ok(parent)
    }

    /// Position, from 0, of the block that follows `parent` in its sequence.
    ///
    /// # Errors
    ///
    /// If `parent` is not cached.
    pub fn place_after(&self, parent: Option<u64>) -> Result<u32, EngineHashesError> {
        let Some(parent) = parent else { return Ok(0) };
        self.cached.get(&parent).map(|cached| cached.place + 1).ok_or(EngineHashesError::UnknownParent { parent })
    }

    /// Records that one block with this content was removed, and returns its digest.
    ///
    /// # Errors
    ///
    /// If the block is not cached.
    pub fn removed(&mut self, block: u64) -> Result<Digest, EngineHashesError> {
        let Entry::Occupied(mut entry) = self.cached.entry(block) else {
            return Err(EngineHashesError::UnknownBlock { block });
        };
        let cached = entry.get_mut();
        cached.blocks -= 1;
        let digest = cached.digest;
        if cached.blocks == 0 {
            entry.remove();
        }
        Ok(digest)
    }

    /// Records that all blocks were removed.
    pub fn cleared(&mut self) {
        self.cached.clear();
    }

    fn check_token_count(&self, blocks: usize, tokens: usize) -> Result<(), EngineHashesError> {
        let block_size_tokens = self.block_size_tokens;
        if blocks.checked_mul(block_size_tokens) == Some(tokens) {
            return Ok(());
        }
        Err(EngineHashesError::TokenCount { blocks, block_size_tokens, tokens })
    }

    fn parent_digest(&self, parent: u64) -> Result<Digest, EngineHashesError> {
        let cached = self.cached.get(&parent).ok_or(EngineHashesError::UnknownParent { parent })?;
        Ok(cached.digest)
    }
}
