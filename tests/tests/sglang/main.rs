//! `vcr serve --backend sglang`: SGLang's scheduler behind SGLang's API.

mod clients;
mod endpoints;
mod engine;
mod generate;
mod routers;

use serde_json::{Value, json};
use vcr_tests::{Call, Serve, read_answer};

fn serve(tokens: u32, more: &[&str]) -> Serve {
    let tokens = tokens.to_string();
    Serve::start(&[&["--backend", "sglang", "--max-total-tokens", &tokens], more].concat())
}

/// A prompt of this many tokens, whose first token depends on `number`.
fn prompt(number: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 1000 + number * 7 + at % 50).collect()
}

fn generate(serve: &Serve, input_ids: &[u32], max_new_tokens: u32) -> Value {
    let sampling_params = json!({"max_new_tokens": max_new_tokens, "ignore_eos": true, "temperature": 0});
    let reply = serve.post("/generate", &json!({"input_ids": input_ids, "sampling_params": sampling_params}));
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body
}

fn get(address: &str, method: &str, path: &str) -> (u16, String) {
    let answer = read_answer(Call { method, path, headers: &[], body: b"" }.begin(address));
    (answer.status, answer.text())
}

/// Sum of a metric over its labels.
fn metric(address: &str, name: &str) -> f64 {
    let (_, text) = get(address, "GET", "/metrics");
    let of_name = |line: &&str| line.split(['{', ' ']).next() == Some(name);
    text.lines().filter(of_name).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
