//! Clients that use many resources: memory stays bounded, and other clients are served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;
use vcr_tests::{Folder, Serve, byte_tokenizer, wait_until};

const MIB: f64 = 1_048_576.0;

/// Value of a series of the metrics; 0 if it is missing.
fn metric(serve: &Serve, series: &str) -> f64 {
    let answer = ureq::get(format!("http://{}/metrics", serve.address())).call().expect("it is served");
    let text = answer.into_body().read_to_string().expect("it is text");
    let line = text.lines().find_map(|line| line.strip_prefix(series));
    line.map_or(0.0, |value| value.trim().parse().expect("a number"))
}

fn memory_mib(serve: &Serve) -> f64 {
    metric(serve, "process_resident_memory_bytes") / MIB
}

fn assert_serves(serve: &Serve) {
    let reply = serve.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 3, "ignore_eos": true}));
    assert_eq!((reply.status, &reply.body["usage"]["completion_tokens"]), (200, &json!(3)), "{reply:?}");
}

/// Unread answers wait in the server and take a few bytes per token.
#[test]
fn clients_that_never_read_take_little_memory() {
    const CLIENTS: u32 = 8;
    let serve = Serve::start(&["--tokens", "random", "--max-model-len", "110000", "--num-gpu-blocks", "60000"]);
    let request = json!({"prompt": "a", "max_tokens": 100_000, "ignore_eos": true, "stream": true});
    assert_serves(&serve);
    let before = memory_mib(&serve);
    let mut connections: Vec<_> = (0..CLIENTS).map(|_| serve.begin("/v1/completions", &request)).collect();
    let ended = r#"vllm:request_success_total{model_name="sim",engine="0",finished_reason="length"}"#;
    // The engine has made all tokens, including those of the first request.
    wait_until("all requests end", || metric(&serve, ended) >= f64::from(CLIENTS + 1));
    let more = memory_mib(&serve) - before;
    // As text in events, the answers would take 180 MiB. The measured growth includes the blocks of the KV cache.
    assert!(more < 64.0, "{more} MiB");
    assert_serves(&serve);
    // No part of the answer was lost.
    let mut answer = String::new();
    connections.remove(0).read_to_string(&mut answer).expect("the answer ends");
    assert!(answer.matches("\ndata: ").count() > 1 && answer.contains("data: [DONE]"));
    assert!(answer.contains("\"finish_reason\":\"length\""));
}

#[test]
fn half_a_request_keeps_nobody_waiting() {
    let serve = Serve::start(&["--http-timeout-keep-alive", "1"]);
    let mut connections = Vec::new();
    for part in ["", "PO", "POST /v1/completions HTTP/1.1\r\nContent-Le"] {
        for _ in 0..100 {
            let mut connection = TcpStream::connect(serve.address()).expect("it listens");
            connection.write_all(part.as_bytes()).expect("it reads");
            connections.push(connection);
        }
    }
    assert_serves(&serve);
    // The server cuts the connections off. Otherwise, this would wait forever.
    for mut connection in connections {
        _ = connection.read_to_end(&mut Vec::new());
    }
    assert_serves(&serve);
}

/// Head of a request whose body never ends, and the beginning of the body.
fn unending(path: &str, length: &str) -> String {
    let begin = if length.contains("chunked") { "1\r\n{\r\n" } else { "{" };
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{length}\r\n\r\n{begin}")
}

fn connected(serve: &Serve, text: &str) -> TcpStream {
    let mut connection = TcpStream::connect(serve.address()).expect("it listens");
    connection.write_all(text.as_bytes()).expect("it reads");
    connection
}

/// All that the server sends until it closes the connection.
fn answer(mut connection: TcpStream) -> String {
    let mut answer = Vec::new();
    // The server resets a connection with unread bytes after the answer.
    _ = connection.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Bodies of all lengths have a time limit, which takes effect without another request.
#[test]
fn bodies_that_stop_are_ended() {
    let serve = Serve::start(&["--request-body-timeout", "1"]);
    let known = "content-length: 1000";
    let stopped = [
        ("/v1/completions", known, "RequestTimeoutError"),
        ("/v1/completions", "content-length: 1000000", "RequestTimeoutError"),
        ("/v1/completions", "transfer-encoding: chunked", "RequestTimeoutError"),
        ("/v1/messages", known, "timeout_error"),
        ("/pause", known, "paused"),
        ("/update_weights", known, "RequestTimeoutError"),
    ];
    let connections = stopped.map(|(path, length, _)| connected(&serve, &unending(path, length)));
    for ((path, length, kind), connection) in stopped.into_iter().zip(connections) {
        let answer = answer(connection);
        let status = if path == "/pause" { "HTTP/1.1 200" } else { "HTTP/1.1 408" };
        assert!(answer.starts_with(status) && answer.contains(kind), "{path} {length}: {answer}");
    }
    assert_eq!(serve.post("/resume", &json!({})).status, 200);
    assert_serves(&serve);
}

/// A server that ran out of file descriptors serves again when the silent clients have timed out.
#[test]
fn silent_clients_do_not_stop_service_for_good() {
    let serve = Serve::start(&["--request-body-timeout", "2", "--http-timeout-keep-alive", "2"]);
    serve.limit_descriptors(120);
    let body = unending("/v1/completions", "content-length: 1000");
    let silent: Vec<_> = (0..300).map(|number| connected(&serve, if number % 2 == 0 { "" } else { &body })).collect();
    // A connection waits in the socket's queue, or is refused until the queue has room.
    wait_until("it serves again", || {
        let Ok(mut connection) = TcpStream::connect(serve.address()) else { return false };
        connection.set_read_timeout(Some(Duration::from_secs(5))).expect("a time");
        let mut answer = [0; 12];
        connection.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").is_ok()
            && connection.read_exact(&mut answer).is_ok()
            && answer.starts_with(b"HTTP/1.1 200")
    });
    drop(silent);
    assert_serves(&serve);
}

#[test]
fn a_body_above_the_limit_is_refused_by_its_length() {
    let serve = Serve::start(&["--max-request-body-size", "1MiB"]);
    for (path, kind) in [("/v1/completions", "RequestTooLargeError"), ("/v1/messages", "request_too_large")] {
        let refused = answer(connected(&serve, &unending(path, "content-length: 1048577")));
        assert!(refused.starts_with("HTTP/1.1 413") && refused.contains(kind), "{refused}");
        assert!(refused.contains("1048576 bytes"), "{refused}");
    }
    // A chunked body is read up to the limit.
    let mut chunks = connected(&serve, &unending("/v1/completions", "transfer-encoding: chunked"));
    _ = chunks.write_all(format!("100001\r\n{}\r\n0\r\n\r\n", "x".repeat(0x10_0001)).as_bytes());
    let refused = answer(chunks);
    assert!(refused.starts_with("HTTP/1.1 413"), "{refused}");
    assert_serves(&serve);
}

/// Clients that announce large bodies and then stall reserve no memory that others need.
#[test]
fn stalled_large_bodies_delay_nobody() {
    const LENGTH: usize = 32 << 20;
    let serve = Serve::start(&[
        "--max-request-body-size",
        "32MiB",
        "--max-request-body-memory",
        "64MiB",
        "--request-body-timeout",
        "86400",
    ]);
    let begun = format!("{}{}", unending("/v1/completions", &format!("content-length: {LENGTH}")), " ".repeat(300_000));
    let stalled: Vec<_> = (0..8).map(|_| connected(&serve, &begun)).collect();
    let body = format!(r#"{{"prompt":"{}","max_tokens":1}}"#, "word ".repeat(LENGTH / 5 - 10));
    let reply = serve.post_text("/v1/completions", &body);
    assert_eq!(reply.status, 400, "the prompt is too long: {reply:?}");
    // No stalled connection was closed.
    for mut connection in stalled {
        let rest = LENGTH - 300_001;
        connection.write_all(&vec![b' '; rest]).expect("it is still read");
        let answer = answer(connection);
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
}

#[test]
fn prompts_of_a_hundred_thousand_tokens_are_answered() {
    let serve = Serve::start(&["--max-model-len", "300000", "--num-gpu-blocks", "30000"]);
    let tokens: Vec<u32> = (0..100_000).map(|place| 300 + place % 50).collect();
    let reply = serve.post("/v1/completions", &json!({"prompt": tokens, "max_tokens": 1}));
    assert_eq!((reply.status, &reply.body["usage"]["prompt_tokens"]), (200, &json!(100_000)));
    let text = "word ".repeat(100_000);
    let chat = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 1});
    let reply = serve.post("/v1/chat/completions", &chat);
    assert_eq!(reply.status, 200);
    assert!(reply.body["usage"]["prompt_tokens"].as_u64().is_some_and(|tokens| tokens >= 100_000));
}

#[test]
fn bodies_have_a_limit_and_so_has_what_they_become() {
    let serve = Serve::start(&["--max-request-body-size", "8MiB"]);
    let body = |prompt: &str| format!(r#"{{"prompt":{prompt},"max_tokens":1}}"#);
    assert_serves(&serve);
    let before = memory_mib(&serve);
    // Prompts of the longest allowed length: a text, tokens, and invalid types.
    let text = format!("\"{}\"", "word ".repeat(1_600_000));
    let list = |item: &str| format!("[{}{item}]", format!("{item},").repeat(7_900_000 / (item.len() + 1)));
    for prompt in [text, list("1"), list("{}"), list("[]")] {
        let reply = serve.post_text("/v1/completions", &body(&prompt));
        assert_eq!(reply.status, 400, "{reply:?}");
    }
    let more = memory_mib(&serve) - before;
    assert!(more < 200.0, "{more} MiB");
    // This list is shorter than a text may be, but each of its items takes a hundred bytes in memory.
    let chat = format!(r#"{{"messages":{}}}"#, list("1").replace(",1]", ",1,1,1]"));
    let reply = serve.post_text("/v1/chat/completions", &chat);
    assert_eq!(reply.status, 400);
    assert_serves(&serve);
}

/// A body exists once as received and once as parsed, and later as a text and its tokens.
#[test]
fn large_bodies_are_copied_few_times() {
    const LENGTH: usize = 16 << 20;
    let times = |text: &str| text.repeat(LENGTH / text.len());
    let chat = |content: &str| format!(r#"{{"messages":[{{"role":"user","content":{content}}}],"max_tokens":1}}"#);
    let text = chat(&format!("\"{}\"", times("The quick brown fox jumps over the lazy dog.\\n")));
    let part = format!(r#"{{"type":"text","text":"{}"}},"#, "The quick brown fox. ".repeat(50));
    for (path, body, most) in [
        ("/v1/chat/completions", text.clone(), 6.0),
        ("/v1/chat/completions", chat(&format!("[{}]", times(&part).trim_end_matches(','))), 8.5),
        ("/v1/chat/completions", text.replace(":1}", ":-1}"), 4.5),
        ("/v1/messages", format!("[{}0]", times("0,")), 4.0),
        ("/tokenize", text, 8.0),
    ] {
        let serve = Serve::start(&[]);
        assert_serves(&serve);
        let before = serve.peak_memory_bytes();
        let status = serve.post_text(path, &body).status;
        assert_eq!(status, if path == "/tokenize" { 200 } else { 400 });
        let more = (serve.peak_memory_bytes() - before) as f64 / LENGTH as f64;
        assert!(more < most, "{path} {body:.100} took {more} times {LENGTH} bytes");
    }
}

/// The memory of a large body is free for the next one, whichever thread handles it.
#[test]
fn large_bodies_one_after_the_other_take_the_memory_of_few() {
    const BODIES: usize = 60;
    let serve = Serve::start(&[]);
    assert_serves(&serve);
    let before = serve.peak_memory_bytes();
    let body = format!(r#"{{"prompt":[{}1],"max_tokens":1}}"#, "1,".repeat(2 << 20));
    for _ in 0..BODIES {
        assert_eq!(serve.post_text("/v1/completions", &body).status, 400);
    }
    let more = (serve.peak_memory_bytes() - before) as f64 / MIB;
    assert!(more < 240.0, "{BODIES} bodies of 4 MiB took {more} MiB");
}

/// Large bodies share a limit of memory: a body without room is not read, and blocks neither short bodies nor later
/// ones.
#[test]
fn large_bodies_wait_for_memory() {
    const LENGTH: usize = 32 << 20;
    let serve = Serve::start(&["--max-request-body-size", "32MiB", "--max-request-body-memory", "64MiB"]);
    let body = format!(r#"{{"prompt":"{}","max_tokens":1}}"#, "word ".repeat(LENGTH / 5 - 10));
    let head = |length: &str| {
        let fixed = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
        format!("{fixed}\r\n{length}\r\n\r\n")
    };
    let (begin, end) = body.split_at(body.len() - 1);
    let known = head(&format!("content-length: {}", body.len()));
    let in_chunks = format!("{}{:x}\r\n", head("transfer-encoding: chunked"), body.len());
    let end_of_chunks = format!("{end}\r\n0\r\n\r\n");
    let send = |head: &str| {
        let mut connection = TcpStream::connect(serve.address()).expect("it listens");
        // Writing the body fails if the server reads nothing beyond the sockets' buffers.
        connection.set_write_timeout(Some(Duration::from_secs(1))).expect("a time");
        connection.write_all(head.as_bytes()).expect("it reads heads");
        connection.write_all(begin.as_bytes()).map(|()| connection)
    };
    let finish = |mut connection: TcpStream, end: &str| {
        let mut answer = String::new();
        connection.write_all(end.as_bytes()).expect("it reads");
        connection.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("context length"), "{answer}");
    };
    let first = send(&known).expect("there is room");
    // A chunked body does not announce its length, so it may have any.
    let second = send(&in_chunks).expect("there is room");
    assert!(send(&known).is_err(), "there is no room");
    assert!(send(&in_chunks).is_err(), "there is no room");
    assert_serves(&serve);
    let small = format!(r#"{{"prompt":"{}","max_tokens":1}}"#, "word ".repeat(20_000));
    assert_eq!(serve.post_text("/v1/completions", &small).status, 200);
    finish(first, end);
    finish(second, &end_of_chunks);
    finish(send(&in_chunks).expect("there is room again"), &end_of_chunks);
    finish(send(&known).expect("there is room again"), end);
}

/// A model's own tokenizer needs many times a text's length in memory. Texts that are too long are refused by their
/// length, and others are tokenized one at a time.
#[test]
fn texts_for_a_tokenizer_of_a_model_take_bounded_memory() {
    const LENGTH: usize = 7_000_000;
    const AT_ONCE: usize = 3;
    let folder = Folder::new();
    folder.write("tokenizer.json", byte_tokenizer().to_string());
    let model = folder.path().to_str().expect("a path is a text");
    let serve =
        Serve::start(&[model, "--served-model-name", "sim", "--max-model-len", "100000", "--num-gpu-blocks", "10000"]);
    let text = "word ".repeat(LENGTH / 5);
    let all_at_once = |path: &str, body: String| {
        let before = serve.peak_memory_bytes();
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(|| serve.post_text(path, &body))).collect();
            let replies: Vec<_> = asked.into_iter().map(|asked| asked.join().expect("it is answered")).collect();
            (replies, (serve.peak_memory_bytes() - before) as f64 / LENGTH as f64)
        })
    };
    assert_serves(&serve);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": text})),
        ("/v1/embeddings", json!({"input": text})),
        ("/score", json!({"text_1": text, "text_2": "word"})),
    ] {
        let (replies, more) = all_at_once(path, body.to_string());
        for reply in replies {
            let error = &reply.body["error"];
            assert_eq!((reply.status, &error["param"]), (400, &json!("input_text")), "{path} {error}");
            assert!(
                error["message"].as_str().is_some_and(|text| text.contains("at most 100000 characters")),
                "{error}"
            );
        }
        assert!(more < 8.0 * AT_ONCE as f64, "{path} took {more} times a text");
    }
    let (replies, more) = all_at_once("/tokenize", json!({"prompt": text}).to_string());
    for reply in replies {
        assert_eq!((reply.status, &reply.body["count"]), (200, &json!(LENGTH)));
    }
    // Tokenizing one text after the other takes 190 times a text, including the token lists of all texts.
    assert!(more < 260.0, "/tokenize took {more} times a text");
    assert_serves(&serve);
    // After truncation, the prompt is no longer too long.
    let cut = json!({"prompt": &text[..200_000], "truncate_prompt_tokens": 10, "max_tokens": 1});
    assert_eq!(serve.post("/v1/completions", &cut).body["usage"]["prompt_tokens"], 10);
}

/// A request whose client has disconnected ends during or after the current step.
#[test]
fn a_closed_connection_costs_one_step_at_most() {
    let serve = Serve::start(&["--tokens", "random", "--inter-token-latency", "400ms", "--log-requests"]);
    let request = json!({"prompt": "a", "max_tokens": 1000, "ignore_eos": true, "stream": true});
    let mut connection = serve.begin("/v1/completions", &request);
    let mut answer = Vec::new();
    let events = |answer: &[u8]| String::from_utf8_lossy(answer).matches("data: ").count();
    while events(&answer) < 2 {
        let mut part = [0; 1024];
        let count = connection.read(&mut part).expect("the answer begins");
        answer.extend_from_slice(&part[..count]);
    }
    drop(connection);
    let line = serve.wait_for("reason=Abort");
    let tokens = line.split("output_tokens=").nth(1).and_then(|rest| rest.split(' ').next()).expect("a count");
    let tokens: usize = tokens.parse().expect("a number");
    assert!((2..=3).contains(&tokens), "{line}");
}

#[test]
fn a_failure_has_an_id_that_the_log_has() {
    let serve = Serve::start(&["--fault", "error"]);
    let request = json!({"prompt": "a", "max_tokens": 1000, "ignore_eos": true});
    let mut connection = serve.begin("/v1/completions", &request);
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("it is answered");
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    let id = answer.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("an id").trim();
    serve.wait_for(id);
}
