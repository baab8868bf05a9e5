//! KV events of a prefix cache, in vLLM's order.
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
        /// Hashes in sequence order; none where a group of layers keeps none of these blocks.
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
    Stored { group: u8, tag: u64, parent: Option<BlockHash>, blocks: u32, tokens: u32 },
    Removed { group: u8, hash: BlockHash },
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

    /// The events, oldest first; where layers are in groups those of the first group alone.
    pub fn iter(&self) -> impl Iterator<Item = KvEvent<'_>> {
        self.iter_by_group().filter(|(group, _)| *group == 0).map(|(_, event)| event)
    }

    /// The events, oldest first, each with the index of the group of layers whose blocks it is
    /// about; 0 where all are.
    pub fn iter_by_group(&self) -> impl Iterator<Item = (u32, KvEvent<'_>)> {
        let (mut hashes, mut tokens) = (self.hashes.as_slice(), self.tokens.as_slice());
        self.entries.iter().map(move |entry| match *entry {
            Entry::Stored { group, tag, parent, blocks: num_blocks, tokens: num_tokens } => {
                let (blocks, later) = hashes.split_at(num_blocks as usize);
                hashes = later;
                let (own, later) = tokens.split_at(num_tokens as usize);
                tokens = later;
                (group.into(), KvEvent::Stored { tag, parent, blocks, tokens: own })
            }
            Entry::Removed { group, hash } => (group.into(), KvEvent::Removed(hash)),
            Entry::Cleared => (0, KvEvent::Cleared),
        })
    }

    pub(crate) fn stored(&mut self, tag: u64, parent: Option<BlockHash>, blocks: &[BlockHash], tokens: &[u32]) {
        self.stored_of_group(0, tag, parent, blocks.iter().copied(), tokens);
    }

    pub(crate) fn stored_of_group(
        &mut self,
        group: u8,
        tag: u64,
        parent: Option<BlockHash>,
        blocks: impl Iterator<Item = BlockHash>,
        tokens: &[u32],
    ) {
        let before = self.hashes.len();
        self.hashes.extend(blocks);
        self.tokens.extend_from_slice(tokens);
        let blocks = (self.hashes.len() - before) as u32;
        self.entries.push(Entry::Stored { group, tag, parent, blocks, tokens: tokens.len() as u32 });
    }

    pub(crate) fn removed(&mut self, hash: BlockHash) {
        self.removed_of_group(0, hash);
    }

    pub(crate) fn removed_of_group(&mut self, group: u8, hash: BlockHash) {
        self.entries.push(Entry::Removed { group, hash });
    }

    pub(crate) fn cleared(&mut self) {
        self.entries.push(Entry::Cleared);
    }
}
