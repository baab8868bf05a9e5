//! When the KV router learns of cached blocks. The expected numbers were printed by Dynamo 1.4.2 and 1.6.1, for a trace
//! in which no two workers ever cost the same, except at the beginning.

use crate::{check, replay, trace};

const ROWS: [&str; 4] = [
    r#"{"timestamp": 0, "input_length": 2560, "output_length": 8, "hash_ids": [1, 2, 3, 4, 5]}"#,
    r#"{"timestamp": 1, "input_length": 1024, "output_length": 8, "hash_ids": [6, 7]}"#,
    // This request arrives while the prompt with which it shares four blocks is computed.
    r#"{"timestamp": 20, "input_length": 2112, "output_length": 8, "hash_ids": [1, 2, 3, 4, 8]}"#,
    r#"{"timestamp": 400, "input_length": 2500, "output_length": 8, "hash_ids": [1, 2, 3, 4, 5]}"#,
];

#[test]
fn kv_is_heard_of_when_a_pass_starts_or_ends() {
    let cluster = ["--num-workers", "2", "--router-mode", "kv_router", "--exact-kv-events"];
    let expected = [
        ("mean_ttft_ms", "48.018513", "44.228292"),
        ("mean_itl_ms", "6.480645", "7.681937"),
        ("duration_ms", "463.535816", "457.643964"),
    ];
    check(&ROWS, &cluster, &expected);
    // SGLang's engines always report cached blocks at the end of a pass.
    let sglang = ["--extra-engine-args", r#"{"engine_type": "sglang", "block_size": 64}"#];
    let expected = [("mean_itl_ms", "7.685815", "7.687709"), ("duration_ms", "463.512588", "457.643964")];
    check(&ROWS, &[&cluster[..], &sglang].concat(), &expected);
    // Without the flag, the 1.6 router also learns of blocks when a pass starts.
    let folder = trace(&ROWS);
    let report = replay(&folder, &[&cluster[..4], &["--json", "--report-format", "1.4"]].concat()).ended(0).json();
    assert_ne!(format!("{:.6}", report["mean_itl_ms"].as_f64().unwrap()), "7.681937");
}
