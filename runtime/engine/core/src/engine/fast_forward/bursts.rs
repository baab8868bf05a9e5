//! Steps of pure decode whose requests get bursts of tokens.
//!
//! The length of a burst comes out at the end of its step, so such steps are not predicted; but
//! as long as no request can end, each is followed by another one of the same requests.

use crate::engine::Engine;
use crate::plan::{RequestOutput, ScheduledKind, StepPlan};
use crate::plugins::TokenSource;
use crate::request::RequestId;

impl Engine {
    /// Whether the step in flight decodes every request with bursts, none of which may end in it,
    /// and the next step decodes the same again, whatever the bursts are. This holds as long as
    /// nothing comes from outside.
    #[must_use]
    pub fn decodes_bursts_on(&self) -> bool {
        let most_tokens = self.config.quirks().burst_tokens() + 1;
        // A step takes no more for each request.
        let most_blocks = most_tokens.div_ceil(self.config.block_size()) as usize;
        let goes_on = |id: RequestId| {
            let request = &self.requests[id];
            request.num_stale_tokens == 0 && request.certain_tokens() > most_tokens
        };
        most_tokens > 1
            && !self.config.async_scheduling()
            && self.config.num_speculative_tokens() == 0
            && !self.kv_loads.has_tiers()
            && self.decodes_all()
            && most_blocks * self.running.len() <= self.pool().num_free() as usize
            && self.plan().scheduled.iter().all(|entry| goes_on(entry.request))
    }

    /// Does what a call of [`Engine::update`] and then one of [`Engine::schedule`] would do.
    ///
    /// # Panics
    /// When not [`Engine::decodes_bursts_on`]: a driver bug.
    pub fn decode_bursts<S: TokenSource + ?Sized>(&mut self, source: &mut S) {
        debug_assert!(self.decodes_bursts_on(), "a step was skipped that may end a request");
        let stop = self.repeated_stop().expect("the step repeats itself");
        let mut plan = self.steps.take_newest();
        self.give_bursts(&plan, source);
        self.steps.skip(1);
        self.requests.recycle(self.steps.applied());
        plan.clear();
        plan.admission_stop = stop;
        for index in 0..self.running.len() {
            self.decode_again(self.running[index], &mut plan);
        }
        self.note_occupancy(&mut plan);
        self.stats.steps += 1;
        self.note_skipped_steps();
        self.steps.put_newest(plan);
    }

    /// Applies the step of `plan`.
    fn give_bursts<S: TokenSource + ?Sized>(&mut self, plan: &StepPlan, source: &mut S) {
        let (caching, block_size) = (self.kv_cache.caching(), self.config.block_size());
        let most_extra = self.config.quirks().burst_tokens();
        let out = &mut self.outputs;
        out.clear();
        for entry in &plan.scheduled {
            let request = &mut self.requests[entry.request];
            let already = request.num_output_tokens();
            let extra = source.extra_tokens(entry.tag, most_extra).min(most_extra);
            for index in already..=already + extra {
                let token = source.token(entry.tag, index);
                out.tokens.push(token);
                request.push_output(token, caching, block_size);
            }
            request.num_in_flight_tokens -= entry.num_scheduled_tokens;
            // Tokens of a burst but the last come with their KV computed.
            request.num_computed_tokens += extra;
            out.outputs.push(RequestOutput {
                request: entry.request,
                tag: entry.tag,
                num_tokens: 1 + extra,
                num_sampled_tokens: (1 + extra) as u16,
                num_draft_tokens: 0,
                finish: None,
            });
        }
    }

    /// Schedules the next token of a request that decodes.
    fn decode_again(&mut self, id: RequestId, plan: &mut StepPlan) {
        let request = &self.requests[id];
        let end = request.num_computed_tokens + 1;
        let first_block = plan.block_ids.len() as u32;
        if end + self.config.quirks().burst_tokens() > request.capacity_tokens {
            let has_grown = self.give_blocks(id, end, plan);
            assert!(has_grown, "blocks were counted before the step");
        }
        self.store_full_blocks(id, end);
        self.commit(plan, id, ScheduledKind::Running, 1, None, first_block);
    }
}
