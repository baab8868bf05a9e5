//! Containers that work together: the recorder's pod, and prefill with decode.

use serde_json::{Value, json};
use vcr_tests::{Folder, Frontend, FrontendOptions, Play, Record, Serve, capture, free_port, releases};

use crate::rendered::{containers, rendered};

/// The arguments after a container's command, except those with the prefixes `without`.
fn options(objects: &[Value], container: &str, command: &str, without: &[&str]) -> Vec<String> {
    let all = containers("", objects);
    let of = |it: &&crate::rendered::Container<'_>| it.value["name"] == container && it.args()[0] == command;
    let args = all.iter().find(of).expect("the container is there").args();
    args.into_iter().skip(1).filter(|arg| !without.iter().any(|start| arg.starts_with(start))).collect()
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

#[test]
fn a_recorder_writes_what_passes_in_its_pod() {
    let Some(rendered) = rendered() else { return };
    let pod = rendered.of("kustomize recorder");
    let version = releases().last().expect("there are releases");
    let Some(mut frontend) = Frontend::start(version, &FrontendOptions::default()) else { return };
    let folder = Folder::new();
    let out = folder.path().join("pod-0.jsonl.gz");
    let of_recorder = options(pod, "recorder", "record", &["--out", "--frontend-handshake", "--engine-handshake"]);
    let recorder = Record::start(&frontend.handshake_address(), &out, &words(&of_recorder));
    let of_engine = options(pod, "engine", "play", &["--handshake-address", "--metrics-address"]);
    let engine = Play::start(recorder.engine_handshake(), &words(&of_engine));
    frontend.wait_until_it_serves();
    let _ = frontend.complete(&json!("Hello"), &json!({"max_tokens": 4}));
    let lines = recorder.end();
    drop(engine);
    let request = lines.iter().find(|line| line["kind"] == "request").expect("the request was recorded");
    assert_eq!(request["output_tokens"], 4, "{request:#}");
    assert_eq!(lines, capture(&out));
}

#[test]
fn decode_takes_over_what_prefill_has_computed() {
    let Some(rendered) = rendered() else { return };
    let pair = rendered.of("kustomize pd");
    let is = |component: &str| -> Vec<Value> {
        let of = |it: &&Value| it["metadata"]["labels"]["app.kubernetes.io/component"] == component;
        pair.iter().filter(of).cloned().collect()
    };
    let prefill = options(&is("prefill"), "vcr", "serve", &["--host", "--side-channel"]);
    let port = free_port().to_string();
    let place = ["--side-channel-host", "127.0.0.1", "--side-channel-port", &port];
    let prefill = Serve::start(&[&words(&prefill)[..], &place].concat());
    let decode = Serve::start(&words(&options(&is("decode"), "vcr", "serve", &["--host"])));
    let prompt: Vec<u32> = (0..100).collect();
    let ask = json!({"do_remote_decode": true});
    let body = |max: u32, params: &Value| json!({"model": "sim", "prompt": prompt, "max_tokens": max, "kv_transfer_params": params});
    let computed = prefill.post("/v1/completions", &body(1, &ask));
    assert_eq!(computed.status, 200, "{:#}", computed.body);
    let params = &computed.body["kv_transfer_params"];
    assert_eq!(params["remote_port"].as_u64().map(|it| it.to_string()), Some(port), "{params:#}");
    let answer = decode.post("/v1/completions", &body(5, params));
    assert_eq!((answer.status, &answer.body["usage"]["completion_tokens"]), (200, &5.into()), "{:#}", answer.body);
}
