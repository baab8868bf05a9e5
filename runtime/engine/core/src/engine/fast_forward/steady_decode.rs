//! Requests that decode steadily: one token in each step, without individual work.
//!
//! While a request decodes, a step changes only its length. Requests with drawn outputs
//! ([`crate::DrawnOutputs`]) are members of a steady decode: each step counts them, and a calendar
//! names only those that need a block, fill one or end in it. So the cost of a step depends on its
//! events, not on the number of running requests.
//!
//! Owns the membership and the output tokens that are not reported yet. Guarantees the
//! results of single steps: the same blocks in the same order, the same KV events, the same
//! shapes. Code that reads the members themselves, or may take KV from them, dissolves the
//! steady decode first.

mod calendar;

use self::calendar::Calendar;
use crate::config::{EngineConfig, Policy};
use crate::engine::Engine;
use crate::engine::fast_forward::FastForward;
use crate::engine::schedule::Scan;
use crate::kv::groups::Chunk;
use crate::plan::{ScheduledKind, ScheduledRequest, StepPlan};
use crate::plugins::latency::{BlockChange, StepShape};
use crate::request::{DrawnOutputs, Flags, Request, RequestId, RequestStatus};

/// The calendar covers more steps than any fast-forward, so that a fast-forward sees all
/// that happens in it.
const MIN_CALENDAR_STEPS: usize = 2 * Engine::MAX_PREDICTED_STEPS;
const _: () = assert!(Engine::MAX_PREDICTED_STEPS <= calendar::STEPS_PER_WORD);
/// Smaller blocks need work so often that a steady decode would not pay.
const LEAST_BLOCK_TOKENS: u32 = 8;
/// For larger blocks, the calendar would cost more than it saves.
const MAX_BLOCK_TOKENS: u32 = 4096;

/// State of a request in the steady decode, by slot.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    drawn: Option<DrawnOutputs>,
    is_member: bool,
    /// Order of joining, which equals the order of the running list.
    handle: u64,
    /// The step, on the steady decode's clock, up to which the request itself is up to date.
    known_at: u64,
    /// Output tokens that the driver knows of.
    reported_tokens: u32,
}

/// The members of an engine's steady decode, with the due step of each.
#[derive(Debug)]
pub(in crate::engine) struct SteadyDecode {
    /// Whether the engine's settings allow any.
    enabled: bool,
    places: Vec<Place>,
    /// Requests at the head of the running list that are members, or were until
    /// the step in flight.
    head: usize,
    members: u32,
    /// Members by group.
    groups: Vec<u32>,
    /// Steps scheduled with members.
    clock: u64,
    next_handle: u64,
    /// Sum of the members' computed tokens after the latest step.
    context_tokens: u64,
    /// The members to look at in coming steps.
    calendar: Calendar,
    /// Output tokens that the driver does not know of: tag and number.
    unreported: Vec<(u64, u32)>,
    /// Scratch.
    due: Vec<RequestId>,
}

impl SteadyDecode {
    pub(in crate::engine) fn new(config: &EngineConfig) -> Self {
        Self {
            enabled: Self::is_possible(config),
            places: Vec::new(),
            head: 0,
            members: 0,
            groups: Vec::new(),
            clock: 0,
            next_handle: 0,
            context_tokens: 0,
            calendar: Calendar::default(),
            unreported: Vec::new(),
            due: Vec::new(),
        }
    }

    /// Whether an engine with these settings can have any.
    pub(in crate::engine) fn is_possible(config: &EngineConfig) -> bool {
        // Members cannot be preemption victims before others.
        config.policy() == Policy::Fcfs
            && !config.quirks().preempts_oldest()
            && config.max_loras() == 0
            && config.kv_connector().is_none()
            // Members store nothing.
            && !config.offloads_outputs()
            && config.decodes_plainly()
            && (LEAST_BLOCK_TOKENS..=MAX_BLOCK_TOKENS).contains(&config.block_size())
    }

    /// Requests that are members, all at the head of the running list.
    pub(in crate::engine) fn num_members(&self) -> usize {
        self.members as usize
    }

    /// Allows members from now on, or not. There are none now.
    pub(in crate::engine) fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Records whether and how the outputs of a new request are drawn.
    pub(in crate::engine) fn register(&mut self, id: RequestId, drawn: Option<DrawnOutputs>, block_size_tokens: u32) {
        // Slots are reused, so old entries are replaced.
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

    /// Enters a member for the next step that is more to it than one token.
    ///
    /// Steps beyond the calendar are split.
    fn enter(&mut self, id: RequestId, request: &Request) {
        let Place { known_at, .. } = self.places[id.index()];
        let steps = steps_until_growth(request).min(steps_until_store(request)).min(steps_until_end(request));
        self.calendar.enter(id, known_at, steps);
    }

    /// The coming steps in which members are due: bit 0 is the next step.
    fn busy_steps(&self) -> u64 {
        self.calendar.busy_from(self.clock + 1)
    }

    /// Advances by `steps` steps in which no member is due.
    fn pass(&mut self, steps: u32) {
        self.clock += u64::from(steps);
        self.context_tokens += u64::from(steps) * u64::from(self.members);
    }

    fn remove(&mut self, id: RequestId, request: &Request) {
        let place = &mut self.places[id.index()];
        place.is_member = false;
        let drawn = place.drawn.expect("a member's outputs are drawn");
        self.members -= 1;
        self.groups[drawn.group as usize] -= 1;
        self.context_tokens -= u64::from(request.num_computed_tokens);
        self.unreported.push((request.tag, request.num_output_tokens() - place.reported_tokens));
    }
}

/// Steps until a member at rest needs a block more than it has.
fn steps_until_growth(request: &Request) -> u32 {
    // With groups of layers, blocks may have left a window with the latest chunk.
    request.capacity_tokens.saturating_sub(request.num_computed_tokens).saturating_add(1)
}

/// Steps until it has filled a block.
fn steps_until_store(request: &Request) -> u32 {
    // With groups of layers, any step may have something to offer.
    request.next_store_tokens.saturating_sub(request.num_computed_tokens).max(1)
}

/// Steps until it ends, the last one included.
fn steps_until_end(request: &Request) -> u32 {
    request.end_tokens - request.num_computed_tokens - 1
}

impl Engine {
    /// Makes requests at the front of the list of other requests members.
    pub(in crate::engine) fn join_steady_decode(&mut self) {
        if !self.steady_decode.enabled {
            return;
        }
        while let Some(&id) = self.running.get(self.steady_decode.head) {
            let request = &self.requests[id];
            let Some(drawn) = self.steady_decode.drawn_of(id) else { return };
            let decodes = request.num_tokens == request.num_computed_tokens + 1
                && request.num_computed_tokens >= request.prefill_target_tokens
                && request.num_output_tokens() > 0
                && request.num_in_flight_tokens == 0
                && request.num_stale_tokens == 0
                && !request.flags.has(Flags::HAS_STOPS)
                && !request.flags.has(Flags::KEEPS_ANY)
                && !self.kv_loads.may_store(request);
            // A request that ends with its next token would leave before it has arrived.
            if !decodes || steps_until_end(request) < 2 {
                return;
            }
            let steady_decode = &mut self.steady_decode;
            let group = drawn.group as usize;
            if steady_decode.groups.len() <= group {
                steady_decode.groups.resize(group + 1, 0);
            }
            steady_decode.groups[group] += 1;
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
    }

    /// Schedules one token for each member. Returns how many requests at the head of the running
    /// list this covers. It covers none, and there are no members any more, if some of them may
    /// have to be preempted or wait.
    pub(in crate::engine) fn schedule_steady_decode(&mut self, plan: &mut StepPlan, scan: &mut Scan) -> usize {
        let members = self.steady_decode.members;
        if members == 0 {
            return 0;
        }
        if scan.budget() < members || self.blocks_due(self.steady_decode.clock + 1) > self.pool().num_free() {
            self.dissolve_steady_decode();
            return 0;
        }
        self.advance_steady_decode(plan);
        scan.scheduled_budget -= members;
        scan.input_budget -= members;
        self.steady_decode.head
    }

    /// Whether the step in flight consists of one token for each running request, and all of them are members.
    pub(in crate::engine) fn is_all_steady_decode(&self) -> bool {
        let plan = self.plan();
        plan.steady_decode_requests > 0
            && plan.scheduled.is_empty()
            && plan.steady_decode_requests as usize == self.running.len()
    }

    /// Upper bound of the blocks that members take in the step at `clock`: blocks that leave
    /// windows in it are not subtracted.
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

    /// One step of all members.
    pub(in crate::engine) fn advance_steady_decode(&mut self, plan: &mut StepPlan) {
        self.step_steady_decode(plan);
        self.count_steady_decode(plan);
    }

    /// Advances all members by `steps` steps. Some members may end in the last step.
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

    /// Runs one step: due members take and offer blocks in the order of the running list, and
    /// ending members are entered individually.
    fn step_steady_decode(&mut self, plan: &mut StepPlan) {
        self.steady_decode.clock += 1;
        if !self.steady_decode.calendar.due(self.steady_decode.clock).is_empty() {
            self.look_at_due(plan);
        }
        self.steady_decode.context_tokens += u64::from(self.steady_decode.members);
    }

    /// Enters the members into the plan of the latest step.
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

    /// Brings a member up to date after the step at `clock`.
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

    /// Members that have left ended with the step that was applied.
    pub(in crate::engine) fn close_steady_decode_step(&mut self) {
        self.steady_decode.head = self.steady_decode.members as usize;
    }

    /// Number of steps that can be predicted, of `most`, given that the step in flight
    /// [`Engine::is_all_steady_decode`]; `changes` gets the blocks that each takes and frees.
    pub(in crate::engine) fn steady_decode_steps(&self, most: usize, changes: &mut [BlockChange]) -> usize {
        let mut most = most.min(changes.len());
        let mut busy_steps = self.steady_decode.busy_steps();
        while busy_steps != 0 && busy_steps.trailing_zeros() < most as u32 {
            let step = u64::from(busy_steps.trailing_zeros()) + 1;
            busy_steps &= busy_steps - 1;
            for &id in self.steady_decode.calendar.due(self.steady_decode.clock + step) {
                let request = &self.requests[id];
                let lag = (self.steady_decode.clock - self.steady_decode.places[id.index()].known_at) as u32;
                // Some requests may end in the last step.
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

    /// Makes all members single requests again, the step in flight included.
    ///
    /// [`Engine::take_unreported`] returns their output tokens since they joined.
    pub fn dissolve_steady_decode(&mut self) {
        if self.steady_decode.head == 0 {
            return;
        }
        if self.steps.count() > 0 {
            self.list_members();
        } else {
            self.part_members(0, |_, _| {});
        }
        self.steady_decode.head = 0;
        self.steady_decode.context_tokens = 0;
        self.steady_decode.calendar.clear();
    }

    /// Enters the members into the plan in flight one by one, and removes them.
    fn list_members(&mut self) {
        let mut plan = self.steps.take_newest();
        let single: Vec<ScheduledRequest> = std::mem::take(&mut plan.scheduled);
        let mut single = single.into_iter();
        self.part_members(1, |id, member| match member {
            Some(request) => plan.scheduled.push(begin_decode(request, id)),
            None => plan.scheduled.extend(single.next()),
        });
        plan.scheduled.extend(single);
        plan.steady_decode_requests = 0;
        plan.steady_decode_groups.clear();
        self.steps.put_newest(plan);
    }

    /// Removes all members, with `steps_in_flight` steps not applied yet. Calls `visit` for each
    /// request at the head of the running list, with its state if it was a member.
    fn part_members(&mut self, steps_in_flight: u64, mut visit: impl FnMut(RequestId, Option<&mut Request>)) {
        for position in 0..self.steady_decode.head {
            let id = self.running[position];
            if !self.steady_decode.places[id.index()].is_member {
                visit(id, None);
                continue;
            }
            self.catch_up(id, self.steady_decode.clock - steps_in_flight);
            self.steady_decode.remove(id, &self.requests[id]);
            visit(id, Some(&mut self.requests[id]));
        }
    }

    /// Returns the tags of requests that have left the steady decode with their output tokens
    /// as members, up to the latest applied step.
    pub fn take_unreported(&mut self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.steady_decode.unreported.drain(..)
    }
}

/// Enters a decode of one token that has been scheduled already.
fn begin_decode(request: &mut Request, id: RequestId) -> ScheduledRequest {
    debug_assert_eq!(request.status, RequestStatus::Running);
    let num_computed_tokens = request.num_computed_tokens;
    request.num_computed_tokens += 1;
    request.num_in_flight_tokens += 1;
    ScheduledRequest {
        request: id,
        tag: request.tag,
        num_scheduled_tokens: 1,
        num_computed_tokens,
        kind: ScheduledKind::Running,
        is_prefill: false,
        samples: true,
        num_draft_tokens: 0,
        blocks: 0..0,
    }
}

/// Adds decodes of one token, whose contexts have a total of `context_tokens` tokens after it.
fn add_decodes(shape: &mut StepShape, requests: u64, context_tokens: u64) {
    shape.sampled_requests += requests;
    shape.decode_requests += requests;
    shape.decode_tokens += requests;
    shape.decode_context_tokens += context_tokens;
}
