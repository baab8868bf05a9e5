//! Step durations of a worker. The latency model prices steps one by one, or several ahead.

use std::ops::Range;

use vcr_core::host::Launches;
use vcr_core::latency::{DecodeSteps, LatencyError, LatencyModel, RangeUse, StepBatch, StepShape};
use vcr_core::{AnyEngine, Engine, ServingEngine};

use super::Worker;

/// Steps and their durations; steps at the end may not have a duration yet.
#[derive(Debug, Default)]
pub(super) struct PricedSteps {
    first: StepShape,
    /// The steps after the first.
    decodes: DecodeSteps,
    pub(super) durations_ns: Vec<u64>,
}

impl PricedSteps {
    pub(super) fn shape(&self, index: usize) -> StepShape {
        index.checked_sub(1).map_or(self.first, |index| self.decodes.shape(index))
    }

    /// Blocks in use in the steps of `range` after its first step. These steps only decode.
    pub(super) fn active_blocks_after(&self, range: &Range<usize>) -> &[u64] {
        &self.decodes.kv_active_blocks()[range.start..range.end - 1]
    }
}

pub(super) struct Pricing {
    model: Box<dyn LatencyModel>,
    /// Whether the model reads the shapes of KV cache groups.
    reads_kv_groups: bool,
    slow_downs: Vec<(u32, f64)>,
    /// Kernel launches of the host, if they take time.
    launches: Option<Box<Launches>>,
    /// The steps of the latest pricing call. `taken` counts the steps already returned.
    priced: PricedSteps,
    taken: usize,
}

impl Pricing {
    pub(super) fn new(mut model: Box<dyn LatencyModel>, launches: Option<Box<Launches>>) -> Self {
        let reads_kv_groups = model.kv_group_shapes().is_some();
        Self { model, reads_kv_groups, slow_downs: Vec::new(), launches, priced: PricedSteps::default(), taken: 0 }
    }

    pub(super) fn replace_model(&mut self, model: Box<dyn LatencyModel>) {
        self.model = model;
        self.reads_kv_groups = self.model.kv_group_shapes().is_some();
    }

    pub(super) fn reads_kv_groups(&self) -> bool {
        self.reads_kv_groups
    }

    pub(super) fn range_use(&self) -> Option<RangeUse> {
        self.model.range_use()
    }

    pub(super) fn slow_down(&mut self, fault: u32, factor: f64) {
        self.slow_downs.push((fault, factor));
    }

    pub(super) fn end_slow_down(&mut self, fault: u32) {
        self.slow_downs.retain(|(other, _)| *other != fault);
    }

    pub(super) fn slow_down_factor(&self) -> f64 {
        self.slow_downs.iter().map(|(_, factor)| factor).product()
    }

    /// Discards steps that were priced but will not run.
    pub(super) fn forget_steps(&mut self) {
        self.priced.durations_ns.clear();
        self.taken = 0;
    }

    /// Prices the oldest step in flight; see [`Worker::price`]. With `alone`, no later step is priced with it.
    fn price(
        &mut self,
        engine: &mut AnyEngine,
        alone: bool,
        (now_ns, horizon_ns): (u64, u64),
        ahead: bool,
    ) -> Result<Range<usize>, LatencyError> {
        // The step may have to wait until blocks that it overwrites are copied to the host.
        let wait_ns = engine.as_vllm_mut().map_or(0, |engine| engine.flush_for_oldest(now_ns));
        let ahead = ahead && wait_ns == 0;
        if self.taken == self.priced.durations_ns.len() {
            self.price_ahead(engine, alone, (now_ns, horizon_ns), ahead)?;
        }
        assert!(self.has_priced(&engine.oldest_plan().shape), "a step was priced that did not happen");
        let durations_ns = &mut self.priced.durations_ns;
        let upto = if ahead { durations_ns.len() } else { self.taken + 1 };
        let range = self.taken..upto;
        for (_, factor) in &self.slow_downs {
            for duration_ns in &mut durations_ns[range.clone()] {
                *duration_ns = (*duration_ns as f64 * factor).round() as u64;
            }
        }
        let wait_ns = wait_ns.saturating_add(engine.oldest_plan().adapter_ns);
        durations_ns[self.taken] = durations_ns[self.taken].saturating_add(wait_ns);
        self.taken = upto;
        if let Some(launches) = &mut self.launches {
            let next = (engine.steps_in_flight() > 1).then(|| &engine.plan().shape);
            launches.pace(&engine.oldest_plan().shape, next, now_ns, &mut durations_ns[range.clone()]);
        }
        Ok(range)
    }

    /// Prices the next predicted step, which starts at `start_ns`. Returns its range.
    fn price_predicted(&mut self, start_ns: u64) -> Result<Range<usize>, LatencyError> {
        let step = self.taken;
        let shapes = [self.priced.decodes.shape(step - 1)];
        let batch = StepBatch { start_ns, horizon_ns: start_ns, shapes: &shapes };
        self.model.price(&batch, &mut self.priced.durations_ns)?;
        self.taken += 1;
        Ok(step..self.taken)
    }

    fn has_priced(&self, shape: &StepShape) -> bool {
        match self.taken {
            0 => self.priced.first == *shape,
            taken => self.priced.decodes.shape(taken - 1) == *shape,
        }
    }

    /// Prices the step that starts now. With `ahead`, or if the model prefers batches, also prices the steps that
    /// must follow.
    fn price_ahead(
        &mut self,
        engine: &mut AnyEngine,
        alone: bool,
        (now_ns, horizon_ns): (u64, u64),
        ahead: bool,
    ) -> Result<(), LatencyError> {
        self.taken = 0;
        let PricedSteps { first, decodes, durations_ns } = &mut self.priced;
        durations_ns.clear();
        *first = engine.oldest_plan().shape;
        decodes.clear();
        if engine.as_vllm().is_some_and(Engine::has_request_times) {
            durations_ns.push(0);
            return Ok(());
        }
        // The model does not know of slow-downs, so the start times that it assumes for later steps would be wrong.
        let alone = alone || !self.slow_downs.is_empty() || self.reads_kv_groups;
        if let (true, Some(engine)) = (self.reads_kv_groups, engine.as_vllm())
            && let Some(shapes) = self.model.kv_group_shapes()
        {
            shapes.clear();
            shapes.extend(engine.oldest_plan().kv_group_shapes(engine.config().kv_cache_groups()));
        }
        let batches = self.model.prefers_batches();
        let looks_ahead = (ahead || batches) && !alone && now_ns < horizon_ns;
        if looks_ahead && batches {
            engine.predict_decode_steps(Engine::MAX_PREDICTED_STEPS, decodes);
            let shapes: Vec<StepShape> = std::iter::once(*first).chain(decodes.shapes()).collect();
            return self.model.price(&StepBatch { start_ns: now_ns, horizon_ns, shapes: &shapes }, durations_ns);
        }
        self.model.price(&StepBatch { start_ns: now_ns, horizon_ns, shapes: &[*first] }, durations_ns)?;
        let end_ns = now_ns.saturating_add(durations_ns[0]);
        if looks_ahead && end_ns < horizon_ns {
            // A decode step takes about as long as the previous one, so this prices few steps beyond the horizon.
            let most = (horizon_ns - end_ns).div_ceil(durations_ns[0].max(1)).saturating_add(1);
            let most = Engine::MAX_PREDICTED_STEPS.min(usize::try_from(most).unwrap_or(usize::MAX));
            engine.predict_decode_steps(most, decodes);
            if !decodes.is_empty() {
                self.model.price_decodes(end_ns, horizon_ns, decodes, durations_ns)?;
            }
        }
        Ok(())
    }
}

impl Worker {
    /// Prices the oldest step in flight, which starts now. With `ahead`, also prices the steps that must follow it
    /// and start before `horizon_ns`; nothing from outside reaches the engine until then. Returns the range of
    /// these steps in [`Worker::take_durations_ns`].
    pub(crate) fn price(&mut self, now_ns: u64, horizon_ns: u64, ahead: bool) -> Result<Range<usize>, LatencyError> {
        let alone = self.injector.is_some() || self.tokens.is_some() || self.prices_adapters();
        let range = self.pricing.price(&mut self.engine, alone, (now_ns, horizon_ns), ahead)?;
        if let Some(pipeline) = &mut self.pipeline {
            // A pipelined step is priced alone. It has already passed some stages.
            let duration_ns = &mut self.pricing.priced.durations_ns[range.start];
            *duration_ns = pipeline.end_ns(*duration_ns).saturating_sub(now_ns);
        }
        Ok(range)
    }

    /// Whether steps take exactly the latency model's time.
    pub(crate) fn has_plain_prices(&self) -> bool {
        self.pricing.slow_downs.is_empty() && self.pricing.launches.is_none() && !self.prices_adapters()
    }

    fn prices_adapters(&self) -> bool {
        self.engine.as_vllm().is_some_and(|engine| engine.config().adapter_costs().is_some())
    }

    /// Predicts up to `most` steps that must follow the priced step in progress. Returns their number.
    pub(crate) fn predict(&mut self, most: usize) -> usize {
        let decodes = &mut self.pricing.priced.decodes;
        self.engine.predict_decode_steps(most, decodes);
        decodes.len()
    }

    /// Prices the next predicted step, which starts at `start_ns`. Returns its range, like [`Worker::price`].
    pub(crate) fn price_predicted(&mut self, start_ns: u64) -> Result<Range<usize>, LatencyError> {
        self.pricing.price_predicted(start_ns)
    }

    /// Lends the durations of the priced steps. [`Worker::give_back`] returns them.
    pub(crate) fn take_durations_ns(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.pricing.priced.durations_ns)
    }

    pub(crate) fn give_back(&mut self, durations_ns: Vec<u64>) {
        self.pricing.priced.durations_ns = durations_ns;
    }

    /// Number of steps in the latest call to the latency model.
    pub(crate) fn num_priced(&self) -> u64 {
        1 + self.pricing.priced.decodes.len() as u64
    }

    /// Records the priced steps of `range`, which start at `start_ns` and follow each other. Returns the end of the
    /// last one.
    pub(crate) fn book(&mut self, start_ns: u64, range: Range<usize>) -> u64 {
        let priced = &self.pricing.priced;
        let end_ns = self.booking.book(start_ns, priced, range.clone());
        let first = priced.shape(range.start);
        let most_blocks = priced.active_blocks_after(&range).iter().copied().fold(first.kv_active_blocks, u64::max);
        let totals = &mut self.totals;
        totals.busy_ns += end_ns - start_ns;
        totals.computed_tokens += first.prefill_tokens + first.decode_tokens * range.len() as u64;
        totals.prefill_tokens += first.prefill_tokens;
        totals.peak_active_blocks = totals.peak_active_blocks.max(most_blocks as u32);
        end_ns
    }

    /// Records that the worker's engine is in a step from `now_ns` to `until_ns`. The worker's own part of the
    /// step, if any, is already recorded.
    pub(crate) fn wait(&mut self, now_ns: u64, until_ns: u64) {
        self.totals.waited_ns += self.booking.wait(now_ns, until_ns);
    }
}
