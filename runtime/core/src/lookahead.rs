//! Steps that can be told in advance: stretches of pure decode.
//!
//! While nothing arrives, nothing waits and nobody ends, each decode step is
//! the one before with every context a token longer. A latency model that is
//! costly to call can then price many steps at once.

use crate::engine::Engine;
use crate::latency::StepShape;
use crate::request::Flags;

impl Engine {
    /// Appends the shapes of up to `most` steps that follow the one in flight,
    /// as long as no request is submitted or aborted and no transfer completes.
    ///
    /// Appends nothing unless the step in flight is a decode of every request;
    /// ends before the first step without all of them, or without free blocks.
    pub fn predict_decode_steps(&self, most: usize, shapes: &mut Vec<StepShape>) {
        let plan = self.plan();
        let decoding = plan.scheduled.len();
        let told = self.steps_in_flight == 1
            && plan.shape.decode_requests == decoding as u64
            && decoding == self.running.len()
            && !self.has_waiting_requests()
            && !self.config.async_scheduling
            && self.config.num_speculative_tokens == 0
            && self.config.max_extra_tokens_per_step == 0;
        if !told {
            return;
        }
        let most = self.steps_until_first_end(most);
        // New blocks by step, then their running sum.
        let mut new_blocks = [0u32; Self::MOST_PREDICTED_STEPS];
        let most = most.min(new_blocks.len());
        for entry in &self.plan().scheduled {
            let request = &self.requests[entry.request];
            let mut step = (request.capacity_tokens - request.num_computed_tokens) as usize;
            while step < most {
                new_blocks[step] += 1;
                step += self.config.block_size as usize;
            }
        }
        let mut shape = self.plan().shape;
        let mut free_blocks = self.pool.num_free();
        for &blocks in &new_blocks[..most] {
            if blocks > free_blocks {
                return;
            }
            free_blocks -= blocks;
            shape.decode_context_tokens += shape.decode_requests;
            shape.kv_active_blocks += u64::from(blocks);
            shapes.push(shape);
        }
    }

    /// Most steps that [`Engine::predict_decode_steps`] tells at once.
    pub const MOST_PREDICTED_STEPS: usize = 64;

    /// Steps after the one in flight that all of its requests are part of.
    fn steps_until_first_end(&self, most: usize) -> usize {
        let mut steps = most;
        for entry in &self.plan().scheduled {
            let request = &self.requests[entry.request];
            if request.flags.has(Flags::HAS_STOP_TOKEN) {
                return 0;
            }
            let left = request.end_tokens - request.num_tokens;
            // The step in flight gives one of them.
            steps = steps.min(left as usize - 1);
        }
        steps
    }
}
