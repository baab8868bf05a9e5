//! Pauses and sleep, as vLLM's engine has them.

use vcr_core::PauseState;
use vcr_wire::{FinishReason, Integer, UtilityOutput, Value};

use crate::error::LiveError;
use crate::server::Server;

/// What becomes of requests under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseMode {
    Abort,
    Wait,
    Keep,
}

impl PauseMode {
    /// # Errors
    /// When there is no such mode, in vLLM's words.
    pub(crate) fn of(name: &str) -> Result<Self, String> {
        match name {
            "abort" => Ok(Self::Abort),
            "wait" => Ok(Self::Wait),
            "keep" => Ok(Self::Keep),
            other => Err(format!("Invalid pause mode: {other}")),
        }
    }
}

/// A call that is answered when the engine stands still.
#[derive(Clone, Debug)]
pub(crate) struct PendingCall {
    pub(crate) client: u32,
    pub(crate) call_id: Integer,
    pub(crate) method: String,
    pub(crate) clear_cache: bool,
    /// How deep it sleeps afterwards.
    pub(crate) sleep_level: u64,
}

/// Pauses of one engine.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// Whether new requests are refused rather than queued.
    pub(crate) rejects_new: bool,
    /// Memory that is not there while it sleeps.
    pub(crate) sleeps_weights: bool,
    pub(crate) sleeps_kv_cache: bool,
    pub(crate) pending: Vec<PendingCall>,
}

impl Pauses {
    pub(crate) fn is_asleep(&self) -> bool {
        self.sleeps_weights || self.sleeps_kv_cache
    }
}

impl Server {
    /// Begins a pause; `call` is answered when it is complete.
    pub(crate) fn pause(&mut self, mode: PauseMode, call: PendingCall, now_ns: u64) -> Result<(), LiveError> {
        if mode == PauseMode::Abort {
            self.abort_all(now_ns)?;
        }
        let state = if mode == PauseMode::Keep { PauseState::PausedAll } else { PauseState::PausedNew };
        self.engine.set_pause_state(state);
        self.pauses.pending.push(call);
        Ok(())
    }

    /// Schedules again.
    pub(crate) fn resume(&mut self) {
        self.pauses.rejects_new = false;
        self.engine.set_pause_state(PauseState::Unpaused);
        self.may_decide = true;
    }

    /// Answers pauses that are complete: no request is under way, and no step.
    pub(crate) fn finish_pauses(&mut self) -> Result<(), LiveError> {
        if self.pauses.pending.is_empty() || self.num_unfinished() > 0 || !self.pipeline.is_empty() {
            return Ok(());
        }
        for call in std::mem::take(&mut self.pauses.pending) {
            if call.clear_cache {
                self.reset_prefix_cache(true);
            }
            if call.sleep_level >= 1 {
                self.pauses.sleeps_weights = true;
                self.pauses.sleeps_kv_cache = true;
            }
            tracing::info!(rank = self.rank, method = call.method, "paused");
            self.counters.utility_calls += 1;
            self.outputs.send_utility(call.client, UtilityOutput::returned(call.call_id, Value::Nil))?;
        }
        Ok(())
    }

    /// Forgets calls whose frontend is gone.
    pub(crate) fn settle_pending_calls_of(&mut self, client: usize) {
        self.pauses.pending.retain(|call| call.client as usize != client);
    }

    /// Wakes the named memory, all if none is named. `true` if it is awake.
    pub(crate) fn wake(&mut self, tags: Option<&[&str]>) -> bool {
        let wakes = |tag: &str| tags.is_none_or(|tags| tags.contains(&tag));
        self.pauses.sleeps_weights &= !wakes("weights");
        self.pauses.sleeps_kv_cache &= !wakes("kv_cache");
        let is_awake = !self.pauses.is_asleep();
        if is_awake {
            self.resume();
        }
        is_awake
    }

    /// Drops the prefix cache; with `preempt_running` running requests are
    /// computed again. `false` if blocks are in use.
    pub(crate) fn reset_prefix_cache(&mut self, preempt_running: bool) -> bool {
        let is_reset = self.engine.reset_prefix_cache(preempt_running);
        if is_reset {
            self.stats.cache_reset();
            // Who is answered next may rely on it.
            self.gather_cache_events();
        }
        self.may_decide = true;
        is_reset
    }

    /// Ends a request with an error, as far as it is known.
    pub(crate) fn fail_slot(&mut self, slot: u32, now_ns: u64) -> Result<(), LiveError> {
        let found = self.requests.iter().find(|request| crate::requests::slot_of(request.tag) == slot as usize);
        let Some(tag) = found.map(|request| request.tag) else { return Ok(()) };
        if let Some(request) = self.drop_request(tag, FinishReason::Error) {
            self.outputs.send_finish(request.client, &[&request.id], FinishReason::Error, None, now_ns)?;
        }
        Ok(())
    }
}
