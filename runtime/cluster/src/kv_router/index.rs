//! What a router believes to be cached, where that is not what is.

use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use vcr_core::hash::BlockHash;
use vcr_core::kv_event::KvEvent;

use super::active::Chain;

/// Block hashes are mixed well enough to be used as they are.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only block hashes are hashed");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Only ever asked for single hashes, so its order cannot show.
type ByBlock<T> = HashMap<BlockHash, T, BuildHasherDefault<AsIs>>;

#[derive(Clone, Copy, Debug)]
enum Change {
    Stored(BlockHash),
    Removed(BlockHash),
    Cleared,
}

/// One engine's cache as its KV events tell it, late.
#[derive(Default)]
pub(super) struct EventIndex {
    /// Cached copies of each block.
    copies: ByBlock<u32>,
    /// What is not seen yet, with the time when it will be.
    coming: VecDeque<(u64, Change)>,
}

impl EventIndex {
    /// Takes an event, to be seen at `at_ns`, which is never before the time of
    /// an earlier one.
    pub(super) fn expect(&mut self, at_ns: u64, event: KvEvent<'_>) {
        match event {
            KvEvent::Stored { blocks, .. } => {
                self.coming.extend(blocks.iter().map(|&hash| (at_ns, Change::Stored(hash))));
            }
            KvEvent::Removed(hash) => self.coming.push_back((at_ns, Change::Removed(hash))),
            KvEvent::Cleared => self.coming.push_back((at_ns, Change::Cleared)),
        }
    }

    /// The engine is gone, and that is noticed at once.
    pub(super) fn forget(&mut self) {
        self.copies.clear();
        self.coming.clear();
    }

    /// Leading blocks of a chain that are cached as far as is seen at `now_ns`.
    pub(super) fn cached_blocks(&mut self, now_ns: u64, chain: &[BlockHash]) -> u32 {
        while let Some((_, change)) = self.coming.pop_front_if(|(at_ns, _)| *at_ns <= now_ns) {
            self.see(change);
        }
        chain.iter().take_while(|&hash| self.copies.contains_key(hash)).count() as u32
    }

    fn see(&mut self, change: Change) {
        match change {
            Change::Stored(hash) => *self.copies.entry(hash).or_insert(0) += 1,
            Change::Removed(hash) => {
                if let Some(copies) = self.copies.get_mut(&hash) {
                    *copies -= 1;
                    if *copies == 0 {
                        self.copies.remove(&hash);
                    }
                }
            }
            Change::Cleared => self.copies.clear(),
        }
    }
}

/// One engine's cache as a router guesses it from what it has sent there.
#[derive(Default)]
pub(super) struct GuessedIndex {
    /// Until when each block is taken to be cached.
    until_ns: ByBlock<u64>,
    sent: VecDeque<(u64, Chain)>,
}

impl GuessedIndex {
    pub(super) fn sent(&mut self, until_ns: u64, chain: &Chain) {
        for &hash in chain.iter() {
            self.until_ns.insert(hash, until_ns);
        }
        self.sent.push_back((until_ns, chain.clone()));
    }

    pub(super) fn forget(&mut self) {
        self.until_ns.clear();
        self.sent.clear();
    }

    pub(super) fn cached_blocks(&mut self, now_ns: u64, chain: &[BlockHash]) -> u32 {
        while let Some((until_ns, old)) = self.sent.pop_front_if(|(until_ns, _)| *until_ns <= now_ns) {
            for hash in old.iter() {
                // One that was sent again since is cached for longer.
                if self.until_ns.get(hash) == Some(&until_ns) {
                    self.until_ns.remove(hash);
                }
            }
        }
        chain.iter().take_while(|&hash| self.until_ns.contains_key(hash)).count() as u32
    }
}
