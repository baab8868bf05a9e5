//! Measures the calculation of one step's time by a fitted model. Workload: steps of 64 decodes, alone and with a
//! prompt of 1,000 tokens, with and without noise. `mooncake` measures whole replays, natively and as a guest.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use vcr_benches::fitted_prices;
use vcr_core::latency::{LatencyModel, StepBatch, StepShape};
use vcr_latency::Fitted;

const SEED: u64 = 1;

fn decodes() -> StepShape {
    StepShape {
        decode_requests: 64,
        decode_tokens: 64,
        decode_context_tokens: 64 * 1_000,
        sampled_requests: 64,
        ..StepShape::default()
    }
}

fn mixed() -> StepShape {
    StepShape { prefill_requests: 1, prefill_tokens: 1_000, prefill_attention_pairs: 500_500, ..decodes() }
}

fn steps(c: &mut Criterion) {
    let prices = fitted_prices();
    for (noise, prices) in [("no_noise", prices.without_noise()), ("noise", prices)] {
        for (work, shape) in [("64_decodes", decodes()), ("prompt_and_64_decodes", mixed())] {
            let mut model = Fitted::new(prices, SEED);
            let mut durations_ns = Vec::new();
            c.bench_function(&format!("fitted/{noise}/{work}"), |bencher| {
                bencher.iter(|| {
                    durations_ns.clear();
                    let shapes = [black_box(shape)];
                    let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes };
                    model.price(&batch, &mut durations_ns).expect("it is priced");
                    durations_ns[0]
                });
            });
        }
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);
