//! Per-request times: each token is emitted at its request's due time, not at the end of a step.
//!
//! Owns the due times of tokens. Admission, blocks, preemption and stops work as in any engine. A request
//! computes its prompt except for the last token as soon as it is admitted. When its first output is due, a step
//! computes the last prompt token and samples. So each step contains the requests whose tokens are due, and
//! has no duration.

use std::collections::BTreeSet;

use crate::engine::Engine;
use crate::engine::fast_forward::steady_decode::SteadyDecode;
use crate::engine::schedule::{Scan, running_chunk};
use crate::plan::{ScheduledKind, StepPlan};
use crate::plugins::request_times::{NextToken, RequestTimes};
use crate::request::{Flags, RequestId, RequestStatus};

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    due_ns: u64,
    order: u64,
}

#[derive(Debug)]
pub(super) struct Pace {
    times: Box<dyn RequestTimes>,
    /// Factor by which times are multiplied.
    factor: f64,
    now_ns: u64,
    places: Vec<Place>,
    /// Requests that wait only for their due time.
    waiting: BTreeSet<(u64, RequestId)>,
    /// Requests with work, in order of admission: their token is due, or earlier tokens must still be computed.
    active: BTreeSet<(u64, RequestId)>,
    next_order: u64,
    turn: Vec<RequestId>,
}

impl Pace {
    fn new(times: Box<dyn RequestTimes>) -> Self {
        Self {
            times,
            factor: 1.0,
            now_ns: 0,
            places: Vec::new(),
            waiting: BTreeSet::new(),
            active: BTreeSet::new(),
            next_order: 0,
            turn: Vec::new(),
        }
    }

    fn until_next_ns(&self, token: &NextToken) -> u64 {
        let ns = self.times.until_next_ns(token);
        if self.factor == 1.0 { ns } else { (ns as f64 * self.factor) as u64 }
    }

    /// Starts to track a request that runs from now on.
    fn admit(&mut self, id: RequestId, due_ns: u64) {
        if self.places.len() <= id.index() {
            self.places.resize(id.index() + 1, Place::default());
        }
        let order = self.next_order;
        self.next_order += 1;
        self.places[id.index()] = Place { due_ns, order };
        self.active.insert((order, id));
    }

    fn is_held(&self, id: RequestId) -> bool {
        self.places[id.index()].due_ns > self.now_ns
    }

    /// Lets a request wait for its due time, once all tokens before the due token are computed.
    fn rest(&mut self, id: RequestId) {
        let Place { due_ns, order } = self.places[id.index()];
        self.active.remove(&(order, id));
        self.waiting.insert((due_ns, id));
    }

    /// Sets the due time of the next token to `gap_ns` after the token that the current step samples. A late token
    /// does not delay the next one, unless it is late by more than a gap.
    fn await_next(&mut self, id: RequestId, gap_ns: u64) {
        let place = &mut self.places[id.index()];
        let due_ns = place.due_ns.saturating_add(gap_ns);
        place.due_ns = if due_ns > self.now_ns { due_ns } else { self.now_ns.saturating_add(gap_ns) };
        self.rest(id);
    }

    fn forget(&mut self, id: RequestId) {
        let Some(&Place { due_ns, order }) = self.places.get(id.index()) else { return };
        self.active.remove(&(order, id));
        self.waiting.remove(&(due_ns, id));
    }

    fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        while let Some(&(due_ns, id)) = self.waiting.first()
            && due_ns <= self.now_ns
        {
            self.waiting.pop_first();
            self.active.insert((self.places[id.index()].order, id));
        }
    }
}

impl Engine {
    /// Sets per-request times from now on, or removes them. Running requests get their next
    /// tokens at once. Steps then have no duration. The driver calls [`Engine::advance_clock`]
    /// before it schedules, and whenever [`Engine::next_token_ns`] has passed.
    pub fn set_request_times(&mut self, times: Option<Box<dyn RequestTimes>>) {
        self.dissolve_steady_decode();
        self.steady_decode.enable(times.is_none() && SteadyDecode::is_possible(&self.config));
        let now_ns = self.turns.pace.as_ref().map_or(0, |pace| pace.now_ns);
        self.turns.pace = times.map(|times| {
            let mut pace = Box::new(Pace::new(times));
            pace.now_ns = now_ns;
            self.running.iter().for_each(|&id| pace.admit(id, now_ns));
            pace
        });
    }

    /// Whether requests have per-request times.
    #[must_use]
    #[inline]
    pub fn has_request_times(&self) -> bool {
        self.turns.pace.is_some()
    }

    /// Sets the factor for request times that are drawn from now on.
    pub fn set_request_time_factor(&mut self, factor: f64) {
        if let Some(pace) = &mut self.turns.pace {
            pace.factor = factor;
        }
    }

    /// Advances the clock, which never runs backwards.
    pub fn advance_clock(&mut self, now_ns: u64) {
        if let Some(pace) = &mut self.turns.pace {
            pace.advance(now_ns);
        }
    }

    /// The earliest due time of a token; None if no request waits for its due time.
    #[must_use]
    pub fn next_token_ns(&self) -> Option<u64> {
        self.turns.pace.as_ref().and_then(|pace| pace.waiting.first().map(|&(due_ns, _)| due_ns))
    }

    /// Delays all tokens that are due later than now.
    pub fn delay_tokens(&mut self, by_ns: u64) {
        let Some(pace) = &mut self.turns.pace else { return };
        for (due_ns, id) in std::mem::take(&mut pace.waiting) {
            let later_ns = due_ns.saturating_add(by_ns);
            pace.places[id.index()].due_ns = later_ns;
            pace.waiting.insert((later_ns, id));
        }
    }

    /// The due time of the first token of a request that is admitted now with `computed` computed tokens. None
    /// without per-request times.
    #[inline]
    pub(in crate::engine) fn first_token_ns(&self, id: RequestId, computed: u32) -> Option<u64> {
        let pace = self.turns.pace.as_ref()?;
        let request = &self.requests[id];
        let is_prefill = computed < request.prefill_target_tokens;
        let token = NextToken {
            request: request.sequence,
            position: request.num_tokens,
            prefill_tokens: is_prefill.then(|| request.num_tokens - computed),
            running_requests: self.running.len() as u32 + 1,
        };
        Some(pace.now_ns.saturating_add(pace.until_next_ns(&token)))
    }

    pub(in crate::engine) fn is_later(&self, due_ns: u64) -> bool {
        self.turns.pace.as_ref().is_some_and(|pace| due_ns > pace.now_ns)
    }

    /// Tracks a request that has just been admitted and added to the plan.
    pub(in crate::engine) fn begin_pace(&mut self, id: RequestId, due_ns: u64, plan: &StepPlan) {
        if let Some(pace) = &mut self.turns.pace {
            pace.admit(id, due_ns);
        }
        self.follow_pace(id, plan);
    }

    /// Decides what a request waits for next, after its latest entry in `plan`.
    fn follow_pace(&mut self, id: RequestId, plan: &StepPlan) {
        let Some(pace) = &mut self.turns.pace else { return };
        let request = &self.requests[id];
        if plan.scheduled.last().is_some_and(|entry| entry.samples) {
            let token = NextToken {
                request: request.sequence,
                position: request.num_computed_tokens + 1,
                prefill_tokens: None,
                running_requests: self.running.len() as u32,
            };
            let gap_ns = pace.until_next_ns(&token);
            pace.await_next(id, gap_ns);
        } else if pace.is_held(id) && request.num_computed_tokens + 1 >= request.num_tokens {
            pace.rest(id);
        }
    }

    /// Schedules the running requests that have work, in order of admission.
    #[cold]
    #[inline(never)]
    pub(in crate::engine) fn schedule_paced(&mut self, plan: &mut StepPlan, scan: &mut Scan) {
        let Some(pace) = &mut self.turns.pace else { return };
        let mut turn = std::mem::take(&mut pace.turn);
        turn.extend(pace.active.iter().map(|&(_, id)| id));
        for id in turn.drain(..) {
            if scan.budget() == 0 {
                break;
            }
            // The request may have been preempted by an earlier one.
            if self.requests[id].status == RequestStatus::Running && !self.schedule_paced_one(id, plan, scan) {
                break;
            }
        }
        if let Some(pace) = &mut self.turns.pace {
            turn.clear();
            pace.turn = turn;
        }
    }

    /// Schedules a running request. Returns false if it was preempted for lack of blocks and no
    /// other request should follow.
    fn schedule_paced_one(&mut self, id: RequestId, plan: &mut StepPlan, scan: &mut Scan) -> bool {
        let Some(pace) = &self.turns.pace else { return false };
        let is_held = pace.is_held(id);
        let request = &self.requests[id];
        let mut tokens = running_chunk(request, self.config.max_model_len(), scan);
        if is_held {
            tokens = tokens.min((request.num_tokens - 1).saturating_sub(request.num_computed_tokens));
        }
        let lookahead_tokens = self.config.drafting().lookahead_tokens;
        if tokens == 0 {
            return true;
        }
        if tokens > 1 {
            tokens = tokens.min(self.chunk_cap(id));
        }
        let request = &self.requests[id];
        let end = request.num_computed_tokens + tokens;
        let first_block = plan.block_ids.len() as u32;
        let extra = self.config.quirks().burst_tokens() + lookahead_tokens;
        if end + extra > request.capacity_tokens && !self.make_room(id, end + lookahead_tokens, &mut 0, plan, scan) {
            return self.config.scans_on_after_own_preemption();
        }
        self.store_full_blocks(id, end);
        scan.take(tokens);
        scan.prefill_running |= self.requests[id].flags.has(Flags::PREFILL_CHUNK);
        self.commit(plan, id, ScheduledKind::Running, tokens, None, first_block);
        self.follow_pace(id, plan);
        true
    }

    pub(in crate::engine) fn forget_pace(&mut self, id: RequestId) {
        if let Some(pace) = &mut self.turns.pace {
            pace.forget(id);
        }
    }
}
