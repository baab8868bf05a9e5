//! An engine of ours behind the real Rust frontend of vLLM 0.33.0.
//!
//! The frontend is the file `vllm/vllm-rs` of the official wheel, at
//! `target/frontends/0.33.0/vllm-rs` (`tests/frontends/fetch.sh` puts it there)
//! or where `VCR_VLLM_RS` says, which then must be right. Without it the test
//! says so and passes. The model is a vocabulary of a few words.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use serde_json::{Value as Json, json};
use vcr_wire::*;

use super::*;

const WORDS: [&str; 6] = ["<end>", "once", "upon", "a", "time", "forever"];
const END: u32 = 0;
const FOREVER: u32 = 5;

fn binary() -> Option<PathBuf> {
    let named = std::env::var_os("VCR_VLLM_RS").map(PathBuf::from);
    let must_be_there = named.is_some();
    let path =
        named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/frontends/0.33.0/vllm-rs"));
    if path.is_file() {
        return Some(path);
    }
    assert!(!must_be_there, "VCR_VLLM_RS names {}, and there is no such file", path.display());
    println!("SKIPPED: no frontend of vLLM 0.33.0 at {}", path.display());
    None
}

fn write_model(folder: &Path) {
    let vocabulary: Json = WORDS.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    let end = json!({
        "id": END, "content": WORDS[0], "special": true, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false,
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": WORDS[0]},
    });
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": WORDS.len(), "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": 64, "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "eos_token_id": END,
    });
    let files = [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", json!({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": WORDS[0]})),
        ("config.json", config),
        ("generation_config.json", json!({"eos_token_id": END})),
    ];
    for (name, content) in files {
        std::fs::write(folder.join(name), content.to_string()).expect("it can be written");
    }
}

/// The frontend's process, stopped when the test ends.
struct Frontend {
    process: Child,
    http_port: u16,
    log: PathBuf,
}

impl Drop for Frontend {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        if thread::panicking() {
            eprintln!("the frontend said:\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

fn start(binary: &Path, folder: &Path, handshake_port: u16) -> Frontend {
    write_model(folder);
    let log = folder.join("frontend.log");
    let output = std::fs::File::create(&log).expect("it can be written");
    let http_port = free_port();
    let process = Command::new(binary)
        .arg("serve")
        .arg(folder)
        .args(["--served-model-name", "sim", "--host", "127.0.0.1", "--port", &http_port.to_string()])
        .args(["--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", &handshake_port.to_string()])
        .args(["--data-parallel-size", "1", "--data-parallel-size-local", "0"])
        .env("HF_HUB_OFFLINE", "1")
        .stdout(Stdio::from(output.try_clone().expect("a handle")))
        .stderr(Stdio::from(output))
        .spawn()
        .expect("the frontend starts");
    Frontend { process, http_port, log }
}

impl Frontend {
    fn send(&self, method: &str, path: &str, body: &str) -> Option<BufReader<TcpStream>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.http_port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).expect("it is patient");
        let head = format!("{method} {path} HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n");
        let entity = format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all((head + &entity).as_bytes()).ok()?;
        Some(BufReader::new(stream))
    }

    /// The status and the body of an answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let mut text = String::new();
        self.send(method, path, body)?.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    fn wait_until_it_serves(&self) {
        let deadline = Instant::now() + 3 * PATIENCE;
        while self.ask("GET", "/v1/models", "").is_none_or(|(status, _)| status != 200) {
            assert!(Instant::now() < deadline, "the frontend does not serve");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A request, and what all before told of the frontend's line.
type Seen = (Request, LineEvidence);

/// Says `upon a time` to each request, a token a message, unless its prompt is
/// `forever`: such a request gets one token and nothing more.
fn serve(mut engine: EngineLink, seen: &Sender<Seen>) {
    let rules = Line::V0_33.rules();
    let mut step = StepEncoder::new(rules);
    let mut frame = Vec::new();
    let stats = SchedulerStats::of_line(rules);
    while let Some(received) = engine.inputs.receive(PATIENCE).expect("the library works") {
        let Received::Request { request, .. } = received else { return };
        if let Request::Add(add) = &request {
            let prompt = add.prompt_token_ids.as_ref().expect("a prompt");
            let tokens: &[u32] = if prompt[..] == [FOREVER] { &[1] } else { &[2, 3, 4] };
            for (index, token) in tokens.iter().enumerate() {
                if index == 0 {
                    step.output(&first_output(&add.request_id, *token, prompt.len() as u64));
                } else {
                    let finish = (index + 1 == tokens.len()).then_some((FinishReason::Length, None));
                    step.tokens(&add.request_id, &[*token], finish);
                }
                frame.clear();
                let scheduler_stats = Some(&stats);
                let end = StepEnd { timestamp: 10.0 + index as f64, scheduler_stats, ..StepEnd::default() };
                step.finish(end, &mut frame);
                engine.outputs.send(0, &frame).expect("it is sent");
            }
        }
        let evidence = engine.inputs.line_evidence().expect("the first message is ADD");
        if seen.send((request, evidence)).is_err() {
            return;
        }
    }
}

/// The first output of a request says what happened to it, and here also how
/// likely its token was.
fn first_output(request_id: &str, token: u32, prompt_tokens: u64) -> EngineCoreOutput {
    let rows = LogprobRows { width: 2, token_ids: vec![token, 5], logprobs: vec![-0.25, -1.5], ranks: vec![1] };
    let event = |kind, timestamp| EngineCoreEvent { kind, timestamp };
    EngineCoreOutput {
        request_id: request_id.to_owned(),
        new_token_ids: vec![token],
        new_logprobs: Some(rows.sampled()),
        events: Some(vec![event(EventType::Queued, 9.0), event(EventType::Scheduled, 9.5)]),
        prefill_stats: Some(PrefillStats {
            num_prompt_tokens: prompt_tokens,
            num_computed_tokens: prompt_tokens,
            ..PrefillStats::default()
        }),
        ..EngineCoreOutput::default()
    }
}

fn next_add(seen: &Receiver<Seen>) -> EngineCoreRequest {
    match seen.recv_timeout(PATIENCE).expect("a request comes") {
        (Request::Add(request), evidence) => {
            assert_eq!((evidence.oldest, evidence.newest), (Line::V0_32, Line::V0_33));
            *request
        }
        other => panic!("a request was expected, but this is {other:?}"),
    }
}

#[test]
fn the_real_frontend_is_served() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().expect("there is room");
    let handshake_port = free_port();
    let frontend = start(&binary, folder.path(), handshake_port);
    let config = EngineLinkConfig {
        timeout: 3 * PATIENCE,
        ..EngineLinkConfig::new(format!("tcp://127.0.0.1:{handshake_port}"), 0)
    };
    let greeting = EngineGreeting::hello(&Transport::new(), config).expect("the frontend is there");
    assert_eq!(greeting.init().addresses.inputs.len(), 1);
    let engine = greeting.ready(&ready_response(0)).expect("it says READY");
    let (sender, seen) = channel();
    thread::spawn(move || serve(engine, &sender));
    frontend.wait_until_it_serves();

    let body = |stream: bool, prompt: &str| json!({"model": "sim", "prompt": prompt, "max_tokens": 3, "temperature": 0, "seed": 7, "stream": stream});
    whole_answer(&frontend, &seen, &body(false, "once"));
    streamed_answer(&frontend, &seen, &body(true, "once"));
    disconnect(&frontend, &seen, &body(true, "forever"));
}

fn whole_answer(frontend: &Frontend, seen: &Receiver<Seen>, body: &Json) {
    let mut body = body.clone();
    body["logprobs"] = json!(1);
    let (status, answer) = frontend.ask("POST", "/v1/completions", &body.to_string()).expect("it answers");
    assert_eq!(status, 200, "{answer}");
    let answer: Json = serde_json::from_str(&answer).expect("it is JSON");
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"].as_str().map(str::trim), Some("upon a time"), "{answer}");
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["logprobs"]["token_logprobs"][0], -0.25);
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(1), &json!(3)));

    let request = next_add(seen);
    assert_eq!(request.prompt_token_ids, Some(vec![1]));
    let params = request.sampling_params.expect("it samples");
    assert_eq!((params.max_tokens, params.temperature, params.logprobs), (Some(3), 0.0, Some(1)));
    assert_eq!((params.eos_token_id, params.seed), (Some(END), Some(Integer::from(7_u64))));
}

fn streamed_answer(frontend: &Frontend, seen: &Receiver<Seen>, body: &Json) {
    let (status, answer) = frontend.ask("POST", "/v1/completions", &body.to_string()).expect("it answers");
    assert_eq!(status, 200, "{answer}");
    let events = answer.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::trim);
    let events: Vec<&str> = events.collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let mut text = String::new();
    let mut reason = Json::Null;
    for event in &events[..events.len() - 1] {
        let event: Json = serde_json::from_str(event).expect("it is JSON");
        text += event["choices"][0]["text"].as_str().expect("a text");
        reason = event["choices"][0]["finish_reason"].clone();
    }
    assert_eq!((text.trim(), reason), ("upon a time", json!("length")));
    // A token a message arrives as a token an event.
    assert!(events.len() > 3, "{events:?}");
    assert_eq!(next_add(seen).prompt_token_ids, Some(vec![1]));
}

fn disconnect(frontend: &Frontend, seen: &Receiver<Seen>, body: &Json) {
    let mut stream = frontend.send("POST", "/v1/completions", &body.to_string()).expect("it listens");
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(stream.read_line(&mut line).expect("the first token comes") > 0, "the stream ended");
    }
    let request = next_add(seen);
    drop(stream);
    let (aborted, _) = seen.recv_timeout(PATIENCE).expect("the frontend notices");
    assert_eq!(aborted, Request::Abort(vec![request.request_id]));
}
