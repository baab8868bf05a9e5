//! Pauses and sleep of vLLM's engine.

use vcr_core::PauseState;
use vcr_wire::{Integer, UtilityOutput, Value};

use crate::admin::Admin;
use crate::error::LiveError;
use crate::serving::Serving;

/// Handling of unfinished requests in a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseMode {
    Abort,
    Wait,
    Keep,
}

impl PauseMode {
    /// # Errors
    /// The mode is unknown; the message is vLLM's.
    pub(crate) fn of(name: &str) -> Result<Self, String> {
        match name {
            "abort" => Ok(Self::Abort),
            "wait" => Ok(Self::Wait),
            "keep" => Ok(Self::Keep),
            other => Err(format!("Invalid pause mode: {other}")),
        }
    }
}

/// A call that is answered when the pause is complete.
#[derive(Clone, Debug)]
pub(crate) struct PendingCall {
    pub(super) client: u32,
    pub(super) call_id: Integer,
    pub(super) method: String,
    pub(super) clear_cache: bool,
    /// vLLM's sleep level after the pause; 0: the engine does not sleep.
    pub(super) sleep_level: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// Whether new requests are refused rather than queued.
    pub(super) rejects_new: bool,
    /// Whether the memory of the weights, and of the KV cache, is released because the engine sleeps.
    pub(super) sleeps_weights: bool,
    pub(super) sleeps_kv_cache: bool,
    pub(super) pending: Vec<PendingCall>,
}

impl Pauses {
    pub(crate) fn is_asleep(&self) -> bool {
        self.sleeps_weights || self.sleeps_kv_cache
    }
}

impl Admin {
    /// Begins a pause; `call` is answered when it is complete.
    pub(super) fn pause(
        &mut self,
        serving: &mut Serving,
        mode: PauseMode,
        call: PendingCall,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        if mode == PauseMode::Abort {
            serving.abort_all(now_ns)?;
        }
        serving.stepper.pause(if mode == PauseMode::Keep { PauseState::PausedAll } else { PauseState::PausedNew });
        self.pauses.pending.push(call);
        Ok(())
    }

    /// Resumes scheduling and accepts new requests.
    pub(super) fn resume(&mut self, serving: &mut Serving) {
        self.pauses.rejects_new = false;
        serving.stepper.resume();
    }

    /// Answers the pending pause calls once no request is unfinished and no step is in flight.
    pub(crate) fn finish_pauses(&mut self, serving: &mut Serving) -> Result<(), LiveError> {
        if self.pauses.pending.is_empty() || !serving.is_idle() {
            return Ok(());
        }
        for call in std::mem::take(&mut self.pauses.pending) {
            if call.clear_cache {
                serving.reset_prefix_cache(true);
            }
            if call.sleep_level >= 1 {
                self.pauses.sleeps_weights = true;
                self.pauses.sleeps_kv_cache = true;
            }
            tracing::info!(rank = serving.context.rank, method = call.method, "paused");
            serving.counters.utility_calls += 1;
            serving.egress.outputs.send_utility(call.client, UtilityOutput::returned(call.call_id, Value::Nil))?;
        }
        Ok(())
    }

    /// Wakes the memory with these tags, or all of it. Returns whether all memory is awake afterwards.
    pub(super) fn wake(&mut self, serving: &mut Serving, tags: Option<&[&str]>) -> bool {
        let wakes = |tag: &str| tags.is_none_or(|tags| tags.contains(&tag));
        self.pauses.sleeps_weights &= !wakes("weights");
        self.pauses.sleeps_kv_cache &= !wakes("kv_cache");
        let is_awake = !self.pauses.is_asleep();
        if is_awake {
            self.resume(serving);
        }
        is_awake
    }
}
