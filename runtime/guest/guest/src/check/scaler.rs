//! Scales a pool whose load rises and falls, and whose engines start, drain and crash.

use vcr_core::scale::PoolView;

use crate::adapters::scaler::accept;
use crate::check::draw::Draw;
use crate::check::{Driver, GuestFailure, Split, Step, Table, input};
use crate::latest::ScalerInstance;

/// Number of decisions.
const DECISIONS: u64 = 2_000;

/// Maximum number of engines.
const ENGINES_MAX: u32 = 64;
/// Number of KV blocks of each engine.
const KV_BLOCKS: u64 = 4_000;

pub(super) struct Scaling {
    draw: Draw,
    decisions: u64,
    view: PoolView,
}

impl Driver for Scaling {
    type Instance = dyn ScalerInstance;

    fn new(seed: u64, _split: Split) -> Self {
        let mut draw = Draw::new(seed, "scaling");
        let engine_usd_per_hour = draw.once_in(2).then(|| draw.below(3_000) as f64 / 100.0);
        let view = PoolView { up_engines: 1, engine_usd_per_hour, ..PoolView::default() };
        Self { draw, decisions: 0, view }
    }

    fn step(&mut self, table: &mut Table<'_, '_, dyn ScalerInstance>) -> Result<Step, GuestFailure> {
        if self.decisions == DECISIONS {
            return Ok(Step::Over);
        }
        self.decisions += 1;
        self.happen();
        let budget = table.limits.budget(1, 0);
        let view = &self.view;
        let answer =
            table.meter.call("decide", 1, budget, table.instance, |instance, budget| instance.decide(view, budget));
        let checked = answer.and_then(accept);
        let answer = table.meter.explained("decide", checked, || input::pool(view))?;
        self.follow(answer);
        Ok(Step::Answered(vec![u64::from(answer)]))
    }
}

impl Scaling {
    fn happen(&mut self) {
        let (draw, view) = (&mut self.draw, &mut self.view);
        view.now_ns += draw.length(1_000_000, 60_000_000_000);
        // Engines start and stop, and occasionally an engine crashes.
        let started = draw.below(u64::from(view.starting_engines) + 1) as u32;
        view.starting_engines -= started;
        view.up_engines += started;
        view.draining_engines -= draw.below(u64::from(view.draining_engines) + 1) as u32;
        if view.up_engines > 0 && draw.once_in(50) {
            view.up_engines -= 1;
            view.starting_engines += 1;
        }
        // In an interval without arrivals nothing is measured.
        view.arrived_requests = if draw.once_in(8) { 0 } else { draw.length(1, 5_000) };
        view.arrived_prompt_tokens = view.arrived_requests * draw.length(1, 8_000);
        view.arrived_output_tokens = view.arrived_requests * draw.length(1, 1_000);
        let under_way = view.running_requests + view.waiting_requests + view.arrived_requests;
        view.completed_requests = draw.below(under_way + 1);
        let left = under_way - view.completed_requests;
        view.running_requests = draw.below(left + 1);
        view.waiting_requests = left - view.running_requests;
        view.ttft_count = draw.below(view.arrived_requests + 1);
        view.ttft_sum_ns = u128::from(view.ttft_count) * u128::from(draw.length(1_000, 10_000_000_000));
        view.queue_count = view.ttft_count;
        view.queue_sum_ns = view.ttft_sum_ns / 2;
        view.slo_requests = draw.below(view.completed_requests + 1);
        view.slo_met_requests = draw.below(view.slo_requests + 1);
        view.token_gap_count = view.completed_requests * draw.below(200);
        view.token_gap_sum_ns = u128::from(view.token_gap_count) * u128::from(draw.length(1_000, 1_000_000_000));
        view.total_blocks = u64::from(view.up_engines + view.draining_engines) * KV_BLOCKS;
        view.active_blocks = draw.below(view.total_blocks + 1);
        view.outstanding_prefill_tokens = view.waiting_requests * draw.length(1, 8_000);
        view.preemption_count += draw.below(3);
    }

    /// Starts or drains engines to reach the desired number.
    fn follow(&mut self, desired: u32) {
        let view = &mut self.view;
        let desired = desired.clamp(1, ENGINES_MAX);
        let there = view.up_engines + view.starting_engines;
        if desired >= there {
            view.starting_engines += desired - there;
        } else {
            let drained = (there - desired).min(view.up_engines);
            view.up_engines -= drained;
            view.draining_engines += drained;
            view.starting_engines = desired - view.up_engines;
        }
    }
}
