//! The memory of the host (vLLM's `CPUOffloadingManager`, `v1/kv_offload/cpu/manager.py`, and its policy `lru`).

use std::collections::BTreeMap;

use super::Recency;
use super::arc::AdaptiveOrder;
use super::options::{EvictionPolicy, OffloadingOptions};
use super::rules::ConnectorRules;
use crate::kv::hash::BlockHash;

/// The place of a chunk in the order of its uses: the number of the use, and in it later tokens first.
type Rank = (u64, i64);

/// State of a chunk in the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Missing,
    /// It is on its way here.
    Pending,
    Ready,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    place: u32,
    /// Transfers that read it; none before it has arrived.
    readers: Option<u32>,
    rank: Rank,
}

/// A chunk of a request: its index from the start of the sequence, and its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) index: u32,
    pub(super) key: BlockHash,
}

/// A chunk that was given a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) offer: Offer,
    pub(super) place: u32,
}

/// The chunks that one request has used, by index.
#[derive(Debug, Default)]
pub(super) struct Uses {
    marks: Vec<u8>,
    /// Number of the use that all its chunks share until it ends.
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

/// Offers of chunks until they are stored, the one offered longest ago first.
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

/// Contents of the host, and the order in which they leave.
#[derive(Debug)]
pub(super) struct HostCache {
    options: OffloadingOptions,
    rules: ConnectorRules,
    chunks: BTreeMap<BlockHash, Chunk>,
    /// Those that nothing reads or writes, by rank; of the policy `lru` alone.
    idle: BTreeMap<Rank, BlockHash>,
    num_idle: u32,
    next_rank: u64,
    /// Of the policy `arc` alone.
    adaptive: Option<AdaptiveOrder>,
    offers: Option<Offers>,
    /// Places from this one on were never taken.
    first_fresh_place: u32,
    free_places: Vec<u32>,
}

impl HostCache {
    pub(super) fn new(options: OffloadingOptions, rules: ConnectorRules) -> Self {
        let is_adaptive = options.eviction_policy == EvictionPolicy::Arc;
        Self {
            rules,
            chunks: BTreeMap::new(),
            idle: BTreeMap::new(),
            num_idle: 0,
            next_rank: 0,
            adaptive: is_adaptive.then(|| AdaptiveOrder::new(options.chunks)),
            offers: (options.store_threshold > 1).then(Offers::default),
            first_fresh_place: 0,
            free_places: Vec::new(),
            options,
        }
    }

    /// Number of chunks that are stored or being written.
    pub(super) fn len(&self) -> u32 {
        self.chunks.len() as u32
    }

    pub(super) fn find(&self, key: BlockHash) -> Found {
        match self.chunks.get(&key) {
            None => Found::Missing,
            Some(Chunk { readers: None, .. }) => Found::Pending,
            Some(_) => Found::Ready,
        }
    }

    /// Pins these chunks, which the host holds, until [`HostCache::end_load`]. Returns their places.
    pub(super) fn begin_load(&mut self, uses: &mut Uses, offers: &[Offer]) -> Vec<u32> {
        let mut places = Vec::with_capacity(offers.len());
        for offer in offers {
            let chunk = self.chunks.get_mut(&offer.key).expect("the host has every chunk of a load");
            let readers = chunk.readers.as_mut().expect("a chunk is read when it has arrived");
            *readers += 1;
            places.push(chunk.place);
            if *readers == 1 {
                let rank = chunk.rank;
                self.num_idle -= 1;
                self.idle.remove(&rank);
            }
        }
        self.note_uses(uses, offers);
        offers.iter().for_each(|offer| uses.set_reused(offer.index));
        places
    }

    pub(super) fn end_load(&mut self, keys: &[BlockHash]) {
        let rank = self.rank_of_transfer();
        for (place, &key) in keys.iter().enumerate() {
            let chunk = self.chunks.get_mut(&key).expect("a chunk stays while it is read");
            let readers = chunk.readers.as_mut().expect("a chunk is read when it has arrived");
            *readers -= 1;
            if *readers == 0 {
                chunk.rank = rank.map_or(chunk.rank, |number| (number, -1 - place as i64));
                self.set_idle(key);
            }
        }
    }

    /// Marks the chunks of `keys` that the host holds and nothing reads as used, last one first.
    pub(super) fn use_again(&mut self, keys: impl DoubleEndedIterator<Item = BlockHash>) {
        for key in keys.rev() {
            if self.chunks.get(&key).is_some_and(|chunk| chunk.readers == Some(0)) {
                self.next_rank += 1;
                self.set_rank(key, (self.next_rank, 0));
            }
        }
    }

    /// The number of the use that the end of a transfer is, if it is one.
    fn rank_of_transfer(&mut self) -> Option<u64> {
        self.rules.uses_blocks_at_lookups().then(|| {
            self.next_rank += 1;
            self.next_rank
        })
    }

    /// A chunk that is on its way here will not come.
    pub(super) fn forget_pending(&mut self, key: BlockHash) {
        if let Some(chunk) = self.chunks.remove(&key) {
            self.free_places.push(chunk.place);
        }
    }

    /// The chunks that have arrived.
    pub(super) fn ready(&self) -> impl Iterator<Item = BlockHash> + '_ {
        self.chunks.iter().filter(|(_, chunk)| chunk.readers.is_some()).map(|(&key, _)| key)
    }

    /// Gives places to those chunks of a request that are not there, in order, for which others may be `evicted`. None if
    /// not all find room: then none is stored.
    pub(super) fn begin_store(
        &mut self,
        uses: &mut Uses,
        offers: &[Offer],
        evicted: &mut Vec<BlockHash>,
    ) -> Option<Vec<Stored>> {
        if let Some(counts) = &mut self.offers {
            counts.record(offers, self.options.max_tracker_size);
        }
        let mut missing = self.those_found(offers, Found::Missing);
        if let Some(Offers { counts, .. }) = &self.offers {
            missing.retain(|offer| counts.get(&offer.key).is_some_and(|&count| count >= self.options.store_threshold));
        }
        if let Some(adaptive) = &mut self.adaptive {
            let is_new = |offer: &&Offer| !uses.has(offer.index, Uses::MISSED);
            adaptive.miss(missing.iter().filter(is_new).map(|offer| offer.key));
        }
        missing.iter().for_each(|offer| uses.set(offer.index, Uses::MISSED));
        let ready = self.those_found(offers, Found::Ready);
        // Uses of one request, whose ranks follow from its tokens, and not from the order in which they are noted.
        self.note_uses(uses, &missing);
        self.note_uses(uses, &ready);
        ready.iter().for_each(|offer| uses.set_reused(offer.index));
        if !self.rules.stores_all_or_none() {
            missing.truncate((self.num_free_places() + self.num_idle) as usize);
        }
        if missing.is_empty() {
            return Some(Vec::new());
        }
        self.make_room(missing.len() as u32, offers, evicted)?;
        let stored = missing.into_iter().map(|offer| Stored { offer, place: self.insert(uses, offer) });
        Some(stored.collect())
    }

    pub(super) fn end_store(&mut self, keys: &[BlockHash]) {
        let rank = self.rank_of_transfer();
        for (place, &key) in keys.iter().enumerate() {
            let chunk = self.chunks.get_mut(&key).expect("a chunk stays while it is written");
            chunk.readers = Some(0);
            chunk.rank = rank.map_or(chunk.rank, |number| (number, -1 - place as i64));
            self.set_idle(key);
        }
    }

    /// Gives a place to a chunk that comes from below and is read as soon as it has arrived; false if there is no room.
    pub(super) fn begin_fill(&mut self, key: BlockHash, evicted: &mut Vec<BlockHash>) -> bool {
        if self.find(key) != Found::Missing || self.make_room(1, &[], evicted).is_none() {
            return false;
        }
        self.insert(&mut Uses::default(), Offer { index: 0, key });
        true
    }

    pub(super) fn end_fill(&mut self, key: BlockHash) {
        let chunk = self.chunks.get_mut(&key).expect("a chunk stays while it is written");
        chunk.readers = Some(1);
    }

    /// Marks the chunks of an ended request as used now, last one first. `key_of` gives the keys of its
    /// sequence.
    pub(super) fn end_uses(&mut self, uses: &Uses, key_of: impl Fn(u32) -> BlockHash) {
        if !self.rules.uses_blocks_at_ends() {
            return;
        }
        for index in (0..uses.marks.len() as u32).rev().filter(|&index| uses.has(index, Uses::SEEN)) {
            let key = key_of(index);
            if let Some(adaptive) = &mut self.adaptive {
                if uses.has(index, Uses::REUSED) {
                    adaptive.end_reuse(key);
                } else if uses.has(index, Uses::INSERTED) {
                    adaptive.end_insertion(key);
                }
            } else if self.chunks.contains_key(&key) {
                self.next_rank += 1;
                self.set_rank(key, (self.next_rank, 0));
            }
        }
    }

    /// The chunks that may go, the next one first.
    pub(super) fn evictable(&self) -> impl Iterator<Item = BlockHash> + '_ {
        let adaptive = self.adaptive.iter().flat_map(AdaptiveOrder::iter);
        self.idle.values().copied().chain(adaptive.filter(move |key| self.chunks[key].readers == Some(0)))
    }

    /// Checks every structural invariant by walking the whole cache.
    ///
    /// # Panics
    /// When chunks, places and order disagree.
    pub(super) fn assert_consistent(&self) {
        let (len, free) = (self.len(), self.free_places.len() as u32);
        assert!(len <= self.options.chunks, "{len} chunks in {} places", self.options.chunks);
        assert_eq!(len + free, self.first_fresh_place, "each place that was taken has a chunk or is free");
        let mut places: Vec<u32> = self.chunks.values().map(|chunk| chunk.place).collect();
        places.extend(&self.free_places);
        places.sort_unstable();
        assert!(places.iter().copied().eq(0..self.first_fresh_place), "a place has two chunks");
        let idle = self.chunks.values().filter(|chunk| chunk.readers == Some(0)).count() as u32;
        assert_eq!((idle, self.evictable().count() as u32), (self.num_idle, idle), "number of chunks that may go");
        assert!(self.idle.iter().all(|(rank, key)| self.chunks[key].rank == *rank), "a chunk has two ranks");
        if let Some(adaptive) = &self.adaptive {
            assert!(adaptive.iter().all(|key| self.chunks.contains_key(&key)), "a chunk in the order is not there");
            assert_eq!(adaptive.iter().count() as u32, len, "a chunk is in the order twice, or not at all");
        }
    }

    fn those_found(&self, offers: &[Offer], found: Found) -> Vec<Offer> {
        offers.iter().copied().filter(|offer| self.find(offer.key) == found).collect()
    }

    fn num_free_places(&self) -> u32 {
        self.free_places.len() as u32 + self.options.chunks - self.first_fresh_place
    }

    /// Evicts as many chunks as `count` more need, but none of those offered.
    fn make_room(&mut self, count: u32, offered: &[Offer], evicted: &mut Vec<BlockHash>) -> Option<()> {
        let excess = count.saturating_sub(self.num_free_places());
        if excess == 0 {
            return Some(());
        }
        if excess > self.num_idle {
            return None;
        }
        let mut kept: Vec<BlockHash> = offered.iter().map(|offer| offer.key).collect();
        if !self.rules.keeps_offered_blocks() {
            kept.clear();
        }
        kept.sort_unstable();
        let is_kept = |key: BlockHash| kept.binary_search(&key).is_ok();
        let leaving = match &mut self.adaptive {
            Some(adaptive) => {
                let chunks = &self.chunks;
                adaptive.evict(excess, |key| chunks[&key].readers == Some(0) && !is_kept(key))?
            }
            None => {
                let idle = self.idle.values().copied().filter(|&key| !is_kept(key));
                let leaving: Vec<BlockHash> = idle.take(excess as usize).collect();
                (leaving.len() == excess as usize).then_some(leaving)?
            }
        };
        for &key in &leaving {
            let chunk = self.chunks.remove(&key).expect("what leaves was there");
            self.idle.remove(&chunk.rank);
            self.free_places.push(chunk.place);
        }
        self.num_idle -= excess;
        evicted.extend(leaving);
        Some(())
    }

    /// Takes a free place for a chunk that is about to be written. The caller has checked that there is one.
    /// Places that were never taken go first, then the place freed last.
    fn insert(&mut self, uses: &mut Uses, offer: Offer) -> u32 {
        let place = if self.first_fresh_place < self.options.chunks {
            self.first_fresh_place += 1;
            self.first_fresh_place - 1
        } else {
            self.free_places.pop().expect("room was made")
        };
        let rank = match &mut self.adaptive {
            Some(adaptive) => {
                adaptive.insert(offer.key);
                Rank::default()
            }
            None if self.rules.ranks_blocks_by_request() => self.rank_of_use(uses, offer.index),
            None => {
                self.next_rank += 1;
                (self.next_rank, 0)
            }
        };
        uses.set(offer.index, Uses::INSERTED);
        self.chunks.insert(offer.key, Chunk { place, readers: None, rank });
        place
    }

    /// A request uses chunks for the first time.
    fn note_uses(&mut self, uses: &mut Uses, offers: &[Offer]) {
        for offer in offers {
            if uses.has(offer.index, Uses::SEEN) {
                continue;
            }
            uses.set(offer.index, Uses::SEEN);
            if self.adaptive.is_some() || !self.rules.ranks_blocks_by_request() {
                continue;
            }
            let rank = self.rank_of_use(uses, offer.index);
            if self.chunks.get(&offer.key).is_some_and(|chunk| chunk.rank < rank) {
                self.set_rank(offer.key, rank);
            }
        }
    }

    fn rank_of_use(&mut self, uses: &mut Uses, index: u32) -> Rank {
        let number = *uses.rank.get_or_insert_with(|| {
            self.next_rank += 1;
            self.next_rank
        });
        (number, -1 - i64::from(index))
    }

    fn set_rank(&mut self, key: BlockHash, rank: Rank) {
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        let before = std::mem::replace(&mut chunk.rank, rank);
        if self.idle.remove(&before).is_some() {
            self.idle.insert(rank, key);
        }
    }

    /// Nothing reads or writes a chunk any more.
    fn set_idle(&mut self, key: BlockHash) {
        self.num_idle += 1;
        if self.adaptive.is_none() {
            self.idle.insert(self.chunks[&key].rank, key);
        }
    }
}
