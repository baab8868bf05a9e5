//! Prefix lookups over groups. Sources, in vLLM 0.32 and 0.33: `find_longest_cache_hit` of the managers in
//! `single_type_kv_cache_manager.py` and of the coordinators in `kv_cache_coordinator.py`.

use super::{KvCacheKind, KvGroups, NULL_BLOCK};
use crate::kv::hash::BlockHash;
use crate::kv::pool::{BlockId, KvPool};

/// Groups of the same kind and block size, which are looked up together.
#[derive(Debug)]
pub(super) struct LookupGroup {
    pub(super) kind: KvCacheKind,
    pub(super) block_size: u32,
    pub(super) drops_block: bool,
    pub(super) members: Vec<usize>,
}

/// A prefix that all groups hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupHit {
    pub(crate) tokens: u32,
    /// Length of the longest prefix that any kind holds. 0 if that is no longer than the hit. A group that keeps only
    /// some blocks of a window keeps the blocks before this position.
    pub(crate) shared_prefix_tokens: u32,
    /// Whether the hit ends at a state that was offered in this step and cannot be read before the next step.
    pub(crate) is_too_new: bool,
    /// Whether some group has a shorter hit, so that its missing part must be loaded.
    pub(crate) has_diverged: bool,
}

impl KvGroups {
    pub(crate) fn clear_hit(&mut self) {
        self.hits.iter_mut().for_each(Vec::clear);
    }

    /// The longest prefix of up to `most_tokens` tokens that all groups hold, given the hashes of
    /// its blocks. The blocks are then in `self.hits`, by group.
    pub(crate) fn lookup(&mut self, pool: &KvPool, hashes: &[BlockHash], most_tokens: u32) -> GroupHit {
        let mut hits = std::mem::take(&mut self.hits);
        let hit = self.lookup_into(&mut hits, pool, hashes, most_tokens);
        self.hits = hits;
        self.with_age(hit, hashes)
    }

    /// The longest prefix of up to `most_tokens` tokens that full attention holds, together with the hit of
    /// each other group (vLLM's `get_computed_blocks_for_connector`). None if another group has a
    /// longer hit, or there is no full attention.
    pub(crate) fn lookup_apart(&mut self, pool: &KvPool, hashes: &[BlockHash], most_tokens: u32) -> Option<GroupHit> {
        if self.is_unitary() || !self.kin[0].kind.is_full() {
            return None;
        }
        let mut hits = std::mem::take(&mut self.hits);
        let of_kin = |kin: usize| {
            let LookupGroup { kind, block_size, drops_block, .. } = self.kin[kin];
            let has_more = drops_block && !kind.is_mamba();
            let upto = if has_more { most_tokens.saturating_add(block_size) } else { most_tokens };
            self.find(&mut hits, pool, kin, hashes, upto, drops_block)
        };
        let found: Vec<u32> = (0..self.kin.len()).map(of_kin).collect();
        self.hits = hits;
        let tokens = found[0];
        if found.iter().any(|&other| other > tokens) {
            self.clear_hit();
            return None;
        }
        let has_diverged = found.iter().any(|&other| other < tokens);
        Some(self.with_age(GroupHit { tokens, has_diverged, ..GroupHit::default() }, hashes))
    }

    /// Sets `is_too_new` of a hit.
    fn with_age(&self, mut hit: GroupHit, hashes: &[BlockHash]) -> GroupHit {
        let is_too_new = |(index, blocks): (usize, &Vec<BlockId>)| {
            let group = &self.groups[index];
            let units = blocks.len() as u32 * (group.block_size / self.hash_block_size);
            group.kind.is_mamba() && units > 0 && self.stored_in_step.contains(&key(hashes[units as usize - 1], index))
        };
        hit.is_too_new = !self.stored_in_step.is_empty() && self.hits.iter().enumerate().any(is_too_new);
        hit
    }

    /// Length of the longest prefix of up to `most_tokens` tokens that all groups hold.
    pub(crate) fn cached_tokens(&self, pool: &KvPool, hashes: &[BlockHash], most_tokens: u32) -> u32 {
        self.lookup_into(&mut vec![Vec::new(); self.len()], pool, hashes, most_tokens).tokens
    }

    fn lookup_into(
        &self,
        hits: &mut [Vec<BlockId>],
        pool: &KvPool,
        hashes: &[BlockHash],
        most_tokens: u32,
    ) -> GroupHit {
        if self.is_unitary() {
            let tokens = self.find(hits, pool, 0, hashes, most_tokens, self.kin[0].drops_block);
            return GroupHit { tokens, ..GroupHit::default() };
        }
        // Full attention comes first if it exists, so its hit is looked up only once.
        let has_full = self.kin[0].kind.is_full();
        let mut full_tokens = Vec::new();
        let mut hit_tokens = most_tokens;
        let mut longest = 0;
        // Bits of the kinds that have already dropped a block for the current length.
        let mut has_dropped = 0u64;
        loop {
            let mut tokens = hit_tokens;
            for kin in 0..self.kin.len() {
                if let Some(&known) = full_tokens.get(kin) {
                    tokens = tokens.min(known);
                    continue;
                }
                let LookupGroup { block_size, drops_block, .. } = self.kin[kin];
                let drops = drops_block && has_dropped >> kin & 1 == 0;
                // With the dropped block, the hit may end at the requested length. A drafter drops no states.
                let has_more = drops && !self.kin[kin].kind.is_mamba();
                let mut upto = if has_more { tokens.saturating_add(block_size) } else { tokens };
                if !self.rules.drops_last_known_block() {
                    upto = upto.min(most_tokens);
                }
                let found = self.find(hits, pool, kin, hashes, upto, drops);
                if drops {
                    has_dropped |= 1 << kin;
                } else if found < tokens {
                    has_dropped = 0;
                }
                tokens = found;
                if self.kin[kin].kind.is_full() {
                    full_tokens.push(tokens);
                }
                longest = longest.max(tokens);
            }
            let is_stable = tokens >= hit_tokens;
            hit_tokens = hit_tokens.min(tokens);
            if is_stable || (self.kin.len() == 2 && has_full) {
                break;
            }
        }
        let num_cut = if self.rules.cuts_first_full_attention_alone() { 1 } else { self.kin.len() };
        for kin in self.kin.iter().take(num_cut).filter(|kin| kin.kind.is_full()) {
            for &group in &kin.members {
                hits[group].truncate(hit_tokens.div_ceil(kin.block_size) as usize);
            }
        }
        let shared_prefix_tokens = if longest > hit_tokens { longest } else { 0 };
        GroupHit { tokens: hit_tokens, shared_prefix_tokens, ..GroupHit::default() }
    }

    /// The longest prefix that the groups of one kind hold. It is a multiple of the alignment. If `drops`, its last
    /// block is left out.
    fn find(
        &self,
        hits: &mut [Vec<BlockId>],
        pool: &KvPool,
        kin: usize,
        hashes: &[BlockHash],
        most_tokens: u32,
        drops: bool,
    ) -> u32 {
        let alignment = self.aligned_tokens;
        let LookupGroup { kind, block_size, members, .. } = &self.kin[kin];
        let (block_size, hash_size) = (*block_size, self.hash_block_size);
        // The blocks of a window are first entered into an array for all blocks, which is then cut to the hit.
        let known_blocks = hashes.len() / (block_size / hash_size) as usize;
        let most_blocks = ((most_tokens / block_size) as usize).min(known_blocks);
        let cached = |index: usize, group: usize| -> Option<BlockId> {
            let end = (index as u32 + 1) * (block_size / hash_size);
            pool.find(key(hashes[end as usize - 1], group))
        };
        let cached_in_all = |index: usize| members.iter().all(|&group| cached(index, group).is_some());
        let (nulls, blocks) = match *kind {
            KvCacheKind::FullAttention | KvCacheKind::LatentAttention => {
                let held = (0..most_blocks).take_while(|&index| cached_in_all(index)).count() as u32;
                let tokens = (held * block_size).saturating_sub(if drops { block_size } else { 0 });
                (0, (tokens - tokens % alignment).div_ceil(block_size) as usize)
            }
            KvCacheKind::SlidingWindow { window_tokens } => {
                let needed = (window_tokens - 1).div_ceil(block_size) as usize;
                window_hit(most_blocks, needed, drops, cached_in_all, |blocks| {
                    (blocks as u32 * block_size).is_multiple_of(alignment)
                })
            }
            KvCacheKind::ChunkedLocal { chunk_tokens } => {
                let first = (most_tokens / chunk_tokens * chunk_tokens / block_size) as usize;
                (first, first + (first..most_blocks).take_while(|&index| cached_in_all(index)).count())
            }
            // Cross attention requires that prefix caching is off, so there are no lookups.
            KvCacheKind::CrossAttention => (0, 0),
            // A state covers all tokens before it.
            KvCacheKind::Mamba { .. } => {
                let is_end = |index: usize| ((index as u32 + 1) * block_size).is_multiple_of(alignment);
                let latest = (0..most_blocks).rev().find(|&index| is_end(index) && cached_in_all(index));
                latest.map_or((0, 0), |index| (index, index + 1))
            }
        };
        for &group in members {
            let hit = &mut hits[group];
            hit.clear();
            hit.resize(nulls, NULL_BLOCK);
            hit.extend((nulls..blocks).filter_map(|index| cached(index, group)));
            debug_assert_eq!(hit.len(), blocks.max(nulls), "a block was found once and not again");
        }
        blocks.max(nulls) as u32 * block_size
    }
}

/// Finds the longest hit of a window that needs `needed` consecutive blocks: the latest run that is long enough, or
/// else the cached prefix. Returns the number of blocks before the run, and the number of blocks of the whole hit. A
/// run ends where `is_aligned` holds. If `drops`, the run must have one more block, which is not part of the hit.
fn window_hit(
    most_blocks: usize,
    needed: usize,
    drops: bool,
    is_cached: impl Fn(usize) -> bool,
    is_aligned: impl Fn(usize) -> bool,
) -> (usize, usize) {
    let dropped = usize::from(drops);
    let mut run = 0;
    for index in (0..most_blocks).rev() {
        if !is_cached(index) {
            run = 0;
            continue;
        }
        if run == 0 && !is_aligned(index + 1 - dropped) {
            continue;
        }
        run += 1;
        if run >= needed + dropped {
            return (index, index + run - dropped);
        }
    }
    let aligned = |most: usize| (0..=most).rev().find(|&blocks| is_aligned(blocks)).unwrap_or(0);
    let held = aligned(run);
    (0, if drops { aligned(held.saturating_sub(1)) } else { held })
}

/// The key of a block in the pool's map. The same content is cached separately for each group. Consecutive blocks of a
/// group have consecutive keys.
#[inline]
pub(super) fn key(hash: BlockHash, group: usize) -> BlockHash {
    hash.wrapping_add((group as u64).wrapping_mul(GROUP_STEP))
}

#[inline]
pub(super) fn content(key: BlockHash, group: usize) -> BlockHash {
    key.wrapping_sub((group as u64).wrapping_mul(GROUP_STEP))
}

/// Odd in both 32-bit halves.
const GROUP_STEP: u64 = 0x9e6c_63d0_676a_9a99;

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(cached: &[usize], most_blocks: usize, needed: usize, alignment: usize) -> (usize, usize) {
        window_hit(
            most_blocks,
            needed,
            false,
            |index| cached.contains(&index),
            |blocks| blocks.is_multiple_of(alignment),
        )
    }

    fn dropped(cached: &[usize], most_blocks: usize, needed: usize, alignment: usize) -> (usize, usize) {
        window_hit(
            most_blocks,
            needed,
            true,
            |index| cached.contains(&index),
            |blocks| blocks.is_multiple_of(alignment),
        )
    }

    #[test]
    fn a_window_that_drops_a_block_needs_one_more() {
        assert_eq!(dropped(&[2, 3, 4, 6], 7, 2, 1), (2, 4));
        assert_eq!(dropped(&[2, 3, 6], 7, 2, 1), (0, 0), "shorter runs count at the start only");
        assert_eq!(dropped(&[0, 1], 7, 2, 1), (0, 1));
        assert_eq!(dropped(&[5], 7, 0, 1), (5, 5), "a window of one token needs none of its own");
        assert_eq!(dropped(&[0, 1, 2, 3, 4], 5, 2, 2), (2, 4), "what is left ends at the alignment");
        assert_eq!(dropped(&[0, 1, 2, 3], 4, 4, 2), (0, 0));
    }

    #[test]
    fn a_window_takes_the_latest_run_that_is_long_enough() {
        assert_eq!(hit(&[2, 3, 5], 6, 2, 1), (2, 4));
        assert_eq!(hit(&[2, 3, 5], 6, 1, 1), (5, 6));
        assert_eq!(hit(&[0, 1, 4], 6, 3, 1), (0, 2), "shorter runs count at the start only");
        assert_eq!(hit(&[1, 2], 3, 3, 1), (0, 0));
        assert_eq!(hit(&[], 3, 0, 1), (0, 0), "a window of one token needs a cached block all the same");
        assert_eq!(hit(&[1], 3, 0, 1), (1, 2));
    }

    #[test]
    fn runs_end_at_the_alignment() {
        assert_eq!(hit(&[0, 1, 2, 3, 4], 5, 2, 2), (2, 4));
        assert_eq!(hit(&[0, 1, 2], 3, 4, 2), (0, 2));
        assert_eq!(hit(&[0], 3, 1, 2), (0, 0));
    }
}
