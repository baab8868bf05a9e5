//! What a prefix cache announces, in vLLM's order.
//!
//! Owns the log of one pool: flat buffers that are reused, so that announcing
//! costs no allocation once they are warm. Hashes here are the engine's own;
//! what leaves on a wire is translated where it leaves.

use crate::kv::hash::BlockHash;

/// A change of the prefix cache (vLLM's `KVCacheEvent`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvEvent<'a> {
    /// Consecutive blocks of one sequence became reusable.
    Stored {
        /// The driver's number for the request they were computed for.
        tag: u64,
        /// Hash of the block before the first one; none at a sequence start.
        parent: Option<BlockHash>,
        /// Hashes in sequence order; never empty.
        blocks: &'a [BlockHash],
        /// All tokens of these blocks, if the request's prompt kept its tokens.
        tokens: &'a [u32],
    },
    /// A cached block was evicted.
    Removed(BlockHash),
    /// Every cached block was dropped.
    Cleared,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Stored { tag: u64, parent: Option<BlockHash>, blocks: u32, tokens: u32 },
    Removed(BlockHash),
    Cleared,
}

/// Recorded events, oldest first.
#[derive(Clone, Debug, Default)]
pub struct KvEventLog {
    entries: Vec<Entry>,
    hashes: Vec<BlockHash>,
    tokens: Vec<u32>,
}

impl KvEventLog {
    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets all events and keeps the buffers.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.hashes.clear();
        self.tokens.clear();
    }

    /// The events, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = KvEvent<'_>> {
        let (mut hashes, mut tokens) = (self.hashes.as_slice(), self.tokens.as_slice());
        self.entries.iter().map(move |entry| match *entry {
            Entry::Stored { tag, parent, blocks: num_blocks, tokens: num_tokens } => {
                let (blocks, later) = hashes.split_at(num_blocks as usize);
                hashes = later;
                let (own, later) = tokens.split_at(num_tokens as usize);
                tokens = later;
                KvEvent::Stored { tag, parent, blocks, tokens: own }
            }
            Entry::Removed(hash) => KvEvent::Removed(hash),
            Entry::Cleared => KvEvent::Cleared,
        })
    }

    pub(crate) fn stored(&mut self, tag: u64, parent: Option<BlockHash>, blocks: &[BlockHash], tokens: &[u32]) {
        self.hashes.extend_from_slice(blocks);
        self.tokens.extend_from_slice(tokens);
        self.entries.push(Entry::Stored { tag, parent, blocks: blocks.len() as u32, tokens: tokens.len() as u32 });
    }

    pub(crate) fn removed(&mut self, hash: BlockHash) {
        self.entries.push(Entry::Removed(hash));
    }

    pub(crate) fn cleared(&mut self) {
        self.entries.push(Entry::Cleared);
    }
}
