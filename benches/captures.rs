//! Reads a capture: once with each line checked, and once only the heads of requests, for a replay.
//!
//! Workload: a plain capture of 260 MB with 48,000 requests and their arrival lines. A request has 1,600 prompt
//! tokens (100 block hashes), 201 output tokens with their IDs, 200 gaps of about 20 ms, and sampling parameters.
//! Reported: bytes of the file per second on one core. `record_at` reads one record at a time.

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::json;
use vcr_trace::capture::{
    Arrival, BlockHash, CAPTURE_FORMAT, CAPTURE_VERSION, CaptureEnd, CaptureFile, CaptureLine, CaptureMeta,
    CaptureReader, CaptureWriter, ReadOptions, RequestRecord,
};

const REQUESTS: u64 = 48_000;
const GAPS: u64 = 200;
const BLOCKS: u64 = 100;
const BLOCK_TOKENS: u32 = 16;

/// Numbers that look like measured ones. They are the same in every run.
fn mixed(seed: u64) -> u64 {
    let mut bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits ^ (bits >> 32)
}

fn record(index: u64) -> RequestRecord {
    let number = |place: u64| mixed(index * 1000 + place);
    RequestRecord {
        id: Some(format!("cmpl-{:032x}", mixed(index))),
        external_id: Some(format!("chat-{index}")),
        arrival_ns: Some(index * 12_345_678),
        concurrency: Some(40),
        prompt_tokens: BLOCKS as u32 * BLOCK_TOKENS,
        block_hashes: (0..BLOCKS).map(|block| BlockHash(number(block))).collect(),
        prompt_hash: Some(BlockHash(number(BLOCKS - 1))),
        output_tokens: GAPS as u32 + 1,
        output_token_ids: Some((0..=GAPS).map(|place| (number(300 + place) % 128_000) as u32).collect()),
        ttft_ns: Some(80_000_000 + number(600) % 20_000_000),
        gap_ns: (0..GAPS).map(|place| 18_000_000 + number(700 + place) % 4_000_000).collect(),
        finish_reason: Some("length".to_owned()),
        end_ns: Some(5_000_000_000),
        params: [("temperature".to_owned(), json!(0.7)), ("max_tokens".to_owned(), json!(201))].into_iter().collect(),
        ..RequestRecord::default()
    }
}

fn write_workload(path: &Path) -> std::io::Result<u64> {
    let meta = CaptureMeta {
        format: CAPTURE_FORMAT.to_owned(),
        version: CAPTURE_VERSION,
        block_size_tokens: Some(BLOCK_TOKENS),
        ..CaptureMeta::default()
    };
    let mut writer = CaptureWriter::create(path, meta)?;
    for index in 0..REQUESTS {
        let record = record(index);
        let arrival = Arrival {
            id: record.id.clone().unwrap_or_default(),
            arrival_ns: record.arrival_ns.unwrap_or_default(),
            prompt_tokens: record.prompt_tokens,
        };
        writer.write(&CaptureLine::Arrival(arrival))?;
        writer.write(&CaptureLine::Request(Box::new(record)))?;
    }
    writer.write(&CaptureLine::End(CaptureEnd { requests: REQUESTS, ..CaptureEnd::default() }))?;
    let bytes = writer.written_bytes();
    writer.finish()?;
    Ok(bytes)
}

fn captures(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("bench.jsonl");
    let bytes = write_workload(&path).expect("the capture is written");
    println!("{REQUESTS} requests in {bytes} bytes");
    let options = ReadOptions::default();
    let mut group = criterion.benchmark_group("captures");
    group.sample_size(10);
    group.throughput(Throughput::Bytes(bytes));
    group.bench_function("lines", |bencher| {
        bencher.iter(|| {
            let mut reader = CaptureReader::open(&path, &options).expect("a capture");
            while let Some(line) = reader.next_line().expect("whole") {
                black_box(line);
            }
        });
    });
    group.bench_function("heads", |bencher| {
        bencher.iter(|| {
            let file = CaptureFile::open(&path, &options).expect("a capture");
            let summary = file.scan(|head| _ = black_box(head)).expect("whole");
            assert_eq!(summary.requests, REQUESTS);
        });
    });
    let file = CaptureFile::open(&path, &options).expect("a capture");
    let mut positions = Vec::new();
    file.scan(|head| positions.push(head.position)).expect("whole");
    group.throughput(Throughput::Elements(1));
    let mut order = (0..).map(|turn| positions[(mixed(turn) % REQUESTS) as usize]);
    group.bench_function("record_at", |bencher| {
        bencher.iter(|| file.record_at(order.next().expect("it is endless")).expect("whole"));
    });
    group.finish();
}

criterion_group!(benches, captures);
criterion_main!(benches);
