//! Measures what a call to a guest costs over the native roofline.
//!
//! `cargo run --release -p vcr-guest --example call_cost -- guests/dist/roofline.wasm`
//!
//! A second argument is the config, for a guest other than a roofline. Set
//! `VCR_GUEST_CACHE=` to see what compiling costs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use vcr_core::latency::{StepBatch, StepShape};
use vcr_guest::{GuestModule, Limits};
use vcr_roofline::{RooflineConfig, StepWork};

/// The best of several rounds: the least disturbed one.
const ROUNDS: usize = 11;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "guests/dist/roofline.wasm".into());

    let started = Instant::now();
    let module = GuestModule::load(&path, Limits::default())?;
    println!("load and compile        {:>10.1} ms", millis(started.elapsed()));

    let config = std::env::args().nth(2).unwrap_or_else(|| r#"{"model": "llama-3.1-8b", "gpu": "h100-sxm"}"#.into());
    let started = Instant::now();
    let mut guest = module.latency_model(&config, 1)?;
    println!("first instance          {:>10.1} us", millis(started.elapsed()) * 1e3);
    let started = Instant::now();
    for seed in 0..100 {
        drop(module.latency_model(&config, seed)?);
    }
    println!("each further instance   {:>10.1} us", millis(started.elapsed()) * 10.0);

    let native = RooflineConfig::of_presets("llama-3.1-8b", "h100-sxm").build()?;
    for steps in [1, 4, 16, 64, 256] {
        let shapes: Vec<StepShape> = (0..steps).map(decode_step).collect();
        let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes };
        let mut durations_ns = Vec::with_capacity(steps as usize);

        let guest_ns = best_ns(200_000 / steps, || {
            durations_ns.clear();
            guest.price(black_box(&batch), &mut durations_ns).expect("the guest prices");
        });
        let native_ns = best_ns(200_000 / steps, || {
            for shape in black_box(&shapes) {
                black_box(native.step_ns(&work(shape)));
            }
        });
        println!(
            "price {steps:>4} steps        {guest_ns:>10.1} ns guest, {native_ns:>8.1} ns native, \
             {:>6.1} ns more a step",
            (guest_ns - native_ns) / f64::from(steps as u32)
        );
    }
    Ok(())
}

fn decode_step(index: u64) -> StepShape {
    StepShape {
        decode_requests: 64,
        decode_tokens: 64,
        decode_context_tokens: 64_000 + 64 * index,
        sampled_requests: 64,
        kv_active_blocks: 4_000,
        kv_total_blocks: 20_000,
        block_size_tokens: 16,
        ..StepShape::default()
    }
}

fn work(shape: &StepShape) -> StepWork {
    StepWork {
        prefill_tokens: shape.prefill_tokens,
        prefill_context_tokens: shape.prefill_context_tokens,
        prefill_attention_pairs: shape.prefill_attention_pairs,
        decode_requests: shape.decode_requests,
        decode_tokens: shape.decode_tokens,
        decode_context_tokens: shape.decode_context_tokens,
        sampled_requests: shape.sampled_requests,
    }
}

fn best_ns(repeats: u64, mut body: impl FnMut()) -> f64 {
    (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            for _ in 0..repeats {
                body();
            }
            started.elapsed().as_nanos() as f64 / repeats as f64
        })
        .fold(f64::INFINITY, f64::min)
}

fn millis(elapsed: Duration) -> f64 {
    elapsed.as_secs_f64() * 1e3
}
