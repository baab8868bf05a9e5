//! Sweeps over options and arguments.

use serde_json::Value;

use crate::{R, busy_folder, replay, trace};

#[test]
fn sweeps_are_the_same_with_any_number_of_threads() {
    let folder = busy_folder();
    let sweep = [
        "--sweep",
        "num_workers=1..3",
        "--sweep",
        "router_mode=round_robin,kv_router",
        "--sweep",
        "max_num_seqs=4,64",
        "--sweep-out",
    ];
    let mut said = Vec::new();
    for threads in ["1", "2"] {
        for format in ["csv", "json", "parquet"] {
            let file = format!("{threads}.{format}");
            let table = replay(&folder, &[&sweep[..], &[&file, "--threads", threads]].concat()).ended(0).stdout;
            let bytes = std::fs::read(folder.path().join(&file)).expect("a table");
            said.push((table, bytes));
        }
    }
    assert_eq!(said[..3], said[3..]);
    let csv = String::from_utf8(said[0].1.clone()).expect("text");
    assert_eq!(csv.lines().count(), 1 + 3 * 2 * 2);
    assert!(csv.starts_with("num_workers,router_mode,max_num_seqs,completed_requests,"), "{csv}");
    let rows: Value = serde_json::from_slice(&said[1].1).expect("JSON");
    assert_eq!(rows[1]["max_num_seqs"], 64);
    // Each run equals the same run outside of a sweep.
    let alone = ["--num-workers", "3", "--router-mode", "kv_router", "--extra-engine-args", r#"{"max_num_seqs": 4}"#];
    let report = replay(&folder, &[&alone[..], &["--json"]].concat()).ended(0).json();
    assert_eq!(rows[10]["mean_ttft_ms"], report["summary"]["mean_ttft_ms"]);
    assert_eq!(rows[10]["p99_itl_ms"], report["summary"]["p99_itl_ms"]);
}

#[test]
fn a_sweep_sets_keys_where_they_belong() {
    let folder = trace(&[R]);
    let apart = [
        "--prefill-engine-args",
        r#"{"engine": {"worker_type": "prefill"}}"#,
        "--decode-engine-args",
        r#"{"worker_type": "decode"}"#,
    ];
    let of = |sweep: &'static str| {
        let said = replay(&folder, &[&apart[..], &["--json", "--sweep", sweep]].concat()).ended(0);
        let rows = said.json();
        [0, 1].map(|row| rows[row]["duration_ms"].as_f64().expect("a number"))
    };
    let base = 55.272106;
    let [once, twice] = of("speedup_ratio=1,2");
    assert!(once == base && twice < base / 1.9, "{once} {twice}");
    let [once, twice] = of("prefill.speedup_ratio=1,2");
    assert!(once == base && (twice - (base - 32.105859 / 2.0)).abs() < 0.01, "{once} {twice}");
    for ranks in [r#"{"dp_size": 4}"#, r#"{"dp_size": 4, "engine": {}}"#] {
        let sweep = ["--extra-engine-args", ranks, "--json", "--sweep", "prefill_schedule_interval=1,4"];
        let rows = replay(&folder, &sweep).ended(0).json();
        assert_eq!(rows.as_array().map(Vec::len), Some(2), "{ranks}");
    }
    replay(&folder, &["--sweep", "prefill.block_size=16,32"]).failed(2, &["needs --prefill-engine-args"]);
}
