//! The KV pool, compared with a simple model of vLLM's pool.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use vcr_core::kv_event::KvEvent;
use vcr_core::kv_pool::{BlockId, KvPool};

/// vLLM's block pool, written as simply as possible.
struct PlainPool {
    free: VecDeque<BlockId>,
    refs: Vec<u32>,
    hashes: Vec<Option<u64>>,
    /// Blocks by hash, the oldest first.
    cached: BTreeMap<u64, Vec<BlockId>>,
    events: Vec<String>,
}

impl PlainPool {
    fn new(blocks: u32) -> Self {
        Self {
            free: (1..blocks).collect(),
            refs: vec![0; blocks as usize],
            hashes: vec![None; blocks as usize],
            cached: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    fn lookup(&self, hashes: &[u64]) -> Vec<BlockId> {
        let first = |hash: &u64| self.cached.get(hash)?.first().copied();
        hashes.iter().map_while(first).collect()
    }

    fn take(&mut self, hit: &[BlockId], missing: u32) -> Vec<BlockId> {
        for &id in hit {
            self.free.retain(|&free| free != id);
            self.refs[id as usize] += 1;
        }
        let mut table = hit.to_vec();
        for _ in 0..missing {
            let id = self.free.pop_front().expect("enough are free");
            if let Some(hash) = self.hashes[id as usize].take() {
                let copies = self.cached.get_mut(&hash).expect("it is cached");
                copies.retain(|&copy| copy != id);
                if copies.is_empty() {
                    self.cached.remove(&hash);
                }
                self.events.push(format!("removed {hash}"));
            }
            self.refs[id as usize] = 1;
            table.push(id);
        }
        table
    }

    fn store(&mut self, parent: Option<u64>, blocks: &[BlockId], hashes: &[u64]) {
        for (&id, &hash) in blocks.iter().zip(hashes) {
            self.hashes[id as usize] = Some(hash);
            self.cached.entry(hash).or_default().push(id);
        }
        if !blocks.is_empty() {
            self.events.push(format!("stored {hashes:?} after {parent:?}"));
        }
    }

    fn release(&mut self, table: &[BlockId]) {
        let mut unhashed = Vec::new();
        for &id in table.iter().rev() {
            self.refs[id as usize] -= 1;
            if self.refs[id as usize] > 0 {
                continue;
            }
            match self.hashes[id as usize] {
                Some(_) => self.free.push_back(id),
                None => unhashed.push(id),
            }
        }
        // All blocks together, with the first block at the front.
        for id in unhashed.into_iter().rev() {
            self.free.push_front(id);
        }
    }

    fn reset(&mut self) -> bool {
        if self.refs.iter().any(|&refs| refs > 0) {
            return false;
        }
        self.hashes.fill(None);
        self.cached.clear();
        self.events.push("cleared".to_owned());
        true
    }
}

fn describe(event: KvEvent<'_>) -> String {
    match event {
        KvEvent::Stored { parent, blocks, .. } => format!("stored {blocks:?} after {parent:?}"),
        KvEvent::Removed(hash) => format!("removed {hash}"),
        KvEvent::Cleared => "cleared".to_owned(),
    }
}

/// An action on a pool: its kind, a number of blocks, and their content.
type Action = (u8, u32, u64);

/// The pool and the model agree on the order of free blocks, references, cached
/// blocks and events.
fn agrees_with_a_plain_one(blocks: u32, actions: Vec<Action>) -> Result<(), TestCaseError> {
    let mut pool = KvPool::new(blocks, true);
    pool.record_events(true);
    let mut plain = PlainPool::new(blocks);
    // Most blocks of a large pool are held, so that the rest is reused many times.
    let mut held = Vec::new();
    pool.allocate(blocks.saturating_sub(40), &mut held);
    prop_assert_eq!(&held, &plain.take(&[], held.len() as u32));
    let mut tables: Vec<Vec<BlockId>> = Vec::new();
    for (action, count, content) in actions {
        match action {
            // A request with `count` blocks of one content: hit, allocate, store.
            0 | 1 => {
                let hashes: Vec<u64> = (0..u64::from(count)).map(|depth| (content << 8 | depth) + 1).collect();
                let mut table = Vec::new();
                pool.lookup(&hashes, &mut table);
                prop_assert_eq!(&table, &plain.lookup(&hashes));
                let hit = table.len();
                let missing = count - hit as u32;
                if missing + pool.count_free_among(&table) > pool.num_free() {
                    continue;
                }
                pool.touch(&table);
                pool.allocate(missing, &mut table);
                prop_assert_eq!(&table, &plain.take(&table[..hit], missing));
                if action == 0 {
                    let parent = hit.checked_sub(1).map(|at| hashes[at]);
                    pool.store(content, parent, &table[hit..], &hashes[hit..], &[]);
                    plain.store(parent, &table[hit..], &hashes[hit..]);
                }
                tables.push(table);
            }
            2 | 3 if !tables.is_empty() => {
                let table = tables.swap_remove(count as usize % tables.len());
                pool.release(&table);
                plain.release(&table);
            }
            4 => prop_assert_eq!(pool.reset_cache(), plain.reset()),
            _ => {}
        }
        pool.assert_consistent();
        prop_assert_eq!(pool.free_blocks().collect::<Vec<_>>(), plain.free.iter().copied().collect::<Vec<_>>());
        let references: u64 = tables.iter().chain([&held]).map(|table| table.len() as u64).sum();
        prop_assert_eq!(pool.total_references(), references);
        let events: Vec<String> = pool.events().expect("recording").iter().map(describe).collect();
        pool.clear_events();
        prop_assert_eq!(events, std::mem::take(&mut plain.events));
    }
    Ok(())
}

fn arb_actions() -> impl Strategy<Value = Vec<Action>> {
    proptest::collection::vec((0..5u8, 1..6u32, 0..8u64), 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_small_pool_agrees_with_a_plain_one(blocks in 2..40u32, actions in arb_actions()) {
        agrees_with_a_plain_one(blocks, actions)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// Sizes around the number of blocks from which block ids need wider links.
    #[test]
    fn a_large_pool_agrees_with_a_plain_one(blocks in 65_533..65_539u32, actions in arb_actions()) {
        agrees_with_a_plain_one(blocks, actions)?;
    }
}

/// Blocks that were cached when few blocks had been allocated are still found after many have been allocated. The
/// oldest block of each hash is found. Some hashes occur more than once, and many have the same lower bits.
#[test]
fn a_pool_that_fills_up_keeps_what_it_has_cached() {
    const BLOCKS: u32 = 300_000;
    let mut pool = KvPool::new(BLOCKS, true);
    let hash_of = |block: BlockId| {
        let content = u64::from(block) % 90_001;
        ((content << 44) | (content.wrapping_mul(0x9e37_79b9) % 150_000)) + 1
    };
    let mut first = BTreeMap::new();
    let mut table = Vec::new();
    for taken in [1, 65_000, 535, 1, 1, 65_533, 2, 100_000, 68_926] {
        let from = table.len();
        pool.allocate(taken, &mut table);
        let hashes: Vec<u64> = table[from..].iter().map(|&block| hash_of(block)).collect();
        for (&block, &hash) in table[from..].iter().zip(&hashes) {
            first.entry(hash).or_insert(block);
        }
        pool.store(0, None, &table[from..], &hashes, &[]);
        pool.assert_consistent();
        for (&hash, &block) in &first {
            let mut hit = Vec::new();
            pool.lookup(&[hash], &mut hit);
            assert_eq!(hit, [block], "hash {hash:x} after {} blocks", table.len());
        }
    }
    assert_eq!(pool.num_free(), 0);
    pool.release(&table);
    assert!(pool.reset_cache());
    assert_eq!(pool.cached_prefix_blocks(&[hash_of(1)]), 0);
    pool.assert_consistent();
}
