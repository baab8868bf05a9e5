//! Compares the tree with a plain set of pages, under random operations.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::kv::event::KvEvent;
use crate::kv::hash::ChainHasher;

fn hashes(tokens: &[u32]) -> Vec<BlockHash> {
    let mut hasher = ChainHasher::new(1, 0);
    tokens.iter().filter_map(|&token| hasher.push_token(token)).collect()
}

fn cache() -> RadixCache {
    RadixCache { events: Some(KvEventLog::default()), ..RadixCache::new() }
}

/// Adds the pages of a sequence after its first `begin` pages, which end at `node`.
fn extend(cache: &mut RadixCache, node: NodeId, tokens: &[u32], begin: usize) -> (NodeId, u32) {
    let now = cache.tick(1);
    cache.extend(node, 7, &hashes(tokens)[begin..], &[], now)
}

/// Adds a sequence and leaves it without locks.
fn add(cache: &mut RadixCache, tokens: &[u32]) {
    let (node, _) = extend(cache, ROOT, tokens, 0);
    cache.unlock(node);
}

#[test]
fn the_leaf_used_longest_ago_goes_first_and_its_prefix_after_it() {
    let mut cache = cache();
    add(&mut cache, &[1, 2, 3]);
    add(&mut cache, &[1, 2, 4, 5]);
    let node = cache.take(ROOT, &hashes(&[1, 2, 3]));
    cache.unlock(node);
    let left = |cache: &RadixCache, tokens: &[u32]| cache.find(ROOT, &hashes(tokens)).pages;
    cache.evict(1);
    assert_eq!((left(&cache, &[1, 2, 3]), left(&cache, &[1, 2, 4, 5])), (3, 3), "the end of the tail [4, 5]");
    cache.evict(2);
    assert_eq!((left(&cache, &[1, 2, 3]), left(&cache, &[1, 2, 4, 5])), (2, 2), "the rest of it, then [3]");
    cache.evict(1);
    assert_eq!(left(&cache, &[1, 2, 3]), 1, "and what both began with last");
    cache.assert_consistent();
}

#[test]
fn what_is_locked_stays_and_its_unused_tail_goes() {
    let mut cache = cache();
    add(&mut cache, &[1, 2, 3, 4]);
    let node = cache.take(ROOT, &hashes(&[1, 2]));
    assert_eq!(cache.num_evictable_pages(), 2);
    cache.evict(2);
    assert_eq!(cache.find(ROOT, &hashes(&[1, 2, 3, 4])), Hit { pages: 2, evictable_pages: 0 });
    cache.unlock(node);
    assert_eq!(cache.num_evictable_pages(), 2);
}

#[test]
fn a_lock_names_the_same_end_after_a_split() {
    let mut cache = cache();
    let (long, _) = extend(&mut cache, ROOT, &[1, 2, 3, 4], 0);
    let short = cache.take(ROOT, &hashes(&[1, 2]));
    let (longer, known) = extend(&mut cache, long, &[1, 2, 3, 4, 5], 4);
    assert_eq!(known, 0);
    assert_eq!(cache.find(ROOT, &hashes(&[1, 2, 3, 4, 5])).pages, 5);
    cache.unlock(short);
    cache.unlock(longer);
    assert_eq!(cache.num_evictable_pages(), 5);
    cache.assert_consistent();
}

#[test]
fn what_is_split_off_an_edge_stays_as_it_was_used() {
    let mut cache = cache();
    add(&mut cache, &[1, 2, 3, 4]);
    add(&mut cache, &[7, 8]);
    let node = cache.take(ROOT, &hashes(&[1, 2]));
    cache.unlock(node);
    cache.evict(4);
    assert_eq!(cache.find(ROOT, &hashes(&[1])).pages, 0);
    assert_eq!(cache.find(ROOT, &hashes(&[7, 8])).pages, 2);
}

#[test]
fn an_end_that_one_alone_uses_grows_in_place() {
    let mut cache = cache();
    let (node, _) = extend(&mut cache, ROOT, &[1, 2], 0);
    assert_eq!(extend(&mut cache, node, &[1, 2, 3], 2), (node, 0));
    let other = cache.take(ROOT, &hashes(&[1, 2, 3]));
    assert_eq!(other, node);
    let (longer, _) = extend(&mut cache, node, &[1, 2, 3, 4], 3);
    assert_ne!(longer, node, "another one ends there");
    cache.unlock(other);
    cache.unlock(longer);
    assert_eq!(cache.num_evictable_pages(), 4);
    cache.assert_consistent();
}

#[derive(Clone, Debug)]
enum Action {
    /// Locks the cached part of a sequence.
    Take(Vec<u32>),
    /// Extends the locked sequence with this number.
    Extend(usize, Vec<u32>),
    Unlock(usize),
    Evict(u32),
}

fn arb_action() -> impl Strategy<Value = Action> {
    let tokens = || proptest::collection::vec(0..3u32, 0..8);
    prop_oneof![
        3 => tokens().prop_map(Action::Take),
        4 => (any::<usize>(), tokens()).prop_map(|(which, tokens)| Action::Extend(which, tokens)),
        3 => any::<usize>().prop_map(Action::Unlock),
        2 => (1..6u32).prop_map(Action::Evict),
    ]
}

proptest! {
    /// Counts, locks and the eviction order stay consistent after every operation. Lookups find exactly
    /// the cached pages. Locked pages are never lost. No page is evicted before the pages
    /// after it.
    #[test]
    fn the_books_are_right(actions in proptest::collection::vec(arb_action(), 1..80)) {
        let mut cache = cache();
        // The cached pages, each with its predecessor.
        let mut cached: BTreeMap<BlockHash, Option<BlockHash>> = BTreeMap::new();
        let mut locks: Vec<(NodeId, Vec<u32>)> = Vec::new();
        for action in actions {
            match action {
                Action::Take(tokens) => {
                    let pages = cache.find(ROOT, &hashes(&tokens)).pages as usize;
                    let tokens = tokens[..pages].to_vec();
                    locks.push((cache.take(ROOT, &hashes(&tokens)), tokens));
                }
                Action::Extend(which, more) if !locks.is_empty() && !more.is_empty() => {
                    let at = which % locks.len();
                    let (node, tokens) = &mut locks[at];
                    let begin = tokens.len();
                    tokens.extend(more);
                    let before = cache.num_pages;
                    let (end, known) = extend(&mut cache, *node, tokens, begin);
                    *node = end;
                    prop_assert_eq!(cache.num_pages - before, (tokens.len() - begin) as u32 - known);
                }
                Action::Unlock(which) if !locks.is_empty() => {
                    let (node, _) = locks.swap_remove(which % locks.len());
                    cache.unlock(node);
                }
                Action::Evict(pages) if pages <= cache.num_evictable_pages() => {
                    let before = cache.num_pages;
                    cache.evict(pages);
                    prop_assert_eq!(before - cache.num_pages, pages);
                }
                _ => {}
            }
            cache.assert_consistent();
            for event in cache.events.as_ref().unwrap().iter() {
                match event {
                    KvEvent::Stored { parent, blocks, .. } => {
                        let mut parent = parent;
                        for &hash in blocks {
                            prop_assert!(parent.is_none_or(|parent| cached.contains_key(&parent)));
                            prop_assert!(cached.insert(hash, parent).is_none(), "stored twice");
                            parent = Some(hash);
                        }
                    }
                    KvEvent::Removed(hash) => {
                        prop_assert!(!cached.values().any(|&parent| parent == Some(hash)), "a page went before its tail");
                        prop_assert!(cached.remove(&hash).is_some());
                    }
                    KvEvent::Cleared => {}
                }
            }
            cache.events.as_mut().unwrap().clear();
            prop_assert_eq!(cached.len() as u32, cache.num_pages);
            for (_, tokens) in &locks {
                prop_assert_eq!(cache.find(ROOT, &hashes(tokens)).pages as usize, tokens.len());
                prop_assert_eq!(cache.find(ROOT, &hashes(tokens)).evictable_pages, 0);
            }
        }
        for (node, _) in locks.drain(..) {
            cache.unlock(node);
        }
        prop_assert_eq!(cache.num_evictable_pages(), cache.num_pages);
        cache.evict(cache.num_pages);
        cache.assert_consistent();
        prop_assert!(cache.evictable_leaves.is_empty());
    }
}
