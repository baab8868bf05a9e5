//! Steps that put prefills off, so that decodes go on undisturbed (vLLM's `prefill_schedule_interval`).
//!
//! Ranks that step together count the steps of their wave, and their driver says which of them start
//! prefills. An engine by itself counts its own steps, from the latest one with a part of a prompt.

use crate::engine::Engine;
use crate::engine::pause::PauseState;
use crate::engine::schedule::Scan;
use crate::request::{Flags, RequestId};

/// Prefills that wait for every N-th step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrefillThrottle {
    /// Whether the next step is one of those between, by the count of all ranks.
    is_on: bool,
    /// Whether requests still waited after the latest step that could start prefills: then
    /// steps between do so, too.
    is_capacity_bound: bool,
    /// The number of the latest step that computed a part of a prompt ([`crate::EngineStats::steps`]).
    latest_prefill: Option<u64>,
}

impl Engine {
    /// Says whether the next step puts prefills off as long as anything decodes (vLLM's
    /// `schedule(throttle_prefills)`).
    pub fn throttle_prefills(&mut self, is_on: bool) {
        self.throttle.is_on = is_on;
    }

    /// Whether the step that is decided now puts prefills off.
    pub(crate) fn defers_prefills(&self) -> bool {
        let PrefillThrottle { is_on, is_capacity_bound, .. } = self.throttle;
        let decodes = |id: &RequestId| !self.requests[*id].flags.has(Flags::PREFILL_CHUNK);
        (is_on || self.is_within_interval(self.stats.steps + 1))
            && !is_capacity_bound
            && self.running.iter().any(decodes)
    }

    /// Whether the step of this number comes too early after the latest prefill.
    fn is_within_interval(&self, step: u64) -> bool {
        let interval = self.config.own_prefill_interval();
        interval > 1 && self.throttle.latest_prefill.is_some_and(|latest| step - latest < interval)
    }

    /// A step is decided, and counted if it computes anything.
    pub(crate) fn note_prefills(&mut self, scan: &Scan) {
        if !scan.defers_prefills && scan.num_preempted == 0 && self.pause_state != PauseState::PausedAll {
            self.note_waiting_prefills();
        }
        if self.config.own_prefill_interval() > 1 && (scan.prefill_running || scan.prefill_admitted) {
            self.throttle.latest_prefill = Some(self.stats.steps);
        }
    }

    /// Steps that decode all running requests are skipped, and counted: some of them could have started prefills.
    pub(crate) fn note_skipped_steps(&mut self) {
        if self.config.own_prefill_interval() > 1
            && (self.throttle.is_capacity_bound || !self.is_within_interval(self.stats.steps))
        {
            self.note_waiting_prefills();
        }
    }

    /// Requests that wait for anything but room do not count: they were stepped over.
    fn note_waiting_prefills(&mut self) {
        self.throttle.is_capacity_bound =
            self.queues.len() - self.queues.num_destinations() > self.queues.num_deferred();
    }
}
