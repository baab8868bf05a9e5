//! `vcr replay` with Dynamo's inputs and outputs.
//!
//! The expected numbers were printed by `python -m dynamo.replay` 1.4.2 and the native function of 1.6.1 for the same
//! traces and arguments. With the preset of a version, each number agrees to the last digit.

mod agents;
mod handoffs;
mod preemption;
mod queue;
mod ranks;
mod results;
mod router;
mod scaling;
mod sweeps;
mod tiers;
mod whole_runs;

use vcr_tests::{Folder, Said};

/// The row in most cases: 1,000 tokens in, 4 out.
const R: &str = r#"{"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]}"#;

/// A trace of these rows, in a folder.
fn trace(rows: &[&str]) -> Folder {
    let folder = Folder::new();
    folder.write("trace.jsonl", rows.join("\n"));
    folder
}

fn replay(folder: &Folder, args: &[&str]) -> Said {
    folder.vcr(&[&["replay", "trace.jsonl"], args].concat())
}

/// Checks keys in the flat report with both presets.
#[track_caller]
fn check(rows: &[&str], args: &[&str], expected: &[(&str, &str, &str)]) {
    let folder = trace(rows);
    for (index, preset) in ["dynamo-1.4", "dynamo-1.6"].into_iter().enumerate() {
        let more = ["--preset", preset, "--report-format", "1.4", "--json"];
        let report = replay(&folder, &[args, &more].concat()).ended(0).json();
        for (key, in_1_4, in_1_6) in expected {
            let wanted = [in_1_4, in_1_6][index];
            let decimals = wanted.split_once('.').map_or(0, |(_, decimals)| decimals.len());
            let value = report[*key].as_f64().unwrap_or_else(|| panic!("{key} is {}", report[*key]));
            assert_eq!(format!("{value:.decimals$}"), **wanted, "{key} under {preset}");
        }
    }
}

#[test]
fn a_lone_request() {
    let expected = [
        ("mean_ttft_ms", "37.898579", "32.105859"),
        ("mean_itl_ms", "5.792720", "5.791587"),
        ("duration_ms", "55.276739", "49.480621"),
        ("max_e2e_latency_ms", "55.276739", "49.480621"),
        ("mean_ttst_ms", "5.792720", "5.791536"),
        ("p99_tpot_ms", "5.792720", "5.791587"),
        ("decode_worker_seconds", "0.055277", "0.049481"),
        ("prefill_worker_seconds", "0.0", "0.0"),
        ("num_requests", "1", "1"),
        ("completed_requests", "1", "1"),
        ("total_input_tokens", "1000", "1000"),
        ("processed_tokens", "1004", "1004"),
    ];
    check(&[R], &[], &expected);
    check(&[R], &["--router-mode", "kv_router"], &expected[..3]);
    check(&[R], &["--extra-engine-args", r#"{"engine": {}}"#], &expected[..3]);
}

#[test]
fn engines_of_every_type() {
    let sglang = [("mean_ttft_ms", "41.046479", "32.105859"), ("mean_itl_ms", "8.946829", "8.946829")];
    let trtllm = [("mean_ttft_ms", "37.951249", "32.105859"), ("mean_itl_ms", "5.845390", "5.843128")];
    check(&[R], &["--engine-type", "sglang"], &sglang);
    check(&[R], &["--extra-engine-args", r#"{"engine": {"backend": "sglang"}}"#], &sglang);
    check(&[R], &["--engine-type", "trtllm"], &trtllm);
    // A request that is too large for SGLang's pool is rejected, and the others run.
    let long = r#"{"timestamp": 0, "input_length": 20000, "output_length": 4}"#.replace('}', &ids(40));
    check(&[R, &long], &["--engine-type", "sglang"], &[("completed_requests", "1", "1"), ("num_requests", "2", "2")]);
}

/// The end of a row with `count` hash ids that no other row has.
fn ids(count: u32) -> String {
    let ids: Vec<String> = (100..100 + count).map(|id| id.to_string()).collect();
    format!(r#", "hash_ids": [{}]}}"#, ids.join(","))
}

#[test]
fn outputs_of_one_token_and_of_none() {
    let one = R.replace(r#""output_length": 4"#, r#""output_length": 1"#);
    check(&[&one], &[], &[("mean_ttft_ms", "37.898579", "32.105859"), ("duration_ms", "37.898579", "32.105859")]);
    let none = R.replace(r#""output_length": 4"#, r#""output_length": 0"#);
    let expected =
        [("duration_ms", "32.105859", "32.105859"), ("mean_ttft_ms", "0", "0"), ("completed_requests", "1", "1")];
    check(&[&none], &[], &expected);
}

#[test]
fn prefixes_are_found_again() {
    let later = R.replace(r#""timestamp": 0"#, r#""timestamp": 5000"#);
    let reuse = ("prefix_cache_reused_ratio", "0.48", "0.48");
    check(&[R, &later], &[], &[("mean_ttft_ms", "30.400365", "24.607645"), reuse]);
    check(&[R, R], &[], &[("mean_ttft_ms", "38.543563", "32.747550"), reuse]);
    let aligned = |row: &str| row.replace("1000", "1024");
    let ratio = ("first_admission_prefix_cache_reused_ratio", "0.46875", "0.46875");
    check(&[&aligned(R), &later.replace("length\": 1000", "length\": 1024")], &[], &[ratio]);
}

#[test]
fn turns_of_a_session() {
    let first =
        r#"{"session_id": "a", "timestamp": 1000, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]}"#;
    let second = |when: &str| {
        format!(r#"{{"session_id": "a", {when}, "input_length": 1500, "output_length": 4, "hash_ids": [1, 2, 3]}}"#)
    };
    let expected = [
        ("duration_ms", "353.376224", "341.755799"),
        ("mean_ttft_ms", "34.270440", "28.464550"),
        ("prefix_cache_reused_ratio", "0.384", "0.384"),
    ];
    check(&[first, &second(r#""delay": 250"#)], &[], &expected);
    check(&[first, &second(r#""timestamp": 1300"#)], &[], &[("duration_ms", "403.376224", "391.755799")]);
    // A closed loop ignores arrivals but not delays.
    check(&[first, &second(r#""delay": 250"#)], &["--replay-concurrency", "1"], &expected);
    let faster = ["--replay-concurrency", "1", "--arrival-speedup-ratio", "2"];
    check(&[first, &second(r#""delay": 250"#)], &faster, &[("duration_ms", "228.376224", "216.755799")]);
}

#[test]
fn long_prompts_speed_ups_and_small_pools() {
    let ids: Vec<String> = (1..=40).map(|id| id.to_string()).collect();
    let long =
        format!(r#"{{"timestamp": 0, "input_length": 20000, "output_length": 4, "hash_ids": [{}]}}"#, ids.join(","));
    check(&[&long], &[], &[("mean_ttft_ms", "421.945741", "415.183328"), ("duration_ms", "442.232980", "435.466016")]);
    let halved = [("duration_ms", "27.638370", "24.740311")];
    check(&[R], &["--extra-engine-args", r#"{"speedup_ratio": 2}"#], &halved);
    check(&[R], &["--extra-engine-args", r#"{"engine": {"speedup_ratio": 2}}"#], &halved);
    let large = r#"{"timestamp": 0, "input_length": 2048, "output_length": 4, "hash_ids": [5, 6, 7, 8]}"#;
    let expected =
        [("mean_itl_ms", "32.474400", "32.246339"), ("num_requests", "2", "2"), ("completed_requests", "1", "1")];
    check(&[R, large], &["--extra-engine-args", r#"{"num_gpu_blocks": 20}"#], &expected);
}

#[test]
fn several_tokens_a_pass() {
    let row = R.replace(r#""output_length": 4"#, r#""output_length": 16"#);
    let expected = [("duration_ms", "66.862179", "66.857082"), ("mean_itl_ms", "1.930907", "1.930649")];
    check(&[&row], &["--extra-engine-args", r#"{"aic_nextn": 2, "aic_nextn_accept_rates": "1,1"}"#], &expected);
    let nested = r#"{"engine": {"aic_nextn": 2, "aic_nextn_accept_rates": "1,1"}}"#;
    check(&[&row], &["--extra-engine-args", nested], &expected);
}

#[test]
fn prefill_and_decode_apart() {
    let apart = |prefill: &'static str| {
        ["--prefill-engine-args", prefill, "--decode-engine-args", r#"{"worker_type": "decode"}"#]
    };
    let expected = [("mean_ttft_ms", "37.898579", "37.897344"), ("duration_ms", "55.276739", "55.272106")];
    check(&[R], &apart(r#"{"worker_type": "prefill"}"#), &expected);
    check(&[R], &apart(r#"{"engine": {"worker_type": "prefill"}}"#), &expected);
    let seconds = [("prefill_worker_seconds", "0.055277", "0.055272"), ("prefill_gpus_per_worker", "4", "4")];
    check(&[R], &apart(r#"{"worker_type": "prefill", "aic_tp_size": 4}"#), &seconds);
    let moved = [("mean_ttft_ms", "53.523579", "53.522344")];
    let flat = r#"{"is_prefill": true, "kv_bytes_per_token": 1000000, "kv_transfer_bandwidth": 64}"#;
    check(&[R], &apart(flat), &moved);
    let nested = r#"{"engine": {"worker_type": "prefill", "kv_transfer_bytes_per_token": 1000000, "kv_transfer_bandwidth": 64}}"#;
    check(&[R], &apart(nested), &moved);
    // In Dynamo, two concurrent transfers each have the full bandwidth; on a shared link, one waits for the other.
    let contention = |which: &'static str| [&apart(flat)[..], &["--kv-transfer-contention", which]].concat();
    let mean = |which| {
        let said = replay(&trace(&[R, &R.replace("1, 2", "3, 4")]), &[&contention(which)[..], &["--json"]].concat());
        said.ended(0).json()["summary"]["mean_ttft_ms"].as_f64().expect("a number")
    };
    assert!(mean("none") < mean("shared"));
}

/// Prompts that follow each other closely, some of them longer than others.
const CROWD: [&str; 5] = [
    R,
    r#"{"timestamp": 10, "input_length": 1000, "output_length": 2, "hash_ids": [10, 11]}"#,
    r#"{"timestamp": 40, "input_length": 1000, "output_length": 6, "hash_ids": [20, 21]}"#,
    r#"{"timestamp": 70, "input_length": 3000, "output_length": 9, "hash_ids": [30, 31, 32, 33, 34, 35]}"#,
    r#"{"timestamp": 75, "input_length": 3000, "output_length": 3, "hash_ids": [40, 41, 42, 43, 44, 45]}"#,
];

#[test]
fn prompts_are_handed_over_between_passes() {
    let prefill = ["--prefill-engine-args", r#"{"worker_type": "prefill"}"#];
    let decode = ["--decode-engine-args", r#"{"worker_type": "decode"}"#];
    let expected = [
        ("mean_ttft_ms", "165.009016", "93.051443"),
        ("max_ttft_ms", "224.868317", "155.123802"),
        ("duration_ms", "278.855900", "272.588093"),
        ("mean_itl_ms", "6.028696", "5.878184"),
    ];
    check(&CROWD, &[prefill, decode].concat(), &expected);
    let expected = [
        ("mean_ttft_ms", "162.588313", "92.989886"),
        ("duration_ms", "272.591016", "272.126265"),
        ("mean_itl_ms", "5.892751", "5.845770"),
    ];
    check(&CROWD, &[&prefill[..], &decode, &["--num-decode-workers", "2"]].concat(), &expected);
    let moving = r#"{"worker_type": "prefill", "kv_transfer_bandwidth": 64, "kv_bytes_per_token": 131072}"#;
    let expected = [
        ("mean_ttft_ms", "166.115143", "96.737843"),
        ("duration_ms", "281.212443", "278.732093"),
        ("mean_itl_ms", "6.036800", "5.878184"),
    ];
    check(&CROWD, &[&["--prefill-engine-args", moving], &decode[..]].concat(), &expected);
}

#[test]
fn sglang_looks_long_prompts_up_as_its_version_does() {
    let hashes = |at_ms: u32| {
        let row = format!(r#"{{"timestamp": {at_ms}, "input_length": 20000, "output_length": 4}}"#);
        row.replace('}', &ids(40))
    };
    let short = r#"{"timestamp": 5001, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]}"#;
    let expected = [
        ("mean_ttft_ms", "321.319278", "160.088210"),
        ("duration_ms", "5291.941491", "5069.528215"),
        ("mean_itl_ms", "6.794662", "10.361980"),
        ("prefix_cache_reused_ratio", "0.799220", "0.487024"),
        ("first_admission_prefix_cache_reused_ratio", "0.199805", "0.487024"),
    ];
    let engine = r#"{"engine_type": "sglang", "block_size": 64}"#;
    check(&[&hashes(0), &hashes(5000), short], &["--extra-engine-args", engine], &expected);
}

/// The decode worker has no room for the third prompt until the first two have ended, so that prompt is computed
/// only then. The prefill workers of 1.4.2 also generate the outputs, which takes additional time.
#[test]
fn sglang_asks_for_room_before_a_prompt_is_computed() {
    let row = |at_ms: u32, input: u32, output: u32, ids: &str| {
        let lengths = format!(r#""input_length": {input}, "output_length": {output}"#);
        format!(r#"{{"timestamp": {at_ms}, {lengths}, "hash_ids": [{ids}]}}"#)
    };
    let rows =
        [row(0, 1500, 40, "1, 2, 3"), row(1, 1000, 30, "10, 11"), row(2, 800, 20, "20, 21"), row(3, 300, 10, "30")];
    let rows = rows.each_ref().map(String::as_str);
    let prefill = r#"{"engine_type": "sglang", "block_size": 64, "num_gpu_blocks": 48, "worker_type": "prefill"}"#;
    let decode = r#"{"engine_type": "sglang", "block_size": 64, "num_gpu_blocks": 48, "worker_type": "decode"}"#;
    let expected = [
        ("mean_ttft_ms", "1776.482078", "626.671938"),
        ("duration_ms", "2817.551341", "1596.913540"),
        ("mean_e2e_latency_ms", "2446.722687", "1351.766026"),
    ];
    check(&rows, &["--prefill-engine-args", prefill, "--decode-engine-args", decode], &expected);
}

#[test]
fn constant_times() {
    // In 1.6.1, the prefill takes 10 ms and each of three decodes 3 ms. 1.4 has no such latency model, and in its
    // passes a prompt that ends also decodes.
    let fixed = r#"{"engine": {"timing_model": {"type": "fixed", "prefill_ms": 10, "decode_ms": 3}}}"#;
    check(&[R], &["--extra-engine-args", fixed], &[("duration_ms", "22.0", "19.0")]);
    let latency = ["--latency", "fixed(#{ prefill: \"10ms\", decode: \"3ms\" })"];
    check(&[R], &latency, &[("duration_ms", "19.0", "19.0")]);
}

#[test]
fn what_cannot_be_is_refused_with_its_name() {
    let folder = trace(&[R]);
    let cases: &[(&[&str], &[&str])] = &[
        (&["--extra-engine-args", r#"{"max_num_seq": 4}"#], &["--extra-engine-args, `max_num_seq`", "`max_num_seqs`"]),
        (&["--extra-engine-args", r#"{"engine": {}, "block_size": 4}"#], &["`block_size`", "belongs into `engine`"]),
        (&["--extra-engine-args", "{"], &["--extra-engine-args: invalid JSON"]),
        (&["--extra-engine-args", "@missing.json"], &["cannot read `missing.json`"]),
        (&["--extra-engine-args", r#"{"planner_profile_data": "p.npz"}"#], &["p.npz"]),
        (&["--extra-engine-args", r#"{"aic_backend": "vllm"}"#], &["`aic_model_path`: is missing"]),
        (&["--extra-engine-args", r#"{"aic_nextn": 2, "decode_speedup_ratio": 2}"#], &["`decode_speedup_ratio` 1"]),
        (&["--extra-engine-args", r#"{"worker_type": "decode"}"#], &["`worker_type`: expected \"aggregated\", got"]),
        (&["--extra-engine-args", r#"{"block_size": 0.5}"#], &["`block_size`", "got 0.5"]),
        (&["--strict", "--extra-engine-args", r#"{"speedup_ratio": 0}"#], &["`speedup_ratio`: is 0"]),
        (
            &["--strict", "--extra-engine-args", r#"{"bootstrap_port": 7}"#],
            &["`bootstrap_port`: is ignored: it is about live engines"],
        ),
        (&["--router-config", "{}"], &["--router-config is for --router-mode kv_router"]),
        (&["--router-mode", "kv_router", "--router-config", r#"{"overlap": 1}"#], &["--router-config, `overlap`"]),
        (&["--router-mode", "best"], &["--router-mode", "least_loaded"]),
        (
            &["--strict", "--router-mode", "kv_router", "--router-config", r#"{"conditional_disagg_enabled": true}"#],
            &["is for prefill and decode workers"],
        ),
        (&["--num-workers", "0"], &["invalid --num-workers: expected at least 1"]),
        (&["--num-decode-workers", "2"], &["otherwise use --num-workers"]),
        (&["--prefill-engine-args", "{}"], &["must be given together"]),
        (
            &["--prefill-engine-args", "{}", "--decode-engine-args", r#"{"worker_type": "decode", "block_size": 32}"#],
            &["--prefill-engine-args, `worker_type`: expected \"prefill\"", "`block_size`: is 32", "is 64"],
        ),
        (&["--input-tokens", "5"], &["give either a trace, or"]),
        (&["--request-rate", "5"], &["--request-rate is for synthetic workloads"]),
        (&["--planner-config", "p.yaml"], &["--planner-config: the planner is not simulated"]),
        (&["--arrival-speedup-ratio", "0"], &["a finite number above 0"]),
        (&["--replay-concurrency", "0"], &["--replay-concurrency"]),
        (
            &["--report-json", "trace.jsonl/r.json"],
            &["cannot write to `trace.jsonl/r.json`", "is a file, not a folder"],
        ),
        (&["--sweep", "num_workers"], &["NAME=VALUES"]),
        (&["--sweep", "nonsense=1"], &["unknown name `nonsense`"]),
        (&["--sweep", "json=1"], &["--json is the same for all runs"]),
        (&["--sweep", "num_workers=0..2"], &["--sweep, num_workers=0: invalid --num-workers: expected at least 1"]),
        (&["--sweep", "block_size=16,x"], &["--sweep, block_size=x: --extra-engine-args, `block_size`"]),
        (&["--sweep", "num_workers=1..2", "--sweep-out", "sweep.txt"], &["must end in .csv, .json or .parquet"]),
        (
            &["--sweep", "num_workers=1..2", "--report-json", "r.json"],
            &["cannot be combined with --sweep; use --sweep-out"],
        ),
    ];
    for (args, needles) in cases {
        replay(&folder, args).failed(2, needles);
    }
    folder.vcr(&["replay"]).failed(2, &["give either a trace, or all of --input-tokens"]);
    folder
        .vcr(&["replay", "--input-tokens", "5", "--output-tokens", "5", "--request-count", "5"])
        .failed(2, &["exactly one of --replay-concurrency, --request-rate, --arrival-interval-ms"]);
}

#[test]
fn bad_traces_are_reported_by_file_line_and_field() {
    for (row, needles) in [
        (r#"{"timestamp": 0, "input_length": 10, "hash_ids": [1]}"#, &["line 2", "`output_length`"][..]),
        (r#"{"timestamp": 0, "input_length": 0, "output_length": 4, "hash_ids": [1]}"#, &["line 2", "`input_length`"]),
        (r#"{"input_length": 10, "output_length": 4, "hash_ids": [1]}"#, &["line 2", "`timestamp`"]),
        ("nonsense", &["line 2"]),
    ] {
        let folder = trace(&[R, row]);
        replay(&folder, &[]).failed(2, &[&["trace.jsonl"], needles].concat());
    }
    let clamped = r#"{"timestamp": 0, "input_length": 9000, "output_length": 4, "hash_ids": [1]}"#;
    let folder = trace(&[clamped]);
    let said = replay(&folder, &["--json"]).ended(0);
    assert!(said.stderr.contains("warning: `input_length` was cut"), "{}", said.stderr);
    assert_eq!(said.json()["vcr"]["warnings"].as_array().map(Vec::len), Some(1));
    replay(&folder, &["--strict"]).failed(2, &["line 1", "9000 tokens"]);
}

#[test]
fn a_guest_chooses_the_worker() {
    let Some(guest) = vcr_tests::shipped_guest("prefix-affinity") else { return };
    let folder = trace(&[R, &R.replace("\"timestamp\": 0", "\"timestamp\": 5000")]);
    let path = guest.display().to_string();
    let report = replay(&folder, &["--num-workers", "2", "--router-mode", &path, "--json"]).ended(0).json();
    assert_eq!(report["summary"]["prefix_cache_reused_ratio"], 0.48);
    replay(&folder, &["--router-mode", "missing.wasm"]).failed(2, &["missing.wasm"]);
}

/// A few requests that share prefixes.
fn some_rows() -> Vec<String> {
    let row = |i: u32| {
        let ids: Vec<String> = (0..2 + i % 5).map(|id| (id * (1 + i % 3)).to_string()).collect();
        let (tokens, output) = (ids.len() * 512 - i as usize % 40, 5 + i % 30);
        format!(
            r#"{{"timestamp": {}, "input_length": {tokens}, "output_length": {output}, "hash_ids": [{}]}}"#,
            i * 15,
            ids.join(",")
        )
    };
    (0..60).map(row).collect()
}

fn busy_folder() -> Folder {
    let rows = some_rows();
    trace(&rows.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_synthetic_workload_needs_no_trace() {
    let folder = Folder::new();
    let base = ["replay", "--input-tokens", "600", "--output-tokens", "8", "--request-count", "20", "--json"];
    for (args, requests) in [
        (&["--request-rate", "50"][..], 20),
        (&["--arrival-interval-ms", "10"], 20),
        (&["--replay-concurrency", "4", "--turns-per-session", "2", "--inter-turn-delay-ms", "5"], 40),
    ] {
        let report = folder.vcr(&[&base, args].concat()).ended(0).json();
        assert_eq!(report["summary"]["completed_requests"], requests, "{args:?}");
        assert_eq!(report["summary"]["total_output_tokens"], requests * 8);
    }
}
