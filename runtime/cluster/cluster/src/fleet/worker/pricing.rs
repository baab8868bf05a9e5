//! Prices of a worker's steps: asked of its latency model, one by one or ahead.

use std::ops::Range;

use vcr_core::host::Launches;
use vcr_core::latency::{DecodeSteps, LatencyError, LatencyModel, RangeUse, StepBatch, StepShape};
use vcr_core::{AnyEngine, Engine, ServingEngine};

use super::Worker;

/// Steps with the time that each takes; there may be more steps than times.
#[derive(Debug, Default)]
pub(super) struct PricedSteps {
    first: StepShape,
    /// The steps after it.
    decodes: DecodeSteps,
    pub(super) durations_ns: Vec<u64>,
}

impl PricedSteps {
    pub(super) fn shape(&self, index: usize) -> StepShape {
        index.checked_sub(1).map_or(self.first, |index| self.decodes.shape(index))
    }

    /// Blocks in use in the steps of a range after its first step. All of them decode.
    pub(super) fn active_blocks_after(&self, range: &Range<usize>) -> &[u64] {
        &self.decodes.kv_active_blocks()[range.start..range.end - 1]
    }
}

/// The latency model of a worker, and the steps that it has priced.
pub(super) struct Pricing {
    model: Box<dyn LatencyModel>,
    /// Whether the model reads the shapes of the engine's groups of layers.
    reads_kv_groups: bool,
    slow_downs: Vec<(u32, f64)>,
    /// The host's launches, if they take time.
    launches: Option<Box<Launches>>,
    /// The steps of the latest pricing call. The first `taken` of them are taken.
    priced: PricedSteps,
    taken: usize,
}

impl Pricing {
    pub(super) fn new(mut model: Box<dyn LatencyModel>, launches: Option<Box<Launches>>) -> Self {
        let reads_kv_groups = model.kv_group_shapes().is_some();
        Self { model, reads_kv_groups, slow_downs: Vec::new(), launches, priced: PricedSteps::default(), taken: 0 }
    }

    /// Replaces the latency model.
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

    /// The product of all slow-downs.
    pub(super) fn slow_down_factor(&self) -> f64 {
        self.slow_downs.iter().map(|(_, factor)| factor).product()
    }

    /// The steps that are priced do not happen.
    pub(super) fn forget_steps(&mut self) {
        self.priced.durations_ns.clear();
        self.taken = 0;
    }

    /// Prices the oldest step in flight; see [`Worker::price`]. `alone` if none after it may be
    /// priced with it.
    fn price(
        &mut self,
        engine: &mut AnyEngine,
        alone: bool,
        (now_ns, horizon_ns): (u64, u64),
        ahead: bool,
    ) -> Result<Range<usize>, LatencyError> {
        // Blocks that it takes may still be copied to the host.
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

    /// Prices the next of the predicted steps, which starts then. Returns its range.
    fn price_predicted(&mut self, start_ns: u64) -> Result<Range<usize>, LatencyError> {
        let step = self.taken;
        let shapes = [self.priced.decodes.shape(step - 1)];
        let batch = StepBatch { start_ns, horizon_ns: start_ns, shapes: &shapes };
        self.model.price(&batch, &mut self.priced.durations_ns)?;
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

    /// Prices the step that starts now and, if `ahead` or if it pays, the steps that must follow.
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
        // A slow-down is not known to the model, so its steps would start at
        // other times than it is given.
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
            // Steps of pure decode take about as long as the previous one, so few steps beyond the horizon
            // are priced.
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
    /// Prices the oldest step in progress, which starts now, and with `ahead` also the steps that must follow
    /// it and start before `horizon_ns`: until then nothing from outside reaches the engine. Returns the
    /// range of steps in [`Worker::take_durations_ns`].
    pub(crate) fn price(&mut self, now_ns: u64, horizon_ns: u64, ahead: bool) -> Result<Range<usize>, LatencyError> {
        let alone = self.injector.is_some() || self.tokens.is_some() || self.prices_adapters();
        let range = self.pricing.price(&mut self.engine, alone, (now_ns, horizon_ns), ahead)?;
        if let Some(pipeline) = &mut self.pipeline {
            // Its single step has already passed some stages.
            let duration_ns = &mut self.pricing.priced.durations_ns[range.start];
            *duration_ns = pipeline.end_ns(*duration_ns).saturating_sub(now_ns);
        }
        Ok(range)
    }

    /// Whether steps take exactly the latency model's time, to the nanosecond.
    pub(crate) fn has_plain_prices(&self) -> bool {
        self.pricing.slow_downs.is_empty() && self.pricing.launches.is_none() && !self.prices_adapters()
    }

    /// Whether steps take longer with adapters.
    fn prices_adapters(&self) -> bool {
        self.engine.as_vllm().is_some_and(|engine| engine.config().adapter_costs().is_some())
    }

    /// Predicts up to `most` steps that must follow the step in progress, which is priced. Returns their number.
    pub(crate) fn predict(&mut self, most: usize) -> usize {
        let decodes = &mut self.pricing.priced.decodes;
        self.engine.predict_decode_steps(most, decodes);
        decodes.len()
    }

    /// Prices the next of the predicted steps, which starts then. Returns its range, like
    /// [`Worker::price`].
    pub(crate) fn price_predicted(&mut self, start_ns: u64) -> Result<Range<usize>, LatencyError> {
        self.pricing.price_predicted(start_ns)
    }

    /// Lends the times of the priced steps, to be given back by [`Worker::give_back`].
    pub(crate) fn take_durations_ns(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.pricing.priced.durations_ns)
    }

    pub(crate) fn give_back(&mut self, durations_ns: Vec<u64>) {
        self.pricing.priced.durations_ns = durations_ns;
    }

    /// Steps of the latest call to the latency model.
    pub(crate) fn num_priced(&self) -> u64 {
        1 + self.pricing.priced.decodes.len() as u64
    }

    /// Records consecutive steps that start at `start_ns`: the steps of a range of the priced steps. Returns
    /// when the last one ends.
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

    /// Records that the worker is in a step of its engine from `now_ns` to `until_ns`. Its own part of the
    /// step, if any, is already recorded.
    pub(crate) fn wait(&mut self, now_ns: u64, until_ns: u64) {
        self.totals.waited_ns += self.booking.wait(now_ns, until_ns);
    }
}
