//! Measures a step of the engine core.
//!
//! * `decode_step`: one step of 256 running requests that all decode, with 1,000, 40,000 and 1,000,000 KV blocks
//!   and no waiting requests, and with 40,000 blocks and 30,000 requests that wait for a running slot. A step takes
//!   16 blocks on average, and its blocks are not in the CPU's caches.
//! * `decode_step_with_groups`: the step with one to three KV-cache groups and 100,000 blocks.
//! * `decode_step_with_images`: the step with 40,000 blocks and requests whose prompts have an image. The encoder
//!   and its cache are idle.
//! * `skip`: 64 steps of the 256 requests at once.
//! * `skip_with_groups`: `skip` with a sliding-window group.
//!
//! Prefix caching is on. Blocks hold 16 tokens, and prompts have 512 tokens (4 tokens with 1,000 blocks). Reported:
//! output tokens per second.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use vcr_core::latency::DecodeSteps;
use vcr_core::{Engine, EngineConfig, EngineConfigInput, KvCacheGroup, Prompt, RequestSpec, TokenSource};

const RUNNING: u64 = 256;
/// Number of steps per measurement. It is large enough that the set-up's effect on the CPU's caches does not show.
const STEPS: usize = 480;
/// Number of steps per measurement with a pool that is too small for long outputs: two blocks per request.
const FEW_STEPS: usize = 32;
/// Number of steps before a measurement, in which every request gets one block.
const WARM_UP_STEPS: usize = 18;
/// Number of steps before a measurement with short outputs, in which the first block does not become full.
const FEW_WARM_UP_STEPS: usize = 10;
/// More than fits into the CPU's caches.
const CACHES_BYTES: usize = 64 << 20;
/// Number of fast-forwards per measurement.
const FAST_FORWARDS: usize = 8;

struct Counting;

impl TokenSource for Counting {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        tag as u32 ^ output_index
    }
}

fn request(tag: u64, prompt_tokens: u32) -> RequestSpec {
    let mut prompt = Prompt::new(16, 0);
    prompt.push_run(tag, 0, prompt_tokens);
    // Outputs fit, and do not end during the measurement.
    let max_tokens = if prompt_tokens < 16 { 44 } else { 1_000 };
    RequestSpec::new(tag, prompt, max_tokens)
}

/// The first `count` groups of layers whose blocks are counted separately.
fn groups(count: usize) -> Vec<KvCacheGroup> {
    let kinds = ["full", "sliding_window:512", "sliding_window:1024"];
    kinds[..count].iter().map(|kind| kind.parse().expect("a group of layers")).collect()
}

/// A request whose prompt has an image of 64 placeholders.
fn request_with_image(tag: u64) -> RequestSpec {
    let mut prompt = Prompt::new(16, 0);
    prompt.push_run(tag, 0, 200);
    prompt.push_item(tag, 64);
    prompt.push_run(tag, 264, 248);
    RequestSpec::new(tag, prompt, 1_000)
}

fn decoding_engine(num_gpu_blocks: u32, kv_cache_groups: Vec<KvCacheGroup>, waiting: u64) -> Engine {
    let input = EngineConfigInput { num_gpu_blocks, kv_cache_groups, ..EngineConfigInput::default() };
    let config = EngineConfig::new(input);
    let engine = Engine::new(config.expect("a valid configuration"));
    let prompt_tokens = if num_gpu_blocks < 10_000 { 4 } else { 512 };
    let requests = (0..RUNNING).map(|tag| request(tag, prompt_tokens));
    let warm_up_steps = if prompt_tokens < 16 { FEW_WARM_UP_STEPS } else { WARM_UP_STEPS };
    warmed_up(engine, requests, waiting, warm_up_steps)
}

/// An engine that decodes these requests while others wait.
fn warmed_up(
    mut engine: Engine,
    requests: impl Iterator<Item = RequestSpec>,
    waiting: u64,
    warm_up_steps: usize,
) -> Engine {
    for request in requests {
        engine.submit(request).expect("it fits");
    }
    while engine.outstanding_prefill_tokens() > 0 {
        engine.schedule();
        engine.update(&mut Counting);
    }
    for tag in 0..waiting {
        engine.submit(request(RUNNING + tag, 512)).expect("it fits");
    }
    // Building a long queue evicts all other data from the caches, while the end of a previous round leaves its own
    // data there. Make both cases equal.
    black_box(vec![1u8; CACHES_BYTES]);
    for _ in 0..warm_up_steps {
        engine.schedule();
        engine.update(&mut Counting);
    }
    engine
}

fn step(mut engine: Engine, num_steps: usize) -> Engine {
    for _ in 0..num_steps {
        engine.schedule();
        engine.update(&mut Counting);
    }
    engine
}

fn decode_step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode_step_256_running");
    for (num_gpu_blocks, waiting) in [(1_000, 0), (40_000, 0), (1_000_000, 0), (40_000, 30_000)] {
        let num_steps = if num_gpu_blocks < 10_000 { FEW_STEPS } else { STEPS };
        group.throughput(Throughput::Elements(RUNNING * num_steps as u64));
        let name = format!("{num_steps} steps, {num_gpu_blocks} blocks, {waiting} waiting");
        group.bench_function(name, |bencher| {
            let setup = || decoding_engine(num_gpu_blocks, Vec::new(), waiting);
            bencher.iter_batched(setup, |engine| step(engine, num_steps), BatchSize::PerIteration);
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("decode_step_with_groups");
    group.throughput(Throughput::Elements(RUNNING * STEPS as u64));
    for count in 1..=3 {
        group.bench_function(format!("{count} groups"), |bencher| {
            let setup = || decoding_engine(100_000, groups(count), 0);
            bencher.iter_batched(setup, |engine| step(engine, STEPS), BatchSize::PerIteration);
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("decode_step_with_images");
    group.throughput(Throughput::Elements(RUNNING * STEPS as u64));
    group.bench_function("an idle encoder cache", |bencher| {
        let setup = || {
            let input = EngineConfigInput { num_gpu_blocks: 40_000, ..EngineConfigInput::default() };
            let engine = Engine::new(EngineConfig::new(input).expect("a valid configuration"));
            warmed_up(engine, (0..RUNNING).map(request_with_image), 0, WARM_UP_STEPS)
        };
        bencher.iter_batched(setup, |engine| step(engine, STEPS), BatchSize::PerIteration);
    });
    group.finish();
}

/// Runs decode steps, as many at once as possible.
fn fast_forwards(mut engine: Engine) -> Engine {
    let mut steps = DecodeSteps::default();
    let mut left = FAST_FORWARDS * Engine::MAX_PREDICTED_STEPS;
    while left > 0 {
        engine.predict_decode_steps(left.min(Engine::MAX_PREDICTED_STEPS), &mut steps);
        if steps.is_empty() {
            engine.update(&mut Counting);
            engine.schedule();
        } else {
            engine.decode_ahead(steps.len() as u32, &mut Counting);
        }
        left -= steps.len().max(1);
    }
    engine
}

fn skip(criterion: &mut Criterion) {
    let scheduled = |num_gpu_blocks, groups| {
        let mut engine = decoding_engine(num_gpu_blocks, groups, 0);
        engine.schedule();
        engine
    };
    let tokens = Throughput::Elements(RUNNING * (FAST_FORWARDS * Engine::MAX_PREDICTED_STEPS) as u64);
    let mut group = criterion.benchmark_group("skip_256_running");
    group.throughput(tokens.clone());
    for num_gpu_blocks in [40_000, 1_000_000] {
        group.bench_function(format!("{num_gpu_blocks} blocks"), |bencher| {
            bencher.iter_batched(|| scheduled(num_gpu_blocks, Vec::new()), fast_forwards, BatchSize::PerIteration);
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("skip_with_groups");
    group.throughput(tokens);
    for count in 1..=2 {
        group.bench_function(format!("{count} groups"), |bencher| {
            bencher.iter_batched(|| scheduled(100_000, groups(count)), fast_forwards, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, decode_step, skip);
criterion_main!(benches);
