//! Measures the cost of calls of shipped guests: `roofline` (and its native twin), `shortest-prompt-first` and
//! `prefix-affinity`.
//!
//! `cargo run --release -p vcr-guest --example call_cost -- guests/dist`
//!
//! Set `VCR_GUEST_CACHE=` to see the cost of compiling.

use std::hint::black_box;
use std::time::{Duration, Instant};

use vcr_core::latency::{StepBatch, StepShape};
use vcr_core::policy::{EngineView, PolicyEvent, Progress, Slo};
use vcr_core::route::{EndedRequest, RoutePhase, RouteRequest, WorkerLoad};
use vcr_guest::{GuestModule, Limits};
use vcr_roofline::RooflineConfig;

/// Number of rounds; the fastest one counts, because it was disturbed least.
const ROUNDS: usize = 300;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dist = std::env::args().nth(1).unwrap_or_else(|| "guests/dist".into());

    let started = Instant::now();
    let module = GuestModule::load(format!("{dist}/roofline.wasm"), Limits::default())?;
    println!("load and compile        {:>10.1} ms", millis(started.elapsed()));

    let config = r#"{"model": "llama-3.1-8b", "gpu": "h100-sxm"}"#;
    let started = Instant::now();
    let mut guest = module.latency_model(config, 1)?;
    println!("first instance          {:>10.1} us", millis(started.elapsed()) * 1e3);
    let started = Instant::now();
    for seed in 0..100 {
        drop(module.latency_model(config, seed)?);
    }
    println!("each further instance   {:>10.1} us", millis(started.elapsed()) * 10.0);

    let native = RooflineConfig::of_presets("llama-3.1-8b", "h100-sxm").build()?;
    for steps in [1, 4, 16, 64, 256] {
        let shapes: Vec<StepShape> = (0..steps).map(decode_step).collect();
        let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes };
        let mut durations_ns = Vec::with_capacity(steps as usize);

        let guest_ns = best_ns(10_000 / steps, || {
            durations_ns.clear();
            guest.price(black_box(&batch), &mut durations_ns).expect("the guest prices");
        });
        let native_ns = best_ns(10_000 / steps, || {
            for shape in black_box(&shapes) {
                black_box(native.step_ns(shape));
            }
        });
        println!(
            "price {steps:>4} steps        {guest_ns:>10.1} ns guest, {native_ns:>8.1} ns native, \
             {:>6.1} ns more a step",
            (guest_ns - native_ns) / f64::from(steps as u32)
        );
    }
    scheduling(&dist)?;
    routing(&dist)?;
    Ok(())
}

/// Measures a decision with 256 running requests: one ended, one was admitted and one arrived.
fn scheduling(dist: &str) -> Result<(), Box<dyn std::error::Error>> {
    let module = GuestModule::load(format!("{dist}/shortest-prompt-first.wasm"), Limits::default())?;
    let mut policy = module.scheduler_policy(r#"{"aging_tokens_per_s": 100}"#, 1)?;
    let arrived = |slot: u32| PolicyEvent::Arrived {
        slot,
        arrival_ns: slot.into(),
        prompt_tokens: 16 + slot % 7,
        max_tokens: 256,
        priority: 0,
        adapter: None,
        tenant: 0,
        slo: Slo::default(),
    };
    let all: Vec<PolicyEvent> = (0..1_256).map(arrived).collect();
    let progress: Vec<Progress> =
        (0..256).map(|slot| Progress { slot, computed_tokens: 100, output_tokens: 10 }).collect();
    let batch = |now_ns, events, progress| EngineView {
        now_ns,
        budget_tokens: 8_192,
        running_slots: 0,
        free_blocks: 10_000,
        total_blocks: 40_000,
        block_size_tokens: 16,
        events,
        progress,
    };
    let mut preferences = Vec::new();
    policy.decide(&batch(0, &all, &[]), &mut preferences)?;
    let ended = PolicyEvent::Ended { slot: 7, computed_tokens: 300, output_tokens: 256 };
    let events = [ended, arrived(7), PolicyEvent::Admitted { slot: 300, cached_tokens: 0 }];
    let mut now_ns = 0;
    let guest_ns = best_ns(1_000, || {
        now_ns += 1;
        preferences.clear();
        policy.decide(black_box(&batch(now_ns, &events, &progress)), &mut preferences).expect("it decides");
    });
    println!("decide, 256 running     {guest_ns:>10.1} ns guest");
    Ok(())
}

/// Measures routing a request of 512 blocks to one of 64 engines. Every second call also reports an ended request.
fn routing(dist: &str) -> Result<(), Box<dyn std::error::Error>> {
    let module = GuestModule::load(format!("{dist}/prefix-affinity.wasm"), Limits::default())?;
    let mut router = module.router("{}", 1)?;
    let load = |worker: u32| WorkerLoad {
        worker,
        running_requests: 40 + worker % 16,
        waiting_requests: worker % 3,
        max_running_requests: 256,
        active_blocks: 4_000 + worker,
        total_blocks: 16_384,
        outstanding_prefill_tokens: u64::from(worker) * 100,
        cached_prompt_blocks: if worker.is_multiple_of(4) { worker % 16 } else { 0 },
        preemption_count: worker.into(),
        ..WorkerLoad::default()
    };
    let workers: Vec<WorkerLoad> = (0..64).map(load).collect();
    for num_blocks in [16, 512] {
        let blocks: Vec<u64> = (0..num_blocks).map(|block| vcr_core::seed::derive(9, "block", block)).collect();
        let mut request = 0;
        let guest_ns = best_ns(1_000, || {
            request += 1;
            if request % 2 == 1 {
                router.ended(&EndedRequest {
                    id: request - 1,
                    worker: 3,
                    output_tokens: 200,
                    failed: false,
                    ttft_ns: Some(9),
                });
            }
            let query = RouteRequest {
                now_ns: request,
                id: request,
                prompt_tokens: num_blocks as u32 * 16 + 5,
                max_tokens: 200,
                priority: 0,
                adapter: None,
                tenant: 0,
                session: request,
                slo: Slo::default(),
                block_size_tokens: 16,
                phase: RoutePhase::Whole,
                may_refuse: true,
                block_hashes: &blocks,
            };
            black_box(router.route(&query, black_box(&workers)).expect("it routes"));
        });
        println!("route, {num_blocks:>3} blocks       {guest_ns:>10.1} ns guest");
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
