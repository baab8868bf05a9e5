//! Clients that disconnect before their first token, and KV that prefill engines hold but no decode engine reads.

use serde_json::Value;
use vcr_tests::Folder;

/// A prompt that fills the prefill engine and whose client disconnects. Another prompt arrives a second later.
fn scenario(link: &str, first: &str, target: &str) -> String {
    format!(
        r#"
        let engines = |blocks| pool(#{{
            engine: engine(#{{ num_gpu_blocks: blocks, enable_prefix_caching: false }}), latency: fixed(#{{ step: "100ms" }}),
        }});
        let c = cluster(#{{
            prefill: engines.call(65), decode: engines.call(70),
            link: link(#{{ bandwidth: "1MB/s", kv_bytes_per_token: 2_000, {link} }}),
        }});
        let one = |name, at, timeout| burst(#{{
            name: name, count: 1, at: at, prompt_tokens: 1_000, output_tokens: 4, first_token_timeout: timeout,
        }});
        let r = run(#{{
            cluster: c, target: "{target}", workloads: [one.call("gone", "0s", "{first}"), one.call("late", "1s", "1h")],
        }});
    "#
    )
}

/// The report of the run, and the TTFT of the later prompt, in seconds.
fn late(link: &str, first: &str, target: &str) -> (Value, f64) {
    let folder = Folder::with(&scenario(link, first, target));
    let report = folder.run(&["--json", "--requests", "requests.jsonl"]).ended(0).json()["runs"][0].clone();
    let text = std::fs::read_to_string(folder.path().join("requests.jsonl")).expect("it was written");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let row = |workload: &str| rows.iter().find(|row| row["workload"] == workload).expect("it has a row");
    assert_eq!(row("gone")["status"], "timeout", "{}", row("gone"));
    let late = row("late");
    let seconds = |field: &str| late[field].as_f64().expect("a time") / 1e3;
    (report, seconds("first_token_ms") - seconds("arrival_ms"))
}

fn abandoned(report: &Value) -> u64 {
    report["metrics"]["counters"]["abandoned_prompts"].as_u64().unwrap_or(0)
}

/// The transfer takes 2 s. The prompt's step and one step of the decode engine take 100 ms each.
#[test]
fn kv_of_a_prompt_that_nobody_fetches_is_held_for_the_timeout() {
    let (_, freed_s) = late("", "50ms", "virtual");
    assert!((2.1..2.4).contains(&freed_s), "{freed_s}");
    // The client disconnects while the prompt is computed, and the computation is cancelled.
    let (report, cancelled_s) = late(r#"prefill_cancel_until: "handoff", abort_timeout: "6s""#, "50ms", "virtual");
    assert_eq!((abandoned(&report), cancelled_s), (0, freed_s));
    // Without cancelling, the prompt is computed at 100 ms and held until 6.1 s.
    let never = r#"prefill_cancel_until: "never", abort_timeout: "6s""#;
    let (report, held_s) = late(never, "50ms", "virtual");
    assert_eq!(abandoned(&report), 1);
    assert!((held_s - freed_s - 5.1).abs() < 0.11, "{held_s} {freed_s}");
    assert!(report["metrics"]["gauges"]["kv_peak_usage"].as_f64().is_some_and(|usage| usage > 0.9), "{report}");
}

/// A transfer in progress continues: until 2.1 s, the blocks at both ends are in use.
#[test]
fn a_client_that_leaves_during_a_transfer_does_not_stop_it() {
    let (_, freed_s) = late("", "500ms", "virtual");
    let (report, moved_s) = late(r#"prefill_cancel_until: "handoff""#, "500ms", "virtual");
    assert_eq!(abandoned(&report), 0);
    assert!((moved_s - freed_s - 1.1).abs() < 0.11, "{moved_s} {freed_s}");
}

/// Engines in real time behave the same, both directly and behind servers whose clients close their connections.
#[test]
fn engines_in_real_time_hold_kv_as_long() {
    let never = r#"prefill_cancel_until: "never", abort_timeout: "4s""#;
    for target in ["live", "serve"] {
        let (_, held_s) = late(never, "50ms", target);
        assert!(held_s > 3.0, "{held_s} on {target}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (link, wanted) in [
        (r#"abort_timeout: "6s""#, "`abort_timeout` needs `prefill_cancel_until`"),
        (r#"prefill_cancel_until: "handoff", abort_timeout: "0s""#, "invalid `abort_timeout`: expected above 0"),
        (r#"prefill_cancel_until: "later""#, "expected one of \"anytime\", \"handoff\", \"never\""),
    ] {
        Folder::with(&scenario(link, "1s", "virtual")).vcr(&["check", "test.rhai"]).failed(2, &[wanted]);
    }
    let sglang = scenario(r#"prefill_cancel_until: "never""#, "1s", "virtual")
        .replace("num_gpu_blocks: blocks, enable_prefix_caching: false", "engine_type: \"sglang\"");
    Folder::with(&sglang).vcr(&["check", "test.rhai"]).failed(2, &["both pools need vLLM's engine"]);
}
