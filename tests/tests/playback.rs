//! A capture made behind a real frontend, played back behind a fresh one.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use vcr_tests::{Folder, Frontend, FrontendOptions, Play, Record, Said, json_tokens, shipped_guest};
use vcr_trace::capture::{CaptureLine, CaptureReader, ReadOptions, RequestRecord};

const VERSION: &str = "0.33.0";

/// A frontend, a recorder and an engine, in this order.
struct Chain {
    frontend: Frontend,
    recorder: Record,
    engine: Play,
    capture: PathBuf,
}

impl Chain {
    /// `None` if the frontend has not been fetched.
    fn start(options: &FrontendOptions, folder: &Path, name: &str, engine: &[&str]) -> Option<Self> {
        let mut frontend = Frontend::start(VERSION, options)?;
        let capture = folder.join(name);
        let record = ["--record-tokens", "--record-prompts", "--model", "sim"];
        let recorder = Record::start(&frontend.handshake_address(), &capture, &record);
        let engine = Play::start(
            recorder.engine_handshake(),
            &[&["--max-model-len", "4096", "--max-loras", "2"], engine].concat(),
        );
        frontend.wait_until_it_serves();
        Some(Self { frontend, recorder, engine, capture })
    }

    /// Ends the recorder, then the engine. Returns the records and the engine's exit code.
    fn end(mut self) -> (Vec<RequestRecord>, Option<i32>) {
        self.recorder.terminate();
        assert!(self.recorder.wait().success(), "a signal is not a failure");
        self.engine.terminate();
        let code = self.engine.wait().code();
        (records(&self.capture), code)
    }
}

/// Requests of a capture in order of arrival.
fn records(capture: &Path) -> Vec<RequestRecord> {
    let mut reader = CaptureReader::open(capture, &ReadOptions::default()).expect("a capture");
    let mut records = Vec::new();
    while let Some((_, line)) = reader.next_line().expect("a capture that is whole") {
        if let CaptureLine::Request(record) = line {
            records.push(*record);
        }
    }
    assert_eq!(reader.summary().broken_off, None, "it was ended in order");
    records.sort_by_key(|record| record.arrival_ns);
    records
}

fn adapters(folder: &TempDir) -> FrontendOptions {
    let path = folder.path().to_str().expect("a path in text").to_owned();
    FrontendOptions {
        env: vec![
            ("VLLM_ALLOW_RUNTIME_LORA_UPDATING".to_owned(), "1".to_owned()),
            ("VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES".to_owned(), path),
        ],
        ..FrontendOptions::default()
    }
}

/// Requests all kinds of answers, sequentially and in parallel, and returns the results. Clients disconnect only if
/// `is_first`, because a playback does not repeat that.
fn mixed_workload(frontend: &Frontend, adapter: &TempDir, is_first: bool) -> Vec<Value> {
    let path = adapter.path().to_str().expect("a path in text");
    let loaded = frontend.post("/v1/load_lora_adapter", &json!({"lora_name": "mine", "lora_path": path}));
    assert_eq!(loaded.status, 200, "{}", loaded.body);
    let mut answers = Vec::new();
    let mut keep = |answer: &Value| answers.push(answer["choices"].clone());
    keep(&frontend.complete(&json!("Hello world"), &json!({"max_tokens": 7})));
    keep(&frontend.complete(&json!("Hello world"), &json!({"max_tokens": 9, "seed": 3})));
    keep(&frontend.complete(&json!("Hello world"), &json!({"max_tokens": 5, "model": "mine"})));
    keep(&frontend.complete(&json!("Salted"), &json!({"max_tokens": 4, "cache_salt": "tenant"})));
    let probable = frontend.complete(&json!("Probable"), &json!({"max_tokens": 4, "logprobs": 1}));
    keep(&json!({"choices": probable["choices"][0]["text"]}));

    // A conversation: each request repeats the previous answer and adds a message.
    let mut messages = vec![json!({"role": "user", "content": "Begin the story of a lighthouse and of its keeper."})];
    for turn in 0..3 {
        let chat = frontend.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 20})).ok();
        let said = chat["choices"][0]["message"]["content"].clone();
        keep(&json!({"choices": said}));
        messages.push(json!({"role": "assistant", "content": said}));
        messages.push(json!({"role": "user", "content": format!("Go on, part {turn}.")}));
    }

    let body = json!({"prompt": "Interrupted", "max_tokens": 4000, "ignore_eos": true});
    let mut events = frontend.stream("/v1/completions", &body);
    let begin: String =
        (0..4).filter_map(|_| Some(events.next()?["choices"][0]["text"].as_str()?.to_owned())).collect();
    keep(&json!({ "choices": begin }));
    if is_first {
        drop(events);
    } else {
        let last = events.last().expect("it ends by itself");
        assert_eq!(last["choices"][0]["finish_reason"], "abort", "{last}");
    }

    let at_once: Vec<Value> = std::thread::scope(|scope| {
        let ask = |number: usize| {
            move || {
                let more = json!({"max_tokens": 30 + number});
                frontend.stream_completion(&json!(format!("At once, number {}", number / 2)), &more).text
            }
        };
        let asked: Vec<_> = (0..8).map(|number| scope.spawn(ask(number / 2 * 2))).collect();
        asked.into_iter().map(|thread| json!(thread.join().expect("an answer"))).collect()
    });
    answers.extend(at_once);
    answers
}

#[test]
fn a_mixed_workload_comes_back_token_by_token() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let adapter = tempfile::tempdir().expect("a temporary folder");
    let options = adapters(&adapter);
    let live = ["--decode-step-time", "2ms", "--prefill-step-time", "5ms"];
    let Some(chain) = Chain::start(&options, folder.path(), "live.jsonl.gz", &live) else { return };
    let answers = mixed_workload(&chain.frontend, &adapter, true);
    chain.engine.wait_for("reason=Abort");
    let capture = chain.capture.clone();
    let (recorded, _) = chain.end();
    let reasons = |records: &[RequestRecord], reason: &str| {
        records.iter().filter(|record| record.finish_reason.as_deref() == Some(reason)).count()
    };
    assert_eq!((recorded.len(), reasons(&recorded, "abort")), (17, 1));

    let capture = capture.to_str().expect("a path in text");
    for (number, times) in ["recorded", "model"].into_iter().enumerate() {
        let report = folder.path().join(format!("report-{number}.json"));
        let report_path = report.to_str().expect("a path in text");
        let again = [
            "--playback",
            capture,
            "--playback-times",
            times,
            "--strict",
            "--playback-report",
            report_path,
            "--seed",
            "99",
        ];
        let name = format!("again-{number}.jsonl");
        let chain = Chain::start(&options, folder.path(), &name, &again).expect("it is fetched");
        assert_eq!(mixed_workload(&chain.frontend, &adapter, false), answers, "times: {times}");
        let (replayed, code) = chain.end();
        assert_eq!(code, Some(0));
        let report: Value = serde_json::from_slice(&std::fs::read(report).expect("a report")).expect("it is JSON");
        assert_eq!((&report["exact"], &report["unused"], &report["unmatched"]), (&json!(17), &json!(0), &json!(0)));
        same_answers(&recorded, &replayed);
        assert_eq!(reasons(&replayed, "abort"), 1);
    }
}

/// Fails unless requests with the same prompt got the same tokens, in order of arrival.
fn same_answers(recorded: &[RequestRecord], replayed: &[RequestRecord]) {
    let sorted = |records: &[RequestRecord]| {
        let mut records: Vec<_> = records.to_vec();
        records.sort_by_key(|record| (record.prompt_hash, record.output_token_ids.clone()));
        records
    };
    let (recorded, replayed) = (sorted(recorded), sorted(replayed));
    assert_eq!(recorded.len(), replayed.len());
    for (old, new) in recorded.iter().zip(&replayed) {
        assert_eq!(old.prompt_hash, new.prompt_hash);
        assert_eq!(old.prompt_token_ids, new.prompt_token_ids);
        assert_eq!(old.output_token_ids, new.output_token_ids, "{old:?}");
        assert_eq!(old.finish_reason, new.finish_reason, "{old:?}");
    }
}

#[test]
fn a_strict_replay_ends_at_a_prompt_that_is_not_in_the_capture() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = FrontendOptions::default();
    let Some(chain) = Chain::start(&options, folder.path(), "live.jsonl", &[]) else { return };
    chain.frontend.complete(&json!("Known"), &json!({"max_tokens": 3}));
    let capture = chain.capture.clone();
    chain.end();

    let mut frontend = Frontend::start(VERSION, &options).expect("it is fetched");
    let capture = capture.to_str().expect("a path in text");
    let mut engine = Play::start(&frontend.handshake_address(), &["--playback", capture, "--strict"]);
    frontend.wait_until_it_serves();
    frontend.complete(&json!("Known"), &json!({"max_tokens": 3}));
    let refused = frontend.post("/v1/completions", &json!({"prompt": "Unknown", "max_tokens": 3}));
    assert!(refused.status >= 400, "{}", refused.body);
    assert_eq!(engine.wait().code(), Some(1));
    assert!(engine.log().contains("the first block that differs is number 0"), "{}", engine.log());
}

/// Runs an agent that calls a tool until it has three numbers, then adds them up. Returns the transcript.
fn agent(frontend: &Frontend) -> Vec<Value> {
    let schema = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    let tool = json!({"name": "price", "description": "The price of a trip.", "parameters": schema, "strict": true});
    let tools = json!([{"type": "function", "function": tool}]);
    let choice = json!({"type": "function", "function": {"name": "price"}});
    let mut messages = vec![json!({"role": "user", "content": "Plan three trips, and tell me what each costs."})];
    for turn in 0..4 {
        let mut body = json!({"messages": messages, "max_tokens": 300});
        if turn < 3 {
            body["tools"] = tools.clone();
            body["tool_choice"] = choice.clone();
        }
        let chat = frontend.post("/v1/chat/completions", &body).ok();
        let mut said = chat["choices"][0]["message"].clone();
        let Some(call) = said["tool_calls"].get_mut(0) else {
            messages.push(json!({"role": "assistant", "content": said["content"]}));
            continue;
        };
        // The frontend makes the ID up.
        call["id"] = json!(format!("call-{turn}"));
        let arguments = call["function"]["arguments"].as_str().expect("a text").to_owned();
        let price = price(&serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{error}: {arguments}")));
        messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call.clone()]}));
        messages.push(json!({"role": "tool", "tool_call_id": format!("call-{turn}"), "content": price.to_string()}));
    }
    messages
}

/// The tool: the price is a function of the arguments.
fn price(trip: &Value) -> i64 {
    let letters = trip["city"].as_str().expect("a city").bytes().map(i64::from).sum::<i64>();
    letters.wrapping_add(trip["days"].as_i64().unwrap_or(1).wrapping_mul(7))
}

#[test]
fn an_agent_recorded_once_plays_offline() {
    let Some(tokens) = json_tokens() else { return };
    let Some(guest) = shipped_guest("json-tokens") else { return };
    let guest = guest.to_str().expect("a path in text");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = FrontendOptions {
        args: ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"].map(str::to_owned).to_vec(),
        ..FrontendOptions::default()
    };
    let config = tokens.to_string();
    let live = ["--tokens", guest, "--tokens-config", &config];
    let Some(chain) = Chain::start(&options, folder.path(), "agent.jsonl.zst", &live) else { return };
    let transcript = agent(&chain.frontend);
    assert!(transcript.iter().filter(|message| message["role"] == "tool").count() == 3, "{transcript:?}");
    let capture = chain.capture.clone();
    chain.end();

    let mut frontend = Frontend::start(VERSION, &options).expect("it is fetched");
    let capture = capture.to_str().expect("a path in text");
    // The engine has no guest: all of its output comes from the capture.
    let _engine = Play::start(&frontend.handshake_address(), &["--playback", capture, "--strict"]);
    frontend.wait_until_it_serves();
    assert_eq!(agent(&frontend), transcript);
}

/// Output of a run that plays a capture and makes these assertions.
fn run_capture(answers: &str, assertions: &str) -> Said {
    let lines = [
        json!({"kind": "meta", "format": "vcr.capture", "version": 1}),
        json!({"kind": "request", "id": "a", "arrival_ns": 1_000_000_000, "prompt_tokens": 40, "cached_tokens": 16,
            "output_tokens": 6, "first_tokens": 1, "ttft_ns": 30_000_000, "gap_ns": [10_000_000, 20_000_000],
            "gap_tokens": [4, 1], "finish_reason": "stop", "session": "s", "queue_ns": 5_000_000}),
        json!({"kind": "request", "id": "b", "arrival_ns": 1_100_000_000, "prompt_tokens": 20, "output_tokens": 2,
            "ttft_ns": 50_000_000, "gap_ns": [500_000_000], "end_ns": 700_000_000, "finish_reason": "abort"}),
        json!({"kind": "request", "id": "c", "arrival_ns": 2_060_000_000, "prompt_tokens": 60, "output_tokens": 1,
            "ttft_ns": 70_000_000, "finish_reason": "length", "session": "s"}),
        json!({"kind": "end", "at_ns": 3_000_000_000u64, "requests": 3, "unfinished": 0}),
    ];
    let capture: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let folder = Folder::with(&format!(
        r#"//! A capture in virtual time.
let seen = run(#{{
    workloads: [trace(#{{ path: "day.jsonl", answers: "{answers}", speedup: 2.0 }})],
    cluster: cluster(#{{ engines: pool(#{{ engines: 1, latency: fixed(#{{ step: "1ms" }}) }}) }}),
}});
{assertions}
"#
    ));
    folder.write("day.jsonl", capture);
    folder.vcr(&["run", "test.rhai"])
}

#[test]
fn a_capture_plays_in_virtual_time_as_it_was() {
    // All times are halved. The session's second request waits for the first one's answer, and then a second.
    let said = run_capture(
        "recorded",
        r#"
expect(seen, "requests", "count == 3");
expect(seen, "completed", "count == 2");
expect(seen, "failed", "count == 1");
expect(seen, "ttft", "min == 15ms");
expect(seen, "ttft", "max == 35ms");
expect(seen, "itl", "max == 250ms");
expect(seen, "itl", "count == 6");
expect(seen, "e2e", "min == 30ms");
expect(seen, "steps", "count == 0");
"#,
    );
    assert_eq!(said.code, 0, "{said:?}");
    let said = run_capture("simulated", r#"expect(seen, "completed", "count == 3");"#);
    assert_eq!(said.code, 0, "{said:?}");
    let said = run_capture("as it was", "");
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("recorded"), "{said:?}");
}
