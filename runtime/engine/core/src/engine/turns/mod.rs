//! When running requests may get their next tokens, if this is not in every step.

mod pace;

use self::pace::Pace;
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::plan::StepPlan;
use crate::request::{Flags, RequestId};

#[derive(Debug)]
pub(super) struct Turns {
    /// The due times of tokens, if requests have per-request times.
    pace: Option<Box<Pace>>,
    /// The turns of requests, with several pipeline stages under async scheduling.
    stagger: Option<Box<Stagger>>,
}

impl Turns {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self { pace: None, stagger: Stagger::of(config) }
    }

    #[inline]
    pub(super) fn are_paced(&self) -> bool {
        self.pace.is_some()
    }

    #[inline]
    pub(super) fn note_finished(&mut self) {
        if let Some(stagger) = &mut self.stagger {
            stagger.note_finished();
        }
    }

    /// Whether a request must skip some steps after each step that samples for it.
    #[inline]
    pub(super) fn are_staggered(&self) -> bool {
        self.stagger.is_some()
    }
}

// Turns of requests in a pipeline under async scheduling.
//
// The last stage sends its sampled tokens to the other stages a fixed number of steps later. So with N stages, a
// request decodes in every N-th schedule (vLLM's `next_decode_eligible_step`). Empty schedules count, even
// when no step is in flight, so the driver must make as many of them as vLLM's engine core.
// [`Pipeline`](crate::host::Pipeline) decides when.

/// The requests that sampled in the latest schedules.
#[derive(Debug)]
struct Stagger {
    /// Requests with their tags, indexed by schedule number modulo the number of stages.
    sampled: Box<[Vec<(RequestId, u64)>]>,
    turn: usize,
    /// Whether a request has ended since the latest schedule.
    has_finished: bool,
}

impl Stagger {
    /// None if a request may decode in every schedule.
    fn of(config: &EngineConfig) -> Option<Box<Self>> {
        let stages = config.decode_stagger();
        let sampled = vec![Vec::new(); stages].into_boxed_slice();
        (stages > 1).then(|| Box::new(Self { sampled, turn: 0, has_finished: false }))
    }

    fn note_finished(&mut self) {
        self.has_finished = true;
    }
}

impl Engine {
    /// Whether vLLM's engine core makes a schedule, even under a pause, to notify its workers of
    /// ended requests (`has_finished_requests`). Always false without turns, because such a schedule would
    /// decide nothing.
    #[must_use]
    pub fn has_finished_requests(&self) -> bool {
        self.turns.stagger.as_ref().is_some_and(|stagger| stagger.has_finished)
    }

    /// Begins a schedule: requests that sampled N schedules ago, for N stages, may decode again.
    #[cold]
    pub(in crate::engine) fn begin_turn(&mut self) {
        let Some(stagger) = &mut self.turns.stagger else { return };
        stagger.turn = (stagger.turn + 1) % stagger.sampled.len();
        stagger.has_finished = false;
        // With per-request times and no step in flight, drivers make no empty schedules, so all requests
        // may decode again.
        let due = match self.steps.count() {
            0 if self.turns.pace.is_some() => 0..stagger.sampled.len(),
            _ => stagger.turn..stagger.turn + 1,
        };
        for ids in &mut stagger.sampled[due] {
            for (id, tag) in ids.drain(..) {
                let request = &mut self.requests[id];
                // The slot of an ended request may have been reused.
                if request.tag == tag {
                    request.flags.set(Flags::OUT_OF_TURN, false);
                }
            }
        }
    }

    #[cold]
    pub(in crate::engine) fn end_turn(&mut self, plan: &StepPlan) {
        let Some(stagger) = &mut self.turns.stagger else { return };
        for entry in plan.scheduled.iter().filter(|entry| entry.samples) {
            let request = &mut self.requests[entry.request];
            if request.flags.has(Flags::OUT_OF_TURN) {
                // The request was preempted and admitted again: its latest turn counts.
                stagger.sampled.iter_mut().for_each(|ids| ids.retain(|&(id, _)| id != entry.request));
            }
            request.flags.set(Flags::OUT_OF_TURN, true);
            stagger.sampled[stagger.turn].push((entry.request, request.tag));
        }
    }
}
