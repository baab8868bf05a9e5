//! Prediction of steps: runs of pure decode.
//!
//! While no request arrives, is admitted or ends, each decode step equals the step before with
//! every context one token longer. Such steps can be priced together and applied at once, at the
//! cost of their tokens and filled blocks. The result equals that of single steps.

use crate::engine::Engine;
use crate::engine::PauseState;
use crate::plan::AdmissionStop;
use crate::plugins::latency::{BlockChange, DecodeSteps};
use crate::request::{Flags, RequestId};

impl Engine {
    /// Fills `steps` with up to `most` steps that follow the one in flight, provided that no request is
    /// submitted or aborted, no transfer completes and the pause state stays the same.
    /// [`Engine::decode_ahead`] applies them.
    ///
    /// There are none unless the step in flight is a decode of every request; they end before the first step
    /// without all of them, or without free blocks.
    pub fn predict_decode_steps(&self, most: usize, steps: &mut DecodeSteps) {
        // Some may have arrived since that step was decided.
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

    /// Number of steps that can be predicted, of `most`; `changes` gets the blocks that each
    /// takes.
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

    /// Whether the step after the one in flight is the same with one more token of context.
    pub(super) fn repeats_itself(&self) -> bool {
        self.config.decodes_by_single_tokens()
            && (!self.config.async_scheduling() || self.is_all_steady_decode())
            // The time for adapters is not part of a shape.
            && self.config.adapter_costs().is_none()
            && self.decodes_all()
            && !self.kv_loads.has_pending_stores()
    }

    /// Whether the latest step in flight decodes every request, and none can be admitted after it.
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

    /// Whether a prompt is computed in part and the step in flight leaves it out. Then the numbers of requests that run and
    /// that decode are the same, too, once a request of the step was aborted.
    fn has_prefills_put_off(&self) -> bool {
        let mut others = self.running.iter().skip(self.steady_decode.num_members());
        others.any(|id| self.requests[*id].flags.has(Flags::PREFILL_CHUNK))
    }

    /// Whether a request in the step in flight still needs the encoder's outputs.
    fn has_items_ahead(&self) -> bool {
        let needs = |id: RequestId| self.requests[id].flags.has(Flags::NEEDS_ENCODER);
        self.encoder_inputs.has_come() && self.plan().scheduled.iter().any(|entry| needs(entry.request))
    }

    /// The reason that ends admission in a step that decodes the running requests, if it is
    /// known without looking at the waiting ones.
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

    /// Maximum steps that [`Engine::predict_decode_steps`] predicts at once.
    pub const MAX_PREDICTED_STEPS: usize = 64;

    /// Steps after the one in flight that include all of its requests.
    pub(super) fn steps_until_first_end(&self, most: usize) -> usize {
        let left = self.plan().scheduled.iter().map(|entry| self.requests[entry.request].certain_tokens());
        // The step in flight emits one of them.
        left.fold(most, |steps, left| steps.min((left as usize).saturating_sub(1)))
    }
}
