//! Steady decode: requests that get one token in each step, without work per request.
//!
//! While a request decodes, a step changes only its length. Requests with drawn outputs
//! ([`crate::DrawnOutputs`]) become members of the steady decode. Each step only counts its members. A calendar
//! names the members that need a block, fill a block or end in a step. So the cost of a step depends on these
//! events, not on the number of running requests.
//!
//! Under async scheduling, a step is scheduled while the previous step is in flight, and its members do not know the
//! token of that step yet. Each plan in flight counts exactly the current members: a request that joins is
//! removed from the lists of these plans, and a request that leaves is added to them.
//!
//! Owns the membership and the output tokens that are not reported yet. The results are the same as for
//! single steps: the same blocks in the same order, the same KV events, the same shapes. Code that reads the
//! members' requests, or may take KV from them, must dissolve the steady decode first.

mod calendar;

use std::iter::Peekable;
use std::vec::IntoIter;

use self::calendar::Calendar;
use crate::config::{EngineConfig, Policy};
use crate::engine::Engine;
use crate::engine::fast_forward::FastForward;
use crate::engine::schedule::{Scan, note_lora};
use crate::kv::groups::Chunk;
use crate::plan::{ScheduledKind, ScheduledRequest, StepPlan};
use crate::plugins::latency::{BlockChange, StepShape};
use crate::request::{DrawnOutputs, Flags, Request, RequestId, RequestStatus};

/// The calendar covers more steps than a fast-forward can skip, so a fast-forward sees every event in
/// its range.
const MIN_CALENDAR_STEPS: usize = 2 * Engine::MAX_PREDICTED_STEPS;
const _: () = assert!(Engine::MAX_PREDICTED_STEPS <= calendar::STEPS_PER_WORD);
/// With smaller blocks, members need work so often that a steady decode does not pay.
const LEAST_BLOCK_TOKENS: u32 = 8;
/// With larger blocks, the calendar costs more than it saves.
const MAX_BLOCK_TOKENS: u32 = 4096;

/// State of a request in the steady decode, by slot.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    drawn: Option<DrawnOutputs>,
    is_member: bool,
    /// Sequence number of joining, in the order of the running list. 0 for a request that is not a member,
    /// unless it left with a step in flight.
    handle: u64,
    /// The request's fields are up to date with this step of the steady decode's clock.
    known_at: u64,
    /// Number of output tokens that the driver knows of.
    reported_tokens: u32,
}

/// The distinct adapters of the requests at the head of the running list.
#[derive(Debug, Default)]
struct MemberAdapters {
    /// Each adapter once, in the order of the requests.
    distinct: Vec<u32>,
    /// Whether requests may have left since the list was made.
    outdated: bool,
    members: u32,
}

impl MemberAdapters {
    fn join(&mut self, lora: Option<u32>) {
        self.members += u32::from(lora.is_some());
        note_lora(&mut self.distinct, lora);
    }

    fn clear(&mut self) {
        self.distinct.clear();
        self.outdated = false;
    }
}

#[derive(Debug)]
pub(in crate::engine) struct SteadyDecode {
    /// Whether the engine's settings allow a steady decode.
    enabled: bool,
    places: Vec<Place>,
    /// Number of requests at the head of the running list that are members, or that were members until a step in
    /// flight.
    head: usize,
    members: u32,
    /// Number of requests that were members until the latest step, which is their last.
    left: u32,
    /// Number of steps in flight that members have accounted for.
    lag: usize,
    /// Number of members by [`DrawnOutputs::group`].
    groups: Vec<u32>,
    adapters: MemberAdapters,
    /// Number of steps scheduled with members.
    clock: u64,
    next_handle: u64,
    /// Sum of the members' computed tokens after the latest step.
    context_tokens: u64,
    /// The members to visit in coming steps.
    calendar: Calendar,
    /// Tags of requests that left, with the number of output tokens that the driver does not know of.
    unreported: Vec<(u64, u32)>,
    due: Vec<RequestId>,
}

impl SteadyDecode {
    pub(in crate::engine) fn new(config: &EngineConfig) -> Self {
        Self {
            enabled: Self::is_possible(config),
            places: Vec::new(),
            head: 0,
            members: 0,
            left: 0,
            lag: 0,
            groups: Vec::new(),
            adapters: MemberAdapters::default(),
            clock: 0,
            next_handle: 1,
            context_tokens: 0,
            calendar: Calendar::default(),
            unreported: Vec::new(),
            due: Vec::new(),
        }
    }

    /// Whether an engine with these settings can have a steady decode.
    pub(in crate::engine) fn is_possible(config: &EngineConfig) -> bool {
        // Members are at the head of the running list, so they must not be the first preemption victims.
        config.policy() == Policy::Fcfs
            && !config.quirks().preempts_oldest()
            && config.kv_connector().is_none()
            // Members do not store their outputs.
            && !config.offloads_outputs()
            && config.decodes_by_single_tokens()
            // With groups or tiers, frees, stores and states also depend on the steps in flight.
            && (!config.async_scheduling() || !config.has_kv_cache_groups() && config.kv_tiers().is_none())
            && (LEAST_BLOCK_TOKENS..=MAX_BLOCK_TOKENS).contains(&config.block_size())
    }

    pub(in crate::engine) fn num_members(&self) -> usize {
        self.members as usize
    }

    /// Turns steady decodes on or off. There must be no members.
    pub(in crate::engine) fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    pub(in crate::engine) fn register(&mut self, id: RequestId, drawn: Option<DrawnOutputs>, block_size_tokens: u32) {
        // Slots are reused, so old entries are overwritten.
        if self.places.len() <= id.index() {
            if drawn.is_none() || !self.enabled {
                return;
            }
            self.places.resize(id.index() + 1, Place::default());
        }
        self.places[id.index()] = Place { drawn, ..Place::default() };
        self.calendar.cover((block_size_tokens as usize + 2).max(MIN_CALENDAR_STEPS));
    }

    fn drawn_of(&self, id: RequestId) -> Option<DrawnOutputs> {
        self.places.get(id.index()).and_then(|place| place.drawn)
    }

    /// Schedules the next visit of a member: the next step in which it needs or fills a block, or ends.
    /// A step beyond the end of the calendar leads to an early visit.
    fn enter(&mut self, id: RequestId, request: &Request) {
        let Place { known_at, .. } = self.places[id.index()];
        let steps = steps_until_growth(request).min(steps_until_store(request)).min(steps_until_end(request));
        self.calendar.enter(id, known_at, steps);
    }

    /// Which of the coming steps have due members: bit 0 is the next step.
    fn busy_steps(&self) -> u64 {
        self.calendar.busy_from(self.clock + 1)
    }

    fn pass(&mut self, steps: u32) {
        self.clock += u64::from(steps);
        self.context_tokens += u64::from(steps) * u64::from(self.members);
    }

    /// Forgets the members that left with the latest step, since the next step does not include them.
    fn forget_left(&mut self) {
        self.adapters.outdated |= self.left > 0;
        self.left = 0;
    }

    fn remove(&mut self, id: RequestId, request: &Request) {
        let place = &mut self.places[id.index()];
        place.is_member = false;
        let drawn = place.drawn.expect("a member's outputs are drawn");
        self.members -= 1;
        self.groups[drawn.group as usize] -= 1;
        self.adapters.members -= u32::from(request.lora.is_some());
        self.context_tokens -= u64::from(request.num_computed_tokens);
        self.unreported.push((request.tag, request.num_output_tokens() - place.reported_tokens));
    }
}

fn steps_until_growth(request: &Request) -> u32 {
    // With groups of layers, blocks may have left a window with the latest chunk.
    request.capacity_tokens.saturating_sub(request.num_computed_tokens).saturating_add(1)
}

fn steps_until_store(request: &Request) -> u32 {
    // With groups of layers, any step may have blocks to offer to the cache.
    request.next_store_tokens.saturating_sub(request.num_tokens) + 1
}

/// Number of steps until a member's last step, which is included.
fn steps_until_end(request: &Request) -> u32 {
    request.end_tokens - request.num_computed_tokens - 1
}

impl Engine {
    /// Turns the next running requests after the members into members, as long as they qualify.
    pub(in crate::engine) fn join_steady_decode(&mut self) {
        if !self.steady_decode.enabled {
            return;
        }
        if self.steady_decode.members == 0 {
            self.steady_decode.lag = self.steps.count();
        }
        // In a plan in flight, these requests come after requests that have left.
        let first = self.steady_decode.left as usize;
        let mut listed = first..first;
        while let Some(&id) = self.running.get(self.steady_decode.head)
            && let Some(drawn) = self.steady_decode.drawn_of(id)
            && self.may_join_steady_decode(id, listed.end)
        {
            if self.steady_decode.lag > 0 {
                self.steps.oldest_mut().count_member(drawn.group);
                listed.end += 1;
            }
            let request = &self.requests[id];
            let steady_decode = &mut self.steady_decode;
            let group = drawn.group as usize;
            if steady_decode.groups.len() <= group {
                steady_decode.groups.resize(group + 1, 0);
            }
            steady_decode.groups[group] += 1;
            steady_decode.adapters.join(request.lora);
            steady_decode.members += 1;
            steady_decode.head += 1;
            steady_decode.context_tokens += u64::from(request.num_computed_tokens);
            let reported_tokens = request.num_output_tokens();
            steady_decode.places[id.index()] = Place {
                drawn: Some(drawn),
                is_member: true,
                handle: steady_decode.next_handle,
                known_at: steady_decode.clock,
                reported_tokens,
            };
            steady_decode.next_handle += 1;
            steady_decode.enter(id, request);
            if reported_tokens == 1 {
                self.outputs.joined.push(request.tag);
            }
        }
        if !listed.is_empty() {
            self.steps.oldest_mut().scheduled.drain(listed);
        }
    }

    /// Whether a request decodes like the members. If a plan in flight lists the request, it is at index `place`.
    fn may_join_steady_decode(&self, id: RequestId, place: usize) -> bool {
        let request = &self.requests[id];
        let lag = self.steady_decode.lag as u32;
        let placeholders = if self.config.async_scheduling() { lag } else { 0 };
        let is_decode = |entry: &ScheduledRequest| entry.request == id && !entry.is_prefill;
        request.num_tokens + lag == request.num_computed_tokens + 1
            && request.num_computed_tokens >= request.prefill_target_tokens
            && request.num_output_tokens() > 0
            && request.num_in_flight_tokens == lag
            && u32::from(request.num_output_placeholders) == placeholders
            && request.num_stale_tokens == 0
            && !request.flags.has(Flags::IS_NOT_PLAIN)
            && !request.flags.has(Flags::KEEPS_ANY)
            && !self.kv_loads.may_store(request)
            && (lag == 0 || self.oldest_plan().scheduled.get(place).is_some_and(is_decode))
            // A request that ends with its next token would leave before that token is known.
            && steps_until_end(request) >= 2
    }

    /// Schedules one token for each member. Returns how many requests at the head of the running
    /// list this covers. If some members may have to wait or be preempted, it dissolves the steady decode and
    /// returns 0.
    pub(in crate::engine) fn schedule_steady_decode(&mut self, plan: &mut StepPlan, scan: &mut Scan) -> usize {
        let members = self.steady_decode.members;
        self.steady_decode.forget_left();
        if members == 0 {
            return 0;
        }
        if self.steps.count() != self.steady_decode.lag
            || scan.budget() < members
            || self.blocks_due(self.steady_decode.clock + 1) > self.pool().num_free()
        {
            self.dissolve_steady_decode();
            return 0;
        }
        self.advance_steady_decode(plan);
        scan.scheduled_budget -= members;
        scan.input_budget -= members;
        self.steady_decode.head
    }

    /// Whether all steps in flight consist only of one token for each running request, and all running requests are
    /// members.
    pub(in crate::engine) fn is_all_steady_decode(&self) -> bool {
        let (oldest, newest) = (self.oldest_plan(), self.plan());
        let is_all = |plan: &StepPlan| {
            plan.steady_decode_requests > 0
                && plan.scheduled.is_empty()
                && plan.steady_decode_requests as usize == self.running.len()
        };
        let follows = || {
            let before = StepShape { waiting_requests: self.num_waiting() as u64, ..oldest.shape };
            is_all(oldest) && before.decode_step(1, newest.shape.kv_active_blocks) == newest.shape
        };
        is_all(newest) && (self.steps.count() < 2 || follows())
    }

    /// Upper bound of the blocks that members allocate in the step at `clock`. Blocks that leave
    /// windows in that step are not subtracted.
    fn blocks_due(&self, clock: u64) -> u32 {
        let due = self.steady_decode.calendar.due(clock);
        let lag = |id: &RequestId| clock - self.steady_decode.places[id.index()].known_at;
        if let Some(groups) = self.kv_cache.groups() {
            let chunk = |id: &RequestId| {
                let tokens = self.requests[*id].num_computed_tokens + lag(id) as u32;
                Chunk { computed: tokens - 1, tokens, slots: tokens, encoder_tokens: 0, prefill_end: 0 }
            };
            return due.iter().map(|id| groups.missing_blocks(*id, chunk(id), false)).sum();
        }
        let grows = |id: &&RequestId| u64::from(steps_until_growth(&self.requests[**id])) == lag(id);
        due.iter().filter(grows).count() as u32
    }

    pub(in crate::engine) fn advance_steady_decode(&mut self, plan: &mut StepPlan) {
        self.step_steady_decode(plan);
        self.count_steady_decode(plan);
    }

    /// Advances all members by `steps` steps. Members may end in the last step only.
    pub(in crate::engine) fn advance_steady_decode_by(
        &mut self,
        plan: &mut StepPlan,
        steps: u32,
        fast_forward: &mut FastForward,
    ) {
        let end = self.steady_decode.clock + u64::from(steps);
        loop {
            let left = (end - self.steady_decode.clock) as u32;
            assert!(plan.scheduled.is_empty() || left == 0, "a request ends in a fast-forward");
            let quiet = self.steady_decode.busy_steps().trailing_zeros().min(left);
            self.steady_decode.pass(quiet);
            fast_forward.note_events(self.kv_cache.pool().events(), quiet);
            if quiet == left {
                break;
            }
            self.step_steady_decode(plan);
            fast_forward.note_events(self.kv_cache.pool().events(), 1);
        }
        self.count_steady_decode(plan);
    }

    /// Runs one step: due members allocate blocks and offer full ones in the order of the running list. Members that
    /// end are listed individually.
    fn step_steady_decode(&mut self, plan: &mut StepPlan) {
        self.steady_decode.clock += 1;
        if !self.steady_decode.calendar.due(self.steady_decode.clock).is_empty() {
            self.look_at_due(plan);
        }
        self.steady_decode.context_tokens += u64::from(self.steady_decode.members);
    }

    fn count_steady_decode(&self, plan: &mut StepPlan) {
        let steady_decode = &self.steady_decode;
        plan.steady_decode_requests = steady_decode.members;
        plan.steady_decode_groups.clear();
        plan.steady_decode_groups.extend_from_slice(&steady_decode.groups);
        plan.total_num_scheduled_tokens += steady_decode.members;
        add_decodes(&mut plan.shape, u64::from(steady_decode.members), steady_decode.context_tokens);
    }

    fn look_at_due(&mut self, plan: &mut StepPlan) {
        let before = self.steady_decode.clock - 1;
        let mut due = std::mem::take(&mut self.steady_decode.due);
        self.steady_decode.calendar.take_due(self.steady_decode.clock, &mut due);
        let places = &self.steady_decode.places;
        due.sort_unstable_by_key(|id| places[id.index()].handle);
        for &id in &due {
            self.catch_up(id, before);
            let request = &self.requests[id];
            let end = request.num_computed_tokens + 1;
            let (grows, ends) = (end > request.capacity_tokens, steps_until_end(request) == 1);
            let first_block = plan.block_ids.len() as u32;
            if grows && self.kv_cache.has_groups() {
                let request = &mut self.requests[id];
                let plan = ends.then_some(&mut *plan);
                let has_grown = self.kv_cache.grow_groups(id, end, 0, request, plan);
                assert!(has_grown, "blocks were counted before the step");
            } else if grows {
                self.grow_table(id, 1);
                self.kv_loads.note_taken_block(self.requests[id].block_table.last().copied());
            }
            self.store_full_blocks(id, end);
            if ends {
                self.list_in_older_step(id);
                self.steady_decode.left += 1;
                self.steady_decode.places[id.index()].known_at = before + 1;
                self.steady_decode.remove(id, &self.requests[id]);
                if grows && !self.kv_cache.has_groups() {
                    plan.block_ids.extend(self.requests[id].block_table.last());
                }
                self.commit(plan, id, ScheduledKind::Running, 1, None, first_block);
            } else {
                self.steady_decode.enter(id, &self.requests[id]);
            }
        }
        due.clear();
        self.steady_decode.due = due;
    }

    /// Updates the request of a member to the step at `clock`.
    fn catch_up(&mut self, id: RequestId, clock: u64) {
        let place = &mut self.steady_decode.places[id.index()];
        let steps = (clock - place.known_at) as u32;
        place.known_at = clock;
        let drawn = place.drawn.expect("a member's outputs are drawn");
        let (caching, block_size) = (self.kv_cache.caching(), self.config.block_size());
        let request = &mut self.requests[id];
        request.num_computed_tokens += steps;
        request.push_drawn_outputs(drawn.seed, steps, caching, block_size);
    }

    /// Lists a member that leaves with the current step in the previous step, too, if that step is in flight.
    fn list_in_older_step(&mut self, id: RequestId) {
        if self.steady_decode.lag == 0 {
            return;
        }
        let request = &self.requests[id];
        let entry = decode_of_member(request, id, request.num_computed_tokens - 1);
        let places = &self.steady_decode.places;
        let order = |id: RequestId| match places.get(id.index()).map_or(0, |place| place.handle) {
            0 => u64::MAX,
            handle => handle,
        };
        let drawn = places[id.index()].drawn.expect("a member's outputs are drawn");
        let plan = self.steps.oldest_mut();
        plan.steady_decode_requests -= 1;
        plan.steady_decode_groups[drawn.group as usize] -= 1;
        let place = plan.scheduled.partition_point(|other| order(other.request) < order(id));
        plan.scheduled.insert(place, entry);
    }

    /// Dissolves the steady decode if the step to be applied is the last one that members have been scheduled in.
    pub(in crate::engine) fn end_last_steady_decode_step(&mut self) {
        if self.steps.count() == self.steady_decode.lag {
            self.dissolve_steady_decode();
        }
    }

    /// Forgets members whose last step has just been applied.
    pub(in crate::engine) fn close_steady_decode_step(&mut self) {
        let steady_decode = &mut self.steady_decode;
        if self.steps.count() == 0 {
            steady_decode.forget_left();
        }
        steady_decode.head = (steady_decode.members + steady_decode.left) as usize;
    }

    /// Adds the adapters of the requests that the steady decode contributes to the current step.
    /// Returns the number of members with an adapter.
    pub(in crate::engine) fn note_member_adapters(&mut self, loras: &mut Vec<u32>) -> u32 {
        let steady_decode = &mut self.steady_decode;
        let adapters = &mut steady_decode.adapters;
        if std::mem::take(&mut adapters.outdated) {
            adapters.distinct.clear();
            let (places, clock) = (&steady_decode.places, steady_decode.clock);
            for &id in &self.running[..steady_decode.head] {
                let place = &places[id.index()];
                if place.is_member || steady_decode.left > 0 && place.known_at == clock {
                    note_lora(&mut adapters.distinct, self.requests[id].lora);
                }
            }
        }
        loras.extend_from_slice(&adapters.distinct);
        adapters.members
    }

    /// Number of requests at the head of the running list that the steady decode contributes to the current step.
    /// 0 if other requests are among them.
    pub(in crate::engine) fn num_steady_requests(&self) -> usize {
        let SteadyDecode { head, members, left, .. } = self.steady_decode;
        if head == (members + left) as usize { head } else { 0 }
    }

    /// Number of steps that can be predicted, at most `most`, if [`Engine::is_all_steady_decode`] holds for the
    /// steps in flight. Adds the blocks that each step allocates and frees to `changes`.
    pub(in crate::engine) fn steady_decode_steps(&self, most: usize, changes: &mut [BlockChange]) -> usize {
        let mut most = most.min(changes.len());
        let mut busy_steps = self.steady_decode.busy_steps();
        while busy_steps != 0 && busy_steps.trailing_zeros() < most as u32 {
            let step = u64::from(busy_steps.trailing_zeros()) + 1;
            busy_steps &= busy_steps - 1;
            for &id in self.steady_decode.calendar.due(self.steady_decode.clock + step) {
                let request = &self.requests[id];
                let lag = (self.steady_decode.clock - self.steady_decode.places[id.index()].known_at) as u32;
                // Members may end in the last predicted step.
                most = most.min((steps_until_end(request) - lag) as usize);
                if let Some(groups) = self.kv_cache.groups() {
                    let computed = request.num_computed_tokens + lag;
                    most = most.min(groups.predict(self.kv_cache.pool(), id, computed, &mut changes[..most]));
                    continue;
                }
                let mut grows_at = (steps_until_growth(request) - lag) as usize;
                while grows_at <= most {
                    changes[grows_at - 1].taken += 1;
                    grows_at += self.config.block_size() as usize;
                }
            }
        }
        most
    }

    /// Turns all members back into individually scheduled requests, also in the steps in flight.
    ///
    /// [`Engine::take_unreported`] returns the output tokens that they got as members.
    pub fn dissolve_steady_decode(&mut self) {
        if self.steady_decode.head == 0 {
            return;
        }
        let lag = self.steady_decode.lag;
        let mut older = (lag > 0).then(|| Relisted::of(self.steps.oldest_mut()));
        let mut newest = (self.steps.count() > lag).then(|| Relisted::of(self.steps.newest_mut()));
        let known_at = self.steady_decode.clock - u64::from(newest.is_some());
        for position in 0..self.steady_decode.head {
            let id = self.running[position];
            let is_member = self.steady_decode.places[id.index()].is_member;
            if is_member {
                self.catch_up(id, known_at);
                self.steady_decode.remove(id, &self.requests[id]);
            }
            self.steady_decode.places[id.index()].handle = 0;
            let computed = self.requests[id].num_computed_tokens;
            for (list, computed) in [(&mut older, computed.saturating_sub(1)), (&mut newest, computed)] {
                let Some(list) = list else { continue };
                list.visit(id, is_member.then(|| decode_of_member(&self.requests[id], id, computed)));
            }
            if is_member && newest.is_some() {
                let request = &mut self.requests[id];
                request.num_computed_tokens += 1;
                request.num_in_flight_tokens += 1;
                request.num_output_placeholders += u16::from(self.config.async_scheduling());
            }
        }
        if let Some(older) = older {
            older.end(self.steps.oldest_mut());
        }
        if let Some(newest) = newest {
            newest.end(self.steps.newest_mut());
        }
        self.steady_decode.head = 0;
        self.steady_decode.left = 0;
        self.steady_decode.context_tokens = 0;
        self.steady_decode.adapters.clear();
        self.steady_decode.calendar.clear();
    }

    /// Returns the tags of requests that have left the steady decode. The number is their output tokens
    /// as members, up to the latest applied step.
    pub fn take_unreported(&mut self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.steady_decode.unreported.drain(..)
    }
}

/// The entries of a plan in flight, merged with entries for its members.
struct Relisted {
    single: Peekable<IntoIter<ScheduledRequest>>,
    listed: Vec<ScheduledRequest>,
}

impl Relisted {
    fn of(plan: &mut StepPlan) -> Self {
        let single = std::mem::take(&mut plan.scheduled).into_iter().peekable();
        Self { single, listed: Vec::new() }
    }

    /// Adds the entry of the next request at the head of the running list: the entry of a member, or else the
    /// request's own entry if the step has one.
    fn visit(&mut self, id: RequestId, member: Option<ScheduledRequest>) {
        let entry = member.or_else(|| self.single.next_if(|entry| entry.request == id));
        self.listed.extend(entry);
    }

    fn end(mut self, plan: &mut StepPlan) {
        self.listed.extend(self.single);
        plan.scheduled = self.listed;
        plan.steady_decode_requests = 0;
        plan.steady_decode_groups.clear();
    }
}

/// The entry of a member for a step, when `computed` tokens precede its token.
fn decode_of_member(request: &Request, id: RequestId, computed: u32) -> ScheduledRequest {
    debug_assert_eq!(request.status, RequestStatus::Running);
    ScheduledRequest {
        request: id,
        tag: request.tag,
        num_scheduled_tokens: 1,
        num_computed_tokens: computed,
        kind: ScheduledKind::Running,
        is_prefill: false,
        samples: true,
        num_draft_tokens: 0,
        blocks: 0..0,
    }
}

fn add_decodes(shape: &mut StepShape, requests: u64, context_tokens: u64) {
    shape.sampled_requests += requests;
    shape.decode_requests += requests;
    shape.decode_tokens += requests;
    shape.decode_context_tokens += context_tokens;
}
