//! The blocks of one tier, and their eviction order.

use crate::kv::hash::BlockHash;

/// Index of a block's place in its tier.
pub(super) type Slot = u32;

pub(super) const NIL: Slot = Slot::MAX;

#[derive(Clone, Debug)]
struct Place {
    hash: BlockHash,
    /// Number of transfers that read or write the block. It is not evicted until they end.
    pins: u32,
    /// Whether the block's content has arrived.
    ready: bool,
    older: Slot,
    newer: Slot,
    next_in_bucket: Slot,
}

/// A tier's blocks, in a list ordered by last use. The least recently used block that no transfer reads
/// or writes is evicted first.
#[derive(Debug)]
pub(super) struct TierBlocks {
    capacity: u32,
    /// Grows as blocks arrive, up to `capacity`.
    places: Vec<Place>,
    /// Places whose blocks were removed. The place freed last is reused first.
    free: Vec<Slot>,
    oldest: Slot,
    newest: Slot,
    /// Number of places that no transfer reads or writes.
    num_idle: u32,
    /// The first block of each bucket of hashes.
    buckets: Vec<Slot>,
}

impl TierBlocks {
    pub(super) fn new(capacity: u32) -> Self {
        let buckets = if capacity == 0 { 0 } else { (capacity as usize).next_power_of_two() };
        let buckets = vec![NIL; buckets];
        Self { capacity, places: Vec::new(), free: Vec::new(), oldest: NIL, newest: NIL, num_idle: 0, buckets }
    }

    pub(super) fn len(&self) -> u32 {
        (self.places.len() - self.free.len()) as u32
    }

    pub(super) fn num_free(&self) -> u32 {
        self.capacity - self.len()
    }

    pub(super) fn num_idle(&self) -> u32 {
        self.num_idle
    }

    pub(super) fn hash(&self, slot: Slot) -> BlockHash {
        self.places[slot as usize].hash
    }

    /// The place of a block that is stored or being written.
    pub(super) fn find(&self, hash: BlockHash) -> Option<Slot> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut slot = self.buckets[self.bucket_of(hash)];
        while slot != NIL {
            let place = &self.places[slot as usize];
            if place.hash == hash {
                return Some(slot);
            }
            slot = place.next_in_bucket;
        }
        None
    }

    pub(super) fn is_ready(&self, slot: Slot) -> bool {
        self.places[slot as usize].ready
    }

    /// Whether a block may be evicted, because no transfer reads or writes it.
    pub(super) fn is_idle(&self, slot: Slot) -> bool {
        self.places[slot as usize].pins == 0
    }

    pub(super) fn find_ready(&self, hash: BlockHash) -> Option<Slot> {
        self.find(hash).filter(|&slot| self.is_ready(slot))
    }

    /// Allocates a place for a block that is about to be written, and pins it. Also returns the block that was evicted
    /// for it, if any. None if no place is free and no block can be evicted.
    pub(super) fn reserve(&mut self, hash: BlockHash) -> Option<(Slot, Option<BlockHash>)> {
        let evicted = if self.num_free() > 0 {
            None
        } else {
            // Blocks in use were used recently, so this scan is short.
            let slot = self.evictable().next()?;
            let evicted = self.hash(slot);
            self.remove(slot);
            Some(evicted)
        };
        Some((self.insert(hash), evicted))
    }

    /// Allocates a place for a block that is about to be written, and pins it. The caller has checked that a place is
    /// free.
    pub(super) fn insert(&mut self, hash: BlockHash) -> Slot {
        debug_assert!(self.find(hash).is_none(), "a tier holds a block once");
        let bucket = self.bucket_of(hash);
        let place = |next_in_bucket| Place { hash, pins: 1, ready: false, older: NIL, newer: NIL, next_in_bucket };
        let slot = if (self.places.len() as u32) < self.capacity {
            self.places.push(place(NIL));
            self.places.len() as Slot - 1
        } else {
            self.free.pop().expect("a place is free")
        };
        let first = std::mem::replace(&mut self.buckets[bucket], slot);
        self.places[slot as usize] = place(first);
        self.link_newest(slot);
        slot
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        let Place { pins, ready, .. } = self.places[slot as usize];
        self.num_idle -= u32::from(pins == 0);
        debug_assert!(pins == 0 || !ready, "a block is removed while it is read");
        self.unlink(slot);
        self.leave_bucket(slot);
        let place = &mut self.places[slot as usize];
        (place.pins, place.ready) = (0, false);
        self.free.push(slot);
    }

    /// Records that the content of a reserved place has arrived. The place stays pinned.
    pub(super) fn set_ready(&mut self, slot: Slot) {
        let place = &mut self.places[slot as usize];
        debug_assert!(place.pins > 0 && !place.ready);
        place.ready = true;
    }

    pub(super) fn pin(&mut self, slot: Slot) {
        let place = &mut self.places[slot as usize];
        self.num_idle -= u32::from(place.pins == 0);
        place.pins += 1;
    }

    pub(super) fn unpin(&mut self, slot: Slot) {
        let place = &mut self.places[slot as usize];
        assert!(place.pins > 0 && place.ready, "slot {slot} was given back more often than taken");
        place.pins -= 1;
        self.num_idle += u32::from(place.pins == 0);
    }

    pub(super) fn touch(&mut self, slot: Slot) {
        if slot == self.newest {
            return;
        }
        self.unlink(slot);
        self.link_newest(slot);
    }

    /// The places of blocks that may be evicted, in eviction order.
    pub(super) fn evictable(&self) -> impl Iterator<Item = Slot> + '_ {
        let listed = |slot: Slot| (slot != NIL).then_some(slot);
        let slots = std::iter::successors(listed(self.oldest), move |&slot| listed(self.places[slot as usize].newer));
        slots.filter(|&slot| self.is_idle(slot))
    }

    /// The blocks whose content has arrived, ordered by place.
    pub(super) fn ready(&self) -> impl Iterator<Item = BlockHash> + '_ {
        self.places.iter().filter(|place| place.ready).map(|place| place.hash)
    }

    /// Checks all invariants by walking the whole tier.
    ///
    /// # Panics
    /// If places, list and buckets are inconsistent.
    pub(super) fn assert_consistent(&self) {
        assert!(self.places.len() as u32 <= self.capacity, "{} places of {}", self.places.len(), self.capacity);
        let mut free = self.free.clone();
        free.sort_unstable();
        assert!(free.is_sorted_by(|one, next| one < next), "a place is free twice");
        let is_free = |slot: usize| free.binary_search(&(slot as Slot)).is_ok();
        let taken = || self.places.iter().enumerate().filter(|&(slot, _)| !is_free(slot));
        let idle = taken().filter(|(_, place)| place.pins == 0);
        assert!(idle.clone().all(|(_, place)| place.ready), "a place without content is not being written");
        assert_eq!(idle.count() as u32, self.num_idle, "number of blocks that may go");
        assert_eq!(self.evictable().count() as u32, self.num_idle, "a block without pins is not in the list");
        for (slot, place) in taken() {
            assert_eq!(self.find(place.hash), Some(slot as Slot), "a block is in its tier twice, or cannot be found");
        }
    }

    fn bucket_of(&self, hash: BlockHash) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn leave_bucket(&mut self, slot: Slot) {
        let bucket = self.bucket_of(self.hash(slot));
        let next = self.places[slot as usize].next_in_bucket;
        let mut before = self.buckets[bucket];
        if before == slot {
            self.buckets[bucket] = next;
            return;
        }
        while self.places[before as usize].next_in_bucket != slot {
            before = self.places[before as usize].next_in_bucket;
        }
        self.places[before as usize].next_in_bucket = next;
    }

    fn unlink(&mut self, slot: Slot) {
        let Place { older, newer, .. } = self.places[slot as usize];
        match older {
            NIL => self.oldest = newer,
            older => self.places[older as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            newer => self.places[newer as usize].older = older,
        }
    }

    fn link_newest(&mut self, slot: Slot) {
        let older = std::mem::replace(&mut self.newest, slot);
        match older {
            NIL => self.oldest = slot,
            older => self.places[older as usize].newer = slot,
        }
        let place = &mut self.places[slot as usize];
        place.older = older;
        place.newer = NIL;
    }
}
