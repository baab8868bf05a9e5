//! The price of a fitted step, with all terms. Workload: steps of 64 decodes, and steps with a
//! prompt beside them.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use vcr_core::latency::{LatencyModel, StepBatch, StepShape};
use vcr_fitted::{FittedRange, StepPrice, TERM_COUNT};
use vcr_timing::Fitted;

fn decodes(context: u64) -> StepShape {
    StepShape {
        decode_requests: 64,
        decode_tokens: 64,
        decode_context_tokens: 64 * context,
        sampled_requests: 64,
        ..StepShape::default()
    }
}

fn mixed(context: u64) -> StepShape {
    let tokens = 1_000;
    StepShape {
        prefill_requests: 1,
        prefill_tokens: tokens,
        prefill_attention_pairs: tokens * (tokens + 1) / 2,
        ..decodes(context)
    }
}

fn steps(c: &mut Criterion) {
    let price = StepPrice::new([1_000.0; TERM_COUNT], FittedRange::default(), None).expect("it is valid");
    for (name, shape) in [("64_decodes", decodes as fn(u64) -> StepShape), ("prompt_and_64_decodes", mixed)] {
        let mut model = Fitted::new(price, 1);
        let mut durations_ns = Vec::with_capacity(1);
        let mut context = 1_000;
        c.bench_function(&format!("fitted/{name}"), |b| {
            b.iter(|| {
                context = 1_000 + (context + 1) % 1_000;
                durations_ns.clear();
                let shapes = [shape(context)];
                let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes };
                model.price(black_box(&batch), &mut durations_ns).expect("it has a price");
                durations_ns[0]
            });
        });
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);
