//! The blocks of a prompt by KV-cache group: blocks held for a decode engine, and blocks that a decode engine reads.
//!
//! A group's blocks are paired by their places in the prompt. Groups with a window have blocks only at its end
//! (vLLM's `get_exchange_clipped_blocks`), with the null block where none is needed.

use std::iter;

use vcr_core::plan::{RemoteLoad, ScheduledKind, ScheduledRequest};
use vcr_core::{AnyEngine, Engine, EngineConfig, RequestId};
use vcr_transfer::pattern::mix;
use vcr_transfer::{BlockPair, ErrorKind, Held, TransferError};

use crate::kv_transfer::content::block_contents;
use crate::requests::RemoteKv;

/// Fills the block tables of windows where no block is needed.
const NULL_BLOCK: u32 = 0;

/// Consecutive pages of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupPages<T> {
    /// Index of the first page's block in the prompt.
    pub(crate) first_block: usize,
    pub(crate) pages: Vec<T>,
}

/// Block size by group, in tokens; a single size if the engine has no groups.
fn block_sizes(config: &EngineConfig) -> impl Iterator<Item = u32> {
    let of_groups = config.kv_cache_groups().iter().map(|group| group.block_size.unwrap_or(config.block_size()));
    of_groups.chain(config.kv_cache_groups().is_empty().then_some(config.block_size()))
}

/// Contents of all blocks of a prompt, by group.
pub(crate) fn group_contents(tokens: &[u32], config: &EngineConfig, salt: u64, marks: &[(u32, u64)]) -> Vec<Vec<u64>> {
    let of_group = |(group, block_tokens)| {
        // Layers of different groups have different KV of the same tokens.
        let salt = if group == 0 { salt } else { mix(salt ^ group) };
        block_contents(tokens, block_tokens, salt, marks)
    };
    (0..).zip(block_sizes(config)).map(of_group).collect()
}

/// The blocks of a finished prompt by group, as in its `kv_transfer_params`.
pub(crate) fn exchanged_blocks(engine: &AnyEngine, id: RequestId, prompt_tokens: u32) -> Vec<Vec<u32>> {
    // SGLang's pages have no numbers.
    let Some(engine) = engine.as_vllm() else { return vec![Vec::new()] };
    let config = engine.config();
    if config.kv_cache_groups().is_empty() {
        return vec![engine.block_table(id).to_vec()];
    }
    let of_group = |((group, block_size), blocks): ((&vcr_core::KvCacheGroup, u32), &[u32])| {
        let blocks = &blocks[..blocks.len().min(prompt_tokens.div_ceil(block_size) as usize)];
        let most = group.kind.exchanged_blocks(block_size).map_or(blocks.len(), |most| most as usize);
        blocks[blocks.len().saturating_sub(most)..].to_vec()
    };
    let groups = config.kv_cache_groups().iter().zip(block_sizes(config));
    groups.zip(engine.group_block_tables(id)).map(of_group).collect()
}

/// A part of a prompt that a step computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComputingPart {
    pub(crate) tag: u64,
    /// Tokens whose blocks are new with this part.
    first_token: u32,
    end_token: u32,
}

impl ComputingPart {
    /// If the prompt was not running before, its cached tokens are included.
    pub(crate) fn of(entry: &ScheduledRequest) -> Self {
        let first_token = if entry.kind == ScheduledKind::Running { entry.num_computed_tokens } else { 0 };
        Self { tag: entry.tag, first_token, end_token: entry.num_computed_tokens + entry.num_scheduled_tokens }
    }

    /// The blocks of this part, except those that no future token needs.
    pub(crate) fn pages(&self, engine: &Engine, id: RequestId, contents: &[Vec<u64>]) -> Vec<Held> {
        let config = engine.config();
        let alone = config.kv_cache_groups().is_empty().then(|| engine.block_table(id));
        let tables = alone.into_iter().chain(engine.group_block_tables(id));
        let mut pages = Vec::new();
        for ((table, block_size), contents) in tables.zip(block_sizes(config)).zip(contents) {
            let places = (self.first_token / block_size) as usize..self.end_token.div_ceil(block_size) as usize;
            let of_table = table.iter().zip(contents).take(places.end).skip(places.start);
            let needed = of_table.filter(|(block, _)| **block != NULL_BLOCK);
            pages.extend(needed.map(|(block, content)| Held { block: *block, content: *content }));
        }
        pages
    }
}

/// The pages of `blocks` with their contents, by group.
pub(crate) fn held_pages(blocks: &[Vec<u32>], contents: &[Vec<u64>]) -> Vec<GroupPages<Held>> {
    let of_group = |(blocks, contents): (&Vec<u32>, &Vec<u64>)| {
        let first_block = contents.len().saturating_sub(blocks.len());
        let held = blocks.iter().zip(&contents[first_block..]);
        let held = held.map(|(block, content)| Held { block: *block, content: *content });
        let nulls = if blocks.len() < contents.len() { nulls_at_start(blocks) } else { 0 };
        GroupPages { first_block: first_block + nulls, pages: held.skip(nulls).collect() }
    };
    blocks.iter().zip(contents).map(of_group).collect()
}

fn nulls_at_start(blocks: &[u32]) -> usize {
    blocks.iter().take_while(|block| **block == NULL_BLOCK).count()
}

/// The blocks that a transfer must bring, by group: exactly those that the request needs and the local cache lacks.
pub(crate) fn missing_pages(
    engine: &Engine,
    load: &RemoteLoad,
    contents: &[Vec<u64>],
    remote: &RemoteKv,
) -> Result<Vec<GroupPages<BlockPair>>, TransferError> {
    let mismatch = |what: String| {
        TransferError::new(ErrorKind::Mismatch, format!("KV peer {}: remote_block_ids has {what}", remote.peer))
    };
    if remote.blocks.len() != contents.len() {
        let (lists, groups) = (remote.blocks.len(), contents.len());
        return Err(mismatch(format!("{lists} lists, but there are {groups} KV-cache groups here")));
    }
    let config = engine.config();
    let has_groups = !config.kv_cache_groups().is_empty();
    let alone = (!has_groups).then(|| engine.block_table(load.request));
    let tables = alone.into_iter().chain(engine.group_block_tables(load.request));
    let mut missing = Vec::with_capacity(contents.len());
    for (group, ((table, block_size), (contents, remote))) in
        iter::zip(iter::zip(tables, block_sizes(config)), iter::zip(contents, &remote.blocks)).enumerate()
    {
        let cached = (load.cached_tokens / block_size) as usize;
        let skipped = if has_groups { nulls_at_start(table) } else { 0 };
        let first_block = cached.max(skipped).min(contents.len());
        // The peer omits the blocks before its window.
        let left_out = contents.len().saturating_sub(remote.len());
        let has_window = config.kv_cache_groups().get(group).is_some_and(|group| group.kind.window_tokens().is_some());
        let first = first_block.checked_sub(left_out).filter(|_| has_window || left_out == 0);
        let named = first.and_then(|first| remote.get(first..)).unwrap_or_default();
        let pages: Vec<BlockPair> = iter::zip(&table[first_block..], iter::zip(named, &contents[first_block..]))
            .map(|(&local, (&remote, &content))| BlockPair { local, remote, content })
            .collect();
        let is_named = pages.len() == contents.len() - first_block;
        if !is_named || has_groups && pages.iter().any(|pair| pair.remote == NULL_BLOCK) {
            let (blocks, wanted) = (remote.len() - nulls_at_start(remote), contents.len() - first_block);
            return Err(mismatch(match has_groups {
                true => format!("{blocks} blocks for KV-cache group {group}, but {wanted} are missing here"),
                false => format!("{} blocks, but the prompt has {}", remote.len(), contents.len()),
            }));
        }
        missing.push(GroupPages { first_block, pages });
    }
    Ok(missing)
}
