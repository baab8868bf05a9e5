//! Simulates requests that arrive, emit tokens and end, and applies the injector's faults.

use std::collections::BTreeSet;

use vcr_core::fault::{FaultAction, FaultBatch, FaultEvent};

use crate::adapters::faults;
use crate::check::draw::Draw;
use crate::check::{Driver, GuestFailure, Split, Step, Table, input};
use crate::latest::FaultInstance;

/// Number of engine steps, and of concurrent requests.
const STEPS: u64 = 3_000;
const SLOTS: u32 = 64;

const METHODS: [&str; 4] = ["sleep", "wake_up", "reset_prefix_cache", "add_lora"];

pub(super) struct FaultWorkload {
    draw: Draw,
    steps: u64,
    now_ns: u64,
    requests: u64,
    free: Vec<u32>,
    running: Vec<Live>,
    /// Slots of requests that can still fail.
    may_fail: BTreeSet<u32>,
    /// Requests that end in the next call, because they failed or their engine crashed.
    doomed: Vec<u32>,
}

/// A running request.
struct Live {
    slot: u32,
    tokens: u32,
    max_tokens: u32,
}

/// An event that owns its strings.
enum SentEvent {
    Arrived { slot: u32, request_id: String, prompt_tokens: u32, max_tokens: u32, priority: i32, adapter: Option<u32> },
    Emitted { slot: u32, output_tokens: u32 },
    Ended { slot: u32 },
    Utility { method: &'static str },
}

impl SentEvent {
    fn event(&self) -> FaultEvent<'_> {
        match self {
            Self::Arrived { slot, request_id, prompt_tokens, max_tokens, priority, adapter } => FaultEvent::Arrived {
                slot: *slot,
                request_id,
                prompt_tokens: *prompt_tokens,
                max_tokens: *max_tokens,
                priority: *priority,
                adapter: *adapter,
            },
            Self::Emitted { slot, output_tokens } => FaultEvent::Emitted { slot: *slot, output_tokens: *output_tokens },
            Self::Ended { slot } => FaultEvent::Ended { slot: *slot },
            Self::Utility { method } => FaultEvent::Utility { method },
        }
    }
}

impl Driver for FaultWorkload {
    type Instance = dyn FaultInstance;

    fn new(seed: u64, _split: Split) -> Self {
        Self {
            draw: Draw::new(seed, "events"),
            steps: 0,
            now_ns: 0,
            requests: 0,
            free: (0..SLOTS).rev().collect(),
            running: Vec::new(),
            may_fail: BTreeSet::new(),
            doomed: Vec::new(),
        }
    }

    fn step(&mut self, table: &mut Table<'_, '_, dyn FaultInstance>) -> Result<Step, GuestFailure> {
        if self.steps == STEPS {
            return Ok(Step::Over);
        }
        let sent = self.happen();
        let events: Vec<FaultEvent<'_>> = sent.iter().map(SentEvent::event).collect();
        let has_utility = faults::note_events(&events, &mut self.may_fail);
        let most_bytes = (self.may_fail.len() + 1) * faults::ACTION_BYTES;
        let budget = table.limits.budget(events.len(), most_bytes);
        let batch = FaultBatch { now_ns: self.now_ns, step: self.steps, events: &events };
        let actions = table
            .meter
            .call("decide", events.len(), budget, table.instance, |instance, budget| instance.decide(&batch, budget));
        let checked =
            actions.and_then(|actions| faults::check(&actions, &mut self.may_fail, has_utility).map(|()| actions));
        let actions = table.meter.explained("decide", checked, || input::faults(&batch))?;
        self.apply_actions(&actions);
        self.steps += 1;
        Ok(Step::Answered(actions.iter().flat_map(words).collect()))
    }
}

/// An action as numbers, its kind and its value, for comparison.
fn words(action: &FaultAction) -> [u64; 2] {
    match *action {
        FaultAction::FailRequest { slot } => [0, slot.into()],
        FaultAction::Stall { duration_ns } => [1, duration_ns],
        FaultAction::Crash { restart_after_ns } => [2, restart_after_ns.unwrap_or(u64::MAX)],
        FaultAction::DropMessage => [3, 0],
        FaultAction::DuplicateMessage => [4, 0],
        FaultAction::CorruptMessage => [5, 0],
        FaultAction::DelayMessage { by_ns } => [6, by_ns],
        FaultAction::LoseKvEvents => [7, 0],
        FaultAction::FailUtility => [8, 0],
    }
}

impl FaultWorkload {
    fn happen(&mut self) -> Vec<SentEvent> {
        self.now_ns += self.draw.length(100_000, 40_000_000);
        let mut sent = Vec::new();
        for slot in std::mem::take(&mut self.doomed) {
            self.end(slot, &mut sent);
        }
        for live in &mut self.running {
            live.tokens = (live.tokens + self.draw.within(1, 3) as u32).min(live.max_tokens);
            sent.push(SentEvent::Emitted { slot: live.slot, output_tokens: live.tokens });
        }
        let done: Vec<u32> =
            self.running.iter().filter(|live| live.tokens == live.max_tokens).map(|live| live.slot).collect();
        for slot in done {
            self.end(slot, &mut sent);
        }
        let burst = if self.draw.once_in(4) { self.draw.length(1, 16) } else { 0 };
        for _ in 0..burst {
            let Some(slot) = self.free.pop() else { break };
            sent.push(self.arrive(slot));
        }
        if self.draw.once_in(50) {
            sent.push(SentEvent::Utility { method: METHODS[self.draw.below(4) as usize] });
        }
        sent
    }

    fn arrive(&mut self, slot: u32) -> SentEvent {
        let draw = &mut self.draw;
        let max_tokens = draw.length(1, 200) as u32;
        self.running.push(Live { slot, tokens: 0, max_tokens });
        self.requests += 1;
        let kind = if draw.once_in(5) { "burst" } else { "chatcmpl" };
        SentEvent::Arrived {
            slot,
            request_id: format!("{kind}-{:08x}", self.requests),
            prompt_tokens: draw.length(1, 16_384) as u32,
            max_tokens,
            priority: draw.below(5) as i32 - 2,
            adapter: draw.once_in(6).then(|| draw.below(4) as u32),
        }
    }

    fn end(&mut self, slot: u32, sent: &mut Vec<SentEvent>) {
        self.running.retain(|live| live.slot != slot);
        self.free.push(slot);
        sent.push(SentEvent::Ended { slot });
    }

    fn apply_actions(&mut self, actions: &[FaultAction]) {
        for action in actions {
            match action {
                FaultAction::FailRequest { slot } => self.doomed.push(*slot),
                FaultAction::Stall { duration_ns } => self.pass(*duration_ns),
                // The engine, or its replacement, starts without requests.
                FaultAction::Crash { restart_after_ns } => {
                    self.pass(restart_after_ns.unwrap_or(0));
                    self.doomed = self.running.iter().map(|live| live.slot).collect();
                }
                FaultAction::DropMessage
                | FaultAction::DuplicateMessage
                | FaultAction::CorruptMessage
                | FaultAction::DelayMessage { .. }
                | FaultAction::LoseKvEvents
                | FaultAction::FailUtility => {}
            }
        }
        self.doomed.sort_unstable();
        self.doomed.dedup();
    }

    fn pass(&mut self, duration_ns: u64) {
        self.now_ns = self.now_ns.saturating_add(duration_ns);
    }
}
