//! KV that moves between engines through NIXL.

use std::process::Command;

use serde_json::json;
use vcr_tests::{Frontend, FrontendOptions, Play, client, free_port, vcr, wait_until};

use crate::{scraped, sum_of, text};

/// The number of layers is odd. Each layer has one region, as in vLLM.
const SHAPE: &str = "3x2x64";
const LAYERS: f64 = 3.0;

#[test]
fn prefill_and_decode_exchange_pages() {
    let Some(python) = client("nixl") else { return };
    let environment = python.environment();
    let environment = environment.to_str().expect("a path in text");
    // UCX uses only this machine's network. An empty variable counts as unset.
    let variables = [("VIRTUAL_ENV", environment), ("NIXL_LIBRARY", ""), ("UCX_NET_DEVICES", "lo")];
    let start = || {
        let mut frontend = Frontend::start("0.33.0", &FrontendOptions::default())?;
        let metrics = format!("127.0.0.1:{}", free_port());
        let args = ["--max-model-len", "4096", "--num-gpu-blocks", "400", "--block-size", "16", "--kv-shape", SHAPE];
        let port = free_port().to_string();
        let more = ["--kv-transfer", "nixl", "--side-channel-port", &port, "--metrics-address", &metrics];
        let play = Play::start_with(&frontend.handshake_address(), &variables, &[&args[..], &more].concat());
        frontend.wait_until_it_serves();
        Some((frontend, play, metrics))
    };
    let (Some((prefill, prefill_engine, _)), Some((decode, decode_engine, metrics))) = (start(), start()) else {
        return;
    };
    prefill_engine.wait_for("KV moves through NIXL");
    let prompt: Vec<u32> = (1000..1160).collect();
    let ask = json!({"do_remote_decode": true, "do_remote_prefill": false});
    let computed = prefill.complete(&json!(prompt), &json!({"max_tokens": 1, "kv_transfer_params": ask}));
    let params = &computed["kv_transfer_params"];
    assert_eq!(params["do_remote_prefill"], true, "{computed}");
    let answer = decode.complete(&json!(prompt), &json!({"max_tokens": 5, "kv_transfer_params": params}));
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    assert!(text(&answer).starts_with(text(&computed)), "the same content gives the same text");
    // Ten blocks arrived, and their bytes matched the pattern. The metrics lag by some steps.
    let of_decode = |name: &str| sum_of(&scraped(&metrics), name);
    wait_until("the transfer is counted", || of_decode("vcr_kv_transfers_total") == 1.0);
    assert_eq!(of_decode("vcr_kv_transfer_pages_received_total"), 10.0 * LAYERS);
    assert_eq!(of_decode("vcr_kv_transfer_failures_total"), 0.0);
    // The blocks are freed when the notice arrives. The engine handles it at its next event, so send a request.
    wait_until("the blocks are free", || {
        prefill.complete(&json!("Next"), &json!({"max_tokens": 1}));
        prefill.metric("vllm:kv_cache_usage_perc") == 0.0
    });
    assert!(!decode_engine.log().contains("WARN"), "{}", decode_engine.log());
}

#[test]
fn a_library_that_is_missing_is_named_with_what_to_install() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let nowhere = folder.path().join("libnixl_capi.so");
    let nowhere = nowhere.to_str().expect("a path in text");
    let run = |args: &[&str]| {
        let mut command = Command::new(vcr());
        command.args(["play", "--kv-transfer", "nixl", "--num-gpu-blocks", "100"]).args(args);
        // This environment has no Python.
        let output = command.env("VIRTUAL_ENV", folder.path()).env("NIXL_LIBRARY", "").output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (args, wanted) in [
        (&[][..], &["NIXL is not installed: no libnixl_capi.so in ", "`pip install nixl`"][..]),
        (&["--nixl-library", nowhere], &["invalid NIXL library", "`pip install nixl`"]),
        (&["--nixl-compatibility", "none"], &["expected `auto`, `any`, or a hash of 64 hexadecimal digits"]),
        (&["--side-channel-port", "0"], &["invalid --side-channel-port 0"]),
        (&["--kv-transfer-listen", "127.0.0.1:7000"], &["invalid --kv-transfer-listen", "--side-channel-port"]),
    ] {
        let (code, said) = run(args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(wanted.iter().all(|wanted| said.contains(wanted)), "{args:?}: {said}");
    }
}
