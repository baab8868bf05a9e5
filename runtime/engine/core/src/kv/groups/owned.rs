//! The group that holds each block, and the additional keys of blocks.

use std::collections::BTreeMap;

use super::lookup::content;
use crate::kv::hash::BlockHash;
use crate::kv::pool::{BlockId, KvPool};

/// The group that holds each block, and the keys that the pool does not know.
#[derive(Debug, Default)]
pub(super) struct OwnedBlocks {
    /// For each block, the group that holds it or held it last.
    owners: Vec<u8>,
    /// Additional keys of cached blocks, for shorter prefixes that end inside them.
    pub(super) inner_keys: BTreeMap<BlockId, Vec<BlockHash>>,
    /// Blocks that are cached before they are full, with the number of tokens of the prefix that ends inside them.
    pub(super) partial_ends: BTreeMap<BlockId, u32>,
}

impl OwnedBlocks {
    /// Appends `missing` blocks to a table of a group. The caller has checked that enough blocks are free.
    pub(super) fn allocate(&mut self, pool: &mut KvPool, group: usize, missing: u32, blocks: &mut Vec<BlockId>) {
        let first = blocks.len();
        let Self { owners, inner_keys, partial_ends } = self;
        pool.allocate_noting(missing, blocks, |events, block, key| {
            let owner = owners.get(block as usize).copied().unwrap_or(0);
            let keys = inner_keys.remove(&block).unwrap_or_default();
            partial_ends.remove(&block);
            if let Some(events) = events {
                for key in std::iter::once(key).chain(keys) {
                    events.removed_of_group(owner, content(key, owner.into()));
                }
            }
        });
        for &block in &blocks[first..] {
            if owners.len() <= block as usize {
                owners.resize(block as usize + 1, 0);
            }
            owners[block as usize] = group as u8;
        }
    }

    /// Removes all keys of a block of a group.
    pub(super) fn forget_keys(&mut self, pool: &mut KvPool, group: usize, block: BlockId) {
        let first = pool.key_of(block);
        let keys = self.inner_keys.remove(&block).unwrap_or_default();
        pool.forget(block);
        if let Some(events) = pool.events_mut() {
            for key in first.into_iter().chain(keys) {
                events.removed_of_group(group as u8, content(key, group));
            }
        }
    }

    /// Takes a block out of the cache.
    pub(super) fn forget_block(&mut self, pool: &mut KvPool, block: BlockId) {
        let owner = self.owners.get(block as usize).copied().unwrap_or(0);
        self.partial_ends.remove(&block);
        self.forget_keys(pool, owner.into(), block);
    }

    pub(super) fn forget_cache(&mut self) {
        self.inner_keys.clear();
        self.partial_ends.clear();
    }
}
