//! Measures a scheduling policy per step: 256 requests decode, and 1,000 requests of five tenants wait for a
//! running slot. In each step, one request ends, one is admitted in its place, and one arrives, so that the policy
//! is called before each step.
//!
//! * `fcfs`, `priority`: no policy is called.
//! * the native policies, and the equivalent guests, which are skipped unless `vcr guest build` has been run.
//!
//! Reported: the time of a step. A policy's cost is the difference to `fcfs`.

use std::path::Path;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use vcr_core::policy::{Native, SchedulingPolicy};
use vcr_core::{Engine, EngineConfig, EngineConfigInput, Policy, Prompt, RequestSpec, TokenSource};
use vcr_guest::{GuestModule, Limits};
use vcr_policy::{FairShareConfig, ShortestPromptFirstConfig};

const RUNNING: u64 = 256;
const WAITING: u64 = 1_000;
/// Number of steps per measurement.
const STEPS: u64 = 400;
const TENANTS: u64 = 5;
const PROMPT_TOKENS: u32 = 16;

struct Counting;

impl TokenSource for Counting {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        tag as u32 ^ output_index
    }
}

/// The first `RUNNING` requests end one step apart.
fn request(tag: u64) -> RequestSpec {
    let mut prompt = Prompt::new(16, 0);
    prompt.push_run(tag, 0, PROMPT_TOKENS + (tag % 7) as u32);
    let max_tokens = if tag < RUNNING { 40 + tag as u32 } else { RUNNING as u32 };
    RequestSpec { tenant: tag % TENANTS, arrival_ns: tag, ..RequestSpec::new(tag, prompt, max_tokens) }
}

/// An engine with running and waiting requests, and the number of the next request.
struct Loaded {
    engine: Engine,
    policy: Option<Box<dyn SchedulingPolicy>>,
    next_tag: u64,
}

impl Loaded {
    fn new(policy: Policy, ranks: Option<Box<dyn SchedulingPolicy>>) -> Self {
        let input = EngineConfigInput { policy, num_gpu_blocks: 40_000, ..EngineConfigInput::default() };
        let engine = Engine::new(EngineConfig::new(input).expect("a valid configuration"));
        let mut loaded = Self { engine, policy: ranks, next_tag: 0 };
        (0..RUNNING).for_each(|_| loaded.submit());
        loaded.step();
        (0..WAITING).for_each(|_| loaded.submit());
        // Run until requests end, and a few steps more to warm up the caches.
        (0..60).for_each(|_| loaded.step());
        loaded
    }

    fn submit(&mut self) {
        self.engine.submit(request(self.next_tag)).expect("it fits");
        self.next_tag += 1;
    }

    fn step(&mut self) {
        if let Some(policy) = &mut self.policy {
            self.engine.apply_policy(policy.as_mut(), self.next_tag).expect("it decides well");
        }
        self.engine.schedule();
        self.engine.update(&mut Counting);
    }
}

type Make = Box<dyn Fn() -> Option<Box<dyn SchedulingPolicy>>>;

fn shipped(name: &str, config: &'static str) -> Option<Make> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guests/dist").join(format!("{name}.wasm"));
    let module = GuestModule::load(path, Limits::default()).ok()?;
    Some(Box::new(move || Some(module.scheduler_policy(config, 1).expect("it configures"))))
}

fn step(criterion: &mut Criterion) {
    let shortest = ShortestPromptFirstConfig { aging_tokens_per_s: 100.0, max_chunk_tokens: None };
    let shortest = Native(shortest.build().expect("valid"));
    let fair = Native(FairShareConfig::default().build().expect("valid"));
    let mut cases: Vec<(&str, Policy, Make)> = vec![
        ("fcfs", Policy::Fcfs, Box::new(|| None)),
        ("priority", Policy::Priority, Box::new(|| None)),
        ("shortest-prompt-first", Policy::Ranked, Box::new(move || Some(Box::new(shortest.clone())))),
        ("fair-share", Policy::Ranked, Box::new(move || Some(Box::new(fair.clone())))),
    ];
    let guests = [
        ("shortest-prompt-first, guest", shipped("shortest-prompt-first", r#"{"aging_tokens_per_s": 100}"#)),
        ("fair-share, guest", shipped("fair-share", "{}")),
    ];
    for (name, make) in guests {
        match make {
            Some(make) => cases.push((name, Policy::Ranked, make)),
            None => eprintln!("{name} is left out: run `vcr guest build`"),
        }
    }
    let mut group = criterion.benchmark_group(format!("{STEPS} steps, {RUNNING} running, {WAITING} waiting"));
    for (name, policy, make) in cases {
        group.bench_function(name, |bencher| {
            let steps = |mut loaded: Loaded| {
                for _ in 0..STEPS {
                    loaded.submit();
                    loaded.step();
                }
                assert!(loaded.engine.num_running() as u64 >= RUNNING - 1, "the running_slots are taken");
                loaded
            };
            bencher.iter_batched(|| Loaded::new(policy, make()), steps, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, step);
criterion_main!(benches);
