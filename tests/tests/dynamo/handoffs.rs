//! Prompts that go from prefill to decode workers. The expected numbers were printed by `aisimulate-core` 0.13.0, the
//! crate of Dynamo 1.6.1's replay.

use crate::{replay, trace};

/// Checks keys in the 1.6 summary of prefill and decode workers with these engine arguments.
#[track_caller]
fn check(rows: &[String], engine: &str, [prefill_workers, decode_workers]: [&str; 2], expected: &[(&str, &str)]) {
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let [prefill, decode] =
        ["prefill", "decode"].map(|role| format!(r#"{{"engine": {{{engine}, "worker_type": "{role}"}}}}"#));
    let args = ["--prefill-engine-args", &prefill, "--decode-engine-args", &decode, "--trace-block-size", "64"];
    let workers = ["--num-prefill-workers", prefill_workers, "--num-decode-workers", decode_workers];
    let report =
        replay(&trace(&rows), &[&args[..], &workers, &["--report-format", "1.4", "--json"]].concat()).ended(0).json();
    for (key, wanted) in expected {
        let decimals = wanted.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let value = report[*key].as_f64().unwrap_or_else(|| panic!("{key} is {}", report[*key]));
        assert_eq!(format!("{value:.decimals$}"), *wanted, "{key}");
    }
}

fn row(at_ms: u32, input: u32, output: u32, ids: impl IntoIterator<Item = u32>) -> String {
    let ids: Vec<u32> = ids.into_iter().collect();
    let times = format!(r#""timestamp": {at_ms}, "input_length": {input}, "output_length": {output}"#);
    format!(r#"{{{times}, "hash_ids": {ids:?}}}"#)
}

/// Two prompts get blocks at the same time. The second one is shorter, so its KV arrives first, but the first one
/// takes the only running slot.
#[test]
fn prompts_are_admitted_in_the_order_in_which_they_came_to_the_decode_worker() {
    let engine = r#""num_gpu_blocks": 64, "max_num_seqs": 2, "max_num_batched_tokens": 512,
        "kv_transfer_bytes_per_token": 131072, "kv_transfer_bandwidth": 64.0"#;
    let rows = [
        row(0, 1, 1, [0]),
        row(11, 193, 5, 1..5),
        row(12, 289, 2, 5..10),
        row(17, 1, 2, [10]),
        row(29, 64, 1, [11]),
        row(30, 1, 1, [12]),
    ];
    let expected = [("mean_ttft_ms", "53.252327"), ("mean_itl_ms", "9.743237"), ("duration_ms", "101.495538")];
    check(&rows, engine, ["1", "1"], &expected);
}

/// The decode worker preempts the later of two prompts. On its return, that prompt finds 3,936 of its tokens in the
/// cache.
#[test]
fn what_a_preempted_request_finds_is_reuse() {
    let engine = r#""block_size": 16, "num_gpu_blocks": 512, "max_num_seqs": 8, "max_num_batched_tokens": 2048,
        "kv_transfer_bytes_per_token": 131072, "kv_transfer_bandwidth": 64.0"#;
    let rows = [row(0, 4073, 178, 0..64), row(1, 1, 1, [100]), row(3, 3961, 94, 200..262)];
    let expected = [("prefix_cache_reused_ratio", "0.489856876"), ("duration_ms", "5952.851437")];
    check(&rows, engine, ["1", "2"], &expected);
}

/// The second prompt begins like the first. It is admitted when the first is computed and in transit.
#[test]
fn sglang_reuses_a_prompt_once_the_decode_worker_has_it() {
    let engine = r#""backend": "sglang", "block_size": 64, "num_gpu_blocks": 4096, "max_num_seqs": 256,
        "sglang": {"chunked_prefill_size": 8192}, "kv_transfer_bytes_per_token": 10000, "kv_transfer_bandwidth": 64.0"#;
    let rows = [row(0, 917, 1, 0..15), row(3, 1500, 1, (0..5).chain(20..39))];
    let expected = [("prefix_cache_reused_ratio", "0"), ("mean_ttft_ms", "55.56780"), ("duration_ms", "77.285056")];
    check(&rows, engine, ["1", "2"], &expected);
}

/// There are no blocks for the second prompt while the first is in transit. After the first has arrived, the second
/// would fit, because it begins like the first. But it is tried again only when the first has ended.
#[test]
fn a_prompt_is_tried_again_when_blocks_were_given_back() {
    let engine = r#""block_size": 32, "num_gpu_blocks": 195, "max_num_seqs": 2, "max_num_batched_tokens": 2048,
        "kv_transfer_bytes_per_token": 131072, "kv_transfer_bandwidth": 64.0"#;
    let rows = [row(0, 4456, 2, 0..70), row(0, 1990, 19, (0..19).chain(100..113))];
    let expected = [("mean_ttft_ms", "201.099045"), ("duration_ms", "596.168387")];
    check(&rows, engine, ["1", "1"], &expected);
}

/// A decode worker that has nothing to compute, except a preempted request behind two prompts, takes blocks for
/// both prompts at once.
#[test]
fn an_empty_pass_takes_blocks_for_the_next_prompt() {
    let engine = r#""block_size": 32, "num_gpu_blocks": 64, "max_num_seqs": 8, "max_num_batched_tokens": 2048,
        "kv_transfer_bytes_per_token": 131072, "kv_transfer_bandwidth": 64.0"#;
    let rows = [
        row(6, 512, 152, 100..108),
        row(24, 343, 2, 200..206),
        row(53, 1210, 184, 300..319),
        row(56, 1456, 159, 400..423),
        row(61, 1136, 11, 500..518),
        row(66, 235, 146, [0, 601, 602, 603]),
        row(73, 1500, 2, (1000..1007).chain(700..717)),
        row(88, 863, 1, 800..814),
        row(98, 505, 1, 900..908),
        row(106, 941, 184, (1000..1006).chain(1100..1109)),
        row(127, 1500, 36, [0].into_iter().chain(1200..1223)),
        row(132, 1024, 1, [0].into_iter().chain(1300..1315)),
    ];
    let expected = [("mean_ttft_ms", "4131.95253"), ("prefix_cache_reused_ratio", "0.00570")];
    check(&rows, engine, ["2", "2"], &expected);
}
