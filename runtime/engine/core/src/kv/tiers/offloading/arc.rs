//! Eviction with an adaptive replacement cache (vLLM's `v1/kv_offload/cpu/policies/arc.py`).

use super::Recency;
use crate::kv::hash::BlockHash;

/// Chunks used once, chunks used more often, and recently evicted chunks of both kinds. An offer of an
/// evicted chunk shifts the target size of its kind.
#[derive(Debug)]
pub(super) struct AdaptiveOrder {
    capacity: u32,
    once: Recency,
    often: Recency,
    gone_once: Recency,
    gone_often: Recency,
    target_once: f64,
}

impl AdaptiveOrder {
    pub(super) fn new(capacity: u32) -> Self {
        let [once, often, gone_once, gone_often] = <[Recency; 4]>::default();
        Self { capacity, once, often, gone_once, gone_often, target_once: 0.0 }
    }

    pub(super) fn insert(&mut self, key: BlockHash) {
        self.once.add(key);
        self.gone_once.remove(key);
        self.gone_often.remove(key);
    }

    /// Handles the offer of chunks that are not cached. `keys` are in token order.
    pub(super) fn miss(&mut self, keys: impl DoubleEndedIterator<Item = BlockHash>) {
        for key in keys.rev() {
            let (once, often) = (self.gone_once.len() as f64, self.gone_often.len() as f64);
            if self.gone_once.contains(key) {
                self.target_once = (self.target_once + (often / once).max(1.0)).min(f64::from(self.capacity));
                self.gone_once.renew(key);
            } else if self.gone_often.contains(key) {
                self.target_once = (self.target_once - (once / often).max(1.0)).max(0.0);
                self.gone_often.renew(key);
            }
        }
    }

    /// Handles the end of a request that stored a chunk and did not use it again.
    pub(super) fn end_insertion(&mut self, key: BlockHash) {
        for order in [&mut self.once, &mut self.often] {
            if order.contains(key) {
                return order.renew(key);
            }
        }
    }

    /// Handles the end of a request that used a cached chunk.
    pub(super) fn end_reuse(&mut self, key: BlockHash) {
        if self.once.remove(key) || self.often.contains(key) {
            self.often.renew(key);
        }
    }

    /// Removes and returns `count` chunks for which `may_go` holds. None if there are fewer.
    pub(super) fn evict(&mut self, count: u32, may_go: impl Fn(BlockHash) -> bool) -> Option<Vec<BlockHash>> {
        let mut chosen = Vec::with_capacity(count as usize);
        {
            let mut once = self.once.iter().filter(|&key| may_go(key));
            let mut often = self.often.iter().filter(|&key| may_go(key));
            let mut left_once = self.once.len() as i64;
            for _ in 0..count {
                let first = if left_once >= self.target_once as i64 { once.next() } else { None };
                let from_once = |key| (key, true);
                let candidate = first
                    .map(from_once)
                    .or_else(|| often.next().map(|key| (key, false)))
                    .or_else(|| once.next().map(from_once))?;
                left_once -= i64::from(candidate.1);
                chosen.push(candidate);
            }
        }
        for &(key, is_once) in &chosen {
            let (order, gone) = match is_once {
                true => (&mut self.once, &mut self.gone_once),
                false => (&mut self.often, &mut self.gone_often),
            };
            order.remove(key);
            gone.add(key);
        }
        for gone in [&mut self.gone_once, &mut self.gone_often] {
            while gone.len() > self.capacity as usize {
                gone.remove_oldest();
            }
        }
        Some(chosen.into_iter().map(|(key, _)| key).collect())
    }

    /// All chunks in eviction order.
    pub(super) fn iter(&self) -> impl Iterator<Item = BlockHash> + '_ {
        self.once.iter().chain(self.often.iter())
    }
}
