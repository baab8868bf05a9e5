//! Tests importers with published files, which are too large to ship, or whose licence forbids it. The expected
//! values were computed from the files by other means.

use crate::import_common::{imported, shipped_tokenizer};
use vcr_skips::sample;
use vcr_trace::capture::{CaptureLine, GapSummary, HashScheme};
use vcr_trace::import::{Format, ImportOptions};

fn lenient() -> ImportOptions {
    ImportOptions { lenient: true, ..ImportOptions::default() }
}

#[test]
fn a_guidellm_report() {
    let Some(path) = sample("captures/guidellm/guidellm_sample.json") else { return };
    let read = imported(&path, &ImportOptions::default()).expect("a report");
    assert_eq!((read.account.format, read.account.requests), (Format::Guidellm, 4));
    assert_eq!(read.meta.model.as_deref(), Some("meta-llama/Llama-3.1-8B-Instruct"));
    assert_eq!(read.meta.started_unix_ns, Some(1_700_000_005_000_000_000));
    assert_eq!(read.meta.other["guidellm_version"], "0.6.0");
    let rows: Vec<_> = read
        .requests
        .iter()
        .map(|r| (r.external_id.as_deref(), r.arrival_ns, r.concurrency, r.prompt_tokens, r.ttft_ns, r.end_ns))
        .collect();
    let s = 1_000_000_000;
    assert_eq!(
        rows,
        [
            (Some("req-001"), Some(0), Some(4), 128, Some(45_200_000), Some(1_500_000_000)),
            (Some("req-002"), Some(s), Some(4), 256, Some(80_000_000), Some(1_500_000_000)),
            (Some("req-003"), Some(2 * s), Some(4), 128, Some(30_000_000), Some(1_500_000_000)),
            (Some("req-004"), Some(60 * s), Some(1), 64, Some(25_000_000), Some(2 * s)),
        ]
    );
    let gaps: Vec<_> = read.requests.iter().map(|r| r.gap_summary.expect("a mean")).collect();
    let gap = |mean_ns, count| GapSummary { mean_ns, count };
    assert_eq!(gaps, [gap(14_700_000, 99), gap(29_000_000, 49), gap(50_700_000, 29), gap(219_400_000, 9)]);
}

/// All gaps of the file are kept, except those between a chat's role and its first token.
#[test]
fn results_of_vllm_bench_keep_every_gap() {
    for (file, requests, prompt, output, limit, gaps_ns) in [
        ("laptop-qwen3-8b-awq/in2048_out128_c8.json", 32, 65_792, 4096, 8, 118_221_533_567),
        ("rtx5070ti-qwen2.5-0.5b/day06_c16_i128_o64_n64.json", 64, 10_048, 4096, 16, 8_838_741_763),
    ] {
        let Some(path) = sample(&format!("small-gpu/{file}")) else { return };
        let read = imported(&path, &ImportOptions::default()).expect("a result");
        assert_eq!((read.account.format, read.account.requests), (Format::VllmBench, requests));
        assert_eq!((read.sum(|r| r.prompt_tokens), read.sum(|r| r.output_tokens)), (prompt, output));
        assert!(read.requests.iter().all(|r| r.concurrency == Some(limit) && r.arrival_ns.is_some()));
        assert!(read.requests.iter().all(|r| r.gap_ns.len() as u32 + 1 == r.output_tokens && r.gap_tokens.is_none()));
        let sum_ns: u64 = read.requests.iter().flat_map(|r| &r.gap_ns).sum();
        assert!((gaps_ns - 2_000_000..=gaps_ns).contains(&sum_ns), "{sum_ns} of {gaps_ns}");
    }
}

#[test]
fn workloads_without_answers() {
    for (file, format, requests, prompt, output) in [
        ("workloads/azure_2023_code.csv", Format::Azure, 8819, 18_059_974, 245_896),
        ("workloads/azure_2023_conv.csv", Format::Azure, 19_366, 22_361_870, 4_088_665),
    ] {
        let Some(path) = sample(file) else { return };
        let read = imported(&path, &ImportOptions::default()).expect("a workload");
        assert_eq!((read.account.format, read.account.requests), (format, requests));
        assert_eq!(read.meta.other["workload"], true);
        assert_eq!(read.sum(|r| r.prompt_tokens), prompt);
        assert_eq!(read.sum(|r| r.output_tokens), output);
        assert!(read.requests.iter().all(|r| r.ttft_ns.is_none() && r.arrival_ns.is_some()));
    }
    let Some(path) = sample("workloads/mooncake_synthetic.jsonl") else { return };
    let read = imported(&path, &ImportOptions::default()).expect("a workload");
    assert_eq!((read.account.format, read.account.requests), (Format::Mooncake, 3993));
    assert_eq!(read.meta.block_size_tokens, Some(512));
    assert!(read.requests.iter().all(|r| r.block_hashes.len() == (r.prompt_tokens / 512) as usize));
}

#[test]
fn the_replay_formats_of_dynamo() {
    let Some(path) = sample("workloads/formats/mooncake-delta.jsonl") else { return };
    let read = imported(&path, &ImportOptions::default()).expect("rows");
    let turns: Vec<_> = read.requests.iter().map(|r| (r.session.as_deref(), r.arrival_ns, r.think_ns)).collect();
    assert_eq!(turns, [(Some("s0"), Some(0), None), (Some("s0"), None, Some(5_000_000))]);

    let path = path.with_file_name("applied-compute-agentic.jsonl");
    let read = imported(&path, &ImportOptions::default()).expect("a session");
    let turns: Vec<_> = read.requests.iter().map(|r| (r.prompt_tokens, r.output_tokens, r.think_ns)).collect();
    assert_eq!(turns, [(16, 4, None), (28, 4, Some(10_000_000)), (40, 4, Some(20_000_000))]);
    // The conversation only grows, so its first block is the same in every turn.
    assert!(read.requests.iter().all(|r| r.block_hashes[0] == read.requests[0].block_hashes[0]));

    let path = path.with_file_name("dynamo-standard.jsonl");
    let read = imported(&path, &ImportOptions::default()).expect("a log");
    let rows: Vec<_> = read.requests.iter().map(|r| (r.id.as_deref(), r.arrival_ns, r.end_ns)).collect();
    let end = Some(10_000_000);
    assert_eq!(rows, [(Some("standard-1"), Some(0), end), (Some("standard-2"), Some(20_000_000), end)]);
    assert_eq!((read.requests[0].block_hashes[0].0, read.requests[0].block_hashes.len()), (401, 1));
    assert_eq!(read.meta.block_size_tokens, Some(4));

    let path = path.with_file_name("dynamo-agentic.jsonl");
    let read = imported(&path, &ImportOptions::default()).expect("a log");
    let rows: Vec<_> = read.requests.iter().map(|r| (r.session.as_deref(), r.arrival_ns)).collect();
    let ms = |ms: u64| Some(ms * 1_000_000);
    let (parent, child) = (Some("parent"), Some("child"));
    assert_eq!(rows, [(parent, ms(0)), (child, ms(20)), (child, ms(50)), (parent, ms(100))]);
    let notes: Vec<_> = read.account.notes.iter().map(|note| (note.what.as_str(), note.count)).collect();
    assert_eq!(notes, [("events of type `tool_end`", 1), ("links from a session to its parent", 2)]);
}

#[test]
fn dependencies_that_a_capture_cannot_say() {
    let Some(path) = sample("workloads/formats/agentic-mooncake.jsonl") else { return };
    let error = imported(&path, &ImportOptions::default()).expect_err("refused").to_string();
    assert!(error.contains("line 3, field `dependencies`: `agent-child` waits for `agent-root`"), "{error}");
    let read = imported(&path, &lenient()).expect("rows");
    let rows: Vec<_> = read.requests.iter().map(|r| (r.session.as_deref(), r.arrival_ns, r.think_ns)).collect();
    let (root, child) = (Some("root"), Some("child"));
    assert_eq!(rows, [(root, Some(0), None), (child, Some(0), None), (root, None, Some(1_000_000))]);
    assert_eq!(read.account.notes[0].count, 2);
    assert_eq!(read.meta.model.as_deref(), Some("tiny-model"));
}

#[test]
fn runs_of_llmservingsim_with_their_workload() {
    let Some(path) = sample("llmservingsim/rtx4090-llama-3.1-8b-seqs128") else { return };
    let read = imported(&path, &ImportOptions::default()).expect("a run");
    assert_eq!((read.account.format, read.account.requests), (Format::LlmServingSim, 300));
    assert_eq!((read.sum(|r| r.prompt_tokens), read.sum(|r| r.output_tokens)), (257_239, 195_753));
    assert_eq!(read.meta.model.as_deref(), Some("meta-llama/Llama-3.1-8B"));
    assert_eq!(read.meta.vllm_version.as_deref(), Some("0.19.0"));
    // Rounded to a microsecond, which is the precision of a double.
    assert_eq!(read.meta.started_unix_ns, Some(1_787_000_622_809_345_000));
    let of = |id: &str| {
        let found = read.requests.iter().find(|r| r.id.as_deref() == Some(id));
        let r = found.expect("a request");
        (r.arrival_ns, r.queue_ns, r.ttft_ns, r.end_ns, r.gap_summary)
    };
    let gap = |mean_ns, count| Some(GapSummary { mean_ns, count });
    let first = (Some(0), Some(12_190), Some(244_371_776), Some(18_110_962_584), gap(33_710_549, 530));
    assert_eq!(of("bench-0"), first);
    let last = (
        Some(29_279_196_356),
        Some(127_208_181_064),
        Some(127_313_203_778),
        Some(142_840_120_216),
        gap(20_243_698, 767),
    );
    assert_eq!(of("bench-299"), last);
    // The workload is in the folder above, and belongs to this run.
    assert!(read.requests.iter().all(|r| r.prompt_hash.is_some()));
    assert!(read.lines.iter().any(|line| matches!(line, CaptureLine::Engine(engine) if engine.settings["seed"] == 42)));

    let other = path.with_file_name("sharegpt-llama-3.1-8b-300-sps10.jsonl");
    let workload = imported(&other, &ImportOptions::default()).expect("a workload");
    assert_eq!(workload.account.requests, 300);
    assert_eq!(workload.requests[0].arrival_ns, Some(46_926_808));
    assert_eq!(workload.requests[0].prompt_hash, read.requests[0].prompt_hash);
    assert_eq!(workload.requests[0].prompt_token_ids.as_ref().map(Vec::len), Some(2358));
}

#[test]
fn a_data_set_through_a_real_tokenizer() {
    let Some(path) = sample("captures/datasets/hf_dataset_sample.jsonl") else { return };
    let error = imported(&path, &ImportOptions::default()).expect_err("no tokenizer").to_string();
    assert!(error.contains("needs the tokenizer of the model"), "{error}");
    let Some(tokenizer) = shipped_tokenizer() else { return };
    let options = ImportOptions { tokenizer: Some(tokenizer), ..ImportOptions::default() };
    let read = imported(&path, &options).expect("a data set");
    assert_eq!((read.account.format, read.account.requests), (Format::Dataset, 100));
    assert_eq!((read.meta.block_size_tokens, read.meta.hash), (Some(16), HashScheme::Xxh3));
    assert!(read.meta.holds.prompt_tokens && read.meta.holds.output_tokens);
    for request in &read.requests {
        assert_eq!(request.prompt_token_ids.as_ref().map(Vec::len), Some(request.prompt_tokens as usize));
        assert_eq!(request.output_token_ids.as_ref().map(Vec::len), Some(request.output_tokens as usize));
        assert_eq!(request.block_hashes.len(), (request.prompt_tokens / 16) as usize);
        assert!(request.prompt_hash.is_some());
    }
}

#[test]
fn traces_of_vllm_vcr() {
    let Some(path) = sample("captures/vllm-vcr/spec_decode_trace.jsonl") else { return };
    let read = imported(&path, &ImportOptions::default()).expect("a trace");
    let first = &read.requests[0];
    assert_eq!((first.prompt_tokens, first.output_tokens, first.ttft_ns), (32, 43, Some(18_866_000)));
    assert_eq!(first.gap_tokens.as_deref(), Some(&[3, 5, 2, 2, 4, 5, 4, 3, 5, 1, 5, 3][..]));
}
