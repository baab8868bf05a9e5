//! A router's view of the caches, which may differ from the caches.

use std::collections::VecDeque;

use hashbrown::HashTable;
use vcr_core::hash::BlockHash;
use vcr_core::kv_event::KvEvent;
use vcr_core::{KvTier, KvTierChange, TierRun};

use super::active::Chain;

/// A value per block. Only single blocks can be looked up, so the table's arbitrary order has no effect.
struct ByBlock<T>(HashTable<(BlockHash, T)>);

impl<T> Default for ByBlock<T> {
    fn default() -> Self {
        Self(HashTable::new())
    }
}

impl<T> ByBlock<T> {
    // Block hashes are uniform enough to be used as table hashes.
    fn get(&self, hash: BlockHash) -> Option<&T> {
        self.0.find(hash, |(other, _)| *other == hash).map(|(_, value)| value)
    }

    fn get_or_insert(&mut self, hash: BlockHash, value: T) -> &mut T {
        let entry = self.0.entry(hash, |(other, _)| *other == hash, |(other, _)| *other);
        &mut entry.or_insert((hash, value)).into_mut().1
    }

    /// Changes the entry of a block. Removes the entry if `change` returns false.
    fn keep_if(&mut self, hash: BlockHash, change: impl FnOnce(&mut T) -> bool) {
        if let Ok(mut entry) = self.0.find_entry(hash, |(other, _)| *other == hash)
            && !change(&mut entry.get_mut().1)
        {
            entry.remove();
        }
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Cached copies of blocks, with one entry per copy. This takes half the memory of entries with counts, and a block
/// has few copies: one more for each request that computed it at the same time.
#[derive(Default)]
struct Copies(HashTable<BlockHash>);

impl Copies {
    fn contains(&self, hash: BlockHash) -> bool {
        self.0.find(hash, |other| *other == hash).is_some()
    }

    fn add(&mut self, hash: BlockHash) {
        self.0.insert_unique(hash, hash, |other| *other);
    }

    fn remove(&mut self, hash: BlockHash) {
        if let Ok(entry) = self.0.find_entry(hash, |other| *other == hash) {
            entry.remove();
        }
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// A change of consecutive blocks in `coming_blocks`.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// The time at which the change becomes visible.
    at_ns: u64,
    kind: ChangeKind,
    blocks: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeKind {
    Stored,
    Removed,
    Cleared,
}

/// One engine's cache as its delayed KV events describe it.
#[derive(Default)]
pub(super) struct EventIndex {
    copies: Copies,
    /// Changes that are not visible yet.
    coming: VecDeque<Change>,
    /// The blocks of these changes.
    coming_blocks: VecDeque<BlockHash>,
    in_host: ByBlock<()>,
    on_disk: ByBlock<()>,
    /// Changes of the tiers that are not visible yet.
    coming_changes: VecDeque<(u64, KvTierChange)>,
}

impl EventIndex {
    /// Adds an event that becomes visible at `at_ns`. Times must not decrease between calls.
    pub(super) fn expect(&mut self, at_ns: u64, event: KvEvent<'_>) {
        let (kind, blocks) = match &event {
            KvEvent::Stored { blocks, .. } => (ChangeKind::Stored, *blocks),
            KvEvent::Removed(hash) => (ChangeKind::Removed, std::slice::from_ref(hash)),
            KvEvent::Cleared => (ChangeKind::Cleared, &[][..]),
        };
        self.coming_blocks.extend(blocks);
        let blocks = blocks.len() as u32;
        match self.coming.back_mut() {
            Some(last) if last.at_ns == at_ns && last.kind == kind => last.blocks += blocks,
            _ => self.coming.push_back(Change { at_ns, kind, blocks }),
        }
    }

    /// Forgets everything, because the engine has been removed. This is visible at once.
    pub(super) fn forget(&mut self) {
        self.copies.clear();
        self.coming.clear();
        self.coming_blocks.clear();
        self.in_host.clear();
        self.on_disk.clear();
        self.coming_changes.clear();
    }

    /// Adds a change of the tiers that becomes visible at `at_ns`. Times must not decrease between calls.
    pub(super) fn expect_change(&mut self, at_ns: u64, change: KvTierChange) {
        self.coming_changes.push_back((at_ns, change));
    }

    /// Number of leading blocks of a chain that are visible in the tiers at `now_ns`.
    pub(super) fn kept_blocks(&mut self, now_ns: u64, chain: &[BlockHash]) -> TierRun {
        while let Some((_, change)) = self.coming_changes.pop_front_if(|(at_ns, _)| *at_ns <= now_ns) {
            let tier = match change.tier {
                KvTier::Host => &mut self.in_host,
                KvTier::Disk => &mut self.on_disk,
            };
            if change.stored {
                tier.get_or_insert(change.hash, ());
            } else {
                tier.keep_if(change.hash, |()| false);
            }
        }
        let mut run = TierRun::default();
        for &hash in chain {
            if self.in_host.get(hash).is_some() {
                run.host_blocks += 1;
            } else if self.on_disk.get(hash).is_some() {
                run.disk_blocks += 1;
            } else {
                break;
            }
        }
        run
    }

    /// Number of leading blocks of a chain that are visible in the cache at `now_ns`.
    pub(super) fn cached_blocks(&mut self, now_ns: u64, chain: &[BlockHash]) -> u32 {
        self.see_changes(now_ns);
        chain.iter().take_while(|&&hash| self.copies.contains(hash)).count() as u32
    }

    /// Applies the changes visible at `now_ns`.
    pub(super) fn see_changes(&mut self, now_ns: u64) {
        while let Some(change) = self.coming.pop_front_if(|change| change.at_ns <= now_ns) {
            let blocks = self.coming_blocks.drain(..change.blocks as usize);
            match change.kind {
                ChangeKind::Stored => blocks.for_each(|hash| self.copies.add(hash)),
                ChangeKind::Removed => blocks.for_each(|hash| self.copies.remove(hash)),
                ChangeKind::Cleared => self.copies.clear(),
            }
        }
    }
}

/// One engine's cache as a router predicts it from the requests that it sent to the engine.
#[derive(Default)]
pub(super) struct GuessedIndex {
    /// The time until which each block counts as cached.
    until_ns: ByBlock<u64>,
    sent: VecDeque<(u64, Chain)>,
}

impl GuessedIndex {
    pub(super) fn sent(&mut self, until_ns: u64, chain: &Chain) {
        for &hash in chain.iter() {
            *self.until_ns.get_or_insert(hash, 0) = until_ns;
        }
        self.sent.push_back((until_ns, chain.clone()));
    }

    pub(super) fn forget(&mut self) {
        self.until_ns.clear();
        self.sent.clear();
    }

    pub(super) fn cached_blocks(&mut self, now_ns: u64, chain: &[BlockHash]) -> u32 {
        while let Some((until_ns, old)) = self.sent.pop_front_if(|(until_ns, _)| *until_ns <= now_ns) {
            for &hash in old.iter() {
                // A block that was sent again in the meantime stays longer.
                self.until_ns.keep_if(hash, |last_ns| *last_ns > until_ns);
            }
        }
        chain.iter().take_while(|&&hash| self.until_ns.get(hash).is_some()).count() as u32
    }
}
