//! Belady's eviction rule, for runs whose prompts are all known in advance.
//!
//! Owns the order in which requests use blocks over all engines, and the free cached blocks of one
//! pool by their next use. The block whose next use is furthest away is evicted first. Blocks that no request uses
//! again go before it, and redundant copies go before all others. Ties are broken by the order of
//! release. A request counts as coming until its prompt is first scheduled on any engine. So the rule knows the
//! order of requests, but neither their engines nor their outputs. It is an upper bound for eviction policies;
//! with several engines, the bound is not tight.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::kv::hash::BlockHash;

type BlockId = u32;

/// Marks a block that no later request uses.
const NEVER: u32 = u32::MAX;

/// The blocks of all prompts of a run.
#[derive(Debug, Default)]
pub struct Forecast {
    /// The distinct blocks, sorted.
    hashes: Vec<BlockHash>,
    /// For each block, where its requests start in `requests`. The last entry is the end.
    starts: Vec<u32>,
    /// Requests by block, in order of arrival.
    requests: Vec<u32>,
    /// The blocks of each request's prompt, as indices into `hashes`.
    prompts: Vec<Vec<u32>>,
}

impl Forecast {
    /// Makes the forecast from the prompts of requests 0, 1, and so on. A prompt is given by the hashes of its
    /// full blocks.
    #[must_use]
    pub fn new<H: AsRef<[BlockHash]>>(prompts: &[H]) -> Self {
        let mut uses: Vec<(BlockHash, u32)> = Vec::new();
        for (request, prompt) in (0..).zip(prompts) {
            uses.extend(prompt.as_ref().iter().map(|&hash| (hash, request)));
        }
        uses.sort_unstable();
        uses.dedup();
        let mut forecast = Self { prompts: vec![Vec::new(); prompts.len()], ..Self::default() };
        for (hash, request) in uses {
            if forecast.hashes.last() != Some(&hash) {
                forecast.hashes.push(hash);
                forecast.starts.push(forecast.requests.len() as u32);
            }
            forecast.prompts[request as usize].push(forecast.hashes.len() as u32 - 1);
            forecast.requests.push(request);
        }
        forecast.starts.push(forecast.requests.len() as u32);
        forecast
    }

    fn block_of(&self, hash: BlockHash) -> Option<u32> {
        self.hashes.binary_search(&hash).ok().map(|block| block as u32)
    }
}

/// A free cached block. The largest candidate is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Whether another block has the same content.
    is_copied: bool,
    next_use: u32,
    /// Larger for blocks that were released earlier.
    age: u64,
    id: BlockId,
}

/// The forecast from the view of one pool.
#[derive(Debug)]
pub(crate) struct Outlook {
    forecast: Arc<Forecast>,
    has_come: Vec<bool>,
    /// For each block, how many of its requests have already come.
    passed: Vec<u32>,
    candidates: BTreeSet<Candidate>,
    /// The candidates and their hashes, by block id.
    listed: BTreeMap<BlockId, (Candidate, BlockHash)>,
    by_hash: BTreeSet<(BlockHash, BlockId)>,
    released: u64,
}

impl Outlook {
    pub(crate) fn new(forecast: Arc<Forecast>) -> Self {
        Self {
            has_come: vec![false; forecast.prompts.len()],
            passed: vec![0; forecast.hashes.len()],
            candidates: BTreeSet::new(),
            listed: BTreeMap::new(),
            by_hash: BTreeSet::new(),
            released: 0,
            forecast,
        }
    }

    /// Adds a cached block that has become free.
    pub(crate) fn add(&mut self, id: BlockId, hash: BlockHash, is_copied: bool) {
        self.released += 1;
        let next_use = self.forecast.block_of(hash).map_or(NEVER, |block| self.next_use(block));
        let candidate = Candidate { is_copied, next_use, age: u64::MAX - self.released, id };
        self.candidates.insert(candidate);
        self.listed.insert(id, (candidate, hash));
        self.by_hash.insert((hash, id));
    }

    /// Records whether the content `hash` is now in more than one block.
    pub(crate) fn set_copied(&mut self, hash: BlockHash, is_copied: bool) {
        self.change(hash, |candidate| candidate.is_copied = is_copied);
    }

    fn change(&mut self, hash: BlockHash, change: impl Fn(&mut Candidate)) {
        let ids: Vec<BlockId> = self.by_hash.range((hash, 0)..=(hash, BlockId::MAX)).map(|&(_, id)| id).collect();
        for id in ids {
            if let Some((candidate, _)) = self.listed.get_mut(&id) {
                self.candidates.remove(candidate);
                change(candidate);
                self.candidates.insert(*candidate);
            }
        }
    }

    /// Removes a block that is no longer free or no longer cached.
    pub(crate) fn remove(&mut self, id: BlockId) {
        if let Some((candidate, hash)) = self.listed.remove(&id) {
            self.candidates.remove(&candidate);
            self.by_hash.remove(&(hash, id));
        }
    }

    /// Removes and returns the next block to evict.
    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        let id = self.candidates.last()?.id;
        self.remove(id);
        Some(id)
    }

    pub(crate) fn clear(&mut self) {
        self.candidates.clear();
        self.listed.clear();
        self.by_hash.clear();
    }

    /// Records that a request's prompt has been scheduled, or never will be.
    pub(crate) fn mark_scheduled(&mut self, request: u64) {
        let forecast = Arc::clone(&self.forecast);
        let Some(has_come) = self.has_come.get_mut(request as usize) else { return };
        if std::mem::replace(has_come, true) {
            return;
        }
        for &block in &forecast.prompts[request as usize] {
            let before = self.passed[block as usize];
            let uses = self.uses(block);
            let more = uses[before as usize..].iter().take_while(|&&user| self.has_come[user as usize]).count() as u32;
            if more == 0 {
                continue;
            }
            self.passed[block as usize] += more;
            let next_use = self.next_use(block);
            self.change(forecast.hashes[block as usize], |candidate| candidate.next_use = next_use);
        }
    }

    fn uses(&self, block: u32) -> &[u32] {
        let Forecast { starts, requests, .. } = &*self.forecast;
        &requests[starts[block as usize] as usize..starts[block as usize + 1] as usize]
    }

    /// The next request that uses a block, or [`NEVER`].
    fn next_use(&self, block: u32) -> u32 {
        self.uses(block).get(self.passed[block as usize] as usize).copied().unwrap_or(NEVER)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn outlook(prompts: &[&[BlockHash]]) -> Outlook {
        Outlook::new(Arc::new(Forecast::new(prompts)))
    }

    #[test]
    fn what_is_used_last_goes_first_and_what_is_never_used_before_it() {
        let mut outlook = outlook(&[&[1, 2], &[3], &[1], &[2]]);
        for (id, hash) in [(11, 1), (12, 2), (13, 3), (19, 9), (21, 1)] {
            outlook.add(id, hash, false);
        }
        // If two blocks have the same content, one is redundant.
        outlook.set_copied(1, true);
        assert_eq!(outlook.pop(), Some(11));
        outlook.set_copied(1, false);
        // No prompt contains 9, so it goes first. The next uses of the others are by requests 1, 0 and 0. Of the last
        // two, 12 was released first.
        assert_eq!(std::iter::from_fn(|| outlook.pop()).collect::<Vec<_>>(), [19, 13, 12, 21]);
    }

    #[test]
    fn requests_that_have_come_count_no_longer_in_whatever_order_they_come() {
        let mut outlook = outlook(&[&[1, 2], &[3], &[1], &[2]]);
        for (id, hash) in [(11, 1), (12, 2), (13, 3)] {
            outlook.add(id, hash, false);
        }
        outlook.mark_scheduled(2);
        outlook.mark_scheduled(0);
        outlook.mark_scheduled(0);
        outlook.mark_scheduled(77);
        // No request uses content 1 again; request 3 uses content 2, and request 1 uses content 3.
        outlook.remove(12);
        outlook.add(12, 2, false);
        assert_eq!(std::iter::from_fn(|| outlook.pop()).collect::<Vec<_>>(), [11, 12, 13]);
    }

    /// The fewest misses of a cache of two blocks, found by trying all evictions.
    fn fewest_misses(uses: &[BlockHash], cached: &BTreeSet<BlockHash>) -> usize {
        let Some((&next, rest)) = uses.split_first() else { return 0 };
        if cached.contains(&next) {
            return fewest_misses(rest, cached);
        }
        let with = |gone: Option<BlockHash>| {
            let mut kept = cached.clone();
            if let Some(gone) = gone {
                kept.remove(&gone);
            }
            kept.insert(next);
            1 + fewest_misses(rest, &kept)
        };
        if cached.len() < 2 { with(None) } else { cached.iter().map(|&gone| with(Some(gone))).min().expect("two") }
    }

    proptest! {
        /// If requests use one block each, the rule reaches the minimum number of misses.
        #[test]
        fn one_request_after_another_it_is_the_best_there_is(uses in proptest::collection::vec(1..5u64, 1..10)) {
            let prompts: Vec<[BlockHash; 1]> = uses.iter().map(|&hash| [hash]).collect();
            let mut outlook = Outlook::new(Arc::new(Forecast::new(&prompts)));
            let mut cached: BTreeMap<BlockHash, BlockId> = BTreeMap::new();
            let mut misses = 0;
            for (request, &hash) in uses.iter().enumerate() {
                outlook.mark_scheduled(request as u64);
                if let Some(&id) = cached.get(&hash) {
                    outlook.remove(id);
                    outlook.add(id, hash, false);
                    continue;
                }
                misses += 1;
                if cached.len() == 2 {
                    let gone = outlook.pop().expect("both are free");
                    cached.retain(|_, id| *id != gone);
                }
                let id = 100 + request as BlockId;
                cached.insert(hash, id);
                outlook.add(id, hash, false);
            }
            prop_assert_eq!(misses, fewest_misses(&uses, &BTreeSet::new()));
        }
    }
}
