//! Conservation: every request of a trace ends exactly once, and the output tokens add up to those in the file.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use vcr_tests::{Folder, Sums, sample, sample_sums};

/// Replays a trace on four engines. Returns the report, the rows of the requests, and the rows of the steps.
fn replay(trace: &Path, engine: &str) -> (Value, Vec<Value>, Vec<Value>) {
    let script = format!(
        r#"let e = engine(#{{ {engine} }});
let p = pool(#{{ engines: 4, engine: e, latency: polynomial(#{{}}), router: "kv-aware" }});
run(#{{ name: "replay", cluster: cluster(#{{ engines: p }}), workloads: [ trace(#{{ path: "{}" }}) ] }});
"#,
        trace.display()
    );
    let folder = Folder::with(&script);
    let _ = folder.run(&["--quiet", "--out", "out", "--files", "report,requests,steps"]).ended(0);
    let read = |name: &str| std::fs::read_to_string(folder.path().join("out").join(name)).expect("it was written");
    let json = |text: &str| serde_json::from_str::<Value>(text).expect("valid JSON");
    let rows = |name: &str| read(name).lines().map(json).collect();
    let report = json(&read("report.json"));
    (report["runs"][0].clone(), rows("requests.jsonl"), rows("steps.jsonl"))
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count"))
}

fn sum<'a>(rows: impl Iterator<Item = &'a Value>, field: &str) -> u64 {
    rows.map(|row| count(&row[field])).sum()
}

/// Asserts that all sums agree, and returns the number of rejected requests.
#[track_caller]
fn assert_conserved(expected: Sums, report: &Value, requests: &[Value], steps: &[Value]) -> u64 {
    // All requests in the file have arrived, and each has one row.
    assert_eq!(requests.len() as u64, expected.requests);
    assert!(requests.iter().map(|row| count(&row["id"])).eq(0..expected.requests), "one row for each, in order");
    assert_eq!(sum(requests.iter(), "prompt_tokens"), expected.prompt_tokens);
    assert_eq!(sum(requests.iter(), "max_tokens"), expected.output_tokens);

    // Each request has ended in exactly one way, with all of its output or none.
    let mut ends: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for row in requests {
        ends.entry(row["status"].as_str().expect("a text")).or_default().push(row);
        assert!(row["end_ms"].as_f64() >= row["arrival_ms"].as_f64(), "{row}");
    }
    let completed = ends.remove("completed").unwrap_or_default();
    let rejected = ends.remove("rejected").unwrap_or_default();
    assert!(ends.is_empty(), "{ends:?}");
    for row in &completed {
        assert_eq!(row["output_tokens"], row["max_tokens"], "{row}");
        assert_eq!(row.get("reason"), None);
    }
    for row in &rejected {
        assert_eq!(row["output_tokens"], 0, "{row}");
        assert!(row["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{row}");
    }

    // The report agrees with the rows.
    let counters = &report["metrics"]["counters"];
    assert_eq!(counters["requests"], expected.requests);
    assert_eq!(counters["completed"], completed.len());
    assert_eq!(counters["rejected"], rejected.len());
    assert_eq!((&counters["failed"], &report["unfinished_requests"]), (&0.into(), &0.into()));
    let of_completed = |field| sum(completed.iter().copied(), field);
    assert_eq!(counters["prompt_tokens"], of_completed("prompt_tokens"));
    assert_eq!(counters["output_tokens"], of_completed("output_tokens"));
    assert_eq!(counters["cached_tokens"], of_completed("cached_tokens"));
    let reasons = report["metrics"]["rejections"].as_object();
    let by_reason: u64 = reasons.map_or(0, |reasons| reasons.values().map(count).sum());
    assert_eq!(by_reason, rejected.len() as u64);

    // The engines and their steps agree with the rows. Without preemption every token is computed once, except
    // cached tokens and the last token of each request.
    let engines = report["engines"].as_array().expect("a list");
    assert_eq!(engines.len(), 4);
    for engine in engines {
        let own = || steps.iter().filter(|row| row["engine"] == engine["engine"]);
        assert_eq!(own().count() as u64, count(&engine["steps"]));
        assert_eq!(sum(own(), "tot"), count(&engine["computed_tokens"]));
        assert!(own().map(|row| count(&row["s"])).is_sorted_by(|a, b| a < b), "steps are numbered in order");
    }
    if counters["preemptions"] == 0 {
        let new = of_completed("prompt_tokens") + of_completed("output_tokens");
        let saved = of_completed("cached_tokens") + completed.len() as u64;
        assert_eq!(sum(engines.iter(), "computed_tokens"), new - saved);
    }
    rejected.len() as u64
}

#[test]
fn all_of_mooncake_synthetic_is_served_by_four_engines() {
    let Some(path) = sample("mooncake_synthetic.jsonl") else { return };
    let sums = sample_sums(&path);
    assert_eq!(sums, Sums { requests: 3_993, prompt_tokens: 61_194_628, output_tokens: 595_432 });
    let (report, requests, steps) = replay(&path, "");
    assert_eq!(assert_conserved(sums, &report, &requests, &steps), 0);
    // The trace shares prefixes, so there must be cache hits.
    assert!(count(&report["metrics"]["counters"]["cached_tokens"]) > 1_000_000);
}

/// Small engines reject the longest requests and preempt others.
#[test]
fn nothing_is_lost_where_engines_are_too_small() {
    let Some(path) = sample("mooncake_synthetic.jsonl") else { return };
    let (report, requests, steps) = replay(&path, "num_gpu_blocks: 2501");
    let rejected = assert_conserved(sample_sums(&path), &report, &requests, &steps);
    // 2,500 blocks of 16 tokens hold 40,000 tokens, and the KV of a request's last token is never written.
    let too_long = requests.iter().filter(|row| count(&row["prompt_tokens"]) + count(&row["max_tokens"]) > 40_001);
    assert!(rejected > 0);
    assert!(rejected.abs_diff(too_long.count() as u64) <= 2, "{rejected} were rejected");
}

#[test]
fn azure_traces_are_conserved() {
    for name in ["azure_2023_code.csv", "azure_2023_conv.csv"] {
        let Some(path) = sample(name) else { return };
        let (report, requests, steps) = replay(&path, "");
        assert_eq!(assert_conserved(sample_sums(&path), &report, &requests, &steps), 0, "{name}");
    }
}

#[test]
fn small_samples_are_conserved() {
    for name in ["mooncake_tiny.jsonl", "formats/mooncake.jsonl"] {
        let Some(path) = sample(name) else { return };
        let (report, requests, steps) = replay(&path, "");
        assert_eq!(assert_conserved(sample_sums(&path), &report, &requests, &steps), 0, "{name}");
    }
}

/// In a session of deltas, each row extends the conversation.
#[test]
fn sessions_of_deltas_are_replayed_turn_by_turn() {
    let Some(path) = sample("formats/mooncake-delta.jsonl") else { return };
    let (report, requests, _) = replay(&path, "");
    assert_eq!(report["metrics"]["counters"]["completed"], 2);
    assert_eq!(sum(requests.iter(), "output_tokens"), sample_sums(&path).output_tokens);
    let turns: Vec<u64> = requests.iter().map(|row| count(&row["turn"])).collect();
    assert_eq!(turns, [0, 1]);
    assert!(requests[1]["arrival_ms"].as_f64() >= requests[0]["end_ms"].as_f64().map(|end| end + 5.0));
}
