//! Schedules requests by the policy's ranks on an engine with few running slots, tokens and blocks.

use vcr_core::policy::{EngineView, PolicyEvent, Preference, PreferenceCheck, Progress};

use crate::adapters::policy;
use crate::check::draw::Draw;
use crate::check::{Driver, GuestFailure, Split, Step, Table, input};
use crate::latest::PolicyInstance;

/// Number of requests.
const REQUESTS: u64 = 1_500;

/// One of this many requests ends in the call that reports its arrival, as by a timeout.
const CANCELLED_ONE_IN: u64 = 20;

/// Running slots, token budget and KV blocks of the engine.
const RUNNING_SLOTS: usize = 32;
const BUDGET_TOKENS: u64 = 2_048;
const KV_BLOCKS: u64 = 1_200;
const BLOCK_TOKENS: u64 = 16;

pub(super) struct Scheduling {
    draw: Draw,
    now_ns: u64,
    requests: u64,
    free_slots: Vec<u32>,
    waiting: Vec<Request>,
    running: Vec<Request>,
    events: Vec<PolicyEvent>,
    check: PreferenceCheck,
}

/// A waiting or running request.
struct Request {
    slot: u32,
    number: u64,
    prompt_tokens: u64,
    max_tokens: u64,
    computed_tokens: u64,
    output_tokens: u64,
    /// Whether it has computed tokens since the last call.
    has_progress: bool,
    wait_rank: i64,
    give_way_rank: i64,
    cap_tokens: Option<u32>,
}

impl Request {
    fn blocks(&self) -> u64 {
        self.computed_tokens.div_ceil(BLOCK_TOKENS)
    }
}

impl Driver for Scheduling {
    type Instance = dyn PolicyInstance;

    fn new(seed: u64, _split: Split) -> Self {
        Self {
            draw: Draw::new(seed, "scheduling"),
            now_ns: 0,
            requests: 0,
            free_slots: (0..256).rev().collect(),
            waiting: Vec::new(),
            running: Vec::new(),
            events: Vec::new(),
            check: PreferenceCheck::default(),
        }
    }

    fn step(&mut self, table: &mut Table<'_, '_, dyn PolicyInstance>) -> Result<Step, GuestFailure> {
        // Steps without events need no call.
        while self.events.is_empty() {
            if self.requests == REQUESTS && self.waiting.is_empty() && self.running.is_empty() {
                return Ok(Step::Over);
            }
            self.arrive();
            if self.events.is_empty() {
                self.compute();
            }
        }
        let events = std::mem::take(&mut self.events);
        events.iter().for_each(|event| self.check.note(event));
        let progress = self.progress();
        let count = events.len() + progress.len();
        let most_bytes = self.check.num_there() * policy::PREFERENCES_BYTES;
        let budget = table.limits.budget(count, most_bytes);
        let batch = EngineView {
            now_ns: self.now_ns,
            budget_tokens: BUDGET_TOKENS as u32,
            running_slots: (RUNNING_SLOTS - self.running.len()) as u32,
            free_blocks: self.free_blocks() as u32,
            block_size_tokens: BLOCK_TOKENS as u32,
            total_blocks: KV_BLOCKS as u32,
            events: &events,
            progress: &progress,
        };
        let preferences = table.meter.call("decide", count, budget, table.instance, |instance, budget| {
            let mut preferences = Vec::new();
            instance.decide(&batch, &mut preferences, budget).map(|()| preferences)
        });
        let checked =
            preferences.and_then(|preferences| policy::accept(&preferences, &mut self.check).map(|()| preferences));
        let preferences = table.meter.explained("decide", checked, || input::policy(&batch))?;
        preferences.iter().for_each(|preference| self.prefer(preference));
        self.admit();
        self.compute();
        Ok(Step::Answered(preferences.iter().flat_map(words).collect()))
    }
}

/// A preference as numbers: its kind, slot and value.
fn words(preference: &Preference) -> [u64; 3] {
    match *preference {
        Preference::AdmissionRank { slot, rank } => [0, slot.into(), rank.cast_unsigned()],
        Preference::EvictionRank { slot, rank } => [1, slot.into(), rank.cast_unsigned()],
        Preference::ChunkCap { slot, tokens } => [2, slot.into(), tokens.map_or(u64::MAX, u64::from)],
    }
}

impl Scheduling {
    fn progress(&mut self) -> Vec<Progress> {
        let mut progress = Vec::new();
        for request in self.running.iter_mut().filter(|request| request.has_progress) {
            request.has_progress = false;
            let (computed_tokens, output_tokens) = (request.computed_tokens as u32, request.output_tokens as u32);
            progress.push(Progress { slot: request.slot, computed_tokens, output_tokens });
        }
        progress
    }

    fn arrive(&mut self) {
        let mut burst = if self.draw.once_in(6) { self.draw.length(1, 24) } else { 0 };
        if self.waiting.is_empty() && self.running.is_empty() {
            burst = burst.max(1);
        }
        while burst > 0 && self.requests < REQUESTS {
            let Some(slot) = self.free_slots.pop() else { break };
            burst -= 1;
            let draw = &mut self.draw;
            let (prompt_tokens, max_tokens) = (draw.length(8, 4_096), draw.length(1, 256));
            self.events.push(PolicyEvent::Arrived {
                slot,
                arrival_ns: self.now_ns,
                prompt_tokens: prompt_tokens as u32,
                max_tokens: max_tokens as u32,
                priority: draw.below(5) as i32 - 2,
                adapter: draw.once_in(6).then(|| draw.below(4) as u32),
                tenant: draw.below(4),
                slo: draw.slo(),
            });
            self.requests += 1;
            if self.draw.once_in(CANCELLED_ONE_IN) {
                self.events.push(PolicyEvent::Ended { slot, computed_tokens: 0, output_tokens: 0 });
                self.free_slots.insert(0, slot);
                continue;
            }
            self.waiting.push(Request {
                slot,
                number: self.requests,
                prompt_tokens,
                max_tokens,
                computed_tokens: 0,
                output_tokens: 0,
                has_progress: false,
                wait_rank: 0,
                give_way_rank: 0,
                cap_tokens: None,
            });
        }
    }

    /// Stores a preference that was checked.
    fn prefer(&mut self, preference: &Preference) {
        let mut all = self.waiting.iter_mut().chain(&mut self.running);
        let request = all.find(|request| request.slot == preference.slot()).expect("it was checked");
        match *preference {
            Preference::AdmissionRank { rank, .. } => request.wait_rank = rank,
            Preference::EvictionRank { rank, .. } => request.give_way_rank = rank,
            Preference::ChunkCap { tokens, .. } => request.cap_tokens = tokens,
        }
    }

    fn free_blocks(&self) -> u64 {
        KV_BLOCKS.saturating_sub(self.running.iter().map(Request::blocks).sum())
    }

    /// Admits requests in the policy's order while there is room.
    fn admit(&mut self) {
        self.waiting.sort_by_key(|request| (request.wait_rank, request.number));
        while let Some(next) = self.waiting.first() {
            let fits = next.prompt_tokens.min(BUDGET_TOKENS).div_ceil(BLOCK_TOKENS) <= self.free_blocks();
            if self.running.len() == RUNNING_SLOTS || !fits {
                break;
            }
            let mut request = self.waiting.remove(0);
            let cached = if self.draw.once_in(3) { request.prompt_tokens / 2 / BLOCK_TOKENS * BLOCK_TOKENS } else { 0 };
            request.computed_tokens = cached;
            self.events.push(PolicyEvent::Admitted { slot: request.slot, cached_tokens: cached as u32 });
            self.running.push(request);
        }
    }

    /// Computes one step of the engine.
    fn compute(&mut self) {
        self.now_ns += self.draw.length(1_000_000, 40_000_000);
        let mut budget_tokens = BUDGET_TOKENS;
        for request in &mut self.running {
            let known = request.prompt_tokens + request.output_tokens;
            let tokens = (known - request.computed_tokens)
                .max(1)
                .min(request.cap_tokens.map_or(u64::MAX, u64::from))
                .min(budget_tokens);
            budget_tokens -= tokens;
            request.computed_tokens += tokens;
            request.has_progress |= tokens > 0;
            if request.computed_tokens >= known && tokens > 0 {
                request.output_tokens += 1;
            }
        }
        self.finish();
        self.preempt();
    }

    fn finish(&mut self) {
        let (done, going_on): (Vec<Request>, Vec<Request>) =
            self.running.drain(..).partition(|request| request.output_tokens >= request.max_tokens);
        self.running = going_on;
        for request in done {
            let (computed_tokens, output_tokens) = (request.computed_tokens as u32, request.output_tokens as u32);
            self.events.push(PolicyEvent::Ended { slot: request.slot, computed_tokens, output_tokens });
            self.free_slots.push(request.slot);
        }
    }

    /// While blocks run short, preempts the policy's victim. The last request is never preempted.
    fn preempt(&mut self) {
        while self.running.len() > 1 && self.running.iter().map(Request::blocks).sum::<u64>() > KV_BLOCKS {
            let order = |request: &Request| (request.give_way_rank, request.number);
            let victim = (0..self.running.len()).max_by_key(|index| order(&self.running[*index]));
            let mut request = self.running.remove(victim.expect("more than one runs"));
            request.computed_tokens = 0;
            request.has_progress = false;
            self.events.push(PolicyEvent::Preempted { slot: request.slot });
            self.waiting.push(request);
        }
    }
}
