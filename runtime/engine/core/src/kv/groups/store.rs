//! Offers blocks of groups to the cache. Sources, in vLLM 0.32 and 0.33: `cache_blocks` and
//! `reachable_block_mask`.

use std::ops::Range;

use super::lookup::{content, key};
use super::{Group, KvCacheKind, KvGroups, NULL_BLOCK, Tables};
use crate::kv::event::StoredBlocks;
use crate::kv::hash::BlockHash;
use crate::kv::pool::KvPool;
use crate::request::RequestId;

/// A request whose blocks are offered.
pub(crate) struct Offered<'a> {
    pub(crate) id: RequestId,
    pub(crate) tag: u64,
    pub(crate) prompt_tokens: u32,
    pub(crate) hashes: &'a [BlockHash],
    /// All known tokens, if they are kept.
    pub(crate) tokens: &'a [u32],
}

impl<'a> Offered<'a> {
    /// A block whose key is the hash after its first `units` hash units; the event announces that hash.
    fn unit(&self, group: usize, units: usize, hash_size: u32) -> StoredBlocks<'a, std::iter::Once<(BlockHash, u32)>> {
        let end = units as u32 * hash_size;
        StoredBlocks {
            group,
            tag: self.tag,
            parent: (units > 1).then(|| self.hashes[units - 2]),
            start: end - hash_size,
            end,
            block_tokens: hash_size,
            blocks: std::iter::once((self.hashes[units - 1], end)),
            known: self.tokens,
        }
    }
}

impl KvGroups {
    /// Adds the blocks that are full after `computed` known tokens to the cache, if a later request could use them.
    /// Returns the number of computed tokens at which the next call is due.
    pub(crate) fn store(&mut self, pool: &mut KvPool, offered: &Offered<'_>, computed: u32) -> u32 {
        let Offered { id, tag, prompt_tokens, hashes, tokens } = *offered;
        let (hash_size, aligned) = (self.hash_block_size, self.aligned_tokens);
        let hash_at = |end: u32| hashes[(end / hash_size) as usize - 1];
        let hashed = (hashes.len() as u32).saturating_mul(hash_size);
        let ends = self.resumable_ends(prompt_tokens);
        let shared = self.requests[id.index()].shared_prefix_tokens;
        let mut next = u32::MAX - 1;
        for index in 0..self.groups.len() {
            let group = self.groups[index];
            let size = group.block_size;
            let cacheable = self.cacheable_tokens(&group, computed);
            let mut stored_states = Vec::new();
            let table = &mut self.requests[id.index()].by_group[index];
            let full = cacheable.min(hashed) / size;
            let step = if group.drops_block { hash_size } else { aligned };
            next = next.min(match cacheable.checked_sub(hashed) {
                None | Some(0) => (cacheable - cacheable % step).saturating_add(step),
                Some(_) => hashed.saturating_add(hash_size),
            });
            let range = table.num_cached..full;
            if !range.is_empty() {
                table.num_cached = full;
                let before =
                    (self.rules.keeps_before_junctions() && group.drops_block).then(|| shared.saturating_sub(size));
                let [junction, before] = [Some(shared), before].map(|end| end.filter(|_| shared > 0));
                let boundaries = [ends[0], ends[1], junction, before];
                let reachable = Reachable::of(&group, aligned, self.retention_tokens, &boundaries, range.clone());
                let (blocks, keys) = &mut self.stored;
                blocks.clear();
                keys.clear();
                for place in range.clone() {
                    let block = table.blocks[place as usize];
                    if block != NULL_BLOCK && reachable.has(place) {
                        if self.owned.partial_ends.remove(&block).is_some() {
                            self.owned.forget_keys(pool, index, block);
                        }
                        blocks.push(block);
                        keys.push(key(hash_at((place + 1) * size), index));
                    }
                }
                pool.insert(blocks, keys);
                if group.kind.is_mamba() {
                    stored_states.extend(keys.iter().copied());
                }
                if let Some(events) = pool.events_mut() {
                    let parent = (range.start > 0).then(|| hash_at(range.start * size));
                    let table = &table.blocks;
                    let is_kept = |place: &u32| table[*place as usize] != NULL_BLOCK && reachable.has(*place);
                    let ends = range.clone().filter(is_kept).map(|place| (place + 1) * size);
                    let blocks = keys.iter().map(|&key| content(key, index)).zip(ends);
                    let (start, end, block_tokens) = (range.start * size, range.end * size, size);
                    let known = tokens;
                    let stored = StoredBlocks { group: index, tag, parent, start, end, block_tokens, blocks, known };
                    events.stored_of_group(stored);
                }
            }
            if group.kind.is_mamba() {
                self.store_checkpoint(pool, offered, index, cacheable, &mut stored_states);
                self.stored_in_step.extend(stored_states);
            }
            if group.kind.is_full() && size > hash_size {
                self.store_prompt_end(pool, offered, index, cacheable);
            }
        }
        if self.offers_again(offered, computed) { 1 } else { next }
    }

    /// Number of the `computed` known tokens that a group offers. No hit can end after them.
    fn cacheable_tokens(&self, group: &Group, computed: u32) -> u32 {
        // Hits are multiples of all block sizes.
        let aligned = |tokens: u32| tokens - tokens % self.aligned_tokens;
        let settled = computed.saturating_sub(self.unsettled_tokens);
        if self.is_unitary() {
            settled
        } else if group.drops_block && aligned(computed) > 0 {
            // A hit in this group has one more block, which it drops.
            settled.min(aligned(settled) + group.block_size)
        } else {
            aligned(computed)
        }
    }

    /// The positions from which a later request with the same prompt can resume (vLLM's
    /// `replay_boundaries`).
    fn resumable_ends(&self, prompt_tokens: u32) -> [Option<u32>; 2] {
        if !self.rules.keeps_ends_for_dropped_blocks() || !self.groups.iter().any(|group| group.drops_block) {
            return [Some(prompt_tokens - 1), None];
        }
        // For the same prompt, and for a longer prompt.
        [prompt_tokens - 1, prompt_tokens].map(|tokens| {
            let end = tokens - tokens % self.aligned_tokens;
            Some(end.saturating_sub(self.aligned_tokens))
        })
    }

    /// Caches a state left inside the chunk if the rules require it, even if it is not one of the
    /// states to keep. If only states at the ends of prompts are kept, other states are dropped again, under
    /// some rules including this one. `stored` has the keys of the states that this offer has cached.
    fn store_checkpoint(
        &mut self,
        pool: &mut KvPool,
        offered: &Offered<'_>,
        index: usize,
        cacheable: u32,
        stored: &mut Vec<BlockHash>,
    ) {
        let Offered { id, prompt_tokens, hashes, .. } = *offered;
        let Tables { by_group, shared_prefix_tokens } = &self.requests[id.index()];
        let (group, table) = (&self.groups[index], &by_group[index]);
        let Some(place) = table.checkpoint.filter(|_| self.rules.caches_any_checkpoint()) else { return };
        let block = table.blocks[place as usize];
        if block == NULL_BLOCK {
            return;
        }
        let end = (place + 1) * group.block_size;
        let is_kept_end = end == group.last_boundary(prompt_tokens) && !self.rules.forgets_prompt_checkpoints();
        let is_transient =
            self.is_sparse() && cacheable < prompt_tokens && !is_kept_end && end != *shared_prefix_tokens;
        let units = (end / self.hash_block_size) as usize;
        let (before, now) = (pool.key_of(block), key(hashes[units - 1], index));
        if before == Some(now) && !is_transient {
            return;
        }
        if let Some(before) = before {
            pool.forget(block);
            stored.retain(|&other| other != before);
            if let Some(events) = pool.events_mut() {
                events.removed_of_group(index as u8, content(before, index));
            }
        }
        if is_transient {
            return;
        }
        pool.insert(&[block], &[now]);
        stored.push(now);
        if let Some(events) = pool.events_mut() {
            events.stored_of_group(offered.unit(index, units, self.hash_block_size));
        }
    }

    /// Offers the state at the latest boundary that the same prompt can resume from again, as if it were new. Some
    /// rules do so in every step that holds the state. Returns whether the next step may offer it, too.
    fn offers_again(&mut self, offered: &Offered<'_>, computed: u32) -> bool {
        if !self.rules.offers_prompt_states_again() {
            return false;
        }
        let Offered { id, prompt_tokens, hashes, .. } = *offered;
        let mut again = false;
        for (index, table) in self.requests[id.index()].by_group.iter().enumerate() {
            let group = self.groups[index];
            let boundary = if group.aligns_states() { group.last_boundary(prompt_tokens) } else { 0 };
            if boundary == 0 || self.cacheable_tokens(&group, computed) != boundary {
                continue;
            }
            let place = (boundary / group.block_size - 1) as usize;
            if table.blocks.get(place).is_some_and(|&block| block != NULL_BLOCK) {
                again = true;
                if table.checkpoint.is_none() {
                    self.stored_in_step.insert(key(hashes[(boundary / self.hash_block_size) as usize - 1], index));
                }
            }
        }
        again
    }

    /// Makes a block of full attention also findable by the end of a prompt inside it. (Only lookups that are finer
    /// than blocks find it.)
    fn store_prompt_end(&mut self, pool: &mut KvPool, offered: &Offered<'_>, index: usize, cacheable: u32) {
        let Offered { id, prompt_tokens, hashes, .. } = *offered;
        let (hash_size, size) = (self.hash_block_size, self.groups[index].block_size);
        // A lookup that drops a block first reads the whole prompt.
        let reads_all = self.groups[index].drops_block || self.rules.announces_whole_prompts();
        let most = if reads_all { prompt_tokens } else { prompt_tokens - 1 };
        let end = (most / hash_size).min(hashes.len() as u32) * hash_size;
        if end == 0 || end > cacheable || end.is_multiple_of(size) {
            return;
        }
        let Some(&block) = self.requests[id.index()].by_group[index].blocks.get((end / size) as usize) else { return };
        let units = (end / hash_size) as usize;
        let key = key(hashes[units - 1], index);
        let first = pool.key_of(block);
        if first == Some(key) || self.owned.inner_keys.get(&block).is_some_and(|keys| keys.contains(&key)) {
            return;
        }
        let is_longer = self.owned.partial_ends.get(&block).is_some_and(|&before| before < end);
        if is_longer {
            self.owned.forget_keys(pool, index, block);
        }
        if first.is_none() || is_longer {
            // The block is not full yet, so this is its only key.
            pool.insert(&[block], &[key]);
            self.owned.partial_ends.insert(block, end);
        } else {
            self.owned.inner_keys.entry(block).or_default().push(key);
        }
        if let Some(events) = pool.events_mut() {
            events.stored_of_group(offered.unit(index, units, hash_size));
        }
    }
}

/// The blocks of a group that a later hit may use.
enum Reachable<'a> {
    All,
    Some(Sparse<'a>),
}

struct Sparse<'a> {
    /// Number of blocks before the end of a hit that the hit needs, including the one that it drops.
    needed: u32,
    /// Number of the `needed` blocks that lie after the end of the hit.
    dropped: u32,
    /// Number of blocks between possible ends of hits. None if only the ends at `boundaries` are kept.
    per_segment: Option<u32>,
    /// Additional ends of hits that are kept, in blocks. Unused if all ends are kept.
    boundaries: Option<(&'a [Option<u32>], u32, u32)>,
}

impl<'a> Reachable<'a> {
    fn of(
        group: &Group,
        aligned: u32,
        retention: Option<u32>,
        boundaries: &'a [Option<u32>],
        range: Range<u32>,
    ) -> Self {
        debug_assert!(!range.is_empty());
        let size = group.block_size;
        let dropped = u32::from(group.drops_block);
        let (needed, dropped) = match group.kind {
            KvCacheKind::SlidingWindow { window_tokens } => ((window_tokens - 1).div_ceil(size) + dropped, dropped),
            KvCacheKind::Mamba { .. } if retention.is_some() => (1, 0),
            _ => return Self::All,
        };
        let segment = match retention {
            None => Some(aligned),
            Some(0) => None,
            Some(tokens) => Some(tokens),
        };
        let per_segment = segment.map(|tokens| tokens / size);
        if per_segment.is_some_and(|blocks| needed >= blocks) {
            return Self::All;
        }
        let boundaries = retention.is_some().then_some((boundaries, aligned, size));
        Self::Some(Sparse { needed, dropped, per_segment, boundaries })
    }

    fn has(&self, block: u32) -> bool {
        let Self::Some(Sparse { needed, dropped, per_segment, boundaries }) = self else { return true };
        if per_segment.is_some_and(|blocks| block >= *dropped && (block - dropped) % blocks >= blocks - needed) {
            return true;
        }
        boundaries.is_some_and(|(boundaries, aligned, size)| {
            boundaries.iter().flatten().any(|&tokens| {
                let end = tokens / aligned * aligned / size + dropped;
                (end.saturating_sub(*needed)..end).contains(&block)
            })
        })
    }
}
