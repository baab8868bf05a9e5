//! `vcr serve --playback` of HTTP captures.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vcr_tests::{Call, Folder, Serve, capture, free_port, root};

use crate::{CHATS, Recording, chat, of_kind, post, streamed, url};

/// A capture of two chats, and their answers.
fn tape_of_two(folder: &Folder, name: &str) -> [String; 2] {
    let serve = Serve::start(&["--prefill-step-time", "20ms", "--decode-step-time", "10ms"]);
    let recording = Recording::start(&url(&serve), &folder.path().join(name), &[]);
    let answers = ["one", "two"].map(|text| recording.ask(CHATS, &streamed(text)).text());
    recording.end();
    answers
}

#[test]
fn a_tape_answers_at_its_times_and_says_what_differs() {
    let folder = Folder::new();
    let answers = tape_of_two(&folder, "a.jsonl");
    let path = folder.path().join("a.jsonl");
    let report = folder.path().join("report.json");
    let tape = ["--playback", path.to_str().expect("a text"), "--playback-report", report.to_str().expect("a text")];
    let mut serve = Serve::start(&tape);
    let begun = Instant::now();
    let mut reordered = streamed("two");
    reordered["user"] = json!("somebody");
    reordered["stop"] = json!(null);
    let answer = post(serve.address(), CHATS, &[], &reordered);
    assert_eq!(answer.text(), answers[1]);
    assert!(begun.elapsed() >= Duration::from_millis(20 + 5 * 10), "not before its time");
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert_eq!(serve.get("/health").status, 200);
    let short = serve.post("/_vcr/api/control/client-faults", &json!({"fault": "short:after=5"}));
    assert!(short.status == 400 && short.body.to_string().contains("`short` changes the request"), "{}", short.body);
    let mut other = streamed("two");
    other["temperature"] = json!(0.5);
    let miss = serve.post(CHATS, &other);
    assert_eq!(miss.status, 404);
    assert_eq!(miss.body["playback"]["nearest"]["differences"], json!([{"path": "/temperature", "asked": 0.5}]));
    let message = miss.body["error"]["message"].as_str().expect("a text");
    assert!(message.contains("/temperature (recorded nothing, asked 0.5)"), "{message}");
    assert_eq!(serve.get("/v1/models").status, 404, "nobody asked for models");
    serve.terminate();
    assert!(serve.wait().success());
    let report: Value = serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("JSON");
    let counts = ["recordings", "matched", "missed", "unused"].map(|name| report[name].as_u64());
    assert_eq!(counts, [Some(2), Some(1), Some(2), Some(1)]);

    let mut strict = Serve::start(&[tape[0], tape[1], "--strict"]);
    assert_eq!(strict.post(CHATS, &other).status, 404);
    assert_eq!(strict.wait().code(), Some(1));
}

#[test]
fn misses_are_simulated_or_recorded() {
    let folder = Folder::new();
    let answers = tape_of_two(&folder, "a.jsonl.gz");
    let out = folder.path().join("a.jsonl.gz");
    let path = out.to_str().expect("a text");
    let simulated = Serve::start(&["--playback", path, "--playback-unmatched", "random", "--keep-requests", "10"]);
    assert_eq!(post(simulated.address(), CHATS, &[], &streamed("one")).text(), answers[0]);
    let headers = [("Authorization", "Bearer secret-token")];
    assert_eq!(post(simulated.address(), CHATS, &headers, &chat("three", &json!({}))).status, 200);
    let seen = simulated.get("/_vcr/requests").body["requests"].clone();
    let by: Vec<_> = seen.as_array().expect("a list").iter().map(|request| request["answered_by"].clone()).collect();
    assert_eq!(by, ["tape", "server"]);
    assert_eq!(seen[1]["headers"]["authorization"], "[redacted]");
    assert!(seen[1]["body"].as_str().expect("a text").contains("three"));
    assert_eq!(simulated.delete("/_vcr/requests").status, 204);
    assert_eq!(simulated.get("/_vcr/requests").body["requests"], json!([]));

    let upstream = Serve::start(&[]);
    let server = url(&upstream);
    let options = ["--playback", path, "--upstream", &server];
    let mut recorder = Serve::start(&options);
    assert_eq!(post(recorder.address(), CHATS, &[], &streamed("one")).text(), answers[0]);
    let new = post(recorder.address(), CHATS, &[], &streamed("four")).text();
    // vcr answers its own paths itself, even those that need another option.
    let kept = recorder.get("/_vcr/requests");
    assert_eq!(kept.status, 404);
    assert!(kept.body["error"]["message"].as_str().expect("a text").contains("--keep-requests"), "{}", kept.body);
    assert_eq!(recorder.get("/_vcr/unknown").status, 404);
    recorder.terminate();
    assert!(recorder.wait().success());
    assert!(!Value::from(capture(&out)).to_string().contains("/_vcr/"), "they are not recorded");
    drop(upstream);
    let tape = Serve::start(&["--playback", path]);
    assert_eq!(post(tape.address(), CHATS, &[], &streamed("four")).text(), new, "it is on the tape now");
    assert_eq!(post(tape.address(), CHATS, &[], &streamed("two")).text(), answers[1], "and what was there before");
}

#[test]
fn options_that_cannot_be_used() {
    let folder = Folder::new();
    let record = |args: &[&str]| folder.vcr(&[&["record", "--out", "a.jsonl"], args].concat());
    record(&["--upstream", "localhost:8000"]).failed(2, &["invalid server address `localhost:8000`: expected http://"]);
    record(&["--upstream", "http://x", "--redact-json", "a..b"]).failed(2, &["invalid path `a..b`"]);
    record(&["--upstream", "http://x", "--upstream-ca", "no.pem"]).failed(2, &["cannot use TLS with http://x"]);
    record(&["--upstream", "http://x", "--engine-handshake", "tcp://a:1"]).failed(2, &["cannot be used with"]);
    record(&["--port", "1"]).failed(2, &["--upstream"]);
    let serve = |args: &[&str]| folder.vcr(&[&["serve", "--port", "0", "--quiet"], args].concat());
    tape_of_two(&folder, "t.jsonl");
    let tape = ["--playback", "t.jsonl"];
    serve(&[&tape[..], &["--playback-unmatched", "record"]].concat()).failed(2, &["needs the server to record"]);
    serve(&[&tape[..], &["--playback-unmatched", "nearest"]].concat()).failed(2, &["expected error, random or record"]);
    serve(&[&tape[..], &["--playback-match", "id"]].concat()).failed(2, &["not for captures of HTTP"]);
    let upstream = [&tape[..], &["--upstream", "http://x"]].concat();
    for refuses in [&["--strict"][..], &["--playback-unmatched", "error"], &["--playback-unmatched", "random"]] {
        serve(&[&upstream[..], refuses].concat()).failed(2, &["--upstream: no request is passed on"]);
    }
    serve(&["--upstream", "http://x"]).failed(2, &["--playback"]);
    let short = ["--client-fault", "no-usage", "--client-fault", "short:after=5"];
    serve(&[&tape[..], &short].concat()).failed(2, &["--client-fault with --playback: `short` changes the request"]);
    let meta = r#"{"kind":"meta","format":"vcr.capture","version":1}"#;
    let request = r#"{"kind":"request","prompt_tokens":5,"output_tokens":1,"end_ns":9,"finish_reason":"stop"}"#;
    folder.write("engine.jsonl", format!("{meta}\n{request}\n"));
    serve(&["--playback", "engine.jsonl", "--upstream", "http://x"])
        .failed(2, &["are for captures of HTTP", "vcr record --upstream"]);
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let recording = Recording::start(&nobody, &folder.path().join("b.jsonl"), &[]);
    let answer = recording.ask("/v1/messages", &json!({}));
    assert!(answer.status == 502 && answer.text().contains("cannot connect to http://127.0.0.1"), "{}", answer.text());
}

#[test]
fn prompts_that_held_a_secret_are_found_again() {
    let folder = Folder::new();
    let serve = Serve::start(&[]);
    let (server, out) = (url(&serve), folder.path().join("a.jsonl"));
    let recording = Recording::start(&server, &out, &["--redact-header", "x-mine", "--redact-query", "who"]);
    let prompt = chat("why are my-own-key-1, header-secret and query-secret refused?", &json!({}));
    let headers = [("Authorization", "Bearer my-own-key-1"), ("X-Mine", "header-secret")];
    let path = format!("{CHATS}?who=query-secret");
    let answer = post(&recording.address, &path, &headers, &prompt).text();
    let lines = recording.end();
    let asked = of_kind(&lines, "http")[0]["request_body"].as_str().expect("a text").to_owned();
    assert!(asked.contains("why are [redacted], [redacted] and [redacted] refused?"), "{asked}");
    drop(serve);
    let tape = Serve::start(&["--playback", out.to_str().expect("a text")]);
    assert_eq!(post(tape.address(), &path, &headers, &prompt).text(), answer);
    assert_eq!(post(tape.address(), &path, &headers[1..], &prompt).status, 404, "its client has no such key");
}

#[test]
fn the_engine_says_when_a_recorded_answer_comes() {
    let folder = Folder::new();
    let answers = tape_of_two(&folder, "a.jsonl");
    let path = folder.path().join("a.jsonl");
    let tape = ["--playback", path.to_str().expect("a text"), "--playback-times", "model", "--max-model-len", "64"];
    let slow = ["--prefill-step-time", "200ms", "--decode-step-time", "40ms"];
    let serve = Serve::start(&[&tape[..], &slow].concat());
    let begun = Instant::now();
    assert_eq!(post(serve.address(), CHATS, &[], &streamed("two")).text(), answers[1]);
    assert!(begun.elapsed() >= Duration::from_millis(200 + 5 * 40), "these are the engine's times");
    let asked = Call { method: "GET", path: "/metrics", headers: &[], body: b"" };
    let metrics = asked.send(serve.address()).text();
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {metrics}"));
        line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number")
    };
    assert_eq!(value("vllm:generation_tokens_total"), 6.0);
    assert!(value("vllm:prompt_tokens_total") > 0.0);
    // An answer without tokens needs no engine.
    assert_eq!(serve.get("/v1/models").status, 404);
}

/// The example of the documentation.
fn documented_rules() -> String {
    let page = std::fs::read_to_string(root().join("docs/reference/playback.md")).expect("a page");
    let block = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    block.expect("the page has an example").to_owned()
}

#[test]
fn recordings_are_found_by_the_rules_of_a_file() {
    let folder = Folder::new();
    let serve = Serve::start(&[]);
    let recording = Recording::start(&url(&serve), &folder.path().join("a.jsonl"), &[]);
    let asked = |date: &str, temperature: f64| {
        let text = format!("Today is {date}. What next?");
        chat(&text, &json!({"temperature": temperature, "metadata": {"run": date}}))
    };
    let tenant = [("X-Tenant", "blue")];
    let recorded = [0.0, 0.5]
        .map(|temperature| post(&recording.address, CHATS, &tenant, &asked("2026-01-31", temperature)).text());
    recording.end();
    folder.write("match.yaml", documented_rules());
    let (tape, rules) = (folder.path().join("a.jsonl"), folder.path().join("match.yaml"));
    let tape = ["--playback", tape.to_str().expect("a text"), "--match", rules.to_str().expect("a text")];
    let serve = Serve::start(&tape);
    for (temperature, answer) in [(0.5, 1), (0.0, 0), (0.5, 1)] {
        let played = post(serve.address(), CHATS, &tenant, &asked("2027-12-01", temperature));
        assert_eq!((played.status, played.text().as_str()), (200, recorded[answer].as_str()), "{temperature}");
    }
    let other = post(serve.address(), CHATS, &[("X-Tenant", "red")], &asked("2026-01-31", 0.0));
    assert!(other.status == 404 && other.text().contains("x-tenant: red"), "{}", other.text());
    let schema = std::fs::read(root().join("docs/schemas/match.schema.json")).expect("a schema");
    let schema = serde_json::from_slice(&schema).expect("it is JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    let all = json!({"ignore": ["a.*"], "compare": ["seed"], "ignore_text": ["x+"], "ignore_query": ["page"],
        "headers": ["x-a"], "order": "random", "seed": 7});
    let names = schema["properties"].as_object().expect("it has properties").keys();
    assert!(names.eq(all.as_object().expect("an object").keys()) && validator.is_valid(&all));
    folder.write("match.yaml", all.to_string());
    assert_eq!(Serve::start(&tape).get("/health").status, 200, "the schema is that of the program");
    for (text, expected) in [
        ("ignore: [model]\norder: newest\n", "unknown variant `newest`"),
        ("headers: 1\n", "headers: invalid type"),
        ("ignore_text:\n  - '('\n", "line 2"),
        ("ignored: []\n", "unknown field `ignored`"),
    ] {
        folder.write("wrong.yaml", text);
        let wrong = ["serve", "--port", "0", tape[0], tape[1], "--match", "wrong.yaml"];
        folder.vcr(&wrong).failed(2, &["--match wrong.yaml: ", expected, "match.schema.json"]);
    }
}
