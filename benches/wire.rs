//! vLLM's protocol: what an engine writes for each token, and reads for each
//! request.
//!
//! Workload: one step in which each of 64 or 512 requests gets one token,
//! written as one message with the scheduler's statistics, the buffers kept
//! from step to step; and an ADD with a prompt of 512 tokens as vllm-rs sends
//! it. Throughput is in tokens.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use vcr_wire::{EngineCoreRequest, Protocol, SamplingParams, SchedulerStats, StepEncoder, StepEnd, VllmMinor};

fn encode_step(criterion: &mut Criterion) {
    let rules = VllmMinor::V0_33.rules();
    let stats = SchedulerStats::of_version(rules);
    let mut group = criterion.benchmark_group("encode_step");
    for num_requests in [64_usize, 512] {
        let ids: Vec<String> = (0..num_requests).map(|index| format!("chatcmpl-{index:032x}-{index:08x}")).collect();
        let mut encoder = StepEncoder::new(rules);
        let mut frame = Vec::new();
        group.throughput(Throughput::Elements(num_requests as u64));
        group.bench_function(format!("{num_requests} tokens"), |bencher| {
            bencher.iter(|| {
                frame.clear();
                for (index, id) in ids.iter().enumerate() {
                    encoder.tokens(black_box(id), &[100_000 + index as u32], None);
                }
                let end = StepEnd { scheduler_stats: Some(&stats), timestamp: 1.5, ..StepEnd::default() };
                encoder.finish(end, &mut frame);
                black_box(frame.len())
            });
        });
    }
    group.finish();
}

fn decode_add(criterion: &mut Criterion) {
    let rules = VllmMinor::V0_33.rules();
    let request = EngineCoreRequest {
        request_id: "chatcmpl-00000000000000000000000000000000-00000000".to_owned(),
        prompt_token_ids: Some((0..512).map(|index| index * 296).collect()),
        sampling_params: Some(SamplingParams {
            temperature: 0.6,
            top_p: 0.95,
            top_k: 20,
            max_tokens: Some(128),
            stop_token_ids: Some(vec![151_643]),
            eos_token_id: Some(151_645),
            all_stop_token_ids: vec![151_643, 151_645],
            ..SamplingParams::default()
        }),
        ..EngineCoreRequest::default()
    };
    let mut payload = Vec::new();
    request.encode(&mut payload, rules);
    let mut group = criterion.benchmark_group("decode_add");
    group.throughput(Throughput::Elements(512));
    group.bench_function("512 prompt tokens", |bencher| {
        bencher.iter(|| EngineCoreRequest::decode(black_box(&payload)).expect("it is ADD"));
    });
    group.finish();
}

criterion_group!(benches, encode_step, decode_add);
criterion_main!(benches);
