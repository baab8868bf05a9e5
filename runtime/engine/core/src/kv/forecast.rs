//! Eviction by the future: Belady's rule, where all prompts are known before the run.
//!
//! Owns the order in which requests use blocks over all engines, and the free cached blocks of one
//! pool by their next use. The block whose next use is by the latest request is evicted first.
//! Unused blocks precede these, and redundant copies precede all; ties are broken by the order of
//! release. A request counts until its prompt is first scheduled anywhere. So the rule knows the
//! order of requests, but neither their engines nor their outputs: it bounds the gain of an
//! eviction order, and with several engines this bound is not tight.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::kv::hash::BlockHash;

/// Number of a block in its pool.
type BlockId = u32;

/// No request uses the block again.
const NEVER: u32 = u32::MAX;

/// The blocks of all prompts of a run.
#[derive(Debug, Default)]
pub struct Forecast {
    /// The distinct blocks, in order.
    hashes: Vec<BlockHash>,
    /// For each block, the start of its requests in `requests`, and their end.
    starts: Vec<u32>,
    /// Requests by block, in order of arrival.
    requests: Vec<u32>,
    /// The blocks of each request's prompt.
    prompts: Vec<Vec<u32>>,
}

impl Forecast {
    /// Requests in the order of their numbers, which begin with 0, each with the hashes of the
    /// full blocks of its prompt.
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

/// A free cached block in eviction order: the last one is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Another block has the same content.
    is_copied: bool,
    next_use: u32,
    /// Greater for blocks that were released earlier.
    age: u64,
    id: BlockId,
}

/// The future as one pool sees it.
#[derive(Debug)]
pub(crate) struct Outlook {
    forecast: Arc<Forecast>,
    has_come: Vec<bool>,
    /// For each block, the number of its requests that have arrived.
    passed: Vec<u32>,
    candidates: BTreeSet<Candidate>,
    /// The candidates by block, with their hashes.
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

    /// A cached block is free.
    pub(crate) fn add(&mut self, id: BlockId, hash: BlockHash, is_copied: bool) {
        self.released += 1;
        let next_use = self.forecast.block_of(hash).map_or(NEVER, |block| self.next_use(block));
        let candidate = Candidate { is_copied, next_use, age: u64::MAX - self.released, id };
        self.candidates.insert(candidate);
        self.listed.insert(id, (candidate, hash));
        self.by_hash.insert((hash, id));
    }

    /// Records that content now is in another block, or in only one.
    pub(crate) fn set_copied(&mut self, hash: BlockHash, is_copied: bool) {
        self.change(hash, |candidate| candidate.is_copied = is_copied);
    }

    /// Changes the candidates with some content.
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

    /// Removes a block that is not free any more, or not cached.
    pub(crate) fn remove(&mut self, id: BlockId) {
        if let Some((candidate, hash)) = self.listed.remove(&id) {
            self.candidates.remove(&candidate);
            self.by_hash.remove(&(hash, id));
        }
    }

    /// Takes the first block to evict.
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

    /// The prompt of a request is scheduled, or it never will be.
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

    /// The next request that uses a block.
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
        // One of two blocks with the same content is redundant.
        outlook.set_copied(1, true);
        assert_eq!(outlook.pop(), Some(11));
        outlook.set_copied(1, false);
        // No prompt contains 9. The others follow by the requests 1, 0 and 0; of the last two, 12
        // was released first.
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
        // No request uses 1 again, request 3 uses 2, and request 1 uses 3.
        outlook.remove(12);
        outlook.add(12, 2, false);
        assert_eq!(std::iter::from_fn(|| outlook.pop()).collect::<Vec<_>>(), [11, 12, 13]);
    }

    /// The fewest misses of a cache of two blocks, by trying all that could go.
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
        /// One block at a time, it misses as rarely as is possible.
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
