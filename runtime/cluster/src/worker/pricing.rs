//! What the steps of a worker cost: asked of its latency model, one by one or ahead.

use std::ops::Range;

use vcr_core::latency::{LatencyError, StepBatch, StepShape};
use vcr_core::{Engine, ServingEngine, seed};

use super::Worker;

/// Steps with the time that each takes; there may be more shapes than times.
#[derive(Debug, Default)]
pub(crate) struct PricedSteps {
    pub(crate) shapes: Vec<StepShape>,
    pub(crate) durations_ns: Vec<u64>,
}

impl Worker {
    /// Prices the oldest step in flight, which starts now, and with `ahead`
    /// those that must follow it, as far as they start before `horizon_ns`:
    /// until then nothing from outside reaches the engine. Gives the steps to be
    /// taken, as a range of [`Worker::take_priced`]'s.
    pub(crate) fn price(&mut self, now_ns: u64, horizon_ns: u64, ahead: bool) -> Result<Range<usize>, LatencyError> {
        if self.taken == self.priced.durations_ns.len() {
            self.price_ahead(now_ns, horizon_ns, ahead)?;
        }
        let PricedSteps { shapes, durations_ns } = &mut self.priced;
        assert_eq!(shapes[self.taken], self.engine.oldest_plan().shape, "a step was priced that did not happen");
        let upto = if ahead { durations_ns.len() } else { self.taken + 1 };
        let range = self.taken..upto;
        for (_, factor) in &self.slow_downs {
            for duration_ns in &mut durations_ns[range.clone()] {
                *duration_ns = (*duration_ns as f64 * factor).round() as u64;
            }
        }
        self.taken = upto;
        Ok(range)
    }

    /// Lends the priced steps, to be given back by [`Worker::give_back`].
    pub(crate) fn take_priced(&mut self) -> PricedSteps {
        std::mem::take(&mut self.priced)
    }

    pub(crate) fn give_back(&mut self, priced: PricedSteps) {
        self.priced = priced;
    }

    /// Books steps that start at `start_ns`, one after another. Gives when the last
    /// one ends.
    pub(crate) fn book(&mut self, mut start_ns: u64, shapes: &[StepShape], durations_ns: &[u64]) -> u64 {
        self.executing = true;
        let (mut prefill_tokens, mut decode_tokens, mut peak_active_blocks) = (0, 0, 0);
        let mut digest = self.step_digest;
        let first_start_ns = start_ns;
        for (shape, &duration_ns) in shapes.iter().zip(durations_ns) {
            prefill_tokens += shape.prefill_tokens;
            decode_tokens += shape.decode_tokens;
            peak_active_blocks = shape.kv_active_blocks.max(peak_active_blocks);
            let work = shape.prefill_tokens << 32 ^ shape.decode_requests << 48 ^ shape.kv_active_blocks;
            digest = seed::absorb(seed::absorb(digest, start_ns ^ duration_ns.rotate_left(40)), work);
            self.step_start_ns = start_ns;
            start_ns = start_ns.saturating_add(duration_ns);
        }
        self.step_digest = digest;
        let totals = &mut self.totals;
        totals.busy_ns += start_ns - first_start_ns;
        totals.computed_tokens += prefill_tokens + decode_tokens;
        totals.prefill_tokens += prefill_tokens;
        totals.peak_active_blocks = totals.peak_active_blocks.max(peak_active_blocks as u32);
        self.computes_until_ns = start_ns;
        self.waits_until_ns = start_ns;
        start_ns
    }

    /// Books that it is in a step of its engine from `now_ns` to `until_ns`, its own
    /// part of which, if it has one, is booked.
    pub(crate) fn wait(&mut self, now_ns: u64, until_ns: u64) {
        if !self.executing {
            self.computes_until_ns = now_ns;
        }
        let waited_ns = until_ns - self.computes_until_ns;
        self.waits_until_ns = until_ns;
        self.totals.waited_ns += waited_ns;
        self.step_digest = seed::absorb(self.step_digest, waited_ns);
    }

    /// Steps of the latest call to the latency model.
    pub(crate) fn num_priced(&self) -> u64 {
        self.priced.shapes.len() as u64
    }

    /// Prices the step that starts now and, if `ahead` or where that pays,
    /// those that must follow.
    fn price_ahead(&mut self, now_ns: u64, horizon_ns: u64, ahead: bool) -> Result<(), LatencyError> {
        self.taken = 0;
        let PricedSteps { shapes, durations_ns } = &mut self.priced;
        shapes.clear();
        durations_ns.clear();
        shapes.push(self.engine.oldest_plan().shape);
        // A slow-down is not known to the model, so its steps would start at
        // other times than it is told.
        let alone = self.injector.is_some() || self.tokens.is_some() || !self.slow_downs.is_empty();
        let batches = self.latency.prefers_batches();
        let looks_ahead = (ahead || batches) && !alone && now_ns < horizon_ns;
        if looks_ahead && batches {
            self.engine.predict_decode_steps(Engine::MOST_PREDICTED_STEPS, shapes);
        }
        self.latency.price(&StepBatch { start_ns: now_ns, horizon_ns, shapes }, durations_ns)?;
        if !looks_ahead || batches {
            return Ok(());
        }
        // Steps of pure decode take about as long as the one before, so few are told
        // that lie beyond the horizon.
        let end_ns = now_ns.saturating_add(durations_ns[0]);
        let most = horizon_ns.saturating_sub(end_ns).div_ceil(durations_ns[0].max(1)).saturating_add(1);
        if end_ns < horizon_ns {
            self.engine.predict_decode_steps(
                Engine::MOST_PREDICTED_STEPS.min(usize::try_from(most).unwrap_or(usize::MAX)),
                shapes,
            );
        }
        if shapes.len() > 1 {
            self.latency.price(&StepBatch { start_ns: end_ns, horizon_ns, shapes: &shapes[1..] }, durations_ns)?;
        }
        Ok(())
    }
}
