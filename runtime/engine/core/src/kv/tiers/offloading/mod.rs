//! The scheduler side of vLLM's `OffloadingConnector`, for one group of full attention
//! (`vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`, 0.32 and 0.33).
//!
//! Decides which chunks of a request are stored in the host, found there, and loaded from it. Transfers are
//! jobs; the caller decides when a job ends. Requests are identified by their sequence numbers.

mod arc;
mod host;
mod options;
mod rules;
mod step;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::kv::hash::BlockHash;
use crate::kv::pool::BlockId;
use crate::request::RequestId;
use host::{Found, HostCache, Offer, Uses};
pub use options::{EvictionPolicy, OffloadingOptions};
pub(crate) use rules::ConnectorRules;
pub(crate) use step::Storing;
pub use step::{OffloadingJob, OffloadingMoves};

/// Known blocks and tokens of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// The request's sequence number in the engine.
    pub(crate) sequence: u64,
    pub(crate) hashes: &'a [BlockHash],
    pub(crate) num_tokens: u32,
    /// Number of prompt tokens among the known tokens.
    pub(crate) prompt_tokens: u32,
}

#[derive(Debug)]
pub(crate) struct BegunLoad {
    pub(crate) job: u64,
    pub(crate) host_chunks: u32,
    /// Chunks that are in a tier below the host, and not in the host.
    pub(crate) below: Vec<BlockHash>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedLoad {
    pub(crate) request: RequestId,
    pub(crate) end_tokens: u32,
}

/// The remaining state of an ended request.
#[derive(Debug)]
struct Ended {
    hashes: Vec<BlockHash>,
    tokens: Storing,
}

/// State of a request, until its last job ends.
#[derive(Debug, Default)]
struct RequestState {
    tag: u64,
    uses: Uses,
    /// The request's blocks on the device, as given by the steps since its latest lookup.
    blocks: Vec<BlockId>,
    next_chunk: u32,
    jobs: Vec<u64>,
    latest_store: Option<u64>,
    ended: Option<Ended>,
    /// Whether a step has been made since the request ended.
    is_settled: bool,
}

#[derive(Debug)]
struct Job {
    sequence: u64,
    keys: Vec<BlockHash>,
    load: Option<EndedLoad>,
    /// For a load: the chunks that were not in the host.
    below: Vec<BlockHash>,
    /// For a store: the device blocks that it reads.
    blocks: Vec<BlockId>,
    /// Number of transfers that have not arrived yet.
    parts: u32,
}

#[derive(Debug)]
pub(crate) struct Offloading {
    options: OffloadingOptions,
    rules: ConnectorRules,
    block_size: u32,
    host: HostCache,
    requests: BTreeMap<u64, RequestState>,
    jobs: BTreeMap<u64, Job>,
    next_job: u64,
    /// Chunks that are being loaded. None if the device has no prefix cache in which other requests could find them.
    loading: Option<BTreeSet<BlockHash>>,
    /// Stores of ended requests, by the device blocks that they read.
    fences: BTreeMap<BlockId, Vec<u64>>,
    /// Blocks that were allocated for the coming step.
    given: Vec<BlockId>,
    /// Requests that have ended since the previous step, by tag and sequence number.
    ended: BTreeSet<(u64, u64)>,
    /// Requests whose latest offer found no room.
    refused: BTreeSet<u64>,
    coming: OffloadingMoves,
    latest: OffloadingMoves,
    /// Chunks evicted from the host since they were last taken.
    evicted: Vec<BlockHash>,
}

impl Offloading {
    pub(crate) fn new(options: OffloadingOptions, rules: ConnectorRules, block_size: u32, has_cache: bool) -> Self {
        Self {
            host: HostCache::new(options, rules),
            requests: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next_job: 0,
            loading: has_cache.then(BTreeSet::new),
            fences: BTreeMap::new(),
            given: Vec::new(),
            ended: BTreeSet::new(),
            refused: BTreeSet::new(),
            coming: OffloadingMoves::default(),
            latest: OffloadingMoves::default(),
            evicted: Vec::new(),
            options,
            rules,
            block_size,
        }
    }

    pub(crate) fn stores_outputs(&self) -> bool {
        !self.options.offload_prompt_only
    }

    /// Whether the next step may do more than decode: store blocks, or wait for copies of blocks that it reuses.
    pub(crate) fn has_pending_work(&self) -> bool {
        !self.refused.is_empty() || !self.ended.is_empty() || !self.fences.is_empty()
    }

    pub(crate) fn has_ended_requests(&self) -> bool {
        !self.ended.is_empty()
    }

    /// An empty connector with the same settings, for another engine.
    pub(crate) fn empty_like(&self) -> Self {
        Self::new(self.options, self.rules, self.block_size, self.loading.is_some())
    }

    pub(crate) fn swap_hosts(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.host, &mut other.host);
    }

    pub(crate) fn block_tokens(&self) -> u32 {
        self.block_size
    }

    pub(crate) fn rules(&self) -> ConnectorRules {
        self.rules
    }

    /// The jobs that the latest step began, and the jobs that it waited for.
    pub(crate) fn latest(&self) -> &OffloadingMoves {
        &self.latest
    }

    pub(crate) fn take_evicted(&mut self) -> Vec<BlockHash> {
        std::mem::take(&mut self.evicted)
    }

    pub(crate) fn num_chunks(&self) -> u32 {
        self.host.len()
    }

    pub(crate) fn is_ready(&self, key: BlockHash) -> bool {
        self.host.find(key) == Found::Ready
    }

    pub(crate) fn ready(&self) -> impl Iterator<Item = BlockHash> + '_ {
        self.host.ready()
    }

    pub(crate) fn evictable(&self) -> impl Iterator<Item = BlockHash> + '_ {
        self.host.evictable()
    }

    pub(crate) fn assert_consistent(&self) {
        self.host.assert_consistent();
        for (number, job) in &self.jobs {
            assert!(self.requests[&job.sequence].jobs.contains(number), "job {number} has no request");
        }
        for (block, jobs) in &self.fences {
            assert!(
                jobs.iter().all(|job| self.jobs.contains_key(job)),
                "block {block} has a fence of a job that is over"
            );
        }
    }

    pub(crate) fn begin(&mut self, sequence: u64, tag: u64) {
        self.requests.insert(sequence, RequestState { tag, ..RequestState::default() });
    }

    /// Number of tokens found for a request after its first `local_tokens` tokens. Chunks that are `below` count, too.
    /// None if that is not known yet; a later lookup then starts again.
    pub(crate) fn lookup(
        &mut self,
        known: Known<'_>,
        local_tokens: u32,
        is_skipped: bool,
        below: impl Fn(BlockHash) -> bool,
    ) -> Option<u32> {
        let state = self.requests.get_mut(&known.sequence).expect("a request that has come");
        state.blocks.clear();
        if self.rules.offers_blocks_again() {
            state.next_chunk = 0;
        }
        if self.rules.waits_for_own_copies() {
            let latest = state.latest_store.is_some_and(|job| self.jobs.contains_key(&job));
            let is_under_way = if self.rules.waits_for_latest_copy() { latest } else { !state.jobs.is_empty() };
            if is_under_way {
                return None;
            }
        }
        let found = self.find(known, local_tokens, is_skipped, below);
        if self.rules.uses_blocks_at_lookups() {
            let keys = known.hashes[..self.num_keys(known) as usize].iter();
            self.host.use_again(keys.copied());
        }
        found
    }

    fn find(
        &self,
        known: Known<'_>,
        local_tokens: u32,
        is_skipped: bool,
        below: impl Fn(BlockHash) -> bool,
    ) -> Option<u32> {
        let chunk_tokens = self.chunk_tokens();
        let num_keys = self.num_keys(known);
        let most_tokens = known.num_tokens.min(num_keys * chunk_tokens);
        if is_skipped || most_tokens < local_tokens + chunk_tokens {
            return Some(0);
        }
        let first = local_tokens / chunk_tokens;
        let mut end = first;
        let mut is_pending = false;
        while end < most_tokens.div_ceil(chunk_tokens).min(num_keys) {
            let key = self.key(known.hashes, end);
            match self.host.find(key) {
                Found::Ready => {}
                Found::Pending if self.rules.waits_for_blocks_on_their_way() => is_pending = true,
                Found::Missing if below(key) => {}
                Found::Pending | Found::Missing => break,
            }
            end += 1;
        }
        let found_tokens = most_tokens.min(end * chunk_tokens).saturating_sub(local_tokens);
        if end == first || !is_pending && found_tokens < chunk_tokens {
            return Some(0);
        }
        let is_loaded = |index| self.loading.as_ref().is_some_and(|keys| keys.contains(&self.key(known.hashes, index)));
        let mut found = first..(local_tokens + found_tokens).div_ceil(chunk_tokens);
        if is_pending || self.rules.waits_for_loads_of_others() && found.any(is_loaded) {
            return None;
        }
        Some(found_tokens)
    }

    /// Starts to load `external_tokens` tokens after the first `local_tokens`, for a request that has been given its
    /// blocks.
    pub(crate) fn begin_load(
        &mut self,
        known: Known<'_>,
        request: RequestId,
        blocks: &[BlockId],
        local_tokens: u32,
        external_tokens: u32,
    ) -> BegunLoad {
        if !self.rules.loads_after_copies() {
            self.given.extend_from_slice(blocks);
        }
        let end_tokens = local_tokens + external_tokens;
        let first = local_tokens.div_ceil(self.block_size) / self.options.blocks_per_chunk;
        let end = end_tokens.div_ceil(self.chunk_tokens());
        let offers: Vec<Offer> =
            (first..end).map(|index| Offer { index, key: self.key(known.hashes, index) }).collect();
        let (in_host, below): (Vec<Offer>, Vec<Offer>) =
            offers.into_iter().partition(|offer| self.host.find(offer.key) == Found::Ready);
        let job = self.next_job;
        self.next_job += 1;
        let state = self.requests.get_mut(&known.sequence).expect("a request that has come");
        let places = self.host.begin_load(&mut state.uses, &in_host);
        state.next_chunk = end;
        state.jobs.push(job);
        if let Some(loading) = &mut self.loading {
            loading.extend(in_host.iter().chain(&below).map(|offer| offer.key));
        }
        self.coming.loads.push(OffloadingJob { job, tag: state.tag, places });
        let parts = u32::from(!in_host.is_empty()) + u32::from(!below.is_empty());
        let keys: Vec<BlockHash> = in_host.iter().map(|offer| offer.key).collect();
        let load = Some(EndedLoad { request, end_tokens });
        let host_chunks = keys.len() as u32;
        let below: Vec<BlockHash> = below.iter().map(|offer| offer.key).collect();
        let begun = BegunLoad { job, host_chunks, below: below.clone() };
        self.jobs.insert(job, Job { sequence: known.sequence, keys, load, below, blocks: Vec::new(), parts });
        begun
    }

    /// Reserves a place in the host for a chunk that a load reads from the tier below. Returns false if
    /// there is no room.
    pub(crate) fn begin_fill(&mut self, key: BlockHash) -> bool {
        self.host.begin_fill(key, &mut self.evicted)
    }

    /// Records that a chunk has arrived from the tier below. The load then reads it from the host.
    pub(crate) fn end_fill(&mut self, job: u64, key: BlockHash) {
        self.host.end_fill(key);
        self.jobs.get_mut(&job).expect("the load goes on").keys.push(key);
    }

    /// Chunks in the host that a job reads or writes.
    pub(crate) fn keys_of(&self, job: u64) -> &[BlockHash] {
        self.jobs.get(&job).map_or(&[], |job| &job.keys)
    }

    /// The request that waits for a job, if any.
    pub(crate) fn loads_for(&self, job: u64) -> Option<RequestId> {
        self.jobs.get(&job)?.load.map(|load| load.request)
    }

    pub(crate) fn has_jobs(&self, sequence: u64) -> bool {
        self.requests.get(&sequence).is_some_and(|state| !state.jobs.is_empty())
    }

    /// Ends one transfer of a job. Returns the load if this was its last transfer.
    pub(crate) fn end_part(&mut self, number: u64) -> Option<EndedLoad> {
        let job = self.jobs.get_mut(&number)?;
        job.parts -= 1;
        if job.parts > 0 {
            return None;
        }
        self.end_job(number)
    }

    /// Ends a job, including its remaining transfers. Returns the load if the job is one. Unknown jobs are ignored.
    pub(crate) fn end_job(&mut self, number: u64) -> Option<EndedLoad> {
        let job = self.jobs.remove(&number)?;
        if job.load.is_some() {
            self.host.end_load(&job.keys);
            if let Some(loading) = &mut self.loading {
                for key in job.keys.iter().chain(&job.below) {
                    loading.remove(key);
                }
            }
        } else {
            self.host.end_store(&job.keys);
        }
        for block in &job.blocks {
            if let Some(jobs) = self.fences.get_mut(block) {
                jobs.retain(|other| *other != number);
                if jobs.is_empty() {
                    self.fences.remove(block);
                }
            }
        }
        let state = self.requests.get_mut(&job.sequence).expect("a job has a request");
        state.jobs.retain(|other| *other != number);
        if state.is_settled && state.jobs.is_empty() {
            self.requests.remove(&job.sequence);
        }
        job.load
    }

    /// Ends a request. Its blocks are watched while they are copied, since other requests may reuse them.
    pub(crate) fn end(&mut self, known: Known<'_>, tokens: Storing) {
        let Some(state) = self.requests.get_mut(&known.sequence).filter(|state| state.ended.is_none()) else { return };
        state.ended = Some(Ended { hashes: known.hashes.to_vec(), tokens });
        self.ended.insert((state.tag, known.sequence));
        if self.rules.holds_copied_blocks() {
            return;
        }
        for number in &state.jobs {
            for &block in &self.jobs[number].blocks {
                self.fences.entry(block).or_default().push(*number);
            }
        }
    }

    pub(crate) fn copies_of(&self, blocks: &[BlockId]) -> impl Iterator<Item = u64> {
        blocks.iter().filter_map(|block| self.fences.get(block)).flatten().copied()
    }

    /// The device blocks that a copy reads.
    pub(crate) fn blocks_of(&self, job: u64) -> &[BlockId] {
        self.jobs.get(&job).map_or(&[], |job| &job.blocks)
    }

    /// Cancels a copy that had not begun when its engine left.
    pub(crate) fn cancel_store(&mut self, number: u64) {
        if let Some(job) = self.jobs.remove(&number) {
            job.keys.iter().for_each(|&key| self.host.forget_pending(key));
        }
    }

    fn chunk_tokens(&self) -> u32 {
        self.block_size * self.options.blocks_per_chunk
    }

    /// Number of chunks of a request that can be looked up.
    fn num_keys(&self, known: Known<'_>) -> u32 {
        let keyed = known.hashes.len() as u32 / self.options.blocks_per_chunk;
        if self.rules.finds_prompts_alone() { keyed.min(known.prompt_tokens / self.chunk_tokens()) } else { keyed }
    }

    /// The key of a chunk, which is the hash of its last block.
    fn key(&self, hashes: &[BlockHash], index: u32) -> BlockHash {
        hashes[((index + 1) * self.options.blocks_per_chunk - 1) as usize]
    }
}

/// Chunks ordered by age.
#[derive(Debug, Default)]
struct Recency {
    by_age: BTreeMap<u64, BlockHash>,
    ages: BTreeMap<BlockHash, u64>,
    next_age: u64,
}

impl Recency {
    fn len(&self) -> usize {
        self.ages.len()
    }

    fn contains(&self, key: BlockHash) -> bool {
        self.ages.contains_key(&key)
    }

    /// Adds a chunk as the newest. An existing chunk keeps its position.
    fn add(&mut self, key: BlockHash) {
        if !self.contains(key) {
            self.renew(key);
        }
    }

    /// Adds a chunk as the newest, or makes an existing chunk the newest.
    fn renew(&mut self, key: BlockHash) {
        self.next_age += 1;
        if let Some(age) = self.ages.insert(key, self.next_age) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.next_age, key);
    }

    fn remove(&mut self, key: BlockHash) -> bool {
        let age = self.ages.remove(&key);
        age.is_some_and(|age| self.by_age.remove(&age).is_some())
    }

    fn remove_oldest(&mut self) -> Option<BlockHash> {
        let (_, key) = self.by_age.pop_first()?;
        self.ages.remove(&key);
        Some(key)
    }

    /// All chunks, oldest first.
    fn iter(&self) -> impl Iterator<Item = BlockHash> + '_ {
        self.by_age.values().copied()
    }
}
