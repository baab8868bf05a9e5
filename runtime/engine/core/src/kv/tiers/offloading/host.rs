//! The host memory (vLLM's `CPUOffloadingManager`, `v1/kv_offload/cpu/manager.py`, and its policy `lru`).

use std::collections::BTreeMap;

use super::Recency;
use super::arc::AdaptiveOrder;
use super::options::{EvictionPolicy, OffloadingOptions};
use super::rules::ConnectorRules;
use crate::kv::hash::BlockHash;
use crate::kv::tiers::blocks::{Slot, TierBlocks};

/// A chunk's rank by use: the number of its latest use and, within this use, its position; later tokens rank lower.
type Rank = (u64, i64);

#[derive(Debug)]
enum EvictionOrder {
    /// LRU by the list in the table of chunks (`lru`).
    Listed,
    Ranked(Ranks),
    /// The policy `arc`.
    Adaptive(AdaptiveOrder),
}

/// LRU in which all uses by one request share one number until it ends.
#[derive(Debug, Default)]
struct Ranks {
    ranks: Vec<Rank>,
    /// Chunks that no transfer reads or writes.
    idle: BTreeMap<Rank, Slot>,
    latest: u64,
}

impl Ranks {
    fn of_use(&mut self, uses: &mut Uses, index: u32) -> Rank {
        let number = *uses.rank.get_or_insert_with(|| {
            self.latest += 1;
            self.latest
        });
        (number, -1 - i64::from(index))
    }

    fn set(&mut self, slot: Slot, rank: Rank) {
        if self.ranks.len() <= slot as usize {
            self.ranks.resize(slot as usize + 1, Rank::default());
        }
        let before = std::mem::replace(&mut self.ranks[slot as usize], rank);
        if self.idle.get(&before) == Some(&slot) {
            self.idle.remove(&before);
            self.idle.insert(rank, slot);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Missing,
    /// The chunk is being written to the host.
    Pending,
    Ready,
}

/// A chunk of a request: its index in the sequence, and its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) index: u32,
    pub(super) key: BlockHash,
}

/// A chunk for which a place was allocated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) offer: Offer,
    pub(super) place: u32,
}

/// The chunks that a request has used, by index.
#[derive(Debug, Default)]
pub(super) struct Uses {
    marks: Vec<u8>,
    /// Number of the request's use. All chunks of the request share it until the request ends.
    rank: Option<u64>,
}

impl Uses {
    const SEEN: u8 = 1;
    const INSERTED: u8 = 1 << 1;
    const REUSED: u8 = 1 << 2;
    const MISSED: u8 = 1 << 3;

    fn has(&self, index: u32, mark: u8) -> bool {
        self.marks.get(index as usize).is_some_and(|marks| marks & mark != 0)
    }

    fn set(&mut self, index: u32, mark: u8) {
        if self.marks.len() <= index as usize {
            self.marks.resize(index as usize + 1, 0);
        }
        self.marks[index as usize] |= mark;
    }

    fn set_reused(&mut self, index: u32) {
        if !self.has(index, Self::INSERTED) {
            self.set(index, Self::REUSED);
        }
    }
}

/// Number of offers of chunks that are not stored yet, oldest offer first.
#[derive(Debug, Default)]
struct Offers {
    counts: BTreeMap<BlockHash, u32>,
    order: Recency,
}

impl Offers {
    fn record(&mut self, offers: &[Offer], most: u32) {
        let mut known = 0;
        for offer in offers {
            if let Some(count) = self.counts.get_mut(&offer.key) {
                *count = count.saturating_add(1);
                self.order.renew(offer.key);
                known += 1;
            }
        }
        let mut others = self.counts.len() - known;
        for offer in offers {
            if self.counts.contains_key(&offer.key) {
                continue;
            }
            if self.counts.len() >= most as usize {
                if others == 0 {
                    continue;
                }
                let oldest = self.order.remove_oldest();
                oldest.map(|oldest| self.counts.remove(&oldest));
                others -= 1;
            }
            self.counts.insert(offer.key, 1);
            self.order.renew(offer.key);
        }
    }
}

/// The host's contents, and their eviction order.
#[derive(Debug)]
pub(super) struct HostCache {
    options: OffloadingOptions,
    rules: ConnectorRules,
    chunks: TierBlocks,
    order: EvictionOrder,
    offers: Option<Offers>,
}

impl HostCache {
    pub(super) fn new(options: OffloadingOptions, rules: ConnectorRules) -> Self {
        let order = match options.eviction_policy {
            EvictionPolicy::Arc => EvictionOrder::Adaptive(AdaptiveOrder::new(options.chunks)),
            EvictionPolicy::Lru if rules.ranks_blocks_by_request() => EvictionOrder::Ranked(Ranks::default()),
            EvictionPolicy::Lru => EvictionOrder::Listed,
        };
        Self {
            rules,
            chunks: TierBlocks::new(options.chunks),
            order,
            offers: (options.store_threshold > 1).then(Offers::default),
            options,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.chunks.len()
    }

    pub(super) fn find(&self, key: BlockHash) -> Found {
        match self.chunks.find(key) {
            None => Found::Missing,
            Some(slot) if self.chunks.is_ready(slot) => Found::Ready,
            Some(_) => Found::Pending,
        }
    }

    /// The place of a chunk that a transfer reads or writes.
    fn place_of(&self, key: BlockHash) -> Slot {
        self.chunks.find(key).expect("a chunk stays while it is read or written")
    }

    /// Pins chunks that the host holds until [`HostCache::end_load`]. Returns their places.
    pub(super) fn begin_load(&mut self, uses: &mut Uses, offers: &[Offer]) -> Vec<u32> {
        let mut places = Vec::with_capacity(offers.len());
        for offer in offers {
            let place = self.place_of(offer.key);
            self.chunks.pin(place);
            if let EvictionOrder::Ranked(Ranks { ranks, idle, .. }) = &mut self.order {
                idle.remove(&ranks[place as usize]);
            }
            places.push(place);
        }
        self.note_uses(uses, offers);
        offers.iter().for_each(|offer| uses.set_reused(offer.index));
        places
    }

    pub(super) fn end_load(&mut self, keys: &[BlockHash]) {
        keys.iter().rev().for_each(|&key| self.unpin(key));
    }

    /// Unpins a chunk after a transfer has read or written it.
    fn unpin(&mut self, key: BlockHash) {
        let place = self.place_of(key);
        self.chunks.unpin(place);
        if !self.chunks.is_idle(place) {
            return;
        }
        if let EvictionOrder::Ranked(Ranks { ranks, idle, .. }) = &mut self.order {
            idle.insert(ranks[place as usize], place);
        }
        if self.rules.uses_blocks_at_lookups() {
            self.chunks.touch(place);
        }
    }

    /// Marks the chunks of `keys` that are in the host and not being read as used, the last one first.
    pub(super) fn use_again(&mut self, keys: impl DoubleEndedIterator<Item = BlockHash>) {
        for key in keys.rev() {
            if let Some(place) = self.chunks.find(key).filter(|&place| self.chunks.is_idle(place)) {
                self.chunks.touch(place);
            }
        }
    }

    /// Removes a pending chunk that will not arrive.
    pub(super) fn forget_pending(&mut self, key: BlockHash) {
        if let Some(place) = self.chunks.find(key) {
            self.chunks.remove(place);
        }
    }

    /// The chunks that have arrived, sorted by key.
    pub(super) fn ready(&self) -> impl Iterator<Item = BlockHash> + '_ {
        let mut keys: Vec<BlockHash> = self.chunks.ready().collect();
        keys.sort_unstable();
        keys.into_iter()
    }

    /// Allocates places for the uncached chunks of a request, in order, and evicts other chunks if needed.
    /// Returns None, and stores nothing, if there is not enough room.
    pub(super) fn begin_store(
        &mut self,
        uses: &mut Uses,
        offers: &[Offer],
        evicted: &mut Vec<BlockHash>,
    ) -> Option<Vec<Stored>> {
        if let Some(counts) = &mut self.offers {
            counts.record(offers, self.options.max_tracker_size);
        }
        let (mut missing, mut ready) = (Vec::new(), Vec::new());
        for &offer in offers {
            match self.find(offer.key) {
                Found::Missing => missing.push(offer),
                Found::Ready => ready.push(offer),
                Found::Pending => {}
            }
        }
        if let Some(Offers { counts, .. }) = &self.offers {
            missing.retain(|offer| counts.get(&offer.key).is_some_and(|&count| count >= self.options.store_threshold));
        }
        if let EvictionOrder::Adaptive(adaptive) = &mut self.order {
            let is_new = |offer: &&Offer| !uses.has(offer.index, Uses::MISSED);
            adaptive.miss(missing.iter().filter(is_new).map(|offer| offer.key));
        }
        missing.iter().for_each(|offer| uses.set(offer.index, Uses::MISSED));
        // The ranks of a request's uses depend on token positions, not on the order of these calls.
        self.note_uses(uses, &missing);
        self.note_uses(uses, &ready);
        ready.iter().for_each(|offer| uses.set_reused(offer.index));
        if !self.rules.stores_all_or_none() {
            missing.truncate((self.chunks.num_free() + self.chunks.num_idle()) as usize);
        }
        if missing.is_empty() {
            return Some(Vec::new());
        }
        self.make_room(missing.len() as u32, offers, evicted)?;
        let stored = missing.into_iter().map(|offer| Stored { offer, place: self.insert(uses, offer) });
        Some(stored.collect())
    }

    pub(super) fn end_store(&mut self, keys: &[BlockHash]) {
        for &key in keys.iter().rev() {
            let place = self.place_of(key);
            self.chunks.set_ready(place);
            self.unpin(key);
        }
    }

    /// Reserves a place for a chunk that a load first reads from the tier below, and then from the host. Returns false
    /// if there is no room.
    pub(super) fn begin_fill(&mut self, key: BlockHash, evicted: &mut Vec<BlockHash>) -> bool {
        if self.find(key) != Found::Missing || self.make_room(1, &[], evicted).is_none() {
            return false;
        }
        self.insert(&mut Uses::default(), Offer { index: 0, key });
        true
    }

    pub(super) fn end_fill(&mut self, key: BlockHash) {
        let place = self.place_of(key);
        self.chunks.set_ready(place);
    }

    /// Marks the chunks of an ended request as used, the last one first. `key_of` returns the key of a chunk
    /// by its index.
    pub(super) fn end_uses(&mut self, uses: &Uses, key_of: impl Fn(u32) -> BlockHash) {
        if !self.rules.uses_blocks_at_ends() {
            return;
        }
        for index in (0..uses.marks.len() as u32).rev().filter(|&index| uses.has(index, Uses::SEEN)) {
            let key = key_of(index);
            match &mut self.order {
                EvictionOrder::Adaptive(adaptive) if uses.has(index, Uses::REUSED) => adaptive.end_reuse(key),
                EvictionOrder::Adaptive(adaptive) if uses.has(index, Uses::INSERTED) => adaptive.end_insertion(key),
                EvictionOrder::Adaptive(_) => {}
                EvictionOrder::Listed => {
                    if let Some(place) = self.chunks.find(key) {
                        self.chunks.touch(place);
                    }
                }
                EvictionOrder::Ranked(ranks) => {
                    if let Some(place) = self.chunks.find(key) {
                        ranks.latest += 1;
                        ranks.set(place, (ranks.latest, 0));
                    }
                }
            }
        }
    }

    /// The chunks that may be evicted, in eviction order.
    pub(super) fn evictable(&self) -> impl Iterator<Item = BlockHash> + '_ {
        let (listed, ranked, adaptive) = match &self.order {
            EvictionOrder::Listed => (Some(self.chunks.evictable()), None, None),
            EvictionOrder::Ranked(ranks) => (None, Some(ranks.idle.values().copied()), None),
            EvictionOrder::Adaptive(adaptive) => (None, None, Some(adaptive.iter().filter(|&key| self.is_idle(key)))),
        };
        let places = listed.into_iter().flatten().chain(ranked.into_iter().flatten());
        places.map(|place| self.chunks.hash(place)).chain(adaptive.into_iter().flatten())
    }

    fn is_idle(&self, key: BlockHash) -> bool {
        self.chunks.find(key).is_some_and(|place| self.chunks.is_idle(place))
    }

    /// Checks all invariants by walking the whole cache.
    ///
    /// # Panics
    /// If chunks, places and eviction order are inconsistent.
    pub(super) fn assert_consistent(&self) {
        self.chunks.assert_consistent();
        assert_eq!(self.evictable().count() as u32, self.chunks.num_idle(), "number of chunks that may go");
        match &self.order {
            EvictionOrder::Listed => {}
            EvictionOrder::Ranked(Ranks { ranks, idle, .. }) => {
                assert!(idle.iter().all(|(rank, slot)| ranks[*slot as usize] == *rank), "a chunk has two ranks");
                assert!(idle.values().all(|slot| self.chunks.is_idle(*slot)), "a chunk that is in use may go");
            }
            EvictionOrder::Adaptive(adaptive) => {
                let is_there = |key| self.chunks.find(key).is_some();
                assert!(adaptive.iter().all(is_there), "a chunk in the order is not there");
                assert_eq!(adaptive.iter().count() as u32, self.len(), "a chunk is in the order twice, or not at all");
            }
        }
    }

    /// Evicts chunks until `count` places are free, but none of the offered chunks.
    fn make_room(&mut self, count: u32, offered: &[Offer], evicted: &mut Vec<BlockHash>) -> Option<()> {
        let excess = count.saturating_sub(self.chunks.num_free());
        if excess == 0 {
            return Some(());
        }
        if excess > self.chunks.num_idle() {
            return None;
        }
        let mut kept: Vec<BlockHash> = offered.iter().map(|offer| offer.key).collect();
        if !self.rules.keeps_offered_blocks() {
            kept.clear();
        }
        kept.sort_unstable();
        let is_kept = |key: BlockHash| kept.binary_search(&key).is_ok();
        let leaving = match &mut self.order {
            EvictionOrder::Adaptive(adaptive) => {
                let chunks = &self.chunks;
                let is_idle = |key| chunks.find(key).is_some_and(|place| chunks.is_idle(place));
                adaptive.evict(excess, |key| is_idle(key) && !is_kept(key))?
            }
            EvictionOrder::Listed | EvictionOrder::Ranked(_) => {
                let leaving: Vec<BlockHash> =
                    self.evictable().filter(|&key| !is_kept(key)).take(excess as usize).collect();
                (leaving.len() == excess as usize).then_some(leaving)?
            }
        };
        for &key in &leaving {
            let place = self.place_of(key);
            self.chunks.remove(place);
            if let EvictionOrder::Ranked(Ranks { ranks, idle, .. }) = &mut self.order {
                idle.remove(&ranks[place as usize]);
            }
        }
        evicted.extend(leaving);
        Some(())
    }

    /// Takes a free place for a chunk that is about to be written. The caller has checked that a place is free.
    fn insert(&mut self, uses: &mut Uses, offer: Offer) -> u32 {
        let place = self.chunks.insert(offer.key);
        match &mut self.order {
            EvictionOrder::Listed => {}
            EvictionOrder::Ranked(ranks) => {
                let rank = ranks.of_use(uses, offer.index);
                ranks.set(place, rank);
            }
            EvictionOrder::Adaptive(adaptive) => adaptive.insert(offer.key),
        }
        uses.set(offer.index, Uses::INSERTED);
        place
    }

    /// Records the first use of chunks by a request.
    fn note_uses(&mut self, uses: &mut Uses, offers: &[Offer]) {
        for offer in offers {
            if uses.has(offer.index, Uses::SEEN) {
                continue;
            }
            uses.set(offer.index, Uses::SEEN);
            let EvictionOrder::Ranked(ranks) = &mut self.order else { continue };
            let rank = ranks.of_use(uses, offer.index);
            if let Some(place) = self.chunks.find(offer.key).filter(|&place| ranks.ranks[place as usize] < rank) {
                ranks.set(place, rank);
            }
        }
    }
}
