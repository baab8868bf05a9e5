//! Digests of blocks that cannot be computed from the parent block alone: blocks of several groups of layers,
//! because a group caches only some of them, and blocks whose hash covers tokens after them.

use std::collections::HashMap;

use vcr_base::block_hash::{BlockHasher, Digest, ExtraKey};
use vcr_core::kv_event::StoredPlaces;

use crate::requests::BlockKeys;

pub(super) struct SequenceHashes {
    hasher: BlockHasher,
    /// Number of tokens in a hashed block.
    block_tokens: usize,
    /// Number of tokens after a block that its hash covers.
    lookahead_tokens: usize,
    sequences: HashMap<u64, Sequence>,
    /// By group and the engine's hash of a cached block: the digest, and the number of cached blocks with this
    /// content.
    cached: HashMap<(u32, u64), (Digest, u32)>,
}

/// Known tokens of a request, and their digests.
#[derive(Default)]
pub(super) struct Sequence {
    tokens: Vec<u32>,
    /// Digests of the hashed blocks.
    digests: Vec<Digest>,
}

impl Sequence {
    /// The digest of the block that ends at token `end`.
    pub(super) fn digest_at(&self, end: u32, block_tokens: usize) -> Digest {
        self.digests[end as usize / block_tokens - 1]
    }

    /// The tokens after a block that its hash covers.
    pub(super) fn behind(&self, end: u32, count: usize) -> Vec<u32> {
        self.tokens[end as usize..end as usize + count].to_vec()
    }
}

impl SequenceHashes {
    pub(super) fn new(hasher: BlockHasher, block_tokens: u32, lookahead_tokens: u32) -> Self {
        let (block_tokens, lookahead_tokens) = (block_tokens as usize, lookahead_tokens as usize);
        Self { hasher, block_tokens, lookahead_tokens, sequences: HashMap::new(), cached: HashMap::new() }
    }

    pub(super) fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    pub(super) fn lookahead_tokens(&self) -> usize {
        self.lookahead_tokens
    }

    /// Records that cached blocks of a request, which the engine names `blocks`, have these places in its sequence.
    pub(super) fn stored(
        &mut self,
        group: u32,
        tag: u64,
        blocks: &[u64],
        places: &StoredPlaces<'_>,
        keys: &BlockKeys,
    ) -> &Sequence {
        let (size, ahead) = (self.block_tokens, self.lookahead_tokens);
        let sequence = self.sequences.entry(tag).or_default();
        sequence.tokens.extend_from_slice(places.unseen);
        while (sequence.digests.len() + 1) * size + ahead <= sequence.tokens.len() {
            let start = sequence.digests.len() * size;
            let (block, behind) = sequence.tokens[start..start + size + ahead].split_at(size);
            let extra = extra_keys(keys, start as u64, (size + ahead) as u64);
            let parent = sequence.digests.last();
            sequence.digests.push(self.hasher.hash_block_ahead(parent, block, &extra, behind));
        }
        for (&block, &end) in blocks.iter().zip(places.ends) {
            let digest = sequence.digest_at(end, size);
            let (known, count) = self.cached.entry((group, block)).or_insert((digest, 0));
            debug_assert_eq!(*known, digest, "a name of the engine is one content");
            *count += 1;
        }
        sequence
    }

    /// Forgets a removed block and returns its digest; `None` if it was not cached.
    pub(super) fn removed(&mut self, group: u32, block: u64) -> Option<Digest> {
        let (digest, count) = self.cached.get_mut(&(group, block))?;
        let digest = *digest;
        *count -= 1;
        if *count == 0 {
            self.cached.remove(&(group, block));
        }
        Some(digest)
    }

    pub(super) fn cleared(&mut self) {
        self.cached.clear();
    }

    pub(super) fn forget(&mut self, tag: u64) {
        self.sequences.remove(&tag);
    }
}

/// The extra keys of `len` tokens of a sequence from `start`, which is the start of a block.
pub(super) fn extra_keys(keys: &BlockKeys, start: u64, len: u64) -> Vec<ExtraKey<'_>> {
    let end = start + len;
    let lora = keys.lora.as_ref().map(|(name, path, _)| ExtraKey::Lora { name, path });
    let media = keys
        .media
        .iter()
        .filter_map(|medium| ExtraKey::of_input(&medium.identifier, (medium.offset, medium.tokens), start, end));
    let salt = keys.cache_salt.as_deref().filter(|_| start == 0).map(ExtraKey::CacheSalt);
    lora.into_iter().chain(media).chain(salt).collect()
}
