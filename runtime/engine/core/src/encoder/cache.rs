//! The encoder cache: embeddings of items, kept across requests (vLLM 0.32 and 0.33,
//! `vllm/v1/core/encoder_cache_manager.py`).
//!
//! Capacity is counted in embeddings. Referenced entries are never evicted. When room is needed, the entry that has
//! been unreferenced for the longest time is evicted first.

use std::collections::BTreeMap;

/// Key of an entry: the identity of an item, and its number of embeddings. (If a client sends a known identity with
/// another number of embeddings, vLLM ends the request with an error. Here such an item gets its own entry.)
type Key = (u64, u32);

#[derive(Clone, Copy, Debug)]
struct Entry {
    references: u32,
    /// The sequence number at which the last reference was dropped.
    idle_since: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct EncoderCache {
    num_slots: u32,
    num_free: u32,
    /// Slots that are free or that hold unreferenced entries.
    num_freeable: u32,
    entries: BTreeMap<Key, Entry>,
    /// Unreferenced entries, by the sequence number at which they lost the last reference.
    idle: BTreeMap<u64, Key>,
    next_idle: u64,
    /// Entries evicted since the last [`Self::take_evicted`], in order.
    evicted: Vec<Key>,
}

impl EncoderCache {
    pub(crate) fn new(num_slots: u32) -> Self {
        Self {
            num_slots,
            num_free: num_slots,
            num_freeable: num_slots,
            entries: BTreeMap::new(),
            idle: BTreeMap::new(),
            next_idle: 0,
            evicted: Vec::new(),
        }
    }

    pub(crate) fn grow_to(&mut self, num_slots: u32) {
        let more = num_slots.saturating_sub(self.num_slots);
        self.num_slots += more;
        self.num_free += more;
        self.num_freeable += more;
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.num_slots);
    }

    /// Total embeddings of all entries.
    pub(crate) fn num_cached(&self) -> u32 {
        self.num_slots - self.num_free
    }

    /// Total embeddings of all referenced entries.
    pub(crate) fn num_referenced(&self) -> u32 {
        self.num_slots - self.num_freeable
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.entries.contains_key(&key)
    }

    pub(crate) fn refer(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        entry.references += 1;
        if let Some(since) = entry.idle_since.take() {
            self.idle.remove(&since);
            self.num_freeable -= key.1;
        }
    }

    /// Whether the cache can hold this many more embeddings. Evicts unreferenced entries if needed.
    pub(crate) fn make_room(&mut self, num_embeds: u32) -> bool {
        if num_embeds > self.num_freeable {
            return false;
        }
        while num_embeds > self.num_free {
            let (_, key) = self.idle.pop_first().expect("what is freeable and not free is idle");
            self.entries.remove(&key);
            self.evicted.push(key);
            self.num_free += key.1;
        }
        true
    }

    /// Inserts a new item with one reference. The caller has made room for it.
    pub(crate) fn insert(&mut self, key: Key) {
        self.entries.insert(key, Entry { references: 1, idle_since: None });
        self.num_free -= key.1;
        self.num_freeable -= key.1;
    }

    pub(crate) fn drop_reference(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.references > 0) else { return };
        entry.references -= 1;
        if entry.references == 0 {
            entry.idle_since = Some(self.next_idle);
            self.idle.insert(self.next_idle, key);
            self.next_idle += 1;
            self.num_freeable += key.1;
        }
    }

    /// Appends the identities evicted since the last call, in order. Entries that were inserted again are included
    /// only if `lists_returned`.
    pub(crate) fn take_evicted(&mut self, lists_returned: bool, identities: &mut Vec<u64>) {
        let entries = &self.entries;
        let gone = self.evicted.drain(..).filter(|key| lists_returned || !entries.contains_key(key));
        identities.extend(gone.map(|(identity, _)| identity));
    }

    #[cfg(test)]
    fn assert_balanced(&self) {
        let sum = |is_counted: fn(&Entry) -> bool| {
            self.entries.iter().filter(|(_, entry)| is_counted(entry)).map(|(key, _)| key.1).sum::<u32>()
        };
        assert_eq!(self.num_cached(), sum(|_| true));
        assert_eq!(self.num_referenced(), sum(|entry| entry.references > 0));
        assert_eq!(self.idle.len(), self.entries.values().filter(|entry| entry.references == 0).count());
        assert!(self.idle.iter().all(|(since, key)| self.entries[key].idle_since == Some(*since)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn entries_go_in_the_order_in_which_they_lost_their_references() {
        let mut cache = EncoderCache::new(10);
        for key in [(1, 4), (2, 3), (3, 3)] {
            assert!(cache.make_room(key.1));
            cache.insert(key);
        }
        assert!(!cache.make_room(1), "all are referred to");
        for key in [(2, 3), (1, 4)] {
            cache.drop_reference(key);
        }
        // The first item is referenced again.
        cache.refer((2, 3));
        cache.drop_reference((2, 3));
        assert!(!cache.make_room(8));
        assert!(cache.make_room(4) && !cache.contains((1, 4)) && cache.contains((2, 3)));
        cache.insert((1, 4));
        assert!(cache.make_room(3) && cache.contains((3, 3)));
        let mut evicted = Vec::new();
        cache.take_evicted(false, &mut evicted);
        assert_eq!(evicted, [2], "item 1 has come back");
    }

    proptest! {
        /// Free slots and references are counted in several places, which must agree.
        #[test]
        fn counts_agree_after_any_changes(changes in proptest::collection::vec((0..6u64, 0..3u8), 1..200)) {
            let mut cache = EncoderCache::new(12);
            for (identity, change) in changes {
                let key = (identity, identity as u32 + 1);
                match change {
                    0 if cache.contains(key) => cache.refer(key),
                    0 => if cache.make_room(key.1) { cache.insert(key) },
                    1 => cache.drop_reference(key),
                    _ => { cache.make_room(key.1); }
                }
                cache.assert_balanced();
            }
            cache.reset();
            prop_assert_eq!((cache.num_cached(), cache.num_referenced()), (0, 0));
        }
    }
}
