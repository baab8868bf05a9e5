//! The same inputs lead to the same bytes, independent of the machine's load.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use vcr_tests::{DEFAULT_FILES, Folder, shipped_guest};

/// A scenario with many features: prefill and decode pools over a link, routing by cache, sessions, random sizes and
/// times, faults with retries and, if given, a guest with state.
fn scenario(guest: Option<&Path>) -> String {
    let guest_run = guest.map_or(String::new(), |path| {
        format!(
            r#",
  #{{ name: "guest", seed: 9, workloads: work(), cluster: cluster(#{{ engines: pool(#{{
      engines: 3, engine: small, router: "kv-aware",
      latency: guest(#{{ path: "{}", config: #{{ roofline: #{{ model: "llama-3.1-8b", gpu: "h100-sxm" }} }} }}),
  }}) }}) }}"#,
            path.display()
        )
    });
    format!(
        r#"//! All that could depend on order or chance.
let small = engine(#{{ num_gpu_blocks: 700, max_num_batched_tokens: 1024 }});
let jitter = knobs(#{{ ttft: lognormal("80ms", "40ms"), itl: normal("12ms", "3ms") }});
let side = |n| pool(#{{ engines: n, engine: small, latency: jitter, router: "kv-aware" }});
let split = cluster(#{{ prefill: side.call(2), decode: side.call(3),
    link: link(#{{ bandwidth: "2GB/s", latency: "50us", kv_bytes_per_token: "128KiB" }}) }});
let whole = cluster(#{{ engines: pool(#{{ engines: 4, engine: small, latency: jitter, router: "least-loaded" }}) }});

fn work() {{
    [
        burst(#{{ name: "burst", at: "1s", over: "200ms", count: 60,
            prompt_tokens: lognormal(300, 200), output_tokens: uniform(5, 60) }}),
        poisson(#{{ name: "chat", rate: "6/s", count: 30, turns: uniform(1, 4), think_time: exponential("300ms"),
            shared_prefix_tokens: 256, prefix_groups: 3, prompt_tokens: normal(120, 40), output_tokens: 30 }}),
        closed_loop(#{{ name: "loop", concurrency: 3, duration: "4s", prompt_tokens: gamma(200, 80), output_tokens: 20 }}),
    ]
}}

let results = run_all([
  #{{ name: "split", cluster: split, workloads: work(), retries: 2, faults: [
      crash(#{{ at: "1200ms", pool: "decode", engine: 1, restart_after: "500ms" }}),
      crash(#{{ at: "1500ms", pool: "prefill", engine: 0 }}),
      slow_down(#{{ at: "2s", pool: "decode", engine: 0, factor: 3.0, duration: "1s" }}),
  ] }},
  #{{ name: "whole", cluster: whole, workloads: work() }},
  #{{ name: "other seed", cluster: whole, workloads: work(), seed: 77 }}{guest_run}
]);
let again = run(#{{ name: "afterwards", cluster: split, workloads: work() }});
expect(again, "completed_ratio", "value >= 50%");
expect(results[0], "retries", "count > 0");
"#
    )
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("the outputs were written");
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    let name = |path: &Path| path.file_name().expect("a file has a name").to_string_lossy().into_owned();
    paths.map(|path| (name(&path), std::fs::read(&path).expect("an output can be read"))).collect()
}

#[test]
fn repeated_runs_give_the_same_bytes_whatever_the_thread_count() {
    let folder = Folder::with(&scenario(shipped_guest("thermal").as_deref()));
    let said = |args: &[&str]| folder.run(args).ended(0).stdout;
    let first = said(&["--json", "--threads", "1", "--out", "one"]);
    assert_eq!(said(&["--json", "--threads", "1", "--out", "again"]), first, "the same command again");
    assert_eq!(said(&["--json", "--threads", "2", "--out", "two"]), first, "with two threads");
    assert_eq!(said(&["--json"]), first, "with all cores, and nothing written");

    let one = files(&folder.path().join("one"));
    let names: Vec<&str> = one.keys().map(String::as_str).collect();
    assert_eq!(names, DEFAULT_FILES, "no parts are left");
    for other in ["again", "two"] {
        let files = files(&folder.path().join(other));
        assert!(files.keys().eq(one.keys()));
        for (name, bytes) in &one {
            assert!(files[name] == *bytes, "{other}/{name} differs");
        }
    }
    assert_eq!(String::from_utf8_lossy(&one["report.json"]), first, "--json prints report.json");
    assert_outputs_are_whole(&one);
}

/// Every output must have the completed runs, in order and as valid JSON.
fn assert_outputs_are_whole(files: &BTreeMap<String, Vec<u8>>) {
    let report: Value = serde_json::from_slice(&files["report.json"]).expect("valid JSON");
    let runs = report["runs"].as_array().expect("it lists runs");
    let trace: Value = serde_json::from_slice(&files["trace.json"]).expect("valid JSON");
    let events = trace["traceEvents"].as_array().or(trace.as_array()).expect("a trace is a list of events");
    for kind in ["requests.jsonl", "steps.jsonl"] {
        let text = std::str::from_utf8(&files[kind]).expect("text");
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("valid JSON")).collect();
        let mut order: Vec<&Value> = rows.iter().map(|row| &row["of"]).collect();
        order.dedup();
        assert!(order.into_iter().eq(runs.iter().map(|run| &run["name"])), "{kind} has the runs in order");
        let counter = if kind == "steps.jsonl" { "steps" } else { "requests" };
        for run in runs {
            let of_run = rows.iter().filter(|row| row["of"] == run["name"]);
            // A log also has the events after an engine's last step.
            let rows = of_run.filter(|row| kind != "steps.jsonl" || row["tot"].as_u64() > Some(0)).count();
            assert_eq!(run["metrics"]["counters"][counter], rows, "{counter} of {}", run["name"]);
        }
    }
    let steps: u64 = runs.iter().map(|run| run["metrics"]["counters"]["steps"].as_u64().expect("a count")).sum();
    assert!(events.len() as u64 > steps, "every step is an event of the trace");
}

#[test]
fn the_seed_changes_what_is_random_and_comes_back() {
    let folder = Folder::with(&scenario(None));
    let fingerprint = |args: &[&str]| {
        let outcome = folder.run(args).ended(0).json();
        outcome["fingerprint"].as_str().expect("a text").to_owned()
    };
    let plain = fingerprint(&["--json"]);
    let seven = fingerprint(&["--json", "--seed", "7"]);
    assert_ne!(plain, seven);
    assert_eq!(seven, fingerprint(&["--json", "--seed", "7"]));
    assert_eq!(plain.len(), 64);
    assert!(plain.bytes().all(|byte| byte.is_ascii_hexdigit()));
}

#[test]
fn a_seed_on_the_command_line_is_that_of_every_run() {
    let folder = Folder::with(&scenario(None));
    let seeds = |args: &[&str]| -> Vec<u64> {
        let outcome = folder.run(args).ended(0).json();
        let runs = outcome["runs"].as_array().expect("it lists runs");
        runs.iter().map(|run| run["seed"].as_u64().expect("a number")).collect()
    };
    assert_eq!(seeds(&["--json"]), [1, 1, 77, 1]);
    assert_eq!(seeds(&["--json", "--seed", "5"]), [5, 5, 5, 5]);
}
