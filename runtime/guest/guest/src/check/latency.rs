//! Prices the steps of an engine: long decodes, chunked prefills, mixed steps, draft tokens and idle gaps.

use vcr_core::latency::StepShape;

use crate::adapters::latency;
use crate::check::draw::Draw;
use crate::check::{Driver, GuestFailure, Split, Step, Table, input};
use crate::latest::{DecodeRun, LatencyInstance};

/// Number of runs of consecutive steps; an idle gap precedes each.
const RUNS: u64 = 2_000;

/// Number of KV blocks, and tokens in a block.
const KV_BLOCKS: u64 = 20_000;
const BLOCK_TOKENS: u64 = 16;

pub(super) struct Pricing {
    split: Split,
    shapes: Draw,
    horizons: Draw,
    runs_left: u64,
    now_ns: u64,
    /// Steps of the current run that are not priced yet.
    ahead: Vec<StepShape>,
}

impl Driver for Pricing {
    type Instance = dyn LatencyInstance;

    const SPLITS: (&'static [Split], &'static str) = (
        &[Split::Finest, Split::Coarsest],
        "a step has the same price alone and in a run, wherever the run or its horizon ends",
    );

    fn new(seed: u64, split: Split) -> Self {
        Self {
            split,
            shapes: Draw::new(seed, "shapes"),
            horizons: Draw::new(seed, "horizons"),
            runs_left: RUNS,
            now_ns: 0,
            ahead: Vec::new(),
        }
    }

    fn step(&mut self, table: &mut Table<'_, '_, dyn LatencyInstance>) -> Result<Step, GuestFailure> {
        if self.ahead.is_empty() && !self.begin_run() {
            return Ok(Step::Over);
        }
        let alone = match self.split {
            Split::AsItComes => self.ahead.len() == 1 && !self.horizons.once_in(8),
            Split::Finest => true,
            Split::Coarsest => false,
        };
        // One call prices only consecutive decode-only steps.
        let run_steps = latency::run_length(&self.ahead);
        if alone || (run_steps == 1 && !self.ahead[0].is_pure_decode()) {
            self.price_step(table)
        } else {
            self.price_decodes(table, run_steps)
        }
    }

    fn show(word: u64) -> String {
        format!("{} ns", f64::from_bits(word))
    }
}

impl Pricing {
    /// Draws the next run of steps; returns false at the end of the workload.
    fn begin_run(&mut self) -> bool {
        if self.runs_left == 0 {
            return false;
        }
        self.runs_left -= 1;
        if self.shapes.once_in(3) {
            self.now_ns += self.shapes.length(1_000, 1_000_000_000);
        }
        let steps = if self.shapes.once_in(4) { self.shapes.length(2, 40) } else { 1 };
        let first = shape(&mut self.shapes);
        self.ahead.push(first);
        for _ in 1..steps {
            let next = following(self.ahead.last().expect("the first was pushed"), &mut self.shapes);
            self.ahead.push(next);
        }
        true
    }

    fn price_step(&mut self, table: &mut Table<'_, '_, dyn LatencyInstance>) -> Result<Step, GuestFailure> {
        let shape = self.ahead.remove(0);
        let budget = table.limits.budget(1, 0);
        let start_ns = self.now_ns;
        let value = table.meter.call("price-step", 1, budget, table.instance, |instance, budget| {
            instance.price_step(start_ns, &shape, budget)
        });
        let checked = value.and_then(|value| latency::checked(start_ns, value).map(|duration_ns| (value, duration_ns)));
        let (value, duration_ns) = table.meter.explained("price-step", checked, || input::step(start_ns, &shape))?;
        self.now_ns += duration_ns;
        Ok(Step::Answered(vec![value.to_bits()]))
    }

    /// Prices a run of decodes. The horizon may fall within the run, so some of its steps may never be priced.
    fn price_decodes(
        &mut self,
        table: &mut Table<'_, '_, dyn LatencyInstance>,
        run_steps: usize,
    ) -> Result<Step, GuestFailure> {
        let steps = run_steps.min(table.limits.steps_per_call);
        let start_ns = self.now_ns;
        let mut horizon_ns = u64::MAX;
        let mut kv_active_blocks: Vec<u64> = self.ahead[..steps].iter().map(|step| step.kv_active_blocks).collect();
        if self.split == Split::AsItComes {
            match self.horizons.below(4) {
                0 => horizon_ns = start_ns + self.horizons.length(1, 100_000_000),
                1 => {
                    horizon_ns = start_ns;
                    let never = self.horizons.length(1, KV_BLOCKS);
                    kv_active_blocks = vec![kv_active_blocks[0], never, never];
                }
                _ => {}
            }
        }
        let sent = kv_active_blocks.len();
        let budget = table.limits.budget(sent, 0);
        let run = DecodeRun { start_ns, horizon_ns, first: &self.ahead[0], kv_active_blocks: &kv_active_blocks };
        let answer = table.meter.call("price-decodes", sent, budget, table.instance, |instance, budget| {
            instance.price_decodes(run, budget)
        });
        let checked = answer.and_then(|answer| {
            latency::accept(&answer, sent, start_ns, horizon_ns, &mut Vec::new()).map(|end_ns| (answer, end_ns))
        });
        let (answer, end_ns) = table.meter.explained("price-decodes", checked, || input::run(&run))?;
        self.now_ns = end_ns;
        self.ahead.drain(..answer.len());
        Ok(Step::Answered(answer.into_iter().map(f64::to_bits).collect()))
    }
}

fn shape(draw: &mut Draw) -> StepShape {
    let mut shape = StepShape { kv_total_blocks: KV_BLOCKS, block_size_tokens: BLOCK_TOKENS, ..StepShape::default() };
    let kind = draw.below(8);
    if kind < 6 {
        add_decodes(&mut shape, draw, kind == 5);
    }
    if kind >= 4 {
        add_prefills(&mut shape, draw);
    }
    shape.sampled_requests = shape.decode_requests + shape.prefill_completions;
    let kv_tokens = shape.decode_context_tokens + shape.prefill_context_tokens + shape.prefill_tokens;
    shape.kv_active_blocks = kv_tokens.div_ceil(BLOCK_TOKENS).min(KV_BLOCKS);
    if draw.once_in(8) {
        shape.adapter_count = draw.within(1, shape.batch_requests().min(8));
        shape.adapter_tokens = draw.within(shape.adapter_count, shape.tokens());
    }
    shape.waiting_requests = if draw.once_in(2) { 0 } else { draw.length(1, 200) };
    shape
}

fn add_decodes(shape: &mut StepShape, draw: &mut Draw, drafts: bool) {
    let requests = draw.length(1, 256);
    let tokens_each = if drafts { draw.within(2, 5) } else { 1 };
    shape.decode_requests = requests;
    shape.decode_tokens = requests * tokens_each;
    shape.decode_context_tokens = (0..requests).map(|_| draw.length(tokens_each, 8_192)).sum();
}

fn add_prefills(shape: &mut StepShape, draw: &mut Draw) {
    let mut budget_tokens = 8_192;
    for _ in 0..draw.length(1, 8) {
        let tokens = draw.length(1, 4_096).min(budget_tokens);
        if tokens == 0 {
            break;
        }
        budget_tokens -= tokens;
        let depth = if draw.once_in(2) { 0 } else { draw.length(16, 16_384) };
        shape.prefill_requests += 1;
        shape.prefill_tokens += tokens;
        shape.prefill_context_tokens += depth;
        shape.prefill_attention_pairs += tokens * depth + tokens * (tokens + 1) / 2;
        if !draw.once_in(4) {
            shape.prefill_completions += 1;
            shape.prefill_completion_context_tokens += depth + tokens;
        }
    }
}

/// Draws the step after `before` without new requests: the same decodes, one token later. If `before` is not
/// decode-only, draws any step.
fn following(before: &StepShape, draw: &mut Draw) -> StepShape {
    if before.decode_requests == 0 || before.prefill_requests > 0 {
        return shape(draw);
    }
    let decode_context_tokens = before.decode_context_tokens + before.decode_requests;
    let kv_active_blocks = decode_context_tokens.div_ceil(BLOCK_TOKENS).min(KV_BLOCKS);
    StepShape { decode_context_tokens, kv_active_blocks, ..*before }
}
