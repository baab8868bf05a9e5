//! KV of engines with groups of layers: all blocks of a group move or, for a sliding window, only the blocks that are
//! still needed.

use serde_json::Value;
use vcr_tests::client;

use crate::moving::{Moving, completion_tokens};

/// Two groups of two layers each. With three groups, the last layers are padded, as in vLLM.
const SHAPE: &str = "4x4x16";
/// K and V of two layers, with 16 tokens and four heads.
const BLOCK_BYTES: f64 = (2 * 2 * 4 * 16 * 16 * 2) as f64;

/// Options for the TCP data plane.
const TCP: &[&str] = &["--kv-transfer", "tcp"];

fn start(plane: &[&str], groups: &str, args: &[&str]) -> Moving {
    let grouped = ["--kv-cache-groups", groups, "--max-model-len", "1024"];
    Moving::by(plane, SHAPE, &[&grouped[..], args].concat())
}

/// Calls `check` with the options for the NIXL data plane, unless its library is missing.
pub(super) fn with_nixl(check: fn(&[&str])) {
    let Some(python) = client("nixl") else { return };
    let library = python.nixl_library();
    check(&["--kv-transfer", "nixl", "--nixl-library", library.to_str().expect("a path in text")]);
}

/// Thirteen blocks of 16 tokens, the last one half full.
fn prompt() -> Vec<u32> {
    (100..300).collect()
}

fn lengths(params: &Value) -> Vec<usize> {
    let lists = params["remote_block_ids"].as_array().expect("a list for each group");
    lists.iter().map(|list| list.as_array().expect("blocks").len()).collect()
}

#[test]
fn blocks_of_all_groups_arrive_and_of_windows_only_live_ones() {
    live_blocks_arrive(TCP);
}

#[test]
fn blocks_of_all_groups_arrive_through_nixl() {
    with_nixl(live_blocks_arrive);
}

fn live_blocks_arrive(plane: &[&str]) {
    for (groups, named, moved, moved_later) in [
        // For 200 tokens, ten blocks are outside of the window. vLLM transfers one block more than a window may touch.
        ("full,sliding_window:33", vec![13, 4], 13 + 3, 1 + 1),
        // Seven blocks of 32 tokens, four of them outside of the window. A hit of 192 tokens is six blocks.
        ("full,sliding_window:64@32", vec![13, 3], 13 + 3, 1 + 1),
        ("full,sliding_window:33,chunked_local:64", vec![13, 4, 13], 13 + 3 + 1, 1 + 1 + 1),
    ] {
        for mode in ["pull", "push"] {
            let mode = ["--kv-transfer-mode", mode];
            let (prefill, decode) = (start(plane, groups, &mode), start(plane, groups, &mode));
            let params = prefill.compute(&prompt());
            assert_eq!(lengths(&params), named, "{groups}: {params}");
            let answer = decode.complete(&prompt(), 5, &params);
            assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(5)), "{groups}: {}", answer.body);
            let of_blocks = |blocks: i32| f64::from(blocks) * BLOCK_BYTES;
            decode.wait_for_metric("vcr_kv_transfer_received_bytes_total", of_blocks(moved));
            decode.is_whole();
            prefill.is_whole();
            // The second time, only the blocks after the longest hit move.
            let answer = decode.complete(&prompt(), 5, &prefill.compute(&prompt()));
            assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(5)), "{groups}: {}", answer.body);
            decode.wait_for_metric("vcr_kv_transfer_received_bytes_total", of_blocks(moved + moved_later));
            for engine in [&prefill, &decode] {
                engine.is_whole();
                assert_eq!(engine.metric("vcr_kv_transfer_failures_total"), 0.0, "{groups}");
                assert!(!engine.serve.log().contains("WARN"), "{}", engine.serve.log());
            }
        }
    }
}

/// A rank has some heads of all layers, so groups and ranks divide different things.
#[test]
fn engines_of_other_ranks_share_pages_of_groups() {
    pages_are_shared_by_heads(TCP);
}

#[test]
fn engines_of_other_ranks_share_pages_of_groups_through_nixl() {
    with_nixl(pages_are_shared_by_heads);
}

fn pages_are_shared_by_heads(plane: &[&str]) {
    let groups = "full,sliding_window:64@32";
    for (prefill_ranks, decode_ranks) in [("1", "4"), ("4", "2")] {
        let prefill = start(plane, groups, &["--tensor-parallel-size", prefill_ranks]);
        let decode = start(plane, groups, &["--tensor-parallel-size", decode_ranks]);
        let answer = decode.complete(&prompt(), 5, &prefill.compute(&prompt()));
        assert_eq!((answer.status, completion_tokens(&answer)), (200, Some(5)), "{}", answer.body);
        decode.wait_for_metric("vcr_kv_transfer_received_bytes_total", f64::from(13 + 3) * BLOCK_BYTES);
        for engine in [&prefill, &decode] {
            engine.is_whole();
            assert_eq!(engine.metric("vcr_kv_transfer_failures_total"), 0.0);
        }
    }
}

#[test]
fn engines_with_other_groups_are_told_apart() {
    other_groups_are_refused(TCP);
}

#[test]
fn engines_with_other_groups_are_told_apart_through_nixl() {
    with_nixl(other_groups_are_refused);
}

fn other_groups_are_refused(plane: &[&str]) {
    let prefill = start(plane, "full,sliding_window:33", &["--kv-lease", "1s"]);
    for (groups, wanted) in [
        ("full,sliding_window:33,sliding_window:33", "2 lists, but there are 3 KV-cache groups here"),
        ("full,sliding_window:97", "3 blocks for KV-cache group 1, but 7 are missing here"),
    ] {
        let decode = start(plane, groups, &[]);
        assert_eq!(decode.complete(&prompt(), 3, &prefill.compute(&prompt())).status, 503, "{groups}");
        decode.serve.wait_for(wanted);
        decode.is_whole();
    }
    prefill.is_whole();
}
