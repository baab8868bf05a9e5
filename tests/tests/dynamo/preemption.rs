//! Preempted and recomputed requests: prompts cost the same as before, outputs only the decode in which they end. The
//! expected numbers were printed by Dynamo 1.4.2 and 1.6.1.

use crate::check;

/// Three requests that together need more than the 25 available blocks.
const ROWS: [&str; 3] = [
    r#"{"timestamp": 0, "input_length": 400, "output_length": 150, "hash_ids": [1]}"#,
    r#"{"timestamp": 5, "input_length": 420, "output_length": 160, "hash_ids": [2]}"#,
    r#"{"timestamp": 10, "input_length": 440, "output_length": 170, "hash_ids": [3]}"#,
];

#[test]
fn outputs_are_computed_again_for_nothing() {
    let lifo = ["--extra-engine-args", r#"{"num_gpu_blocks": 25}"#];
    let expected = [
        ("mean_ttft_ms", "78.364810", "49.328823"),
        ("mean_itl_ms", "35.107179", "34.423951"),
        ("duration_ms", "6772.361921", "6602.455635"),
    ];
    check(&ROWS, &lifo, &expected);
    let fifo = ["--extra-engine-args", r#"{"num_gpu_blocks": 25, "preemption_mode": "fifo"}"#];
    check(&ROWS, &fifo, &[("mean_itl_ms", "36.440524", "35.701056")]);
}

/// A chunk may contain only outputs, or the end of a prompt and the first outputs.
#[test]
fn in_chunks_too() {
    let lifo = ["--extra-engine-args", r#"{"num_gpu_blocks": 25, "max_num_batched_tokens": 64}"#];
    let expected = [("mean_itl_ms", "35.306525", "34.420396"), ("duration_ms", "7243.439996", "7004.176005")];
    check(&ROWS, &lifo, &expected);
    let fifo = r#"{"num_gpu_blocks": 25, "max_num_batched_tokens": 64, "preemption_mode": "fifo"}"#;
    let expected = [("mean_itl_ms", "37.332541", "36.356756"), ("duration_ms", "7071.591432", "6824.262099")];
    check(&ROWS, &["--extra-engine-args", fifo], &expected);
}
