//! Chunks in an order of their own, as Python's `OrderedDict` keeps them.

use std::collections::BTreeMap;

use crate::kv::hash::BlockHash;

/// Chunks from the oldest to the newest.
#[derive(Debug, Default)]
pub(super) struct Recency {
    by_age: BTreeMap<u64, BlockHash>,
    ages: BTreeMap<BlockHash, u64>,
    next_age: u64,
}

impl Recency {
    pub(super) fn len(&self) -> usize {
        self.ages.len()
    }

    pub(super) fn contains(&self, key: BlockHash) -> bool {
        self.ages.contains_key(&key)
    }

    /// Adds a chunk as the newest; one that is there keeps its place.
    pub(super) fn add(&mut self, key: BlockHash) {
        if !self.contains(key) {
            self.renew(key);
        }
    }

    /// Makes a chunk the newest, whether or not it was there.
    pub(super) fn renew(&mut self, key: BlockHash) {
        self.next_age += 1;
        if let Some(age) = self.ages.insert(key, self.next_age) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.next_age, key);
    }

    /// Takes a chunk out; false if it was not there.
    pub(super) fn remove(&mut self, key: BlockHash) -> bool {
        let age = self.ages.remove(&key);
        age.is_some_and(|age| self.by_age.remove(&age).is_some())
    }

    pub(super) fn remove_oldest(&mut self) -> Option<BlockHash> {
        let (_, key) = self.by_age.pop_first()?;
        self.ages.remove(&key);
        Some(key)
    }

    /// From the oldest on.
    pub(super) fn iter(&self) -> impl Iterator<Item = BlockHash> + '_ {
        self.by_age.values().copied()
    }
}
