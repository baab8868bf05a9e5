//! Tests the readers with published traces, which are too large to ship.

use std::path::PathBuf;
use vcr_trace::{Trace, TraceError, TraceOptions};

fn sample(relative: &str) -> Option<PathBuf> {
    vcr_skips::sample(&format!("workloads/{relative}"))
}

fn open(relative: &str) -> Option<Result<Trace, TraceError>> {
    sample(relative).map(|path| Trace::open(&path, &TraceOptions::default()))
}

#[test]
fn mooncake_synthetic_reads_whole() {
    let Some(trace) = open("mooncake_synthetic.jsonl") else { return };
    let trace = trace.unwrap();
    assert_eq!(trace.requests.len(), 3993);
    assert_eq!(trace.sessions, 3993);
    assert_eq!(trace.warnings, []);
    assert!(trace.total_input_tokens() > 60_000_000);
    // Every block of 512 tokens has an id, including the last block of a prompt.
    let blocks: u64 = trace.requests.iter().map(|request| u64::from(request.input_tokens).div_ceil(512)).sum();
    let ids: u64 = trace.requests.iter().map(|request| u64::from(request.hash_ids.len())).sum();
    assert_eq!(ids, blocks);
    assert!((1..blocks).contains(&u64::from(trace.distinct_hash_ids)));
}

#[test]
fn small_mooncake_files_read() {
    for (name, requests) in
        [("mooncake_tiny.jsonl", 16), ("formats/mooncake.jsonl", 2), ("formats/mooncake-delta.jsonl", 2)]
    {
        if let Some(trace) = open(name) {
            let trace = trace.unwrap();
            assert!(trace.requests.len() >= requests, "{name}");
            assert_eq!(trace.warnings, [], "{name}");
        }
    }
}

#[test]
fn azure_files_read_in_order() {
    for (name, requests) in [("azure_2023_code.csv", 8819), ("azure_2023_conv.csv", 19366)] {
        let Some(trace) = open(name) else { continue };
        let trace = trace.unwrap();
        assert_eq!(trace.requests.len(), requests, "{name}");
        assert_eq!(trace.requests[0].arrival_ns, Some(0));
        assert!(trace.hash_ids.is_empty());
        assert!(trace.requests.is_sorted_by_key(|r| r.arrival_ns), "{name}");
    }
}

#[test]
fn every_format_of_dynamo_reads() {
    for (name, requests, sessions, dependencies) in [
        ("formats/agentic-mooncake.jsonl", 3, 2, 3),
        ("formats/dynamo-agentic.jsonl", 4, 2, 4),
        ("formats/dynamo-standard.jsonl", 2, 2, 0),
        ("formats/applied-compute-agentic.jsonl", 3, 1, 0),
    ] {
        let options = TraceOptions { first_timestamp_required: false, ..TraceOptions::default() };
        let Some(path) = sample(name) else { continue };
        let trace = Trace::open(&path, &options).unwrap_or_else(|error| panic!("{error}"));
        let counts = (trace.requests.len(), trace.sessions, trace.dependencies.len());
        assert_eq!(counts, (requests, sessions, dependencies), "{name}");
        assert_eq!(trace.warnings, [], "{name}");
    }
}
