//! `vcr record` between a real frontend of vLLM and `vcr play`.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use vcr_tests::{Folder, Frontend, FrontendOptions, Play, Record, capture, free_port};
use vcr_wire::{DataAddress, FrontendConfig, FrontendListener, Transport};

const RELEASE: &str = "0.33.0";

/// A frontend, a recorder and an engine, in this order.
struct Chain {
    frontend: Frontend,
    record: Record,
    play: Play,
    out: PathBuf,
    _folder: TempDir,
}

/// `None`, with a message, if the frontend has not been fetched.
fn chain(options: &FrontendOptions, name: &str, record: &[&str], play: &[&str]) -> Option<Chain> {
    let mut frontend = Frontend::start(RELEASE, options)?;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join(name);
    let record = Record::start(&frontend.handshake_address(), &out, record);
    let engines = options.engines.to_string();
    let all = [&["--max-model-len", "4096", "--data-parallel-size", &engines], play].concat();
    let play = Play::start(record.engine_handshake(), &all);
    frontend.wait_until_it_serves();
    Some(Chain { frontend, record, play, out, _folder: folder })
}

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

/// Waits until `is_true` for the lines of the capture on disk.
#[track_caller]
fn wait_until(chain: &Chain, what: &str, is_true: impl Fn(&[Value]) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !chain.out.exists() || !is_true(&capture(&chain.out)) {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn count(value: &Value) -> usize {
    value.as_array().map_or(0, Vec::len)
}

#[test]
fn chats_whole_and_streamed_with_logprobs() {
    let play = ["--decode-step-time", "5ms", "--prefill-step-time", "20ms", "--enable-logging-iteration-details"];
    let Some(chain) = chain(&FrontendOptions::default(), "a.jsonl", &["--model", "sim", "--gpu", "h100"], &play) else {
        return;
    };
    // The text is longer than a block, so that the second request finds a cached block.
    let text = "Tell me everything about the weather in the mountains, and why it is as it is.";
    let answers = [
        chain.frontend.chat(text, &json!({"max_tokens": 7}))["usage"].clone(),
        chain.frontend.stream_chat(text, &json!({"max_tokens": 7, "stream_options": {"include_usage": true}})).usage,
        chain.frontend.chat(text, &json!({"max_tokens": 7, "logprobs": true, "top_logprobs": 20}))["usage"].clone(),
    ];
    wait_until(&chain, "all are over", |lines| of_kind(lines, "request").len() == 3);
    let lines = chain.record.end();
    assert_eq!(
        (&lines[0]["kind"], &lines[0]["model"], &lines[0]["gpu"]),
        (&json!("meta"), &json!("sim"), &json!("h100"))
    );
    assert_eq!(lines[0]["vllm_version"], RELEASE);
    assert_eq!(of_kind(&lines, "engine").len(), 1);
    assert_eq!((of_kind(&lines, "arrival").len(), of_kind(&lines, "break").len()), (3, 0));
    let requests = of_kind(&lines, "request");
    for (request, usage) in requests.iter().zip(&answers) {
        assert_eq!((&request["prompt_tokens"], &request["output_tokens"]), (&usage["prompt_tokens"], &json!(7)));
        assert_eq!((request["finish_reason"].as_str(), count(&request["gap_ns"])), (Some("length"), 6));
        // On a busy machine, a token may come late, and the next one soon after it. No token comes before its time.
        let ttft_ns = request["ttft_ns"].as_u64().expect("a time");
        let gaps_ns = request["gap_ns"].as_array().expect("gaps").iter().filter_map(Value::as_u64);
        assert!(ttft_ns >= 20_000_000, "{request}");
        assert!(ttft_ns + gaps_ns.sum::<u64>() >= (20 + 6 * 5) * 1_000_000, "{request}");
        assert_eq!(count(&request["block_hashes"]) as u64, request["prompt_tokens"].as_u64().expect("a count") / 16);
        assert_eq!((count(&request["steps"]["running"]), count(&request["steps"]["prefill_tokens"])), (7, 7));
        assert_eq!(request["params"]["max_tokens"], 7);
        assert!(request.get("output_token_ids").is_none() && request.get("prompt_token_ids").is_none());
        assert_eq!(request["prompt_hash"], requests[0]["prompt_hash"], "the same prompt has the same hash");
    }
    assert!(requests[1]["cached_tokens"].as_u64() >= Some(16), "{}", requests[1]);
    let steps = of_kind(&lines, "step");
    assert_eq!(steps.iter().filter_map(|step| step["tokens"].as_u64()).sum::<u64>(), 21);
    assert!(steps.iter().any(|step| step["scheduler"]["iteration_details"]["num_ctx_tokens"].as_u64() > Some(0)));
    let end = lines.last().expect("lines");
    assert_eq!((&end["kind"], &end["requests"], &end["unfinished"]), (&json!("end"), &json!(3), &json!(0)));
}

#[test]
fn tokens_only_where_they_are_asked_for() {
    let Some(chain) = chain(&FrontendOptions::default(), "a.jsonl", &["--record-tokens", "--record-prompts"], &[])
    else {
        return;
    };
    let prompt = json!([5, 6, 7, 8, 9]);
    _ = chain.frontend.complete(&prompt, &json!({"max_tokens": 4, "temperature": 0.5}));
    wait_until(&chain, "it is over", |lines| of_kind(lines, "request").len() == 1);
    let lines = chain.record.end();
    let request = of_kind(&lines, "request")[0];
    assert_eq!((&request["prompt_token_ids"], count(&request["output_token_ids"])), (&prompt, 4));
    assert_eq!(request["params"]["temperature"], 0.5);
    assert_eq!(lines[0]["holds"]["prompt_tokens"], true);
}

/// Each request is recorded with its engine.
#[test]
fn two_engines() {
    let options = FrontendOptions { engines: 2, ..FrontendOptions::default() };
    let Some(chain) = chain(&options, "a.jsonl", &[], &["--decode-step-time", "60ms"]) else { return };
    std::thread::scope(|scope| {
        for index in 0..6 {
            let frontend = &chain.frontend;
            scope.spawn(move || frontend.complete(&json!(format!("prompt {index}")), &json!({"max_tokens": 10})));
        }
    });
    wait_until(&chain, "all are over", |lines| of_kind(lines, "request").len() == 6);
    let lines = chain.record.end();
    assert_eq!(of_kind(&lines, "engine").len(), 2);
    let of_rank =
        |rank: u64| of_kind(&lines, "request").iter().filter(|line| line["rank"].as_u64().unwrap_or(0) == rank).count();
    assert_eq!((of_rank(0), of_rank(1)), (3, 3), "the frontend balances by what engines tell");
}

/// Engines with a mixture of experts wait at the coordinator's gate.
#[test]
fn engines_with_a_coordinator() {
    let options = FrontendOptions { engines: 2, is_moe: true, ..FrontendOptions::default() };
    let Some(chain) = chain(&options, "a.jsonl", &[], &[]) else { return };
    let answer = chain.frontend.complete(&json!("Hello"), &json!({"max_tokens": 5}));
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    wait_until(&chain, "it is over", |lines| of_kind(lines, "request").len() == 1);
    assert!(chain.record.log().contains("coordinator=true"));
    chain.record.end();
}

#[test]
fn adapters() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("paths of tests are text");
    let mut options = FrontendOptions::default();
    options.env.push(("VLLM_ALLOW_RUNTIME_LORA_UPDATING".to_owned(), "1".to_owned()));
    options.env.push(("VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES".to_owned(), path.to_owned()));
    let Some(chain) = chain(&options, "a.jsonl", &[], &["--max-loras", "2"]) else { return };
    let load = json!({"lora_name": "mine", "lora_path": path});
    assert_eq!(chain.frontend.post("/v1/load_lora_adapter", &load).status, 200, "calls of the engine pass");
    for model in ["sim", "mine"] {
        _ = chain.frontend.complete(&json!("Hello"), &json!({"max_tokens": 2, "model": model}));
    }
    wait_until(&chain, "all are over", |lines| of_kind(lines, "request").len() == 2);
    let lines = chain.record.end();
    let requests = of_kind(&lines, "request");
    assert_eq!((requests[0].get("lora"), &requests[1]["lora"]), (None, &json!("mine")));
    assert_ne!(requests[0]["prompt_hash"], requests[1]["prompt_hash"], "adapters share no cache");
}

#[test]
fn a_client_that_goes_away_aborts() {
    let play = ["--decode-step-time", "10ms"];
    let Some(chain) = chain(&FrontendOptions::default(), "a.jsonl", &[], &play) else { return };
    let mut events = chain.frontend.stream("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 2000}));
    assert!(events.next().is_some());
    drop(events);
    wait_until(&chain, "it is over", |lines| of_kind(lines, "request").len() == 1);
    let lines = chain.record.end();
    let request = of_kind(&lines, "request")[0];
    assert_eq!(request["finish_reason"], "abort");
    let tokens = request["output_tokens"].as_u64().expect("a count");
    assert!((1..2000).contains(&tokens), "{tokens}");
    assert_eq!(count(&request["gap_ns"]) as u64, tokens - 1);
}

/// vLLM's Rust frontend does not accept `n`, so clients send several requests. The recorder keeps concurrent
/// requests apart.
#[test]
fn requests_under_way_are_distinguished() {
    let Some(chain) = chain(&FrontendOptions::default(), "a.jsonl", &[], &["--decode-step-time", "10ms"]) else {
        return;
    };
    std::thread::scope(|scope| {
        for tokens in 5..9 {
            let frontend = &chain.frontend;
            scope.spawn(move || frontend.complete(&json!("Hello"), &json!({"max_tokens": tokens})));
        }
    });
    wait_until(&chain, "all are over", |lines| of_kind(lines, "request").len() == 4);
    let lines = chain.record.end();
    let requests = of_kind(&lines, "request");
    let mut tokens: Vec<_> = requests.iter().filter_map(|request| request["output_tokens"].as_u64()).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [5, 6, 7, 8]);
    assert!(requests.iter().any(|request| request["concurrency"].as_u64() > Some(1)));
}

/// Finished requests can be read, packed or not, although the recorder never closed the file.
#[test]
fn a_recorder_that_is_killed_leaves_what_was_over() {
    for name in ["a.jsonl", "a.jsonl.gz"] {
        let Some(mut chain) = chain(&FrontendOptions::default(), name, &[], &[]) else { return };
        for _ in 0..3 {
            _ = chain.frontend.complete(&json!("Hello"), &json!({"max_tokens": 3}));
        }
        // The recorder may buffer lines for a moment.
        wait_until(&chain, "all are on the disk", |lines| of_kind(lines, "request").len() == 3);
        chain.record.kill();
        let lines = capture(&chain.out);
        assert_eq!(of_kind(&lines, "request").len(), 3);
        assert!(of_kind(&lines, "end").is_empty());
    }
}

/// The first signal ends a capture cleanly, with the unfinished requests in it.
#[test]
fn a_signal_ends_the_capture_with_what_is_under_way() {
    let play = ["--decode-step-time", "20ms"];
    let Some(chain) = chain(&FrontendOptions::default(), "a.jsonl", &["--json"], &play) else { return };
    let mut events = chain.frontend.stream("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 2000}));
    assert!(events.next().is_some());
    wait_until(&chain, "it is under way", |lines| !of_kind(lines, "step").is_empty());
    let lines = chain.record.end();
    let request = of_kind(&lines, "request")[0];
    assert!(request.get("finish_reason").is_none() && request["output_tokens"].as_u64() > Some(0), "{request}");
    assert_eq!(lines.last().map(|end| &end["unfinished"]), Some(&json!(1)));
    drop(chain.play);
}

#[test]
fn files_that_are_there_are_left_alone() {
    let folder = Folder::new();
    folder.write("there.jsonl", "mine");
    let said = folder.vcr(&["record", "--out", "there.jsonl"]).ended(2);
    assert!(said.stderr.contains("exists already") && said.stderr.contains("--force"), "{}", said.stderr);
    let said = folder.vcr(&["record", "--out", "a.csv"]).ended(2);
    assert!(said.stderr.contains(".jsonl.zst"), "{}", said.stderr);
    let said = folder.vcr(&["record", "--out", "a.jsonl", "--engine-handshake", "tcp://0.0.0.0:1"]).ended(2);
    assert!(said.stderr.contains("--bind-host"), "{}", said.stderr);
}

#[test]
fn addresses_that_cannot_be_are_reported() {
    let folder = Folder::new();
    for (args, wanted) in [
        (&["--frontend-handshake", "tcp://127.0.0.1:99999"][..], "the port is `99999`"),
        (&["--engine-handshake", "tcp://127.0.0.1:99999"], "the port is `99999`"),
        (&["--engine-handshake", "ipc:///no/such/folder/a"], "expected a folder /no/such/folder"),
        (&["--kv-events", "here"], "invalid address `here`"),
        (&["--frontend-handshake", "tcp://127.0.0.1:29560"], "invalid engine address tcp://127.0.0.1:29560"),
        (
            &[
                "--frontend-handshake",
                "tcp://localhost:5",
                "--engine-handshake",
                "tcp://*:5",
                "--bind-host",
                "127.0.0.1",
            ],
            "expected another one than the frontend's, tcp://localhost:5",
        ),
    ] {
        let said = folder.vcr(&[&["record", "--out", "a.jsonl"], args].concat()).ended(2).stderr;
        assert!(said.contains(wanted), "{args:?}: {said}");
        assert!(!folder.path().join("a.jsonl").exists(), "{args:?}");
    }
}

#[test]
fn waiting_is_said_and_may_be_limited() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let nobody = format!("tcp://127.0.0.1:{}", free_port());
    let mut record = Record::start(&nobody, &folder.path().join("a.jsonl"), &["--connect-timeout", "3s"]);
    record.wait_for(&format!("waiting for engines at {} (2 s)", record.engine_handshake()));
    let _play = Play::start(record.engine_handshake(), &[]);
    record.wait_for(&format!("waiting for the frontend at {nobody} (2 s), which has not answered engine 0"));
    assert_eq!(record.wait().code(), Some(2));
    record.wait_for(&format!("the frontend at {nobody} has not answered engine 0 within 3 s"));

    let mut record = Record::start(&nobody, &folder.path().join("b.jsonl"), &["--connect-timeout", "100ms"]);
    assert_eq!(record.wait().code(), Some(2));
    record.wait_for("no engine has connected to");
}

/// Recorded sampling parameters equal those that an engine compares with them.
#[test]
fn among_equal_prompts_the_record_with_equal_parameters_answers() {
    let Some(chain) = chain(&FrontendOptions::default(), "a.jsonl", &["--record-tokens"], &[]) else { return };
    let bodies = [
        json!({"max_tokens": 5, "seed": 1, "temperature": 0.7, "top_p": 0.9}),
        json!({"max_tokens": 50, "seed": 2, "temperature": 0.7, "stop": ["never said"], "min_tokens": 3}),
        json!({"max_tokens": 7, "seed": 3, "logit_bias": {"5": -1.5}, "frequency_penalty": 0.25, "top_k": 7}),
    ];
    let text = |answer: Value| answer["choices"][0]["text"].clone();
    let ask = |frontend: &Frontend, body: &Value| text(frontend.complete(&json!("Tell me more"), body));
    let recorded: Vec<Value> = bodies.iter().map(|body| ask(&chain.frontend, body)).collect();
    wait_until(&chain, "all are over", |lines| of_kind(lines, "request").len() == 3);
    let _ = chain.record.end();

    let Some(mut frontend) = Frontend::start(RELEASE, &FrontendOptions::default()) else { return };
    let capture = chain.out.to_str().expect("a path in text");
    let report = chain.out.with_file_name("report.json");
    let report_path = report.to_str().expect("a path in text");
    let args = ["--max-model-len", "4096", "--playback", capture, "--strict", "--playback-report", report_path];
    let mut play = Play::start(&frontend.handshake_address(), &args);
    frontend.wait_until_it_serves();
    for index in [2, 1] {
        assert_eq!(ask(&frontend, &bodies[index]), recorded[index], "{}", bodies[index]);
    }
    assert!(!play.log().contains("sampling parameters"), "{}", play.log());
    assert_eq!(ask(&frontend, &json!({"max_tokens": 9, "seed": 1, "temperature": 0.7, "top_p": 0.9})), recorded[0]);
    let said = play.wait_for("no record that is left has its sampling parameters");
    assert!(said.contains("max_tokens 5, not 9"), "{said}");
    play.terminate();
    assert!(play.wait().success());
    let report: Value = serde_json::from_slice(&std::fs::read(&report).expect("it was written")).expect("JSON");
    assert_eq!((&report["exact"], &report["other_params"]), (&json!(3), &json!(1)));
}

/// The recorder cannot record an engine whose INIT cannot be readdressed, and must not exit as if it had.
#[test]
fn an_init_that_cannot_be_relayed_is_a_failure() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // This frontend has no API server.
    let frontend = FrontendConfig {
        handshake_address: "tcp://127.0.0.1:*".to_owned(),
        data: DataAddress::Ipc { folder: folder.path().to_owned() },
        clients: 0,
        engines: 1,
        coordinator: false,
    };
    let listener = FrontendListener::bind(&Transport::new(), frontend).expect("the address is free");
    let mut record = Record::start(listener.handshake_address(), &folder.path().join("a.jsonl"), &[]);
    let _play = Play::start(record.engine_handshake(), &[]);
    let greeting = thread::spawn(move || listener.accept(Duration::from_secs(60)).map(drop));
    record.wait_for("the frontend's answer to the engine was not handed on: ");
    record.terminate();
    assert_eq!(record.wait().code(), Some(3));
    record.wait_for("error: 1 INIT message of the frontend could not be relayed, so engines were not recorded");
    drop(greeting);
}
