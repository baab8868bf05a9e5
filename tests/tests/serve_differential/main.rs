//! The same requests through vLLM's own frontend over `vcr play` and through `vcr serve`:
//! the answers are the same, but for the differences that are declared.

mod answer;
mod bad;
mod case;
mod differences;
mod good;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use answer::{Mismatch, comparable, mismatches};
use case::{Case, Draws};
use differences::DIFFERENCES;
use serde_json::{Map, Value, json};
use vcr_tests::{Call, Frontend, FrontendOptions, Play, Serve, frontend_model, root};

const VERSION: &str = "0.33.0";
const ENGINE: &[&str] = &["--tokens", "random", "--seed", "7", "--max-model-len", "512", "--vocab-size", "4000"];
/// Mismatches that a failed test prints in full.
const SHOWN: usize = 40;

/// The parts of an answer that every client reads: the rest of Python's differs in fields that are null.
const READ_BY_CLIENTS: &[&str] = &[
    "text",
    "content",
    "finish_reason",
    "stop_reason",
    "index",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "model",
    "token_ids",
    "tokens",
    "count",
    "max_model_len",
    "prompt",
    "role",
];

/// Both servers, and where they listen.
struct Servers {
    frontend: Frontend,
    _play: Play,
    serve: Serve,
}

/// The frontend of this name, and ours that is like it.
fn start(kind: &str) -> Option<Servers> {
    let is_python = kind == "python";
    let mut args = vec!["--enable-scale-out".to_owned()];
    if is_python {
        // It reads the length from its model, and engines tell theirs.
        args.extend(["--max-model-len".to_owned(), "512".to_owned()]);
    }
    let options = FrontendOptions {
        args,
        env: vec![("VLLM_SERVER_DEV_MODE".to_owned(), "1".to_owned())],
        ..FrontendOptions::default()
    };
    let start = if is_python { Frontend::start_python } else { Frontend::start };
    let mut frontend = start(VERSION, &options)?;
    let model = frontend_model()?;
    let play = Play::start(&frontend.handshake_address(), ENGINE);
    let model = model.to_str().expect("a path is a text");
    let serve = Serve::start(&[&[model, "--served-model-name", "sim", "--frontend", kind], ENGINE].concat());
    frontend.wait_until_it_serves();
    Some(Servers { frontend, _play: play, serve })
}

fn answer(case: &Case, address: &str) -> Value {
    let headers: Vec<(&str, &str)> = case.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let call = Call { method: case.method, path: case.path, headers: &headers, body: case.body.as_bytes() };
    let has_own_id = !case.json["request_id"].is_null() || headers.iter().any(|(name, _)| *name == "X-Request-Id");
    comparable(&call.send(address), has_own_id)
}

#[test]
fn answers_are_those_of_vllm_but_for_declared_differences() {
    let Some(servers) = start("rust") else { return };
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

/// What clients read of an answer: its status, and of a good one these fields in their order.
fn outline(answer: &Value) -> Value {
    let status = answer["status"].as_u64().unwrap_or(0);
    if status >= 400 {
        return json!({"status": status});
    }
    let mut read = Vec::new();
    read_fields(&answer["body"], &mut read);
    if !answer["body"]["events"].is_array() {
        return json!({"status": status, "read": read});
    }
    // How many events a stream has is not compared: texts are joined, and of the rest the last one counts.
    let (mut text, mut last) = (String::new(), Map::new());
    for field in read {
        match (field[0].as_str().unwrap_or_default(), field[1].as_str()) {
            ("text" | "content", Some(more)) => text.push_str(more),
            ("token_ids" | "tokens", _) => {}
            (name, _) => _ = last.insert(name.to_owned(), field[1].clone()),
        }
    }
    json!({"status": status, "text": text, "last": last})
}

fn read_fields(value: &Value, read: &mut Vec<Value>) {
    match value {
        Value::Object(fields) => {
            for name in READ_BY_CLIENTS {
                match fields.get(*name) {
                    None | Some(Value::Null | Value::Object(_)) => {}
                    Some(value) => read.push(json!([name, value])),
                }
            }
            let inner = fields.iter().filter(|(name, _)| !READ_BY_CLIENTS.contains(&name.as_str()));
            inner.for_each(|(_, value)| read_fields(value, read));
        }
        Value::Array(values) => values.iter().for_each(|value| read_fields(value, read)),
        _ => {}
    }
}

/// Requests of which the answer has the same outcome: docs/reference/serve/frontends.md says what the others are.
const SAME_AS_PYTHON: usize = 1_950;

/// Most outcomes are the same. What differs is counted, so that it does not become more.
#[test]
fn outcomes_are_mostly_those_of_the_python_server() {
    let Some(servers) = start("python") else { return };
    let theirs = servers.frontend.url("").trim_start_matches("http://").to_owned();
    let mut draws = Draws::new(33);
    let cases = [good::cases(&mut draws), bad::cases()].concat();
    let mut others: BTreeMap<(u64, u64), Vec<&Case>> = BTreeMap::new();
    for case in &cases {
        let (theirs, ours) = (answer(case, &theirs), answer(case, servers.serve.address()));
        if outline(&theirs) != outline(&ours) {
            let status = |answer: &Value| answer["status"].as_u64().unwrap_or(0);
            others.entry((status(&theirs), status(&ours))).or_default().push(case);
        }
    }
    let same = cases.len() - others.values().map(Vec::len).sum::<usize>();
    println!("{same} of {} requests have the same outcome", cases.len());
    for ((theirs, ours), cases) in &others {
        println!("vLLM {theirs}, here {ours}: {} requests", cases.len());
        for case in cases {
            let body: String = case.body.chars().take(200).collect();
            println!("  {}: {} {} {body}", case.name, case.method, case.path);
        }
    }
    assert!(same >= SAME_AS_PYTHON, "{same} of {}", cases.len());
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

/// The documentation lists the differences that the test knows of, and no others.
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
