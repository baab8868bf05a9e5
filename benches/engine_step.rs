//! One decode step of an engine with 256 running requests.
//!
//! Workload: 256 requests with prompts of 512 tokens, all decoding; prefix
//! caching on, blocks of 16 tokens; the same with 40,000 and 1,000,000 blocks
//! in the pool. Reported per second: output tokens.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use vcr_core::{Engine, EngineConfig, EngineConfigInput, Prompt, RequestSpec, TokenSource};

const RUNNING: u64 = 256;

struct Counting;

impl TokenSource for Counting {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        tag as u32 ^ output_index
    }
}

fn decoding_engine(num_gpu_blocks: u32) -> Engine {
    let config = EngineConfig::new(EngineConfigInput { num_gpu_blocks, ..EngineConfigInput::default() });
    let mut engine = Engine::new(config.expect("a valid configuration"));
    for tag in 0..RUNNING {
        let mut prompt = Prompt::new(16, 0);
        prompt.push_run(tag, 0, 512);
        let spec = RequestSpec::new(tag, prompt, 1_000);
        engine.submit(spec).expect("it fits");
    }
    while engine.outstanding_prefill_tokens() > 0 {
        engine.schedule();
        engine.update(&mut Counting);
    }
    engine
}

fn decode_step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode_step_256_running");
    group.throughput(Throughput::Elements(RUNNING));
    for num_gpu_blocks in [40_000, 1_000_000] {
        group.bench_function(format!("{num_gpu_blocks} blocks"), |bencher| {
            let mut engine = decoding_engine(num_gpu_blocks);
            let mut steps_left = 900;
            bencher.iter(|| {
                if steps_left == 0 {
                    engine = decoding_engine(num_gpu_blocks);
                    steps_left = 900;
                }
                steps_left -= 1;
                engine.schedule();
                engine.update(&mut Counting);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decode_step);
criterion_main!(benches);
