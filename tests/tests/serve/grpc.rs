//! gRPC on the HTTP port, with clients that others wrote: tonic and, where installed, Python's `grpcio` with the
//! messages of `smg-grpc-proto`.

mod calls;
mod client;
mod messages;

use std::process::Command;

use serde_json::{Value, json};
use vcr_tests::{Serve, grpc_packages, wait_until};

const SERVICE: &str = "vllm.grpc.engine.VllmEngine";

/// Line that the client printed about a call.
fn of<'a>(lines: &'a [Value], call: &str) -> &'a Value {
    lines.iter().find(|line| line["call"] == call).unwrap_or_else(|| panic!("no {call} in {lines:#?}"))
}

#[test]
fn a_client_of_grpc_is_served() {
    let Some(packages) = grpc_packages() else { return };
    let serve = Serve::start(&[
        "--inter-token-latency",
        "2ms",
        "--max-model-len",
        "4096",
        "--embedding-dimensions",
        "12",
        "--seed",
        "1",
    ]);
    let mut program = packages.run("tests/frontends/grpc_client.py", &[serve.address()]);
    let mut lines = Vec::new();
    wait_until("the client ends", || {
        lines = program.lines();
        lines.iter().any(|line| line["call"] == "cancel")
    });
    assert_eq!(of(&lines, "health")["healthy"], true);
    let model = json!({"call": "model", "name": "sim", "context": 4096, "generates": true});
    assert_eq!(of(&lines, "model"), &model);
    let whole = of(&lines, "whole");
    assert_eq!((&whole["reason"], &whole["counts"]), (&json!("length"), &json!([40, 6])));
    assert_eq!(whole["logprobs"], json!([6, 2]));
    assert_eq!(whole["tokens"].as_array().map(Vec::len), Some(6));
    let stream = of(&lines, "stream");
    assert_eq!((&stream["tokens"], &stream["reason"]), (&whole["tokens"], &json!("length")));
    assert_eq!(of(&lines, "several")["indexes"], json!([0, 1]));
    assert_eq!(of(&lines, "abort")["reason"], "abort");
    assert_eq!(of(&lines, "embed"), &json!({"call": "embed", "numbers": 12, "dim": 12, "prompt": 40}));
    let code = |call| of(&lines, call)["error"][0].clone();
    assert_eq!((code("too long"), code("no input")), (json!("INVALID_ARGUMENT"), json!("INVALID_ARGUMENT")));
    let details = of(&lines, "too long")["error"][1].as_str().unwrap_or_default();
    assert!(details.contains("maximum context length is 4096 tokens"), "{details}");
    assert_eq!(code("unknown"), "UNIMPLEMENTED");
    let server = json!({"call": "server", "active": 0, "paused": false, "type": "vllm-grpc", "is_recent": true});
    assert_eq!(of(&lines, "server"), &server);
    // The tokens equal those over HTTP.
    let tokens: Vec<u32> = (0..40).collect();
    let sampling = json!({"max_tokens": 6, "temperature": 0, "ignore_eos": true});
    let same = serve.post("/inference/v1/generate", &json!({"token_ids": tokens, "sampling_params": sampling}));
    assert_eq!(same.body["choices"][0]["token_ids"], whole["tokens"]);
}

/// HTTP/2 without TLS, and without an upgrade from HTTP/1.1.
#[test]
fn prior_knowledge_of_http2_is_enough() {
    let serve = Serve::start(&[]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let frame = folder.path().join("frame");
    // The frame of an empty message: not compressed, and no bytes.
    std::fs::write(&frame, [0; 5]).expect("a temporary folder is writable");
    let body = format!("@{}", frame.display());
    let url = format!("http://{}/{SERVICE}/HealthCheck", serve.address());
    let headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"];
    let said = Command::new("curl")
        .args(["--silent", "--http2-prior-knowledge", "--dump-header", "-", "--output", "/dev/null"])
        .args(headers)
        .args(["--data-binary", &body, &url])
        .output();
    let Ok(said) = said else {
        vcr_tests::skip("there is no curl");
        return;
    };
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.starts_with("HTTP/2 200"), "{text}{}", String::from_utf8_lossy(&said.stderr));
    assert!(text.contains("content-type: application/grpc") && text.contains("grpc-status: 0"), "{text}");
}
