//! Prices of a worker's steps: asked of its latency model, one by one or ahead.

use std::ops::Range;

use vcr_core::latency::{DecodeSteps, LatencyError, StepBatch, StepShape};
use vcr_core::{Engine, ServingEngine, seed};

use super::Worker;

/// Steps with the time that each takes; there may be more steps than times.
#[derive(Debug, Default)]
pub(crate) struct PricedSteps {
    pub(crate) first: StepShape,
    /// The steps after it.
    pub(crate) decodes: DecodeSteps,
    pub(crate) durations_ns: Vec<u64>,
}

impl PricedSteps {
    fn shape(&self, index: usize) -> StepShape {
        index.checked_sub(1).map_or(self.first, |index| self.decodes.shape(index))
    }
}

impl Worker {
    /// Prices the oldest step in flight, which starts now, and with `ahead`
    /// those that must follow it, as far as they start before `horizon_ns`:
    /// until then nothing from outside reaches the engine. Gives the steps to be
    /// taken, as a range of [`Worker::take_durations_ns`].
    pub(crate) fn price(&mut self, now_ns: u64, horizon_ns: u64, ahead: bool) -> Result<Range<usize>, LatencyError> {
        // Blocks that it takes may still be copied to the host.
        let wait_ns = self.engine.as_vllm_mut().map_or(0, |engine| engine.flush_for_oldest(now_ns));
        let ahead = ahead && wait_ns == 0;
        if self.taken == self.priced.durations_ns.len() {
            self.price_ahead(now_ns, horizon_ns, ahead)?;
        }
        assert!(self.has_priced(&self.engine.oldest_plan().shape), "a step was priced that did not happen");
        let durations_ns = &mut self.priced.durations_ns;
        let upto = if ahead { durations_ns.len() } else { self.taken + 1 };
        let range = self.taken..upto;
        for (_, factor) in &self.slow_downs {
            for duration_ns in &mut durations_ns[range.clone()] {
                *duration_ns = (*duration_ns as f64 * factor).round() as u64;
            }
        }
        durations_ns[self.taken] = durations_ns[self.taken].saturating_add(wait_ns);
        self.taken = upto;
        if let Some(launches) = &mut self.launches {
            let next = (self.engine.steps_in_flight() > 1).then(|| &self.engine.plan().shape);
            let durations_ns = &mut self.priced.durations_ns[range.clone()];
            launches.pace(&self.engine.oldest_plan().shape, next, now_ns, durations_ns);
        }
        if let Some(pipeline) = &mut self.pipeline {
            // Its single step has been on its way through the stages for a while.
            let duration_ns = &mut self.priced.durations_ns[range.start];
            *duration_ns = pipeline.end_ns(*duration_ns).saturating_sub(now_ns);
        }
        Ok(range)
    }

    /// Whether steps take as long as the latency model says, to the nanosecond.
    pub(crate) fn has_plain_prices(&self) -> bool {
        self.slow_downs.is_empty() && self.launches.is_none()
    }

    /// Predicts up to `most` steps that must follow the one in flight, which is priced. Gives how
    /// many there are.
    pub(crate) fn predict(&mut self, most: usize) -> usize {
        self.engine.predict_decode_steps(most, &mut self.priced.decodes);
        self.priced.decodes.len()
    }

    /// Prices the next of the predicted steps, which starts then. Gives its range, as
    /// [`Worker::price`] does.
    pub(crate) fn price_predicted(&mut self, start_ns: u64) -> Result<Range<usize>, LatencyError> {
        let step = self.taken;
        let shapes = [self.priced.decodes.shape(step - 1)];
        let batch = StepBatch { start_ns, horizon_ns: start_ns, shapes: &shapes };
        self.latency.price(&batch, &mut self.priced.durations_ns)?;
        self.taken += 1;
        Ok(step..self.taken)
    }

    /// Whether the next of the priced steps is this one.
    fn has_priced(&self, shape: &StepShape) -> bool {
        match self.taken {
            0 => self.priced.first == *shape,
            taken => self.priced.decodes.shape(taken - 1) == *shape,
        }
    }

    /// Lends the times of the priced steps, to be given back by [`Worker::give_back`].
    pub(crate) fn take_durations_ns(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.priced.durations_ns)
    }

    pub(crate) fn give_back(&mut self, durations_ns: Vec<u64>) {
        self.priced.durations_ns = durations_ns;
    }

    /// Books steps that start at `start_ns`, one after another: those of the range of
    /// what was priced. Gives when the last one ends.
    pub(crate) fn book(&mut self, mut start_ns: u64, range: Range<usize>) -> u64 {
        self.executing = true;
        let priced = &self.priced;
        let durations_ns = &priced.durations_ns[range.clone()];
        let first_start_ns = start_ns;
        let mut digest = self.step_digest;
        let mut digests = self.step_digests.take();
        let mut book = |prefill_tokens: u64, decode_requests: u64, active_blocks: u64, duration_ns: u64| {
            // Shares of a word, so that a step takes one.
            let work = prefill_tokens << 44 ^ decode_requests << 24 ^ active_blocks;
            digest = seed::absorb(digest, start_ns ^ duration_ns.rotate_left(40) ^ seed::spread(work));
            digests.iter_mut().for_each(|digests| digests.push(digest as u32));
            self.step_start_ns = start_ns;
            start_ns = start_ns.saturating_add(duration_ns);
        };
        let first = priced.shape(range.start);
        book(first.prefill_tokens, first.decode_requests, first.kv_active_blocks, durations_ns[0]);
        // What follows decodes.
        let rest = &priced.decodes.kv_active_blocks()[range.start..range.end - 1];
        for (&active_blocks, &duration_ns) in rest.iter().zip(&durations_ns[1..]) {
            book(0, first.decode_requests, active_blocks, duration_ns);
        }
        let most_blocks = rest.iter().copied().fold(first.kv_active_blocks, u64::max);
        self.step_digest = digest;
        self.step_digests = digests;
        let totals = &mut self.totals;
        totals.busy_ns += start_ns - first_start_ns;
        let decode_tokens = first.decode_tokens * durations_ns.len() as u64;
        totals.computed_tokens += first.prefill_tokens + decode_tokens;
        totals.prefill_tokens += first.prefill_tokens;
        totals.peak_active_blocks = totals.peak_active_blocks.max(most_blocks as u32);
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
        1 + self.priced.decodes.len() as u64
    }

    /// Prices the step that starts now and, if `ahead` or where that pays,
    /// those that must follow.
    fn price_ahead(&mut self, now_ns: u64, horizon_ns: u64, ahead: bool) -> Result<(), LatencyError> {
        self.taken = 0;
        let PricedSteps { first, decodes, durations_ns } = &mut self.priced;
        durations_ns.clear();
        *first = self.engine.oldest_plan().shape;
        decodes.clear();
        if self.engine.as_vllm().is_some_and(Engine::has_request_times) {
            durations_ns.push(0);
            return Ok(());
        }
        // A slow-down is not known to the model, so its steps would start at
        // other times than it is given.
        let alone = self.injector.is_some() || self.tokens.is_some() || !self.slow_downs.is_empty();
        let batches = self.latency.prefers_batches();
        let looks_ahead = (ahead || batches) && !alone && now_ns < horizon_ns;
        if looks_ahead && batches {
            self.engine.predict_decode_steps(Engine::MAX_PREDICTED_STEPS, decodes);
            let shapes: Vec<StepShape> = std::iter::once(*first).chain(decodes.shapes()).collect();
            return self.latency.price(&StepBatch { start_ns: now_ns, horizon_ns, shapes: &shapes }, durations_ns);
        }
        self.latency.price(&StepBatch { start_ns: now_ns, horizon_ns, shapes: &[*first] }, durations_ns)?;
        let end_ns = now_ns.saturating_add(durations_ns[0]);
        if looks_ahead && end_ns < horizon_ns {
            // Steps of pure decode take about as long as the one before, so few are priced
            // that lie beyond the horizon.
            let most = (horizon_ns - end_ns).div_ceil(durations_ns[0].max(1)).saturating_add(1);
            let most = Engine::MAX_PREDICTED_STEPS.min(usize::try_from(most).unwrap_or(usize::MAX));
            self.engine.predict_decode_steps(most, decodes);
            if !decodes.is_empty() {
                self.latency.price_decodes(end_ns, horizon_ns, decodes, durations_ns)?;
            }
        }
        Ok(())
    }
}
