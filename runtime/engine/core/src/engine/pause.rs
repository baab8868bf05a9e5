//! Pauses of the scheduler, and the work that they leave.

use crate::engine::Engine;

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

impl Engine {
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
    /// `get_num_unfinished_requests`): without a pause all that run or wait but for the next part of their prompt,
    /// under [`PauseState::PausedNew`] those that run, load KV or have loaded
    /// it, under [`PauseState::PausedAll`] none.
    #[must_use]
    pub fn num_unfinished(&self) -> usize {
        match self.pause_state {
            PauseState::Unpaused => self.num_running() + self.num_waiting() - self.num_waiting_sessions(),
            PauseState::PausedNew if self.config.rules().admits_loaded_under_pause() => {
                let holding = self.queues.num_kv_ready() + self.queues.num_loading();
                self.num_running() + holding.saturating_sub(self.num_waiting_sessions())
            }
            PauseState::PausedNew => self.num_running(),
            PauseState::PausedAll => 0,
        }
    }

    /// Whether [`Engine::schedule`] could find work.
    #[must_use]
    pub fn has_schedulable_requests(&self) -> bool {
        let runs = !self.running.is_empty() && self.pause_state != PauseState::PausedAll;
        let num_blocked = self.num_waiting_sessions() + self.num_compiling();
        runs || (self.queues.num_queued() > num_blocked && self.queues.next(self.pause_state).is_some())
    }

    /// Whether a request could be admitted if there were room and no pause.
    pub(super) fn has_waiting_requests(&self) -> bool {
        self.queues.num_queued() > 0
    }
}
