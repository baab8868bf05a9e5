//! Reports, rows and tables.

use serde_json::Value;

use crate::{R, busy_folder, replay, trace};

#[test]
fn reports_are_the_same_bytes_every_time() {
    let folder = busy_folder();
    let args =
        ["--num-workers", "3", "--router-mode", "kv_router", "--json", "--force", "--report-jsonl", "rows.jsonl"];
    let first = replay(&folder, &args).ended(0).stdout;
    let rows = std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("rows");
    let again = replay(&folder, &args).ended(0).stdout;
    assert_eq!(first, again);
    assert_eq!(rows, std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("rows"));
    let other = replay(&folder, &[&args[..], &["--seed", "2"]].concat()).ended(0).stdout;
    assert_ne!(first, other, "the seed is reported");
}

#[test]
fn the_report_has_dynamos_keys_and_ours_beside_them() {
    let folder = busy_folder();
    let args = ["--report-json", ".", "--sla-ttft-ms", "60", "--max-sim-time-seconds", "10"];
    let _ = replay(&folder, &args).ended(0);
    let text = std::fs::read_to_string(folder.path().join("replay_report.json")).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let summary = &report["summary"];
    // The three keys of an SLA; unit tests of the report check the others.
    let goodput = summary.as_object().expect("an object").keys().filter(|key| key.starts_with("goodput_"));
    let expected = ["goodput_completed_requests", "goodput_output_throughput_tok_s", "goodput_request_throughput_rps"];
    assert!(goodput.eq(expected));
    let good = summary["goodput_completed_requests"].as_u64().expect("a count");
    assert!(good > 0 && good < 60, "{good}");
    assert_eq!(summary["wall_time_ms"], Value::Null);
    let ours = &report["vcr"];
    assert_eq!(ours["workers"][0]["requests"], 60);
    let shares = ours["where_time_went"].as_object().expect("phases").values();
    let sum: f64 = shares.map(|phase| phase["share"].as_f64().expect("a share")).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    let timed = replay(&folder, &["--host-times", "--json"]).ended(0).json();
    assert!(timed["summary"]["wall_time_ms"].as_f64().is_some_and(|ms| ms > 0.0));
    let cut = replay(&folder, &["--max-sim-time-seconds", "0.3", "--json"]).ended(0).json();
    assert!(cut["vcr"]["unfinished_requests"].as_u64() > Some(0));
    assert!(cut["summary"]["completed_requests"].as_u64() < Some(60));
}

#[test]
fn rows_have_dynamos_keys_in_its_order() {
    let large = r#"{"timestamp": 9, "input_length": 2048, "output_length": 4, "hash_ids": [5, 6, 7, 8]}"#;
    let folder = trace(&[large, R]);
    let args = ["--report-jsonl", "rows.jsonl", "--extra-engine-args", r#"{"num_gpu_blocks": 20}"#];
    let _ = replay(&folder, &args).ended(0);
    let text = std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("rows");
    let rows: Vec<&str> = text.lines().collect();
    // Read as text, because a map would sort the keys.
    let keys: Vec<&str> =
        rows[0].split('"').skip(1).step_by(2).filter(|word| rows[0].contains(&format!("\"{word}\":"))).collect();
    let expected = "session_id turn_index uuid arrival_time_ms first_admit_ms terminal_time_ms first_token_ms \
                    last_token_ms ttft_ms ttst_ms e2e_latency_ms itl_ms input_length requested_output_length \
                    output_length reused_input_tokens prefill_worker_idx decode_worker_idx prefill_admit_ms \
                    source_held_ms destination_reserved_ms destination_activated_ms decode_admit_ms \
                    source_released_ms decode_reused_input_tokens prefill_route_overlap_tokens \
                    decode_route_overlap_tokens terminal_status";
    assert_eq!(keys, expected.split_whitespace().collect::<Vec<_>>());
    let rows: Vec<Value> = rows.iter().map(|row| serde_json::from_str(row).expect("JSON")).collect();
    assert_eq!(rows[0]["arrival_time_ms"], 0.0, "in order of arrival");
    assert_eq!((&rows[0]["terminal_status"], &rows[0]["decode_worker_idx"]), (&"completed".into(), &0.into()));
    assert_eq!(rows[1]["terminal_status"], "rejected");
    assert!(rows[1]["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
    assert_eq!(rows[0]["uuid"].as_str().map(str::len), Some(36));
}

#[test]
fn the_table_is_the_one_that_dynamo_prints() {
    let said = replay(&trace(&[R]), &["--table", "aiperf", "--preset", "dynamo-1.4"]).ended(0);
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(lines[0], "NVIDIA AIPerf | LLM Metrics");
    let row = "┃ Time to First Token (ms)                           ┃  37.90 ┃  37.90 ┃  37.90 ┃  37.90 ┃  37.90 ┃  37.90 ┃ 0.00 ┃";
    assert_eq!(lines[4], row);
    let row = "┃ Request Count (requests)                           ┃   1.00 ┃    N/A ┃    N/A ┃    N/A ┃    N/A ┃    N/A ┃  N/A ┃";
    assert_eq!(lines[11], row);
    assert_eq!(
        lines[13..],
        ["Wall Time (ms): N/A", "Prefix Cache Reused Ratio: 0.00", "First Admission Prefix Cache Reused Ratio: 0.00"]
    );
    let ours = replay(&trace(&[R]), &[]).ended(0).stdout;
    for (args, times) in
        [(&[][..], "Dynamo's polynomial"), (&["--latency", "fixed(#{ step: \"10ms\" })"], "set by --latency")]
    {
        let said = replay(&trace(&[R]), args).ended(0).stdout;
        let times = format!("  times: {times}, and not compared with a real engine\n");
        assert!(said.contains(&times), "`{times}` is not in:\n{said}");
    }
    for needle in ["WHERE THE TIME WENT", "RUN replay", "fingerprint "] {
        assert!(ours.contains(needle), "{needle} is not in:\n{ours}");
    }
}

#[test]
fn sessions_are_called_as_in_the_trace() {
    let row = |more: &str| format!(r#"{{"input_length": 100, "output_length": 2, "hash_ids": [1], {more}}}"#);
    let rows = [
        row(r#""timestamp": 0"#),
        row(r#""timestamp": 3, "session_id": "zz""#),
        row(r#""delay": 5, "session_id": "zz""#),
        row(r#""timestamp": 90"#),
    ];
    let names = |rows: &[String], more: &[&str]| {
        let folder = trace(&rows.iter().map(String::as_str).collect::<Vec<_>>());
        let _ = replay(&folder, &[&["--num-workers", "2", "--report-jsonl", "rows.jsonl"], more].concat()).ended(0);
        let text = std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("rows");
        let row = |line: &str| {
            let row: Value = serde_json::from_str(line).expect("JSON");
            row["session_id"].as_str().map(|id| format!("{id} {}", row["turn_index"]))
        };
        text.lines().map(row).collect::<Option<Vec<String>>>()
    };
    let expected = ["request_1 0", "zz 0", "zz 1", "request_4 0"].map(str::to_owned);
    assert_eq!(names(&rows, &[]), Some(expected.to_vec()));
    let alone = [&rows[..2], &rows[3..]].concat();
    assert_eq!(names(&alone, &[]), None, "no session has several turns");
    let expected = ["request_1 0", "zz 0", "request_3 0"].map(str::to_owned);
    assert_eq!(names(&alone, &["--replay-concurrency", "3"]), Some(expected.to_vec()));
}
