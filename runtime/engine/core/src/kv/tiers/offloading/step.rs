//! The stores of a step, and the copies that the step waits for.

use std::collections::BTreeSet;

use super::host::{Found, Offer, Stored};
use super::{Job, Offloading};
use crate::kv::hash::BlockHash;
use crate::kv::pool::BlockId;

/// Token counts of a request that decide which of its blocks are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storing {
    /// Number of tokens that are computed when the step ends.
    pub(crate) computed: u32,
    pub(crate) known: u32,
    pub(crate) prompt: u32,
}

/// A copy to or from the host, for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadingJob {
    /// Number of the job. Loads and stores are numbered together.
    pub job: u64,
    /// Tag of the request.
    pub tag: u64,
    /// Places of the chunks in the host.
    pub places: Vec<u32>,
}

/// The copies that a step begins, and the copies that it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadingMoves {
    /// Copies from the host, in order.
    pub loads: Vec<OffloadingJob>,
    /// Copies to the host, in order. They begin when the step ends.
    pub stores: Vec<OffloadingJob>,
    /// Numbers of the copies that must end before the step begins.
    pub flushed: BTreeSet<u64>,
}

impl OffloadingMoves {
    /// Whether there are no copies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.loads.is_empty() && self.stores.is_empty() && self.flushed.is_empty()
    }
}

/// The calls for a step, in this order: requests are given blocks; preempted requests are reported; copies of reused
/// blocks are flushed; requests store blocks; the step ends.
impl Offloading {
    /// Records the blocks of a scheduled request. If `are_all`, these are all its blocks, of which the first `known`
    /// were found or loaded. Otherwise they are its new blocks.
    pub(crate) fn give(&mut self, sequence: u64, are_all: bool, blocks: &[BlockId], known: usize) {
        let state = self.requests.get_mut(&sequence).expect("a request that has come");
        if are_all {
            state.blocks.clear();
        }
        state.blocks.extend_from_slice(blocks);
        // A request does not write to cached blocks that it has found.
        let first = if self.rules.loads_after_copies() { known.min(blocks.len()) } else { 0 };
        self.given.extend_from_slice(&blocks[first..]);
    }

    /// Records that a decoding request was given this block. It is not added to the request's own blocks.
    pub(crate) fn take_block(&mut self, block: Option<BlockId>) {
        self.given.extend(block);
    }

    /// Forgets the blocks given since the latest step, because none of them is being copied.
    pub(crate) fn forget_taken_blocks(&mut self) {
        self.given.clear();
    }

    pub(crate) fn preempt(&mut self, sequence: u64) {
        let Some(state) = self.requests.get(&sequence).filter(|_| self.rules.flushes_copies()) else { return };
        let loads = &self.coming.loads;
        if self.rules.puts_stores_off() {
            for number in &state.jobs {
                for &block in &self.jobs[number].blocks {
                    self.fences.entry(block).or_default().push(*number);
                }
            }
        }
        let latest_alone = self.rules.waits_for_latest_copy();
        let under_way = state.jobs.iter().filter(|job| {
            loads.iter().all(|load| load.job != **job) && (!latest_alone || state.latest_store == Some(**job))
        });
        self.coming.flushed.extend(under_way);
    }

    /// Flushes copies in progress whose blocks have been reused.
    pub(crate) fn flush_given(&mut self) {
        if self.fences.is_empty() || !self.rules.flushes_copies() {
            return;
        }
        for block in &self.given {
            if let Some(jobs) = self.fences.get(block) {
                self.coming.flushed.extend(jobs);
            }
        }
    }

    pub(crate) fn may_store(&self, sequence: u64) -> bool {
        self.stores_outputs() || !self.refused.is_empty() && self.refused.contains(&sequence)
    }

    /// Stores the chunks that a scheduled request has not offered yet.
    pub(crate) fn store(&mut self, sequence: u64, hashes: &[BlockHash], tokens: Storing) {
        self.store_chunks(sequence, hashes, tokens);
    }

    /// Stores the remaining blocks of ended requests, and ends their uses of chunks.
    pub(crate) fn end_step(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        for &(_, sequence) in &ended {
            let state = self.requests.get_mut(&sequence).expect("a request stays until its end is settled");
            let Some(end) = state.ended.take() else { continue };
            if self.rules.offers_blocks_of_ended()
                && let Some(number) = self.store_chunks(sequence, &end.hashes, end.tokens)
            {
                self.watch(number);
            }
            self.refused.remove(&sequence);
            let state = self.requests.get_mut(&sequence).expect("a request stays until its end is settled");
            state.ended = Some(end);
        }
        for (_, sequence) in ended {
            let state = self.requests.get_mut(&sequence).expect("a request stays until its end is settled");
            let hashes = state.ended.as_mut().map(|end| std::mem::take(&mut end.hashes)).unwrap_or_default();
            let per_chunk = self.options.blocks_per_chunk;
            self.host.end_uses(&state.uses, |index| hashes[((index + 1) * per_chunk - 1) as usize]);
            state.is_settled = true;
            if state.jobs.is_empty() {
                self.requests.remove(&sequence);
            }
        }
        self.given.clear();
        self.latest = std::mem::take(&mut self.coming);
    }

    /// Watches a store of an ended request, because other requests may already have its blocks.
    fn watch(&mut self, number: u64) {
        for &block in &self.jobs[&number].blocks {
            self.fences.entry(block).or_default().push(number);
            if self.given.contains(&block) && self.rules.flushes_copies() {
                self.coming.flushed.insert(number);
            }
        }
    }

    fn store_chunks(&mut self, sequence: u64, hashes: &[BlockHash], tokens: Storing) -> Option<u64> {
        let per_chunk = self.options.blocks_per_chunk;
        let most_tokens = if self.options.offload_prompt_only { tokens.prompt } else { u32::MAX };
        let storable_tokens = tokens.computed.min(tokens.known).min(most_tokens);
        let state = self.requests.get_mut(&sequence).expect("a request that has come");
        let given = state.blocks.len() as u32 / per_chunk;
        let keyed = hashes.len() as u32 / per_chunk;
        let end = (storable_tokens / (self.block_size * per_chunk)).min(given).min(keyed);
        if end <= state.next_chunk {
            return None;
        }
        let key = |index: u32| hashes[((index + 1) * per_chunk - 1) as usize];
        let is_being_copied = |index: u32| {
            let first = (index * per_chunk) as usize;
            state.blocks[first..first + per_chunk as usize].iter().any(|block| self.fences.contains_key(block))
        };
        if self.rules.puts_stores_off()
            && !self.fences.is_empty()
            && (state.next_chunk..end)
                .any(|index| self.host.find(key(index)) == Found::Missing && is_being_copied(index))
        {
            self.refused.insert(sequence);
            return None;
        }
        let offers: Vec<Offer> = (state.next_chunk..end).map(|index| Offer { index, key: key(index) }).collect();
        let Some(stored) = self.host.begin_store(&mut state.uses, &offers, &mut self.evicted) else {
            self.refused.insert(sequence);
            return None;
        };
        self.refused.remove(&sequence);
        state.next_chunk = end;
        if stored.is_empty() {
            return None;
        }
        let blocks_of = |one: &Stored| {
            let first = (one.offer.index * per_chunk) as usize;
            &state.blocks[first..first + per_chunk as usize]
        };
        let blocks: Vec<BlockId> = stored.iter().flat_map(blocks_of).copied().collect();
        let number = self.next_job;
        self.next_job += 1;
        state.jobs.push(number);
        state.latest_store = Some(number);
        let places = stored.iter().map(|one| one.place).collect();
        self.coming.stores.push(OffloadingJob { job: number, tag: state.tag, places });
        let keys = stored.iter().map(|one| one.offer.key).collect();
        self.jobs.insert(number, Job { sequence, keys, load: None, below: Vec::new(), blocks, parts: 1 });
        if self.rules.uses_blocks_at_lookups() {
            let prompt = (tokens.prompt / self.block_size) as usize;
            self.host.use_again(hashes[..prompt.min(hashes.len())].iter().copied());
        }
        Some(number)
    }
}
