//! Many steps of pure decode applied at once.
//!
//! Applies the steps predicted by [`Engine::predict_decode_steps`] without work per request and step: the cost
//! depends only on the tokens and the filled blocks. Block ids and the order of events are the same as for
//! single steps.

pub(super) mod steady_decode;

use crate::engine::Engine;
use crate::kv::event::KvEventLog;
use crate::kv::pool::BlockId;
use crate::plan::{AdmissionStop, RequestOutput, ScheduledKind, StepPlan};
use crate::plugins::TokenSource;
use crate::request::RequestId;

/// A block allocated to a request within a [`FastForward`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGrant {
    /// Step of the fast-forward, counted from 1.
    pub step: u32,
    /// Index of the request in [`crate::plan::StepPlan::scheduled`].
    pub entry: u32,
    /// The block.
    pub block: BlockId,
}

/// Record of [`Engine::decode_ahead`], step by step.
#[derive(Debug, Default)]
pub struct FastForward {
    /// Number of steps applied, which is also the number of steps scheduled.
    pub steps: u32,
    /// Blocks allocated by the scheduled steps, in order.
    pub grants: Vec<BlockGrant>,
    /// Number of KV events in the pool's log at the end of each scheduled step; empty if events are
    /// not recorded.
    pub events_by_step: Vec<u32>,
    /// The steps at which requests need or fill a block, ordered by request and then by step.
    due: Vec<Due>,
    /// The entries of `due`, ordered by step and then by request.
    due_by_step: Vec<Due>,
}

/// A step at which a request needs a block or fills one.
#[derive(Clone, Copy, Debug, Default)]
struct Due {
    step: u32,
    entry: u32,
    grows: bool,
}

impl Engine {
    /// Has the effect of `steps` pairs of calls, each of [`Engine::update`] and then [`Engine::schedule`].
    /// [`Engine::predict_decode_steps`] must have predicted at least `steps` steps. Afterwards the last of
    /// these steps is the oldest step in flight.
    ///
    /// In [`Engine::outputs`], each request has one token per applied step.
    ///
    /// # Panics
    /// If `steps` is 0, or more than were predicted: a driver bug.
    pub fn decode_ahead<S: TokenSource + ?Sized>(&mut self, steps: u32, source: &mut S) -> &FastForward {
        assert!(self.repeats_itself() && steps > 0, "{steps} steps were skipped that had not been predicted");
        let mut shape = self.plan().shape;
        shape.decode_context_tokens += shape.decode_requests * u64::from(steps);
        shape.waiting_requests = self.num_waiting() as u64;
        let stop = self.repeated_stop().expect("the step repeats itself");
        self.fast_forward.begin(steps);
        self.outputs.clear();
        if self.is_all_steady_decode() {
            self.skip_steady_decode_steps(steps, stop);
        } else {
            assert_eq!(self.steps_until_first_end(steps as usize), steps as usize, "a request ends in a fast-forward");
            self.decode_tokens(steps, source);
            self.fill_blocks(steps);
            self.repeat_plan(steps);
        }
        shape.kv_active_blocks = u64::from(self.pool().num_active());
        let plan = self.steps.newest_mut();
        plan.shape = shape;
        plan.admission_stop = stop;
        self.stats.steps += u64::from(steps);
        self.note_skipped_steps();
        self.steps.skip(steps);
        self.requests.recycle(self.steps.applied());
        &self.fast_forward
    }

    fn skip_steady_decode_steps(&mut self, steps: u32, stop: AdmissionStop) {
        let mut plan = self.steps.take_newest();
        let mut fast_forward = std::mem::take(&mut self.fast_forward);
        self.outputs.steady_decode_groups.extend_from_slice(&plan.steady_decode_groups);
        let mut left = steps;
        if self.steps.count() > 1 {
            // Afterwards, the second to last of the `steps` steps is the oldest in flight.
            if steps > 1 {
                let before = plan.shape;
                plan.clear();
                self.advance_steady_decode_by(&mut plan, steps - 1, &mut fast_forward);
                plan.shape = before.decode_step(u64::from(steps - 1), u64::from(self.pool().num_active()));
                plan.admission_stop = stop;
            }
            std::mem::swap(self.steps.oldest_mut(), &mut *plan);
            left = 1;
        }
        plan.clear();
        self.advance_steady_decode_by(&mut plan, left, &mut fast_forward);
        self.steps.put_newest(plan);
        self.fast_forward = fast_forward;
        self.kv_loads.forget_taken_blocks();
    }

    /// Adds each request's tokens, and records the steps at which its blocks become full or it needs a
    /// new block.
    fn decode_tokens<S: TokenSource + ?Sized>(&mut self, steps: u32, source: &mut S) {
        let caching = self.kv_cache.caching();
        let block_size = self.config.block_size();
        let plan = self.steps.take_newest();
        let out = &mut self.outputs;
        for (index, entry) in plan.scheduled.iter().enumerate() {
            let request = &mut self.requests[entry.request];
            let computed = request.num_computed_tokens;
            let mut note = |first_tokens: u32, grows| {
                for step in (first_tokens - computed..=steps).step_by(block_size as usize) {
                    self.fast_forward.due.push(Due { step, entry: index as u32, grows });
                }
            };
            // A step allocates the block it needs before it offers the previous block to the cache.
            note(request.capacity_tokens.saturating_add(1), true);
            note(request.next_store_tokens, false);
            let first = request.num_output_tokens();
            for output_index in first..first + steps {
                let token = source.token(entry.tag, output_index);
                out.tokens.push(token);
                request.push_output(token, caching, block_size);
            }
            request.num_computed_tokens += steps;
            out.outputs.push(RequestOutput {
                request: entry.request,
                tag: entry.tag,
                num_tokens: steps,
                num_sampled_tokens: steps as u16,
                num_draft_tokens: 0,
                finish: None,
            });
        }
        self.steps.put_newest(plan);
    }

    /// Allocates blocks and offers full blocks to the cache, in the order of single steps.
    fn fill_blocks(&mut self, steps: u32) {
        self.fast_forward.order_by_step();
        let due = std::mem::take(&mut self.fast_forward.due_by_step);
        let mut next = 0;
        for step in 1..=steps {
            while let Some(&Due { entry, grows, .. }) = due.get(next).filter(|due| due.step == step) {
                next += 1;
                let id = self.plan().scheduled[entry as usize].request;
                if grows {
                    self.grow_table(id, 1);
                    let block = *self.requests[id].block_table.last().expect("it has just grown");
                    self.fast_forward.grants.push(BlockGrant { step, entry, block });
                } else {
                    let computed = self.requests[id].num_computed_tokens - (steps - step);
                    self.store_full_blocks(id, computed);
                }
            }
            self.fast_forward.note_events(self.kv_cache.pool().events(), 1);
        }
        self.fast_forward.due_by_step = due;
    }

    /// Replaces the entries of the plan in flight by those of the fast-forward's last step.
    fn repeat_plan(&mut self, steps: u32) {
        let mut plan = self.steps.take_newest();
        plan.block_ids.clear();
        plan.freed_encoder_items.clear();
        plan.preempted.clear();
        plan.remote_loads.clear();
        plan.tier_loads.clear();
        let last = self.fast_forward.grants.partition_point(|grant| grant.step < steps);
        let mut grants = self.fast_forward.grants[last..].iter().peekable();
        for (index, entry) in plan.scheduled.iter_mut().enumerate() {
            let first = plan.block_ids.len() as u32;
            plan.block_ids.extend(grants.next_if(|grant| grant.entry == index as u32).map(|grant| grant.block));
            entry.num_computed_tokens += steps;
            entry.kind = ScheduledKind::Running;
            entry.blocks = first..plan.block_ids.len() as u32;
        }
        self.steps.put_newest(plan);
    }
}

impl FastForward {
    fn begin(&mut self, steps: u32) {
        self.steps = steps;
        self.grants.clear();
        self.events_by_step.clear();
        self.due.clear();
    }

    /// Records the number of events in the log after each scheduled step.
    pub(super) fn note_events(&mut self, log: Option<&KvEventLog>, steps: u32) {
        if let Some(events) = log {
            let noted = self.events_by_step.len();
            self.events_by_step.resize(noted + steps as usize, events.len() as u32);
        }
    }

    /// Counting sort, which keeps the order of requests within a step.
    fn order_by_step(&mut self) {
        let mut ends = [0u32; Engine::MAX_PREDICTED_STEPS + 2];
        for due in &self.due {
            ends[due.step as usize + 1] += 1;
        }
        for step in 1..ends.len() {
            ends[step] += ends[step - 1];
        }
        self.due_by_step.clear();
        self.due_by_step.resize(self.due.len(), Due::default());
        for &due in &self.due {
            let place = &mut ends[due.step as usize];
            self.due_by_step[*place as usize] = due;
            *place += 1;
        }
    }
}

// Steps of pure decode in which requests get bursts of tokens.
//
// The length of a burst is only determined at the end of its step, so such steps are not predicted. But while no
// request can end, each step is followed by another step with the same requests.

impl Engine {
    /// Whether the step in flight decodes every request with bursts, no request can end in it, and the next
    /// step decodes the same requests again, whatever the bursts are. This stays true until the driver makes another
    /// call that changes the engine.
    #[must_use]
    pub fn decodes_bursts_on(&self) -> bool {
        let most_tokens = self.config.quirks().burst_tokens() + 1;
        // A step needs at most this many blocks for each request.
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

    /// Has the effect of one call of [`Engine::update`] and then one of [`Engine::schedule`].
    ///
    /// # Panics
    /// If [`Engine::decodes_bursts_on`] is false: a driver bug.
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
            // The KV of all tokens of a burst except the last is already computed.
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
