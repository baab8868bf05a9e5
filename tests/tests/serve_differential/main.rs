//! The same requests to vLLM's own frontend in front of `vcr play`, and to `vcr serve`: the answers are the same,
//! except for the declared differences.

mod answer;
mod bad;
mod case;
mod differences;
mod good;
mod python;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use answer::{Mismatch, comparable, mismatches};
use case::{Case, Draws};
use differences::DIFFERENCES;
use serde_json::Value;
use vcr_tests::{Call, Frontend, FrontendOptions, HttpAnswer, Play, Serve, frontend_model, root};

const VERSION: &str = "0.33.0";
const ENGINE: &[&str] = &["--tokens", "random", "--seed", "7", "--max-model-len", "512", "--vocab-size", "4000"];
/// Number of mismatches that a failed test prints in full.
const SHOWN: usize = 40;

struct Servers {
    frontend: Frontend,
    _play: Play,
    serve: Serve,
}

/// vLLM's Rust frontend, and `vcr serve` in its form. Both also get `args`.
fn start(args: &[&str]) -> Option<Servers> {
    let own = args.iter().map(|arg| (*arg).to_owned());
    let options = FrontendOptions {
        args: own.chain(["--enable-scale-out".to_owned()]).collect(),
        env: vec![("VLLM_SERVER_DEV_MODE".to_owned(), "1".to_owned())],
        ..FrontendOptions::default()
    };
    let mut frontend = Frontend::start(VERSION, &options)?;
    let play = Play::start(&frontend.handshake_address(), ENGINE);
    let serve = serve("rust", args)?;
    frontend.wait_until_it_serves();
    Some(Servers { frontend, _play: play, serve })
}

/// `vcr serve` in the form of the frontend with this name.
fn serve(kind: &str, args: &[&str]) -> Option<Serve> {
    let model = frontend_model()?;
    let model = model.to_str().expect("a path is a text");
    Some(Serve::start(&[&[model, "--served-model-name", "sim", "--frontend", kind], ENGINE, args].concat()))
}

fn answer(case: &Case, address: &str) -> Value {
    let names_id = case.headers.iter().any(|(name, _)| *name == "X-Request-Id");
    comparable(&sent(case, address), names_id || !case.json["request_id"].is_null())
}

fn sent(case: &Case, address: &str) -> HttpAnswer {
    let headers: Vec<(&str, &str)> = case.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Call { method: case.method, path: case.path, headers: &headers, body: case.body.as_bytes() }.send(address)
}

/// `stream_interval` of a request raises the server's, and neither delays the first token or the end.
#[test]
fn streams_have_the_chunks_of_vllm() {
    let Some(servers) = start(&["--stream-interval", "3"]) else { return };
    let theirs = servers.frontend.url("").trim_start_matches("http://").to_owned();
    for (own, expected) in [(None, [1, 3, 3, 3]), (Some(2), [1, 3, 3, 3]), (Some(8), [1, 8, 1, 0])] {
        let mut body = serde_json::json!({
            "model": "sim", "prompt": [5, 6, 7], "max_tokens": 10, "ignore_eos": true, "stream": true,
            "return_token_ids": true,
        });
        if let Some(own) = own {
            body["stream_interval"] = own.into();
        }
        let case = Case::post("chunks", "/v1/completions", body);
        let chunks = |address: &str| -> Vec<usize> {
            let answer = String::from_utf8(sent(&case, address).body).expect("a text");
            let events = answer.lines().filter_map(|line| line.strip_prefix("data: "));
            let events = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
            let counts = events.map(|event| event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len));
            counts.filter(|count| *count > 0).collect()
        };
        let expected: Vec<usize> = expected.into_iter().filter(|count| *count > 0).collect();
        assert_eq!((chunks(&theirs), chunks(servers.serve.address())), (expected.clone(), expected), "{own:?}");
    }
}

#[test]
fn answers_are_those_of_vllm_but_for_declared_differences() {
    let Some(servers) = start(&[]) else { return };
    let theirs = servers.frontend.url("").trim_start_matches("http://").to_owned();
    let mut draws = Draws::new(33);
    let cases = [good::cases(&mut draws), bad::cases()].concat();
    assert!(cases.len() >= 300, "{} requests", cases.len());
    let mut used = vec![0; DIFFERENCES.len()];
    let mut unexplained: Vec<(&Case, Vec<Mismatch>)> = Vec::new();
    let mut statuses: BTreeMap<u64, usize> = BTreeMap::new();
    for case in &cases {
        let (theirs, ours) = (answer(case, &theirs), answer(case, servers.serve.address()));
        *statuses.entry(theirs["status"].as_u64().unwrap_or(0)).or_default() += 1;
        let mut left = mismatches(&theirs, &ours);
        left.retain(|mismatch| {
            let known = DIFFERENCES.iter().position(|difference| (difference.explains)(case, mismatch));
            known.map(|index| used[index] += 1).is_none()
        });
        if !left.is_empty() {
            unexplained.push((case, left));
        }
    }
    println!("{} requests, answered with {statuses:?}", cases.len());
    assert!(unexplained.is_empty(), "{}", report(&unexplained));
    for (difference, count) in DIFFERENCES.iter().zip(used) {
        assert!(count > 0, "no request shows the difference: {}", difference.documented);
    }
}

fn report(unexplained: &[(&Case, Vec<Mismatch>)]) -> String {
    let mut text = format!("{} requests have other answers\n", unexplained.len());
    for (case, mismatches) in unexplained.iter().take(SHOWN) {
        let Case { name, method, path, headers, body, .. } = case;
        let body: String = body.chars().take(400).collect();
        _ = writeln!(text, "\n{name}\n  {method} {path} {headers:?} {body}");
        for Mismatch { at, theirs, ours } in mismatches.iter().take(6) {
            _ = writeln!(text, "  at {at}\n    vLLM: {theirs}\n    ours: {ours}");
        }
    }
    text
}

/// The documentation lists exactly the differences that the test declares.
#[test]
fn the_documentation_lists_the_declared_differences() {
    let path = root().join("docs/reference/serve.md");
    let text = std::fs::read_to_string(path).expect("it is there");
    let section = text.split_once("## Differences from vLLM's Rust frontend").expect("a section").1;
    let words: Vec<&str> = section.split_whitespace().collect();
    let section = words.join(" ");
    for difference in DIFFERENCES {
        assert!(section.contains(difference.documented), "not in the documentation: {}", difference.documented);
    }
}
