//! Recordings of vLLM on an H100: a model is fitted to one load and predicts another.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};

use flate2::read::GzDecoder;
use serde_json::Value;
use vcr_tests::{Folder, root};

use crate::{COLUMNS, error, prediction};

const ENGINE: &str = "max_num_seqs: 1024, max_num_batched_tokens: 8192, max_model_len: 32768, async_scheduling: true, \
                      num_gpu_blocks: ";
const BLOCK_TOKENS: usize = 16;

/// Writes a recorded workload as a table, with an id for each block of a prompt.
fn load(folder: &Folder, model: &str, name: &str) {
    let path = root().join(format!("tests/recordings/h100/{model}/{name}/requests.jsonl.gz"));
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = COLUMNS.join(",") + ",hash_ids\n";
    let mut ids = BTreeMap::new();
    for line in BufReader::new(GzDecoder::new(file)).lines() {
        let row: Value = serde_json::from_str(&line.expect("it is text")).expect("a line is JSON");
        let parts: Vec<(u64, u64)> = serde_json::from_value(row["parts"].clone()).expect("parts of a prompt");
        let tokens: Vec<(u64, u64)> =
            parts.iter().flat_map(|(segment, tokens)| (0..*tokens).map(|offset| (*segment, offset))).collect();
        let blocks = tokens.chunks_exact(BLOCK_TOKENS).map(|block| {
            let next = ids.len();
            ids.entry(block.to_vec()).or_insert(next).to_string()
        });
        let blocks = blocks.collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "{},{blocks}", COLUMNS.map(|column| row[column].to_string()).join(","));
    }
    folder.write(&format!("{name}.csv"), text);
}

/// Fits one load and predicts another.
fn predicted(model: &str, num_gpu_blocks: u32, fitted: &str, other: &str) -> Value {
    let folder = Folder::new();
    load(&folder, model, fitted);
    load(&folder, model, other);
    let (fitted, other) = (format!("{fitted}.csv"), format!("{other}.csv"));
    let engine = format!("{ENGINE}{num_gpu_blocks}");
    let _ = folder.vcr(&["fit", &fitted, "--engine", &engine, "--folds", "0", "-o", "model.json"]).ended(0);
    prediction(&folder, &["model.json", &other])
}

/// The bounds are loose: they show when the method breaks, not when it improves.
#[test]
fn a_fit_of_half_the_load_predicts_three_quarters_of_it() {
    let found = predicted("llama-3.1-8b", 28_934, "p50", "p75");
    for (name, most) in [("itl mean", 0.1), ("e2e p50", 0.1), ("ttft p50", 0.3)] {
        assert!(error(&found, name).abs() < most, "{name} is {} off: {found:#}", error(&found, name));
    }
}

/// The fitted load shares no prefixes. Without a price for KV that is read only once, the others are predicted 13 %
/// too slow.
#[test]
fn decodes_that_share_a_prefix_are_predicted_as_fast_as_they_are() {
    let found = predicted("qwen3-14b", 17_815, "p50", "shared");
    assert!(error(&found, "itl mean").abs() < 0.05, "{found:#}");
    assert!(error(&found, "e2e p50").abs() < 0.05, "{found:#}");
}

/// On a laptop's GPU, prompts of 2,056 tokens take 53 times as long as a step, much longer than on large GPUs.
#[test]
fn slow_prompts_of_a_small_gpu_are_fitted() {
    let Some(data) = vcr_skips::sample("small-gpu/laptop-qwen3-8b-awq/in2048_out128_c1.json") else { return };
    let text = std::fs::read_to_string(&data).expect("the sample is text");
    let found: Value = serde_json::from_str(&text).expect("the sample is JSON");
    let numbers = |value: &Value| -> Vec<f64> { serde_json::from_value(value.clone()).expect("numbers") };
    let [starts, ttfts, prompts, outputs] =
        ["start_times", "ttfts", "input_lens", "output_lens"].map(|key| numbers(&found[key]));
    let gaps = found["itls"].as_array().expect("a list of lists");
    let first = starts.iter().copied().fold(f64::INFINITY, f64::min);
    let mut rows: Vec<[f64; 5]> = (0..starts.len())
        .map(|index| {
            let decoded: f64 = numbers(&gaps[index]).iter().sum();
            let ms = |seconds: f64| seconds * 1e3;
            let (ttft_ms, e2e_ms) = (ms(ttfts[index]), ms(ttfts[index] + decoded));
            [ms(starts[index] - first), prompts[index], outputs[index], ttft_ms, e2e_ms]
        })
        .collect();
    rows.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let lines = rows.iter().map(|row| row.map(|number| number.to_string()).join(","));
    let folder = Folder::new();
    folder.write("a.csv", [COLUMNS.join(",")].into_iter().chain(lines).collect::<Vec<_>>().join("\n"));
    let engine = "num_gpu_blocks: 2_000, max_num_seqs: 8, max_num_batched_tokens: 8192";
    let _ = folder.vcr(&["fit", "a.csv", "--engine", engine, "--folds", "0", "-o", "model.json"]).ended(0);
    let found = prediction(&folder, &["model.json", "a.csv"]);
    for (name, most) in [("ttft p50", 0.05), ("itl p50", 0.05), ("e2e p50", 0.05)] {
        assert!(error(&found, name).abs() < most, "{name} is {} off: {found:#}", error(&found, name));
    }
}

/// Three loads with 1, 2 and 4 concurrent requests. An earlier version of the fit treated the prefills of other
/// requests as noise in each step. Its simulation was slower and admitted more requests, so it predicted nine times
/// the TTFT of the first load.
#[test]
fn closed_loops_of_a_small_gpu_do_not_run_away() {
    let Some(first) = vcr_skips::sample("small-gpu/laptop-qwen3-8b-awq/in2048_out128_c1.json") else { return };
    let files = ["c1", "c2", "c4"].map(|loop_of| first.with_file_name(format!("in2048_out128_{loop_of}.json")));
    let files = files.map(|path| path.display().to_string());
    let folder = Folder::new();
    let engine = "num_gpu_blocks: 2_000, max_num_seqs: 8, max_num_batched_tokens: 8192";
    let loads = [&files[0], &files[1], &files[2]].map(String::as_str);
    // The prediction for two concurrent requests is so far off that the fit needs `--force`.
    let fit = [&["fit"][..], &loads, &["--engine", engine, "--folds", "0", "--force", "-o", "model.json"]].concat();
    let _ = folder.vcr(&fit).ended(0);
    let found = prediction(&folder, &["model.json", &files[0]]);
    for (name, most) in [("ttft mean", 0.25), ("ttft p90", 0.25), ("itl mean", 0.05), ("e2e p50", 0.1)] {
        assert!(error(&found, name).abs() < most, "{name} is {} off: {found:#}", error(&found, name));
    }
}
