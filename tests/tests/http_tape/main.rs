//! `vcr record --upstream` in front of servers, and `vcr serve --playback` of its recordings.

mod agents;
mod load;
mod playback;
mod vllm;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use vcr_tests::{Authority, Call, Folder, HttpAnswer, Running, Serve, capture, client, read_answer, wait_until};

const CHATS: &str = "/v1/chat/completions";
const JSON: (&str, &str) = ("Content-Type", "application/json");

/// A recorder in front of a server.
struct Recording {
    running: Running,
    address: String,
    out: PathBuf,
}

impl Recording {
    fn start(upstream: &str, out: &Path, args: &[&str]) -> Self {
        let path = out.to_str().expect("paths of tests are text");
        let running =
            Running::start(&[&["record", "--upstream", upstream, "--port", "0", "--out", path], args].concat());
        let line = running.wait_for(" on http");
        let address = line.rsplit("://").next().expect("the line has an address").trim().to_owned();
        Self { running, address, out: out.to_owned() }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn ask(&self, path: &str, body: &Value) -> HttpAnswer {
        post(&self.address, path, &[], body)
    }

    /// Stops the recorder with SIGTERM and returns its capture.
    #[track_caller]
    fn end(mut self) -> Vec<Value> {
        self.running.terminate();
        assert!(self.running.wait().success(), "a signal is not a failure");
        capture(&self.out)
    }
}

fn post(address: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> HttpAnswer {
    let (headers, body) = ([&[JSON], headers].concat(), body.to_string());
    Call { method: "POST", path, headers: &headers, body: body.as_bytes() }.send(address)
}

fn url(serve: &Serve) -> String {
    format!("http://{}", serve.address())
}

fn chat(text: &str, more: &Value) -> Value {
    let mut body = json!({"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 6});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

fn streamed(text: &str) -> Value {
    chat(text, &json!({"stream": true, "stream_options": {"include_usage": true}}))
}

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

/// The text of an answer's body in the capture.
fn body_of(line: &Value) -> String {
    let chunks = line["chunks"].as_array().map_or(&[][..], Vec::as_slice);
    chunks.iter().map(|chunk| chunk[1].as_str().expect("a text")).collect()
}

/// A server that reads requests and sends these answers, whatever is asked. Also returns the requests that it gets.
fn stub(answers: Vec<Vec<u8>>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let noted = Arc::clone(&seen);
    thread::spawn(move || {
        for answer in answers {
            let Ok((stream, _)) = listener.accept() else { return };
            let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                    break;
                }
                let lower = line.to_ascii_lowercase();
                length =
                    lower.strip_prefix("content-length:").map_or(length, |text| text.trim().parse().expect("a number"));
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("a body");
            noted.lock().expect("no panic").push(head + &String::from_utf8_lossy(&body));
            let mut stream = stream;
            _ = stream.write_all(&answer);
        }
    });
    (format!("http://{address}"), seen)
}

fn plain(head: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    [format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{head}Connection: close\r\n\r\n").as_bytes(), body]
        .concat()
}

#[test]
fn sdks_get_the_same_from_the_tape_as_from_the_server() {
    for (name, program) in [("sdks", "openai_sdk.py"), ("sdks", "anthropic_sdk.py"), ("litellm", "litellm_sdk.py")] {
        let Some(sdks) = client(name) else { return };
        let folder = Folder::new();
        let out = folder.path().join("day.jsonl.zst");
        let serve = Serve::start(&["--output-tokens", "20"]);
        let recording = Recording::start(&url(&serve), &out, &["--model", "sim"]);
        let recorded = sdks.report(program, &[&recording.url()]);
        recording.running.terminate();
        let Recording { mut running, .. } = recording;
        assert!(running.wait().success());
        drop(serve);
        let tape = Serve::start(&["--playback", out.to_str().expect("a text"), "--time-scale", "50"]);
        let played = sdks.report(program, &[&url(&tape)]);
        assert_eq!(played, recorded, "{program}");
        assert!(!tape.log().contains("not in the capture"), "{}", tape.log());
    }
}

#[test]
fn a_stream_has_both_lines_with_the_times_of_its_parts() {
    let folder = Folder::new();
    let serve = Serve::start(&["--prefill-step-time", "30ms", "--decode-step-time", "20ms"]);
    let recording = Recording::start(&url(&serve), &folder.path().join("a.jsonl"), &["--gpu", "h100"]);
    let answer = recording.ask(CHATS, &streamed("Hello"));
    let whole = recording.ask(CHATS, &chat("Hello", &json!({})));
    let models = Call { method: "GET", path: "/v1/models?a=%20b", headers: &[], body: b"" }.send(&recording.address);
    let lines = recording.end();
    assert_eq!((&lines[0]["holds"]["http"], &lines[0]["gpu"]), (&json!(true), &json!("h100")));
    let (http, requests) = (of_kind(&lines, "http"), of_kind(&lines, "request"));
    assert_eq!((http.len(), requests.len()), (3, 2));
    for (line, answer) in http.iter().zip([&answer, &whole, &models]) {
        assert_eq!((body_of(line), &line["status"]), (answer.text(), &json!(answer.status)));
    }
    assert_eq!((&http[2]["path"], &http[2]["query"]), (&json!("/v1/models"), &json!("a=%20b")));
    let stream = requests[0];
    assert_eq!((&stream["id"], &stream["output_tokens"]), (&http[0]["id"], &json!(6)));
    let times: Vec<u64> = http[0]["chunks"].as_array().expect("parts").iter().filter_map(|at| at[0].as_u64()).collect();
    let gaps: Vec<u64> = stream["gap_ns"].as_array().expect("gaps").iter().filter_map(Value::as_u64).collect();
    let ttft_ns = stream["ttft_ns"].as_u64().expect("a time");
    // No output comes before its time, and each gap is between two parts.
    assert!(ttft_ns >= 30_000_000 && ttft_ns + gaps.iter().sum::<u64>() >= 130_000_000, "{stream}");
    let mut at_ns = ttft_ns;
    for gap_ns in &gaps {
        assert!(times.contains(&at_ns), "{at_ns} in {times:?}");
        at_ns += gap_ns;
    }
    assert!(times.contains(&at_ns) && times.is_sorted());
    let usage: Value = serde_json::from_slice(&whole.body).expect("JSON");
    assert_eq!(requests[1]["prompt_tokens"], usage["usage"]["prompt_tokens"]);
    assert_eq!((&requests[1]["finish_reason"], &requests[1]["params"]["max_tokens"]), (&json!("length"), &json!(6)));
}

#[test]
fn recordings_are_read_as_other_captures() {
    let folder = Folder::with(
        r#"
        let day = capture("day.jsonl");
        let pool = pool(#{ engines: 1, engine: engine(#{}), latency: fixed(#{ step: "10ms" }) });
        let recorded = run(#{ name: "replayed", cluster: cluster(#{ engines: pool }),
            workloads: [trace(#{ path: "day.jsonl", answers: "recorded" })] });
        expect(recorded, "completed_ratio", "value == 100%");
        expect(recorded, "requests", "count == 24");
        "#,
    );
    let serve = Serve::start(&["--prefill-step-time", "10ms", "--decode-step-time", "5ms"]);
    let recording = Recording::start(&url(&serve), &folder.path().join("day.jsonl"), &[]);
    for number in 0..24 {
        let text = format!("Question {number}{}", " and more".repeat(number));
        assert_eq!(recording.ask(CHATS, &streamed(&text)).status, 200);
    }
    assert_eq!(recording.ask("/_vcr/requests", &json!({})).status, 404);
    recording.end();
    let summary = folder.vcr(&["inspect", "summarize", "day.jsonl", "--json"]).ended(0).json();
    assert_eq!((&summary["requests"], &summary["http"]), (&json!(24), &json!(24)));
    let said = folder.run(&[]).ended(0);
    assert!(said.stdout.contains("times: recorded in the traces\n"), "{}", said.stdout);
    _ = folder.vcr(&["compare", "day.jsonl", "day.jsonl"]).ended(0);
    // The times of a busy machine need not be fitted well.
    let engine = ["--engine", "num_gpu_blocks: 27_000", "--force"];
    _ = folder.vcr(&[&["fit", "day.jsonl", "--output", "model.json"], &engine[..]].concat()).ended(0);
}

#[test]
fn secrets_do_not_reach_the_file() {
    const SECRETS: [&str; 6] =
        ["bearer-secret-1", "api-secret-22", "cookie-secret-3", "query-secret-4", "mine-secret-5", "body-secret-6"];
    let folder = Folder::new();
    let echo = format!("{{\"error\":\"bad key {} of {}\",\"id\":\"{}\"}}", SECRETS[0], SECRETS[1], SECRETS[5]);
    let (server, seen) = stub(vec![plain("Set-Cookie: s=cookie-secret-3\r\n", echo.as_bytes())]);
    let redact = ["--redact-header", "x-mine", "--redact-json", "metadata.name", "--redact-json", "id"];
    let recording = Recording::start(&server, &folder.path().join("a.jsonl"), &redact);
    let headers = [
        ("Authorization", "Bearer bearer-secret-1"),
        ("X-Api-Key", "api-secret-22"),
        ("Cookie", "a=b; s=cookie-secret-3"),
        ("X-Mine", "mine-secret-5"),
    ];
    let key_like = "sk-abcdefghijklmnop0123456789";
    let body = json!({"metadata": {"name": "body-secret-6"}, "messages": [{"content": key_like}]});
    let answer = post(&recording.address, "/v1/x?api_key=query-secret-4&b=1", &headers, &body);
    assert_eq!(answer.text(), echo, "the client gets all");
    assert_eq!(answer.header("set-cookie"), Some("s=cookie-secret-3"));
    let sent = seen.lock().expect("no panic")[0].clone();
    assert!(SECRETS.iter().all(|secret| sent.contains(secret)), "and so does the server: {sent}");
    wait_until("it is written", || recording.out.exists() && of_kind(&capture(&recording.out), "http").len() == 1);
    let log = recording.running.log();
    let lines = recording.end();
    let text = Value::from(lines).to_string();
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(text.contains("api_key=[redacted]&b=1") && text.contains(key_like), "{text}");
    assert!(log.contains("look like keys"), "{log}");
}

#[test]
fn clients_that_go_away_leave_every_finished_exchange_on_the_tape() {
    let folder = Folder::new();
    let serve = Serve::start(&["--inter-token-latency", "3ms", "--max-num-seqs", "64"]);
    let out = folder.path().join("a.jsonl");
    let mut recording = Recording::start(&url(&serve), &out, &[]);
    let finished = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for worker in 0..8_u64 {
            let (address, finished) = (recording.address.as_str(), &finished);
            scope.spawn(move || {
                for number in 0..25 {
                    let place = worker * 25 + number;
                    let body = streamed(&format!("Question {place}")).to_string();
                    let call = Call { method: "POST", path: CHATS, headers: &[JSON], body: body.as_bytes() };
                    let mut stream = call.begin(address);
                    // Pseudo-random: some clients leave at once, some in the middle, most stay.
                    match place * 2_654_435_761 % 5 {
                        0 => drop(stream),
                        1 => drop(stream.read(&mut [0; 200])),
                        _ => {
                            let text = read_answer(stream).text();
                            finished.lock().expect("no panic").push((place, text));
                        }
                    }
                }
            });
        }
    });
    let finished = finished.into_inner().expect("no panic");
    assert!(finished.len() >= 100);
    let is_of = |line: &Value, place: u64| {
        let question = format!("Question {place}\"");
        line["request_body"].as_str().is_some_and(|body| body.contains(&question))
    };
    wait_until("all that ended is written", || {
        let lines = if out.exists() { capture(&out) } else { Vec::new() };
        finished.iter().all(|(place, _)| lines.iter().any(|line| is_of(line, *place)))
    });
    recording.running.kill();
    let lines = capture(&out);
    let http = of_kind(&lines, "http");
    for (place, text) in &finished {
        let line = http.iter().find(|line| is_of(line, *place)).unwrap_or_else(|| panic!("{place} is not there"));
        assert_eq!(&body_of(line), text, "{place}");
        assert!(of_kind(&lines, "request").iter().any(|request| request["id"] == line["id"]), "{place}");
    }
    assert!(http.iter().any(|line| line["end"] == "client_gone"), "some went away");
    _ = folder.vcr(&["inspect", "summarize", "a.jsonl"]).ended(0);
}

#[test]
fn captures_of_two_servers_are_judged() {
    let folder = Folder::new();
    let record = |name: &str, seed: &str, order: &[u32]| {
        let serve = Serve::start(&["--seed", seed]);
        let recording = Recording::start(&url(&serve), &folder.path().join(name), &[]);
        for number in order {
            let question = format!("Question {number}");
            let body = if *number == 1 { chat(&question, &json!({})) } else { streamed(&question) };
            assert_eq!(recording.ask(CHATS, &body).status, 200);
        }
        _ = recording.end();
    };
    record("old.jsonl", "1", &[1, 2, 3]);
    record("same.jsonl", "1", &[3, 1, 2]);
    record("other.jsonl", "2", &[3, 1, 2]);
    let limits = "latency_p95 = false\nttft_p95 = false\ntoken_gap_p95 = false\n";
    folder
        .write("policy.toml", format!("policy = 1\n[limits]\n{limits}[required]\nmatched = 3\n[segments]\nby = []\n"));
    let judged = |candidate: &str, code: i32| {
        folder
            .vcr(&["gate", "--policy", "policy.toml", "--baseline", "old.jsonl", "--candidate", candidate])
            .ended(code)
    };
    _ = judged("same.jsonl", 0);
    assert!(judged("other.jsonl", 20).stdout.contains("output_mismatch"));
}

#[test]
fn the_summary_counts_clients_that_went_away() {
    let folder = Folder::new();
    let serve = Serve::start(&["--inter-token-latency", "50ms"]);
    let mut recording = Recording::start(&url(&serve), &folder.path().join("a.jsonl"), &[]);
    let body = streamed("Hello").to_string();
    let call = Call { method: "POST", path: CHATS, headers: &[JSON], body: body.as_bytes() };
    let mut stream = call.begin(&recording.address);
    _ = stream.read(&mut [0; 20]).expect("it has begun");
    drop(stream);
    assert_eq!(recording.ask(CHATS, &chat("Bye", &json!({}))).status, 200);
    recording.running.terminate();
    assert!(recording.running.wait().success());
    let log = recording.running.log();
    assert!(log.contains("2 exchanges (1 aborted)\n1 request, "), "{log}");
}

#[test]
fn bodies_are_passed_on_as_they_are() {
    let gzip = |text: &[u8]| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(text).expect("memory");
        packed.finish().expect("memory")
    };
    let packed = gzip(b"{\"packed\":true}");
    // The same text, compressed by Brotli's own encoder.
    let brotli = b"\x0b\x07\x80{\"packed\":true}\x03".to_vec();
    let long = vec![b'x'; 3000];
    let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf".to_vec();
    let binary = [0xff, 0x00, 0x80];
    let folder = Folder::new();
    let (server, _) = stub(vec![
        plain("Content-Encoding: gzip\r\n", &packed),
        plain("", &long),
        plain("Content-Encoding: br\r\n", &binary),
        plain("Content-Encoding: br\r\n", &brotli),
        cut,
    ]);
    let out = folder.path().join("a.jsonl");
    let recording = Recording::start(&format!("{server}/base/v1"), &out, &["--max-body-size", "2KB"]);
    assert_eq!(recording.ask("/v1/a", &json!({})).body, packed);
    assert_eq!(recording.ask("/v1/a", &json!({"long": "y".repeat(3000)})).body, long);
    assert_eq!(recording.ask("/v1/b", &json!({})).body, binary);
    assert_eq!(recording.ask("/v1/d", &json!({})).body, brotli);
    let mut broken = Vec::new();
    let call = Call { method: "POST", path: "/v1/c", headers: &[JSON], body: b"{}" };
    _ = call.begin(&recording.address).read_to_end(&mut broken);
    assert!(broken.ends_with(b"half"), "as far as it came");
    let refused = recording.ask("/v1/c", &json!({}));
    assert_eq!(refused.status, 502, "nobody listens any more");
    let upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
    let upgrade = Call { method: "GET", path: "/v1/realtime", headers: &upgrade, body: b"" }.send(&recording.address);
    assert!(upgrade.status == 501 && upgrade.text().contains("websocket"), "{}", upgrade.text());
    let lines = recording.end();
    let http = of_kind(&lines, "http");
    assert_eq!(http.len(), 6);
    for (index, encoding) in [(0, "gzip"), (3, "br")] {
        assert_eq!((body_of(http[index]).as_str(), &http[index]["decoded"]), ("{\"packed\":true}", &json!(encoding)));
    }
    assert!(http[1]["left_out_bytes"].as_u64() > Some(0) && http[1]["request_left_out_bytes"].as_u64() > Some(0));
    assert_eq!(http[2]["chunks"][0][1]["base64"], "/wCA");
    assert_eq!((body_of(http[4]).as_str(), &http[4]["end"]), ("half", &json!("server_lost")));
    assert_eq!((&http[5]["end"], http[5].get("status")), (&json!("server_lost"), None));
    // A complete answer can be played back even if it was sent compressed. A truncated answer is truncated again.
    let tape = Serve::start(&["--playback", out.to_str().expect("a text")]);
    for path in ["/v1/a", "/v1/d"] {
        assert_eq!(tape.post(path, &json!({})).body, json!({"packed": true}));
    }
    let answer = post(tape.address(), "/v1/b", &[], &json!({}));
    assert_eq!((answer.body.as_slice(), answer.header("content-encoding")), (&binary[..], Some("br")));
    let mut again = Vec::new();
    _ = call.begin(tape.address()).read_to_end(&mut again);
    assert!(again.ends_with(b"half"), "{}", String::from_utf8_lossy(&again));
}

#[test]
fn both_sides_speak_tls() {
    let authority = Authority::new("Tests");
    let certificate = authority.sign("127.0.0.1", "server");
    let [certfile, keyfile] = certificate.paths();
    let serve = Serve::start_tls(&["--ssl-certfile", certfile, "--ssl-keyfile", keyfile]);
    let folder = Folder::new();
    let (ca, upstream) = (authority.file(), format!("https://{}", serve.address()));
    let options = ["--upstream-ca", ca.to_str().expect("a text"), "--ssl-certfile", certfile, "--ssl-keyfile", keyfile];
    let outer = Recording::start(&upstream, &folder.path().join("outer.jsonl"), &options);
    // A second recorder in front of the first, so that the test can use plain HTTP.
    let between = format!("https://{}", outer.address);
    let inner = Recording::start(&between, &folder.path().join("inner.jsonl"), &options[..2]);
    let answer = inner.ask(CHATS, &streamed("Hello"));
    assert_eq!(answer.status, 200);
    let (inner, outer) = (inner.end(), outer.end());
    assert_eq!(body_of(of_kind(&inner, "http")[0]), answer.text());
    assert_eq!(body_of(of_kind(&outer, "http")[0]), answer.text());
    let untrusted = Recording::start(&upstream, &folder.path().join("a.jsonl"), &[]);
    assert_eq!(untrusted.ask(CHATS, &json!({})).status, 502);
}

#[test]
fn faults_of_a_proxy_are_for_clients_alone() {
    let folder = Folder::new();
    let serve = Serve::start(&[]);
    let faults = ["--client-fault", "status:code=503,call=1", "--client-fault", "truncate:after=2,call=2"];
    let recording = Recording::start(&url(&serve), &folder.path().join("a.jsonl"), &faults);
    assert_eq!(recording.ask(CHATS, &streamed("Hello")).status, 503);
    let cut = recording.ask(CHATS, &streamed("Hello")).text();
    let whole = recording.ask(CHATS, &streamed("Hello")).text();
    assert!(!cut.contains("[DONE]") && whole.contains("[DONE]"));
    let lines = recording.end();
    assert_eq!(of_kind(&lines, "http").len(), 2, "one never came to the server");
}
