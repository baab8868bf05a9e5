//! `vcr play` behind vLLM's own frontends, which pass `kv_transfer_params` on.

use serde_json::json;
use vcr_tests::{Frontend, FrontendOptions, Play, free_port};

use crate::both;

#[test]
fn engines_meet_behind_real_frontends() {
    let start = |more: &[&str]| {
        let mut frontend = Frontend::start("0.33.0", &FrontendOptions::default())?;
        let side_channel = free_port().to_string();
        let args = ["--max-model-len", "4096", "--num-gpu-blocks", "400", "--kv-block-bytes", "4KiB"];
        let moving = ["--kv-transfer", "tcp", "--kv-rendezvous", "mooncake", "--side-channel-port", &side_channel];
        let play = Play::start(&frontend.handshake_address(), &[&args[..], &moving, more].concat());
        frontend.wait_until_it_serves();
        Some((frontend, play))
    };
    let port = free_port();
    let Some((prefill, _computes)) = start(&["--kv-rendezvous-port", &port.to_string()]) else { return };
    let Some((decode, decodes)) = start(&["--kv-rendezvous-role", "decode"]) else { return };
    let prompt: Vec<u32> = (1000..1160).collect();
    let address = format!("http://127.0.0.1:{port}");
    let of_decode = json!({
        "do_remote_prefill": true, "remote_bootstrap_addr": address, "remote_engine_id": "vcr-engine-0", "transfer_id": "x",
    });
    let of_prefill = json!({"do_remote_decode": true, "transfer_id": "x"});
    let complete = |frontend: &Frontend, max_tokens: u32, params: &serde_json::Value| {
        frontend.complete(&json!(prompt), &json!({"max_tokens": max_tokens, "kv_transfer_params": params}))
    };
    let (decoded, computed) = both(|| complete(&decode, 5, &of_decode), || complete(&prefill, 1, &of_prefill));
    assert_eq!(decoded["usage"]["completion_tokens"], 5, "{decoded}");
    let text = |answer: &serde_json::Value| answer["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    assert!(text(&decoded).starts_with(&text(&computed)), "the same content gives the same text");
    assert!(!decodes.log().contains("WARN"), "{}", decodes.log());
}
