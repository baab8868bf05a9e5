//! Measures vLLM's protocol: an engine's cost to write each token, and to read each request.
//!
//! Workload: one step in which each of 64 or 512 requests gets one token, written as one message with the
//! scheduler's statistics into reused buffers, and read as a frontend reads it; and an ADD message with a prompt of
//! 512 tokens, as vllm-rs sends it. Throughput is in tokens.
//!
//! The "rmp-serde" results are a lower bound for serde's derive: they use a structure that borrows its texts and
//! has only the fields that the message fills.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use vcr_wire::{
    EngineCoreRequest, Protocol, SamplingParams, SchedulerStats, StepEncoder, StepEnd, StepOutput, StepOutputs,
    VllmMinor,
};

const TIMESTAMP: f64 = 1.5;

#[derive(Deserialize)]
#[allow(dead_code, reason = "some of it is only read from bytes")]
struct Outputs<'a>(u32, #[serde(borrow)] Vec<Output<'a>>, Option<SchedulerStats>, f64);

#[derive(Deserialize)]
struct Output<'a>(&'a str, Vec<u32>);

#[derive(Deserialize)]
#[allow(dead_code, reason = "it is only read from bytes")]
struct Add<'a> {
    request_id: &'a str,
    prompt_token_ids: Option<Vec<u32>>,
    mm_features: IgnoredAny,
    sampling_params: Option<Params>,
    pooling_params: IgnoredAny,
    arrival_time: f64,
    lora_request: IgnoredAny,
    cache_salt: Option<String>,
    data_parallel_rank: Option<u32>,
    prompt_embeds: IgnoredAny,
    prompt_is_token_ids: IgnoredAny,
    client_index: u32,
    current_wave: u32,
    priority: i64,
    trace_headers: IgnoredAny,
    resumable: bool,
    external_req_id: Option<String>,
    reasoning_ended: Option<bool>,
    reasoning_parser_kwargs: IgnoredAny,
    abort_immediately: bool,
    session_id: Option<String>,
    kv_hints: IgnoredAny,
}

#[derive(Default, Deserialize)]
#[allow(dead_code, reason = "they are only read from bytes")]
#[serde(default)]
struct Params {
    temperature: f64,
    top_p: f64,
    top_k: i64,
    max_tokens: Option<u32>,
    stop_token_ids: Option<Vec<u32>>,
    #[serde(rename = "_eos_token_id")]
    eos_token_id: Option<u32>,
    #[serde(rename = "_all_stop_token_ids")]
    all_stop_token_ids: Vec<u32>,
}

fn ids(num_requests: usize) -> Vec<String> {
    (0..num_requests).map(|index| format!("chatcmpl-{index:032x}-{index:08x}")).collect()
}

fn token(index: usize) -> u32 {
    100_000 + index as u32
}

fn encode_step(criterion: &mut Criterion) {
    let rules = VllmMinor::V0_33.rules();
    let stats = SchedulerStats::of_version(rules);
    let mut group = criterion.benchmark_group("encode_step");
    for num_requests in [64_usize, 512] {
        let ids = ids(num_requests);
        let mut encoder = StepEncoder::new(rules);
        let mut frame = Vec::new();
        group.throughput(Throughput::Elements(num_requests as u64));
        group.bench_function(format!("{num_requests} tokens"), |bencher| {
            bencher.iter(|| {
                frame.clear();
                for (index, id) in ids.iter().enumerate() {
                    encoder.tokens(black_box(id), &[token(index)], None);
                }
                let end = StepEnd { scheduler_stats: Some(&stats), timestamp: TIMESTAMP, ..StepEnd::default() };
                encoder.finish(end, &mut frame);
                black_box(frame.len())
            });
        });
        let mut outputs: Vec<(&str, [u32; 1])> = Vec::new();
        group.bench_function(format!("{num_requests} tokens, rmp-serde"), |bencher| {
            bencher.iter(|| {
                frame.clear();
                outputs.clear();
                outputs.extend(ids.iter().enumerate().map(|(index, id)| (black_box(id.as_str()), [token(index)])));
                serialize(&(0_u32, &outputs, Some(&stats), TIMESTAMP), &mut frame);
                black_box(frame.len())
            });
        });
    }
    group.finish();
}

/// Serializes a message. Statistics are maps.
fn serialize(message: &impl Serialize, frame: &mut Vec<u8>) {
    message.serialize(&mut rmp_serde::Serializer::new(frame).with_struct_map()).expect("a vector takes all");
}

fn decode_step(criterion: &mut Criterion) {
    let rules = VllmMinor::V0_33.rules();
    let stats = SchedulerStats::of_version(rules);
    let mut group = criterion.benchmark_group("decode_step");
    for num_requests in [64_usize, 512] {
        let mut encoder = StepEncoder::new(rules);
        for (index, id) in ids(num_requests).iter().enumerate() {
            encoder.tokens(id, &[token(index)], None);
        }
        let end = StepEnd { scheduler_stats: Some(&stats), timestamp: TIMESTAMP, ..StepEnd::default() };
        let mut frame = Vec::new();
        encoder.finish(end, &mut frame);
        group.throughput(Throughput::Elements(num_requests as u64));
        group.bench_function(format!("{num_requests} tokens"), |bencher| {
            bencher.iter(|| {
                let mut sum = 0;
                StepOutputs::decode(black_box(&frame)).expect("it is a step").for_each(|id, output| {
                    let StepOutput::Tokens(tokens) = output else { unreachable!("there is nothing else") };
                    sum += id.len() + tokens[0] as usize;
                });
                black_box(sum)
            });
        });
        group.bench_function(format!("{num_requests} tokens, rmp-serde"), |bencher| {
            bencher.iter(|| {
                let Outputs(_, outputs, stats, _) = rmp_serde::from_slice(black_box(&frame)).expect("it is a step");
                black_box(stats);
                black_box(outputs.iter().map(|Output(id, tokens)| id.len() + tokens[0] as usize).sum::<usize>())
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
    group.bench_function("512 prompt tokens, rmp-serde", |bencher| {
        bencher.iter(|| black_box(rmp_serde::from_slice::<Add<'_>>(black_box(&payload)).expect("it is ADD")));
    });
    let params = request.sampling_params.as_ref().expect("it samples");
    let mut map = Vec::new();
    params.encode(&mut map);
    group.throughput(Throughput::Bytes(map.len() as u64));
    group.bench_function("sampling parameters", |bencher| {
        bencher.iter(|| SamplingParams::decode(black_box(&map)).expect("it is a map of them"));
    });
    group.bench_function("sampling parameters, rmp-serde", |bencher| {
        bencher.iter(|| black_box(rmp_serde::from_slice::<Params>(black_box(&map)).expect("it is a map of them")));
    });
    group.finish();
}

criterion_group!(benches, encode_step, decode_step, decode_add);
criterion_main!(benches);
