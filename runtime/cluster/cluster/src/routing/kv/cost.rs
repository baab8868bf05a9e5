//! Cost of a request on each engine, and the cheapest engine.

use vcr_core::TierRun;

use super::active::Chain;
use super::{Candidate, KvRouter};

impl KvRouter {
    /// Worth of blocks below the device, in cached blocks.
    fn tier_credit(&self, tiers: TierRun) -> f64 {
        self.config.host_cache_hit_weight * f64::from(tiers.host_blocks)
            + self.config.disk_cache_hit_weight * f64::from(tiers.disk_blocks)
    }

    /// Prompt tokens that need not be computed, those below the device by their
    /// weight.
    pub(super) fn cached_tokens(&self, candidate: &Candidate) -> u64 {
        let block = u64::from(self.facts.block_size_tokens);
        let below = self.tier_credit(candidate.tiers) * block as f64;
        u64::from(candidate.overlap_blocks) * block + below.round() as u64
    }

    /// Position of the cheapest candidate.
    pub(super) fn cheapest(
        &mut self,
        owner: usize,
        prompt_tokens: u32,
        chain: &Chain,
        candidates: &[Candidate],
    ) -> usize {
        if candidates.len() == 1 {
            return 0;
        }
        self.weigh(owner, prompt_tokens, chain, candidates);
        let lowest = self.costs.iter().copied().fold(f64::INFINITY, f64::min);
        if self.config.temperature > 0.0 {
            return self.draw(lowest);
        }
        let mut chosen = 0;
        let mut equal = 0;
        for (position, &cost) in self.costs.iter().enumerate().filter(|(_, cost)| **cost == lowest) {
            debug_assert!(cost.is_finite());
            equal += 1;
            // Each of those that cost the same is as likely as the others.
            if equal == 1 || self.ties.unit() * f64::from(equal) < 1.0 {
                chosen = position;
            }
        }
        chosen
    }

    /// Draws a candidate by a softmax over its cost, scaled by the costs' spread.
    fn draw(&mut self, lowest: f64) -> usize {
        let highest = self.costs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let spread = highest - lowest;
        let scale = if spread > 0.0 { spread * self.config.temperature } else { 1.0 };
        let mut total = 0.0;
        for cost in &mut self.costs {
            total += libm::exp((lowest - *cost) / scale);
            *cost = total;
        }
        let at = self.ties.unit() * total;
        self.costs.iter().position(|&upto| at < upto).unwrap_or(self.costs.len() - 1)
    }

    /// Fills in the costs of all candidates.
    fn weigh(&mut self, owner: usize, prompt_tokens: u32, chain: &Chain, candidates: &[Candidate]) {
        let config = &self.config;
        let books = &self.replicas[owner].books;
        let block = f64::from(self.facts.block_size_tokens);
        let request_blocks = f64::from(prompt_tokens) / block;
        let prefill_blocks = |worker| books.account(worker).prefill_tokens as f64 / block;
        let least = if config.overlap_score_credit_decay > 0.0 {
            candidates.iter().map(|candidate| prefill_blocks(candidate.worker)).fold(f64::INFINITY, f64::min)
        } else {
            0.0
        };
        self.costs.clear();
        for &Candidate { worker, overlap_blocks, tiers } in candidates {
            let under_way = prefill_blocks(worker);
            let mut credit = config.overlap_score_credit * f64::from(overlap_blocks);
            if config.overlap_score_credit_decay > 0.0 {
                credit /= 1.0 + config.overlap_score_credit_decay * (under_way - least) / request_blocks;
            }
            credit += self.tier_credit(tiers);
            let raw = if config.track_prefill_tokens { under_way + request_blocks } else { 0.0 };
            let prefill = config.prefill_load_scale * (raw - credit).max(0.0);
            let requests = config.decode_active_request_weight * books.account(worker).requests as f64;
            self.costs.push(prefill + books.blocks_with(worker, chain) as f64 + requests);
        }
    }
}
