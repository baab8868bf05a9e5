//! Prediction of steps: runs of pure decode.
//!
//! While no request arrives, is admitted or ends, each decode step is the same as the previous one, with
//! every context one token longer. Such steps can be priced together and applied at once: the cost depends only on
//! their tokens and filled blocks. The result is the same as for single steps.

use crate::engine::Engine;
use crate::engine::PauseState;
use crate::plan::AdmissionStop;
use crate::plugins::latency::{BlockChange, DecodeSteps};
use crate::request::{Flags, RequestId};

impl Engine {
    /// Fills `steps` with up to `most` steps after the step in flight. They are valid as long as no request is
    /// submitted or aborted, no transfer completes and the pause state stays the same.
    /// [`Engine::decode_ahead`] applies them.
    ///
    /// There are none unless the step in flight decodes every request. They end before the first step
    /// in which a request is missing or no block is free.
    pub fn predict_decode_steps(&self, most: usize, steps: &mut DecodeSteps) {
        // Requests may have arrived since that step was decided.
        steps.restart(&self.oldest_plan().shape, self.num_waiting() as u64);
        if !self.repeats_itself() {
            return;
        }
        let mut changes = [BlockChange::default(); Self::MAX_PREDICTED_STEPS];
        let most = if self.is_all_steady_decode() {
            self.steady_decode_steps(most, &mut changes)
        } else {
            self.single_steps(most, &mut changes)
        };
        let (changes, free_blocks) = (&changes[..most], self.pool().num_free());
        match self.steps.count() {
            1 => steps.push_while_room(changes, free_blocks),
            _ => steps.push_after_scheduled(self.plan().shape.kv_active_blocks, changes, free_blocks),
        }
    }

    /// Number of steps that can be predicted, at most `most`. Adds the blocks that each step allocates to
    /// `changes`.
    fn single_steps(&self, most: usize, changes: &mut [BlockChange]) -> usize {
        let most = self.steps_until_first_end(most).min(changes.len());
        for entry in &self.plan().scheduled {
            let request = &self.requests[entry.request];
            let mut step = (request.capacity_tokens - request.num_computed_tokens) as usize;
            while step < most {
                changes[step].taken += 1;
                step += self.config.block_size() as usize;
            }
        }
        most
    }

    /// Whether the step after the one in flight is the same, with one more token of context per request.
    pub(super) fn repeats_itself(&self) -> bool {
        self.config.decodes_by_single_tokens()
            && (!self.config.async_scheduling() || self.is_all_steady_decode())
            // A step's shape does not include the time for adapters.
            && self.config.adapter_costs().is_none()
            && self.decodes_all()
            && !self.kv_loads.has_pending_stores()
    }

    /// Whether the latest step in flight decodes every request, and no request can be admitted after it.
    pub(super) fn decodes_all(&self) -> bool {
        let plan = self.plan();
        let decoding = plan.scheduled.len() + plan.steady_decode_requests as usize;
        self.steps.count() == 1 + usize::from(self.config.async_scheduling())
            && !self.turns.are_paced()
            && !self.has_policy_events()
            && self.pause_state != PauseState::PausedAll
            && plan.shape.decode_requests == decoding as u64
            && decoding == self.running.len()
            && (plan.scheduled.is_empty() || plan.steady_decode_requests == 0 && !self.kv_cache.has_groups())
            && self.repeated_stop().is_some()
            && !self.may_reserve()
            && !self.has_items_ahead()
            && !self.has_prefills_put_off()
    }

    /// Whether a prompt is partly computed and the step in flight leaves it out. Comparing the numbers of running and
    /// decoding requests does not detect this if a request of the step was aborted.
    fn has_prefills_put_off(&self) -> bool {
        let mut others = self.running.iter().skip(self.steady_decode.num_members());
        others.any(|id| self.requests[*id].flags.has(Flags::PREFILL_CHUNK))
    }

    /// Whether a request in the step in flight still needs outputs of the encoder.
    fn has_items_ahead(&self) -> bool {
        let needs = |id: RequestId| self.requests[id].flags.has(Flags::NEEDS_ENCODER);
        self.encoder_inputs.has_come() && self.plan().scheduled.iter().any(|entry| needs(entry.request))
    }

    /// The reason that ends admission in a step that decodes the running requests, if it does not depend on the
    /// individual waiting requests.
    pub(super) fn repeated_stop(&self) -> Option<AdmissionStop> {
        if !self.has_waiting_requests() {
            Some(AdmissionStop::Drained)
        } else if self.queues.next(self.pause_state).is_none() {
            Some(AdmissionStop::Paused)
        } else if self.running.len() as u32 == self.config.step_tokens() {
            Some(AdmissionStop::Budget)
        } else if self.running.len() >= self.config.max_running() {
            Some(AdmissionStop::RunningSlots)
        } else {
            self.queues.all_wait_for_adapters().then_some(AdmissionStop::Drained)
        }
    }

    /// Maximum number of steps that [`Engine::predict_decode_steps`] predicts at once.
    pub const MAX_PREDICTED_STEPS: usize = 64;

    /// Number of steps after the one in flight that still include all of its requests.
    pub(super) fn steps_until_first_end(&self, most: usize) -> usize {
        let left = self.plan().scheduled.iter().map(|entry| self.requests[entry.request].certain_tokens());
        // The step in flight emits one of the remaining tokens.
        left.fold(most, |steps, left| steps.min((left as usize).saturating_sub(1)))
    }
}
