//! Workers that are added and removed.

use serde_json::{Value, json};
use vcr_tests::Folder;

use crate::{replay, trace};

/// Rows that arrive faster than they are computed for a while, and slowly afterwards.
fn rush() -> Folder {
    let row = |at_ms: u64| {
        format!(r#"{{"timestamp": {at_ms}, "input_length": 1000, "output_length": 200, "hash_ids": [{at_ms}]}}"#)
    };
    let rows: Vec<String> = (0..40).map(|n| row(n * 100)).chain((1..9).map(|n| row(4000 + n * 2000))).collect();
    trace(&rows.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_guest_decides_how_many_workers_there_are() {
    let (Some(guest), Some(other)) =
        (vcr_tests::shipped_guest("target-load"), vcr_tests::shipped_guest("prefix-affinity"))
    else {
        return;
    };
    let folder = rush();
    let run = |policy: &Value| {
        let policy = policy.to_string();
        replay(&folder, &["--autoscale", &policy, "--trace-block-size", "1000", "--report-format", "1.4", "--json"])
    };
    let (guest, other) = (guest.display().to_string(), other.display().to_string());
    let native = run(&json!({"policy": "target_requests", "target": 4, "scale_down_delay_ticks": 2, "interval_s": 0.5,
        "max": 6}));
    let twin = run(&json!({"policy": guest, "config": {"target": 4, "scale_down_delay_ticks": 2}, "interval_s": 0.5,
        "max": 6}));
    let (native, twin) = (native.ended(0).json(), twin.ended(0).json());
    assert!(native["vcr"]["scaling"].as_array().is_some_and(|changes| changes.len() > 2), "{native}");
    // All keys except the wall time.
    for key in ["vcr", "duration_ms", "decode_worker_seconds", "gpu_hours", "mean_ttft_ms", "completed_requests"] {
        assert_eq!(twin[key], native[key], "{key}");
    }
    run(&json!({"policy": guest, "config": {"target": 0}, "interval_s": 1, "max": 2}))
        .failed(2, &["--autoscale", "invalid `target`: expected a finite number above 0"]);
    run(&json!({"policy": guest, "target": 4, "interval_s": 1, "max": 2}))
        .failed(2, &["`target`: is for a built-in policy"]);
    run(&json!({"policy": other, "interval_s": 1, "max": 2}))
        .failed(2, &["--autoscale", "the guest `prefix-affinity` is a router"]);
}

/// One worker at first. A second one is added when requests wait, and removed when it is idle.
#[test]
fn workers_follow_the_load() {
    let folder = rush();
    let policy = r#"{"policy": "target_requests", "target": 4, "interval_s": 0.5, "max": 6}"#;
    let args =
        ["--autoscale", policy, "--extra-engine-args", r#"{"startup_time": 0.25}"#, "--trace-block-size", "1000"];
    let report = replay(&folder, &[&args[..], &["--report-format", "1.4", "--json"]].concat()).ended(0).json();
    let changes = report["vcr"]["scaling"].as_array().expect("a list");
    let to: Vec<u64> = changes.iter().map(|change| change["to"].as_u64().expect("a count")).collect();
    assert!(to.iter().max() > Some(&1) && to.last() == Some(&1), "{to:?}");
    assert_eq!(changes[0]["at_ms"], 500.0);
    let workers = report["vcr"]["workers"].as_array().expect("a list").len() as f64;
    let (seconds, all) = (report["decode_worker_seconds"].as_f64(), report["duration_ms"].as_f64());
    let (seconds, all) = (seconds.expect("a number"), all.expect("a number") / 1000.0);
    assert!(all < seconds && seconds < workers * all, "{seconds} of {workers} times {all}");
    assert_eq!(report["completed_requests"], 48);
    let wrong = replay(&folder, &["--autoscale", r#"{"policy": "target_requests", "target": 0, "maxx": 3}"#]).ended(2);
    for part in ["`target`: expected a finite number above 0", "did you mean `max`?", "`interval_s`: is required"] {
        assert!(wrong.stderr.contains(part), "{part} in {}", wrong.stderr);
    }
}
