//! Pauses of the scheduler, and the work that they leave; steps that throttle prefills.

use crate::engine::{Engine, QueueKind};
use crate::request::{Flags, RequestId};

/// Extent of a pause of the scheduler. Names are vLLM's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PauseState {
    /// Everything.
    #[default]
    Unpaused,
    /// Running requests go on, and so do waiting ones whose KV a transfer has brought. Other
    /// requests are taken and wait, among them those that are preempted. With the rules of vLLM up to
    /// 0.31 requests with KV wait, too, and are not among [`Engine::num_unfinished`].
    PausedNew,
    /// Nothing. Steps in flight may still be applied.
    PausedAll,
}

/// Prefills that wait for steps in which data-parallel ranks all start theirs (vLLM's
/// `prefill_schedule_interval`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrefillThrottle {
    /// Whether the next step is one of those between.
    is_on: bool,
    /// Whether requests still waited after the latest step that could start prefills: then
    /// steps between do so, too.
    is_capacity_bound: bool,
}

impl Engine {
    /// Says whether the next step puts prefills off as long as anything decodes (vLLM's
    /// `schedule(throttle_prefills)`).
    pub fn throttle_prefills(&mut self, is_on: bool) {
        self.throttle.is_on = is_on;
    }

    /// Whether the step that is decided now puts prefills off.
    pub(crate) fn defers_prefills(&self) -> bool {
        let PrefillThrottle { is_on, is_capacity_bound } = self.throttle;
        let decodes = |id: &RequestId| !self.requests[*id].flags.has(Flags::PREFILL_CHUNK);
        is_on && !is_capacity_bound && self.running.iter().any(decodes)
    }

    /// A step is decided that could start prefills, unless it has preempted.
    pub(crate) fn note_waiting_prefills(&mut self) {
        self.throttle.is_capacity_bound = self.waiting.len() > 0;
    }

    /// The pause state.
    #[must_use]
    pub fn pause_state(&self) -> PauseState {
        self.pause_state
    }

    /// Says how much is scheduled from the next step on.
    pub fn set_pause_state(&mut self, state: PauseState) {
        self.pause_state = state;
    }

    /// Requests on which the engine goes on to work (vLLM's
    /// `get_num_unfinished_requests`): without a pause all that run or wait,
    /// under [`PauseState::PausedNew`] those that run, load KV or have loaded
    /// it, under [`PauseState::PausedAll`] none.
    #[must_use]
    pub fn num_unfinished(&self) -> usize {
        match self.pause_state {
            PauseState::Unpaused => self.num_running() + self.num_waiting(),
            PauseState::PausedNew if self.config.rules.admits_loaded_under_pause() => {
                self.num_running() + self.kv_ready.len() + self.num_loading
            }
            PauseState::PausedNew => self.num_running(),
            PauseState::PausedAll => 0,
        }
    }

    /// Whether [`Engine::schedule`] could find work.
    #[must_use]
    pub fn has_schedulable_requests(&self) -> bool {
        let runs = !self.running.is_empty() && self.pause_state != PauseState::PausedAll;
        runs || (self.has_waiting_requests() && self.next_queue().is_some())
    }

    /// Whether a request could be admitted if there were room and no pause.
    pub(crate) fn has_waiting_requests(&self) -> bool {
        self.waiting.len() + self.skipped_waiting.len() + self.kv_ready.len() > 0
    }

    /// The queue whose turn it is if any request waits; none if the pause keeps
    /// them all out.
    pub(crate) fn next_queue(&self) -> Option<QueueKind> {
        match self.pause_state {
            PauseState::PausedAll => None,
            PauseState::PausedNew if !self.config.rules.admits_loaded_under_pause() => None,
            _ if self.kv_ready.len() > 0 => Some(QueueKind::KvReady),
            PauseState::PausedNew => None,
            PauseState::Unpaused => Some(QueueKind::Waiting),
        }
    }
}
