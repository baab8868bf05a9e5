//! KV-cache groups: the blocks of layers that need different parts of a sequence.
//!
//! Owns the block tables of requests by group, and the cache of each group. In a table, the null block stands where
//! the group needs no block. All groups take their blocks from one [`KvPool`]. The rules are from vLLM 0.32 and 0.33
//! (`vllm/v1/core/single_type_kv_cache_manager.py` and `kv_cache_coordinator.py`). An engine with one group
//! of full attention does not use this module.

mod group;
pub(crate) mod kind;
mod lookup;
mod owned;
mod states;
mod store;

use std::collections::BTreeSet;

use group::Group;
pub use kind::{KvCacheGroup, KvCacheKind, MambaCacheMode};
pub(crate) use lookup::GroupHit;
use lookup::LookupGroup;
use owned::OwnedBlocks;
use states::States;
pub(crate) use states::{Chunk, ChunkLimits};
pub(crate) use store::Offered;

use crate::config::{EngineConfig, SchedulerRules};
use crate::kv::hash::BlockHash;
use crate::kv::pool::{BlockId, KvPool};
use crate::plugins::latency::BlockChange;
use crate::request::RequestId;

/// Placeholder in a table where a group needs no block.
const NULL_BLOCK: BlockId = 0;

/// A request's blocks in one group.
#[derive(Clone, Debug, Default)]
struct Table {
    blocks: Vec<BlockId>,
    /// Number of blocks at the start that are no longer needed, or never were.
    num_skipped: u32,
    /// Number of blocks at the start that have been offered to the cache, or never need to be.
    num_cached: u32,
    /// Index of the state from which the latest chunk that took blocks continued.
    state_before: Option<u32>,
    /// Index of the state that the latest chunk left at a block boundary within the chunk.
    checkpoint: Option<u32>,
}

impl Table {
    /// Moves the blocks before index `end` to `taken`. With `stops_at_gap`, it moves only the blocks after
    /// the last null block before `end`, followed by the state from which the latest chunk continued. Returns the
    /// index in `taken` of the blocks that must be freed first.
    fn take_skipped(&mut self, end: u32, stops_at_gap: bool, taken: &mut Vec<BlockId>) -> usize {
        let skipped = &mut self.blocks[..end as usize];
        let mut first = self.num_skipped as usize;
        self.num_skipped = end;
        taken.clear();
        if stops_at_gap {
            let gap = skipped.iter().rposition(|&block| block == NULL_BLOCK);
            first = gap.map_or(first, |gap| first.max(gap + 1));
            if let Some(state) = skipped[..first].get_mut(self.state_before.map_or(usize::MAX, |place| place as usize))
            {
                taken.extend(held(&[std::mem::replace(state, NULL_BLOCK)]));
            }
        }
        let later = taken.len();
        taken.extend(held(&skipped[first..]));
        skipped[first..].fill(NULL_BLOCK);
        later
    }
}

/// The blocks that are not null blocks.
fn held(blocks: &[BlockId]) -> impl Iterator<Item = &BlockId> {
    blocks.iter().filter(|&&block| block != NULL_BLOCK)
}

#[derive(Clone, Debug, Default)]
struct Tables {
    by_group: Vec<Table>,
    shared_prefix_tokens: u32,
}

#[derive(Debug)]
pub(crate) struct KvGroups {
    groups: Vec<Group>,
    /// Groups by lookup rule, with full attention first.
    kin: Vec<LookupGroup>,
    /// Hashes exist at multiples of this prefix length in tokens.
    hash_block_size: u32,
    /// Least common multiple of all block sizes. Every hit is a multiple of it.
    aligned_tokens: u32,
    /// See [`EngineConfigInput::prefix_cache_retention_interval`](crate::EngineConfigInput).
    retention_tokens: Option<u32>,
    /// Number of last computed tokens that are not offered to the cache yet.
    unsettled_tokens: u32,
    max_model_len: u32,
    rules: SchedulerRules,
    /// The group whose rules decide where chunks end, if any group keeps states.
    chunk_group: Option<Group>,
    /// Keys of states that were offered in this step. They cannot be read before the next step.
    stored_in_step: BTreeSet<BlockHash>,
    requests: Vec<Tables>,
    /// The group that holds each block, and additional keys of blocks.
    owned: OwnedBlocks,
    /// Scratch buffer of lookups: blocks by group.
    hits: Vec<Vec<BlockId>>,
    freed: Vec<BlockId>,
    stored: (Vec<BlockId>, Vec<BlockHash>),
}

impl KvGroups {
    /// The groups of an engine. None if there is only full attention with the engine's block size.
    pub(crate) fn of(config: &EngineConfig) -> Option<Box<Self>> {
        if config.kv_cache_groups().is_empty() {
            return None;
        }
        let group_of = |(index, group): (usize, &KvCacheGroup)| {
            let drops_block = config.drafting().drops_in(config.kv_cache_groups(), index);
            Group { drops_block, ..Group::of(group, config) }
        };
        let mut groups: Vec<Group> = config.kv_cache_groups().iter().enumerate().map(group_of).collect();
        let mut kin: Vec<LookupGroup> = Vec::new();
        for (index, &Group { kind, block_size, drops_block, .. }) in groups.iter().enumerate() {
            match kin.iter_mut().find(|kin| kin.kind == kind && kin.block_size == block_size) {
                Some(kin) => {
                    kin.members.push(index);
                    kin.drops_block |= drops_block;
                }
                None => kin.push(LookupGroup { kind, block_size, drops_block, members: vec![index] }),
            }
        }
        // Groups that are looked up together must also drop a block together.
        for kin in &kin {
            kin.members.iter().for_each(|&member| groups[member].drops_block = kin.drops_block);
        }
        kin.sort_by_key(|kin| !kin.kind.is_full());
        Some(Box::new(Self {
            hits: vec![Vec::new(); groups.len()],
            kin,
            hash_block_size: config.block_size(),
            aligned_tokens: config.aligned_tokens(),
            retention_tokens: config.prefix_cache_retention_interval(),
            unsettled_tokens: config.drafting().unsettled_tokens(),
            max_model_len: config.max_model_len(),
            rules: config.rules(),
            chunk_group: chunk_group(&groups),
            stored_in_step: BTreeSet::new(),
            requests: Vec::new(),
            owned: OwnedBlocks::default(),
            freed: Vec::new(),
            stored: (Vec::new(), Vec::new()),
            groups,
        }))
    }

    pub(crate) fn len(&self) -> usize {
        self.groups.len()
    }

    pub(crate) fn has_states(&self) -> bool {
        self.groups.iter().any(Group::aligns_states)
    }

    /// Whether there is only one group, which then decides alone (vLLM's `UnitaryKVCacheCoordinator`).
    fn is_unitary(&self) -> bool {
        self.groups.len() == 1
    }

    fn tables(&self, id: RequestId) -> &[Table] {
        self.requests.get(id.index()).map_or(&[], |tables| &tables.by_group)
    }

    pub(crate) fn holds_blocks(&self, id: RequestId) -> bool {
        self.tables(id).iter().any(|table| !table.blocks.is_empty())
    }

    /// The blocks of a request by group, including null blocks.
    pub(crate) fn blocks_of(&self, id: RequestId) -> impl Iterator<Item = &[BlockId]> {
        self.tables(id).iter().map(|table| &table.blocks[..])
    }

    /// Number of tokens that a request may have before its blocks change in any group, because a table is full
    /// or blocks leave a window.
    pub(crate) fn capacity_tokens(&self, id: RequestId) -> u32 {
        let tables = self.tables(id).iter().zip(&self.groups);
        let of_table = |(table, group): (&Table, &Group)| {
            if table.checkpoint.is_some() {
                // The checkpoint belongs to the latest chunk only.
                return 0;
            }
            if group.kind == KvCacheKind::CrossAttention {
                return u32::MAX;
            }
            let slots = (table.blocks.len() as u32 - group.draft_blocks).saturating_mul(group.block_size);
            let next = (table.num_skipped + 1).saturating_mul(group.block_size);
            slots.min(group.held.computed_until_skipped(next))
        };
        tables.map(of_table).min().unwrap_or(0)
    }

    /// Number of free blocks that an admission needs: for the hit in `self.hits`, and for new blocks up to the end of
    /// the chunk. If `is_capped`, window blocks count only up to their cap. The tokens of the hit before the chunk
    /// are computed, here or elsewhere.
    pub(crate) fn admission_cost(&self, pool: &KvPool, chunk: Chunk, is_capped: bool) -> u32 {
        let mut cost = 0;
        for (group, hit) in self.groups.iter().zip(&self.hits) {
            let skipped = group.skipped_blocks(chunk.computed);
            cost += if group.aligns_states() {
                group.missing_states(&Table::default(), hit.len() as u32, chunk, self.is_sparse(), true)
            } else {
                let cap = if is_capped { group.admission_cap } else { u32::MAX };
                let required = group.blocks_of(chunk, chunk.slots.min(self.max_model_len)).min(cap);
                required.saturating_sub(skipped.max(hit.len() as u32))
            };
            // A hit on a free block also takes a block from the free list. For states, the one before loaded tokens
            // counts, too.
            let first = if group.aligns_states() { 0 } else { skipped as usize };
            cost += pool.count_free_among(held(hit.get(first..).unwrap_or(&[])));
        }
        cost
    }

    /// Whether only states at the ends of prompts are kept (`prefix_cache_retention_interval` 0).
    fn is_sparse(&self) -> bool {
        self.retention_tokens == Some(0)
    }

    /// The end of a chunk from `start` to at most `end`, such that states are kept.
    pub(crate) fn chunk_end(&self, start: u32, end: u32, limits: &ChunkLimits) -> u32 {
        match &self.chunk_group {
            Some(group) if start < limits.prefill_end => group.aligned_end(start, end, limits),
            _ => end,
        }
    }

    /// Whether chunks end where states are kept.
    pub(crate) fn aligns_chunks(&self) -> bool {
        self.chunk_group.is_some()
    }

    /// Length of a prefix that other requests also have, if it exceeds the hit at the request's admission.
    /// See [`GroupHit::shared_prefix_tokens`].
    pub(crate) fn shared_prefix_tokens(&self, id: RequestId) -> u32 {
        self.requests.get(id.index()).map_or(0, |tables| tables.shared_prefix_tokens)
    }

    /// Begins a step, in which states that the previous step offered can be read.
    pub(crate) fn begin_step(&mut self) {
        self.stored_in_step.clear();
    }

    /// Allocates the hit in `self.hits` for a request, and new blocks up to the end of a chunk. Everything before the
    /// chunk is computed, here or elsewhere.
    pub(crate) fn admit(&mut self, pool: &mut KvPool, id: RequestId, hit: GroupHit, chunk: Chunk) {
        if self.requests.len() <= id.index() {
            self.requests.resize_with(id.index() + 1, Tables::default);
        }
        let mut tables = std::mem::take(&mut self.requests[id.index()]);
        debug_assert!(tables.by_group.is_empty(), "a request is admitted that holds blocks");
        tables.shared_prefix_tokens = hit.shared_prefix_tokens;
        for (group, blocks) in self.groups.iter().zip(&self.hits) {
            let skipped = group.skipped_blocks(chunk.computed);
            let needed = blocks.get(skipped as usize..).unwrap_or(&[]);
            pool.touch(held(needed));
            let mut table = Vec::with_capacity(group.blocks_of(chunk, chunk.slots).max(blocks.len() as u32) as usize);
            table.resize(skipped as usize, NULL_BLOCK);
            table.extend_from_slice(needed);
            let num_cached = table.len() as u32;
            // If a chunk does not begin at a block boundary, its blocks may all have been skipped.
            let num_skipped = table.iter().take_while(|&&block| block == NULL_BLOCK).count() as u32;
            tables.by_group.push(Table { blocks: table, num_skipped, num_cached, ..Table::default() });
        }
        self.requests[id.index()] = tables;
        if chunk.computed > hit.tokens {
            self.take_loaded(pool, id, chunk.computed);
        }
        self.grow_table(pool, id, chunk, true);
    }

    /// Allocates a request's blocks for loaded tokens, as far as later tokens need them. Must be called before any
    /// group allocates blocks for computed tokens.
    fn take_loaded(&mut self, pool: &mut KvPool, id: RequestId, computed: u32) {
        let Self { groups, requests, owned, .. } = self;
        for (index, (group, table)) in groups.iter().zip(&mut requests[id.index()].by_group).enumerate() {
            if group.held.skipped_tokens(computed) < computed {
                let missing = computed.div_ceil(group.block_size).saturating_sub(table.blocks.len() as u32);
                owned.allocate(pool, index, missing, &mut table.blocks);
            }
        }
    }

    /// Number of states after loaded tokens that a following chunk needs in addition to its own states.
    pub(crate) fn loaded_states(&self, chunk: Chunk) -> u32 {
        let goes_beyond = |group: &&Group| {
            let end = |tokens: u32| tokens.div_ceil(group.block_size);
            group.aligns_states() && end(chunk.tokens) > end(chunk.computed)
        };
        self.groups.iter().filter(goes_beyond).count() as u32
    }

    /// Number of additional blocks that a chunk of a request needs. If `is_capped`, it counts for an
    /// admission: window blocks up to their cap, and slots beyond `max_model_len`.
    pub(crate) fn missing_blocks(&self, id: RequestId, chunk: Chunk, is_capped: bool) -> u32 {
        let tokens = if is_capped { chunk.slots } else { chunk.slots.min(self.max_model_len) };
        let (tables, none) = (self.tables(id), Table::default());
        let of_group = |(index, group): (usize, &Group)| {
            let table = tables.get(index).unwrap_or(&none);
            if group.aligns_states() {
                return group.missing_states(table, 0, chunk, self.is_sparse(), tables.is_empty());
            }
            let cap = if is_capped { group.admission_cap } else { u32::MAX };
            group.blocks_of(chunk, tokens).min(cap).saturating_sub(table.blocks.len() as u32)
        };
        self.groups.iter().enumerate().map(of_group).sum()
    }

    pub(crate) fn new_blocks(&self, tokens: u32) -> u32 {
        let with_tokens = self.groups.iter().filter(|group| !group.kind.is_mamba());
        with_tokens.map(|group| group.blocks_for(tokens)).sum()
    }

    /// Allocates a request's missing blocks for a chunk, group by group. The caller has checked
    /// that enough blocks are free.
    pub(crate) fn grow(&mut self, pool: &mut KvPool, id: RequestId, chunk: Chunk) {
        self.grow_table(pool, id, chunk, false);
    }

    fn grow_table(&mut self, pool: &mut KvPool, id: RequestId, chunk: Chunk, is_new: bool) {
        let (tokens, is_sparse) = (chunk.slots.min(self.max_model_len), self.is_sparse());
        let Self { groups, requests, owned, .. } = self;
        for (index, (group, table)) in groups.iter().zip(&mut requests[id.index()].by_group).enumerate() {
            if group.aligns_states() {
                let allocate = |missing: u32, blocks: &mut Vec<BlockId>| owned.allocate(pool, index, missing, blocks);
                group.grow_states(table, chunk, is_sparse, is_new, allocate);
                continue;
            }
            let missing = group.blocks_of(chunk, tokens).saturating_sub(table.blocks.len() as u32);
            if missing > 0 {
                owned.allocate(pool, index, missing, &mut table.blocks);
            }
        }
    }

    /// Frees the blocks of a request that no token after its first `computed` tokens needs. Calls `tell` with the
    /// freed blocks of each group.
    pub(crate) fn skip(
        &mut self,
        pool: &mut KvPool,
        id: RequestId,
        computed: u32,
        mut tell: impl FnMut(usize, &[BlockId]),
    ) {
        let Self { groups, requests, freed, .. } = self;
        for (index, (group, table)) in groups.iter().zip(&mut requests[id.index()].by_group).enumerate() {
            let skipped = group.skipped_blocks(computed).min(table.blocks.len() as u32);
            if skipped <= table.num_skipped {
                continue;
            }
            let stops_at_gap = group.states.is_some_and(|states| states.rules.keeps_states_before_gaps());
            let later = table.take_skipped(skipped, stops_at_gap, freed);
            pool.release(&freed[later..]);
            pool.release(&freed[..later]);
            if !freed.is_empty() {
                tell(index, freed);
            }
        }
    }

    /// Adds the blocks that a request allocates and frees in steps of one token each, after `computed` tokens, to
    /// `changes`. Returns the number of steps for which this is certain: other requests may hold blocks that
    /// leave a window.
    pub(crate) fn predict(&self, pool: &KvPool, id: RequestId, computed: u32, changes: &mut [BlockChange]) -> usize {
        let mut sure = changes.len();
        let growing = self.groups.iter().zip(self.tables(id));
        for (group, table) in growing.filter(|(group, _)| group.kind != KvCacheKind::CrossAttention) {
            let size = group.block_size;
            // A step needs a slot for the token that it computes.
            let mut grows_at =
                (table.blocks.len() as u32 - group.draft_blocks).saturating_mul(size).saturating_sub(computed) as usize;
            while let Some(change) = changes.get_mut(grows_at) {
                change.taken += 1;
                grows_at += size as usize;
            }
            let mut skipped = table.num_skipped;
            loop {
                let skips = group.held.computed_until_skipped((skipped + 1).saturating_mul(size));
                let at = skips.max(computed);
                let Some(change) = changes.get_mut((at - computed) as usize) else { break };
                let now = group.skipped_blocks(at);
                // Blocks that do not exist yet cannot be shared.
                let end = table.blocks.len().min(now as usize);
                let blocks = &table.blocks[end.min(skipped as usize)..end];
                if held(blocks).any(|&block| pool.is_shared(block)) {
                    sure = sure.min((at - computed) as usize);
                    break;
                }
                change.freed += now - skipped - (blocks.len() - held(blocks).count()) as u32;
                skipped = now;
            }
        }
        sure
    }

    pub(crate) fn release(&mut self, pool: &mut KvPool, id: RequestId) {
        let Some(tables) = self.requests.get_mut(id.index()) else { return };
        for (group, table) in self.groups.iter().zip(std::mem::take(tables).by_group) {
            self.freed.clear();
            // States may be held before the skipped blocks.
            let first = if group.aligns_states() { 0 } else { table.num_skipped as usize };
            self.freed.extend(held(&table.blocks[first..]));
            pool.release(&self.freed);
        }
    }

    /// Takes all blocks of a request, group by group, without freeing them.
    pub(crate) fn take_blocks(&mut self, id: RequestId) -> Vec<BlockId> {
        let Some(tables) = self.requests.get_mut(id.index()) else { return Vec::new() };
        let tables = std::mem::take(tables).by_group;
        tables.iter().flat_map(|table| held(&table.blocks).copied()).collect()
    }

    pub(crate) fn forget_cache(&mut self) {
        self.owned.forget_cache();
    }

    /// Removes the keys of a block.
    pub(crate) fn forget_block(&mut self, pool: &mut KvPool, block: BlockId) {
        self.owned.forget_block(pool, block);
    }
}

/// The group whose rules decide where chunks end: the first group with states. A chunk leaves a state inside
/// it only if all groups with states can do so.
fn chunk_group(groups: &[Group]) -> Option<Group> {
    let mut with_states = groups.iter().filter_map(|group| Some((group, group.states?)));
    let (first, states) = with_states.clone().next()?;
    let have_all = with_states.all(|(_, states)| states.checkpoint_tokens.is_some());
    let checkpoint_tokens = states.checkpoint_tokens.filter(|_| have_all);
    Some(Group { states: Some(States { checkpoint_tokens, ..states }), ..*first })
}

impl KvGroups {
    /// Number of tokens whose KV over all layers has as many bytes as the transfer of a prompt of which `cached` tokens
    /// are here. Each group transfers its missing tokens from the first block that the next token needs. Blocks of
    /// all groups have the same size in bytes, so tokens of larger blocks have fewer bytes.
    pub(crate) fn moved_tokens(&self, cached: u32, prompt: u32) -> u32 {
        let (mut moved, mut whole) = (0, 0);
        for group in &self.groups {
            let first = cached.max(group.skipped_blocks(prompt).saturating_mul(group.block_size));
            let weight = u64::from((self.aligned_tokens / group.block_size).max(1));
            moved += u64::from(prompt.saturating_sub(first)) * weight;
            whole += weight;
        }
        u32::try_from(moved.div_ceil(whole.max(1))).unwrap_or(u32::MAX)
    }
}
