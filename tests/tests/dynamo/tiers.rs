//! KV tiers in host memory. The expected numbers were printed by `aisimulate-core` 0.13.0, the crate of Dynamo 1.6.1's
//! replay.

use crate::{replay, trace};

/// Tokens per block of the trace.
const BLOCK_TOKENS: u32 = 64;

/// A prompt whose first blocks belong to a group that other prompts share: arrival, length, outputs, group, number
/// of shared blocks.
type Row = (u32, u32, u32, u32, u32);

fn rows(given: &[Row]) -> Vec<String> {
    let mut fresh = 10_000..;
    let row = |&(at_ms, input, output, group, shared): &Row| {
        let blocks = input.div_ceil(BLOCK_TOKENS);
        let common = group * 1_000..group * 1_000 + shared;
        let ids: Vec<u32> = common.chain(fresh.by_ref().take((blocks - shared) as usize)).collect();
        format!(r#"{{"timestamp": {at_ms}, "input_length": {input}, "output_length": {output}, "hash_ids": {ids:?}}}"#)
    };
    given.iter().map(row).collect()
}

/// Checks keys in the 1.6 summary of workers with these engine arguments and this host.
#[track_caller]
fn check(given: &[Row], workers: &str, engine: &str, host: &str, expected: &[(&str, &str)]) {
    let rows = rows(given);
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let engine = format!(r#"{{"engine": {{{engine}, "native_host_offload": {{{host}}}}}}}"#);
    let args = ["--num-workers", workers, "--extra-engine-args", &engine, "--trace-block-size", "64"];
    let report = replay(&trace(&rows), &[&args[..], &["--report-format", "1.4", "--json"]].concat()).ended(0).json();
    for (key, wanted) in expected {
        let decimals = wanted.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let value = report[*key].as_f64().unwrap_or_else(|| panic!("{key} is {}", report[*key]));
        assert_eq!(format!("{value:.decimals$}"), *wanted, "{key}");
    }
}

const LARGE: &str = r#""num_host_blocks": 10000"#;

/// The blocks that the second prompt takes are being copied. Its step begins 1.875 ms later, when 60 MB are copied.
#[test]
fn a_step_waits_for_copies_of_the_blocks_that_it_takes() {
    let engine = r#""block_size": 16, "num_gpu_blocks": 389, "max_num_batched_tokens": 8192,
        "kv_cache_bytes_per_token": 10000"#;
    let expected = [("mean_ttft_ms", "169.085352"), ("duration_ms", "246.370720")];
    check(&[(0, 6000, 1, 1, 0), (0, 4364, 2, 2, 0)], "1", engine, LARGE, &expected);
}

/// The second prompt does not offer its blocks to the host while they are still copied for the first prompt. It offers
/// them in its next step, and the third prompt waits for that copy.
#[test]
fn blocks_that_are_being_copied_are_offered_by_the_next_step() {
    let engine = r#""block_size": 16, "num_gpu_blocks": 389, "max_num_batched_tokens": 8192,
        "kv_cache_bytes_per_token": 10000"#;
    let given = [(0, 4364, 1, 1, 0), (0, 2071, 2, 2, 0), (0, 4235, 1, 3, 0)];
    check(&given, "1", engine, LARGE, &[("mean_ttft_ms", "161.476514"), ("duration_ms", "251.758208")]);
}

/// The load of the last prompt does not begin until the whole prompt fits next to an earlier load.
#[test]
fn a_load_leaves_others_what_they_need_beside_its_whole_prompt() {
    let engine = r#""block_size": 32, "num_gpu_blocks": 195, "max_num_batched_tokens": 512,
        "kv_cache_bytes_per_token": 10000"#;
    let given =
        [(0, 3248, 2, 2, 10), (0, 3321, 1, 0, 14), (0, 6000, 2, 3, 24), (0, 5446, 23, 2, 24), (0, 2245, 1, 0, 11)];
    let expected =
        [("mean_ttft_ms", "768.22506"), ("duration_ms", "1744.75556"), ("prefix_cache_reused_ratio", "0.066338")];
    check(&given, "1", engine, LARGE, &expected);
}

/// A loaded prompt is not admitted to a step whose tokens a running request has taken.
#[test]
fn loaded_prompts_need_tokens_of_the_step() {
    let engine = r#""block_size": 32, "num_gpu_blocks": 195, "max_num_seqs": 256, "max_num_batched_tokens": 512,
        "kv_cache_bytes_per_token": 10000"#;
    let given = [(0, 2258, 2, 2, 27), (0, 5365, 1, 3, 0), (0, 4715, 105, 2, 24), (0, 2227, 194, 1, 0)];
    let expected = [("mean_ttft_ms", "1506.415267"), ("prefix_cache_reused_ratio", "0.105458")];
    check(&given, "1", engine, LARGE, &expected);
}

/// The third prompt begins like the first, which another worker is computing. It waits for the blocks in transit to
/// the host, and loads them.
#[test]
fn a_prompt_waits_for_blocks_that_another_worker_stores() {
    let engine = r#""block_size": 64, "num_gpu_blocks": 98, "max_num_seqs": 8, "max_num_batched_tokens": 2048,
        "kv_cache_bytes_per_token": 131072"#;
    let host = r#""num_host_blocks": 10000, "d2h_bandwidth_gbps": 1.0, "h2d_bandwidth_gbps": 1.0, "kv_layout_id": "one",
        "scope": "cluster_shared", "shared_d2h_bandwidth_gbps": 1.0, "shared_h2d_bandwidth_gbps": 1.0"#;
    let given = [(0, 3770, 32, 1, 11), (0, 3144, 30, 2, 2), (0, 5347, 11, 1, 4), (0, 2595, 2, 0, 22)];
    let expected =
        [("mean_ttft_ms", "588.23373"), ("duration_ms", "1442.10858"), ("prefix_cache_reused_ratio", "0.017232")];
    check(&given, "3", engine, host, &expected);
}

/// The last blocks of the first prompt become free only after they are copied, and are reused after its first blocks.
#[test]
fn blocks_are_held_until_they_are_copied_to_a_shared_host() {
    let engine = r#""block_size": 16, "num_gpu_blocks": 128, "max_num_seqs": 2, "max_num_batched_tokens": 512,
        "kv_cache_bytes_per_token": 10000"#;
    let host = r#""num_host_blocks": 10000, "d2h_bandwidth_gbps": 1.0, "h2d_bandwidth_gbps": 1.0, "kv_layout_id": "one",
        "scope": "cluster_shared""#;
    let given = [(0, 1500, 1, 0, 7), (50, 1265, 19, 1, 0), (1517, 1046, 30, 0, 2)];
    let expected =
        [("mean_ttft_ms", "70.849518"), ("duration_ms", "2342.946276"), ("prefix_cache_reused_ratio", "0.033587")];
    check(&given, "1", engine, host, &expected);
}
