//! The recorded answers of vLLM's Python API server, compared with those of `vcr serve`.
//!
//! `RECORD_PYTHON_FRONTEND=1` records them again from the server installed by `tests/oracle/run.sh 0.33.0`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;

use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use serde_json::{Map, Value, json};
use vcr_tests::{Frontend, FrontendOptions, Play, frontend_model, root};

use super::bad;
use super::case::{Case, Draws};
use super::{ENGINE, VERSION, answer, good, serve};

/// Parts of an answer that every client reads. Python's other fields differ in which of them are null.
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

/// Number of requests with equal outcomes. docs/reference/serve/frontends.md lists the others.
const SAME_OUTCOMES: usize = 2_140;
/// Number of requests that both servers refuse with the same body.
const SAME_ERRORS: usize = 1_490;

fn recording() -> PathBuf {
    root().join("tests/tests/serve_differential/python-0.33.0.jsonl.gz")
}

/// Key of a request in the recording.
fn name(case: &Case) -> String {
    format!("{} {} {} {:?}", case.method, case.path, case.name, case.headers)
}

/// Answers of the Python server, in the order of the requests.
fn answers(cases: &[Case]) -> Vec<Value> {
    if std::env::var_os("RECORD_PYTHON_FRONTEND").is_some() {
        record(cases);
    }
    let file = File::open(recording()).expect("the recording is in the repository");
    let lines = BufReader::new(GzDecoder::new(file)).lines().map(|line| line.expect("the recording is text"));
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(&line).expect("each line is JSON")).collect();
    let recorded: Vec<&str> = lines.iter().filter_map(|line| line["request"].as_str()).collect();
    let asked: Vec<String> = cases.iter().map(name).collect();
    assert!(recorded == asked, "other requests are recorded: record them anew with RECORD_PYTHON_FRONTEND=1");
    lines.into_iter().map(|mut line| line["answer"].take()).collect()
}

fn record(cases: &[Case]) {
    let options = FrontendOptions {
        // The frontend reads the length from its model; the engines report theirs.
        args: ["--enable-scale-out", "--max-model-len", "512"].map(str::to_owned).to_vec(),
        env: vec![("VLLM_SERVER_DEV_MODE".to_owned(), "1".to_owned())],
        ..FrontendOptions::default()
    };
    let mut frontend = Frontend::start_python(VERSION, &options).expect("tests/oracle/run.sh 0.33.0 has installed it");
    let _play = Play::start(&frontend.handshake_address(), ENGINE);
    let model = frontend_model().expect("the frontend has it");
    let model = model.to_str().expect("a path is a text");
    frontend.wait_until_it_serves();
    let address = frontend.url("").trim_start_matches("http://").to_owned();
    let file = File::create(recording()).expect("the folder is writable");
    // The header has neither a name nor a time, so that the same answers make the same file.
    let mut out = GzBuilder::new().write(file, Compression::best());
    for case in cases {
        let line = json!({"request": name(case), "answer": answer(case, &address)}).to_string();
        writeln!(out, "{}", line.replace(model, "MODEL")).expect("the file is writable");
    }
    out.finish().expect("the file is writable");
}

/// Part of an answer that clients read: its status and, for a success, the fields of [`READ_BY_CLIENTS`] in order.
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
    // The number of events in a stream is not compared: texts are joined, and of other fields the last value counts.
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

/// Status and body of a refusal.
fn error(answer: &Value) -> Option<(u64, &Value)> {
    answer["status"].as_u64().filter(|status| *status >= 400).map(|status| (status, &answer["body"]))
}

/// Most outcomes are equal, and most refusals have the same text. The test counts differences so that their number
/// does not grow.
#[test]
fn outcomes_are_mostly_those_of_the_python_server() {
    let Some(serve) = serve("python", &[]) else { return };
    let mut draws = Draws::new(33);
    let cases = [good::cases(&mut draws), bad::cases(), bad::common_mistakes()].concat();
    let theirs = answers(&cases);
    let mut others: BTreeMap<(u64, u64), Vec<&Case>> = BTreeMap::new();
    let (mut same_errors, mut refused, mut other_errors) = (0, 0, Vec::new());
    for (case, theirs) in cases.iter().zip(&theirs) {
        let ours = answer(case, serve.address());
        if outline(theirs) != outline(&ours) {
            let status = |answer: &Value| answer["status"].as_u64().unwrap_or(0);
            others.entry((status(theirs), status(&ours))).or_default().push(case);
        }
        if let Some(error_of_theirs) = error(theirs) {
            refused += 1;
            if error(&ours) == Some(error_of_theirs) {
                same_errors += 1;
            } else {
                other_errors.push((case, theirs["body"].clone(), ours["body"].clone()));
            }
        }
    }
    let same = cases.len() - others.values().map(Vec::len).sum::<usize>();
    println!("{same} of {} requests have the same outcome", cases.len());
    println!("{same_errors} of {refused} refusals have the same body");
    for ((theirs, ours), cases) in &others {
        println!("vLLM {theirs}, here {ours}: {} requests", cases.len());
        for case in cases {
            let body: String = case.body.chars().take(200).collect();
            println!("  {}: {} {} {body}", case.name, case.method, case.path);
        }
    }
    for (case, theirs, ours) in other_errors {
        let body: String = case.body.chars().take(200).collect();
        println!("{} {} {body}\n  vLLM: {theirs}\n  ours: {ours}", case.method, case.path);
    }
    assert!(same >= SAME_OUTCOMES, "{same} of {}", cases.len());
    assert!(same_errors >= SAME_ERRORS, "{same_errors} of {refused}");
}
