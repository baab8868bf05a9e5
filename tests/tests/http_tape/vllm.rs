//! vLLM's own frontend with simulated engines, recorded at both of its ends.

use std::path::Path;

use serde_json::{Value, json};
use vcr_tests::{Call, Folder, Frontend, FrontendOptions, HttpAnswer, Play, Record, Serve, read_answer};

use crate::{CHATS, Recording, chat, post, streamed};

const RELEASE: &str = "0.33.0";

/// Answers to valid requests, complete and streamed, and to invalid ones.
fn answers(address: &str) -> Vec<(u16, String)> {
    let completion = json!({"model": "sim", "prompt": "Once upon", "max_tokens": 9, "logprobs": 2});
    let seeded = chat("Hi", &json!({"seed": 7, "temperature": 0.5}));
    let talk = json!({"model": "sim", "max_tokens": 4, "messages": [{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye"}]});
    let calls = [
        (CHATS, chat("Hello", &json!({}))),
        (CHATS, streamed("Hello")),
        (CHATS, seeded),
        (CHATS, talk),
        ("/v1/completions", completion),
        (CHATS, json!({"model": "sim", "messages": 5})),
        (CHATS, json!({"model": "another", "messages": [{"role": "user", "content": "Hi"}]})),
    ];
    let said = |answer: HttpAnswer| (answer.status, answer.text());
    let mut all: Vec<_> = calls.iter().map(|(path, body)| said(post(address, path, &[], body))).collect();
    let models = Call { method: "GET", path: "/v1/models", headers: &[], body: b"" };
    all.push(said(read_answer(models.begin(address))));
    all
}

#[test]
fn vllms_frontend_says_the_same_from_the_tape() {
    let Some(mut frontend) = Frontend::start(RELEASE, &FrontendOptions::default()) else { return };
    let play = Play::start(&frontend.handshake_address(), &["--max-model-len", "4096"]);
    frontend.wait_until_it_serves();
    let folder = Folder::new();
    let recording = Recording::start(&frontend.url(""), &folder.path().join("day.jsonl"), &[]);
    let recorded = answers(&recording.address);
    let statuses: Vec<u16> = recorded.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 400, 404, 200], "{recorded:?}");
    recording.end();
    drop((play, frontend));
    let tape = folder.path().join("day.jsonl");
    let tape = Serve::start(&["--playback", text(&tape), "--strict"]);
    assert_eq!(answers(tape.address()), recorded);
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

/// The true model: a step has a constant time, and each prompt token adds some.
fn truth() -> Value {
    json!({
        "format": "vcr.fitted/1",
        "step": {
            "coefficients": {"step": 20.0e6, "token": 5.0e4},
            "range": {"min_decode_tokens": 1, "max_decode_tokens": 1024, "max_decode_context_tokens": 4_000_000,
                "max_prefill_tokens": 8192, "max_prefill_requests": 256, "max_prefill_context_tokens": 1_000_000},
        },
    })
}

const ENGINE: &str = "num_gpu_blocks: 4_000, max_num_batched_tokens: 2048";

const LOAD: &str = r#"
let pool = pool(#{ engines: 1, engine: engine(#{}), latency: fixed(#{ step: "10ms" }) });
run(#{ name: "load", cluster: cluster(#{ engines: pool }), workloads: [constant(#{
    rate: "20/s", count: 50, prompt_tokens: uniform(40, 400), output_tokens: uniform(10, 50) })] });
"#;

/// The relative error of a prediction's statistic.
fn error(prediction: &Value, metric: &str, statistic: &str) -> f64 {
    let comparisons = prediction["comparisons"].as_array().expect("a list");
    let found = comparisons.iter().find(|one| one["metric"] == metric && one["statistic"] == statistic);
    let ms = |side: &str| found.and_then(|found| found[side].as_f64()).unwrap_or_else(|| panic!("{prediction:#}"));
    ms("simulated_ms") / ms("measured_ms") - 1.0
}

/// A fit to the clients' view of an engine with known times is as good as a fit to the engine's own times.
#[test]
fn a_tape_fits_as_well_as_a_recording_at_the_engine() {
    let Some(mut frontend) = Frontend::start(RELEASE, &FrontendOptions::default()) else { return };
    let folder = Folder::with(LOAD);
    folder.write("truth.json", truth().to_string());
    let [at_engine, at_client, model] =
        ["engine.jsonl", "client.jsonl", "truth.json"].map(|name| folder.path().join(name));
    let record = Record::start(&frontend.handshake_address(), &at_engine, &[]);
    let latency = format!("fitted(#{{ path: \"{}\" }})", text(&model));
    let options = ["--max-model-len", "4096", "--num-gpu-blocks-override", "4000", "--max-num-batched-tokens", "2048"];
    let play = Play::start(record.engine_handshake(), &[&options[..], &["--latency", &latency]].concat());
    frontend.wait_until_it_serves();
    let recording = Recording::start(&frontend.url(""), &at_client, &[]);
    _ = folder.run(&["--target", &recording.url()]).ended(0);
    recording.end();
    record.end();
    drop((play, frontend));
    let engine = ["--engine", ENGINE];
    for tape in ["engine.jsonl", "client.jsonl"] {
        // On a busy machine, the model may be so bad that the fit needs `--force`.
        let fit = ["fit", tape, "--folds", "0", "--force", "--output", "model.json"];
        _ = folder.vcr(&[&fit[..], &engine].concat()).ended(0);
        let judged = ["calibrate", "--json", "model.json", "engine.jsonl"];
        let said = folder.vcr(&[&judged[..], &engine].concat()).ended(0).json();
        let prediction = &said["predictions"][0];
        for (metric, statistic, most) in [("itl", "mean", 0.05), ("e2e", "p50", 0.05), ("ttft", "p50", 0.2)] {
            let error = error(prediction, metric, statistic);
            assert!(error.abs() < most, "{tape}: {metric} {statistic} is {error} off: {prediction:#}");
        }
    }
}
