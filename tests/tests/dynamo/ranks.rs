//! Workers with several ranks.

use serde_json::Value;

use crate::{R, check, ids, replay, trace};

/// Rows that arrive together, in the middle of a step, and at a rank without work.
const OF_RANKS: [&str; 4] = [
    R,
    r#"{"timestamp": 0, "input_length": 2000, "output_length": 4, "hash_ids": [11, 12, 13, 14]}"#,
    r#"{"timestamp": 20, "input_length": 500, "output_length": 3, "hash_ids": [21]}"#,
    r#"{"timestamp": 50, "input_length": 700, "output_length": 3, "hash_ids": [31, 32]}"#,
];

#[test]
fn ranks_of_a_worker_end_their_steps_together() {
    let two = ["--extra-engine-args", r#"{"dp_size": 2}"#];
    let together = [
        ("duration_ms", "71.933856", "66.081372"),
        ("mean_ttft_ms", "54.397686", "48.552296"),
        ("min_ttft_ms", "54.397686", "48.552296"),
        ("mean_itl_ms", "5.845390", "5.843025"),
        ("decode_gpus_per_worker", "2", "2"),
        ("decode_worker_seconds", "0.071933856", "0.066081372"),
        ("gpu_hours", "0.00003996325", "0.00003671187"),
    ];
    check(&OF_RANKS[..2], &two, &together);
    check(&OF_RANKS[..2], &["--extra-engine-args", r#"{"aic_attention_dp_size": 2}"#], &together);
    let expected = [
        ("duration_ms", "99.378522", "123.376617"),
        ("mean_ttft_ms", "53.506531", "54.3420445"),
        ("mean_itl_ms", "11.3487964", "18.8809849"),
        ("mean_e2e_latency_ms", "81.878522", "101.54450675"),
    ];
    check(&OF_RANKS, &two, &expected);
    check(&OF_RANKS, &["--extra-engine-args", r#"{"engine": {}, "dp_size": 2}"#], &expected);
    let expected = [
        ("duration_ms", "99.200833", "93.350611"),
        ("mean_ttft_ms", "44.41741325", "37.17344775"),
        ("mean_itl_ms", "10.9629563", "9.8006234"),
        ("gpu_hours", "0.000110223148", "0.000103722901"),
    ];
    check(&OF_RANKS, &[&two[..], &["--num-workers", "2"]].concat(), &expected);
    // With data-parallel attention, ranks of SGLang share a chunk since 1.6.
    let long = r#"{"timestamp": 0, "input_length": 6000, "output_length": 1"#.to_owned() + &ids(12);
    let sglang = r#"{"engine_type": "sglang", "num_gpu_blocks": 65536, "dp_size": 2}"#;
    check(&[&long], &["--extra-engine-args", sglang], &[("mean_ttft_ms", "133.227033", "132.692882")]);
}

#[test]
fn ranks_of_prefill_and_decode_workers() {
    let args = [
        "--prefill-engine-args",
        r#"{"engine": {"worker_type": "prefill"}, "dp_size": 2}"#,
        "--decode-engine-args",
        r#"{"engine": {"worker_type": "decode"}, "dp_size": 2}"#,
        "--num-prefill-workers",
        "2",
        "--num-decode-workers",
        "2",
        "--report-jsonl",
        "rows.jsonl",
        "--report-format",
        "1.4",
        "--json",
    ];
    let folder = trace(&OF_RANKS);
    let report = replay(&folder, &args).ended(0).json();
    let of = |key: &str| report[key].as_f64().expect("a number");
    assert_eq!(of("duration_ms"), 94.664404);
    assert_eq!((of("mean_ttft_ms"), of("mean_e2e_latency_ms")), (43.306785, 57.8165605));
    assert_eq!((of("prefill_gpus_per_worker"), of("prefill_worker_seconds")), (2.0, 0.189328808));
    let text = std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("rows");
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let ranks: Vec<_> =
        rows.map(|row| [row["prefill_worker_idx"].as_u64(), row["decode_worker_idx"].as_u64()]).collect();
    assert_eq!(ranks, [[0, 1], [1, 2], [2, 0], [3, 3]].map(|row| row.map(Some)));
}

#[test]
fn the_report_tells_of_workers_and_their_ranks() {
    let folder = trace(&OF_RANKS);
    let args =
        ["--extra-engine-args", r#"{"dp_size": 2}"#, "--num-workers", "2", "--report-jsonl", "rows.jsonl", "--json"];
    let report = replay(&folder, &args).ended(0).json();
    let workers = report["vcr"]["workers"].as_array().expect("a list");
    assert_eq!(workers.len(), 2);
    let share = |value: &Value| value.as_f64().expect("a share");
    for worker in workers {
        assert_eq!(worker["requests"], 2);
        let ranks = worker["ranks"].as_array().expect("a list");
        assert_eq!(ranks.iter().map(|rank| rank["rank"].as_u64()).collect::<Vec<_>>(), [Some(0), Some(1)]);
        let mean = ranks.iter().map(|rank| share(&rank["utilisation"])).sum::<f64>() / 2.0;
        assert!((mean - share(&worker["utilisation"])).abs() < 1e-9, "{worker}");
        let in_steps = |rank: &Value| share(&rank["utilisation"]) + share(&rank["waiting"]);
        assert!((in_steps(&ranks[0]) - in_steps(&ranks[1])).abs() < 1e-9, "{worker}");
    }
    let text = std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("rows");
    let ranks =
        text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["decode_worker_idx"].as_u64());
    assert_eq!(ranks.collect::<Vec<_>>(), [0, 2, 1, 3].map(Some));
    let sweep = ["--sweep", "dp_size=1..2", "--json"];
    let rows = replay(&folder, &sweep).ended(0).json();
    assert_eq!([&rows[0]["decode_gpus_per_worker"], &rows[1]["decode_gpus_per_worker"]], [1, 2]);
    replay(&folder, &["--extra-engine-args", r#"{"dp_size": 0}"#]).failed(2, &["dp_size"]);
}
