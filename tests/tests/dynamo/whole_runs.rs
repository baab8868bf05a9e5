//! Properties of whole runs: threads, a time limit, telemetry, the host, real time.

use serde_json::Value;
use vcr_tests::{Folder, Said};

use crate::{R, busy_folder, replay, trace};

/// Enough requests for several threads, on any kind of cluster.
fn large(folder: &Folder, cluster: &[&str]) -> Said {
    let load = ["replay", "--input-tokens", "300", "--output-tokens", "4", "--request-count", "1200"];
    folder.vcr(&[&load, cluster].concat()).ended(0)
}

#[test]
fn any_number_of_threads_makes_the_same_bytes() {
    let folder = Folder::new();
    let small_pool = r#"{"num_gpu_blocks": 40, "max_num_seqs": 8}"#;
    let cases: &[&[&str]] = &[
        &["--num-workers", "2", "--request-rate", "300"],
        &["--num-workers", "7", "--arrival-interval-ms", "1", "--extra-engine-args", r#"{"dp_size": 3}"#],
        &["--num-workers", "5", "--request-rate", "900", "--extra-engine-args", small_pool],
        &["--num-workers", "4", "--request-rate", "500", "--max-sim-time", "1500ms"],
        &["--num-workers", "3", "--request-rate", "200", "--engine-type", "sglang", "--preset", "dynamo-1.4"],
        &["--num-workers", "256", "--request-rate", "800", "--router-mode", "least_loaded"],
        &[
            "--num-workers",
            "3",
            "--request-rate",
            "300",
            "--router-mode",
            "kv_router",
            "--num-prefix-groups",
            "4",
            "--shared-prefix-ratio",
            "0.5",
        ],
    ];
    for cluster in cases {
        let on = |threads: &str| {
            let files = ["--report-jsonl", "rows.jsonl", "--force", "--json", "--threads", threads];
            let said = large(&folder, &[cluster, &files[..]].concat());
            let rows = std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("rows");
            (said.stdout, rows)
        };
        let alone = on("1");
        for threads in ["2", "5"] {
            assert!(on(threads) == alone, "{threads} threads differ: {cluster:?}");
        }
    }
}

#[test]
fn a_replay_that_is_ended_at_a_time_is_partial() {
    let folder = busy_folder();
    let cut = replay(&folder, &["--max-sim-time", "300ms", "--json"]).ended(0);
    assert!(cut.stderr.contains("stopped by --max-sim-time at 300"), "{}", cut.stderr);
    let report = cut.json();
    assert_eq!(report["vcr"]["partial"]["stopped_by"], "--max-sim-time");
    assert!(report["summary"]["completed_requests"].as_u64() < Some(60));
    let same = replay(&folder, &["--max-sim-time-seconds", "0.3", "--json"]).ended(0);
    assert_eq!(same.stdout, cut.stdout, "Dynamo's option is the same");
    let whole = replay(&folder, &["--max-sim-time", "1h", "--json"]).ended(0).json();
    assert_eq!(whole["vcr"]["partial"], Value::Null, "it ended before");
    assert_eq!(whole, replay(&folder, &["--json"]).ended(0).json());
    // At 2 s no request is in progress, but one is still to arrive.
    let folder = trace(&[R, &R.replace("\"timestamp\": 0", "\"timestamp\": 5000")]);
    let between = replay(&folder, &["--max-sim-time", "2s", "--json"]).ended(0).json();
    assert_eq!(between["vcr"]["partial"]["stopped_by"], "--max-sim-time");
    assert_eq!((&between["summary"]["num_requests"], &between["vcr"]["unfinished_requests"]), (&1.into(), &0.into()));
    replay(&folder, &["--max-sim-time", "0s"]).failed(2, &["--max-sim-time", "more than 0"]);
    replay(&folder, &["--max-sim-time", "1s", "--max-sim-time-seconds", "1"]).failed(2, &["cannot be used with"]);
}

#[test]
fn a_run_of_a_scenario_that_is_ended_at_a_time_is_partial() {
    let script = r#"let c = cluster(#{ engines: pool(#{ latency: fixed(#{ step: "10ms" }) }) });
let load = burst(#{ count: 4, prompt_tokens: 16, output_tokens: 50 });
for name in ["one", "two"] {
    let r = run(#{ name: name, cluster: c, workloads: [load] });
    check("tokens came", value(r, "itl", "count") > 0.0);
}
run(#{ name: "cut by itself", cluster: c, max_time: "20ms", workloads: [load] });"#;
    let folder = Folder::with(script);
    let said = folder.run(&["--json", "--max-sim-time", "100ms"]).ended(0);
    assert!(said.stderr.contains("run `one` was ended at 100"), "{}", said.stderr);
    let report = said.json();
    assert_eq!(report["partial"], Value::Null, "the script came to its end");
    let runs: Vec<_> = report["runs"].as_array().expect("runs").iter().map(|run| &run["partial"]).collect();
    assert_eq!(runs, [&Value::Bool(true), &Value::Bool(true), &Value::Null]);
    assert_eq!(report["runs"][0]["duration_ms"], 100.0);
    let whole = folder.run(&["--json", "--max-sim-time", "1h"]).ended(0).json();
    assert_eq!(whole["runs"], folder.run(&["--json"]).ended(0).json()["runs"]);
}

#[test]
fn host_times_have_processors_and_memory() {
    let folder = busy_folder();
    let said = replay(&folder, &["--host-times", "--json"]).ended(0).json();
    let host = &said["vcr"]["host"];
    assert_eq!(host["wall_time_ms"], said["summary"]["wall_time_ms"]);
    assert!(host["cpu_time_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{host}");
    if cfg!(target_os = "linux") {
        assert!(host["peak_memory_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{host}");
    } else {
        assert!(host["absent"]["peak_memory_bytes"].is_string(), "{host}");
    }
    assert_eq!(replay(&folder, &["--json"]).ended(0).json()["vcr"].get("host"), None);
}

#[test]
fn telemetry_is_lines_at_equal_distances() {
    let folder = busy_folder();
    let ranks = ["--num-workers", "2", "--extra-engine-args", r#"{"dp_size": 2}"#];
    let args = ["--telemetry", "telemetry.jsonl", "--telemetry-interval", "50ms", "--force", "--json"];
    let report = replay(&folder, &[&ranks[..], &args].concat()).ended(0).json();
    let text = std::fs::read_to_string(folder.path().join("telemetry.jsonl")).expect("telemetry");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let duration_ms = report["summary"]["duration_ms"].as_f64().expect("a time");
    assert_eq!(lines.len(), (duration_ms / 50.0).ceil() as usize, "until {duration_ms} ms");
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line["at_ms"], index as f64 * 50.0);
        let workers: Vec<_> = line["workers"].as_array().expect("workers").iter().collect();
        let places = workers.iter().map(|of| (of["worker"].as_u64().unwrap_or(9), of["rank"].as_u64().unwrap_or(9)));
        assert!(places.eq([(0, 0), (0, 1), (1, 0), (1, 1)]), "{line}");
        let in_engines: u64 =
            workers.iter().map(|of| of["running"].as_u64().unwrap() + of["waiting"].as_u64().unwrap()).sum();
        let here = line["arrived"].as_u64().unwrap() - line["ended"].as_u64().unwrap();
        assert_eq!(in_engines + line["waiting_in_routers"].as_u64().unwrap(), here, "{line}");
    }
    assert!(lines.iter().any(|line| line["workers"][0]["kv_usage"].as_f64() > Some(0.0)));
    let timeline = &report["vcr"]["timeline"];
    assert_eq!(timeline["engines"].as_array().map(Vec::len), Some(4));
    // The timeline is the only difference.
    let mut without = replay(&folder, &[&ranks[..], &["--json"]].concat()).ended(0).json();
    without["vcr"]["timeline"] = timeline.clone();
    assert_eq!(report, without);
    replay(&folder, &["--telemetry-interval", "1s"]).failed(2, &["--telemetry <FILE>"]);
    replay(&folder, &["--telemetry", "t.jsonl", "--sweep", "num_workers=1..2"]).failed(2, &["it is of one run"]);
    replay(&folder, &["--telemetry", "trace.jsonl", "--force"]).failed(2, &["it is the input"]);
}

#[test]
fn telemetry_that_cannot_be_written_ends_the_replay() {
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    replay(&busy_folder(), &["--telemetry", "/dev/full"]).failed(2, &["cannot write `/dev/full`"]);
}

#[test]
fn a_replay_online_is_measured_on_live_engines() {
    let late = R.replace("\"timestamp\": 0", "\"timestamp\": 150");
    let folder = trace(&[R, R, &late]);
    let args = ["--num-workers", "2", "--replay-mode", "online", "--json"];
    let more = ["--report-jsonl", "rows.jsonl", "--latency", "fixed(#{ prefill: \"2ms\", decode: \"1ms\" })"];
    let report = replay(&folder, &[&args[..], &more].concat()).ended(0).json();
    let summary = &report["summary"];
    assert_eq!(summary["completed_requests"], 3);
    assert_eq!(summary["total_output_tokens"], 12);
    assert!(summary["duration_ms"].as_f64() >= Some(150.0), "the last one comes then");
    assert!(summary["decode_worker_seconds"].as_f64() >= Some(0.3), "two workers");
    assert_eq!(report["vcr"]["target"]["name"], "live");
    let rows = std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("rows");
    assert_eq!(rows.lines().count(), 3);
    // Features that engines of `vcr play` lack run in virtual time.
    let kv = ["--replay-mode", "online", "--num-workers", "2", "--router-mode", "kv_router", "--json"];
    let report = replay(&folder, &kv).ended(0).json();
    assert_eq!(report["summary"]["completed_requests"], 3);
    let parts = report["vcr"]["target"]["cluster_parts"].as_array().expect("parts");
    assert!(parts[0].as_str().is_some_and(|part| part.contains("KV router")), "{parts:?}");
}

#[test]
fn what_is_of_virtual_time_is_refused_online() {
    let folder = trace(&[R]);
    let args = ["--replay-mode", "online", "--threads", "2", "--capacity", "--json", "--telemetry", "t.jsonl"];
    let needles = ["--threads cannot be combined with --replay-mode online", "--capacity cannot", "--telemetry cannot"];
    replay(&folder, &args).failed(2, &needles);
    replay(&folder, &["--replay-mode", "online", "--sweep", "num_workers=1..2"])
        .failed(2, &["--sweep cannot be combined with --replay-mode online"]);
}
