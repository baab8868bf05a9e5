//! Captures that runs write on every target, with the `record` key of `run`.

use std::fs;

use serde_json::Value;
use vcr_tests::{Folder, Serve};

/// Requests with IDs. Two of them share the beginning of a prompt.
const TRACE: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2], "request_id": "first"}
{"timestamp": 90, "input_length": 600, "output_length": 9, "hash_ids": [1, 3], "request_id": "second"}
{"timestamp": 180, "input_length": 700, "output_length": 7, "hash_ids": [4, 5], "request_id": "third"}
"#;

const SCENARIO: &str = r#"
let target = cluster(#{ engines: pool(#{
    engine: engine(#{ num_gpu_blocks: 2_001, max_model_len: 8_192 }), latency: fixed(#{ step: "5ms" }),
}) });
let result = run(#{
    cluster: target, workloads: [trace(#{ path: "trace.jsonl", name: "trace" })], record: "day.jsonl",
});
expect(result, "completed", "count == 3");
"#;

fn folder() -> Folder {
    let folder = Folder::with(SCENARIO);
    folder.write("trace.jsonl", TRACE);
    folder
}

/// Lines of the capture that a run in `folder` has written.
#[track_caller]
fn lines(folder: &Folder) -> Vec<Value> {
    let text = fs::read_to_string(folder.path().join("day.jsonl")).expect("it was written");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Properties of a capture's requests that do not depend on times, in order.
fn requests(lines: &[Value]) -> Vec<[Value; 4]> {
    let keys = ["prompt_tokens", "output_tokens", "finish_reason", "preemptions"];
    let requests = lines.iter().filter(|line| line["prompt_tokens"].is_number());
    let mut requests: Vec<_> = requests.map(|line| keys.map(|key| line[key].clone())).collect();
    requests.sort_by_key(|request| request[1].as_u64());
    requests
}

#[test]
fn every_target_records_the_same_requests() {
    let simulated = folder();
    let _ = simulated.run(&[]).ended(0);
    let expected = lines(&simulated);
    assert_eq!(requests(&expected).len(), 3, "{expected:#?}");
    let named = expected.iter().filter_map(|line| line["id"].as_str());
    assert_eq!(named.collect::<Vec<_>>(), ["first", "second", "third"]);

    let server = Serve::start(&[
        "--num-gpu-blocks",
        "2001",
        "--max-model-len",
        "8192",
        "--latency",
        "fixed(#{ step: \"5ms\" })",
    ]);
    for target in ["live", "serve", &format!("http://{}", server.address())] {
        let measured = folder();
        let _ = measured.run(&["--target", target]).ended(0);
        let recorded = lines(&measured);
        let same = requests(&recorded);
        let expected = requests(&expected);
        for (recorded, expected) in same.iter().zip(&expected) {
            assert_eq!(recorded[..3], expected[..3], "{target}");
        }
        assert_eq!(same.len(), expected.len(), "{target}");
        for line in recorded.iter().filter(|line| line["prompt_tokens"].is_number()) {
            let first_token_ns = line["ttft_ns"].as_u64().expect("it had a first token");
            // One step, with a wide margin for a busy machine.
            assert!((4_000_000..2_000_000_000).contains(&first_token_ns), "{target}: {line}");
        }
    }
}

#[test]
fn a_recording_is_a_workload_and_a_reference() {
    let folder = folder();
    let _ = folder.run(&[]).ended(0);
    folder.write(
        "again.rhai",
        r#"
let target = cluster(#{ engines: pool(#{
    engine: engine(#{ num_gpu_blocks: 2_001, max_model_len: 8_192 }), latency: fixed(#{ step: "5ms" }),
}) });
let result = run(#{ cluster: target, workloads: [capture("day.jsonl")] });
expect(result, "completed", "count == 3");
expect(compare(result, capture("day.jsonl")), "itl mean error < 1%");
"#,
    );
    let _ = folder.vcr(&["run", "again.rhai"]).ended(0);
}

/// A run's acceptance of drafts is in its capture, and an engine can use it from there.
#[test]
fn acceptance_of_drafts_is_read_from_a_capture() {
    let scenario = |rates: &str, more: &str| {
        format!(
            r#"
let drafting = cluster(#{{ engines: pool(#{{
    engine: engine(#{{ num_speculative_tokens: 3, acceptance_rates: {rates} }}), latency: fixed(#{{ step: "5ms" }}),
}}) }});
let chat = poisson(#{{ name: "chat", rate: 10.0, count: 60, prompt_tokens: 64, output_tokens: 200 }});
let result = run(#{{ cluster: drafting, workloads: [chat]{more} }});
expect(result, "completed", "count == 60");
"#
        )
    };
    let folder = Folder::with(&scenario("[0.8, 0.5]", r#", record: "drafts.jsonl""#));
    let _ = folder.run(&[]).ended(0);
    folder.write(
        "again.rhai",
        format!(
            r#"
let rates = capture("drafts.jsonl").acceptance_rates;
if rates.len() != 2 || (rates[0] - 0.8).abs() > 0.03 || (rates[1] - 0.5).abs() > 0.03 {{ throw `${{rates}}` }}
{}
expect(compare(result, capture("drafts.jsonl")), "e2e mean error < 3%");
"#,
            scenario("rates", "")
        ),
    );
    let _ = folder.vcr(&["run", "again.rhai"]).ended(0);
    let summary = folder.vcr(&["inspect", "summarize", "drafts.jsonl"]).ended(0).stdout;
    assert!(summary.contains("drafts accepted, of those behind an accepted one: 0."), "{summary}");
}

/// Recorded answers come at their times in real time, too, with and without a server.
#[test]
fn recorded_answers_are_played_in_real_time() {
    let folder = folder();
    let _ = folder.run(&[]).ended(0);
    folder.write(
        "again.rhai",
        r#"
let target = cluster(#{ engines: pool(#{ latency: fixed(#{ step: "1ms" }) }) });
let result = run(#{ cluster: target, workloads: [playback(capture("day.jsonl"))] });
expect(result, "completed", "count == 3");
expect(result, "output_tokens", "count == 21");
// The gaps are the recorded 5 ms, not the gaps of the engine's own steps.
expect(result, "itl", "mean > 4ms");
expect(result, "itl", "mean < 50ms");
"#,
    );
    for target in ["virtual", "live", "serve"] {
        let _ = folder.vcr(&["run", "again.rhai", "--target", target]).ended(0);
    }
    let frontend = "frontend(#{ binary: \"vllm-rs\", model: \"model\" })";
    let lacking = "it has no answers as recorded (workload `capture`)";
    folder.vcr(&["run", "again.rhai", "--target", frontend]).failed(2, &[lacking, "--target serve"]);
}

#[test]
fn a_file_is_replaced_when_asked_only() {
    let folder = folder();
    folder.write("day.jsonl", "mine");
    folder.run(&[]).failed(2, &["day.jsonl", "--force"]);
    assert_eq!(fs::read(folder.path().join("day.jsonl")).expect("it is there"), b"mine");
    let _ = folder.run(&["--force"]).ended(0);
    assert_eq!(requests(&lines(&folder)).len(), 3);

    // A run never overwrites its input.
    let folder = Folder::with(&SCENARIO.replace("day.jsonl", "trace.jsonl"));
    folder.write("trace.jsonl", TRACE);
    folder.run(&["--force"]).failed(2, &["trace.jsonl"]);
    assert_eq!(fs::read_to_string(folder.path().join("trace.jsonl")).expect("it is there"), TRACE);

    folder.write("test.rhai", SCENARIO.replace("\"day.jsonl\"", "\"..\""));
    folder.run(&[]).failed(2, &["invalid `record`: expected the path of a file"]);
}

/// Captures contain the times of single outputs on every target, and prompt hashes where prompts are sent as tokens.
#[test]
fn single_gaps_are_recorded_and_hashes_of_prompts_that_are_sent() {
    for (target, has_hashes) in [(None, false), (Some("live"), true)] {
        let folder = folder();
        let args: Vec<&str> = target.iter().flat_map(|target| ["--target", target]).collect();
        let _ = folder.run(&args).ended(0);
        let recorded = lines(&folder);
        let requests: Vec<&Value> = recorded.iter().filter(|line| line["kind"] == "request").collect();
        assert_eq!(requests.len(), 3);
        for request in &requests {
            let gaps = request["gap_ns"].as_array().unwrap_or_else(|| panic!("no gaps: {request}"));
            assert_eq!(Some(gaps.len() as u64 + 1), request["output_tokens"].as_u64(), "{request}");
            assert!(request.get("gap_summary").is_none(), "{request}");
            if target.is_none() {
                assert!(gaps.iter().all(|gap| *gap == 5_000_000), "{request}");
            }
        }
        let by_name = |name: &str| {
            let found = requests.iter().find(|request| request["id"] == name);
            found.and_then(|request| request["block_hashes"].as_array()).cloned().unwrap_or_default()
        };
        let [first, second, third] = ["first", "second", "third"].map(by_name);
        if has_hashes {
            assert_eq!(recorded[0]["block_size_tokens"], 16);
            assert_eq!((first.len(), first[..32] == second[..32], first[32] == second[32]), (37, true, false));
            assert_ne!(first[0], third[0]);
        } else {
            assert!(first.is_empty() && second.is_empty() && third.is_empty());
        }
        // The capture is a workload like any other.
        let summary = folder.vcr(&["inspect", "summarize", "day.jsonl"]);
        let _ = summary.ended(0);
    }
}
